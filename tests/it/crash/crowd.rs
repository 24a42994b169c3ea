//! Several appenders on one thread: what the others do while one of them writes or syncs.
//!
//! [`Meeting`] is a file system that calls back within a write and within a sync of a file, where a
//! log holds no lock. So the batches that come in between are the same in every run.

use std::fmt;
use std::io::Result;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use oncelog::io::{Blocks, DirEntry, EntryKind, FileId, Io, IoFile, OpenHow};
use oncelog::testing::{CallKind, MemIo};

type Act = Box<dyn FnMut(CallKind) + Send>;

/// What is done meanwhile, if anything. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Meanwhile(Arc<Mutex<Option<Act>>>);

impl Meanwhile {
    pub(crate) fn set(&self, act: impl FnMut(CallKind) + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(act));
    }

    pub(crate) fn clear(&self) {
        let act = self.0.lock().unwrap().take();
        drop(act);
    }

    /// What is done may write itself: that is no meeting again.
    fn meet(&self, kind: CallKind) {
        let act = self.0.lock().unwrap().take();
        if let Some(mut act) = act {
            act(kind);
            *self.0.lock().unwrap() = Some(act);
        }
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

/// The file system of a process in which several threads append.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) io: MemIo,
    pub(crate) meanwhile: Meanwhile,
}

impl Io for Meeting {
    fn open(&self, path: &Path, how: OpenHow) -> Result<Arc<dyn IoFile>> {
        let file = self.io.open(path, how)?;
        Ok(Arc::new(MeetingFile { file, meanwhile: self.meanwhile.clone() }))
    }

    fn open_dir(&self, dir: &Path) -> Result<Arc<dyn IoFile>> {
        self.io.open_dir(dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.io.list(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.io.kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.io.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.io.remove(path)
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.io.create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.io.sync_dir(dir)
    }

    fn blocks(&self, dir: &Path) -> Result<Blocks> {
        self.io.blocks(dir)
    }

    fn random(&self, buf: &mut [u8]) -> Result<()> {
        self.io.random(buf)
    }
}

#[derive(Debug)]
struct MeetingFile {
    file: Arc<dyn IoFile>,
    meanwhile: Meanwhile,
}

impl IoFile for MeetingFile {
    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let written = self.file.write_at(buf, offset);
        self.meanwhile.meet(CallKind::Write);
        written
    }

    fn sync(&self) -> Result<()> {
        self.meanwhile.meet(CallKind::Sync);
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.file.allocate(len)
    }

    fn try_lock(&self) -> Result<bool> {
        self.file.try_lock()
    }

    fn id(&self) -> Result<Option<FileId>> {
        self.file.id()
    }

    fn map(&self, len: u64) -> Result<Bytes> {
        self.file.map(len)
    }

    fn evict(&self, bytes: Range<u64>) -> Result<()> {
        self.file.evict(bytes)
    }
}
