//! Hands the counts of a gateway to the recorder of the `metrics` facade that is in force, as
//! [`Meter`](crate::Meter) does those of a broadcaster.

use std::collections::BTreeMap;

use metrics::{Label, Unit, with_recorder};

use super::counts::{GatewayStats, RouteStats};
use crate::histogram::Histogram;
use crate::meter::table::{MICROS, Row, Values};
use crate::meter::{METADATA, key, set_counters, set_gauges};

/// Publishes the stats of one gateway as metrics, as often as it is told to. The gateway publishes
/// them at `/metrics` by itself.
///
/// # Examples
///
/// ```
/// use oncelog::gateway::{Gateway, GatewayMeter, Tokens};
///
/// # fn main() -> oncelog::Result<()> {
/// let gateway = Gateway::bind(([127, 0, 0, 1], 0).into(), Tokens::parse("a-token")?)?;
/// let counts = gateway.counts();
/// // Once, behind the installation of a recorder; then before each scrape.
/// let mut meter = GatewayMeter::new();
/// meter.publish(&counts.stats());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct GatewayMeter {
    /// What was published last, for the histograms.
    seen: BTreeMap<(&'static str, &'static str), RouteStats>,
}

impl GatewayMeter {
    /// Describes every metric of a gateway to the recorder in force; nothing is published yet.
    #[must_use]
    pub fn new() -> Self {
        with_recorder(|recorder| {
            for row in COUNTERS {
                recorder.describe_counter(row.name.into(), Some(row.unit), row.what.into());
            }
            for row in GAUGES {
                recorder.describe_gauge(row.name.into(), Some(row.unit), row.what.into());
            }
            recorder.describe_histogram(TIME.name.into(), Some(TIME.unit), TIME.what.into());
        });
        Self::default()
    }

    /// Publishes the stats.
    pub fn publish(&mut self, stats: &GatewayStats) {
        with_recorder(|recorder| {
            set_counters(recorder, COUNTERS, stats, &[]);
            set_gauges(recorder, GAUGES, stats, &[]);
            for (name, route) in &stats.routes {
                let before = self.seen.entry(*name).or_default();
                let labels = vec![Label::new("method", name.0), Label::new("route", name.1)];
                let histogram =
                    recorder.register_histogram(&key(TIME.name, labels, &[]), &METADATA);
                for (value, count) in (TIME.values)(route).since(&before.time) {
                    let count = usize::try_from(count).unwrap_or(usize::MAX);
                    histogram.record_many(value as f64 * MICROS, count);
                }
                before.clone_from(route);
            }
        });
    }
}

const COUNTERS: &[Values<GatewayStats, u64>] = &[
    Row {
        name: "oncelog_http_requests_total",
        unit: Unit::Count,
        what: "Requests that were answered",
        values: |s, set| {
            for ((method, route), of) in &s.routes {
                for (status, count) in &of.answers {
                    let status = status.to_string();
                    set(&[("method", method), ("route", route), ("status", &status)], *count);
                }
            }
        },
    },
    Row {
        name: "oncelog_http_refusals_total",
        unit: Unit::Count,
        what: "Those of them that were refused",
        values: |s, set| {
            for (word, count) in &s.refusals {
                set(&[("problem", word)], *count);
            }
        },
    },
    Row {
        name: "oncelog_http_connections_total",
        unit: Unit::Count,
        what: "Connections by whether there was a place for them",
        values: |s, set| {
            set(&[("result", "taken")], s.connections_taken);
            set(&[("result", "turned_away")], s.connections_turned_away);
        },
    },
];

const GAUGES: &[Values<GatewayStats, f64>] = &[
    Row {
        name: "oncelog_http_connections",
        unit: Unit::Count,
        what: "Connections that are open",
        values: |s, set| set(&[], s.connections as f64),
    },
    Row {
        name: "oncelog_http_requests",
        unit: Unit::Count,
        what: "Requests that are under way",
        values: |s, set| set(&[], s.requests as f64),
    },
    Row {
        name: "oncelog_http_requests_waiting",
        unit: Unit::Count,
        what: "Those of them that wait for an effect",
        values: |s, set| set(&[], s.requests_waiting as f64),
    },
];

const TIME: Row<fn(&RouteStats) -> &Histogram> = Row {
    name: "oncelog_http_request_seconds",
    unit: Unit::Seconds,
    what: "From the head of a request to its answer",
    values: |route| &route.time,
};
