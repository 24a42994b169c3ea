//! One schema for rows of several sources.
//!
//! Columns are those of all, in the order of their first appearance. A column that has one type
//! keeps it; one that is null in some keeps that of the others; one whose types differ becomes JSON
//! text, which holds every value as exactly as JSON Lines would.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::cell::Cells;
use crate::import::json::columns::{is_json_text, json_text};

/// Schemas seen so far, as one.
#[derive(Debug, Default)]
pub(crate) struct Unified {
    fields: Vec<Field>,
    last: Option<SchemaRef>,
}

impl Unified {
    /// Takes the columns of more rows into account.
    pub(crate) fn add(&mut self, schema: &SchemaRef) {
        if self.last.as_ref() == Some(schema) {
            return;
        }
        for field in schema.fields() {
            match self.fields.iter_mut().find(|known| known.name() == field.name()) {
                Some(known) => *known = merged(known, field),
                None => self.fields.push(field.as_ref().clone().with_nullable(true)),
            }
        }
        self.last = Some(Arc::clone(schema));
    }

    /// The schema of all rows.
    pub(crate) fn schema(&self) -> SchemaRef {
        let fields = self.fields.iter().map(|field| match field.data_type() {
            // Nothing is known about it, and Parquet has no such column.
            DataType::Null => field.clone().with_data_type(DataType::Utf8),
            _ => field.clone(),
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }
}

fn merged(known: &Field, field: &Field) -> Field {
    let same_kind = is_json_text(known) == is_json_text(field);
    match (known.data_type(), field.data_type()) {
        (a, b) if a == b && same_kind => known.clone(),
        (_, DataType::Null) => known.clone(),
        (DataType::Null, _) => field.clone().with_nullable(true),
        _ => json_text(Field::new(known.name(), DataType::Utf8, true)),
    }
}

/// The rows of a batch with the columns of a schema that it was taken into.
pub(crate) fn conform(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = schema.fields().iter().map(|field| {
        let Ok(at) = batch.schema_ref().index_of(field.name()) else {
            return Ok(new_null_array(field.data_type(), batch.num_rows()));
        };
        column(batch.schema_ref().field(at), batch.column(at), field)
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

fn column(from: &Field, array: &ArrayRef, to: &Field) -> Result<ArrayRef, ArrowError> {
    if from.data_type() == &DataType::Null {
        return Ok(new_null_array(to.data_type(), array.len()));
    }
    if from.data_type() == to.data_type() && is_json_text(from) == is_json_text(to) {
        return Ok(Arc::clone(array));
    }
    let cells = Cells::of(from, array)?;
    let mut text = StringBuilder::new();
    let mut value = Vec::new();
    for row in 0..array.len() {
        if cells.is_null(row) {
            text.append_null();
            continue;
        }
        value.clear();
        cells.write(row, &mut value)?;
        text.append_value(String::from_utf8_lossy(&value));
    }
    Ok(Arc::new(text.finish()))
}
