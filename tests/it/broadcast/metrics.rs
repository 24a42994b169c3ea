//! The metrics facade: what a recorder is told, against the stats and against `docs/metrics.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit, with_local_recorder,
};
use oncelog::Meter;
use oncelog::broadcast::Verdict;

use super::desk::Desk;

/// What stands for one metric with its labels.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    value: f64,
    samples: Vec<(f64, usize)>,
    labels: BTreeSet<String>,
}

/// What a recorder was told, by name and labels; and what it was told that they mean.
#[derive(Debug, Default)]
struct Book {
    values: Mutex<BTreeMap<String, Arc<Cell>>>,
    described: Mutex<BTreeMap<String, (&'static str, Unit, String)>>,
}

#[derive(Debug, Default)]
struct Cell(Mutex<Told>);

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        self.0.lock().unwrap().value += value as f64;
    }

    fn absolute(&self, value: u64) {
        let told = &mut self.0.lock().unwrap().value;
        *told = told.max(value as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, value: f64) {
        self.0.lock().unwrap().value += value;
    }

    fn decrement(&self, value: f64) {
        self.0.lock().unwrap().value -= value;
    }

    fn set(&self, value: f64) {
        self.0.lock().unwrap().value = value;
    }
}

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        self.record_many(value, 1);
    }

    fn record_many(&self, value: f64, count: usize) {
        self.0.lock().unwrap().samples.push((value, count));
    }
}

impl Book {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = [vec![key.name().to_owned()], labels].concat().join(" ");
        let cell = Arc::clone(self.values.lock().unwrap().entry(name).or_default());
        let names = key.labels().map(|label| label.key().to_owned());
        cell.0.lock().unwrap().labels.extend(names);
        cell
    }

    fn describe(&self, name: KeyName, kind: &'static str, unit: Option<Unit>, what: SharedString) {
        let described = (kind, unit.unwrap(), what.to_string());
        self.described.lock().unwrap().insert(name.as_str().to_owned(), described);
    }

    fn told(&self, name: &str) -> Told {
        let values = self.values.lock().unwrap();
        let Some(cell) = values.get(name) else {
            panic!("{name} is not among {:#?}", values.keys());
        };
        cell.0.lock().unwrap().clone()
    }

    #[track_caller]
    fn check(&self, expected: &[(&str, f64)]) {
        for (name, value) in expected {
            assert_eq!(self.told(name).value, *value, "{name}");
        }
    }

    /// How many samples a histogram has.
    fn samples(&self, name: &str) -> usize {
        self.told(name).samples.iter().map(|(_, count)| count).sum()
    }
}

impl Recorder for Book {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(key, "counter", unit, what);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(key, "gauge", unit, what);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(key, "histogram", unit, what);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key))
    }
}

#[test]
fn a_recorder_is_told_what_the_stats_say() {
    let (book, desk) = (Book::default(), Desk::open());
    let mut meter = with_local_recorder(&book, Meter::new);
    drop(desk.submit("k", "p").unwrap());
    drop(desk.submit("k", "p").unwrap());
    desk.submit("k", "q").unwrap_err();
    desk.script.next(Verdict::Retry("not yet".into()));
    desk.script.next(Verdict::Park("a person has to look".into()));
    desk.submit("parks", "p").unwrap_err();
    let stats = desk.broadcaster.stats();
    with_local_recorder(&book, || meter.publish(&stats));
    book.check(&[
        ("oncelog_broadcasts_accepted_total type=Script", 2.0),
        ("oncelog_broadcasts_ended_total type=Script outcome=done", 1.0),
        ("oncelog_broadcasts_ended_total type=Script outcome=failed", 0.0),
        ("oncelog_broadcasts_parked_total type=Script", 1.0),
        ("oncelog_broadcasts type=Script state=parked", 1.0),
        ("oncelog_broadcasts type=Script state=in_flight", 0.0),
        ("oncelog_broadcasts type=(unregistered) state=parked", 0.0),
        ("oncelog_callbacks_total type=Script verdict=done", 1.0),
        ("oncelog_callbacks_total type=Script verdict=retry", 1.0),
        ("oncelog_callbacks_total type=Script verdict=park", 1.0),
        ("oncelog_callbacks_total type=Script verdict=panic", 0.0),
        ("oncelog_key_lookups_total result=hit", 1.0),
        ("oncelog_key_lookups_total result=miss", 2.0),
        ("oncelog_key_lookups_total result=conflict", 1.0),
        ("oncelog_submit_errors_total kind=conflict", 1.0),
        ("oncelog_submit_errors_total kind=parked", 1.0),
        ("oncelog_copies_total how=appended", 4.0),
        ("oncelog_keys", 2.0),
        ("oncelog_keys_max", 1_048_576.0),
        ("oncelog_window_effective_seconds", 86_400.0),
        ("oncelog_window_lifetime_seconds", 86_400.0),
        ("oncelog_keys_dropped_total cause=evicted", 0.0),
        ("oncelog_jobs state=Completed", 0.0),
        ("oncelog_clock_held", 0.0),
        ("oncelog_checkpoint_failing", 0.0),
        ("oncelog_replay_progress_ratio", 1.0),
        ("oncelog_log_records_total log=channels/p0", 4.0),
        ("oncelog_log_poisoned log=channels/p0", 0.0),
        ("oncelog_log_segments log=control", 1.0),
    ]);
    let of_channel = &stats.logs["channels/p0"];
    let syncs = usize::try_from(of_channel.sync_latency.count()).unwrap();
    assert_eq!(book.samples("oncelog_log_sync_seconds log=channels/p0"), syncs);
    // Once more, without anything new: counters stand, and no sample comes twice.
    with_local_recorder(&book, || meter.publish(&stats));
    assert_eq!(book.samples("oncelog_log_sync_seconds log=channels/p0"), syncs);
    book.check(&[("oncelog_log_records_total log=channels/p0", 4.0)]);
}

#[test]
fn samples_of_a_histogram_are_seconds_at_most_a_quarter_too_much() {
    let (book, desk) = (Book::default(), Desk::open());
    let mut meter = with_local_recorder(&book, Meter::new);
    drop(desk.submit("k", "p").unwrap());
    let stats = desk.broadcaster.stats();
    with_local_recorder(&book, || meter.publish(&stats));
    for (name, log) in &stats.logs {
        for (metric, histogram, scale) in [
            ("sync_seconds", &log.sync_latency, 1e-6),
            ("append_seconds", &log.append_latency, 1e-6),
            ("group_records", &log.group_records, 1.0),
            ("group_bytes", &log.group_bytes, 1.0),
        ] {
            let told = book.told(&format!("oncelog_log_{metric} log={name}"));
            let sum: f64 = told.samples.iter().map(|(value, n)| value * *n as f64).sum();
            let exact = histogram.sum() as f64 * scale;
            assert!(exact - 1e-9 <= sum && sum <= exact * 1.25 + 1e-9, "{name} {metric}: {sum}");
        }
    }
}

/// While an open replays there is nobody to ask for stats. To make so many vchannels at once took a
/// minute, in which nothing could be decided: each name was compared with all before it.
#[test]
fn a_long_replay_tells_how_far_it_is() {
    let (book, desk) = (Book::default(), Desk::open());
    let names: Vec<String> = (0..70_000).map(|n| format!("v{n}")).collect();
    desk.broadcaster.ensure_vchannels(&names).unwrap();
    let desk = with_local_recorder(&book, || desk.reopen());
    let ratio = book.told("oncelog_replay_progress_ratio").value;
    assert!((0.9..1.0).contains(&ratio), "{ratio}");
    let stats = desk.broadcaster.stats();
    assert!(stats.replay.records > 70_000);
    assert!(stats.replay.time > std::time::Duration::ZERO);
    let mut meter = with_local_recorder(&book, Meter::new);
    with_local_recorder(&book, || meter.publish(&stats));
    book.check(&[("oncelog_replay_progress_ratio", 1.0)]);
}

/// Rows of `docs/metrics.md`: type, unit, names of labels, what.
fn documented() -> BTreeMap<String, (String, String, BTreeSet<String>, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut rows = BTreeMap::new();
    let lines = text.lines().filter(|line| line.starts_with("| `oncelog_"));
    // Those of the gateway are held against what it serves.
    for line in lines.filter(|line| !line.starts_with("| `oncelog_http_")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let name = cells[0].trim_matches('`').to_owned();
        let labels = cells[3].split(';').filter_map(|label| label.split('`').nth(1));
        let labels = labels.map(str::to_owned).collect();
        rows.insert(name, (cells[1].into(), cells[2].into(), labels, cells[4].into()));
    }
    rows
}

#[test]
fn every_metric_is_documented_as_it_is_described_and_labelled() {
    let (book, desk) = (Book::default(), Desk::open());
    desk.submit("\n", "p").unwrap_err();
    let mut meter = with_local_recorder(&book, Meter::new);
    with_local_recorder(&book, || meter.publish(&desk.broadcaster.stats()));
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, cell) in book.values.lock().unwrap().iter() {
        let name = name.split(' ').next().unwrap().to_owned();
        labels.entry(name).or_default().extend(cell.0.lock().unwrap().labels.clone());
    }
    let described = book.described.lock().unwrap();
    let told = described.iter().map(|(name, (kind, unit, what))| {
        let labels = labels.get(name).unwrap_or_else(|| panic!("{name} was never set"));
        (name.clone(), ((*kind).to_owned(), unit.as_str().to_owned(), labels.clone(), what.clone()))
    });
    assert_eq!(told.collect::<BTreeMap<_, _>>(), documented());
    assert_eq!(described.len(), labels.len());
}
