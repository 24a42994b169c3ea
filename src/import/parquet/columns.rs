//! The Arrow types that columns are read as.
//!
//! They are those of the Parquet schema. Of the Arrow schema that a writer embedded only that counts
//! which Parquet cannot say of the same values: the name of a time zone, durations, dates of 64 bits,
//! times in seconds. The old 12-byte timestamps (INT96) are nanoseconds, and microseconds where a
//! column has instants that 64 bits of nanoseconds do not hold.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::Array;
use arrow_array::cast::AsArray as _;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{ConvertedType, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{Int96, Int96Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;

use super::blocks::VerifiedFile;
use super::costs::{self, STEP_BYTES_MAX};
use super::guarded;
use super::pages::{Fault, Looked, PAGES_BYTES_MAX};
use crate::error::Result;
use crate::import::decoder;
use crate::import::place::Place;
use crate::import::source::Source;

/// Values of a column that are looked at at once.
const STEP_VALUES: usize = 8192;

/// Day 0 of 1970 as Julian days count.
const JULIAN_DAY_1970: i128 = 2_440_588;
const DAY_NS: i128 = 86_400_000_000_000;

/// The schema to read the rows of a file with.
pub(super) fn schema(source: &Source, file: &VerifiedFile) -> Result<SchemaRef> {
    let plain = guarded(source, Place::default(), || {
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        ArrowReaderMetadata::load(file, options)
    })?;
    check(source, plain.parquet_schema())?;
    // What is embedded is a hint, and may be anything.
    let embedded = decoder::guarded(|| {
        ArrowReaderMetadata::try_new(Arc::clone(plain.metadata()), ArrowReaderOptions::new())
    });
    let embedded = embedded.and_then(std::result::Result::ok);
    let micros = micros(source, file, plain.metadata())?;
    let mut leaves = Leaves { next: 0, micros, words: words(plain.parquet_schema()) };
    let hints = embedded.as_ref().map(|embedded| embedded.schema().fields());
    let fields = leaves.fields(plain.schema().fields(), hints);
    // The key-value metadata of the file is not part of its rows.
    Ok(Arc::new(Schema::new(fields)))
}

/// Fails for a column whose values would not all come back.
fn check(source: &Source, schema: &SchemaDescriptor) -> Result<()> {
    for (at, column) in schema.columns().iter().enumerate() {
        if column.converted_type() == ConvertedType::INTERVAL {
            let name = schema.get_column_root(at).name();
            let what = "values of type INTERVAL are not read";
            return Err(Place::default().column(name).error(source.file.path(), what));
        }
    }
    Ok(())
}

/// Columns of single values in the order of the file, as their fields are walked.
struct Leaves {
    next: usize,
    micros: HashSet<usize>,
    words: HashSet<usize>,
}

impl Leaves {
    fn fields(&mut self, plain: &Fields, hints: Option<&Fields>) -> Fields {
        let hints = hints.filter(|hints| hints.len() == plain.len());
        let fields = plain.iter().enumerate().map(|(at, field)| {
            let hint = hints.and_then(|hints| hints.get(at));
            self.field(field, hint.filter(|hint| hint.name() == field.name()))
        });
        fields.collect()
    }

    fn field(&mut self, plain: &FieldRef, hint: Option<&FieldRef>) -> FieldRef {
        let hint = hint.map(|hint| hint.data_type());
        let kind = match plain.data_type() {
            DataType::Struct(fields) => {
                let hint = hint.and_then(|hint| match hint {
                    DataType::Struct(fields) => Some(fields),
                    _ => None,
                });
                DataType::Struct(self.fields(fields, hint))
            }
            DataType::List(item) => DataType::List(self.field(item, hint.and_then(item_of))),
            DataType::Map(entries, sorted) => {
                let hint = hint.and_then(|hint| match hint {
                    DataType::Map(entries, _) => Some(entries),
                    _ => None,
                });
                DataType::Map(self.field(entries, hint), *sorted)
            }
            kind => self.leaf(kind, hint),
        };
        if kind == *plain.data_type() {
            return Arc::clone(plain);
        }
        let field: &Field = plain;
        Arc::new(field.clone().with_data_type(kind))
    }

    fn leaf(&mut self, plain: &DataType, hint: Option<&DataType>) -> DataType {
        let at = self.next;
        self.next += 1;
        if self.micros.contains(&at) {
            return DataType::Timestamp(TimeUnit::Microsecond, None);
        }
        if self.words.contains(&at) {
            return DataType::Utf8;
        }
        let Some(hint) = hint else { return plain.clone() };
        let hint = if let DataType::Dictionary(_, values) = hint { values } else { hint };
        let is_more = match (plain, hint) {
            (DataType::Timestamp(a, Some(_)), DataType::Timestamp(b, Some(_))) => a == b,
            (DataType::Int64, DataType::Timestamp(unit, _)) => *unit == TimeUnit::Second,
            (DataType::Int64, DataType::Duration(_) | DataType::Date64)
            | (DataType::Date32, DataType::Date64)
            | (DataType::Int32, DataType::Time32(TimeUnit::Second)) => true,
            _ => false,
        };
        if is_more { hint.clone() } else { plain.clone() }
    }
}

fn item_of(list: &DataType) -> Option<&FieldRef> {
    match list {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

/// The columns of words of an enumeration, which are UTF-8.
fn words(schema: &SchemaDescriptor) -> HashSet<usize> {
    let columns = schema.columns().iter().enumerate();
    let words = columns.filter(|(_, column)| {
        let is_enum = column.converted_type() == ConvertedType::ENUM;
        is_enum && column.physical_type() == Physical::BYTE_ARRAY
    });
    words.map(|(at, _)| at).collect()
}

/// Fields whose text the decoder takes for UTF-8 without a look: JSON, and words of enumerations.
pub(super) fn unchecked(schema: &SchemaDescriptor) -> Vec<bool> {
    let mut unchecked = vec![false; schema.root_schema().get_fields().len()];
    for (at, column) in schema.columns().iter().enumerate() {
        let is_bytes = column.physical_type() == Physical::BYTE_ARRAY;
        let root = schema.get_column_root_idx(at);
        if is_bytes
            && column.converted_type() != ConvertedType::UTF8
            && let Some(unchecked) = unchecked.get_mut(root)
        {
            *unchecked = true;
        }
    }
    unchecked
}

/// Whether all text in a column is UTF-8, wherever it is nested.
pub(super) fn is_text(array: &dyn Array) -> bool {
    match array.data_type() {
        DataType::Utf8 => {
            let text = array.as_string::<i32>();
            let bytes = text.value_data();
            // Bytes, not text, until each of them was looked at.
            text.value_offsets().windows(2).all(|bounds| {
                let value = match bounds {
                    [from, to] => usize::try_from(*from).ok().zip(usize::try_from(*to).ok()),
                    _ => None,
                };
                let value = value.and_then(|(from, to)| bytes.get(from..to));
                value.is_some_and(|value| std::str::from_utf8(value).is_ok())
            })
        }
        DataType::List(_) => is_text(array.as_list::<i32>().values()),
        DataType::Map(..) => is_text(array.as_map().entries()),
        DataType::Struct(_) => array.as_struct().columns().iter().all(|column| is_text(column)),
        _ => true,
    }
}

/// The INT96 columns that are read as microseconds.
fn micros(
    source: &Source,
    file: &VerifiedFile,
    metadata: &ParquetMetaData,
) -> Result<HashSet<usize>> {
    let schema = metadata.file_metadata().schema_descr();
    let mut micros = HashSet::new();
    for (at, column) in schema.columns().iter().enumerate() {
        if column.physical_type() != Physical::INT96 {
            continue;
        }
        let name = schema.get_column_root(at).name();
        let place = Place::default().column(name);
        let steps = steps(file, metadata, at);
        let steps = steps.map_err(|fault| super::rows::refused_at(source, place, fault))?;
        let instants = guarded(source, place, || Instants::of(file, at, &steps))?;
        if let Some(row) = instants.unfit() {
            let what = "the instant is none of 64 bits, beside those before it";
            return Err(Place::row(row).column(name).error(source.file.path(), what));
        }
        if instants.beyond_ns.is_some() {
            micros.insert(at);
        }
    }
    Ok(micros)
}

/// Rows of a column to decode at once, in each row group.
fn steps(file: &VerifiedFile, metadata: &ParquetMetaData, column: usize) -> Looked<Vec<usize>> {
    let steps = metadata.row_groups().iter().map(|group| {
        let chunk = group.columns().get(column).ok_or(Fault::Damaged)?;
        let cost = costs::of_chunk(file, chunk, group.num_rows(), true, &mut 0)?;
        if cost.pages > PAGES_BYTES_MAX {
            return Err(Fault::Limit(format!("pages of {} bytes", cost.pages)));
        }
        let rows = (1..=STEP_VALUES).rev().step_by(64).chain([1]);
        let mut fit = rows.filter(|rows| cost.of_rows(*rows as u64) <= STEP_BYTES_MAX);
        Ok(fit.next().unwrap_or(1))
    });
    steps.collect()
}

/// What instants a column has: the first row, from 1, of each kind.
#[derive(Default)]
struct Instants {
    /// One that nanoseconds do not hold.
    beyond_ns: Option<u64>,
    /// One that microseconds do not hold exactly.
    below_us: Option<u64>,
    /// One that neither holds.
    beyond_us: Option<u64>,
}

impl Instants {
    fn of(
        file: &VerifiedFile,
        column: usize,
        steps: &[usize],
    ) -> std::result::Result<Self, ParquetError> {
        let (mut found, mut row) = (Self::default(), 0);
        let reader = SerializedFileReader::new(file.clone())?;
        for (group, step) in (0..reader.num_row_groups()).zip(steps) {
            let group = reader.get_row_group(group)?;
            let schema = group.metadata().schema_descr_ptr();
            let levels = schema.column(column);
            let (def, rep) = (levels.max_def_level(), levels.max_rep_level());
            if let ColumnReader::Int96ColumnReader(values) = group.get_column_reader(column)? {
                found.take((values, *step), (def, rep), &mut row)?;
            }
        }
        Ok(found)
    }

    fn take(
        &mut self,
        (mut reader, step): (ColumnReaderImpl<Int96Type>, usize),
        (def, rep): (i16, i16),
        row: &mut u64,
    ) -> std::result::Result<(), ParquetError> {
        loop {
            let (mut values, mut defs, mut reps) = (Vec::new(), Vec::new(), Vec::new());
            let (records, _, levels) = reader.read_records(
                step,
                (def > 0).then_some(&mut defs),
                (rep > 0).then_some(&mut reps),
                &mut values,
            )?;
            if records == 0 && levels == 0 {
                return Ok(());
            }
            let mut values = values.iter();
            for at in 0..levels.max(records) {
                // Without levels every entry is a row with a value.
                if reps.get(at).is_none_or(|level| *level == 0) {
                    *row += 1;
                }
                if defs.get(at).is_none_or(|level| *level == def)
                    && let Some(value) = values.next()
                {
                    self.add(*row, value);
                }
            }
        }
    }

    fn add(&mut self, row: u64, value: &Int96) {
        let [low, high, day] = value.data() else { return };
        let ns = (u64::from(*high) << 32 | u64::from(*low)).cast_signed();
        let days = i128::from(day.cast_signed()) - JULIAN_DAY_1970;
        let ns = days * DAY_NS + i128::from(ns);
        let first = |seen: &mut Option<u64>| {
            seen.get_or_insert(row);
        };
        if i64::try_from(ns).is_err() {
            first(&mut self.beyond_ns);
        }
        if ns % 1000 != 0 {
            first(&mut self.below_us);
        }
        if i64::try_from(ns / 1000).is_err() {
            first(&mut self.beyond_us);
        }
    }

    /// The row at which no unit holds all instants any more.
    fn unfit(&self) -> Option<u64> {
        let both = self.beyond_ns.zip(self.below_us).map(|(beyond, below)| beyond.max(below));
        self.beyond_us.into_iter().chain(both).min()
    }
}
