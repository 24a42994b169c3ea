//! No allocation for each record: a log that has come to its stride appends and replays twice as
//! much with as many allocations.

use std::path::Path;
use std::sync::Arc;

use allocation_counter::measure;
use oncelog::io::fs::FsIo;
use oncelog::{Batch, CreateMode, Durability, Log, LogView, Lsn, Options, Reader, RecordKind};

use crate::figures::figure;

fn options() -> Options {
    let options = Options::new().segment_bytes_max(16 << 20).background(false);
    options.create(CreateMode::IfMissing)
}

fn open(dir: &Path) -> Log {
    Log::open(dir.join("log"), &options()).unwrap().0
}

fn append(log: &Log, count: u64, durability: Durability) {
    let batch = Batch { kind: RecordKind::RECORD, records: &[&[b'.'; 100]] };
    for _ in 0..count {
        log.append_batch(batch, durability).unwrap();
    }
    log.flush().unwrap();
}

/// Allocations of this thread.
fn allocations(work: impl FnOnce()) -> u64 {
    measure(work).count_total
}

#[test]
fn an_append_in_its_stride_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for durability in [Durability::Buffered, Durability::Synced] {
        // The buffers grow to what a group needs, one after the other.
        for count in [200, 40, 80, 40, 80] {
            append(&log, count, durability);
        }
        let once = allocations(|| append(&log, 40, durability));
        let twice = allocations(|| append(&log, 80, durability));
        assert_eq!(once, twice, "{durability:?}");
        figure(14, &format!("allocations of 80 {durability:?} appends"), twice);
    }
    // Whoever looks at what was counted holds up appends, and does not allocate meanwhile.
    assert_eq!(allocations(|| assert!(log.stats().append_latency.count() > 0)), 0);
    log.close().unwrap();
}

#[test]
fn a_replay_in_its_stride_allocates_nothing_for_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    append(&log, 900, Durability::Buffered);
    log.sync().unwrap();
    let read = |log: &Log, count: u64| {
        let mut reader = log.reader(log.oldest_lsn()).unwrap();
        for _ in 0..count {
            reader.next().unwrap().unwrap();
        }
    };
    read(&log, 900);
    let once = allocations(|| read(&log, 400));
    let twice = allocations(|| read(&log, 800));
    assert_eq!(once, twice);
    figure(14, "allocations of a replay of 800 records", twice);
    log.close().unwrap();
}

/// Sealed segments and the tail, by maps and by reads: each segment costs a few, a record none.
#[test]
fn a_replay_allocates_for_segments_and_not_for_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options().segment_bytes_max(1 << 20)).unwrap();
    let append_until = |segments: u64| {
        while log.stats().segment_count < segments {
            append(&log, 100, Durability::Buffered);
        }
        log.sync().unwrap();
        log.next_lsn()
    };
    let (few, many) = (append_until(4), append_until(12));
    let records = many.get() - few.get();
    assert!(records > 8 * 5_000, "{records} records in 8 segments");
    let check = |name: &str, reader: &dyn Fn() -> Reader| {
        let replay = |end: Lsn| {
            let mut reader = reader();
            while reader.next().unwrap().is_some_and(|record| record.lsn.next() < end) {}
        };
        replay(many);
        let more = allocations(|| replay(many)) - allocations(|| replay(few));
        figure(14, &format!("allocations of {name} for each segment"), more.div_ceil(8));
        assert!(more <= 8 * 64, "{name}: {more} for 8 segments of {records} records");
    };
    check("a replay by a writer", &|| log.reader(Lsn::FIRST).unwrap());
    let view = LogView::open(&path, Arc::new(FsIo::new())).unwrap();
    check("a replay by another process", &|| view.reader(None).unwrap());
    log.close().unwrap();
}

/// Backward, offsets of a run are noted, in memory that one run after the other uses.
#[test]
fn a_replay_backward_in_its_stride_allocates_nothing_for_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    append(&log, 20_000, Durability::Buffered);
    log.sync().unwrap();
    let read = |count: u64| {
        let mut reader = log.reader(log.next_lsn()).unwrap();
        for _ in 0..count {
            reader.prev().unwrap().unwrap();
        }
    };
    read(20_000);
    let once = measure(|| read(10_000));
    let twice = measure(|| read(20_000));
    assert!(twice.count_total < once.count_total + 40, "{once:?}, {twice:?}");
    assert!(twice.bytes_max < 1 << 20, "{twice:?}");
    figure(14, "allocations of 20,000 records read backward", twice.count_total);
    log.close().unwrap();
}

/// The worst for reading backward: no index within the batch, and the most frames for its bytes.
#[test]
fn a_batch_of_many_empty_records_is_read_backward_in_one_megabyte() {
    const COUNT: usize = 500_000;
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let records: Vec<&[u8]> = vec![b""; COUNT];
    let batch = Batch { kind: RecordKind::RECORD, records: &records };
    log.append_batch(batch, Durability::Synced).unwrap();
    let info = measure(|| {
        let mut reader = log.reader(log.next_lsn()).unwrap();
        for _ in 0..COUNT {
            reader.prev().unwrap().unwrap();
        }
        assert!(reader.prev().unwrap().is_none());
    });
    assert!(info.bytes_max < 1 << 20, "{info:?}");
    figure(14, "most bytes that reading 500,000 empty records backward held", info.bytes_max);
    log.close().unwrap();
}

#[test]
fn the_memory_of_a_replay_does_not_grow_with_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let small = options().segment_bytes_max(65_536);
    let (log, _) = Log::open(dir.path().join("log"), &small).unwrap();
    let mut peaks = Vec::new();
    for _ in 0..3 {
        append(&log, 3_000, Durability::Buffered);
        log.sync().unwrap();
        let info = measure(|| {
            let mut reader = log.reader(log.oldest_lsn()).unwrap();
            while reader.next().unwrap().is_some() {}
        });
        peaks.push(info.bytes_max);
    }
    log.close().unwrap();
    assert!(peaks[2] <= peaks[0] + 4_096, "{peaks:?}");
    figure(14, "most bytes that a replay of 9,000 records held at once", peaks[2]);
}
