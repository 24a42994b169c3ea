//! How the attempt of a job ends, and the next one begins: both under the locks that they ask for.

use std::sync::Arc;
use std::time::Duration;

use oncelog_format::control::{Accepted, Attempt, Body, JobLink};
use oncelog_format::message::{BroadcastHeader, BroadcastId, Fingerprint, Resource};

use super::super::core::{Core, Deadline, Inner};
use super::super::deciding::DECISION_LEN;
use super::super::kind::{JobEnding, Role};
use super::super::locks::{Claim, Holder};
use super::super::owed::check_ending;
use super::super::{copies, refusal};
use super::{Ended, JOB_DOMAIN, Jobs, other_attempt, unknown_job};
use crate::clock::Clock as _;
use crate::error::{ErrorKind, Result};
use crate::log::Pending;

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
    /// Ends an attempt: broadcasts `message_type` (`CommitImport` or `AbortImport`) with `payload`
    /// to every vchannel of the job, and waits until it is done. Where an ending was accepted
    /// before, nothing is broadcast and that one is waited for.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for another attempt or an unregistered type, and what
    /// [`MessageType::check_end`](super::super::MessageType::check_end) says; `Limit` for a name of
    /// more than 64 bytes or a payload of more than 256, for which no room is kept; `Parked`,
    /// `StoreFull`, `Io`, `OutcomeUnknown`, `InFlight`, `Poisoned`, `Closed`.
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
        self.check_end(job, (message_type, attempt, commit), &payload)?;
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
            drop(self.inner.wait_for_end(core, id, &cell, !mine, Deadline::never())?);
        }
        Ok(Ended { id, committed, mine })
    }

    /// Asks the types of a job that is known, and of its ending, about it.
    fn check_end(
        &self,
        job: BroadcastId,
        (message_type, attempt, commit): (&str, u32, bool),
        payload: &[u8],
    ) -> Result<()> {
        let accepted = self.inner.lock().state.job(job).map(|job| Arc::clone(&job.accepted));
        let Some(job) = accepted.as_deref() else { return Ok(()) };
        let ending = JobEnding { job, attempt, message_type, commit, payload };
        let types = [message_type, &job.message_type];
        let mut types = types.into_iter().filter_map(|name| self.inner.types.get(name));
        types.try_for_each(|kind| kind.check_end(&ending))
    }

    /// Waits for an ending that was accepted before, without the job's lock, which it holds.
    fn ended_before(&self, job: BroadcastId, attempt: u32) -> Result<Option<Ended>> {
        let core = self.inner.lock();
        core.usable()?;
        let state = core.state.job(job).filter(|job| job.attempt == attempt);
        let Some((committed, id)) = state.and_then(|state| state.end) else { return Ok(None) };
        if let Some(cell) = core.runs.get(&id).map(|run| Arc::clone(&run.cell)) {
            drop(self.inner.wait_for_end(core, id, &cell, true, Deadline::never())?);
        }
        Ok(Some(Ended { id, committed, mine: false }))
    }

    /// Accepts an ending under the job's lock; `None` when there is one already.
    pub(super) fn begin_ending(
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
        let now_ms = self.inner.time().expiry_ms(core.state.newest_ms());
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
}
