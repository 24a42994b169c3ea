//! What is told of a job to whoever asks, as a whole and file by file.

use std::path::PathBuf;
use std::sync::Arc;

use oncelog_format::control::JobPhase;
use oncelog_format::message::BroadcastId;

use super::{ImportProgress, Imports};
use crate::broadcast::{Broadcaster, Job, State};
use crate::import::plan;
use crate::import::request::ImportRequest;

/// A job as it is told: what its records say, and of one that runs in this process how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportJob {
    /// The job.
    pub id: BroadcastId,
    /// Name of its collection.
    pub collection: String,
    /// How far it is.
    pub phase: JobPhase,
    /// 0 to 100.
    pub progress: u8,
    /// Rows that stand; once it is over, rows that are visible.
    pub rows: u64,
    /// Rows of all files, once they were read.
    pub rows_total: Option<u64>,
    /// Why it failed; empty where it did not.
    pub reason: String,
    /// Why nobody drives it, though it is not over.
    pub stopped: Option<String>,
    /// The current attempt, from 1.
    pub attempt: u32,
    /// Its files, in order.
    pub files: Vec<ImportFile>,
    /// Log time at which it was made, in milliseconds since 1970 UTC.
    pub made_at_ms: u64,
    /// Log time at which it was over.
    pub over_at_ms: Option<u64>,
}

/// A file of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportFile {
    /// As the plan names it: from its root on, or absolute on the command line.
    pub path: PathBuf,
    /// Number of its set among those of the request, from 0: files of one set are columns of the
    /// same rows.
    pub set: usize,
    /// How far it is.
    pub phase: JobPhase,
    /// Its length, once it was read.
    pub bytes: Option<u64>,
    /// Rows of it that stand; once the job is over, those that are visible.
    pub rows: u64,
    /// Its rows, once they were read.
    pub rows_total: Option<u64>,
    /// Why the job failed, where that is this file's fault.
    pub reason: String,
}

/// What is known of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobLook {
    /// It is known.
    Known(Box<ImportJob>),
    /// Its identity was given to a broadcast, and its record, where it had one, is kept no longer.
    Gone,
    /// There never was such a job.
    Never,
}

impl JobLook {
    /// What a state knows of a job.
    #[must_use]
    pub fn of(state: &State, id: BroadcastId) -> Self {
        match state.job(id) {
            Some(job) => Self::Known(Box::new(ImportJob::of(job))),
            None if state.may_have_had_job(id) => Self::Gone,
            None => Self::Never,
        }
    }
}

impl ImportJob {
    /// What the records of a job say.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        Self::with(job, None)
    }

    fn with(job: &Job, live: Option<ImportProgress>) -> Self {
        let said = job.state.as_ref();
        let live = live.filter(|_| job.over.is_none());
        let phase = match live {
            // What was recorded last may be of a driver that had got further.
            Some(live) if job.end.is_none() => job.phase().max(live.phase.min(JobPhase::Importing)),
            _ => job.phase(),
        };
        let rows = match (job.over, live) {
            (Some((false, _)), _) => 0,
            (None, Some(live)) => live.rows.max(said.map_or(0, |said| said.rows)),
            _ => said.map_or(0, |said| said.rows),
        };
        let progress = match (job.over, live) {
            (Some(_), _) => 100,
            (None, live) => {
                let said = said.map_or(0, |said| said.progress);
                live.map_or(said, |live| live.percent.max(said))
            }
        };
        let request = ImportRequest::decode(&job.accepted.payload).ok().map(|(request, _)| request);
        let reason = if phase == JobPhase::Completed { "" } else { job.reason() };
        let mut told = Self {
            id: job.id(),
            collection: request.as_ref().map(|asked| asked.collection.clone()).unwrap_or_default(),
            phase,
            progress,
            rows,
            rows_total: live.and_then(|live| live.rows_total),
            reason: reason.to_owned(),
            stopped: None,
            attempt: job.attempt,
            files: request.iter().flat_map(files).collect(),
            made_at_ms: job.made_at_ms,
            over_at_ms: job.over.map(|(_, at_ms)| at_ms),
        };
        told.take_plan(job);
        told.take_fault(job);
        told
    }

    /// What the plan says of the files: rows stand in the order of the sets.
    fn take_plan(&mut self, job: &Job) {
        let early =
            if self.phase == JobPhase::Pending { self.phase } else { JobPhase::PreImporting };
        let is_over = job.over.is_some();
        let Some(plan) = &job.plan else {
            let phase = if is_over { self.phase } else { early };
            self.files.iter_mut().for_each(|file| file.phase = phase);
            return;
        };
        let (mut left, mut total, mut set) = (self.rows, 0_u64, None);
        let (mut rows, mut phase) = (0, JobPhase::Pending);
        for (file, planned) in self.files.iter_mut().zip(&plan.files) {
            if set.replace(file.set) != Some(file.set) {
                // All files of a set have the rows of the set.
                rows = planned.rows.min(left);
                left -= rows;
                total = total.saturating_add(planned.rows);
                phase = match (is_over, rows) {
                    (true, _) => self.phase,
                    (false, rows) if rows == planned.rows => JobPhase::Committing,
                    (false, 0) => JobPhase::Pending,
                    (false, _) => JobPhase::Importing,
                };
            }
            (file.bytes, file.rows_total) = (Some(planned.bytes), Some(planned.rows));
            (file.rows, file.phase) = (rows, phase);
        }
        self.rows_total = Some(total);
    }

    fn take_fault(&mut self, job: &Job) {
        let fault = job.state.as_ref().and_then(|said| plan::fault_of(&said.detail));
        if let Some(file) = fault.and_then(|at| self.files.get_mut(at)) {
            file.reason.clone_from(&self.reason);
            file.phase = JobPhase::Failed;
        }
    }
}

/// The files of a request, of which nothing is known yet.
fn files(request: &ImportRequest) -> Vec<ImportFile> {
    let sets = request.sets.iter().enumerate();
    let files = sets.flat_map(|(set, files)| files.iter().map(move |path| (set, path)));
    let told = files.map(|(set, path)| ImportFile {
        path: path.clone(),
        set,
        phase: JobPhase::Pending,
        bytes: None,
        rows: 0,
        rows_total: None,
        reason: String::new(),
    });
    told.collect()
}

/// A page of jobs, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportPage {
    /// The jobs.
    pub jobs: Vec<ImportJob>,
    /// Where the next page begins; `None` behind the last job.
    pub next: Option<BroadcastId>,
}

impl Imports {
    /// Tells what is known of a job. One that stopped a while ago is driven on, in this process.
    #[must_use]
    pub fn look(&self, broadcaster: &Broadcaster, id: BroadcastId) -> JobLook {
        let (job, look) = broadcaster.read(|state, _| match state.job(id) {
            Some(job) => (Some(Arc::clone(job)), JobLook::Never),
            None => (None, JobLook::of(state, id)),
        });
        let Some(job) = job else { return look };
        if job.over.is_none() {
            self.drive_again(id, &broadcaster.jobs());
        }
        JobLook::Known(Box::new(self.told(&job)))
    }

    /// Tells of jobs that `wanted` takes, which calls nothing of the broadcaster, the newest first,
    /// `count` at most and none from `before` on. An identity stands for one job for good: a page
    /// that begins where another ended repeats none and leaves none out, whatever begins or goes
    /// meanwhile.
    pub fn page(
        &self,
        broadcaster: &Broadcaster,
        before: Option<BroadcastId>,
        count: usize,
        wanted: &dyn Fn(&Job) -> bool,
    ) -> ImportPage {
        let found: Vec<Arc<Job>> = broadcaster.read(|state, _| {
            let jobs = state.jobs_before(before.unwrap_or(BroadcastId(u64::MAX)));
            let wanted = jobs.filter(|job| wanted(job)).take(count.saturating_add(1));
            wanted.cloned().collect()
        });
        let jobs: Vec<ImportJob> = found.iter().take(count).map(|job| self.told(job)).collect();
        let next = jobs.last().filter(|_| found.len() > count).map(|last| last.id);
        ImportPage { jobs, next }
    }

    fn told(&self, job: &Job) -> ImportJob {
        let running = self.pool().lock();
        let entry = running.jobs.get(&job.id()).filter(|_| job.over.is_none());
        let progress = entry.filter(|entry| entry.is_driven()).map(|entry| entry.progress);
        let stopped = entry.and_then(|entry| entry.stopped.clone());
        drop(running);
        let stopped = stopped.map(|error| crate::import::driver::told(&error));
        ImportJob { stopped, ..ImportJob::with(job, progress) }
    }
}
