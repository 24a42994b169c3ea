//! The writer's own log as a place to read from: what the gate knows, and nothing above it.

use std::path::PathBuf;
use std::sync::Arc;

use oncelog_format::{FooterEntry, SegmentHeader, segment_name};

use super::Log;
use super::pins::HolderKind;
use super::reader::{Located, Reader, Source, trimmed};
use super::seek;
use super::tail::Mark;
use super::writer::{Gate, Shared, closed};
use crate::error::Result;
use crate::io::Io;
use crate::lsn::Lsn;

/// The writer's own log.
#[derive(Clone, Debug)]
pub(super) struct LogSource {
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

impl LogSource {
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

impl Source for LogSource {
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
            maps: (next.is_some() && !gate.stop).then(|| Arc::clone(&self.shared.maps)),
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
        let gate = self.shared.gate();
        if lsn < gate.oldest {
            return Err(trimmed(gate.oldest));
        }
        // Behind the close another process may trim, cut and remove what this one has not.
        if gate.stop { Err(closed()) } else { Ok(()) }
    }

    fn io(&self) -> &dyn Io {
        &*self.shared.io
    }
}

impl Log {
    /// Reads durable records from `from` on, which need not be there yet. Goes on after a failure
    /// has poisoned the log.
    ///
    /// Sealed segments are mapped where the system allows it, and the payloads of their records are
    /// slices of the map. Each record's CRC is verified before it is handed out; but should the
    /// system drop a page after that and then fail to read it again, because a sector went bad or a
    /// network file system went away, touching the payload ends the process with `SIGBUS`, and so
    /// does the first reading of a page that cannot be read. Who would rather have `Io` than that,
    /// or keeps the log on a network file system, opens it with
    /// [`Options::map_sealed(false)`](crate::Options::map_sealed).
    ///
    /// # Errors
    ///
    /// `Trimmed` below the oldest LSN, which the error carries. `Closed`.
    pub fn reader(&self, from: Lsn) -> Result<Reader> {
        self.reader_of(from, Reach::Durable)
    }

    /// As [`Log::reader`], with a pin of this name on what was not read yet. It moves forward with
    /// the reader, a segment at a time, and where the reader comes to the end.
    ///
    /// # Errors
    ///
    /// Those of [`Log::pin`].
    pub fn reader_pinned(&self, name: &str, from: Lsn) -> Result<Reader> {
        let pin = self.handle.shared.pin(HolderKind::Reader, name, from)?;
        Ok(self.reader(from)?.pinned(pin))
    }

    /// As [`Log::reader`], and on through what is written and not yet durable:
    /// [`Record::durable`](crate::Record::durable) says what is. A power loss may take those
    /// records, and a later open of the log then gives their LSNs to others. What is in the log's
    /// buffer is not read.
    ///
    /// # Errors
    ///
    /// As [`Log::reader`].
    pub fn reader_written(&self, from: Lsn) -> Result<Reader> {
        self.reader_of(from, Reach::Written)
    }

    fn reader_of(&self, from: Lsn, reach: Reach) -> Result<Reader> {
        let shared = &self.handle.shared;
        let gate = shared.gate();
        if gate.closed {
            return Err(closed());
        }
        if from.get() < gate.oldest {
            return Err(trimmed(gate.oldest));
        }
        let source: Arc<dyn Source> = Arc::new(LogSource { shared: Arc::clone(shared), reach });
        Ok(Reader::new(source, from.get()))
    }

    /// The LSN of the first durable record of a time or later, in milliseconds since 1970-01-01
    /// UTC; the one after the durable LSN where all are older. Times never decrease in a log, so
    /// that every record after it is of that time or later, too. Reads a small part of one
    /// segment.
    ///
    /// # Errors
    ///
    /// `Corrupt` where damage stands in between; `Closed`; `Io`.
    pub fn seek_time(&self, time_ms: u64) -> Result<Lsn> {
        let shared = Arc::clone(&self.handle.shared);
        let source: Arc<dyn Source> = Arc::new(LogSource { shared, reach: Reach::Durable });
        seek::first_at(&source, time_ms).map(Lsn::at_least_first)
    }
}

/// The last of some entries in order for which `is` holds; those for which it does come first.
pub(super) fn last_where(
    entries: &[FooterEntry],
    is: impl Fn(&FooterEntry) -> bool,
) -> Option<&FooterEntry> {
    entries.partition_point(is).checked_sub(1).and_then(|i| entries.get(i))
}
