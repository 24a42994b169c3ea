//! Which vchannel a row goes to.
//!
//! With a primary key: XXH3-64 (seed 0) of its canonical bytes, modulo the number of vchannels.
//! Canonical are the UTF-8 of a text, and the eight little-endian bytes of an integer (two's
//! complement), whatever width it has in its source; so the same key goes to the same vchannel
//! from a file of any format. Without a primary key: the number of the row in its job, counted
//! from 0 over all files, modulo the number of vchannels.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef};
use arrow_cast::cast::cast;
use arrow_schema::DataType;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, ErrorKind, Result};

/// The partition function, as collections and plans name it.
pub(crate) const FUNCTION: u8 = 1;

/// Its version: another one may put the same row elsewhere.
pub(crate) const VERSION: u16 = 1;

/// The vchannel, from 0, of each row of a batch whose first row has this number in its job.
pub(crate) fn partition(
    batch: &RecordBatch,
    primary_key: Option<&str>,
    first_row: u64,
    vchannels: u32,
) -> Result<Vec<u32>> {
    let rows = batch.num_rows();
    let count = u64::from(vchannels.max(1));
    let place = |hash: u64| u32::try_from(hash % count).unwrap_or_default();
    if count == 1 {
        return Ok(vec![0; rows]);
    }
    let Some(name) = primary_key else {
        return Ok((first_row..).take(rows).map(place).collect());
    };
    let key = batch.column_by_name(name).ok_or_else(|| unfit("the primary key is missing"))?;
    if key.logical_null_count() > 0 {
        return Err(unfit("a primary key is null"));
    }
    Ok(hashes(key)?.into_iter().map(place).collect())
}

fn hashes(key: &ArrayRef) -> Result<Vec<u64>> {
    let to = |kind: DataType| {
        cast(key, &kind).map_err(|e| unfit("a primary key cannot be hashed").with_source(e))
    };
    Ok(match key.data_type() {
        DataType::UInt64 => {
            key.as_primitive::<UInt64Type>().values().iter().map(|v| integer(*v)).collect()
        }
        kind if kind.is_integer() => {
            let wide = to(DataType::Int64)?;
            let values = wide.as_primitive::<Int64Type>().values();
            values.iter().map(|value| integer(value.cast_unsigned())).collect()
        }
        DataType::Utf8 => key.as_string::<i32>().iter().map(text).collect(),
        DataType::LargeUtf8 => key.as_string::<i64>().iter().map(text).collect(),
        DataType::Utf8View => key.as_string_view().iter().map(text).collect(),
        _ => return Err(unfit("a primary key is neither integer nor text")),
    })
}

fn integer(value: u64) -> u64 {
    xxh3_64(&value.to_le_bytes())
}

fn text(value: Option<&str>) -> u64 {
    xxh3_64(value.unwrap_or_default().as_bytes())
}

fn unfit(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int8Array, Int64Array, StringArray, UInt64Array};

    use super::*;

    fn of(key: ArrayRef) -> Vec<u32> {
        let batch = RecordBatch::try_from_iter([("id", key)]).unwrap();
        partition(&batch, Some("id"), 0, 1000).unwrap()
    }

    #[test]
    fn a_key_goes_to_one_vchannel_whatever_its_width() {
        let wide = of(Arc::new(Int64Array::from(vec![-1, 0, 7])));
        assert_eq!(wide, of(Arc::new(Int8Array::from(vec![-1, 0, 7]))));
        assert_eq!(wide[1..], of(Arc::new(UInt64Array::from(vec![0, 7])))[..]);
    }

    #[test]
    fn the_function_is_xxh3_with_seed_0_as_others_compute_it() {
        // Values of xxhsum -H3.
        assert_eq!(xxh3_64(b""), 0x2d06_8005_38d3_94c2);
        let expect = xxh3_64(b"01G") % 1000;
        assert_eq!(of(Arc::new(StringArray::from(vec!["01G"]))), [u32::try_from(expect).unwrap()]);
    }

    #[test]
    fn without_a_key_rows_take_turns() {
        let key: ArrayRef = Arc::new(Int64Array::from(vec![5; 5]));
        let batch = RecordBatch::try_from_iter([("id", key)]).unwrap();
        assert_eq!(partition(&batch, None, 4, 3).unwrap(), [1, 2, 0, 1, 2]);
        assert_eq!(partition(&batch, None, 4, 1).unwrap(), [0; 5]);
    }

    #[test]
    fn a_null_key_is_refused() {
        let key: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let batch = RecordBatch::try_from_iter([("id", key)]).unwrap();
        assert!(partition(&batch, Some("id"), 0, 3).is_err());
    }
}
