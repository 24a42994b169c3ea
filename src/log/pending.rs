//! Futures of the log: a batch on its way to be durable, and the durable LSN itself.
//!
//! A future holds nothing of what it waits for. It may be dropped between any two polls, and only
//! who is told changes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::group::outcome;
use super::writer::{Gate, Shared, closed, poisoned};
use crate::error::Result;
use crate::lsn::{Lsn, LsnRange};

/// A batch in the buffer, on its way to be durable.
///
/// Whether or not anybody waits, its write and sync begin within 10 ms, or when those under way
/// return: dropping this changes
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
        self.shared.make_durable(self.shared.gate(), self.lsns.last.get())?;
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
            return self.shared.make_durable(self.shared.gate(), lsn).map(|()| true);
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
            return Poll::Ready(shared.make_durable(shared.gate(), lsn).map(|()| self.lsns));
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

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.forget_waker(self.lsns.last.get(), self.token);
    }
}

/// The future of [`crate::Log::durable`].
///
/// Resolves to the durable LSN, once that has reached the one that was asked for. Dropping it
/// changes nothing.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Durable {
    shared: Arc<Shared>,
    lsn: u64,
    token: Option<u64>,
}

impl Durable {
    pub(crate) fn new(shared: Arc<Shared>, lsn: u64) -> Self {
        Self { shared, lsn, token: None }
    }
}

impl Future for Durable {
    type Output = Result<Lsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (shared, lsn) = (Arc::clone(&self.shared), self.lsn);
        let waker = context.waker().clone();
        let mut gate = shared.gate();
        if gate.durable.lsn >= lsn {
            return Poll::Ready(Ok(Lsn::at_least_first(gate.durable.lsn)));
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

impl Drop for Durable {
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
