//! Room for a batch before it is there: for who decides under a lock of its own what the batch is,
//! and would have others wait for a write or a roll behind that.

use super::Log;
use super::reserve::Use;
use super::writer::{Gate, Shared};
use crate::error::Result;

impl Gate {
    /// Whether so many bytes go into the buffer without a wait or I/O. Of a reserve it says nothing.
    fn takes_at_once(&self, bytes: u64, buffer_bytes_max: u64) -> bool {
        !self.rolling && self.has_room(bytes) && self.may_buffer(bytes, buffer_bytes_max)
    }
}

impl Shared {
    fn make_room(&self, bytes: u64) -> Result<()> {
        let mut gate = self.gate();
        loop {
            gate.check_open()?;
            if gate.rolling {
                gate = self.wait(gate);
            } else if !gate.has_room(bytes) {
                // A reserve is for who has something to end.
                let (behind, rolled) = self.roll_for(gate, bytes, Use::New(0), &mut None);
                gate = behind;
                rolled?;
            } else if !gate.may_buffer(bytes, self.buffer_bytes_max) {
                gate = if gate.tail.is_some() { self.lead(gate, false) } else { self.wait(gate) };
            } else {
                return Ok(());
            }
        }
    }
}

impl Log {
    /// Says whether a batch of so many bytes, frames included, can be enqueued without a wait or
    /// I/O, unless others come first.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let shared = &self.handle.shared;
        shared.gate().takes_at_once(bytes.min(shared.batch_bytes_max), shared.buffer_bytes_max)
    }

    /// Waits until that is so; starts a segment where the batch does not fit.
    ///
    /// # Errors
    ///
    /// Those of an append; where there is no space for a segment, `StoreFull`, also if what ends
    /// work would find some.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<()> {
        let shared = &self.handle.shared;
        shared.make_room(bytes.min(shared.batch_bytes_max))
    }
}
