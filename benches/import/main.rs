//! The workloads of imports, beside the raw limit of the same file in the same run, and of the HTTP
//! service beside an import.
//!
//! `cargo bench --features cli --bench import` prints one table; `-- I1 I2` runs those alone, and
//! `-- --test` runs all of them once, small, for rot and never for figures. A file is hashed when it
//! is planned and again when it is imported, so that reading it once with SHA-256 is the raw limit of
//! either pass; rounds of it take turns with imports, each into a store of its own.
#![expect(clippy::disallowed_methods, reason = "the raw limit goes to the file system directly")]
#![expect(clippy::print_stdout, reason = "the table is what this is for")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a bench that fails must stop"
)]

mod client;
mod made;
mod service;
#[path = "../log/table.rs"]
mod table;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use oncelog::broadcast::{Broadcaster, Options};
use oncelog::import::{ImportCall, ImportRequest, Imports};
use oncelog::{CreateMode, Store, StoreOptions};
use sha2::{Digest as _, Sha256};

use self::table::{Scale, Table, Workload, float, median, seconds};

/// Rows of the narrow file, and of the same as text.
const NARROW_ROWS: usize = 10_000_000;
const CSV_ROWS: usize = 1_000_000;

/// Vectors: one GiB of them.
const VECTOR_ROWS: usize = 350_000;

/// Vchannels of the narrow file.
const VCHANNELS: u32 = 4;

/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(2);

const MIB: f64 = 1024.0 * 1024.0;

const WORKLOADS: [Workload; 4] =
    [("I1", narrow), ("I2", vectors), ("CSV", text), ("HTTP", service::clients)];

fn main() {
    table::play(&WORKLOADS);
}

/// I1: a narrow Parquet file into four vchannels, and the memory that it takes.
fn narrow(scale: &Scale, table: &mut Table) {
    let dir = tempfile::tempdir().unwrap();
    let (file, rows) = (dir.path().join("narrow.parquet"), scale.count(NARROW_ROWS));
    made::narrow(&file, rows);
    let taken = rounds(scale, dir.path(), &file, rows, Some(VCHANNELS));
    let rate = |seconds: f64| float(rows) / seconds / 1e6;
    let name = format!("I1 Parquet, 3 columns, {VCHANNELS} vchannels");
    table.row(&name, "M rows/s", rate(taken.raw), rate(taken.import));
    table.alone(format!("{name}, as much written and synced"), "M rows/s", rate(taken.disk));
    table.alone(format!("{name}, memory at most"), "MiB", taken.memory / MIB);
}

/// I2: vectors of 768 numbers, as Parquet.
fn vectors(scale: &Scale, table: &mut Table) {
    let dir = tempfile::tempdir().unwrap();
    let (file, rows) = (dir.path().join("vectors.parquet"), scale.count(VECTOR_ROWS));
    made::vectors(&file, rows);
    let bytes = u32::try_from(file.metadata().unwrap().len()).expect("a file of a bench");
    let taken = rounds(scale, dir.path(), &file, rows, None);
    let rate = |seconds: f64| f64::from(bytes) / seconds / 1e6;
    let name = "I2 Parquet, vectors of 768";
    table.row(name, "MB/s", rate(taken.raw), rate(taken.import));
    table.alone(format!("{name}, as much written and synced"), "MB/s", rate(taken.disk));
    table.alone(format!("{name}, memory at most"), "MiB", taken.memory / MIB);
}

/// The narrow file as text.
fn text(scale: &Scale, table: &mut Table) {
    let dir = tempfile::tempdir().unwrap();
    let (file, rows) = (dir.path().join("narrow.csv"), scale.count(CSV_ROWS));
    made::csv(&file, rows);
    let taken = rounds(scale, dir.path(), &file, rows, None);
    let rate = |seconds: f64| float(rows) / seconds / 1e6;
    table.row("CSV, 3 columns", "M rows/s", rate(taken.raw), rate(taken.import));
}

/// What a file took.
struct Taken {
    /// Seconds of a pass over it, of writing and syncing as much, and of its import.
    raw: f64,
    disk: f64,
    import: f64,
    /// The most anonymous memory that an import added, in bytes.
    memory: f64,
}

fn rounds(scale: &Scale, dir: &Path, file: &Path, rows: usize, vchannels: Option<u32>) -> Taken {
    let (mut raw, mut disk, mut import, mut memory) = (vec![], vec![], vec![], 0.0_f64);
    for _ in 0..scale.rounds() {
        raw.push(seconds(|| assert_eq!(hashed(file).len(), 32)));
        disk.push(seconds(|| written(file, &dir.join("as_much"))));
        std::fs::remove_file(dir.join("as_much")).unwrap();
        let store = tempfile::tempdir_in(dir).unwrap();
        let most = most_memory(|| {
            import.push(imported(&store.path().join("store"), file, rows, vchannels));
        });
        memory = memory.max(most);
    }
    Taken { raw: median(raw), disk: median(disk), import: median(import), memory }
}

/// Writes the bytes of a file elsewhere, and syncs them once.
fn written(file: &Path, to: &Path) {
    let (mut source, mut to) = (File::open(file).unwrap(), File::create(to).unwrap());
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = source.read(&mut buffer).unwrap();
        if n == 0 {
            break to.sync_all().unwrap();
        }
        to.write_all(buffer.get(..n).expect("a read fills no more than its buffer")).unwrap();
    }
}

/// A pass over a file.
fn hashed(file: &Path) -> [u8; 32] {
    let mut digest = Sha256::new();
    let mut source = File::open(file).unwrap();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = source.read(&mut buffer).unwrap();
        if n == 0 {
            break digest.finalize().into();
        }
        digest.update(buffer.get(..n).expect("a read fills no more than its buffer"));
    }
}

/// Seconds from the request to the durable end of the job, in a store that is open.
fn imported(dir: &Path, file: &Path, rows: usize, vchannels: Option<u32>) -> f64 {
    let store = Store::open(dir, &StoreOptions::new().create(CreateMode::IfMissing)).unwrap();
    let imports = Imports::new();
    let options = imports.types().into_iter().fold(Options::new(), Options::register);
    let broadcaster = Broadcaster::open(store, options).unwrap();
    let request = ImportRequest::new("rows".to_owned(), vec![file.to_owned()]);
    let request = request.vchannels(vchannels);
    let call = ImportCall::of("default".to_owned()).key(Some("bench".to_owned()));
    let mut report = None;
    let taken = seconds(|| {
        report = Some(imports.run(&broadcaster, request, &call, &mut |_| {}).unwrap());
    });
    let report = report.expect("it was run");
    assert_eq!(report.rows, u64::try_from(rows).unwrap(), "{}", report.reason);
    broadcaster.close().unwrap();
    taken
}

/// The most anonymous memory that there was during some work, above what there was before.
fn most_memory(work: impl FnOnce()) -> f64 {
    let (before, is_over) = (anonymous_bytes(), AtomicBool::new(false));
    thread::scope(|threads| {
        let looks = threads.spawn(|| {
            let mut most = before;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(anonymous_bytes());
                thread::sleep(LOOK);
            }
            most
        });
        let over = Over(&is_over);
        work();
        drop(over);
        looks.join().unwrap() - before
    })
}

/// Says that it is over, also where that is by a panic: nobody looks on for ever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Anonymous memory of this process in bytes: without the files that it has mapped.
fn anonymous_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u32>().ok());
    f64::from(kib.unwrap_or(0)) * 1024.0
}
