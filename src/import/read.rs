//! Rows of a source, whatever its format: one pass that learns, one that yields.
//!
//! The first pass reads every row, checks it, and tells what the plan needs; nothing of it is kept
//! but the schema. The second yields the same rows in the same order in batches of an exact number
//! of rows, from any row on, and tells at its end what it read. Memory is that of one batch.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Schema, SchemaRef};

use super::csv::{self, CsvReader};
use super::format::Format;
use super::json::columns::Kinds;
use super::json::{self, Framing, JsonReader};
use super::numpy::{self, NumpyReader};
use super::parquet::{self, ParquetReader};
use super::place::{Place, shortened};
use super::source::{Sha256Sum, Source};
use crate::error::{Error, ErrorKind, Result};

/// What the first pass over a source learned.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    /// Columns in order.
    pub(crate) schema: SchemaRef,
    /// Number of rows.
    pub(crate) rows: u64,
    /// Digest of each file.
    pub(crate) sha256: Vec<Sha256Sum>,
    /// Most rows that a slice may have.
    pub(crate) slice_rows: u32,
    /// Of a source without types of its own, the values of each column.
    pub(crate) kinds: Vec<Kinds>,
}

/// What the first pass is told.
pub(crate) struct FirstPass<'a> {
    /// The column that must be there, and not null, in every row.
    pub(crate) primary_key: Option<&'a str>,
    /// Types that text of the columns named so must spell values of.
    pub(crate) expected: Option<&'a Schema>,
    /// Where progress goes.
    pub(crate) progress: Progress<'a>,
}

/// Reports bytes as they are read, and may stop the reading.
pub(crate) struct Progress<'a> {
    pending: u64,
    report: &'a mut dyn FnMut(u64) -> Result<()>,
}

impl<'a> Progress<'a> {
    /// Bytes between two reports.
    const STEP_BYTES: u64 = 1 << 20;

    /// Reports to a function; its error ends the pass.
    pub(crate) fn new(report: &'a mut dyn FnMut(u64) -> Result<()>) -> Self {
        Self { pending: 0, report }
    }

    /// Counts bytes that were read.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<()> {
        self.pending = self.pending.saturating_add(bytes as u64);
        if self.pending < Self::STEP_BYTES {
            return Ok(());
        }
        (self.report)(std::mem::take(&mut self.pending))
    }

    /// Counts nothing, and may stop the reading.
    pub(crate) fn look(&mut self) -> Result<()> {
        (self.report)(0)
    }
}

/// The second pass over a source.
pub(crate) trait RowReader: Send {
    /// Leaves out the next rows.
    fn skip(&mut self, rows: u64) -> Result<()>;

    /// The next rows, exactly this many unless the source ends; `None` behind the last.
    fn next_batch(&mut self, rows: usize) -> Result<Option<RecordBatch>>;

    /// Reads what is left and tells the digest of each file as it was read.
    fn finish(self: Box<Self>) -> Result<Vec<Sha256Sum>>;
}

/// Reads a set of sources for the first time: one, or the columns of NumPy.
pub(crate) fn survey(
    sources: &[Source],
    format: Format,
    pass: &mut FirstPass<'_>,
) -> Result<Survey> {
    let source = first_of(sources)?;
    sources.iter().try_for_each(|source| format.confirm(source))?;
    let survey = match format {
        Format::Csv => csv::survey(source, pass),
        Format::Json => json::survey(source, Framing::Array, pass),
        Format::JsonLines => json::survey(source, Framing::Lines, pass),
        Format::Numpy => numpy::survey(sources, pass),
        Format::Parquet => parquet::survey(source, pass),
    }?;
    if let Some(name) = pass.primary_key {
        check_primary_key(source, &survey, name)?;
    }
    sources.iter().try_for_each(|source| source.unchanged(source.identity))?;
    Ok(survey)
}

/// Opens a set of sources for its second pass, with the schema and the digests of its first.
pub(crate) fn open(
    sources: &[Source],
    format: Format,
    survey: &Survey,
) -> Result<Box<dyn RowReader>> {
    let (source, schema) = (first_of(sources)?, survey.schema.clone());
    Ok(match format {
        Format::Csv => Box::new(CsvReader::new(source, schema)?),
        Format::Json => Box::new(JsonReader::new(source, Framing::Array, schema)?),
        Format::JsonLines => Box::new(JsonReader::new(source, Framing::Lines, schema)?),
        Format::Numpy => Box::new(NumpyReader::new(sources, schema)?),
        Format::Parquet => Box::new(ParquetReader::new(source, survey)?),
    })
}

fn first_of(sources: &[Source]) -> Result<&Source> {
    let none = || Error::new(ErrorKind::InvalidInput, "a set of no file");
    sources.first().ok_or_else(none)
}

/// A batch of these columns.
pub(crate) fn batch(schema: SchemaRef, arrays: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    // Without columns the number of rows is told by nothing else.
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, arrays, &options).map_err(unfit)
}

/// The error of rows that are not what their schema says.
pub(crate) fn unfit(error: arrow_schema::ArrowError) -> Error {
    Error::new(ErrorKind::InvalidInput, "rows do not fit a schema").with_source(error)
}

/// Fails unless the column is there and its values can be told apart by their bytes.
fn check_primary_key(source: &Source, survey: &Survey, name: &str) -> Result<()> {
    let path = source.file.path();
    // Without rows nothing lacks a key, and a JSON source has no columns either.
    let Ok(field) = survey.schema.field_with_name(name) else {
        if survey.rows == 0 {
            return Ok(());
        }
        return Err(Place::default().column(name).error(path, "the primary key is no column"));
    };
    let kind = field.data_type();
    let text = matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    if (text && !json::columns::is_json_text(field)) || kind.is_integer() {
        return Ok(());
    }
    let what = format!("the primary key is neither integer nor text, found {kind}");
    if survey.rows == 0 { Ok(()) } else { Err(Place::default().column(name).error(path, &what)) }
}

/// Most columns of a source: each costs memory in every slice, used or not.
pub(crate) const COLUMN_COUNT_MAX: usize = 4096;

/// Fails when there are too many columns, or two have one name.
pub(crate) fn check_names(source: &Source, names: &[String]) -> Result<()> {
    if names.len() > COLUMN_COUNT_MAX {
        let what = format!("more than {COLUMN_COUNT_MAX} columns");
        return Err(Place::default().limit(source.file.path(), &what));
    }
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            let what = format!("two columns have the name `{}`", shortened(name));
            return Err(Place::default().error(source.file.path(), &what));
        }
    }
    Ok(())
}

/// A schema of these fields.
pub(crate) fn schema(fields: Vec<arrow_schema::Field>) -> SchemaRef {
    Arc::new(Schema::new(fields))
}

#[cfg(test)]
pub(crate) mod tests;
