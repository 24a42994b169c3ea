//! What a message says of the broadcast or the import it is part of.

use std::fmt;

use super::Property;
use crate::error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};
use crate::limits::{
    RESOURCE_COUNT_MAX, SCOPE_TEXT_LEN_MAX, VCHANNEL_COUNT_MAX, VCHANNEL_NAME_LEN_MAX,
};
use crate::wire::{self, Reader};

/// Identity of a broadcast, given once by its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BroadcastId(pub u64);

impl fmt::Display for BroadcastId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of a job: that of the broadcast which started it.
pub type JobId = BroadcastId;

/// What proves that a vchannel holds its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AckMode {
    /// The append itself.
    Append,
    /// A consumer of the vchannel.
    Consumer,
}

/// A lock that a broadcast holds from its acceptance to its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// Kind of the object, such as `collection`.
    pub domain: String,
    /// The object.
    pub key: String,
    /// Whether others may hold it shared at the same time.
    pub shared: bool,
}

impl Resource {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        wire::put_text(out, "resource domain", &self.domain, SCOPE_TEXT_LEN_MAX)?;
        wire::put_text(out, "resource key", &self.key, SCOPE_TEXT_LEN_MAX)?;
        wire::put_bool(out, self.shared);
        Ok(())
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            domain: reader.text("resource domain", SCOPE_TEXT_LEN_MAX)?.to_owned(),
            key: reader.text("resource key", SCOPE_TEXT_LEN_MAX)?.to_owned(),
            shared: reader.bool("shared")?,
        })
    }

    fn object(&self) -> (&str, &str) {
        (&self.domain, &self.key)
    }
}

/// The broadcast that a message is a copy of; the same in every copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastHeader {
    /// Its identity.
    pub id: BroadcastId,
    /// Every vchannel that gets a copy, at least one; sorted and unique.
    pub vchannels: Vec<String>,
    /// The locks that it holds; sorted and unique by domain and key.
    pub resources: Vec<Resource>,
    /// What acknowledges a copy.
    pub ack: AckMode,
}

impl BroadcastHeader {
    /// Appends the header to `out`.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] for counts and lengths over their limits, no vchannel, an empty name, and
    /// lists that are not sorted and unique.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let empty = self.vchannels.is_empty() || self.vchannels.iter().any(String::is_empty);
        if empty {
            return Err(EncodeError::new("vchannels", EncodeErrorKind::Empty));
        }
        if !self.vchannels.is_sorted_by(|a, b| a < b) {
            return Err(EncodeError::new("vchannels", EncodeErrorKind::Unordered));
        }
        if !self.resources.is_sorted_by(|a, b| a.object() < b.object()) {
            return Err(EncodeError::new("resources", EncodeErrorKind::Unordered));
        }
        wire::put_u64(out, self.id.0);
        out.push(match self.ack {
            AckMode::Append => 0,
            AckMode::Consumer => 1,
        });
        wire::put_count(out, "vchannels", self.vchannels.len(), VCHANNEL_COUNT_MAX)?;
        for name in &self.vchannels {
            wire::put_text(out, "vchannel", name, VCHANNEL_NAME_LEN_MAX)?;
        }
        wire::put_count(out, "resources", self.resources.len(), RESOURCE_COUNT_MAX)?;
        self.resources.iter().try_for_each(|resource| resource.encode(out))
    }

    /// The header that `reader` comes to.
    ///
    /// # Errors
    ///
    /// `Truncated`, `Limit`, `Text` and `Field`, for what [`BroadcastHeader::encode`] refuses.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = BroadcastId(reader.u64()?);
        let ack_at = reader.at();
        let ack = match reader.u8()? {
            0 => AckMode::Append,
            1 => AckMode::Consumer,
            other => return Err(DecodeError::field(ack_at, "ack", u64::from(other))),
        };
        let at = reader.at();
        let vchannels = reader.list(VCHANNEL_COUNT_MAX, 5, |reader| {
            reader.text("vchannel", VCHANNEL_NAME_LEN_MAX).map(str::to_owned)
        })?;
        if vchannels.is_empty() || vchannels.iter().any(String::is_empty) {
            return Err(DecodeError::field(at, "vchannels", 0));
        }
        if !vchannels.is_sorted_by(|a, b| a < b) {
            return Err(DecodeError::new(at, DecodeErrorKind::Text { name: "vchannels" }));
        }
        let at = reader.at();
        let resources = reader.list(RESOURCE_COUNT_MAX, 9, Resource::decode)?;
        if !resources.is_sorted_by(|a, b| a.object() < b.object()) {
            return Err(DecodeError::new(at, DecodeErrorKind::Text { name: "resources" }));
        }
        Ok(Self { id, vchannels, resources, ack })
    }
}

impl Property for BroadcastHeader {
    const KEY: &'static str = "_bh";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode(out)
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let header = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(header)
    }
}

/// Which rows of an import a message holds; they are hidden until the vchannel's commit message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceStamp {
    /// The job.
    pub job: JobId,
    /// Its attempt, from 1.
    pub attempt: u32,
    /// Index of the file in the job's plan, from 0.
    pub file: u32,
    /// First row of the slice in the file, from 0.
    pub first_row: u64,
    /// Rows of this message; of the slice, those of this vchannel.
    pub rows: u32,
}

impl Property for SliceStamp {
    const KEY: &'static str = "_tx";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        wire::put_u64(out, self.job.0);
        wire::put_u32(out, self.attempt);
        wire::put_u32(out, self.file);
        wire::put_u64(out, self.first_row);
        wire::put_u32(out, self.rows);
        Ok(())
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let stamp = Self {
            job: BroadcastId(reader.u64()?),
            attempt: reader.u32()?,
            file: reader.u32()?,
            first_row: reader.u64()?,
            rows: reader.u32()?,
        };
        reader.finish()?;
        Ok(stamp)
    }
}
