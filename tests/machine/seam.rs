//! The machine's files behind a seam of the test's own: calls are counted, and some lie, so that a
//! test shows what it would see of a log that forgot them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use oncelog::io::fs::FsIo;
use oncelog::io::{Blocks, DirEntry, EntryKind, FileId, Io, IoFile, OpenHow};

/// A call that says that it did what it did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Every call does what it says.
    None,
    /// A sync of a file returns at once.
    NoSync,
    /// The cache is kept.
    NoEvict,
}

/// How often each call was made.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// The file system of the machine, seen.
#[derive(Clone, Debug)]
pub(crate) struct Seam {
    io: FsIo,
    lie: Lie,
    counts: Arc<Mutex<Counts>>,
}

impl Seam {
    pub(crate) fn new(lie: Lie) -> Self {
        Self { io: FsIo::new(), lie, counts: Arc::default() }
    }

    /// Calls until here.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.lock().unwrap().clone()
    }

    fn count(&self, call: &'static str) {
        *self.counts.lock().unwrap().entry(call).or_default() += 1;
    }
}

impl Io for Seam {
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        self.count("open");
        let file = self.io.open(path, how)?;
        Ok(Arc::new(SeamFile { seam: self.clone(), file, is_dir: false }))
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn IoFile>> {
        self.count("open_dir");
        let file = self.io.open_dir(dir)?;
        Ok(Arc::new(SeamFile { seam: self.clone(), file, is_dir: true }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.count("list");
        self.io.list(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.count("kind");
        self.io.kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count("rename");
        self.io.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.count("remove");
        self.io.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.count("create_dir");
        self.io.create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.count("sync_dir");
        self.io.sync_dir(dir)
    }

    fn blocks(&self, dir: &Path) -> io::Result<Blocks> {
        self.count("blocks");
        self.io.blocks(dir)
    }

    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.io.random(buf)
    }
}

#[derive(Debug)]
struct SeamFile {
    seam: Seam,
    file: Arc<dyn IoFile>,
    is_dir: bool,
}

impl IoFile for SeamFile {
    fn len(&self) -> io::Result<u64> {
        self.seam.count("len");
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.seam.count("read");
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.seam.count("write");
        self.file.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.seam.count(if self.is_dir { "sync_open_dir" } else { "sync" });
        let is_lie = self.seam.lie == Lie::NoSync && !self.is_dir;
        if is_lie { Ok(()) } else { self.file.sync() }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.seam.count("set_len");
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.seam.count("allocate");
        self.file.allocate(len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.seam.count("lock");
        self.file.try_lock()
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        self.seam.count("lock_shared");
        self.file.try_lock_shared()
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        self.file.id()
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        self.seam.count("map");
        self.file.map(len)
    }

    fn evict(&self, bytes: Range<u64>) -> io::Result<()> {
        self.seam.count("evict");
        if self.seam.lie == Lie::NoEvict { Ok(()) } else { self.file.evict(bytes) }
    }
}
