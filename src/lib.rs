//! A write-ahead log storage engine with exactly-once broadcast.
//!
//! [`Log`] is an append-only, segmented, checksummed log for one writer and any number of readers.
//! What its bytes mean, and what recovery concludes from them, is SPEC.md.
//! [`broadcast::Broadcaster`] sends one message to many channels, each a log, once per key,
//! whatever crashes meanwhile.
//!
//! ```
//! use oncelog::{CreateMode, Log, Lsn, Options};
//!
//! # fn main() -> oncelog::Result<()> {
//! # let home = tempfile::tempdir().expect("a directory");
//! # let dir = home.path().join("log");
//! let options = Options::new().create(CreateMode::IfMissing);
//! let (log, report) = Log::open(&dir, &options)?;
//! assert!(report.findings.is_empty());
//!
//! log.append(b"survives a power loss once this returns")?;
//! let mut reader = log.reader(Lsn::FIRST)?;
//! while let Some(record) = reader.next()? {
//!     println!("{}: {:?}", record.lsn, record.payload);
//! }
//! log.close()
//! # }
//! ```
//!
//! # Where to begin
//!
//! | to | begin with |
//! | --- | --- |
//! | append records and read them | [`Log`], [`Options`], [`Batch`], [`Durability`] |
//! | follow the log | [`Log::subscribe`], [`Subscription`] |
//! | keep what a consumer still needs, across restarts | [`Log::cursor`], [`Cursor`] |
//! | drop what is old | [`Retention`], [`Log::trim`], [`Log::why_not_trimmed`] |
//! | read beside the writer, from another process | [`LogView`] |
//! | copy a log while it is written | [`Log::backup`] |
//! | broadcast with a key, once | [`Store`], [`broadcast::Broadcaster`], [`broadcast::MessageType`] |
//! | know what to do after an error | [`ErrorKind`], [`Error::is_retryable`] |
//! | take bytes apart | [`format`](mod@format) |
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | none | the log and the broadcaster |
//! | `gateway` | the HTTP service, with `import` and `metrics`: module `gateway` |
//! | `import` | bulk import from Parquet, JSON, JSON Lines, CSV and NumPy: module `import` |
//! | `metrics` | [`Log::stats`] and those of a broadcaster for the `metrics` facade: `Meter` |
//! | `openraft` | the log as the log storage of a raft node: module `raft` |
//! | `testing` | a file system in memory that loses what was not synced: module `testing` |
//! | `cli` | the program `oncelog` |
//!
//! # Threads and runtimes
//!
//! The crate is blocking at heart and works without an async runtime. [`Pending`] is a future on
//! any runtime; [`Log::append_async`] and [`broadcast::Broadcaster::submit_async`] are the front
//! for tasks of tokio, whose threads never wait for a disk.

#[cfg(not(target_os = "linux"))]
compile_error!("oncelog runs on Linux: what its promises need of a system is known there alone");

pub mod broadcast;
pub mod channel;
mod clock;
mod error;
#[cfg(feature = "gateway")]
pub mod gateway;
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
mod told;

pub use crate::clock::{Clock, ClockLimits, LogTime, SystemClock};
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::histogram::{Bucket, Histogram};
pub use crate::log::{
    BackupReport, Batch, Check, CreateMode, Cursor, Delivery, Durability, Durable, Fill, Finding,
    FindingKind, Holder, HolderKind, Log, LogStats, LogView, Options, Pending, Pin, Reader, Record,
    RecordKind, RecoveryReport, Retention, SegmentInfo, Severity, Subscription, TornEnd,
    TrimReport, VerifySummary, WaitPolicy,
};
pub use crate::lsn::{Lsn, LsnRange, SegmentId};
#[cfg(feature = "metrics")]
pub use crate::meter::Meter;
/// The codec, whose types stand in signatures of this crate: messages, control records, identities.
pub use oncelog_format as format;
pub use oncelog_format::Uuid;

/// What tests of this crate and of its users need: a file system in memory that loses what was not
/// synced, and faults at chosen calls.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    pub use crate::broadcast::waiting::tell_waits;
    pub use crate::io::fault::{
        CallKind, Dice, EDQUOT, EINTR, EIO, EMFILE, ENOSPC, EROFS, Fault, Which, is_stopped,
    };
    pub use crate::io::mem::{Machine, MemIo, Unsynced, survivors};

    /// The decision table of SPEC section 12 as recovery asks it, for tests that walk it.
    pub mod rows {
        pub use crate::log::decision::{
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
