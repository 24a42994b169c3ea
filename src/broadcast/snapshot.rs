//! The state as it was at one LSN, read out in small steps while it goes on changing.
//!
//! Copying a state of a million keys at once would hold every submission up. So a [`Snapshot`]
//! keeps, of each task and job that a later record changes, what it was before, and hands out the
//! entries of a checkpoint (SPEC 13.3) a few at a time.

use std::collections::BTreeMap;

use oncelog_format::control::{Body, ControlRecord, Entry, JobLink};
use oncelog_format::message::BroadcastId;

use super::seen::Seen;
use super::state::State;

/// Where it stands in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Behind this task.
    Tasks(BroadcastId),
    /// Behind this job.
    Jobs(BroadcastId),
    End,
}

/// A state at one LSN.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The greatest identity then.
    last: BroadcastId,
    begin: Vec<Entry>,
    /// The dropped keys then: blocks of bits that are shared until they change.
    seen: Seen,
    /// Tasks that changed since, as they were; those behind the stage alone.
    tasks: BTreeMap<BroadcastId, Entry>,
    /// The same of jobs; `None` for one that was not there.
    jobs: BTreeMap<BroadcastId, Option<Entry>>,
    stage: Stage,
}

impl Snapshot {
    /// Takes the state as it is.
    pub(crate) fn new(state: &State) -> Self {
        Self {
            last: state.last_id(),
            begin: state.begin_entries(),
            seen: state.seen().clone(),
            tasks: BTreeMap::new(),
            jobs: BTreeMap::new(),
            stage: Stage::Tasks(BroadcastId(0)),
        }
    }

    /// Keeps what the record is about to change. `state` is the state before it.
    pub(crate) fn note(&mut self, state: &State, record: &ControlRecord) {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::SnapshotLate) {
            return;
        }
        match &record.body {
            Body::Accepted(x) => {
                let owner = x.scope.as_ref().and_then(|scope| state.owner(scope));
                owner.into_iter().for_each(|id| self.keep_task(state, id));
                if let JobLink::Ends { job, .. } = x.job {
                    self.keep_job(state, job);
                }
            }
            Body::Ack(x) => self.keep_task(state, x.id),
            Body::Done(x) => {
                self.keep_task(state, x.id);
                self.keep_job(state, x.id);
                let link = state.task(x.id).map(|task| task.accepted.job);
                if let Some(JobLink::Ends { job, .. }) = link {
                    self.keep_job(state, job);
                }
            }
            Body::Dropped(x) => {
                self.keep_task(state, x.id);
                self.keep_job(state, x.id);
            }
            Body::Park(x) => self.keep_task(state, x.id),
            Body::Resume(x) => self.keep_task(state, x.id),
            Body::Attempt(x) => self.keep_job(state, x.job),
            Body::JobPlan(x) => self.keep_job(state, x.job),
            Body::JobState(x) => self.keep_job(state, x.job),
            // They change what was taken whole at the begin, or nothing.
            _ => {}
        }
    }

    fn keep_task(&mut self, state: &State, id: BroadcastId) {
        let Stage::Tasks(behind) = self.stage else { return };
        if id > behind
            && id <= self.last
            && !self.tasks.contains_key(&id)
            && let Some(entry) = state.task_entry(id)
        {
            self.tasks.insert(id, entry);
        }
    }

    fn keep_job(&mut self, state: &State, id: BroadcastId) {
        let goes = match self.stage {
            Stage::Tasks(_) => true,
            Stage::Jobs(behind) => id > behind,
            Stage::End => false,
        };
        if goes && id <= self.last {
            self.jobs.entry(id).or_insert_with(|| state.job_entry(id));
        }
    }

    /// Hands out the next entries but filters, about `max` of them; none when there are no more.
    pub(crate) fn next(&mut self, state: &State, max: usize) -> Vec<Entry> {
        let mut entries = std::mem::take(&mut self.begin);
        while entries.len() < max && self.stage != Stage::End {
            match self.stage {
                Stage::Tasks(behind) => match self.next_task(state, behind) {
                    Some((id, entry)) => {
                        self.stage = Stage::Tasks(id);
                        entries.push(entry);
                    }
                    None => self.stage = Stage::Jobs(BroadcastId(0)),
                },
                Stage::Jobs(behind) => match self.next_job(state, behind) {
                    Some((id, entry)) => {
                        self.stage = Stage::Jobs(id);
                        entries.extend(entry);
                    }
                    None => self.stage = Stage::End,
                },
                Stage::End => {}
            }
        }
        entries
    }

    /// The last entries. They need no state, and come to mebibytes: not to be asked for under the
    /// lock.
    pub(crate) fn filters(self) -> impl Iterator<Item = Entry> {
        let Self { seen, .. } = self;
        (0..seen.filters().len()).filter_map(move |at| {
            seen.filters().get(at).map(|filter| Entry::Filter(filter.entry()))
        })
    }

    fn next_task(&mut self, state: &State, behind: BroadcastId) -> Option<(BroadcastId, Entry)> {
        let kept = self.tasks.first_key_value().map(|(id, _)| *id);
        let stands = state.task_behind(behind).filter(|id| *id <= self.last);
        let id = [kept, stands].into_iter().flatten().min()?;
        let entry = self.tasks.remove(&id).or_else(|| state.task_entry(id))?;
        Some((id, entry))
    }

    fn next_job(
        &mut self,
        state: &State,
        behind: BroadcastId,
    ) -> Option<(BroadcastId, Option<Entry>)> {
        let kept = self.jobs.first_key_value().map(|(id, _)| *id);
        let stands = state.job_behind(behind).filter(|id| *id <= self.last);
        let id = [kept, stands].into_iter().flatten().min()?;
        let entry = self.jobs.remove(&id).unwrap_or_else(|| state.job_entry(id));
        Some((id, entry))
    }
}
