//! Where frames lie that do not follow the last one that was read: backward, and anywhere.
//!
//! Frames lead forward only. The sparse index of a footer, or of the writer's own memory, names
//! frames to walk from; a walk goes over headers alone and notes the offsets of the last few
//! thousand frames, so that the records before are read without another one, and a mark for each
//! few thousand before these. So reading a segment backward goes over its headers twice more than
//! forward, in memory that is bounded by the index and by one offset for each such run, whatever
//! batches it holds. An index is a cache and no proof: what it names wrongly misleads nobody.

use oncelog_format::limits::FRAMES_OFFSET;

use super::reader::Record;
use super::segment_reader::SegmentReader;
use crate::error::Result;

/// Frames of a run.
const RUN_COUNT: usize = 4096;

/// Frames so near that they are walked over rather than guessed.
const NEAR: u64 = 4;

/// LSN and offset of a frame.
type Landmark = (u64, u64);

/// What is known of where frames lie in one segment.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Some frames, ascending.
    landmarks: Vec<Landmark>,
    is_indexed: bool,
    run: Run,
}

/// Offsets of frames in a row.
#[derive(Debug, Default)]
struct Run {
    first: u64,
    offsets: Vec<u64>,
    /// Offset after the last of them.
    end: u64,
}

impl Run {
    /// Begin and end of the frame of `lsn`.
    fn find(&self, lsn: u64) -> Option<(u64, u64)> {
        let i = usize::try_from(lsn.checked_sub(self.first)?).ok()?;
        let begin = self.offsets.get(i)?;
        Some((*begin, self.offsets.get(i.saturating_add(1)).copied().unwrap_or(self.end)))
    }

    fn restart(&mut self, first: u64) {
        self.first = first;
        self.offsets.clear();
    }
}

impl Places {
    /// Whether the frame of `lsn` is known.
    pub(super) fn has(&self, lsn: u64) -> bool {
        self.run.find(lsn).is_some()
    }

    /// Notes a frame.
    pub(super) fn note(&mut self, landmark: Landmark) {
        let at = self.landmarks.partition_point(|&(lsn, _)| lsn < landmark.0);
        if self.landmarks.get(at).is_none_or(|&(lsn, _)| lsn != landmark.0) {
            self.landmarks.insert(at, landmark);
        }
    }

    /// The last landmark at or below `lsn`, and the first one above it.
    fn around(&self, lsn: u64) -> (Option<Landmark>, Option<Landmark>) {
        let above = self.landmarks.partition_point(|&(at, _)| at <= lsn);
        let below = above.checked_sub(1).and_then(|i| self.landmarks.get(i));
        (below.copied(), self.landmarks.get(above).copied())
    }
}

impl SegmentReader {
    /// The record of `lsn`, which lies in this segment; stands before it then.
    pub(super) fn prev(&mut self, lsn: u64) -> Result<Record> {
        if !self.places.has(lsn) {
            self.walk_to(lsn)?;
        }
        let Some((begin, end)) = self.places.run.find(lsn) else {
            unreachable!("a walk ends at the frame that it was for")
        };
        let header = self.header(lsn, begin, Some(end))?;
        let record = self.record(&header, begin)?;
        self.stand(lsn, begin);
        Ok(record)
    }

    /// Stands before the record of `lsn`, which lies in this segment.
    pub(super) fn go_to(&mut self, lsn: u64) -> Result<()> {
        self.jump();
        if let Some((begin, _)) = self.places.run.find(lsn) {
            self.stand(lsn, begin);
            return Ok(());
        }
        self.read_index();
        if let Some(offset) = self.guess(lsn) {
            self.stand(lsn, offset);
            return Ok(());
        }
        self.walk_to(lsn)?;
        if let Some((begin, _)) = self.places.run.find(lsn) {
            self.stand(lsn, begin);
        }
        Ok(())
    }

    /// Where records are of one size the offset follows from the landmarks around; a frame header
    /// of that LSN, valid in its place, proves it.
    fn guess(&mut self, lsn: u64) -> Option<u64> {
        let (below, above) = self.places.around(lsn);
        let ((first, begin), (next, end)) = (below?, above?);
        let count = next.checked_sub(first).filter(|&count| count > 0)?;
        let far = lsn.saturating_sub(first);
        let size = end.saturating_sub(begin) / count;
        if far <= NEAR || !size.is_multiple_of(8) {
            return None;
        }
        let offset = begin.checked_add(size.checked_mul(far)?)?;
        self.header(lsn, offset, None).ok().map(|_| offset)
    }

    /// Fills the run with the frame of `lsn` and those before it.
    fn walk_to(&mut self, lsn: u64) -> Result<()> {
        self.read_index();
        let first = (self.at.header.first_lsn, FRAMES_OFFSET);
        let (mark, _) = self.places.around(lsn);
        let own = (self.lsn(), self.offset());
        let near = mark.unwrap_or(first);
        let near = if near.0 < own.0 && own.0 <= lsn { own } else { near };
        match self.walk(near, lsn) {
            Err(_) if near != first => {}
            done => return done,
        }
        // The index names a frame that is none, or a frame is damaged, which is then met again.
        let landmarks = std::mem::take(&mut self.places.landmarks);
        let walked = self.walk(first, lsn);
        if walked.is_err() {
            self.places.landmarks = landmarks;
        }
        walked
    }

    fn walk(&mut self, from: Landmark, to: u64) -> Result<()> {
        // What is read for the walk ends where the frames after are known already.
        let known = self.places.run.find(to.saturating_add(1)).map(|(begin, _)| begin);
        let mut run = std::mem::take(&mut self.places.run);
        let mut landmarks = Vec::new();
        let (mut lsn, mut offset) = from;
        run.restart(lsn);
        loop {
            let header = self.header(lsn, offset, known)?;
            if run.offsets.len() == RUN_COUNT {
                landmarks.push((lsn, offset));
                run.restart(lsn);
            }
            run.offsets.push(offset);
            offset = offset.saturating_add(header.frame_len());
            if lsn == to {
                break;
            }
            lsn = lsn.saturating_add(1);
        }
        run.end = offset;
        self.places.run = run;
        let at = self.places.landmarks.partition_point(|&(at, _)| at <= from.0);
        self.places.landmarks.splice(at..at, landmarks);
        Ok(())
    }

    /// Takes the index of a footer over as landmarks, once.
    fn read_index(&mut self) {
        if self.places.is_indexed {
            return;
        }
        self.places.is_indexed = true;
        if let Some(footer) = self.footer() {
            let entries = footer.entries.iter().map(|entry| (entry.lsn, entry.offset));
            let end = (footer.last_lsn.saturating_add(1), footer.end);
            self.places.landmarks = entries.chain([end]).collect();
        }
    }
}
