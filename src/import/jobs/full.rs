//! Imports on a disk that is full: a job ends whatever else is refused.

use std::path::Path;

use oncelog_format::control::JobState;

use super::crash::stopped_at;
use super::tests::request;
use super::*;
use crate::broadcast::Options;
use crate::io::mem::{Machine, MemIo};
use crate::log::{CreateMode, Options as LogOptions};
use crate::store::{Store, StoreOptions};

const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn open(io: &MemIo) -> (Imports, Broadcaster) {
    let imports = Imports::with_slice_rows(64);
    let options = imports.types().into_iter().fold(Options::new(), Options::register);
    (imports, open_with(io, options))
}

fn open_with(io: &MemIo, options: Options) -> Broadcaster {
    let log = LogOptions::new().segment_bytes_max(64 << 10).io(Arc::new(io.clone()));
    let store = StoreOptions::new().create(CreateMode::IfMissing).log(log);
    let store = store.pchannels(vec!["p0".to_owned(), "p1".to_owned()]);
    let store = Store::open(Path::new("/store"), &store).unwrap();
    Broadcaster::open(store, options).unwrap()
}

/// Fills control, to the last byte, with records that nothing was promised to.
fn fill(jobs: &Jobs, job: BroadcastId) {
    for len in [4_000, 0] {
        let (phase, reason) = (JobPhase::Importing, "r".repeat(len));
        let (progress, rows, detail) = (50, 0, Vec::new());
        let state = JobState { job, attempt: 1, phase, progress, rows, reason, detail };
        let refused = (0..10_000).find_map(|_| jobs.record(state.clone()).err());
        assert_eq!(refused.unwrap().kind(), ErrorKind::StoreFull);
    }
}

/// The record that the job failed was refused, and so its end was not asked for, for which there
/// was room: it kept its locks, its slot, and the space that its end would have freed.
#[test]
fn a_job_is_cancelled_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    let rows: String = (0..60_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(&file, format!("n\n{rows}")).unwrap();
    for (free, is_opened_again) in [0, 8, 20, 33].into_iter().flat_map(|n| [(n, false), (n, true)])
    {
        let what = format!("{free} free blocks, opened again: {is_opened_again}");
        let io = MemIo::new(Machine::new());
        let (mut imports, mut broadcaster) = open(&io);
        let asked = request("c", &[&file]).vchannels(Some(2));
        let answer = imports.submit(&broadcaster, asked, &ImportCall::of("p")).unwrap();
        io.set_free_blocks(Some(free));
        let id = answer.id;
        let stopped = imports.follow(&broadcaster.jobs(), id, &|| LONG, &mut |_| {});
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::StoreFull, "{what}");
        fill(&broadcaster.jobs(), id);
        if is_opened_again {
            broadcaster.close().unwrap();
            (imports, broadcaster) = open(&io);
        }
        let cancelled = imports.cancel(&broadcaster, id, LONG);
        let job = cancelled.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(job.phase(), JobPhase::Failed, "{what}");
        assert_eq!(broadcaster.jobs().running(), [], "{what}");
        broadcaster.close().unwrap();
    }
}

/// The same of the record before a commit: rows that all stand were never seen.
#[test]
fn a_job_whose_rows_stand_is_committed_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    std::fs::write(&file, "n\n0\n1\n2\n").unwrap();
    let mut committed = 0;
    for nth in 1.. {
        let Some(machine) = stopped_at(&Machine::new(), nth, &[&file]) else { break };
        // Nobody drives it while control is filled.
        let io = MemIo::new(machine);
        let broadcaster = open_with(&io, Options::new());
        let running = broadcaster.jobs().running();
        let Some(id) = running.first().copied() else { continue };
        if broadcaster.jobs().get(id).unwrap().end.is_some() {
            // Whoever does not know how it ends parks that.
            continue;
        }
        io.set_free_blocks(Some(0));
        fill(&broadcaster.jobs(), id);
        broadcaster.close().unwrap();
        let (imports, broadcaster) = open(&io);
        match imports.follow(&broadcaster.jobs(), id, &|| LONG, &mut |_| {}) {
            Ok(job) => {
                assert_eq!(job.phase(), JobPhase::Completed, "stopped at {nth}");
                committed += 1;
            }
            // Its plan, or a row, was not there yet.
            Err(e) => assert_eq!(e.kind(), ErrorKind::StoreFull, "stopped at {nth}"),
        }
        broadcaster.close().unwrap();
    }
    assert!(committed > 0, "a job is not committed though all its rows stand");
}
