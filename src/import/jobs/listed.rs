//! Jobs as they are told: one by one, file by file, page by page; and how many run at once.

use std::path::{Path, PathBuf};

use super::tests::{open_with, request, rows_on};
use super::*;
use crate::broadcast::{Noop, Request};
use crate::import::numpy::tests::npy;
use crate::import::verdict::{ABORT, AttemptOf};
use crate::io::Io;
use crate::io::fs::FsIo;
use crate::io::mem::{Machine, MemIo};

const STORE: &str = "/store";

fn file(dir: &tempfile::TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn in_memory(imports: &Imports) -> (Arc<dyn Io>, Broadcaster) {
    let io: Arc<dyn Io> = Arc::new(MemIo::new(Machine::new()));
    let broadcaster = open_with(&io, Path::new(STORE), 1, imports).unwrap();
    (io, broadcaster)
}

/// Jobs that are accepted and wait for ever.
fn queued() -> Imports {
    Imports::of(2, 0, None)
}

fn known(imports: &Imports, broadcaster: &Broadcaster, id: BroadcastId) -> ImportJob {
    match imports.look(broadcaster, id) {
        JobLook::Known(job) => *job,
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_more_jobs_are_driven_than_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "n\n1\n2\n3\n");
    for at_once in [1, 3] {
        let imports = Imports::with_slice_rows(2).at_once(at_once);
        let (io, broadcaster) = in_memory(&imports);
        let submit = || imports.submit(&broadcaster, request("c", &[&path]), &ImportCall::of("p"));
        let ids: Vec<BroadcastId> = (0..12).map(|_| submit().unwrap().id).collect();
        for id in ids {
            let job = imports.follow(&broadcaster.jobs(), id, &|| None, &mut |_| {}).unwrap();
            assert_eq!(job.phase(), JobPhase::Completed);
        }
        assert!((1..=at_once).contains(&imports.pool().lock().most));
        broadcaster.close().unwrap();
        assert_eq!(rows_on(&io, Path::new(STORE), "c").len(), 36);
    }
}

#[test]
fn a_job_that_waits_for_its_turn_is_pending_and_is_cancelled_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "n\n1\n");
    let imports = queued();
    let (_io, broadcaster) = in_memory(&imports);
    let submit = || imports.submit(&broadcaster, request("c", &[&path]), &ImportCall::of("p"));
    let (first, second) = (submit().unwrap().id, submit().unwrap().id);
    let told = known(&imports, &broadcaster, second);
    assert_eq!((told.phase, told.progress, told.rows_total), (JobPhase::Pending, 0, None));
    assert_eq!(told.files.first().map(|file| file.phase), Some(JobPhase::Pending));
    let cancelled = imports.cancel(&broadcaster, second, None).unwrap();
    assert_eq!(cancelled.phase(), JobPhase::Failed);
    let told = known(&imports, &broadcaster, second);
    assert!(told.reason.contains("cancelled"), "{}", told.reason);
    assert_eq!((told.phase, told.progress, told.rows), (JobPhase::Failed, 100, 0));
    assert_eq!(known(&imports, &broadcaster, first).phase, JobPhase::Pending);
    // Whoever waits no longer than now has it cancelled all the same.
    let left = imports.cancel(&broadcaster, first, Some(Duration::ZERO));
    assert!(left.is_ok() || left.unwrap_err().kind() == ErrorKind::InFlight);
    let job = imports.follow(&broadcaster.jobs(), first, &|| None, &mut |_| {}).unwrap();
    assert_eq!(job.phase(), JobPhase::Failed);
    broadcaster.close().unwrap();
}

#[test]
fn jobs_that_waited_for_their_turn_are_driven_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "n\n1\n");
    let imports = queued();
    let (io, broadcaster) = in_memory(&imports);
    let submit = || imports.submit(&broadcaster, request("c", &[&path]), &ImportCall::of("p"));
    let ids: Vec<BroadcastId> = (0..5).map(|_| submit().unwrap().id).collect();
    broadcaster.close().unwrap();
    let imports = Imports::new().at_once(1);
    let broadcaster = open_with(&io, Path::new(STORE), 1, &imports).unwrap();
    for id in ids {
        let job = imports.follow(&broadcaster.jobs(), id, &|| None, &mut |_| {}).unwrap();
        assert_eq!(job.phase(), JobPhase::Completed);
    }
    broadcaster.close().unwrap();
    assert_eq!(rows_on(&io, Path::new(STORE), "c").len(), 5);
}

/// One that had got somewhere, and waits for its turn after a restart, is told as it was.
#[test]
fn a_job_never_goes_backwards_as_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let rows: String = (0..60_000).map(|n| format!("{n}\n")).collect();
    let path = file(&dir, "a.csv", format!("n\n{rows}"));
    let memory = MemIo::new(Machine::new());
    let io: Arc<dyn Io> = Arc::new(memory.clone());
    let open = |imports: &Imports| open_with(&io, Path::new(STORE), 1, imports).unwrap();
    let imports = Imports::with_slice_rows(64);
    let broadcaster = open(&imports);
    let asked = request("c", &[&path]);
    let id = imports.submit(&broadcaster, asked, &ImportCall::of("p")).unwrap().id;
    memory.set_free_blocks(Some(0));
    let full = imports.follow(&broadcaster.jobs(), id, &|| None, &mut |_| {}).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StoreFull);
    let told = known(&imports, &broadcaster, id);
    assert!(told.stopped.is_some_and(|why| !why.is_empty()), "nobody drives it");
    broadcaster.close().unwrap();
    let imports = queued();
    let broadcaster = open(&imports);
    let waits = known(&imports, &broadcaster, id);
    assert!(waits.phase >= told.phase.min(JobPhase::PreImporting), "{waits:?}");
    assert_eq!((waits.stopped, waits.rows_total), (None, told.rows_total));
    broadcaster.close().unwrap();
    memory.set_free_blocks(None);
    let imports = Imports::new();
    let broadcaster = open(&imports);
    let (mut last, mut shown) = (0, Vec::new());
    let job = imports.follow(&broadcaster.jobs(), id, &|| None, &mut |_| {
        let told = known(&imports, &broadcaster, id);
        shown.push(told.progress);
    });
    assert_eq!(job.unwrap().phase(), JobPhase::Completed);
    for progress in shown {
        assert!(progress >= last, "{progress} behind {last}");
        last = progress;
    }
    assert_eq!(known(&imports, &broadcaster, id).rows, 60_000);
    broadcaster.close().unwrap();
}

#[test]
fn a_job_is_told_file_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(&dir, "a.csv", "n\n1\n2\n3\n");
    let ids = file(&dir, "id.npy", npy("<i8", "(2,)", &[0; 16]));
    let vectors = file(&dir, "v.npy", npy("<f4", "(2, 1)", &[0; 8]));
    let bad = file(&dir, "bad.csv", "n\n1\n2,3\n");
    let imports = Imports::with_slice_rows(2);
    let (_io, broadcaster) = in_memory(&imports);
    let run = |files: &[&Path]| {
        let asked = request("c", files);
        imports.run(&broadcaster, asked, &ImportCall::of("p"), &mut |_| {}).unwrap().job
    };
    let told = known(&imports, &broadcaster, run(&[&a, &ids, &vectors]));
    assert_eq!((told.phase, told.rows, told.rows_total), (JobPhase::Completed, 5, Some(5)));
    assert_eq!((told.collection.as_str(), told.attempt, told.stopped), ("c", 1, None));
    let files: Vec<_> = told
        .files
        .iter()
        .map(|file| (file.path.as_path(), file.set, file.rows, file.rows_total, file.phase))
        .collect();
    let done = JobPhase::Completed;
    assert_eq!(
        files,
        [
            (a.as_path(), 0, 3, Some(3), done),
            (ids.as_path(), 1, 2, Some(2), done),
            (vectors.as_path(), 1, 2, Some(2), done),
        ]
    );
    assert_eq!(told.files[0].bytes, Some(8));

    let told = known(&imports, &broadcaster, run(&[&a, &bad]));
    assert_eq!((told.phase, told.rows), (JobPhase::Failed, 0));
    assert_eq!((told.files[0].phase, told.files[0].reason.as_str()), (JobPhase::Failed, ""));
    let fault = &told.files[1];
    assert!(fault.reason.contains("row 2, line 3: expected 1 fields, found 2"), "{fault:?}");
    assert!(fault.reason.contains("bad.csv"), "{fault:?}");
    broadcaster.close().unwrap();
}

#[test]
fn pages_of_jobs_have_every_job_once_whatever_begins_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "n\n1\n");
    let imports = queued();
    let (_io, broadcaster) = in_memory(&imports);
    let submit = |collection: &str| {
        let asked = request(collection, &[&path]);
        imports.submit(&broadcaster, asked, &ImportCall::of("p")).unwrap().id
    };
    let mut ids: Vec<BroadcastId> = (0..7).map(|_| submit("c")).collect();
    ids.reverse();
    let (mut seen, mut before, mut lens) = (Vec::new(), None, Vec::new());
    loop {
        let page = imports.page(&broadcaster, before, 3, &|_| true);
        seen.extend(page.jobs.iter().map(|job| job.id));
        lens.push(page.jobs.len());
        submit("c");
        let Some(next) = page.next else { break };
        before = Some(next);
    }
    assert_eq!((seen, lens), (ids.clone(), vec![3, 3, 1]));
    let other = submit("other");
    let wanted = |job: &Job| job.id() == other || job.id() == ids[6];
    let page = imports.page(&broadcaster, None, 2, &wanted);
    assert_eq!(page.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [other, ids[6]]);
    assert_eq!(page.next, None);
    assert_eq!(imports.page(&broadcaster, Some(ids[6]), 5, &|_| true).jobs, []);
    broadcaster.close().unwrap();
}

#[test]
fn a_broadcast_that_started_no_job_never_was_one() {
    let imports = queued();
    let (_io, broadcaster) = in_memory(&imports);
    broadcaster.ensure_vchannels(&["a".into()]).unwrap();
    let scope = oncelog_format::message::Scope {
        principal: "p".to_owned(),
        message_type: Noop::NAME.to_owned(),
        domain: "store".to_owned(),
        identity: "0".to_owned(),
        generation: 0,
        client_key: b"k".to_vec(),
    };
    let asked = Request::new(Noop::NAME, Some(scope), vec!["a".to_owned()], vec![]);
    let id = broadcaster.submit(&asked, None).unwrap().id;
    for id in [id, BroadcastId(0), BroadcastId(77), BroadcastId(u64::MAX)] {
        assert_eq!(imports.look(&broadcaster, id), JobLook::Never, "{id}");
    }
    broadcaster.close().unwrap();
}

#[test]
fn a_failed_job_is_tried_again_where_the_call_says_so_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "n\n1,2\n");
    let io: Arc<dyn Io> = Arc::new(FsIo::new());
    let imports = Imports::new();
    let broadcaster = open_with(&io, &dir.path().join("store"), 1, &imports).unwrap();
    let call = ImportCall::of("p").key(Some("k".to_owned()));
    let submit = |call: &ImportCall| {
        let answer = imports.submit(&broadcaster, request("c", &[&path]), call).unwrap();
        let end = imports.follow(&broadcaster.jobs(), answer.id, &|| None, &mut |_| {});
        (answer.duplicated, end.unwrap().phase(), known(&imports, &broadcaster, answer.id).attempt)
    };
    assert_eq!(submit(&call), (false, JobPhase::Failed, 1));
    std::fs::write(&path, "n\n1\n").unwrap();
    assert_eq!(submit(&call), (true, JobPhase::Failed, 1));
    let again = call.retry_failed(true);
    assert_eq!(submit(&again), (true, JobPhase::Completed, 2));
    assert_eq!(submit(&again), (true, JobPhase::Completed, 2));
    broadcaster.close().unwrap();
}

/// Of two cancels of a job the later one found it running, and was noted when it was over: the next
/// attempt was aborted at once, as cancelled.
#[test]
fn a_cancel_of_one_attempt_is_none_of_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "n\n1,2\n");
    let imports = Imports::new();
    let (_io, broadcaster) = in_memory(&imports);
    let call = ImportCall::of("p").key(Some("k".to_owned()));
    let asked = || request("c", &[&path]);
    let first = imports.run(&broadcaster, asked(), &call, &mut |_| {}).unwrap();
    assert_eq!(first.phase, JobPhase::Failed);
    imports.pool().lock().jobs.entry(first.job).or_insert_with(Entry::new).cancelled = Some(1);
    std::fs::write(&path, "n\n1\n").unwrap();
    let again = call.retry_failed(true);
    let second = imports.run(&broadcaster, asked(), &again, &mut |_| {}).unwrap();
    assert_eq!((second.phase, second.reason.as_str()), (JobPhase::Completed, ""));
    broadcaster.close().unwrap();
}

#[test]
fn a_cancel_that_finds_its_job_over_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "n\n1\n");
    for _ in 0..20 {
        // Nobody drives it: it is ended here, while a cancel that has begun waits.
        let imports = queued();
        let (_io, broadcaster) = in_memory(&imports);
        let asked = request("c", &[&path]);
        let id = imports.submit(&broadcaster, asked, &ImportCall::of("p")).unwrap().id;
        // What settles tells its driver of it first, and would wait for the lock below.
        while imports.pool().lock().jobs.remove(&id).is_none() {
            std::thread::yield_now();
        }
        std::thread::scope(|scope| {
            let running = imports.pool().lock();
            let cancel = scope.spawn(|| imports.cancel(&broadcaster, id, None).unwrap());
            let verdict = AttemptOf { job: id, attempt: 1 };
            let jobs = broadcaster.jobs();
            assert!(jobs.end(id, 1, (ABORT, false), verdict.encode()).unwrap().mine);
            drop(running);
            assert_eq!(cancel.join().unwrap().phase(), JobPhase::Failed);
        });
        assert!(imports.pool().lock().jobs.is_empty(), "a cancel of what is over is kept");
        broadcaster.close().unwrap();
    }
}

/// Of two calls that ask for it one begins the next attempt, and neither is refused.
#[test]
fn calls_that_try_a_failed_job_again_at_the_same_time_begin_one_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "a.csv", "n\n1,2\n");
    let imports = Imports::new();
    let (io, broadcaster) = in_memory(&imports);
    let call = ImportCall::of("p").key(Some("k".to_owned()));
    let asked = || request("c", &[&path]);
    let first = imports.run(&broadcaster, asked(), &call, &mut |_| {}).unwrap();
    assert_eq!(first.phase, JobPhase::Failed);
    std::fs::write(&path, "n\n1\n").unwrap();
    let again = call.retry_failed(true);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let report = imports.run(&broadcaster, asked(), &again, &mut |_| {}).unwrap();
                assert_eq!((report.job, report.phase), (first.job, JobPhase::Completed));
            });
        }
    });
    assert_eq!(known(&imports, &broadcaster, first.job).attempt, 2);
    broadcaster.close().unwrap();
    assert_eq!(rows_on(&io, Path::new(STORE), "c").len(), 1);
}
