//! Values as JSON text.
//!
//! | type | text |
//! | --- | --- |
//! | integers | all digits |
//! | floats | the shortest digits that read back as the same f64 (a narrower float is widened, which is exact); NaN and the infinities, which JSON does not have, as strings |
//! | text | a string |
//! | JSON text | itself |
//! | binary | a string of hexadecimal digits |
//! | lists, structs, maps | arrays, objects, arrays of `key` and `value` |
//! | decimals, dates, times | a string: exact digits, RFC 3339; an instant ends in `Z`, whatever zone its column names |
//! | dates and times that no calendar has | a string: the number of their days or ticks |

use std::io::Write as _;

use arrow_array::cast::AsArray as _;
use arrow_array::temporal_conversions::{as_date, as_datetime, as_time};
use arrow_array::types::{
    ArrowTimestampType, Date32Type, Date64Type, Float16Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, Float64Array, Int64Array, LargeStringArray,
    PrimitiveArray, StringArray, StringViewArray, UInt64Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType, Field, Fields, TimeUnit};

use crate::import::json::columns::is_json_text;

/// One column of a batch, ready to be written value by value.
pub(crate) struct Cells<'a> {
    nulls: Option<NullBuffer>,
    values: Values<'a>,
}

enum Values<'a> {
    Null,
    Bool(&'a BooleanArray),
    I64(Int64Array),
    U64(UInt64Array),
    F64(Float64Array),
    Text(&'a StringArray),
    LargeText(&'a LargeStringArray),
    TextView(&'a StringViewArray),
    JsonText(&'a StringArray),
    List(OffsetBuffer<i32>, Box<Cells<'a>>),
    LargeList(OffsetBuffer<i64>, Box<Cells<'a>>),
    FixedList(usize, Box<Cells<'a>>),
    Struct(Vec<(Vec<u8>, Cells<'a>)>),
    Calendar(Ticks),
    Display(ArrayFormatter<'a>),
}

/// Days or instants as numbers, and what a calendar calls one of them.
struct Ticks {
    array: Int64Array,
    text: fn(i64) -> Option<String>,
    /// `Z` where they are instants, not times of some clock on a wall.
    suffix: &'static str,
}

impl Ticks {
    fn told(&self, row: usize) -> String {
        let ticks = self.array.value(row);
        match (self.text)(ticks) {
            Some(text) => text + self.suffix,
            None => ticks.to_string(),
        }
    }

    fn of(array: &dyn Array) -> Option<Self> {
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        Some(match array.data_type() {
            DataType::Date32 => Self {
                array: widened::<Date32Type, _>(array),
                text: |days| Some(format!("{:?}", as_date::<Date32Type>(days)?)),
                suffix: "",
            },
            DataType::Date64 => Self {
                array: array.as_primitive::<Date64Type>().reinterpret_cast(),
                text: |ms| Some(format!("{:?}", as_datetime::<Date64Type>(ms)?)),
                suffix: "",
            },
            DataType::Time32(Second) => {
                Self::of_day(widened::<Time32SecondType, _>(array), |t| of_day(t, 1_000_000_000))
            }
            DataType::Time32(Millisecond) => {
                Self::of_day(widened::<Time32MillisecondType, _>(array), |t| of_day(t, 1_000_000))
            }
            DataType::Time64(Microsecond) => {
                let array = array.as_primitive::<Time64MicrosecondType>().reinterpret_cast();
                Self::of_day(array, |t| of_day(t, 1_000))
            }
            DataType::Time64(Nanosecond) => {
                let array = array.as_primitive::<Time64NanosecondType>().reinterpret_cast();
                Self::of_day(array, |t| of_day(t, 1))
            }
            DataType::Timestamp(unit, zone) => {
                let suffix = if zone.is_some() { "Z" } else { "" };
                match unit {
                    Second => Self::times::<TimestampSecondType>(array, suffix),
                    Millisecond => Self::times::<TimestampMillisecondType>(array, suffix),
                    Microsecond => Self::times::<TimestampMicrosecondType>(array, suffix),
                    Nanosecond => Self::times::<TimestampNanosecondType>(array, suffix),
                }
            }
            _ => return None,
        })
    }

    fn of_day(array: Int64Array, text: fn(i64) -> Option<String>) -> Self {
        Self { array, text, suffix: "" }
    }

    fn times<T: ArrowTimestampType>(array: &dyn Array, suffix: &'static str) -> Self {
        let array = array.as_primitive::<T>().reinterpret_cast();
        Self { array, text: |ticks| Some(format!("{:?}", as_datetime::<T>(ticks)?)), suffix }
    }
}

/// A time of day from its ticks since midnight, each so many nanoseconds.
fn of_day(ticks: i64, tick_ns: i64) -> Option<String> {
    const DAY_NS: i64 = 86_400_000_000_000;
    // The conversion wraps: a day later is no time of this one.
    let ns = ticks.checked_mul(tick_ns).filter(|ns| (0..DAY_NS).contains(ns))?;
    Some(format!("{:?}", as_time::<Time64NanosecondType>(ns)?))
}

impl<'a> Cells<'a> {
    /// The values of a column.
    pub(crate) fn of(field: &Field, array: &'a dyn Array) -> Result<Self, ArrowError> {
        Ok(Self { nulls: array.logical_nulls(), values: Values::of(field, array)? })
    }

    /// Appends one value as JSON.
    pub(crate) fn write(&self, row: usize, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        if self.is_null(row) {
            out.extend_from_slice(b"null");
            return Ok(());
        }
        match &self.values {
            Values::Text(array) => put_string(array.value(row), out),
            Values::LargeText(array) => put_string(array.value(row), out),
            Values::TextView(array) => put_string(array.value(row), out),
            Values::List(offsets, items) => {
                let (from, to) = (bound(offsets, row), bound(offsets, row + 1));
                return items.write_list(from, to, out);
            }
            Values::LargeList(offsets, items) => {
                let (from, to) = (bound(offsets, row), bound(offsets, row + 1));
                return items.write_list(from, to, out);
            }
            Values::FixedList(len, items) => {
                return items.write_list(row * len, (row + 1) * len, out);
            }
            Values::Struct(members) => return write_object(members, row, out),
            Values::Calendar(ticks) => put_string(&ticks.told(row), out),
            Values::Display(array) => put_string(&array.value(row).try_to_string()?, out),
            Values::F64(array) if !array.value(row).is_finite() => {
                put_string(not_finite(array.value(row)), out);
            }
            _ => self.write_plain(row, out)?,
        }
        Ok(())
    }

    /// Appends one value as the text of a field: strings without quotes, null as nothing.
    pub(crate) fn write_text(&self, row: usize, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        if self.is_null(row) {
            return Ok(());
        }
        match &self.values {
            Values::Text(array) => out.extend_from_slice(array.value(row).as_bytes()),
            Values::LargeText(array) => out.extend_from_slice(array.value(row).as_bytes()),
            Values::TextView(array) => out.extend_from_slice(array.value(row).as_bytes()),
            Values::Calendar(ticks) => out.extend_from_slice(ticks.told(row).as_bytes()),
            Values::Display(array) => {
                out.extend_from_slice(array.value(row).try_to_string()?.as_bytes());
            }
            Values::F64(array) if !array.value(row).is_finite() => {
                out.extend_from_slice(not_finite(array.value(row)).as_bytes());
            }
            _ => self.write(row, out)?,
        }
        Ok(())
    }

    /// Whether there is no value.
    pub(crate) fn is_null(&self, row: usize) -> bool {
        matches!(self.values, Values::Null)
            || self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    /// Values whose JSON is their text.
    fn write_plain(&self, row: usize, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        match &self.values {
            Values::Bool(array) => write!(out, "{}", array.value(row))?,
            Values::I64(array) => write!(out, "{}", array.value(row))?,
            Values::U64(array) => write!(out, "{}", array.value(row))?,
            // Debug, unlike Display, has an exponent where that is shorter.
            Values::F64(array) => write!(out, "{:?}", array.value(row))?,
            Values::JsonText(array) => out.extend_from_slice(array.value(row).as_bytes()),
            _ => {}
        }
        Ok(())
    }

    fn write_list(&self, from: usize, to: usize, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        out.push(b'[');
        for row in from..to {
            if row > from {
                out.push(b',');
            }
            self.write(row, out)?;
        }
        out.push(b']');
        Ok(())
    }
}

impl<'a> Values<'a> {
    fn of(field: &Field, array: &'a dyn Array) -> Result<Self, ArrowError> {
        Ok(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Bool(array.as_boolean()),
            DataType::Int8 => Self::I64(widened::<Int8Type, _>(array)),
            DataType::Int16 => Self::I64(widened::<Int16Type, _>(array)),
            DataType::Int32 => Self::I64(widened::<Int32Type, _>(array)),
            DataType::Int64 => Self::I64(array.as_primitive::<Int64Type>().clone()),
            DataType::UInt8 => Self::U64(widened::<UInt8Type, _>(array)),
            DataType::UInt16 => Self::U64(widened::<UInt16Type, _>(array)),
            DataType::UInt32 => Self::U64(widened::<UInt32Type, _>(array)),
            DataType::UInt64 => Self::U64(array.as_primitive::<UInt64Type>().clone()),
            DataType::Float16 => Self::F64(widened::<Float16Type, _>(array)),
            DataType::Float32 => Self::F64(widened::<Float32Type, _>(array)),
            DataType::Float64 => Self::F64(array.as_primitive::<Float64Type>().clone()),
            DataType::Utf8 if is_json_text(field) => Self::JsonText(array.as_string::<i32>()),
            DataType::Utf8 => Self::Text(array.as_string::<i32>()),
            DataType::LargeUtf8 => Self::LargeText(array.as_string::<i64>()),
            DataType::Utf8View => Self::TextView(array.as_string_view()),
            DataType::List(item) => {
                let list = array.as_list::<i32>();
                Self::List(list.offsets().clone(), boxed(item, list.values())?)
            }
            DataType::LargeList(item) => {
                let list = array.as_list::<i64>();
                Self::LargeList(list.offsets().clone(), boxed(item, list.values())?)
            }
            DataType::FixedSizeList(item, len) => {
                let values = boxed(item, array.as_fixed_size_list().values())?;
                Self::FixedList(usize::try_from(*len).unwrap_or_default(), values)
            }
            DataType::Map(entries, _) => {
                let map = array.as_map();
                Self::List(map.offsets().clone(), boxed(entries, map.entries())?)
            }
            DataType::Struct(_) => {
                Self::Struct(keyed(array.as_struct().fields(), array.as_struct().columns())?)
            }
            DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_)
            | DataType::Timestamp(..) => Ticks::of(array).map_or(Self::Null, Self::Calendar),
            _ => {
                let options = FormatOptions::new().with_display_error(false);
                Self::Display(ArrayFormatter::try_new(array, &options)?)
            }
        })
    }
}

fn boxed<'a>(field: &Field, array: &'a dyn Array) -> Result<Box<Cells<'a>>, ArrowError> {
    Cells::of(field, array).map(Box::new)
}

/// Columns with their keys as they stand in an object, colon included.
pub(crate) type Keyed<'a> = Vec<(Vec<u8>, Cells<'a>)>;

/// The columns of these fields.
pub(crate) fn keyed<'a>(fields: &Fields, columns: &'a [ArrayRef]) -> Result<Keyed<'a>, ArrowError> {
    let keyed = fields.iter().zip(columns).map(|(field, array)| {
        let mut key = Vec::new();
        put_string(field.name(), &mut key);
        key.push(b':');
        Ok((key, Cells::of(field, array)?))
    });
    keyed.collect()
}

/// Appends one row of these columns as an object.
pub(crate) fn write_object(
    columns: &[(Vec<u8>, Cells<'_>)],
    row: usize,
    out: &mut Vec<u8>,
) -> Result<(), ArrowError> {
    out.push(b'{');
    for (at, (key, cells)) in columns.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(key);
        cells.write(row, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// A copy in a type that holds every value exactly.
fn widened<T, W>(array: &dyn Array) -> PrimitiveArray<W>
where
    T: ArrowPrimitiveType,
    W: ArrowPrimitiveType,
    W::Native: From<T::Native>,
{
    array.as_primitive::<T>().unary(W::Native::from)
}

fn bound<O: arrow_array::OffsetSizeTrait>(offsets: &OffsetBuffer<O>, at: usize) -> usize {
    offsets.get(at).map_or(0, |offset| offset.as_usize())
}

fn not_finite(value: f64) -> &'static str {
    match (value.is_nan(), value > 0.0) {
        (true, _) => "NaN",
        (false, true) => "Infinity",
        (false, false) => "-Infinity",
    }
}

/// Appends a JSON string.
pub(crate) fn put_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain.as_bytes());
        let (byte, behind) = special.split_at(1);
        put_escape(byte.bytes().next().unwrap_or_default(), out);
        rest = behind;
    }
    out.extend_from_slice(rest.as_bytes());
    out.push(b'"');
}

fn put_escape(byte: u8, out: &mut Vec<u8>) {
    let short = match byte {
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        b'"' | b'\\' => byte,
        _ => {
            let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
            out.extend_from_slice(b"\\u00");
            out.extend(
                [byte >> 4, byte & 15].map(|nibble| u8::try_from(digit(nibble)).unwrap_or(b'0')),
            );
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        Date32Array, ListArray, Time32MillisecondArray, Time64MicrosecondArray,
        TimestampMicrosecondArray, TimestampMillisecondArray, TimestampSecondArray,
    };

    use super::*;

    #[track_caller]
    fn check(array: ArrayRef, expect: &[&str]) {
        let field = Field::new("v", array.data_type().clone(), true);
        let cells = Cells::of(&field, &array).unwrap();
        for (row, expect) in expect.iter().enumerate() {
            let (mut json, mut text) = (Vec::new(), Vec::new());
            cells.write(row, &mut json).unwrap();
            cells.write_text(row, &mut text).unwrap();
            assert_eq!(String::from_utf8(json).unwrap(), *expect);
            if !array.data_type().is_nested() && array.is_valid(row) {
                assert_eq!(String::from_utf8(text).unwrap(), expect.trim_matches('"'));
            }
        }
    }

    #[test]
    fn an_instant_is_told_in_utc_whatever_zone_its_column_names() {
        for zone in ["UTC", "+00:00", "Europe/Berlin", "+02:00", "no zone"] {
            let instants = vec![Some(1_700_000_000_000_000), None, Some(-1), Some(500_000)];
            let instants = TimestampMicrosecondArray::from(instants).with_timezone(zone);
            let expect = [
                "\"2023-11-14T22:13:20Z\"",
                "null",
                "\"1969-12-31T23:59:59.999999Z\"",
                "\"1970-01-01T00:00:00.500Z\"",
            ];
            let item = Field::new("item", instants.data_type().clone(), true);
            let offsets = OffsetBuffer::from_lengths([2, 0]);
            let values = Arc::new(instants.slice(0, 2));
            let lists = ListArray::new(Arc::new(item), offsets, values, None);
            check(Arc::new(instants), &expect);
            check(Arc::new(lists), &["[\"2023-11-14T22:13:20Z\",null]", "[]"]);
        }
    }

    #[test]
    fn a_time_that_no_calendar_has_is_told_as_its_number() {
        let far = TimestampMillisecondArray::from(vec![1 << 61, -(1 << 61), 0]);
        let expect =
            ["\"2305843009213693952\"", "\"-2305843009213693952\"", "\"1970-01-01T00:00:00\""];
        check(Arc::new(far), &expect);
        let far = TimestampSecondArray::from(vec![i64::MAX]).with_timezone("UTC");
        check(Arc::new(far), &["\"9223372036854775807\""]);
        let days = Date32Array::from(vec![i32::MAX, i32::MIN, -719_162, 19_782]);
        let times = Time32MillisecondArray::from(vec![86_399_999, 86_400_000, -1]);
        check(Arc::new(times), &["\"23:59:59.999\"", "\"86400000\"", "\"-1\""]);
        let wraps = ((1 << 32) + 1) * 1_000_000;
        let times = Time64MicrosecondArray::from(vec![1, wraps]);
        check(Arc::new(times), &["\"00:00:00.000001\"", "\"4294967297000000\""]);
        let expect = ["\"2147483647\"", "\"-2147483648\"", "\"0001-01-01\"", "\"2024-02-29\""];
        check(Arc::new(days), &expect);
    }
}
