//! Why bytes do not decode.

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
    Truncated { need: usize, have: usize },
    /// The checksum in the bytes is not that of the bytes.
    Checksum { stored: u32, computed: u32 },
    /// A format version or a must-understand feature that this reader does not know.
    Unsupported { found: u32, supported: u32 },
    /// A length or count above its limit.
    Limit { len: u64, max: u64 },
    /// Not the structure that was expected.
    Magic,
    /// A field holds a value that SPEC.md does not allow; the name is the field's.
    Field { name: &'static str, found: u64 },
    /// Text that is not UTF-8, or keys that are not sorted and unique.
    Text { name: &'static str },
}
