//! Why bytes do not decode, and why a value does not encode.
//!
//! Both errors are small, `Copy`, and own nothing.

use std::error::Error;
use std::fmt;

/// Where decoding stopped, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Offset of the field in the bytes that were given.
    pub at: usize,
    /// What is wrong with it.
    pub kind: DecodeErrorKind,
}

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// Fewer bytes than the structure needs.
    Truncated {
        /// Bytes that are needed.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// The checksum in the bytes is not that of the bytes.
    Checksum {
        /// The one in the bytes.
        stored: u32,
        /// The one of the bytes.
        computed: u32,
    },
    /// A format version or a must-understand feature that this reader does not know.
    Unsupported {
        /// What the bytes say.
        found: u32,
        /// What this crate knows.
        supported: u32,
    },
    /// A length or count above its limit.
    Limit {
        /// The length or count.
        len: u64,
        /// Its limit, inclusive.
        max: u64,
    },
    /// Not the structure that was expected.
    Magic,
    /// A field holds a value that SPEC.md does not allow.
    Field {
        /// The field.
        name: &'static str,
        /// Its value.
        found: u64,
    },
    /// Text that is not UTF-8, or keys that are not sorted and unique.
    Text {
        /// The field.
        name: &'static str,
    },
    /// Bytes after the end of the structure.
    Trailing {
        /// How many.
        len: usize,
    },
}

impl DecodeError {
    /// The error at offset `at`.
    #[must_use]
    pub const fn new(at: usize, kind: DecodeErrorKind) -> Self {
        Self { at, kind }
    }

    /// The same error of bytes that begin `by` bytes into a larger structure.
    #[must_use]
    pub const fn shifted(self, by: usize) -> Self {
        Self { at: self.at.saturating_add(by), kind: self.kind }
    }

    pub(crate) const fn field(at: usize, name: &'static str, found: u64) -> Self {
        Self::new(at, DecodeErrorKind::Field { name, found })
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DecodeErrorKind::Truncated { need, have } => {
                write!(f, "truncated: expected {need} bytes, found {have}")?;
            }
            DecodeErrorKind::Checksum { stored, computed } => {
                write!(f, "checksum: expected {computed:#010x}, found {stored:#010x}")?;
            }
            DecodeErrorKind::Unsupported { found, supported } => {
                write!(f, "unsupported version or feature: expected {supported}, found {found}")?;
            }
            DecodeErrorKind::Limit { len, max } => {
                write!(f, "over the limit: expected at most {max}, found {len}")?;
            }
            DecodeErrorKind::Magic => f.write_str("magic bytes do not match")?,
            DecodeErrorKind::Field { name, found } => {
                write!(f, "field {name} must not be {found}")?;
            }
            DecodeErrorKind::Text { name } => {
                write!(f, "{name} is not UTF-8, or not sorted and unique")?;
            }
            DecodeErrorKind::Trailing { len } => {
                write!(f, "trailing bytes: expected 0, found {len}")?;
            }
        }
        write!(f, " at byte {}", self.at)
    }
}

impl Error for DecodeError {}

/// A value that has no encoding, because it breaks a rule of SPEC.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeError {
    /// The field.
    pub name: &'static str,
    /// What is wrong with it.
    pub kind: EncodeErrorKind,
}

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncodeErrorKind {
    /// A length or count above its limit.
    Limit {
        /// The length or count.
        len: u64,
        /// Its limit, inclusive.
        max: u64,
    },
    /// Nothing where something must be.
    Empty,
    /// Items that are not sorted and unique.
    Unordered,
}

impl EncodeError {
    /// What is wrong with the field `name`.
    #[must_use]
    pub const fn new(name: &'static str, kind: EncodeErrorKind) -> Self {
        Self { name, kind }
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EncodeErrorKind::Limit { len, max } => {
                write!(f, "{} is over the limit: expected at most {max}, found {len}", self.name)
            }
            EncodeErrorKind::Empty => write!(f, "{} is empty", self.name),
            EncodeErrorKind::Unordered => write!(f, "{} is not sorted and unique", self.name),
        }
    }
}

impl Error for EncodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_lower_case_line_with_the_offset() {
        let error =
            DecodeError::new(4, DecodeErrorKind::Checksum { stored: 1, computed: 0xCBF4_3926 });
        assert_eq!(error.to_string(), "checksum: expected 0xcbf43926, found 0x00000001 at byte 4");
        let error =
            DecodeError::new(0, DecodeErrorKind::Truncated { need: 80, have: 3 }).shifted(40);
        assert_eq!(error.to_string(), "truncated: expected 80 bytes, found 3 at byte 40");
    }

    #[test]
    fn what_cannot_be_encoded_is_named() {
        let of = |kind| EncodeError::new("payload", kind).to_string();
        let limit = EncodeErrorKind::Limit { len: 9, max: 8 };
        assert_eq!(of(limit), "payload is over the limit: expected at most 8, found 9");
        assert_eq!(of(EncodeErrorKind::Empty), "payload is empty");
        assert_eq!(of(EncodeErrorKind::Unordered), "payload is not sorted and unique");
    }
}
