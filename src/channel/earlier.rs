//! Messages read a second time: chunks that stand before the place where reading began.

use std::fmt;

use bytes::Bytes;
use oncelog_format::message::TimeTick;

use crate::error::{Error, ErrorKind, Result};
use crate::log::{Log, LogView, Reader, RecordKind};
use crate::lsn::Lsn;

/// Reads messages of a channel a second time.
///
/// Methods added later have a default, so that an implementation goes on compiling.
pub trait Earlier: fmt::Debug + Send {
    /// The oldest LSN that is there.
    fn oldest(&self) -> Lsn;

    /// The LSN below which no message stands whose frame is as old as a time tick, or younger; not
    /// below the oldest one.
    ///
    /// # Errors
    ///
    /// Those of reading the channel.
    fn begin(&mut self, tick: TimeTick) -> Result<Lsn>;

    /// Shows the messages from an LSN on and below another one, in order; those that are trimmed
    /// are gone.
    ///
    /// # Errors
    ///
    /// Those of reading the channel, and the first one of `see`.
    fn each(
        &mut self,
        from: Lsn,
        below: Lsn,
        see: &mut dyn FnMut(Lsn, &Bytes) -> Result<()>,
    ) -> Result<()>;
}

impl Earlier for Log {
    fn oldest(&self) -> Lsn {
        self.oldest_lsn()
    }

    fn begin(&mut self, tick: TimeTick) -> Result<Lsn> {
        self.seek_time(begin_ms(tick)).or_else(oldest)
    }

    fn each(
        &mut self,
        from: Lsn,
        below: Lsn,
        see: &mut dyn FnMut(Lsn, &Bytes) -> Result<()>,
    ) -> Result<()> {
        let reader = match self.reader(from) {
            Err(e) => self.reader(oldest(e)?)?,
            Ok(reader) => reader,
        };
        show(reader, below, see)
    }
}

impl Earlier for &LogView {
    fn oldest(&self) -> Lsn {
        self.oldest_lsn()
    }

    fn begin(&mut self, tick: TimeTick) -> Result<Lsn> {
        self.seek_time(begin_ms(tick)).or_else(oldest)
    }

    fn each(
        &mut self,
        from: Lsn,
        below: Lsn,
        see: &mut dyn FnMut(Lsn, &Bytes) -> Result<()>,
    ) -> Result<()> {
        let reader = match self.reader(Some(from)) {
            Err(e) => self.reader(Some(oldest(e)?))?,
            Ok(reader) => reader,
        };
        show(reader, below, see)
    }
}

/// The time from which on frames may hold a tick: it is not ahead of its frame, but for a count
/// that was full.
fn begin_ms(tick: TimeTick) -> u64 {
    tick.ms().saturating_sub(1)
}

fn show(
    mut reader: Reader,
    below: Lsn,
    see: &mut dyn FnMut(Lsn, &Bytes) -> Result<()>,
) -> Result<()> {
    while reader.next_lsn() < below {
        match reader.next() {
            Ok(Some(record)) if record.lsn < below => {
                if record.kind == RecordKind::MESSAGE {
                    see(record.lsn, &record.payload)?;
                }
            }
            Ok(_) => return Ok(()),
            Err(e) => {
                let oldest = oldest(e)?;
                reader.seek(oldest.max(reader.next_lsn().next()));
            }
        }
    }
    Ok(())
}

/// What is left where retention was faster; any other error is one.
fn oldest(e: Error) -> Result<Lsn> {
    match e.lsn() {
        Some(oldest) if e.kind() == ErrorKind::Trimmed => Ok(oldest),
        _ => Err(e),
    }
}
