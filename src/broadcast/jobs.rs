//! What the driver of a job needs: its records, its locks, its pins, its ending.
//!
//! A job's records stand in control, in the order of every other decision. A job holds the locks of
//! its broadcast until it is over, also after a restart. An ending runs under that hold and takes
//! the job's own lock alone; the first one accepted for an attempt is its verdict.

mod driving;

use std::sync::Arc;
use std::time::Duration;

use oncelog_format::control::{
    Accepted, Attempt, Body, Collection, JobLink, JobPlan, JobState, PchannelEnd,
};
use oncelog_format::message::{
    BroadcastHeader, BroadcastId, Fingerprint, MESSAGE_VERSION, MessageType, Properties, Resource,
    SliceStamp, Vchannel, Version, WriterTerm,
};

use super::copies;
use super::core::{Core, Deadline, Inner};
use super::deciding::DECISION_LEN;
use super::ends;
use super::kind::Role;
use super::locks::{Claim, Holder};
use super::owed::check_ending;
use super::refusal;
use super::state::Job;
use crate::channel::{ChannelLog, Outgoing, Position};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Pending;

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

/// Asks for locks. What it got and did not hand on it gives up when it goes, on every way out; the
/// caller does not hold the core then.
#[derive(Debug)]
struct Asks<'a> {
    inner: &'a Inner,
    holder: Holder,
}

impl<'a> Asks<'a> {
    fn new(inner: &'a Inner) -> Self {
        Self { inner, holder: Holder::Admission(inner.lock().ticket()) }
    }
}

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        self.inner.release(&mut self.inner.lock(), self.holder);
    }
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
        let core = self.inner.lock();
        job < core.state.next_id() && job.0 > 0 && core.state.job(job).is_none()
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

    /// Records what became known of a collection, such as its schema.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an unknown identity, `StoreFull`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`; unknown after `Poisoned`.
    pub fn update_collection(&self, collection: Collection) -> Result<()> {
        self.inner.update_collection(collection)
    }

    /// Reads where the pchannels of a job's vchannels end, and pins them from there until the job
    /// is over.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an unknown job, `Closed`.
    pub fn pin_ends(&self, job: BroadcastId) -> Result<Vec<PchannelEnd>> {
        let mut core = self.inner.lock();
        core.usable()?;
        let state = running(&core, job)?;
        let mut ends: Vec<PchannelEnd> = Vec::new();
        let mut pinned = Vec::new();
        for vchannel in &state.accepted.header.vchannels {
            let channel = self.inner.channel_of(&core.state, vchannel)?;
            let pchannel = core.state.pchannel_of(vchannel).unwrap_or_default();
            if ends.iter().any(|end| end.pchannel == pchannel) {
                continue;
            }
            let pin = channel.pin(&format!("job {job}"), None)?;
            ends.push(PchannelEnd { pchannel: pchannel.to_owned(), next_lsn: pin.lsn().get() });
            pinned.push((pchannel.to_owned(), pin));
        }
        let pins = core.plan_pins.entry(job).or_default();
        // What an earlier call pinned is older.
        pinned.retain(|(pchannel, _)| !pins.iter().any(|(name, _)| name == pchannel));
        pins.append(&mut pinned);
        Ok(ends)
    }

    /// Records the plan of the current attempt.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the job is over, ending, planned, or at another attempt; `StoreFull`,
    /// `Limit`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`; unknown after `Poisoned`.
    pub fn plan(&self, plan: JobPlan) -> Result<()> {
        let plan = Arc::new(plan);
        let (pending, _) = self.inner.with_room(|| {
            let mut core = self.inner.lock_to_take_in(plan_len(&plan) + DECISION_LEN);
            core.usable()?;
            let job = attempt_of(&core, plan.job, plan.attempt)?;
            if job.plan.is_some() {
                return Err(refusal::invalid(format!("job {} is planned", plan.job)));
            }
            self.inner.hand_over(&mut core, vec![Body::JobPlan(Arc::clone(&plan))])
        })?;
        self.inner.settle(pending)
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

    /// Ends an attempt: broadcasts `message_type` (`CommitImport` or `AbortImport`) with `payload`
    /// to every vchannel of the job, and waits until it is done. Where an ending was accepted
    /// before, nothing is broadcast and that one is waited for.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for another attempt or an unregistered type; `Limit` for a name of more than
    /// 64 bytes or a payload of more than 256, for which no room is kept; `Parked`, `StoreFull`,
    /// `Io`, `OutcomeUnknown`, `InFlight`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// The verdict is durable in control from its acceptance on, in every vchannel when this
    /// returns `Ok`.
    pub fn end(
        &self,
        job: BroadcastId,
        attempt: u32,
        (message_type, commit): (&str, bool),
        payload: Vec<u8>,
    ) -> Result<Ended> {
        let kind = self.inner.types.get(message_type);
        if kind.is_none_or(|kind| kind.role() != Role::EndsJob) {
            return Err(refusal::invalid(format!("{message_type} is not registered to end jobs")));
        }
        check_ending(message_type, &payload)?;
        if let Some(ended) = self.ended_before(job, attempt)? {
            return Ok(ended);
        }
        self.inner.takes_work()?;
        let asks = Asks::new(&self.inner);
        let own = Resource { domain: JOB_DOMAIN.to_owned(), key: job.to_string(), shared: false };
        let claim = Claim {
            resources: vec![own.clone()],
            message_type: message_type.to_owned(),
            since_ms: self.inner.time().wall_ms(),
        };
        if let Err(e) = self.inner.ask(asks.holder, claim, Deadline::never()) {
            // Nobody but an ending holds that lock: one that was accepted meanwhile, and goes no
            // further, is told of as such.
            let ended = if e.kind() == ErrorKind::LockTimeout {
                self.ended_before(job, attempt)?
            } else {
                None
            };
            return ended.ok_or(e);
        }
        let ending = |header: BroadcastHeader, trace: Option<String>| Accepted {
            header: BroadcastHeader { resources: vec![own.clone()], ..header },
            message_type: message_type.to_owned(),
            scope: None,
            fingerprint: Fingerprint { version: 1, fields: Vec::new() },
            ends: Vec::new(),
            lifetime_ms: 0,
            firm: true,
            job: JobLink::Ends { job, attempt, commit },
            properties: Vec::new(),
            trace,
            payload: payload.clone(),
        };
        let begun = self.inner.with_room(|| {
            let mut core = self.inner.lock_to_decide(DECISION_LEN);
            self.begin_ending(&mut core, asks.holder, (job, attempt), &ending)
        });
        drop(asks);
        let core = self.inner.lock();
        let (id, committed, mine) = match begun {
            Ok(Some(id)) => (id, commit, true),
            Ok(None) => {
                let state = core.state.job(job).filter(|job| job.attempt == attempt);
                let end = state.and_then(|state| state.end);
                let (committed, id) = end.ok_or_else(|| unknown_job(job))?;
                (id, committed, false)
            }
            Err(e) => return Err(refusal::for_now(e)),
        };
        if let Some(cell) = core.runs.get(&id).map(|run| Arc::clone(&run.cell)) {
            self.inner.wait_for_end(core, id, &cell, !mine, Deadline::never())?;
        }
        Ok(Ended { id, committed, mine })
    }

    /// Waits for an ending that was accepted before, without the job's lock, which it holds.
    fn ended_before(&self, job: BroadcastId, attempt: u32) -> Result<Option<Ended>> {
        let core = self.inner.lock();
        core.usable()?;
        let state = core.state.job(job).filter(|job| job.attempt == attempt);
        let Some((committed, id)) = state.and_then(|state| state.end) else { return Ok(None) };
        if let Some(cell) = core.runs.get(&id).map(|run| Arc::clone(&run.cell)) {
            self.inner.wait_for_end(core, id, &cell, true, Deadline::never())?;
        }
        Ok(Some(Ended { id, committed, mine: false }))
    }

    /// Accepts an ending under the job's lock; `None` when there is one already.
    fn begin_ending(
        &self,
        core: &mut Core,
        holder: Holder,
        (job, attempt): (BroadcastId, u32),
        ending: &dyn Fn(BroadcastHeader, Option<String>) -> Accepted,
    ) -> Result<Option<BroadcastId>> {
        core.usable()?;
        let state = core.state.job(job).ok_or_else(|| unknown_job(job))?;
        if state.attempt != attempt {
            return Err(other_attempt(job, state.attempt, attempt));
        }
        if state.end.is_some() {
            return Ok(None);
        }
        let id = core.state.next_id();
        let header = BroadcastHeader { id, ..state.accepted.header.clone() };
        // It belongs to the span of who asked for the job.
        let mut accepted = ending(header, state.accepted.trace.clone());
        let copies = copies::check(&self.inner, core, &accepted)?;
        let holds;
        (holds, accepted.ends) = self.inner.hold_ends(core, &accepted, &copies)?;
        self.inner.begin(core, vec![Body::Accepted(Arc::new(accepted))], id, holds)?;
        core.locks.transfer(holder, Holder::Task(id));
        Ok(Some(id))
    }

    /// Begins the next attempt of a job that was aborted, and takes its locks again; returns the
    /// attempt.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the job is unknown, is not aborted, or its key expired; `LockTimeout`,
    /// `WindowFull` when all slots are used, `StoreFull`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`; unknown after `Poisoned`.
    pub fn reattempt(&self, job: BroadcastId, timeout: Option<Duration>) -> Result<u32> {
        let deadline = self.inner.deadline(timeout);
        let accepted = {
            let core = self.inner.lock();
            core.usable()?;
            self.check_reattempt(&core, job)?
        };
        let asks = Asks::new(&self.inner);
        let claim = {
            let core = self.inner.lock();
            core.claim(&accepted, self.inner.time().wall_ms())
        };
        self.inner.ask(asks.holder, claim, deadline)?;
        let begun = self.inner.with_room(|| {
            let mut core = self.inner.lock_to_take_in(DECISION_LEN);
            let begun = self.begin_attempt(&mut core, job);
            if begun.is_ok() {
                core.locks.transfer(asks.holder, Holder::Job(job));
                core.owe_ending(&self.inner.store, job);
            }
            self.inner.tell_owed(&core);
            begun
        });
        drop(asks);
        let (pending, attempt) = begun.map_err(refusal::for_now)?;
        self.inner.settle(pending)?;
        self.inner.tell_driver(job);
        Ok(attempt)
    }

    /// Hands the next attempt of a job over; returns which one it is.
    fn begin_attempt(&self, core: &mut Core, job: BroadcastId) -> Result<(Pending, u32)> {
        let starts = self.check_reattempt(core, job)?;
        self.inner.promise_ending(core, &starts)?;
        let attempt = core.state.job(job).map_or(2, |job| job.attempt.saturating_add(1));
        let body = Body::Attempt(Attempt { job, attempt });
        Ok((self.inner.hand_over(core, vec![body])?.0, attempt))
    }

    fn check_reattempt(&self, core: &Core, job: BroadcastId) -> Result<Arc<Accepted>> {
        core.usable()?;
        self.inner.takes_work()?;
        let state = core.state.job(job).ok_or_else(|| unknown_job(job))?;
        let over = state.end.filter(|(_, by)| !core.runs.contains_key(by));
        if !matches!((state.over, over), (Some((false, _)), Some(_))) {
            return Err(refusal::invalid(format!("job {job} is not aborted")));
        }
        let now_ms = self.inner.time().wall_ms().max(core.state.newest_ms());
        if !core.state.holds_task(job) || core.state.is_over(job, now_ms) {
            return Err(refusal::invalid(format!("the key of job {job} expired")));
        }
        let (count, bound) =
            (core.state.live_job_count() + core.reserved_jobs, self.inner.options.job_slots_max);
        if count >= bound {
            return Err(refusal::slots_full(count, bound));
        }
        Ok(Arc::clone(&state.accepted))
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
        channel.enqueue(&outgoing)?.wait()
    }

    /// Returns log time in milliseconds since 1970 UTC.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.inner.time().wall_ms()
    }
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
