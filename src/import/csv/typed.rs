//! Text of a column that the collection's schema gives another type.
//!
//! Without a schema a value stays the text that it is: an airport `01G` or a zip code is no number.
//! With one, the text must be a value of its type to the last byte; the empty text is null.

use arrow_array::builder::StringBuilder;
use arrow_array::{Array as _, ArrayRef, StringArray, make_array};
use arrow_cast::cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;

/// Whether values of a type are read from text. Nested values and bytes are not.
pub(crate) fn is_read_from_text(kind: &DataType) -> bool {
    kind.is_numeric() || kind.is_temporal() || matches!(kind, DataType::Boolean)
}

/// The values that a column of text spells, or the first row (from 0) that spells none.
pub(crate) fn values(text: &StringArray, kind: &DataType) -> Result<ArrayRef, usize> {
    let mut filled = StringBuilder::new();
    for value in text {
        match value {
            None | Some("") => filled.append_null(),
            Some(value) => filled.append_value(value),
        }
    }
    let filled = filled.finish();
    let options = CastOptions { safe: true, ..CastOptions::default() };
    // A zone says how instants are shown; the parser knows none by name.
    let instant = match kind {
        DataType::Timestamp(unit, Some(_)) => &DataType::Timestamp(*unit, Some("+00:00".into())),
        kind => kind,
    };
    let mut values = cast_with_options(&filled, instant, &options).map_err(|_unfit| 0_usize)?;
    if instant != kind {
        let renamed = values.to_data().into_builder().data_type(kind.clone()).build();
        values = make_array(renamed.map_err(|_unfit| 0_usize)?);
    }
    let lost = |row: &usize| values.is_null(*row) && filled.is_valid(*row);
    match (0..filled.len()).find(lost) {
        Some(row) => Err(row),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::TimestampMicrosecondType;
    use arrow_schema::TimeUnit;

    use super::*;

    #[track_caller]
    fn check(kind: &DataType, text: &[&str], expect: Result<usize, usize>) {
        let found = values(&StringArray::from(text.to_vec()), kind);
        assert_eq!(found.map(|values| values.null_count()), expect, "{text:?}");
    }

    #[test]
    fn text_is_a_value_of_its_type_or_an_error() {
        check(&DataType::Int64, &["1", "-9223372036854775808", ""], Ok(1));
        check(&DataType::Int64, &["1", "x"], Err(1));
        check(&DataType::Int64, &["9223372036854775808"], Err(0));
        check(&DataType::Int8, &["127", "128"], Err(1));
        check(&DataType::Float64, &["0.1", "1e300", "-0"], Ok(0));
        check(&DataType::Float64, &["1", "1,5"], Err(1));
        check(&DataType::Boolean, &["true", "false", ""], Ok(1));
        check(&DataType::Boolean, &["maybe"], Err(0));
        check(&DataType::Date32, &["2024-02-29", "2023-02-29"], Err(1));
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        check(&utc, &["2024-02-29T12:00:00Z", "", "2024-02-29T12:00:00.5+02:00"], Ok(1));
        check(&utc, &["2024-02-29T12:00:00Z", "noon"], Err(1));
        let text = StringArray::from(vec!["1970-01-01T02:00:00+02:00"]);
        let found = values(&text, &utc).unwrap();
        assert_eq!(found.data_type(), &utc);
        assert_eq!(found.as_primitive::<TimestampMicrosecondType>().value(0), 0);
    }
}
