//! Imports of a store: asking for one, following it, cancelling it.
//!
//! [`Imports`] owns the threads that drive jobs, one a running job. They begin where the records of
//! the job end, whoever began it, and end with it or with the store.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oncelog_format::control::JobPhase;
use oncelog_format::message::BroadcastId;

use super::asking;
use super::driver;
use super::kind;
use super::plan::is_changed;
use super::request::ImportRequest;
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
    jobs: Mutex<Running>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Running {
    jobs: HashMap<BroadcastId, Entry>,
    closing: bool,
}

#[derive(Debug)]
struct Entry {
    progress: ImportProgress,
    cancelled: bool,
    /// Why the driver stopped, until it is started again.
    stopped: Option<Error>,
    thread: Option<JoinHandle<()>>,
}

impl Entry {
    const fn new() -> Self {
        let phase = JobPhase::Pending;
        let progress = ImportProgress { phase, percent: 0, rows: 0, rows_total: None };
        Self { progress, cancelled: false, stopped: None, thread: None }
    }
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
        let (jobs, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { slice_rows_max, jobs, changed }) }
    }

    /// The message types that the store's broadcaster must know.
    #[must_use]
    pub fn types(&self) -> Vec<Arc<dyn MessageType>> {
        kind::types(self)
    }

    /// Asks for an import; answers when its job exists, or with the original's answer.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for what the request alone shows, which consumes no key; else as
    /// [`Broadcaster::submit`].
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
        let base = std::env::current_dir()
            .map_err(|e| Error::new(ErrorKind::Io, "the current directory").with_source(e))?;
        let request = request.normalised(&base)?;
        if let Some(key) = &call.key {
            check_client_key(key.as_bytes())?;
        }
        asking::submit(broadcaster, &request, call)
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
        let mut work = || {
            let mut job = self.follow(&jobs, answer.id, &left, on_progress)?;
            if call.retry_failed && job.phase() == JobPhase::Failed {
                jobs.reattempt(answer.id, left())?;
                job = self.follow(&jobs, answer.id, &left, on_progress)?;
            }
            Ok(job)
        };
        // Without a key, that there is a job tells what may be asked for again.
        let job = work().map_err(|error| naming(error, answer.id))?;
        Ok(report(&answer, &job))
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
            let running = self.lock();
            let waited = self.shared.changed.wait_timeout(running, wait);
            let (mut running, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(entry) = running.jobs.get_mut(&id) else {
                if running.closing {
                    return Err(Error::new(ErrorKind::Closed, "the store was closed"));
                }
                // It ended just now, or another follower took the error that stopped it.
                drop(running);
                self.drive(id, jobs);
                continue;
            };
            if let Some(error) = entry.stopped.take() {
                running.jobs.remove(&id);
                return Err(error);
            }
            let progress = entry.progress;
            drop(running);
            on_progress(progress);
        }
    }

    /// How far a job is that runs in this process.
    #[must_use]
    pub fn progress(&self, job: BroadcastId) -> Option<ImportProgress> {
        self.lock().jobs.get(&job).map(|entry| entry.progress)
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
        let found = jobs.get(job).ok_or_else(unknown)?;
        if found.over.is_some() {
            return Ok(found);
        }
        self.lock().jobs.entry(job).or_insert_with(Entry::new).cancelled = true;
        let clock = SystemClock::default();
        let start = clock.monotonic();
        let left = || wait.map(|wait| wait.saturating_sub(clock.monotonic() - start));
        self.follow(&jobs, job, &left, &mut |_| {})
    }

    /// Starts the driver of a job, unless it runs.
    pub(crate) fn drive(&self, job: BroadcastId, jobs: &Jobs) {
        let mut running = self.lock();
        if running.closing {
            return;
        }
        let entry = running.jobs.entry(job).or_insert_with(Entry::new);
        if entry.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        entry.stopped = None;
        jobs.going(job);
        let (imports, own) = (self.clone(), jobs.clone());
        let thread = thread::Builder::new()
            .name(format!("import-{job}"))
            .spawn(move || imports.run_driver(job, &own));
        match thread {
            Ok(thread) => entry.thread = Some(thread),
            Err(e) => {
                let what = "a thread for an import cannot be started";
                let error = Error::new(ErrorKind::Io, what).with_source(e);
                jobs.stopped(job, error.clone());
                entry.stopped = Some(error);
            }
        }
    }

    fn run_driver(&self, job: BroadcastId, jobs: &Jobs) {
        let watch = Watch { imports: self.clone(), job };
        let ended = catch_unwind(AssertUnwindSafe(|| driver::drive(job, jobs, &watch)));
        let mut running = self.lock();
        let is_done = matches!(ended, Ok(Ok(())));
        match ended {
            Ok(Ok(())) => {
                running.jobs.remove(&job);
            }
            Ok(Err(error)) => watch.stopped(&mut running, jobs, error),
            Err(_) => {
                let error = Error::new(ErrorKind::Io, "the driver of an import panicked");
                watch.stopped(&mut running, jobs, error);
            }
        }
        drop(running);
        self.shared.changed.notify_all();
        // Whoever began another attempt meanwhile found this thread still there.
        if is_done && jobs.get(job).is_some_and(|job| job.over.is_none()) {
            self.drive(job, jobs);
        }
    }

    /// Ends all drivers and waits for them; jobs stay as they are.
    pub(crate) fn stop(&self) {
        let threads: Vec<JoinHandle<()>> = {
            let mut running = self.lock();
            running.closing = true;
            running.jobs.values_mut().filter_map(|entry| entry.thread.take()).collect()
        };
        for thread in threads {
            // A driver's panic was caught and told within its thread.
            drop(thread.join());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a driver tells and asks while it works.
#[derive(Debug)]
pub(crate) struct Watch {
    imports: Imports,
    job: BroadcastId,
}

impl Watch {
    /// Tells how far the job is.
    pub(crate) fn set(&self, phase: JobPhase, percent: u64, rows: u64) {
        let mut running = self.imports.lock();
        if let Some(entry) = running.jobs.get_mut(&self.job) {
            let percent = u8::try_from(percent.min(100)).unwrap_or(100);
            entry.progress = ImportProgress { phase, percent, rows, ..entry.progress };
        }
        drop(running);
        self.imports.shared.changed.notify_all();
    }

    /// Tells how many rows there will be.
    pub(crate) fn expect(&self, rows: u64) {
        if let Some(entry) = self.imports.lock().jobs.get_mut(&self.job) {
            entry.progress.rows_total = Some(rows);
        }
    }

    /// Fails when the job was cancelled, or the store is being closed.
    pub(crate) fn go_on(&self) -> Result<()> {
        let running = self.imports.lock();
        if running.closing {
            return Err(Error::new(ErrorKind::Closed, "the store is being closed"));
        }
        if running.jobs.get(&self.job).is_some_and(|entry| entry.cancelled) {
            return Err(Error::new(ErrorKind::InvalidInput, "the job was cancelled"));
        }
        Ok(())
    }

    /// Whether the store is being closed.
    pub(crate) fn is_stopping(&self) -> bool {
        self.imports.lock().closing
    }

    /// Most rows of a slice.
    pub(crate) fn slice_rows_max(&self) -> u32 {
        self.imports.shared.slice_rows_max
    }

    fn stopped(&self, running: &mut Running, jobs: &Jobs, error: Error) {
        if let Some(entry) = running.jobs.get_mut(&self.job) {
            // Under the lock under which another driver begins: what is told last is so.
            jobs.stopped(self.job, error.clone());
            entry.stopped = Some(error);
        }
    }
}

/// An error about a job that exists, which says so.
fn naming(error: Error, job: BroadcastId) -> Error {
    if error.broadcast_id().is_some() { error } else { error.with_broadcast(job.0) }
}

/// What a caller is told about a job that is over.
fn report(answer: &Answer, job: &Job) -> ImportReport {
    let phase = job.phase();
    let completed = phase == JobPhase::Completed;
    let files = job.plan.as_ref().map(|plan| plan.files.as_slice()).unwrap_or_default();
    ImportReport {
        job: answer.id,
        phase,
        rows: if completed { job.state.as_ref().map_or(0, |state| state.rows) } else { 0 },
        progress: 100,
        duplicated: answer.duplicated,
        expires_at_ms: answer.expires_at_ms,
        reason: if completed { String::new() } else { job.reason().to_owned() },
        source_changed: answer.duplicated && files.iter().any(is_changed),
        clock_held: answer.clock_held,
    }
}

#[cfg(test)]
mod crash;
#[cfg(test)]
mod full;
#[cfg(test)]
mod halts;
#[cfg(all(test, planted))]
mod planted;
#[cfg(test)]
mod tests;
