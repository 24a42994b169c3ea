//! The messages of one vchannel.

use std::time::Duration;

use oncelog_format::message::{Property, Vchannel};

use super::{MessageReader, StoredMessage};
use crate::error::Result;
use crate::lsn::Lsn;

/// Shows the messages of one vchannel, out of all of its pchannel's.
#[derive(Debug)]
pub struct VchannelReader {
    inner: Box<dyn MessageReader>,
    vchannel: String,
}

impl VchannelReader {
    /// Shows what `inner` reads and `vchannel` is named in.
    #[must_use]
    pub fn new(inner: Box<dyn MessageReader>, vchannel: impl Into<String>) -> Self {
        Self { inner, vchannel: vchannel.into() }
    }
}

impl MessageReader for VchannelReader {
    fn next(&mut self) -> Result<Option<StoredMessage>> {
        loop {
            let next = self.inner.next();
            let stored = match next {
                // What is not whole any more is another one's.
                Err(_) if self.inner.lost_of().is_some_and(|name| name != self.vchannel) => {
                    continue;
                }
                Ok(None) => return Ok(None),
                Ok(Some(stored)) => stored,
                Err(e) => return Err(e),
            };
            // Compared as bytes: a name that is none belongs to nobody.
            if stored.message()?.value(Vchannel::KEY) == Some(self.vchannel.as_bytes()) {
                return Ok(Some(stored));
            }
        }
    }

    fn next_lsn(&self) -> Lsn {
        self.inner.next_lsn()
    }

    fn lost_of(&self) -> Option<&str> {
        self.inner.lost_of()
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        self.inner.wait(timeout)
    }
}
