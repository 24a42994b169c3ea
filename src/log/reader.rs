//! Reading records in order, forward and backward, from any LSN on.
//!
//! A reader stands between two records. It asks a [`Source`] which segment holds a record and how
//! far it may be read, never reads above, and reads within one segment through a
//! [`SegmentReader`](super::segment_reader::SegmentReader). The CRC of every record that is handed
//! out was verified.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use oncelog_format::SegmentHeader;

use super::maps::Maps;
use super::options::RecordKind;
use super::pins::Pin;
use super::remove::InUse;
use super::segment_reader::SegmentReader;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;
use crate::lsn::{Lsn, SegmentId};
use crate::told;

/// Segments that a reader which seeks goes on holding open.
const KEPT_COUNT: usize = 16;

/// A record, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Its LSN.
    pub lsn: Lsn,
    /// Its time in milliseconds since 1970-01-01 UTC, never below that of the record before.
    pub time_ms: u64,
    /// Its kind (SPEC 7); of a later version, one that is not named here.
    pub kind: RecordKind,
    /// What was appended. Of a sealed segment it may be a slice of a map, see [`Log::reader`]: then
    /// it is backed by the file, and by the disk where its pages leave the cache.
    ///
    /// [`Log::reader`]: crate::Log::reader
    pub payload: Bytes,
    /// Number of the segment.
    pub segment: SegmentId,
    /// Offset of the frame in the segment, in bytes.
    pub offset: u64,
    /// Size of the frame with header and padding, in bytes.
    pub frame_bytes: u64,
    /// Whether it is the last one of its batch.
    pub batch_end: bool,
    /// Whether it is known to survive a power loss.
    pub durable: bool,
}

/// Where records are found.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    /// The segment that holds `lsn`; `None` when there is no such record yet.
    ///
    /// # Errors
    ///
    /// `Trimmed` below the oldest LSN.
    fn locate(&self, lsn: u64) -> Result<Option<Located>>;

    /// The last LSN that may be read; one below the oldest when there is none.
    fn last(&self) -> u64;

    /// The oldest LSN that may be read, or the next one when there is none.
    fn oldest(&self) -> u64;

    /// The last segment that begins after a record older than a time, and the LSN of a record in
    /// it that is, where an index in memory knows one. `None` when no segment does.
    ///
    /// # Errors
    ///
    /// `Closed`; what is damaged where that is before.
    fn before_time(&self, time_ms: u64) -> Result<Option<(SegmentHeader, Option<u64>)>>;

    /// The file of a segment.
    fn path(&self, header: &SegmentHeader) -> PathBuf;

    /// Refuses a record that is gone by now: what was read in its place is then no damage.
    ///
    /// # Errors
    ///
    /// `Trimmed`; `Closed` where another process may have removed it by now.
    fn confirm(&self, lsn: u64) -> Result<()>;

    /// The files.
    fn io(&self) -> &dyn Io;
}

/// A segment, and how far it may be read.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) header: SegmentHeader,
    /// The oldest LSN of the log; the segment may hold records below it.
    pub(crate) oldest: u64,
    /// Last LSN that may be read from it.
    pub(crate) last: u64,
    /// Offset after its frame, or anything after that where no byte changes any more.
    pub(crate) end: u64,
    /// Last LSN known to be durable.
    pub(crate) durable: u64,
    /// A frame at or below the wanted one, where an index knows one: LSN and offset.
    pub(crate) near: Option<(u64, u64)>,
    /// It has a successor, so that a footer may end it.
    pub(crate) sealed: bool,
    /// Where the segment never changes again: what says whether it may be mapped.
    pub(crate) maps: Option<Arc<Maps>>,
    /// Keeps the file from being cut, where its writer is in this process.
    pub(crate) in_use: Option<Arc<InUse>>,
    /// Whole batches alone are served: nobody has judged the frames yet.
    pub(crate) judged: bool,
    /// The frames before the wanted one are judged as well.
    pub(crate) from_first: bool,
}

/// Reads records in order, in either direction.
///
/// A reader stands before the record of [`Reader::next_lsn`]: [`Reader::next`] hands it out and
/// goes after it, [`Reader::prev`] hands out the one before and goes before that.
///
/// # Examples
///
/// ```
/// # use oncelog::{CreateMode, Log, Lsn, Options};
/// # fn main() -> oncelog::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let options = Options::new().create(CreateMode::IfMissing);
/// # let (log, _) = Log::open(dir.path().join("log"), &options)?;
/// for text in ["a", "b", "c"] {
///     log.append(text.as_bytes())?;
/// }
/// // From the end: "c", "b", "a".
/// let mut reader = log.reader(log.next_lsn())?;
/// while let Some(record) = reader.prev()? {
///     println!("{} {:?}", record.lsn, record.payload);
/// }
/// # log.close()
/// # }
/// ```
#[derive(Debug)]
pub struct Reader {
    source: Arc<dyn Source>,
    next: u64,
    open: Option<SegmentReader>,
    /// Segments that a seek has left, the last one last.
    kept: Vec<SegmentReader>,
    pin: Option<Held>,
}

/// A pin on what was not read yet.
#[derive(Debug)]
pub(super) struct Held {
    pin: Pin,
    /// The LSN that it was moved to.
    from: u64,
}

impl Held {
    pub(super) fn new(pin: Pin) -> Self {
        let from = pin.lsn().get();
        Self { pin, from }
    }

    /// Lets go of the records before `next`, once there are so many. It only goes forward.
    pub(super) fn advance(&mut self, next: u64, count: u64) {
        if next.checked_sub(self.from).is_none_or(|passed| passed < count) {
            return;
        }
        match self.pin.advance(Lsn::at_least_first(next)) {
            Ok(()) => self.from = next,
            // Above the end, to which a seek may go.
            Err(e) => told::tell(move || tracing::debug!(error = %e, "a pin stays")),
        }
    }
}

impl Reader {
    pub(crate) fn new(source: Arc<dyn Source>, from: u64) -> Self {
        Self { source, next: from, open: None, kept: Vec::new(), pin: None }
    }

    /// Holds what was not read yet against retention.
    pub(super) fn pinned(self, pin: Pin) -> Self {
        Self { pin: Some(Held::new(pin)), ..self }
    }

    /// The next record; `None` when there is none yet, and a later call may find one.
    ///
    /// # Errors
    ///
    /// `Trimmed` when retention has dropped the record, with the oldest LSN; `Corrupt` when it is
    /// damaged, with file, offset and LSN; `Closed` after the log was closed; `Io` when the system
    /// refuses. The reader stays where it is, so that the same call may be tried again.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends for good; this does not")]
    pub fn next(&mut self) -> Result<Option<Record>> {
        let lsn = self.next;
        // The way of nearly every record.
        if let Some(open) = &mut self.open
            && open.lsn() == lsn
            && open.has(lsn)
            && let Ok(record) = open.next()
        {
            self.next = lsn.saturating_add(1);
            return Ok(Some(record));
        }
        self.next_elsewhere(lsn)
    }

    /// The record of `lsn`, which is not simply the next one of the open segment, or does not hold.
    fn next_elsewhere(&mut self, lsn: u64) -> Result<Option<Record>> {
        if !self.open.as_ref().is_some_and(|open| open.has(lsn)) {
            if let Some(pin) = &mut self.pin {
                pin.advance(lsn, 1);
            }
            let Some(at) = self.source.locate(lsn)? else { return Ok(None) };
            self.enter(at, lsn)?;
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        let record = read(&*self.source, open, lsn, |open| {
            open.reach(lsn)?;
            open.next()
        })?;
        self.next = lsn.saturating_add(1);
        Ok(Some(record))
    }

    /// The record before this position; `None` before the first record of the log. From after the
    /// end, the last record that there is.
    ///
    /// # Errors
    ///
    /// As [`Reader::next`]. Before the oldest record of a log that was trimmed this is `Trimmed`:
    /// what was there is gone, which is no begin. In a damaged segment, records of a batch after
    /// the damaged one may be handed out before this is `Corrupt`.
    pub fn prev(&mut self) -> Result<Option<Record>> {
        let Some(mut lsn) = self.next.checked_sub(1).filter(|&lsn| lsn > 0) else {
            return Ok(None);
        };
        let held = |open: &SegmentReader| open.has(lsn) && (open.at.sealed || open.places.has(lsn));
        if !self.open.as_ref().is_some_and(held) {
            let mut found = self.source.locate(lsn)?;
            if found.is_none() {
                lsn = self.source.last().min(lsn);
                if lsn == 0 {
                    return Ok(None);
                }
                found = self.source.locate(lsn)?;
            }
            let Some(at) = found else { return Ok(None) };
            self.enter(at, lsn)?;
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        let record = read(&*self.source, open, lsn, |open| open.prev(lsn))?;
        self.next = lsn;
        Ok(Some(record))
    }

    /// Goes to another record, which need not be there yet. A reader that goes to and fro holds
    /// the last few segments of its process's log open, at the cost of the disk space of those that
    /// are trimmed meanwhile, until it is dropped.
    pub fn seek(&mut self, lsn: Lsn) {
        self.next = lsn.get();
    }

    /// The LSN that the next call of [`Reader::next`] looks for.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        Lsn::at_least_first(self.next)
    }

    /// Whether the next record lies in the open segment, and that was the tail when it was located.
    pub(super) fn is_in_tail(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.has(self.next) && !open.at.sealed)
    }

    /// Makes a segment the open one, in which `lsn` is wanted.
    fn enter(&mut self, at: Located, lsn: u64) -> Result<()> {
        // A number is given once.
        let is_it = |inside: &SegmentReader| inside.at.header.number == at.header.number;
        let held = match self.open.take() {
            Some(open) if is_it(&open) => Some(open),
            left => {
                self.keep(left, lsn);
                let found = self.kept.iter().position(is_it);
                found.map(|i| self.kept.remove(i))
            }
        };
        let mut open = match held {
            Some(open) => open,
            None => self.open_segment(at.clone(), lsn)?,
        };
        let near = at.near;
        let extended = open.extend(at);
        extended.map_err(|e| Error::io("cannot read the segment", open.path(), e))?;
        if let Some(near) = near {
            open.places.note(near);
        }
        self.open = Some(open);
        Ok(())
    }

    fn open_segment(&self, at: Located, lsn: u64) -> Result<SegmentReader> {
        let path = self.source.path(&at.header);
        SegmentReader::open(self.source.io(), path.clone(), at).or_else(|e| {
            // A trim may have been faster; then the source says so.
            self.source.confirm(lsn)?;
            Err(Error::io("cannot open the segment", &path, e))
        })
    }

    /// Keeps a segment that a seek leaves for another one; who reads on does not come back.
    fn keep(&mut self, left: Option<SegmentReader>, lsn: u64) {
        let Some(left) = left else { return };
        let follows = left.at.last.saturating_add(1) == lsn
            || lsn.saturating_add(1) == left.at.header.first_lsn;
        if follows {
            return;
        }
        let oldest = self.source.oldest();
        self.kept.retain(|kept| kept.at.last >= oldest);
        if self.kept.len() == KEPT_COUNT {
            self.kept.remove(0);
        }
        self.kept.push(left);
    }
}

/// Reads in a segment. Damage counts once it was read twice: where another process removes a
/// segment that is being read, it may cut it first.
fn read(
    source: &dyn Source,
    open: &mut SegmentReader,
    lsn: u64,
    mut read: impl FnMut(&mut SegmentReader) -> Result<Record>,
) -> Result<Record> {
    match read(open) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {}
        done => return done,
    }
    source.confirm(lsn)?;
    open.forget();
    read(open).or_else(|error| {
        source.confirm(lsn)?;
        Err(error)
    })
}

pub(crate) fn trimmed(oldest: u64) -> Error {
    Error::new(ErrorKind::Trimmed, "the records were dropped by retention; the oldest left")
        .at_lsn(oldest)
}
