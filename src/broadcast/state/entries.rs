//! The state as the entries of a checkpoint, and back (SPEC 13.3).

use std::sync::Arc;

use oncelog_format::control::{AckPosition, Entry, Facts, JobEntry, JobLink, TaskEntry};
use oncelog_format::message::BroadcastId;

use super::super::seen::Seen;
use super::size::{job_bytes, task_bytes};
use super::{Job, State, TaskState};

/// What the entries of a stream keep to, whoever reads them: the facts stand first and once, the
/// kinds follow each other in order, and within one the identities or names grow (SPEC 13.3).
#[derive(Debug, Default)]
pub(crate) struct EntryOrder {
    /// The last entry: its kind, and its identity or name.
    last: (u8, u64, String),
    /// The greatest identity, as the facts say.
    last_id: u64,
}

impl EntryOrder {
    /// Takes the next entry; false where it cannot stand there.
    #[must_use]
    pub(crate) fn take(&mut self, entry: &Entry) -> bool {
        let (kind, id, name) = match entry {
            Entry::Facts(x) => {
                self.last_id = x.last_id;
                (1, 0, "")
            }
            Entry::Collection(x) => (2, x.id, ""),
            Entry::Channel(x) => (3, 0, x.vchannel.as_str()),
            Entry::Task(x) if acks_fit(x) => (4, x.accepted.id().0, ""),
            Entry::Job(x) => (5, x.accepted.id().0, ""),
            // They have an order of their own, their age, of which they tell nothing.
            Entry::Filter(_) => (6, self.last.1.saturating_add(1), ""),
            _ => return false,
        };
        let is_known = !matches!(kind, 4 | 5) || id <= self.last_id;
        let (last_kind, last_id, last_name) = &self.last;
        let follows = (kind, id, name) > (*last_kind, *last_id, last_name.as_str());
        let begins = (kind == 1) == (*last_kind == 0);
        self.last = (kind, id, name.to_owned());
        is_known && follows && begins
    }

    /// Says whether there was an entry.
    pub(crate) fn has_begun(&self) -> bool {
        self.last.0 > 0
    }
}

impl State {
    /// What a checkpoint begins with: all but tasks, jobs and filters.
    pub(crate) fn begin_entries(&self) -> Vec<Entry> {
        let window = &self.window;
        let facts = Facts {
            last_id: self.last_id,
            newest_ms: self.newest_ms,
            term: self.term,
            ignored: self.ignored,
            expired: window.expired_count(),
            evicted: window.evicted_count(),
            evicted_until_ms: window.evicted_until_ms(),
            evicted_done_ms: window.evicted_done_ms(),
            forgotten: self.seen.forgotten_count(),
            policy: self.policy,
        };
        let mut entries = vec![Entry::Facts(facts)];
        entries.extend(self.collections.values().map(|x| Entry::Collection(Arc::clone(x))));
        entries.extend(self.channels.iter().map(|(vchannel, pchannel)| {
            let (vchannel, pchannel) = (vchannel.clone(), pchannel.clone());
            Entry::Channel(oncelog_format::control::Channel { vchannel, pchannel })
        }));
        entries
    }

    /// The task of an identity as an entry.
    pub(crate) fn task_entry(&self, id: BroadcastId) -> Option<Entry> {
        let task = self.task(id)?.into_owned();
        let owner = task.accepted.scope.as_ref().and_then(|scope| self.owner(scope));
        Some(Entry::Task(TaskEntry {
            accepted: task.accepted,
            accepted_at_ms: task.accepted_at_ms,
            moved_at_ms: task.moved_at_ms,
            owns: owner == Some(id),
            acks: task.acks.into_iter().flatten().collect(),
            parked: task.parked,
            done: task.done,
        }))
    }

    /// The job of an identity as an entry.
    pub(crate) fn job_entry(&self, id: BroadcastId) -> Option<Entry> {
        let job = self.jobs.get(&id)?;
        Some(Entry::Job(JobEntry {
            accepted: Arc::clone(&job.accepted),
            made_at_ms: job.made_at_ms,
            attempt: job.attempt,
            plan: job.plan.clone(),
            state: job.state.clone(),
            end: job.end,
            over: job.over,
        }))
    }

    /// The first task behind an identity.
    pub(crate) fn task_behind(&self, id: BroadcastId) -> Option<BroadcastId> {
        self.task_from(behind(id))
    }

    /// The first job behind an identity.
    pub(crate) fn job_behind(&self, id: BroadcastId) -> Option<BroadcastId> {
        self.jobs.range(behind(id)..).next().map(|(id, _)| *id)
    }

    /// Takes the next entry of a checkpoint, whose order was looked at; false where it cannot stand
    /// there.
    #[must_use]
    pub(crate) fn take_entry(&mut self, entry: Entry) -> bool {
        match entry {
            Entry::Facts(x) => {
                (self.last_id, self.newest_ms, self.term) = (x.last_id, x.newest_ms, x.term);
                (self.ignored, self.policy) = (x.ignored, x.policy);
                self.window.count_dropped(&x);
                self.seen = Seen::forgetting(x.forgotten);
            }
            Entry::Collection(x) => self.take_collection(x),
            Entry::Channel(x) => self.take_channel(&x),
            Entry::Task(x) => return self.take_task(x),
            Entry::Job(x) => {
                let id = x.accepted.id();
                let job = Job {
                    accepted: x.accepted,
                    made_at_ms: x.made_at_ms,
                    attempt: x.attempt,
                    plan: x.plan,
                    state: x.state,
                    end: x.end,
                    over: x.over,
                };
                self.count(job_bytes(&job));
                self.jobs.insert(id, Arc::new(job));
                self.list(id);
            }
            Entry::Filter(x) => self.seen.take_filter(&x),
            _ => return false,
        }
        true
    }

    fn take_task(&mut self, x: TaskEntry) -> bool {
        let id = x.accepted.id();
        let mut acks: Vec<Option<AckPosition>> = vec![None; x.accepted.header.vchannels.len()];
        for ack in x.acks {
            let place = usize::try_from(ack.vchannel).ok().and_then(|at| acks.get_mut(at));
            place.into_iter().for_each(|place| *place = Some(ack));
        }
        if let Some(scope) = &x.accepted.scope {
            if x.owns {
                if self.owner(scope).is_some() {
                    return false;
                }
                self.scopes.insert(scope, id);
            }
            self.window.enter(&scope.principal);
        }
        self.starting += usize::from(x.accepted.job == JobLink::Starts && x.done.is_none());
        let task = TaskState {
            accepted: x.accepted,
            accepted_at_ms: x.accepted_at_ms,
            moved_at_ms: x.moved_at_ms,
            acks,
            parked: x.parked,
            done: x.done,
        };
        if task.done.is_some() {
            self.bury(task);
        } else {
            self.count(task_bytes(&task));
            self.tasks.insert(id, task);
        }
        true
    }

    /// Ends taking entries: what depends on tasks and jobs together is brought up to date.
    pub(crate) fn end_entries(&mut self) {
        let done = self.tasks.iter().filter(|(_, task)| task.done.is_some());
        let done: Vec<BroadcastId> = done.map(|(id, _)| *id).chain(self.tombstones.ids()).collect();
        done.into_iter().for_each(|id| self.index(id));
    }
}

fn behind(id: BroadcastId) -> BroadcastId {
    BroadcastId(id.0.saturating_add(1))
}

/// Says whether the acks of a task are those of vchannels of it, in their order and of each once.
fn acks_fit(task: &TaskEntry) -> bool {
    let count = task.accepted.header.vchannels.len();
    let is_last = |ack: &AckPosition| usize::try_from(ack.vchannel).is_ok_and(|at| at < count);
    task.acks.is_sorted_by(|a, b| a.vchannel < b.vchannel) && task.acks.last().is_none_or(is_last)
}
