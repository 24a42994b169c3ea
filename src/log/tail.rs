//! The tail: the one segment that is written to, and the pacing of its slots (SPEC section 10).
//!
//! Whoever holds a [`Tail`] is the only one who writes to its file.

use std::path::PathBuf;
use std::sync::Arc;

use oncelog_format::limits::FRAMES_OFFSET;
use oncelog_format::{Place, SegmentHeader, Slot};

use super::dir::{Fault, refusal};
use super::spare::NewSegment;
use super::told::Told;
use crate::error::{Error, ErrorKind, Result};
use crate::io::IoFile;

/// A record and the offset after its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) lsn: u64,
    pub(crate) offset: u64,
}

/// The open tail.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) file: Arc<dyn IoFile>,
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    /// Offset after the last byte that is in use, live or dead.
    pub(crate) used: u64,
    pub(crate) size: u64,
    /// Nothing shows that its name is durable: nothing is written into it.
    pub(crate) bare: bool,
    /// It takes no more frames, and nothing that stands from here on is of a record: its blocks may
    /// be what the next segment lacks.
    pub(crate) ended_at: Option<u64>,
    /// A footer stands after the last byte.
    pub(crate) sealed: bool,
    /// Counter of the newest slot.
    pub(crate) counter: u64,
    /// The newest slot as it was read at open, until it was written again.
    pub(crate) found: Option<Slot>,
    /// A slot was written and not synced.
    pub(crate) slot_dirty: bool,
    /// Durable and oldest LSN of the last slot that this process wrote; durable with the next sync.
    pub(crate) stated: Option<(u64, u64)>,
    /// A slot was refused, and none that was written in its place is known to be durable.
    pub(crate) refused: bool,
    /// What is told once it is back in the gate.
    pub(crate) told: Vec<Told>,
}

impl Tail {
    pub(crate) fn of_new(segment: NewSegment, oldest_lsn: u64) -> Self {
        let durable = segment.header.first_lsn.saturating_sub(1);
        Self {
            file: segment.file,
            path: segment.path,
            header: segment.header,
            used: FRAMES_OFFSET,
            size: segment.size,
            bare: false,
            ended_at: None,
            sealed: false,
            counter: 1,
            found: None,
            slot_dirty: false,
            stated: Some((durable, oldest_lsn)),
            refused: false,
            told: Vec::new(),
        }
    }

    pub(crate) fn place(&self, offset: u64) -> Place {
        Place { salt: self.header.salt, offset }
    }

    /// Writes frames with one write: a short one is a failure.
    pub(crate) fn write_frames(&mut self, frames: &[u8], offset: u64) -> Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        let len = u64::try_from(frames.len()).unwrap_or(u64::MAX);
        // Also after a failure: a part may stand there.
        self.used = self.used.max(offset.saturating_add(len));
        let written = self.file.write_whole_at(frames, offset);
        written
            .map_err(|e| Error::io("cannot write to the segment", &self.path, e).at_offset(offset))
    }

    /// Syncs the file, once: a failed sync is final.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let synced = self.file.sync();
        #[cfg(planted)]
        let synced = if crate::planted::is_active(crate::planted::Bug::SyncRetried) {
            synced.or_else(|_| self.file.sync())
        } else {
            synced
        };
        synced.map_err(|e| Error::io("cannot sync the segment", &self.path, e))?;
        self.slot_dirty = false;
        self.refused &= self.stated.is_none();
        Ok(())
    }

    /// Writes the next slot, unsynced.
    ///
    /// No slot is written while the other may be unsynced: a crash could then take both.
    pub(crate) fn write_slot(
        &mut self,
        durable: Mark,
        oldest_lsn: u64,
    ) -> std::result::Result<(), Fault> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::FoundSlotTaken) {
            self.found = None;
        }
        if let Some(found) = self.found {
            self.put_found(&found)?;
        }
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::SlotBesideUnsynced) {
            self.slot_dirty = false;
        }
        if self.slot_dirty {
            self.sync().map_err(Fault::Final)?;
        }
        let Some(counter) = self.counter.checked_add(1) else {
            let what = "the counter of the slots has no next value";
            return Err(Fault::Refused(Error::new(ErrorKind::Limit, what).at_path(&self.path)));
        };
        let slot = Slot {
            counter,
            durable_lsn: durable.lsn,
            durable_offset: durable.offset,
            oldest_lsn,
            header: self.header,
        };
        self.put_slot(&slot)?;
        // Only then: an attempt that failed is repeated in the same place, so that the other slot
        // stays as it is.
        self.counter = counter;
        self.stated = Some((durable.lsn, oldest_lsn));
        Ok(())
    }

    /// Writes the next slot and syncs.
    ///
    /// # Durability
    ///
    /// What the slot states.
    pub(crate) fn write_slot_synced(
        &mut self,
        durable: Mark,
        oldest_lsn: u64,
    ) -> std::result::Result<(), Fault> {
        self.write_slot(durable, oldest_lsn)?;
        self.sync().map_err(Fault::Final)
    }

    /// Writes the slot again that the open found: it was read from the cache, and may not be on the
    /// disk. Dropped from the cache first, as a block that a failed sync left there may never reach
    /// it ([`super::open`]).
    fn put_found(&mut self, found: &Slot) -> std::result::Result<(), Fault> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::FoundSlotCached) {
            self.put_slot(found)?;
            self.found = None;
            return Ok(());
        }
        let dropped = self.file.evict(0..u64::MAX);
        dropped.map_err(|e| {
            Fault::Refused(refusal("cannot drop the slots from the cache", &self.path, e))
        })?;
        self.put_slot(found)?;
        self.found = None;
        Ok(())
    }

    fn put_slot(&mut self, slot: &Slot) -> std::result::Result<(), Fault> {
        let offset = Slot::offset_of(slot.index());
        self.slot_dirty = true;
        let written = self.file.write_all_at(&slot.encode(), offset);
        written.map_err(|e| {
            // It may stand there all the same, and nothing may rely on that it does not.
            (self.stated, self.refused) = (None, true);
            Fault::Refused(refusal("cannot write a slot", &self.path, e).at_offset(offset))
        })
    }

    /// Makes a slot durable that states this, unless one is known to: the last step of a close.
    pub(crate) fn state(
        &mut self,
        durable: Mark,
        oldest_lsn: u64,
    ) -> std::result::Result<(), Fault> {
        let found = self.found.map(|found| (found.durable_lsn, found.oldest_lsn));
        if let (Some(slot), Some(stated)) = (self.found, found)
            && stated == (durable.lsn, oldest_lsn)
            && slot.counter > 1
        {
            self.put_found(&slot)?;
            self.sync().map_err(Fault::Final)?;
            self.stated = found;
            return Ok(());
        }
        // A first slot alone would leave the segment bare.
        if self.counter > 1 && self.stated == Some((durable.lsn, oldest_lsn)) {
            return if self.slot_dirty { self.sync().map_err(Fault::Final) } else { Ok(()) };
        }
        self.write_slot_synced(durable, oldest_lsn)
    }
}
