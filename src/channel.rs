//! Channels: where messages of vchannels are stored, whatever stores them.
//!
//! A [`ChannelLog`] is one pchannel: an ordered log of the messages of many vchannels. It stamps
//! each message, appends batches whole, and reads from any position on. What a message means, and
//! who may send it, is not its affair; it never sends anything twice on its own.

mod draft;
mod earlier;
mod filter;
mod local;
mod parts;
mod pins;
mod runs;
mod whole;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use oncelog_format::limits;
use oncelog_format::message::{Message, Properties, Property, TimeTick};
use oncelog_format::{DecodeError, DecodeErrorKind};

use crate::error::{Error, ErrorKind, Result};
use crate::log::{Holder, LogStats};
use crate::lsn::Lsn;

pub use earlier::Earlier;
pub use filter::VchannelReader;
pub use local::LocalChannel;
pub(crate) use local::tick_holder_of;
pub use runs::Runs;
#[cfg(feature = "import")]
pub(crate) use runs::vchannel_of;
pub use whole::WholeReader;

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

/// A message on its way, or a chunk of one. Its properties name the vchannel (`_vc`); the channel
/// sets the version (`_v`), the time tick (`_tt`) and the last confirmed LSN (`_lc`), whatever they
/// were, but for one: a chunk of a run that begun in an earlier batch states that run's tick, and
/// keeps it. Another chunk behind the first of its run stands next to the one before it.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller at every append")]
pub struct Outgoing<'a> {
    /// Its properties.
    pub properties: Properties,
    /// Its payload.
    pub payload: &'a [u8],
}

/// A message as it stands; of one in chunks, LSN and time are those of the last chunk that came.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoredMessage {
    /// LSN in the log of the pchannel.
    pub lsn: Lsn,
    /// Time of its frame, in milliseconds since 1970-01-01 UTC.
    pub time_ms: u64,
    /// The encoded message.
    pub record: Bytes,
}

impl StoredMessage {
    /// Decodes the message.
    ///
    /// # Errors
    ///
    /// `Corrupt` where the bytes are no message.
    pub fn message(&self) -> Result<Message<'_>> {
        Message::decode(&self.record).map_err(|e| self.damage(e))
    }

    /// Decodes the typed value of a known key; `None` where the message has none.
    ///
    /// # Errors
    ///
    /// `Corrupt` where the bytes are no message, or the value is none of that type; `Unsupported`
    /// for a version that is not known.
    pub fn property<P: Property>(&self) -> Result<Option<P>> {
        self.message()?.property().map_err(|e| self.damage(e))
    }

    /// The payload, a slice of the record that shares its memory.
    ///
    /// # Errors
    ///
    /// `Corrupt` where the bytes are no message.
    pub fn payload(&self) -> Result<Bytes> {
        Ok(self.record.slice_ref(self.message()?.payload()))
    }

    pub(crate) fn damage(&self, e: DecodeError) -> Error {
        damaged(self.lsn, e)
    }
}

fn damaged(lsn: Lsn, e: DecodeError) -> Error {
    let kind = match e.kind {
        DecodeErrorKind::Unsupported { .. } => ErrorKind::Unsupported,
        _ => ErrorKind::Corrupt,
    };
    let what = "a message of a channel does not decode";
    Error::new(kind, what).at_lsn(lsn.get()).with_source(e)
}

/// Messages that were handed over and are not known to be durable. Dropping this changes nothing
/// but who is told.
///
/// Methods added later have a default, so that an implementation goes on compiling.
pub trait PendingMessages: fmt::Debug + Send {
    /// Waits until they are durable; returns where each stands, in order.
    ///
    /// # Errors
    ///
    /// `OutcomeUnknown`: whether they stand is unknown until the channel was reopened and read.
    fn wait(self: Box<Self>) -> Result<Vec<Position>>;

    /// Waits until they are durable or the time is over; says whether they are.
    ///
    /// # Errors
    ///
    /// As [`PendingMessages::wait`].
    fn wait_timeout(&self, timeout: Duration) -> Result<bool>;
}

/// Reads the durable messages of a pchannel in order.
///
/// Methods added later have a default, so that an implementation goes on compiling.
pub trait MessageReader: fmt::Debug + Send {
    /// The next message; `None` at the end as it is at this moment, and a later call may find one.
    ///
    /// # Errors
    ///
    /// `Trimmed` where retention was faster, with the LSN from which on messages are there: the
    /// oldest one; or the one behind a chunk whose first ones are gone, and then the next call goes
    /// on there. `Corrupt`, `Io`; `Closed` once the channel was closed or reopened: read again from
    /// [`MessageReader::next_lsn`].
    fn next(&mut self) -> Result<Option<StoredMessage>>;

    /// The LSN that the next call looks from.
    fn next_lsn(&self) -> Lsn;

    /// Of whose message the last call of [`MessageReader::next`] said `Trimmed`: the vchannel of one in
    /// chunks whose first ones are gone, which is all that is lost by that. `None` behind any other
    /// answer; a `Trimmed` is then about all that stood below its LSN.
    fn lost_of(&self) -> Option<&str> {
        None
    }

    /// Waits until there is something behind what was read, or the time is over; says whether
    /// there is. It need not be a message that this reader shows.
    ///
    /// # Errors
    ///
    /// `Poisoned` after a failed append: nothing comes before the channel is reopened; `Closed`.
    fn wait(&self, timeout: Duration) -> Result<bool>;
}

/// Holds the messages of a pchannel from an LSN on, until it is dropped.
#[derive(Debug)]
#[must_use = "the messages are held until this is dropped"]
pub struct ChannelPin {
    lsn: Lsn,
    _hold: Box<dyn fmt::Debug + Send + Sync>,
}

impl ChannelPin {
    /// Holds messages from `lsn` on for as long as `hold` is not dropped.
    pub fn new(lsn: Lsn, hold: impl fmt::Debug + Send + Sync + 'static) -> Self {
        Self { lsn, _hold: Box::new(hold) }
    }

    /// The oldest LSN that this holds.
    #[must_use]
    pub const fn lsn(&self) -> Lsn {
        self.lsn
    }
}

/// What a channel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelLimits {
    /// Largest encoded message in bytes; a larger one is sent in chunks.
    pub message_len_max: u64,
    /// Largest batch in bytes, with what frames add.
    pub batch_bytes_max: u64,
}

impl ChannelLimits {
    /// What a channel takes of what was accepted under other limits.
    pub(crate) const LARGEST: Self = Self {
        message_len_max: limits::RECORD_LEN_MAX as u64,
        batch_bytes_max: limits::BATCH_BYTES_MAX,
    };
}

/// One pchannel.
///
/// Methods added later have a default, so that an implementation goes on compiling.
pub trait ChannelLog: fmt::Debug + Send + Sync + 'static {
    /// Stamps the messages and hands them over as one batch, kept or lost whole. Their time ticks
    /// ascend, above every one before; the chunks of a run have one tick.
    ///
    /// # Errors
    ///
    /// A refusal: nothing was written. `InvalidInput` for no message, one without a vchannel, or a
    /// chunk that states no run and stands next to none; `Limit`, `StoreFull`; `Poisoned` after a
    /// failed append, `Closed`.
    ///
    /// # Durability
    ///
    /// None yet; the batch becomes durable whether or not anybody waits for it.
    fn enqueue(&self, messages: &[Outgoing<'_>]) -> Result<Box<dyn PendingMessages>>;

    /// The LSN behind the last durable message: what is enqueued later stands there or behind. It
    /// never moves back, not over a reopen either.
    fn end(&self) -> Lsn;

    /// The oldest LSN that can be read, or the end where there is none.
    fn oldest(&self) -> Lsn;

    /// As [`ChannelLog::enqueue`], for messages that [`ChannelLog::promise`] has counted: space that
    /// is kept for them takes them where there is no other, and they may be larger than what
    /// [`ChannelLog::limits`] takes by now.
    ///
    /// # Errors
    ///
    /// As [`ChannelLog::enqueue`].
    ///
    /// # Durability
    ///
    /// As [`ChannelLog::enqueue`].
    fn enqueue_promised(&self, messages: &[Outgoing<'_>]) -> Result<Box<dyn PendingMessages>> {
        self.enqueue(messages)
    }

    /// Makes sure that messages which are promised to come fit, so many bytes of them in all with
    /// what frames add, whatever becomes of the disk. It may take as long as it takes to write so
    /// many bytes; what is owed is said by [`ChannelLog::owe`].
    ///
    /// # Errors
    ///
    /// `StoreFull` where they would not fit, or where the channel is beyond the size it may have
    /// and somebody, who is named, keeps it from being trimmed; `Poisoned`, `Closed`.
    fn promise(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Says whether so many bytes of promised messages would fit as it is. It writes nothing, and
    /// waits for nobody who does: where it says no, [`ChannelLog::promise`] makes room.
    ///
    /// # Errors
    ///
    /// As [`ChannelLog::promise`].
    fn is_promised(&self, bytes: u64) -> Result<bool> {
        self.promise(bytes).map(|()| true)
    }

    /// Says how many bytes of messages that were promised are still to come: new work leaves them
    /// room, also where there is none by now. It makes none; the last call counts.
    fn owe(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Holds the messages from an LSN on, or from the end on, which is read in the same moment: no
    /// retention drops one until what is returned is dropped. An LSN outside of the channel is
    /// brought within it. The name is for whoever asks who keeps messages.
    ///
    /// # Errors
    ///
    /// `Poisoned` when the end was asked for, `Closed`.
    fn pin(&self, name: &str, from: Option<Lsn>) -> Result<ChannelPin> {
        let _ = name;
        Ok(ChannelPin::new(from.unwrap_or_else(|| self.end()), ()))
    }

    /// Who keeps messages, the holder of the oldest one first.
    fn holders(&self) -> Vec<Holder> {
        Vec::new()
    }

    /// Lets the channel's retention drop messages: everybody who needs some at its opening has
    /// pinned them by now.
    fn begin_retention(&self) {}

    /// Reads whole messages from an LSN on, which need not be there yet: those in chunks too whose
    /// last chunk came there, wherever the others stand. See [`WholeReader`].
    ///
    /// # Errors
    ///
    /// `Trimmed` below the oldest LSN, which the error carries. `Poisoned` after a failed append:
    /// that a message is absent counts only when it was read after a reopen. `Closed`.
    fn read(&self, from: Lsn) -> Result<Box<dyn MessageReader>>;

    /// Reads messages as they stand from an LSN on, chunk by chunk.
    ///
    /// # Errors
    ///
    /// As [`ChannelLog::read`].
    fn read_chunks(&self, from: Lsn) -> Result<Box<dyn MessageReader>>;

    /// Drops messages below an LSN, whole segments at a time; the newest message stays.
    ///
    /// # Errors
    ///
    /// Those of [`Log::trim`](crate::Log::trim): `StoreFull` where there is no space to say so,
    /// `Pinned` where somebody holds one of them, `Corrupt` while the cursors are damaged, `Io`,
    /// `OutcomeUnknown`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// That they are gone, before they go.
    fn trim(&self, below: Lsn) -> Result<()>;

    /// What it takes.
    fn limits(&self) -> ChannelLimits;

    /// What its log has done in this process, over reopens, and has at this moment; `None` where
    /// there is no log to count.
    fn stats(&self) -> Option<LogStats> {
        None
    }

    /// Opens the channel again after an append failed. Without a failure it makes durable what was
    /// handed over before, also where nobody waits for it. What stood unknown before is certain
    /// after it. Readers from before a failure answer `Closed`.
    ///
    /// # Errors
    ///
    /// Those of opening a log. The channel stays poisoned then, and this may be called again.
    fn reopen(&self) -> Result<()>;

    /// Syncs and closes the channel; later calls answer `Closed`.
    ///
    /// # Errors
    ///
    /// Those of closing a log.
    fn close(&self) -> Result<()>;
}
