//! Group commit: one thread writes and syncs what all of them appended.
//!
//! Whoever waits and finds the tail free leads: it writes the whole queue with one write, syncs
//! once, and wakes those whose bytes it had taken. A waiter is covered only by a sync that began
//! after its bytes were written. A failure poisons the log under the same lock that admits
//! appends, so that nobody is told of a success behind it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::tail::Tail;
use super::writer::{Gate, Guard, Shared, closed, now, poisoned, recycle, unknown};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::{Lsn, LsnRange};

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
    pub(crate) fn lead<'a>(&'a self, mut gate: Guard<'a>, sync: bool) -> Guard<'a> {
        let Some(tail) = gate.tail.take() else { return gate };
        let recycled = std::mem::take(&mut gate.recycled);
        let group = std::mem::replace(&mut gate.queue, recycled);
        let upto = gate.mark();
        let from = gate.written;
        let sync = sync && gate.durable.lsn < upto.lsn;
        gate.writing = group.len();
        gate.called = false;
        let (mut gate, tail, done) = self.with_tail(gate, tail, |tail| {
            tail.write_frames(&group, from.offset)?;
            if sync { tail.sync() } else { Ok(()) }
        });
        gate.tail = Some(tail);
        gate.writing = 0;
        recycle(&mut gate, group);
        match done {
            Ok(()) => {
                gate.written = upto;
                if sync {
                    gate.durable = upto;
                }
                #[cfg(planted)]
                if sync && crate::planted::is_active(crate::planted::Bug::SyncCoversLater) {
                    gate.durable = gate.mark();
                }
            }
            #[cfg(planted)]
            Err(e) if refused_and_reused(&mut gate, &e, from) => {}
            Err(e) => gate.set_poison(e),
        }
        self.settle(gate)
    }

    /// Wakes everybody who may go on, without the lock, and locks again.
    pub(crate) fn settle<'a>(&'a self, mut gate: Guard<'a>) -> Guard<'a> {
        if gate.waiting > 0 {
            self.turned.notify_all();
        }
        if gate.blocked || (gate.parked && gate.slot_is_due()) {
            (gate.blocked, gate.parked) = (false, false);
            self.wanted.notify_one();
        }
        let behind = (gate.durable.lsn.saturating_add(1), 0);
        // Behind the end nothing more becomes durable.
        let over = gate.poison.is_some() || gate.stop;
        let waiting = if over { BTreeMap::new() } else { gate.waiters.split_off(&behind) };
        let ready = std::mem::replace(&mut gate.waiters, waiting);
        if ready.is_empty() {
            return gate;
        }
        drop(gate);
        for waker in ready.into_values() {
            // Code of its owner, on whatever thread leads: its panic is not ours.
            if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
                tracing::error!("a waker panicked");
            }
        }
        self.gate()
    }

    /// Waits until `lsn`, which was appended, is durable; leads where nobody else does.
    pub(crate) fn make_durable(&self, lsn: u64) -> Result<()> {
        let mut gate = self.gate();
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
            gate = if gate.tail.is_some() { self.lead(gate, true) } else { self.wait(gate) };
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
fn outcome(gate: &Gate, lsn: u64) -> Option<Result<()>> {
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

/// A batch in the buffer, on its way to be durable.
///
/// It is written and synced within 10 ms whether or not anybody waits: dropping this changes
/// nothing but who is told.
#[derive(Debug)]
#[must_use = "what was enqueued is durable only once this says so"]
pub struct Pending {
    shared: Arc<Shared>,
    lsns: LsnRange,
    token: Option<u64>,
}

impl Pending {
    pub(crate) fn new(shared: Arc<Shared>, lsns: LsnRange) -> Self {
        Self { shared, lsns, token: None }
    }

    /// The LSNs of the batch.
    #[must_use]
    pub fn lsns(&self) -> LsnRange {
        self.lsns
    }

    /// Waits until the batch is durable.
    ///
    /// # Errors
    ///
    /// `OutcomeUnknown` when a write or sync failed: only opening the log again tells.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, the batch survives a power loss.
    pub fn wait(self) -> Result<LsnRange> {
        self.shared.make_durable(self.lsns.last.get())?;
        Ok(self.lsns)
    }

    /// Waits until the batch is durable or the time is over; says whether it is durable.
    ///
    /// # Errors
    ///
    /// As [`Pending::wait`].
    ///
    /// # Durability
    ///
    /// When this returns `Ok(true)`, the batch survives a power loss.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        let lsn = self.lsns.last.get();
        if !self.shared.has_background {
            return self.shared.make_durable(lsn).map(|()| true);
        }
        let mut gate = self.shared.gate();
        self.shared.want_sync(&mut gate, lsn);
        drop(gate);
        match self.shared.wait_durable(lsn, Some(timeout)) {
            Err(e) => outcome(&self.shared.gate(), lsn).unwrap_or(Err(e)).map(|()| true),
            durable => durable,
        }
    }
}

impl Future for Pending {
    type Output = Result<LsnRange>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lsn = self.lsns.last.get();
        let shared = Arc::clone(&self.shared);
        if !shared.has_background {
            return Poll::Ready(shared.make_durable(lsn).map(|()| self.lsns));
        }
        let waker = context.waker().clone();
        let mut gate = shared.gate();
        if let Some(outcome) = outcome(&gate, lsn) {
            return Poll::Ready(outcome.map(|()| self.lsns));
        }
        let before = gate.await_durable(lsn, &mut self.token, waker);
        shared.want_sync(&mut gate, lsn);
        // A waker may run code of its owner when it is dropped: not under the lock.
        drop(gate);
        drop(before);
        Poll::Pending
    }
}

/// Waits for an LSN to be durable, whoever appends and syncs it.
#[derive(Debug)]
pub(crate) struct Awaited {
    shared: Arc<Shared>,
    lsn: u64,
    token: Option<u64>,
}

impl Awaited {
    pub(crate) fn new(shared: Arc<Shared>, lsn: u64) -> Self {
        Self { shared, lsn, token: None }
    }
}

impl Future for Awaited {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (shared, lsn) = (Arc::clone(&self.shared), self.lsn);
        let waker = context.waker().clone();
        let mut gate = shared.gate();
        if gate.durable.lsn >= lsn {
            return Poll::Ready(Ok(()));
        }
        if let Some(cause) = &gate.poison {
            return Poll::Ready(Err(poisoned(cause)));
        }
        if gate.stop {
            return Poll::Ready(Err(closed()));
        }
        let before = gate.await_durable(lsn, &mut self.token, waker);
        drop(gate);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.shared.forget_waker(self.lsn, self.token);
    }
}

impl Gate {
    /// Has a task woken once `lsn` is durable, or never will be; returns its waker from before.
    fn await_durable(&mut self, lsn: u64, token: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let token = *token.get_or_insert_with(|| {
            self.token = self.token.wrapping_add(1);
            self.token
        });
        self.waiters.insert((lsn, token), waker)
    }
}

impl Shared {
    /// Has the background thread lead until `lsn` is durable.
    fn want_sync(&self, gate: &mut Gate, lsn: u64) {
        if gate.sync_wanted < lsn {
            gate.sync_wanted = lsn;
            gate.parked = false;
            self.wanted.notify_one();
        }
    }

    fn forget_waker(&self, lsn: u64, token: Option<u64>) {
        if let Some(token) = token {
            let mut gate = self.gate();
            let waker = gate.waiters.remove(&(lsn, token));
            // As above: not under the lock.
            drop(gate);
            drop(waker);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.forget_waker(self.lsns.last.get(), self.token);
    }
}
