//! The files of trimmed segments: they go late, in steps, and under nobody who reads them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oncelog::io::{Io as _, OpenHow};
use oncelog::testing::{CallKind, EIO, ENOSPC, Fault, MemIo, Which};
use oncelog::{ErrorKind, HolderKind, Log, LogView, Severity};

use super::cursors::lost;
use super::{files, fill, memory};
use crate::log::{lsn, open, options, place, read};

fn lengths(io: &MemIo) -> Vec<u64> {
    files(io).into_iter().map(|(_, len)| len).collect()
}

#[test]
fn a_file_is_cut_down_in_steps_and_then_unlinked() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 8);
    let whole = lengths(&io)[0];
    log.trim(lsn(6)).unwrap();
    assert_eq!(lengths(&io), [whole, 65_536], "no file goes within the call");
    let mut seen = Vec::new();
    while log.remove_step().unwrap() {
        seen.push(lengths(&io)[0]);
    }
    // 45,160 bytes of frames, and a footer.
    assert_eq!(seen, [whole - 20_000, whole - 40_000, 65_536]);
    assert_eq!(read(&log, 6).len(), 3);
}

/// Reading behind the end of a mapped file ends the process: with a file system that maps, this
/// test would die of it.
#[test]
fn a_file_is_never_cut_under_a_reader_or_a_payload_of_this_process() {
    let (_home, dir) = place();
    let options = options().background(false).removal_step_bytes(4096);
    let (log, _) = Log::open(&dir, &options).unwrap();
    fill(&log, 12);
    let mut reader = log.reader(lsn(1)).unwrap();
    let first = reader.next().unwrap().unwrap();
    let kept = log.reader(lsn(7)).unwrap().next().unwrap().unwrap();
    log.trim(lsn(12)).unwrap();
    let mut steps = 0;
    while log.remove_step().unwrap() {
        steps += 1;
    }
    assert_eq!(steps, 2, "two segments, each unlinked whole");
    assert_eq!((&first.payload[..], &kept.payload[..]), (&[1; 9000][..], &[1; 9000][..]));
    for expected in 2..=5 {
        assert_eq!(reader.next().unwrap().unwrap().lsn, lsn(expected), "it reads to the end");
    }
    let e = reader.next().unwrap_err();
    assert_eq!((e.kind(), e.lsn()), (ErrorKind::Trimmed, Some(lsn(12))));
}

#[test]
fn a_reader_that_went_on_holds_no_file_whole() {
    let (_home, dir) = place();
    let options = options().background(false).removal_step_bytes(4096);
    let (log, _) = Log::open(&dir, &options).unwrap();
    fill(&log, 12);
    let mut reader = log.reader(lsn(1)).unwrap();
    while let Some(record) = reader.next().unwrap() {
        assert!(record.durable);
    }
    log.trim(lsn(12)).unwrap();
    let mut steps = 0;
    while log.remove_step().unwrap() {
        steps += 1;
    }
    assert!(steps > 10, "{steps} steps");
}

/// Counts of calls, not times: the limit is what the benches are measured against.
#[test]
fn a_trim_returns_within_three_syncs_and_unlinks_nothing() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 40);
    let calls = Arc::new([const { AtomicU64::new(0) }; 3]);
    let counted = Arc::clone(&calls);
    io.observe(move |_, kind| {
        let at = match kind {
            CallKind::Sync | CallKind::SyncDir => 0,
            CallKind::Remove => 1,
            CallKind::SetLen => 2,
            _ => return,
        };
        counted[at].fetch_add(1, Ordering::Relaxed);
    });
    log.trim(lsn(21)).unwrap();
    let counts = || [0, 1, 2].map(|at| calls[at].load(Ordering::Relaxed));
    assert_eq!(counts(), [2, 0, 0]);
    while log.remove_step().unwrap() {}
    assert_eq!(counts()[0], 2, "a removal syncs nothing");
    assert_eq!(counts()[1], 4);
}

#[test]
fn a_removal_that_was_interrupted_goes_on_at_the_next_open() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 12);
    log.trim(lsn(12)).unwrap();
    assert!(log.remove_step().unwrap());
    let (_, cut) = files(&io)[0];
    drop(log);
    let (log, report) = Log::open("/log", &options).unwrap();
    assert_eq!((report.leftovers.len(), report.oldest_lsn), (2, lsn(12)));
    assert_eq!(lengths(&io)[0], cut, "an open frees nothing by itself");
    let held = log.why_not_trimmed();
    let held: Vec<_> = held.iter().filter(|h| h.kind == HolderKind::Leftover).collect();
    assert_eq!((held.len(), held[0].lsn, &held[0].name), (2, lsn(1), &files(&io)[0].0));
    while log.remove_step().unwrap() {}
    assert_eq!(files(&io).len(), 1);
    assert_eq!(log.why_not_trimmed().len(), 1, "the policy alone");
}

#[test]
fn a_file_that_cannot_be_removed_is_tried_again_at_the_next_trim() {
    for fault in [CallKind::Remove, CallKind::SetLen] {
        let (io, options) = memory();
        let (log, _) = Log::open("/log", &options).unwrap();
        fill(&log, 12);
        log.trim(lsn(6)).unwrap();
        io.arm(Which::Kind(fault), 1, 1, Fault::Error(EIO));
        while log.remove_step().unwrap() {}
        assert_eq!((io.struck(), files(&io).len()), (1, 3), "{fault:?}");
        assert_eq!(log.why_not_trimmed()[0].kind, HolderKind::Leftover);
        log.append(b"a file that stays is no failure").unwrap();
        log.trim(lsn(6)).unwrap();
        while log.remove_step().unwrap() {}
        assert_eq!(files(&io).len(), 2);
    }
}

#[test]
fn a_trim_on_a_disk_that_refuses_its_slots_drops_nothing() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 12);
    let before = files(&io);
    io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Error(ENOSPC));
    assert_eq!(log.trim(lsn(12)).unwrap_err().kind(), ErrorKind::StoreFull);
    assert!(!log.remove_step().unwrap());
    assert_eq!((files(&io), log.oldest_lsn()), (before, lsn(1)));
    assert_eq!(read(&log, 1).len(), 12);
    // The slots have their blocks: a full disk alone refuses nothing.
    io.set_free_blocks(Some(0));
    log.trim(lsn(12)).unwrap();
    while log.remove_step().unwrap() {}
    assert_eq!(files(&io).len(), 1);
}

/// After a failed sync the cache may show a slot that the disk lacks.
#[test]
fn whether_a_trim_whose_sync_failed_holds_is_decided_by_the_first_open() {
    let mut seen = [0; 2];
    for nth in 1..=2 {
        for seed in 0..100 {
            let (io, options) = memory();
            let (log, _) = Log::open("/log", &options).unwrap();
            fill(&log, 4);
            io.seed(seed);
            io.arm(Which::Kind(CallKind::Sync), nth, 1, Fault::Error(EIO));
            log.trim(lsn(3)).unwrap_err();
            drop(log);
            let io = MemIo::new(io.machine());
            let open = |io: &MemIo| Log::open("/log", &options.clone().io(Arc::new(io.clone())));
            let (log, report) = open(&io).unwrap();
            let told = report.oldest_lsn;
            assert!([lsn(1), lsn(3)].contains(&told));
            seen[usize::from(told == lsn(3))] += 1;
            io.kill();
            drop(log);
            for io in [lost(&io), MemIo::new(io.machine())] {
                let (log, report) = open(&io).unwrap();
                assert_eq!(report.oldest_lsn, told, "sync {nth}, seed {seed}");
                log.append(b"more").unwrap();
                io.kill();
                drop(log);
                let io = MemIo::new(io.machine());
                assert_eq!(open(&io).unwrap().1.oldest_lsn, told, "sync {nth}, seed {seed}");
            }
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

/// The tail's own slot is damaged, and only segments that are to go state the trim.
#[test]
fn leftovers_go_behind_a_slot_of_the_tail_that_states_the_trim() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 20);
    let oldest = log.next_lsn();
    log.trim(oldest).unwrap();
    let rolls = log.stats().rolls;
    while log.stats().rolls == rolls {
        fill(&log, 1);
    }
    io.kill();
    drop(log);
    let io = MemIo::new(io.machine());
    let (tail, _) = files(&io).pop().unwrap();
    let tail = io.open(&Path::new("/log").join(tail), OpenHow::ReadWrite).unwrap();
    tail.write_all_at(&[0xff; 8], 8192 + 8).unwrap();
    tail.sync().unwrap();
    let options = options.io(Arc::new(io.clone()));
    let (log, report) = Log::open("/log", &options).unwrap();
    assert_eq!(report.oldest_lsn, oldest);
    assert!(report.leftovers.len() > 1, "{report:?}");
    while log.remove_step().unwrap() {}
    io.kill();
    drop(log);
    for io in [lost(&io), MemIo::new(io.machine())] {
        let (_log, report) = Log::open("/log", &options.clone().io(Arc::new(io))).unwrap();
        assert_eq!(report.oldest_lsn, oldest);
    }
}

/// A view looks once and reads later: what was cut or went meanwhile is a gap that has a name.
#[test]
fn a_view_whose_segment_is_cut_under_it_is_told_of_the_trim() {
    /// Records of this length, seven a segment, the first two segments trimmed.
    #[track_caller]
    fn check(len: usize, steps: usize, read_before: u64) {
        let (io, options) = memory();
        let bytes = 65_536.max(12_288 + 8 * len as u64);
        let options = options.segment_bytes_max(bytes).removal_step_bytes(bytes / 3);
        let (log, _) = Log::open("/log", &options).unwrap();
        while log.next_lsn() < lsn(17) {
            log.append(&vec![1; len]).unwrap();
        }
        let view = LogView::open_unshared("/log", Arc::new(io)).unwrap();
        let mut reader = view.reader(None).unwrap();
        for _ in 0..read_before {
            reader.next().unwrap().unwrap();
        }
        log.trim(lsn(15)).unwrap();
        for _ in 0..steps {
            log.remove_step().unwrap();
        }
        let mut last = read_before;
        let end = loop {
            match reader.next() {
                Ok(Some(record)) => {
                    assert_eq!(record.lsn, lsn(last + 1));
                    last = record.lsn.get();
                }
                end => break end.map(|_| ()).map_err(|e| (e.kind(), e.lsn())),
            }
        };
        // What was read before the cut may be served.
        let trimmed = Err((ErrorKind::Trimmed, Some(lsn(15))));
        let is_told = end == trimmed && last < 14 || end == Ok(()) && last == 16 && read_before > 0;
        assert!(is_told, "{end:?} behind {last} of {len} bytes, {steps} steps, {read_before} read");
        let mut worst = Severity::Info;
        let summary = view.verify(&mut |finding| worst = worst.worse(finding.severity)).unwrap();
        assert_eq!((worst, summary.severity), (Severity::Info, Severity::Info), "{steps}");
        assert_eq!(view.look_again().unwrap().oldest_lsn(), lsn(15));
    }
    for len in [6000, 100_000] {
        for steps in 1..=8 {
            for read_before in [0, 1, 4, 7, 9] {
                check(len, steps, read_before);
            }
        }
    }
}

/// What another process finds while files are cut, at any moment of it.
#[test]
fn a_look_at_a_log_whose_files_are_being_cut_finds_leftovers() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 12);
    log.trim(lsn(12)).unwrap();
    while log.remove_step().unwrap() {
        let view = LogView::open_unshared("/log", Arc::new(io.clone())).unwrap();
        assert_eq!((view.severity(), view.oldest_lsn()), (Severity::Info, lsn(12)));
        assert_eq!(view.reader(None).unwrap().next().unwrap().unwrap().lsn, lsn(12));
    }
}

#[test]
fn files_go_without_a_call_and_a_close_ends_their_removal() {
    let (_home, dir) = place();
    let log = open(&dir);
    fill(&log, 50);
    log.trim(lsn(50)).unwrap();
    super::limits::wait_removed(&log);
    assert_eq!(crate::log::segments(&dir).len(), 1, "the tail");
    log.close().unwrap();
    let file = oncelog::io::fs::FsIo::new().open(Path::new(&dir.join("LOCK")), OpenHow::ReadWrite);
    assert!(file.unwrap().try_lock().unwrap(), "nobody is at it any more");
}

/// The process that reads; told by its environment.
const READER: &str = "ONCELOG_RETENTION_READER";

/// What the last record holds.
const LAST: &[u8] = b"the last one";

/// Looks at the log again and again, until it has read the last record.
fn read_beside(dir: &Path) {
    let io = Arc::new(oncelog::io::fs::FsIo::new());
    loop {
        let view = LogView::open(dir, Arc::<oncelog::io::fs::FsIo>::clone(&io)).unwrap();
        assert_eq!(view.severity(), Severity::Info, "{:?}", view.findings());
        let mut next = view.oldest_lsn();
        let mut reader = view.reader(None).unwrap();
        loop {
            match reader.next() {
                Ok(Some(record)) => {
                    assert_eq!(record.lsn, next);
                    next = next.next();
                    if record.payload == LAST {
                        return;
                    }
                }
                Ok(None) => break,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Trimmed, "{e:?}");
                    break;
                }
            }
        }
        let mut found = Vec::new();
        let summary = view.verify(&mut |finding| found.push(finding.clone())).unwrap();
        assert_eq!(summary.severity, Severity::Info, "{found:?}");
    }
}

#[test]
fn another_process_never_takes_a_file_that_goes_for_damage() {
    if let Some(dir) = std::env::var_os(READER) {
        return read_beside(Path::new(&dir));
    }
    let (_home, dir) = place();
    let options = options().segment_bytes_max(1 << 20).removal_step_bytes(100_000);
    let (log, _) = Log::open(&dir, &options).unwrap();
    log.append(b"the first one").unwrap();
    let mut reader = Command::new(std::env::current_exe().unwrap());
    let name = "retention::removal::another_process_never_takes_a_file_that_goes_for_damage";
    reader.args(["--exact", name, "--nocapture"]).env(READER, &dir).stdout(Stdio::null());
    let mut reader = reader.spawn().unwrap();
    for _ in 0..60 {
        for _ in 0..6 {
            log.append(&[5; 200_000]).unwrap();
        }
        log.trim(log.next_lsn()).unwrap();
    }
    log.append(LAST).unwrap();
    let status = reader.wait().unwrap();
    assert!(status.success(), "{status}");
    log.close().unwrap();
}
