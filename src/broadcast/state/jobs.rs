//! Which jobs there are, which run, and which are over: a part of the state with indexes of its
//! own.

use std::sync::Arc;

use oncelog_format::control::Attempt;
use oncelog_format::message::BroadcastId;

use super::State;
use super::task::Job;

impl State {
    pub(super) fn attempt_of(&mut self, job: BroadcastId, attempt: u32) -> Option<&mut Job> {
        self.jobs.get_mut(&job).map(Arc::make_mut).filter(|job| job.attempt == attempt)
    }

    pub(super) fn attempt(&mut self, attempt: Attempt) {
        self.unlist(attempt.job);
        let before = self.jobs.get(&attempt.job).map_or(0, |job| job.attempt);
        self.change_job(attempt.job, before, |job| {
            job.attempt = attempt.attempt;
            (job.plan, job.state, job.end, job.over) = (None, None, None, None);
        });
        self.list(attempt.job);
        self.index(attempt.job);
    }

    /// Takes a job into the indexes of jobs, when it changed.
    pub(super) fn list(&mut self, id: BroadcastId) {
        match self.jobs.get(&id).map(|job| job.over) {
            Some(None) => drop(self.running.insert(id)),
            Some(Some((_, at_ms))) => drop(self.over.insert((at_ms, id))),
            None => {}
        }
    }

    /// Takes a job out of the indexes of jobs, before it changes.
    pub(super) fn unlist(&mut self, id: BroadcastId) {
        match self.jobs.get(&id).map(|job| job.over) {
            Some(None) => drop(self.running.remove(&id)),
            Some(Some((_, at_ms))) => drop(self.over.remove(&(at_ms, id))),
            None => {}
        }
    }

    /// Returns the job of an identity.
    #[must_use]
    pub fn job(&self, id: BroadcastId) -> Option<&Arc<Job>> {
        self.jobs.get(&id)
    }

    /// Returns all jobs that are known, by identity.
    pub fn jobs(&self) -> impl Iterator<Item = (BroadcastId, &Arc<Job>)> {
        self.jobs.iter().map(|(id, job)| (*id, job))
    }

    /// Returns the jobs below an identity, the newest first.
    pub fn jobs_before(&self, id: BroadcastId) -> impl Iterator<Item = &Arc<Job>> {
        self.jobs.range(..id).rev().map(|(_, job)| job)
    }

    /// Says whether a job of this identity may have been and is forgotten; false of one that is
    /// known, and of a broadcast that is known to have started none.
    #[must_use]
    pub fn may_have_had_job(&self, id: BroadcastId) -> bool {
        let was_given = id.0 > 0 && id < self.next_id();
        was_given && !self.jobs.contains_key(&id) && !self.holds_task(id)
    }

    /// Says whether a job of this identity is not over.
    #[must_use]
    pub fn is_running(&self, id: BroadcastId) -> bool {
        self.running.contains(&id)
    }

    /// Returns the jobs that are not over, and the broadcasts that will start one.
    #[must_use]
    pub fn live_job_count(&self) -> usize {
        self.starting + self.running.len()
    }

    /// Returns the jobs that are not over, by identity.
    pub fn running_jobs(&self) -> impl Iterator<Item = (BroadcastId, &Arc<Job>)> {
        self.running.iter().filter_map(|id| Some((*id, self.jobs.get(id)?)))
    }

    /// Returns the jobs that were over at `at_ms` or before, oldest end first.
    pub(crate) fn over_until(&self, at_ms: u64) -> impl Iterator<Item = BroadcastId> {
        self.over.range(..=(at_ms, BroadcastId(u64::MAX))).map(|(_, id)| *id)
    }

    /// Forgets whoever owns a scope.
    #[cfg(planted)]
    pub(crate) fn disown(&mut self, scope: &oncelog_format::message::Scope) {
        if let Some(owner) = self.owner(scope) {
            self.scopes.remove(scope, owner);
        }
    }
}
