//! A log seen from outside: read-only, without a lock, beside a live writer or without one.
//!
//! A view writes nothing; a file system that notes when a file was read may note that. Recovery
//! judges the same bytes for it as for a writer; but what recovery finds wrong beside a writer that
//! is at work, the view looks at again before it says so. A finding stands only if it stands in
//! several looks, each of which lists the directory and reads witnesses and frames anew: a racing
//! writer never makes `Corrupt`.
//!
//! It reads by pread alone, so that a bad disk is an error and never a signal, and its memory is
//! bounded by the largest record. What recovery reads of a sealed segment is its ends: the frames
//! are judged while they are served, a batch at a time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use oncelog_format::{FrameHeader, Uuid};

use super::dir::absolute;
use super::facts::{self, FooterFacts, Listing, SegmentFacts};
use super::finding::{Finding, FindingKind, Severity};
use super::options::Check;
use super::reader::{Reader, Source, trimmed};
use super::seek;
use super::survey::{Segment, Survey};
use super::view_source::ViewSource;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{EntryKind, Io, IoFile, OpenHow};
use crate::lsn::{Lsn, SegmentId};

/// Looks in a row that a finding has to outlast.
const LOOKS_EQUAL: u32 = 5;

/// Looks at most; what has changed in each of them is in flight.
const LOOKS_MAX: u32 = 25;

/// Time between two looks: a write into the cache that has begun is done by then.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// A read-only look at a log, or at one segment of it. Clones share it.
///
/// It knows two ends: up to [`LogView::proven_lsn`] a witness says that the records survive a power
/// loss, and up to [`LogView::last_lsn`] recovery would keep them. Beside a live writer the records
/// between the two are on their way, and after a crash they are what its last group left.
#[derive(Clone, Debug)]
pub struct LogView {
    seen: Arc<Seen>,
}

/// What one look saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) io: Arc<dyn Io>,
    pub(crate) path: PathBuf,
    pub(crate) survey: Survey,
    /// Nobody writes: there is nothing to wait for.
    pub(crate) still: bool,
}

/// What a view knows of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// The file.
    pub path: PathBuf,
    /// Its number.
    pub number: SegmentId,
    /// LSN of its first record, whether it has one or not.
    pub first_lsn: Lsn,
    /// Its last kept record; `None` when it has none, or damage hides it.
    pub last_lsn: Option<Lsn>,
    /// How many records it keeps.
    pub record_count: u64,
    /// Sum of their payload lengths in bytes.
    pub payload_bytes: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Offset after its last kept record.
    pub end_offset: u64,
    /// Bytes after that which hold no record and are neither zeros nor a footer.
    pub dead_bytes: u64,
    /// Time of its first record in milliseconds.
    pub time_first_ms: Option<u64>,
    /// Time of its last record in milliseconds.
    pub time_last_ms: Option<u64>,
    /// Counter of its newest slot; 0 without one.
    pub slot_counter: u64,
    /// Durable LSN that its newest slot states.
    pub slot_durable_lsn: Option<Lsn>,
    /// Whether a valid footer ends it.
    pub has_footer: bool,
    /// Whether it is the last one.
    pub is_tail: bool,
}

impl LogView {
    /// Looks at the log in a directory, or at one segment alone.
    ///
    /// Damage is no error here: it is a finding, and [`LogView::reader`] serves what stands before
    /// it. Takes about 100 ms where something is wrong, to tell it from a writer at work; beside
    /// one that is busy, up to half a second.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when nothing is at the path, or a store is; `Io`.
    pub fn open(path: impl AsRef<Path>, io: Arc<dyn Io>) -> Result<Self> {
        let path = absolute(path.as_ref())?;
        let survey = settle(&*io, &path)?;
        Ok(Self::of(path, io, survey, false))
    }

    /// As [`LogView::open`] where it is known that nobody writes: one look decides.
    ///
    /// # Errors
    ///
    /// As [`LogView::open`].
    pub fn open_unshared(path: impl AsRef<Path>, io: Arc<dyn Io>) -> Result<Self> {
        let path = absolute(path.as_ref())?;
        let survey = look(&*io, &path)?;
        Ok(Self::of(path, io, survey, true))
    }

    fn of(path: PathBuf, io: Arc<dyn Io>, survey: Survey, still: bool) -> Self {
        Self { seen: Arc::new(Seen { io, path, survey, still }) }
    }

    /// Looks at the same path again.
    ///
    /// # Errors
    ///
    /// As [`LogView::open`].
    pub fn look_again(&self) -> Result<Self> {
        Self::open(&self.seen.path, Arc::clone(&self.seen.io))
    }

    /// Waits 20 ms, then says whether the tail or the segments have changed since this look.
    /// Reads a few blocks, no frames.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn wait_changed(&self) -> Result<bool> {
        pause(LOOK_PAUSE);
        match self.seen.has_changed() {
            Err(error) if is_gone(&error) => Ok(true),
            other => other,
        }
    }

    /// The path that was opened, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.seen.path
    }

    /// The identity of the log, where a file states one.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        self.seen.survey.uuid
    }

    /// What names, headers, slots and the tail show. Damage within a sealed segment is found by
    /// [`LogView::verify`] and by reading.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.seen.survey.findings
    }

    /// The worst of [`LogView::findings`].
    #[must_use]
    pub fn severity(&self) -> Severity {
        let severities = self.seen.survey.findings.iter().map(|finding| finding.severity);
        severities.fold(Severity::Info, Severity::worse)
    }

    /// The segments of the log in order, without the leftovers of a trim.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let count = self.seen.survey.segments.len();
        let with_index = self.seen.survey.segments.iter().enumerate();
        with_index.map(|(at, segment)| info(segment, at + 1 == count)).collect()
    }

    /// The oldest record that was not trimmed, or the first one to come.
    #[must_use]
    pub fn oldest_lsn(&self) -> Lsn {
        Lsn::at_least_first(self.seen.oldest())
    }

    /// The last record that recovery would keep; what [`LogView::reader`] goes up to.
    #[must_use]
    pub fn last_lsn(&self) -> Option<Lsn> {
        Lsn::new(self.seen.survey.last).filter(|last| last.get() >= self.seen.oldest())
    }

    /// The greatest LSN that a witness proves durable, what [`LogView::reader_proven`] goes up to;
    /// above the last record in a corrupt log.
    #[must_use]
    pub fn proven_lsn(&self) -> Option<Lsn> {
        Lsn::new(self.seen.survey.proven)
    }

    /// Reads from an LSN, or from the oldest, up to the last record that recovery would keep;
    /// [`Record::durable`](crate::Record) says which are proven. Damage is an error of the reader,
    /// after every whole batch before it.
    ///
    /// # Errors
    ///
    /// `Trimmed` below the oldest LSN, which the error carries.
    pub fn reader(&self, from: Option<Lsn>) -> Result<Reader> {
        self.reader_of(from, false)
    }

    /// As [`LogView::reader`], up to the proven durable LSN.
    ///
    /// # Errors
    ///
    /// As [`LogView::reader`].
    pub fn reader_proven(&self, from: Option<Lsn>) -> Result<Reader> {
        self.reader_of(from, true)
    }

    fn reader_of(&self, from: Option<Lsn>, proven_only: bool) -> Result<Reader> {
        let oldest = self.seen.oldest();
        let from = from.map_or(oldest, Lsn::get);
        if from < oldest {
            return Err(trimmed(oldest));
        }
        Ok(Reader::new(self.source(proven_only), from))
    }

    /// The LSN of the first record of a time or later, in milliseconds since 1970-01-01 UTC; the
    /// one after the last where all are older. Reads a small part of one segment.
    ///
    /// # Errors
    ///
    /// `Corrupt` where damage stands in between; `Trimmed` when a writer has dropped what this look
    /// saw; `Io`.
    pub fn seek_time(&self, time_ms: u64) -> Result<Lsn> {
        seek::first_at(&self.source(false), time_ms).map(Lsn::at_least_first)
    }

    pub(super) fn source(&self, proven_only: bool) -> Arc<dyn Source> {
        Arc::new(ViewSource { seen: Arc::clone(&self.seen), proven_only })
    }

    pub(crate) fn seen(&self) -> &Seen {
        &self.seen
    }
}

impl Seen {
    fn has_changed(&self) -> Result<bool> {
        let survey = &self.survey;
        let Some(tail) = survey.segments.last() else {
            return Ok(!look(&*self.io, &self.path)?.segments.is_empty());
        };
        if !survey.listing.segments.is_empty() {
            let listing = Listing::read(&*self.io, &self.path)
                .map_err(|e| Error::io("cannot list the directory", &self.path, e))?;
            if listing.segments != survey.listing.segments {
                return Ok(true);
            }
        }
        let facts = SegmentFacts::read(&*self.io, &tail.facts.path)?;
        let mut next = [0; FrameHeader::LEN];
        self.open_file(tail)?
            .read_full_at(&mut next, tail.end)
            .map_err(|e| Error::io("cannot read the segment", &tail.facts.path, e))?;
        Ok(facts.slots != tail.facts.slots || next != [0; FrameHeader::LEN])
    }

    /// First LSN of the successor of a segment; `None` for the last one.
    pub(crate) fn next_first(&self, at: usize) -> Option<u64> {
        self.survey.segments.get(at.saturating_add(1)).map(|next| next.header.first_lsn)
    }

    /// Of a segment alone, what its slots say of a trim concerns records before it, too.
    pub(crate) fn oldest(&self) -> u64 {
        let survey = &self.survey;
        let first = survey.segments.first().map_or(1, |first| first.header.first_lsn);
        let is_alone = survey.listing.segments.is_empty();
        if is_alone { survey.oldest.max(first) } else { survey.oldest }
    }

    /// Opens a segment; `Trimmed` where a writer has removed it meanwhile.
    pub(crate) fn open_file(&self, segment: &Segment) -> Result<Arc<dyn IoFile>> {
        let path = &segment.facts.path;
        let error = match self.io.open(path, OpenHow::Read) {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::NotFound
            && let Some(oldest) = self.is_trimmed(segment.header.first_lsn)
        {
            return Err(trimmed(oldest));
        }
        Err(Error::io("cannot open the segment", path, error))
    }

    /// What is left of the log by now, where it is less than this saw: a trim is in a slot before a
    /// file is cut or goes, and cutting leaves the slots.
    pub(crate) fn is_trimmed(&self, lsn: u64) -> Option<u64> {
        let now = facts::oldest_stated(&*self.io, &self.survey.dir, self.survey.uuid);
        (now > lsn).then_some(now)
    }

    /// For what looks like damage of a record, or is gone: a trim may have been faster.
    pub(crate) fn unless_trimmed(&self, lsn: u64, is_suspect: bool) -> Result<()> {
        let oldest = is_suspect.then(|| self.is_trimmed(lsn)).flatten();
        oldest.map_or(Ok(()), |oldest| Err(trimmed(oldest)))
    }
}

fn info(segment: &Segment, is_tail: bool) -> SegmentInfo {
    let facts = &segment.facts;
    let newest = facts.newest_slot();
    let records = segment.tally.records();
    let dead = segment.dead.as_ref();
    SegmentInfo {
        path: facts.path.clone(),
        number: SegmentId::at_least_first(segment.header.number),
        first_lsn: Lsn::at_least_first(segment.header.first_lsn),
        last_lsn: Lsn::new(segment.last).filter(|last| last.get() >= segment.header.first_lsn),
        record_count: records,
        payload_bytes: segment.tally.payload_bytes,
        file_bytes: facts.size,
        end_offset: segment.end,
        dead_bytes: dead.map_or(0, |dead| dead.end.saturating_sub(dead.start)),
        time_first_ms: (records > 0).then_some(segment.tally.time_first_ms),
        time_last_ms: (records > 0).then_some(segment.tally.time_last_ms),
        slot_counter: newest.map_or(0, |slot| slot.counter),
        slot_durable_lsn: newest.and_then(|slot| Lsn::new(slot.durable_lsn)),
        has_footer: matches!(facts.footer, FooterFacts::Valid(_)),
        is_tail,
    }
}

/// One look. The directory is listed first, slots are read before frames: a witness is never
/// younger than the frames it speaks of, but for frames that witness each other.
fn look(io: &dyn Io, path: &Path) -> Result<Survey> {
    let refuse = |what| Err(Error::new(ErrorKind::InvalidInput, what).at_path(path));
    match io.kind(path).map_err(|e| Error::io("cannot look at the path", path, e))? {
        Some(EntryKind::Dir) => Survey::read(io, path, Check::Tail),
        Some(EntryKind::File) => Survey::read_segment(io, path),
        Some(_) => refuse("neither a directory nor a regular file"),
        None => refuse("nothing is there"),
    }
}

/// Looks until what is wrong has stood long enough to be no race with a writer.
fn settle(io: &dyn Io, path: &Path) -> Result<Survey> {
    let mut standing: Vec<Finding> = Vec::new();
    let mut equal = 0;
    for _ in 1..LOOKS_MAX {
        let mut survey = match look(io, path) {
            Ok(survey) => survey,
            // Trimmed, or renamed from a spare, between the listing and the open.
            Err(error) if is_gone(&error) => {
                pause(LOOK_PAUSE);
                continue;
            }
            Err(error) => return Err(error),
        };
        let suspects: Vec<Finding> = survey.findings.iter().filter(is_suspect).cloned().collect();
        if suspects.is_empty() {
            return Ok(survey);
        }
        standing.retain(|finding| suspects.contains(finding));
        if standing.is_empty() {
            (standing, equal) = (suspects, 0);
        }
        equal += 1;
        if equal == LOOKS_EQUAL {
            excuse(&mut survey, &standing);
            return Ok(survey);
        }
        pause(LOOK_PAUSE);
    }
    let mut survey = look(io, path)?;
    excuse(&mut survey, &[]);
    Ok(survey)
}

/// What a racing writer can make a look find.
fn is_suspect(finding: &&Finding) -> bool {
    finding.severity > Severity::Info && finding.severity != Severity::Unsupported
}

/// What did not stand is in flight.
fn excuse(survey: &mut Survey, standing: &[Finding]) {
    for finding in &mut survey.findings {
        if is_suspect(&&*finding) && !standing.contains(finding) {
            (finding.kind, finding.severity) = (FindingKind::InFlight, Severity::Info);
        }
    }
}

/// Lets a racing process finish what it is at.
pub(crate) fn pause(longest: Duration) {
    // Not `park_timeout`, which would take an unpark that the caller's executor waits for. Nobody
    // notifies this; the lock cannot be poisoned, and a pause that is cut short costs a look.
    let (nobody, never) = (Mutex::new(()), Condvar::new());
    if let Ok(guard) = nobody.lock() {
        drop(never.wait_timeout(guard, longest));
    }
}

/// Whether a file was gone when it was opened.
fn is_gone(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}
