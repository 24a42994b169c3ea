//! CSV (RFC 4180) with a header: every value is text, every row has as many fields as the header.
//!
//! Fields are separated by commas; rows end with `\n`, `\r\n` or `\r`; a field in double quotes may
//! hold all of these and quotes written twice. A byte order mark is left out. Lines without a byte
//! are no rows. An empty field is the empty text, quoted or not: CSV has no null, and the one place
//! where it would matter, the primary key, refuses it.
//!
//! Refused, with row, line and column: text that is not UTF-8, a quote that is not closed, text
//! behind a closing quote, a row with another number of fields, a column without a name, two of
//! one name.

mod typed;

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use self::typed::is_read_from_text;
use super::format::BOM;
use super::place::{Place, shortened};
use super::read::{self, FirstPass, RowReader, Survey};
use super::sizer::SliceSizer;
use super::source::{Sha256Sum, Source, source_changed};
use super::stream::ByteStream;
use crate::error::{Error, Result};

/// Bytes of an offset into text.
const OFFSET_BYTES: u64 = 4;

/// The first pass over a source.
pub(crate) fn survey(source: &Source, pass: &mut FirstPass<'_>) -> Result<Survey> {
    let mut rows = CsvRows::new(source);
    let header = rows.header(source)?;
    let key = pass.primary_key.map(|name| {
        let at = header.iter().position(|column| column == name);
        let otherwise = || Place::default().column(name).error(rows.path(), "no such column");
        at.map(|at| (at, name)).ok_or_else(otherwise)
    });
    let key = key.transpose()?;
    let mut sizer = SliceSizer::default();
    while rows.advance()? {
        rows.check_width(&header)?;
        rows.text(&header)?;
        if let Some((at, name)) = key
            && rows.fields.get(at).is_none_or(|field| field.range.is_empty())
        {
            return Err(rows.error(Some(name), "the primary key is empty"));
        }
        sizer.add(rows.len);
        pass.progress.add(rows.len)?;
    }
    let sha256 = vec![rows.stream.finish()?];
    let overhead = OFFSET_BYTES.saturating_mul(header.len() as u64);
    let fields = header.into_iter().map(|name| field(name, pass.expected));
    let schema = read::schema(fields.collect());
    let slice_rows = sizer.slice_rows(overhead);
    if schema.fields().iter().any(|field| field.data_type() != &DataType::Utf8) {
        // Values of types: whether text spells them is seen by reading it so, a slice at a time.
        let mut reader = CsvReader::new(source, schema.clone())?;
        while reader.next_batch(slice_rows as usize)?.is_some() {
            pass.progress.look()?;
        }
    }
    Ok(Survey { schema, rows: sizer.rows(), sha256, slice_rows, kinds: Vec::new() })
}

/// A column: text, unless the collection's schema says otherwise.
fn field(name: String, expected: Option<&Schema>) -> Field {
    let expected = expected.and_then(|schema| schema.field_with_name(&name).ok());
    match expected.map(Field::data_type).filter(|kind| is_read_from_text(kind)) {
        Some(kind) => Field::new(name, kind.clone(), true),
        None => Field::new(name, DataType::Utf8, false),
    }
}

/// The second pass over a source.
pub(crate) struct CsvReader {
    rows: CsvRows,
    schema: SchemaRef,
    names: Vec<String>,
    builders: Vec<StringBuilder>,
    source: Source,
}

impl CsvReader {
    /// Reads the rows of a source with the schema of its first pass.
    pub(crate) fn new(source: &Source, schema: SchemaRef) -> Result<Self> {
        let mut rows = CsvRows::new(source);
        let names = rows.header(source)?;
        if !names.iter().eq(schema.fields().iter().map(|field| field.name())) {
            return Err(source_changed(source.file.path(), "its columns are others"));
        }
        let builders = names.iter().map(|_| StringBuilder::new()).collect();
        Ok(Self { rows, schema, names, builders, source: source.clone() })
    }
}

impl RowReader for CsvReader {
    fn skip(&mut self, rows: u64) -> Result<()> {
        for _ in 0..rows {
            if !self.rows.advance()? {
                return Err(source_changed(self.source.file.path(), "it has fewer rows"));
            }
        }
        Ok(())
    }

    fn next_batch(&mut self, rows: usize) -> Result<Option<RecordBatch>> {
        let mut count = 0;
        while count < rows && self.rows.advance()? {
            self.rows.check_width(&self.names)?;
            let text = self.rows.text(&self.names)?;
            for (field, builder) in self.rows.fields.iter().zip(&mut self.builders) {
                builder.append_value(field.value(text));
            }
            count += 1;
        }
        if count == 0 {
            return Ok(None);
        }
        let behind = self.rows.row;
        let columns = self.schema.fields().iter().zip(&mut self.builders);
        let arrays = columns.map(|(field, column)| {
            let text = column.finish();
            if field.data_type() == &DataType::Utf8 {
                return Ok(Arc::new(text) as ArrayRef);
            }
            typed::values(&text, field.data_type()).map_err(|row| {
                let value = text.iter().nth(row).flatten().unwrap_or_default();
                let value = shortened(value);
                let what = format!("expected a value of {}, found `{value}`", field.data_type());
                let row = behind.saturating_sub(count as u64) + row as u64 + 1;
                Place::row(row).column(field.name()).error(self.source.file.path(), &what)
            })
        });
        let arrays = arrays.collect::<Result<_>>()?;
        read::batch(self.schema.clone(), arrays, count).map(Some)
    }

    fn finish(self: Box<Self>) -> Result<Vec<Sha256Sum>> {
        Ok(vec![self.rows.stream.finish()?])
    }
}

/// The rows of a source, split into fields.
struct CsvRows {
    stream: ByteStream,
    started: bool,
    /// Number of the row at the front of the window; 0 for the header.
    row: u64,
    has_header: bool,
    /// Line that the window begins in, from 1.
    line: u64,
    /// Length of the row at the front of the window, without its end.
    len: usize,
    /// Length with its end.
    whole: usize,
    /// The row ended with `\r`, a `\n` may follow.
    after_return: bool,
    fields: Vec<FieldOf>,
}

/// Where a field lies in its row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldOf {
    /// What is between the quotes, or all of it.
    range: Range<usize>,
    /// A quote in it is written twice.
    doubled: bool,
}

impl FieldOf {
    fn value<'a>(&self, row: &'a str) -> Cow<'a, str> {
        let value = row.get(self.range.clone()).unwrap_or_default();
        if self.doubled { value.replace("\"\"", "\"").into() } else { value.into() }
    }
}

impl CsvRows {
    fn new(source: &Source) -> Self {
        Self {
            stream: ByteStream::new(source),
            started: false,
            row: 0,
            has_header: false,
            line: 1,
            len: 0,
            whole: 0,
            after_return: false,
            fields: Vec::new(),
        }
    }

    fn path(&self) -> &Path {
        self.stream.path()
    }

    /// The names of the columns.
    fn header(&mut self, source: &Source) -> Result<Vec<String>> {
        if !self.advance()? {
            return Err(Place::default().error(self.path(), "there is no header"));
        }
        let text = self.text(&[])?;
        let names = self.fields.iter().map(|field| field.value(text).into_owned());
        let names: Vec<String> = names.collect();
        if let Some(at) = names.iter().position(String::is_empty) {
            let what = format!("column {} of the header has no name", at + 1);
            return Err(self.error(None, &what));
        }
        read::check_names(source, &names)?;
        Ok(names)
    }

    /// Goes to the next row; false behind the last.
    fn advance(&mut self) -> Result<bool> {
        if !self.started {
            self.started = true;
            if self.stream.peek()?.is_some() && self.stream.window().starts_with(BOM) {
                self.stream.consume(BOM.len());
            }
        }
        loop {
            self.drop_row()?;
            if self.stream.peek()?.is_none() {
                return Ok(false);
            }
            self.split()?;
            let blank = self.len == 0 && self.fields.len() == 1;
            if !blank {
                self.row += u64::from(self.has_header);
                self.has_header = true;
                return Ok(true);
            }
        }
    }

    fn drop_row(&mut self) -> Result<()> {
        let row = self.stream.window().get(..self.whole).unwrap_or_default();
        self.line += lines(row);
        self.stream.consume(self.whole);
        self.whole = 0;
        if std::mem::take(&mut self.after_return) && self.stream.peek()? == Some(b'\n') {
            self.stream.consume(1);
        }
        Ok(())
    }

    /// Finds the fields of the row at the front of the window.
    fn split(&mut self) -> Result<()> {
        self.fields.clear();
        let mut split = Split::default();
        let mut seen = 0;
        loop {
            let rest = self.stream.window().get(seen..).unwrap_or_default();
            match split.run(rest, seen, &mut self.fields) {
                Ok(Some(end)) => {
                    self.len = end;
                    self.whole = end + 1;
                    self.after_return = self.stream.window().get(end) == Some(&b'\r');
                    return Ok(());
                }
                Ok(None) => seen += rest.len(),
                Err(at) => {
                    self.line += lines(self.stream.window().get(..at).unwrap_or_default());
                    return Err(self.upcoming(at, "text behind a closing quote"));
                }
            }
            if !self.stream.more()? {
                if split.state == State::Quoted {
                    return Err(
                        self.upcoming(split.from.saturating_sub(1), "a quote is not closed")
                    );
                }
                split.end_field(seen, &mut self.fields);
                (self.len, self.whole) = (seen, seen);
                return Ok(());
            }
        }
    }

    /// The row as text.
    fn text(&self, names: &[String]) -> Result<&str> {
        let row = self.stream.window().get(..self.len).unwrap_or_default();
        std::str::from_utf8(row).map_err(|e| {
            let at = e.valid_up_to();
            let column = self.fields.iter().position(|field| at < field.range.end);
            let name = column.and_then(|column| names.get(column));
            let offset = Some(self.stream.offset() + at as u64);
            let place = Place { column: name.map(String::as_str), offset, ..self.place() };
            place.error(self.path(), "the text is not UTF-8")
        })
    }

    fn check_width(&self, names: &[String]) -> Result<()> {
        let (expected, found) = (names.len(), self.fields.len());
        if expected == found {
            return Ok(());
        }
        Err(self.error(None, &format!("expected {expected} fields, found {found}")))
    }

    fn place(&self) -> Place<'static> {
        let offset = Some(self.stream.offset());
        Place { row: self.row, line: self.line, column: None, offset }
    }

    fn error(&self, column: Option<&str>, what: &str) -> Error {
        Place { column, ..self.place() }.error(self.path(), what)
    }

    /// The error for the row that is being split.
    fn upcoming(&self, at: usize, what: &str) -> Error {
        let row = self.row + u64::from(self.has_header);
        let offset = Some(self.stream.offset() + at as u64);
        Place { row, offset, ..self.place() }.error(self.path(), what)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the first byte of a field.
    #[default]
    Before,
    Plain,
    Quoted,
    /// Behind a quote in a quoted field: it closes the field, or the next byte is its twin.
    Quote,
}

/// Splits one row, and goes on where the bytes of a call end.
#[derive(Debug, Default)]
struct Split {
    state: State,
    /// Start of the field, behind its opening quote.
    from: usize,
    doubled: bool,
    /// Offset of the quote in [`State::Quote`].
    quote: usize,
}

impl Split {
    /// Goes on with `bytes`, which begin `seen` bytes behind the start of the row: the offset of
    /// the byte that ends the row, or `None`, or where the row is wrong.
    fn run(
        &mut self,
        bytes: &[u8],
        seen: usize,
        fields: &mut Vec<FieldOf>,
    ) -> std::result::Result<Option<usize>, usize> {
        for (at, byte) in bytes.iter().enumerate() {
            let at = seen + at;
            match (self.state, byte) {
                (State::Quoted, b'"') => (self.state, self.quote) = (State::Quote, at),
                (State::Quoted, _) => {}
                (State::Quote, b'"') => (self.state, self.doubled) = (State::Quoted, true),
                (_, b',') => self.end_field(at, fields),
                (_, b'\n' | b'\r') => {
                    self.end_field(at, fields);
                    return Ok(Some(at));
                }
                (State::Quote, _) => return Err(at),
                (State::Before, b'"') => {
                    (self.state, self.from) = (State::Quoted, at + 1);
                }
                (State::Before | State::Plain, _) => self.state = State::Plain,
            }
        }
        Ok(None)
    }

    /// Ends the field before `at`, and begins the next one behind it.
    fn end_field(&mut self, at: usize, fields: &mut Vec<FieldOf>) {
        let end = if self.state == State::Quote { self.quote } else { at };
        let range = self.from..end;
        fields.push(FieldOf { range, doubled: self.doubled });
        *self = Self { from: at + 1, ..Self::default() };
    }
}

/// Line ends of any kind in these bytes.
fn lines(bytes: &[u8]) -> u64 {
    let mut before = 0;
    let mut count = 0;
    for byte in bytes {
        count += u64::from(*byte == b'\r' || (*byte == b'\n' && before != b'\r'));
        before = *byte;
    }
    count
}
