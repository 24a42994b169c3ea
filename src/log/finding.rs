//! What recovery found that is worth telling.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind};
use crate::lsn::{Lsn, SegmentId};

/// Something that recovery found in the files of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// How bad it is.
    pub severity: Severity,
    /// The file or directory.
    pub path: PathBuf,
    /// Number of the segment, when the file is one.
    pub segment: Option<SegmentId>,
    /// Where in the file, in bytes; of a missing record, where the frames stop being valid.
    pub offset: Option<u64>,
    /// The LSN concerned; of a missing record, the first one that is not kept.
    pub lsn: Option<Lsn>,
    /// What should be there.
    pub expected: Cow<'static, str>,
    /// What is there.
    pub found: Cow<'static, str>,
}

impl Finding {
    pub(crate) fn new(kind: FindingKind, severity: Severity, path: &Path) -> Self {
        Self {
            kind,
            severity,
            path: path.to_owned(),
            segment: None,
            offset: None,
            lsn: None,
            expected: Cow::Borrowed(""),
            found: Cow::Borrowed(""),
        }
    }

    pub(crate) fn in_segment(mut self, number: u64) -> Self {
        self.segment = SegmentId::new(number);
        self
    }

    pub(crate) fn at_offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    pub(crate) fn at_lsn(mut self, lsn: u64) -> Self {
        self.lsn = Lsn::new(lsn);
        self
    }

    pub(crate) fn saying(
        mut self,
        expected: impl Into<Cow<'static, str>>,
        found: impl Into<Cow<'static, str>>,
    ) -> Self {
        (self.expected, self.found) = (expected.into(), found.into());
        self
    }

    /// The error of a caller that cannot go on because of this.
    #[must_use]
    pub fn to_error(&self) -> Error {
        let kind = match self.severity {
            Severity::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Corrupt,
        };
        let mut message = self.kind.consequence().to_owned();
        if !self.expected.is_empty() {
            message = format!("{message}: expected {}, found {}", self.expected, self.found);
        }
        let mut error = Error::new(kind, message).at_path(&self.path);
        if let Some(offset) = self.offset {
            error = error.at_offset(offset);
        }
        match self.lsn {
            Some(lsn) => error.at_lsn(lsn.get()),
            None => error,
        }
    }
}

/// How bad a finding is; the worst one of a log, by [`Severity::worse`], is its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Nothing is wrong.
    Info,
    /// Bytes after the last kept record that no sync promised.
    Torn,
    /// A cache or a copy is damaged; no record is.
    Degraded,
    /// A format version or feature that this version does not know.
    Unsupported,
    /// Damage where a sync had promised data.
    Corrupt,
}

impl Severity {
    /// The one that counts of two. `Unsupported` counts over `Corrupt`: what this version does not
    /// know it cannot call damaged.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        if self == Self::Unsupported || other == Self::Unsupported {
            return Self::Unsupported;
        }
        self.max(other)
    }
}

/// What was found; each is named by a row of SPEC section 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// `LOCK` holds an identity and there is no segment.
    SegmentsGone,
    /// `LOCK` holds neither zeros nor a valid content.
    LockDamaged,
    /// A segment of another format version, or with features that must be understood.
    VersionUnsupported,
    /// A segment whose header and slots are all invalid.
    HeaderDamaged,
    /// A segment whose header is read from a slot's copy.
    HeaderFromSlot,
    /// A segment whose name or UUID contradicts its header, its neighbours or `LOCK`.
    SegmentForeign,
    /// Two segments with one number, or numbers that order the LSNs otherwise.
    OrderBroken,
    /// A segment that was trimmed and is still there.
    Leftover,
    /// The first segment begins above the oldest LSN, or the last one ends below it.
    RecordsMissing,
    /// A sealed segment's footer is missing, damaged or contradicts its frames.
    FooterIgnored,
    /// Bytes of a segment that hold no record of the log.
    DeadBytes,
    /// A record that a sync had promised is not there.
    RecordMissing,
    /// A batch of which a part is missing, at the end of the log: cut whole.
    BatchCut,
    /// Bytes after the last kept record.
    TornTail,
    /// The last segment is sealed and has no successor yet.
    TailSealed,
    /// The log was being made: it holds no record and no identity.
    CreationUnfinished,
    /// The last segment holds nothing that shows that its name is durable.
    TailBare,
    /// Records that no sync is known to have promised.
    Unproven,
    /// A slot is invalid and not zeros, or its header is not the segment's.
    SlotIgnored,
    /// A prepared file that is not a segment.
    Spare,
    /// A file that is none of the log's.
    Stray,
    /// The segment was judged without its log: whether it has a successor is not known.
    SuccessorUnseen,
    /// Bytes beside the header and the slots that must be zero and are not.
    GapDamaged,
    /// The file of the cursors is damaged, or another log's.
    CursorsDamaged,
    /// A copy of a cursor is neither zeros nor valid, and the other one is.
    CursorIgnored,
    /// A cursor stands after the end of the log: what it had seen is gone.
    CursorAhead,
    /// A full disk refused the slot that states a trim: the oldest LSN may go back with a power
    /// loss until a slot is written.
    TrimUnproven,
    /// What a live writer had not finished while it was looked at.
    InFlight,
}

impl FindingKind {
    /// The kind's name in lower-case snake case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SegmentsGone => "segments_gone",
            Self::LockDamaged => "lock_damaged",
            Self::VersionUnsupported => "version_unsupported",
            Self::HeaderDamaged => "header_damaged",
            Self::HeaderFromSlot => "header_from_slot",
            Self::SegmentForeign => "segment_foreign",
            Self::OrderBroken => "order_broken",
            Self::Leftover => "leftover",
            Self::RecordsMissing => "records_missing",
            Self::FooterIgnored => "footer_ignored",
            Self::DeadBytes => "dead_bytes",
            Self::RecordMissing => "record_missing",
            Self::BatchCut => "batch_cut",
            Self::TornTail => "torn_tail",
            Self::TailSealed => "tail_sealed",
            Self::CreationUnfinished => "creation_unfinished",
            Self::TailBare => "tail_bare",
            Self::Unproven => "unproven",
            Self::SlotIgnored => "slot_ignored",
            Self::Spare => "spare",
            Self::Stray => "stray",
            Self::SuccessorUnseen => "successor_unseen",
            Self::GapDamaged => "gap_damaged",
            Self::CursorsDamaged => "cursors_damaged",
            Self::CursorIgnored => "cursor_ignored",
            Self::CursorAhead => "cursor_ahead",
            Self::TrimUnproven => "trim_unproven",
            Self::InFlight => "in_flight",
        }
    }

    /// What it means for the log, in a phrase.
    #[must_use]
    pub const fn consequence(self) -> &'static str {
        match self {
            Self::SegmentsGone => "the segments of the log are gone",
            Self::LockDamaged => "the lock file is damaged",
            Self::VersionUnsupported => "the segment needs a newer version of this program",
            Self::HeaderDamaged => "the header of the segment and both its copies are damaged",
            Self::HeaderFromSlot => "the header of the segment is damaged and a copy stands in",
            Self::SegmentForeign => "the segment does not belong here",
            Self::OrderBroken => "the order of the segments is contradictory",
            Self::Leftover => "the segment was trimmed and holds no record of the log",
            Self::RecordsMissing => "records from the oldest LSN on are missing",
            Self::FooterIgnored => "the footer is ignored and the segment is read in full",
            Self::DeadBytes => "the bytes hold no record of the log",
            Self::RecordMissing => "a durable record is missing or damaged",
            Self::BatchCut => "an unfinished batch that was never acknowledged is left out",
            Self::TornTail => "bytes that were never acknowledged are left out",
            Self::TailSealed => "the next append starts a segment",
            Self::CreationUnfinished => "the log was being made and holds nothing",
            Self::TailBare => "the next append starts a segment",
            Self::Unproven => "a writer writes the records again before it vouches for them",
            Self::SlotIgnored => "the slot is ignored",
            Self::Spare => "the spare is ignored",
            Self::Stray => "the file is ignored",
            Self::SuccessorUnseen => "the segment was judged by itself",
            Self::GapDamaged => "no record is concerned",
            Self::CursorsDamaged => "where the cursors stand is not known and nothing is trimmed",
            Self::CursorIgnored => "the copy is ignored and the other one counts",
            Self::CursorAhead => "durable records that the cursor had seen are gone",
            Self::TrimUnproven => "the trim is stated again before anything relies on it",
            Self::InFlight => "a writer is at work there",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
