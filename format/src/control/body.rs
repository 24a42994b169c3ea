//! Fields of the records of broadcasts, channels and time.
use super::fields::{
    Put, blob, choice, nonzero, put_blob, put_list, put_name, put_vchannels, text, text_or_none,
    vchannels,
};
use crate::error::DecodeError;
use crate::limits::VCHANNEL_COUNT_MAX;
use crate::message::{BroadcastId, TimeTick};
use crate::wire::{Reader, put_bool, put_u16, put_u32, put_u64};

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
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.id);
        put_name(out, "name", &self.name)?;
        put_u64(out, self.generation);
        put_blob(out, "schema", &self.schema)?;
        put_name(out, "primary key", self.primary_key.as_deref().unwrap_or_default())?;
        out.push(self.partition_function);
        put_u16(out, self.partition_version);
        put_vchannels(out, &self.vchannels)?;
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: nonzero(r, "collection")?,
            name: text(r, "name")?,
            generation: r.u64()?,
            schema: blob(r)?,
            primary_key: text_or_none(r, "primary key")?,
            partition_function: r.u8()?,
            partition_version: r.u16()?,
            vchannels: vchannels(r)?,
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
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_name(out, "vchannel", &self.vchannel)?;
        put_name(out, "pchannel", &self.pchannel)?;
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { vchannel: text(r, "vchannel")?, pchannel: text(r, "pchannel")? })
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
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.id.0);
        put_list(out, "positions", VCHANNEL_COUNT_MAX, &self.positions, |out, x| {
            put_u32(out, x.vchannel);
            put_u64(out, x.lsn);
            put_u64(out, x.time_tick.0);
            Ok(())
        })?;
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: BroadcastId(nonzero(r, "broadcast")?),
            positions: r.list(VCHANNEL_COUNT_MAX, 20, |r| {
                Ok(AckPosition {
                    vchannel: r.u32()?,
                    lsn: nonzero(r, "lsn")?,
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
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.id.0);
        match &self.outcome {
            Outcome::Done => {
                out.push(1);
                put_name(out, "reason", "")?;
            }
            Outcome::Failed(reason) => {
                out.push(2);
                put_name(out, "reason", reason)?;
            }
        }
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = BroadcastId(nonzero(r, "broadcast")?);
        let failed = choice(r, "outcome", |b| matches!(b, 1 | 2).then_some(b == 2))?;
        let at = r.at();
        let reason = text(r, "reason")?;
        if !failed && !reason.is_empty() {
            return Err(DecodeError::field(at, "reason of a success", 1));
        }
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
    pub(super) fn encode(self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.id.0);
        out.push(match self.cause {
            DropCause::Expired => 1,
            DropCause::Evicted => 2,
            DropCause::Retired => 3,
        });
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: BroadcastId(nonzero(r, "broadcast")?),
            cause: choice(r, "cause", |b| match b {
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
            pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
                put_u64(out, self.id.0);
                put_name(out, "reason", &self.reason)?;
                Ok(())
            }

            pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(Self { id: BroadcastId(nonzero(r, "broadcast")?), reason: text(r, "reason")? })
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
    pub(super) fn encode(self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.from_ms);
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
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
    pub(super) fn encode(self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.term);
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { term: nonzero(r, "term")? })
    }
}

/// An operator accepted that keys from before this record may be unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowAccepted {
    /// Why.
    pub reason: String,
}

impl WindowAccepted {
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_name(out, "reason", &self.reason)?;
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { reason: text(r, "reason")? })
    }
}

/// The retention policy in force from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyRecord {
    /// How long a key is kept after its Done, in milliseconds.
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
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.window_lifetime_ms);
        put_u64(out, self.window_count_max);
        out.push(self.principal_share_max_percent);
        put_u64(out, self.task_retention_ms);
        put_u64(out, self.check_interval_ms);
        put_bool(out, self.evict_oldest);
        put_u64(out, self.retry_age_max_ms);
        put_u64(out, self.broadcasts_per_hour_max.unwrap_or_default());
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            window_lifetime_ms: r.u64()?,
            window_count_max: r.u64()?,
            principal_share_max_percent: r.u8()?,
            task_retention_ms: r.u64()?,
            check_interval_ms: r.u64()?,
            evict_oldest: r.bool("evict oldest")?,
            retry_age_max_ms: r.u64()?,
            broadcasts_per_hour_max: Some(r.u64()?).filter(|rate| *rate != 0),
        })
    }
}
