//! Faults at chosen calls of a [`MemIo`](super::mem::MemIo): an error, a short write, the end of
//! the process.
//!
//! A fault is armed for the n-th call of a kind from then on. This module counts and chooses; what
//! a fault does to the bytes is decided where the bytes are.

use std::{fmt, io};

/// One call of [`Io`](super::Io) or [`IoFile`](super::IoFile).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallKind {
    /// Opening an existing file.
    Open,
    /// Opening a directory.
    OpenDir,
    /// Making a file.
    Create,
    /// Listing a directory.
    List,
    /// Asking what stands at a path.
    Kind,
    /// Renaming.
    Rename,
    /// Removing a name.
    Remove,
    /// Making a directory.
    CreateDir,
    /// Syncing a directory.
    SyncDir,
    /// Asking for a length.
    Len,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Syncing a file.
    Sync,
    /// Setting a length.
    SetLen,
    /// Reserving blocks.
    Allocate,
    /// Asking for the identity of an open file.
    Id,
    /// Locking alone.
    Lock,
    /// Locking beside others.
    LockShared,
    /// Mapping.
    Map,
    /// Dropping from the cache.
    Evict,
    /// Asking for random bytes.
    Random,
}

impl CallKind {
    /// True for a call that changes what a crash leaves: a persistence point.
    #[must_use]
    pub const fn is_persist(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::Rename
                | Self::Remove
                | Self::CreateDir
                | Self::SyncDir
                | Self::Write
                | Self::Sync
                | Self::SetLen
                | Self::Allocate
        )
    }
}

/// Which calls a fault counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Which {
    /// Every call.
    Any,
    /// Every persistence point.
    Persist,
    /// The calls of one kind.
    Kind(CallKind),
}

impl Which {
    pub(super) const fn covers(self, kind: CallKind) -> bool {
        match self {
            Self::Any => true,
            Self::Persist => kind.is_persist(),
            Self::Kind(wanted) => wanted as u8 == kind as u8,
        }
    }
}

/// What happens instead of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call fails with this error number of the system and does nothing else, unless it is a
    /// write or a sync and the number is not `EINTR`: some begin of the bytes was written, and
    /// respectively any part of what was unsynced has reached the disk and all of it counts as
    /// synced.
    Error(i32),
    /// A write takes this many bytes at most, and so does a read, but for one byte; other calls are
    /// not touched.
    Short(usize),
    /// The process ends before the call: it and every later one answer [`is_stopped`].
    Stop,
    /// As [`Fault::Error`], and the process ends behind it: nobody hears of the failure.
    Last(i32),
}

impl Fault {
    /// Whether a call of a kind that reads or writes `len` bytes is any different for it.
    #[must_use]
    pub fn is_felt(self, kind: CallKind, len: usize) -> bool {
        match (self, kind) {
            (Self::Short(most), CallKind::Read) => most.max(1) < len,
            (Self::Short(most), CallKind::Write) => most < len,
            (Self::Short(_), _) => false,
            _ => true,
        }
    }
}

/// `EINTR`: interrupted by a signal.
pub const EINTR: i32 = 4;
/// `EIO`: the device failed.
pub const EIO: i32 = 5;
/// `EMFILE`: too many open files.
pub const EMFILE: i32 = 24;
/// `ENOSPC`: no block is free.
pub const ENOSPC: i32 = 28;
/// `EROFS`: the file system became read-only.
pub const EROFS: i32 = 30;
/// `EDQUOT`: the quota is used up.
pub const EDQUOT: i32 = 122;

/// The error of every call of a process that has ended.
#[derive(Debug)]
struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process has ended")
    }
}

impl std::error::Error for Stopped {}

/// The error of a call after [`Fault::Stop`].
pub(super) fn stopped() -> io::Error {
    io::Error::other(Stopped)
}

/// True when the error says that the process has ended at [`Fault::Stop`].
#[must_use]
pub fn is_stopped(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Stopped>())
}

/// A fault and the calls that it waits for.
#[derive(Clone, Copy, Debug)]
struct Armed {
    which: Which,
    /// Calls still to come before it strikes.
    wait: u64,
    /// Calls that it strikes then.
    times: u64,
    fault: Fault,
}

/// The counters of one process and the faults that wait for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    armed: Vec<Armed>,
    calls: u64,
    persists: u64,
    struck: u64,
    stopped: bool,
    /// Calls that armed faults have met, changed or not.
    spent: u64,
    /// All calls in order, and which of them were changed.
    trace: u64,
    /// The calls and their bytes, once somebody asks for them.
    noted: Option<Vec<(CallKind, usize)>>,
}

impl Faults {
    /// Strikes at the `nth` call from here, counted from 1, and at the `times - 1` behind it.
    pub(super) fn arm(&mut self, which: Which, nth: u64, times: u64, fault: Fault) {
        self.armed.push(Armed { which, wait: nth.saturating_sub(1), times, fault });
    }

    pub(super) fn disarm(&mut self) {
        self.armed.clear();
    }

    /// The same for the next process.
    pub(super) fn restarted(&self) -> Self {
        Self { stopped: false, ..self.clone() }
    }

    /// All calls, and those that are persistence points.
    pub(super) const fn counts(&self) -> (u64, u64) {
        (self.calls, self.persists)
    }

    /// Notes every call from here on, with the bytes that it reads or writes.
    pub(super) fn note(&mut self) {
        self.noted = Some(Vec::new());
    }

    pub(super) fn noted(&self) -> &[(CallKind, usize)] {
        self.noted.as_deref().unwrap_or_default()
    }

    /// Calls that a fault has changed.
    pub(super) const fn struck(&self) -> u64 {
        self.struck
    }

    /// Calls that armed faults have met, whether or not they were changed by it.
    pub(super) const fn spent(&self) -> u64 {
        self.spent
    }

    /// A number that two runs share only where they made the same calls and the same ones of them
    /// were changed.
    pub(super) const fn trace(&self) -> u64 {
        self.trace
    }

    pub(super) const fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub(super) const fn stop(&mut self) {
        self.stopped = true;
    }

    /// Counts a call that reads or writes so many bytes, and says what happens to it.
    pub(super) fn next(&mut self, kind: CallKind, len: usize) -> Option<Fault> {
        self.calls += 1;
        if let Some(noted) = &mut self.noted {
            noted.push((kind, len));
        }
        self.persists += u64::from(kind.is_persist());
        let mut found = None;
        for armed in self.armed.iter_mut().filter(|armed| armed.which.covers(kind)) {
            if armed.wait > 0 {
                armed.wait -= 1;
            } else if armed.times > 0 {
                armed.times -= 1;
                self.spent += 1;
                let felt = Some(armed.fault).filter(|fault| fault.is_felt(kind, len));
                found = found.or(felt);
            }
        }
        self.armed.retain(|armed| armed.times > 0);
        self.struck += u64::from(found.is_some());
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        let call = len << 8 | (kind as u64) << 1 | u64::from(found.is_some());
        self.trace = mix(self.trace.wrapping_add(mix(call)));
        found
    }
}

/// A small generator of numbers for seeded choices (SplitMix64); the same on every machine.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number.
    pub const fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `sides`, or 0 when there is none.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.roll().checked_rem(sides).unwrap_or(0)
    }

    /// An index below `len`, or 0 when there is none.
    pub fn index(&mut self, len: usize) -> usize {
        let sides = u64::try_from(len).unwrap_or(u64::MAX);
        usize::try_from(self.below(sides)).unwrap_or(0)
    }
}

/// Spreads the bits of a number over all of it, bijectively.
pub(super) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_at_the_call_it_was_armed_for_and_no_other() {
        let mut faults = Faults::default();
        faults.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(EIO));
        assert_eq!(faults.next(CallKind::Write, 8), None);
        assert_eq!(faults.next(CallKind::Sync, 8), None);
        assert_eq!(faults.next(CallKind::Write, 8), Some(Fault::Error(EIO)));
        assert_eq!(faults.next(CallKind::Write, 8), None);
        assert_eq!(faults.counts(), (4, 4));
    }

    #[test]
    fn a_lasting_fault_strikes_every_call() {
        let mut faults = Faults::default();
        faults.arm(Which::Persist, 1, u64::MAX, Fault::Error(ENOSPC));
        assert_eq!(faults.next(CallKind::Read, 8), None);
        for _ in 0..3 {
            assert_eq!(faults.next(CallKind::Allocate, 8), Some(Fault::Error(ENOSPC)));
        }
    }

    #[test]
    fn a_short_count_strikes_where_it_takes_something_away() {
        let check = |most, kind, len, is_felt| {
            let mut faults = Faults::default();
            faults.arm(Which::Any, 1, 1, Fault::Short(most));
            assert_eq!(faults.next(kind, len).is_some(), is_felt, "{most} of {kind:?} {len}");
            assert_eq!((faults.struck(), faults.counts().0), (u64::from(is_felt), 1));
        };
        check(7, CallKind::Write, 8, true);
        check(8, CallKind::Write, 8, false);
        check(0, CallKind::Write, 1, true);
        check(0, CallKind::Read, 2, true);
        check(0, CallKind::Read, 1, false);
        check(0, CallKind::Sync, 0, false);
    }
}
