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
    /// Shows the messages below an LSN in order, at least those whose frame is not older than the
    /// time tick; those that are trimmed are gone.
    ///
    /// # Errors
    ///
    /// Those of reading the channel, and the first one of `see`.
    fn each(
        &mut self,
        from: TimeTick,
        below: Lsn,
        see: &mut dyn FnMut(&Bytes) -> Result<()>,
    ) -> Result<()>;
}

impl Earlier for Log {
    fn each(
        &mut self,
        from: TimeTick,
        below: Lsn,
        see: &mut dyn FnMut(&Bytes) -> Result<()>,
    ) -> Result<()> {
        let from = self.seek_time(begin_ms(from))?;
        let reader = match self.reader(from) {
            Err(e) => self.reader(oldest(e)?)?,
            Ok(reader) => reader,
        };
        show(reader, below, see)
    }
}

impl Earlier for &LogView {
    fn each(
        &mut self,
        from: TimeTick,
        below: Lsn,
        see: &mut dyn FnMut(&Bytes) -> Result<()>,
    ) -> Result<()> {
        let from = match self.seek_time(begin_ms(from)) {
            Err(e) => oldest(e)?,
            Ok(from) => from,
        };
        show(self.reader(Some(from))?, below, see)
    }
}

/// The time from which on frames may hold a tick: it is not ahead of its frame, but for a count
/// that was full.
fn begin_ms(tick: TimeTick) -> u64 {
    tick.ms().saturating_sub(1)
}

fn show(mut reader: Reader, below: Lsn, see: &mut dyn FnMut(&Bytes) -> Result<()>) -> Result<()> {
    while reader.next_lsn() < below {
        match reader.next() {
            Ok(Some(record)) if record.lsn < below => {
                if record.kind == RecordKind::MESSAGE.as_u8() {
                    see(&record.payload)?;
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
    match e.lsn().and_then(Lsn::new) {
        Some(oldest) if e.kind() == ErrorKind::Trimmed => Ok(oldest),
        _ => Err(e),
    }
}
