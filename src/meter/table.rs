//! The metrics: name, unit, what it is, and where in the stats its values stand. `docs/metrics.md`
//! has the same rows; a test compares them.

use std::time::Duration;

use metrics::Unit;

use crate::broadcast::BroadcastStats;
use crate::histogram::Histogram;
use crate::log::LogStats;

/// Takes a value with its labels.
pub(crate) type Set<'a, V> = &'a mut dyn FnMut(&[(&'static str, &str)], V);

/// A metric and where its values come from.
#[derive(Debug)]
pub(crate) struct Row<F> {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) what: &'static str,
    pub(crate) values: F,
}

/// A metric of plain values.
pub(crate) type Values<T, V> = Row<fn(&T, Set<'_, V>)>;

/// A metric of a histogram.
type Of = Row<fn(&LogStats) -> &Histogram>;

/// From microseconds to seconds.
pub(crate) const MICROS: f64 = 1e-6;

/// Counters of a log.
pub(super) const LOG_COUNTERS: &[Values<LogStats, u64>] = &[
    Row {
        name: "oncelog_log_records_total",
        unit: Unit::Count,
        what: "Records that were given an LSN",
        values: |s, set| set(&[], s.record_count),
    },
    Row {
        name: "oncelog_log_batches_total",
        unit: Unit::Count,
        what: "Batches that they came in",
        values: |s, set| set(&[], s.batch_count),
    },
    Row {
        name: "oncelog_log_bytes_total",
        unit: Unit::Bytes,
        what: "Bytes of their frames, with headers and padding",
        values: |s, set| set(&[], s.bytes),
    },
    Row {
        name: "oncelog_log_groups_total",
        unit: Unit::Count,
        what: "Groups that were written",
        values: |s, set| set(&[], s.group_count),
    },
    Row {
        name: "oncelog_log_syncs_total",
        unit: Unit::Count,
        what: "Syncs of frames",
        values: |s, set| set(&[], s.syncs),
    },
    Row {
        name: "oncelog_log_rolls_total",
        unit: Unit::Count,
        what: "Segments that were started",
        values: |s, set| set(&[], s.rolls),
    },
    Row {
        name: "oncelog_log_fills_total",
        unit: Unit::Count,
        what: "Windows that were filled ahead",
        values: |s, set| set(&[], s.fills),
    },
    Row {
        name: "oncelog_log_fill_waits_total",
        unit: Unit::Count,
        what: "Writes that waited for a window to be filled",
        values: |s, set| set(&[], s.fill_waits),
    },
    Row {
        name: "oncelog_log_spares_total",
        unit: Unit::Count,
        what: "Rolls by when their spare was made",
        values: |s, set| {
            set(&[("made", "ahead")], s.spares_used);
            set(&[("made", "late")], s.spares_missed);
        },
    },
    Row {
        name: "oncelog_log_buffer_waits_total",
        unit: Unit::Count,
        what: "Appends that waited because the buffer was full",
        values: |s, set| set(&[], s.waits),
    },
    Row {
        name: "oncelog_log_buffer_wait_microseconds_total",
        unit: Unit::Microseconds,
        what: "How long they waited",
        values: |s, set| set(&[], micros(s.wait_time)),
    },
    Row {
        name: "oncelog_log_poisonings_total",
        unit: Unit::Count,
        what: "Failed writes and syncs that poisoned the log",
        values: |s, set| set(&[], s.poisonings),
    },
    Row {
        name: "oncelog_log_trims_total",
        unit: Unit::Count,
        what: "Trims that took effect",
        values: |s, set| set(&[], s.trims),
    },
    Row {
        name: "oncelog_log_trimmed_segments_total",
        unit: Unit::Count,
        what: "Segments that trims dropped",
        values: |s, set| set(&[], s.trimmed_segment_count),
    },
];

/// Gauges of a log.
pub(super) const LOG_GAUGES: &[Values<LogStats, f64>] = &[
    Row {
        name: "oncelog_log_segments",
        unit: Unit::Count,
        what: "Segments of the log",
        values: |s, set| set(&[], s.segment_count as f64),
    },
    Row {
        name: "oncelog_log_segment_bytes",
        unit: Unit::Bytes,
        what: "Bytes of the segments, of the tail those in use",
        values: |s, set| set(&[], s.segment_bytes as f64),
    },
    Row {
        name: "oncelog_log_leftovers",
        unit: Unit::Count,
        what: "Files of trimmed segments that are still there",
        values: |s, set| set(&[], s.leftover_count as f64),
    },
    Row {
        name: "oncelog_log_buffered_bytes",
        unit: Unit::Bytes,
        what: "Bytes that are not written yet",
        values: |s, set| set(&[], s.buffered_bytes as f64),
    },
    Row {
        name: "oncelog_log_poisoned",
        unit: Unit::Count,
        what: "1 while the log takes no append before a reopen",
        values: |s, set| set(&[], flag(s.poisoned)),
    },
];

/// Histograms of a log, and what their values are multiplied by.
pub(super) const LOG_HISTOGRAMS: &[(Of, f64)] = &[
    (
        Row {
            name: "oncelog_log_append_seconds",
            unit: Unit::Seconds,
            what: "The longest wait of an append in each synced group",
            values: |s| &s.append_latency,
        },
        MICROS,
    ),
    (
        Row {
            name: "oncelog_log_sync_seconds",
            unit: Unit::Seconds,
            what: "Syncs of frames",
            values: |s| &s.sync_latency,
        },
        MICROS,
    ),
    (
        Row {
            name: "oncelog_log_group_records",
            unit: Unit::Count,
            what: "Records of each group",
            values: |s| &s.group_records,
        },
        1.0,
    ),
    (
        Row {
            name: "oncelog_log_group_bytes",
            unit: Unit::Bytes,
            what: "Bytes of each group",
            values: |s| &s.group_bytes,
        },
        1.0,
    ),
];

/// Counters of a broadcaster.
pub(super) const BROADCAST_COUNTERS: &[Values<BroadcastStats, u64>] = &[
    Row {
        name: "oncelog_broadcasts_accepted_total",
        unit: Unit::Count,
        what: "Broadcasts that were accepted",
        values: |s, set| {
            for (name, of) in &s.types {
                set(&[("type", name)], of.accepted);
            }
        },
    },
    Row {
        name: "oncelog_broadcasts_ended_total",
        unit: Unit::Count,
        what: "Broadcasts that ended",
        values: |s, set| {
            for (name, of) in &s.types {
                set(&[("type", name), ("outcome", "done")], of.done);
                set(&[("type", name), ("outcome", "failed")], of.failed);
            }
        },
    },
    Row {
        name: "oncelog_broadcasts_parked_total",
        unit: Unit::Count,
        what: "Broadcasts that were parked",
        values: |s, set| {
            for (name, of) in &s.types {
                set(&[("type", name)], of.parks);
            }
        },
    },
    Row {
        name: "oncelog_callbacks_total",
        unit: Unit::Count,
        what: "Attempts of callbacks",
        values: |s, set| {
            for (name, of) in &s.types {
                for (verdict, count) in &of.callbacks {
                    set(&[("type", name), ("verdict", verdict)], *count);
                }
            }
        },
    },
    Row {
        name: "oncelog_copies_total",
        unit: Unit::Count,
        what: "Copies by how they are known to stand",
        values: |s, set| {
            set(&[("how", "appended")], s.copies_appended);
            set(&[("how", "found")], s.copies_found);
        },
    },
    Row {
        name: "oncelog_key_lookups_total",
        unit: Unit::Count,
        what: "Look-ups of keys by what came of them",
        values: |s, set| {
            set(&[("result", "hit")], s.keys.hits);
            set(&[("result", "miss")], s.keys.misses);
            set(&[("result", "conflict")], s.keys.conflicts);
            set(&[("result", "warning")], s.keys.warnings);
        },
    },
    Row {
        name: "oncelog_submit_errors_total",
        unit: Unit::Count,
        what: "Submits that were answered with an error",
        values: |s, set| {
            for (kind, count) in &s.keys.errors {
                set(&[("kind", kind)], *count);
            }
        },
    },
    Row {
        name: "oncelog_keys_dropped_total",
        unit: Unit::Count,
        what: "Keys that left the window, over restarts",
        values: |s, set| {
            set(&[("cause", "expired")], s.window.expired_count);
            set(&[("cause", "evicted")], s.window.evicted_count);
        },
    },
    Row {
        name: "oncelog_lock_waits_total",
        unit: Unit::Count,
        what: "Requests that waited for resource locks",
        values: |s, set| set(&[], s.locks.count),
    },
    Row {
        name: "oncelog_lock_wait_timeouts_total",
        unit: Unit::Count,
        what: "Those of them that did not get the locks before their deadline",
        values: |s, set| set(&[], s.locks.timeouts),
    },
    Row {
        name: "oncelog_lock_wait_refusals_total",
        unit: Unit::Count,
        what: "Those of them that were told that there is no use in waiting",
        values: |s, set| set(&[], s.locks.refused),
    },
    Row {
        name: "oncelog_acks_ignored_total",
        unit: Unit::Count,
        what: "Acks of consumers that changed nothing",
        values: |s, set| set(&[], s.acks_ignored),
    },
    Row {
        name: "oncelog_lock_wait_microseconds_total",
        unit: Unit::Microseconds,
        what: "How long they waited",
        values: |s, set| set(&[], micros(s.locks.time)),
    },
    Row {
        name: "oncelog_checkpoints_total",
        unit: Unit::Count,
        what: "Checkpoints of the state",
        values: |s, set| {
            set(&[("result", "written")], s.checkpoints.written);
            set(&[("result", "failed")], s.checkpoints.failed);
        },
    },
];

/// Gauges of a broadcaster.
pub(super) const BROADCAST_GAUGES: &[Values<BroadcastStats, f64>] = &[
    Row {
        name: "oncelog_broadcasts",
        unit: Unit::Count,
        what: "Broadcasts that have not ended",
        values: |s, set| {
            for (name, of) in &s.types {
                set(&[("type", name), ("state", "in_flight")], of.in_flight as f64);
                set(&[("type", name), ("state", "parked")], of.parked as f64);
            }
        },
    },
    Row {
        name: "oncelog_callers_waiting",
        unit: Unit::Count,
        what: "Callers that wait for a key",
        values: |s, set| set(&[], s.callers_waiting as f64),
    },
    Row {
        name: "oncelog_keys",
        unit: Unit::Count,
        what: "Keys in the window",
        values: |s, set| set(&[], s.window.live_count as f64),
    },
    Row {
        name: "oncelog_keys_max",
        unit: Unit::Count,
        what: "Most keys that the window holds",
        values: |s, set| set(&[], s.window.count_max as f64),
    },
    Row {
        name: "oncelog_window_bytes",
        unit: Unit::Bytes,
        what: "What the keys take of a checkpoint",
        values: |s, set| set(&[], s.window_bytes as f64),
    },
    Row {
        name: "oncelog_window_bytes_max",
        unit: Unit::Bytes,
        what: "Most that they may take of it",
        values: |s, set| set(&[], s.window_bytes_max as f64),
    },
    Row {
        name: "oncelog_keys_beyond_max",
        unit: Unit::Count,
        what: "Keys that are kept beyond that",
        values: |s, set| set(&[], s.window.beyond_count as f64),
    },
    Row {
        name: "oncelog_window_effective_seconds",
        unit: Unit::Seconds,
        what: "For how long back a key is surely known",
        values: |s, set| set(&[], seconds(s.window.effective_ms)),
    },
    Row {
        name: "oncelog_window_lifetime_seconds",
        unit: Unit::Seconds,
        what: "For how long the policy says so",
        values: |s, set| set(&[], seconds(s.window.lifetime_ms)),
    },
    Row {
        name: "oncelog_lock_wait_longest_seconds",
        unit: Unit::Seconds,
        what: "The longest wait for resource locks",
        values: |s, set| set(&[], s.locks.longest.as_secs_f64()),
    },
    Row {
        name: "oncelog_lock_waiters",
        unit: Unit::Count,
        what: "Requests that wait for resource locks",
        values: |s, set| set(&[], s.locks.waiting as f64),
    },
    Row {
        name: "oncelog_checkpoint_failing",
        unit: Unit::Count,
        what: "1 while the last try of a checkpoint has failed",
        values: |s, set| set(&[], flag(s.checkpoints.is_failing)),
    },
    Row {
        name: "oncelog_checkpoint_bytes",
        unit: Unit::Bytes,
        what: "Bytes of the last checkpoint",
        values: |s, set| set(&[], s.checkpoints.bytes as f64),
    },
    Row {
        name: "oncelog_checkpoint_behind_bytes",
        unit: Unit::Bytes,
        what: "Bytes of control since the last try of one",
        values: |s, set| set(&[], s.checkpoints.behind_bytes as f64),
    },
    Row {
        name: "oncelog_replay_progress_ratio",
        unit: Unit::Count,
        what: "How far the replay of control is",
        values: |_, set| set(&[], 1.0),
    },
    Row {
        name: "oncelog_replay_records",
        unit: Unit::Count,
        what: "Records that the open replayed",
        values: |s, set| set(&[], s.replay.records as f64),
    },
    Row {
        name: "oncelog_replay_seconds",
        unit: Unit::Seconds,
        what: "How long that took",
        values: |s, set| set(&[], s.replay.time.as_secs_f64()),
    },
    Row {
        name: "oncelog_jobs",
        unit: Unit::Count,
        what: "Jobs that are known",
        values: |s, set| {
            for (phase, of) in &s.jobs {
                set(&[("state", phase)], of.count as f64);
            }
        },
    },
    Row {
        name: "oncelog_job_rows",
        unit: Unit::Count,
        what: "Rows that they have appended, as last recorded",
        values: |s, set| {
            for (phase, of) in &s.jobs {
                set(&[("state", phase)], of.rows as f64);
            }
        },
    },
    Row {
        name: "oncelog_jobs_stopped",
        unit: Unit::Count,
        what: "Jobs that are not over and that nobody drives",
        values: |s, set| set(&[], s.jobs_stopped as f64),
    },
    Row {
        name: "oncelog_clock_offset_seconds",
        unit: Unit::Seconds,
        what: "Wall clock minus log time",
        values: |s, set| set(&[], s.clock_offset_ms as f64 / 1_000.0),
    },
    Row {
        name: "oncelog_clock_held",
        unit: Unit::Count,
        what: "1 while a wall clock far ahead is not believed",
        values: |s, set| set(&[], flag(s.clock_held)),
    },
];

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
