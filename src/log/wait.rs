//! How threads wait for a group to be durable, and how long a leader waits for them.
//!
//! A hand-over from thread to thread costs as much as a fast sync. So of those that wait only the
//! ones that may go on are woken, one alone to lead the next group; and once many call at a time, a
//! leader waits a moment for those that the last group let go, who come back at once. A lone writer
//! waits for nobody.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::writer::{Gate, Guard, Shared};
#[cfg(not(all(test, any(loom, shuttle))))]
use crate::clock::Clock as _;
use crate::sync::thread;

/// How long [`super::WaitPolicy::Yield`] waits before it sleeps: longer than a sync of a fast disk.
const YIELD_TIME: Duration = Duration::from_micros(300);
/// How long a leader waits for others: a part of a fast sync.
#[cfg(not(all(test, any(loom, shuttle))))]
const GATHER_TIME: Duration = Duration::from_micros(50);
/// While a schedule is checked, the gate is left and taken again: all that others need.
#[cfg(all(test, any(loom, shuttle)))]
const GATHER_TIME: Duration = Duration::ZERO;

/// Those that wait for their records to be durable.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// How many came since the last group was taken.
    came: u64,
    /// How many there are: those of the last group, and those that came while it was synced.
    expected: u64,
    /// A leader waits for them.
    pub(crate) gathering: bool,
}

impl Callers {
    /// A group is taken with all that came.
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.came)
    }

    /// A group of so many is durable.
    pub(crate) fn expect(&mut self, taken: u64) {
        self.expected = taken.saturating_add(self.came);
    }
}

impl Gate {
    fn grouped_mut(&mut self, even: bool) -> &mut usize {
        if even { &mut self.grouped.0 } else { &mut self.grouped.1 }
    }
}

impl Shared {
    /// Somebody waits for an LSN that is not durable.
    pub(crate) fn count_caller(&self, gate: &mut Gate, lsn: u64) {
        if gate.syncing < lsn {
            gate.callers.came = gate.callers.came.saturating_add(1);
            self.came.store(gate.callers.came, Ordering::Relaxed);
        }
    }

    /// Waits a moment for those that are expected, when there is more than one.
    pub(crate) fn gather<'a>(&'a self, mut gate: Guard<'a>) -> Guard<'a> {
        let expected = gate.callers.expected;
        if expected < 2 || gate.callers.came >= expected {
            return gate;
        }
        gate.callers.gathering = true;
        drop(gate);
        let until = now().saturating_add(GATHER_TIME);
        while self.came.load(Ordering::Relaxed) < expected && now() < until {
            thread::yield_now();
        }
        let mut gate = self.gate();
        gate.callers.gathering = false;
        gate
    }

    /// Waits for the sync that covers an LSN, or for a turn to lead it.
    ///
    /// Those whom the sync under way covers wake together, all of them done. Of those after it one
    /// wakes, to lead the next group, and the others sleep through.
    pub(crate) fn wait_group<'a>(&'a self, mut gate: Guard<'a>, lsn: u64) -> Guard<'a> {
        let group = gate.group.wrapping_add(u64::from(gate.syncing < lsn));
        let even = group.is_multiple_of(2);
        let waiting = gate.grouped_mut(even);
        *waiting = waiting.saturating_add(1);
        let condvar = if even { &self.groups.0 } else { &self.groups.1 };
        let mut gate = condvar.wait(gate).unwrap_or_else(PoisonError::into_inner);
        let waiting = gate.grouped_mut(even);
        *waiting = waiting.saturating_sub(1);
        gate
    }

    pub(crate) fn wake_groups(&self, gate: &mut Gate) {
        let all = std::mem::take(&mut gate.moved) || gate.poison.is_some() || gate.stop;
        let (even, odd) = gate.grouped;
        let ((done, at), (next, ahead)) = if gate.group.is_multiple_of(2) {
            ((even, &self.groups.0), (odd, &self.groups.1))
        } else {
            ((odd, &self.groups.1), (even, &self.groups.0))
        };
        #[cfg(planted)]
        let done = if crate::planted::is_active(crate::planted::Bug::OneWoken) {
            at.notify_one();
            0
        } else {
            done
        };
        if done > 0 {
            at.notify_all();
        }
        match next {
            0 => {}
            _ if all => ahead.notify_all(),
            _ => ahead.notify_one(),
        }
    }

    /// Yields until the gate turns, and sleeps when that takes long; `None` once the LSN is
    /// durable.
    pub(crate) fn yield_for<'a>(&'a self, gate: Guard<'a>, lsn: u64) -> Option<Guard<'a>> {
        let seen = self.turns.load(Ordering::Acquire);
        drop(gate);
        let until = now().saturating_add(YIELD_TIME);
        while self.turns.load(Ordering::Acquire) == seen {
            if now() >= until {
                let gate = self.gate();
                let turned = self.turns.load(Ordering::Acquire) != seen || gate.tail.is_some();
                return Some(if turned { gate } else { self.wait_group(gate, lsn) });
            }
            thread::yield_now();
        }
        (self.durable.load(Ordering::Acquire) < lsn).then(|| self.gate())
    }
}

/// Real time, for pacing: a test's clock stamps records and paces nothing.
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) fn now() -> Duration {
    crate::clock::SystemClock::new().monotonic()
}

/// Time of the schedule that is checked.
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use crate::sync::now;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_expects_the_last_group_and_those_behind_it_and_nobody_when_alone() {
        let mut callers = Callers { came: 1, ..Callers::default() };
        let taken = callers.take();
        callers.expect(taken);
        assert_eq!(callers.expected, 1, "itself");
        callers.came = 3;
        let taken = callers.take();
        callers.came = 2;
        callers.expect(taken);
        assert_eq!(callers.expected, 5);
        let taken = callers.take();
        callers.expect(taken);
        assert_eq!(callers.expected, 2, "those that did not come back are expected no more");
    }
}
