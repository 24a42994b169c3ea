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
        while let Some(stored) = self.inner.next()? {
            // Compared as bytes: a name that is none belongs to nobody.
            if stored.message()?.value(Vchannel::KEY) == Some(self.vchannel.as_bytes()) {
                return Ok(Some(stored));
            }
        }
        Ok(None)
    }

    fn next_lsn(&self) -> Lsn {
        self.inner.next_lsn()
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        self.inner.wait(timeout)
    }
}
