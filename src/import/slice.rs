//! The rows of a slice as payloads of messages, and back.
//!
//! A payload is one Arrow IPC stream: schema, then batches. Where a slice is spread over several
//! vchannels, each payload ends in a column that says which rows of the slice its own were, so that
//! a reader can put them in order again; it is known by its metadata, not by its name.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;

use super::decoder;
use crate::error::{Error, ErrorKind, Result};

/// Metadata of the column that numbers the rows of a slice.
const ROW_ROLE: (&str, &str) = ("oncelog:role", "row");

/// Name of that column, for readers that do not know its role.
const ROW_NAME: &str = "_row";

/// The rows of a slice that go to one vchannel.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// How many.
    pub(crate) rows: u32,
    /// Arrow IPC stream of them.
    pub(crate) payload: Vec<u8>,
}

/// Rows that came out of a payload.
#[derive(Clone, Debug)]
pub(crate) struct Decoded {
    /// The rows, without the column that numbers them.
    pub(crate) batch: RecordBatch,
    /// Which rows of the slice they are, from 0; `None`: all, in order.
    pub(crate) numbers: Option<UInt32Array>,
}

/// Splits a slice over `vchannels`, given the vchannel of each row.
pub(crate) fn split(batch: &RecordBatch, places: &[u32], vchannels: u32) -> Result<Vec<Part>> {
    if vchannels <= 1 {
        return Ok(vec![part(batch)?]);
    }
    let mut rows = vec![Vec::new(); vchannels as usize];
    for (row, place) in (0..).zip(places) {
        if let Some(rows) = rows.get_mut(*place as usize) {
            rows.push(row);
        }
    }
    let schema = numbered(batch.schema_ref());
    let parts = rows.into_iter().map(|rows: Vec<u32>| {
        let numbers = UInt32Array::from(rows);
        let taken = take_record_batch(batch, &numbers).map_err(unencoded)?;
        let mut columns = taken.columns().to_vec();
        columns.push(Arc::new(numbers) as ArrayRef);
        part(&RecordBatch::try_new(schema.clone(), columns).map_err(unencoded)?)
    });
    parts.collect()
}

fn part(batch: &RecordBatch) -> Result<Part> {
    let rows = u32::try_from(batch.num_rows())
        .map_err(|e| Error::new(ErrorKind::Limit, "the rows of a slice").with_source(e))?;
    let encode = || {
        let mut writer = StreamWriter::try_new(Vec::new(), batch.schema_ref())?;
        writer.write(batch)?;
        writer.into_inner()
    };
    Ok(Part { rows, payload: encode().map_err(unencoded)? })
}

/// A payload of these columns and no rows.
pub(crate) fn encode_schema(schema: &SchemaRef) -> Result<Vec<u8>> {
    StreamWriter::try_new(Vec::new(), schema).and_then(StreamWriter::into_inner).map_err(unencoded)
}

fn numbered(schema: &SchemaRef) -> SchemaRef {
    let (key, role) = ROW_ROLE;
    let metadata = HashMap::from([(key.to_owned(), role.to_owned())]);
    let number = Field::new(ROW_NAME, DataType::UInt32, false).with_metadata(metadata);
    let fields = schema.fields().iter().cloned().chain([Arc::new(number)]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The rows of a payload, which must be as many as its message says.
pub(crate) fn decode(payload: &[u8], rows: u32) -> Result<Decoded> {
    let read = || {
        let reader = StreamReader::try_new(payload, None)?;
        let schema = reader.schema();
        let batches = reader.collect::<std::result::Result<Vec<_>, _>>()?;
        match batches.as_slice() {
            [one] => Ok(one.clone()),
            many => concat_batches(&schema, many),
        }
    };
    let batch = guarded(read)?;
    if batch.num_rows() != rows as usize {
        let what = format!("expected a payload of {rows} rows, found {}", batch.num_rows());
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    split_numbers(batch)
}

/// The columns of a payload, without reading its rows.
pub(crate) fn schema(payload: &[u8]) -> Result<SchemaRef> {
    let schema = guarded(|| Ok(StreamReader::try_new(payload, None)?.schema()))?;
    let kept = schema.fields().iter().filter(|field| !is_number(field)).cloned();
    Ok(Arc::new(Schema::new(kept.collect::<Vec<_>>())))
}

fn split_numbers(batch: RecordBatch) -> Result<Decoded> {
    let schema = batch.schema();
    let last = schema.fields().len().checked_sub(1);
    let Some(last) = last.filter(|at| is_number(schema.field(*at))) else {
        return Ok(Decoded { batch, numbers: None });
    };
    let numbers = batch.column(last).as_primitive_opt::<UInt32Type>().cloned();
    let numbers = numbers.ok_or_else(|| Error::new(ErrorKind::Corrupt, "rows without numbers"))?;
    let kept = batch.project(&(0..last).collect::<Vec<_>>());
    let batch = kept.map_err(|e| undecoded().with_source(e))?;
    Ok(Decoded { batch, numbers: Some(numbers) })
}

fn is_number(field: &Field) -> bool {
    field.metadata().get(ROW_ROLE.0).is_some_and(|role| role == ROW_ROLE.1)
}

/// Bytes of a log passed their checksum, but whoever wrote them may have been hostile: a panic of
/// the decoder is told as damage.
fn guarded<T>(read: impl FnOnce() -> std::result::Result<T, ArrowError>) -> Result<T> {
    match decoder::guarded(read) {
        Some(Ok(found)) => Ok(found),
        Some(Err(e)) => Err(undecoded().with_source(e)),
        None => Err(undecoded()),
    }
}

fn undecoded() -> Error {
    Error::new(ErrorKind::Corrupt, "the payload of a slice cannot be decoded")
}

fn unencoded(error: ArrowError) -> Error {
    Error::new(ErrorKind::InvalidInput, "rows cannot be encoded").with_source(error)
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, StringArray};

    use super::*;

    fn rows(count: i64) -> RecordBatch {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
        let names = (0..count).map(|id| (id % 3 > 0).then(|| format!("name {id}")));
        let names: ArrayRef = Arc::new(StringArray::from_iter(names));
        RecordBatch::try_from_iter([("id", ids), ("_row", names)]).unwrap()
    }

    #[test]
    fn a_slice_of_one_vchannel_comes_back_as_it_was() {
        let batch = rows(10);
        let parts = split(&batch, &[0; 10], 1).unwrap();
        let back = decode(&parts[0].payload, parts[0].rows).unwrap();
        assert_eq!(back.batch, batch);
        assert!(back.numbers.is_none());
        assert_eq!(schema(&parts[0].payload).unwrap(), batch.schema());
    }

    #[test]
    fn the_parts_of_a_slice_say_which_rows_they_hold() {
        let batch = rows(7);
        let parts = split(&batch, &[2, 0, 0, 2, 0, 2, 2], 4).unwrap();
        assert_eq!(parts.iter().map(|part| part.rows).collect::<Vec<_>>(), [3, 0, 4, 0]);
        let back = decode(&parts[2].payload, 4).unwrap();
        assert_eq!(back.numbers.unwrap().values().as_ref(), [0, 3, 5, 6]);
        assert_eq!(back.batch.slice(1, 1), batch.slice(3, 1));
        assert_eq!(schema(&parts[1].payload).unwrap(), batch.schema());
        assert_eq!(decode(&parts[1].payload, 0).unwrap().batch.num_rows(), 0);
    }

    #[test]
    fn a_damaged_payload_is_an_error() {
        let part = part(&rows(50)).unwrap();
        assert!(decode(&part.payload, 49).is_err());
        for cut in 0..part.payload.len() {
            // Short of the marker of its end a stream may still be whole.
            if let Ok(back) = decode(&part.payload[..cut], part.rows) {
                assert_eq!(back.batch.num_rows(), 50);
            }
        }
        for at in 0..part.payload.len() {
            let mut payload = part.payload.clone();
            payload[at] ^= 0x55;
            // No verdict is asked for here: bytes of a log passed their checksum.
            drop(decode(&payload, part.rows));
        }
    }
}
