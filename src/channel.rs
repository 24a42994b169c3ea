//! Channels: where messages of vchannels are stored, whatever stores them.
//!
//! A [`ChannelLog`] is one pchannel: an ordered log of messages of many vchannels. It gives time
//! ticks, appends batches whole, and reads from a position on. What a message means is not its
//! affair.

mod local;

use std::fmt;

use bytes::Bytes;
use oncelog_format::message::{Message, Properties, TimeTick};

use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

pub use local::LocalChannel;

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Position {
    /// LSN in the log of the pchannel.
    pub lsn: Lsn,
    /// Its time tick.
    pub time_tick: TimeTick,
}

impl Position {
    /// Names a place in the log of a pchannel.
    #[must_use]
    pub const fn new(lsn: Lsn, time_tick: TimeTick) -> Self {
        Self { lsn, time_tick }
    }
}

/// A message on its way: everything but what the channel stamps, time tick and last confirmed LSN.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller at every append")]
pub struct Outgoing<'a> {
    /// Its properties.
    pub properties: Properties,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Messages that were handed over and are not known to be durable.
pub trait PendingMessages: fmt::Debug + Send {
    /// Waits until they are durable; returns where each stands, in order.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Io`, `Closed`: whether they stand is unknown until the channel was reopened and
    /// read.
    fn wait(self: Box<Self>) -> Result<Vec<Position>>;
}

/// Reads the messages of a pchannel in order.
pub trait MessageReader: Send {
    /// Returns the next durable message, `None` at the end as it is now.
    ///
    /// # Errors
    ///
    /// `Io`, `Corrupt`, `Trimmed`.
    fn next(&mut self) -> Result<Option<StoredMessage>>;
}

/// A message as it stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoredMessage {
    /// LSN in the log of the pchannel.
    pub lsn: Lsn,
    /// Time of its frame, in milliseconds.
    pub time_ms: u64,
    /// The encoded message.
    pub record: Bytes,
}

impl StoredMessage {
    /// Decodes the message.
    ///
    /// # Errors
    ///
    /// `Corrupt` where the bytes are no message; `Unsupported` for a version that is not known.
    pub fn message(&self) -> Result<Message<'_>> {
        Message::decode(&self.record).map_err(|e| self.damage(e))
    }

    pub(crate) fn damage(&self, e: oncelog_format::DecodeError) -> Error {
        let kind = match e.kind {
            oncelog_format::DecodeErrorKind::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Corrupt,
        };
        Error::new(kind, "a message of a channel does not decode")
            .at_lsn(self.lsn.get())
            .with_source(e)
    }
}

/// What a channel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelLimits {
    /// Largest encoded message in bytes.
    pub message_len_max: u64,
    /// Largest batch in bytes, with what frames add.
    pub batch_bytes_max: u64,
}

/// One pchannel.
pub trait ChannelLog: fmt::Debug + Send + Sync + 'static {
    /// Stamps the messages and hands them over as one batch, kept or lost whole.
    ///
    /// # Errors
    ///
    /// `StoreFull`, `Limit`: refused, nothing was written. `Poisoned`, `Closed`: refused; earlier
    /// batches may be unknown. Any other: unknown.
    fn enqueue(&self, messages: &[Outgoing<'_>]) -> Result<Box<dyn PendingMessages>>;

    /// Returns the LSN behind the last durable message: what is enqueued later stands there or
    /// behind. It never moves back, not over a reopen either.
    fn end(&self) -> Lsn;

    /// Returns the oldest LSN that can be read.
    fn oldest(&self) -> Lsn;

    /// Reads from an LSN on.
    ///
    /// # Errors
    ///
    /// `Trimmed` below the oldest one; `Poisoned` where what stands is not certain before a reopen.
    fn read(&self, from: Lsn) -> Result<Box<dyn MessageReader>>;

    /// Drops what lies below an LSN, whole segments at a time.
    ///
    /// # Errors
    ///
    /// Those of the log.
    fn trim(&self, below: Lsn) -> Result<()>;

    /// Returns what it takes.
    fn limits(&self) -> ChannelLimits;

    /// Opens the channel again after an append failed; without a failure it does nothing.
    ///
    /// # Errors
    ///
    /// Those of opening a log.
    fn reopen(&self) -> Result<()>;

    /// Syncs and closes it; later calls answer `Closed`.
    ///
    /// # Errors
    ///
    /// Those of closing a log.
    fn close(&self) -> Result<()>;
}
