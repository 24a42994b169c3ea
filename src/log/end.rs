//! The two ends of a log's life: trimming its begin, and closing it.

use super::dir::Fault;
use super::tail::Tail;
use super::writer::{Guard, Shared, closed, poisoned, recycle};
use crate::error::{Error, ErrorKind, Result};

impl Shared {
    /// Drops the records below `oldest`: first both slots say so, durably, then the segments go
    /// that hold no other record.
    pub(crate) fn trim(&self, oldest: u64) -> Result<()> {
        let mut gate = self.gate();
        loop {
            gate.check_open()?;
            if oldest > gate.next_lsn {
                let what = format!("expected at most LSN {}, the next one", gate.next_lsn);
                return Err(Error::new(ErrorKind::InvalidInput, what).at_lsn(oldest));
            }
            gate.holds.check(oldest)?;
            if oldest <= gate.oldest && gate.leftovers.is_empty() && gate.trimmed_count() == 0 {
                return Ok(());
            }
            if gate.rolling || gate.tail.is_none() {
                gate = self.wait(gate);
            } else if gate.tail.as_ref().is_some_and(|tail| tail.bare) {
                let (behind, rolled) = self.roll(gate, 0);
                gate = behind;
                rolled?;
            } else if gate.durable.lsn.saturating_add(1) < oldest {
                gate = self.lead(gate, true);
            } else {
                return self.trim_durable(gate, oldest);
            }
        }
    }

    fn trim_durable(&self, gate: Guard<'_>, oldest: u64) -> Result<()> {
        let (mut gate, tail) = self.take_tail(gate);
        let oldest = oldest.max(gate.oldest);
        // Others had the gate while this waited for the tail.
        if let Err(held) = gate.holds.check(oldest) {
            gate.tail = Some(tail);
            drop(self.settle(gate));
            return Err(held);
        }
        gate.holds.begin_trim(oldest);
        let durable = gate.stated_by_slot();
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::TrimUnlinksFirst) {
            let (mut gate, tail, ()) = self.with_tail(gate, tail, |_| ());
            gate.oldest = oldest;
            let (mut gate, failure) = self.let_go(gate, tail, true);
            drop(failure);
            let Some(tail) = gate.tail.take() else { return Ok(()) };
            let (mut gate, tail, stated) = self.with_tail(gate, tail, |tail| {
                tail.write_slot_synced(durable, oldest).map_err(Fault::into_error)
            });
            gate.tail = Some(tail);
            drop(self.settle(gate));
            return stated;
        }
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
        match both {
            Ok(()) => {
                let (gate, failure) = self.let_go(gate, tail, first);
                drop(self.settle(gate));
                failure.map_or(Ok(()), Err)
            }
            Err(fault) => {
                gate.tail = Some(tail);
                let error = match fault {
                    Fault::Refused(e) => Err(e),
                    Fault::Final(e) => {
                        gate.set_poison(e);
                        gate.check_open()
                    }
                };
                drop(self.settle(gate));
                error
            }
        }
    }

    /// Removes the segments wholly below the oldest LSN, and puts the tail back.
    fn let_go<'a>(
        &'a self,
        mut gate: Guard<'a>,
        tail: Tail,
        trimmed: bool,
    ) -> (Guard<'a>, Option<Error>) {
        let count = if trimmed { gate.trimmed_count() } else { 0 };
        let mut paths = std::mem::take(&mut gate.leftovers);
        paths.extend(gate.segments.drain(..count).map(|segment| segment.path));
        let (mut gate, tail, (kept, failure)) =
            self.with_tail(gate, tail, |_| self.remove_all(paths));
        gate.leftovers.extend(kept);
        gate.tail = Some(tail);
        (gate, failure)
    }

    /// Syncs what was appended, has a slot say so, and refuses everything from here on. The lock
    /// of the directory is the caller's to release.
    ///
    /// # Errors
    ///
    /// `Closed` when it was closed before, `Poisoned` with the first cause, `Io` when a last write
    /// or sync failed.
    pub(crate) fn close(&self) -> Result<()> {
        let mut gate = self.gate();
        if gate.closed {
            return Err(closed());
        }
        gate.closed = true;
        self.turned.notify_all();
        while gate.rolling {
            gate = self.wait(gate);
        }
        gate = self.wait_unfilled(gate);
        let (mut gate, tail) = self.take_tail(gate);
        let group = std::mem::take(&mut gate.queue);
        let (from, upto) = (gate.written.offset, gate.mark());
        let healthy = gate.poison.clone();
        let (sync, oldest) = (gate.durable.lsn < upto.lsn, gate.oldest);
        let (mut gate, tail, closed) = self.with_tail(gate, tail, |tail| {
            if let Some(cause) = healthy {
                return Err(Fault::Refused(poisoned(&cause)));
            }
            tail.write_frames(&group, from).map_err(Fault::Final)?;
            if sync { tail.sync().map_err(Fault::Final) } else { Ok(()) }
        });
        recycle(&mut gate, group);
        let (mut gate, tail, closed) = match closed {
            Ok(()) => {
                (gate.written, gate.durable) = (upto, upto);
                self.with_tail(gate, tail, |tail| last_slot(tail, upto, oldest))
            }
            Err(fault) => (gate, tail, Err(fault)),
        };
        gate.tail = Some(tail);
        gate.stop = true;
        let closed = closed.map_err(|fault| match fault {
            Fault::Refused(e) => e,
            Fault::Final(e) => {
                gate.set_poison(e);
                gate.poison.as_ref().map_or_else(super::writer::closed, poisoned)
            }
        });
        self.wanted.notify_all();
        drop(self.settle(gate));
        closed
    }
}

/// Damage to the last group is only seen as such when something vouches for it.
fn last_slot(
    tail: &mut Tail,
    durable: super::tail::Mark,
    oldest: u64,
) -> std::result::Result<(), Fault> {
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::NoCloseSlot) {
        return Ok(());
    }
    if tail.bare { Ok(()) } else { tail.state(durable, oldest) }
}
