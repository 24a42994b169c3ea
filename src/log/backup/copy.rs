//! One segment of a backup: its frames, each verified on the way, between a header and a footer of
//! its own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog_format::limits::{ALIGNMENT, FRAMES_OFFSET};
use oncelog_format::{Footer, Place, SegmentHeader, Slot};

use super::super::dir::refusal;
use super::super::reader::Source;
use super::super::scan::{Invalid, Tally, Window, frame_at};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoFile, OpenHow};

/// Bytes that are written at a time.
const WRITE_LEN: usize = 1 << 20;

/// One segment of the copy.
#[derive(Debug)]
pub(super) struct SegmentCopy {
    /// The segment that is copied.
    from: PathBuf,
    file: Arc<dyn IoFile>,
    path: PathBuf,
    header: SegmentHeader,
    /// Where the bytes go that wait.
    at: u64,
    bytes: Vec<u8>,
}

impl SegmentCopy {
    /// A copy of `from` into a new file of this name.
    pub(super) fn new(
        from: PathBuf,
        (path, file): (PathBuf, Arc<dyn IoFile>),
        header: SegmentHeader,
    ) -> Self {
        Self { from, file, path, header, at: 0, bytes: Vec::new() }
    }

    /// Bytes that were written.
    pub(super) fn written(&self) -> u64 {
        self.at
    }

    /// Writes header and first slot.
    ///
    /// # Durability
    ///
    /// Both, but not the name.
    pub(super) fn begin(&mut self, oldest: u64) -> Result<Slot> {
        let slot = Slot {
            counter: 1,
            durable_lsn: self.header.first_lsn.saturating_sub(1),
            durable_offset: FRAMES_OFFSET,
            oldest_lsn: oldest,
            header: self.header,
        };
        self.put(&self.header.encode())?;
        self.put_at(Slot::offset_of(slot.index()), &slot.encode())?;
        self.put_at(FRAMES_OFFSET, &[])?;
        self.flush()?;
        self.sync()?;
        Ok(slot)
    }

    /// Copies the frames up to `last`, and seals them. The slots of the tail vouch for the end.
    pub(super) fn segment(
        &mut self,
        source: &dyn Source,
        last: u64,
        first: Slot,
        is_tail: bool,
    ) -> Result<()> {
        let tally = self.frames(source, last)?;
        let end = self.end();
        let place = Place { salt: self.header.salt, offset: end.next_multiple_of(ALIGNMENT) };
        let footer = Footer {
            offset: place.offset,
            last_lsn: last,
            end,
            durable_lsn: last,
            record_count: tally.records(),
            payload_bytes: tally.payload_bytes,
            time_first_ms: tally.time_first_ms,
            time_last_ms: tally.time_last_ms,
            entries: tally.entries,
        };
        self.put(&footer.encode(place.salt))?;
        self.flush()?;
        self.sync()?;
        if is_tail {
            // Behind the sync of what it states, as at a close.
            let slot = Slot { counter: 2, durable_lsn: last, durable_offset: end, ..first };
            let written = self.file.write_all_at(&slot.encode(), Slot::offset_of(slot.index()));
            written.map_err(|e| self.refused(e))?;
            self.sync()?;
        }
        Ok(())
    }

    fn frames(&mut self, source: &dyn Source, last: u64) -> Result<Tally> {
        let path = self.from.clone();
        let failed = |e| Error::io("cannot read the segment", &path, e);
        let mut tally = Tally::new(self.header.base_time_ms);
        if last < self.header.first_lsn {
            return Ok(tally);
        }
        let file = match source.io().open(&path, OpenHow::Read) {
            Ok(file) => file,
            Err(e) => {
                source.confirm(self.header.first_lsn)?;
                return Err(failed(e));
            }
        };
        let mut window = Window::new(&*file).map_err(failed)?;
        let (mut time_ms, mut begins) = (self.header.base_time_ms, true);
        for lsn in self.header.first_lsn..=last {
            let offset = self.end();
            let place = Place { salt: self.header.salt, offset };
            let header = match frame_at(&mut window, place, lsn, time_ms).map_err(failed)? {
                Ok(header) if lsn < last || header.batch_end => header,
                found => {
                    source.confirm(lsn)?;
                    return Err(damaged(&path, lsn, offset, found.err()));
                }
            };
            tally.count(&header, offset, begins);
            (time_ms, begins) = (header.time_ms, header.batch_end);
            let len = usize::try_from(header.frame_len()).unwrap_or(usize::MAX);
            self.put(window.at(offset, len).map_err(failed)?)?;
        }
        Ok(tally)
    }

    /// Offset after everything that was put.
    fn end(&self) -> u64 {
        self.at.saturating_add(u64::try_from(self.bytes.len()).unwrap_or(u64::MAX))
    }

    /// Zeros up to an offset, then bytes.
    fn put_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let gap = usize::try_from(offset.saturating_sub(self.end())).unwrap_or(usize::MAX);
        self.bytes.resize(self.bytes.len().saturating_add(gap), 0);
        self.put(bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() < WRITE_LEN { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<()> {
        let written = self.file.write_all_at(&self.bytes, self.at);
        written.map_err(|e| self.refused(e))?;
        self.at = self.end();
        self.bytes.clear();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|e| Error::io("cannot sync the segment", &self.path, e))
    }

    fn refused(&self, e: io::Error) -> Error {
        refusal("cannot write the segment", &self.path, e)
    }
}

fn damaged(path: &Path, lsn: u64, offset: u64, invalid: Option<Invalid>) -> Error {
    let why = invalid.map_or_else(|| "the batch has no last frame".to_owned(), |i| i.to_string());
    let what = format!("a durable record is missing or damaged: {why}");
    Error::new(ErrorKind::Corrupt, what).at_path(path).at_offset(offset).at_lsn(lsn)
}
