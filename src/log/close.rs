//! Closing a log: the last group, its sync, and a slot that vouches for it.

use super::dir::Fault;
use super::group::recycle;
use super::stats::Synced;
use super::tail::{Mark, Tail};
use super::writer::{Shared, closed, poisoned};
use crate::error::Result;

impl Shared {
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
        self.trim_wanted.notify_all();
        while gate.rolling || gate.kept.is_making() {
            gate = self.wait(gate);
        }
        gate = self.wait_unfilled(gate);
        let (mut gate, tail) = self.take_tail(gate);
        let group = std::mem::take(&mut gate.queue);
        let (from, upto) = (gate.written.offset, gate.mark());
        let counted = gate.group_of(group.len());
        let healthy = gate.poison.clone();
        let (sync, oldest) = (gate.durable.lsn < upto.lsn, gate.oldest);
        let (mut gate, tail, closed) = self.with_tail(gate, tail, |tail| {
            if let Some(cause) = healthy {
                return Err(Fault::Refused(poisoned(&cause)));
            }
            tail.write_frames(&group, from).map_err(Fault::Final)?;
            let synced = if sync { Synced::time(|| tail.sync()) } else { Ok(None) };
            synced.map_err(Fault::Final)
        });
        recycle(&mut gate, group);
        let (mut gate, tail, closed) = match closed {
            Ok(synced) => {
                gate.stats.count_group(counted, sync, synced);
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
fn last_slot(tail: &mut Tail, durable: Mark, oldest: u64) -> std::result::Result<(), Fault> {
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::NoCloseSlot) {
        return Ok(());
    }
    if tail.bare { Ok(()) } else { tail.state(durable, oldest) }
}
