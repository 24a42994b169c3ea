//! Imports of a store: asking for one, following it, cancelling it.
//!
//! [`Imports`] owns the threads that drive jobs, a bounded number of them (`pool`), and tells of
//! jobs (`look`).

mod again;
mod look;
mod pool;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncelog_format::control::JobPhase;
use oncelog_format::message::BroadcastId;

pub use self::look::{ImportFile, ImportJob, ImportPage, JobLook};
pub(crate) use self::pool::Watch;
use self::pool::{Entry, JOBS_AT_ONCE, Pool};
use super::asking;
use super::kind;
use super::plan::is_changed;
use super::request::ImportRequest;
use super::roots::{ImportRoots, Origin};
use super::sizer::SLICE_ROWS;
use crate::broadcast::{Answer, Broadcaster, Job, Jobs, MessageType, check_client_key};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};

/// How far a running job is, as its driver sees it at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportProgress {
    /// What it does.
    pub phase: JobPhase,
    /// 0 to 100.
    pub percent: u8,
    /// Rows that stand.
    pub rows: u64,
    /// Rows of all files, once they were read.
    pub rows_total: Option<u64>,
}

/// How an import ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportReport {
    /// The job; that of the original where the key was accepted before.
    pub job: BroadcastId,
    /// `Completed` or `Failed`.
    pub phase: JobPhase,
    /// Rows that are visible.
    pub rows: u64,
    /// 0 to 100.
    pub progress: u8,
    /// The key was accepted before this call.
    pub duplicated: bool,
    /// Log time from which the key may be used anew, in milliseconds since 1970 UTC.
    pub expires_at_ms: Option<u64>,
    /// Why it failed; empty where it did not.
    pub reason: String,
    /// A source is by now unlike what was imported.
    pub source_changed: bool,
    /// A wall clock far ahead is not believed yet.
    pub clock_held: bool,
}

/// Under which key and whose name an import is asked for, and how long the caller waits.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImportCall {
    /// Idempotency key.
    pub key: Option<String>,
    /// Who asks.
    pub principal: String,
    /// Longest wait; `None` waits without limit.
    pub wait: Option<Duration>,
    /// Try a failed job of the key again.
    pub retry_failed: bool,
}

impl ImportCall {
    /// A call of a principal, without a key and without a limit.
    #[must_use]
    pub fn of(principal: impl Into<String>) -> Self {
        Self { principal: principal.into(), ..Self::default() }
    }

    /// Sets the idempotency key.
    #[must_use]
    pub fn key(mut self, key: Option<String>) -> Self {
        self.key = key;
        self
    }

    /// Sets the longest wait.
    #[must_use]
    pub fn wait(mut self, wait: Option<Duration>) -> Self {
        self.wait = wait;
        self
    }

    /// Tries a failed job again.
    #[must_use]
    pub fn retry_failed(mut self, retry: bool) -> Self {
        self.retry_failed = retry;
        self
    }
}

/// The imports of one store; cheap to clone.
#[derive(Clone, Debug)]
pub struct Imports {
    shared: Arc<Shared>,
}

impl Default for Imports {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
struct Shared {
    slice_rows_max: u32,
    jobs_at_once: usize,
    roots: Option<ImportRoots>,
    pool: Pool,
}

/// Longest sleep of a follower between two looks.
const LOOK: Duration = Duration::from_millis(100);

impl Imports {
    /// Imports of a store that is yet to be opened with [`Imports::types`].
    #[must_use]
    pub fn new() -> Self {
        Self::with_slice_rows(SLICE_ROWS)
    }

    /// The same, with at most this many rows a slice, rounded down to a power of two; plans that
    /// are recorded keep their own number.
    #[must_use]
    pub fn with_slice_rows(rows: u32) -> Self {
        // Slices are sized by windows of powers of two.
        let slice_rows_max = 1 << rows.clamp(1, SLICE_ROWS).ilog2();
        Self::of(slice_rows_max, JOBS_AT_ONCE, None)
    }

    fn of(slice_rows_max: u32, jobs_at_once: usize, roots: Option<ImportRoots>) -> Self {
        let pool = Pool::default();
        Self { shared: Arc::new(Shared { slice_rows_max, jobs_at_once, roots, pool }) }
    }

    /// The same, for requests that may name files below these roots alone.
    #[must_use]
    pub fn below(self, roots: ImportRoots) -> Self {
        Self::of(self.shared.slice_rows_max, self.shared.jobs_at_once, Some(roots))
    }

    /// The same, with so many jobs driven at once (4 where nothing else is asked for, 1 at least);
    /// the others wait for one of them to end.
    #[must_use]
    pub fn at_once(self, jobs: usize) -> Self {
        Self::of(self.shared.slice_rows_max, jobs.max(1), self.shared.roots.clone())
    }

    fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// The roots that requests are held to.
    pub(crate) fn roots(&self) -> Option<&ImportRoots> {
        self.shared.roots.as_ref()
    }

    /// The message types that the store's broadcaster must know.
    #[must_use]
    pub fn types(&self) -> Vec<Arc<dyn MessageType>> {
        kind::types(self)
    }

    /// Asks for an import; answers when its job exists, or with the original's answer. A job of the
    /// key that failed is tried again where the call says so, and one that stopped goes on.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for what the request alone shows, which consumes no key; else as
    /// [`Broadcaster::submit`], and as [`Jobs::reattempt`].
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, the job is durable, and runs to its end whatever is killed.
    pub fn submit(
        &self,
        broadcaster: &Broadcaster,
        request: ImportRequest,
        call: &ImportCall,
    ) -> Result<Answer> {
        let request = match self.roots() {
            Some(roots) => request.below(roots)?,
            None => {
                let base = std::env::current_dir();
                let what = "the current directory";
                let base = base.map_err(|e| Error::new(ErrorKind::Io, what).with_source(e))?;
                request.normalised(&base)?
            }
        };
        if let Some(key) = &call.key {
            check_client_key(key.as_bytes())?;
        }
        let (clock, jobs) = (SystemClock::default(), broadcaster.jobs());
        let start = clock.monotonic();
        let answer = asking::submit(broadcaster, &request, call)?;
        if answer.duplicated {
            if call.retry_failed && is_failed(&jobs, answer.id) {
                let waited = clock.monotonic().saturating_sub(start);
                let left = call.wait.map(|wait| wait.saturating_sub(waited));
                retry(&jobs, answer.id, left).map_err(|error| naming(error, answer.id))?;
            }
            if jobs.get(answer.id).is_some_and(|job| job.over.is_none()) {
                self.drive(answer.id, &jobs);
            }
        }
        Ok(answer)
    }

    /// Runs an import to its end.
    ///
    /// # Errors
    ///
    /// As [`Imports::submit`]; `InFlight` when the wait was over first; what stopped the driver
    /// (`StoreFull`, `Poisoned`, ..), after which the same call goes on where it stopped. Once there
    /// is a job, the error names it: [`Error::broadcast_id`].
    ///
    /// # Durability
    ///
    /// When this returns `Ok` and the job is Completed, every row is durable and visible once.
    pub fn run(
        &self,
        broadcaster: &Broadcaster,
        request: ImportRequest,
        call: &ImportCall,
        on_progress: &mut dyn FnMut(ImportProgress),
    ) -> Result<ImportReport> {
        let clock = SystemClock::default();
        let start = clock.monotonic();
        let answer = self.submit(broadcaster, request, call)?;
        let left = || call.wait.map(|wait| wait.saturating_sub(clock.monotonic() - start));
        let jobs = broadcaster.jobs();
        let job = self.follow(&jobs, answer.id, &left, on_progress);
        // Without a key, that there is a job tells what may be asked for again.
        let job = job.map_err(|error| naming(error, answer.id))?;
        Ok(self.report(&answer, &job))
    }

    /// What a caller is told about a job that is over.
    fn report(&self, answer: &Answer, job: &Job) -> ImportReport {
        let phase = job.phase();
        let completed = phase == JobPhase::Completed;
        ImportReport {
            job: answer.id,
            phase,
            rows: if completed { job.state.as_ref().map_or(0, |state| state.rows) } else { 0 },
            progress: 100,
            duplicated: answer.duplicated,
            expires_at_ms: answer.expires_at_ms,
            reason: if completed { String::new() } else { job.reason().to_owned() },
            source_changed: answer.duplicated && self.is_source_changed(job),
            clock_held: answer.clock_held,
        }
    }

    /// Whether a source of a job is by now unlike what was imported.
    fn is_source_changed(&self, job: &Job) -> bool {
        let Some(plan) = &job.plan else { return false };
        let request = ImportRequest::decode(&job.accepted.payload);
        let origin = request.and_then(|(request, _)| Origin::of(request.root(), self.roots()));
        // What cannot be looked at is not what it was.
        origin.map_or(true, |origin| plan.files.iter().any(|file| is_changed(file, &origin)))
    }

    /// Follows a job to its end.
    fn follow(
        &self,
        jobs: &Jobs,
        id: BroadcastId,
        left: &dyn Fn() -> Option<Duration>,
        on_progress: &mut dyn FnMut(ImportProgress),
    ) -> Result<Arc<Job>> {
        let gone = || Error::new(ErrorKind::InvalidInput, format!("the job {id} is gone"));
        if jobs.get(id).ok_or_else(gone)?.over.is_none() {
            self.drive(id, jobs);
        }
        loop {
            if jobs.get(id).ok_or_else(gone)?.over.is_some() {
                // Its end may have been handed over and not be durable yet.
                match jobs.wait(id, Some(Duration::ZERO)) {
                    Err(e) if e.kind() == ErrorKind::InFlight => {}
                    known => return known,
                }
            }
            let wait = left().map_or(LOOK, |left| left.min(LOOK));
            if wait.is_zero() {
                let what = format!("the job {id} still runs");
                return Err(Error::new(ErrorKind::InFlight, what));
            }
            let running = self.pool().lock();
            let waited = self.pool().changed.wait_timeout(running, wait);
            let (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(entry) = running.jobs.get(&id) else {
                if running.closing {
                    return Err(Error::new(ErrorKind::Closed, "the store was closed"));
                }
                // It ended just now.
                drop(running);
                self.drive(id, jobs);
                continue;
            };
            if let Some(error) = &entry.stopped {
                return Err(error.clone());
            }
            let progress = entry.progress;
            drop(running);
            on_progress(progress);
        }
    }

    /// How far a job is that runs in this process.
    #[must_use]
    pub fn progress(&self, job: BroadcastId) -> Option<ImportProgress> {
        self.pool().lock().jobs.get(&job).map(|entry| entry.progress)
    }

    /// Cancels a job: its attempt is aborted, unless its commit was accepted before. Returns when
    /// one of the two is done, with the job.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a job that is not known; `InFlight` when the wait was over first.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, the verdict is durable.
    pub fn cancel(
        &self,
        broadcaster: &Broadcaster,
        job: BroadcastId,
        wait: Option<Duration>,
    ) -> Result<Arc<Job>> {
        let jobs = broadcaster.jobs();
        let unknown = || Error::new(ErrorKind::InvalidInput, format!("no job {job} is known"));
        {
            // A driver that ends the job behind this look comes to the same lock after it, and
            // forgets the cancel with the rest.
            let mut running = self.pool().lock();
            let found = jobs.get(job).ok_or_else(unknown)?;
            if found.over.is_none() {
                let entry = running.jobs.entry(job).or_insert_with(Entry::new);
                entry.cancelled = Some(found.attempt);
            }
        }
        let clock = SystemClock::default();
        let start = clock.monotonic();
        let left = || wait.map(|wait| wait.saturating_sub(clock.monotonic() - start));
        self.follow(&jobs, job, &left, &mut |_| {})
    }
}

/// An error about a job that exists, which says so.
fn naming(error: Error, job: BroadcastId) -> Error {
    if error.broadcast_id().is_some() { error } else { error.with_broadcast(job.0) }
}

fn is_failed(jobs: &Jobs, job: BroadcastId) -> bool {
    jobs.get(job).is_some_and(|job| matches!(job.over, Some((false, _))))
}

/// Begins the next attempt of a job that failed, unless another call was faster.
fn retry(jobs: &Jobs, job: BroadcastId, wait: Option<Duration>) -> Result<()> {
    // Its end may have been handed over and not be durable yet.
    jobs.wait(job, wait)?;
    match jobs.reattempt(job, wait) {
        Err(e) if e.kind() == ErrorKind::InvalidInput && !is_failed(jobs, job) => Ok(()),
        begun => begun.map(drop),
    }
}

#[cfg(test)]
mod below;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod first;
#[cfg(test)]
mod full;
#[cfg(test)]
mod halts;
#[cfg(test)]
mod listed;
#[cfg(all(test, planted))]
mod planted;
#[cfg(test)]
mod tests;
