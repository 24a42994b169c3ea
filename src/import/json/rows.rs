//! Where the rows of a JSON source begin and end: one a line, or the elements of one array.
//!
//! An array is never held in memory: the scanner finds the end of an element, and keeps its place
//! while more of it is read, so that no byte is looked at twice.

use super::value::{DEPTH_MAX, Wrong};
use crate::error::{Error, Result};
use crate::import::format::BOM;
use crate::import::place::Place;
use crate::import::source::{Sha256Sum, Source};
use crate::import::stream::ByteStream;

/// What stands between the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Line ends.
    Lines,
    /// Brackets and commas.
    Array,
}

/// The rows of a JSON source, as text.
pub(crate) struct JsonRows {
    stream: ByteStream,
    next: Next,
    /// The array is the value of `rows` in an object.
    wrapped: bool,
    /// Number of the row at the front of the window, from 1.
    row: u64,
    /// Line that the window begins in, from 1.
    line: u64,
    /// Length of the row at the front of the window.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The start of the file.
    Start(Framing),
    /// A line, or the end of the file.
    Line,
    /// The first element, or the end of the array.
    FirstElement,
    /// A comma and an element, or the end of the array.
    Element,
    /// Nothing.
    End,
}

impl JsonRows {
    /// The rows of a source.
    pub(crate) fn new(source: &Source, framing: Framing) -> Self {
        let stream = ByteStream::new(source);
        Self { stream, next: Next::Start(framing), wrapped: false, row: 0, line: 1, len: 0 }
    }

    /// Goes to the next row; false behind the last.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        self.consume(self.len);
        self.len = 0;
        if let Next::Start(framing) = self.next {
            self.start(framing)?;
        }
        self.len = match self.next {
            Next::Line => self.line_len()?,
            Next::FirstElement | Next::Element => self.element_len()?,
            Next::Start(_) | Next::End => 0,
        };
        self.row += u64::from(self.len > 0);
        Ok(self.len > 0)
    }

    /// The row, without checking its UTF-8.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.stream.window().get(..self.len).unwrap_or_default()
    }

    /// The row.
    pub(crate) fn text(&self) -> Result<&str> {
        std::str::from_utf8(self.bytes()).map_err(|e| {
            let what = "the text is not UTF-8".into();
            self.error(Wrong { at: e.valid_up_to(), what, column: None })
        })
    }

    /// Number of the row, from 1.
    pub(crate) const fn row(&self) -> u64 {
        self.row
    }

    /// The error for what is wrong in the row.
    pub(crate) fn error(&self, wrong: Wrong) -> Error {
        let place = Place { column: wrong.column.as_deref(), ..self.place(self.row, wrong.at) };
        place.error(self.stream.path(), &wrong.what)
    }

    /// The error for a row without its primary key.
    pub(crate) fn column_error(&self, column: &str, what: &str) -> Error {
        self.place(self.row, 0).column(column).error(self.stream.path(), what)
    }

    /// Reads what is left and tells the digest of the file.
    pub(crate) fn finish(self) -> Result<Sha256Sum> {
        self.stream.finish()
    }

    fn place(&self, row: u64, at: usize) -> Place<'static> {
        let before = self.stream.window().get(..at).unwrap_or_default();
        let line = self.line + lines(before);
        Place { row, line, column: None, offset: Some(self.stream.offset() + at as u64) }
    }

    fn wrong(&self, at: usize, what: &str) -> Error {
        // Between two rows: the fault is of the one to come.
        self.place(self.row + 1, at).error(self.stream.path(), what)
    }

    fn consume(&mut self, count: usize) {
        self.line += lines(self.stream.window().get(..count).unwrap_or_default());
        self.stream.consume(count);
    }

    fn start(&mut self, framing: Framing) -> Result<()> {
        if self.stream.peek()?.is_some() && self.stream.window().starts_with(BOM) {
            self.stream.consume(BOM.len());
        }
        if framing == Framing::Lines {
            self.next = Next::Line;
            return Ok(());
        }
        const OTHERWISE: &str = "expected an array of objects, or an object with only `rows`";
        match self.space()? {
            Some(b'[') => {}
            Some(b'{') => {
                self.consume(1);
                for byte in b"\"rows\"" {
                    // Whitespace inside of the name is not a name of `rows` either.
                    let found = if *byte == b'"' { self.space()? } else { self.stream.peek()? };
                    if found != Some(*byte) {
                        return Err(self.wrong(0, OTHERWISE));
                    }
                    self.consume(1);
                }
                if self.space()? != Some(b':') {
                    return Err(self.wrong(0, OTHERWISE));
                }
                self.consume(1);
                if self.space()? != Some(b'[') {
                    return Err(self.wrong(0, OTHERWISE));
                }
                self.wrapped = true;
            }
            _ => return Err(self.wrong(0, OTHERWISE)),
        }
        self.consume(1);
        self.next = Next::FirstElement;
        Ok(())
    }

    /// Length of the next line that has more than whitespace, without its end.
    fn line_len(&mut self) -> Result<usize> {
        if self.space()?.is_none() {
            self.next = Next::End;
            return Ok(0);
        }
        let mut seen = 0;
        loop {
            let rest = self.stream.window().get(seen..).unwrap_or_default();
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                return Ok(seen + at);
            }
            seen += rest.len();
            if !self.stream.more()? {
                return Ok(seen);
            }
        }
    }

    /// Length of the next element.
    fn element_len(&mut self) -> Result<usize> {
        let mut found = self.space()?;
        if found == Some(b']') {
            self.consume(1);
            self.next = Next::End;
            return self.epilogue();
        }
        if self.next == Next::Element {
            match found {
                Some(b',') => self.consume(1),
                Some(_) => return Err(self.wrong(0, "expected `,` or `]` behind a row")),
                None => return Err(self.wrong(0, "the array is not closed: the file is truncated")),
            }
            found = self.space()?;
        }
        self.next = Next::Element;
        match found {
            Some(b'{') => {}
            Some(_) => return Err(self.wrong(0, "a row is no object, expected `{`")),
            None => return Err(self.wrong(0, "the array is not closed: the file is truncated")),
        }
        let mut scan = Scan::default();
        let mut seen = 0;
        loop {
            let rest = self.stream.window().get(seen..).unwrap_or_default();
            match scan.run(rest) {
                Ok(Some(count)) => return Ok(seen + count),
                Ok(None) => seen += rest.len(),
                Err(at) => {
                    let what = format!("nested deeper than {DEPTH_MAX} levels");
                    return Err(self.wrong(seen + at, &what));
                }
            }
            if !self.stream.more()? {
                let what = if scan.quoted { "a string" } else { "an object" };
                let what = format!("{what} is not closed: the file is truncated");
                return Err(self.wrong(0, &what));
            }
        }
    }

    fn epilogue(&mut self) -> Result<usize> {
        if self.wrapped {
            if self.space()? != Some(b'}') {
                return Err(self.wrong(0, "expected `}` behind the array of `rows`"));
            }
            self.consume(1);
        }
        match self.space()? {
            None => Ok(0),
            Some(_) => Err(self.wrong(0, "expected the end of the file behind the array")),
        }
    }

    /// Consumes whitespace and tells the byte behind it.
    fn space(&mut self) -> Result<Option<u8>> {
        loop {
            let window = self.stream.window();
            let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
            let count = window.iter().take_while(|byte| blank(byte)).count();
            let found = window.get(count).copied();
            self.consume(count);
            if found.is_some() || !self.stream.more()? {
                return Ok(found);
            }
        }
    }
}

/// Finds the end of an object: no more than brackets and quotes are looked at.
#[derive(Debug, Default)]
struct Scan {
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Scan {
    /// Goes on with `bytes`: the count up to the end of the object, or `None`, or where it is
    /// nested too deep.
    fn run(&mut self, bytes: &[u8]) -> std::result::Result<Option<usize>, usize> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.quoted {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.quoted = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.quoted = true,
                b'{' | b'[' if self.depth == DEPTH_MAX => return Err(at),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Ok(Some(at + 1));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}
