//! Opening where no byte can be written, not even over one that stands: a file system that copies
//! on write, and is full.

use std::path::Path;
use std::sync::Arc;

use oncelog::io::Io as _;
use oncelog::testing::{CallKind, EDQUOT, EIO, ENOSPC, Fault, MemIo, Which};
use oncelog::{ErrorKind, Finding, FindingKind, Log, LogView, Options};
use oncelog_format::Slot;

use super::cursors::{filled, lost};
use super::{files, fill};
use crate::log::{lsn, read};

/// A process that was killed in a trim to LSN 12, at the first sync of it: the first slot is in the
/// cache, and two segments are below it.
fn trim_in_the_cache() -> (MemIo, Options) {
    let (io, options, log) = filled();
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Stop);
    assert!(log.trim(lsn(12)).is_err());
    drop(log);
    (io.successor(io.machine()), options)
}

/// A process that was killed behind a trim to LSN 12 whose files are still there, and an append that
/// no slot vouches for.
fn unproven_record() -> (MemIo, Options) {
    let (io, options, log) = filled();
    log.trim(lsn(12)).unwrap();
    fill(&log, 1);
    io.kill();
    drop(log);
    (io.successor(io.machine()), options)
}

fn opened(io: &MemIo, options: &Options) -> oncelog::Result<Log> {
    Log::open("/log", &options.clone().io(Arc::new(io.clone()))).map(|(log, _)| log)
}

fn refuse_writes(io: &MemIo, times: u64, number: i32) {
    io.arm(Which::Kind(CallKind::Write), 1, times, Fault::Error(number));
}

/// What a trim left would be free once it had gone, and nobody could open the log to have it go.
#[test]
fn a_trim_that_cannot_be_proven_for_want_of_space_waits_and_the_log_opens() {
    for number in [ENOSPC, EDQUOT] {
        let (io, options) = trim_in_the_cache();
        refuse_writes(&io, u64::MAX, number);
        let options = options.clone().io(Arc::new(io.clone()));
        let (log, report) = Log::open("/log", &options).unwrap();
        let told = |found: &&Finding| found.kind == FindingKind::TrimUnproven;
        assert_eq!(report.findings.iter().find(told).map(|found| found.lsn), Some(Some(lsn(12))));
        assert_eq!((log.oldest_lsn(), read(&log, 12).len()), (lsn(12), 1));
        assert!(!log.remove_step().unwrap(), "nothing durable says that the files may go");
        assert_eq!(files(&io).len(), 3);
        // Neither a cursor nor a roll relies on what may be gone after a power loss.
        let refused = log.cursor("c").map(drop).map_err(|e| e.kind());
        assert_eq!(refused, Err(ErrorKind::StoreFull));
        assert_eq!(log.trim(lsn(12)).map_err(|e| e.kind()), Err(ErrorKind::StoreFull));
        let view = LogView::open_unshared("/log", Arc::new(lost(&io))).unwrap();
        assert_eq!((view.oldest_lsn(), view.last_lsn()), (lsn(1), Some(lsn(12))));
        io.disarm();
        let cursor = log.cursor("c").unwrap();
        log.trim(lsn(12)).unwrap();
        while log.remove_step().unwrap() {}
        assert_eq!((files(&io).len(), cursor.lsn().unwrap()), (1, lsn(12)));
        let view = LogView::open_unshared("/log", Arc::new(lost(&io))).unwrap();
        assert_eq!((view.oldest_lsn(), view.last_lsn()), (lsn(12), Some(lsn(12))));
    }
}

/// A roll would make the slot durable that was found; what the trim left goes only behind it.
#[test]
fn a_roll_behind_a_trim_that_was_not_proven_states_it_first() {
    let (io, options) = trim_in_the_cache();
    refuse_writes(&io, 1, ENOSPC);
    let log = opened(&io, &options).unwrap();
    fill(&log, 5);
    assert!(files(&io).len() > 3, "it rolled");
    while log.remove_step().unwrap() {}
    drop(log);
    let after = lost(&io);
    let log = opened(&after, &options).unwrap();
    assert_eq!((log.oldest_lsn(), read(&log, 12).len()), (lsn(12), 6));
}

#[test]
fn a_trim_whose_repetition_fails_in_another_way_or_in_its_sync_keeps_the_log_closed() {
    #[track_caller]
    fn check(kind: CallKind, number: i32, expected: ErrorKind) {
        let (io, options) = trim_in_the_cache();
        io.arm(Which::Kind(kind), 1, 1, Fault::Error(number));
        assert_eq!(opened(&io, &options).map_err(|e| e.kind()).err(), Some(expected));
        // What was dropped from the cache decides; no record went.
        let log = opened(&io, &options).unwrap();
        let oldest = log.oldest_lsn();
        assert!([lsn(1), lsn(12)].contains(&oldest), "{oldest}");
        let found = read(&log, oldest.get()).len() as u64;
        assert_eq!((found, files(&io).len()), (13 - oldest.get(), 3));
    }
    check(CallKind::Write, EIO, ErrorKind::Io);
    check(CallKind::Sync, EIO, ErrorKind::Io);
    // It is not known what the disk has.
    check(CallKind::Sync, ENOSPC, ErrorKind::StoreFull);
}

/// The files that a durable trim left are all the space there is for records that have to be
/// written again.
#[test]
fn what_a_trim_left_makes_room_for_records_that_are_written_again() {
    let (io, options) = unproven_record();
    refuse_writes(&io, 1, ENOSPC);
    let log = opened(&io, &options).unwrap();
    assert_eq!(files(&io).len(), 1, "they went before the records were written");
    assert_eq!((log.oldest_lsn(), read(&log, 12).len()), (lsn(12), 2));
    while log.remove_step().unwrap() {}
    let view = LogView::open_unshared("/log", Arc::new(lost(&io))).unwrap();
    assert_eq!((view.oldest_lsn(), view.last_lsn()), (lsn(12), Some(lsn(13))));
}

/// A disk that is nearly full takes a part of a write, and refuses the rest.
#[test]
fn what_a_trim_left_makes_room_where_a_write_was_short() {
    for taken in [1, 7, 64] {
        let (io, options) = unproven_record();
        io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Short(taken));
        io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(ENOSPC));
        let log = opened(&io, &options).unwrap();
        assert_eq!(files(&io).len(), 1, "they went before the records were written");
        assert_eq!((log.oldest_lsn(), read(&log, 12).len()), (lsn(12), 2));
        let view = LogView::open_unshared("/log", Arc::new(lost(&io))).unwrap();
        assert_eq!((view.oldest_lsn(), view.last_lsn()), (lsn(12), Some(lsn(13))));
    }
}

/// They may be gone after a power loss: nobody is served them. Readers that know it are.
#[test]
fn records_that_cannot_be_written_again_keep_the_log_closed_and_say_why() {
    let (io, options) = unproven_record();
    refuse_writes(&io, u64::MAX, ENOSPC);
    assert_eq!(opened(&io, &options).map_err(|e| e.kind()).err(), Some(ErrorKind::StoreFull));
    let view = LogView::open_unshared("/log", Arc::new(io.clone())).unwrap();
    assert_eq!((view.oldest_lsn(), view.last_lsn()), (lsn(12), Some(lsn(13))));
    io.disarm();
    let log = opened(&io, &options).unwrap();
    assert_eq!(read(&log, 12).len(), 2);
    assert!(io.kind(Path::new("/log")).is_ok());
}

/// The slots of the last segment, and which of them is the newest that is valid.
fn slots(io: &MemIo) -> ([Vec<u8>; 2], usize) {
    let io = MemIo::new(io.machine());
    let (last, _) = files(&io).pop().unwrap();
    let bytes = io.machine().bytes(Path::new("/log").join(last)).unwrap();
    let at = |index| {
        let from = usize::try_from(Slot::offset_of(index)).unwrap();
        bytes[from..from + Slot::LEN].to_vec()
    };
    let slots = [at(0), at(1)];
    let counter = |index: u32| Slot::decode(&slots[index as usize], index).map_or(0, |s| s.counter);
    let newest = usize::from(counter(1) > counter(0));
    (slots, newest)
}

/// Were the other one taken, a crash would leave neither: the refused one may be torn.
#[test]
fn a_slot_that_was_refused_is_written_again_in_its_place() {
    for seed in 0..8 {
        let (io, _options, log) = filled();
        io.seed(seed);
        log.trim(lsn(6)).unwrap();
        let (before, newest) = slots(&io);
        io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Short(64));
        io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(ENOSPC));
        assert_eq!(log.trim(lsn(12)).unwrap_err().kind(), ErrorKind::StoreFull);
        assert_ne!(slots(&io).0[1 - newest], before[1 - newest], "a part was written");
        // What is unsynced is synced first; the next sync is that of the slot.
        io.arm(Which::Kind(CallKind::Sync), 2, 1, Fault::Stop);
        assert!(log.trim(lsn(12)).is_err());
        let after = slots(&io).0;
        assert_ne!(after[1 - newest], before[1 - newest]);
        assert_eq!(after[newest], before[newest], "seed {seed}");
    }
}

/// Whatever becomes of the segments before it, it states what they did.
#[test]
fn the_first_slot_of_a_segment_states_the_trim_that_came_before_it() {
    let (io, _options, log) = filled();
    log.trim(lsn(12)).unwrap();
    fill(&log, 5);
    let ([_, first], newest) = slots(&io);
    let first = Slot::decode(&first, 1).unwrap();
    assert_eq!((first.counter, newest), (1, 1));
    assert_eq!((first.header.first_lsn, first.oldest_lsn), (16, 12));
}
