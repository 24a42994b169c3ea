//! Backups: whole and consistent beside writers and trims, and never a shorter log, whatever fails.

pub(crate) mod raced;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use oncelog::io::Io;
use oncelog::io::fs::FsIo;
use oncelog::testing::{
    CallKind, Dice, EINTR, EIO, EMFILE, ENOSPC, EROFS, Fault, Machine, MemIo, Which, survivors,
};
use oncelog::{
    BackupReport, Check, Durability, ErrorKind, Log, LogView, Lsn, Options, Record, Severity,
};

use crate::figures::figure;
use crate::log::{batch, lsn, open, options, place, read};

/// The payload of a record.
fn payload(lsn: u64) -> Vec<u8> {
    let mut bytes = lsn.to_string().into_bytes();
    bytes.resize(bytes.len() + usize::try_from(lsn * 7919 % 4000).unwrap(), b'.');
    bytes
}

/// Appends records up to an LSN, some in batches.
fn append_to(log: &Log, last: u64) {
    while log.next_lsn().get() <= last {
        let next = log.next_lsn().get();
        let payloads: Vec<Vec<u8>> = (next..=last.min(next + next % 3)).map(payload).collect();
        let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        log.append_batch(batch(&slices), Durability::Synced).unwrap();
    }
}

/// What must be the same in a copy.
fn facts(record: &Record) -> (u64, u64, u8, Vec<u8>, u64, u64, bool) {
    let Record { time_ms, kind, payload, segment, offset, batch_end, .. } = record;
    (record.lsn.get(), *time_ms, kind.as_u8(), payload.to_vec(), segment.get(), *offset, *batch_end)
}

/// The copy verifies, opens cleanly, and has exactly the records of the original up to its end; it
/// goes on from there.
#[track_caller]
fn check_copy(log: &Log, copy: &Path, report: &BackupReport) {
    let view = LogView::open_unshared(copy, Arc::new(FsIo::new())).unwrap();
    let mut found = Vec::new();
    let summary = view.verify(&mut |finding| found.push(finding.clone())).unwrap();
    assert_eq!(summary.severity, Severity::Info, "{found:#?}");
    assert_eq!((view.last_lsn(), view.uuid()), (report.last_lsn, Some(report.uuid)));
    let proven = view.proven_lsn();
    let before = report.oldest_lsn.prev();
    assert_eq!(proven, report.last_lsn.or(before), "the copy vouches for all");
    let (copied, opened) = Log::open(copy, &Options::new().check(Check::Full)).unwrap();
    assert_eq!((opened.torn, opened.oldest_lsn), (None, report.oldest_lsn));
    let records = read(&copied, report.oldest_lsn.get());
    // Of a view, also what was written and not synced.
    let mut reader = log.reader_written(report.oldest_lsn).unwrap();
    let originals: Vec<Record> = std::iter::from_fn(|| reader.next().unwrap()).collect();
    let expected = originals.iter().take_while(|record| Some(record.lsn) <= report.last_lsn);
    assert!(records.iter().map(facts).eq(expected.map(facts)));
    assert_eq!(records.last().map(|record| record.lsn), report.last_lsn);
    let next = report.last_lsn.map_or(report.oldest_lsn, Lsn::next);
    assert_eq!(copied.append(b"the copy goes on").unwrap(), next);
    copied.close().unwrap();
}

#[test]
fn a_backup_has_every_durable_record_and_an_identity_of_its_own() {
    let (home, dir) = place();
    let log = open(&dir);
    let check = |name: &str| {
        let to = home.path().join(name);
        let report = log.backup(&to).unwrap();
        assert_eq!(report.last_lsn, log.durable_lsn().filter(|last| *last >= log.oldest_lsn()));
        check_copy(&log, &to, &report);
        let original = LogView::open(&dir, Arc::new(FsIo::new())).unwrap();
        assert_ne!(original.uuid(), Some(report.uuid));
        let of_view = home.path().join(format!("{name} of a view"));
        check_copy(&log, &of_view, &original.backup(&of_view).unwrap());
    };
    check("nothing yet");
    append_to(&log, 1);
    check("one record");
    append_to(&log, 400);
    check("many segments");
    log.append_batch(batch(&[b"buffered"]), Durability::Buffered).unwrap();
    log.flush().unwrap();
    log.trim(lsn(123)).unwrap();
    check("trimmed");
    log.trim(log.next_lsn()).unwrap();
    check("all trimmed");
    append_to(&log, 450);
    check("and more");
}

#[test]
fn a_backup_of_a_torn_log_leaves_out_what_is_dead() {
    let (home, dir) = place();
    let log = open(&dir);
    append_to(&log, 5);
    log.close().unwrap();
    let tail = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let tail = tail.filter(|path| path.extension().is_some_and(|e| e == "seg")).max().unwrap();
    let mut bytes = std::fs::read(&tail).unwrap();
    let at = bytes.len() - 5000;
    bytes[at..at + 100].fill(7);
    std::fs::write(&tail, bytes).unwrap();
    let view = LogView::open(&dir, Arc::new(FsIo::new())).unwrap();
    assert_eq!(view.severity(), Severity::Torn);
    let to = home.path().join("copy");
    let report = view.backup(&to).unwrap();
    let log = open(&dir);
    append_to(&log, 300);
    check_copy(&log, &to, &report);
    let to = home.path().join("later");
    check_copy(&log, &to, &log.backup(&to).unwrap());
}

#[test]
fn a_backup_has_the_cursors_of_the_log() {
    let (home, dir) = place();
    let log = open(&dir);
    append_to(&log, 200);
    log.cursor("indexer").unwrap().advance(lsn(60)).unwrap();
    log.cursor("replica").unwrap().advance(lsn(201)).unwrap();
    log.cursor("gone").unwrap().remove().unwrap();
    let view = LogView::open(&dir, Arc::new(FsIo::new())).unwrap();
    // Beyond the end of what the view saw.
    append_to(&log, 220);
    log.cursor("replica").unwrap().advance(lsn(215)).unwrap();
    let check = |name: &str, report: BackupReport, replica: u64| {
        let to = home.path().join(name);
        check_copy(&log, &to, &report);
        let (copy, _) = Log::open(&to, &Options::new()).unwrap();
        assert_eq!(copy.cursor("indexer").unwrap().lsn().unwrap(), lsn(60));
        assert_eq!(copy.cursor("replica").unwrap().lsn().unwrap(), lsn(replica));
        assert_eq!(copy.trim(lsn(61)).unwrap_err().kind(), ErrorKind::Pinned);
        copy.trim(lsn(60)).unwrap();
        copy.close().unwrap();
    };
    check("copy", log.backup(home.path().join("copy")).unwrap(), 215);
    check("view", view.backup(home.path().join("view")).unwrap(), 201);
    // Nobody knows what is needed of a copy whose original nobody knew of.
    log.close().unwrap();
    std::fs::write(dir.join("CURSORS"), b"lost").unwrap();
    let log = open(&dir);
    log.backup(home.path().join("damaged")).unwrap();
    let (copy, _) = Log::open(home.path().join("damaged"), &Options::new()).unwrap();
    assert!(copy.trim(lsn(2)).is_err());
    assert_eq!(read(&copy, 1).len(), 220);
}

#[test]
fn a_backup_beside_writers_and_trims_is_consistent() {
    let (home, dir) = place();
    let log = open(&dir);
    append_to(&log, 200);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                append_to(&log, log.next_lsn().get() + 3);
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let next = log.next_lsn().get();
                match log.trim(lsn(next - next / 4)) {
                    Err(e) if e.kind() == ErrorKind::Pinned => thread::yield_now(),
                    trimmed => trimmed.unwrap(),
                }
            }
        });
        for i in 0..8 {
            let to = home.path().join(i.to_string());
            let report = log.backup(&to).unwrap();
            let view = LogView::open(&to, Arc::new(FsIo::new())).unwrap();
            let summary = view.verify(&mut |_| ()).unwrap();
            assert_eq!(summary.severity, Severity::Info);
            assert_eq!(summary.last_lsn, report.last_lsn);
            let (copy, _) = Log::open(&to, &Options::new().check(Check::Full)).unwrap();
            let records = read(&copy, report.oldest_lsn.get());
            let lsns = records.iter().map(|record| record.lsn.get());
            assert!(lsns.eq(report.oldest_lsn.get()..=report.last_lsn.unwrap().get()));
            assert!(records.iter().all(|record| record.payload == payload(record.lsn.get())));
            assert!(records.last().unwrap().batch_end);
        }
        done.store(true, Ordering::SeqCst);
    });
}

/// It copied what was trimmed, and a trim beside it ended it as `Trimmed`.
#[test]
fn a_backup_behind_a_trim_that_was_refused_half_way_copies_what_is_left() {
    let io = MemIo::new(Machine::new());
    let options = options().background(false).io(Arc::new(io.clone()));
    let (log, _) = Log::open(LOG, &options).unwrap();
    append_to(&log, RECORDS);
    let all = log.backup("/all").unwrap();
    let oldest = log.next_lsn().prev().unwrap();
    // The first slot is written, the second is not.
    io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(ENOSPC));
    assert_eq!(log.trim(oldest).unwrap_err().kind(), ErrorKind::StoreFull);
    assert_eq!((io.struck(), log.oldest_lsn()), (1, oldest));
    let report = log.backup("/left").unwrap();
    assert!(report.segment_count < all.segment_count, "{report:?}");
    assert_eq!((report.oldest_lsn, report.last_lsn), (oldest, Some(oldest)));
    log.trim(oldest).unwrap();
    while log.remove_step().unwrap() {}
    let entries = io.list(Path::new(LOG)).unwrap().into_iter();
    let left = entries.filter(|entry| entry.name.to_string_lossy().ends_with(".seg")).count();
    assert_eq!(usize::try_from(report.segment_count).unwrap(), left);
    let (copy, _) = Log::open("/left", &options).unwrap();
    assert_eq!(read(&copy, oldest.get()).len(), 1);
}

#[test]
fn a_place_that_holds_something_is_left_alone() {
    let (home, dir) = place();
    let log = open(&dir);
    append_to(&log, 3);
    let check = |to: &Path, kind| {
        let e = log.backup(to).unwrap_err();
        assert_eq!((e.kind(), e.path().is_some()), (kind, true), "{e}");
    };
    let other = home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("thesis.txt"), "mine").unwrap();
    check(&other, ErrorKind::InvalidInput);
    check(&other.join("thesis.txt"), ErrorKind::InvalidInput);
    check(&dir, ErrorKind::InvalidInput);
    check(&home.path().join("no/parent"), ErrorKind::Io);
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1);
    let empty = home.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    check_copy(&log, &empty, &log.backup(&empty).unwrap());
    check(&empty, ErrorKind::InvalidInput);
    let nothing = LogView::open(&other, Arc::new(FsIo::new())).unwrap();
    let refused = nothing.backup(home.path().join("new")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    log.clone().close().unwrap();
    check_closed(&log, &home.path().join("new"));
}

#[track_caller]
fn check_closed(log: &Log, to: &Path) {
    assert_eq!(log.backup(to).unwrap_err().kind(), ErrorKind::Closed);
    assert!(!to.exists());
}

#[test]
fn damage_ends_a_backup_and_leaves_nothing() {
    let (home, dir) = place();
    let log = open(&dir);
    append_to(&log, 200);
    let record = &read(&log, 50)[0];
    let name = format!("{:010}-", record.segment.get());
    let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&name);
    let path = entries.into_iter().find(is_it).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[usize::try_from(record.offset).unwrap() + 33] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let to = home.path().join("copy");
    for _ in 0..2 {
        let e = log.backup(&to).unwrap_err();
        assert_eq!((e.kind(), e.lsn(), e.path()), (ErrorKind::Corrupt, Lsn::new(50), Some(&*path)));
        assert_eq!(std::fs::read_dir(&to).unwrap().count(), 0);
    }
}

const LOG: &str = "/log";
const COPY: &str = "/copy";
const RECORDS: u64 = 60;

/// A log in memory, and a process that has it open.
fn memory() -> (MemIo, Log) {
    let io = MemIo::new(Machine::new());
    let options = options().background(false).io(Arc::new(io.clone()));
    let (log, _) = Log::open(LOG, &options).unwrap();
    append_to(&log, RECORDS);
    log.cursor("consumer").unwrap();
    (io, log)
}

/// What opens at the target: everything, or nothing at all. Says whether it is everything.
fn check_left(machine: Machine) -> Result<bool, String> {
    let io = MemIo::new(machine);
    let io: Arc<dyn Io> = Arc::new(io);
    if io.kind(Path::new(COPY)).unwrap().is_none() {
        return Ok(false);
    }
    let view = LogView::open_unshared(COPY, Arc::clone(&io)).map_err(|e| e.to_string())?;
    let options = Options::new().background(false).io(io);
    let log = match Log::open(COPY, &options) {
        Ok((log, _)) => log,
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            let said = e.to_string().contains("LOCK");
            let seen = view.severity() == Severity::Corrupt;
            return if said && seen { Ok(false) } else { Err(format!("{e}")) };
        }
        Err(e) if e.kind() == ErrorKind::InvalidInput && view.segments().is_empty() => {
            return Ok(false);
        }
        Err(e) => return Err(format!("opening: {e}")),
    };
    let records = read(&log, 1);
    let all = records.iter().map(|record| (record.lsn.get(), record.payload.to_vec()));
    if all.eq((1..=RECORDS).map(|lsn| (lsn, payload(lsn)))) {
        let held = log.trim(lsn(2)).is_err_and(|e| e.kind() == ErrorKind::Pinned);
        return if held { Ok(true) } else { Err("the cursor is gone".to_owned()) };
    }
    Err(format!("a log of {} records", records.len()))
}

#[test]
fn no_failing_call_leaves_a_shorter_log() {
    let calls = {
        let (io, log) = memory();
        let before = io.counts().0;
        log.backup(COPY).unwrap();
        assert!(check_left(io.machine()).unwrap());
        io.counts().0 - before
    };
    assert!(calls > 30, "{calls} calls");
    let faults = [
        Fault::Error(EIO),
        Fault::Error(ENOSPC),
        Fault::Error(EROFS),
        Fault::Error(EMFILE),
        Fault::Error(EINTR),
        Fault::Short(0),
        Fault::Short(100),
        Fault::Stop,
    ];
    let (mut cases, mut crashes) = (0_u64, 0_u64);
    for (nth, fault) in (1..=calls).flat_map(|nth| faults.map(|fault| (nth, fault))) {
        for times in [1, 40] {
            let (io, log) = memory();
            io.seed(nth);
            io.arm(Which::Any, nth, times, fault);
            let done = log.backup(COPY);
            io.disarm();
            cases += 1;
            let story = format!("{fault:?} at call {nth}, {times} times: {done:?}");
            let whole = check_left(io.machine()).unwrap_or_else(|e| panic!("{story}: {e}"));
            assert!(whole || done.is_err(), "{story}");
            let machine = io.machine();
            let unsynced = machine.unsynced();
            for way in survivors(&unsynced, 3, &mut Dice::new(nth)) {
                crashes += 1;
                let left = check_left(machine.power_loss(&unsynced, &way));
                let whole = left.unwrap_or_else(|e| panic!("{story}, power loss: {e}"));
                assert!(whole || done.is_err(), "{story}, power loss");
            }
            if fault != Fault::Stop {
                append_to(&log, RECORDS + 5);
            }
        }
    }
    figure(5, "cases of a failing backup", cases);
    figure(5, "power losses behind a failing backup", crashes);
}

#[test]
pub(crate) fn a_crash_at_any_point_of_a_backup_leaves_no_shorter_log() {
    let (io, log) = memory();
    let points = Arc::new(std::sync::Mutex::new(Vec::new()));
    let notes = Arc::clone(&points);
    io.observe(move |machine, _| notes.lock().unwrap().push(machine.clone()));
    log.backup(COPY).unwrap();
    io.unobserve();
    let points = std::mem::take(&mut *points.lock().unwrap());
    assert!(points.len() > 20, "{} points", points.len());
    let mut crashes = 0_u64;
    for (i, machine) in points.into_iter().enumerate() {
        let unsynced = machine.unsynced();
        for way in survivors(&unsynced, 40, &mut Dice::new(i as u64)) {
            crashes += 1;
            let left = check_left(machine.power_loss(&unsynced, &way));
            left.unwrap_or_else(|e| panic!("power loss at point {i}: {e}"));
        }
        check_left(machine).unwrap_or_else(|e| panic!("kill at point {i}: {e}"));
    }
    figure(1, "crashes of a backup", crashes);
}
