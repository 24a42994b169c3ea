//! The drivers of jobs: so many at once, the others in the order in which they were to begin.
//!
//! A driver has a thread. It begins where the records of its job end, whoever began it, and ends
//! with the job, with what stops it, or with the store. A job that was cancelled waits for no other:
//! all that its driver does is to end it. One that was stopped by what passes, such as a full disk,
//! is driven again after a pause (`again`).

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oncelog_format::control::JobPhase;
use oncelog_format::message::BroadcastId;

use super::again::{Again, passes};
use super::{ImportProgress, Imports};
use crate::broadcast::Jobs;
use crate::clock::{Clock as _, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::import::driver;
use crate::import::request::ImportRequest;
use crate::import::roots::Origin;

/// Jobs that are driven at once, where nothing else is asked for: each holds a few slices, and two
/// threads.
pub(super) const JOBS_AT_ONCE: usize = 4;

/// How long a driver that stopped is left alone by who merely looks at its job.
const STOPPED_FOR: Duration = Duration::from_secs(5);

/// What the imports of a process share about their drivers.
#[derive(Debug, Default)]
pub(super) struct Pool {
    running: Mutex<Running>,
    pub(super) changed: Condvar,
    /// Tells who waits for pauses that there is another one, or that the store closes.
    pub(super) paused: Condvar,
    pub(super) clock: SystemClock,
}

#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) jobs: HashMap<BroadcastId, Entry>,
    pub(super) closing: bool,
    /// Jobs whose driver stopped, and begins again.
    pub(super) again: Again,
    /// Jobs whose driver is to begin as soon as another ends.
    queue: VecDeque<(BroadcastId, Jobs)>,
    /// Drivers with a thread.
    driving: usize,
    pub(super) threads: Vec<JoinHandle<()>>,
    /// Most drivers that there were at once.
    #[cfg(test)]
    pub(super) most: usize,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) progress: ImportProgress,
    /// The attempt that was cancelled: no other one is.
    pub(super) cancelled: Option<u32>,
    /// Why the driver stopped, until somebody asks for another try, or one gets further.
    pub(super) stopped: Option<Error>,
    /// When it did.
    stopped_at: Duration,
    /// How often it did since it got further.
    pub(super) stops: u32,
    /// When it began last.
    began_at: Duration,
    /// It has a thread.
    is_driven: bool,
    is_queued: bool,
}

impl Entry {
    pub(super) const fn new() -> Self {
        let phase = JobPhase::Pending;
        Self {
            progress: ImportProgress { phase, percent: 0, rows: 0, rows_total: None },
            cancelled: None,
            stopped: None,
            stopped_at: Duration::ZERO,
            stops: 0,
            began_at: Duration::ZERO,
            is_driven: false,
            is_queued: false,
        }
    }

    /// Whether the current attempt was cancelled.
    fn is_cancelled(&self, attempt: impl FnOnce() -> Option<u32>) -> bool {
        self.cancelled.is_some_and(|cancelled| attempt() == Some(cancelled))
    }

    /// Whether a driver is at work on it.
    pub(super) const fn is_driven(&self) -> bool {
        self.is_driven
    }
}

impl Pool {
    pub(super) fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Imports {
    /// Begins to drive a job, unless it is driven: at once, or when another driver ends.
    pub(crate) fn drive(&self, job: BroadcastId, jobs: &Jobs) {
        let mut running = self.pool().lock();
        if running.closing {
            return;
        }
        let entry = running.jobs.entry(job).or_insert_with(Entry::new);
        if entry.stopped.take().is_some() || !entry.is_driven {
            // Whoever waits for it waits: it will be driven.
            jobs.going(job);
        }
        self.drive_in(&mut running, job, jobs);
    }

    /// The same, of a job that stays told as stopped until its driver got further.
    pub(super) fn drive_in(&self, running: &mut Running, job: BroadcastId, jobs: &Jobs) {
        let may_begin = running.driving < self.shared.jobs_at_once;
        let entry = running.jobs.entry(job).or_insert_with(Entry::new);
        let is_cancelled = entry.is_cancelled(|| jobs.get(job).map(|job| job.attempt));
        if entry.is_driven || (entry.is_queued && !is_cancelled) {
            return;
        }
        running.again.forget(job);
        if may_begin || is_cancelled {
            self.begin(running, job, jobs);
        } else {
            entry.is_queued = true;
            running.queue.push_back((job, jobs.clone()));
        }
    }

    /// Drives a job again that stopped a while ago: whoever looks at it wants it to end.
    pub(super) fn drive_again(&self, job: BroadcastId, jobs: &Jobs) {
        let is_due = {
            let running = self.pool().lock();
            let since = |entry: &Entry| {
                entry.stopped.is_some()
                    && self.pool().clock.monotonic().saturating_sub(entry.stopped_at) >= STOPPED_FOR
            };
            running.jobs.get(&job).is_some_and(since)
        };
        if is_due {
            self.drive(job, jobs);
        }
    }

    fn begin(&self, running: &mut Running, job: BroadcastId, jobs: &Jobs) {
        running.threads.retain(|thread| !thread.is_finished());
        running.queue.retain(|(queued, _)| *queued != job);
        let (imports, own) = (self.clone(), jobs.clone());
        let thread = thread::Builder::new()
            .name(format!("import-{job}"))
            .spawn(move || imports.run_driver(job, &own));
        let entry = running.jobs.entry(job).or_insert_with(Entry::new);
        entry.is_queued = false;
        entry.began_at = self.pool().clock.monotonic();
        match thread {
            Ok(thread) => {
                entry.is_driven = true;
                running.driving += 1;
                #[cfg(test)]
                {
                    running.most = running.most.max(running.driving);
                }
                running.threads.push(thread);
            }
            Err(e) => {
                let what = "a thread for an import cannot be started";
                let error = Error::new(ErrorKind::Io, what).with_source(e);
                self.stopped(running, (job, jobs), error);
            }
        }
    }

    /// Told under the lock under which another driver begins: what is told last is so.
    fn stopped(&self, running: &mut Running, (job, jobs): (BroadcastId, &Jobs), error: Error) {
        let now = self.pool().clock.monotonic();
        let Some(entry) = running.jobs.get_mut(&job) else { return };
        if entry.stops == 0 {
            jobs.stopped(job, error.clone());
        } else {
            jobs.stopped_again(job, error.clone());
        }
        let is_again = passes(&error);
        let took = now.saturating_sub(entry.began_at);
        entry.stopped = Some(error);
        entry.stopped_at = now;
        entry.stops = entry.stops.saturating_add(1);
        let stops = entry.stops;
        if is_again && !running.closing {
            self.pause(running, (job, jobs), (stops, took));
        }
    }

    fn run_driver(&self, job: BroadcastId, jobs: &Jobs) {
        let watch = Watch { imports: self.clone(), job };
        let ended = catch_unwind(AssertUnwindSafe(|| driver::drive(job, jobs, &watch)));
        let mut running = self.pool().lock();
        let is_done = matches!(ended, Ok(Ok(())));
        running.driving = running.driving.saturating_sub(1);
        if let Some(entry) = running.jobs.get_mut(&job) {
            entry.is_driven = false;
        }
        match ended {
            Ok(Ok(())) => {
                let left = running.jobs.remove(&job).and_then(|entry| entry.cancelled);
                // Another attempt may have begun meanwhile, and been cancelled.
                if let Some(attempt) = left
                    && jobs.get(job).is_some_and(|job| job.over.is_none() && job.attempt == attempt)
                {
                    let cancelled = Some(attempt);
                    running.jobs.insert(job, Entry { cancelled, ..Entry::new() });
                }
            }
            Ok(Err(error)) => self.stopped(&mut running, (job, jobs), error),
            Err(_) => {
                let error = Error::new(ErrorKind::Io, "the driver of an import panicked");
                self.stopped(&mut running, (job, jobs), error);
            }
        }
        self.begin_next(&mut running);
        drop(running);
        self.pool().changed.notify_all();
        // Whoever began another attempt meanwhile found this driver still there.
        if is_done && jobs.get(job).is_some_and(|job| job.over.is_none()) {
            self.drive(job, jobs);
        }
    }

    fn begin_next(&self, running: &mut Running) {
        while !running.closing && running.driving < self.shared.jobs_at_once {
            let Some((job, jobs)) = running.queue.pop_front() else { return };
            self.begin(running, job, &jobs);
        }
    }

    /// Ends all drivers and waits for them; jobs stay as they are.
    pub(crate) fn stop(&self) {
        let threads = {
            let mut running = self.pool().lock();
            running.closing = true;
            running.queue.clear();
            running.again.clear();
            std::mem::take(&mut running.threads)
        };
        self.pool().paused.notify_all();
        for thread in threads {
            // A driver's panic was caught and told within its thread.
            drop(thread.join());
        }
    }
}

/// What a driver tells and asks while it works.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    imports: Imports,
    job: BroadcastId,
}

impl Watch {
    /// Tells how far the job is.
    pub(crate) fn set(&self, phase: JobPhase, percent: u64, rows: u64) {
        let mut running = self.imports.pool().lock();
        if let Some(entry) = running.jobs.get_mut(&self.job) {
            let percent = u8::try_from(percent.min(100)).unwrap_or(100);
            entry.progress = ImportProgress { phase, percent, rows, ..entry.progress };
        }
        drop(running);
        self.imports.pool().changed.notify_all();
    }

    /// Tells that the job got further than where it stopped, where it did: it is driven.
    pub(crate) fn gets_further(&self, jobs: &Jobs) {
        let mut running = self.imports.pool().lock();
        let Some(entry) = running.jobs.get_mut(&self.job) else { return };
        if entry.stops > 0 {
            (entry.stops, entry.stopped) = (0, None);
            jobs.going(self.job);
        }
    }

    /// Tells how many rows there will be.
    pub(crate) fn expect(&self, rows: u64) {
        if let Some(entry) = self.imports.pool().lock().jobs.get_mut(&self.job) {
            entry.progress.rows_total = Some(rows);
        }
    }

    /// Fails when this attempt of the job was cancelled, or the store is being closed.
    pub(crate) fn go_on(&self, attempt: u32) -> Result<()> {
        let running = self.imports.pool().lock();
        if running.closing {
            return Err(Error::new(ErrorKind::Closed, "the store is being closed"));
        }
        if running.jobs.get(&self.job).is_some_and(|entry| entry.cancelled == Some(attempt)) {
            return Err(Error::new(ErrorKind::InvalidInput, "the job was cancelled"));
        }
        Ok(())
    }

    /// Whether the store is being closed.
    pub(crate) fn is_stopping(&self) -> bool {
        self.imports.pool().lock().closing
    }

    /// Where the paths of a request begin.
    pub(crate) fn origin(&self, request: &ImportRequest) -> Result<Origin> {
        Origin::of(request.root(), self.imports.roots())
    }

    /// Most rows of a slice.
    pub(crate) fn slice_rows_max(&self) -> u32 {
        self.imports.shared.slice_rows_max
    }
}
