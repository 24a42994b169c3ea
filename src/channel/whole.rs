//! Whole messages out of a reader of chunks.

use std::time::Duration;

use super::runs::{Runs, vchannel_of};
use super::{Earlier, MessageReader, StoredMessage};
use crate::error::{ErrorKind, Result};
use crate::lsn::Lsn;

/// Hands over whole messages: one in chunks at the LSN where its last chunk came, with the time
/// tick that all of them carry, and never if one of them does not come; of one whose first chunks
/// are trimmed it says so.
#[derive(Debug)]
pub struct WholeReader {
    inner: Box<dyn MessageReader>,
    earlier: Box<dyn Earlier>,
    runs: Runs,
    /// Could not be taken, and is tried again.
    refused: Option<StoredMessage>,
    /// The vchannel of a message of which it was just said that it is not whole any more.
    lost_of: Option<String>,
}

impl WholeReader {
    /// Shows what `inner` reads, chunk by chunk; `earlier` reads the same channel again.
    #[must_use]
    pub fn new(inner: Box<dyn MessageReader>, earlier: Box<dyn Earlier>) -> Self {
        Self { inner, earlier, runs: Runs::new(), refused: None, lost_of: None }
    }
}

impl MessageReader for WholeReader {
    fn next(&mut self) -> Result<Option<StoredMessage>> {
        self.lost_of = None;
        loop {
            let stored = match self.refused.take() {
                Some(stored) => stored,
                None => match self.inner.next()? {
                    Some(stored) => stored,
                    None => return Ok(None),
                },
            };
            match self.runs.take(stored.lsn, &stored.record, &mut *self.earlier) {
                Ok(Some(record)) => return Ok(Some(StoredMessage { record, ..stored })),
                Ok(None) => {}
                // Once said, that is all there is of it.
                Err(e) if e.kind() == ErrorKind::Trimmed => {
                    self.lost_of = vchannel_of(&stored.record);
                    return Err(e);
                }
                Err(e) => {
                    self.refused = Some(stored);
                    return Err(e);
                }
            }
        }
    }

    fn next_lsn(&self) -> Lsn {
        self.refused.as_ref().map_or_else(|| self.inner.next_lsn(), |refused| refused.lsn)
    }

    fn lost_of(&self) -> Option<&str> {
        self.lost_of.as_deref()
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        if self.refused.is_some() { Ok(true) } else { self.inner.wait(timeout) }
    }
}
