//! Imports on a disk that is full: a job ends whatever else is refused.

use std::path::Path;

use oncelog_format::control::JobState;

use super::tests::request;
use super::*;
use crate::broadcast::Options;
use crate::io::mem::{Machine, MemIo};
use crate::log::{CreateMode, Options as LogOptions};
use crate::store::{Store, StoreOptions};

const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn open(io: &MemIo) -> (Imports, Broadcaster) {
    let imports = Imports::with_slice_rows(64);
    let log = LogOptions::new().segment_bytes_max(64 << 10).io(Arc::new(io.clone()));
    let store = StoreOptions::new().create(CreateMode::IfMissing).log(log);
    let store = Store::open(Path::new("/store"), &store).unwrap();
    let options = imports.types().into_iter().fold(Options::new(), Options::register);
    (imports, Broadcaster::open(store, options).unwrap())
}

/// Fills control with records that nothing was promised to.
fn fill(jobs: &Jobs, job: BroadcastId) {
    let reason = "r".repeat(4_000);
    let phase = JobPhase::Importing;
    let (progress, rows, detail) = (50, 0, Vec::new());
    let state = JobState { job, attempt: 1, phase, progress, rows, reason, detail };
    let refused = (0..10_000).find_map(|_| jobs.record(state.clone()).err());
    assert_eq!(refused.unwrap().kind(), ErrorKind::StoreFull);
}

/// The record that the job failed was refused, and so its end was not asked for, for which there was
/// room: it kept its locks, its slot, and the space that its end would have freed.
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

/// The same of the record before a commit.
#[test]
fn a_job_whose_rows_stand_is_committed_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    std::fs::write(&file, "n\n0\n1\n2\n").unwrap();
    let mut committed = 0;
    for free in 0..40 {
        let io = MemIo::new(Machine::new());
        let (imports, broadcaster) = open(&io);
        let jobs = broadcaster.jobs();
        let answer = imports.submit(&broadcaster, request("c", &[&file]), &ImportCall::of("p"));
        let id = answer.unwrap().id;
        io.set_free_blocks(Some(free));
        // As many records of others as there is room for, beside those of the job.
        let ended = thread::scope(|scope| {
            let others = scope.spawn(|| {
                let name = |n: u32| vec![format!("{free}-{n:0200}")];
                (0..10_000).find_map(|n| broadcaster.ensure_vchannels(&name(n)).err()).unwrap()
            });
            let ended = imports.follow(&jobs, id, &|| LONG, &mut |_| {});
            assert_eq!(others.join().unwrap().kind(), ErrorKind::StoreFull);
            ended
        });
        match ended {
            Ok(job) => {
                assert_eq!(job.phase(), JobPhase::Completed);
                committed += 1;
            }
            // Before its rows stood: their records and theirs alone are refused.
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::StoreFull);
                let said = jobs.get(id).unwrap();
                let progress = said.state.as_ref().map_or(0, |state| state.progress);
                assert!(progress < 95, "{free}: {progress}");
            }
        }
        broadcaster.close().unwrap();
    }
    assert!(committed > 0);
}
