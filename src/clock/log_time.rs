//! Log time: a clock that neither a restart nor a step of the wall clock can move back or far ahead.
//!
//! It is the newest time in the log plus the monotonic time since. A wall clock behind it is
//! ignored, so log time never stands still. A wall clock ahead of it is believed where that is
//! harmless, and otherwise only after it has stayed ahead for a while: whatever expires by log time
//! must not expire because a clock was set wrong for a moment. Until then log time goes on and
//! nothing expires: [`Clock::expiry_ms`] stays where the doubt began.
//!
//! The rules are in `Rules`, pure; [`LogTime`] feeds them a [`Clock`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncelog_format::message::TimeTick;

use super::Clock;

/// How far ahead a wall clock is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockLimits {
    /// At the start of a process: a store that a daily job opens for seconds must age.
    pub step_max_at_open: Duration,
    /// Within a process: what a clock that is disciplined may be corrected by.
    pub step_max: Duration,
    /// How long, by the monotonic clock, a greater lead must last before the smallest lead seen in
    /// that time is believed.
    pub settle: Duration,
}

impl ClockLimits {
    /// 7 days at the start, a minute within a process, 10 minutes to settle.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            step_max_at_open: Duration::from_secs(7 * 24 * 60 * 60),
            step_max: Duration::from_secs(60),
            settle: Duration::from_secs(10 * 60),
        }
    }

    /// The same with another `clock_step_max`.
    #[must_use]
    pub const fn step_max_at_open(mut self, step: Duration) -> Self {
        self.step_max_at_open = step;
        self
    }
}

impl Default for ClockLimits {
    fn default() -> Self {
        Self::new()
    }
}

/// A [`Clock`] whose wall time is log time. The logs of a store are stamped by it, so that their
/// newest time is where the next process starts from.
#[derive(Debug)]
pub struct LogTime {
    clock: Arc<dyn Clock>,
    limits: ClockLimits,
    rules: Mutex<Option<Rules>>,
}

impl LogTime {
    /// Log time on `clock`. Until [`LogTime::start`] it is the wall clock's time, and held.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, limits: ClockLimits) -> Self {
        Self { clock, limits, rules: Mutex::new(None) }
    }

    /// Starts from the newest time in the log, in milliseconds; `None` for a log without a record,
    /// which believes the wall clock whatever it says.
    pub fn start(&self, newest_ms: Option<u64>) {
        self.with(|rules, now| *rules = Some(Rules::start(newest_ms, now, self.limits)));
    }

    /// Raises log time to a time that another writer put into the log.
    pub fn raise(&self, newest_ms: u64) {
        self.with(|rules, now| {
            if let Some(rules) = rules {
                rules.raise(newest_ms, now);
            }
        });
    }

    /// What a rebase would make log time, in milliseconds.
    pub(crate) fn rebased_ms(&self) -> u64 {
        self.with(|rules, now| log_time(rules, now).max(now.wall_ms))
    }

    /// Believes the wall clock where it is ahead, because an operator said so; answers log time
    /// after that. The caller records the verb.
    pub fn rebase(&self) -> u64 {
        self.with(|rules, now| rules.as_mut().map_or(now.wall_ms, |rules| rules.rebase(now)))
    }

    /// Whether a wall clock far ahead is not believed (yet): nothing expires or is trimmed by age.
    #[must_use]
    pub fn clock_held(&self) -> bool {
        self.with(|rules, now| rules.as_mut().is_none_or(|rules| rules.is_held(now)))
    }

    /// The time by which keys expire, in milliseconds, and whether it stands still because a wall
    /// clock far ahead is not believed, at one instant.
    pub(crate) fn look(&self) -> (u64, bool) {
        self.with(|rules, now| {
            // Before it starts, nobody knows what is over.
            let Some(rules) = rules else { return (0, true) };
            let time = rules.advance(now);
            rules.lead.map_or((time, false), |lead| (lead.begun_at_ms, true))
        })
    }

    /// Wall clock minus log time in milliseconds.
    #[must_use]
    pub fn offset_ms(&self) -> i64 {
        let (wall_ms, time) = self.with(|rules, now| (now.wall_ms, log_time(rules, now)));
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        signed(wall_ms.saturating_sub(time)).saturating_sub(signed(time.saturating_sub(wall_ms)))
    }

    /// Looks at the clocks under the lock: two callers never see them in different orders.
    fn with<T>(&self, step: impl FnOnce(&mut Option<Rules>, Now) -> T) -> T {
        // The rules hold after every step, so a panic elsewhere leaves nothing half done.
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock beyond what a time tick holds is as wrong as can be; it must not also be fatal.
        let wall_ms = self.clock.wall_ms().min(TimeTick::MS_MAX);
        step(&mut rules, Now { wall_ms, monotonic: self.clock.monotonic() })
    }
}

impl Clock for LogTime {
    fn wall_ms(&self) -> u64 {
        self.with(log_time)
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn expiry_ms(&self, newest_ms: u64) -> u64 {
        let (time, is_held) = self.look();
        // Records that were written meanwhile move it no further.
        if is_held { time } else { time.max(newest_ms) }
    }
}

fn log_time(rules: &mut Option<Rules>, now: Now) -> u64 {
    rules.as_mut().map_or(now.wall_ms, |rules| rules.advance(now))
}

/// What both clocks show at one instant.
#[derive(Clone, Copy, Debug)]
struct Now {
    wall_ms: u64,
    monotonic: Duration,
}

/// The rules, without a clock.
#[derive(Clone, Debug)]
struct Rules {
    limits: ClockLimits,
    /// Log time at `base_at` of the monotonic clock; from there it follows the monotonic clock, so
    /// that rounding does not add up.
    base_ms: u64,
    base_at: Duration,
    lead: Option<Lead>,
}

/// A wall clock that is further ahead than is believed.
#[derive(Clone, Copy, Debug)]
struct Lead {
    since: Duration,
    smallest_ms: u64,
    /// Log time when it was seen first: nothing expires behind that while it lasts.
    begun_at_ms: u64,
}

impl Rules {
    fn start(newest_ms: Option<u64>, now: Now, limits: ClockLimits) -> Self {
        let base_ms = newest_ms.unwrap_or(now.wall_ms);
        let mut rules = Self { limits, base_ms, base_at: now.monotonic, lead: None };
        rules.weigh(now, limits.step_max_at_open);
        rules
    }

    /// Log time now.
    fn advance(&mut self, now: Now) -> u64 {
        self.weigh(now, self.limits.step_max)
    }

    fn is_held(&mut self, now: Now) -> bool {
        self.advance(now);
        self.lead.is_some()
    }

    fn raise(&mut self, newest_ms: u64, now: Now) {
        let time = self.time_at(now);
        if newest_ms > time {
            self.set(newest_ms, now);
        }
    }

    fn rebase(&mut self, now: Now) -> u64 {
        let time = self.time_at(now).max(now.wall_ms);
        self.set(time, now);
        self.lead = None;
        time
    }

    fn weigh(&mut self, now: Now, step_max: Duration) -> u64 {
        let time = self.time_at(now);
        let lead_ms = now.wall_ms.saturating_sub(time);
        #[cfg(planted)]
        let step_max = if crate::planted::is_active(crate::planted::Bug::JumpBelieved) {
            Duration::MAX
        } else {
            step_max
        };
        if u128::from(lead_ms) <= step_max.as_millis() {
            self.lead = None;
            if lead_ms > 0 {
                self.set(now.wall_ms, now);
            }
            return time.saturating_add(lead_ms);
        }
        let lead = match self.lead {
            Some(lead) => Lead { smallest_ms: lead.smallest_ms.min(lead_ms), ..lead },
            None => Lead { since: now.monotonic, smallest_ms: lead_ms, begun_at_ms: time },
        };
        if now.monotonic.saturating_sub(lead.since) < self.limits.settle {
            self.lead = Some(lead);
            return time;
        }
        let settled = time.saturating_add(lead.smallest_ms);
        self.set(settled, now);
        // What is ahead of that has a time of its own to settle.
        self.lead = None;
        self.weigh(now, step_max)
    }

    fn time_at(&self, now: Now) -> u64 {
        let since = now.monotonic.saturating_sub(self.base_at).as_millis();
        self.base_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn set(&mut self, time_ms: u64, now: Now) {
        self.base_ms = time_ms;
        self.base_at = now.monotonic;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const START: u64 = 1_700_000_000_000;
    const MINUTE: u64 = 60_000;
    const DAY: u64 = 24 * 60 * MINUTE;

    /// Shows what it is told to.
    #[derive(Debug, Default)]
    struct FakeClock {
        wall_ms: AtomicU64,
        monotonic_ms: AtomicU64,
    }

    impl FakeClock {
        fn at(wall_ms: u64) -> Arc<Self> {
            let clock = Self::default();
            clock.wall_ms.store(wall_ms, Ordering::Relaxed);
            Arc::new(clock)
        }

        /// Time goes by, for both clocks.
        fn pass(&self, ms: u64) {
            self.wall_ms.fetch_add(ms, Ordering::Relaxed);
            self.monotonic_ms.fetch_add(ms, Ordering::Relaxed);
        }

        /// The wall clock is set.
        fn set(&self, wall_ms: u64) {
            self.wall_ms.store(wall_ms, Ordering::Relaxed);
        }
    }

    impl Clock for FakeClock {
        fn wall_ms(&self) -> u64 {
            self.wall_ms.load(Ordering::Relaxed)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.monotonic_ms.load(Ordering::Relaxed))
        }
    }

    fn started(newest_ms: Option<u64>, wall_ms: u64) -> (Arc<FakeClock>, LogTime) {
        let clock = FakeClock::at(wall_ms);
        let time = LogTime::new(Arc::<FakeClock>::clone(&clock), ClockLimits::new());
        time.start(newest_ms);
        (clock, time)
    }

    #[test]
    fn a_log_without_a_record_believes_the_wall_clock() {
        let (clock, time) = started(None, START);
        assert_eq!(time.wall_ms(), START);
        assert!(!time.clock_held());
        clock.pass(5);
        assert_eq!((time.wall_ms(), time.offset_ms()), (START + 5, 0));
    }

    #[test]
    fn a_wall_clock_behind_is_ignored_and_time_goes_on() {
        let (clock, time) = started(Some(START), START - DAY);
        assert_eq!(time.wall_ms(), START);
        clock.pass(1_000);
        assert_eq!(time.wall_ms(), START + 1_000);
        clock.set(0);
        clock.pass(1_000);
        assert_eq!(time.wall_ms(), START + 2_000);
        assert!(!time.clock_held());
        assert!(time.offset_ms() < 0);
    }

    #[test]
    fn up_to_a_week_ahead_is_believed_at_open_and_no_more() {
        let (_, time) = started(Some(START), START + 7 * DAY);
        assert_eq!((time.wall_ms(), time.clock_held()), (START + 7 * DAY, false));
        let (_, time) = started(Some(START), START + 7 * DAY + 1);
        assert_eq!((time.wall_ms(), time.clock_held()), (START, true));
        assert_eq!(time.offset_ms(), 7 * 86_400_000 + 1);
    }

    #[test]
    fn up_to_a_minute_ahead_is_believed_within_a_process_and_no_more() {
        let (clock, time) = started(Some(START), START);
        clock.set(START + MINUTE);
        assert_eq!((time.wall_ms(), time.clock_held()), (START + MINUTE, false));
        clock.set(START + 2 * MINUTE + 1);
        assert_eq!((time.wall_ms(), time.clock_held()), (START + MINUTE, true));
    }

    #[test]
    fn a_lead_that_lasts_is_believed_by_its_smallest_value() {
        let (clock, time) = started(Some(START), START);
        clock.set(START + 30 * DAY);
        assert!(time.clock_held());
        clock.pass(4 * MINUTE);
        // Set back by some, still far ahead: 20 days are the smallest lead.
        clock.set(START + 4 * MINUTE + 20 * DAY);
        assert!(time.clock_held());
        clock.set(START + 4 * MINUTE + 25 * DAY);
        clock.pass(6 * MINUTE - 1);
        assert_eq!(time.wall_ms(), START + 10 * MINUTE - 1);
        clock.pass(1);
        assert_eq!(time.wall_ms(), START + 10 * MINUTE + 20 * DAY);
        // The other five days have not lasted yet.
        assert!(time.clock_held());
        clock.pass(10 * MINUTE);
        assert_eq!(time.wall_ms(), START + 20 * MINUTE + 25 * DAY);
        assert!(!time.clock_held());
    }

    #[test]
    fn a_lead_that_ends_moves_nothing() {
        let (clock, time) = started(Some(START), START);
        clock.set(START + 30 * DAY);
        assert!(time.clock_held());
        clock.pass(9 * MINUTE);
        assert!(time.clock_held());
        clock.set(START + 9 * MINUTE);
        assert_eq!((time.wall_ms(), time.clock_held()), (START + 9 * MINUTE, false));
        // And settling begins again.
        clock.set(START + 30 * DAY);
        assert!(time.clock_held());
        clock.pass(9 * MINUTE);
        assert_eq!(time.wall_ms(), START + 18 * MINUTE);
    }

    #[test]
    fn the_time_of_expiry_stands_still_while_a_wall_clock_ahead_is_not_believed() {
        let (clock, time) = started(Some(START), START);
        clock.pass(MINUTE);
        assert_eq!(time.expiry_ms(0), START + MINUTE);
        // A record that is ahead of the clock counts.
        assert_eq!(time.expiry_ms(START + 2 * MINUTE), START + 2 * MINUTE);
        clock.set(START + 30 * DAY);
        assert!(time.clock_held());
        clock.pass(5 * MINUTE);
        assert_eq!(time.wall_ms(), START + 6 * MINUTE);
        assert_eq!(time.expiry_ms(START + 6 * MINUTE), START + MINUTE);
        // The doubt ends: what passed meanwhile counts at once.
        clock.set(START + 6 * MINUTE);
        assert_eq!(time.expiry_ms(0), START + 6 * MINUTE);
        clock.set(START + 30 * DAY);
        assert_eq!(time.expiry_ms(0), START + 6 * MINUTE);
        clock.pass(MINUTE);
        assert_eq!(time.expiry_ms(0), START + 6 * MINUTE);
        assert_eq!(time.rebase(), START + 30 * DAY + MINUTE);
        assert_eq!(time.expiry_ms(0), START + 30 * DAY + MINUTE);
    }

    #[test]
    fn a_rebase_believes_a_wall_clock_ahead_and_never_goes_back() {
        let (clock, time) = started(Some(START), START + 30 * DAY);
        assert!(time.clock_held());
        assert_eq!(time.rebase(), START + 30 * DAY);
        assert!(!time.clock_held());
        clock.set(START);
        assert_eq!(time.rebase(), START + 30 * DAY);
    }

    #[test]
    fn another_writers_time_raises_log_time() {
        let (_, time) = started(Some(START), START);
        time.raise(START + DAY);
        assert_eq!(time.wall_ms(), START + DAY);
        time.raise(START);
        assert_eq!(time.wall_ms(), START + DAY);
    }

    #[test]
    fn an_absurd_wall_clock_stays_within_what_a_tick_holds() {
        let (_, time) = started(None, u64::MAX);
        assert_eq!(time.wall_ms(), TimeTick::MS_MAX);
    }

    #[test]
    fn time_never_goes_back_whatever_the_clocks_do() {
        let (clock, time) = started(Some(START), START);
        let mut state = 7_u64;
        let mut before = 0;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = state >> 33;
            match dice % 4 {
                0 => clock.set(START + dice % (40 * DAY)),
                1 => clock.pass(dice % (3 * MINUTE)),
                2 => clock.pass(dice % 10),
                _ => {
                    let now = time.wall_ms();
                    clock.set(now + dice % (2 * MINUTE));
                }
            }
            let now = time.wall_ms();
            assert!(now >= before, "{now} after {before}");
            before = now;
        }
    }
}
