//! Who drives a job, and the wait for its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use oncelog_format::message::BroadcastId;

use super::{Jobs, unknown_job};
use crate::broadcast::core::{Core, Inner};
use crate::broadcast::kind::Role;
use crate::broadcast::refusal;
use crate::broadcast::state::Job;
use crate::broadcast::told::Told;
use crate::broadcast::waiting::Watch;
use crate::error::{Error, ErrorKind, Result};
use crate::told;

impl Jobs {
    /// Tells that a driver drives a job from here on: what was told to [`Jobs::stopped`] is over.
    pub fn going(&self, job: BroadcastId) {
        self.inner.lock().stopped.remove(&job);
    }

    /// Tells that a driver gave a job up before its end, and that it stays as it is until the next
    /// one begins. Whoever waits for it, or for what it holds, without a deadline is told so, and a
    /// warning says it to whoever collects events.
    pub fn stopped(&self, job: BroadcastId, why: Error) {
        let why = Arc::new(why);
        let mut core = self.inner.lock();
        if self.note_stopped(&mut core, job, Arc::clone(&why)) {
            self.inner.keep_told(&mut core, Told::NotDriven(job, why));
        }
    }

    /// The same, of a driver that had given it up before and got no further: there is no warning.
    pub(crate) fn stopped_again(&self, job: BroadcastId, why: Error) {
        self.note_stopped(&mut self.inner.lock(), job, Arc::new(why));
    }

    /// Says whether the job is there, and is not over.
    fn note_stopped(&self, core: &mut Core, job: BroadcastId, why: Arc<Error>) -> bool {
        let is_running = core.state.is_running(job);
        if is_running {
            core.stopped.insert(job, why);
            self.inner.tell_halted(core);
        }
        is_running
    }

    /// Says whether anything may still become of jobs: the broadcaster is neither closed, nor
    /// stopped by a failure of control.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.inner.lock().usable().is_ok()
    }

    /// Waits until a job is over.
    ///
    /// # Errors
    ///
    /// `InFlight` when the time is over before, and without a timeout as soon as there is no space
    /// for the job's ending, or nobody drives it ([`Jobs::stopped`]), with the cause as its source;
    /// `Parked` when its ending is; `InvalidInput` for an unknown job; `Poisoned`, `Closed`.
    pub fn wait(&self, job: BroadcastId, timeout: Option<Duration>) -> Result<Arc<Job>> {
        let (deadline, is_never) = (self.inner.deadline(timeout), timeout.is_none());
        let mut core = self.inner.lock();
        let mut watch: Option<Watch> = None;
        loop {
            let state = core.state.job(job).ok_or_else(|| unknown_job(job))?;
            let by = state.end.map(|(_, by)| by);
            // Over in the state, and durably so: the run of its ending is gone.
            let durable = by.is_none_or(|by| !core.runs.contains_key(&by));
            if state.over.is_some() && durable {
                return Ok(Arc::clone(state));
            }
            core.usable()?;
            if by.is_some_and(|by| !self.inner.steps(by)) {
                return Err(refusal::in_flight(job));
            }
            if let Some(by) = by.filter(|_| is_never) {
                let of_this = watch.filter(|watch| watch.is_of(by));
                let of_this = of_this.unwrap_or_else(|| self.inner.watch(&mut core, by));
                if let Some(error) = of_this.halt(&core) {
                    return Err(error);
                }
                watch = Some(of_this);
            }
            if let Some(cause) = core.stopped.get(&job).filter(|_| by.is_none() && is_never) {
                return Err(refusal::stopped(job, cause));
            }
            let (next, told) = self.inner.wait(core, &self.inner.turned, deadline);
            core = next;
            if !told {
                return Err(refusal::in_flight(job));
            }
        }
    }
}

impl Inner {
    /// Tells the type of a job that the job is there to be driven.
    pub(crate) fn tell_driver(self: &Arc<Self>, job: BroadcastId) {
        let name = {
            let core = self.lock();
            let Some(job) = core.state.job(job) else { return };
            job.accepted.message_type.clone()
        };
        let jobs = Jobs::of(Arc::clone(self));
        if let Err(why) = self.takes_work() {
            // Whoever opened the store so knows.
            jobs.stopped_again(job, why);
            return;
        }
        let Some(kind) = self.types.get(&name).filter(|kind| kind.role() == Role::StartsJob) else {
            let why = format!("message type {name} is not registered to start jobs");
            jobs.stopped(job, refusal::invalid(why));
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| kind.job_ready(job, &jobs))).is_err() {
            told::tell(move || {
                tracing::error!(job = job.0, "a driver panicked when it was told of its job");
            });
            let why = "a driver panicked when it was told of its job";
            jobs.stopped(job, Error::new(ErrorKind::Io, why));
        }
    }
}
