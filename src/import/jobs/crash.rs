//! An import on a file system that stops at any persistence point and loses any unsynced part: the
//! same call afterwards ends with every row once.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use super::tests::{open_logs, request, rows_on};
use super::*;
use crate::broadcast::{Options, StoreView};
use crate::import::numpy::tests::npy;
use crate::io::fault::{Dice, Fault, Which};
use crate::io::mem::{Machine, MemIo, survivors};
use crate::log::{CreateMode, Options as LogOptions};
use crate::store::{Store, StoreOptions};

const STORE: &str = "/store";

/// Vchannels, pchannels: a slice is a batch on each of the latter.
const SPREAD: (u32, usize) = (3, 2);

/// Longest pause between two looks at whether the process has stopped.
const LOOK: Duration = Duration::from_millis(2);

/// Opens a store whose segments are so small that nothing is freed of control on a full disk.
fn open_small(io: &MemIo) -> Result<(Imports, Broadcaster)> {
    let log = LogOptions::new().segment_bytes_max(64 << 10).io(Arc::new(io.clone()));
    let imports = Imports::with_slice_rows(2);
    let broadcaster = open_logs(log, Path::new(STORE), SPREAD.1, &imports)?;
    Ok((imports, broadcaster))
}

fn import_on(io: &MemIo, files_of: &[&Path], wait: Option<Duration>) -> Result<ImportReport> {
    let (imports, broadcaster) = open_small(io)?;
    let asked = request("c", files_of).vchannels(Some(SPREAD.0));
    let call = ImportCall::of("p").key(Some("k".to_owned())).wait(wait);
    let (ended, end) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| ended.send(imports.run(&broadcaster, asked, &call, &mut |_| {})).unwrap());
        loop {
            match end.recv_timeout(LOOK) {
                Ok(report) => {
                    drop(broadcaster.close());
                    return report;
                }
                // A process that stopped is not there to retry: closing ends its waits.
                Err(_) if io.is_stopped() => drop(broadcaster.close()),
                Err(_) => {}
            }
        }
    })
}

#[track_caller]
fn check_whole(io: &MemIo, files: &[&Path], expect: &[String], what: &str) {
    let report = import_on(io, files, None).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    assert_eq!((report.phase, report.rows), (JobPhase::Completed, 7), "{what}: {report:?}");
    let io: Arc<dyn crate::io::Io> = Arc::new(io.clone());
    assert_eq!(rows_on(&io, Path::new(STORE), "c"), expect, "{what}");
}

/// Imports with a stop at the `nth` persistence point; the machine, or `None` when it never came.
pub(super) fn stopped_at(machine: &Machine, nth: u64, files: &[&Path]) -> Option<Machine> {
    let io = MemIo::new(machine.clone());
    io.arm(Which::Persist, nth, 1, Fault::Stop);
    let report = import_on(&io, files, None);
    if !io.is_stopped() {
        report.unwrap();
        return None;
    }
    Some(io.machine())
}

#[test]
pub(super) fn an_import_that_is_stopped_anywhere_has_every_row_once_after_its_retry() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    std::fs::write(&file, "n\n0\n1\n2\n3\n4\n5\n6\n").unwrap();
    let expect: Vec<String> = (0..7).map(|n| format!("{{\"n\":\"{n}\"}}")).collect();
    let mut dice = Dice::new(7);
    let mut points = 0;
    for nth in 1.. {
        let Some(killed) = stopped_at(&Machine::new(), nth, &[&file]) else { break };
        points += 1;
        check_whole(&MemIo::new(killed.clone()), &[&file], &expect, &format!("killed at {nth}"));
        let unsynced = killed.unsynced();
        for (way, left) in survivors(&unsynced, 2, &mut dice).iter().enumerate() {
            let lost = killed.power_loss(&unsynced, left);
            let what = format!("power lost at {nth}, way {way}");
            // Every other one is stopped a second time.
            let again = if dice.below(2) == 0 {
                stopped_at(&lost, 1 + dice.below(40), &[&file])
            } else {
                None
            };
            check_whole(&MemIo::new(again.unwrap_or(lost)), &[&file], &expect, &what);
        }
    }
    assert!(points > 40, "only {points} points");
}

#[test]
fn a_set_of_columns_that_is_stopped_anywhere_is_resumed_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let ids: Vec<u8> = (0..7_u16).flat_map(u16::to_le_bytes).collect();
    let paths = [("n", "<u2", "(7,)", ids), ("v", "|i1", "(7, 2)", vec![1; 14])];
    let paths = paths.map(|(name, descr, shape, data)| {
        let path = dir.path().join(format!("{name}.npy"));
        std::fs::write(&path, npy(descr, shape, &data)).unwrap();
        path
    });
    let [n, v] = &paths;
    let expect: Vec<String> = (0..7).map(|n| format!("{{\"n\":{n},\"v\":[1,1]}}")).collect();
    let mut planned = 0;
    for nth in (1..).step_by(3) {
        let Some(killed) = stopped_at(&Machine::new(), nth, &[n, v]) else { break };
        let io: Arc<dyn crate::io::Io> = Arc::new(MemIo::new(killed.clone()));
        let view = StoreView::open(Path::new(STORE), io);
        let has_plan = |view: &StoreView| view.state().jobs().any(|(_, job)| job.plan.is_some());
        planned += usize::from(view.as_ref().is_ok_and(has_plan));
        let what = format!("killed at {nth}");
        check_whole(&MemIo::new(killed), &[n, v], &expect, &what);
    }
    assert!(planned > 2, "only {planned} had a plan to be resumed");
}

/// Time that a test moves on.
#[derive(Debug)]
struct Moved {
    real: SystemClock,
    ms: AtomicU64,
}

impl Clock for Moved {
    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.ms.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        self.real.monotonic() + Duration::from_millis(self.ms.load(Ordering::SeqCst))
    }
}

#[test]
pub(super) fn rows_stay_visible_when_the_record_of_their_job_is_gone() {
    const DAYS_MS: u64 = 3 * 86_400_000;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    std::fs::write(&file, "n\n0\n1\n2\n").unwrap();
    let io: Arc<dyn crate::io::Io> = Arc::new(MemIo::new(Machine::new()));
    let clock = Arc::new(Moved { real: SystemClock::new(), ms: AtomicU64::new(0) });
    let imports = Imports::with_slice_rows(2);
    let store = StoreOptions::new().create(CreateMode::IfMissing).io(Arc::clone(&io));
    let store = Store::open(STORE, &store.clock(Arc::<Moved>::clone(&clock))).unwrap();
    let options = imports.types().into_iter().fold(Options::new(), Options::register);
    let broadcaster = Broadcaster::open(store, options).unwrap();
    let asked = request("c", &[&file]).vchannels(Some(2));
    let report = imports.run(&broadcaster, asked, &ImportCall::of("p"), &mut |_| {}).unwrap();
    let before = rows_on(&io, Path::new(STORE), "c");
    assert_eq!(before.len(), 3);
    clock.ms.fetch_add(DAYS_MS, Ordering::SeqCst);
    assert!(matches!(imports.look(&broadcaster, report.job), JobLook::Known(_)));
    while broadcaster.jobs().get(report.job).is_some() {
        // A refresh has the sweeper look at once.
        broadcaster.refresh(broadcaster.policy()).unwrap();
        thread::yield_now();
    }
    assert_eq!(imports.look(&broadcaster, report.job), JobLook::Gone);
    assert_eq!(imports.look(&broadcaster, BroadcastId(1_000)), JobLook::Never);
    // A look sees what is durable: that the job is forgotten is, once this returns.
    broadcaster.close().unwrap();
    assert_eq!(rows_on(&io, Path::new(STORE), "c"), before);
}

#[test]
fn a_full_disk_stops_an_import_and_space_lets_it_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    std::fs::write(&file, "n\n0\n1\n2\n3\n4\n5\n6\n").unwrap();
    let expect: Vec<String> = (0..7).map(|n| format!("{{\"n\":\"{n}\"}}")).collect();
    let mut refusals = 0;
    for blocks in (0..4000).step_by(11) {
        let io = MemIo::new(Machine::new());
        io.set_free_blocks(Some(blocks));
        let Err(error) = import_on(&io, &[&file], Some(Duration::from_secs(60))) else { break };
        refusals += 1;
        assert!(
            matches!(error.kind(), ErrorKind::StoreFull | ErrorKind::Io),
            "{blocks}: {error:?}"
        );
        io.set_free_blocks(None);
        check_whole(&io, &[&file], &expect, &format!("{blocks} free blocks"));
    }
    assert!(refusals > 2, "only {refusals}");
}

/// Whoever waited without a limit for a commit that found no space heard nothing of it.
#[test]
fn an_import_without_a_limit_is_told_that_the_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    for len in [1, 3_000, 100_000] {
        std::fs::write(&file, format!("n\n{}\n", "x".repeat(len))).unwrap();
        let io = MemIo::new(Machine::new());
        let files: Arc<dyn crate::io::Io> = Arc::new(io.clone());
        let (imports, broadcaster) = open_small(&io).unwrap();
        let run = |key: usize| {
            let asked = request("c", &[&file]).vchannels(Some(SPREAD.0));
            let call = ImportCall::of("p").key(Some(key.to_string()));
            imports.run(&broadcaster, asked, &call, &mut |_| {})
        };
        run(0).unwrap();
        // Until the room that was there before is used up.
        io.set_free_blocks(Some(0));
        let mut key = 1;
        let error = loop {
            match run(key) {
                Ok(_) => key += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error.kind(), ErrorKind::StoreFull | ErrorKind::InFlight), "{error:?}");
        assert!(error.is_retryable());
        let again = run(key).unwrap_err();
        assert!(matches!(again.kind(), ErrorKind::StoreFull | ErrorKind::InFlight), "{again:?}");
        io.set_free_blocks(None);
        let report = run(key).unwrap();
        assert_eq!((report.phase, report.rows), (JobPhase::Completed, 1), "{report:?}");
        broadcaster.close().unwrap();
        assert_eq!(rows_on(&files, Path::new(STORE), "c").len(), key + 1);
    }
}
