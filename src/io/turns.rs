//! A file system at each of whose calls a checker of schedules may let another thread run.
//!
//! A checker sees only what goes through its own locks: without this, a write and the sync behind
//! it would be one step, and nothing could come between them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::mem::{Machine, MemIo};
use super::{DirEntry, EntryKind, FileId, Io, IoFile, OpenHow};
use crate::sync::Mutex;

/// A process on a machine in memory.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    pub(crate) mem: MemIo,
    turn: Arc<Mutex<u64>>,
    panics: Arc<AtomicBool>,
}

impl Turns {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { mem: MemIo::new(machine), turn: Arc::default(), panics: Arc::default() }
    }

    /// What a power loss at this moment leaves for certain.
    pub(crate) fn certain(&self) -> Machine {
        self.turn();
        self.mem.machine().power_loss(&[], &[])
    }

    /// Has the next sync panic.
    #[cfg(loom)]
    pub(crate) fn panic_at_sync(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    /// The call that follows may come before or behind those of every other thread.
    fn turn(&self) {
        if let Ok(mut turn) = self.turn.lock() {
            *turn += 1;
        }
    }
}

impl Io for Turns {
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        let file = self.mem.open(path, how)?;
        Ok(Arc::new(TurnsFile { file, turns: self.clone() }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.mem.list(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.mem.kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.mem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.turn();
        self.mem.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.mem.create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.turn();
        self.mem.sync_dir(dir)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn IoFile>> {
        let file = self.mem.open_dir(dir)?;
        Ok(Arc::new(TurnsFile { file, turns: self.clone() }))
    }

    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.mem.random(buf)
    }
}

/// An open file of it.
#[derive(Debug)]
struct TurnsFile {
    file: Arc<dyn IoFile>,
    turns: Turns,
}

impl IoFile for TurnsFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.turns.turn();
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.turns.turn();
        self.file.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.turns.turn();
        assert!(!self.turns.panics.swap(false, Ordering::SeqCst), "a sync panics");
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.turns.turn();
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        self.file.try_lock_shared()
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        self.file.id()
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        self.file.map(len)
    }
}
