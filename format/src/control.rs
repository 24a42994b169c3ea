//! SPEC 13.2: one struct per control record of the broadcaster.
//!
//! Decoding never panics, reads no length before it is checked against the bytes that are left, and
//! allocates no more than a constant factor of its input. It says what a record is, not whether it
//! makes sense after the records before it: that is the state's.

mod accepted;
mod body;
mod checkpoint;
mod fields;
mod job;

use std::sync::Arc;

pub use accepted::{Accepted, JobLink, PchannelEnd};
pub use body::{
    Ack, AckPosition, Channel, ClockRebase, Collection, Done, DropCause, Dropped, Outcome, Park,
    PolicyRecord, Resume, Skip, Term, WindowAccepted,
};
pub use checkpoint::{
    CheckpointBegin, CheckpointEnd, CheckpointPart, Entries, Entry, Facts, FilterEntry, JobEntry,
    STATE_VERSION, TaskEntry,
};
pub use job::{Attempt, JobPhase, JobPlan, JobState, PlanFile};

use crate::error::{DecodeError, DecodeErrorKind, EncodeError};
use crate::limits::TIME_MS_MAX;
use crate::wire::{Reader, put_u64};

/// Version of every record type's fields that this crate writes.
pub const RECORD_VERSION: u8 = 1;

/// One control record: when it was decided, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlRecord {
    /// Log time of the decision, in milliseconds since 1970-01-01 UTC.
    pub at_ms: u64,
    /// What was decided.
    pub body: Body,
}

/// What a control record says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// A collection exists, or its schema became known.
    Collection(Arc<Collection>),
    /// A vchannel lives on a pchannel.
    Channel(Channel),
    /// A broadcast was accepted: from here it completes.
    Accepted(Arc<Accepted>),
    /// Copies stand and are acknowledged.
    Ack(Ack),
    /// A broadcast ended: the tombstone.
    Done(Done),
    /// A key, or the record of a job, is forgotten.
    Dropped(Dropped),
    /// A task stopped until an operator acts.
    Park(Park),
    /// A parked task goes on.
    Resume(Resume),
    /// An operator gave up a parked task.
    Skip(Skip),
    /// A job is tried again.
    Attempt(Attempt),
    /// What an attempt will do.
    JobPlan(Arc<JobPlan>),
    /// How far an attempt is.
    JobState(JobState),
    /// A checkpoint begins.
    CheckpointBegin(CheckpointBegin),
    /// A part of one.
    CheckpointPart(CheckpointPart),
    /// A checkpoint is whole.
    CheckpointEnd(CheckpointEnd),
    /// An operator believed the wall clock.
    ClockRebase(ClockRebase),
    /// A writer took over.
    Term(Term),
    /// An operator accepted an incomplete window.
    WindowAccepted(WindowAccepted),
    /// The retention policy in force.
    Policy(PolicyRecord),
    /// A record of a type or a later version that may be skipped.
    Skipped {
        /// Its type.
        record_type: u8,
    },
}

/// Type numbers of control records.
mod number {
    pub(super) const COLLECTION: u8 = 0x01;
    pub(super) const CHANNEL: u8 = 0x02;
    pub(super) const ACCEPTED: u8 = 0x03;
    pub(super) const ACK: u8 = 0x04;
    pub(super) const DONE: u8 = 0x05;
    pub(super) const DROPPED: u8 = 0x06;
    pub(super) const PARK: u8 = 0x07;
    pub(super) const RESUME: u8 = 0x08;
    pub(super) const SKIP: u8 = 0x09;
    pub(super) const ATTEMPT: u8 = 0x0A;
    pub(super) const JOB_PLAN: u8 = 0x0B;
    pub(super) const JOB_STATE: u8 = 0x0C;
    pub(super) const CHECKPOINT_BEGIN: u8 = 0x0D;
    pub(super) const CHECKPOINT_PART: u8 = 0x0E;
    pub(super) const CHECKPOINT_END: u8 = 0x0F;
    pub(super) const CLOCK_REBASE: u8 = 0x10;
    pub(super) const TERM: u8 = 0x11;
    pub(super) const WINDOW_ACCEPTED: u8 = 0x12;
    pub(super) const POLICY: u8 = 0x13;
    /// Types from here on may be skipped by a reader that does not know them.
    pub(super) const SKIPPABLE: u8 = 0x80;
}

impl Body {
    /// Returns the type number, as SPEC 13.2 lists it.
    #[must_use]
    pub fn record_type(&self) -> u8 {
        match self {
            Self::Collection(_) => number::COLLECTION,
            Self::Channel(_) => number::CHANNEL,
            Self::Accepted(_) => number::ACCEPTED,
            Self::Ack(_) => number::ACK,
            Self::Done(_) => number::DONE,
            Self::Dropped(_) => number::DROPPED,
            Self::Park(_) => number::PARK,
            Self::Resume(_) => number::RESUME,
            Self::Skip(_) => number::SKIP,
            Self::Attempt(_) => number::ATTEMPT,
            Self::JobPlan(_) => number::JOB_PLAN,
            Self::JobState(_) => number::JOB_STATE,
            Self::CheckpointBegin(_) => number::CHECKPOINT_BEGIN,
            Self::CheckpointPart(_) => number::CHECKPOINT_PART,
            Self::CheckpointEnd(_) => number::CHECKPOINT_END,
            Self::ClockRebase(_) => number::CLOCK_REBASE,
            Self::Term(_) => number::TERM,
            Self::WindowAccepted(_) => number::WINDOW_ACCEPTED,
            Self::Policy(_) => number::POLICY,
            Self::Skipped { record_type } => *record_type,
        }
    }

    /// Returns the name of the record type.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Collection(_) => "Collection",
            Self::Channel(_) => "Channel",
            Self::Accepted(_) => "Accepted",
            Self::Ack(_) => "Ack",
            Self::Done(_) => "Done",
            Self::Dropped(_) => "Dropped",
            Self::Park(_) => "Park",
            Self::Resume(_) => "Resume",
            Self::Skip(_) => "Skip",
            Self::Attempt(_) => "Attempt",
            Self::JobPlan(_) => "JobPlan",
            Self::JobState(_) => "JobState",
            Self::CheckpointBegin(_) => "CheckpointBegin",
            Self::CheckpointPart(_) => "CheckpointPart",
            Self::CheckpointEnd(_) => "CheckpointEnd",
            Self::ClockRebase(_) => "ClockRebase",
            Self::Term(_) => "Term",
            Self::WindowAccepted(_) => "WindowAccepted",
            Self::Policy(_) => "Policy",
            Self::Skipped { .. } => "Skipped",
        }
    }

    /// Says whether the record is of a checkpoint.
    #[must_use]
    pub fn is_checkpoint(&self) -> bool {
        matches!(self, Self::CheckpointBegin(_) | Self::CheckpointPart(_) | Self::CheckpointEnd(_))
    }

    /// Says whether the record frees space or finishes work, so that it may use a log's reserve
    /// when the disk is full.
    #[must_use]
    pub fn is_finishing(&self) -> bool {
        matches!(
            self,
            Self::Ack(_) | Self::Done(_) | Self::Dropped(_) | Self::Park(_) | Self::Skip(_)
        ) || self.is_checkpoint()
    }
}

impl ControlRecord {
    /// Encodes the record as the payload of a frame of kind control.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] for text or a list above its limit of SPEC 9.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut out = vec![self.body.record_type(), RECORD_VERSION];
        put_u64(&mut out, self.at_ms);
        match &self.body {
            Body::Collection(x) => x.encode(&mut out)?,
            Body::Channel(x) => x.encode(&mut out)?,
            Body::Accepted(x) => x.encode(&mut out)?,
            Body::Ack(x) => x.encode(&mut out)?,
            Body::Done(x) => x.encode(&mut out)?,
            Body::Dropped(x) => x.encode(&mut out)?,
            Body::Park(x) => x.encode(&mut out)?,
            Body::Resume(x) => x.encode(&mut out)?,
            Body::Skip(x) => x.encode(&mut out)?,
            Body::Attempt(x) => x.encode(&mut out)?,
            Body::JobPlan(x) => x.encode(&mut out)?,
            Body::JobState(x) => x.encode(&mut out)?,
            Body::CheckpointBegin(x) => x.encode(&mut out)?,
            Body::CheckpointPart(x) => x.encode(&mut out)?,
            Body::CheckpointEnd(x) => x.encode(&mut out)?,
            Body::ClockRebase(x) => x.encode(&mut out)?,
            Body::Term(x) => x.encode(&mut out)?,
            Body::WindowAccepted(x) => x.encode(&mut out)?,
            Body::Policy(x) => x.encode(&mut out)?,
            Body::Skipped { .. } => {}
        }
        Ok(out)
    }

    /// Decodes the payload of a frame of kind control.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a type that must be understood and is not known, `Truncated`, `Field`,
    /// `Text` or `Limit` where the bytes are not such a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let record_type = r.u8()?;
        let at_version = r.at();
        let version = r.u8()?;
        if version == 0 {
            return Err(DecodeError::field(at_version, "version", 0));
        }
        let at_time = r.at();
        let at_ms = r.u64()?;
        if at_ms > TIME_MS_MAX {
            return Err(DecodeError::field(at_time, "at", at_ms));
        }
        let body = Self::decode_body(record_type, &mut r)?;
        // SPEC 13.2: a later version may append fields; ours has none after the last.
        let skipped = matches!(body, Body::Skipped { .. });
        if version == RECORD_VERSION && !skipped {
            r.finish()?;
        }
        Ok(Self { at_ms, body })
    }

    fn decode_body(record_type: u8, r: &mut Reader<'_>) -> Result<Body, DecodeError> {
        Ok(match record_type {
            number::COLLECTION => Body::Collection(Arc::new(Collection::decode(r)?)),
            number::CHANNEL => Body::Channel(Channel::decode(r)?),
            number::ACCEPTED => Body::Accepted(Arc::new(Accepted::decode(r)?)),
            number::ACK => Body::Ack(Ack::decode(r)?),
            number::DONE => Body::Done(Done::decode(r)?),
            number::DROPPED => Body::Dropped(Dropped::decode(r)?),
            number::PARK => Body::Park(Park::decode(r)?),
            number::RESUME => Body::Resume(Resume::decode(r)?),
            number::SKIP => Body::Skip(Skip::decode(r)?),
            number::ATTEMPT => Body::Attempt(Attempt::decode(r)?),
            number::JOB_PLAN => Body::JobPlan(Arc::new(JobPlan::decode(r)?)),
            number::JOB_STATE => Body::JobState(JobState::decode(r)?),
            number::CHECKPOINT_BEGIN => Body::CheckpointBegin(CheckpointBegin::decode(r)?),
            number::CHECKPOINT_PART => Body::CheckpointPart(CheckpointPart::decode(r)?),
            number::CHECKPOINT_END => Body::CheckpointEnd(CheckpointEnd::decode(r)?),
            number::CLOCK_REBASE => Body::ClockRebase(ClockRebase::decode(r)?),
            number::TERM => Body::Term(Term::decode(r)?),
            number::WINDOW_ACCEPTED => Body::WindowAccepted(WindowAccepted::decode(r)?),
            number::POLICY => Body::Policy(PolicyRecord::decode(r)?),
            number::SKIPPABLE.. => Body::Skipped { record_type },
            _ => {
                return Err(DecodeError {
                    at: 0,
                    kind: DecodeErrorKind::Unsupported {
                        found: u32::from(record_type),
                        supported: u32::from(number::POLICY),
                    },
                });
            }
        })
    }
}

#[cfg(test)]
mod tests;
