//! Reading records in order, from any LSN on.
//!
//! A reader asks a [`Source`] where a record lies and how far it may go, and never reads above.
//! Sealed segments of the writer's own process are mapped, and payloads are slices of the map; all
//! else is read in steps, and payloads are slices of a step. The CRC of every frame that is read is
//! verified; the sparse index of a footer spares the frames before the first one that is wanted.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use oncelog_format::limits::FRAMES_OFFSET;
use oncelog_format::{FrameHeader, Place, SegmentHeader, decode_frame};

use super::facts::{self, FooterFacts};
use super::remove::InUse;
use super::scan::Invalid;
use super::writer::{Shared, closed};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Io, IoFile, OpenHow};
use crate::lsn::{Lsn, SegmentId};

/// Bytes that are read at a time from a segment that is not mapped.
const STEP_LEN: usize = 256 << 10;

/// A record, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Its LSN.
    pub lsn: Lsn,
    /// Its time in milliseconds since 1970-01-01 UTC, never below that of the record before.
    pub time_ms: u64,
    /// Its kind (SPEC 7).
    pub kind: u8,
    /// What was appended.
    pub payload: Bytes,
    /// Number of the segment.
    pub segment: SegmentId,
    /// Offset of the frame in the segment, in bytes.
    pub offset: u64,
    /// Size of the frame with header and padding, in bytes.
    pub frame_bytes: u64,
    /// Whether it is the last one of its batch.
    pub batch_end: bool,
    /// Whether it is known to survive a power loss.
    pub durable: bool,
}

/// Where records are found.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    /// The segment that holds `lsn`; `None` when there is no such record yet.
    ///
    /// # Errors
    ///
    /// `Trimmed` below the oldest LSN.
    fn locate(&self, lsn: u64) -> Result<Option<Located>>;

    /// Asked where a record cannot be read: `Trimmed` where it was trimmed meanwhile, and its file
    /// cut under the reader.
    fn check_trimmed(&self, lsn: u64) -> Result<()>;

    /// The files.
    fn io(&self) -> &dyn Io;
}

/// A segment, and how far it may be read.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    /// Last LSN that may be read from it.
    pub(crate) last: u64,
    /// Last LSN known to be durable.
    pub(crate) durable: u64,
    /// A frame at or below the wanted one, where an index knows one: LSN and offset.
    pub(crate) near: Option<(u64, u64)>,
    /// It has a successor, so that a footer may end it.
    pub(crate) sealed: bool,
    /// The segment never changes again and may be mapped.
    pub(crate) map: bool,
    /// Keeps the file from being cut, where its writer is in this process.
    pub(crate) in_use: Option<Arc<InUse>>,
}

/// A map of a segment, which is not cut while any slice of it lives.
#[derive(Debug)]
struct Mapped {
    bytes: Bytes,
    _in_use: Option<Arc<InUse>>,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads records in order.
#[derive(Debug)]
pub struct Reader {
    source: Arc<dyn Source>,
    next: u64,
    open: Option<Open>,
}

/// The segment that is being read.
#[derive(Debug)]
struct Open {
    at: Located,
    file: Arc<dyn IoFile>,
    file_len: u64,
    /// LSN and offset of the next frame.
    lsn: u64,
    offset: u64,
    /// Bytes of the file from `step_offset` on, as they were when `at` was current.
    step: Bytes,
    step_offset: u64,
    mapped: bool,
}

impl Reader {
    pub(crate) fn new(source: Arc<dyn Source>, from: u64) -> Self {
        Self { source, next: from, open: None }
    }

    /// The next record; `None` when there is none yet, and a later call may find one.
    ///
    /// # Errors
    ///
    /// `Trimmed` when retention has dropped the record, with the oldest LSN; `Corrupt` when it is
    /// damaged, with file, offset and LSN; `Closed` after the log was closed; `Io` when the system
    /// refuses.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends for good; this does not")]
    pub fn next(&mut self) -> Result<Option<Record>> {
        let lsn = self.next;
        let inside = |open: &Open| open.at.header.first_lsn <= lsn && lsn <= open.at.last;
        if !self.open.as_ref().is_some_and(inside) {
            let Some(at) = self.source.locate(lsn)? else { return Ok(None) };
            self.enter(at)?;
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        loop {
            let record = match open.read() {
                Ok(record) => record,
                Err(e) => {
                    self.source.check_trimmed(open.lsn)?;
                    return Err(e);
                }
            };
            if record.lsn.get() == lsn {
                self.next = lsn.saturating_add(1);
                return Ok(Some(record));
            }
        }
    }

    /// The LSN that the next call looks for.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        Lsn::at_least_first(self.next)
    }

    fn enter(&mut self, at: Located) -> Result<()> {
        if let Some(open) = &mut self.open
            && open.at.header == at.header
            && open.lsn <= self.next
        {
            // The same tail, which has grown: what was read before may lack it.
            if !open.mapped {
                open.step = Bytes::new();
                open.file_len = len_of(&*open.file, &at)?;
            }
            open.at = at;
            return Ok(());
        }
        self.open = None;
        let io = self.source.io();
        let file = match io.open(&at.path, OpenHow::Read) {
            Ok(file) => file,
            Err(e) => {
                // A trim may have been faster; then the source says so.
                self.source.locate(self.next)?;
                return Err(Error::io("cannot open the segment", &at.path, e));
            }
        };
        let file_len = len_of(&*file, &at)?;
        let (step, mapped) = if at.map {
            let map = file.map(file_len);
            let bytes = map.map_err(|e| Error::io("cannot map the segment", &at.path, e))?;
            (Bytes::from_owner(Mapped { bytes, _in_use: at.in_use.clone() }), true)
        } else {
            (Bytes::new(), false)
        };
        let start = (at.header.first_lsn, FRAMES_OFFSET);
        let near = at.near.filter(|near| near.0 <= self.next);
        let (lsn, offset) = near.unwrap_or(start);
        let step_offset = 0;
        let mut open = Open { at, file, file_len, lsn, offset, step, step_offset, mapped };
        if open.at.sealed && open.lsn < self.next {
            open.skip_to(self.next);
        }
        self.open = Some(open);
        Ok(())
    }
}

fn len_of(file: &dyn IoFile, at: &Located) -> Result<u64> {
    file.len().map_err(|e| Error::io("cannot read the segment", &at.path, e))
}

impl Open {
    /// Goes to the last frame at or below `lsn` that the footer knows. A footer is a cache and no
    /// proof: where there is none, or the frame does not hold, all frames are read instead.
    fn skip_to(&mut self, lsn: u64) {
        let footer = facts::footer_of(&*self.file, &self.at.header, self.file_len);
        let Ok(FooterFacts::Valid(footer)) = footer else { return };
        let behind = footer.entries.partition_point(|entry| entry.lsn <= lsn);
        let Some(entry) = behind.checked_sub(1).and_then(|i| footer.entries.get(i)) else { return };
        let start = (self.lsn, self.offset);
        let near = (entry.lsn, entry.offset);
        (self.lsn, self.offset) = near;
        (self.lsn, self.offset) = if self.read().is_ok() { near } else { start };
    }

    /// The frame at `offset`, which must be that of `lsn`.
    fn read(&mut self) -> Result<Record> {
        let place = Place { salt: self.at.header.salt, offset: self.offset };
        let room = self.file_len.saturating_sub(self.offset);
        let header = self.bytes(FrameHeader::LEN)?;
        let header = FrameHeader::decode(&header, place, room);
        let header = header.map_err(|e| self.corrupt(Invalid::Bytes(e)))?;
        if header.lsn != self.lsn {
            return Err(self.corrupt(Invalid::Lsn { expected: self.lsn, found: header.lsn }));
        }
        // Within the file, as the header was decoded with its room.
        let frame = self.bytes(usize::try_from(header.frame_len()).unwrap_or(usize::MAX))?;
        if let Err(e) = decode_frame(&frame, place) {
            return Err(self.corrupt(Invalid::Bytes(e)));
        }
        let len = usize::try_from(header.len).unwrap_or(usize::MAX);
        let record = Record {
            lsn: Lsn::at_least_first(header.lsn),
            time_ms: header.time_ms,
            kind: header.kind,
            payload: frame.slice(FrameHeader::LEN..FrameHeader::LEN.saturating_add(len)),
            segment: SegmentId::at_least_first(self.at.header.number),
            offset: self.offset,
            frame_bytes: header.frame_len(),
            batch_end: header.batch_end,
            durable: header.lsn <= self.at.durable,
        };
        self.lsn = self.lsn.saturating_add(1);
        self.offset = self.offset.saturating_add(header.frame_len());
        Ok(record)
    }

    /// `want` bytes from `offset` on, less only at the end of the file.
    fn bytes(&mut self, want: usize) -> Result<Bytes> {
        if let Some(bytes) = self.held(want) {
            return Ok(bytes);
        }
        let left = usize::try_from(self.file_len.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        if !self.mapped {
            let mut step = vec![0; want.max(STEP_LEN).min(left)];
            let read = self.file.read_full_at(&mut step, self.offset).map_err(|e| {
                Error::io("cannot read the segment", &self.at.path, e)
                    .at_offset(self.offset)
                    .at_lsn(self.lsn)
            })?;
            step.truncate(read);
            (self.step, self.step_offset) = (Bytes::from(step), self.offset);
        }
        let from = usize::try_from(self.offset.saturating_sub(self.step_offset));
        let from = from.unwrap_or(usize::MAX).min(self.step.len());
        let end = from.saturating_add(want).min(self.step.len());
        Ok(self.step.slice(from..end))
    }

    fn held(&self, want: usize) -> Option<Bytes> {
        let from = usize::try_from(self.offset.checked_sub(self.step_offset)?).ok()?;
        let end = from.checked_add(want).filter(|&end| end <= self.step.len())?;
        Some(self.step.slice(from..end))
    }

    fn corrupt(&self, invalid: Invalid) -> Error {
        let what = format!("a durable record is damaged: {invalid}");
        Error::new(ErrorKind::Corrupt, what)
            .at_path(&self.at.path)
            .at_offset(self.offset)
            .at_lsn(self.lsn)
    }
}

impl Source for Shared {
    fn locate(&self, lsn: u64) -> Result<Option<Located>> {
        let gate = self.gate();
        if gate.stop {
            return Err(closed());
        }
        if lsn < gate.oldest {
            return Err(trimmed(gate.oldest));
        }
        if lsn > gate.durable.lsn {
            return Ok(None);
        }
        let behind = gate.segments.partition_point(|segment| segment.header.first_lsn <= lsn);
        let Some(segment) = behind.checked_sub(1).and_then(|i| gate.segments.get(i)) else {
            return Err(trimmed(gate.oldest));
        };
        let next = gate.segments.get(behind).map(|next| next.header.first_lsn);
        let entries = if next.is_none() { &*gate.tally.entries } else { &[] };
        let entry = entries.partition_point(|entry| entry.lsn <= lsn).checked_sub(1);
        let near = entry.and_then(|i| entries.get(i)).map(|entry| (entry.lsn, entry.offset));
        Ok(Some(Located {
            path: segment.path.clone(),
            header: segment.header,
            last: next.map_or(gate.durable.lsn, |next| next.saturating_sub(1)),
            durable: gate.durable.lsn,
            near,
            sealed: next.is_some(),
            map: next.is_some(),
            in_use: Some(Arc::clone(&segment.in_use)),
        }))
    }

    fn check_trimmed(&self, lsn: u64) -> Result<()> {
        let oldest = self.gate().oldest;
        if lsn < oldest { Err(trimmed(oldest)) } else { Ok(()) }
    }

    fn io(&self) -> &dyn Io {
        &*self.io
    }
}

pub(crate) fn trimmed(oldest: u64) -> Error {
    Error::new(ErrorKind::Trimmed, "the records were dropped by retention; the oldest left")
        .at_lsn(oldest)
}
