//! Every checksum and rule of a log, read once, in bounded memory.
//!
//! Recovery stops in a segment at its first damage; this goes on behind it and names each record
//! that is lost. A finding in a sealed segment is confirmed by a second read, so that a read that
//! failed once in the memory of this machine is not taken for damage of the disk.

use std::sync::Arc;

use oncelog_format::limits::FRAMES_OFFSET;
use oncelog_format::{Footer, FooterEntry, Place, SegmentHeader, Slot};

use super::facts::{FooterFacts, SlotFacts};
use super::finding::{Finding, FindingKind, Severity};
use super::scan::{self, Behind, Frames, Window};
use super::survey::Segment;
use super::view::{LogView, pause};
use super::walk::{Step, Walk};
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
    pub segments: u64,
    /// Records that recovery would keep, without those below the oldest LSN.
    pub records: u64,
    /// The oldest record; `None` when there is none.
    pub first_lsn: Option<Lsn>,
    /// The last one.
    pub last_lsn: Option<Lsn>,
    /// The last one that a witness proves durable.
    pub durable_lsn: Option<Lsn>,
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
            severity = severity.max(finding.severity);
            sink(finding);
        };
        for finding in self.findings() {
            tell(finding);
        }
        for (at, segment) in self.survey().segments.iter().enumerate() {
            match self.verify_segment(at, segment, &mut tell) {
                Err(error) if error.kind() == ErrorKind::Trimmed => {
                    tell(&segment.finding(FindingKind::Leftover, Severity::Info));
                }
                other => other?,
            }
        }
        let last_lsn = self.last_lsn();
        let records = last_lsn.map_or(0, |last| last.get() - self.oldest_lsn().get() + 1);
        Ok(VerifySummary {
            severity,
            segments: u64::try_from(self.survey().segments.len()).unwrap_or(u64::MAX),
            records,
            first_lsn: last_lsn.map(|_| self.oldest_lsn()),
            last_lsn,
            durable_lsn: self.proven_lsn(),
        })
    }
}
