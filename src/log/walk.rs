//! The frames of one segment in order, read by pread through one window.
//!
//! Nothing here decides torn or corrupt: a walk says where frames stop and why, and what stands
//! behind. Memory is one window, or one frame where a frame is longer; its length was checked
//! against the file before.

use std::io;
use std::sync::Arc;

use oncelog_format::error::{DecodeError, DecodeErrorKind};
use oncelog_format::frame::{FrameHeader, Place, decode_frame};
use oncelog_format::segment::SegmentHeader;

use crate::io::{IoFile, read_full_at};

/// Offset of the first frame (SPEC 5).
pub(crate) const FRAMES_OFFSET: u64 = 12_288;

/// Bytes that one read asks for.
const WINDOW_BYTES: usize = 256 << 10;

/// A valid frame, borrowed from the walk's window.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) offset: u64,
    pub(crate) payload: &'a [u8],
}

/// Why there is no frame where the next one was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) offset: u64,
    /// The LSN that was expected there.
    pub(crate) lsn: u64,
    /// The header, where it is valid and the next in order although the frame is not.
    pub(crate) header: Option<FrameHeader>,
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// What stands at the next place.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Frame(Frame<'a>),
    /// No valid frame; the end of the file and zeros are faults, too.
    Fault(Fault),
}

/// A position in the frames of a segment.
#[derive(Debug)]
pub(crate) struct Walk {
    window: Window,
    salt: u64,
    file_bytes: u64,
    offset: u64,
    lsn: u64,
    time_ms: u64,
}

impl Walk {
    /// Begins at the first frame; bytes behind `file_bytes` are not looked at.
    pub(crate) fn new(file: Arc<dyn IoFile>, header: &SegmentHeader, file_bytes: u64) -> Self {
        Self {
            window: Window::new(file),
            salt: header.salt,
            file_bytes,
            offset: FRAMES_OFFSET,
            lsn: header.first_lsn,
            time_ms: header.base_time_ms,
        }
    }

    /// Goes on at a place where a frame with this LSN is known to begin.
    pub(crate) fn resume(&mut self, offset: u64, lsn: u64, time_ms: u64) {
        (self.offset, self.lsn, self.time_ms) = (offset, lsn, time_ms);
    }

    /// Where the next frame is expected.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The LSN of the next frame.
    pub(crate) fn lsn(&self) -> u64 {
        self.lsn
    }

    /// The next frame, or why there is none; after a fault the walk stays where it is.
    pub(crate) fn step(&mut self) -> io::Result<Step<'_>> {
        let offset = self.offset;
        let place = Place { salt: self.salt, offset };
        let room = self.file_bytes.saturating_sub(offset);
        let head = self.window.bytes(offset, room.min(FrameHeader::LEN as u64))?;
        let header = match FrameHeader::decode(head, place, room) {
            Ok(header) => header,
            Err(error) => {
                let zeros = head.iter().all(|byte| *byte == 0);
                return Ok(Step::Fault(self.fault(None, &error, zeros)));
            }
        };
        if header.lsn != self.lsn {
            let (expected, found) = (format!("LSN {}", self.lsn), format!("LSN {}", header.lsn));
            return Ok(Step::Fault(Fault { offset, lsn: self.lsn, header: None, expected, found }));
        }
        if header.time_ms < self.time_ms {
            let expected = format!("a time of at least {} ms", self.time_ms);
            let found = format!("{} ms", header.time_ms);
            let header = Some(header);
            return Ok(Step::Fault(Fault { offset, lsn: self.lsn, header, expected, found }));
        }
        let frame_bytes = header.frame_len();
        let (lsn, time_ms) = (self.lsn, header.time_ms);
        let bytes = self.window.bytes(offset, frame_bytes)?;
        match decode_frame(bytes, place) {
            Ok((header, payload)) => {
                self.offset = offset.saturating_add(frame_bytes);
                self.lsn = lsn.saturating_add(1);
                self.time_ms = time_ms;
                Ok(Step::Frame(Frame { header, offset, payload }))
            }
            Err(error) => Ok(Step::Fault(self.fault(Some(header), &error, false))),
        }
    }

    fn fault(&self, header: Option<FrameHeader>, error: &DecodeError, zeros: bool) -> Fault {
        let (expected, mut found) = describe(error);
        if zeros {
            found = if self.offset >= self.file_bytes {
                "the end of the file".into()
            } else {
                "zeros".into()
            };
        }
        let expected = if header.is_none() { "a frame".into() } else { expected };
        Fault { offset: self.offset, lsn: self.lsn, header, expected, found }
    }
}

/// `expected` and `found` of a decode error, in words.
pub(crate) fn describe(error: &DecodeError) -> (String, String) {
    match error.kind {
        DecodeErrorKind::Truncated { need, have } => {
            (format!("{need} bytes"), format!("{have} bytes"))
        }
        DecodeErrorKind::Checksum { stored, computed } => {
            (format!("checksum {computed:#010x}"), format!("checksum {stored:#010x}"))
        }
        DecodeErrorKind::Unsupported { found, supported } => {
            (format!("version or feature {supported:#x}"), format!("{found:#x}"))
        }
        DecodeErrorKind::Limit { len, max } => (format!("at most {max}"), format!("{len}")),
        DecodeErrorKind::Magic => ("the magic number".into(), "other bytes".into()),
        DecodeErrorKind::Field { name, found } => {
            (format!("a valid {name}"), format!("{name} {found}"))
        }
        DecodeErrorKind::Text { name } => (format!("valid text in {name}"), "other bytes".into()),
        _ => ("valid bytes".into(), error.to_string()),
    }
}

/// What stands in a range of a segment that the walk did not cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    /// Offset behind the last byte that is not zero; the begin of the range when there is none.
    pub(crate) used_end: u64,
    /// The greatest durable LSN that a valid frame header in the range states.
    pub(crate) witness: u64,
}

/// Looks at every multiple of 8 in `from..file_bytes` once (SPEC 12).
pub(crate) fn rest(
    file: &Arc<dyn IoFile>,
    header: &SegmentHeader,
    from: u64,
    file_bytes: u64,
) -> io::Result<Rest> {
    let mut found = Rest { used_end: from, witness: 0 };
    headers(file, header, from, file_bytes, &mut |offset, word, frame| {
        if word.iter().any(|byte| *byte != 0) {
            found.used_end = offset.saturating_add(8).min(file_bytes);
        }
        if let Some(durable) = frame.and_then(|frame| frame.durable_lsn()) {
            found.witness = found.witness.max(durable);
        }
        Ok(true)
    })?;
    Ok(found)
}

/// The next place behind `from` that holds a valid frame whose LSN is at least `lsn`.
pub(crate) fn next_frame(
    file: &Arc<dyn IoFile>,
    header: &SegmentHeader,
    (from, lsn): (u64, u64),
    file_bytes: u64,
) -> io::Result<Option<(u64, FrameHeader)>> {
    let mut hit = None;
    let mut window = Window::new(Arc::clone(file));
    headers(file, header, from, file_bytes, &mut |offset, _, frame| {
        let Some(frame) = frame.filter(|frame| frame.lsn >= lsn) else { return Ok(true) };
        let bytes = window.bytes(offset, frame.frame_len())?;
        if decode_frame(bytes, Place { salt: header.salt, offset }).is_ok() {
            hit = Some((offset, frame));
        }
        Ok(hit.is_none())
    })?;
    Ok(hit)
}

/// Hands out each aligned word with the valid frame header that begins there, until told to stop.
fn headers(
    file: &Arc<dyn IoFile>,
    header: &SegmentHeader,
    from: u64,
    file_bytes: u64,
    see: &mut dyn FnMut(u64, &[u8], Option<FrameHeader>) -> io::Result<bool>,
) -> io::Result<()> {
    let mut window = Window::new(Arc::clone(file));
    let mut offset = from.next_multiple_of(8);
    while offset < file_bytes {
        let room = file_bytes - offset;
        let head = window.bytes(offset, room.min(FrameHeader::LEN as u64))?;
        let word = head.get(..8).unwrap_or(head);
        if word.is_empty() {
            break;
        }
        let frame = plausible(head, header, offset, room);
        if !see(offset, word, frame)? {
            break;
        }
        offset = offset.saturating_add(8);
    }
    Ok(())
}

/// A valid frame header whose LSN can stand at this offset (SPEC 12).
fn plausible(head: &[u8], header: &SegmentHeader, offset: u64, room: u64) -> Option<FrameHeader> {
    // Most of what is scanned are zeros; an LSN is never 0.
    if head.get(8..16)?.iter().all(|byte| *byte == 0) {
        return None;
    }
    let frame = FrameHeader::decode(head, Place { salt: header.salt, offset }, room).ok()?;
    let most = offset.saturating_sub(FRAMES_OFFSET) / 32;
    let range = header.first_lsn..=header.first_lsn.saturating_add(most);
    range.contains(&frame.lsn).then_some(frame)
}

/// One stretch of a file in memory.
#[derive(Debug)]
pub(crate) struct Window {
    file: Arc<dyn IoFile>,
    begin: u64,
    buffer: Vec<u8>,
}

impl Window {
    pub(crate) fn new(file: Arc<dyn IoFile>) -> Self {
        Self { file, begin: 0, buffer: Vec::new() }
    }

    /// `len` bytes from `offset`, fewer where the file ends; the caller checked the length.
    pub(crate) fn bytes(&mut self, offset: u64, len: u64) -> io::Result<&[u8]> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let held = self.begin.saturating_add(self.buffer.len() as u64);
        if offset < self.begin || offset.saturating_add(len as u64) > held {
            self.buffer.resize(len.max(WINDOW_BYTES), 0);
            let read = read_full_at(&*self.file, &mut self.buffer, offset)?;
            self.buffer.truncate(read);
            self.begin = offset;
        }
        let begin = usize::try_from(offset - self.begin).map_err(io::Error::other)?;
        let rest = self.buffer.get(begin..).unwrap_or_default();
        Ok(rest.get(..len).unwrap_or(rest))
    }
}
