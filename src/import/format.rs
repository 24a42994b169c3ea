//! Which format a source has: its name says, its first and last bytes must agree.

use std::fmt;
use std::path::Path;

use super::place::Place;
use super::source::{Source, read_failed};
use crate::error::{Error, ErrorKind, Result};

/// A format that rows are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Comma-separated text with a header (`.csv`).
    Csv,
    /// One JSON array of objects, or one object whose only key is `rows` (`.json`).
    Json,
    /// One JSON object a line (`.jsonl`, `.ndjson`).
    JsonLines,
    /// Apache Parquet (`.parquet`).
    Parquet,
}

impl Format {
    /// The format that a file of this name must have.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name that ends in none of the endings.
    pub fn of_name(path: &Path) -> Result<Self> {
        let ending = path.extension().and_then(|ending| ending.to_str());
        match ending.map(str::to_ascii_lowercase).as_deref() {
            Some("csv") => Ok(Self::Csv),
            Some("json") => Ok(Self::Json),
            Some("jsonl" | "ndjson") => Ok(Self::JsonLines),
            Some("parquet") => Ok(Self::Parquet),
            _ => {
                let what = "the name tells no format, expected .parquet, .csv, .json or .jsonl";
                Err(Error::new(ErrorKind::InvalidInput, what).at_path(path))
            }
        }
    }

    /// Fails when the content is plainly of another format.
    pub(crate) fn confirm(self, source: &Source) -> Result<()> {
        let path = source.file.path();
        let mut start = [0; 512];
        let read = source.file.read_full_at(&mut start, 0);
        let read = read.map_err(|e| read_failed(path, 0, e))?;
        let start = start.get(..read).unwrap_or_default();
        let found = Self::looks_like(start);
        let other = |found: &str| {
            let what = format!("the name says {self}, the content is {found}");
            Err(Place { offset: Some(0), ..Place::default() }.error(path, &what))
        };
        match (self, found) {
            (Self::Parquet, Looks::Parquet) => Ok(()),
            (Self::Parquet, _) => other("not"),
            (_, Looks::Parquet) => other("Parquet"),
            (_, Looks::Binary) => other("not text"),
            (Self::Csv, Looks::JsonArray | Looks::JsonObject) => other("JSON"),
            (Self::JsonLines, Looks::JsonArray) => other("a JSON array"),
            (Self::Json | Self::JsonLines, Looks::Text) => other("not"),
            (Self::Csv, Looks::Text) | (Self::Json, _) | (Self::JsonLines, Looks::JsonObject) => {
                Ok(())
            }
        }
    }

    fn looks_like(start: &[u8]) -> Looks {
        if start.starts_with(b"PAR1") || start.starts_with(b"PARE") {
            return Looks::Parquet;
        }
        if start.contains(&0) || start.starts_with(&[0x1f, 0x8b]) {
            return Looks::Binary;
        }
        let start = start.strip_prefix(BOM).unwrap_or(start).trim_ascii_start();
        let Some((first, rest)) = start.split_first() else { return Looks::Text };
        let second = rest.trim_ascii_start().first();
        match (first, second) {
            (b'[', None | Some(b'{' | b'[' | b']' | b'"')) => Looks::JsonArray,
            (b'{', None | Some(b'"' | b'}')) => Looks::JsonObject,
            // Damaged JSON is told as such by its reader, a CSV header may begin with a bracket.
            (b'[', _) => Looks::JsonArray,
            (b'{', _) => Looks::JsonObject,
            _ => Looks::Text,
        }
    }
}

/// The byte order mark that some programs put in front of UTF-8.
pub(crate) const BOM: &[u8] = b"\xef\xbb\xbf";

enum Looks {
    Parquet,
    Binary,
    JsonArray,
    JsonObject,
    Text,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Csv => "CSV",
            Self::Json => "JSON",
            Self::JsonLines => "JSON Lines",
            Self::Parquet => "Parquet",
        })
    }
}
