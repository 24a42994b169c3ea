//! The retention policy: one value, checked as a whole.
//!
//! A [`Policy`] is plain data until [`Policy::violations`] is empty; the broadcaster takes no
//! other. Names and durations of a configuration are read by [`Policy::set`].

use std::fmt;
use std::time::Duration;

use oncelog_format::control::PolicyRecord;

use super::State;

/// What a full window does to one more key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// Refuses it; every accepted key is promised its lifetime.
    Refuse,
    /// Drops the oldest key that was accepted under this choice; such keys promise no instant.
    EvictOldest,
}

/// How long keys and jobs are kept, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// How long a key is kept behind its Done.
    pub window_lifetime: Duration,
    /// Most keys at once.
    pub window_count_max: u64,
    /// Largest share of the window for one principal, in percent; all of it with one principal.
    pub principal_share_max: u8,
    /// How long a finished job is kept; at least twice `window_lifetime`.
    pub task_retention: Duration,
    /// How often keys whose window is over are swept.
    pub check_interval: Duration,
    /// What a full window does.
    pub window_full: WhenFull,
    /// How long a task is tried without progress, over restarts too, before it is parked; each
    /// process gives it a tenth of that.
    pub retry_age_max: Duration,
    /// Keyed broadcasts an hour that the operator expects.
    pub broadcasts_per_hour_max: Option<u64>,
    /// A bound below the keys that are kept is a warning, not a refusal: they stay, and new ones
    /// are refused or, with `EvictOldest`, have others make room until the bound is kept.
    pub history_warns: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            window_lifetime: HOUR * 24,
            window_count_max: 1_048_576,
            principal_share_max: 25,
            task_retention: HOUR * 48,
            check_interval: Duration::from_secs(300),
            window_full: WhenFull::Refuse,
            retry_age_max: Duration::from_secs(600),
            broadcasts_per_hour_max: None,
            history_warns: false,
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Longest duration that a policy may state: what the time of a frame can hold.
const DURATION_MAX: Duration = Duration::from_millis(oncelog_format::limits::TIME_MS_MAX);

/// A rule that a policy breaks, with both values.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The name whose value is wrong.
    pub name: String,
    /// The rule, in words.
    pub rule: &'static str,
    /// The value that is there.
    pub found: String,
    /// The value that the rule asks for.
    pub expected: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, rule, found, expected } = self;
        write!(f, "{name}: {rule}: expected {expected}, found {found}")
    }
}

/// A value of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Setting<'a> {
    /// Text, such as `"24h"` or `"refuse"`.
    Text(&'a str),
    /// A bare number.
    Integer(i64),
    /// True or false.
    Flag(bool),
}

impl fmt::Display for Setting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

impl Policy {
    /// The names that [`Policy::set`] knows.
    pub const NAMES: [&'static str; 9] = [
        "window_lifetime",
        "window_count_max",
        "principal_share_max",
        "task_retention",
        "check_interval",
        "window_full",
        "retry_age_max",
        "broadcasts_per_hour_max",
        "history",
    ];

    /// Sets one value by its name in a configuration.
    ///
    /// # Errors
    ///
    /// A [`Violation`] for an unknown name, a bare number for a duration, and a value out of range.
    pub fn set(&mut self, name: &str, value: Setting<'_>) -> Result<(), Violation> {
        match name {
            "window_lifetime" => self.window_lifetime = duration(name, value)?,
            "window_count_max" => self.window_count_max = count(name, value)?,
            "principal_share_max" => self.principal_share_max = percent(name, value)?,
            "task_retention" => self.task_retention = duration(name, value)?,
            "check_interval" => self.check_interval = duration(name, value)?,
            "window_full" => {
                self.window_full = match value {
                    Setting::Text("refuse" | "Refuse") => WhenFull::Refuse,
                    Setting::Text("evict_oldest" | "EvictOldest") => WhenFull::EvictOldest,
                    _ => {
                        return Err(wrong(
                            name,
                            "one of the words",
                            value,
                            "refuse or evict_oldest",
                        ));
                    }
                }
            }
            "retry_age_max" => self.retry_age_max = duration(name, value)?,
            "broadcasts_per_hour_max" => self.broadcasts_per_hour_max = Some(count(name, value)?),
            "history" => {
                self.history_warns = match value {
                    Setting::Text("refuse") => false,
                    Setting::Text("warn") => true,
                    _ => return Err(wrong(name, "one of the words", value, "refuse or warn")),
                }
            }
            _ => {
                let known = Self::NAMES.join(", ");
                return Err(wrong(name, "unknown name", value, &format!("one of {known}")));
            }
        }
        Ok(())
    }

    /// Returns every rule that the policy breaks; an empty list is a valid policy.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut broken = Vec::new();
        let durations = [
            ("window_lifetime", self.window_lifetime),
            ("task_retention", self.task_retention),
            ("check_interval", self.check_interval),
            ("retry_age_max", self.retry_age_max),
        ];
        for (name, value) in durations {
            if value < Duration::from_millis(1) || value > DURATION_MAX {
                let found = format_duration(value);
                broken.push(rule(name, "a duration out of range", found, "1ms to 8919 years"));
            }
        }
        if self.window_count_max == 0 {
            broken.push(rule("window_count_max", "a count out of range", 0, "at least 1"));
        }
        if !(1..=100).contains(&self.principal_share_max) {
            let found = self.principal_share_max;
            broken.push(rule("principal_share_max", "a share in percent", found, "1 to 100"));
        }
        if self.broadcasts_per_hour_max == Some(0) {
            broken.push(rule("broadcasts_per_hour_max", "a rate out of range", 0, "at least 1"));
        }
        let twice = self.window_lifetime.saturating_mul(2);
        if self.task_retention < twice {
            broken.push(rule(
                "task_retention",
                "at least twice window_lifetime",
                format_duration(self.task_retention),
                format!(
                    "at least {}, for a window_lifetime of {}",
                    format_duration(twice),
                    format_duration(self.window_lifetime)
                ),
            ));
        }
        if let Some(rate) = self.broadcasts_per_hour_max {
            let millis = u128::from(rate).saturating_mul(self.window_lifetime.as_millis());
            let need = millis.div_ceil(HOUR.as_millis());
            if u128::from(self.window_count_max) < need {
                broken.push(rule(
                    "window_count_max",
                    "at least broadcasts_per_hour_max times window_lifetime",
                    self.window_count_max,
                    format!(
                        "at least {need}, for {rate} an hour and a window_lifetime of {}",
                        format_duration(self.window_lifetime)
                    ),
                ));
            }
        }
        broken
    }

    /// Returns the rules that the policy breaks against the keys that are kept; none where it takes
    /// that for a warning.
    #[must_use]
    pub fn violations_against(&self, state: &State) -> Vec<Violation> {
        let kept = self.kept_beyond(state).filter(|_| !self.history_warns);
        let what = "at least the keys whose tasks are kept";
        let broken = |kept| {
            rule("window_count_max", what, self.window_count_max, format!("at least {kept}"))
        };
        kept.map(broken).into_iter().collect()
    }

    /// Returns how many keys are kept, where they are more than the bound allows.
    #[must_use]
    pub fn kept_beyond(&self, state: &State) -> Option<usize> {
        // Those that are over by the records may stand for a while, and count for nothing: a store
        // has to open again with the policy that it was closed with.
        let kept = state.window().live_count(state.newest_ms());
        let fits = u64::try_from(kept).is_ok_and(|kept| kept <= self.window_count_max);
        (!fits).then_some(kept)
    }

    /// Returns the most keys of one principal beside others.
    #[must_use]
    pub fn principal_count_max(&self) -> usize {
        let share = u128::from(self.window_count_max) * u128::from(self.principal_share_max) / 100;
        usize::try_from(share).unwrap_or(usize::MAX).max(1)
    }

    /// Returns the lifetime that a key is promised, in milliseconds.
    #[must_use]
    pub fn lifetime_ms(&self) -> u64 {
        millis(self.window_lifetime)
    }

    /// Returns the policy that a record states. Whether a bound below the keys that are kept is a
    /// warning is not recorded.
    #[must_use]
    pub fn of_record(record: &PolicyRecord) -> Self {
        let window_full =
            if record.evict_oldest { WhenFull::EvictOldest } else { WhenFull::Refuse };
        Self {
            window_lifetime: Duration::from_millis(record.window_lifetime_ms),
            window_count_max: record.window_count_max,
            principal_share_max: record.principal_share_max_percent,
            task_retention: Duration::from_millis(record.task_retention_ms),
            check_interval: Duration::from_millis(record.check_interval_ms),
            window_full,
            retry_age_max: Duration::from_millis(record.retry_age_max_ms),
            broadcasts_per_hour_max: record.broadcasts_per_hour_max,
            history_warns: false,
        }
    }

    /// Returns the record that states the policy.
    #[must_use]
    pub fn record(&self) -> PolicyRecord {
        PolicyRecord {
            window_lifetime_ms: self.lifetime_ms(),
            window_count_max: self.window_count_max,
            principal_share_max_percent: self.principal_share_max,
            task_retention_ms: millis(self.task_retention),
            check_interval_ms: millis(self.check_interval),
            evict_oldest: self.window_full == WhenFull::EvictOldest,
            retry_age_max_ms: millis(self.retry_age_max),
            broadcasts_per_hour_max: self.broadcasts_per_hour_max,
        }
    }
}

/// Writes a duration as a configuration states it, in the largest units that say it exactly; what
/// is less than a millisecond is left out.
#[must_use]
pub fn format_duration(value: Duration) -> String {
    let mut rest = value.as_millis();
    let mut text = String::new();
    for (ms, unit) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")] {
        if rest >= ms {
            text.push_str(&format!("{}{unit}", rest / ms));
            rest %= ms;
        }
    }
    if text.is_empty() { "0ms".into() } else { text }
}

/// Reads a duration such as `24h`, `1h30m`, `500ms`.
///
/// # Errors
///
/// What is wrong with the text, in words.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return Err("an empty duration");
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or("a number without a unit")?;
        let (number, tail) = rest.split_at(digits);
        let unit_len = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        let number: u64 = number.parse().map_err(|_digits| "not a number")?;
        let unit_ms: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err("a unit other than ms, s, m, h, d"),
        };
        let part = number.checked_mul(unit_ms).ok_or("a duration that overflows")?;
        let part = Duration::from_millis(part);
        total = total.checked_add(part).ok_or("a duration that overflows")?;
        rest = tail;
    }
    if total > DURATION_MAX {
        return Err("a duration that overflows");
    }
    Ok(total)
}

fn duration(name: &str, value: Setting<'_>) -> Result<Duration, Violation> {
    let example = "a duration with a unit, such as \"24h\"";
    match value {
        Setting::Text(text) => match parse_duration(text) {
            Ok(Duration::ZERO) => Err(wrong(name, "a duration of zero", value, example)),
            Ok(duration) => Ok(duration),
            Err(what) => Err(wrong(name, what, value, example)),
        },
        _ => Err(wrong(name, "a bare number for a duration", value, example)),
    }
}

fn count(name: &str, value: Setting<'_>) -> Result<u64, Violation> {
    match value {
        Setting::Integer(number) if number > 0 => Ok(number.unsigned_abs()),
        _ => Err(wrong(name, "a count out of range", value, "a number of at least 1")),
    }
}

fn percent(name: &str, value: Setting<'_>) -> Result<u8, Violation> {
    let number = match value {
        Setting::Integer(number) => Some(number),
        Setting::Text(text) => text.strip_suffix('%').and_then(|n| n.trim().parse().ok()),
        Setting::Flag(_) => None,
    };
    let percent = number.and_then(|n| u8::try_from(n).ok()).filter(|n| (1..=100).contains(n));
    percent.ok_or_else(|| wrong(name, "a share in percent", value, "1 to 100"))
}

fn wrong(name: &str, what: &'static str, value: Setting<'_>, expected: &str) -> Violation {
    rule(name, what, value, expected)
}

fn rule(
    name: &str,
    rule: &'static str,
    found: impl fmt::Display,
    expected: impl Into<String>,
) -> Violation {
    let (name, found) = (name.to_owned(), found.to_string());
    Violation { name, rule, found, expected: expected.into() }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut Policy), broken: &[&str]) {
        let mut policy = Policy::default();
        change(&mut policy);
        let names: Vec<String> = policy.violations().into_iter().map(|v| v.name).collect();
        assert_eq!(names, broken);
    }

    #[test]
    fn a_policy_is_checked_as_one_value() {
        check(|_| {}, &[]);
        check(|p| p.window_lifetime += Duration::from_millis(1), &["task_retention"]);
        check(|p| p.window_lifetime = Duration::ZERO, &["window_lifetime"]);
        check(|p| p.check_interval = Duration::MAX, &["check_interval"]);
        check(|p| p.window_count_max = 0, &["window_count_max"]);
        check(|p| p.principal_share_max = 0, &["principal_share_max"]);
        check(|p| p.principal_share_max = 101, &["principal_share_max"]);
        check(|p| p.broadcasts_per_hour_max = Some(0), &["broadcasts_per_hour_max"]);
        check(|p| p.broadcasts_per_hour_max = Some(43_690), &[]);
        check(|p| p.broadcasts_per_hour_max = Some(43_691), &["window_count_max"]);
        check(|p| p.broadcasts_per_hour_max = Some(u64::MAX), &["window_count_max"]);
        let short = |p: &mut Policy| {
            p.task_retention = HOUR;
            p.window_count_max = 1;
            p.broadcasts_per_hour_max = Some(1);
        };
        check(short, &["task_retention", "window_count_max"]);
    }

    #[test]
    fn a_violation_names_both_values() {
        let policy = Policy { task_retention: HOUR, ..Policy::default() };
        let violation = policy.violations().remove(0).to_string();
        let expected = "task_retention: at least twice window_lifetime: \
                        expected at least 48h, for a window_lifetime of 24h, found 1h";
        assert_eq!(violation, expected);
    }

    #[test]
    fn a_duration_is_written_as_it_is_read() {
        for text in ["25h", "1h30m", "500ms", "1m1s1ms", "0ms"] {
            let value = if text == "0ms" { Ok(Duration::ZERO) } else { parse_duration(text) };
            assert_eq!(value.map(format_duration), Ok(text.to_owned()));
        }
        assert_eq!(format_duration(Duration::from_secs(2 * 24 * 3_600)), "48h");
    }

    #[test]
    fn a_policy_is_its_record() {
        let policy = Policy {
            window_lifetime: HOUR,
            window_count_max: 7,
            principal_share_max: 9,
            task_retention: HOUR * 3,
            check_interval: Duration::from_secs(4),
            window_full: WhenFull::EvictOldest,
            retry_age_max: Duration::from_secs(5),
            broadcasts_per_hour_max: Some(6),
            history_warns: false,
        };
        assert_eq!(Policy::of_record(&policy.record()), policy);
        assert_eq!(Policy::of_record(&Policy::default().record()), Policy::default());
    }

    #[test]
    fn durations_have_units() {
        let check = |text: &str, ms: Option<u64>| {
            assert_eq!(parse_duration(text).ok(), ms.map(Duration::from_millis), "{text:?}");
        };
        check("24h", Some(86_400_000));
        check("1h30m", Some(5_400_000));
        check("500ms", Some(500));
        check("2d", Some(172_800_000));
        check("10min", Some(600_000));
        check("", None);
        check("24", None);
        check("h", None);
        check("-1h", None);
        check("1 h", None);
        check("1w", None);
        check("99999999999999999999h", None);
        check("18446744073709551615h", None);
        check("8920000d", None);
    }

    #[test]
    fn settings_are_refused_by_name_type_and_range() {
        let mut policy = Policy::default();
        let mut set = |name, value| policy.set(name, value).map_err(|v| v.rule);
        assert_eq!(set("window_lifetime", Setting::Text("1h")), Ok(()));
        let bare = Err("a bare number for a duration");
        assert_eq!(set("window_lifetime", Setting::Integer(86_400)), bare);
        assert_eq!(set("window_lifetime", Setting::Text("0h")), Err("a duration of zero"));
        assert_eq!(set("window_count_max", Setting::Integer(-1)), Err("a count out of range"));
        assert_eq!(set("window_count_max", Setting::Text("5")), Err("a count out of range"));
        assert_eq!(set("principal_share_max", Setting::Text("50%")), Ok(()));
        assert_eq!(set("window_full", Setting::Text("evict_oldest")), Ok(()));
        assert_eq!(set("window_full", Setting::Flag(true)), Err("one of the words"));
        assert_eq!(set("lifetime", Setting::Text("1h")), Err("unknown name"));
        assert_eq!(policy.window_lifetime, HOUR);
        assert_eq!(policy.principal_share_max, 50);
        assert_eq!(policy.window_full, WhenFull::EvictOldest);
    }
}
