//! The header of a `.npy` file: what its values are, and how many.
//!
//! The header is a literal of Python, and is parsed as the one form that NumPy writes: a dictionary
//! of `descr`, `fortran_order` and `shape`, in any order. Nothing in it is evaluated. Its length is
//! bounded before it is read, and what it claims is compared with the length of the file before a
//! value is. Input of any bytes panics nowhere and allocates no more than its length.

use arrow_schema::{DataType, Field};

use crate::import::format::NUMPY_MAGIC;
use crate::import::stream::ROW_BYTES_MAX;

/// Longest header: what NumPy itself reads without being told that it is safe.
const HEADER_LEN_MAX: usize = 10_000;

/// Bytes up to the length of the header: the magic and a version.
const VERSION_END: usize = NUMPY_MAGIC.len() + 2;

/// What one value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Bool,
    Int(usize),
    Uint(usize),
    Float(usize),
    /// So many code points of 4 bytes, filled up with zeros.
    Text(usize),
    /// So many bytes of UTF-8, filled up with zeros.
    Bytes(usize),
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) item: Item,
    pub(crate) is_big_endian: bool,
    pub(crate) rows: u64,
    /// Values of a row, where that is a vector of them.
    pub(crate) width: Option<usize>,
    /// Offset of the first value.
    pub(crate) data_at: usize,
}

impl Item {
    /// Bytes of one value in the file.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Int(bytes) | Self::Uint(bytes) | Self::Float(bytes) | Self::Bytes(bytes) => bytes,
            Self::Text(chars) => chars.saturating_mul(4),
        }
    }

    const fn data_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int(1) => DataType::Int8,
            Self::Int(2) => DataType::Int16,
            Self::Int(4) => DataType::Int32,
            Self::Int(_) => DataType::Int64,
            Self::Uint(1) => DataType::UInt8,
            Self::Uint(2) => DataType::UInt16,
            Self::Uint(4) => DataType::UInt32,
            Self::Uint(_) => DataType::UInt64,
            Self::Float(2) => DataType::Float16,
            Self::Float(4) => DataType::Float32,
            Self::Float(_) => DataType::Float64,
            Self::Text(_) | Self::Bytes(_) => DataType::Utf8,
        }
    }

    /// The type that a `descr` names, and whether it is big-endian.
    fn of(descr: &str) -> Result<(Self, bool), String> {
        let other = || format!("values of type `{descr}` are not read");
        let mut chars = descr.chars();
        let (order, kind) = (chars.next().ok_or_else(other)?, chars.next().ok_or_else(other)?);
        if kind == 'O' {
            return Err("values are Python objects (pickled), which are never loaded".to_owned());
        }
        let size: usize = digits(chars.as_str()).ok_or_else(other)?;
        let item = match (kind, size) {
            ('b', 1) => Self::Bool,
            ('i', 1 | 2 | 4 | 8) => Self::Int(size),
            ('u', 1 | 2 | 4 | 8) => Self::Uint(size),
            ('f', 2 | 4 | 8) => Self::Float(size),
            ('U', 1..) => Self::Text(size),
            ('S' | 'a', 1..) => Self::Bytes(size),
            _ => return Err(other()),
        };
        match order {
            '<' | '>' => Ok((item, order == '>')),
            '|' if item.bytes() == 1 || matches!(item, Self::Bytes(_)) => Ok((item, false)),
            _ => Err(other()),
        }
    }
}

impl Header {
    /// The header at the start of a file, as far as it was read; `None`: more of it is needed.
    pub(crate) fn of(start: &[u8]) -> Result<Option<Self>, String> {
        let Some((fixed, rest)) = start.split_at_checked(VERSION_END) else { return Ok(None) };
        let version = fixed.get(NUMPY_MAGIC.len()..).unwrap_or_default();
        let (len, prefix) = match version {
            [1, 0] => {
                let Some((len, _)) = rest.split_first_chunk() else { return Ok(None) };
                (usize::from(u16::from_le_bytes(*len)), 2)
            }
            [2 | 3, 0] => {
                let Some((len, _)) = rest.split_first_chunk() else { return Ok(None) };
                (usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX), 4)
            }
            _ => {
                let (major, minor) = (version.first().unwrap_or(&0), version.last().unwrap_or(&0));
                return Err(format!("version {major}.{minor} of the format is not read"));
            }
        };
        if len > HEADER_LEN_MAX {
            return Err(format!("a header of {len} bytes, expected at most {HEADER_LEN_MAX}"));
        }
        let Some(text) = rest.get(prefix..prefix + len) else { return Ok(None) };
        let text = std::str::from_utf8(text).map_err(|e| format!("the header is no text: {e}"))?;
        let header = Literal::new(text).header(VERSION_END + prefix + len)?;
        Ok(Some(header))
    }

    /// Bytes of one row; `None` when that is more than a row may have.
    pub(crate) fn row_bytes(&self) -> Option<usize> {
        let bytes = self.item.bytes().checked_mul(self.width.unwrap_or(1));
        bytes.filter(|bytes| (1..=ROW_BYTES_MAX).contains(bytes))
    }

    /// The column, of this name.
    pub(crate) fn field(&self, name: &str) -> Field {
        let item = self.item.data_type();
        match self.width.and_then(|width| i32::try_from(width).ok()) {
            Some(width) => {
                let item = Field::new("item", item, false);
                Field::new(name, DataType::FixedSizeList(item.into(), width), false)
            }
            None => Field::new(name, item, false),
        }
    }
}

/// Decimal digits and nothing else.
fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// What is left of the literal.
struct Literal<'a> {
    rest: &'a str,
}

impl<'a> Literal<'a> {
    const fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    fn header(mut self, data_at: usize) -> Result<Header, String> {
        let (mut descr, mut is_fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.take('}') {
            let key = self.text()?;
            self.expect(':')?;
            let is_twice = match key {
                "descr" => descr.replace(self.descr()?).is_some(),
                "fortran_order" => is_fortran.replace(self.bool()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                _ => return Err("the header has a key that is none of NumPy's".to_owned()),
            };
            if is_twice {
                return Err(format!("the header has `{key}` twice"));
            }
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        if !self.rest.trim_ascii().is_empty() {
            return Err("the header goes on behind its end".to_owned());
        }
        let lacks = |key: &str| format!("the header lacks `{key}`");
        let (item, is_big_endian) = Item::of(descr.ok_or_else(|| lacks("descr"))?)?;
        let is_fortran = is_fortran.ok_or_else(|| lacks("fortran_order"))?;
        let (rows, width) = match shape.ok_or_else(|| lacks("shape"))?.as_slice() {
            [rows] => (*rows, None),
            [rows, width] => {
                let width = usize::try_from(*width).ok().filter(|width| *width > 0);
                let none = || "expected vectors of at least one value".to_owned();
                (*rows, Some(width.ok_or_else(none)?))
            }
            other => {
                let count = other.len();
                return Err(format!("expected an array of 1 or 2 dimensions, found {count}"));
            }
        };
        if is_fortran && rows > 1 && width.is_some_and(|width| width > 1) {
            let what = "the vectors are stored by columns (Fortran order), expected rows";
            return Err(what.to_owned());
        }
        Ok(Header { item, is_big_endian, rows, width, data_at })
    }

    fn descr(&mut self) -> Result<&'a str, String> {
        self.space();
        if self.rest.starts_with('[') {
            return Err("values of several fields (a structured type) are not read".to_owned());
        }
        self.text()
    }

    /// A string without escapes, which no name or type has.
    fn text(&mut self) -> Result<&'a str, String> {
        self.space();
        let wrong = || "the header is no dictionary of NumPy".to_owned();
        let quote =
            self.rest.chars().next().filter(|c| matches!(c, '\'' | '"')).ok_or_else(wrong)?;
        let (text, rest) =
            self.rest.get(1..).and_then(|rest| rest.split_once(quote)).ok_or_else(wrong)?;
        if text.len() > 32 || text.contains('\\') || text.chars().any(char::is_control) {
            return Err(wrong());
        }
        self.rest = rest;
        Ok(text)
    }

    fn bool(&mut self) -> Result<bool, String> {
        self.space();
        for (word, value) in [("False", false), ("True", true)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("`fortran_order` is neither True nor False".to_owned())
    }

    fn shape(&mut self) -> Result<Vec<u64>, String> {
        let wrong = || "`shape` is no tuple of numbers".to_owned();
        self.space();
        let inner = self.rest.strip_prefix('(').ok_or_else(wrong)?;
        let (inner, rest) = inner.split_once(')').ok_or_else(wrong)?;
        self.rest = rest;
        let mut parts: Vec<&str> = inner.split(',').map(str::trim_ascii).collect();
        // A tuple of one ends in a comma, and so may any.
        let is_closed = parts.last().is_some_and(|last| last.is_empty());
        if is_closed {
            parts.pop();
        } else if parts.len() == 1 {
            return Err(wrong());
        }
        // Python 2 wrote its long integers so.
        let parts = parts.into_iter().map(|part| digits(part.strip_suffix('L').unwrap_or(part)));
        parts.collect::<Option<_>>().ok_or_else(wrong)
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    fn take(&mut self, wanted: char) -> bool {
        self.space();
        self.rest.strip_prefix(wanted).map(|rest| self.rest = rest).is_some()
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.take(wanted) {
            Ok(())
        } else {
            Err("the header is no dictionary of NumPy".to_owned())
        }
    }
}
