//! Payloads that outlive their log, and the next log of the directory, which removes their segment.

use std::io::{self, BufRead as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use oncelog::io::Io;
use oncelog::io::fs::FsIo;
use oncelog::testing::{CallKind, EIO, Fault, MemIo, Which};
use oncelog::{ErrorKind, Log, Options};

use super::{files, fill, memory};
use crate::log::{lsn, options, place, read, segments};
use crate::pass_on::pass_on;

fn payload(log: &Log, of: u64) -> Bytes {
    log.reader(lsn(of)).unwrap().next().unwrap().unwrap().payload
}

/// Trims all but the last record and removes the files; says how often one was cut.
fn cuts_of_a_trim(log: &Log, io: &MemIo) -> u64 {
    log.trim(log.durable_lsn().unwrap()).unwrap();
    let cuts = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&cuts);
    io.observe(move |_, kind| {
        counted.fetch_add(u64::from(kind == CallKind::SetLen), Ordering::Relaxed);
    });
    while log.remove_step().unwrap() {}
    io.unobserve();
    assert_eq!(files(io).len(), 1);
    cuts.load(Ordering::Relaxed)
}

/// How many maps are made by reading all that there is.
fn maps_of_a_read(log: &Log, io: &MemIo) -> u64 {
    let before = io.struck();
    io.arm(Which::Kind(CallKind::Map), 1, u64::MAX, Fault::Error(EIO));
    let oldest = log.oldest_lsn();
    assert_eq!(read(log, oldest.get()).last().map(|last| last.lsn), log.durable_lsn());
    io.disarm();
    io.struck() - before
}

#[test]
fn a_segment_is_never_cut_while_a_payload_of_an_earlier_log_lives() {
    /// A payload of this record lives on; the tail is not mapped.
    #[track_caller]
    fn check(of: u64, is_mapped: bool) {
        let (io, options) = memory();
        let (log, _) = Log::open("/log", &options).unwrap();
        fill(&log, 12);
        let kept = payload(&log, of);
        log.close().unwrap();
        let (log, _) = Log::open("/log", &options).unwrap();
        assert_eq!(cuts_of_a_trim(&log, &io) == 0, is_mapped, "record {of}");
        assert_eq!(kept, [1; 9000][..]);
        // Whose segment went meanwhile does not matter.
        fill(&log, 12);
        assert_eq!(cuts_of_a_trim(&log, &io) == 0, is_mapped, "record {of}");
        drop(kept);
        fill(&log, 12);
        assert!(cuts_of_a_trim(&log, &io) > 0, "record {of}");
    }
    check(1, true);
    check(7, true);
    check(12, false);
}

#[test]
fn a_log_cuts_beside_its_own_maps_and_they_outlive_it() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 22);
    let before = payload(&log, 17);
    log.trim(lsn(16)).unwrap();
    let whole = files(&io)[0].1;
    assert!(log.remove_step().unwrap());
    assert!(files(&io)[0].1 < whole, "it is cut under nobody");
    let amidst = payload(&log, 18);
    drop(before);
    log.close().unwrap();
    let lock = |shared: bool| {
        let dir = io.open_dir(Path::new("/log")).unwrap();
        if shared { dir.try_lock_shared().unwrap() } else { dir.try_lock().unwrap() }
    };
    assert!(lock(true) && !lock(false), "what was mapped while files were cut");
    let (log, report) = Log::open("/log", &options).unwrap();
    assert_eq!(report.leftovers.len(), 3);
    assert_eq!(cuts_of_a_trim(&log, &io), 0);
    assert_eq!(amidst, [1; 9000][..]);
    drop(amidst);
    assert!(lock(false));
}

#[test]
fn a_log_that_closes_amidst_a_removal_leaves_no_lock() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 12);
    log.trim(lsn(12)).unwrap();
    assert!(log.remove_step().unwrap());
    // It keeps what its log was made of.
    let reader = log.reader(lsn(12)).unwrap();
    let dir = io.open_dir(Path::new("/log")).unwrap();
    assert!(!dir.try_lock_shared().unwrap());
    log.close().unwrap();
    assert!(dir.try_lock().unwrap());
    drop(reader);
}

#[test]
fn a_reader_maps_nothing_while_another_log_cuts() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 12);
    let other = io.open_dir(Path::new("/log")).unwrap();
    assert!(other.try_lock().unwrap());
    assert_eq!(maps_of_a_read(&log, &io), 0);
    let kept = payload(&log, 1);
    drop(other);
    assert_eq!(maps_of_a_read(&log, &io), 2);
    // What was read without a map hinders nobody.
    assert!(cuts_of_a_trim(&log, &io) > 0);
    assert_eq!(kept, [1; 9000][..]);
}

#[test]
fn without_locks_of_directories_nothing_is_mapped_and_cut_at_once() {
    #[track_caller]
    fn check(refused: CallKind, maps: bool, cuts: bool) {
        let (io, options) = memory();
        let (log, _) = Log::open("/log", &options).unwrap();
        fill(&log, 12);
        let eopnotsupp = Fault::Error(95);
        io.arm(Which::Kind(refused), 1, u64::MAX, eopnotsupp);
        let kept = payload(&log, 1);
        io.disarm();
        io.arm(Which::Kind(refused), 1, u64::MAX, eopnotsupp);
        let before = io.struck();
        assert_eq!(read(&log, 1).len(), 12);
        assert_eq!(io.struck() > before, !maps, "{refused:?}");
        drop(kept);
        assert_eq!(cuts_of_a_trim(&log, &io) > 0, cuts, "{refused:?}");
        log.append(b"all goes on").unwrap();
        log.close().unwrap();
    }
    check(CallKind::OpenDir, false, false);
    check(CallKind::Lock, true, false);
    check(CallKind::LockShared, false, true);
}

/// The lock of the writer stands in where the system takes the other one away and refuses it.
#[test]
fn a_log_whose_maps_lost_their_lock_stays_locked_until_they_go() {
    #[track_caller]
    fn check(refusals: u64, is_busy: bool) {
        let (io, options) = memory();
        let (log, _) = Log::open("/log", &options).unwrap();
        fill(&log, 12);
        let kept = payload(&log, 7);
        let of_older_log = io.open_dir(Path::new("/log")).unwrap();
        assert!(of_older_log.try_lock_shared().unwrap());
        log.trim(lsn(6)).unwrap();
        io.arm(Which::Kind(CallKind::LockShared), 1, refusals, Fault::Error(EIO));
        while log.remove_step().unwrap() {}
        let kept = (kept, payload(&log, 6));
        log.close().unwrap();
        io.disarm();
        match Log::open("/log", &options) {
            Ok(_) => assert!(!is_busy),
            Err(e) => assert_eq!((e.kind(), is_busy), (ErrorKind::Busy, true)),
        }
        drop((kept, of_older_log));
        let (log, _) = Log::open("/log", &options).unwrap();
        assert!(cuts_of_a_trim(&log, &io) > 0);
    }
    check(0, false);
    check(1, false);
    check(2, true);
}

/// A file system of the machine that knows no locks of directories, as one that was written before
/// there were any.
#[derive(Debug)]
struct Lockless(FsIo);

impl Io for Lockless {
    pass_on!(0: open list kind rename remove create_dir sync_dir random);
}

#[test]
fn a_file_system_without_locks_of_directories_serves_a_log() {
    let (_home, dir) = place();
    let options = in_steps().io(Arc::new(Lockless(FsIo::new())));
    let (log, _) = Log::open(&dir, &options).unwrap();
    fill(&log, 12);
    assert_eq!(read(&log, 1).len(), 12);
    log.trim(lsn(12)).unwrap();
    assert_eq!(steps(&log), 2, "two segments, each unlinked whole");
    log.close().unwrap();
}

fn in_steps() -> Options {
    options().background(false).removal_step_bytes(4096)
}

/// Steps that a removal takes.
fn steps(log: &Log) -> u64 {
    let mut steps = 0;
    while log.remove_step().unwrap() {
        steps += 1;
    }
    steps
}

#[test]
fn a_log_holds_its_directory_once_however_many_segments_it_maps() {
    let (_home, dir) = place();
    let (log, _) = Log::open(&dir, &in_steps()).unwrap();
    fill(&log, 52);
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").ok()?;
        let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        Some(links.filter(|link| *link == dir).count())
    };
    let Some(before) = open() else {
        println!("SKIP open directories: the system does not list them");
        return;
    };
    let kept: Vec<Bytes> = (1..=10).map(|n| payload(&log, 5 * n)).collect();
    assert_eq!((before, open()), (0, Some(1)));
    log.close().unwrap();
    assert_eq!(open(), Some(1));
    drop(kept);
    assert_eq!(open(), Some(0));
}

/// The process that keeps a payload; told by its environment.
const KEEPER: &str = "ONCELOG_PAYLOAD_KEEPER";

/// Keeps payloads of a log that it has closed, and looks at them when it is told to.
#[expect(clippy::print_stdout, reason = "to the process that waits for it")]
fn keep(dir: &Path) {
    let (log, _) = Log::open(dir, &in_steps()).unwrap();
    let kept: Vec<Bytes> = (1..=10).map(|n| payload(&log, n)).collect();
    log.close().unwrap();
    println!("\nkept");
    let mut told = String::new();
    io::stdin().lock().read_line(&mut told).unwrap();
    assert!(kept.iter().all(|payload| *payload == [1; 9000][..]));
}

/// Reading behind the end of a mapped file ends the process: the one that keeps the payloads would
/// die of a cut.
#[test]
fn a_payload_of_a_closed_log_survives_trims_by_another_process() {
    if let Some(dir) = std::env::var_os(KEEPER) {
        return keep(Path::new(&dir));
    }
    let (_home, dir) = place();
    let (log, _) = Log::open(&dir, &in_steps()).unwrap();
    fill(&log, 12);
    log.close().unwrap();
    let mut keeper = Command::new(std::env::current_exe().unwrap());
    let name = "retention::maps::a_payload_of_a_closed_log_survives_trims_by_another_process";
    keeper.args(["--exact", name, "--nocapture"]).env(KEEPER, &dir);
    let mut keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = io::BufReader::new(keeper.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "kept"), "the other process has ended");
    let (log, _) = Log::open(&dir, &in_steps()).unwrap();
    log.trim(lsn(12)).unwrap();
    let taken = steps(&log);
    assert_eq!(segments(&dir).len(), 1);
    keeper.stdin.take().unwrap().write_all(b"look\n").unwrap();
    let status = keeper.wait().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(taken, 2, "two segments, each unlinked whole");
    fill(&log, 12);
    log.trim(log.durable_lsn().unwrap()).unwrap();
    assert!(steps(&log) > 10, "nobody is in the way any more");
    log.close().unwrap();
}

#[test]
fn a_log_that_is_told_to_maps_nothing() {
    for is_mapped in [true, false] {
        let (io, options) = memory();
        let (log, _) = Log::open("/log", &options.map_sealed(is_mapped)).unwrap();
        fill(&log, 12);
        assert_eq!(maps_of_a_read(&log, &io) > 0, is_mapped);
        assert!(cuts_of_a_trim(&log, &io) > 0, "nothing keeps files from being cut");
    }
}
