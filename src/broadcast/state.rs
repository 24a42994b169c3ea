//! What the control records mean: the whole durable state of a broadcaster, as a pure function.
//!
//! [`State::apply`] is the only way the state changes, for replay, for the live broadcaster and for
//! a view of another process alike. It never fails: a record that contradicts the ones before it
//! (an Ack for a forgotten identity, a second Done) changes nothing and is counted.
//!
//! It reads no clock. What depends on time is asked with a time: [`State::is_over`].

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use oncelog_format::control::{
    Accepted, AckPosition, Body, Collection, ControlRecord, Done, DropCause, Dropped, JobLink,
    Outcome, PolicyRecord,
};
use oncelog_format::message::{BroadcastId, Scope};

use super::owners::Owners;
use super::seen::Seen;
use super::tombstones::{Tombstone, Tombstones};
use super::window::Window;

mod entries;
mod jobs;
mod needs;
mod size;
mod task;

pub(crate) use self::entries::EntryOrder;
pub(super) use self::needs::{job_name, task_name};
use self::size::{Size, job_bytes, task_bytes};
pub(super) use self::task::promised_until_ms;
pub use self::task::{Job, TaskState};

/// What is known of a scope.
#[derive(Debug)]
pub(crate) enum Known<'a> {
    /// Nothing, or nothing any more.
    New,
    /// This broadcast owns it, and says more.
    Owned(BroadcastId),
    /// Its owner is done, and this is what it left.
    Done(Tombstone<'a>),
}

/// The durable state: a function of the control records alone.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Tasks that are not done, and the few that are and do not fit among the others.
    tasks: BTreeMap<BroadcastId, TaskState>,
    /// The tasks that are done.
    tombstones: Tombstones,
    scopes: Owners,
    jobs: BTreeMap<BroadcastId, Arc<Job>>,
    /// The jobs that are not over: an index of `jobs`.
    running: BTreeSet<BroadcastId>,
    /// The others by the log time of their end, in milliseconds: an index of `jobs`.
    over: BTreeSet<(u64, BroadcastId)>,
    collections: BTreeMap<u64, Arc<Collection>>,
    channels: BTreeMap<String, String>,
    window: Window,
    /// Keys that were dropped.
    seen: Seen,
    policy: Option<PolicyRecord>,
    last_id: u64,
    newest_ms: u64,
    term: u64,
    /// Tasks that will start a job and are not done: a count of `tasks`.
    starting: usize,
    ignored: u64,
    /// What the entries of a checkpoint come to: a sum over all of the above.
    size: Size,
}

impl State {
    /// Applies the next record.
    pub fn apply(&mut self, record: &ControlRecord) {
        let at_ms = record.at_ms;
        self.newest_ms = self.newest_ms.max(at_ms);
        match &record.body {
            Body::Collection(x) => self.take_collection(Arc::clone(x)),
            Body::Channel(x) => self.take_channel(x),
            Body::Accepted(x) => self.accept(Arc::clone(x), at_ms),
            Body::Ack(x) => self.ack(x.id, &x.positions, at_ms),
            Body::Done(x) => self.finish(x, at_ms),
            Body::Dropped(x) => self.forget(*x),
            Body::Park(x) => {
                self.change_task(x.id, |task| task.parked = Some((x.reason.clone(), at_ms)));
            }
            Body::Resume(x) => {
                self.change_task(x.id, |task| (task.parked, task.moved_at_ms) = (None, at_ms));
            }
            Body::Attempt(x) => self.attempt(*x),
            Body::JobPlan(x) => {
                self.change_job(x.job, x.attempt, |job| job.plan = Some(Arc::clone(x)));
            }
            Body::JobState(x) => {
                self.change_job(x.job, x.attempt, |job| job.state = Some(x.clone()));
            }
            Body::Term(x) => self.term = self.term.max(x.term),
            Body::Policy(x) => self.policy = Some(*x),
            // Skip says why the Done in its batch failed; the others move time or are history.
            _ => {}
        }
    }

    /// Knows what records make that are not handed over yet, until [`State::take_back`].
    pub(super) fn lend(&mut self, made: &[Body]) {
        for body in made {
            match body {
                Body::Channel(x) => {
                    self.channels.insert(x.vchannel.clone(), x.pchannel.clone());
                }
                Body::Collection(x) => {
                    self.collections.insert(x.id, Arc::clone(x));
                }
                _ => {}
            }
        }
    }

    /// Forgets what was lent: none of it was known before.
    pub(super) fn take_back(&mut self, made: &[Body]) {
        for body in made {
            match body {
                Body::Channel(x) => {
                    self.channels.remove(&x.vchannel);
                }
                Body::Collection(x) => {
                    self.collections.remove(&x.id);
                }
                _ => {}
            }
        }
    }

    fn open_task(&mut self, id: BroadcastId) -> Option<&mut TaskState> {
        self.tasks.get_mut(&id).filter(|task| task.done.is_none())
    }

    fn accept(&mut self, accepted: Arc<Accepted>, at_ms: u64) {
        let id = accepted.id();
        if id.0 <= self.last_id {
            self.ignored += 1;
            return;
        }
        self.last_id = id.0;
        if let Some(scope) = &accepted.scope {
            if let Some(before) = self.owner(scope) {
                self.scopes.remove(scope, before);
            }
            self.scopes.insert(scope, id);
            self.window.enter(&scope.principal);
        }
        if let JobLink::Ends { job, attempt, commit } = accepted.job
            && self.jobs.get(&job).is_some_and(|job| job.attempt == attempt && job.end.is_none())
        {
            // The first ending that was accepted is the verdict.
            self.change_job(job, attempt, |job| job.end = Some((commit, id)));
        }
        self.starting += usize::from(accepted.job == JobLink::Starts);
        let acks = vec![None; accepted.header.vchannels.len()];
        let task = TaskState {
            accepted,
            accepted_at_ms: at_ms,
            moved_at_ms: at_ms,
            acks,
            parked: None,
            done: None,
        };
        self.count(task_bytes(&task));
        self.tasks.insert(id, task);
    }

    fn ack(&mut self, id: BroadcastId, positions: &[AckPosition], at_ms: u64) {
        if let Some(task) = self.tasks.get_mut(&id) {
            self.ignored += task.take_acks(positions, at_ms);
        } else if let Some(mut task) = self.tombstones.task(id) {
            self.ignored += task.take_acks(positions, at_ms);
            if let Some(before) = self.tombstones.remove(id) {
                self.discount(task_bytes(&before));
            }
            self.bury(task);
        } else {
            self.ignored += 1;
        }
    }

    /// Puts a task that is done where the others are.
    fn bury(&mut self, task: TaskState) {
        self.count(task_bytes(&task));
        if let Err(task) = self.tombstones.insert(task) {
            self.tasks.insert(task.accepted.id(), task);
        }
    }

    fn finish(&mut self, done: &Done, at_ms: u64) {
        let Some(task) = self.open_task(done.id) else {
            self.ignored += 1;
            return;
        };
        let (whole, before) = (Arc::clone(&task.accepted), task_bytes(task));
        task.done = Some((done.outcome.clone(), at_ms));
        task.parked = None;
        task.accepted = Arc::new(tombstone_of(&whole));
        self.discount(before);
        self.starting -= usize::from(whole.job == JobLink::Starts);
        if let Some(task) = self.tasks.remove(&done.id)
            && whole.scope.is_some()
        {
            self.bury(task);
        }
        match whole.job {
            JobLink::Starts if done.outcome == Outcome::Done => {
                let job = Job {
                    accepted: whole,
                    made_at_ms: at_ms,
                    attempt: 1,
                    plan: None,
                    state: None,
                    end: None,
                    over: None,
                };
                self.count(job_bytes(&job));
                self.jobs.insert(done.id, Arc::new(job));
                self.list(done.id);
            }
            JobLink::Ends { job, attempt, .. } => {
                self.unlist(job);
                let is_by = |(_, by): &(bool, BroadcastId)| *by == done.id;
                let state = self.jobs.get(&job).filter(|state| state.attempt == attempt);
                if let Some((commit, _)) = state.and_then(|state| state.end).filter(is_by) {
                    self.change_job(job, attempt, |state| state.over = Some((commit, at_ms)));
                }
                self.list(job);
                self.index(job);
            }
            _ => {}
        }
        self.index(done.id);
    }

    fn forget(&mut self, dropped: Dropped) {
        let id = dropped.id;
        if dropped.cause == DropCause::Retired {
            if !self.is_running(id) && !self.holds_task(id) {
                self.unlist(id);
                if let Some(job) = self.jobs.remove(&id) {
                    self.discount(job_bytes(&job));
                }
            }
            return;
        }
        let done = self.tasks.get(&id).is_some_and(|task| task.done.is_some());
        let task = if done { self.tasks.remove(&id) } else { self.tombstones.remove(id) };
        let Some((task, (_, done_at_ms))) = task.and_then(|task| {
            let done = task.done.clone()?;
            Some((task, done))
        }) else {
            self.ignored += 1;
            return;
        };
        self.discount(task_bytes(&task));
        let Some(scope) = &task.accepted.scope else { return };
        let class = (task.accepted.lifetime_ms, task.accepted.firm);
        self.window.leave(id, &scope.principal, dropped.cause, done_at_ms, class);
        self.seen.insert(scope);
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::ScopeWithoutOwner)
            && let Some(other) = self.owner(scope)
        {
            self.scopes.remove(scope, other);
        }
        // A newer acceptance may own the scope: then it stays.
        self.scopes.remove(scope, id);
    }

    /// Brings the window up to date about a task whose end, or whose job's end, changed.
    fn index(&mut self, id: BroadcastId) {
        let running = self.is_running(id);
        let whole = self.tasks.get(&id).and_then(|task| {
            let (accepted, (_, done_at_ms)) = (&task.accepted, task.done.as_ref()?);
            let principal = accepted.scope.as_ref()?.principal.as_str();
            Some((principal, *done_at_ms, (accepted.lifetime_ms, accepted.firm)))
        });
        let Some((principal, done_at_ms, class)) = whole.or_else(|| self.tombstones.ending(id))
        else {
            return;
        };
        if running {
            self.window.unsettle(id, principal, done_at_ms, class);
        } else {
            self.window.settle(id, principal, done_at_ms, class);
        }
    }

    /// Starts the time of every tombstone again.
    #[cfg(planted)]
    pub(crate) fn reset_tombstones(&mut self) {
        let again_at_ms = self.newest_ms.saturating_add(1);
        for id in self.tombstones.ids().collect::<Vec<_>>() {
            let Some(mut task) = self.tombstones.remove(id) else { continue };
            self.discount(task_bytes(&task));
            if let Some((_, at_ms)) = &mut task.done {
                *at_ms = again_at_ms;
            }
            self.bury(task);
        }
    }

    /// Says whether there is a task of an identity, live or tombstone.
    #[must_use]
    pub fn holds_task(&self, id: BroadcastId) -> bool {
        self.tasks.contains_key(&id) || self.tombstones.holds(id)
    }

    /// Returns the task of an identity, live or tombstone.
    #[must_use]
    pub fn task(&self, id: BroadcastId) -> Option<Cow<'_, TaskState>> {
        let live = self.tasks.get(&id).map(Cow::Borrowed);
        live.or_else(|| self.tombstones.task(id).map(Cow::Owned))
    }

    /// What is known of a scope at `now_ms`.
    pub(crate) fn known(&self, scope: &Scope, now_ms: u64) -> Known<'_> {
        let of = |id| match self.tasks.get(&id) {
            Some(task) => (task.accepted.scope.as_ref() == Some(scope)).then_some((id, None)),
            None => self.tombstones.known(id, scope).map(|known| (id, Some(known))),
        };
        let Some((id, tombstone)) = self.scopes.find(scope, of) else { return Known::New };
        let is_over = match tombstone {
            Some(known) => now_ms >= known.until_ms() && !self.is_running(id),
            None => self.is_over(id, now_ms),
        };
        if is_over {
            return Known::New;
        }
        tombstone.map_or(Known::Owned(id), Known::Done)
    }

    /// Returns all tasks, live and tombstones, by identity.
    pub fn tasks(&self) -> impl Iterator<Item = (BroadcastId, Cow<'_, TaskState>)> {
        let mut next = Some(BroadcastId(0));
        std::iter::from_fn(move || {
            let id = self.task_from(next?)?;
            next = id.0.checked_add(1).map(BroadcastId);
            Some((id, self.task(id)?))
        })
    }

    /// Returns the tasks that are not done, by identity.
    pub fn open_tasks(&self) -> impl Iterator<Item = (BroadcastId, &TaskState)> {
        let open = self.tasks.iter().filter(|(_, task)| task.done.is_none());
        open.map(|(id, task)| (*id, task))
    }

    /// The first task from an identity on.
    fn task_from(&self, id: BroadcastId) -> Option<BroadcastId> {
        let live = self.tasks.range(id..).next().map(|(id, _)| *id);
        let done = self.tombstones.first_from(id);
        live.into_iter().chain(done).min()
    }

    /// Returns how many tasks there are, with those that are done and kept.
    #[must_use]
    pub fn task_count(&self) -> usize {
        self.tasks.len() + self.tombstones.count()
    }

    /// Returns the identity that owns a scope.
    #[must_use]
    pub fn owner(&self, scope: &Scope) -> Option<BroadcastId> {
        self.scopes.find(scope, |id| {
            let is_of = match self.tasks.get(&id) {
                Some(task) => task.accepted.scope.as_ref() == Some(scope),
                None => self.tombstones.is_of(id, scope),
            };
            is_of.then_some(id)
        })
    }

    /// Returns the collection of a name.
    #[must_use]
    pub fn collection_named(&self, name: &str) -> Option<&Arc<Collection>> {
        self.collections.values().find(|collection| collection.name == name)
    }

    /// Returns the collection of an identity.
    #[must_use]
    pub fn collection(&self, id: u64) -> Option<&Arc<Collection>> {
        self.collections.get(&id)
    }

    /// Returns all collections, by identity.
    pub fn collections(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.collections.values()
    }

    /// Returns the pchannel that carries a vchannel.
    #[must_use]
    pub fn pchannel_of(&self, vchannel: &str) -> Option<&str> {
        self.channels.get(vchannel).map(String::as_str)
    }

    /// Returns every vchannel with its pchannel.
    pub fn vchannels(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.channels.iter().map(|(v, p)| (v.as_str(), p.as_str()))
    }

    /// Returns the policy that was recorded last.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicyRecord> {
        self.policy.as_ref()
    }

    /// Returns the idempotency window.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Returns the memory of dropped keys.
    #[must_use]
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Returns the newest log time in the records, in milliseconds.
    #[must_use]
    pub fn newest_ms(&self) -> u64 {
        self.newest_ms
    }

    /// Returns the writer's term.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Returns how many records, or acks in them, changed nothing.
    #[must_use]
    pub fn ignored_count(&self) -> u64 {
        self.ignored
    }

    /// The greatest identity of an acceptance.
    pub(crate) fn last_id(&self) -> BroadcastId {
        BroadcastId(self.last_id)
    }

    /// Returns the identity that the next acceptance gets.
    #[must_use]
    pub fn next_id(&self) -> BroadcastId {
        BroadcastId(self.last_id.saturating_add(1))
    }

    /// Returns the identity that the next collection gets.
    #[must_use]
    pub fn next_collection_id(&self) -> u64 {
        self.collections.keys().next_back().map_or(1, |last| last.saturating_add(1))
    }

    /// Says whether at `now_ms` the window of a key is over and its work is terminal, so that the
    /// key may be used anew.
    #[must_use]
    pub fn is_over(&self, id: BroadcastId, now_ms: u64) -> bool {
        let expires_at_ms = match self.tasks.get(&id) {
            Some(task) => task.expires_at_ms(),
            None => {
                let ending = self.tombstones.ending(id);
                ending.map(|(_, done_at_ms, class)| done_at_ms.saturating_add(class.0))
            }
        };
        expires_at_ms.is_some_and(|at_ms| now_ms >= at_ms) && !self.is_running(id)
    }
}

/// What a tombstone needs of an acceptance to answer retries: all but payload and properties.
fn tombstone_of(whole: &Accepted) -> Accepted {
    Accepted {
        header: whole.header.clone(),
        message_type: whole.message_type.clone(),
        scope: whole.scope.clone(),
        fingerprint: whole.fingerprint.clone(),
        ends: Vec::new(),
        lifetime_ms: whole.lifetime_ms,
        firm: whole.firm,
        job: whole.job,
        properties: Vec::new(),
        trace: None,
        payload: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
