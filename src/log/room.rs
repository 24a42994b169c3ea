//! Room for a batch before it is there: for who decides under a lock of its own what the batch is,
//! and would have others wait for a write or a roll behind that.

use oncelog_format::limits::FRAMES_OFFSET;

use super::Log;
use super::reserve::Use;
use super::writer::{Gate, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

impl Gate {
    /// Whether the tail takes records, and holds none.
    fn is_empty(&self) -> bool {
        !self.must_roll && self.end == FRAMES_OFFSET
    }

    /// Whether so many bytes go into the buffer without a wait or I/O. Of a reserve it says
    /// nothing.
    fn takes_at_once(&self, bytes: u64, buffer_bytes_max: u64) -> bool {
        !self.rolling && self.has_room(bytes) && self.may_buffer(bytes, buffer_bytes_max)
    }
}

impl Shared {
    /// Starts a segment where so many bytes do not fit into the tail.
    fn begin_segment(&self, bytes: u64, batch: u64, usage: Use) -> Result<()> {
        let (mut gate, mut full) = (self.gate(), None);
        loop {
            gate.check_open()?;
            if gate.rolling {
                gate = self.wait(gate);
            } else if gate.has_room(bytes) || gate.is_empty() {
                return Ok(());
            } else {
                let before = gate.number_max;
                let (behind, rolled) = self.roll_for(gate, batch, usage, &mut full);
                gate = behind;
                rolled?;
                // Where there was no space the next attempt may take the reserve.
                if gate.number_max != before {
                    return Ok(());
                }
            }
        }
    }

    fn make_room(&self, bytes: u64, new: Option<u64>) -> Result<()> {
        let (mut gate, mut full) = (self.gate(), None);
        loop {
            gate.check_open()?;
            if gate.rolling {
                gate = self.wait(gate);
            } else if !gate.has_room(bytes) {
                if let Some(promised) = new {
                    self.check_new(&gate, bytes, Use::New(promised))?;
                }
                // A reserve is for who has something to end.
                let (behind, rolled) = self.roll_for(gate, bytes, Use::New(0), &mut full);
                gate = behind;
                rolled?;
            } else if !gate.may_buffer(bytes, self.buffer_bytes_max) {
                gate = if gate.tail.is_some() { self.lead(gate, false) } else { self.wait(gate) };
            } else {
                return Ok(());
            }
        }
    }

    /// No segment takes the space that a reserve is to be made of, and the tail of a log that takes
    /// in nothing new stays as it is.
    fn check_new(&self, gate: &Gate, bytes: u64, usage: Use) -> Result<()> {
        if let Some(e) = self.beyond_limits(gate, usage) {
            return Err(e);
        }
        if gate.missing_reserve(bytes, usage).is_some() {
            return Err(Error::new(ErrorKind::StoreFull, "first a reserve is to be made"));
        }
        Ok(())
    }
}

impl Log {
    /// Says whether a batch of so many bytes, frames included, can be enqueued without a wait or
    /// I/O, unless others come first.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let shared = &self.handle.shared;
        shared.gate().takes_at_once(bytes.min(shared.batch_bytes_max), shared.buffer_bytes_max)
    }

    /// Bytes of the segments that hold no record at or above an LSN: what a trim to it lets go of.
    pub(crate) fn bytes_below(&self, oldest: Lsn) -> u64 {
        let gate = self.handle.shared.gate();
        let nexts = gate.segments.iter().skip(1).map(|next| next.header.first_lsn);
        let whole = gate.segments.iter().zip(nexts).take_while(|(_, next)| *next <= oldest.get());
        whole.fold(0, |sum, (segment, _)| sum.saturating_add(segment.bytes))
    }

    /// Bytes in use of a tail in which so many more do not fit.
    pub(crate) fn tail_bytes_without_room(&self, bytes: u64) -> Option<u64> {
        let gate = self.handle.shared.gate();
        (!gate.has_room(bytes)).then_some(gate.end)
    }

    /// Starts a segment where so many bytes, which end work, do not fit into the tail: with room
    /// for a batch, of the reserve where there is no other, of which so many bytes are left.
    ///
    /// # Errors
    ///
    /// Those of a roll; `StoreFull` also where the reserve holds less.
    pub(crate) fn begin_segment(&self, bytes: u64, batch: u64, left: u64) -> Result<()> {
        self.handle.shared.begin_segment(bytes, batch, Use::Ending(left))
    }

    /// Waits until that is so; starts a segment where the batch does not fit. `new` says that it is
    /// new work, and how many bytes were promised by then.
    ///
    /// # Errors
    ///
    /// Those of an append; where there is no space for a segment, `StoreFull`, also if what ends
    /// work would find some. For new work also, before a byte is written, where the reserve does
    /// not hold what was promised: [`Log::promise`] comes first.
    pub(crate) fn make_room(&self, bytes: u64, new: Option<u64>) -> Result<()> {
        let shared = &self.handle.shared;
        shared.make_room(bytes.min(shared.batch_bytes_max), new)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::mem::MemIo;
    use crate::log::{CreateMode, Options};

    /// A segment took the space that the reserve was to be made of, and then the work was refused
    /// for want of one.
    #[test]
    fn new_work_starts_no_segment_before_there_is_a_reserve() {
        let options = Options::new().create(CreateMode::IfMissing).background(false);
        let options = options.segment_bytes_max(64 << 10).keep_reserve();
        let options = options.io(Arc::new(MemIo::default()));
        let (log, _) = Log::open("/log", &options).unwrap();
        while log.has_room(5_000) {
            log.append(&[7; 4_000]).unwrap();
        }
        // A reserve is there, which holds less.
        let refused = log.make_room(5_000, Some(60_000)).unwrap_err();
        assert_eq!((refused.kind(), log.stats().rolls), (ErrorKind::StoreFull, 0));
        log.promise(60_000).unwrap();
        log.make_room(5_000, Some(60_000)).unwrap();
        assert!(log.has_room(5_000));
        assert_eq!(log.stats().rolls, 1);
        log.close().unwrap();
    }
}
