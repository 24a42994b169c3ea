//! Checkpoints: the records that carry one, and the entries of the state within (SPEC 13.4).
//!
//! The state is one stream of entries, each after its length, cut into parts wherever a part is
//! full. [`Entries`] puts it together again, a part at a time.

use std::sync::Arc;

use super::body::{AckPosition, Channel, Collection, Outcome, PolicyRecord};
use super::fields::{Put, blob, nonzero, put_blob, put_list, put_name, text};
use super::{Accepted, JobPlan, JobState};
use crate::error::{DecodeError, DecodeErrorKind, EncodeError};
use crate::limits::{
    CHECKPOINT_PART_LEN_MAX, FILTER_KEY_COUNT_MAX, RECORD_LEN_MAX, VCHANNEL_COUNT_MAX,
};
use crate::message::{BroadcastId, TimeTick};
use crate::wire::{
    Reader, put_bool, put_bytes, put_option, put_u16, put_u32, put_u64, u64_of, usize_of,
};

/// Version of the entries that this crate writes and reads.
pub const STATE_VERSION: u16 = 2;

/// Longest entry in bytes: a job with its acceptance, plan and state.
const ENTRY_LEN_MAX: u32 = 3 * RECORD_LEN_MAX;

/// A checkpoint begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointBegin {
    /// The last LSN of control that the state covers: it names the run.
    pub covers: u64,
    /// Version of the entries.
    pub state_version: u16,
}

impl CheckpointBegin {
    pub(super) fn encode(self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.covers);
        put_u16(out, self.state_version);
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { covers: nonzero(r, "covers")?, state_version: r.u16()? })
    }
}

/// Bytes of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPart {
    /// Which run.
    pub covers: u64,
    /// Which part, from 0.
    pub index: u32,
    /// The bytes that follow those of the part before.
    pub bytes: Vec<u8>,
}

impl CheckpointPart {
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.covers);
        put_u32(out, self.index);
        put_bytes(out, "part", &self.bytes, CHECKPOINT_PART_LEN_MAX)
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            covers: nonzero(r, "covers")?,
            index: r.u32()?,
            bytes: r.bytes(CHECKPOINT_PART_LEN_MAX)?.to_vec(),
        })
    }
}

/// A checkpoint is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointEnd {
    /// Which run.
    pub covers: u64,
    /// LSN of its begin.
    pub begin_lsn: u64,
    /// How many parts there are.
    pub part_count: u32,
    /// Length of the stream in bytes.
    pub stream_bytes: u64,
    /// SHA-256 of the stream.
    pub sha256: [u8; 32],
}

impl CheckpointEnd {
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> Put {
        put_u64(out, self.covers);
        put_u64(out, self.begin_lsn);
        put_u32(out, self.part_count);
        put_u64(out, self.stream_bytes);
        out.extend_from_slice(&self.sha256);
        Ok(())
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let covers = nonzero(r, "covers")?;
        let at = r.at();
        let begin_lsn = r.u64()?;
        // A run that covered its own begin would stand for what it does not hold.
        if begin_lsn <= covers {
            return Err(DecodeError::field(at, "begin lsn", begin_lsn));
        }
        Ok(Self {
            covers,
            begin_lsn,
            part_count: r.u32()?,
            stream_bytes: r.u64()?,
            sha256: r.array()?,
        })
    }
}

/// What is neither a task nor a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The greatest identity of a broadcast.
    pub last_id: u64,
    /// The greatest `at` of a record, in milliseconds.
    pub newest_ms: u64,
    /// The writer's term, 0 before any.
    pub term: u64,
    /// Records, and acknowledgements in them, that changed nothing.
    pub ignored: u64,
    /// Keys that were dropped because their window was over.
    pub expired: u64,
    /// Keys that were dropped to make room.
    pub evicted: u64,
    /// The latest instant until which an evicted key would have lived, in milliseconds.
    pub evicted_until_ms: u64,
    /// The latest instant of Done of an evicted key, in milliseconds.
    pub evicted_done_ms: u64,
    /// Dropped keys of which not even the filters know any more.
    pub forgotten: u64,
    /// The policy that was recorded last.
    pub policy: Option<PolicyRecord>,
}

/// A task, live or a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEntry {
    /// Its acceptance; without properties and payload once it is done.
    pub accepted: Arc<Accepted>,
    /// When it was accepted, in milliseconds of log time.
    pub accepted_at_ms: u64,
    /// When a record last moved it, in milliseconds of log time.
    pub moved_at_ms: u64,
    /// Its scope is its own: no newer acceptance has taken it.
    pub owns: bool,
    /// The copies that are acknowledged, by vchannel.
    pub acks: Vec<AckPosition>,
    /// Why it is parked, and since when, in milliseconds of log time.
    pub parked: Option<(String, u64)>,
    /// How it ended, and when, in milliseconds of log time.
    pub done: Option<(Outcome, u64)>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEntry {
    /// The acceptance of the broadcast that made it.
    pub accepted: Arc<Accepted>,
    /// When it was made, in milliseconds of log time.
    pub made_at_ms: u64,
    /// The current attempt, from 1.
    pub attempt: u32,
    /// Its plan.
    pub plan: Option<Arc<JobPlan>>,
    /// What its driver said last.
    pub state: Option<JobState>,
    /// Its verdict: commit or abort, and the ending that gave it.
    pub end: Option<(bool, BroadcastId)>,
    /// It is over: committed or aborted, and when, in milliseconds of log time.
    pub over: Option<(bool, u64)>,
}

/// A Bloom filter of dropped keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterEntry {
    /// Keys that it is made for: a power of two.
    pub capacity: u32,
    /// Keys in it.
    pub count: u32,
    /// Its bits, four bytes a key of its capacity.
    pub bits: Vec<u8>,
}

/// One entry of the stream. The order of the kinds is that of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// The first one, once.
    Facts(Facts),
    /// By identity.
    Collection(Arc<Collection>),
    /// By vchannel.
    Channel(Channel),
    /// By identity.
    Task(TaskEntry),
    /// By identity.
    Job(JobEntry),
    /// Oldest first.
    Filter(FilterEntry),
}

impl Entry {
    /// Appends the entry after its length.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] above a limit of SPEC 9.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut entry = Vec::new();
        match self {
            Self::Facts(x) => put_facts(&mut entry, x)?,
            Self::Collection(x) => {
                entry.push(2);
                x.encode(&mut entry)?;
            }
            Self::Channel(x) => {
                entry.push(3);
                x.encode(&mut entry)?;
            }
            Self::Task(x) => put_task(&mut entry, x)?,
            Self::Job(x) => put_job(&mut entry, x)?,
            Self::Filter(x) => put_filter(&mut entry, x)?,
        }
        put_bytes(out, "entry", &entry, ENTRY_LEN_MAX)
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let at = r.at();
        let entry = match r.u8()? {
            1 => Self::Facts(facts(&mut r)?),
            2 => Self::Collection(Arc::new(Collection::decode(&mut r)?)),
            3 => Self::Channel(Channel::decode(&mut r)?),
            4 => Self::Task(task(&mut r)?),
            5 => Self::Job(job(&mut r)?),
            6 => Self::Filter(filter(&mut r)?),
            other => return Err(DecodeError::field(at, "entry", u64::from(other))),
        };
        r.finish()?;
        Ok(entry)
    }
}

fn put_facts(out: &mut Vec<u8>, x: &Facts) -> Put {
    out.push(1);
    for value in [
        x.last_id,
        x.newest_ms,
        x.term,
        x.ignored,
        x.expired,
        x.evicted,
        x.evicted_until_ms,
        x.evicted_done_ms,
        x.forgotten,
    ] {
        put_u64(out, value);
    }
    put_option(out, x.policy.as_ref(), |out, policy| policy.encode(out))
}

fn facts(r: &mut Reader<'_>) -> Result<Facts, DecodeError> {
    Ok(Facts {
        last_id: r.u64()?,
        newest_ms: r.u64()?,
        term: r.u64()?,
        ignored: r.u64()?,
        expired: r.u64()?,
        evicted: r.u64()?,
        evicted_until_ms: r.u64()?,
        evicted_done_ms: r.u64()?,
        forgotten: r.u64()?,
        policy: r.option("policy", PolicyRecord::decode)?,
    })
}

fn put_task(out: &mut Vec<u8>, x: &TaskEntry) -> Put {
    out.push(4);
    x.accepted.encode(out)?;
    put_u64(out, x.accepted_at_ms);
    put_u64(out, x.moved_at_ms);
    put_bool(out, x.owns);
    put_list(out, "acks", VCHANNEL_COUNT_MAX, &x.acks, |out, ack| {
        put_u32(out, ack.vchannel);
        put_u64(out, ack.lsn);
        put_u64(out, ack.time_tick.0);
        Ok(())
    })?;
    put_option(out, x.parked.as_ref(), |out, (reason, since_ms)| {
        put_u64(out, *since_ms);
        put_name(out, "reason", reason)
    })?;
    put_option(out, x.done.as_ref(), |out, (outcome, at_ms)| {
        put_u64(out, *at_ms);
        put_bool(out, *outcome == Outcome::Done);
        put_name(
            out,
            "reason",
            match outcome {
                Outcome::Done => "",
                Outcome::Failed(reason) => reason,
            },
        )
    })
}

fn task(r: &mut Reader<'_>) -> Result<TaskEntry, DecodeError> {
    Ok(TaskEntry {
        accepted: Arc::new(Accepted::decode(r)?),
        accepted_at_ms: r.u64()?,
        moved_at_ms: r.u64()?,
        owns: r.bool("owns")?,
        acks: r.list(VCHANNEL_COUNT_MAX, 20, |r| {
            Ok(AckPosition {
                vchannel: r.u32()?,
                lsn: nonzero(r, "lsn")?,
                time_tick: TimeTick(r.u64()?),
            })
        })?,
        parked: r.option("parked", |r| {
            let since_ms = r.u64()?;
            Ok((text(r, "reason")?, since_ms))
        })?,
        done: r.option("done", |r| {
            let at_ms = r.u64()?;
            let done = r.bool("outcome")?;
            let at = r.at();
            let reason = text(r, "reason")?;
            if done && !reason.is_empty() {
                return Err(DecodeError::field(at, "reason of a success", 1));
            }
            Ok((if done { Outcome::Done } else { Outcome::Failed(reason) }, at_ms))
        })?,
    })
}

fn put_job(out: &mut Vec<u8>, x: &JobEntry) -> Put {
    out.push(5);
    x.accepted.encode(out)?;
    put_u64(out, x.made_at_ms);
    put_u32(out, x.attempt);
    put_option(out, x.plan.as_ref(), |out, plan| plan.encode(out))?;
    put_option(out, x.state.as_ref(), |out, state| state.encode(out))?;
    put_option(out, x.end, |out, (commit, by)| {
        put_bool(out, commit);
        put_u64(out, by.0);
        Ok(())
    })?;
    put_option(out, x.over, |out, (commit, at_ms)| {
        put_bool(out, commit);
        put_u64(out, at_ms);
        Ok(())
    })
}

fn job(r: &mut Reader<'_>) -> Result<JobEntry, DecodeError> {
    Ok(JobEntry {
        accepted: Arc::new(Accepted::decode(r)?),
        made_at_ms: r.u64()?,
        attempt: r.u32()?,
        plan: r.option("plan", JobPlan::decode)?.map(Arc::new),
        state: r.option("state", JobState::decode)?,
        end: r.option("end", |r| Ok((r.bool("commit")?, BroadcastId(nonzero(r, "broadcast")?))))?,
        over: r.option("over", |r| Ok((r.bool("commit")?, r.u64()?)))?,
    })
}

fn put_filter(out: &mut Vec<u8>, x: &FilterEntry) -> Put {
    out.push(6);
    put_u32(out, x.capacity);
    put_u32(out, x.count);
    put_blob(out, "bits", &x.bits)
}

fn filter(r: &mut Reader<'_>) -> Result<FilterEntry, DecodeError> {
    let at = r.at();
    let capacity = r.u32()?;
    if !capacity.is_power_of_two() || capacity > FILTER_KEY_COUNT_MAX {
        return Err(DecodeError::field(at, "capacity", u64::from(capacity)));
    }
    let count = count_within(r, capacity)?;
    let at = r.at();
    let bits = blob(r)?;
    if bits.len() != usize_of(capacity).saturating_mul(4) {
        return Err(DecodeError::field(at, "bits", u64_of(bits.len())));
    }
    Ok(FilterEntry { capacity, count, bits })
}

fn count_within(r: &mut Reader<'_>, capacity: u32) -> Result<u32, DecodeError> {
    let at = r.at();
    match r.u32()? {
        count if count <= capacity => Ok(count),
        count => Err(DecodeError::field(at, "count", u64::from(count))),
    }
}

/// Puts entries together from parts, in order.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    /// Bytes of an entry that was not whole at the end of the last part.
    begun: Vec<u8>,
}

impl Entries {
    /// Hands out the entries that end in the next part.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] where an entry is none, at an offset within it; those before it were handed
    /// out.
    pub fn push(&mut self, bytes: &[u8], mut entry: impl FnMut(Entry)) -> Result<(), DecodeError> {
        self.begun.extend_from_slice(bytes);
        let mut rest = self.begun.as_slice();
        while let Some((len, behind)) = rest.split_first_chunk::<4>() {
            let len = u32::from_le_bytes(*len);
            if len > ENTRY_LEN_MAX {
                let kind =
                    DecodeErrorKind::Limit { len: u64::from(len), max: u64::from(ENTRY_LEN_MAX) };
                return Err(DecodeError::new(0, kind));
            }
            let Some(bytes) = behind.get(..usize_of(len)) else { break };
            entry(Entry::decode(bytes)?);
            rest = behind.get(usize_of(len)..).unwrap_or_default();
        }
        let done = self.begun.len().saturating_sub(rest.len());
        self.begun.drain(..done);
        Ok(())
    }

    /// Ends the stream.
    ///
    /// # Errors
    ///
    /// `Truncated` within an entry.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.begun.len() {
            0 => Ok(()),
            have => {
                let kind = DecodeErrorKind::Truncated { need: have.saturating_add(1), have };
                Err(DecodeError::new(0, kind))
            }
        }
    }
}
