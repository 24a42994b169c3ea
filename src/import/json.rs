//! JSON arrays and JSON Lines: rows are objects, columns the union of their keys.
//!
//! The first pass over a source unifies the types of its columns, the second fills them. A key that
//! a row lacks is null. Refused, with row, line and column: a key twice in a row, a value that is
//! not exact in 64 bits, anything that RFC 8259 does not have.

pub(crate) mod columns;
mod rows;
mod value;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use self::columns::{ColumnBuilder, Columns, Found, Kinds};
pub(crate) use self::rows::Framing;
use self::rows::JsonRows;
use self::value::{Members, Value, Wrong};
use super::read::{COLUMN_COUNT_MAX, FirstPass, RowReader, Survey};
use super::sizer::SliceSizer;
use super::source::{Sha256Sum, Source, source_changed};
use crate::error::Result;

/// Bytes of a value of a fixed width, or of an offset into text, and its share of a null mask.
const VALUE_BYTES: u64 = 9;

/// The first pass over a source.
pub(crate) fn survey(
    source: &Source,
    framing: Framing,
    pass: &mut FirstPass<'_>,
) -> Result<Survey> {
    let mut rows = JsonRows::new(source, framing);
    let (mut columns, mut kinds) = (Columns::default(), Vec::new());
    let mut sizer = SliceSizer::default();
    while rows.advance()? {
        let len = rows.bytes().len();
        survey_row(&rows, &mut columns, &mut kinds, pass.primary_key)?;
        sizer.add(len);
        pass.progress.add(len)?;
    }
    let sha256 = vec![rows.finish()?];
    let schema = columns::schema_of(columns.names(), &kinds);
    let overhead = VALUE_BYTES.saturating_mul(schema.fields().len() as u64);
    let slice_rows = sizer.slice_rows(overhead);
    Ok(Survey { schema, rows: sizer.rows(), sha256, slice_rows, kinds })
}

fn survey_row(
    rows: &JsonRows,
    columns: &mut Columns,
    kinds: &mut Vec<Kinds>,
    primary_key: Option<&str>,
) -> Result<()> {
    let row = rows.row();
    let mut members = Members::of(rows.text()?).map_err(|wrong| rows.error(wrong))?;
    let mut keyed = primary_key.is_none();
    while let Some(member) = members.next().map_err(|wrong| rows.error(wrong))? {
        let wrong = |what: String| {
            let column = Some(member.key.clone().into_owned());
            rows.error(Wrong { at: member.at, what: what.into(), column })
        };
        let at = match columns.find(&member.key, row) {
            Found::Column(at) => at,
            Found::Twice => return Err(wrong("the row has this key twice".to_owned())),
            Found::Unknown if columns.names().len() >= COLUMN_COUNT_MAX => {
                return Err(wrong(format!("more than {COLUMN_COUNT_MAX} columns")));
            }
            Found::Unknown => {
                let at = columns.push(member.key.clone().into_owned());
                kinds.push(Kinds::default());
                columns.find(&member.key, row);
                at
            }
        };
        if let Some(kinds) = kinds.get_mut(at) {
            kinds.add(&member.value);
        }
        keyed |= primary_key == Some(&*member.key) && member.value != Value::Null;
    }
    match primary_key {
        Some(name) if !keyed => Err(rows.column_error(name, "the primary key is missing or null")),
        _ => Ok(()),
    }
}

/// The second pass over a source.
pub(crate) struct JsonReader {
    rows: JsonRows,
    schema: SchemaRef,
    columns: Columns,
    builders: Vec<ColumnBuilder>,
    source: Source,
}

impl JsonReader {
    /// Reads the rows of a source with the schema of its first pass.
    pub(crate) fn new(source: &Source, framing: Framing, schema: SchemaRef) -> Result<Self> {
        let builders = schema.fields().iter().map(|field| ColumnBuilder::of(field));
        let builders = builders.collect::<Option<Vec<_>>>().ok_or_else(|| changed(source))?;
        let columns = Columns::of(schema.fields().iter().map(|field| field.name().clone()));
        let rows = JsonRows::new(source, framing);
        Ok(Self { rows, schema, columns, builders, source: source.clone() })
    }

    fn append(&mut self) -> Result<()> {
        let row = self.rows.row();
        let mut members = Members::of(self.rows.text()?).map_err(|w| self.rows.error(w))?;
        while let Some(member) = members.next().map_err(|w| self.rows.error(w))? {
            let Found::Column(at) = self.columns.find(&member.key, row) else {
                return Err(changed(&self.source));
            };
            if !self.builders.get_mut(at).is_some_and(|column| column.append(&member)) {
                return Err(changed(&self.source));
            }
        }
        for (at, builder) in self.builders.iter_mut().enumerate() {
            if !self.columns.has(at, row) {
                builder.append_null();
            }
        }
        Ok(())
    }
}

impl RowReader for JsonReader {
    fn skip(&mut self, rows: u64) -> Result<()> {
        for _ in 0..rows {
            if !self.rows.advance()? {
                return Err(changed(&self.source));
            }
        }
        Ok(())
    }

    fn next_batch(&mut self, rows: usize) -> Result<Option<RecordBatch>> {
        let mut count = 0;
        while count < rows && self.rows.advance()? {
            self.append()?;
            count += 1;
        }
        if count == 0 {
            return Ok(None);
        }
        let arrays = self.builders.iter_mut().map(ColumnBuilder::finish).collect();
        super::read::batch(self.schema.clone(), arrays, count).map(Some)
    }

    fn finish(self: Box<Self>) -> Result<Vec<Sha256Sum>> {
        Ok(vec![self.rows.finish()?])
    }
}

/// The first pass saw every row, so that what does not fit was not there then.
fn changed(source: &Source) -> crate::error::Error {
    source_changed(source.file.path(), "its rows are others")
}
