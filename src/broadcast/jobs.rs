//! What the driver of a job needs: its records, its locks, its pins, its ending.
//!
//! A job's records stand in control, in the order of every other decision. A job holds the locks of
//! its broadcast until it is over, also after a restart. An ending runs under that hold and takes
//! the job's own lock alone; the first one accepted for an attempt is its verdict.

mod driving;
mod ending;

use std::sync::Arc;

use oncelog_format::control::{Body, Collection, JobPlan, JobState, PchannelEnd};
use oncelog_format::message::{
    BroadcastId, MESSAGE_VERSION, MessageType, Properties, SliceStamp, Vchannel, Version,
    WriterTerm,
};

use super::core::{Core, Inner};
use super::deciding::DECISION_LEN;
use super::ends;
use super::refusal;
use super::state::{Job, job_name};
use crate::channel::{ChannelLog, ChannelPin, Outgoing, Position};
use crate::clock::Clock;
use crate::error::{Error, Result};

/// Bytes of a file in a plan beside its path.
const PLAN_FILE_LEN: usize = 80;

/// Domain of the lock that each job has for itself.
pub(super) const JOB_DOMAIN: &str = "_job";

/// Access to the jobs of a broadcaster; cheap to clone.
///
/// Calls answer `Closed` once the broadcaster closes: a driver then ends its threads. What `Io` is,
/// [`Broadcaster`](super::Broadcaster) says.
#[derive(Clone, Debug)]
pub struct Jobs {
    inner: Arc<Inner>,
}

/// How an attempt of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The broadcast that ended it.
    pub id: BroadcastId,
    /// Its rows are visible; otherwise they never will be.
    pub committed: bool,
    /// The ending is the one that was asked for by this call; otherwise an earlier one won.
    pub mine: bool,
}

/// Rows of a slice for one vchannel.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the driver at every append")]
pub struct SliceMessage {
    /// The vchannel.
    pub vchannel: String,
    /// Which rows.
    pub stamp: SliceStamp,
    /// The rows, encoded.
    pub payload: Vec<u8>,
}

impl Jobs {
    pub(crate) fn of(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Returns a job; `None` when it never was, or is forgotten.
    #[must_use]
    pub fn get(&self, job: BroadcastId) -> Option<Arc<Job>> {
        self.inner.lock().state.job(job).cloned()
    }

    /// Says whether a job of this identity may have been and is forgotten.
    #[must_use]
    pub fn is_forgotten(&self, job: BroadcastId) -> bool {
        self.inner.lock().state.may_have_had_job(job)
    }

    /// Returns all jobs that are known, by identity.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Job>> {
        self.inner.lock().state.jobs().map(|(_, job)| Arc::clone(job)).collect()
    }

    /// Returns the jobs that are not over.
    #[must_use]
    pub fn running(&self) -> Vec<BroadcastId> {
        let core = self.inner.lock();
        core.state.running_jobs().map(|(id, _)| id).collect()
    }

    /// Returns a collection.
    #[must_use]
    pub fn collection(&self, id: u64) -> Option<Arc<Collection>> {
        self.inner.lock().state.collection(id).cloned()
    }

    /// Records what became known of a collection, such as its schema, in place of `was`, which it
    /// was made of. Returns whether it did: where the collection is another one by now, nothing is
    /// recorded, and whoever asked looks at it again.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an unknown identity, and for another one than that of `was`;
    /// `StoreFull`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok(true)`; unknown after `Poisoned`.
    pub fn update_collection(&self, was: &Collection, next: Collection) -> Result<bool> {
        self.inner.update_collection(was, next)
    }

    /// Records the plan of the current attempt, and where the pchannels of the job's vchannels end:
    /// they are pinned from there until the job is over. Returns those ends, which stand in the
    /// record whatever `plan` says of them.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the job is over, ending, planned, or at another attempt; `StoreFull`,
    /// `Limit`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`; unknown after `Poisoned`.
    pub fn plan(&self, plan: JobPlan) -> Result<Vec<PchannelEnd>> {
        let (pending, ends) = self.inner.with_room(|| {
            let mut core = self.inner.lock_to_take_in(plan_len(&plan) + DECISION_LEN);
            core.usable()?;
            let job = attempt_of(&core, plan.job, plan.attempt)?;
            if job.plan.is_some() {
                return Err(refusal::invalid(format!("job {} is planned", plan.job)));
            }
            // Under the lock: there is a pin exactly where there is a plan, and a refusal lets go.
            let pins = self.inner.pin_ends(&core, job)?;
            let from: Vec<PchannelEnd> = pins.iter().map(end_of).collect();
            let record = Arc::new(JobPlan { from: from.clone(), ..plan.clone() });
            let (pending, _) = self.inner.hand_over(&mut core, vec![Body::JobPlan(record)])?;
            core.plan_pins.insert(plan.job, pins);
            Ok((pending, from))
        })?;
        self.inner.settle(pending)?;
        Ok(ends)
    }

    /// Records how far the current attempt is; a reason that no record takes is cut.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the job is over or at another attempt; `StoreFull`, `Io`, `Poisoned`,
    /// `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`; unknown after `Poisoned`.
    pub fn record(&self, mut state: JobState) -> Result<()> {
        state.reason.truncate(ends::fitting(&state.reason).len());
        let len = state.reason.len() + state.detail.len();
        let (pending, _) = self.inner.with_room(|| {
            let mut core = self.inner.lock_to_take_in(len + DECISION_LEN);
            core.usable()?;
            let job = running(&core, state.job)?;
            if job.attempt != state.attempt {
                return Err(other_attempt(state.job, job.attempt, state.attempt));
            }
            self.inner.hand_over(&mut core, vec![Body::JobState(state.clone())])
        })?;
        self.inner.settle(pending)
    }

    /// Returns the pchannel that carries a vchannel.
    #[must_use]
    pub fn pchannel_of(&self, vchannel: &str) -> Option<String> {
        self.inner.lock().state.pchannel_of(vchannel).map(str::to_owned)
    }

    /// Returns the channel of a pchannel.
    #[must_use]
    pub fn channel(&self, pchannel: &str) -> Option<Arc<dyn ChannelLog>> {
        self.inner.store.channel(pchannel).cloned()
    }

    /// Appends a slice, one batch on a pchannel.
    ///
    /// # Errors
    ///
    /// `StoreFull`, `Limit`: nothing was written. Any other: unknown until the channel was opened
    /// again ([`ChannelLog::reopen`]) and read.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn append(
        &self,
        pchannel: &str,
        message_type: &str,
        messages: &[SliceMessage],
    ) -> Result<Vec<Position>> {
        let term = {
            let core = self.inner.lock();
            core.usable()?;
            core.state.term()
        };
        let unknown = || refusal::invalid(format!("unknown pchannel {pchannel}"));
        let channel = self.inner.store.channel(pchannel).ok_or_else(unknown)?;
        let stamped = |message: &SliceMessage| {
            let mut properties = Properties::new();
            properties.set(&Version(MESSAGE_VERSION))?;
            properties.set(&MessageType(message_type.to_owned()))?;
            properties.set(&WriterTerm(term))?;
            properties.set(&Vchannel(message.vchannel.clone()))?;
            properties.set(&message.stamp)?;
            Ok(properties)
        };
        let mut outgoing = Vec::with_capacity(messages.len());
        for message in messages {
            let properties = stamped(message).map_err(|e: oncelog_format::EncodeError| {
                refusal::invalid("a slice does not encode").with_source(e)
            })?;
            outgoing.push(Outgoing { properties, payload: &message.payload });
        }
        let refused = |e: &Error| self.inner.note_refusal(&mut self.inner.lock(), e);
        channel.enqueue(&outgoing).inspect_err(refused)?.wait()
    }

    /// Returns log time in milliseconds since 1970 UTC.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.inner.time().wall_ms()
    }
}

impl Inner {
    /// Pins the pchannels of a job's vchannels where they end.
    fn pin_ends(&self, core: &Core, job: &Job) -> Result<Vec<(String, ChannelPin)>> {
        let mut pins: Vec<(String, ChannelPin)> = Vec::new();
        for vchannel in &job.accepted.header.vchannels {
            let channel = self.channel_of(&core.state, vchannel)?;
            let pchannel = core.state.pchannel_of(vchannel).unwrap_or_default();
            if pins.iter().all(|(name, _)| name != pchannel) {
                pins.push((pchannel.to_owned(), channel.pin(&job_name(job.id()), None)?));
            }
        }
        Ok(pins)
    }
}

fn end_of((pchannel, pin): &(String, ChannelPin)) -> PchannelEnd {
    PchannelEnd { pchannel: pchannel.clone(), next_lsn: pin.lsn().get() }
}

/// Bytes that a plan takes beside names of usual lengths, about.
fn plan_len(plan: &JobPlan) -> usize {
    let files = plan.files.iter().map(|file| file.path.len() + PLAN_FILE_LEN);
    let names = plan.vchannels.iter().map(|name| name.len() + 16);
    files.chain(names).sum::<usize>() + plan.detail.len()
}

fn unknown_job(job: BroadcastId) -> Error {
    refusal::invalid(format!("unknown job {job}"))
}

fn other_attempt(job: BroadcastId, is: u32, found: u32) -> Error {
    refusal::invalid(format!("job {job} is at another attempt: expected {is}, found {found}"))
}

fn running(core: &Core, job: BroadcastId) -> Result<&Arc<Job>> {
    let state = core.state.job(job).ok_or_else(|| unknown_job(job))?;
    if state.over.is_some() {
        return Err(refusal::invalid(format!("job {job} is over")));
    }
    Ok(state)
}

fn attempt_of(core: &Core, job: BroadcastId, attempt: u32) -> Result<&Arc<Job>> {
    let state = running(core, job)?;
    if state.attempt != attempt {
        return Err(other_attempt(job, state.attempt, attempt));
    }
    if state.end.is_some() {
        return Err(refusal::invalid(format!("job {job} is ending")));
    }
    Ok(state)
}

#[cfg(test)]
mod tests;
