//! What a look at a log saw, as a place to read from.
//!
//! A look is of one moment: what a writer appends later is not read, and what it removes meanwhile
//! is told as trimmed, never as damage.

use std::path::PathBuf;
use std::sync::Arc;

use oncelog_format::SegmentHeader;

use super::log_source::last_where;
use super::reader::{Located, Source, trimmed};
use super::survey::Segment;
use super::view::Seen;
use crate::error::Result;
use crate::io::Io;

/// A look as a place to read from.
#[derive(Debug)]
pub(super) struct ViewSource {
    pub(super) seen: Arc<Seen>,
    /// Nothing above the proven LSN is served.
    pub(super) proven_only: bool,
}

impl ViewSource {
    fn readable(&self) -> &[Segment] {
        let survey = &self.seen.survey;
        survey.segments.get(..survey.readable).unwrap_or_default()
    }

    /// What stands after the last record that can be read.
    fn behind(&self) -> Result<Option<Located>> {
        self.seen.survey.damage().map_or(Ok(None), |damage| Err(damage.to_error()))
    }
}

impl Source for ViewSource {
    /// Up to the last record to be served; after it, `None` or what is damaged there.
    fn locate(&self, lsn: u64) -> Result<Option<Located>> {
        let (survey, oldest) = (&self.seen.survey, self.seen.oldest());
        if lsn < oldest {
            return Err(trimmed(oldest));
        }
        if lsn > self.last() {
            return self.behind();
        }
        let behind = survey.segments.partition_point(|segment| segment.header.first_lsn <= lsn);
        let at = behind.saturating_sub(1);
        let Some(segment) = self.readable().get(at) else { return self.behind() };
        let next = self.seen.next_first(at);
        let judged = next.is_some() && !segment.scanned;
        let last = next.filter(|_| judged).map_or(segment.last, |next| next.saturating_sub(1));
        if lsn > last {
            return self.behind();
        }
        let entries = survey.tail.as_ref().filter(|_| next.is_none());
        let entries = entries.map_or(&[][..], |tail| &tail.entries);
        let near = last_where(entries, |entry| entry.lsn <= lsn);
        Ok(Some(Located {
            header: segment.header,
            oldest,
            last: last.min(self.last()),
            end: if judged { u64::MAX } else { segment.end },
            durable: survey.proven,
            near: near.map(|entry| (entry.lsn, entry.offset)),
            sealed: next.is_some(),
            maps: None,
            in_use: None,
            judged,
            // Row @M is about every frame: who reads all learns of damage below the oldest LSN.
            from_first: judged && lsn == oldest,
        }))
    }

    fn last(&self) -> u64 {
        let survey = &self.seen.survey;
        if self.proven_only { survey.proven.min(survey.last) } else { survey.last }
    }

    fn oldest(&self) -> u64 {
        self.seen.oldest()
    }

    fn before_time(&self, time_ms: u64) -> Result<Option<(SegmentHeader, Option<u64>)>> {
        let readable = self.readable();
        let behind = readable.partition_point(|s| s.header.base_time_ms < time_ms);
        let Some(segment) = behind.checked_sub(1).and_then(|i| readable.get(i)) else {
            return Ok(None);
        };
        let survey = &self.seen.survey;
        let tail = survey.tail.as_ref().filter(|_| behind == survey.segments.len());
        let entries = tail.map_or(&[][..], |tail| &tail.entries);
        let near = last_where(entries, |entry| entry.time_ms < time_ms);
        Ok(Some((segment.header, near.map(|entry| entry.lsn))))
    }

    fn path(&self, header: &SegmentHeader) -> PathBuf {
        let found = self.readable().iter().find(|segment| segment.header == *header);
        found.map_or_else(|| self.seen.path.clone(), |segment| segment.facts.path.clone())
    }

    fn confirm(&self, lsn: u64) -> Result<()> {
        self.seen.is_trimmed(lsn).map_or(Ok(()), |oldest| Err(trimmed(oldest)))
    }

    fn io(&self) -> &dyn Io {
        &*self.seen.io
    }
}
