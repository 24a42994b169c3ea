//! From acceptance to the end: copies, acks, callback, Done.
//!
//! Workers take tasks that are due, one step at a time; another thread waits for the disk and says
//! what is durable, in the order of control. Nothing here decides whether a request is accepted.

use std::cell::Cell as ThreadCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncelog_format::control::{JobLink, Outcome as Ending};
use oncelog_format::message::{AckMode, BroadcastId};

use super::TraceParent;
use super::core::{Copy, Core, Guard, Inner, Run, Settled};
use super::kind::{Task, Verdict};
use super::locks::Holder;
use super::request::{Answer, outcome};
use super::state::promised_until_ms;
use super::told::Told;
use crate::channel::Position;
use crate::error::{ErrorKind, Result};

/// First wait between two tries of a task.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(10);

/// Longest wait between two tries of a task.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Why a task is tried again whose step did not end.
const PANICKED: &str = "a step panicked";

thread_local! {
    /// The task whose callback this thread runs, and its broadcaster, by its address: all of them
    /// number their tasks from one.
    static CALLBACK: ThreadCell<Option<(usize, BroadcastId)>> = const { ThreadCell::new(None) };
}

/// The task of a broadcaster whose callback the calling thread runs.
pub(crate) fn running_callback(of: &Inner) -> Option<BroadcastId> {
    let running = CALLBACK.get().filter(|(broadcaster, _)| *broadcaster == address(of));
    running.map(|(_, id)| id)
}

fn address(inner: &Inner) -> usize {
    std::ptr::from_ref(inner).addr()
}

/// What a worker does with a task after a step.
pub(crate) enum Next {
    /// Its end was handed over, or somebody else goes on with it.
    Leave,
    /// Wait for consumers.
    Stall,
    /// Not yet, for this reason.
    Retry(String),
    /// Not without an operator, for this reason.
    Park(String),
}

impl Inner {
    /// Works until the broadcaster stops, whatever code of the embedder panics.
    pub(crate) fn work(self: &Arc<Self>) {
        let mut taken = None;
        while catch_unwind(AssertUnwindSafe(|| self.take_tasks(&mut taken))).is_err() {
            self.give_back(taken.take());
        }
    }

    /// Takes tasks that are due until the broadcaster stops, and says which one it has, and since
    /// when.
    fn take_tasks(self: &Arc<Self>, taken: &mut Option<(Duration, BroadcastId)>) {
        let mut core = self.lock();
        loop {
            if core.usable().is_err() {
                return;
            }
            let now = self.monotonic();
            let Some((at, _)) = core.due.first().copied() else {
                core = self.work.wait(core).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if at > now {
                let waited = self.work.wait_timeout(core, at.saturating_sub(now));
                core = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let Some(id) = core.take_due() else { continue };
            let run = core.runs.get_mut(&id).filter(|run| run.is_workable());
            let Some(run) = run.filter(|_| self.steps(id)) else { continue };
            if run.busy {
                run.again = true;
                continue;
            }
            run.busy = true;
            *taken = Some((now, id));
            drop(core);
            let stepped = catch_unwind(AssertUnwindSafe(|| self.step(id)));
            let stepped = stepped.unwrap_or_else(|_panic| {
                self.doubt_copies(id);
                Ok(Next::Retry(PANICKED.to_owned()))
            });
            core = self.after_step(id, stepped);
            *taken = None;
        }
    }

    /// Lets go of a task, if any, behind a panic that left nobody else to do that: it is tried
    /// again as late as any. No clock is asked, which may be what panicked.
    fn give_back(&self, taken: Option<(Duration, BroadcastId)>) {
        let mut core = self.lock();
        if let Some((since, id)) = taken
            && let Some(run) = core.runs.get_mut(&id)
        {
            (run.busy, run.again) = (false, false);
            run.tries += 1;
            run.retries = run.retries.saturating_add(1);
            core.set_due(id, since.saturating_add(RETRY_MAX));
            self.keep_told(&mut core, Told::Retried(id, PANICKED.to_owned()));
        }
        // What panics at every call takes no processor.
        drop(self.work.wait_timeout(core, RETRY_MIN));
    }

    /// Lets go of a task, whatever becomes of it.
    pub(crate) fn after_step(&self, id: BroadcastId, stepped: Result<Next>) -> Guard<'_> {
        let now = self.monotonic();
        let mut guard = self.lock();
        let core = &mut *guard;
        let age = (now, core.policy.retry_age_max);
        let task = core.state.task(id);
        let Some(run) = core.runs.get_mut(&id) else { return guard };
        let again = std::mem::take(&mut run.again);
        let next = Self::note_try(run, stepped);
        let is_full = run.full.is_some();
        let (next, after) = match next {
            Next::Leave => (Next::Leave, None),
            Next::Stall => {
                let left = run.patience(task.as_deref(), true, age);
                if left.is_zero() {
                    (Next::Park("no ack of every consumer in time".to_owned()), None)
                } else {
                    (Next::Stall, Some(if again { Duration::ZERO } else { left }))
                }
            }
            Next::Retry(reason) => {
                let left = run.patience(task.as_deref(), false, age);
                let wait = RETRY_MIN.saturating_mul(1 << run.retries.min(10)).min(RETRY_MAX);
                // Whoever asked meanwhile waits for a try that begins behind it.
                let wait = if again { Duration::ZERO } else { wait };
                run.retries = run.retries.saturating_add(1);
                if left.is_zero() {
                    (Next::Park(reason), Some(wait))
                } else {
                    self.keep_told(core, Told::Retried(id, reason.clone()));
                    (Next::Retry(reason), Some(wait.min(left)))
                }
            }
            Next::Park(reason) => (Next::Park(reason), None),
        };
        if is_full {
            self.tell_halted(core);
        }
        let mut after = after.or_else(|| again.then_some(Duration::ZERO));
        if let Next::Park(reason) = next {
            drop(guard);
            // Nobody else takes the task while room is made.
            let parked = self.park(id, &reason);
            guard = self.lock();
            let Err(e) = parked else { return guard };
            // Not even that could be written: go on trying.
            self.keep_told(&mut guard, Told::NotParked(id, e));
            after = after.or(Some(RETRY_MAX));
        }
        if let Some(run) = guard.runs.get_mut(&id) {
            run.busy = false;
            if std::mem::take(&mut run.again) {
                after = Some(Duration::ZERO);
            }
        }
        if let Some(after) = after {
            // By the instant from above: no code of the embedder stands between this and `busy`.
            guard.set_due(id, now.saturating_add(after));
            self.work.notify_one();
        }
        guard
    }

    /// Notes how a try ended, and tells who waits when there was no space for it.
    fn note_try(run: &mut Run, stepped: Result<Next>) -> Next {
        run.tries += 1;
        run.full = None;
        stepped.unwrap_or_else(|e| {
            let reason = e.to_string();
            if e.kind() == ErrorKind::StoreFull {
                run.full = Some(Arc::new(e));
                run.cell.turned.notify_all();
            }
            Next::Retry(reason)
        })
    }

    /// Brings a task as far as it goes.
    pub(crate) fn step(self: &Arc<Self>, id: BroadcastId) -> Result<Next> {
        let unresolved = Self::in_state(&self.lock(), id, Copy::Unresolved);
        for (pchannel, _) in unresolved {
            self.resolve(&pchannel)?;
            #[cfg(planted)]
            if crate::planted::is_active(crate::planted::Bug::FoundIsAcked) {
                self.record_acks(id, AckMode::Consumer)?;
            }
        }
        let absent = Self::in_state(&self.lock(), id, Copy::Absent);
        if !absent.is_empty() {
            // Acks of what stands are recorded also when another pchannel failed.
            let appended = self.append_copies(id, absent);
            self.record_acks(id, AckMode::Append)?;
            appended?;
        }
        self.record_acks(id, AckMode::Append)?;
        let task = {
            let mut core = self.lock();
            let is_acked = core.state.task(id).is_some_and(|task| task.is_acked());
            let Some(run) = core.runs.get_mut(&id) else { return Ok(Next::Leave) };
            if !is_acked {
                return Ok(Next::Stall);
            }
            run.as_called()
        };
        let Some(kind) = self.types.get(&task.accepted.message_type) else {
            let name = &task.accepted.message_type;
            return Ok(Next::Park(format!("message type {name} is not registered")));
        };
        let called = {
            let parent = task.trace_parent();
            let trace_id = parent.as_ref().map(TraceParent::trace_id);
            let parent_id = parent.as_ref().map(TraceParent::parent_id);
            let span = tracing::info_span!("callback", broadcast = id.0, trace_id, parent_id);
            let _entered = span.entered();
            CALLBACK.set(Some((address(self), id)));
            let called = catch_unwind(AssertUnwindSafe(|| kind.apply(&task)));
            CALLBACK.set(None);
            called
        };
        self.counts.called(&task.accepted.message_type, called.as_ref().ok());
        Ok(match called {
            Ok(Verdict::Done) => self.end(id, &Ending::Done)?,
            Ok(Verdict::Fail(reason)) => self.end(id, &Ending::Failed(reason))?,
            Ok(Verdict::Retry(reason)) => Next::Retry(reason),
            Ok(Verdict::Park(reason)) => Next::Park(reason),
            Err(_panic) => Next::Retry("the callback panicked".to_owned()),
        })
    }

    /// Waits for the disk and says what is durable, in order, until the broadcaster stops.
    pub(crate) fn settle_all(self: &Arc<Self>) {
        let mut core = self.lock();
        loop {
            let next = core.settling.pop_front();
            let told = std::mem::take(&mut core.told);
            if next.is_none() && told.is_empty() {
                if core.closing || core.failed.is_some() {
                    return;
                }
                core = self.rest(core);
                continue;
            }
            drop(core);
            self.tell(told);
            let Some((pending, settled)) = next else {
                core = self.lock();
                continue;
            };
            let durable = self.wait_durable(pending);
            core = self.lock();
            match durable {
                Ok(()) => {
                    let job = self.settled(&mut core, settled);
                    if let Some(job) = job {
                        drop(core);
                        self.tell_driver(job);
                        core = self.lock();
                    }
                }
                Err(e) => self.fail(&mut core, Arc::new(e)),
            }
        }
    }

    /// Acts on what is durable; returns a job that was made by it.
    pub(crate) fn settled(&self, core: &mut Core, settled: Settled) -> Option<BroadcastId> {
        match settled {
            Settled::Admitted(id) => {
                if let Some(run) = core.runs.get_mut(&id) {
                    run.admitted = true;
                    self.counts.accepted(&run.accepted);
                    core.told.push(Told::Accepted(id));
                    run.cell.turned.notify_all();
                }
                self.schedule(core, id, Duration::ZERO);
            }
            Settled::Parked(id, reason, since_ms) => {
                if let Some(run) = core.runs.get_mut(&id) {
                    self.counts.parked(&run.accepted);
                    core.told.push(Told::Parked(id, reason.clone()));
                    run.parked = Some((reason, since_ms));
                    run.ending = false;
                    run.cell.turned.notify_all();
                }
                self.let_go_of_acked(core, id);
                self.tell_halted(core);
            }
            Settled::Ended(id, ending, done_at_ms) => {
                return self.ended(core, id, ending, done_at_ms);
            }
        }
        None
    }

    /// Done is durable: locks fall, waiters are handed the result.
    pub(super) fn ended(
        &self,
        core: &mut Core,
        id: BroadcastId,
        ending: Ending,
        done_at_ms: u64,
    ) -> Option<BroadcastId> {
        let run = self.take_run(core, id, &ending)?;
        self.counts.ended(&run.accepted, &ending);
        self.keep_told(core, Told::Ended(id, ending.clone()));
        let made = run.accepted.job == JobLink::Starts && ending == Ending::Done;
        if made {
            core.locks.transfer(Holder::Task(id), Holder::Job(id));
        }
        self.release(core, Holder::Task(id));
        if let JobLink::Ends { job, .. } = run.accepted.job
            && !core.state.is_running(job)
        {
            self.release(core, Holder::Job(job));
            core.plan_pins.remove(&job);
            core.stopped.remove(&job);
            self.turned.notify_all();
        }
        let answer = run.answer(ending, done_at_ms);
        if run.cell.end.set(answer).is_err() {
            core.told.push(Told::EndedTwice(id));
        }
        run.cell.wake();
        made.then_some(id)
    }
}

impl Run {
    /// A worker may take it: accepted, not parked, its end not handed over.
    fn is_workable(&self) -> bool {
        self.admitted && self.parked.is_none() && !self.ending
    }

    pub(super) fn is_whole(&self) -> bool {
        self.copies.iter().all(|copy| matches!(copy, Copy::At(_)))
    }

    fn positions(&self) -> impl Iterator<Item = (String, Position)> {
        let names = self.accepted.header.vchannels.iter().zip(&self.copies);
        names.filter_map(|(name, copy)| match copy {
            Copy::At(position) => Some((name.clone(), *position)),
            _ => None,
        })
    }

    /// What its callback is called with.
    fn as_called(&mut self) -> Task {
        let (accepted, channels) = (Arc::clone(&self.accepted), self.positions().collect());
        self.calls = self.calls.saturating_add(1);
        Task { accepted, channels, attempts: self.calls - 1 }
    }

    /// What a duplicate is told too early.
    #[cfg(planted)]
    pub(crate) fn early_answer(&self) -> Answer {
        self.answer(Ending::Done, self.accepted_at_ms)
    }

    fn answer(&self, ending: Ending, done_at_ms: u64) -> Answer {
        let accepted = &self.accepted;
        Answer {
            id: accepted.id(),
            duplicated: false,
            accepted_at_ms: self.accepted_at_ms,
            done_at_ms,
            expires_at_ms: promised_until_ms(accepted, done_at_ms),
            outcome: outcome(ending),
            channels: self.positions().collect(),
            differs: Vec::new(),
            clock_held: false,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
