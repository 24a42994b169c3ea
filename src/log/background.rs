//! The one background thread of a log.
//!
//! It writes what was buffered, syncs for tasks and for batches that nobody waits for, and writes
//! the slot of an idle log. It sleeps without a limit of time while there is nothing of that, and
//! ends before a close returns.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::dir::Fault;
use super::fill;
use super::told::Told;
use super::wait::now;
use super::writer::{Gate, Guard, Shared, WRITE_BYTES};

/// How long a buffered record waits for more, and how long a log rests before its slot is written.
const PAUSE: Duration = Duration::from_millis(10);

/// What there is to do.
#[derive(Debug, PartialEq, Eq)]
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
                shared.settle(gate)
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
    let left = |from| left(from, now);
    let unsynced = gate.sync_due > gate.durable.lsn;
    if gate.sync_wanted.min(gate.last_lsn()) > gate.durable.lsn {
        return Work::Sync;
    }
    let to_write = (!gate.queue.is_empty()).then(|| left(gate.queued_at));
    let to_sync = unsynced.then(|| left(gate.sync_due_at));
    if let Some(work) = due(to_write, gate.queue.len(), to_sync) {
        return work;
    }
    if gate.slot_is_due() {
        let time = left(since);
        return if time.is_zero() { Work::Slot } else { Work::Rest(time) };
    }
    Work::Park
}

/// What is left of the pause that began then.
fn left(from: Duration, now: Duration) -> Duration {
    from.saturating_add(PAUSE).saturating_sub(now)
}

/// What there is to do with what waits to be written, so many bytes, and to be synced; each has so
/// much time left. A sync is due however often what is buffered was written meanwhile.
fn due(to_write: Option<Duration>, len: usize, to_sync: Option<Duration>) -> Option<Work> {
    let time = to_write.into_iter().chain(to_sync).min()?;
    Some(match (time, len) {
        (Duration::ZERO, _) if to_sync.is_some() => Work::Sync,
        (Duration::ZERO, _) | (_, WRITE_BYTES..) => Work::Write,
        _ => Work::Rest(time),
    })
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
            Err(Fault::Refused(e)) => gate.told.push(Told::NoSlot(e)),
            Err(Fault::Final(e)) => gate.set_poison(e),
        }
        self.settle(gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffered record is written after 10 ms or with 256 KiB, whichever comes first.
    #[test]
    fn what_is_buffered_is_due_after_10_ms_and_with_256_kib() {
        let us = Duration::from_micros;
        let check = |from, now, len, expected| {
            assert_eq!(due(Some(left(us(from), us(now))), len, None), Some(expected), "{now}");
        };
        check(5_000, 5_000, 1, Work::Rest(us(10_000)));
        check(5_000, 14_999, 1, Work::Rest(us(1)));
        check(5_000, 15_000, 1, Work::Write);
        check(5_000, 90_000, 1, Work::Write);
        check(5_000, 5_000, 256 * 1024 - 1, Work::Rest(us(10_000)));
        check(5_000, 5_000, 256 * 1024, Work::Write);
        check(5_000, 5_000, usize::MAX, Work::Write);
    }

    #[test]
    fn a_sync_is_due_in_its_time_however_often_the_buffer_was_written() {
        let ms = Duration::from_millis;
        let check = |to_write: Option<u64>, len, to_sync: Option<u64>, expected| {
            assert_eq!(due(to_write.map(ms), len, to_sync.map(ms)), expected);
        };
        check(None, 0, None, None);
        check(Some(7), 100, None, Some(Work::Rest(ms(7))));
        check(Some(0), 100, None, Some(Work::Write));
        check(Some(7), WRITE_BYTES, None, Some(Work::Write));
        check(None, 0, Some(3), Some(Work::Rest(ms(3))));
        check(None, 0, Some(0), Some(Work::Sync));
        // The buffer was written a moment ago, and holds more.
        check(Some(10), 100, Some(3), Some(Work::Rest(ms(3))));
        check(Some(10), 100, Some(0), Some(Work::Sync));
        check(Some(10), WRITE_BYTES, Some(0), Some(Work::Sync));
        check(Some(0), 100, Some(3), Some(Work::Sync));
    }
}
