//! The one background thread of a log.
//!
//! It writes what was buffered, syncs for tasks and for batches that nobody waits for, and writes
//! the slot of an idle log. It sleeps without a limit of time while there is nothing of that, and
//! ends before a close returns.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::dir::Fault;
use super::fill;
use super::writer::{Gate, Guard, Shared, WRITE_BYTES, now};

/// How long a buffered record waits for more, and how long a log rests before its slot is written.
const PAUSE: Duration = Duration::from_millis(10);

/// What there is to do.
enum Work {
    Write,
    Sync,
    Slot,
    /// The thread that fills is to be started.
    Start,
    /// Nothing before so much time has passed.
    Rest(Duration),
    /// Nothing until somebody calls.
    Park,
}

/// Works until the log stops.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut gate = shared.gate();
    let (mut seen, mut since) = (gate.next_lsn, now());
    while !gate.stop {
        let now = now();
        if gate.next_lsn != seen {
            (seen, since) = (gate.next_lsn, now);
        }
        let work = next(&gate, now, since);
        gate = match work {
            Work::Rest(time) => {
                let waited = shared.wanted.wait_timeout(gate, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            Work::Park => {
                gate.parked = true;
                let mut gate = wait(shared, gate);
                gate.parked = false;
                gate
            }
            Work::Start => {
                fill::start(shared, &mut gate);
                gate
            }
            _ if gate.tail.is_none() || gate.rolling => {
                gate.blocked = true;
                let mut gate = wait(shared, gate);
                gate.blocked = false;
                gate
            }
            Work::Write => shared.lead(gate, false),
            Work::Sync => shared.lead(gate, true),
            Work::Slot => shared.write_idle_slot(gate),
        };
    }
}

fn wait<'a>(shared: &'a Shared, gate: Guard<'a>) -> Guard<'a> {
    shared.wanted.wait(gate).unwrap_or_else(PoisonError::into_inner)
}

/// `since` is when the last append was seen.
fn next(gate: &Gate, now: Duration, since: Duration) -> Work {
    if gate.poison.is_some() || gate.closed {
        return Work::Park;
    }
    if gate.fill.is_wanted() {
        return Work::Start;
    }
    let left = |from: Duration| from.saturating_add(PAUSE).saturating_sub(now);
    let unsynced = gate.sync_due > gate.durable.lsn;
    if gate.sync_wanted.min(gate.last_lsn()) > gate.durable.lsn {
        return Work::Sync;
    }
    if !gate.queue.is_empty() || unsynced {
        let time = left(gate.queued_at);
        return match (time, gate.queue.len()) {
            (Duration::ZERO, _) if unsynced => Work::Sync,
            (Duration::ZERO, 1..) => Work::Write,
            (_, WRITE_BYTES..) => Work::Write,
            _ => Work::Rest(time),
        };
    }
    if gate.slot_is_due() {
        let time = left(since);
        return if time.is_zero() { Work::Slot } else { Work::Rest(time) };
    }
    Work::Park
}

impl Shared {
    /// Writes a slot that states the durable LSN, unsynced. A refusal is ignored.
    pub(crate) fn write_idle_slot<'a>(&'a self, mut gate: Guard<'a>) -> Guard<'a> {
        if !gate.slot_is_due() {
            return gate;
        }
        let Some(tail) = gate.tail.take() else { return gate };
        let (durable, oldest) = (gate.stated_by_slot(), gate.oldest);
        gate.slot_lsn = durable.lsn;
        let (mut gate, tail, written) = self.with_tail(gate, tail, |tail| {
            // Nothing is written into a bare tail.
            if tail.bare { Ok(()) } else { tail.write_slot(durable, oldest) }
        });
        gate.tail = Some(tail);
        match written {
            Ok(()) => {}
            Err(Fault::Refused(e)) => tracing::debug!(error = %e, "no idle slot"),
            Err(Fault::Final(e)) => gate.set_poison(e),
        }
        self.settle(gate)
    }
}
