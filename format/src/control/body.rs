//! Fields of the records of broadcasts, channels and time.
#![expect(clippy::exhaustive_structs, reason = "the fields of a record are SPEC's")]

use super::fields::{FieldReader, FieldWriter};
use crate::error::DecodeError;
use crate::limits::{PROPERTY_COUNT_MAX, RESOURCE_COUNT_MAX, VCHANNEL_COUNT_MAX};
use crate::message::{AckMode, BroadcastId, Fingerprint, Resource, Scope, TimeTick};

/// Most pchannels that one broadcast may touch: no more than its vchannels.
const PCHANNEL_COUNT_MAX: usize = VCHANNEL_COUNT_MAX;

/// A collection: what imports go into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Identity, never given twice.
    pub id: u64,
    /// Name; a later record with the same id renames.
    pub name: String,
    /// Grows when the collection is emptied or recreated in place.
    pub generation: u64,
    /// Schema, opaque here; empty until the first import states it.
    pub schema: Vec<u8>,
    /// Field that rows are identified and partitioned by; `None` partitions by row number.
    pub primary_key: Option<String>,
    /// Partition function; 1 is xxh3-64 of the canonical key modulo the vchannels.
    pub partition_function: u8,
    /// Version of the partition function.
    pub partition_version: u16,
    /// Its vchannels, in the order that the partition function counts them.
    pub vchannels: Vec<String>,
}

impl Collection {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.u64(self.id);
        out.text(&self.name);
        out.u64(self.generation);
        out.bytes(&self.schema);
        out.text(self.primary_key.as_deref().unwrap_or_default());
        out.u8(self.partition_function);
        out.u16(self.partition_version);
        out.list(&self.vchannels, |out, v| out.text(v));
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: r.nonzero("collection")?,
            name: r.text("name")?,
            generation: r.u64()?,
            schema: r.bytes()?.to_vec(),
            primary_key: Some(r.text("primary key")?).filter(|key| !key.is_empty()),
            partition_function: r.u8()?,
            partition_version: r.u16()?,
            vchannels: r.list(2, VCHANNEL_COUNT_MAX, |r| r.text("vchannel"))?,
        })
    }
}

/// Which pchannel carries a vchannel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Name of the vchannel.
    pub vchannel: String,
    /// Name of the pchannel.
    pub pchannel: String,
}

impl Channel {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.text(&self.vchannel);
        out.text(&self.pchannel);
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { vchannel: r.text("vchannel")?, pchannel: r.text("pchannel")? })
    }
}

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
    fn encode(self, out: &mut FieldWriter) {
        match self {
            Self::None => out.u8(0),
            Self::Starts => out.u8(1),
            Self::Ends { job, attempt, commit } => {
                out.u8(if commit { 2 } else { 3 });
                out.u64(job.0);
                out.u32(attempt);
            }
        }
    }

    fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(match r.choice("job link", |b| (b <= 3).then_some(b))? {
            0 => Self::None,
            1 => Self::Starts,
            b => Self::Ends {
                job: BroadcastId(r.nonzero("job")?),
                attempt: r.u32()?,
                commit: b == 2,
            },
        })
    }
}

/// Where a pchannel ended before an acceptance was written: its copies stand there or behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PchannelEnd {
    /// Name of the pchannel.
    pub pchannel: String,
    /// LSN of the next record that it would have been given.
    pub next_lsn: u64,
}

impl PchannelEnd {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.text(&self.pchannel);
        out.u64(self.next_lsn);
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { pchannel: r.text("pchannel")?, next_lsn: r.nonzero("next lsn")? })
    }

    pub(super) fn decode_list(r: &mut FieldReader<'_>) -> Result<Vec<Self>, DecodeError> {
        r.list(10, PCHANNEL_COUNT_MAX, Self::decode)
    }
}

/// The acceptance of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Identity, one more than any before.
    pub id: BroadcastId,
    /// Name of the message type.
    pub message_type: String,
    /// Who may be answered with it; `None` for an unkeyed broadcast.
    pub scope: Option<Scope>,
    /// What a retry must equal.
    pub fingerprint: Fingerprint,
    /// Resource keys held until the end.
    pub resources: Vec<Resource>,
    /// The vchannels; Ack counts them in this order.
    pub vchannels: Vec<String>,
    /// Where each pchannel of them ended before.
    pub ends: Vec<PchannelEnd>,
    /// What acknowledges a copy.
    pub ack_mode: AckMode,
    /// How long the key is kept behind its Done, in milliseconds.
    pub lifetime_ms: u64,
    /// The lifetime is a promise; otherwise the key may be evicted.
    pub firm: bool,
    /// What it has to do with a job.
    pub job: JobLink,
    /// Properties of the caller.
    pub properties: Vec<(String, Vec<u8>)>,
    /// W3C trace context.
    pub trace: Option<String>,
    /// Payload of every copy.
    pub payload: Vec<u8>,
}

impl Accepted {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.u64(self.id.0);
        out.text(&self.message_type);
        out.bytes(&self.scope.as_ref().map(Scope::encode).unwrap_or_default());
        out.bytes(&self.fingerprint.encode());
        out.list(&self.resources, |out, x| {
            out.text(&x.domain);
            out.text(&x.key);
            out.u8(u8::from(x.shared));
        });
        out.list(&self.vchannels, |out, v| out.text(v));
        out.list(&self.ends, |out, x| x.encode(out));
        out.u8(self.ack_mode.to_byte());
        out.u64(self.lifetime_ms);
        out.u8(u8::from(self.firm));
        self.job.encode(out);
        out.list(&self.properties, |out, (key, value)| {
            out.text(key);
            out.bytes(value);
        });
        out.text(self.trace.as_deref().unwrap_or_default());
        out.bytes(&self.payload);
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: BroadcastId(r.nonzero("broadcast")?),
            message_type: r.text("message type")?,
            scope: match r.bytes()? {
                [] => None,
                bytes => Some(Scope::decode(bytes)?),
            },
            fingerprint: Fingerprint::decode(r.bytes()?)?,
            resources: r.list(5, RESOURCE_COUNT_MAX, |r| {
                Ok(Resource {
                    domain: r.text("domain")?,
                    key: r.text("key")?,
                    shared: r.choice("shared", flag)?,
                })
            })?,
            vchannels: r.list(2, VCHANNEL_COUNT_MAX, |r| r.text("vchannel"))?,
            ends: PchannelEnd::decode_list(r)?,
            ack_mode: r.choice("ack mode", AckMode::from_byte)?,
            lifetime_ms: r.u64()?,
            firm: r.choice("firm", flag)?,
            job: JobLink::decode(r)?,
            properties: r.list(6, PROPERTY_COUNT_MAX, |r| {
                Ok((r.text("property")?, r.bytes()?.to_vec()))
            })?,
            trace: Some(r.text("trace")?).filter(|trace| !trace.is_empty()),
            payload: r.bytes()?.to_vec(),
        })
    }
}

fn flag(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Where one copy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckPosition {
    /// Which of the acceptance's vchannels, from 0.
    pub vchannel: u32,
    /// LSN in the log of its pchannel.
    pub lsn: u64,
    /// Time tick of the copy.
    pub time_tick: TimeTick,
}

/// Copies that stand and are acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The broadcast.
    pub id: BroadcastId,
    /// The copies.
    pub positions: Vec<AckPosition>,
}

impl Ack {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.u64(self.id.0);
        out.list(&self.positions, |out, x| {
            out.u32(x.vchannel);
            out.u64(x.lsn);
            out.u64(x.time_tick.0);
        });
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: BroadcastId(r.nonzero("broadcast")?),
            positions: r.list(20, VCHANNEL_COUNT_MAX, |r| {
                Ok(AckPosition {
                    vchannel: r.u32()?,
                    lsn: r.nonzero("lsn")?,
                    time_tick: TimeTick(r.u64()?),
                })
            })?,
        })
    }
}

/// How a broadcast ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Its effect exists.
    Done,
    /// It has none, for this reason.
    Failed(String),
}

/// The end of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The broadcast.
    pub id: BroadcastId,
    /// How it ended.
    pub outcome: Outcome,
}

impl Done {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.u64(self.id.0);
        match &self.outcome {
            Outcome::Done => {
                out.u8(1);
                out.text("");
            }
            Outcome::Failed(reason) => {
                out.u8(2);
                out.text(reason);
            }
        }
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let id = BroadcastId(r.nonzero("broadcast")?);
        let failed = r.choice("outcome", |b| flag(b.wrapping_sub(1)))?;
        let reason = r.text("reason")?;
        let outcome = if failed { Outcome::Failed(reason) } else { Outcome::Done };
        Ok(Self { id, outcome })
    }
}

/// Why something was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropCause {
    /// The window of the key was over.
    Expired,
    /// A best-effort key made room.
    Evicted,
    /// The record of a finished job outlived its retention.
    Retired,
}

impl DropCause {
    /// Returns the word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Retired => "retired",
        }
    }
}

/// A key, or the record of a job, is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The broadcast.
    pub id: BroadcastId,
    /// Why.
    pub cause: DropCause,
}

impl Dropped {
    pub(super) fn encode(self, out: &mut FieldWriter) {
        out.u64(self.id.0);
        out.u8(match self.cause {
            DropCause::Expired => 1,
            DropCause::Evicted => 2,
            DropCause::Retired => 3,
        });
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: BroadcastId(r.nonzero("broadcast")?),
            cause: r.choice("cause", |b| match b {
                1 => Some(DropCause::Expired),
                2 => Some(DropCause::Evicted),
                3 => Some(DropCause::Retired),
                _ => None,
            })?,
        })
    }
}

/// A record of one broadcast and a reason.
macro_rules! reasoned {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// The broadcast.
            pub id: BroadcastId,
            /// Why.
            pub reason: String,
        }

        impl $name {
            pub(super) fn encode(&self, out: &mut FieldWriter) {
                out.u64(self.id.0);
                out.text(&self.reason);
            }

            pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
                Ok(Self { id: BroadcastId(r.nonzero("broadcast")?), reason: r.text("reason")? })
            }
        }
    };
}

reasoned! {
    /// A task stopped until an operator acts.
    Park
}
reasoned! {
    /// A parked task goes on.
    Resume
}
reasoned! {
    /// An operator gave up a parked task whose copies stand; its Done follows in the same batch.
    Skip
}

/// An operator believed the wall clock: log time goes on at this record's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRebase {
    /// Log time before, in milliseconds.
    pub from_ms: u64,
}

impl ClockRebase {
    pub(super) fn encode(self, out: &mut FieldWriter) {
        out.u64(self.from_ms);
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { from_ms: r.u64()? })
    }
}

/// A writer took over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Its term, above any before.
    pub term: u64,
}

impl Term {
    pub(super) fn encode(self, out: &mut FieldWriter) {
        out.u64(self.term);
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { term: r.nonzero("term")? })
    }
}

/// An operator accepted that keys from before this record may be unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowAccepted {
    /// Why.
    pub reason: String,
}

impl WindowAccepted {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.text(&self.reason);
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { reason: r.text("reason")? })
    }
}

/// The retention policy in force from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyRecord {
    /// How long a key is kept behind its Done, in milliseconds.
    pub window_lifetime_ms: u64,
    /// Most keys at once.
    pub window_count_max: u64,
    /// Largest share of one principal, in percent.
    pub principal_share_max_percent: u8,
    /// How long a finished job is kept, in milliseconds.
    pub task_retention_ms: u64,
    /// How often expired keys are swept, in milliseconds.
    pub check_interval_ms: u64,
    /// A full window evicts best-effort keys, oldest first; otherwise it refuses.
    pub evict_oldest: bool,
    /// How long a task is retried before it is parked, in milliseconds.
    pub retry_age_max_ms: u64,
    /// Keyed broadcasts an hour that the operator expects.
    pub broadcasts_per_hour_max: Option<u64>,
}

impl PolicyRecord {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.u64(self.window_lifetime_ms);
        out.u64(self.window_count_max);
        out.u8(self.principal_share_max_percent);
        out.u64(self.task_retention_ms);
        out.u64(self.check_interval_ms);
        out.u8(u8::from(self.evict_oldest));
        out.u64(self.retry_age_max_ms);
        out.u64(self.broadcasts_per_hour_max.unwrap_or_default());
    }

    pub(super) fn decode(r: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            window_lifetime_ms: r.u64()?,
            window_count_max: r.u64()?,
            principal_share_max_percent: r.u8()?,
            task_retention_ms: r.u64()?,
            check_interval_ms: r.u64()?,
            evict_oldest: r.choice("evict oldest", flag)?,
            retry_age_max_ms: r.u64()?,
            broadcasts_per_hour_max: Some(r.u64()?).filter(|rate| *rate != 0),
        })
    }
}
