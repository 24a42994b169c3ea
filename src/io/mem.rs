//! A file system in memory that loses what was not synced, for tests.
//!
//! It is as unhelpful as POSIX allows. Bytes, length and directory entries are independent: of what
//! was not synced a power loss leaves any part, sectors of 512 bytes whole, the halves of a rename
//! apart. A failed sync leaves each sector old or new on disk and all of them clean, while reads
//! show the new bytes; a block that it was to write for the first time is not written by any later
//! sync, until it leaves the cache. Space can run out. Calls are counted, and any of them can fail.
//!
//! [`MemIo`] is the view of one process: it counts, fails, and ends. [`Machine`] is what outlives
//! it. It does **not** model time, permissions or links, and never reorders what it was told to
//! sync.

mod image;
mod loss;
mod machine;
mod meeting;
mod node;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use bytes::Bytes;

use self::image::to_u64;
pub use self::loss::{Unsynced, survivors};
pub use self::machine::Machine;
use self::meeting::Meeting;
use self::node::Ino;
#[cfg(test)]
pub(super) use self::tests::check_locks;
use super::fault::{self, CallKind, Dice, Fault, Faults, Which};
use super::{DirEntry, EntryKind, FileId, Io, IoFile, OpenHow};

/// Bytes that the system copies at once: a process can be killed between two.
const PAGE: usize = 4096;

/// Looks at the machine before each persistence point.
type Observer = Box<dyn FnMut(&Machine, CallKind) + Send>;

/// A process on a [`Machine`]. Clones are the same process.
#[derive(Clone)]
pub struct MemIo {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    machine: Machine,
    faults: Faults,
    /// Decides what a failed sync leaves.
    dice: Dice,
    observer: Option<Observer>,
    meeting: Option<Meeting>,
    /// Number of the last open file description.
    descriptions: u64,
    /// Who holds the lock of a file or a directory: descriptions.
    locks: BTreeMap<Ino, Locked>,
}

/// A `flock` that is held.
#[derive(Debug)]
enum Locked {
    Exclusive(u64),
    Shared(BTreeSet<u64>),
}

impl fmt::Debug for MemIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemIo")
            .field("counts", &self.lock().faults.counts())
            .finish_non_exhaustive()
    }
}

impl Default for MemIo {
    fn default() -> Self {
        Self::new(Machine::new())
    }
}

impl MemIo {
    /// The first process on a machine: no lock is held and no file is open.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        let shared = Shared {
            machine,
            faults: Faults::default(),
            dice: Dice::new(0),
            observer: None,
            meeting: None,
            descriptions: 0,
            locks: BTreeMap::new(),
        };
        Self { shared: Arc::new(Mutex::new(shared)) }
    }

    /// The next process on a machine, which may be what a crash left of this one's: it goes on with
    /// the counters and with the faults that have not struck.
    #[must_use]
    pub fn successor(&self, machine: Machine) -> Self {
        let next = Self::new(machine);
        let shared = self.lock();
        next.lock().faults = shared.faults.restarted();
        next.lock().dice = shared.dice.clone();
        drop(shared);
        next
    }

    /// The machine as it is: what the next process finds if this one is killed.
    #[must_use]
    pub fn machine(&self) -> Machine {
        self.lock().machine.clone()
    }

    /// Changes the machine behind the back of the process, as a broken device would.
    pub fn alter<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> T {
        change(&mut self.lock().machine)
    }

    /// Shows the machine to `observer` before each persistence point, and within a write of more
    /// than a page what a kill in the midst of it leaves. The observer must not use this `MemIo`.
    pub fn observe(&self, observer: impl FnMut(&Machine, CallKind) + Send + 'static) {
        self.lock().observer = Some(Box::new(observer));
    }

    /// Ends [`MemIo::observe`].
    pub fn unobserve(&self) {
        self.lock().observer = None;
    }

    /// Strikes at the `nth` matching call from here, counted from 1, and at the `times - 1` matching
    /// ones behind it.
    pub fn arm(&self, which: Which, nth: u64, times: u64, fault: Fault) {
        self.lock().faults.arm(which, nth, times, fault);
    }

    /// Takes back every fault that has not struck.
    pub fn disarm(&self) {
        self.lock().faults.disarm();
    }

    /// Seeds what a failed sync leaves on the disk.
    pub fn seed(&self, seed: u64) {
        self.lock().dice = Dice::new(seed);
    }

    /// Leaves this many blocks of 4096 bytes free; `None` is no bound.
    pub fn set_free_blocks(&self, free: Option<u64>) {
        self.lock().machine.set_free_blocks(free);
    }

    /// Calls until here: all, and those that are persistence points.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        self.lock().faults.counts()
    }

    /// Notes every call of this process and its successors from here on.
    pub fn note_calls(&self) {
        self.lock().faults.note();
    }

    /// What was noted: each call, and the bytes that it read or wrote.
    #[must_use]
    pub fn noted_calls(&self) -> Vec<(CallKind, usize)> {
        self.lock().faults.noted().to_vec()
    }

    /// Calls that an armed fault has changed.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.lock().faults.struck()
    }

    /// Calls that armed faults have met, whether or not they were changed by it.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.lock().faults.spent()
    }

    /// A number that two runs of processes share only where they made the same calls, and faults
    /// have changed the same ones of them.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.lock().faults.trace()
    }

    /// Ends the process: this and every later call fails, and its locks are free.
    pub fn kill(&self) {
        let mut shared = self.lock();
        shared.faults.stop();
        shared.locks.clear();
    }

    /// True once the process has ended, by [`MemIo::kill`] or [`Fault::Stop`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.lock().faults.is_stopped()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call without bytes; what is left of it, or its failure.
    fn enter(&self, kind: CallKind) -> io::Result<(MutexGuard<'_, Shared>, Option<Fault>)> {
        self.enter_with(kind, 0)
    }

    /// The same for one that reads or writes so many bytes.
    fn enter_with(
        &self,
        kind: CallKind,
        len: usize,
    ) -> io::Result<(MutexGuard<'_, Shared>, Option<Fault>)> {
        let mut shared = self.lock();
        if shared.faults.is_stopped() {
            return Err(fault::stopped());
        }
        if let Some(meeting) = &mut shared.meeting {
            meeting.next(kind);
        }
        if kind.is_persist() {
            let Shared { machine, observer, .. } = &mut *shared;
            if let Some(observer) = observer {
                observer(machine, kind);
            }
        }
        let mut struck = shared.faults.next(kind, len);
        if let Some(Fault::Last(number)) = struck {
            shared.faults.stop();
            shared.locks.clear();
            struck = Some(Fault::Error(number));
        }
        match struck {
            Some(Fault::Stop) => {
                shared.faults.stop();
                shared.locks.clear();
                Err(fault::stopped())
            }
            // A failed write or sync is not without effect: the caller of this decides it.
            Some(Fault::Error(number))
                if !matches!(kind, CallKind::Write | CallKind::Sync | CallKind::SyncDir) =>
            {
                Err(io::Error::from_raw_os_error(number))
            }
            other => Ok((shared, other)),
        }
    }

    fn sync_dir_of(&self, dir: impl FnOnce(&Machine) -> io::Result<Ino>) -> io::Result<()> {
        let (mut shared, fault) = self.enter(CallKind::SyncDir)?;
        let Shared { machine, dice, .. } = &mut *shared;
        let dir = dir(machine)?;
        match fault {
            Some(Fault::Error(number)) => {
                if number != fault::EINTR {
                    machine.fail_sync_dir(dir, dice)?;
                }
                Err(io::Error::from_raw_os_error(number))
            }
            _ => machine.sync_dir(dir),
        }
    }

    /// Counts a call that a short count does not touch.
    fn enter_whole(&self, kind: CallKind) -> io::Result<MutexGuard<'_, Shared>> {
        self.enter(kind).map(|(shared, _)| shared)
    }
}

impl Io for MemIo {
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        let create = how == OpenHow::CreateNew;
        let mut shared =
            self.enter_whole(if create { CallKind::Create } else { CallKind::Open })?;
        let ino =
            if create { shared.machine.create(path)? } else { shared.machine.resolve(path)? };
        let file = shared.machine.file(ino)?;
        // A failure that nobody was told of is told to whoever opens the file, too.
        let told = if file.failure_told { file.failures } else { file.failures.saturating_sub(1) };
        shared.descriptions += 1;
        let description = shared.descriptions;
        drop(shared);
        Ok(Arc::new(MemFile {
            io: self.clone(),
            ino,
            description,
            is_dir: false,
            writable: how != OpenHow::Read,
            told: AtomicU64::new(told),
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.enter_whole(CallKind::List)?.machine.list(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.enter_whole(CallKind::Kind)?.machine.kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.enter_whole(CallKind::Rename)?.machine.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.enter_whole(CallKind::Remove)?.machine.unlink(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.enter_whole(CallKind::CreateDir)?.machine.create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.sync_dir_of(|machine| machine.resolve(dir))
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn IoFile>> {
        let mut shared = self.enter_whole(CallKind::OpenDir)?;
        let ino = shared.machine.resolve_dir(dir)?;
        shared.descriptions += 1;
        let description = shared.descriptions;
        drop(shared);
        let (io, told) = (self.clone(), AtomicU64::new(0));
        Ok(Arc::new(MemFile { io, ino, description, is_dir: true, writable: false, told }))
    }

    /// Repeats when a run does, and differs between processes: it depends on the changes of the
    /// machine until here alone.
    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        let mut shared = self.enter_whole(CallKind::Random)?;
        let mut dice = Dice::new(shared.machine.advance());
        for chunk in buf.chunks_mut(8) {
            for (target, source) in chunk.iter_mut().zip(dice.roll().to_le_bytes()) {
                *target = source;
            }
        }
        Ok(())
    }
}

/// An open file of a [`MemIo`].
#[derive(Debug)]
struct MemFile {
    io: MemIo,
    ino: Ino,
    description: u64,
    is_dir: bool,
    writable: bool,
    /// Failed write-backs of the file that this description was told of.
    told: AtomicU64,
}

impl MemFile {
    fn check_writable(&self) -> io::Result<()> {
        const EBADF: i32 = 9;
        if self.writable { Ok(()) } else { Err(io::Error::from_raw_os_error(EBADF)) }
    }
}

impl IoFile for MemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.io.enter_whole(CallKind::Len)?.machine.file(self.ino)?.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.io.lock().machine.file(self.ino)?.len;
        let left = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (shared, fault) = self.io.enter_with(CallKind::Read, left.min(buf.len()))?;
        // No byte at all would be the end of the file.
        let take = short(buf.len(), fault).max(buf.len().min(1));
        let buf = buf.get_mut(..take).unwrap_or_default();
        Ok(shared.machine.file(self.ino)?.read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.check_writable()?;
        let (mut shared, fault) = self.io.enter_with(CallKind::Write, buf.len())?;
        let buf = buf.get(..short(buf.len(), fault)).unwrap_or(buf);
        let Shared { machine, observer, dice, .. } = &mut *shared;
        if let Some(Fault::Error(number)) = fault {
            if number != fault::EINTR {
                // Without a count, any begin of it may be there: nothing, all, or up to a sector.
                let sector = usize::try_from(image::SECTOR).unwrap_or(1);
                let cut = dice.index(buf.len() / sector + 2).saturating_mul(sector);
                let part = buf.get(..cut).unwrap_or(buf);
                drop(machine.write(self.ino, part, offset));
            }
            return Err(io::Error::from_raw_os_error(number));
        }
        if let Some(observer) = observer {
            // A kill ends a write between two pages of the file.
            let lead = PAGE - usize::try_from(offset % to_u64(PAGE)).unwrap_or(0);
            for cut in (lead..buf.len()).step_by(PAGE) {
                let mut half = machine.clone();
                if half.write(self.ino, buf.get(..cut).unwrap_or(buf), offset).is_ok() {
                    observer(&half, CallKind::Write);
                }
            }
        }
        machine.write(self.ino, buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        if self.is_dir {
            return self.io.sync_dir_of(|_| Ok(self.ino));
        }
        let (mut shared, fault) = self.io.enter(CallKind::Sync)?;
        let Shared { machine, dice, .. } = &mut *shared;
        match fault {
            Some(Fault::Error(fault::EINTR)) => {
                return Err(io::Error::from_raw_os_error(fault::EINTR));
            }
            Some(Fault::Error(number)) => {
                machine.fail_sync(self.ino, dice)?;
                let file = machine.file_mut(self.ino)?;
                file.failure_told = true;
                self.told.store(file.failures, Ordering::Relaxed);
                return Err(io::Error::from_raw_os_error(number));
            }
            _ => {}
        }
        let file = machine.file_mut(self.ino)?;
        file.sync();
        // fsync(2): an error since the last call on this description is told once, and what was
        // written after it is on disk nevertheless.
        if self.told.swap(file.failures, Ordering::Relaxed) < file.failures {
            file.failure_told = true;
            return Err(io::Error::from_raw_os_error(fault::EIO));
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if !self.writable {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.io.enter_whole(CallKind::SetLen)?.machine.set_len(self.ino, len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        self.io.enter_whole(CallKind::Allocate)?.machine.allocate(self.ino, len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut shared = self.io.enter_whole(CallKind::Lock)?;
        shared.unlock(self.ino, self.description);
        let is_free = !shared.locks.contains_key(&self.ino);
        if is_free {
            shared.locks.insert(self.ino, Locked::Exclusive(self.description));
        }
        Ok(is_free)
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        let mut shared = self.io.enter_whole(CallKind::LockShared)?;
        shared.unlock(self.ino, self.description);
        let none = || Locked::Shared(BTreeSet::new());
        match shared.locks.entry(self.ino).or_insert_with(none) {
            Locked::Exclusive(_) => Ok(false),
            Locked::Shared(holders) => Ok(holders.insert(self.description)),
        }
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        self.io.enter_whole(CallKind::Id).map(drop)?;
        Ok(Some(FileId { device: 0, file: to_u64(self.ino) }))
    }

    fn evict(&self, bytes: Range<u64>) -> io::Result<()> {
        let mut shared = self.io.enter_whole(CallKind::Evict)?;
        shared.machine.file_mut(self.ino)?.evict_range(bytes.start, bytes.end);
        Ok(())
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        let shared = self.io.enter_whole(CallKind::Map)?;
        let file = shared.machine.file(self.ino)?;
        if file.len < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut buf = vec![0; usize::try_from(len).ok().ok_or(io::ErrorKind::FileTooLarge)?];
        file.read(&mut buf, 0);
        Ok(Bytes::from(buf))
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.io.lock().unlock(self.ino, self.description);
    }
}

impl Shared {
    /// As flock(2): a lock that is to become another one is given up before that is asked for.
    fn unlock(&mut self, ino: Ino, description: u64) {
        let is_over = match self.locks.get_mut(&ino) {
            Some(Locked::Exclusive(holder)) => *holder == description,
            Some(Locked::Shared(holders)) => holders.remove(&description) && holders.is_empty(),
            None => false,
        };
        if is_over {
            self.locks.remove(&ino);
        }
    }
}

/// How much of a buffer a call uses.
fn short(len: usize, fault: Option<Fault>) -> usize {
    match fault {
        Some(Fault::Short(most)) => len.min(most),
        _ => len,
    }
}
