//! One writer: in bulk, record by record, and batch by batch.

use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use oncelog::{Batch, Durability, Log, RecordKind};

use crate::raw::{write_and_sync, written_file};
use crate::table::{Scale, Table, float, median, quantile, seconds};
use crate::{MIDDLE, SMALL, SMALL_FRAME, open, record};

/// Records of a batch.
const BATCH: usize = 100;

/// W1: small records, one sync at the end. The first segment is filled before the clock starts.
pub(crate) fn bulk(scale: &Scale, table: &mut Table) {
    let count = scale.count(1_000_000);
    let bytes = record(SMALL, 1);
    let whole = bytes.repeat(count);
    let (mut raw, mut log) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds() {
        let dir = tempfile::tempdir().unwrap();
        let file = written_file(dir.path(), whole.len());
        raw.push(seconds(|| {
            file.write_all_at(&whole, 0).unwrap();
            file.sync_data().unwrap();
        }));
        drop(file);
        let opened = open(dir.path());
        wait_filled(&opened, 4);
        log.push(seconds(|| {
            for _ in 0..count {
                buffer(&opened, &[&bytes]);
            }
            let durable = opened.sync().unwrap().expect("records were appended");
            assert_eq!(durable.get(), u64::try_from(count).unwrap());
        }));
        opened.close().unwrap();
    }
    let rate = |times| float(count) / median(times) / 1e6;
    table.row("W1 100 B, one sync", "M records/s", rate(raw), rate(log));
}

/// W2: each small record durable before the next.
pub(crate) fn durable(scale: &Scale, table: &mut Table) {
    let (rounds, count) = (scale.rounds() * 2, scale.count(400));
    let dir = tempfile::tempdir().unwrap();
    let frame = record(usize::try_from(SMALL_FRAME).unwrap(), 1);
    let file = written_file(dir.path(), 16 << 20);
    let opened = open(dir.path());
    wait_filled(&opened, 4);
    let bytes = record(SMALL, 1);
    let (mut raw, mut log, mut at) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        raw.extend(write_and_sync(&file, at, &frame, count));
        at += SMALL_FRAME * u64::try_from(count).unwrap();
        log.extend((0..count).map(|_| {
            let begin = Instant::now();
            opened.append(&bytes).unwrap();
            begin.elapsed().as_secs_f64()
        }));
    }
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let micros = |times: &mut Vec<f64>| quantile(times, share) * 1e6;
        let name = format!("W2 100 B durable, {name}");
        table.row(name, "us", micros(&mut raw), micros(&mut log));
    }
    opened.close().unwrap();
}

/// W4: batches of 100 KiB, each durable before the next.
pub(crate) fn batches(scale: &Scale, table: &mut Table) {
    let (rounds, count) = (scale.rounds(), scale.count(200));
    let records: Vec<Vec<u8>> = (0..BATCH).map(|i| record(MIDDLE, i.try_into().unwrap())).collect();
    let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let whole = records.concat();
    let dir = tempfile::tempdir().unwrap();
    let file = written_file(dir.path(), whole.len() * count);
    let opened = open(dir.path());
    wait_filled(&opened, 4);
    let (mut raw, mut log) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        raw.extend(write_and_sync(&file, 0, &whole, count));
        log.extend((0..count).map(|_| {
            let batch = Batch { kind: RecordKind::RECORD, records: &slices };
            let begin = Instant::now();
            opened.append_batch(batch, Durability::Synced).unwrap();
            begin.elapsed().as_secs_f64()
        }));
    }
    let rate = |times: &[f64]| float(times.len() * BATCH) / times.iter().sum::<f64>() / 1e3;
    table.row("W4 100 x 1 KiB durable", "k records/s", rate(&raw), rate(&log));
    opened.close().unwrap();
}

/// Puts records into the buffer, as one batch.
pub(crate) fn buffer(log: &Log, records: &[&[u8]]) {
    let batch = Batch { kind: RecordKind::RECORD, records };
    log.append_batch(batch, Durability::Buffered).unwrap();
}

/// Waits until so many windows were filled, where any are.
fn wait_filled(log: &Log, windows: u64) {
    let begin = Instant::now();
    while log.stats().fills < windows && begin.elapsed().as_secs() < 1 {
        std::thread::yield_now();
    }
}
