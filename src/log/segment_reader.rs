//! One segment that is being read: where the next frame lies, and the bytes that are held of it.
//!
//! A segment that may be mapped is held whole, and payloads are slices of the map. Of any other one
//! step is held at a time, and payloads are slices of the step: memory is bounded by a step and the
//! largest record, and a payload that is kept keeps its step. Nothing after the end that
//! [`Located`] states is read, so that what is held never changes on the disk.
//!
//! The CRC of every frame that is handed out was computed over the bytes that are handed out. Where
//! a segment lies in the log, and whether damage is worth a second look, is the reader's matter.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use oncelog_format::limits::FRAMES_OFFSET;
use oncelog_format::{Footer, FrameHeader, Place, decode_payload};

use super::backward::Places;
use super::facts::{self, FooterFacts};
use super::maps::MapGuard;
use super::options::RecordKind;
use super::reader::{Located, Record};
use super::remove::InUse;
use super::scan::Invalid;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Io, IoFile, OpenHow};
use crate::lsn::{Lsn, SegmentId};
use crate::told;

/// Bytes that are read at a time from a segment that is not mapped.
const STEP_LEN: u64 = 256 << 10;
/// Bytes that are read first after a jump.
const STEP_LEN_MIN: u64 = 4096;
/// Bytes of a frame header.
const HEADER_BYTES: u64 = 32;
const _: () = assert!(FrameHeader::LEN == 32);

/// A map of a segment, which nobody cuts while any slice of it lives: neither its own log nor
/// another one. The map goes first.
#[derive(Debug)]
struct Mapped {
    bytes: Bytes,
    _in_use: Option<Arc<InUse>>,
    _guard: Arc<MapGuard>,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The segment that is being read, and a position in it.
#[derive(Debug)]
pub(super) struct SegmentReader {
    pub(super) at: Located,
    path: PathBuf,
    held: Piece,
    /// LSN and offset of the next frame.
    lsn: u64,
    offset: u64,
    /// Time of the frame before it; 0 where that was not read.
    time_ms: u64,
    /// LSN after the last batch that was found whole.
    whole: u64,
    /// Frames that are held and were verified.
    verified: Range<u64>,
    pub(super) places: Places,
}

impl SegmentReader {
    /// Opens a segment and stands before its first frame.
    pub(super) fn open(io: &dyn Io, path: PathBuf, at: Located) -> io::Result<Self> {
        // Before anybody asks how long the file is: from here on it stays so.
        let guard = at.maps.as_ref().and_then(|maps| maps.guard(io));
        let file = io.open(&path, OpenHow::Read)?;
        let len = file.len()?;
        let (bytes, end) = (Bytes::new(), len.min(at.end));
        let mut held = Piece { file: Some(file), bytes, from: 0, end, step: STEP_LEN };
        if let Some(guard) = guard
            && let Some(file) = held.file.take()
        {
            match file.map(len) {
                // The map holds the file; whoever reads many segments holds no descriptor for each.
                Ok(bytes) => {
                    let mapped = Mapped { bytes, _in_use: at.in_use.clone(), _guard: guard };
                    held.bytes = Bytes::from_owner(mapped);
                    held.end = len;
                }
                // No address space, too many maps, a file system without: reading needs none.
                Err(e) => {
                    let path = path.to_owned();
                    told::tell(move || {
                        tracing::debug!(path = %path.display(), error = %e, "read without a map");
                    });
                    held.file = Some(file);
                }
            }
        }
        let header = at.header;
        Ok(Self {
            at,
            path,
            held,
            lsn: header.first_lsn,
            offset: FRAMES_OFFSET,
            time_ms: header.base_time_ms,
            whole: 0,
            verified: 0..0,
            places: Places::default(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    #[inline]
    pub(super) fn lsn(&self) -> u64 {
        self.lsn
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.held.file.is_none()
    }

    /// Whether a record may be read from here.
    #[inline]
    pub(super) fn has(&self, lsn: u64) -> bool {
        self.at.header.first_lsn.max(self.at.oldest) <= lsn && lsn <= self.at.last
    }

    /// Reads little at first: what follows a jump may be another one.
    pub(super) fn jump(&mut self) {
        self.held.step = STEP_LEN_MIN;
    }

    /// The same segment, of which more may be read by now. What is held stays: it lies before the
    /// end of then, and does not change.
    pub(super) fn extend(&mut self, at: Located) -> io::Result<()> {
        if let Some(file) = &self.held.file {
            self.held.end = file.len()?.min(at.end);
            self.at = Located { maps: None, ..at };
        } else {
            self.at = at;
        }
        Ok(())
    }

    /// Forgets the bytes that were read, so that they are read again.
    pub(super) fn forget(&mut self) {
        if !self.is_mapped() {
            self.held.bytes = Bytes::new();
        }
        self.verified = 0..0;
    }

    /// Stands before the frame of `lsn`, which lies at `offset`.
    pub(super) fn stand(&mut self, lsn: u64, offset: u64) {
        (self.lsn, self.offset) = (lsn, offset);
        (self.time_ms, self.whole) = (0, 0);
    }

    /// Stands before the record of `lsn`, which lies in this segment.
    pub(super) fn reach(&mut self, lsn: u64) -> Result<()> {
        if self.at.from_first {
            while self.lsn < lsn {
                self.next()?;
            }
        }
        if lsn == self.lsn { Ok(()) } else { self.go_to(lsn) }
    }

    /// The next record, and goes after it. Stays where the frame does not hold, or, where only
    /// whole batches are served, a frame after it of the same batch.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Record> {
        if self.at.judged && self.lsn >= self.whole {
            self.whole = self.behind_batch()?;
        }
        let (lsn, offset) = (self.lsn, self.offset);
        let header = self.header(lsn, offset, None)?;
        self.check_time(lsn, offset, self.time_ms, &header)?;
        let record = self.record(&header, offset)?;
        self.lsn = lsn.saturating_add(1);
        self.offset = offset.saturating_add(header.frame_len());
        self.time_ms = header.time_ms;
        Ok(record)
    }

    /// The record of the frame at `offset` with this header; the position stays.
    #[inline]
    pub(super) fn record(&mut self, header: &FrameHeader, offset: u64) -> Result<Record> {
        let len = self.payload(header, offset)?;
        let begin = FrameHeader::LEN;
        Ok(Record {
            lsn: Lsn::at_least_first(header.lsn),
            time_ms: header.time_ms,
            kind: RecordKind::of_frame(header.kind),
            payload: self.held.slice(offset, begin..begin.saturating_add(len)),
            segment: SegmentId::at_least_first(self.at.header.number),
            offset,
            frame_bytes: header.frame_len(),
            batch_end: header.batch_end,
            durable: header.lsn <= self.at.durable,
        })
    }

    /// The LSN after the batch of the next frame, all of whose frames are valid.
    fn behind_batch(&mut self) -> Result<u64> {
        let (first, begin) = (self.lsn, self.offset);
        let (mut lsn, mut offset, mut time_ms) = (first, begin, self.time_ms);
        loop {
            if lsn > self.at.last {
                return Err(self.corrupt(first, offset, &"the batch has no last frame"));
            }
            self.hold_batch(begin, offset.saturating_add(HEADER_BYTES))?;
            let header = self.header(lsn, offset, None).map_err(|e| of_batch(e, first))?;
            self.check_time(first, offset, time_ms, &header)?;
            let end = offset.saturating_add(header.frame_len());
            self.hold_batch(begin, end)?;
            self.payload(&header, offset).map_err(|e| of_batch(e, first))?;
            (lsn, offset, time_ms) = (lsn.saturating_add(1), end, header.time_ms);
            if header.batch_end {
                return Ok(lsn);
            }
        }
    }

    /// Holds a batch up to `to` from its begin on, where a step holds both.
    fn hold_batch(&mut self, begin: u64, to: u64) -> Result<()> {
        if to.saturating_sub(begin) > STEP_LEN {
            return Ok(());
        }
        self.hold(begin, to, None).map_err(|e| self.failed(self.lsn, begin, e))
    }

    /// The header of the frame at `offset`, which must be that of `lsn`. What has to be read for it
    /// goes up to `stop` where that is near.
    #[inline]
    pub(super) fn header(
        &mut self,
        lsn: u64,
        offset: u64,
        stop: Option<u64>,
    ) -> Result<FrameHeader> {
        let place = Place { salt: self.at.header.salt, offset };
        let end = offset.saturating_add(HEADER_BYTES);
        self.hold(offset, end, stop).map_err(|e| self.failed(lsn, offset, e))?;
        let room = self.held.end.saturating_sub(offset);
        let header = FrameHeader::decode(self.held.from(offset), place, room);
        let header = header.map_err(|e| self.corrupt(lsn, offset, &Invalid::Bytes(e)))?;
        if header.lsn == lsn {
            return Ok(header);
        }
        let other = Invalid::Lsn { expected: lsn, found: header.lsn };
        Err(self.corrupt(lsn, offset, &other))
    }

    /// The length of the payload of the frame at `offset` with this header, verified.
    #[inline]
    fn payload(&mut self, header: &FrameHeader, offset: u64) -> Result<usize> {
        let place = Place { salt: self.at.header.salt, offset };
        // Within the end, as the header was decoded with its room.
        let end = offset.saturating_add(header.frame_len());
        self.hold(offset, end, None).map_err(|e| self.failed(header.lsn, offset, e))?;
        if self.verified.contains(&offset) {
            return Ok(usize::try_from(header.len).unwrap_or(usize::MAX));
        }
        match decode_payload(header, self.held.from(offset), place) {
            Ok(payload) => {
                let len = payload.len();
                let begin = if self.verified.end == offset { self.verified.start } else { offset };
                self.verified = begin..end;
                Ok(len)
            }
            Err(e) => Err(self.corrupt(header.lsn, offset, &Invalid::Bytes(e))),
        }
    }

    fn check_time(&self, lsn: u64, offset: u64, before: u64, header: &FrameHeader) -> Result<()> {
        if header.time_ms >= before {
            return Ok(());
        }
        Err(self.corrupt(lsn, offset, &Invalid::Time { before, found: header.time_ms }))
    }

    /// Holds the bytes from `from` to `to`, and up to a step with them: what ends at `stop`, where
    /// that is near, else what follows.
    #[inline]
    fn hold(&mut self, from: u64, to: u64, stop: Option<u64>) -> io::Result<()> {
        if self.held.has(from, to) { Ok(()) } else { self.read(from, to, stop) }
    }

    fn read(&mut self, from: u64, to: u64, stop: Option<u64>) -> io::Result<()> {
        let step = self.held.step;
        self.held.step = step.saturating_mul(2).min(STEP_LEN);
        let behind = (from, to.max(from.saturating_add(step)));
        let before = stop.map(|stop| {
            let stop = stop.max(to);
            (stop.saturating_sub(step).max(FRAMES_OFFSET), stop)
        });
        let (begin, end) = before.filter(|&(begin, _)| begin <= from).unwrap_or(behind);
        self.verified = 0..0;
        self.held.read(begin, end)
    }

    /// The sparse index of the footer, where the segment is sealed and has one.
    pub(super) fn footer(&self) -> Option<Footer> {
        if !self.at.sealed {
            return None;
        }
        let Some(file) = &self.held.file else {
            return footer_in(&self.held.bytes, self.at.header.salt);
        };
        let size = file.len().ok()?;
        match facts::footer_of(&**file, &self.at.header, size) {
            Ok(FooterFacts::Valid(footer)) => Some(footer),
            _ => None,
        }
    }

    fn failed(&self, lsn: u64, offset: u64, e: io::Error) -> Error {
        Error::io("cannot read the segment", &self.path, e).at_offset(offset).at_lsn(lsn)
    }

    fn corrupt(&self, lsn: u64, offset: u64, why: &dyn std::fmt::Display) -> Error {
        let what = format!("a durable record is missing or damaged: {why}");
        Error::new(ErrorKind::Corrupt, what).at_path(&self.path).at_offset(offset).at_lsn(lsn)
    }
}

/// Of damage within a batch, the first record that is not kept.
fn of_batch(error: Error, first: u64) -> Error {
    if error.kind() == ErrorKind::Corrupt { error.at_lsn(first) } else { error }
}

/// The footer that ends the bytes of a segment. It is a cache, so that damage is like absence.
fn footer_in(bytes: &[u8], salt: u64) -> Option<Footer> {
    let len = usize::try_from(Footer::len_from_tail(bytes)?).ok()?;
    let begin = bytes.len().checked_sub(len)?;
    let place = Place { salt, offset: u64::try_from(begin).ok()? };
    Footer::decode(bytes.get(begin..)?, place).ok()
}

/// Bytes of a segment that are in memory.
#[derive(Debug)]
struct Piece {
    /// What the bytes are read from; `None` where they are all there is, mapped.
    file: Option<Arc<dyn IoFile>>,
    bytes: Bytes,
    /// Offset of the first of them.
    from: u64,
    /// Nothing after this is read.
    end: u64,
    /// Bytes that are read at a time.
    step: u64,
}

impl Piece {
    /// Whether the bytes are held, those that there are.
    #[inline]
    fn has(&self, from: u64, to: u64) -> bool {
        let len = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        self.from <= from && to.min(self.end) <= self.from.saturating_add(len)
    }

    /// What is held from an offset on.
    #[inline]
    fn from(&self, offset: u64) -> &[u8] {
        self.bytes.get(self.index_of(offset)..).unwrap_or_default()
    }

    #[inline]
    fn slice(&self, offset: u64, range: Range<usize>) -> Bytes {
        let begin = self.index_of(offset);
        let index = |at: usize| begin.saturating_add(at).min(self.bytes.len());
        self.bytes.slice(index(range.start)..index(range.end))
    }

    #[inline]
    fn index_of(&self, offset: u64) -> usize {
        usize::try_from(offset.saturating_sub(self.from)).unwrap_or(usize::MAX)
    }

    /// Reads a range anew; less than that at the end.
    fn read(&mut self, from: u64, to: u64) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let len = usize::try_from(to.min(self.end).saturating_sub(from)).unwrap_or(usize::MAX);
        // The memory of the step before, unless a payload keeps it.
        let before = std::mem::take(&mut self.bytes).try_into_mut();
        let mut bytes = before.unwrap_or_else(|_| BytesMut::new());
        bytes.resize(len, 0);
        let read = file.read_full_at(&mut bytes, from)?;
        bytes.truncate(read);
        (self.bytes, self.from) = (bytes.freeze(), from);
        Ok(())
    }
}
