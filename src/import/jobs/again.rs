//! Drives on, by itself, what a full disk or a failure of the system stopped.
//!
//! Nobody need ask for a job for it to end. Between two tries is a pause that doubles, as between
//! two of a task: of 10 ms at first, as long as the try took at least, and of 10 s at most. One
//! thread waits for all pauses, and is there only while there are some.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use oncelog_format::message::BroadcastId;

use super::Imports;
use super::pool::Running;
use crate::broadcast::Jobs;
use crate::clock::Clock as _;
use crate::error::{Error, ErrorKind};

/// The first pause.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest one.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Jobs between two tries.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// By the instant from which they are driven.
    due: BTreeMap<(Duration, BroadcastId), Jobs>,
    /// Somebody waits for them.
    is_awaited: bool,
}

impl Again {
    pub(super) fn forget(&mut self, job: BroadcastId) {
        self.due.retain(|(_, other), _| *other != job);
    }

    pub(super) fn clear(&mut self) {
        self.due.clear();
    }
}

/// Whether what stopped a driver may be over a moment later, without anybody's doing.
pub(super) fn passes(error: &Error) -> bool {
    // A poisoned channel is opened again by the next try; of control, nobody tries.
    let kinds = [ErrorKind::StoreFull, ErrorKind::Io, ErrorKind::Poisoned, ErrorKind::InFlight];
    kinds.contains(&error.kind())
}

/// How long a job is left alone that stopped so often, the last time after a try of so long.
fn pause_of(stops: u32, took: Duration) -> Duration {
    let doubled = PAUSE_MIN.saturating_mul(1 << stops.saturating_sub(1).min(10));
    doubled.max(took).min(PAUSE_MAX)
}

impl Imports {
    /// Has a job driven again that stopped.
    pub(super) fn pause(
        &self,
        running: &mut Running,
        (job, jobs): (BroadcastId, &Jobs),
        (stops, took): (u32, Duration),
    ) {
        let due = self.pool().clock.monotonic().saturating_add(pause_of(stops, took));
        running.again.forget(job);
        running.again.due.insert((due, job), jobs.clone());
        if running.again.is_awaited {
            self.pool().paused.notify_all();
            return;
        }
        let imports = self.clone();
        let waits = thread::Builder::new().name("import-again".to_owned());
        // Without a thread whoever asks for the job drives it on.
        if let Ok(thread) = waits.spawn(move || imports.wait_for_pauses()) {
            running.again.is_awaited = true;
            running.threads.push(thread);
        }
    }

    fn wait_for_pauses(&self) {
        let mut running = self.pool().lock();
        while let Some(first) = running.again.due.first_entry() {
            let (due, job) = *first.key();
            let left = due.saturating_sub(self.pool().clock.monotonic());
            if left.is_zero() {
                let jobs = first.remove();
                if jobs.is_usable() {
                    self.drive_in(&mut running, job, &jobs);
                }
                continue;
            }
            let waited = self.pool().paused.wait_timeout(running, left);
            running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        running.again.is_awaited = false;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use oncelog_format::control::JobPhase;

    use super::super::ImportCall;
    use super::super::tests::{open_on, request};
    use super::*;
    use crate::io::mem::{Machine, MemIo};

    #[test]
    fn a_pause_doubles_to_ten_seconds_and_is_no_shorter_than_the_try() {
        let ms = Duration::from_millis;
        for (stops, took, expect) in [
            (1, 0, 10),
            (2, 0, 20),
            (5, 0, 160),
            (10, 0, 5_120),
            (11, 0, 10_000),
            (u32::MAX, 0, 10_000),
            (1, 700, 700),
            (3, 60_000, 10_000),
        ] {
            assert_eq!(pause_of(stops, ms(took)), ms(expect), "{stops} {took}");
        }
    }

    /// The disk was full for a moment, and the job stayed as it was until somebody asked for it:
    /// its collection was held, its slot taken, and its channels pinned.
    #[test]
    fn a_job_that_a_full_disk_stopped_goes_on_once_there_is_space_though_nobody_asks() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.csv");
        let rows: String = (0..60_000).map(|n| format!("{n}\n")).collect();
        std::fs::write(&file, format!("n\n{rows}")).unwrap();
        let io = MemIo::new(Machine::new());
        let files: Arc<dyn crate::io::Io> = Arc::new(io.clone());
        let (imports, broadcaster) = open_on(&files, Path::new("/store"), 1, 64).unwrap();
        let asked = request("c", &[&file]);
        let id = imports.submit(&broadcaster, asked, &ImportCall::of("p")).unwrap().id;
        io.set_free_blocks(Some(0));
        let jobs = broadcaster.jobs();
        // Without a deadline: it is the driver that ends the wait.
        assert_eq!(jobs.wait(id, None).unwrap_err().kind(), ErrorKind::InFlight);
        assert_eq!(broadcaster.stats().jobs_stopped, 1);
        io.set_free_blocks(None);
        let job = jobs.wait(id, Some(Duration::from_secs(60))).unwrap();
        assert_eq!(job.phase(), JobPhase::Completed);
        assert_eq!(broadcaster.stats().jobs_stopped, 0);
        broadcaster.close().unwrap();
        assert!(imports.pool().lock().again.due.is_empty());
    }

    /// A close waits for no pause.
    #[test]
    fn a_store_closes_though_a_job_is_to_be_driven_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.csv");
        std::fs::write(&file, "n\n1\n").unwrap();
        let files: Arc<dyn crate::io::Io> = Arc::new(MemIo::new(Machine::new()));
        let (imports, broadcaster) = open_on(&files, Path::new("/store"), 1, 64).unwrap();
        let asked = request("c", &[&file]);
        let id = imports.submit(&broadcaster, asked, &ImportCall::of("p")).unwrap().id;
        let jobs = broadcaster.jobs();
        jobs.wait(id, None).unwrap();
        {
            let mut running = imports.pool().lock();
            imports.pause(&mut running, (id, &jobs), (30, Duration::ZERO));
            assert!(running.again.is_awaited);
        }
        broadcaster.close().unwrap();
        assert!(!imports.pool().lock().again.is_awaited);
    }
}
