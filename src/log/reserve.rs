//! The reserve: a spare that was written, and is kept for what ends work, so that a disk that is
//! full can be emptied (SPEC section 10).
//!
//! A log that keeps one knows two kinds of batches. New work is taken in only while the reserve is
//! there, and holds what was promised to the work that was taken in before. What ends work, and a
//! trim, may use it where no other segment can be made; the next new work makes another one first,
//! and is refused as long as there is no space for that.
//!
//! It has a name of its own and outlives a close: when the log is opened again, others may have
//! taken every block there was. What is found then is kept only where it holds no header: one that
//! does was named as a segment by a process that was killed at it, and may still be that segment.
//! Another one is made then: at once, of the blocks that come free, or later of those that a tail
//! gives back which takes no more frames: a bare one, or one whose last write was torn.

mod making;

use std::path::Path;

use oncelog_format::limits::{FRAMES_OFFSET, SEGMENT_BYTES_MAX};

use super::Log;
use super::options::Batch;
use super::pending::Pending;
use super::roll::{Source, next_size};
use super::spare::{BLOCK_BYTES, Spare};
use super::writer::{Gate, Guard, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Io, OpenHow};
use crate::lsn::LsnRange;

use self::making::{Making, Sizes, remake};

/// Name of the reserve: that of a spare, for whoever does not know it.
pub(crate) const RESERVE_NAME: &str = "reserve.spare";
/// Most bytes that a reserve holds: it becomes a segment.
pub(crate) const RESERVED_MAX: u64 = SEGMENT_BYTES_MAX - FRAMES_OFFSET;

/// What a reserve holds where so many bytes were promised: who is killed when it becomes the tail
/// may leave one that takes no more frames. Its header and slots stay, and the next reserve is made
/// of the rest; the block of its last frame is of use to neither.
fn with_rest(promised: u64) -> u64 {
    promised.saturating_add(FRAMES_OFFSET).saturating_add(BLOCK_BYTES).min(RESERVED_MAX)
}

/// What a batch is to a log that keeps a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// New work: refused unless the reserve holds so many bytes that were promised.
    New(u64),
    /// Ends what was taken in, and leaves so many bytes to others that do.
    Ending(u64),
}

impl Use {
    /// More than a reserve holds is kept for nothing.
    fn within(self) -> Self {
        match self {
            Self::New(promised) => Self::New(promised.min(RESERVED_MAX)),
            Self::Ending(left) => Self::Ending(left.min(RESERVED_MAX)),
        }
    }
}

/// What became of a batch for which no reserve was to be made.
#[derive(Debug)]
pub(crate) enum Entered<'a> {
    /// It was taken in.
    In(Guard<'a>, LsnRange),
    /// It was not: first a reserve is to be made, of so many bytes.
    Lacks(Guard<'a>, u64),
}

/// The same to whoever has no gate.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It was taken in.
    In(Pending),
    /// Nothing was done: [`Log::make_reserve`] is to be asked for so many bytes first.
    Lacks(u64),
}

/// The reserve of a log.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The log keeps one.
    is_wanted: bool,
    spare: Option<Spare>,
    /// A thread makes one.
    making: bool,
}

impl Kept {
    /// What an open leaves of the file that it has found.
    ///
    /// # Errors
    ///
    /// Those of a sync of the directory.
    pub(crate) fn found(io: &dyn Io, dir: &Path) -> Result<Self> {
        Ok(Self { is_wanted: true, spare: find(io, dir)?, making: false })
    }

    /// Whether the log keeps one.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Whether a thread makes one.
    pub(crate) fn is_making(&self) -> bool {
        self.making
    }

    pub(crate) fn take(&mut self) -> Option<Spare> {
        self.spare.take()
    }

    pub(crate) fn put_back(&mut self, spare: Spare) {
        self.spare = Some(spare);
    }
}

/// The reserve of an earlier process. Its name was given when all of it had been synced, so that it
/// has its blocks, and is zeros.
fn find(io: &dyn Io, dir: &Path) -> Result<Option<Spare>> {
    let Some((spare, is_whole)) = look(io, dir) else { return Ok(None) };
    if is_whole {
        return Ok(Some(spare));
    }
    // Its name alone goes. The blocks that come free by that are promised, and others who keep
    // room would take them: another one is made of them first.
    let size = spare.size;
    spare.abandon(io);
    let is_ours = size > FRAMES_OFFSET && size <= SEGMENT_BYTES_MAX;
    if is_ours { remake(io, dir, size) } else { Ok(None) }
}

/// What bears the name, and whether it is a reserve.
fn look(io: &dyn Io, dir: &Path) -> Option<(Spare, bool)> {
    let path = dir.join(RESERVE_NAME);
    let file = io.open(&path, OpenHow::ReadWrite).ok()?;
    let mut begin = vec![0; usize::try_from(FRAMES_OFFSET).ok()?];
    let read = file.read_full_at(&mut begin, 0).ok()?;
    let size = file.len().ok()?;
    let is_blank = read == begin.len() && begin.iter().all(|byte| *byte == 0);
    let spare = Spare { file, path, size, filled: size, has_blocks: true };
    Some((spare, is_blank && size > FRAMES_OFFSET))
}

impl Gate {
    /// Bytes of frames that fit into the reserve.
    fn reserved(&self) -> u64 {
        self.kept.spare.as_ref().map_or(0, |spare| spare.size.saturating_sub(FRAMES_OFFSET))
    }

    /// Whether there is a reserve that takes so many bytes of frames.
    fn is_reserved(&self, promised: u64) -> bool {
        self.kept.spare.is_some() && self.reserved() >= promised
    }

    /// Whether the reserve may take a batch for which there is no other segment.
    pub(crate) fn may_use_reserve(&self, bytes: u64, usage: Use) -> bool {
        match usage.within() {
            Use::New(_) => false,
            Use::Ending(left) => {
                self.kept.spare.is_some() && self.reserved() >= bytes.saturating_add(left)
            }
        }
    }

    /// For how many bytes a reserve has to be made before a batch is taken in; `None` when it may
    /// be as it is.
    pub(crate) fn missing_reserve(&self, bytes: u64, usage: Use) -> Option<u64> {
        if !self.kept.is_wanted {
            return None;
        }
        match usage.within() {
            #[cfg(planted)]
            Use::New(_) if crate::planted::is_active(crate::planted::Bug::ReserveSpent) => None,
            Use::New(promised) => {
                let all = with_rest(promised);
                (!self.is_reserved(all)).then_some(all)
            }
            // What follows goes into the tail up to the first batch that does not fit there, and
            // all else into the reserve: either holds it alone.
            Use::Ending(left) => {
                let room = self.capacity.saturating_sub(self.end).saturating_sub(bytes);
                let is_left = room >= left || self.is_reserved(left);
                (self.has_room(bytes) && !is_left).then_some(left)
            }
        }
    }

    /// The same where the tail is full, and there is no space for another segment: of how many
    /// bytes a reserve may help that is made, or being made. What ends work and leaves nothing to
    /// others is asked for none.
    pub(crate) fn helpful_reserve(&self, bytes: u64, usage: Use) -> Option<u64> {
        match usage.within() {
            // It takes blocks, and gives those of a smaller one back when it has its name.
            Use::New(promised) => self.kept.making.then(|| with_rest(promised)),
            Use::Ending(0) => None,
            // Smaller than a segment, it may find space where none does.
            Use::Ending(left) => {
                let all = bytes.saturating_add(left);
                let helps = self.kept.is_wanted && all <= RESERVED_MAX && self.reserved() < all;
                helps.then_some(all)
            }
        }
    }
}

impl Shared {
    /// As [`Shared::enqueue`], for a batch of a kind.
    pub(crate) fn enqueue_as(&self, batch: Batch<'_>, sync: bool, usage: Use) -> Result<LsnRange> {
        self.enter(batch, sync, usage).map(|(_, lsns)| lsns)
    }

    /// Takes a batch in, and makes a reserve first where there has to be one.
    pub(crate) fn enter<'a>(
        &'a self,
        batch: Batch<'_>,
        sync: bool,
        usage: Use,
    ) -> Result<(Guard<'a>, LsnRange)> {
        loop {
            match self.enter_kept(batch, sync, usage)? {
                Entered::In(gate, lsns) => return Ok((gate, lsns)),
                Entered::Lacks(gate, bytes) => self.make_once(gate, bytes)?,
            }
        }
    }

    /// Starts a segment for a batch; what ends work gets the reserve where a first attempt, whose
    /// refusal is noted, found no space. Behind one that was made meanwhile, anybody tries again.
    pub(crate) fn roll_for<'a>(
        &'a self,
        gate: Guard<'a>,
        bytes: u64,
        usage: Use,
        full: &mut Option<Error>,
    ) -> (Guard<'a>, Result<()>) {
        let source = match full.take() {
            None => Source::Spare,
            // What is being made takes blocks, and is the reserve behind that.
            Some(_) if gate.kept.is_making() && !gate.may_use_reserve(bytes, usage) => {
                return (self.wait(gate), Ok(()));
            }
            Some(_) if matches!(usage, Use::New(_)) => Source::Spare,
            // Others may have taken it, or something of it, meanwhile.
            Some(e) if !gate.may_use_reserve(bytes, usage) => return (gate, Err(e)),
            Some(_) => Source::Reserve,
        };
        let was_making = gate.kept.is_making();
        let (gate, rolled) = self.roll(gate, bytes, source);
        let may_try_again = matches!(usage, Use::Ending(_)) || was_making || gate.kept.is_making();
        let is_first = source == Source::Spare && may_try_again;
        let rolled = match rolled {
            Err(e) if is_first && e.kind() == ErrorKind::StoreFull => {
                *full = Some(e);
                Ok(())
            }
            rolled => rolled,
        };
        (gate, rolled)
    }
}

impl Log {
    /// As [`Log::enqueue`], for a batch of a kind.
    ///
    /// # Errors
    ///
    /// As [`Log::enqueue`]; `StoreFull` also where new work would take space that was promised.
    pub(crate) fn enqueue_as(&self, batch: Batch<'_>, usage: Use) -> Result<Pending> {
        let shared = &self.handle.shared;
        let lsns: LsnRange = shared.enqueue_as(batch, true, usage)?;
        Ok(Pending::new(std::sync::Arc::clone(shared), lsns))
    }

    /// As [`Log::enqueue_as`], but for making a reserve, which may take as long as it takes to
    /// write a segment: whoever holds a lock makes it before.
    ///
    /// # Errors
    ///
    /// As [`Log::enqueue_as`].
    pub(crate) fn enqueue_kept(&self, batch: Batch<'_>, usage: Use) -> Result<Taken> {
        let shared = &self.handle.shared;
        match shared.enter_kept(batch, true, usage)? {
            Entered::Lacks(_, promised) => Ok(Taken::Lacks(promised)),
            Entered::In(gate, lsns) => {
                drop(gate);
                Ok(Taken::In(Pending::new(std::sync::Arc::clone(shared), lsns)))
            }
        }
    }

    /// Whether what was promised fits as it is, of so many bytes in all. Where it does not, or that
    /// cannot be told at this moment, [`Log::promise`] makes room.
    ///
    /// # Errors
    ///
    /// As [`Log::promise`], but for those of making a reserve.
    pub(crate) fn is_promised(&self, bytes: u64) -> Result<bool> {
        let shared = &self.handle.shared;
        let gate = shared.gate();
        gate.check_open()?;
        // A roll may have the reserve.
        if gate.rolling {
            return Ok(false);
        }
        let usage = Use::New(bytes);
        match shared.beyond_limits(&gate, usage) {
            Some(e) => Err(e),
            None => Ok(gate.missing_reserve(0, usage).is_none()),
        }
    }

    /// Makes sure that batches which end work fit, of so many bytes in all, whatever becomes of the
    /// disk: those that [`Use::New`] keeps when it is told of them.
    ///
    /// # Errors
    ///
    /// `StoreFull` where there is no space for it, or the log is at its limit and may not be
    /// trimmed; `Poisoned`, `Closed`.
    pub(crate) fn promise(&self, bytes: u64) -> Result<()> {
        let bytes = bytes.min(RESERVED_MAX);
        self.handle.shared.keep(Sizes { all: with_rest(bytes), least: bytes })
    }

    /// Makes a reserve that holds so many bytes, where there is none, for a batch that lacks it.
    ///
    /// # Errors
    ///
    /// As [`Log::promise`].
    pub(crate) fn make_reserve(&self, bytes: u64) -> Result<()> {
        self.handle.shared.keep(Sizes { all: bytes, least: bytes })
    }

    /// Gives a reserve back that is larger than what is promised needs; the next new work makes a
    /// small one.
    pub(crate) fn give_back(&self, promised: u64) {
        let shared = &self.handle.shared;
        let mut gate = shared.gate();
        while gate.rolling || gate.kept.is_making() {
            gate = shared.wait(gate);
        }
        let needed = next_size(0, with_rest(promised), shared.segment_bytes_max);
        if let Some(spare) = gate.kept.take() {
            if spare.size > needed {
                // Nobody makes another one of that name meanwhile.
                gate.kept.making = true;
                drop(gate);
                let making = Making(shared);
                spare.abandon(&*shared.io);
                drop(making);
            } else {
                gate.kept.put_back(spare);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
