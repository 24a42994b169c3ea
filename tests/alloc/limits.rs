//! A log of ten thousand segments: what opening it reads, holds and opens.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use allocation_counter::{measure, opt_out};
use bytes::Bytes;
use oncelog::io::fs::FsIo;
use oncelog::io::{DirEntry, EntryKind, FileId, Io, IoFile, OpenHow};
use oncelog::{CreateMode, Log, Lsn, Options};

use crate::figures::figure;
use crate::reference::forge::{Forge, UUID, lock_with};

const SEGMENTS: u64 = 10_000;
/// Names the directory for the process that has little.
const WITHIN: &str = "ONCELOG_WITHIN_LIMITS";

/// Makes a log of so many segments, each with one record; the zeros in them are holes.
fn make(dir: &Path, count: u64) {
    fs::create_dir(dir).unwrap();
    fs::write(dir.join("LOCK"), lock_with(UUID)).unwrap();
    for number in 1..=count {
        let mut forge = Forge::new(number, number, 1_000 + number, 1);
        forge.batch(1, &[&number.to_le_bytes()]);
        if number < count {
            forge.footer(0);
        }
        let (name, bytes) = forge.done();
        let file = File::create(dir.join(name)).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for from in [0, 8192, 12_288] {
            let block = &bytes[from..bytes.len().min(from + 256)];
            file.write_all_at(block, from as u64).unwrap();
        }
    }
}

fn options() -> Options {
    Options::new().create(CreateMode::Never).background(false).segment_bytes_max(65_536)
}

/// Opens the log and reads some of it; its records are the numbers of their segments.
fn use_log(dir: &Path, options: &Options, count: u64) {
    let (log, report) = Log::open(dir, options).unwrap();
    assert_eq!(report.segment_count, count);
    let mut reader = log.reader(Lsn::FIRST).unwrap();
    for lsn in 1..=count {
        assert_eq!(reader.next().unwrap().unwrap().payload, lsn.to_le_bytes()[..]);
    }
    log.append(b"one more").unwrap();
    log.close().unwrap();
}

#[test]
fn ten_thousand_segments_open_within_256_mib_and_64_files() {
    if let Some(dir) = std::env::var_os(WITHIN) {
        use_log(Path::new(&dir), &options(), SEGMENTS);
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("log");
    make(&dir, SEGMENTS);
    // One thread of tests is the main one, whose memory is all there is.
    let test = "limits::ten_thousand_segments_open_within_256_mib_and_64_files";
    let limited =
        format!("ulimit -v 262144; ulimit -n 64; exec \"$0\" --test-threads 1 --exact {test}");
    let run = Command::new("sh")
        .args(["-c", &limited])
        .arg(std::env::current_exe().unwrap())
        .env(WITHIN, &dir)
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{told}{}", String::from_utf8_lossy(&run.stderr));
    assert!(told.contains("1 passed"), "{told}");
    figure(14, "segments opened within 256 MiB and 64 files", SEGMENTS);
}

/// Reads of each file, and files that are open.
#[derive(Debug, Default)]
struct Counted {
    reads: Mutex<BTreeMap<String, u64>>,
    open: AtomicU64,
    open_max: AtomicU64,
}

/// The file system of the machine, counted.
#[derive(Clone, Debug)]
struct Counting {
    under: FsIo,
    counted: Arc<Counted>,
}

#[derive(Debug)]
struct CountedFile {
    under: Arc<dyn IoFile>,
    name: String,
    counted: Arc<Counted>,
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.counted.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Io for Counting {
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        let under = self.under.open(path, how)?;
        let mut name = String::new();
        opt_out(|| name = path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        let open = self.counted.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.counted.open_max.fetch_max(open, Ordering::Relaxed);
        Ok(Arc::new(CountedFile { under, name, counted: Arc::clone(&self.counted) }))
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn IoFile>> {
        self.under.open_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.under.list(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.under.kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.under.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.under.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.under.create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.under.sync_dir(dir)
    }

    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.under.random(buf)
    }
}

impl IoFile for CountedFile {
    fn len(&self) -> io::Result<u64> {
        self.under.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        opt_out(|| {
            *self.counted.reads.lock().unwrap().entry(self.name.clone()).or_default() += 1;
        });
        self.under.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.under.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.under.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.under.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.under.allocate(len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.under.try_lock()
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        self.under.id()
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        self.under.map(len)
    }
}

#[test]
fn an_open_reads_each_sealed_segment_twice_and_keeps_few_files() {
    const COUNT: u64 = 300;
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("log");
    make(&dir, COUNT);
    let counted = Arc::new(Counted::default());
    let io = Counting { under: FsIo::new(), counted: Arc::clone(&counted) };
    let options = options().io(Arc::new(io));
    let mut log = None;
    let info = measure(|| log = Some(Log::open(&dir, &options).unwrap()));
    let reads = counted.reads.lock().unwrap().clone();
    let sealed = reads.iter().filter(|(name, _)| name.ends_with(".seg")).take(299);
    let most = sealed.map(|(_, reads)| *reads).max().unwrap();
    figure(14, "reads of a sealed segment at an open", most);
    assert!(most <= 2, "{reads:?}");
    let files = counted.open_max.load(Ordering::Relaxed);
    figure(14, "files open at once at an open", files);
    assert!(files <= 8, "{files} files");
    // A segment is described by a few hundred bytes.
    let (bytes, count) = (info.bytes_max / COUNT, info.count_total / COUNT);
    figure(14, "bytes that an open holds for each segment", bytes);
    figure(14, "allocations of an open for each segment", count);
    assert!(bytes <= 8_192 && count <= 60, "{bytes} bytes, {count} allocations");
    drop(log);
}
