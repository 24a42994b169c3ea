//! Append and replay of the log, each beside the raw limit of the same disk in the same run.
//!
//! `cargo bench --features cli,testing --bench log`; one file per noun, ids are
//! `noun/verb/size/mode`. Absolute figures move from machine to machine: compare a row with its
//! `raw` neighbour only.
#![expect(clippy::disallowed_methods, reason = "the raw limits go to the file system directly")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bench that fails must stop")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use oncelog::{Batch, CreateMode, Durability, Log, Lsn, Options, RecordKind};

/// Bytes of a small record, as in the workloads that other logs publish.
const SMALL: usize = 100;
/// Bytes of a middle-sized record.
const MIDDLE: usize = 1024;
/// Records of the bulk workloads; a bulk append is 100 MB of payload.
const BULK: usize = 1_000_000;
/// Records of the replay workload: 256 MiB of payload.
const REPLAY: usize = 262_144;

/// Incompressible bytes, a different record for every `index`.
fn record(len: usize, index: u64) -> Vec<u8> {
    let mut state = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = index.to_le_bytes().to_vec();
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

fn open(dir: &Path) -> Log {
    let options = Options::new().create(CreateMode::IfMissing);
    Log::open(dir, &options).expect("the log opens").0
}

/// A file of zeros that were written and synced: what a lone durable write can reach at best.
fn written_file(dir: &Path, len: usize) -> File {
    let path = dir.join("raw");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.write_all_at(&vec![0; len], 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// One writer, each record durable before the next.
fn durable_appends(c: &mut Criterion) {
    let mut group = c.benchmark_group("log/append/100B");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    let dir = tempfile::tempdir().unwrap();
    let raw = written_file(dir.path(), 64 << 20);
    let bytes = record(SMALL, 1);
    let mut at = 0;
    group.bench_function("raw_pwrite_fdatasync", |b| {
        b.iter(|| {
            raw.write_all_at(&bytes, at).unwrap();
            raw.sync_data().unwrap();
            at = (at + 136) % (63 << 20);
        });
    });
    let log = open(&dir.path().join("log"));
    let mut last = log.next_lsn();
    group.bench_function("sync_each", |b| {
        b.iter(|| {
            let lsn = log.append(&bytes).unwrap();
            assert_eq!(lsn, last);
            last = last.next();
        });
    });
    group.finish();
    log.close().unwrap();
}

/// A million small records, one sync at the end.
fn bulk_appends(c: &mut Criterion) {
    let mut group = c.benchmark_group("log/append/100B");
    group.throughput(Throughput::Elements(u64::try_from(BULK).unwrap())).sample_size(10);
    let bytes = record(SMALL, 1);
    group.bench_function("raw_bulk_write_fdatasync", |b| {
        let whole = bytes.repeat(BULK);
        b.iter_batched(
            || {
                let dir = tempfile::tempdir().unwrap();
                let file = written_file(dir.path(), whole.len());
                (dir, file)
            },
            |(dir, file)| {
                file.write_all_at(&whole, 0).unwrap();
                file.sync_data().unwrap();
                (dir, file)
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("sync_at_end", |b| {
        b.iter_batched(
            || {
                let dir = tempfile::tempdir().unwrap();
                let log = open(&dir.path().join("log"));
                (dir, log)
            },
            |(dir, log)| {
                let one: [&[u8]; 1] = [&bytes];
                for _ in 0..BULK {
                    let batch = Batch { kind: RecordKind::RECORD, records: &one };
                    log.append_batch(batch, Durability::Buffered).unwrap();
                }
                let durable = log.sync().unwrap().expect("records were appended");
                assert_eq!(durable.get(), u64::try_from(BULK).unwrap());
                (dir, log)
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Open and read everything, warm, with every checksum verified.
fn replay(c: &mut Criterion) {
    let mut group = c.benchmark_group("log/replay/1KiB");
    let bytes = u64::try_from(REPLAY * MIDDLE).unwrap();
    group.throughput(Throughput::Bytes(bytes)).sample_size(10);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = open(&path);
    for first in (0..REPLAY).step_by(1024) {
        let records: Vec<Vec<u8>> =
            (first..first + 1024).map(|i| record(MIDDLE, u64::try_from(i).unwrap())).collect();
        let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        log.append_batch(
            Batch { kind: RecordKind::RECORD, records: &slices },
            Durability::Buffered,
        )
        .unwrap();
    }
    log.close().unwrap();
    group.bench_function("raw_read_crc", |b| {
        let mut names: Vec<_> =
            std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        let mut buffer = vec![0; 1 << 20];
        b.iter(|| {
            let mut crc = crc32fast::Hasher::new();
            for name in &names {
                let file = File::open(name).unwrap();
                let mut at = 0;
                loop {
                    let n = file.read_at(&mut buffer, at).unwrap();
                    if n == 0 {
                        break;
                    }
                    crc.update(buffer.get(..n).expect("a read fills no more than its buffer"));
                    at += u64::try_from(n).unwrap();
                }
            }
            crc.clone().finalize()
        });
    });
    group.bench_function("open_and_read", |b| {
        b.iter(|| {
            let log = open(&path);
            let mut reader = log.reader(Lsn::FIRST).unwrap();
            let mut count = 0;
            while let Some(record) = reader.next().unwrap() {
                assert_eq!(record.payload.len(), MIDDLE);
                count += 1;
            }
            assert_eq!(count, REPLAY);
            drop(reader);
            log.close().unwrap();
        });
    });
    group.finish();
}

criterion_group!(benches, durable_appends, bulk_appends, replay);
criterion_main!(benches);
