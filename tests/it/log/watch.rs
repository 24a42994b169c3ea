//! A file system that tells of each write and sync, and holds them back on request.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use bytes::Bytes;
use oncelog::io::fs::FsIo;
use oncelog::io::{DirEntry, EntryKind, FileId, Io, IoFile, OpenHow};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happened to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Write { offset: u64, len: usize },
    Sync,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<Event>,
    /// Syncs wait while this is set.
    held: bool,
    /// Syncs that wait.
    waiting: usize,
    /// Every sync fails.
    failing: bool,
    /// Threads that asked for a change on the disk, or for a whole segment of it.
    threads: HashSet<ThreadId>,
}

/// The watched file system; clones watch together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    io: FsIo,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Watch {
    /// Holds syncs of segments back.
    pub(crate) fn hold(&self) {
        self.state.0.lock().unwrap().held = true;
    }

    pub(crate) fn release(&self) {
        self.state.0.lock().unwrap().held = false;
        self.state.1.notify_all();
    }

    pub(crate) fn fail(&self) {
        self.state.0.lock().unwrap().failing = true;
    }

    /// Waits until a sync is held back.
    pub(crate) fn wait_held(&self) {
        self.wait_held_count(1);
    }

    /// Waits until so many syncs are held back at the same time.
    pub(crate) fn wait_held_count(&self, count: usize) {
        self.wait(|state| state.waiting >= count);
    }

    /// Waits for an event that was not there before `seen`.
    pub(crate) fn wait_event(&self, seen: usize, is: impl Fn(&Event) -> bool) {
        self.wait(|state| state.events[seen..].iter().any(&is));
    }

    fn wait(&self, mut is: impl FnMut(&State) -> bool) {
        let state = self.state.0.lock().unwrap();
        let (state, waited) =
            self.state.1.wait_timeout_while(state, PATIENCE, |state| !is(state)).unwrap();
        drop(state);
        assert!(!waited.timed_out(), "nothing happened");
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.state.0.lock().unwrap().events.clone()
    }

    /// Whether a thread has written, synced, mapped, or changed a name.
    pub(crate) fn has_waited(&self, thread: ThreadId) -> bool {
        self.state.0.lock().unwrap().threads.contains(&thread)
    }

    fn note_thread(&self) {
        self.state.0.lock().unwrap().threads.insert(thread::current().id());
    }

    fn tell(&self, event: Event) {
        self.state.0.lock().unwrap().events.push(event);
        self.state.1.notify_all();
    }
}

impl Io for Watch {
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        let file = self.io.open(path, how)?;
        let segment =
            path.extension().map(OsString::from).is_some_and(|e| e == "seg" || e == "spare");
        Ok(if segment { Arc::new(Watched { file, watch: self.clone() }) } else { file })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.io.list(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.io.kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note_thread();
        self.io.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note_thread();
        self.io.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.io.create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.note_thread();
        self.io.sync_dir(dir)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn IoFile>> {
        self.io.open_dir(dir)
    }

    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.io.random(buf)
    }
}

#[derive(Debug)]
struct Watched {
    file: Arc<dyn IoFile>,
    watch: Watch,
}

impl IoFile for Watched {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.watch.note_thread();
        let done = self.file.write_at(buf, offset)?;
        self.watch.tell(Event::Write { offset, len: done });
        Ok(done)
    }

    fn sync(&self) -> io::Result<()> {
        self.watch.note_thread();
        let (state, turned) = &*self.watch.state;
        let mut state = state.lock().unwrap();
        state.waiting += 1;
        turned.notify_all();
        // A test that fails lets nobody go.
        state = turned.wait_timeout_while(state, PATIENCE, |state| state.held).unwrap().0;
        state.waiting -= 1;
        let failing = state.failing;
        drop(state);
        if failing {
            return Err(io::Error::other("no disk"));
        }
        self.file.sync()?;
        self.watch.tell(Event::Sync);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.watch.note_thread();
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.watch.note_thread();
        self.file.allocate(len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        self.file.id()
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        self.watch.note_thread();
        self.file.map(len)
    }
}
