//! Every checksum and rule of a log, read once, in bounded memory.
//!
//! Recovery stops in a segment at its first damage; this goes on after it and names each record
//! that is lost. A finding in a sealed segment is confirmed by a second read, so that a read that
//! failed once in the memory of this machine is not taken for damage of the disk.

use std::io;

use oncelog_format::limits::{FOOTER_LEN_MAX, FRAMES_OFFSET};
use oncelog_format::{Footer, FooterEntry, Place, SegmentHeader, Slot};

use super::facts::{FooterFacts, SlotFacts};
use super::finding::{Finding, FindingKind, Severity};
use super::recover::missing;
use super::scan::{self, Frames, Tally, Window};
use super::survey::{Segment, TailState};
use super::view::{LOOK_PAUSE, LogView, pause};
use super::walk::Walk;
use crate::error::{Error, ErrorKind, Result};
use crate::io::IoFile;
use crate::lsn::Lsn;

/// What a verification amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifySummary {
    /// The worst finding.
    pub severity: Severity,
    /// Segments of the log.
    pub segment_count: u64,
    /// Records that recovery would keep, without those below the oldest LSN.
    pub record_count: u64,
    /// The oldest record; `None` when there is none.
    pub first_lsn: Option<Lsn>,
    /// The last one.
    pub last_lsn: Option<Lsn>,
    /// The last one that a witness proves durable.
    pub proven_lsn: Option<Lsn>,
}

impl LogView {
    /// Checks everything and hands each finding to `sink`, in the order of the segments.
    ///
    /// # Errors
    ///
    /// `Io` when the system refuses to read; damage is a finding.
    pub fn verify(&self, sink: &mut dyn FnMut(&Finding)) -> Result<VerifySummary> {
        let mut severity = Severity::Info;
        let mut tell = |finding: &Finding| {
            severity = severity.worse(finding.severity);
            sink(finding);
        };
        // What is missing in a segment is told record by record, below.
        let is_of_segment = |finding: &&Finding| finding.kind == FindingKind::RecordMissing;
        for finding in self.findings().iter().filter(|finding| !is_of_segment(finding)) {
            tell(finding);
        }
        for (at, segment) in self.seen().survey.segments.iter().enumerate() {
            match self.verify_segment(at, segment, &mut tell) {
                Err(error) if error.kind() == ErrorKind::Trimmed => {
                    tell(&segment.finding(FindingKind::Leftover, Severity::Info));
                }
                other => other?,
            }
        }
        let last_lsn = self.last_lsn();
        let oldest = self.oldest_lsn().get();
        Ok(VerifySummary {
            severity,
            segment_count: u64::try_from(self.seen().survey.segments.len()).unwrap_or(u64::MAX),
            record_count: last_lsn
                .map_or(0, |last| last.get().saturating_sub(oldest).saturating_add(1)),
            first_lsn: last_lsn.map(|_| self.oldest_lsn()),
            last_lsn,
            proven_lsn: self.proven_lsn(),
        })
    }

    fn verify_segment(
        &self,
        at: usize,
        segment: &Segment,
        tell: &mut dyn FnMut(&Finding),
    ) -> Result<()> {
        let file = self.seen().open_file(segment)?;
        let fail = |e| Error::io("cannot read the segment", &segment.facts.path, e);
        if let Some(offset) = stray_byte(&*file).map_err(fail)? {
            let gap = segment.finding(FindingKind::GapDamaged, Severity::Degraded);
            tell(&gap.at_offset(offset).saying("zeros", "another byte"));
        }
        let Some(next) = self.seen().next_first(at) else {
            return self.verify_tail(segment, &*file, tell);
        };
        slots(segment, tell);
        let mut frames = read(&*file, segment, next).map_err(fail)?;
        if frames.last.saturating_add(1) < next {
            if !self.seen().still {
                pause(LOOK_PAUSE);
            }
            frames = read(&*file, segment, next).map_err(fail)?;
        }
        self.seen().unless_trimmed(next.saturating_sub(1), frames.last.saturating_add(1) < next)?;
        if frames.last.saturating_add(1) < next {
            let whole = missing(segment, &frames, next.saturating_sub(1));
            return lost(segment, &*file, next, &whole, tell).map_err(fail);
        }
        if let FooterFacts::Valid(footer) = &segment.facts.footer {
            let read = whole_footer(&*file, segment, footer.offset).map_err(fail)?;
            self.seen().unless_trimmed(next.saturating_sub(1), read.is_none())?;
            footer_agrees(segment, read, &frames.tally, &frames.tally.entries, frames.end, tell);
        }
        Ok(())
    }

    /// The frames of the tail were read by the look; what is lost in it is named here.
    fn verify_tail(
        &self,
        segment: &Segment,
        file: &dyn IoFile,
        tell: &mut dyn FnMut(&Finding),
    ) -> Result<()> {
        let fail = |e| Error::io("cannot read the segment", &segment.facts.path, e);
        let survey = &self.seen().survey;
        let is_here = |finding: &&Finding| {
            finding.kind == FindingKind::RecordMissing && finding.path == segment.facts.path
        };
        if let Some(whole) = survey.findings.iter().find(is_here) {
            let limit = survey.proven.max(survey.oldest.saturating_sub(1)).saturating_add(1);
            return lost(segment, file, limit, whole, tell).map_err(fail);
        }
        let (FooterFacts::Valid(footer), Some(tail)) = (&segment.facts.footer, &survey.tail) else {
            return Ok(());
        };
        if tail.state == TailState::Sealed {
            let read = whole_footer(file, segment, footer.offset).map_err(fail)?;
            // It was about to have a successor, and may have been trimmed since.
            self.seen().unless_trimmed(segment.last, read.is_none())?;
            footer_agrees(segment, read, &segment.tally, &tail.entries, segment.end, tell);
        }
        Ok(())
    }
}

/// Row @V for a sealed segment: nothing depends on its slots but the oldest LSN, which newer
/// segments carry on.
fn slots(segment: &Segment, tell: &mut dyn FnMut(&Finding)) {
    for (slot, offset) in segment.facts.slots.iter().zip([4096, 8192]) {
        let found = match slot {
            SlotFacts::Zeros | SlotFacts::Valid(_) => continue,
            SlotFacts::Foreign => "the header of another segment".to_owned(),
            SlotFacts::Damaged(error) => error.to_string(),
        };
        let ignored = segment.finding(FindingKind::SlotIgnored, Severity::Degraded);
        tell(&ignored.at_offset(offset).saying("a slot of this segment", found));
    }
}

/// Offset of the first byte beside header and slots that is not zero.
fn stray_byte(file: &dyn IoFile) -> io::Result<Option<u64>> {
    let header_end = SegmentHeader::LEN as u64;
    let slot_end = Slot::LEN as u64;
    let gaps = [(header_end, 4096), (4096 + slot_end, 8192), (8192 + slot_end, FRAMES_OFFSET)];
    let mut buffer = [0; 4096];
    for (begin, end) in gaps {
        let len = usize::try_from(end - begin).unwrap_or(buffer.len()).min(buffer.len());
        let Some(gap) = buffer.get_mut(..len) else { continue };
        let read = file.read_full_at(gap, begin)?;
        let found = gap.iter().take(read).zip(begin..).find(|(byte, _)| **byte != 0);
        if let Some((_, offset)) = found {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}

fn read(file: &dyn IoFile, segment: &Segment, next: u64) -> io::Result<Frames> {
    scan::frames(&mut Window::new(file)?, &segment.header, Some(next))
}

/// Names every record below `limit` that is lost; `whole` when no single one can be named.
fn lost(
    segment: &Segment,
    file: &dyn IoFile,
    limit: u64,
    whole: &Finding,
    tell: &mut dyn FnMut(&Finding),
) -> io::Result<()> {
    let mut walk = Walk::new(file, &segment.header)?;
    let mut is_told = false;
    while walk.lsn() < limit {
        let (lsn, offset) = (walk.lsn(), walk.offset());
        let Err(invalid) = walk.step()? else { continue };
        let goes_on = walk.pass()?;
        let next = if goes_on { walk.lsn().min(limit) } else { limit };
        let count = next.saturating_sub(lsn);
        let found = match count {
            0 | 1 => invalid.to_string(),
            _ => format!("{invalid}; {count} records are lost"),
        };
        let missing = segment.finding(FindingKind::RecordMissing, Severity::Corrupt);
        let expected = format!("the frame of record {lsn}");
        tell(&missing.at_offset(offset).at_lsn(lsn).saying(expected, found));
        is_told = true;
        if !goes_on {
            break;
        }
    }
    if !is_told {
        tell(whole);
    }
    Ok(())
}

/// The footer with its entries, which a look leaves out.
fn whole_footer(file: &dyn IoFile, segment: &Segment, offset: u64) -> io::Result<Option<Footer>> {
    let len = segment.facts.size.saturating_sub(offset).min(u64::from(FOOTER_LEN_MAX));
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let read = file.read_full_at(&mut bytes, offset)?;
    bytes.truncate(read);
    Ok(Footer::decode(&bytes, Place { salt: segment.header.salt, offset }).ok())
}

/// Row @K: a footer that contradicts the frames.
fn footer_agrees(
    segment: &Segment,
    footer: Option<Footer>,
    tally: &Tally,
    entries: &[FooterEntry],
    end: u64,
    tell: &mut dyn FnMut(&Finding),
) {
    let ignored = segment.finding(FindingKind::FooterIgnored, Severity::Degraded);
    let Some(footer) = footer else {
        tell(&ignored.saying("the footer that was there", "another one"));
        return;
    };
    let facts = [
        ("end", footer.end, end),
        ("record_count", footer.record_count, tally.records()),
        ("payload_bytes", footer.payload_bytes, tally.payload_bytes),
        ("time_first", footer.time_first_ms, tally.time_first_ms),
        ("time_last", footer.time_last_ms, tally.time_last_ms),
    ];
    if let Some((name, stated, counted)) = facts.iter().find(|(_, a, b)| a != b) {
        let ignored = ignored.at_offset(footer.offset);
        tell(&ignored.saying(format!("{name} {counted}"), format!("{name} {stated}")));
    } else if footer.entries != entries {
        let ignored = ignored.at_offset(footer.offset);
        tell(&ignored.saying("an index of the frames", "other entries"));
    }
}
