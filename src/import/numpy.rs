//! NumPy: a set of `.npy` files, each one column, named after its file.
//!
//! | values | column |
//! | --- | --- |
//! | bool | Boolean |
//! | integers of 1, 2, 4, 8 bytes, signed or not | the same |
//! | floats of 2, 4, 8 bytes | the same |
//! | `U` and `S` of a fixed length | Utf8, without the zeros that fill it up |
//! | two dimensions of these | a fixed-size list for each row |
//!
//! Both byte orders are read. There is no null. Refused, with file, row and column: another type,
//! pickled objects above all, vectors in Fortran order, a length other than the header says, files
//! of different numbers of rows, a boolean or a text that is none.

mod header;

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, StringBuilder};
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, ArrowPrimitiveType, FixedSizeListArray, PrimitiveArray, RecordBatch};
use arrow_buffer::{MutableBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, SchemaRef};

use self::header::{Header, Item};
use super::place::Place;
use super::read::{self, FirstPass, RowReader, Survey};
use super::request::column_of;
use super::sizer::SliceSizer;
use super::source::{Sha256Sum, Source, source_changed};
use super::stream::{ByteStream, ROW_BYTES_MAX};
use crate::error::{Error, Result};

/// Bytes of an offset into text.
const OFFSET_BYTES: usize = 4;

/// Bytes of values that are looked at between two reports of progress.
const STEP_BYTES: usize = 1 << 20;

/// The first pass over the files of a set.
pub(crate) fn survey(sources: &[Source], pass: &mut FirstPass<'_>) -> Result<Survey> {
    let (mut fields, mut sha256, mut row_bytes) = (Vec::new(), Vec::new(), 0_usize);
    let mut first: Option<(u64, String)> = None;
    for source in sources {
        let mut column = Column::open(source)?;
        let found = column.header.rows;
        let (rows, name) = first.get_or_insert_with(|| (found, column.name.clone()));
        if found != *rows {
            let what = format!("expected {rows} rows as in column `{name}`, found {found}");
            return Err(column.error(0, &what));
        }
        row_bytes = row_bytes.saturating_add(column.row_bytes + OFFSET_BYTES);
        column.survey(pass)?;
        fields.push(column.header.field(&column.name));
        sha256.push(column.stream.finish()?);
    }
    let path = sources.first().map_or_else(|| Path::new(""), |source| source.file.path());
    if row_bytes > ROW_BYTES_MAX {
        let what = format!("a row is longer than {ROW_BYTES_MAX} bytes");
        return Err(Place::row(1).limit(path, &what));
    }
    if let Some(name) = pass.primary_key
        && !fields.iter().any(|field: &Field| field.name() == name)
    {
        return Err(Place::default().column(name).error(path, "no such column"));
    }
    let rows = first.map_or(0, |(rows, _)| rows);
    // All rows have one length.
    let slice_rows = SliceSizer::default().slice_rows(row_bytes as u64);
    Ok(Survey { schema: read::schema(fields), rows, sha256, slice_rows, kinds: Vec::new() })
}

/// The second pass over the files of a set.
pub(crate) struct NumpyReader {
    columns: Vec<Column>,
    schema: SchemaRef,
}

impl NumpyReader {
    /// Reads the rows of a set with the schema of its first pass.
    pub(crate) fn new(sources: &[Source], schema: SchemaRef) -> Result<Self> {
        let columns = sources.iter().map(Column::open).collect::<Result<Vec<_>>>()?;
        for (column, field) in columns.iter().zip(schema.fields()) {
            if column.header.field(&column.name) != **field {
                return Err(source_changed(column.stream.path(), "its values are others"));
            }
        }
        Ok(Self { columns, schema })
    }

    /// As many of the next rows as there are.
    fn clamped(&self, rows: u64) -> u64 {
        self.columns.iter().map(|column| column.left).min().unwrap_or(0).min(rows)
    }
}

impl RowReader for NumpyReader {
    fn skip(&mut self, rows: u64) -> Result<()> {
        let rows = self.clamped(rows);
        self.columns.iter_mut().try_for_each(|column| column.read(rows, None))
    }

    fn next_batch(&mut self, rows: usize) -> Result<Option<RecordBatch>> {
        let rows = self.clamped(rows as u64);
        if rows == 0 {
            return Ok(None);
        }
        let mut arrays = Vec::with_capacity(self.columns.len());
        for column in &mut self.columns {
            let mut values = Values::of(&column.header);
            column.read(rows, Some(&mut values))?;
            arrays.push(values.finish(&column.header)?);
        }
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        read::batch(self.schema.clone(), arrays, rows).map(Some)
    }

    fn finish(self: Box<Self>) -> Result<Vec<Sha256Sum>> {
        self.columns.into_iter().map(|column| column.stream.finish()).collect()
    }
}

/// One file of a set, read from start to end.
struct Column {
    stream: ByteStream,
    name: String,
    header: Header,
    /// Bytes of a row.
    row_bytes: usize,
    /// Rows that are still to be read.
    left: u64,
}

impl Column {
    fn open(source: &Source) -> Result<Self> {
        let (path, len) = (source.file.path(), source.identity.bytes);
        let name = column_of(path);
        let refused = |what: &str| Place::default().column(&name).error(path, what);
        let mut stream = ByteStream::new(source);
        let header = loop {
            match Header::of(stream.window()).map_err(|what| refused(&what))? {
                Some(header) => break header,
                None if stream.more()? => {}
                None => return Err(refused("the file ends within its header")),
            }
        };
        stream.consume(header.data_at);
        let Some(row_bytes) = header.row_bytes() else {
            let what = format!("a row is longer than {ROW_BYTES_MAX} bytes");
            return Err(Place::row(1).column(&name).limit(path, &what));
        };
        let data = header.rows.checked_mul(row_bytes as u64);
        let expected = data.and_then(|data| data.checked_add(header.data_at as u64));
        if expected != Some(len) {
            let rows = header.rows;
            let what = match expected {
                Some(bytes) => format!("expected {bytes} bytes for {rows} rows, found {len}"),
                None => format!("no file has {rows} rows of {row_bytes} bytes, found {len} in all"),
            };
            return Err(refused(&what));
        }
        Ok(Self { stream, name, header, row_bytes, left: header.rows })
    }

    /// Looks at all values for one that is none; numbers have no such.
    fn survey(&mut self, pass: &mut FirstPass<'_>) -> Result<()> {
        let step = (STEP_BYTES / self.row_bytes).max(1) as u64;
        while self.left > 0 {
            let rows = self.left.min(step);
            let mut values = Values::of(&self.header);
            let checked = !matches!(values, Values::Numbers(_));
            self.read(rows, checked.then_some(&mut values))?;
            let read = usize::try_from(rows).unwrap_or(usize::MAX);
            pass.progress.add(read.saturating_mul(self.row_bytes))?;
        }
        Ok(())
    }

    /// Reads rows, of which there are as many, and appends their values.
    fn read(&mut self, rows: u64, mut values: Option<&mut Values>) -> Result<()> {
        let mut todo = rows.min(self.left);
        while todo > 0 {
            let window = self.stream.window();
            let whole = (window.len() / self.row_bytes) as u64;
            if whole == 0 {
                if !self.stream.more()? {
                    return Err(source_changed(self.stream.path(), "it has fewer rows"));
                }
                continue;
            }
            let rows = whole.min(todo);
            // No more than the window holds.
            let bytes = usize::try_from(rows).unwrap_or(usize::MAX).saturating_mul(self.row_bytes);
            if let Some(values) = values.as_deref_mut() {
                let appended = values.append(window.get(..bytes).unwrap_or_default(), &self.header);
                appended.map_err(|(at, what)| {
                    let row = at / self.header.width.unwrap_or(1);
                    self.error(row as u64, what)
                })?;
            }
            self.stream.consume(bytes);
            self.left -= rows;
            todo -= rows;
        }
        Ok(())
    }

    /// The error of a row, counted from 0 behind those that were read.
    fn error(&self, row: u64, what: &str) -> Error {
        let row = self.header.rows - self.left + row + 1;
        let place = if self.header.rows == 0 { Place::default() } else { Place::row(row) };
        place.column(&self.name).error(self.stream.path(), what)
    }
}

/// Values of one column, in order.
enum Values {
    Bools(BooleanBuilder),
    /// As they are in memory.
    Numbers(MutableBuffer),
    Texts(StringBuilder),
}

impl Values {
    fn of(header: &Header) -> Self {
        match header.item {
            Item::Bool => Self::Bools(BooleanBuilder::new()),
            Item::Text(_) | Item::Bytes(_) => Self::Texts(StringBuilder::new()),
            Item::Int(_) | Item::Uint(_) | Item::Float(_) => Self::Numbers(MutableBuffer::new(0)),
        }
    }

    /// Appends whole values; of one that is none its index, and why.
    fn append(&mut self, bytes: &[u8], header: &Header) -> std::result::Result<(), (usize, &str)> {
        let size = header.item.bytes();
        match self {
            Self::Bools(builder) => {
                for (at, byte) in bytes.iter().enumerate() {
                    match byte {
                        0 | 1 => builder.append_value(*byte == 1),
                        _ => return Err((at, "a boolean is neither 0 nor 1")),
                    }
                }
            }
            Self::Numbers(buffer) if header.is_big_endian == cfg!(target_endian = "big") => {
                buffer.extend_from_slice(bytes);
            }
            Self::Numbers(buffer) => {
                let swapped = bytes.chunks_exact(size).flat_map(|value| value.iter().rev());
                buffer.extend(swapped.copied());
            }
            Self::Texts(builder) => {
                let mut text = String::new();
                for (at, value) in bytes.chunks_exact(size).enumerate() {
                    text.clear();
                    let told = match header.item {
                        Item::Text(_) => put_text(value, header.is_big_endian, &mut text),
                        _ => put_bytes(value, &mut text),
                    };
                    told.ok_or((at, "the text is no Unicode"))?;
                    builder.append_value(&text);
                }
            }
        }
        Ok(())
    }

    fn finish(self, header: &Header) -> Result<ArrayRef> {
        let values: ArrayRef = match self {
            Self::Bools(mut builder) => Arc::new(builder.finish()),
            Self::Texts(mut builder) => Arc::new(builder.finish()),
            Self::Numbers(buffer) => match header.item {
                Item::Int(1) => numbers::<Int8Type>(buffer),
                Item::Int(2) => numbers::<Int16Type>(buffer),
                Item::Int(4) => numbers::<Int32Type>(buffer),
                Item::Int(_) => numbers::<Int64Type>(buffer),
                Item::Uint(1) => numbers::<UInt8Type>(buffer),
                Item::Uint(2) => numbers::<UInt16Type>(buffer),
                Item::Uint(4) => numbers::<UInt32Type>(buffer),
                Item::Uint(_) => numbers::<UInt64Type>(buffer),
                Item::Float(2) => numbers::<Float16Type>(buffer),
                Item::Float(4) => numbers::<Float32Type>(buffer),
                _ => numbers::<Float64Type>(buffer),
            },
        };
        let column = header.field("");
        let DataType::FixedSizeList(item, width) = column.data_type() else { return Ok(values) };
        let lists = FixedSizeListArray::try_new(Arc::clone(item), *width, values, None);
        Ok(Arc::new(lists.map_err(read::unfit)?))
    }
}

/// Numbers as they are in memory, whole ones: the buffer is aligned for any of them.
fn numbers<T: ArrowPrimitiveType>(buffer: MutableBuffer) -> ArrayRef {
    let count = buffer.len() / size_of::<T::Native>();
    Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::new(buffer.into(), 0, count), None))
}

/// Code points of four bytes each, up to the zeros that fill the last ones up.
fn put_text(value: &[u8], is_big_endian: bool, text: &mut String) -> Option<()> {
    let (points, _) = value.as_chunks::<4>();
    let filled = points.iter().rposition(|point| point != &[0; 4]).map_or(0, |last| last + 1);
    for point in points.get(..filled)? {
        let mut point = *point;
        if is_big_endian {
            point.reverse();
        }
        text.push(char::from_u32(u32::from_le_bytes(point))?);
    }
    Some(())
}

/// UTF-8, up to the zeros that fill the last bytes up.
fn put_bytes(value: &[u8], text: &mut String) -> Option<()> {
    let filled = value.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    text.push_str(std::str::from_utf8(value.get(..filled)?).ok()?);
    Some(())
}

#[cfg(test)]
pub(crate) mod tests;
