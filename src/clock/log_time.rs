//! Log time: the one time that decides what expires.
//!
//! It is the newest time in the log plus the monotonic time since, suspend included. It never steps
//! back and never stands still. A wall clock behind it is ignored; one ahead of it is believed at
//! the start up to [`STEP_MAX`], later up to [`LEAD_MAX`], and beyond that only after it has stayed
//! ahead for [`SETTLE`], and then by the smallest lead that it had meanwhile.
//!
//! Nothing here is durable: the log's records are.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Clock;

/// Most that a wall clock may be ahead of the newest record when a store is opened.
pub(crate) const STEP_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Most that a wall clock may be ahead within a process.
pub(crate) const LEAD_MAX: Duration = Duration::from_secs(60);

/// How long a wall clock must stay further ahead before it is believed.
pub(crate) const SETTLE: Duration = Duration::from_secs(600);

/// Log time of one store.
#[derive(Debug)]
pub struct LogTime {
    clock: Arc<dyn Clock>,
    reading: Mutex<Reading>,
}

#[derive(Debug)]
struct Reading {
    /// Log time when `since` was the monotonic time.
    base_ms: u64,
    since: Duration,
    /// Since when the wall clock is too far ahead, and by how much at least.
    ahead: Option<(Duration, u64)>,
    started: bool,
}

impl LogTime {
    /// Reads `clock`. Until it is started it shows the wall clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let reading = Reading { base_ms: 0, since: Duration::ZERO, ahead: None, started: false };
        Self { clock, reading: Mutex::new(reading) }
    }

    /// Starts from the newest time in the log; `None` for a log without records.
    pub fn start(&self, newest_ms: Option<u64>) {
        let mut reading = self.lock();
        let (now, wall_ms) = (self.clock.monotonic(), self.clock.wall_ms());
        reading.since = now;
        reading.started = true;
        reading.ahead = None;
        reading.base_ms = match newest_ms {
            None => wall_ms,
            Some(newest_ms) if wall_ms > newest_ms.saturating_add(millis(STEP_MAX)) => {
                reading.ahead = Some((now, wall_ms.saturating_sub(newest_ms)));
                newest_ms
            }
            Some(newest_ms) => newest_ms.max(wall_ms),
        };
    }

    /// Returns log time in milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let mut reading = self.lock();
        self.advance(&mut reading)
    }

    /// Says whether the wall clock is ahead and not believed: nothing expires by it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let mut reading = self.lock();
        self.advance(&mut reading);
        reading.ahead.is_some()
    }

    /// Believes the wall clock where it is ahead, because an operator says so; returns log time
    /// before and after.
    pub fn rebase(&self) -> (u64, u64) {
        let mut reading = self.lock();
        let from_ms = self.advance(&mut reading);
        reading.base_ms = from_ms.max(self.clock.wall_ms());
        reading.since = self.clock.monotonic();
        reading.ahead = None;
        (from_ms, reading.base_ms)
    }

    /// Returns the clock below.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, reading: &mut Reading) -> u64 {
        let wall_ms = self.clock.wall_ms();
        if !reading.started {
            return wall_ms;
        }
        let now = self.clock.monotonic();
        let passed = millis(now.saturating_sub(reading.since));
        let time_ms = reading.base_ms.saturating_add(passed);
        let lead_ms = wall_ms.saturating_sub(time_ms);
        if lead_ms == 0 {
            reading.ahead = None;
            return time_ms;
        }
        if lead_ms <= millis(LEAD_MAX) {
            reading.ahead = None;
            (reading.base_ms, reading.since) = (wall_ms, now);
            return wall_ms;
        }
        let (first, least_ms) = reading.ahead.unwrap_or((now, lead_ms));
        let least_ms = least_ms.min(lead_ms);
        if now.saturating_sub(first) < SETTLE {
            reading.ahead = Some((first, least_ms));
            return time_ms;
        }
        // The smallest lead is what every look at the clock agreed on.
        reading.ahead = None;
        (reading.base_ms, reading.since) = (time_ms.saturating_add(least_ms), now);
        reading.base_ms
    }
}

impl Clock for LogTime {
    fn wall_ms(&self) -> u64 {
        self.now_ms()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wall and monotonic time, in milliseconds.
    #[derive(Debug, Default)]
    struct Hands(Mutex<(u64, u64)>);

    impl Hands {
        fn set(&self, wall_ms: u64, monotonic_ms: u64) {
            *self.0.lock().unwrap() = (wall_ms, monotonic_ms);
        }
    }

    impl Clock for Hands {
        fn wall_ms(&self) -> u64 {
            self.0.lock().unwrap().0
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.lock().unwrap().1)
        }
    }

    const DAY: u64 = 86_400_000;
    const MINUTE: u64 = 60_000;

    fn started(newest_ms: Option<u64>, wall_ms: u64) -> (Arc<Hands>, LogTime) {
        let hands = Arc::new(Hands::default());
        hands.set(wall_ms, 0);
        let time = LogTime::new(Arc::clone(&hands) as Arc<dyn Clock>);
        time.start(newest_ms);
        (hands, time)
    }

    #[test]
    fn a_wall_clock_behind_is_ignored_and_time_goes_on() {
        let (hands, time) = started(Some(1_000 * DAY), DAY);
        assert_eq!(time.now_ms(), 1_000 * DAY);
        hands.set(0, 5);
        assert_eq!(time.now_ms(), 1_000 * DAY + 5);
        assert!(!time.is_held());
    }

    #[test]
    fn an_open_believes_seven_days_and_no_more() {
        let (_, time) = started(Some(DAY), 8 * DAY);
        assert_eq!(time.now_ms(), 8 * DAY);
        let (_, time) = started(Some(DAY), 8 * DAY + 1);
        assert_eq!(time.now_ms(), DAY);
        assert!(time.is_held());
        assert_eq!(time.rebase(), (DAY, 8 * DAY + 1));
        assert!(!time.is_held());
        let (_, time) = started(None, 8 * DAY);
        assert_eq!(time.now_ms(), 8 * DAY);
    }

    #[test]
    fn a_jump_is_believed_after_ten_minutes_and_by_its_smallest_lead() {
        let (hands, time) = started(Some(DAY), DAY);
        hands.set(DAY + 1 + MINUTE, 1);
        assert_eq!(time.now_ms(), DAY + 1 + MINUTE);
        let (from, t) = (DAY + 1 + MINUTE, 1);
        hands.set(from + 100 * DAY, t);
        assert_eq!(time.now_ms(), from);
        assert!(time.is_held());
        hands.set(from + 2 * DAY + 5 * MINUTE, t + 5 * MINUTE);
        assert_eq!(time.now_ms(), from + 5 * MINUTE);
        hands.set(from + 50 * DAY + 10 * MINUTE, t + 10 * MINUTE);
        assert_eq!(time.now_ms(), from + 2 * DAY + 10 * MINUTE);
    }

    #[test]
    fn a_jump_that_goes_away_is_forgotten() {
        let (hands, time) = started(Some(DAY), DAY);
        hands.set(90 * DAY, 1);
        assert_eq!(time.now_ms(), DAY + 1);
        hands.set(DAY, 5 * MINUTE);
        assert_eq!(time.now_ms(), DAY + 5 * MINUTE);
        hands.set(90 * DAY, 11 * MINUTE);
        assert_eq!(time.now_ms(), DAY + 11 * MINUTE);
        assert!(time.is_held());
    }
}
