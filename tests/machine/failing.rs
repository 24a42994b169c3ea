//! A sync that really fails: the image of a file system lies on a file system that is full, so that
//! the device fails a write of the system, long after the log's own write had succeeded.
//!
//! From the first failure on every append is refused until a reopen, and what was acknowledged
//! before is there, also when the caches are dropped: what a failed sync left in them proves
//! nothing.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use oncelog::io::fs::FsIo;
use oncelog::{
    Batch, CreateMode, Durability, ErrorKind, Fill, Log, LogView, Lsn, Options, RecordKind,
};

use super::child;
use super::disk::{self, Disk, EXT4, Kind, Stage, XFS};
use super::figures::{figure, is_release};
use super::ledger::{BatchId, Ledger};
use super::seam::{Lie, Seam};

/// Threads that append at once.
const WRITERS: u32 = 4;

/// What happens between the failure and the reopen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Space is made; the caches still show what the disk lacks.
    CacheStays,
    /// Space is made, and the caches are dropped.
    CacheDropped,
    /// The device still fails: only a later reopen may succeed.
    DeviceStays,
}

const WAYS: [Way; 3] = [Way::CacheStays, Way::CacheDropped, Way::DeviceStays];

/// A file that leaves the image without space.
struct Ballast {
    path: PathBuf,
}

impl Ballast {
    /// Takes all that is free, but for some bytes.
    fn fill(stage: &Stage, left: u64) -> Self {
        let path = stage.dir().join("ballast");
        let mut file = File::create(&path).unwrap();
        let page = [0; 4096];
        while file.write_all(&page).is_ok() {}
        file.set_len(file.metadata().unwrap().len().saturating_sub(left)).unwrap();
        Self { path }
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        fs::remove_file(&self.path).unwrap();
    }
}

/// A log, and what is known of it.
struct Case {
    dir: PathBuf,
    options: Options,
    ledger: Mutex<Ledger>,
}

impl Case {
    fn new(root: &Path, fill: Fill, lie: Lie) -> Self {
        let options = Options::new().segment_bytes_max(1 << 20).create(CreateMode::IfMissing);
        let options = options.fill(fill).io(Arc::new(Seam::new(lie)));
        Self { dir: root.join("log"), options, ledger: Mutex::new(Ledger::new()) }
    }

    fn open(&self) -> oncelog::Result<Log> {
        Log::open(&self.dir, &self.options).map(|(log, _)| log)
    }

    /// What an opened log serves, compared with what is known.
    fn check(&self, log: &Log) -> Result<(), String> {
        self.ledger.lock().unwrap().check(log)
    }

    fn append(&self, log: &Log, batch: BatchId) -> oncelog::Result<()> {
        self.ledger.lock().unwrap().begin(batch);
        let records = batch.records();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let given = Batch { kind: RecordKind::RECORD, records: &records };
        let lsns = log.append_batch(given, Durability::Synced)?;
        self.ledger.lock().unwrap().acknowledge(batch, lsns);
        Ok(())
    }

    /// Appends until the first failure, and some more, which are all refused.
    fn append_until_failure(&self, log: &Log, run: u32) {
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    let mut batches = (0..).map(|seq| BatchId { run, writer, seq });
                    let failed = batches.find_map(|batch| self.append(log, batch).err());
                    // Who was caught in it, or came behind it.
                    let kind = failed.unwrap().kind();
                    assert!([ErrorKind::OutcomeUnknown, ErrorKind::Poisoned].contains(&kind));
                    for batch in batches.take(5) {
                        let refused = self.append(log, batch).unwrap_err();
                        assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
                    }
                });
            }
        });
    }

    /// Everything that would need the disk is refused; what was durable is read.
    fn check_poisoned(&self, log: &Log) {
        let poisoned = |answer: oncelog::Result<()>| {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Poisoned);
        };
        poisoned(log.check_open());
        poisoned(log.append(b"never").map(drop));
        poisoned(log.flush());
        poisoned(log.sync().map(drop));
        poisoned(log.trim(Lsn::new(2).unwrap()));
        let batch = Batch { kind: RecordKind::RECORD, records: &[b"never"] };
        poisoned(log.append_batch(batch, Durability::Buffered).map(drop));
        let mut reader = log.reader(Lsn::FIRST).unwrap();
        let mut served = 0;
        while reader.next().unwrap().is_some() {
            served += 1;
        }
        let held = self.ledger.lock().unwrap().held_count();
        assert!(served >= held, "{served} of {held} records are read");
    }
}

/// One failed sync, a reopen, and another one behind dropped caches.
///
/// # Errors
///
/// What was lost or invented.
fn fail(stage: &Stage, kind: Kind, way: Way, run: u32, lie: Lie) -> Result<(), String> {
    let mut disk = Disk::make(stage, kind);
    let _limit = disk.by_page();
    // Frames in blocks that were never written are what a failed sync harms most.
    let fill = if run % 3 == 2 { Fill::Auto } else { Fill::Allocate };
    let case = Case::new(disk.root(), fill, lie);
    let log = case.open().unwrap();
    let of_main = |seq| BatchId { run, writer: WRITERS, seq };
    for seq in 0..5 {
        case.append(&log, of_main(seq)).unwrap();
    }
    let ballast = Ballast::fill(stage, u64::from(run % 3) * 300_000);
    case.append_until_failure(&log, run);
    case.check_poisoned(&log);
    assert_eq!(log.close().unwrap_err().kind(), ErrorKind::Poisoned);
    match way {
        Way::CacheStays => drop(ballast),
        Way::CacheDropped => {
            drop(ballast);
            disk.unmount();
            disk.mount("");
        }
        Way::DeviceStays => {
            // The open fails, or what it serves is proven.
            if let Ok(log) = case.open() {
                case.check(&log)?;
                drop(log);
            }
            // A reader needs no byte of the disk.
            let view = LogView::open(&case.dir, Arc::new(FsIo::new())).unwrap();
            assert!(view.proven_lsn().is_some());
            drop(ballast);
        }
    }
    let log = case.open().or_else(|e| {
        // A file system that could not write its own journal stops until it is mounted again.
        println!("{way:?} on {}, run {run}: {e}", kind.name);
        disk.unmount();
        disk.mount("");
        case.open().map_err(|e| format!("open: {e}"))
    })?;
    case.check(&log)?;
    case.append(&log, of_main(5)).map_err(|e| format!("append behind the reopen: {e}"))?;
    log.close().map_err(|e| format!("close: {e}"))?;
    // What the reopen served, it had proven: it survives the caches.
    disk.unmount();
    disk.mount("");
    let log = case.open().map_err(|e| format!("open behind dropped caches: {e}"))?;
    case.check(&log)?;
    drop(log);
    disk.unmount();
    Ok(())
}

/// The part that runs in a namespace of its own.
fn fail_often(kind: Kind) {
    let stage = Stage::new(192 << 20);
    let runs = if is_release() { 60 } else { 9 };
    for run in 0..runs {
        let way = WAYS[usize::try_from(run).unwrap() % WAYS.len()];
        let told = fail(&stage, kind, way, run / 3, Lie::None);
        told.unwrap_or_else(|e| panic!("{way:?} on {}, run {run}: {e}", kind.name));
    }
    figure(6, &format!("failed syncs of {}", kind.name), runs);
    // A log that kept the cache would lose records of ext4, which this has to see.
    if kind == EXT4 {
        let seen =
            (0..20).find_map(|run| fail(&stage, kind, Way::CacheStays, run, Lie::NoEvict).err());
        let seen = seen.expect("a cache that is kept shows no loss: the test sees nothing");
        println!("what a kept cache loses: {seen}");
    }
}

fn play(name: &str, kind: Kind) {
    if child::part().is_some() {
        fail_often(kind);
    } else if let Some(reason) = disk::missing(kind) {
        child::skip(&format!("failed syncs of {}", kind.name), &reason);
    } else {
        disk::on_stage(name, kind.name);
    }
}

#[test]
fn a_failed_sync_of_ext4_is_final_until_a_reopen() {
    play("failing::a_failed_sync_of_ext4_is_final_until_a_reopen", EXT4);
}

#[test]
fn a_failed_sync_of_xfs_is_final_until_a_reopen() {
    play("failing::a_failed_sync_of_xfs_is_final_until_a_reopen", XFS);
}
