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
    /// Columns of NumPy, a file each (`.npy`).
    Numpy,
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
            Some("npy") => Ok(Self::Numpy),
            Some("parquet") => Ok(Self::Parquet),
            _ => {
                let what =
                    "the name tells no format, expected .parquet, .csv, .json, .jsonl or .npy";
                Err(Error::new(ErrorKind::InvalidInput, what).at_path(path))
            }
        }
    }

    /// The format of a set: that of its only file, or NumPy.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no file, a name that tells no format, and several that are not all NumPy.
    pub(crate) fn of_set<P: AsRef<Path>>(set: &[P]) -> Result<Self> {
        let Some((first, others)) = set.split_first() else {
            return Err(Error::new(ErrorKind::InvalidInput, "a set of no file"));
        };
        let format = Self::of_name(first.as_ref())?;
        for path in others.iter().map(AsRef::as_ref) {
            if format != Self::Numpy || Self::of_name(path)? != Self::Numpy {
                let what = "several files are a set where each is a column, expected .npy";
                return Err(Error::new(ErrorKind::InvalidInput, what).at_path(path));
            }
        }
        Ok(format)
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
            (Self::Parquet, Looks::Parquet) | (Self::Numpy, Looks::Numpy) => Ok(()),
            (Self::Parquet | Self::Numpy, _) => other("not"),
            (_, Looks::Parquet) => other("Parquet"),
            (_, Looks::Numpy) => other("NumPy"),
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
        if start.starts_with(NUMPY_MAGIC) {
            return Looks::Numpy;
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

/// The first bytes of a NumPy file.
pub(crate) const NUMPY_MAGIC: &[u8] = b"\x93NUMPY";

enum Looks {
    Parquet,
    Numpy,
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
            Self::Numpy => "NumPy",
            Self::Parquet => "Parquet",
        })
    }
}
