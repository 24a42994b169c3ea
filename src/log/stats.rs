//! What a log counts of itself.
//!
//! Counters are kept under the gate, where the work that they count is decided: a snapshot is
//! consistent, and counting costs no call of the system.

use std::time::Duration;

/// What a log has done since it was opened. Every number only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStats {
    /// Records that were given an LSN.
    pub records: u64,
    /// Batches that they came in.
    pub batches: u64,
    /// Bytes of their frames, with headers and padding.
    pub bytes: u64,
    /// Groups that were written, each with one write.
    pub groups: u64,
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
}

impl LogStats {
    pub(crate) fn count_batch(&mut self, records: u64, bytes: u64) {
        self.records = self.records.saturating_add(records);
        self.batches = self.batches.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// A group of so many bytes went to the file.
    pub(crate) fn count_group(&mut self, len: usize, synced: bool) {
        self.groups = self.groups.saturating_add(u64::from(len > 0));
        self.syncs = self.syncs.saturating_add(u64::from(synced));
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
