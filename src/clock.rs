//! The only reader of time.
//!
//! The log asks a [`Clock`] for the time of a record and never trusts it: a time below that of the
//! record before is raised to it. No decision of recovery depends on a clock.

mod log_time;

use std::fmt;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

pub use log_time::{ClockLimits, LogTime};

/// A source of time.
///
/// Methods added later have a default, so that an implementation goes on compiling.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Milliseconds since 1970-01-01 UTC; may step either way.
    fn wall_ms(&self) -> u64;

    /// Time since an arbitrary origin that is the same until the machine starts again; never steps
    /// back, and goes on while the machine is suspended.
    fn monotonic(&self) -> Duration;

    /// The time, in milliseconds, by which what is too old goes: keys, finished jobs, segments past
    /// their age. `newest_ms` is the newest time in the log, which a clock may stand behind.
    ///
    /// A clock that is not sure of itself stops here, while [`Clock::wall_ms`] goes on.
    fn expiry_ms(&self, newest_ms: u64) -> u64 {
        self.wall_ms().max(newest_ms)
    }
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemClock;

impl SystemClock {
    /// The clock of the machine.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        let ms = since_origin(clock_gettime(ClockId::Realtime)).as_millis();
        u64::try_from(ms).unwrap_or(u64::MAX)
    }

    fn monotonic(&self) -> Duration {
        since_origin(clock_gettime(ClockId::Boottime))
    }
}

/// A time before the origin, which only a broken clock shows, is the origin.
fn since_origin(time: Timespec) -> Duration {
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(secs), Ok(nanos)) => Duration::new(secs, nanos),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_does_not_step_back() {
        let clock = SystemClock::new();
        let (wall, origin) = (clock.wall_ms(), clock.monotonic());
        assert!(wall > 1_600_000_000_000);
        assert!(clock.monotonic() >= origin);
    }
}
