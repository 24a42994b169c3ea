//! The text of `/metrics`: what the broadcaster, its logs and the gateway count, for Prometheus.

use std::sync::{Mutex, PoisonError};

use metrics::with_local_recorder;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use super::counts::GatewayStats;
use super::metered::GatewayMeter;
use crate::broadcast::BroadcastStats;
use crate::meter::Meter;

/// Bounds of the buckets of times, in seconds, and of counts and bytes.
const SECONDS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0];
const COUNTS: [f64; 12] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    16_777_216.0,
];

/// A recorder of its own: whoever embeds the gateway keeps his.
pub(crate) struct Exposition {
    recorder: PrometheusRecorder,
    meters: Mutex<(Meter, GatewayMeter)>,
}

impl std::fmt::Debug for Exposition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Exposition")
    }
}

impl Exposition {
    pub(crate) fn new() -> Self {
        let times = Matcher::Suffix("_seconds".to_owned());
        let builder = PrometheusBuilder::new().set_buckets(&COUNTS);
        let builder = builder.and_then(|builder| builder.set_buckets_for_metric(times, &SECONDS));
        // Refused alone where there is no bucket.
        let recorder = builder.unwrap_or_default().build_recorder();
        let meters = || (Meter::new(), GatewayMeter::new());
        let meters = Mutex::new(with_local_recorder(&recorder, meters));
        Self { recorder, meters }
    }

    /// Publishes the stats, and returns the text.
    pub(crate) fn text(&self, stats: &BroadcastStats, of_gateway: &GatewayStats) -> String {
        let mut meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        let (meter, gateway_meter) = &mut *meters;
        with_local_recorder(&self.recorder, || {
            meter.publish(stats);
            gateway_meter.publish(of_gateway);
        });
        self.recorder.handle().render()
    }
}
