//! Spares and windows filled ahead: what they hold up, and what may befall them.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use oncelog::io::Io as _;
use oncelog::testing::{CallKind, EIO, EMFILE, ENOSPC, Fault, MemIo, Which};
use oncelog::{Durability, ErrorKind, Fill, Log, Options, Record};

use super::watch::{Event, Watch};
use super::{batch, check_refused, lsn, memory, names, open, options, place, read};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than half of a segment.
const HALF: usize = 30_000;

fn filled() -> (MemIo, Options) {
    let (io, options) = memory();
    (io, options.fill(Fill::Zero))
}

fn list(io: &MemIo, ending: &str) -> Vec<String> {
    let entries = io.list(Path::new("/log")).unwrap().into_iter();
    let names = entries.map(|entry| entry.name.into_string().unwrap());
    names.filter(|name| name.ends_with(ending)).collect()
}

/// Takes every step there is, and says how many.
fn fill(log: &Log) -> usize {
    std::iter::from_fn(|| log.fill_step().unwrap().then_some(())).count()
}

/// Appends until a segment is started.
fn roll(log: &Log) {
    let rolls = log.stats().rolls;
    while log.stats().rolls == rolls {
        log.append(&[7; 3000]).unwrap();
    }
}

#[test]
fn a_spare_is_made_and_filled_behind_the_half_of_the_tail_and_taken_at_the_roll() {
    let (io, options) = filled();
    let (log, _) = Log::open("/log", &options).unwrap();
    assert_eq!(fill(&log), 4, "the tail of 64 KiB in windows of 16");
    assert!(list(&io, ".spare").is_empty());
    log.append(&[1; HALF]).unwrap();
    assert_eq!(fill(&log), 5, "the spare, and its windows");
    assert_eq!(list(&io, ".spare"), ["0000000002.spare"]);
    let before = io.counts().0;
    io.arm(Which::Kind(CallKind::Create), 1, 1, Fault::Error(EIO));
    io.arm(Which::Kind(CallKind::Allocate), 1, 1, Fault::Error(EIO));
    roll(&log);
    assert_eq!(io.struck(), 0, "a roll makes and reserves nothing");
    assert!(io.counts().0 > before);
    io.disarm();
    assert!(list(&io, ".spare").is_empty());
    assert_eq!(fill(&log), 0, "the new tail was filled as a spare");
    let stats = log.stats();
    assert_eq!((stats.spares_used, stats.spares_missed), (1, 0));
}

#[test]
fn a_spare_that_is_half_filled_is_taken_and_filled_as_the_tail() {
    let (_io, options) = filled();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log);
    log.append(&[1; HALF]).unwrap();
    assert!(log.fill_step().unwrap() && log.fill_step().unwrap());
    roll(&log);
    assert_eq!(log.stats().spares_used, 1);
    assert_eq!(fill(&log), 2, "two windows of four, for a writer within the first");
    assert_eq!(read(&log, 1).len() as u64, log.next_lsn().get() - 1);
}

#[test]
fn what_a_writer_has_passed_is_never_filled() {
    #[track_caller]
    fn check(lens: &[usize], durability: Durability) {
        let (_io, options) = filled();
        let (log, _) = Log::open("/log", &options).unwrap();
        for len in lens {
            log.append_batch(batch(&[&vec![1; *len]]), durability).unwrap();
            log.fill_step().unwrap();
        }
        log.sync().unwrap();
        fill(&log);
        log.close().unwrap();
        let (log, report) = Log::open("/log", &options).unwrap();
        assert_eq!((report.torn, report.findings.len()), (None, 0));
        let found: Vec<usize> = read(&log, 1).iter().map(|record| record.payload.len()).collect();
        assert_eq!(found, lens);
    }
    for durability in [Durability::Synced, Durability::Buffered] {
        check(&[4064], durability);
        check(&[4065, 1, 8160], durability);
        check(&[20_000, 16_352, 16_353], durability);
        check(&[1; 40], durability);
        check(&[53_216, 53_216], durability);
    }
}

#[test]
fn windows_begin_with_a_block_whatever_the_size_of_a_segment() {
    for size in [65_536, 65_537, 100_000, 200_001, 5_000_003] {
        let dir = tempfile::tempdir().unwrap();
        let watch = Watch::default();
        let options = options().fill(Fill::Zero).segment_bytes_max(size).background(false);
        let options = options.io(Arc::new(watch.clone()));
        let (log, _) = Log::open(dir.path().join("log"), &options).unwrap();
        let filled = |log: &Log| {
            let seen = watch.events().len();
            fill(log);
            let events = watch.events().split_off(seen).into_iter();
            let offsets = events.filter_map(|event| match event {
                Event::Write { offset, .. } => Some(offset),
                Event::Sync => None,
            });
            offsets.collect::<Vec<u64>>()
        };
        let mut offsets = filled(&log);
        log.append(&[1; HALF]).unwrap();
        offsets.extend(filled(&log));
        assert!(offsets.len() > 2, "{size}: {offsets:?}");
        let within_a_block = offsets.iter().find(|offset| **offset % 4096 != 0);
        assert_eq!(within_a_block, None, "{size}: {offsets:?}");
    }
}

#[test]
fn a_log_that_is_only_opened_fills_nothing() {
    let (io, options) = filled();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(&[1; HALF]).unwrap();
    log.close().unwrap();
    assert!(list(&io, ".spare").is_empty(), "a close leaves no spare");
    let (log, _) = Log::open("/log", &options).unwrap();
    let calls = io.counts().0;
    assert_eq!(fill(&log), 0);
    assert_eq!(io.counts().0, calls);
    log.append(b"first").unwrap();
    assert!(fill(&log) > 1, "windows and a spare");
    log.close().unwrap();
    assert!(list(&io, ".spare").is_empty());
}

#[test]
fn without_space_for_a_spare_appends_go_on_in_the_space_there_is() {
    let (io, options) = filled();
    let (log, _) = Log::open("/log", &options).unwrap();
    io.set_free_blocks(Some(3));
    log.append(&[1; HALF]).unwrap();
    fill(&log);
    assert!(list(&io, ".spare").is_empty(), "given up");
    assert!(!log.fill_step().unwrap(), "and not tried again");
    log.append(&[2; 20_000]).unwrap();
    check_refused(log.append(&[3; 5000]), ErrorKind::StoreFull);
    log.append(&[4; 10]).unwrap();
    io.set_free_blocks(None);
    log.append(&[5; 5000]).unwrap();
    assert_eq!(log.stats().spares_missed, 1);
}

#[test]
fn a_spare_that_was_made_is_there_on_a_full_disk() {
    let (io, options) = filled();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(&[1; HALF]).unwrap();
    fill(&log);
    io.set_free_blocks(Some(0));
    let long = vec![2; 60_000];
    check_refused(
        log.append_batch(batch(&[&long, &long]), Durability::Synced),
        ErrorKind::StoreFull,
    );
    assert_eq!(list(&io, ".spare").len(), 1, "it stays, for a batch that fits");
    log.append(&[3; HALF]).unwrap();
    assert_eq!(log.stats().spares_used, 1);
    io.set_free_blocks(None);
    fill(&log);
    let last = log.append_batch(batch(&[&long, &long]), Durability::Synced).unwrap().last;
    assert_eq!(log.stats().spares_used, 2, "a spare that is too small grows");
    assert_eq!(read(&log, 1).last().unwrap().lsn, last);
}

#[test]
fn what_befalls_a_spare_poisons_nothing_and_a_failed_sync_of_the_tail_does() {
    /// Strikes at the `nth` call of a kind from the step on that follows `before` steps.
    #[track_caller]
    fn check(before: usize, call: CallKind, number: i32, expected: Option<ErrorKind>) {
        let (io, options) = filled();
        let (log, _) = Log::open("/log", &options).unwrap();
        log.append(&[1; 2000]).unwrap();
        log.append_batch(batch(&[&[2; HALF]]), Durability::Buffered).unwrap();
        log.flush().unwrap();
        (0..before).for_each(|_| assert!(log.fill_step().unwrap()));
        io.arm(Which::Kind(call), 1, 1, Fault::Error(number));
        assert_eq!(log.fill_step().map_err(|e| e.kind()).err(), expected);
        assert_eq!(io.struck(), 1);
        io.disarm();
        let next = log.append(&[3; HALF]);
        assert_eq!(next.as_ref().map_err(|e| e.kind()).err(), expected.as_ref().copied());
        let appended = [vec![1; 2000], vec![2; HALF], vec![3; HALF]];
        let is_begin = |found: &[Record]| found.iter().zip(&appended).all(|(a, b)| a.payload == b);
        if next.is_ok() {
            let found = read(&log, 1);
            assert!(found.len() == 3 && is_begin(&found));
        }
        // What was buffered may be gone with the failed sync; what was synced may not.
        let kept = if next.is_ok() { 3 } else { 1 };
        drop(log);
        io.set_free_blocks(None);
        let (log, _) = Log::open("/log", &options).unwrap();
        let found = read(&log, 1);
        assert!((kept..=3).contains(&found.len()) && is_begin(&found));
    }
    let poisoned = Some(ErrorKind::Poisoned);
    // The spare is made.
    check(0, CallKind::Create, EMFILE, None);
    check(0, CallKind::Allocate, ENOSPC, None);
    // The one window of the tail that is left.
    check(1, CallKind::Open, EMFILE, None);
    check(1, CallKind::Write, EIO, None);
    check(1, CallKind::Write, ENOSPC, None);
    check(1, CallKind::Sync, EIO, poisoned);
    // The tail is synced ahead.
    check(2, CallKind::Sync, EIO, poisoned);
    // A window of the spare.
    check(3, CallKind::Write, ENOSPC, None);
    check(3, CallKind::Write, EIO, None);
    check(3, CallKind::Sync, EIO, None);
}

#[test]
fn what_is_done_ahead_is_as_the_option_says() {
    #[track_caller]
    fn check(option: Fill, steps: usize, allocates: bool) {
        let (io, options) = memory();
        let (log, _) = Log::open("/log", &options.fill(option)).unwrap();
        io.note_calls();
        log.append(&[1; HALF]).unwrap();
        assert_eq!(fill(&log), steps);
        roll(&log);
        let calls = io.noted_calls();
        assert_eq!(calls.iter().any(|(kind, _)| *kind == CallKind::Allocate), allocates);
        assert_eq!(log.stats().fills > 0, option == Fill::Zero);
    }
    check(Fill::Zero, 6, true);
    check(Fill::Allocate, 1, true);
    check(Fill::Auto, 1, true);
    check(Fill::None, 0, false);
}

#[test]
fn nothing_is_synced_ahead_where_nothing_is_done_ahead() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options.fill(Fill::None)).unwrap();
    for _ in 0..3 {
        log.append_batch(batch(&[&[1; 10_000]]), Durability::Buffered).unwrap();
    }
    log.flush().unwrap();
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    assert_eq!(fill(&log), 0);
    assert_eq!(io.struck(), 0);
    io.disarm();
    assert_eq!(log.sync().unwrap(), Some(lsn(3)));
}

#[test]
fn a_writer_that_hardly_syncs_is_synced_ahead_and_not_filled_for() {
    let (io, options) = filled();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append_batch(batch(&[&[1; 10_000]]), Durability::Buffered).unwrap();
    assert_eq!(fill(&log), 2, "the windows behind its frames and some room");
    for _ in 0..2 {
        log.append_batch(batch(&[&[1; 10_000]]), Durability::Buffered).unwrap();
    }
    log.flush().unwrap();
    let before = io.machine().unsynced().len();
    assert_eq!(fill(&log), 2, "a sync, and a spare that is not filled");
    let behind = io.machine().unsynced().len();
    assert!(before > 50 && behind < 5, "{before} things unsynced, then {behind}: the spare");
    assert_eq!((log.durable_lsn(), log.stats().syncs), (None, 0), "it states nothing");
    assert_eq!(log.sync().unwrap(), Some(lsn(3)));
    assert_eq!(fill(&log), 4, "the spare, for one that syncs");
}

/// A log over the watched file system whose filler is held back at its first sync, with a frame
/// before the window that it fills.
fn held() -> (tempfile::TempDir, std::path::PathBuf, Watch, Log) {
    let (home, dir) = place();
    open(&dir).close().unwrap();
    let watch = Watch::default();
    let options = options().fill(Fill::Zero).io(Arc::new(watch.clone()));
    let (log, _) = Log::open(&dir, &options).unwrap();
    log.sync().unwrap();
    watch.hold();
    log.append_batch(batch(&[b"first"]), Durability::Buffered).unwrap();
    watch.wait_held();
    (home, dir, watch, log)
}

#[test]
fn a_writer_waits_for_the_window_that_it_would_enter() {
    let (_home, dir, watch, log) = held();
    let is_zeros = |event: &Event| matches!(event, Event::Write { offset, .. } if offset % 4096 == 0 && *offset > 12_288);
    let is_frames = |event: &Event| matches!(event, Event::Write { len, .. } if *len > 40_000);
    thread::scope(|scope| {
        let appender = scope.spawn(|| log.append(&[1; 40_000]));
        let begin = Instant::now();
        while log.stats().fill_waits == 0 {
            assert!(begin.elapsed() < PATIENCE, "nobody waits");
            thread::yield_now();
        }
        let events = watch.events();
        assert!(events.iter().any(is_zeros) && !events.iter().any(is_frames), "{events:?}");
        watch.release();
        appender.join().unwrap().unwrap();
    });
    let events = watch.events();
    let zeros = events.iter().position(is_zeros).unwrap();
    let synced = zeros + events[zeros..].iter().position(|e| *e == Event::Sync).unwrap();
    assert!(synced < events.iter().position(is_frames).unwrap(), "{events:?}");
    log.close().unwrap();
    assert_eq!(read(&open(&dir), 1).len(), 2);
}

#[test]
fn a_close_waits_for_the_filler_and_leaves_no_spare() {
    let (_home, dir, watch, log) = held();
    thread::scope(|scope| {
        let closer = log.clone();
        let closer = scope.spawn(move || closer.close());
        while log.check_open().is_ok() {
            thread::yield_now();
        }
        assert!(!watch.events().contains(&Event::Sync), "the close has synced nothing");
        watch.release();
        closer.join().unwrap().unwrap();
    });
    let events = watch.events();
    let log = open(&dir);
    assert_eq!(read(&log, 1).len(), 1);
    assert_eq!(watch.events(), events, "nobody is at work behind a close");
    assert!(names(&dir).iter().all(|name| !name.ends_with(".spare")));
}

#[test]
fn a_sync_of_the_filler_that_fails_poisons_the_log_and_wakes_who_waits() {
    let (_home, dir, watch, log) = held();
    thread::scope(|scope| {
        let appender = scope.spawn(|| log.append(&[1; 40_000]));
        let begin = Instant::now();
        while log.stats().fill_waits == 0 {
            assert!(begin.elapsed() < PATIENCE, "nobody waits");
            thread::yield_now();
        }
        watch.fail();
        watch.release();
        let e = appender.join().unwrap().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::OutcomeUnknown);
    });
    check_refused(log.append(b"late"), ErrorKind::Poisoned);
    check_refused(log.close(), ErrorKind::Poisoned);
    let log = open(&dir);
    // Of what no sync covered, nothing, the begin or all is left.
    let found: Vec<_> = read(&log, 1).into_iter().map(|record| record.payload).collect();
    let appended = [&b"first"[..], &[1; 40_000]];
    assert!(found.len() <= 2 && found.iter().zip(appended).all(|(a, b)| a == b));
    let next = log.append(b"goes on").unwrap();
    assert_eq!(next, lsn(found.len() as u64 + 1));
}

/// Zeros that a failed sync kept from the disk look as any, and ext4 never writes what comes in
/// their place as long as they are cached.
#[test]
fn an_open_drops_what_stands_behind_a_clean_end_from_the_cache() {
    let (io, options) = filled();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(b"durable").unwrap();
    log.close().unwrap();
    io.arm(Which::Kind(CallKind::Evict), 1, 1, Fault::Error(EIO));
    check_refused(Log::open("/log", &options), ErrorKind::Io);
    assert_eq!(io.struck(), 1);
    let (log, report) = Log::open("/log", &options).unwrap();
    assert_eq!((report.torn, read(&log, 1).len()), (None, 1));
}

#[test]
fn many_writers_beside_the_filler_lose_nothing() {
    let (_home, dir) = place();
    let options = options().fill(Fill::Zero).segment_bytes_max(1 << 20);
    let (log, _) = Log::open(&dir, &options).unwrap();
    thread::scope(|scope| {
        for writer in 0..4_u8 {
            let log = &log;
            scope.spawn(move || {
                for i in 0..60_usize {
                    let record = vec![writer; i * 700];
                    match i % 3 {
                        0 => drop(log.append(&record).unwrap()),
                        _ => {
                            let one = [&record[..]];
                            log.append_batch(batch(&one), Durability::Buffered).unwrap();
                        }
                    }
                }
            });
        }
    });
    let stats = log.stats();
    assert_eq!((stats.record_count, stats.spares_used + stats.spares_missed), (240, stats.rolls));
    log.close().unwrap();
    let (log, report) = Log::open(&dir, &options).unwrap();
    assert_eq!((report.torn, report.findings.len()), (None, 0));
    let mut sizes = vec![0; 4];
    for record in read(&log, 1) {
        assert!(record.payload.iter().all(|b| *b == record.payload[0]));
        if let Some(writer) = record.payload.first() {
            sizes[usize::from(*writer)] += record.payload.len();
        }
    }
    assert_eq!(sizes, vec![(0..60).map(|i| i * 700).sum::<usize>(); 4]);
}
