//! Hands stats to the recorder of the `metrics` facade that is in force.
//!
//! The log and the broadcaster count by themselves, always; a [`Meter`] carries what they counted
//! to a recorder when it is told to, on the thread that tells it. So no code of a recorder runs
//! within an append, under a lock of the log, or on a thread of it, and a scrape that never comes
//! costs nothing.

pub(crate) mod table;

use std::collections::BTreeMap;

use metrics::{Key, Label, Level, Metadata, Recorder, with_recorder};

use self::table::{
    BROADCAST_COUNTERS, BROADCAST_GAUGES, LOG_COUNTERS, LOG_GAUGES, LOG_HISTOGRAMS, Values,
};
use crate::broadcast::BroadcastStats;
use crate::log::LogStats;

/// Publishes stats as metrics, as often as it is told to: before a scrape, or by a timer.
///
/// Counters and gauges are set to what the stats say. What histograms have gained since the last
/// time is recorded bucket by bucket, each value as the greatest of its bucket; so a log is
/// published to one recorder by one meter.
///
/// # Examples
///
/// ```
/// use oncelog::{CreateMode, Log, Meter, Options};
///
/// # fn main() -> oncelog::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// let options = Options::new().create(CreateMode::IfMissing);
/// let (log, _) = Log::open(dir.path().join("log"), &options)?;
/// let mut meter = Meter::new();
/// log.append(b"one more record")?;
/// meter.publish_log("log", &log.stats());
/// # log.close()
/// # }
/// ```
#[derive(Debug)]
pub struct Meter {
    /// What was published of each log last, for its histograms.
    seen: BTreeMap<String, LogStats>,
}

impl Meter {
    /// Describes every metric to the recorder in force; nothing is published yet.
    #[must_use]
    pub fn new() -> Self {
        with_recorder(describe);
        Self { seen: BTreeMap::new() }
    }

    /// Publishes the stats of a log, labelled with `log`.
    pub fn publish_log(&mut self, log: &str, stats: &LogStats) {
        let labels = [Label::new("log", log.to_owned())];
        let before = self.seen.entry(log.to_owned()).or_default();
        with_recorder(|recorder| {
            set_counters(recorder, LOG_COUNTERS, stats, &labels);
            set_gauges(recorder, LOG_GAUGES, stats, &labels);
            for (row, scale) in LOG_HISTOGRAMS {
                let key = key(row.name, labels.to_vec(), &[]);
                let histogram = recorder.register_histogram(&key, &METADATA);
                for (value, count) in (row.values)(stats).since((row.values)(before)) {
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    histogram.record_many(value as f64 * scale, count);
                }
            }
        });
        before.clone_from(stats);
    }

    /// Publishes the stats of a broadcaster, and of its logs.
    pub fn publish(&mut self, stats: &BroadcastStats) {
        with_recorder(|recorder| {
            set_counters(recorder, BROADCAST_COUNTERS, stats, &[]);
            set_gauges(recorder, BROADCAST_GAUGES, stats, &[]);
        });
        for (name, of_log) in &stats.logs {
            self.publish_log(name, of_log);
        }
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

pub(crate) static METADATA: Metadata<'_> = Metadata::new("oncelog", Level::INFO, Some("oncelog"));

/// Sets counters to what stats say.
pub(crate) fn set_counters<T>(
    recorder: &dyn Recorder,
    rows: &[Values<T, u64>],
    stats: &T,
    labels: &[Label],
) {
    for row in rows {
        (row.values)(stats, &mut |more, value| {
            let key = key(row.name, labels.to_vec(), more);
            recorder.register_counter(&key, &METADATA).absolute(value);
        });
    }
}

/// Sets gauges to what stats say.
pub(crate) fn set_gauges<T>(
    recorder: &dyn Recorder,
    rows: &[Values<T, f64>],
    stats: &T,
    labels: &[Label],
) {
    for row in rows {
        (row.values)(stats, &mut |more, value| {
            let key = key(row.name, labels.to_vec(), more);
            recorder.register_gauge(&key, &METADATA).set(value);
        });
    }
}

pub(crate) fn key(
    name: &'static str,
    mut labels: Vec<Label>,
    more: &[(&'static str, &str)],
) -> Key {
    labels.extend(more.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())));
    Key::from_parts(name, labels)
}

fn describe(recorder: &dyn Recorder) {
    for row in LOG_COUNTERS {
        recorder.describe_counter(row.name.into(), Some(row.unit), row.what.into());
    }
    for row in LOG_GAUGES {
        recorder.describe_gauge(row.name.into(), Some(row.unit), row.what.into());
    }
    for (row, _) in LOG_HISTOGRAMS {
        recorder.describe_histogram(row.name.into(), Some(row.unit), row.what.into());
    }
    for row in BROADCAST_COUNTERS {
        recorder.describe_counter(row.name.into(), Some(row.unit), row.what.into());
    }
    for row in BROADCAST_GAUGES {
        recorder.describe_gauge(row.name.into(), Some(row.unit), row.what.into());
    }
}
