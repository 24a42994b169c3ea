//! What a log counts of itself.
//!
//! Counters are kept under the gate, where the work that they count is decided: a snapshot is
//! consistent, and counting costs no call of the system.

use std::time::Duration;

use super::wait::now;
use super::writer::Gate;
use crate::histogram::Histogram;

/// What a log has done since it was opened, numbers that only grow; and in the end what it has.
/// Counts of things end in `_count`, those of what has happened are its plural.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Records that were given an LSN.
    pub record_count: u64,
    /// Batches that they came in.
    pub batch_count: u64,
    /// Bytes of their frames, with headers and padding.
    pub bytes: u64,
    /// Groups that were written, each with one write.
    pub group_count: u64,
    /// Syncs of frames, those of a roll among them.
    pub syncs: u64,
    /// Segments that were started.
    pub rolls: u64,
    /// Windows that were filled ahead, in the tail and in spares.
    pub fills: u64,
    /// Writes that waited for the window that they would have entered.
    pub fill_waits: u64,
    /// Rolls that found their spare made.
    pub spares_used: u64,
    /// Rolls that had to make it.
    pub spares_missed: u64,
    /// Appends that have waited, or wait, because the buffer was full.
    pub waits: u64,
    /// How long they waited in all, what they wrote themselves meanwhile included.
    pub wait_time: Duration,
    /// Failed writes and syncs that poisoned it: one at most, and more only of a channel, which
    /// opens its log again.
    pub poisonings: u64,
    /// Trims that took effect.
    pub trims: u64,
    /// Segments that trims dropped.
    pub trimmed_segment_count: u64,
    /// Microseconds from the first record of a synced group entering the buffer until the sync that
    /// covers it returned: what the append waited that waited longest, one value a group.
    pub append_latency: Histogram,
    /// Microseconds of each sync of frames that returned well.
    pub sync_latency: Histogram,
    /// Records of each group.
    pub group_records: Histogram,
    /// Bytes of each group.
    pub group_bytes: Histogram,
    /// Segments of the log, the tail among them.
    pub segment_count: u64,
    /// Bytes of the sealed ones, and what is in use of the tail.
    pub segment_bytes: u64,
    /// Files of trimmed segments that are still there.
    pub leftover_count: u64,
    /// Bytes that wait to be written, or are being written.
    pub buffered_bytes: u64,
    /// A write or a sync has failed: nothing more is appended before a reopen.
    pub poisoned: bool,
}

/// When a sync that returned well began and ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Synced {
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
}

impl Synced {
    /// Times a sync: two looks at the clock, by the thread that waits for the disk, with no lock
    /// held.
    pub(crate) fn time<E>(sync: impl FnOnce() -> Result<(), E>) -> Result<Option<Self>, E> {
        let began = now();
        sync()?;
        Ok(Some(Self { began, ended: now() }))
    }
}

/// What a thread takes to write it: known before, counted when it is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    records: u64,
    bytes: u64,
    queued_at: Duration,
}

impl Gate {
    /// The group that is about to leave the queue, of so many bytes.
    pub(crate) fn group_of(&self, len: usize) -> Group {
        Group {
            records: self.last_lsn().saturating_sub(self.written.lsn),
            bytes: u64::try_from(len).unwrap_or(u64::MAX),
            queued_at: self.queued_at,
        }
    }

    /// Counters as they are, and what the log has at this moment.
    pub(crate) fn stats(&self) -> LogStats {
        let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        let live = self.segments.get(self.trimmed_count()..).unwrap_or_default();
        let sealed = live.split_last().map_or(live, |(_, sealed)| sealed);
        let sealed = sealed.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        LogStats {
            segment_count: count(live.len()),
            segment_bytes: sealed.saturating_add(self.end),
            leftover_count: count(self.removal.file_count()),
            buffered_bytes: count(self.queue.len().saturating_add(self.writing)),
            poisoned: self.poison.is_some(),
            ..self.stats.clone()
        }
    }
}

impl LogStats {
    pub(crate) fn count_batch(&mut self, records: u64, bytes: u64) {
        self.record_count = self.record_count.saturating_add(records);
        self.batch_count = self.batch_count.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// A group went to the file; `sync` says that it was to be synced, `synced` that it was.
    pub(crate) fn count_group(&mut self, group: Group, sync: bool, synced: Option<Synced>) {
        if group.bytes > 0 {
            self.group_count = self.group_count.saturating_add(1);
            self.group_records.record(group.records);
            self.group_bytes.record(group.bytes);
        }
        self.syncs = self.syncs.saturating_add(u64::from(sync));
        let Some(Synced { began, ended }) = synced else { return };
        self.sync_latency.record(micros(ended.saturating_sub(began)));
        if group.bytes > 0 {
            self.append_latency.record(micros(ended.saturating_sub(group.queued_at)));
        }
    }

    pub(crate) fn count_trim(&mut self, segments: u64) {
        self.trims = self.trims.saturating_add(1);
        self.trimmed_segment_count = self.trimmed_segment_count.saturating_add(segments);
    }

    /// Goes on from what an earlier log of the same directory has done.
    pub(crate) fn continued(mut self, before: &Self) -> Self {
        for (count, more) in [
            (&mut self.record_count, before.record_count),
            (&mut self.batch_count, before.batch_count),
            (&mut self.bytes, before.bytes),
            (&mut self.group_count, before.group_count),
            (&mut self.syncs, before.syncs),
            (&mut self.rolls, before.rolls),
            (&mut self.fills, before.fills),
            (&mut self.fill_waits, before.fill_waits),
            (&mut self.spares_used, before.spares_used),
            (&mut self.spares_missed, before.spares_missed),
            (&mut self.waits, before.waits),
            (&mut self.poisonings, before.poisonings),
            (&mut self.trims, before.trims),
            (&mut self.trimmed_segment_count, before.trimmed_segment_count),
        ] {
            *count = count.saturating_add(more);
        }
        self.wait_time = self.wait_time.saturating_add(before.wait_time);
        self.append_latency.add(&before.append_latency);
        self.sync_latency.add(&before.sync_latency);
        self.group_records.add(&before.group_records);
        self.group_bytes.add(&before.group_bytes);
        self
    }

    pub(crate) fn count_spare(&mut self, made_ahead: bool) {
        self.spares_used = self.spares_used.saturating_add(u64::from(made_ahead));
        self.spares_missed = self.spares_missed.saturating_add(u64::from(!made_ahead));
    }

    pub(crate) fn count_wait(&mut self, first: bool) {
        self.waits = self.waits.saturating_add(u64::from(first));
    }

    pub(crate) fn count_wait_time(&mut self, time: Duration) {
        self.wait_time = self.wait_time.saturating_add(time);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
