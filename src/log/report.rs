//! What opening a log found and did.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::finding::Finding;
use crate::lsn::{Lsn, SegmentId};

/// What [`crate::Log::open`] found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The log was made.
    pub created: bool,
    /// Segments of the log.
    pub segment_count: u64,
    /// LSN of the oldest record that retention left, or of the next one when there is none.
    pub oldest_lsn: Lsn,
    /// LSN of the last record that was kept; `None` when the log has never had one.
    pub last_lsn: Option<Lsn>,
    /// Records from `oldest_lsn` to `last_lsn`.
    pub record_count: u64,
    /// Greatest LSN with a witness. Records above it were written again, and synced.
    pub proven_lsn: Option<Lsn>,
    /// What was cut.
    pub torn: Option<TornEnd>,
    /// Segments that a trim had left behind. They hold no record of the log, and go in the
    /// background.
    pub leftovers: Vec<PathBuf>,
    /// How long it took.
    pub duration: Duration,
    /// Everything else worth telling.
    pub findings: Vec<Finding>,
}

/// Bytes after the last kept record that no sync had promised. They stay where they are, and the
/// next append starts a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TornEnd {
    /// Number of the segment.
    pub segment: SegmentId,
    /// Its file.
    pub path: PathBuf,
    /// Where the bytes are, in offsets within the file.
    pub bytes: Range<u64>,
}
