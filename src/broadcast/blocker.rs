//! Requests that wait for resources, and who keeps them from these.
//!
//! No wait is silent without an end. Who gave a deadline is told at that. Who gave none is told as
//! soon as one of those whom it waits for goes no further by itself: a task that is parked, or was
//! refused space in a try behind the question, or a job that nobody drives. One of them is enough,
//! whatever the others do, so all are looked at, each time that one stops.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncelog_format::control::Accepted;
use oncelog_format::message::BroadcastId;

use super::core::{Core, Deadline, Inner, Run};
use super::counts::Waited;
use super::locks::{Claim, Holder};
use super::refusal;
use super::waiting::Watch;
use super::worker;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::sync::Condvar;

/// One that keeps a request from its resources.
#[derive(Debug)]
struct Blocker<'a> {
    holder: Holder,
    claim: &'a Claim,
    /// The task that holds them or, of a job that ends, that will give them up.
    run: Option<(BroadcastId, &'a Run)>,
    /// Why nobody drives the job that holds them.
    stopped: Option<&'a Arc<Error>>,
}

/// What a request has seen of the tasks that it waits for.
type Watches = BTreeMap<BroadcastId, Watch>;

impl<'a> Blocker<'a> {
    fn of(core: &'a Core, (holder, claim): (Holder, &'a Claim)) -> Self {
        let task = task_of(core, holder);
        let run = task.and_then(|id| Some((id, core.runs.get(&id)?)));
        let stopped = match holder {
            // What an ending does that was accepted is no affair of the driver.
            Holder::Job(job) if task.is_none() => core.stopped.get(&job),
            _ => None,
        };
        Self { holder, claim, run, stopped }
    }

    /// It goes no further by itself.
    fn is_halted(&self, core: &Core, watches: &Watches) -> bool {
        let is_full = |id| watches.get(&id).is_some_and(|watch| watch.full(core).is_some());
        let run = self.run.is_some_and(|(id, run)| run.parked.is_some() || is_full(id));
        run || self.stopped.is_some()
    }

    /// Who it is, and what it does.
    fn who(&self) -> String {
        let run = self.run.map(|(_, run)| run);
        let state = match (run.and_then(|run| run.parked.as_ref()), run, self.stopped) {
            (Some((reason, since_ms)), ..) => format!("parked since {since_ms} ms ({reason})"),
            (None, Some(run), _) if run.full.is_some() => "without space".to_owned(),
            (None, Some(run), _) if run.retries > 0 => format!("tried {} times", run.retries),
            (None, None, Some(why)) => format!("stopped ({why})"),
            _ => "running".to_owned(),
        };
        match self.holder {
            Holder::Admission(_) => "a request that is being admitted".to_owned(),
            Holder::Task(id) => format!("broadcast {id}, {state}"),
            Holder::Job(id) if self.run.is_some() => format!("job {id}, ending, {state}"),
            Holder::Job(id) => format!("job {id}, {state}"),
        }
    }
}

/// The task behind a holder.
fn task_of(core: &Core, holder: Holder) -> Option<BroadcastId> {
    match holder {
        Holder::Admission(_) => None,
        Holder::Task(id) => Some(id),
        // A job that ends gives its resources up with its ending.
        Holder::Job(job) => core.state.job(job).and_then(|job| job.end).map(|(_, by)| by),
    }
}

/// The one that a request is told of, and whether that goes no further by itself: one that does not
/// first.
fn blocker<'a>(core: &'a Core, waiter: Holder, watches: &Watches) -> (Option<Blocker<'a>>, bool) {
    let blockers = core.locks.blockers(waiter);
    let blockers = blockers.into_iter().map(|by| Blocker::of(core, by));
    let mut first = None;
    for by in blockers {
        if by.is_halted(core, watches) {
            return (Some(by), true);
        }
        first = first.or(Some(by));
    }
    (first, false)
}

impl Core {
    /// What an acceptance asks for.
    pub(crate) fn claim(&self, accepted: &Accepted, since_ms: u64) -> Claim {
        Claim {
            resources: accepted.header.resources.clone(),
            message_type: accepted.message_type.clone(),
            since_ms,
        }
    }
}

impl Inner {
    /// Asks for locks and waits; a refusal leaves nothing behind.
    pub(crate) fn ask(&self, holder: Holder, claim: Claim, deadline: Deadline) -> Result<()> {
        if claim.resources.is_empty() {
            return Ok(());
        }
        let mut core = self.lock();
        core.usable()?;
        let caller = worker::running_callback(self).map(Holder::Task);
        if caller.is_some_and(|task| core.locks.conflicts_with(task, &claim.resources)) {
            let message = "a callback asked for a resource that its own task holds";
            return Err(refusal::invalid(message));
        }
        if core.locks.ask(holder, claim) {
            return Ok(());
        }
        // A callback whose task holds resources waits for no others: two of them would wait for
        // each other.
        let holds_others = caller.is_some_and(|task| core.locks.is_held(task));
        let began = self.monotonic();
        let waiter = Arc::new(Condvar::new());
        core.lock_waiters.insert(holder, Arc::clone(&waiter));
        let mut watches = Watches::new();
        let mut ended = Waited::Refused;
        let outcome = loop {
            if core.locks.is_held(holder) {
                ended = Waited::Got;
                break Ok(());
            }
            if let Err(e) = core.usable() {
                break Err(e);
            }
            if deadline.is_never() {
                self.watch_blockers(&mut core, holder, &mut watches);
            }
            let is_halted = blocker(&core, holder, &watches).1;
            if holds_others || deadline.is_never() && is_halted {
                break Err(self.told(&core, holder, &watches));
            }
            let (next, told) = self.wait(core, &waiter, deadline);
            core = next;
            if !told && !core.locks.is_held(holder) {
                ended = Waited::TooLong;
                break Err(self.told(&core, holder, &watches));
            }
        };
        core.lock_waiters.remove(&holder);
        let waited = self.monotonic().saturating_sub(began);
        self.counts.waited_for_locks(waited, ended);
        if outcome.is_err() {
            self.release(&mut core, holder);
        }
        outcome
    }

    /// Begins to watch the tasks that a request waits for. Those that were refused for space are
    /// tried again.
    fn watch_blockers(&self, core: &mut Core, waiter: Holder, watches: &mut Watches) {
        let blockers = core.locks.blockers(waiter);
        let tasks: Vec<BroadcastId> =
            blockers.into_iter().filter_map(|(holder, _)| task_of(core, holder)).collect();
        for id in tasks {
            watches.entry(id).or_insert_with(|| self.watch(core, id));
        }
    }

    /// What a request is told that did not get its resources.
    fn told(&self, core: &Core, waiter: Holder, watches: &Watches) -> Error {
        let by = blocker(core, waiter, watches).0;
        refusal::lock_timeout(by.map(|by| (by.claim, by.who())), self.time().wall_ms())
    }

    /// Tells whoever waits for a job, or for resources, that somebody goes no further.
    pub(crate) fn tell_halted(&self, core: &Core) {
        self.turned.notify_all();
        core.lock_waiters.values().for_each(|waiter| waiter.notify_all());
    }
}
