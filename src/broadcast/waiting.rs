//! Callers that wait for the effect of what was accepted.
//!
//! No wait is silent without an end. Who gave a deadline is told at that; who gave none is told at
//! once that the task is parked, and that a try was refused for space. Nothing is lost by either:
//! the key is kept, and the task is tried again in this process and in the next.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncelog_format::message::BroadcastId;

use super::core::{Cell, Core, Deadline, Guard, Inner};
use super::refusal;
use super::request::Answer;
use crate::error::{Error, Result};
use crate::log::Pending;
use crate::sync::Condvar;

/// Most callers that wait for one key.
pub(crate) const WAITERS_PER_KEY_MAX: usize = 1_024;

/// Most callers that wait for keys.
pub(crate) const WAITERS_MAX: usize = 65_536;

/// Counts a caller that waits for a key, as long as it lives.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    /// `in_flight` is the broadcast that the key was accepted for, durably; without one nobody
    /// knows whether it will be.
    pub(crate) fn enter(
        count: &'a AtomicUsize,
        max: usize,
        in_flight: Option<BroadcastId>,
    ) -> Result<Self> {
        if count.fetch_add(1, Ordering::SeqCst) >= max {
            count.fetch_sub(1, Ordering::SeqCst);
            return Err(refusal::crowded(max, in_flight));
        }
        Ok(Self(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a caller may be told of a task before its end, from where it began to wait on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    id: BroadcastId,
    /// Steps that had ended, or begun, before.
    tries: u64,
}

impl Watch {
    pub(crate) const fn is_of(self, id: BroadcastId) -> bool {
        self.id.0 == id.0
    }

    /// Why there is no use in waiting without a deadline.
    pub(crate) fn halt(self, core: &Core) -> Option<Error> {
        let run = core.runs.get(&self.id)?;
        if let Some((reason, since_ms)) = &run.parked {
            return Some(refusal::parked(self.id, reason, *since_ms));
        }
        let full = self.full(core)?;
        Some(refusal::no_space(self.id, full))
    }

    /// What refused a try for space that began behind this.
    pub(crate) fn full(self, core: &Core) -> Option<&Arc<Error>> {
        let run = core.runs.get(&self.id)?;
        run.full.as_ref().filter(|_| run.tries > self.tries)
    }
}

impl Cell {
    /// Wakes those who wait for the effect, which is there.
    pub(super) fn wake(&self) {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::EndUntold) {
            return;
        }
        self.turned.notify_all();
    }
}

impl Inner {
    /// Waits until what follows a batch may be done, and told.
    pub(crate) fn wait_durable(&self, pending: Pending) -> Result<()> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::ToldBeforeSync) {
            return Ok(());
        }
        let durable = pending.wait();
        self.store.control().tell();
        durable.map(drop)
    }

    /// Begins to wait for a task. One that was refused for space is tried again at once: there may
    /// be some by now.
    pub(crate) fn watch(&self, core: &mut Core, id: BroadcastId) -> Watch {
        let Some(run) = core.runs.get_mut(&id) else { return Watch { id, tries: 0 } };
        // A step that runs began before, and may not have seen what is there by now.
        let watch = Watch { id, tries: run.tries + u64::from(run.busy) };
        if run.full.is_some() {
            self.schedule(core, id, Duration::ZERO);
        }
        watch
    }

    /// Marks an answer for the one it is given to.
    pub(crate) fn as_given(&self, answer: Answer, duplicated: bool) -> Answer {
        Answer { duplicated, clock_held: self.time().clock_held(), ..answer }
    }

    /// Waits for the effect of a task.
    pub(crate) fn wait_for_end(
        &self,
        mut core: Guard<'_>,
        id: BroadcastId,
        cell: &Arc<Cell>,
        duplicated: bool,
        deadline: Deadline,
    ) -> Result<Answer> {
        let watch = deadline.is_never().then(|| self.watch(&mut core, id));
        loop {
            if let Some(answer) = cell.end.get() {
                return Ok(self.as_given(answer.clone(), duplicated));
            }
            let run = core.runs.get(&id);
            let admitted = run.is_some_and(|run| run.admitted);
            let left = if admitted { refusal::in_flight(id) } else { refusal::unknown() };
            if let Some((reason, since_ms)) = run.and_then(|run| run.parked.as_ref()) {
                return Err(refusal::parked(id, reason, *since_ms));
            }
            if let Some(error) = watch.and_then(|watch| watch.halt(&core)) {
                return Err(error);
            }
            #[cfg(planted)]
            if crate::planted::is_active(crate::planted::Bug::UnknownIsRefusal)
                && core.failed.is_some()
            {
                return Err(refusal::window_full(0, 0, None));
            }
            if core.failed.is_some() || core.closing || !self.steps(id) {
                return Err(left);
            }
            let (next, told) = self.wait(core, &cell.turned, deadline);
            core = next;
            if !told && cell.end.get().is_none() {
                return Err(left);
            }
        }
    }

    /// Waits to be told; false when the time was over before.
    pub(crate) fn wait<'a>(
        &self,
        core: Guard<'a>,
        condvar: &Condvar,
        deadline: Deadline,
    ) -> (Guard<'a>, bool) {
        let left = deadline.0.map(|until| until.saturating_sub(self.monotonic()));
        if left.is_some_and(|left| left.is_zero()) {
            return (core, false);
        }
        #[cfg(any(test, feature = "testing"))]
        waits();
        let Some(left) = left else {
            return (condvar.wait(core).unwrap_or_else(PoisonError::into_inner), true);
        };
        (condvar.wait_timeout(core, left).unwrap_or_else(PoisonError::into_inner).0, true)
    }
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// Whom a test has told when this thread begins to wait.
    static TELL: std::cell::RefCell<Option<Box<dyn Fn()>>> =
        const { std::cell::RefCell::new(None) };
}

/// For tests: runs calls of a broadcaster, and tells each time that this thread begins to wait in
/// one of them: for another request, for resources, for an effect. Nothing is decided until it was
/// told, which must not call the broadcaster.
#[cfg(any(test, feature = "testing"))]
pub fn tell_waits<R>(tell: impl Fn() + 'static, calls: impl FnOnce() -> R) -> R {
    TELL.set(Some(Box::new(tell)));
    let result = calls();
    TELL.set(None);
    result
}

#[cfg(any(test, feature = "testing"))]
fn waits() {
    TELL.with_borrow(|tell| tell.iter().for_each(|tell| tell()));
}
