//! The acceptance of a broadcast.

use super::fields::{Put, blob, choice, nonzero, put_blob, put_list, put_name, text, text_or_none};
use crate::error::DecodeError;
use crate::limits::{
    PROPERTY_COUNT_MAX, PROPERTY_KEY_LEN_MAX, PROPERTY_VALUE_LEN_MAX, VCHANNEL_COUNT_MAX,
};
use crate::message::{BroadcastHeader, BroadcastId, Fingerprint, Scope};
use crate::wire::{Reader, put_bool, put_bytes, put_option, put_text, put_u32, put_u64};

/// Most pchannels that one broadcast may touch: no more than its vchannels.
const PCHANNEL_COUNT_MAX: u32 = VCHANNEL_COUNT_MAX;

/// What a broadcast has to do with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobLink {
    /// Nothing.
    None,
    /// Its Done makes a job under its own identity.
    Starts,
    /// It ends an attempt of a job.
    Ends {
        /// The job.
        job: BroadcastId,
        /// The attempt, from 1.
        attempt: u32,
        /// Commit, or abort.
        commit: bool,
    },
}

impl JobLink {
    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::None => out.push(0),
            Self::Starts => out.push(1),
            Self::Ends { job, attempt, commit } => {
                out.push(if commit { 2 } else { 3 });
                put_u64(out, job.0);
                put_u32(out, attempt);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match choice(r, "job link", |b| (b <= 3).then_some(b))? {
            0 => Self::None,
            1 => Self::Starts,
            b => Self::Ends {
                job: BroadcastId(nonzero(r, "job")?),
                attempt: r.u32()?,
                commit: b == 2,
            },
        })
    }
}

/// Where a pchannel ended before an acceptance was written: its copies stand there or after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PchannelEnd {
    /// Name of the pchannel.
    pub pchannel: String,
    /// LSN of the next record that it would have been given.
    pub next_lsn: u64,
}

impl PchannelEnd {
    fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_name(out, "pchannel", &self.pchannel)?;
        put_u64(out, self.next_lsn);
        Ok(())
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { pchannel: text(r, "pchannel")?, next_lsn: nonzero(r, "next lsn")? })
    }

    pub(super) fn decode_list(r: &mut Reader<'_>) -> Result<Vec<Self>, DecodeError> {
        r.list(PCHANNEL_COUNT_MAX, 12, Self::decode)
    }

    pub(super) fn put_all(out: &mut Vec<u8>, ends: &[Self]) -> Put {
        put_list(out, "pchannels", PCHANNEL_COUNT_MAX, ends, |out, x| x.encode(out))
    }
}

/// The acceptance of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its identity, one more than any before, with what every copy says; Ack counts the vchannels
    /// in its order.
    pub header: BroadcastHeader,
    /// Name of the message type.
    pub message_type: String,
    /// Who may be answered with it; `None` for an unkeyed broadcast.
    pub scope: Option<Scope>,
    /// What a retry must equal.
    pub fingerprint: Fingerprint,
    /// Where each pchannel of its vchannels ended before.
    pub ends: Vec<PchannelEnd>,
    /// How long the key is kept after its Done, in milliseconds.
    pub lifetime_ms: u64,
    /// The lifetime is a promise; otherwise the key may be evicted.
    pub firm: bool,
    /// What it has to do with a job.
    pub job: JobLink,
    /// Properties of the caller, that every copy carries.
    pub properties: Vec<(String, Vec<u8>)>,
    /// W3C trace context.
    pub trace: Option<String>,
    /// Payload of every copy.
    pub payload: Vec<u8>,
}

impl Accepted {
    /// Returns the identity of the broadcast.
    #[must_use]
    pub const fn id(&self) -> BroadcastId {
        self.header.id
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        self.header.encode(out)?;
        put_name(out, "message type", &self.message_type)?;
        put_option(out, self.scope.as_ref(), |out, scope| scope.encode(out))?;
        self.fingerprint.encode(out)?;
        PchannelEnd::put_all(out, &self.ends)?;
        put_u64(out, self.lifetime_ms);
        put_bool(out, self.firm);
        self.job.encode(out);
        put_list(out, "properties", PROPERTY_COUNT_MAX, &self.properties, |out, (key, value)| {
            put_text(out, "property", key, PROPERTY_KEY_LEN_MAX)?;
            put_bytes(out, "property", value, PROPERTY_VALUE_LEN_MAX)
        })?;
        put_name(out, "trace", self.trace.as_deref().unwrap_or_default())?;
        put_blob(out, "payload", &self.payload)
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = r.at();
        let header = BroadcastHeader::decode(r)?;
        if header.id.0 == 0 {
            return Err(DecodeError::field(at, "broadcast", 0));
        }
        Ok(Self {
            header,
            message_type: text(r, "message type")?,
            scope: r.option("scope", Scope::decode)?,
            fingerprint: Fingerprint::decode(r)?,
            ends: PchannelEnd::decode_list(r)?,
            lifetime_ms: r.u64()?,
            firm: r.bool("firm")?,
            job: JobLink::decode(r)?,
            properties: r.list(PROPERTY_COUNT_MAX, 8, |r| {
                let key = r.text("property", PROPERTY_KEY_LEN_MAX)?.to_owned();
                Ok((key, r.bytes(PROPERTY_VALUE_LEN_MAX)?.to_vec()))
            })?,
            trace: text_or_none(r, "trace")?,
            payload: blob(r)?,
        })
    }
}
