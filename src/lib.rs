//! A write-ahead log storage engine with exactly-once broadcast.
//!
//! [`Log`] is an append-only, segmented, checksummed log for one writer and any number of readers.
//! What its bytes mean, and what recovery concludes from them, is SPEC.md.
//!
//! The crate is blocking at heart and works without an async runtime; [`Pending`] is a future for
//! callers that have one.

mod clock;
mod error;
pub mod io;
mod log;
mod lsn;
mod place;
#[cfg(planted)]
pub mod planted;

pub use crate::clock::{Clock, SystemClock};
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::log::{
    Batch, Check, CreateMode, Durability, Finding, FindingKind, Log, LogView, Options, Pending,
    Reader, Record, RecordKind, RecoveryReport, SegmentInfo, Severity, TornEnd, VerifySummary,
};
pub use crate::lsn::{Lsn, LsnRange, SegmentId};
pub use crate::place::{Place, PlaceKind};
