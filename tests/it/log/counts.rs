//! Counts, not times: the calls that a group costs, and what a log counts of itself.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use oncelog::testing::{CallKind, MemIo};
use oncelog::{Durability, Fill, Log, Options, WaitPolicy};

use super::watch::{Event, Watch};
use super::{batch, lsn, memory, options, place};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The calls that change what a crash leaves, within `work`.
fn persists(io: &MemIo, work: impl FnOnce()) -> Vec<CallKind> {
    let (tell, told) = mpsc::channel();
    let mut last = None;
    io.observe(move |_, kind| tell.send(kind).unwrap());
    work();
    io.unobserve();
    let mut kinds: Vec<CallKind> = told.try_iter().collect();
    // A long write is seen once for each page that a kill may leave.
    kinds.retain(|kind| last.replace(*kind) != Some(CallKind::Write) || *kind != CallKind::Write);
    kinds
}

/// Not a byte less: what a failed sync left in the cache may be gone from the disk.
#[test]
fn an_open_writes_again_what_is_unproven_and_nothing_else() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(&[1; 500]).unwrap();
    log.append_batch(batch(&[&[2; 700], &[3; 700], &[4; 700]]), Durability::Synced).unwrap();
    io.kill();
    drop(log);
    let io = io.successor(io.machine());
    io.note_calls();
    let (_log, report) = Log::open("/log", &options.io(Arc::new(io.clone()))).unwrap();
    assert_eq!((report.proven_lsn, report.last_lsn), (Some(lsn(1)), Some(lsn(4))));
    let writes = io.noted_calls().into_iter().filter(|(kind, _)| *kind == CallKind::Write);
    assert_eq!(writes.map(|(_, len)| len).collect::<Vec<_>>(), [3 * 736]);
}

#[test]
fn a_group_is_one_write_and_one_sync() {
    #[track_caller]
    fn check(options: &Options, io: &MemIo) {
        let (log, _) = Log::open("/log", options).unwrap();
        let whole = [CallKind::Write, CallKind::Sync];
        assert_eq!(persists(io, || assert_eq!(log.append(b"one").unwrap(), lsn(1))), whole);
        let records: [&[u8]; 3] = [b"three", &[1; 9000], b""];
        let batched = || {
            log.append_batch(batch(&records), Durability::Synced).unwrap();
        };
        assert_eq!(persists(io, batched), whole);
        let buffered = || {
            for _ in 0..20 {
                log.append_batch(batch(&records[..1]), Durability::Buffered).unwrap();
            }
        };
        assert_eq!(persists(io, buffered), []);
        assert_eq!(persists(io, || log.flush().unwrap()), [CallKind::Write]);
        assert_eq!(
            persists(io, || assert_eq!(log.sync().unwrap(), Some(lsn(24)))),
            [CallKind::Sync]
        );
        assert_eq!(
            persists(io, || assert_eq!(log.sync().unwrap(), Some(lsn(24)))),
            [],
            "nothing is left to sync"
        );
        let stats = log.stats();
        assert_eq!(
            (stats.group_count, stats.syncs, stats.batch_count, stats.record_count),
            (3, 3, 22, 24)
        );
        // Headers of 32 bytes, payloads to multiples of 8.
        assert_eq!(stats.bytes, 22 * 40 + 9032 + 32);
    }
    let (io, options) = memory();
    check(&options, &io);
    let (io, options) = memory();
    check(&options.fill(Fill::Zero), &io);
}

#[test]
fn a_roll_onto_a_spare_is_two_syncs_of_files_and_one_of_the_directory() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options.fill(Fill::Zero)).unwrap();
    log.append(&[1; 53_000]).unwrap();
    while log.fill_step().unwrap() {}
    let calls = persists(&io, || assert_eq!(log.append(&[2; 500]).unwrap(), lsn(2)));
    let roll = [
        CallKind::Write, // the footer
        CallKind::SetLen,
        CallKind::Sync,
        CallKind::Write, // header and first slot
        CallKind::Sync,
        CallKind::Rename,
        CallKind::SyncDir,
    ];
    assert_eq!(calls[..7], roll);
    assert_eq!(calls[7..], [CallKind::Write, CallKind::Sync], "then the record");
}

#[test]
fn groups_of_many_threads_are_one_write_and_one_sync_each() {
    #[track_caller]
    fn check(policy: WaitPolicy) {
        let (_home, dir) = place();
        let watch = Watch::default();
        let options = options().segment_bytes_max(1 << 20).wait_policy(policy);
        let (log, _) = Log::open(&dir, &options.io(Arc::new(watch.clone()))).unwrap();
        let before = watch.events().len();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lsn = log.append(&[1; 100]).unwrap();
                        assert!(log.durable_lsn().unwrap() >= lsn);
                    }
                });
            }
        });
        let stats = log.stats();
        let events = watch.events().split_off(before);
        let is_frames =
            |event: &&Event| matches!(event, Event::Write { offset, .. } if *offset >= 12_288);
        let writes = events.iter().filter(is_frames).count() as u64;
        let syncs = events.iter().filter(|event| **event == Event::Sync).count() as u64;
        // What waits for 10 ms, because the system held its threads back, is written by the log's
        // own thread: the next sync covers it.
        assert_eq!((stats.record_count, stats.group_count), (400, writes));
        assert!(stats.syncs <= writes, "{} syncs of {writes} groups", stats.syncs);
        // The slot of a moment without appends may be synced beside them.
        assert!((stats.syncs..=2 * writes).contains(&syncs), "{syncs} syncs of {writes} groups");
        assert_eq!(log.durable_lsn(), Some(lsn(400)));
    }
    check(WaitPolicy::Park);
    check(WaitPolicy::Yield);
}

#[test]
fn a_wait_for_the_buffer_is_counted_and_timed() {
    let (_home, dir) = place();
    let watch = Watch::default();
    let options = options().io(Arc::new(watch.clone())).buffer_bytes_max(2000);
    let (log, _) = Log::open(&dir, &options).unwrap();
    watch.hold();
    thread::scope(|scope| {
        let leader = scope.spawn(|| log.append(&[1; 1900]));
        watch.wait_held();
        assert_eq!(log.stats().waits, 0);
        let waiter = scope.spawn(|| log.append_batch(batch(&[&[2; 1000]]), Durability::Buffered));
        let begin = Instant::now();
        while log.stats().waits == 0 {
            assert!(begin.elapsed() < PATIENCE, "nobody waits");
            thread::yield_now();
        }
        assert_eq!(log.next_lsn(), lsn(2), "seen while it lasts");
        watch.release();
        leader.join().unwrap().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(log.stats().waits, 1);
    assert!(log.stats().wait_time > Duration::ZERO);
    let (io, options) = memory();
    let (log, _) = Log::open(Path::new("/log"), &options.buffer_bytes_max(2000)).unwrap();
    for _ in 0..10 {
        log.append_batch(batch(&[&[2; 1000]]), Durability::Buffered).unwrap();
    }
    assert_eq!(log.stats().waits, 9, "each but the first writes what is before it");
    assert!(io.counts().1 > 9);
}
