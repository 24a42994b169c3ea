//! A write-ahead log storage engine with exactly-once broadcast.
//!
//! [`Log`] is an append-only, segmented, checksummed log for one writer and any number of readers.
//! What its bytes mean, and what recovery concludes from them, is SPEC.md.
//!
//! The crate is blocking at heart and works without an async runtime. [`Pending`] is a future on any
//! runtime; [`Log::append_async`] and [`broadcast::Broadcaster::submit_async`] are the front for
//! tasks of tokio, whose threads never wait for a disk.

#[cfg(not(target_os = "linux"))]
compile_error!("oncelog runs on Linux: what its promises need of a system is known there alone");

pub mod broadcast;
pub mod channel;
mod clock;
mod error;
mod histogram;
#[cfg(feature = "import")]
pub mod import;
pub mod io;
mod log;
mod lsn;
#[cfg(feature = "metrics")]
mod meter;
mod place;
#[cfg(planted)]
pub mod planted;
#[cfg(feature = "openraft")]
pub mod raft;
mod store;
mod sync;

pub use crate::clock::{Clock, ClockLimits, LogTime, SystemClock};
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::histogram::{Bucket, Histogram};
pub use crate::log::{
    BackupReport, Batch, Check, CreateMode, Cursor, Delivery, Durability, Durable, Fill, Finding,
    FindingKind, Holder, HolderKind, Log, LogStats, LogView, Options, Pending, Pin, Reader, Record,
    RecordKind, RecoveryReport, Retention, SegmentInfo, Severity, Subscription, TornEnd, Trimmed,
    VerifySummary, WaitPolicy,
};
pub use crate::lsn::{Lsn, LsnRange, SegmentId};
#[cfg(feature = "metrics")]
pub use crate::meter::Meter;

/// What tests of this crate and of its users need: a file system in memory that loses what was not
/// synced, and faults at chosen calls.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    pub use crate::io::fault::{
        CallKind, Dice, EDQUOT, EINTR, EIO, EMFILE, ENOSPC, EROFS, Fault, Which, is_stopped,
    };
    pub use crate::io::mem::{Machine, MemIo, Unsynced, survivors};

    /// The decision table of SPEC section 12 as recovery asks it, for tests that walk it.
    pub mod rows {
        pub use crate::log::rows::{
            End, Ending, FooterFound, FooterTaken, Head, HeaderFound, Identity, Row, of_begin,
            of_directory, of_end, of_head, of_leftover, of_order, of_sealed,
        };
    }
}
pub use crate::place::{Place, PlaceKind};
pub use crate::store::{Store, StoreOptions, StoreReport};

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Those of the guide as well.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
struct Guide;
