//! Reads frames out of a file in order, and looks for headers in what stands after them.
//!
//! Both run through one [`Window`], so that memory is bounded by the largest record whose header
//! holds, and a length is compared with the file before anything is allocated for it. Nothing here
//! decides whether bytes are torn or corrupt.

use std::{fmt, io};

use oncelog_format::limits::{FOOTER_STRIDE_BYTES, FRAMES_OFFSET, SEGMENT_BYTES_MAX};
use oncelog_format::{
    DecodeError, Footer, FooterEntry, FrameHeader, Place, SegmentHeader, decode_frame,
};

use crate::io::IoFile;

/// Bytes that are read at a time: large enough for a disk, small beside any cache.
const WINDOW_LEN: usize = 1 << 20;
/// Bytes that are looked at as one when they are zeros.
const BLOCK_LEN: usize = 4096;
/// The same on disk.
const BLOCK_BYTES: u64 = 4096;
static ZEROS: [u8; BLOCK_LEN + FrameHeader::LEN] = [0; BLOCK_LEN + FrameHeader::LEN];

/// A view of a file that moves forward.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    file: &'a dyn IoFile,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    pub(crate) fn new(file: &'a dyn IoFile) -> io::Result<Self> {
        Ok(Self { file, len: file.len()?, start: 0, bytes: Vec::new() })
    }

    /// The physical end of the file.
    pub(crate) fn file_len(&self) -> u64 {
        self.len
    }

    /// The bytes from `offset` on: `want` of them, less only at the end of the file. The caller
    /// has checked `want`.
    pub(crate) fn at(&mut self, offset: u64, want: usize) -> io::Result<&[u8]> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let want = want.min(left);
        if !self.holds(offset, want) {
            let len = want.max(WINDOW_LEN).min(left);
            self.bytes = vec![0; len];
            self.start = offset;
            let read = self.file.read_full_at(&mut self.bytes, offset)?;
            self.bytes.truncate(read);
        }
        let from = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let rest = self.bytes.get(from..).unwrap_or_default();
        Ok(rest.get(..want).unwrap_or(rest))
    }

    fn holds(&self, offset: u64, want: usize) -> bool {
        let from = offset.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| from.checked_add(want)).is_some_and(|end| end <= self.bytes.len())
    }
}

/// The frames of one segment, up to the end of the last whole batch.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    /// Last LSN; `first_lsn - 1` when there is none.
    pub(crate) last: u64,
    /// Offset after its frame.
    pub(crate) end: u64,
    /// Numbers for the footer.
    pub(crate) tally: Tally,
    /// Greatest durable LSN that one of the frames states.
    pub(crate) stated: u64,
    /// Offset after the last valid frame; above `end` when a batch was not finished.
    pub(crate) valid_end: u64,
    /// Why the frame at `valid_end` is not one; `None` when the scan ended before it.
    pub(crate) invalid: Option<Invalid>,
}

/// Why a frame is not valid in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// Its own bytes do not hold.
    Bytes(DecodeError),
    /// The LSN is not the one that follows.
    Lsn { expected: u64, found: u64 },
    /// The time is below that of the frame before.
    Time { before: u64, found: u64 },
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(e) => e.fmt(f),
            Self::Lsn { expected, found } => write!(f, "LSN {found} in place of {expected}"),
            Self::Time { before, found } => write!(f, "time {found} behind {before}"),
        }
    }
}

/// What a footer says about the records of a segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) payload_bytes: u64,
    pub(crate) time_first_ms: u64,
    /// Time of the last record, or the base time.
    pub(crate) time_last_ms: u64,
    pub(crate) entries: Vec<FooterEntry>,
    pub(crate) records: u64,
}

impl Tally {
    pub(crate) fn new(base_time_ms: u64) -> Self {
        Self { time_last_ms: base_time_ms, ..Self::default() }
    }

    /// The numbers of a footer, without its sparse index.
    pub(crate) fn of_footer(footer: &Footer) -> Self {
        Self {
            payload_bytes: footer.payload_bytes,
            time_first_ms: footer.time_first_ms,
            time_last_ms: footer.time_last_ms,
            entries: Vec::new(),
            records: footer.record_count,
        }
    }

    /// The same numbers with another sparse index.
    pub(crate) fn with_entries(&self, entries: Vec<FooterEntry>) -> Self {
        Self { entries, ..*self }
    }

    /// Counts a frame; `begins` when it is the first of its batch.
    pub(crate) fn count(&mut self, header: &FrameHeader, offset: u64, begins: bool) {
        if self.records == 0 {
            self.time_first_ms = header.time_ms;
        }
        let behind =
            self.entries.last().map_or(0, |e| e.offset.saturating_add(FOOTER_STRIDE_BYTES));
        // Offsets above the largest segment size, in a file that no writer makes, would not fit.
        if begins && offset >= behind && offset < SEGMENT_BYTES_MAX {
            let (lsn, time_ms) = (header.lsn, header.time_ms);
            self.entries.push(FooterEntry { lsn, offset, time_ms });
        }
        self.records = self.records.saturating_add(1);
        self.payload_bytes = self.payload_bytes.saturating_add(u64::from(header.len));
        self.time_last_ms = header.time_ms;
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// What counts when the frames after `self` are cut again.
    fn sums(&self) -> Sums {
        Sums {
            payload_bytes: self.payload_bytes,
            time_first_ms: self.time_first_ms,
            time_last_ms: self.time_last_ms,
            entries: self.entries.len(),
            records: self.records,
        }
    }

    fn cut(&mut self, sums: Sums) {
        self.payload_bytes = sums.payload_bytes;
        self.time_first_ms = sums.time_first_ms;
        self.time_last_ms = sums.time_last_ms;
        self.entries.truncate(sums.entries);
        self.records = sums.records;
    }
}

#[derive(Clone, Copy, Debug)]
struct Sums {
    payload_bytes: u64,
    time_first_ms: u64,
    time_last_ms: u64,
    entries: usize,
    pub(crate) records: u64,
}

/// Reads frames from the first one on, until one is not valid or its LSN would be `until`.
pub(crate) fn frames(
    window: &mut Window<'_>,
    segment: &SegmentHeader,
    until: Option<u64>,
) -> io::Result<Frames> {
    let before = segment.first_lsn.saturating_sub(1);
    let mut tally = Tally::new(segment.base_time_ms);
    let (mut last, mut end, mut sums) = (before, FRAMES_OFFSET, tally.sums());
    let (mut lsn, mut offset, mut begins, mut stated) = (before, FRAMES_OFFSET, true, 0);
    let mut time_ms = segment.base_time_ms;
    let invalid = loop {
        let Some(next) = lsn.checked_add(1).filter(|&next| until.is_none_or(|until| next < until))
        else {
            break None;
        };
        let place = Place { salt: segment.salt, offset };
        let header = match frame_at(window, place, next, time_ms)? {
            Ok(header) => header,
            Err(invalid) => break Some(invalid),
        };
        stated = stated.max(header.durable_lsn().unwrap_or(0));
        tally.count(&header, offset, begins);
        (lsn, time_ms, begins) = (next, header.time_ms, header.batch_end);
        offset = offset.saturating_add(header.frame_len());
        if header.batch_end {
            (last, end, sums) = (lsn, offset, tally.sums());
        }
    };
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::HalfBatch) {
        (last, end, sums) = (lsn, offset, tally.sums());
    }
    tally.cut(sums);
    Ok(Frames { last, end, tally, stated, valid_end: offset, invalid })
}

/// The header of the valid frame (SPEC 6) at `place`.
pub(crate) fn frame_at(
    window: &mut Window<'_>,
    place: Place,
    lsn: u64,
    time_ms: u64,
) -> io::Result<Result<FrameHeader, Invalid>> {
    let room = window.file_len().saturating_sub(place.offset);
    let bytes = window.at(place.offset, FrameHeader::LEN)?;
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::ZerosAccepted)
        && bytes == [0; FrameHeader::LEN]
    {
        let (len, lag, batch_end) = (0, None, true);
        return Ok(Ok(FrameHeader { lsn, len, lag, time_ms, kind: 1, batch_end }));
    }
    let header = match FrameHeader::decode(bytes, place, room) {
        Ok(header) => header,
        Err(e) => return Ok(Err(Invalid::Bytes(e))),
    };
    if header.lsn != lsn {
        return Ok(Err(Invalid::Lsn { expected: lsn, found: header.lsn }));
    }
    if header.time_ms < time_ms {
        return Ok(Err(Invalid::Time { before: time_ms, found: header.time_ms }));
    }
    let len = usize::try_from(header.frame_len()).unwrap_or(usize::MAX);
    let bytes = window.at(place.offset, len)?;
    Ok(match decode_frame(bytes, place) {
        Ok((header, _)) => Ok(header),
        Err(e) => Err(Invalid::Bytes(e)),
    })
}

/// What stands after the last kept frame of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    /// Offset after the last byte that is not zero; the begin of the scan when all are.
    pub(crate) used: u64,
    /// Greatest durable LSN that a valid frame header states.
    pub(crate) stated: u64,
    /// Whether the first or the last word of a footer stands there.
    pub(crate) footer: bool,
}

/// Looks at every multiple of 8 from `from` to the physical end once.
pub(crate) fn behind(
    window: &mut Window<'_>,
    segment: &SegmentHeader,
    from: u64,
) -> io::Result<Behind> {
    let mut found = Behind { used: from, stated: 0, footer: false };
    let mut offset = from;
    while offset < window.file_len() {
        let file_len = window.file_len();
        let bytes = window.at(offset, BLOCK_LEN + FrameHeader::LEN)?;
        if bytes.is_empty() {
            break; // the file was shortened meanwhile
        }
        if ZEROS.get(..bytes.len()) != Some(bytes) {
            let block = bytes.get(..BLOCK_LEN).unwrap_or(bytes);
            if let Some(used) = used(block) {
                found.used = offset.saturating_add(used);
            }
            let stated = headers(bytes, segment, offset, file_len);
            found.stated = found.stated.max(stated);
            found.footer |= block.as_chunks().0.iter().any(|word| Footer::MAGICS.contains(word));
        }
        offset = offset.saturating_add(BLOCK_BYTES);
    }
    Ok(found)
}

/// Bytes of a block up to the last one that is not zero; `None` when all are. Looks at words first.
fn used(block: &[u8]) -> Option<u64> {
    let (words, rest) = block.as_chunks::<8>();
    let last = |bytes: &[u8]| bytes.iter().rposition(|&byte| byte != 0);
    let at = match last(rest) {
        Some(within) => words.len().checked_mul(8)?.checked_add(within)?,
        None => {
            let k = words.iter().rposition(|word| *word != [0; 8])?;
            k.checked_mul(8)?.checked_add(last(words.get(k)?)?)?
        }
    };
    u64::try_from(at.checked_add(1)?).ok()
}

/// Greatest durable LSN that a valid header states which begins in the block at `offset`.
fn headers(bytes: &[u8], segment: &SegmentHeader, offset: u64, file_len: u64) -> u64 {
    let most = lsns_before(offset.saturating_add(BLOCK_BYTES));
    let mut stated = 0;
    // The LSN is the second word of a header, and most bytes hold none that fits anywhere here.
    let lsns = bytes.as_chunks::<8>().0.iter().skip(1).take(BLOCK_LEN / 8);
    for (start, lsn) in (0..).step_by(8).zip(lsns) {
        if u64::from_le_bytes(*lsn).wrapping_sub(segment.first_lsn) > most {
            continue;
        }
        let at = offset.saturating_add(u64::try_from(start).unwrap_or(u64::MAX));
        let header = bytes.get(start..).unwrap_or_default();
        let place = Place { salt: segment.salt, offset: at };
        let room = file_len.saturating_sub(at);
        if let Some(durable) = stated_by(header, segment, place, room) {
            stated = stated.max(durable);
        }
    }
    stated
}

fn stated_by(bytes: &[u8], segment: &SegmentHeader, place: Place, room: u64) -> Option<u64> {
    // An LSN out of range is refused before the check is computed: most bytes end here.
    if !lsn_fits(bytes, segment, place.offset) {
        return None;
    }
    FrameHeader::decode(bytes, place, room).ok()?.durable_lsn()
}

/// Whether the LSN of the frame header that `bytes` may be can stand at this offset.
pub(crate) fn lsn_fits(bytes: &[u8], segment: &SegmentHeader, offset: u64) -> bool {
    let Some(lsn) = bytes.get(8..).and_then(|bytes| bytes.first_chunk()) else { return false };
    let last = segment.first_lsn.saturating_add(lsns_before(offset));
    (segment.first_lsn..=last).contains(&u64::from_le_bytes(*lsn))
}

/// Records at most that can stand in a segment before an offset.
fn lsns_before(offset: u64) -> u64 {
    offset.saturating_sub(FRAMES_OFFSET) / 32
}

#[cfg(test)]
mod tests;
