//! The columns of JSON rows: what values a column has, the one type that holds them all exactly.
//!
//! | values of the column | type |
//! | --- | --- |
//! | none but null | Null |
//! | booleans | Boolean |
//! | integers | Int64; UInt64 when one is above its range and none is negative |
//! | numbers, one with a fraction or an exponent | Float64, when it holds every integer exactly |
//! | strings | Utf8 |
//! | anything else: arrays, objects, a mixture | JSON text |
//!
//! JSON text is Utf8 of the Arrow extension type `arrow.json`: the value as the source spells it,
//! without whitespace between its parts. It is not turned into lists and structs, because those
//! cannot tell a missing member from a null one, reorder members, and have no type for a mixture:
//! a replay would not give the source's values back.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::NullArray;
use arrow_array::builder::{
    BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, UInt64Builder,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::value::{Member, Value, compacted};

/// Columns by name, with a memory of which of them a row already had.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    names: Vec<String>,
    index: HashMap<String, usize>,
    /// The last row that had the column.
    seen: Vec<u64>,
    /// Column expected next: most rows have the same keys in the same order.
    expected: usize,
}

/// Where a member belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Column(usize),
    /// The row had the key already.
    Twice,
    Unknown,
}

impl Columns {
    /// Columns of these names, in this order.
    pub(crate) fn of(names: impl IntoIterator<Item = String>) -> Self {
        let mut columns = Self::default();
        names.into_iter().for_each(|name| {
            columns.push(name);
        });
        columns
    }

    /// Adds a column behind the others.
    pub(crate) fn push(&mut self, name: String) -> usize {
        let at = self.names.len();
        self.index.insert(name.clone(), at);
        self.names.push(name);
        self.seen.push(0);
        at
    }

    /// The column of a key in a row (from 1), which is marked as seen in it.
    pub(crate) fn find(&mut self, key: &str, row: u64) -> Found {
        let hinted = self.names.get(self.expected).is_some_and(|name| name == key);
        let at = if hinted { Some(self.expected) } else { self.index.get(key).copied() };
        let Some(at) = at else { return Found::Unknown };
        self.expected = if at + 1 == self.names.len() { 0 } else { at + 1 };
        match self.seen.get_mut(at) {
            Some(seen) if *seen == row => Found::Twice,
            Some(seen) => {
                *seen = row;
                Found::Column(at)
            }
            None => Found::Unknown,
        }
    }

    /// Whether the row had the column.
    pub(crate) fn has(&self, at: usize, row: u64) -> bool {
        self.seen.get(at) == Some(&row)
    }

    /// The names in order.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
}

/// What values a column has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    const BOOL: u8 = 1;
    const INTEGER: u8 = 1 << 1;
    const NEGATIVE: u8 = 1 << 2;
    const ABOVE_I64: u8 = 1 << 3;
    const NOT_IN_F64: u8 = 1 << 4;
    const FLOAT: u8 = 1 << 5;
    const TEXT: u8 = 1 << 6;
    const NESTED: u8 = 1 << 7;

    /// Takes a value into account.
    pub(crate) fn add(&mut self, value: &Value<'_>) {
        self.0 |= match value {
            Value::Null => 0,
            Value::Bool(_) => Self::BOOL,
            Value::I64(value) => {
                let sign = if *value < 0 { Self::NEGATIVE } else { 0 };
                Self::INTEGER | sign | inexact(value.unsigned_abs())
            }
            Value::U64(value) => Self::INTEGER | Self::ABOVE_I64 | inexact(*value),
            Value::F64(_) => Self::FLOAT,
            Value::Text(_) => Self::TEXT,
            Value::Nested => Self::NESTED,
        };
    }

    /// The values that a column of a collection has: of numbers, whether they are floats.
    pub(crate) fn expected(field: &Field) -> Self {
        Self(if field.data_type() == &DataType::Float64 { Self::FLOAT } else { 0 })
    }

    /// Whether all values are numbers.
    fn is_numeric(self) -> bool {
        self.0 != 0
            && matches!(self.column_type(), ColumnType::I64 | ColumnType::U64 | ColumnType::F64)
    }

    /// The same, as the column of a collection takes them: integers that are exact as floats do
    /// not make it a column of another type.
    pub(crate) fn within(mut self, expected: Self) -> Self {
        if self.is_numeric() {
            let widened = Self(self.0 | expected.0);
            if widened.column_type() != ColumnType::Json {
                self = widened;
            }
        }
        self
    }

    /// Takes the values of the same column of another source into account.
    pub(crate) fn merge(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// The type that holds all the values exactly.
    pub(crate) fn column_type(self) -> ColumnType {
        let has = |bits: u8| self.0 & bits != 0;
        let numbers =
            Self::INTEGER | Self::NEGATIVE | Self::ABOVE_I64 | Self::NOT_IN_F64 | Self::FLOAT;
        match self.0 {
            0 => ColumnType::Null,
            Self::BOOL => ColumnType::Bool,
            Self::TEXT => ColumnType::Text,
            bits if bits & !numbers != 0 => ColumnType::Json,
            _ if has(Self::FLOAT) && has(Self::NOT_IN_F64) => ColumnType::Json,
            _ if has(Self::FLOAT) => ColumnType::F64,
            _ if has(Self::ABOVE_I64) && has(Self::NEGATIVE) => ColumnType::Json,
            _ if has(Self::ABOVE_I64) => ColumnType::U64,
            _ => ColumnType::I64,
        }
    }
}

/// The schema of columns, each with the values that any of the sources has in it.
pub(crate) fn schema_among(
    schema: &Schema,
    kinds: &[Kinds],
    all: &HashMap<String, Kinds>,
) -> SchemaRef {
    let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let merged = names.iter().zip(kinds);
    let merged = merged.map(|(name, own)| all.get(name).copied().unwrap_or(*own));
    schema_of(&names, &merged.collect::<Vec<_>>())
}

fn inexact(magnitude: u64) -> u8 {
    let bits = u64::BITS - magnitude.leading_zeros();
    let significant = bits.saturating_sub(magnitude.trailing_zeros());
    if significant > f64::MANTISSA_DIGITS { Kinds::NOT_IN_F64 } else { 0 }
}

/// The type of a column of JSON rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Null,
    Bool,
    I64,
    U64,
    F64,
    Text,
    Json,
}

impl ColumnType {
    fn field(self, name: &str) -> Field {
        let data_type = match self {
            Self::Null => DataType::Null,
            Self::Bool => DataType::Boolean,
            Self::I64 => DataType::Int64,
            Self::U64 => DataType::UInt64,
            Self::F64 => DataType::Float64,
            Self::Text | Self::Json => DataType::Utf8,
        };
        let field = Field::new(name, data_type, true);
        if self == Self::Json { json_text(field) } else { field }
    }

    /// The type behind a field that [`schema_of`] made.
    fn of(field: &Field) -> Option<Self> {
        Some(match field.data_type() {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Bool,
            DataType::Int64 => Self::I64,
            DataType::UInt64 => Self::U64,
            DataType::Float64 => Self::F64,
            DataType::Utf8 if is_json_text(field) => Self::Json,
            DataType::Utf8 => Self::Text,
            _ => return None,
        })
    }
}

/// Name of the Arrow extension type for text that is JSON.
const JSON_TEXT: (&str, &str) = ("ARROW:extension:name", "arrow.json");

/// The field, marked as JSON text.
pub(crate) fn json_text(field: Field) -> Field {
    let (key, name) = JSON_TEXT;
    field.with_metadata(HashMap::from([(key.to_owned(), name.to_owned())]))
}

/// Whether the text of a field is JSON.
pub(crate) fn is_json_text(field: &Field) -> bool {
    field.metadata().get(JSON_TEXT.0).is_some_and(|name| name == JSON_TEXT.1)
}

/// The schema of columns with these values.
pub(crate) fn schema_of(names: &[String], kinds: &[Kinds]) -> SchemaRef {
    let fields = names.iter().zip(kinds).map(|(name, kinds)| kinds.column_type().field(name));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The values of one column of a batch.
pub(crate) enum ColumnBuilder {
    Null(usize),
    Bool(BooleanBuilder),
    I64(Int64Builder),
    U64(UInt64Builder),
    F64(Float64Builder),
    Text(StringBuilder),
    Json(StringBuilder),
}

impl ColumnBuilder {
    /// A builder for a field that [`schema_of`] made.
    pub(crate) fn of(field: &Field) -> Option<Self> {
        Some(match ColumnType::of(field)? {
            ColumnType::Null => Self::Null(0),
            ColumnType::Bool => Self::Bool(BooleanBuilder::new()),
            ColumnType::I64 => Self::I64(Int64Builder::new()),
            ColumnType::U64 => Self::U64(UInt64Builder::new()),
            ColumnType::F64 => Self::F64(Float64Builder::new()),
            ColumnType::Text => Self::Text(StringBuilder::new()),
            ColumnType::Json => Self::Json(StringBuilder::new()),
        })
    }

    /// Appends a value; false when the column cannot hold it.
    pub(crate) fn append(&mut self, member: &Member<'_>) -> bool {
        match (self, &member.value) {
            (column, Value::Null) => column.append_null(),
            (Self::Bool(column), Value::Bool(value)) => column.append_value(*value),
            (Self::I64(column), Value::I64(value)) => column.append_value(*value),
            (Self::U64(column), Value::U64(value)) => column.append_value(*value),
            (Self::U64(column), Value::I64(value)) => match u64::try_from(*value) {
                Ok(value) => column.append_value(value),
                Err(_) => return false,
            },
            (Self::F64(column), Value::F64(value)) => column.append_value(*value),
            (Self::F64(column), Value::I64(_) | Value::U64(_)) => match member.raw.parse() {
                // Exact: the first pass saw that it is.
                Ok(value) => column.append_value(value),
                Err(_) => return false,
            },
            (Self::Text(column), Value::Text(value)) => column.append_value(value),
            (Self::Json(column), _) => column.append_value(compacted(member.raw)),
            _ => return false,
        }
        true
    }

    /// Appends a null.
    pub(crate) fn append_null(&mut self) {
        match self {
            Self::Null(count) => *count += 1,
            Self::Bool(column) => column.append_null(),
            Self::I64(column) => column.append_null(),
            Self::U64(column) => column.append_null(),
            Self::F64(column) => column.append_null(),
            Self::Text(column) | Self::Json(column) => column.append_null(),
        }
    }

    /// The values so far, and none from here on.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Null(count) => Arc::new(NullArray::new(std::mem::take(count))),
            Self::Bool(column) => Arc::new(column.finish()),
            Self::I64(column) => Arc::new(column.finish()),
            Self::U64(column) => Arc::new(column.finish()),
            Self::F64(column) => Arc::new(column.finish()),
            Self::Text(column) | Self::Json(column) => Arc::new(column.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[&str], expect: ColumnType) {
        let mut kinds = Kinds::default();
        for value in values {
            let text = format!("{{\"k\":{value}}}");
            let mut members = crate::import::json::value::Members::of(&text).unwrap();
            kinds.add(&members.next().unwrap().unwrap().value);
        }
        assert_eq!(kinds.column_type(), expect, "{values:?}");
    }

    #[test]
    fn a_column_has_the_one_type_that_holds_all_its_values_exactly() {
        use ColumnType::{Bool, F64, I64, Json, Null, Text, U64};
        check(&[], Null);
        check(&["null", "null"], Null);
        check(&["true", "null"], Bool);
        check(&["1", "-1", "0", "null"], I64);
        check(&["0", "0.5"], F64);
        check(&["1", "9223372036854775808"], U64);
        check(&["-1", "9223372036854775808"], Json);
        check(&["307", "11.5"], F64);
        check(&["9007199254740992", "11.5"], F64);
        check(&["9007199254740993", "11.5"], Json);
        check(&["18446744073709551615", "11.5"], Json);
        check(&["9223372036854775808", "-1", "0.5"], F64);
        check(&["-9223372036854775808", "0.5"], F64);
        check(&["\"a\"", "null"], Text);
        check(&["\"a\"", "1"], Json);
        check(&["true", "1"], Json);
        check(&["[1]", "[2.5]"], Json);
    }

    #[test]
    fn a_key_is_found_once_a_row() {
        let mut columns = Columns::of(["a".to_owned(), "b".to_owned()]);
        assert_eq!(columns.find("a", 1), Found::Column(0));
        assert_eq!(columns.find("b", 1), Found::Column(1));
        assert_eq!(columns.find("a", 1), Found::Twice);
        assert_eq!(columns.find("b", 2), Found::Column(1));
        assert_eq!(columns.find("c", 2), Found::Unknown);
        assert!(columns.has(1, 2) && !columns.has(0, 2));
    }
}
