//! The shape of what recovery found; [`super::recover`] fills it in.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use oncelog_format::limits::FRAMES_OFFSET;
use oncelog_format::{Footer, FooterEntry, SegmentHeader, Uuid};

use super::cursors::CursorFacts;
use super::decision::FooterFound;
use super::facts::{FooterFacts, Listing, NOT_FREE, SegmentFacts};
use super::finding::{Finding, FindingKind, Severity};
use super::scan::{self, Behind, Frames, Tally, Window};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Io, OpenHow};

/// A segment of the log, judged.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) facts: SegmentFacts,
    pub(crate) header: SegmentHeader,
    /// The last kept LSN; `first_lsn - 1` when there is none.
    pub(crate) last: u64,
    /// Offset after its frame.
    pub(crate) end: u64,
    /// Bytes after `end` that hold no record; without the zeros and the footer after them.
    pub(crate) dead: Option<Range<u64>>,
    /// Numbers of the kept records, without the sparse index.
    pub(crate) tally: Tally,
    /// Whether the frames were read; else the footer was believed.
    pub(crate) scanned: bool,
}

/// The last segment, judged further.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    /// Offset after the last byte that is not zero.
    pub(crate) used: u64,
    pub(crate) state: TailState,
    /// No byte stands after the header and the first slot.
    pub(crate) bare: bool,
    /// The sparse index of its frames.
    pub(crate) entries: Vec<FooterEntry>,
}

/// How the last segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailState {
    /// Zeros follow the last kept frame.
    Clean,
    /// A footer follows it: there is no successor yet.
    Sealed,
    /// Other bytes follow it.
    Torn,
}

/// Everything that recovery found.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    pub(crate) dir: PathBuf,
    pub(crate) uuid: Option<Uuid>,
    /// `LOCK` holds an identity.
    pub(crate) identified: bool,
    /// `LOCK` holds what neither a log nor a store leaves there.
    pub(crate) is_foreign: bool,
    /// The segments of the log in order. Those from `readable` on could not be judged, because of
    /// damage in or before them.
    pub(crate) segments: Vec<Segment>,
    /// How many of `segments` hold records that can be read; the last of them only up to `last`.
    pub(crate) readable: usize,
    pub(crate) leftovers: Vec<SegmentFacts>,
    /// Segments whose header cannot be read, or that do not belong here.
    pub(crate) refused: Vec<SegmentFacts>,
    pub(crate) listing: Listing,
    pub(crate) cursors: CursorFacts,
    pub(crate) oldest: u64,
    /// The last kept LSN, 0 when there is none.
    pub(crate) last: u64,
    /// Greatest LSN with a witness.
    pub(crate) proven: u64,
    /// Greatest number in any name or header.
    pub(crate) number_max: u64,
    /// The last segment; `None` when there is none, or damage stands before it.
    pub(crate) tail: Option<Tail>,
    pub(crate) findings: Vec<Finding>,
}

impl Survey {
    pub(crate) fn empty(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            uuid: None,
            identified: false,
            is_foreign: false,
            segments: Vec::new(),
            readable: 0,
            leftovers: Vec::new(),
            refused: Vec::new(),
            listing: Listing::default(),
            cursors: CursorFacts::default(),
            oldest: 1,
            last: 0,
            proven: 0,
            number_max: 0,
            tail: None,
            findings: Vec::new(),
        }
    }

    /// There is no log: it may be created (row @A of SPEC section 12).
    pub(crate) fn is_absent(&self) -> bool {
        self.segments.is_empty() && self.damage().is_none()
    }

    /// Whether a log that is absent may be made: nothing stands there that is somebody else's.
    ///
    /// # Errors
    ///
    /// `InvalidInput`.
    pub(crate) fn expect_free(&self) -> Result<()> {
        if !self.is_absent() || (self.listing.is_nothing() && !self.is_foreign) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidInput, NOT_FREE).at_path(&self.dir))
    }

    /// The first finding that keeps a writer out, one of what this version does not know before any
    /// damage, as [`Severity::worse`] has it.
    pub(crate) fn damage(&self) -> Option<&Finding> {
        let first = |severity| self.findings.iter().find(|f| f.severity == severity);
        first(Severity::Unsupported).or_else(|| first(Severity::Corrupt))
    }

    /// The last segment, with what only it has; `None` when damage stands in or before it.
    pub(crate) fn last_segment(&self) -> Option<(&Segment, &Tail)> {
        Some((self.segments.last()?, self.tail.as_ref()?))
    }
}

impl Segment {
    pub(crate) fn new(facts: SegmentFacts, header: SegmentHeader) -> Self {
        Self {
            last: header.first_lsn.saturating_sub(1),
            end: FRAMES_OFFSET,
            dead: None,
            tally: Tally::new(header.base_time_ms),
            scanned: false,
            facts,
            header,
        }
    }

    /// Takes over what the scan of its frames found.
    pub(crate) fn take(&mut self, frames: &Frames, behind: &Behind) {
        (self.last, self.end, self.scanned) = (frames.last, frames.end, true);
        self.tally = frames.tally.with_entries(Vec::new());
        let used = match &self.facts.footer {
            FooterFacts::Valid(footer) if footer.end == frames.end => footer.offset,
            _ => behind.used,
        };
        self.dead = (frames.end < used).then_some(frames.end..used);
    }

    /// What its footer is to frames that were read; `wanted` is the last LSN below its successor.
    pub(crate) fn footer_found(
        &self,
        frames: &Frames,
        behind: &Behind,
        wanted: u64,
    ) -> FooterFound {
        match &self.facts.footer {
            FooterFacts::Valid(footer)
                if self.agrees_with_neighbours(footer, wanted)
                    && (frames.last < wanted || footer.end == frames.end) =>
            {
                FooterFound::Agrees
            }
            FooterFacts::Valid(_) => FooterFound::Contradicts,
            FooterFacts::Damaged(_) | FooterFacts::Absent if behind.footer => FooterFound::Damaged,
            FooterFacts::Damaged(_) | FooterFacts::Absent => FooterFound::Absent,
        }
    }

    /// Whether a footer agrees with what the neighbours of the segment say.
    pub(crate) fn agrees_with_neighbours(&self, footer: &Footer, wanted: u64) -> bool {
        let next = wanted.checked_add(1);
        let records = next.and_then(|next| next.checked_sub(self.header.first_lsn));
        footer.last_lsn == wanted && records == Some(footer.record_count)
    }

    /// Reads its frames, and what stands after them to the physical end.
    ///
    /// # Errors
    ///
    /// `Io` when the system refuses to read.
    pub(crate) fn read(&self, io: &dyn Io, until: Option<u64>) -> Result<(Frames, Behind)> {
        let path = &self.facts.path;
        let read = || -> io::Result<(Frames, Behind)> {
            let file = io.open(path, OpenHow::Read)?;
            let mut window = Window::new(&*file)?;
            let frames = scan::frames(&mut window, &self.header, until)?;
            #[cfg(planted)]
            if crate::planted::is_active(crate::planted::Bug::ZerosNotScanned)
                && window.at(frames.end, 1)?.first().is_none_or(|&byte| byte == 0)
            {
                return Ok((frames.clone(), Behind { used: frames.end, stated: 0, footer: false }));
            }
            let behind = scan::behind(&mut window, &self.header, frames.end)?;
            #[cfg(planted)]
            if crate::planted::is_active(crate::planted::Bug::LaterNotAsked) {
                return Ok((frames, Behind { stated: 0, ..behind }));
            }
            Ok((frames, behind))
        };
        read().map_err(|e| Error::io("cannot read the segment", path, e))
    }

    pub(crate) fn finding(&self, kind: FindingKind, severity: Severity) -> Finding {
        Finding::new(kind, severity, &self.facts.path).in_segment(self.header.number)
    }
}
