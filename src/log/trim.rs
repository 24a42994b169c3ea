//! Trimming the begin of a log: what is dropped is stated before a file goes.

use super::dir::Fault;
use super::reserve::Use;
use super::writer::{Guard, Shared};
use crate::error::{Error, ErrorKind, Result};

/// How many segments a trim has dropped, and how many bytes they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
}

impl Shared {
    /// Drops the records below `oldest`: first both slots say so, durably, then the segments leave
    /// the log that hold no other record. Their files go later.
    pub(crate) fn trim(&self, oldest: u64) -> Result<Dropped> {
        let is_new = {
            let gate = self.gate();
            gate.holds.check(gate.oldest, oldest)?;
            oldest > gate.oldest
        };
        if is_new {
            self.prove_cursors()?;
        }
        let mut gate = self.gate();
        let mut full = None;
        loop {
            gate.check_open()?;
            if oldest > gate.next_lsn {
                let what = format!("expected at most LSN {}, the next one", gate.next_lsn);
                return Err(Error::new(ErrorKind::InvalidInput, what).at_lsn(oldest));
            }
            gate.holds.check(gate.oldest, oldest)?;
            gate.removal.try_again();
            let is_stated = oldest <= gate.oldest && gate.trimmed_count() == 0;
            if is_stated && !gate.removal.has_waiting() {
                self.trim_wanted.notify_one();
                return Ok(Dropped::default());
            }
            if gate.rolling || gate.kept.is_making() || gate.tail.is_none() {
                gate = self.wait(gate);
            } else if gate.tail.as_ref().is_some_and(|tail| tail.bare) {
                // What frees space may use what is kept for it.
                let (behind, rolled) = self.roll_for(gate, 0, Use::Ending(0), &mut full);
                gate = behind;
                rolled?;
            } else if gate.durable.lsn.saturating_add(1) < oldest {
                gate = self.lead(gate, true);
            } else {
                return self.trim_durable(gate, oldest);
            }
        }
    }

    fn trim_durable(&self, gate: Guard<'_>, oldest: u64) -> Result<Dropped> {
        let (mut gate, tail) = self.take_tail(gate);
        let oldest = oldest.max(gate.oldest);
        // Others had the gate while this waited for the tail.
        if let Err(held) = gate.holds.check(gate.oldest, oldest) {
            gate.tail = Some(tail);
            drop(self.settle(gate));
            return Err(held);
        }
        gate.holds.begin_trim(oldest);
        let durable = gate.stated_by_slot();
        #[cfg(planted)]
        let gate = if crate::planted::is_active(crate::planted::Bug::TrimUnlinksFirst) {
            self.unlink_first(gate, oldest)
        } else {
            gate
        };
        // Both, one after the other: damage to one of them must not undo the trim.
        let (mut gate, tail, stated) = self.with_tail(gate, tail, |tail| {
            let first = tail.write_slot_synced(durable, oldest);
            (first.is_ok(), first.and_then(|()| tail.write_slot_synced(durable, oldest)))
        });
        gate.holds.end_trim();
        let (first, both) = stated;
        if first {
            // Any slot counts: whatever comes next, nothing below is promised any more.
            gate.oldest = oldest;
            gate.slot_lsn = gate.slot_lsn.max(durable.lsn);
        }
        gate.tail = Some(tail);
        let done = match both {
            Ok(()) => {
                let dropped = gate.let_go();
                gate.stats.count_trim(dropped.segments);
                Ok(dropped)
            }
            Err(Fault::Refused(e)) if e.kind() == ErrorKind::StoreFull => Err(e),
            // Whether the disk has it is not known, and a device that refuses a block that it has
            // taken before is not asked twice.
            Err(Fault::Refused(e) | Fault::Final(e)) => {
                gate.set_poison(e);
                gate.check_open().map(|()| Dropped::default())
            }
        };
        self.trim_wanted.notify_one();
        drop(self.settle(gate));
        done
    }

    #[cfg(planted)]
    fn unlink_first<'a>(&'a self, mut gate: Guard<'a>, oldest: u64) -> Guard<'a> {
        gate.oldest = oldest;
        gate.let_go();
        drop(gate);
        while self.remove_step() {}
        self.gate()
    }

    /// Has a durable slot state the oldest LSN, where a trim that was refused may stand in one: for
    /// somebody who is to be told that nothing below what he needs goes, and who has pinned it. The
    /// caller may hold the file of the cursors, and settles without it.
    pub(crate) fn state_oldest(&self) -> std::result::Result<(), Fault> {
        let (gate, tail) = self.take_tail(self.gate());
        let (mut gate, tail, stated) = match gate.check_open() {
            Ok(()) => self.restate(gate, tail),
            Err(e) => (gate, tail, Err(Fault::Refused(e))),
        };
        gate.tail = Some(tail);
        self.turn(&mut gate);
        stated
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use crate::error::ErrorKind;
    use crate::io::mem::MemIo;
    use crate::log::{CreateMode, Log, Options};
    use crate::lsn::Lsn;

    #[test]
    fn a_pin_that_was_granted_while_a_trim_waited_for_the_tail_holds_it_up() {
        let options = Options::new().create(CreateMode::IfMissing).background(false);
        let (log, _) = Log::open("/log", &options.io(Arc::new(MemIo::default()))).unwrap();
        (0..3).for_each(|_| assert!(log.append(b"x").is_ok()));
        let shared = &log.handle.shared;
        let pin = log.pin("reader", Lsn::FIRST).unwrap();
        // As far as the trim has come when it gets the tail.
        let held = shared.trim_durable(shared.gate(), 3).map_err(|e| e.kind());
        assert_eq!((held, log.oldest_lsn()), (Err(ErrorKind::Pinned), Lsn::FIRST));
        drop(pin);
        assert!(shared.trim_durable(shared.gate(), 3).is_ok());
        assert_eq!(log.oldest_lsn().get(), 3);
        log.append(b"y").unwrap();
    }
}
