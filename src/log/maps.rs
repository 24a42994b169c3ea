//! Which process may map the segments of a directory, and which may cut them.
//!
//! A payload may be a slice of a map and outlive its log, while the next writer, of this process or
//! of another one, removes the segment: reading beyond the end of a mapped file is fatal. So a log
//! holds a `flock` of its directory, by one description, for as long as any of its maps or a slice
//! of one lives: the shared one, or the exclusive one while it cuts files itself, which nobody gets
//! beside the maps of another log. Without the one nothing is mapped, and without the other nothing
//! is cut; reads go by `pread` then, and files are unlinked whole.
//!
//! The file `LOCK` and its own `flock` say who writes, which is another matter.
//! That a log does not cut what it has mapped itself is up to [`InUse`](super::remove::InUse).

use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use super::dir::DirLock;
use super::told::{self, Told};
use crate::io::{Io, IoFile};
use crate::sync::Mutex;

/// Held beside each map.
#[derive(Debug)]
pub(crate) struct MapGuard {
    dir: Arc<dyn IoFile>,
    /// The lock of a closed log whose maps nothing else protects.
    writer: OnceLock<DirLock>,
}

impl MapGuard {
    fn new(dir: Arc<dyn IoFile>) -> Arc<Self> {
        Arc::new(Self { dir, writer: OnceLock::new() })
    }
}

/// The maps of one log.
#[derive(Debug)]
pub(crate) struct Maps {
    dir: PathBuf,
    /// Sealed segments are mapped where that may be.
    is_wanted: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Alive while there are maps, or files are cut.
    guard: Weak<MapGuard>,
    /// The guard while its lock is the exclusive one.
    cutting: Option<Arc<MapGuard>>,
    /// The system refused the shared lock to a guard that had it. No other log cuts while this one
    /// is open.
    is_lost: bool,
    is_closed: bool,
    told: Vec<Told>,
}

impl Maps {
    pub(crate) fn new(dir: PathBuf, is_wanted: bool) -> Self {
        Self { dir, is_wanted, state: Mutex::default() }
    }

    /// What is to be held beside a map, from before it is made; `None` where nothing may be mapped.
    pub(crate) fn guard(&self, io: &dyn Io) -> Option<Arc<MapGuard>> {
        if !self.is_wanted {
            return None;
        }
        self.with_state(|state| self.guard_of(state, io))
    }

    fn guard_of(&self, state: &mut State, io: &dyn Io) -> Option<Arc<MapGuard>> {
        if state.is_closed {
            return None;
        }
        if let Some(guard) = state.guard.upgrade() {
            return (!state.is_lost).then_some(guard);
        }
        let opened = io.open_dir(&self.dir);
        let locked = opened.and_then(|dir| Ok(dir.try_lock_shared()?.then_some(dir)));
        let dir = locked.unwrap_or_else(|e| {
            state.told.push(Told::NotMapped(self.dir.clone(), e));
            None
        })?;
        let guard = MapGuard::new(dir);
        (state.guard, state.is_lost) = (Arc::downgrade(&guard), false);
        Some(guard)
    }

    /// Whether files may be cut, until [`Maps::end_cut`]: no other log has one of them mapped, nor
    /// will. For whoever holds the directory's `LOCK` alone.
    pub(crate) fn begin_cut(&self, io: &dyn Io) -> bool {
        self.with_state(|state| self.may_cut(state, io))
    }

    fn may_cut(&self, state: &mut State, io: &dyn Io) -> bool {
        if state.is_closed || state.cutting.is_some() {
            return !state.is_closed;
        }
        let own = state.guard.upgrade();
        let guard = own.clone().map_or_else(|| io.open_dir(&self.dir).map(MapGuard::new), Ok);
        let locked = guard.and_then(|guard| Ok(guard.dir.try_lock()?.then_some(guard)));
        match locked {
            Ok(Some(guard)) => {
                (state.guard, state.is_lost) = (Arc::downgrade(&guard), false);
                state.cutting = Some(guard);
                return true;
            }
            Ok(None) => {}
            Err(e) => state.told.push(Told::NotCut(self.dir.clone(), e)),
        }
        // flock(2): a conversion that fails may cost the lock that was held.
        if let Some(own) = own {
            state.is_lost = !state.is_shared(&own);
        }
        false
    }

    /// Ends [`Maps::begin_cut`]; what is mapped stays protected.
    pub(crate) fn end_cut(&self) {
        self.with_state(State::end_cut);
    }

    /// Nothing more is mapped or cut. Releases the directory to the next writer, except that it
    /// waits for the last slice of a map which no lock protects but that of the writer.
    pub(crate) fn close(&self, lock: Option<DirLock>) {
        self.with_state(|state| {
            state.end_cut();
            state.is_closed = true;
            let Some(guard) = state.guard.upgrade() else { return };
            if let Some(lock) = lock.filter(|_| state.is_lost && !state.is_shared(&guard)) {
                state.told.push(Told::LockKept);
                drop(guard.writer.set(lock));
            }
        });
    }

    /// What there is to tell is told once the lock is given back.
    fn with_state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut state);
        let told = std::mem::take(&mut state.told);
        drop(state);
        told::tell(told);
        done
    }
}

impl State {
    fn end_cut(&mut self) {
        let Some(guard) = self.cutting.take() else { return };
        // Nobody else makes another one of it meanwhile: that takes the state.
        if Arc::strong_count(&guard) > 1 {
            self.is_lost = !self.is_shared(&guard);
        }
    }

    /// Whether the shared lock is held, asked for once more.
    fn is_shared(&mut self, guard: &MapGuard) -> bool {
        guard.dir.try_lock_shared().unwrap_or_else(|e| {
            self.told.push(Told::MapsUnlocked(e));
            false
        })
    }
}
