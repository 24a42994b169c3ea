//! Typed values of the reserved keys.

use std::fmt;

use crate::error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};
use crate::limits::{CHUNK_COUNT_MAX, TRACE_LEN_MAX, TYPE_NAME_LEN_MAX, VCHANNEL_NAME_LEN_MAX};
use crate::wire::{self, Reader, u64_of};

/// Keys that begin with it belong to oncelog.
pub const RESERVED_PREFIX: char = '_';

/// The version of messages that this crate writes.
pub const MESSAGE_VERSION: u32 = 1;

/// Key of a chunk's index.
pub const CHUNK_INDEX: &str = "_ci";

/// Key of a chunk's total.
pub const CHUNK_TOTAL: &str = "_ct";

/// A value that is kept under a reserved key.
pub trait Property: Sized {
    /// The key.
    const KEY: &'static str;

    /// Appends the encoded value to `out`.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] where the value breaks a limit or an order; `out` then ends in a part of it.
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// The value that all of `bytes` are.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], with offsets in `bytes`.
    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError>;
}

/// Version of the message, [`MESSAGE_VERSION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

impl Property for Version {
    const KEY: &'static str = "_v";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        wire::put_u32(out, self.0);
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u32()?;
        reader.finish()?;
        if version == MESSAGE_VERSION {
            Ok(Self(version))
        } else {
            let kind = DecodeErrorKind::Unsupported { found: version, supported: MESSAGE_VERSION };
            Err(DecodeError::new(0, kind))
        }
    }
}

/// Name of the message's type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageType(pub String);

impl Property for MessageType {
    const KEY: &'static str = "_t";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_whole(out, "type", &self.0, TYPE_NAME_LEN_MAX)
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        whole_text(bytes, "type", TYPE_NAME_LEN_MAX).map(Self)
    }
}

/// Term of the writer, for channels that several writers may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterTerm(pub u64);

impl Property for WriterTerm {
    const KEY: &'static str = "_wt";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        wire::put_u64(out, self.0);
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        whole_u64(bytes).map(Self)
    }
}

/// Position in time of a message, unique and ascending in its pchannel: 46 bits of milliseconds
/// since 1970-01-01 UTC above 18 bits that count within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeTick(pub u64);

impl TimeTick {
    /// Largest milliseconds that a tick holds.
    pub const MS_MAX: u64 = (1 << 46) - 1;

    /// Largest count within one millisecond.
    pub const LOGICAL_MAX: u32 = (1 << 18) - 1;

    /// The tick of these parts; `None` where one is above its largest.
    #[must_use]
    pub fn from_parts(ms: u64, logical: u32) -> Option<Self> {
        let fits = ms <= Self::MS_MAX && logical <= Self::LOGICAL_MAX;
        fits.then_some(Self((ms << 18) | u64::from(logical)))
    }

    /// The least tick that is above `self` and not before `now_ms`; `None` at the end of time.
    #[must_use]
    pub fn next(self, now_ms: u64) -> Option<Self> {
        // Adding one carries a full count into the milliseconds: a hybrid clock never waits.
        let above = Self(self.0.checked_add(1)?);
        Some(Self::from_parts(now_ms, 0).map_or(above, |now| now.max(above)))
    }

    /// Milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0 >> 18
    }

    /// Count within the millisecond.
    #[must_use]
    pub const fn logical(self) -> u32 {
        wire::low32(self.0) & Self::LOGICAL_MAX
    }
}

impl fmt::Display for TimeTick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Property for TimeTick {
    const KEY: &'static str = "_tt";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        wire::put_u64(out, self.0);
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        whole_u64(bytes).map(Self)
    }
}

/// LSN of the pchannel up to which its writer had confirmed durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LastConfirmed(pub u64);

impl Property for LastConfirmed {
    const KEY: &'static str = "_lc";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        wire::put_u64(out, self.0);
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        whole_u64(bytes).map(Self)
    }
}

/// Name of the vchannel that a message belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vchannel(pub String);

impl Property for Vchannel {
    const KEY: &'static str = "_vc";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_whole(out, "vchannel", &self.0, VCHANNEL_NAME_LEN_MAX)
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        whole_text(bytes, "vchannel", VCHANNEL_NAME_LEN_MAX).map(Self)
    }
}

/// W3C trace context as opaque text; never a condition of correctness.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext(pub String);

impl Property for TraceContext {
    const KEY: &'static str = "_tc";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        put_whole(out, "trace context", &self.0, TRACE_LEN_MAX)
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        whole_text(bytes, "trace context", TRACE_LEN_MAX).map(Self)
    }
}

/// One of the parts of a payload that is larger than the channel's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    index: u32,
    total: u32,
}

impl Chunk {
    /// Chunk `index` (from 0) of `total`; `None` unless the total is at least 2, at most
    /// [`CHUNK_COUNT_MAX`], and above the index.
    #[must_use]
    pub fn new(index: u32, total: u32) -> Option<Self> {
        let fits = (2..=CHUNK_COUNT_MAX).contains(&total) && index < total;
        fits.then_some(Self { index, total })
    }

    /// Which one it is, from 0.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many there are.
    #[must_use]
    pub const fn total(self) -> u32 {
        self.total
    }
}

fn whole_u64(bytes: &[u8]) -> Result<u64, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = reader.u64()?;
    reader.finish()?;
    Ok(value)
}

/// Text that fills the value, so that it needs no length.
fn whole_text(bytes: &[u8], name: &'static str, max: u32) -> Result<String, DecodeError> {
    let len = u64_of(bytes.len());
    if len > u64::from(max) {
        let kind = DecodeErrorKind::Limit { len, max: u64::from(max) };
        return Err(DecodeError::new(0, kind));
    }
    match str::from_utf8(bytes) {
        Ok("") => Err(DecodeError::field(0, name, 0)),
        Ok(text) => Ok(text.to_owned()),
        Err(_utf8) => Err(DecodeError::new(0, DecodeErrorKind::Text { name })),
    }
}

fn put_whole(
    out: &mut Vec<u8>,
    name: &'static str,
    text: &str,
    max: u32,
) -> Result<(), EncodeError> {
    if text.is_empty() {
        return Err(EncodeError::new(name, EncodeErrorKind::Empty));
    }
    wire::check_count(name, text.len(), max)?;
    out.extend_from_slice(text.as_bytes());
    Ok(())
}
