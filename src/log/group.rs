//! Group commit: one thread writes and syncs what all of them appended.
//!
//! Whoever waits and finds the tail free leads: it writes the whole queue with one write, syncs
//! once, and wakes those whose bytes it had taken. A waiter is covered only by a sync that began
//! after its bytes were written. A failure poisons the log under the same lock that admits
//! appends, so that nobody is told of a success after it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::options::WaitPolicy;
use super::stats::Synced;
use super::tail::Tail;
use super::wait::now;
use super::writer::{Gate, Guard, Shared, closed, poisoned, unknown};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;
use crate::told;

/// A buffer above this length is given back after its group.
const RECYCLE_BYTES: usize = 4 << 20;

/// Puts the tail back, also when the thread that has it panics: then the log is poisoned.
#[derive(Debug)]
struct Baton<'a> {
    shared: &'a Shared,
    tail: Option<Tail>,
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        if let Some(tail) = self.tail.take() {
            let mut gate = self.shared.gate();
            gate.set_poison(Error::new(ErrorKind::Io, "a thread panicked while it wrote"));
            gate.tail = Some(tail);
            gate.rolling = false;
            drop(self.shared.settle(gate));
        }
    }
}

impl Shared {
    /// Runs `work` on the tail without the lock, and locks again.
    pub(crate) fn with_tail<'a, T>(
        &'a self,
        gate: Guard<'a>,
        tail: Tail,
        work: impl FnOnce(&mut Tail) -> T,
    ) -> (Guard<'a>, Tail, T) {
        drop(gate);
        let mut baton = Baton { shared: self, tail: None };
        let done = work(baton.tail.insert(tail));
        let gate = self.gate();
        match baton.tail.take() {
            Some(tail) => (gate, tail, done),
            None => unreachable!("nothing takes the tail out of the baton"),
        }
    }

    /// Writes what waits, with one write, and with `sync` syncs it. The tail must be in the gate.
    /// Writes nothing after a failure or a close, which may have come while the caller gathered.
    pub(crate) fn lead<'a>(&'a self, mut gate: Guard<'a>, sync: bool) -> Guard<'a> {
        if gate.poison.is_some() || gate.stop {
            return gate;
        }
        if gate.closed {
            return self.wait(gate); // whoever closes writes what waits
        }
        if gate.is_caught_up() {
            // Nobody is to be met twice: the rest of the segment is left to the writers.
            gate.fill.over = true;
            gate.stats.fill_waits = gate.stats.fill_waits.saturating_add(1);
            return self.wait(gate);
        }
        let Some(tail) = gate.tail.take() else { return gate };
        let recycled = std::mem::take(&mut gate.recycled);
        let group = std::mem::replace(&mut gate.queue, recycled);
        let upto = gate.mark();
        let from = gate.written;
        let sync = sync && gate.durable.lsn < upto.lsn;
        gate.writing = group.len();
        let counted = gate.group_of(group.len());
        gate.called = false;
        gate.group = gate.group.wrapping_add(1);
        gate.syncing = if sync { upto.lsn } else { 0 };
        let taken = if sync { gate.callers.take() } else { 0 };
        let (mut gate, tail, done) = self.with_tail(gate, tail, |tail| {
            tail.write_frames(&group, from.offset)?;
            if sync { Synced::time(|| tail.sync()) } else { Ok(None) }
        });
        gate.tail = Some(tail);
        (gate.writing, gate.syncing) = (0, 0);
        gate.stats.count_group(counted, sync, done.as_ref().ok().copied().flatten());
        recycle(&mut gate, group);
        match done {
            // The filler's sync has failed meanwhile: what this one says of the same pages is not
            // trusted.
            Ok(_) if gate.poison.is_some() => {}
            Ok(_) => {
                gate.written = upto;
                if sync {
                    gate.callers.expect(taken);
                    gate.fill.syncs = gate.fill.syncs.saturating_add(1);
                    gate.durable = upto;
                    #[cfg(planted)]
                    if crate::planted::is_active(crate::planted::Bug::SyncCoversLater) {
                        gate.durable = gate.mark();
                    }
                }
            }
            #[cfg(planted)]
            Err(e) if refused_and_reused(&mut gate, &e, from) => {}
            Err(e) => gate.set_poison(e),
        }
        self.settle(gate)
    }

    /// Wakes every thread of the log, and every one that waits in it, that may go on. For whoever
    /// holds something that a close waits for; what [`Shared::settle`] does besides comes later.
    pub(crate) fn turn(&self, gate: &mut Gate) {
        self.durable.store(gate.durable.lsn, Ordering::Release);
        self.turns.fetch_add(1, Ordering::Release);
        if gate.waiting > 0 {
            self.turned.notify_all();
        }
        self.wake_groups(gate);
        self.call_filler(gate);
        if gate.blocked || (gate.parked && gate.slot_is_due()) {
            (gate.blocked, gate.parked) = (false, false);
            self.wanted.notify_one();
        }
    }

    /// Wakes everybody who may go on, tasks too, and tells what there is to tell, without the lock,
    /// and locks again.
    ///
    /// A waker, as a subscriber of events, is code of its owner, who may append and close in it:
    /// the tail is in the gate, no roll is under way, and the caller holds no other lock of the
    /// log.
    pub(crate) fn settle<'a>(&'a self, mut gate: Guard<'a>) -> Guard<'a> {
        self.turn(&mut gate);
        let behind = (gate.durable.lsn.saturating_add(1), 0);
        // Behind the end nothing more becomes durable.
        let over = gate.poison.is_some() || gate.stop;
        let waiting = if over { BTreeMap::new() } else { gate.waiters.split_off(&behind) };
        let ready = std::mem::replace(&mut gate.waiters, waiting);
        let told = if self.tells_later { Vec::new() } else { gate.take_told() };
        if ready.is_empty() && told.is_empty() {
            return gate;
        }
        drop(gate);
        for waker in ready.into_values() {
            // On whatever thread leads: its panic is not ours.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                told::tell(|| tracing::error!("a waker panicked"));
            }
        }
        // Behind them: a subscriber may wait for one of those tasks.
        super::told::tell(told);
        self.gate()
    }

    /// Waits until `lsn`, which was appended, is durable; leads where nobody else does.
    pub(crate) fn make_durable<'a>(&'a self, mut gate: Guard<'a>, lsn: u64) -> Result<()> {
        let mut is_counted = false;
        loop {
            if let Some(outcome) = outcome(&gate, lsn) {
                return outcome;
            }
            #[cfg(planted)]
            {
                if crate::planted::is_active(crate::planted::Bug::AckBeforeSync) {
                    if gate.written.lsn >= lsn {
                        return Ok(());
                    }
                    gate =
                        if gate.tail.is_some() { self.lead(gate, false) } else { self.wait(gate) };
                    continue;
                }
                if std::mem::take(&mut gate.reused) {
                    return Err(Error::new(ErrorKind::StoreFull, "no space (planted)"));
                }
            }
            if !std::mem::replace(&mut is_counted, true) {
                self.count_caller(&mut gate, lsn);
            }
            gate = if gate.tail.is_some() && !gate.callers.gathering {
                let gate = self.gather(gate);
                self.lead(gate, true)
            } else {
                let waited = match self.wait_policy {
                    WaitPolicy::Park => Some(self.wait_group(gate, lsn)),
                    WaitPolicy::Yield => self.yield_for(gate, lsn),
                };
                let Some(gate) = waited else { return Ok(()) };
                gate
            };
        }
    }

    /// Writes everything that was appended before the call.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut gate = self.gate();
        gate.check_open()?;
        let upto = gate.last_lsn();
        while gate.written.lsn < upto {
            if let Some(cause) = &gate.poison {
                return Err(poisoned(cause));
            }
            gate = if gate.tail.is_some() { self.lead(gate, false) } else { self.wait(gate) };
        }
        Ok(())
    }

    /// Makes everything that was appended before the call durable.
    pub(crate) fn sync(&self) -> Result<Option<Lsn>> {
        let mut gate = self.gate();
        gate.check_open()?;
        let upto = gate.last_lsn();
        while gate.durable.lsn < upto {
            if let Some(cause) = &gate.poison {
                return Err(poisoned(cause));
            }
            gate = if gate.tail.is_some() { self.lead(gate, true) } else { self.wait(gate) };
        }
        Ok(Lsn::new(gate.durable.lsn))
    }

    /// Waits until the durable LSN is at least `lsn`, and makes nothing durable itself. False when
    /// the time is over.
    pub(crate) fn wait_durable(&self, lsn: u64, timeout: Option<Duration>) -> Result<bool> {
        let until = timeout.map(|timeout| now().saturating_add(timeout));
        let mut gate = self.gate();
        loop {
            if gate.durable.lsn >= lsn {
                return Ok(true);
            }
            if let Some(cause) = &gate.poison {
                return Err(poisoned(cause));
            }
            if gate.stop {
                return Err(closed());
            }
            gate = match until.map(|until| until.saturating_sub(now())) {
                None => self.wait(gate),
                Some(Duration::ZERO) => return Ok(false),
                Some(left) => {
                    gate.waiting = gate.waiting.saturating_add(1);
                    let waited = self.turned.wait_timeout(gate, left);
                    let mut gate = waited.unwrap_or_else(PoisonError::into_inner).0;
                    gate.waiting = gate.waiting.saturating_sub(1);
                    gate
                }
            };
        }
    }
}

/// What is known of an append up to `lsn`; `None` while it is under way.
pub(crate) fn outcome(gate: &Gate, lsn: u64) -> Option<Result<()>> {
    if gate.durable.lsn >= lsn {
        return Some(Ok(()));
    }
    gate.poison.as_ref().map(|cause| Err(unknown(cause, lsn)))
}

#[cfg(planted)]
fn refused_and_reused(gate: &mut Gate, e: &Error, from: super::tail::Mark) -> bool {
    let full = std::error::Error::source(e)
        .and_then(|e| e.downcast_ref::<std::io::Error>())
        .is_some_and(crate::error::is_full);
    if !full || !crate::planted::is_active(crate::planted::Bug::OffsetReused) {
        return false;
    }
    gate.next_lsn = from.lsn.saturating_add(1);
    gate.end = from.offset;
    gate.reused = true;
    true
}

/// Gives back a buffer, unless it is large.
pub(crate) fn recycle(gate: &mut Gate, mut group: Vec<u8>) {
    if group.capacity() <= RECYCLE_BYTES && group.capacity() > gate.recycled.capacity() {
        group.clear();
        gate.recycled = group;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::fault::CallKind;
    use crate::io::mem::{Machine, MemIo};
    use crate::log::{Batch, CreateMode, Log, Options, RecordKind};

    #[test]
    fn a_leader_writes_nothing_behind_a_failure_that_came_while_it_gathered() {
        let (io, log) = log();
        let shared = &log.handle.shared;
        shared.enqueue(Batch { kind: RecordKind::RECORD, records: &[b"x"] }, false).unwrap();
        let calls = io.counts().0;
        let mut gate = shared.gate();
        gate.set_poison(Error::new(ErrorKind::Io, "the filler's sync has failed"));
        let gate = shared.lead(gate, true);
        assert_eq!((gate.written.lsn, gate.durable.lsn, gate.queue.is_empty()), (0, 0, false));
        drop(gate);
        assert_eq!(io.counts().0, calls);
    }

    #[expect(clippy::unwrap_used, reason = "a test may stop")]
    fn log() -> (MemIo, Log) {
        let io = MemIo::new(Machine::new());
        let options = Options::new().create(CreateMode::IfMissing).background(false);
        let (log, _) = Log::open("/log", &options.io(Arc::new(io.clone()))).unwrap();
        (io, log)
    }

    /// A sync of the same file through another description has failed: what this one returns tells
    /// nothing (G5).
    #[test]
    fn a_sync_that_returns_behind_a_failure_makes_nothing_durable() {
        let (io, log) = log();
        let shared = &log.handle.shared;
        shared.enqueue(Batch { kind: RecordKind::RECORD, records: &[b"x"] }, false).unwrap();
        let meanwhile = Arc::clone(shared);
        io.observe(move |_, kind| {
            if kind == CallKind::Sync {
                let failed = Error::new(ErrorKind::Io, "the filler's sync has failed");
                meanwhile.gate().set_poison(failed);
            }
        });
        let gate = shared.lead(shared.gate(), true);
        io.unobserve();
        assert!(gate.poison.is_some());
        assert_eq!(gate.durable.lsn, 0);
        let told = outcome(&gate, 1).map(|told| told.map_err(|e| e.kind()));
        assert_eq!(told, Some(Err(ErrorKind::OutcomeUnknown)));
    }

    #[test]
    fn what_is_durable_is_told_as_that_behind_a_failure() {
        let (_io, log) = log();
        log.append(b"durable").unwrap();
        let mut gate = log.handle.shared.gate();
        gate.set_poison(Error::new(ErrorKind::Io, "no disk"));
        let told = |lsn| outcome(&gate, lsn).map(|told| told.map_err(|e| e.kind()));
        assert_eq!((told(1), told(2)), (Some(Ok(())), Some(Err(ErrorKind::OutcomeUnknown))));
    }
}
