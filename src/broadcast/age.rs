//! For how long a task may go on without progress.
//!
//! Its age counts from the last record or copy that moved it: the acceptance, a copy that stands,
//! an acknowledgement, an operator's resumption. All of them carry log time, so that a process goes
//! on counting where the one before it ended, and a store that is opened again and again parks what
//! does not go on all the same. Within a process monotonic time counts, which no clock step moves.

use std::time::Duration;

use super::core::{Copy, Run};
use super::state::TaskState;
use super::worker::RETRY_MIN;

/// Tries that each process gives a task, however old it is: a store that was closed for a day is no
/// reason to give up at the first one. Tries, not time: processes that each end before that time
/// would go on for ever.
const TRIES_MIN: u32 = 3;

/// Time that each process gives consumers, who may have been away with the process before, as a
/// part of the longest age, and at most: less than any process lives that could have consumers at
/// all.
const GRACE_PART: u32 = 10;
const GRACE_MAX: Duration = Duration::from_secs(1);

/// Why a task does not go on, and since when: each reason has its own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    for_consumers: bool,
    /// Log time of the progress before it, in milliseconds.
    moved_ms: u64,
    /// First seen in this process.
    since: Duration,
}

impl Run {
    /// How long the task may still go on without progress; zero when it is to be parked.
    pub(crate) fn patience(
        &mut self,
        task: Option<&TaskState>,
        for_consumers: bool,
        (now, age_max): (Duration, Duration),
    ) -> Duration {
        let moved_ms = task.map_or(self.accepted_at_ms, |task| task.moved_at_ms);
        let copies = self.copies.iter().filter_map(|copy| match copy {
            Copy::At(position) => Some(position.time_tick.ms()),
            _ => None,
        });
        let moved_ms = copies.fold(moved_ms, u64::max);
        let since = match self.stalled {
            Some(stall) if (stall.for_consumers, stall.moved_ms) == (for_consumers, moved_ms) => {
                stall.since
            }
            _ => {
                self.stalled = Some(Stall { for_consumers, moved_ms, since: now });
                now
            }
        };
        // What passed before this process took the task up.
        let before = Duration::from_millis(self.taken_up_at_ms.saturating_sub(moved_ms));
        let left = age_max.saturating_sub(before);
        let here = now.saturating_sub(since);
        if for_consumers {
            return left.max((age_max / GRACE_PART).min(GRACE_MAX)).saturating_sub(here);
        }
        let left = left.saturating_sub(here);
        if self.retries < TRIES_MIN { left.max(RETRY_MIN * (1 << self.retries)) } else { left }
    }
}
