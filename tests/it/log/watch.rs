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
use oncelog::io::{Io, IoFile, OpenHow};

use crate::pass_on::pass_on;

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
    /// So many of them do not.
    passing: usize,
    /// Removals of files wait while this is set.
    keeping: bool,
    /// Syncs and removals that wait.
    waiting: usize,
    /// Open descriptions of a file that locks a directory.
    locks: usize,
    /// Every sync fails.
    failing: bool,
    /// Threads that asked for a change on the disk, or for a whole segment of it.
    threads: HashSet<ThreadId>,
    /// Threads that have read a segment, each time.
    readers: Vec<ThreadId>,
    /// Directories have no locks, so that nothing is mapped.
    has_no_dir_locks: bool,
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

    /// Lets so many syncs pass, and holds those behind them back.
    pub(crate) fn hold_behind(&self, count: usize) {
        let mut state = self.state.0.lock().unwrap();
        (state.held, state.passing) = (true, count);
    }

    /// Holds removals of files back.
    pub(crate) fn keep(&self) {
        self.state.0.lock().unwrap().keeping = true;
    }

    /// Whether the directory was let go within a time; it is meant not to be, so this takes that
    /// long where all is well.
    pub(crate) fn is_let_go_within(&self, time: Duration) -> bool {
        let state = self.state.0.lock().unwrap();
        let waited = self.state.1.wait_timeout_while(state, time, |state| state.locks > 0);
        !waited.unwrap().1.timed_out()
    }

    pub(crate) fn release(&self) {
        let mut state = self.state.0.lock().unwrap();
        (state.held, state.keeping) = (false, false);
        drop(state);
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

    /// Waits while a call is held back. A test that fails lets nobody go, and one that takes too
    /// long has lost what it is about.
    fn wait_while(&self, is_held: impl Fn(&State) -> bool) {
        let (state, turned) = &*self.state;
        let mut state = state.lock().unwrap();
        state.waiting += 1;
        turned.notify_all();
        let (mut state, waited) =
            turned.wait_timeout_while(state, PATIENCE, |state| is_held(state)).unwrap();
        state.waiting -= 1;
        drop(state);
        assert!(!waited.timed_out(), "held back, and never let go");
    }

    fn passes(&self) -> bool {
        let mut state = self.state.0.lock().unwrap();
        let passes = state.passing > 0;
        state.passing -= usize::from(passes);
        passes
    }

    /// As a file system without locks of directories.
    pub(crate) fn refuse_dir_locks(&self) {
        self.state.0.lock().unwrap().has_no_dir_locks = true;
    }

    /// The threads that have read of segments since the last call, each time.
    pub(crate) fn take_readers(&self) -> Vec<ThreadId> {
        std::mem::take(&mut self.state.0.lock().unwrap().readers)
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
    pass_on!(io: list kind create_dir random);

    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        let file = self.io.open(path, how)?;
        if path.ends_with("LOCK") {
            self.state.0.lock().unwrap().locks += 1;
            return Ok(Arc::new(Locking { file, watch: self.clone() }));
        }
        let segment =
            path.extension().map(OsString::from).is_some_and(|e| e == "seg" || e == "spare");
        Ok(if segment { Arc::new(Watched { file, watch: self.clone() }) } else { file })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note_thread();
        self.io.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note_thread();
        self.wait_while(|state| state.keeping);
        self.io.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.note_thread();
        self.io.sync_dir(dir)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn IoFile>> {
        if self.state.0.lock().unwrap().has_no_dir_locks {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.io.open_dir(dir)
    }
}

#[derive(Debug)]
struct Watched {
    file: Arc<dyn IoFile>,
    watch: Watch,
}

impl IoFile for Watched {
    pass_on!(file: len try_lock id);

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.watch.state.0.lock().unwrap().readers.push(thread::current().id());
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
        if !self.watch.passes() {
            self.watch.wait_while(|state| state.held);
        }
        if self.watch.state.0.lock().unwrap().failing {
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

    fn map(&self, len: u64) -> io::Result<Bytes> {
        self.watch.note_thread();
        self.file.map(len)
    }
}

/// The file that locks a directory.
#[derive(Debug)]
struct Locking {
    file: Arc<dyn IoFile>,
    watch: Watch,
}

impl Drop for Locking {
    fn drop(&mut self) {
        self.watch.state.0.lock().unwrap().locks -= 1;
        self.watch.state.1.notify_all();
    }
}

impl IoFile for Locking {
    pass_on!(file: len read_at write_at sync set_len allocate try_lock id map);
}
