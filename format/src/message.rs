//! SPEC 13.1: a message is properties and a payload.
//!
//! [`Message`] is a view of encoded bytes: decoding checks all of the properties and allocates
//! nothing. [`Properties`] is what a writer fills in and encodes. Both speak of typed values through
//! [`Property`]; a key that is not known, reserved or not, is kept and passed on.
//!
//! That a message holds the properties which its use demands is not checked here.

mod broadcast;
mod property;
mod scope;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};
use crate::limits::{
    CHUNK_COUNT_MAX, PROPERTY_COUNT_MAX, PROPERTY_KEY_LEN_MAX, PROPERTY_VALUE_LEN_MAX,
};
use crate::wire::{self, Reader};

pub use broadcast::{AckMode, BroadcastHeader, BroadcastId, JobId, Resource, SliceStamp};
pub use property::{
    CHUNK_INDEX, CHUNK_TOTAL, Chunk, LastConfirmed, MESSAGE_VERSION, MessageType, Property,
    RESERVED_PREFIX, TimeTick, TraceContext, Vchannel, Version, WriterTerm,
};
pub use scope::{Fingerprint, FingerprintField, Scope};

/// An encoded message, taken apart: borrows from the bytes of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The encoded properties, after their count.
    properties: &'a [u8],
    count: u32,
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message that `record` is.
    ///
    /// # Errors
    ///
    /// `Truncated` and `Limit` for lengths and counts; `Text` for keys that are not UTF-8, or not
    /// strictly ascending; `Field` for an empty key.
    pub fn decode(record: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(record);
        let count = reader.count(PROPERTY_COUNT_MAX)?;
        let begin = reader.at();
        // No key sorts before it, and it is itself not allowed.
        let mut before = "";
        for _ in 0..count {
            let at = reader.at();
            let key = reader.text("key", PROPERTY_KEY_LEN_MAX)?;
            if key.is_empty() {
                return Err(DecodeError::field(at, "key", 0));
            }
            if key <= before {
                return Err(DecodeError::new(at, DecodeErrorKind::Text { name: "key" }));
            }
            before = key;
            reader.bytes(PROPERTY_VALUE_LEN_MAX)?;
        }
        let properties = record.get(begin..reader.at()).unwrap_or_default();
        Ok(Self { properties, count, payload: reader.rest() })
    }

    /// What the message carries.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// How many properties there are.
    #[must_use]
    pub const fn property_count(&self) -> u32 {
        self.count
    }

    /// Keys and values, ascending by key.
    pub fn properties(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        self.entries().filter_map(|entry| Some((str::from_utf8(entry.key).ok()?, entry.value)))
    }

    /// The encoded value under `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&'a [u8]> {
        self.entry(key).map(|entry| entry.value)
    }

    /// Where the encoded value under `key` stands in the record, in bytes.
    #[must_use]
    pub fn value_range(&self, key: &str) -> Option<Range<usize>> {
        let entry = self.entry(key)?;
        Some(entry.value_at..entry.value_at.saturating_add(entry.value.len()))
    }

    /// The typed value of a known key; `None` where the message has none.
    ///
    /// # Errors
    ///
    /// Those of the type, at their offset in the record.
    pub fn property<P: Property>(&self) -> Result<Option<P>, DecodeError> {
        self.entry(P::KEY)
            .map(|entry| P::decode_value(entry.value).map_err(|e| e.shifted(entry.value_at)))
            .transpose()
    }

    /// Index and total of a chunk; `None` for a message that is whole.
    ///
    /// # Errors
    ///
    /// `Field` where only one of the two keys is there, the total is below 2, or the index is not
    /// below the total; `Limit` for a total above [`CHUNK_COUNT_MAX`].
    pub fn chunk(&self) -> Result<Option<Chunk>, DecodeError> {
        let (index, total) = (self.entry(CHUNK_INDEX), self.entry(CHUNK_TOTAL));
        let (index, total) = match (index, total) {
            (None, None) => return Ok(None),
            (Some(index), Some(total)) => (index, total),
            (Some(alone), None) => return Err(DecodeError::field(alone.value_at, CHUNK_TOTAL, 0)),
            (None, Some(alone)) => return Err(DecodeError::field(alone.value_at, CHUNK_INDEX, 0)),
        };
        let total_value = total.u32()?;
        let index_value = index.u32()?;
        if total_value < 2 {
            let found = u64::from(total_value);
            return Err(DecodeError::field(total.value_at, CHUNK_TOTAL, found));
        }
        if total_value > CHUNK_COUNT_MAX {
            let (len, max) = (u64::from(total_value), u64::from(CHUNK_COUNT_MAX));
            return Err(DecodeError::new(total.value_at, DecodeErrorKind::Limit { len, max }));
        }
        Chunk::new(index_value, total_value)
            .map(Some)
            .ok_or_else(|| DecodeError::field(index.value_at, CHUNK_INDEX, u64::from(index_value)))
    }

    /// Decodes the value of every key that this crate knows.
    ///
    /// # Errors
    ///
    /// The first one's, in the order of SPEC 13.1.
    pub fn check_known(&self) -> Result<(), DecodeError> {
        self.property::<Version>()?;
        self.property::<MessageType>()?;
        self.property::<WriterTerm>()?;
        self.property::<TimeTick>()?;
        self.property::<LastConfirmed>()?;
        self.property::<Vchannel>()?;
        self.property::<BroadcastHeader>()?;
        self.property::<Scope>()?;
        self.property::<Fingerprint>()?;
        self.property::<TraceContext>()?;
        self.chunk()?;
        self.property::<SliceStamp>()?;
        Ok(())
    }

    fn entry(&self, key: &str) -> Option<Entry<'a>> {
        self.entries().find(|entry| entry.key == key.as_bytes())
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut reader = Reader::new(self.properties);
        // Decoding has checked these bytes: they end where the properties end.
        std::iter::from_fn(move || {
            let key = reader.bytes(PROPERTY_KEY_LEN_MAX).ok()?;
            let value_at = reader.at().saturating_add(8);
            let value = reader.bytes(PROPERTY_VALUE_LEN_MAX).ok()?;
            Some(Entry { key, value, value_at })
        })
    }
}

/// One encoded property.
struct Entry<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// Offset of the value in the record.
    value_at: usize,
}

impl Entry<'_> {
    fn u32(&self) -> Result<u32, DecodeError> {
        let mut reader = Reader::new(self.value);
        let value = reader.u32().map_err(|e| e.shifted(self.value_at))?;
        reader.finish().map_err(|e| e.shifted(self.value_at))?;
        Ok(value)
    }
}

/// The properties of a message that is being made; sorted and unique by construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    entries: BTreeMap<Cow<'static, str>, Vec<u8>>,
}

impl Properties {
    /// No properties.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy of those of `message`, unknown ones included.
    #[must_use]
    pub fn of(message: &Message<'_>) -> Self {
        let owned = |(key, value): (&str, &[u8])| (Cow::Owned(key.to_owned()), value.to_vec());
        Self { entries: message.properties().map(owned).collect() }
    }

    /// Sets the typed value of a known key.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] where the value breaks a limit or an order; then nothing is changed.
    pub fn set<P: Property>(&mut self, value: &P) -> Result<(), EncodeError> {
        let mut out = Vec::new();
        value.encode_value(&mut out)?;
        self.set_value(Cow::Borrowed(P::KEY), out)
    }

    /// Takes the mark of a chunk away.
    pub fn remove_chunk(&mut self) {
        self.remove(CHUNK_INDEX);
        self.remove(CHUNK_TOTAL);
    }

    /// Marks the message as a chunk.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] where there is no room for two properties.
    pub fn set_chunk(&mut self, chunk: Chunk) -> Result<(), EncodeError> {
        for (key, value) in [(CHUNK_INDEX, chunk.index()), (CHUNK_TOTAL, chunk.total())] {
            self.set_value(key, value.to_le_bytes().to_vec())?;
        }
        Ok(())
    }

    /// Sets any key to encoded bytes.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] for an empty key, one too long, a value too long, or one property too
    /// many; then nothing is changed.
    pub fn set_value(
        &mut self,
        key: impl Into<Cow<'static, str>>,
        value: Vec<u8>,
    ) -> Result<(), EncodeError> {
        let key = key.into();
        if key.is_empty() {
            return Err(EncodeError::new("key", EncodeErrorKind::Empty));
        }
        wire::check_count("key", key.len(), PROPERTY_KEY_LEN_MAX)?;
        wire::check_count("value", value.len(), PROPERTY_VALUE_LEN_MAX)?;
        if !self.entries.contains_key(&key) {
            let count = self.entries.len().saturating_add(1);
            wire::check_count("properties", count, PROPERTY_COUNT_MAX)?;
        }
        self.entries.insert(key, value);
        Ok(())
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// The encoded value under `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    /// The typed value of a known key; `None` where there is none.
    ///
    /// # Errors
    ///
    /// Those of the type, at their offset in the value.
    pub fn get<P: Property>(&self) -> Result<Option<P>, DecodeError> {
        self.value(P::KEY).map(P::decode_value).transpose()
    }

    /// Length in bytes of what [`Properties::encode`] appends.
    #[must_use]
    pub fn encoded_len(&self, payload: &[u8]) -> usize {
        let lens = self
            .entries
            .iter()
            .map(|(key, value)| key.len().saturating_add(value.len()).saturating_add(8));
        lens.fold(payload.len().saturating_add(4), usize::saturating_add)
    }

    /// Appends the message of these properties and `payload` to `out`.
    pub fn encode(&self, payload: &[u8], out: &mut Vec<u8>) {
        out.reserve(self.encoded_len(payload));
        wire::put_len(out, self.entries.len());
        for (key, value) in &self.entries {
            wire::put_len(out, key.len());
            out.extend_from_slice(key.as_bytes());
            wire::put_len(out, value.len());
            out.extend_from_slice(value);
        }
        out.extend_from_slice(payload);
    }
}

#[cfg(test)]
mod tests;
