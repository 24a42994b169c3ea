//! Parquet: the columns as they are in the file, nested ones included.
//!
//! Rows are decoded twice. The first pass decodes everything, so that a damaged page fails the job
//! before its first row. Parquet is read out of order, so that the digest of the file cannot be
//! taken on the way: each pass reads the file once from start to end for it, and keeps a short
//! digest of each block; what is decoded afterwards is compared with these, block by block. No byte
//! is decoded that was not part of the digest.
//!
//! Checksums of pages are verified where a page has one. Which types columns have, `columns` says.

mod blocks;
mod columns;

use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::concat::concat_batches;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;

use self::blocks::VerifiedFile;
use super::decoder;
use super::place::Place;
use super::read::{self, FirstPass, RowReader, Survey};
use super::sizer::{SLICE_ROWS, SliceSizer};
use super::source::{Sha256Sum, Source, source_changed};
use super::stream::ROW_BYTES_MAX;
use crate::error::{Error, Result};

/// Decoded bytes that are aimed at for one step of the first pass.
const STEP_BYTES: i64 = 8 << 20;

/// The first pass over a source.
pub(crate) fn survey(source: &Source, pass: &mut FirstPass<'_>) -> Result<Survey> {
    let file = VerifiedFile::new(source)?;
    let sha256 = vec![file.sha256()];
    let schema = columns::schema(source, &file).map_err(|e| file.failure().unwrap_or(e))?;
    let mut reader = ParquetRows::new(source, file.clone(), &schema, Part::whole(0))?;
    let names: Vec<String> = reader.schema.fields().iter().map(|f| f.name().clone()).collect();
    read::check_names(source, &names)?;
    let key = pass.primary_key.map(|name| {
        let otherwise =
            || Place::default().column(name).error(source.file.path(), "no such column");
        let at = names.iter().position(|column| column == name);
        at.map(|at| (at, name)).ok_or_else(otherwise)
    });
    let key = key.transpose()?;
    let mut sizer = SliceSizer::default();
    loop {
        let batch = reader.next().map_err(|e| at_fault(source, &file, &schema, reader.row, e))?;
        let Some(batch) = batch else { break };
        if let Some((at, name)) = key
            && let Some(row) = first_null(batch.column(at))
        {
            let place = Place::row(sizer.rows() + row + 1).column(name);
            return Err(place.error(source.file.path(), "the primary key is null"));
        }
        measure(source, &batch, &mut sizer)?;
        pass.progress.add(batch.get_array_memory_size())?;
    }
    let slice_rows = sizer.slice_rows(0);
    Ok(Survey { schema, rows: sizer.rows(), sha256, slice_rows, kinds: Vec::new() })
}

/// The row of the first null, counted from 0.
fn first_null(column: &dyn Array) -> Option<u64> {
    let nulls = column.logical_nulls()?;
    let at = (0..nulls.len()).find(|at| nulls.is_null(*at))?;
    u64::try_from(at).ok()
}

/// Counts the rows of a batch with their share of its bytes.
fn measure(source: &Source, batch: &RecordBatch, sizer: &mut SliceSizer) -> Result<()> {
    let mut todo = vec![batch.clone()];
    // Halves are looked at only where their size makes a difference.
    while let Some(part) = todo.pop() {
        let rows = part.num_rows();
        let bytes = part.columns().iter().map(|column| slice_bytes(column)).sum::<usize>();
        if rows > 1 && bytes > ROW_BYTES_MAX / 4 {
            let half = rows / 2;
            todo.push(part.slice(half, rows - half));
            todo.push(part.slice(0, half));
            continue;
        }
        if rows == 1 && bytes > ROW_BYTES_MAX {
            let what = format!("a row is longer than {ROW_BYTES_MAX} bytes");
            return Err(Place::row(sizer.rows() + 1).limit(source.file.path(), &what));
        }
        (0..rows).for_each(|_| sizer.add(bytes.div_ceil(rows)));
    }
    Ok(())
}

/// Bytes of the values that the rows of a column have. A part of a list shares its values with the
/// whole, and what arrow says of its size has all of them in it.
fn slice_bytes(column: &dyn Array) -> usize {
    let own = match column.data_type() {
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            let (from, count) = range(list.value_offsets());
            slice_bytes(&*list.values().slice(from, count))
        }
        DataType::Map(..) => {
            let map = column.as_map();
            let (from, count) = range(map.value_offsets());
            slice_bytes(&map.entries().slice(from, count))
        }
        DataType::Struct(_) => {
            let parts = column.as_struct().columns().iter().map(|part| slice_bytes(part));
            parts.fold(0, usize::saturating_add)
        }
        _ => return column.to_data().get_slice_memory_size().unwrap_or(usize::MAX >> 16),
    };
    // Where each row ends, and whether it is there.
    own.saturating_add(column.len().saturating_mul(5))
}

/// Which values the rows of a list have, by where each row ends.
fn range(ends: &[i32]) -> (usize, usize) {
    let at = |end: Option<&i32>| end.and_then(|end| usize::try_from(*end).ok()).unwrap_or(0);
    let from = at(ends.first());
    (from, at(ends.last()).saturating_sub(from))
}

/// The second pass over a source.
pub(crate) struct ParquetReader {
    source: Source,
    file: Option<VerifiedFile>,
    rows: Option<ParquetRows>,
    schema: SchemaRef,
    sha256: Sha256Sum,
    /// Rows decoded beyond what was asked for.
    left: Option<RecordBatch>,
    skipped: u64,
}

impl ParquetReader {
    /// Reads the rows of a source with the schema of its first pass.
    pub(crate) fn new(source: &Source, schema: SchemaRef, planned: &[Sha256Sum]) -> Result<Self> {
        let file = VerifiedFile::new(source)?;
        let sha256 = file.sha256();
        if [sha256] != planned {
            return Err(source_changed(source.file.path(), "its SHA-256 is another"));
        }
        let (file, source) = (Some(file), source.clone());
        Ok(Self { source, file, rows: None, schema, sha256, left: None, skipped: 0 })
    }

    fn decoded(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(left) = self.left.take() {
            return Ok(Some(left));
        }
        if let Some(file) = self.file.take() {
            let part = Part::whole(self.skipped);
            let rows = ParquetRows::new(&self.source, file, &self.schema, part)?;
            self.rows = Some(rows);
        }
        self.rows.as_mut().map_or(Ok(None), ParquetRows::next)
    }
}

impl RowReader for ParquetReader {
    fn skip(&mut self, rows: u64) -> Result<()> {
        if self.file.is_some() {
            self.skipped = self.skipped.saturating_add(rows);
            return Ok(());
        }
        let mut todo = usize::try_from(rows).unwrap_or(usize::MAX);
        while todo > 0 {
            let Some(batch) = self.next_batch(todo.min(SLICE_ROWS as usize))? else { break };
            todo -= batch.num_rows();
        }
        Ok(())
    }

    fn next_batch(&mut self, rows: usize) -> Result<Option<RecordBatch>> {
        let mut parts: Vec<RecordBatch> = Vec::new();
        let mut missing = rows;
        while missing > 0 {
            let Some(batch) = self.decoded()? else { break };
            let count = batch.num_rows().min(missing);
            if count < batch.num_rows() {
                self.left = Some(batch.slice(count, batch.num_rows() - count));
            }
            parts.push(batch.slice(0, count));
            missing -= count;
        }
        match parts.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            many => concat_batches(&self.schema, many)
                .map(Some)
                .map_err(|e| damaged(&self.source, Place::default(), e.into())),
        }
    }

    fn finish(self: Box<Self>) -> Result<Vec<Sha256Sum>> {
        Ok(vec![self.sha256])
    }
}

/// Decodes rows, and turns every way of failing into an error.
struct ParquetRows {
    source: Source,
    file: VerifiedFile,
    schema: SchemaRef,
    reader: ParquetRecordBatchReader,
    /// The column, where only one is decoded.
    column: Option<String>,
    /// Of each column, whether the decoder leaves its text unchecked.
    unchecked: Vec<bool>,
    /// Rows up to here were decoded or skipped.
    row: u64,
}

/// What is decoded of a file.
struct Part {
    /// Rows that are left out.
    skip: u64,
    /// One column alone.
    column: Option<usize>,
    /// Row by row.
    is_single: bool,
}

impl Part {
    const fn whole(skip: u64) -> Self {
        Self { skip, column: None, is_single: false }
    }
}

impl ParquetRows {
    fn new(source: &Source, file: VerifiedFile, schema: &SchemaRef, part: Part) -> Result<Self> {
        let skipped = usize::try_from(part.skip).unwrap_or(usize::MAX);
        let column = part.column.and_then(|at| schema.fields().get(at)).map(|f| f.name().clone());
        let (schema, reader, unchecked) = guarded(source, Place::default(), || {
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let options = options.with_schema(Arc::clone(schema));
            let file = file.clone();
            let mut builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)?;
            let rows = if part.is_single { 1 } else { step_rows(&builder) };
            let mut schema = Arc::clone(schema);
            let mut unchecked = columns::unchecked(builder.parquet_schema());
            if let Some(column) = part.column {
                let mask = ProjectionMask::roots(builder.parquet_schema(), [column]);
                builder = builder.with_projection(mask);
                schema = Arc::new(schema.project(&[column])?);
                unchecked = unchecked.get(column).copied().into_iter().collect();
            }
            let builder = builder.with_batch_size(rows);
            let builder = if skipped > 0 { builder.with_offset(skipped) } else { builder };
            Ok((schema, builder.build()?, unchecked))
        })
        .map_err(|e| file.failure().unwrap_or(e))?;
        Ok(Self { source: source.clone(), file, schema, reader, column, unchecked, row: part.skip })
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Self { source, file, schema, reader, column, unchecked, row } = self;
        let place = Place { column: column.as_deref(), ..Place::row(*row + 1) };
        let batch = guarded(source, place, || {
            let Some(batch) = reader.next().transpose().map_err(ParquetError::from)? else {
                return Ok(None);
            };
            let mut texts = batch.columns().iter().zip(unchecked.iter());
            if !texts.all(|(array, unchecked)| !unchecked || columns::is_text(array)) {
                return Err(ParquetError::General("a text is not UTF-8".to_owned()));
            }
            Ok(Some(batch.with_schema(schema.clone()).map_err(ParquetError::from)?))
        })
        .map_err(|e| file.failure().unwrap_or(e))?;
        *row += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
        Ok(batch)
    }
}

/// The error of a step behind `row` rows, with the column and the row that cannot be decoded. Each
/// column is decoded by itself, and row by row that one which fails.
fn at_fault(
    source: &Source,
    file: &VerifiedFile,
    schema: &SchemaRef,
    row: u64,
    error: Error,
) -> Error {
    if file.failure().is_some() {
        return error;
    }
    let decode = |column: usize, is_single: bool| {
        let part = Part { skip: row, column: Some(column), is_single };
        let mut rows = match ParquetRows::new(source, file.clone(), schema, part) {
            Ok(rows) => rows,
            Err(error) => return Some(error),
        };
        let end = row + u64::from(SLICE_ROWS);
        while rows.row < end {
            match rows.next() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
        None
    };
    let columns = 0..schema.fields().len();
    let mut found = columns.filter_map(|column| {
        decode(column, false)?;
        decode(column, true)
    });
    found.next().unwrap_or(error)
}

/// Rows to decode at once, so that wide ones do not fill the memory.
fn step_rows(builder: &ParquetRecordBatchReaderBuilder<VerifiedFile>) -> usize {
    let wide = builder.metadata().row_groups().iter().filter(|group| group.num_rows() > 0);
    let widest = wide.map(|group| group.total_byte_size() / group.num_rows()).max();
    let rows = STEP_BYTES / widest.unwrap_or(0).max(1);
    usize::try_from(rows).unwrap_or(1).clamp(1, SLICE_ROWS as usize)
}

/// Calls into the decoder. It checks what it reads, but not everything: a panic on hostile bytes is
/// told as damage, like an error.
fn guarded<T>(
    source: &Source,
    place: Place<'_>,
    call: impl FnOnce() -> std::result::Result<T, ParquetError>,
) -> Result<T> {
    match decoder::guarded(call) {
        Some(Ok(found)) => Ok(found),
        Some(Err(e)) => Err(damaged(source, place, e)),
        None => Err(place.error(source.file.path(), "the file is damaged or truncated")),
    }
}

fn damaged(source: &Source, place: Place<'_>, error: ParquetError) -> Error {
    let path = source.file.path();
    place.error(path, "the file is damaged or truncated").with_source(error)
}

#[cfg(test)]
pub(crate) mod tests;
