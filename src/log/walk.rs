//! The frames of one segment with their payloads, one after the other.
//!
//! Nothing here decides torn or corrupt: a walk says where frames stop and why. Memory is one
//! window, or one frame where a frame is longer; its length was checked against the file before.

use std::io;
use std::sync::Arc;

use oncelog_format::limits::{ALIGNMENT, FRAMES_OFFSET};
use oncelog_format::{FrameHeader, Place, SegmentHeader, decode_frame};

use super::scan::Invalid;
use crate::io::IoFile;

/// Bytes that one read asks for.
const WINDOW_BYTES: usize = 256 << 10;

/// A valid frame; its payload stands in the walk's window.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) offset: u64,
    pub(crate) payload: &'a [u8],
}

/// Why there is no frame where the next one was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) offset: u64,
    /// The LSN that was expected there.
    pub(crate) lsn: u64,
    pub(crate) invalid: Invalid,
    /// Where the next frame begins, when the header is valid and the next in order although the
    /// frame is not.
    pub(crate) next_offset: Option<u64>,
}

/// What stands at the next place.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Frame(Frame<'a>),
    Fault(Fault),
}

/// A position in the frames of a segment.
#[derive(Debug)]
pub(crate) struct Walk {
    window: Window,
    segment: SegmentHeader,
    file_bytes: u64,
    offset: u64,
    lsn: u64,
    time_ms: u64,
}

impl Walk {
    /// Begins at the first frame; bytes behind `file_bytes` are not looked at.
    pub(crate) fn new(file: Arc<dyn IoFile>, segment: &SegmentHeader, file_bytes: u64) -> Self {
        Self {
            window: Window { file, begin: 0, buffer: Vec::new() },
            segment: *segment,
            file_bytes,
            offset: FRAMES_OFFSET,
            lsn: segment.first_lsn,
            time_ms: segment.base_time_ms,
        }
    }

    /// The LSN of the next frame.
    pub(crate) fn lsn(&self) -> u64 {
        self.lsn
    }

    /// The next frame, or why there is none; after a fault the walk stays where it is.
    pub(crate) fn step(&mut self) -> io::Result<Step<'_>> {
        let (offset, lsn) = (self.offset, self.lsn);
        let place = Place { salt: self.segment.salt, offset };
        let room = self.file_bytes.saturating_sub(offset);
        let fault =
            |invalid, next_offset| Ok(Step::Fault(Fault { offset, lsn, invalid, next_offset }));
        let head = self.window.bytes(offset, room.min(HEADER_LEN))?;
        let header = match FrameHeader::decode(head, place, room) {
            Ok(header) => header,
            Err(error) => return fault(Invalid::Bytes(error), None),
        };
        if header.lsn != lsn {
            return fault(Invalid::Lsn { expected: lsn, found: header.lsn }, None);
        }
        let next_offset = offset.saturating_add(header.frame_len());
        if header.time_ms < self.time_ms {
            let invalid = Invalid::Time { before: self.time_ms, found: header.time_ms };
            return fault(invalid, Some(next_offset));
        }
        let bytes = self.window.bytes(offset, header.frame_len())?;
        match decode_frame(bytes, place) {
            Ok((header, payload)) => {
                (self.offset, self.lsn) = (next_offset, lsn.saturating_add(1));
                self.time_ms = header.time_ms;
                Ok(Step::Frame(Frame { header, offset, payload }))
            }
            Err(error) => fault(Invalid::Bytes(error), Some(next_offset)),
        }
    }

    /// Goes on behind a fault: where its header says, else at the next valid frame of a later
    /// record. False when there is none; looks at every place behind the fault once.
    pub(crate) fn pass(&mut self, fault: &Fault) -> io::Result<bool> {
        if let Some(next_offset) = fault.next_offset {
            (self.offset, self.lsn) = (next_offset, fault.lsn.saturating_add(1));
            return Ok(true);
        }
        let mut offset = fault.offset.saturating_add(ALIGNMENT);
        while offset < self.file_bytes {
            if let Some(header) = self.frame_at(offset, fault.lsn)? {
                (self.offset, self.lsn) = (offset, header.lsn);
                return Ok(true);
            }
            offset = offset.saturating_add(ALIGNMENT);
        }
        Ok(false)
    }

    /// A valid frame whose LSN can stand at this offset and is above `lsn`.
    fn frame_at(&mut self, offset: u64, lsn: u64) -> io::Result<Option<FrameHeader>> {
        let room = self.file_bytes.saturating_sub(offset);
        let head = self.window.bytes(offset, room.min(HEADER_LEN))?;
        // Most of what is looked at is no header: an LSN out of range ends the look.
        let Some(found) = head.get(8..16).and_then(|bytes| bytes.first_chunk()) else {
            return Ok(None);
        };
        let most = offset.saturating_sub(FRAMES_OFFSET) / HEADER_LEN;
        let last = self.segment.first_lsn.saturating_add(most);
        let found = u64::from_le_bytes(*found);
        if found <= lsn || found > last {
            return Ok(None);
        }
        let place = Place { salt: self.segment.salt, offset };
        let Ok(header) = FrameHeader::decode(head, place, room) else { return Ok(None) };
        let bytes = self.window.bytes(offset, header.frame_len())?;
        Ok(decode_frame(bytes, place).is_ok().then_some(header))
    }
}

const HEADER_LEN: u64 = 32;

/// One stretch of a file in memory.
#[derive(Debug)]
struct Window {
    file: Arc<dyn IoFile>,
    begin: u64,
    buffer: Vec<u8>,
}

impl Window {
    /// `len` bytes from `offset`, fewer where the file ends; the caller checked the length.
    fn bytes(&mut self, offset: u64, len: u64) -> io::Result<&[u8]> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let begin = offset.checked_sub(self.begin).and_then(|begin| usize::try_from(begin).ok());
        let is_held = begin
            .and_then(|begin| begin.checked_add(len))
            .is_some_and(|end| end <= self.buffer.len());
        if !is_held {
            self.buffer.resize(len.max(WINDOW_BYTES), 0);
            let read = self.file.read_full_at(&mut self.buffer, offset)?;
            self.buffer.truncate(read);
            self.begin = offset;
        }
        let begin = usize::try_from(offset - self.begin).map_err(io::Error::other)?;
        let rest = self.buffer.get(begin..).unwrap_or_default();
        Ok(rest.get(..len).unwrap_or(rest))
    }
}
