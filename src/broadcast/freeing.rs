//! Space that is made where somebody found none: control is trimmed behind checkpoints that are
//! written for that.
//!
//! Behind one checkpoint control is trimmed to what the one before it covers, and behind a second
//! one to what the first covers, which is all that stood before it. Nobody has to ask: whoever is
//! refused for want of space has it looked whether they are worth it. They are where what a trim
//! lets go of is twice what they take, whole segments alone: so each of them leaves control
//! smaller, and where nothing more is to be had none is written. What was begun by a process that
//! is gone is taken up so as well.

use std::sync::PoisonError;
use std::time::Duration;

use super::checkpoint::{Checkpoint, Why};
use super::core::{Core, Guard, Inner};
use super::deciding::DECISION_LEN;
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// How long after an attempt that failed another one may be made.
const PAUSE: Duration = Duration::from_secs(1);

/// What a checkpoint frees is at least so many times what it takes.
const WORTH: u64 = 2;

/// Less than this is not worth a checkpoint: the disk is full again before it is written.
const FREED_BYTES_MIN: u64 = 256 << 10;

/// What is known of the space that control may give back.
#[derive(Debug, Default)]
pub(crate) struct Freeing {
    /// Somebody found no space.
    is_wanted: bool,
    /// From when on the next attempt may be made, on the monotonic clock.
    from: Duration,
    /// The last LSN that the newest checkpoint covers which was read back.
    covered: Option<Lsn>,
    /// Control was to be trimmed to here: what stands before it is no gain of another checkpoint.
    trimmed: Option<Lsn>,
}

/// What there is to do for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, until somebody is refused.
    Nothing,
    /// To wait so long.
    Wait(Duration),
    /// To trim again what a trim was refused for.
    Trim,
    Checkpoint,
}

impl Freeing {
    pub(crate) fn restored(checkpoint: Option<&Checkpoint>) -> Self {
        Self { covered: checkpoint.map(|checkpoint| checkpoint.covers), ..Self::default() }
    }

    /// Another checkpoint was read back, and control was to be trimmed to an LSN.
    pub(crate) fn checkpointed(&mut self, covers: Lsn, trimmed: Option<Lsn>) {
        self.covered = Some(covers);
        self.trimmed = trimmed.or(self.trimmed);
    }
}

impl Inner {
    /// Has space looked for where somebody was refused for want of it.
    pub(crate) fn note_refusal(&self, core: &mut Core, e: &Error) {
        if e.kind() == ErrorKind::StoreFull {
            core.freeing.is_wanted = true;
            self.turned.notify_all();
        }
    }

    /// What there is to do for space.
    pub(crate) fn next_freeing(&self, core: &mut Core) -> Next {
        if !core.freeing.is_wanted {
            return Next::Nothing;
        }
        let pause = core.freeing.from.saturating_sub(self.monotonic());
        if !pause.is_zero() {
            return Next::Wait(pause);
        }
        if core.freeing.trimmed.is_some_and(|trimmed| self.store.control().oldest_lsn() < trimmed) {
            return Next::Trim;
        }
        core.freeing.is_wanted = self.is_freeing(core);
        if core.freeing.is_wanted { Next::Checkpoint } else { Next::Nothing }
    }

    /// An attempt has failed: the next one is made later, and when somebody is refused again.
    pub(crate) fn pause_freeing(&self, core: &mut Core) {
        core.freeing.is_wanted = false;
        core.freeing.from = self.monotonic().saturating_add(PAUSE);
    }

    /// Whether a checkpoint, or two of them, would free more than they take.
    pub(crate) fn is_freeing(&self, core: &Core) -> bool {
        let control = self.store.control();
        let taken = core.checkpoint_with(0);
        let before = core.freeing.trimmed.map_or(0, |trimmed| control.bytes_below(trimmed));
        let freed = |oldest: Lsn| control.bytes_below(oldest).saturating_sub(before);
        let behind_one = core.freeing.covered.map_or(0, |covered| freed(covered.next()));
        // The first of two starts a segment where the tail does not hold it.
        let tail = control.tail_bytes_without_room(taken).unwrap_or(0);
        let behind_two = freed(control.next_lsn()).saturating_add(tail);
        let worth = |bytes: u64| bytes.saturating_mul(WORTH).max(FREED_BYTES_MIN);
        behind_one >= worth(taken) || behind_two >= worth(taken.saturating_mul(2))
    }

    /// Has a checkpoint begin with a segment where the tail does not hold all of it: then it covers
    /// all that stands in the tail. Where there is no room for that, it begins where it may.
    ///
    /// # Errors
    ///
    /// Those of a roll, but for want of space.
    fn begin_freeing(&self) -> Result<()> {
        let (bytes, left) = {
            let core = self.lock();
            let bytes = core.checkpoint_with(0);
            (bytes, bytes.saturating_add(core.owed.control()))
        };
        let decision = u64::try_from(DECISION_LEN).unwrap_or(u64::MAX);
        match self.store.control().begin_segment(bytes, decision, left) {
            Err(e) if e.kind() == ErrorKind::StoreFull => Ok(()),
            begun => begun,
        }
    }

    /// Writes a checkpoint, as long as that frees space.
    pub(crate) fn free_space(&self) -> Result<Option<Checkpoint>> {
        self.begin_freeing()?;
        self.checkpoint_for(Why::Space)
    }

    /// Waits until a checkpoint may be due.
    pub(crate) fn rest_unchecked<'a>(&'a self, core: Guard<'a>, next: Next) -> Guard<'a> {
        match next {
            Next::Wait(pause) => {
                self.turned.wait_timeout(core, pause).unwrap_or_else(PoisonError::into_inner).0
            }
            _ => self.turned.wait(core).unwrap_or_else(PoisonError::into_inner),
        }
    }
}
