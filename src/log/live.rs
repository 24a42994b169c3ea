//! The writer's own log as a place to read from: what the gate knows, and nothing above it.

use std::path::PathBuf;
use std::sync::Arc;

use oncelog_format::{FooterEntry, SegmentHeader, segment_name};

use super::reader::{Located, Source, trimmed};
use super::tail::Mark;
use super::writer::{Gate, Shared, closed};
use crate::error::Result;
use crate::io::Io;

/// The writer's own log.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) shared: Arc<Shared>,
    pub(super) reach: Reach,
}

/// How far a reader of the writer's own process may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// To the durable LSN, until the log is closed.
    Durable,
    /// To the durable LSN, also after the log was closed: nothing of it changes any more, but
    /// another process may remove it.
    DurableBehindClose,
    /// To what is written.
    Written,
}

impl Live {
    /// The last record that may be read, and where it ends.
    fn end(&self, gate: &Gate) -> Mark {
        match self.reach {
            Reach::Durable | Reach::DurableBehindClose => gate.durable,
            Reach::Written => gate.written,
        }
    }

    fn check_open(&self, gate: &Gate) -> Result<()> {
        if gate.stop && self.reach != Reach::DurableBehindClose { Err(closed()) } else { Ok(()) }
    }
}

impl Source for Live {
    fn locate(&self, lsn: u64) -> Result<Option<Located>> {
        let gate = self.shared.gate();
        self.check_open(&gate)?;
        if lsn < gate.oldest {
            return Err(trimmed(gate.oldest));
        }
        let end = self.end(&gate);
        if lsn > end.lsn {
            return Ok(None);
        }
        let behind = gate.segments.partition_point(|segment| segment.header.first_lsn <= lsn);
        let Some(segment) = behind.checked_sub(1).and_then(|i| gate.segments.get(i)) else {
            return Err(trimmed(gate.oldest));
        };
        let next = gate.segments.get(behind).map(|next| next.header.first_lsn);
        let entries = if next.is_none() { &*gate.tally.entries } else { &[] };
        let near = last_where(entries, |entry| entry.lsn <= lsn);
        Ok(Some(Located {
            header: segment.header,
            oldest: gate.oldest,
            last: next.map_or(end.lsn, |next| next.saturating_sub(1)),
            end: if next.is_some() { u64::MAX } else { end.offset },
            durable: gate.durable.lsn,
            near: near.map(|entry| (entry.lsn, entry.offset)),
            sealed: next.is_some(),
            // Behind the close nobody keeps the next writer from shortening what it trims.
            map: next.is_some() && !gate.stop,
            in_use: Some(Arc::clone(&segment.in_use)),
            judged: false,
            from_first: false,
        }))
    }

    fn last(&self) -> u64 {
        self.end(&self.shared.gate()).lsn
    }

    fn oldest(&self) -> u64 {
        self.shared.gate().oldest
    }

    fn before_time(&self, time_ms: u64) -> Result<Option<(SegmentHeader, Option<u64>)>> {
        let gate = self.shared.gate();
        self.check_open(&gate)?;
        let is_before = |base_time_ms: u64| base_time_ms < time_ms;
        let behind = gate.segments.partition_point(|s| is_before(s.header.base_time_ms));
        let Some(segment) = behind.checked_sub(1).and_then(|i| gate.segments.get(i)) else {
            return Ok(None);
        };
        let is_tail = behind == gate.segments.len();
        let entries = if is_tail { &*gate.tally.entries } else { &[] };
        // What waits to be written is in the index, and may not be read yet.
        let end = self.end(&gate).lsn;
        let near = last_where(entries, |entry| entry.time_ms < time_ms && entry.lsn <= end);
        Ok(Some((segment.header, near.map(|entry| entry.lsn))))
    }

    fn path(&self, header: &SegmentHeader) -> PathBuf {
        self.shared.dir.join(segment_name(header.number, header.first_lsn))
    }

    fn confirm(&self, lsn: u64) -> Result<()> {
        let oldest = self.oldest();
        if lsn < oldest { Err(trimmed(oldest)) } else { Ok(()) }
    }

    fn io(&self) -> &dyn Io {
        &*self.shared.io
    }
}

/// The last of some entries in order for which `is` holds; those for which it does come first.
pub(super) fn last_where(
    entries: &[FooterEntry],
    is: impl Fn(&FooterEntry) -> bool,
) -> Option<&FooterEntry> {
    entries.partition_point(is).checked_sub(1).and_then(|i| entries.get(i))
}
