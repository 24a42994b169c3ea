//! Rows decoded in steps that stay within bounds, whatever the file is.
//!
//! A step begins with one row and doubles while what it decodes to is small. How far it may go is
//! known beforehand (`costs`), as an upper bound; where that is far too high, what was decoded says
//! so, and where rows turn out to be large, the step is thrown away and made again with half of
//! them. Columns whose pages do not fit into memory together are decoded one after the other.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;

use super::blocks::VerifiedFile;
use super::costs::{self, Cost, STEP_BYTES_MAX};
use super::pages::{Fault, PAGES_BYTES_MAX};
use super::{columns, damage, guarded, slice_bytes};
use crate::error::{Error, Result};
use crate::import::place::Place;
use crate::import::read;
use crate::import::sizer::SLICE_ROWS;
use crate::import::source::Source;
use crate::import::stream::ROW_BYTES_MAX;

/// Decoded bytes that are aimed at for one step.
const STEP_BYTES: usize = 8 << 20;

/// Which pass it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Nothing is known of the rows.
    First,
    /// So many rows are known to fit a slice.
    Second(u32),
}

/// Decodes rows, and turns every way of failing into an error.
pub(super) struct ParquetRows {
    source: Source,
    file: VerifiedFile,
    metadata: ArrowReaderMetadata,
    schema: SchemaRef,
    /// Of each column, whether the decoder leaves its text unchecked.
    unchecked: Vec<bool>,
    pass: Pass,
    /// Row group, and rows of it that were decoded or skipped.
    group: usize,
    within: u64,
    costs: Option<Vec<Cost>>,
    /// Rows that the next step may have.
    step: u64,
    open: Option<Open>,
    /// Rows up to here were decoded or skipped.
    row: u64,
}

/// A reader of all columns that goes on with the step before.
struct Open {
    reader: ParquetRecordBatchReader,
    rows: u64,
    within: u64,
}

/// A step that is made again with fewer rows, or fails.
enum Unmade {
    TooLarge,
    Failed(Error),
}

impl From<Error> for Unmade {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl ParquetRows {
    /// Rows of a file behind the first `skip`.
    pub(super) fn new(
        source: &Source,
        file: VerifiedFile,
        schema: &SchemaRef,
        pass: Pass,
        skip: u64,
    ) -> Result<Self> {
        let loaded = guarded(source, Place::default(), || {
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let options = options.with_schema(Arc::clone(schema));
            ArrowReaderMetadata::load(&file, options)
        });
        let metadata = loaded.map_err(|e| file.failure().unwrap_or(e))?;
        let unchecked = columns::unchecked(metadata.parquet_schema());
        let step = match pass {
            Pass::First => 1,
            Pass::Second(rows) => u64::from(rows.clamp(1, SLICE_ROWS)),
        };
        let (source, schema) = (source.clone(), Arc::clone(schema));
        let mut rows = Self {
            source,
            file,
            metadata,
            schema,
            unchecked,
            pass,
            group: 0,
            within: 0,
            costs: None,
            step,
            open: None,
            row: 0,
        };
        rows.pass_over(skip);
        Ok(rows)
    }

    /// The columns.
    pub(super) const fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn pass_over(&mut self, mut rows: u64) {
        while let Some(count) = self.group_rows().filter(|count| *count <= rows) {
            rows -= count;
            self.row += count;
            self.group += 1;
        }
        if self.group_rows().is_some() {
            self.within = rows;
            self.row += rows;
        }
    }

    /// Rows of the row group; `None` behind the last. Of a count that is none there are none.
    fn group_rows(&self) -> Option<u64> {
        let group = self.metadata.metadata().row_groups().get(self.group)?;
        Some(u64::try_from(group.num_rows()).unwrap_or(0))
    }

    /// The next rows; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let Some(count) = self.group_rows() else { return Ok(None) };
            if self.within >= count {
                (self.group, self.within, self.costs, self.open) = (self.group + 1, 0, None, None);
                continue;
            }
            let costs = match self.costs.take() {
                Some(costs) => costs,
                None => self.group_costs()?,
            };
            let rows = self.step.min(fitting(&costs));
            let made = self.made(&costs, rows, rows.min(count - self.within));
            self.costs = Some(costs);
            match made {
                Ok((batch, bytes)) => {
                    let done = batch.num_rows() as u64;
                    self.within += done;
                    self.row += done;
                    if self.pass == Pass::First && rows == self.step && bytes <= STEP_BYTES / 2 {
                        self.step = (rows * 2).min(u64::from(SLICE_ROWS));
                    }
                    return Ok(Some(batch));
                }
                Err(Unmade::TooLarge) => self.step = (rows / 2).max(1),
                Err(Unmade::Failed(error)) => {
                    return Err(self.file.failure().unwrap_or_else(|| self.at_fault(rows, error)));
                }
            }
        }
    }

    fn group_costs(&self) -> Result<Vec<Cost>> {
        let is_first = self.pass == Pass::First;
        let costs = costs::of_group(&self.file, &self.metadata, self.group, is_first);
        costs.map_err(|refused| {
            let name = self.schema.fields().get(refused.column).map(|field| field.name().as_str());
            let row = if refused.row > 0 { self.row + refused.row } else { 0 };
            let place = Place { column: name, ..Place::row(row) };
            self.file.failure().unwrap_or_else(|| refused_at(&self.source, place, refused.fault))
        })
    }

    /// One step: a batch, and the bytes of it.
    fn made(
        &mut self,
        costs: &[Cost],
        rows: u64,
        count: u64,
    ) -> std::result::Result<(RecordBatch, usize), Unmade> {
        let parts = parts(costs, rows);
        if parts.len() <= 1 {
            let open =
                self.open.take().filter(|open| open.rows == rows && open.within == self.within);
            let mut open = match open {
                Some(open) => open,
                None => Open { reader: self.reader(None, self.within, rows)?, rows, within: 0 },
            };
            let batch = self.decoded(&mut open.reader, None, self.row)?;
            let batch = self.whole(batch, count)?;
            open.within = self.within + count;
            self.open = Some(open);
            let bytes = self.fitting_bytes(batch.columns(), 0, count)?;
            return Ok((batch, bytes));
        }
        self.open = None;
        let (mut arrays, mut bytes) = (Vec::<ArrayRef>::new(), 0);
        for part in parts {
            let mut reader = self.reader(Some(part.clone()), self.within, rows)?;
            let batch = self.decoded(&mut reader, Some(part), self.row)?;
            let batch = self.whole(batch, count)?;
            bytes = self.fitting_bytes(batch.columns(), bytes, count)?;
            arrays.extend_from_slice(batch.columns());
        }
        let rows = usize::try_from(count).unwrap_or(usize::MAX);
        Ok((read::batch(Arc::clone(&self.schema), arrays, rows)?, bytes))
    }

    /// Bytes of columns beside those before them, while they fit.
    fn fitting_bytes(
        &self,
        columns: &[ArrayRef],
        before: usize,
        rows: u64,
    ) -> std::result::Result<usize, Unmade> {
        let bytes =
            columns.iter().map(|column| slice_bytes(column)).fold(before, usize::saturating_add);
        if self.pass == Pass::First && rows > 1 && bytes > STEP_BYTES * 2 {
            return Err(Unmade::TooLarge);
        }
        // Whose the most of it is tells who looks at the whole row; here there is no room for it.
        if rows == 1 && before > 0 && bytes > ROW_BYTES_MAX {
            let what = format!("a row is longer than {ROW_BYTES_MAX} bytes");
            let error = Place::row(self.row + 1).limit(self.source.file.path(), &what);
            return Err(Unmade::Failed(error));
        }
        Ok(bytes)
    }

    fn reader(
        &self,
        columns: Option<Range<usize>>,
        within: u64,
        rows: u64,
    ) -> Result<ParquetRecordBatchReader> {
        let place = Place::row(self.row + 1);
        guarded(&self.source, place, || {
            let (file, metadata) = (self.file.clone(), self.metadata.clone());
            let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
                .with_row_groups(vec![self.group])
                .with_batch_size(usize::try_from(rows).unwrap_or(1));
            if let Some(columns) = columns {
                let mask = ProjectionMask::roots(builder.parquet_schema(), columns);
                builder = builder.with_projection(mask);
            }
            if within > 0 {
                builder = builder.with_offset(usize::try_from(within)?);
            }
            builder.build()
        })
    }

    /// The next batch of a reader, whose first row stands behind `row` others.
    fn decoded(
        &self,
        reader: &mut ParquetRecordBatchReader,
        columns: Option<Range<usize>>,
        row: u64,
    ) -> Result<Option<RecordBatch>> {
        let all = 0..self.schema.fields().len();
        let columns = columns.unwrap_or(all);
        let name = match columns.len() {
            1 => self.schema.fields().get(columns.start).map(|field| field.name().as_str()),
            _ => None,
        };
        let place = Place { column: name, ..Place::row(row + 1) };
        guarded(&self.source, place, || {
            let Some(batch) = reader.next().transpose().map_err(ParquetError::from)? else {
                return Ok(None);
            };
            let unchecked = self.unchecked.get(columns.clone()).unwrap_or_default();
            let mut texts = batch.columns().iter().zip(unchecked);
            if !texts.all(|(array, unchecked)| !unchecked || columns::is_text(array)) {
                return Err(ParquetError::General("a text is not UTF-8".to_owned()));
            }
            let schema = self.schema.project(&columns.collect::<Vec<_>>())?;
            Ok(Some(batch.with_schema(Arc::new(schema)).map_err(ParquetError::from)?))
        })
    }

    fn whole(&self, batch: Option<RecordBatch>, count: u64) -> Result<RecordBatch> {
        let found = batch.filter(|batch| batch.num_rows() as u64 == count);
        found.ok_or_else(|| {
            let what = "the file is damaged or truncated: it has fewer rows than it says";
            Place::row(self.row + 1).error(self.source.file.path(), what)
        })
    }

    /// The error of a step, with the column and the row that cannot be decoded. Each column is
    /// decoded by itself, and row by row that one which fails.
    fn at_fault(&self, rows: u64, error: Error) -> Error {
        if error.kind() == crate::error::ErrorKind::Limit {
            return error;
        }
        let decode = |column: usize, step: u64| {
            let part = column..column + 1;
            let mut reader = match self.reader(Some(part.clone()), self.within, step) {
                Ok(reader) => reader,
                Err(error) => return Some(error),
            };
            let mut done = 0;
            while done < rows {
                match self.decoded(&mut reader, Some(part.clone()), self.row + done) {
                    Ok(Some(batch)) => done += batch.num_rows() as u64,
                    Ok(None) => return None,
                    Err(error) => return Some(error),
                }
            }
            None
        };
        let mut found = (0..self.schema.fields().len()).filter_map(|column| {
            decode(column, rows)?;
            decode(column, 1)
        });
        found.next().unwrap_or(error)
    }
}

/// The error of what is refused before it is decoded.
pub(super) fn refused_at(source: &Source, place: Place<'_>, fault: Fault) -> Error {
    match fault {
        Fault::Damaged => damage(source, place),
        Fault::Limit(what) => place.limit(source.file.path(), &what),
    }
}

/// Most rows, a power of two, of which no column is too large for a step.
fn fitting(costs: &[Cost]) -> u64 {
    let most = (0..=SLICE_ROWS.trailing_zeros()).rev().map(|level| 1_u64 << level);
    let mut fit =
        most.filter(|rows| costs.iter().all(|cost| cost.of_rows(*rows) <= STEP_BYTES_MAX));
    fit.next().unwrap_or(1)
}

/// Columns that fit into memory together, in order.
fn parts(costs: &[Cost], rows: u64) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let (mut pages, mut bytes) = (0_u64, 0_u64);
    for (at, cost) in costs.iter().enumerate() {
        let step = cost.of_rows(rows);
        pages = pages.saturating_add(cost.pages);
        bytes = bytes.saturating_add(step);
        match parts.last_mut() {
            Some(part) if pages <= PAGES_BYTES_MAX && bytes <= STEP_BYTES_MAX => part.end = at + 1,
            _ => {
                (pages, bytes) = (cost.pages, step);
                parts.push(at..at + 1);
            }
        }
    }
    parts
}
