//! The log through its public API: what each call promises, alone and beside others.

mod async_calls;
mod concurrent;
mod counts;
mod fill;
mod index;
mod reading;
mod rebuild;
mod segments;
mod stats;
pub(crate) mod subscribe;
mod told;
mod unreserved;
mod wakers;
pub(crate) mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oncelog::io::Io as _;
use oncelog::testing::{CallKind, EDQUOT, EIO, ENOSPC, Fault, Machine, MemIo, Which};
use oncelog::{
    Batch, Check, Clock, CreateMode, Durability, ErrorKind, Log, Lsn, Options, Record, RecordKind,
};
use tempfile::TempDir;

/// A directory that goes away, and the log below it.
pub(crate) fn place() -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    (home, log)
}

pub(crate) fn options() -> Options {
    Options::new().create(CreateMode::IfMissing).segment_bytes_max(65_536)
}

pub(crate) fn open(dir: &Path) -> Log {
    Log::open(dir, &options()).unwrap().0
}

pub(crate) fn batch<'a>(records: &'a [&'a [u8]]) -> Batch<'a> {
    Batch { kind: RecordKind::RECORD, records }
}

pub(crate) fn lsn(value: u64) -> Lsn {
    Lsn::new(value).unwrap()
}

/// Every record from `from` to the end.
pub(crate) fn read(log: &Log, from: u64) -> Vec<Record> {
    let mut reader = log.reader(lsn(from)).unwrap();
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub(crate) fn segments(dir: &Path) -> Vec<PathBuf> {
    let names = names(dir).into_iter().filter(|name| name.ends_with(".seg"));
    names.map(|name| dir.join(name)).collect()
}

#[track_caller]
fn check_refused<T>(result: oncelog::Result<T>, kind: ErrorKind) -> oncelog::Error {
    match result {
        Ok(_) => panic!("expected {kind}"),
        Err(e) => {
            assert_eq!(e.kind(), kind, "{e:?}");
            e
        }
    }
}

#[test]
fn what_was_appended_is_there_after_a_reopen() {
    let (_home, dir) = place();
    let (log, report) = Log::open(&dir, &options()).unwrap();
    assert!(report.created);
    assert_eq!((log.durable_lsn(), log.next_lsn(), log.oldest_lsn()), (None, lsn(1), lsn(1)));
    assert_eq!(log.append(b"one").unwrap(), lsn(1));
    let lsns = log.append_batch(batch(&[b"two", b"", b"four"]), Durability::Buffered).unwrap();
    assert_eq!((lsns.first, lsns.last), (lsn(2), lsn(4)));
    assert_eq!(log.sync().unwrap(), Some(lsn(4)));
    log.close().unwrap();

    let (log, report) = Log::open(&dir, &options()).unwrap();
    assert_eq!((report.created, report.last_lsn, report.torn), (false, Some(lsn(4)), None));
    assert_eq!(report.proven_lsn, Some(lsn(4)), "the slot of the close vouches for all");
    let records = read(&log, 1);
    let payloads: Vec<&[u8]> = records.iter().map(|record| &record.payload[..]).collect();
    assert_eq!(payloads, [&b"one"[..], b"two", b"", b"four"]);
    let ends: Vec<bool> = records.iter().map(|record| record.batch_end).collect();
    assert_eq!(ends, [true, false, false, true]);
    assert!(records.iter().all(|record| record.durable && record.kind == RecordKind::RECORD));
    assert_eq!(log.append(b"five").unwrap(), lsn(5));
    assert_eq!(segments(&dir).len(), 1, "a log that was closed well is appended to");
}

#[test]
fn dropping_the_last_handle_closes_the_log() {
    let (_home, dir) = place();
    let log = open(&dir);
    let clone = log.clone();
    log.append_batch(batch(&[b"buffered"]), Durability::Buffered).unwrap();
    drop(log);
    check_refused(Log::open(&dir, &options()), ErrorKind::Busy);
    drop(clone);
    assert_eq!(open(&dir).next_lsn(), lsn(2));
}

#[test]
fn one_writer_owns_the_directory() {
    let (_home, dir) = place();
    let log = open(&dir);
    let e = check_refused(Log::open(&dir, &options()), ErrorKind::Busy);
    assert_eq!(e.path(), Some(&*dir.join("LOCK")));
    assert!(e.is_retryable());
    for _ in 0..50 {
        let next = log.clone();
        next.close().unwrap_or_else(|e| assert_eq!(e.kind(), ErrorKind::Closed));
        open(&dir).close().unwrap();
    }
    check_refused(log.append(b"late"), ErrorKind::Closed);
    check_refused(log.reader(lsn(1)), ErrorKind::Closed);
    check_refused(log.trim(lsn(1)), ErrorKind::Closed);
    check_refused(log.wait_durable(lsn(1), None), ErrorKind::Closed);
    check_refused(log.close(), ErrorKind::Closed);
}

#[test]
fn a_directory_that_is_something_else_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let check = |dir: &Path, create, kind| {
        let before = dir.is_dir().then(|| names(dir));
        let e = check_refused(Log::open(dir, &options().create(create)), kind);
        assert!(e.path().is_some_and(|path| path.starts_with(home.path())), "{e:?}");
        assert_eq!(dir.is_dir().then(|| names(dir)), before);
    };
    let other = home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("thesis.txt"), "mine").unwrap();
    check(&other, CreateMode::IfMissing, ErrorKind::InvalidInput);
    check(&other, CreateMode::Always, ErrorKind::InvalidInput);
    check(&other, CreateMode::Never, ErrorKind::InvalidInput);
    check(&other.join("thesis.txt"), CreateMode::IfMissing, ErrorKind::InvalidInput);
    check(&home.path().join("absent"), CreateMode::Never, ErrorKind::InvalidInput);
    check(&home.path().join("no/parent"), CreateMode::IfMissing, ErrorKind::Io);
    let empty = home.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    check(&empty, CreateMode::Never, ErrorKind::InvalidInput);
    open(&empty).close().unwrap();
    check(&empty, CreateMode::Always, ErrorKind::InvalidInput);
}

#[test]
fn options_out_of_range_are_refused() {
    let (_home, dir) = place();
    for options in [
        options().segment_bytes_max(65_535),
        options().segment_bytes_max((1 << 30) + 1),
        options().record_len_max(0),
        options().record_len_max((256 << 20) + 1),
        options().buffer_bytes_max(0),
        options().batch_bytes_max((512 << 20) + 1),
        // The largest record would not fit.
        options().batch_bytes_max(16 << 20),
        options().record_len_max(64 << 20),
        options().record_len_max(100).batch_bytes_max(135),
    ] {
        check_refused(Log::open(&dir, &options), ErrorKind::InvalidInput);
        assert!(!dir.exists());
    }
}

#[test]
fn batches_beyond_a_limit_are_refused_and_take_no_lsn() {
    let (_home, dir) = place();
    let (log, _) = Log::open(&dir, &options().record_len_max(1000)).unwrap();
    check_refused(log.append_batch(batch(&[]), Durability::Synced), ErrorKind::InvalidInput);
    check_refused(log.append(&[0; 1001]), ErrorKind::Limit);
    assert_eq!(log.append(&[0; 1000]).unwrap(), lsn(1));
    log.close().unwrap();

    // 1032 bytes a frame.
    let narrow = options().record_len_max(1000).batch_bytes_max(2064);
    let (log, _) = Log::open(&dir, &narrow).unwrap();
    let record: &[u8] = &[0; 1000];
    let append = |records: &[&[u8]]| log.append_batch(batch(records), Durability::Synced);
    let e = check_refused(append(&[record; 3]), ErrorKind::Limit);
    assert_eq!(e.to_string(), "a batch of 3096 bytes: expected at most 2064");
    check_refused(append(&[record, record, b""]), ErrorKind::Limit);
    assert_eq!(append(&[record; 2]).unwrap().first, lsn(2));
    log.close().unwrap();
    // A log has one limit at a time, not one for ever.
    let (log, _) = Log::open(&dir, &narrow.batch_bytes_max(1032)).unwrap();
    assert_eq!(read(&log, 1).len(), 3);
}

#[test]
fn a_batch_may_be_64_mib_unless_told_otherwise() {
    let (_home, dir) = place();
    let log = open(&dir);
    let record: &[u8] = &vec![0; 8 << 20];
    let e = check_refused(log.enqueue(batch(&[record; 8])), ErrorKind::Limit);
    assert_eq!(e.to_string(), "a batch of 67109120 bytes: expected at most 67108864");
    assert_eq!(log.next_lsn(), lsn(1));
}

#[test]
fn a_batch_that_fits_nowhere_gets_a_segment_that_holds_it() {
    let (_home, dir) = place();
    let log = open(&dir);
    log.append(b"small").unwrap();
    let large = vec![7; 1_000_000];
    log.append(&large).unwrap();
    log.append(b"behind").unwrap();
    let sizes = || -> Vec<u64> {
        segments(&dir).iter().map(|path| path.metadata().unwrap().len()).collect()
    };
    assert_eq!(sizes()[1..], [1 << 20], "the smallest doubling of 64 KiB");
    log.append(&[8; 50_000]).unwrap();
    assert_eq!(sizes()[2..], [65_536]);
    log.close().unwrap();
    let log = open(&dir);
    assert_eq!(read(&log, 2)[0].payload, large);
    assert_eq!(read(&log, 1).len(), 4);
}

#[test]
fn readers_cross_segments_and_meet_what_comes_later() {
    let (_home, dir) = place();
    let log = open(&dir);
    let mut reader = log.reader(lsn(1)).unwrap();
    assert!(reader.next().unwrap().is_none());
    for i in 0_u64..200 {
        log.append(&i.to_le_bytes().repeat(200)).unwrap();
        let record = reader.next().unwrap().unwrap();
        assert_eq!((record.lsn.get(), record.payload.len()), (i + 1, 1600));
        assert_eq!(record.payload[..8], i.to_le_bytes());
    }
    assert!(reader.next().unwrap().is_none());
    assert!(segments(&dir).len() > 4);
    for from in 1..=200 {
        let record = log.reader(lsn(from)).unwrap().next().unwrap().unwrap();
        assert_eq!(record.payload[..8], (from - 1).to_le_bytes());
    }
    log.append_batch(batch(&[b"not durable"]), Durability::Buffered).unwrap();
    let durable = log.durable_lsn().unwrap();
    let next = reader.next().unwrap();
    assert!(next.is_none() || log.durable_lsn().unwrap() > durable);
}

#[test]
fn a_trim_drops_segments_and_gaps_are_typed() {
    let (_home, dir) = place();
    let log = open(&dir);
    for _ in 0..100 {
        log.append(&[1; 3000]).unwrap();
    }
    let before = segments(&dir).len();
    check_refused(log.trim(lsn(102)), ErrorKind::InvalidInput);
    log.trim(lsn(60)).unwrap();
    log.trim(lsn(10)).unwrap();
    assert_eq!(log.oldest_lsn(), lsn(60));
    let e = check_refused(log.reader(lsn(59)), ErrorKind::Trimmed);
    assert_eq!(e.lsn(), Lsn::new(60));
    assert_eq!(read(&log, 60).len(), 41);
    log.trim(lsn(101)).unwrap();
    log.close().unwrap();
    assert!(before > 3 && segments(&dir).len() == 1, "what a few steps remove is gone by the end");
    let log = open(&dir);
    assert_eq!((log.oldest_lsn(), log.next_lsn()), (lsn(101), lsn(101)));
    assert_eq!(log.append(b"LSNs are never given twice").unwrap(), lsn(101));
}

#[test]
fn a_reader_that_retention_overtakes_is_told() {
    let (_home, dir) = place();
    let log = open(&dir);
    for _ in 0..100 {
        log.append(&[1; 3000]).unwrap();
    }
    let mut reader = log.reader(lsn(1)).unwrap();
    reader.next().unwrap().unwrap();
    log.trim(lsn(90)).unwrap();
    let e = loop {
        match reader.next() {
            Ok(Some(record)) => assert!(record.lsn < lsn(90)),
            Ok(None) => panic!("a gap is not an end"),
            Err(e) => break e,
        }
    };
    assert_eq!((e.kind(), e.lsn()), (ErrorKind::Trimmed, Lsn::new(90)));
}

#[test]
fn a_trim_of_what_is_only_buffered_syncs_it_first() {
    let machine = Machine::new();
    let io = MemIo::new(machine);
    let options = options().io(Arc::new(io.clone())).background(false);
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append_batch(batch(&[b"a", b"b"]), Durability::Buffered).unwrap();
    log.trim(lsn(3)).unwrap();
    assert_eq!(log.durable_lsn(), Some(lsn(2)));
}

#[test]
fn a_trim_whose_sync_of_what_was_buffered_fails_is_poisoned_and_states_nothing() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(b"durable").unwrap();
    log.append_batch(batch(&[b"a", b"b"]), Durability::Buffered).unwrap();
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    check_refused(log.trim(lsn(4)), ErrorKind::Poisoned);
    assert_eq!((io.struck(), log.oldest_lsn()), (1, Lsn::FIRST));
    drop(log);
    let (log, _) = Log::open("/log", &options).unwrap();
    assert_eq!(read(&log, 1)[0].payload, b"durable"[..]);
}

/// A clock that goes back.
#[derive(Debug)]
struct Backwards(AtomicU64);

impl Clock for Backwards {
    fn wall_ms(&self) -> u64 {
        self.0.fetch_sub(10, Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn times_of_records_never_decrease() {
    let (_home, dir) = place();
    for start in [5000, 900, u64::MAX / 2] {
        let clock = Arc::new(Backwards(AtomicU64::new(start)));
        let (log, _) = Log::open(&dir, &options().clock(clock)).unwrap();
        for _ in 0..30 {
            log.append(&[0; 5000]).unwrap();
        }
        log.close().unwrap();
    }
    let records = read(&open(&dir), 1);
    assert_eq!(records[0].time_ms, 5000);
    assert!(records.is_sorted_by_key(|record| record.time_ms));
    assert_eq!(records[89].time_ms, (1 << 48) - 1, "what six bytes hold");
}

#[test]
fn a_damaged_sealed_segment_is_met_by_a_full_check_or_by_its_reader() {
    let (_home, dir) = place();
    let log = open(&dir);
    for _ in 0..60 {
        log.append(&[1; 3000]).unwrap();
    }
    log.close().unwrap();
    let path = &segments(&dir)[0];
    let mut bytes = std::fs::read(path).unwrap();
    bytes[12_288 + 3032 + 100] ^= 4;
    std::fs::write(path, bytes).unwrap();

    let e = check_refused(Log::open(&dir, &options().check(Check::Full)), ErrorKind::Corrupt);
    assert_eq!((e.path(), e.lsn()), (Some(&**path), Lsn::new(2)));
    let log = open(&dir);
    let mut reader = log.reader(lsn(1)).unwrap();
    reader.next().unwrap().unwrap();
    let e = check_refused(reader.next(), ErrorKind::Corrupt);
    assert_eq!((e.path(), e.lsn(), e.offset()), (Some(&**path), Lsn::new(2), Some(12_288 + 3032)));
}

fn memory() -> (MemIo, Options) {
    let io = MemIo::new(Machine::new());
    let options = options().io(Arc::new(io.clone())).background(false);
    (io, options)
}

/// Names and bytes of everything in a directory.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| (name.clone(), std::fs::read(dir.join(name)).unwrap());
    names(dir).into_iter().map(read).collect()
}

#[test]
fn an_open_waits_for_another_writer_as_long_as_it_is_told() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    check_refused(Log::open("/log", &options), ErrorKind::Busy);
    let (begin, longest) = (Instant::now(), Duration::from_millis(20));
    check_refused(Log::open("/log", &options.clone().lock_wait(longest)), ErrorKind::Busy);
    assert!(begin.elapsed() >= longest);
    // What is wrong for another reason is said at once.
    let patient = options.lock_wait(Duration::from_secs(600));
    let wrong = patient.clone().create(CreateMode::Never);
    check_refused(Log::open("/none", &wrong), ErrorKind::InvalidInput);
    io.note_calls();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| Log::open("/log", &patient));
        let asked = || io.noted_calls().iter().filter(|(kind, _)| *kind == CallKind::Lock).count();
        while asked() < 3 {
            assert!(!opener.is_finished(), "it waits");
            std::thread::yield_now();
        }
        log.append(b"of the first").unwrap();
        log.close().unwrap();
        let (log, report) = opener.join().unwrap().unwrap();
        assert_eq!((read(&log, 1).len(), report.created), (1, false));
    });
}

/// The lock file was made, or made whole, before the log was judged.
#[test]
fn a_log_that_is_refused_is_left_as_it_was() {
    #[track_caller]
    fn check(spoil: impl Fn(&Path), create: CreateMode, expected: Option<ErrorKind>) {
        let locks: [Option<usize>; 5] = [None, Some(0), Some(20), Some(32), Some(512)];
        for lock in locks {
            let (_home, dir) = place();
            let log = open(&dir);
            while segments(&dir).len() < 3 {
                log.append(&[1; 9000]).unwrap();
            }
            log.close().unwrap();
            spoil(&dir);
            let path = dir.join("LOCK");
            match lock {
                None => std::fs::remove_file(&path).unwrap(),
                Some(len) => {
                    let bytes = std::fs::read(&path).unwrap();
                    std::fs::write(&path, &bytes[..len]).unwrap();
                }
            }
            let before = contents(&dir);
            let opened = Log::open(&dir, &options().create(create)).map(|(log, _)| log);
            assert_eq!(opened.as_ref().err().map(oncelog::Error::kind), expected, "{lock:?}");
            if expected.is_some() {
                assert!(contents(&dir) == before, "{lock:?}");
                continue;
            }
            opened.unwrap().close().unwrap();
            let whole = std::fs::read(&path).unwrap();
            assert_eq!((whole.len(), &whole[..8]), (512, &b"oncelock"[..]), "{lock:?}");
        }
    }
    let corrupt = Some(ErrorKind::Corrupt);
    let refused = Some(ErrorKind::InvalidInput);
    check(|dir| std::fs::remove_file(&segments(dir)[0]).unwrap(), CreateMode::Never, corrupt);
    check(|dir| std::fs::remove_file(&segments(dir)[1]).unwrap(), CreateMode::IfMissing, corrupt);
    check(|_| (), CreateMode::Always, refused);
    check(|_| (), CreateMode::Never, None);
}

#[test]
fn a_footer_may_lack_space_and_nothing_else() {
    #[track_caller]
    fn check(call: CallKind, faults: &[Fault], expected: Option<ErrorKind>) {
        let (io, options) = memory();
        let (log, _) = Log::open("/log", &options.background(false)).unwrap();
        while log.next_lsn() < lsn(11) {
            log.append(&[1; 5000]).unwrap();
        }
        // Nothing is buffered: the roll's first write into the tail is the footer, its first cut is
        // that of the zeros behind it.
        for (nth, fault) in (1..).zip(faults) {
            io.arm(Which::Kind(call), nth, 1, *fault);
        }
        let rolled = log.append(&[2; 5000]).map_err(|e| e.kind());
        io.disarm();
        assert_eq!(io.struck(), faults.len() as u64);
        assert_eq!(rolled.err(), expected);
        assert_eq!(log.append(b"next").map_err(|e| e.kind()).err(), expected);
        let records = read(&log, 1).len();
        assert_eq!(records, if expected.is_none() { 12 } else { 10 });
    }
    let poisoned = Some(ErrorKind::Poisoned);
    check(CallKind::Write, &[], None);
    check(CallKind::Write, &[Fault::Error(ENOSPC)], None);
    check(CallKind::Write, &[Fault::Error(EDQUOT)], None);
    check(CallKind::Write, &[Fault::Short(9), Fault::Error(ENOSPC)], None);
    check(CallKind::Write, &[Fault::Short(9), Fault::Short(0)], None);
    check(CallKind::Write, &[Fault::Error(EIO)], poisoned);
    check(CallKind::Write, &[Fault::Short(9), Fault::Error(EIO)], poisoned);
    check(CallKind::SetLen, &[Fault::Error(ENOSPC)], None);
    check(CallKind::SetLen, &[Fault::Error(EIO)], poisoned);
}

#[test]
fn a_full_disk_refuses_appends_and_poisons_nothing() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    io.set_free_blocks(Some(3));
    let mut last = 0;
    let e = loop {
        match log.append(&[1; 5000]) {
            Ok(lsn) => last = lsn.get(),
            Err(e) => break e,
        }
    };
    assert_eq!(e.kind(), ErrorKind::StoreFull, "{e:?}");
    assert!(last > 5, "the first segment has its blocks");
    assert_eq!(read(&log, 1).len() as u64, last);
    check_refused(log.append(&[1; 5000]), ErrorKind::StoreFull);
    assert_eq!(log.append(&[1; 10]).unwrap().get(), last + 1, "what fits is taken");
    log.trim(lsn(2)).unwrap();
    log.clone().close().unwrap();
    let (log, _) = Log::open("/log", &options).unwrap();
    check_refused(log.append(&[1; 5000]), ErrorKind::StoreFull);
    io.set_free_blocks(None);
    assert_eq!(log.append(&[1; 5000]).unwrap().get(), last + 2);
}

/// Between the two slots of a trim there may be no space left: the first one holds already.
#[test]
fn a_trim_that_was_refused_half_way_is_made_whole_by_the_next() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    for _ in 0..60 {
        log.append(&[1; 3000]).unwrap();
    }
    let count = || {
        let names = io.list(Path::new("/log")).unwrap().into_iter().map(|entry| entry.name);
        names.filter(|name| name.to_str().unwrap().ends_with(".seg")).count()
    };
    let before = count();
    io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(ENOSPC));
    check_refused(log.trim(lsn(60)), ErrorKind::StoreFull);
    assert_eq!((count(), log.oldest_lsn()), (before, lsn(60)), "nothing goes on half a word");
    log.trim(lsn(60)).unwrap();
    while log.remove_step().unwrap() {}
    assert_eq!(count(), 1, "the same trim again frees what it promised");
}

#[test]
fn an_open_that_is_refused_touches_no_spare() {
    let (_home, dir) = place();
    open(&dir).close().unwrap();
    let spare = dir.join("0000000009.spare");
    std::fs::write(&spare, b"").unwrap();
    check_refused(Log::open(&dir, &options().create(CreateMode::Always)), ErrorKind::InvalidInput);
    assert!(spare.exists());
    open(&dir);
    assert!(!spare.exists());
}

#[test]
fn a_log_that_could_not_be_made_is_made_later() {
    let (io, options) = memory();
    for free in 0..20 {
        io.set_free_blocks(Some(free));
        match Log::open("/log", &options) {
            Err(e) => assert_eq!(e.kind(), ErrorKind::StoreFull, "{e:?}"),
            Ok((log, _)) => {
                log.append(b"one").unwrap();
                return;
            }
        }
    }
    io.set_free_blocks(None);
    let (log, report) = Log::open("/log", &options).unwrap();
    assert!(report.created);
    assert_eq!(log.append(b"one").unwrap(), lsn(1));
}

#[test]
fn a_failed_sync_is_final_until_a_reopen() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(b"durable").unwrap();
    io.arm(Which::Any, 2, 1, Fault::Error(EIO));
    let e = check_refused(log.append(b"caught"), ErrorKind::OutcomeUnknown);
    assert_eq!(e.lsn(), Lsn::new(2));
    let cause = std::error::Error::source(&e).unwrap().to_string();
    for _ in 0..3 {
        let e = check_refused(log.append(b"late"), ErrorKind::Poisoned);
        assert_eq!(std::error::Error::source(&e).unwrap().to_string(), cause, "the first cause");
    }
    check_refused(log.sync(), ErrorKind::Poisoned);
    check_refused(log.flush(), ErrorKind::Poisoned);
    check_refused(log.trim(lsn(2)), ErrorKind::Poisoned);
    check_refused(log.wait_durable(lsn(2), None), ErrorKind::Poisoned);
    assert_eq!(read(&log, 1).len(), 1, "reads go on");
    let calls = io.counts().0;
    let e = check_refused(log.close(), ErrorKind::Poisoned);
    assert_eq!(std::error::Error::source(&e).unwrap().to_string(), cause);
    assert_eq!(io.counts().0, calls, "nothing is written or synced behind a failure");
    let (log, report) = Log::open("/log", &options).unwrap();
    assert_eq!((report.last_lsn, report.proven_lsn), (Some(lsn(2)), Some(lsn(1))));
    assert_eq!(log.append(b"next").unwrap(), lsn(3));
}

#[test]
fn a_full_disk_under_frames_is_a_failed_write() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    io.arm(Which::Any, 1, 1, Fault::Error(ENOSPC));
    check_refused(log.append(b"caught"), ErrorKind::OutcomeUnknown);
    check_refused(log.append(b"late"), ErrorKind::Poisoned);
}
