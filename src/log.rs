//! The log.
mod facts;
mod finding;
mod options;
mod recover;
mod scan;
mod survey;
mod verify;
mod view;
mod walk;
pub use finding::*;
pub use options::*;
pub use verify::VerifySummary;
pub use view::{LogView, SegmentInfo, ViewReader};
/// A record TEMP.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Record {
    /// Its LSN.
    pub lsn: crate::Lsn,
    /// Its time in milliseconds since 1970-01-01 UTC.
    pub time_ms: u64,
    /// Its kind (SPEC 7).
    pub kind: u8,
    /// What the caller appended.
    pub payload: bytes::Bytes,
    /// The segment's file.
    pub segment: crate::SegmentId,
    /// Offset of its frame in the segment.
    pub offset: u64,
    /// Size of its frame in bytes, padding included.
    pub frame_bytes: u64,
    /// Whether it ends its batch.
    pub batch_end: bool,
    /// Whether a witness proves it durable.
    pub durable: bool,
}
