//! Spares: files prepared ahead that become segments at a roll (SPEC section 10).
//!
//! A spare holds nothing that counts until it has a segment's name. Whatever happens to it before
//! is harmless: a failed write or sync of a spare gives it up and poisons nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog_format::limits::FRAMES_OFFSET;
use oncelog_format::{SegmentHeader, Slot, segment_name};

use super::dir::{Fault, NameSync, make_anew, refusal};
use super::facts::SPARE_SUFFIX;
use crate::error::{Error, Result, is_full};
use crate::io::{Io, IoFile};

/// Smallest and largest bytes that are filled at a time, each a write and a sync: large enough that
/// the sync is a small part of it, small enough that whoever waits for one hardly notices.
const WINDOW_BYTES_MIN: u64 = 16 << 10;
const WINDOW_BYTES_MAX: u64 = 1 << 20;
/// Zeros that one write takes.
const ZEROS_LEN: usize = 256 << 10;
static ZEROS: [u8; ZEROS_LEN] = [0; ZEROS_LEN];

/// What file systems hand out at once: a window begins with one, so that none holds a frame too.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Bytes of a window of a segment of so many bytes: about a quarter of it, within the bounds, in
/// whole blocks.
pub(crate) fn window_bytes(size: u64) -> u64 {
    let quarter = (size / 4).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
    quarter.next_multiple_of(BLOCK_BYTES)
}

/// The end of the window that begins at, or holds, an offset.
pub(crate) fn window_end(offset: u64, size: u64) -> u64 {
    let window = window_bytes(size);
    let begin = offset.saturating_sub(offset.checked_rem(window).unwrap_or(0));
    begin.saturating_add(window).min(size)
}

/// Writes zeros from one offset to another.
pub(crate) fn write_zeros(file: &dyn IoFile, from: u64, upto: u64) -> io::Result<()> {
    let mut at = from;
    while at < upto {
        let left = usize::try_from(upto.saturating_sub(at)).unwrap_or(usize::MAX);
        let zeros = ZEROS.get(..left).unwrap_or(&ZEROS);
        file.write_all_at(zeros, at)?;
        at = at.saturating_add(u64::try_from(zeros.len()).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// Takes the blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// Every block, at once, where the file system can.
    Blocks,
    /// None: the file has its length alone.
    Length,
}

impl Reserve {
    /// Says whether the file has its blocks.
    fn extend(self, file: &dyn IoFile, size: u64) -> io::Result<bool> {
        if self == Self::Blocks {
            match file.allocate(size) {
                // Not by zeros: who waits for a roll does not wait for those of a whole segment.
                Err(e) if e.kind() == io::ErrorKind::Unsupported => {}
                reserved => return reserved.map(|()| true),
            }
        }
        file.set_len(size).map(|()| false)
    }
}

/// A prepared file that is not yet a segment.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(super) file: Arc<dyn IoFile>,
    pub(super) path: PathBuf,
    pub(crate) size: u64,
    /// Zeros up to here were written and synced.
    pub(crate) filled: u64,
    /// Its blocks were reserved, or written.
    pub(crate) has_blocks: bool,
}

impl Spare {
    /// Makes a spare for segment `number`, of `size` bytes.
    ///
    /// # Errors
    ///
    /// `StoreFull` or `Io`; nothing is left behind where that is possible.
    pub(crate) fn make(
        io: &dyn Io,
        dir: &Path,
        number: u64,
        size: u64,
        reserve: Reserve,
    ) -> Result<Self> {
        Self::make_at(io, dir.join(format!("{number:010}{SPARE_SUFFIX}")), size, reserve)
    }

    /// Makes a spare of this name.
    ///
    /// # Errors
    ///
    /// As [`Spare::make`].
    pub(super) fn make_at(io: &dyn Io, path: PathBuf, size: u64, reserve: Reserve) -> Result<Self> {
        let file = make_anew(io, &path);
        let file = file.map_err(|e| refusal("cannot make a spare segment", &path, e))?;
        let mut spare = Self { file, path, size, filled: 0, has_blocks: false };
        match reserve.extend(&*spare.file, size) {
            Ok(has_blocks) => {
                spare.has_blocks = has_blocks;
                Ok(spare)
            }
            Err(e) => {
                let error = refusal("cannot reserve a segment", &spare.path, e);
                spare.abandon(io);
                Err(error)
            }
        }
    }

    /// Makes it larger. It stays what it was when that is refused.
    ///
    /// # Errors
    ///
    /// `StoreFull` or `Io`.
    pub(crate) fn grow(&mut self, size: u64, reserve: Reserve) -> Result<()> {
        let grown = reserve.extend(&*self.file, size);
        let grown = grown.map_err(|e| refusal("cannot reserve a segment", &self.path, e));
        (self.has_blocks, self.size) = (grown?, size);
        Ok(())
    }

    /// Fills the next window: writes zeros, then syncs.
    ///
    /// # Errors
    ///
    /// What the system says. The spare is to be given up then: its file would not tell of a failed
    /// sync a second time.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let upto = window_end(self.filled, self.size);
        let filled = write_zeros(&*self.file, self.filled, upto).and_then(|()| self.file.sync());
        filled.map_err(|e| refusal("cannot fill a spare segment", &self.path, e))?;
        self.filled = upto;
        Ok(())
    }

    /// SPEC 10, roll, steps 6 to 8: header and first slot, sync, name, sync of the directory.
    pub(crate) fn enter(
        self,
        io: &dyn Io,
        names: NameSync<'_>,
        header: &SegmentHeader,
        oldest_lsn: u64,
    ) -> std::result::Result<NewSegment, Fault> {
        let slot = Slot {
            counter: 1,
            durable_lsn: header.first_lsn.saturating_sub(1),
            durable_offset: FRAMES_OFFSET,
            oldest_lsn,
            header: *header,
        };
        let written = self
            .file
            .write_all_at(&header.encode(), 0)
            .and_then(|()| self.file.write_all_at(&slot.encode(), Slot::offset_of(slot.index())));
        if let Err(e) = written {
            let error = refusal("cannot write the segment header", &self.path, e);
            self.abandon(io);
            return Err(Fault::Refused(error));
        }
        if let Err(e) = self.file.sync() {
            return Err(Fault::Final(Error::io("cannot sync the spare segment", &self.path, e)));
        }
        let path = names.dir().join(segment_name(header.number, header.first_lsn));
        if let Err(e) = io.rename(&self.path, &path) {
            let full = is_full(&e);
            let error = refusal("cannot name the segment", &path, e);
            if full {
                self.abandon(io);
                return Err(Fault::Refused(error));
            }
            return Err(Fault::Final(error));
        }
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::NoDirSync) {
            return Ok(self.named(path, header));
        }
        names.sync().map_err(Fault::Final)?;
        Ok(self.named(path, header))
    }

    fn named(self, path: PathBuf, header: &SegmentHeader) -> NewSegment {
        NewSegment { file: self.file, path, header: *header, size: self.size, filled: self.filled }
    }

    /// Gives the spare up; one that stays is removed by the next open, which tells of one that it
    /// cannot remove either.
    pub(crate) fn abandon(self, io: &dyn Io) {
        drop(io.remove(&self.path));
    }
}

/// A segment without a frame, durable with its name.
#[derive(Debug)]
pub(crate) struct NewSegment {
    pub(crate) file: Arc<dyn IoFile>,
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    pub(crate) size: u64,
    /// Its bytes up to here were filled.
    pub(crate) filled: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_quarters_within_bounds_and_end_with_the_segment() {
        #[track_caller]
        fn check(offset: u64, size: u64, end: u64) {
            assert_eq!(window_end(offset, size), end);
        }
        check(0, 65_536, 16_384);
        check(12_288, 65_536, 16_384);
        check(16_384, 65_536, 32_768);
        check(49_152, 65_536, 65_536);
        check(0, 20_000, 16_384);
        check(16_384, 20_000, 20_000);
        check(0, 1 << 20, 256 << 10);
        check(0, 64 << 20, 1 << 20);
        check((64 << 20) - 1, 64 << 20, 64 << 20);
    }
}
