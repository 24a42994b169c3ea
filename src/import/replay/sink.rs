//! Rows written as JSON Lines, CSV or Parquet.

use std::io::Write as _;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::cell::{Cells, keyed, write_object};
use super::output::{Output, failed};
use crate::error::{Error, ErrorKind, Result};
use crate::import::format::Format;

/// Bytes of rows that Parquet keeps in memory for a row group.
const ROW_GROUP_BYTES: usize = 32 << 20;

/// A file that rows go to.
pub(crate) struct Sink {
    kind: Kind,
}

enum Kind {
    JsonLines { output: Output, line: Vec<u8> },
    Csv { output: Output, line: Vec<u8> },
    Parquet { writer: Box<ArrowWriter<Output>> },
}

impl Sink {
    /// The format of a file of this name.
    pub(crate) fn format_of(path: &Path) -> Result<Format> {
        match Format::of_name(path) {
            Ok(Format::Json | Format::Numpy) | Err(_) => {
                let what = "the name tells no format, expected .jsonl, .csv or .parquet";
                Err(Error::new(ErrorKind::InvalidInput, what).at_path(path))
            }
            found => found,
        }
    }

    /// Whether every batch must have the columns that the sink was opened with.
    pub(crate) const fn wants_one_schema(format: Format) -> bool {
        matches!(format, Format::Csv | Format::Parquet)
    }

    /// A sink of rows with these columns.
    pub(crate) fn open(format: Format, mut output: Output, schema: &SchemaRef) -> Result<Self> {
        let line = Vec::new();
        let kind = match format {
            Format::Csv => {
                write_header(&mut output, schema).map_err(|e| failed(Path::new(""), e))?;
                Kind::Csv { output, line }
            }
            Format::Parquet => {
                let compression = Compression::SNAPPY;
                let properties = WriterProperties::builder().set_compression(compression).build();
                let writer = ArrowWriter::try_new(output, schema.clone(), Some(properties));
                Kind::Parquet { writer: Box::new(writer.map_err(unwritten)?) }
            }
            Format::Json | Format::JsonLines | Format::Numpy => Kind::JsonLines { output, line },
        };
        Ok(Self { kind })
    }

    /// Writes the rows of a batch.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match &mut self.kind {
            Kind::JsonLines { output, line } => write_lines(output, line, batch),
            Kind::Csv { output, line } => write_fields(output, line, batch),
            Kind::Parquet { writer } => {
                writer.write(batch).map_err(unwritten)?;
                if writer.in_progress_size() > ROW_GROUP_BYTES {
                    writer.flush().map_err(unwritten)?;
                }
                Ok(())
            }
        }
    }

    /// Makes the file durable under its name.
    pub(crate) fn finish(self) -> Result<()> {
        match self.kind {
            Kind::JsonLines { mut output, .. } | Kind::Csv { mut output, .. } => output.name(),
            Kind::Parquet { writer } => writer.into_inner().map_err(unwritten)?.name(),
        }
    }
}

fn write_lines(output: &mut Output, line: &mut Vec<u8>, batch: &RecordBatch) -> Result<()> {
    let schema = batch.schema();
    let columns = keyed(schema.fields(), batch.columns()).map_err(untold)?;
    for row in 0..batch.num_rows() {
        line.clear();
        write_object(&columns, row, line).map_err(untold)?;
        line.push(b'\n');
        output.write_all(line).map_err(|e| failed(Path::new(""), e))?;
    }
    Ok(())
}

fn write_header(output: &mut Output, schema: &SchemaRef) -> std::io::Result<()> {
    let mut line = Vec::new();
    for (at, field) in schema.fields().iter().enumerate() {
        if at > 0 {
            line.push(b',');
        }
        put_field(field.name().as_bytes(), &mut line);
    }
    line.push(b'\n');
    output.write_all(&line)
}

fn write_fields(output: &mut Output, line: &mut Vec<u8>, batch: &RecordBatch) -> Result<()> {
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, array)| Cells::of(field, array));
    let columns = columns.collect::<std::result::Result<Vec<_>, _>>().map_err(untold)?;
    let mut value = Vec::new();
    for row in 0..batch.num_rows() {
        line.clear();
        for (at, column) in columns.iter().enumerate() {
            if at > 0 {
                line.push(b',');
            }
            value.clear();
            column.write_text(row, &mut value).map_err(untold)?;
            // Null is an empty field, the empty text one in quotes; a line of nothing is no row.
            if !column.is_null(row) || columns.len() == 1 {
                put_field(&value, line);
            }
        }
        line.push(b'\n');
        output.write_all(line).map_err(|e| failed(Path::new(""), e))?;
    }
    Ok(())
}

/// Appends a field, in quotes where it needs them.
fn put_field(value: &[u8], line: &mut Vec<u8>) {
    let special = |byte: &u8| matches!(byte, b',' | b'"' | b'\n' | b'\r');
    if !value.is_empty() && !value.iter().any(special) {
        line.extend_from_slice(value);
        return;
    }
    line.push(b'"');
    for byte in value {
        if *byte == b'"' {
            line.push(b'"');
        }
        line.push(*byte);
    }
    line.push(b'"');
}

fn untold(error: ArrowError) -> Error {
    Error::new(ErrorKind::Corrupt, "a value cannot be told").with_source(error)
}

fn unwritten(error: parquet::errors::ParquetError) -> Error {
    Error::new(ErrorKind::Io, "the output cannot be written").with_source(error)
}
