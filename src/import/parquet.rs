//! Parquet: the columns as they are in the file, nested ones included.
//!
//! Rows are decoded twice. The first pass decodes everything, so that a damaged page fails the job
//! before its first row. Parquet is read out of order, so that the digest of the file cannot be
//! taken on the way: each pass reads the file once from start to end for it, and keeps a short
//! digest of each block; what is decoded afterwards is compared with these, block by block. No byte
//! is decoded that was not part of the digest.
//!
//! What the file announces is compared with limits before the decoder makes room for it (`pages`,
//! `costs`), and rows are decoded in small steps (`rows`), so that memory depends on no file.
//!
//! Checksums of pages are verified where a page has one. Which types columns have, `columns` says.

mod blocks;
mod columns;
mod costs;
mod pages;
mod rows;
mod runs;
mod thrift;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::concat::concat_batches;
use parquet::errors::ParquetError;

use self::blocks::VerifiedFile;
use self::rows::{ParquetRows, Pass};
use super::decoder;
use super::place::Place;
use super::read::{self, FirstPass, RowReader, Survey};
use super::sizer::{SLICE_ROWS, SliceSizer};
use super::source::{Sha256Sum, Source, source_changed};
use super::stream::ROW_BYTES_MAX;
use crate::error::{Error, Result};

/// The first pass over a source.
pub(crate) fn survey(source: &Source, pass: &mut FirstPass<'_>) -> Result<Survey> {
    let file = VerifiedFile::new(source)?;
    let sha256 = vec![file.sha256()];
    let footer = pages::check_footer(&file);
    let footer = footer.map_err(|fault| rows::refused_at(source, Place::default(), fault));
    let schema = footer.and_then(|()| columns::schema(source, &file));
    let schema = schema.map_err(|e| file.failure().unwrap_or(e))?;
    let mut reader = ParquetRows::new(source, file, &schema, Pass::First, 0)?;
    let names: Vec<String> = reader.schema().fields().iter().map(|f| f.name().clone()).collect();
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
        let Some(batch) = reader.next()? else { break };
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
            let fields = part.schema();
            let widest = part.columns().iter().zip(fields.fields());
            let widest = widest.max_by_key(|(column, _)| slice_bytes(column));
            let column = widest.map(|(_, field)| field.name().as_str());
            let place = Place { column, ..Place::row(sizer.rows() + 1) };
            return Err(place.limit(source.file.path(), &what));
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
    slice_rows: u32,
}

impl ParquetReader {
    /// Reads the rows of a source by what its first pass found.
    pub(crate) fn new(source: &Source, survey: &Survey) -> Result<Self> {
        let file = VerifiedFile::new(source)?;
        let sha256 = file.sha256();
        if [sha256] != survey.sha256.as_slice() {
            return Err(source_changed(source.file.path(), "its SHA-256 is another"));
        }
        let (file, source, schema) = (Some(file), source.clone(), survey.schema.clone());
        let (rows, left, slice_rows) = (None, None, survey.slice_rows);
        Ok(Self { source, file, rows, schema, sha256, left, skipped: 0, slice_rows })
    }

    fn decoded(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(left) = self.left.take() {
            return Ok(Some(left));
        }
        if let Some(file) = self.file.take() {
            let pass = Pass::Second(self.slice_rows);
            let rows = ParquetRows::new(&self.source, file, &self.schema, pass, self.skipped)?;
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
        None => Err(damage(source, place)),
    }
}

fn damaged(source: &Source, place: Place<'_>, error: ParquetError) -> Error {
    damage(source, place).with_source(error)
}

fn damage(source: &Source, place: Place<'_>) -> Error {
    place.error(source.file.path(), "the file is damaged or truncated")
}

#[cfg(test)]
pub(crate) mod tests;
