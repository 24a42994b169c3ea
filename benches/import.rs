//! Import of a narrow file, beside the raw limit of reading and hashing the same bytes.
//!
//! `cargo bench --features cli,testing --bench import`; ids are `noun/verb/size/mode`. The file is
//! hashed when it is planned and again when it is imported, so a pass over it with SHA-256 is the
//! floor of either.
#![expect(clippy::disallowed_methods, reason = "the raw limit goes to the file system directly")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bench that fails must stop")]

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::path::Path;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use oncelog::broadcast::{Broadcaster, Options};
use oncelog::import::{ImportCall, ImportRequest, Imports};
use oncelog::{CreateMode, Store, StoreOptions};
use sha2::{Digest as _, Sha256};

/// Rows of the file, of three narrow columns.
const ROWS: u64 = 300_000;

fn write_csv(path: &Path) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    writeln!(file, "id,name,v").unwrap();
    for row in 0..ROWS {
        writeln!(file, "{row},name {row},{}.5", row / 2).unwrap();
    }
    file.flush().unwrap();
}

fn import(dir: &Path, file: &Path) -> u64 {
    let options = StoreOptions::new().create(CreateMode::IfMissing);
    let store = Store::open(dir, &options).unwrap();
    let imports = Imports::new();
    let options = imports.types().into_iter().fold(Options::new(), Options::register);
    let broadcaster = Broadcaster::open(store, options).unwrap();
    let request = ImportRequest::new("rows".to_owned(), vec![file.to_owned()]);
    let call = ImportCall::of("default".to_owned()).key(Some("bench".to_owned()));
    let report = imports.run(&broadcaster, request, &call, &mut |_| {}).unwrap();
    broadcaster.close().unwrap();
    report.rows
}

fn narrow(c: &mut Criterion) {
    let mut group = c.benchmark_group("rows/import/csv_3_columns");
    group.throughput(Throughput::Elements(ROWS)).sample_size(10);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.csv");
    write_csv(&file);
    group.bench_function("raw_read_sha256", |b| {
        b.iter(|| {
            let mut digest = Sha256::new();
            let mut source = File::open(&file).unwrap();
            let mut buffer = vec![0; 1 << 20];
            loop {
                let n = source.read(&mut buffer).unwrap();
                if n == 0 {
                    break digest.finalize();
                }
                digest.update(buffer.get(..n).expect("a read fills no more than its buffer"));
            }
        });
    });
    group.bench_function("new_store_keyed", |b| {
        b.iter_batched(
            || tempfile::tempdir().unwrap(),
            |store| {
                assert_eq!(import(&store.path().join("store"), &file), ROWS);
                store
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, narrow);
criterion_main!(benches);
