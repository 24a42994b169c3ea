//! Where in a source something is wrong, and the one way to say it.
//!
//! Rows count from 1 and leave out a CSV header; lines count from 1 and are those of a text editor;
//! offsets are bytes from the start of the file.

use std::fmt::Write as _;
use std::path::Path;

use crate::error::{Error, ErrorKind};

/// A place in a source, as precise as its format allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// Number of the row, from 1; 0 when it is not in a row.
    pub(crate) row: u64,
    /// Number of the line, from 1; 0 where the format has none.
    pub(crate) line: u64,
    /// Name of the column, where one is at fault.
    pub(crate) column: Option<&'a str>,
    /// Offset in bytes, where it is known.
    pub(crate) offset: Option<u64>,
}

impl<'a> Place<'a> {
    /// A place in a row.
    pub(crate) const fn row(row: u64) -> Self {
        Self { row, line: 0, column: None, offset: None }
    }

    /// The same place, of a column.
    pub(crate) const fn column(self, name: &'a str) -> Self {
        Self { column: Some(name), ..self }
    }

    /// The error for a source that is wrong at this place.
    pub(crate) fn error(self, path: &Path, what: &str) -> Error {
        self.error_of(ErrorKind::InvalidInput, path, what)
    }

    /// The error for a source that exceeds a limit at this place.
    pub(crate) fn limit(self, path: &Path, what: &str) -> Error {
        self.error_of(ErrorKind::Limit, path, what)
    }

    fn error_of(self, kind: ErrorKind, path: &Path, what: &str) -> Error {
        let mut message = String::new();
        let mut part = |text: std::fmt::Arguments<'_>| {
            let gap = if message.is_empty() { "" } else { ", " };
            // Writing to a string cannot fail.
            write!(message, "{gap}{text}").unwrap_or_default();
        };
        if self.row > 0 {
            part(format_args!("row {}", self.row));
        }
        if self.line > 0 {
            part(format_args!("line {}", self.line));
        }
        if let Some(name) = self.column {
            part(format_args!("column `{}`", shortened(name)));
        }
        let message =
            if message.is_empty() { what.to_owned() } else { format!("{message}: {what}") };
        let error = Error::new(kind, message).at_path(path);
        match self.offset {
            Some(offset) => error.at_offset(offset),
            None => error,
        }
    }
}

/// A name from a source as it may stand in one line of an error.
pub(crate) fn shortened(name: &str) -> String {
    const CHARS_MAX: usize = 64;
    let mut short: String = name.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(CHARS_MAX).is_some() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_row_line_and_column_in_one_line() {
        let place = Place { row: 3, line: 9, column: Some("a\nb"), offset: Some(77) };
        let error = place.error(Path::new("x.csv"), "is null");
        assert!(error.to_string().starts_with("row 3, line 9, column `a\\nb`: is null"));
        assert_eq!(error.offset(), Some(77));
        assert_eq!(error.path(), Some(Path::new("x.csv")));
    }

    #[test]
    fn a_long_name_is_shortened() {
        assert_eq!(shortened(&"x".repeat(100)).len(), 67);
    }
}
