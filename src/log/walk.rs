//! The frames of one segment one after the other, and on after damage.
//!
//! Nothing here decides torn or corrupt: a walk says where frames are not valid and why, and finds
//! the next one that is. It is for naming what is lost; recovery itself stops at the first fault.

use std::io;

use bytes::Bytes;
use oncelog_format::limits::{ALIGNMENT, FRAMES_OFFSET};
use oncelog_format::{FrameHeader, Place, SegmentHeader};

use super::scan::{Invalid, Window, frame_at, lsn_fits};
use crate::io::IoFile;

/// A position in the frames of a segment.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    window: Window<'a>,
    segment: SegmentHeader,
    offset: u64,
    lsn: u64,
    time_ms: u64,
}

impl<'a> Walk<'a> {
    /// Begins at the first frame.
    pub(crate) fn new(file: &'a dyn IoFile, segment: &SegmentHeader) -> io::Result<Self> {
        Ok(Self {
            window: Window::new(file)?,
            segment: *segment,
            offset: FRAMES_OFFSET,
            lsn: segment.first_lsn,
            time_ms: segment.base_time_ms,
        })
    }

    /// The LSN of the next frame.
    pub(crate) fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Where the next frame is expected.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes over the next frame; stays before one that is not valid, and says why it is not.
    pub(crate) fn step(&mut self) -> io::Result<Result<FrameHeader, Invalid>> {
        let place = Place { salt: self.segment.salt, offset: self.offset };
        let frame = frame_at(&mut self.window, place, self.lsn, self.time_ms)?;
        Ok(frame.inspect(|header| self.go(header)))
    }

    /// The payload of the frame at `offset` that the last step went over: the bytes that were
    /// checked, not read again.
    pub(crate) fn payload(&mut self, header: &FrameHeader, offset: u64) -> io::Result<Bytes> {
        let len = usize::try_from(header.frame_len()).unwrap_or(usize::MAX);
        let frame = self.window.at(offset, len)?;
        let end =
            usize::try_from(header.len).unwrap_or(usize::MAX).saturating_add(FrameHeader::LEN);
        Ok(Bytes::copy_from_slice(frame.get(FrameHeader::LEN..end).unwrap_or_default()))
    }

    /// Goes on after a frame that is not valid: where its header says, when that is valid and in
    /// order; else at the next valid header of a later record. False when there is none.
    pub(crate) fn pass(&mut self) -> io::Result<bool> {
        if let Some(header) = self.header()?.filter(|header| header.lsn == self.lsn) {
            // Its own time may be what is wrong with it.
            self.go(&FrameHeader { time_ms: self.time_ms, ..header });
            return Ok(true);
        }
        let lost = self.lsn;
        loop {
            self.offset = self.offset.saturating_add(ALIGNMENT);
            if self.offset >= self.window.file_len() {
                return Ok(false);
            }
            // The header alone is enough: were its payload read here, hostile lengths would make
            // this quadratic.
            if let Some(header) = self.header()?.filter(|header| header.lsn > lost) {
                self.lsn = header.lsn;
                return Ok(true);
            }
        }
    }

    fn go(&mut self, header: &FrameHeader) {
        self.offset = self.offset.saturating_add(header.frame_len());
        self.lsn = self.lsn.saturating_add(1);
        self.time_ms = header.time_ms;
    }

    /// The valid frame header at the offset, when its LSN can stand there.
    fn header(&mut self) -> io::Result<Option<FrameHeader>> {
        let room = self.window.file_len().saturating_sub(self.offset);
        let place = Place { salt: self.segment.salt, offset: self.offset };
        let bytes = self.window.at(self.offset, FrameHeader::LEN)?;
        if !lsn_fits(bytes, &self.segment, self.offset) {
            return Ok(None);
        }
        Ok(FrameHeader::decode(bytes, place, room).ok())
    }
}
