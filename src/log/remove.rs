//! Removing the files of trimmed segments: late, in small steps, off the path of the sync.
//!
//! A trim is recorded durably before a file gets here. Freeing the blocks of a large file at once
//! stalls the syncs of the whole file system, worst where it is mounted with discard; so a file is
//! cut down step by step and unlinked when it is short (SPEC section 10, trim, step 2). This and
//! the sealing of a tail are the only places that shorten a file.
//!
//! A segment that a reader of this log is in, or whose map lives on in a payload, is unlinked
//! whole: reading beyond the end of a mapped file is fatal. So is every one while payloads of an
//! earlier log of the directory live, in whatever process ([`Maps`](super::maps::Maps)). Views of
//! other processes never map; they find a short file and learn from the slots that it was trimmed.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use oncelog_format::limits::FRAMES_OFFSET;

use super::facts::SegmentFacts;
use super::lock;
use super::pins::{Holder, HolderKind};
use super::told::Told;
use super::trim::Dropped;
use super::writer::{Gate, SegmentRef, Shared};
use crate::error::{Error, Result};
use crate::io::{IoFile, OpenHow};
use crate::lsn::Lsn;

/// Bytes that one step frees: a fraction of what a disk discards between two syncs.
pub(crate) const STEP_BYTES: u64 = 4 << 20;

/// Shared by a segment with everybody who reads it in this process.
#[derive(Debug)]
pub(crate) struct InUse;

/// A trimmed segment whose file is still there.
#[derive(Debug)]
pub(crate) struct Leftover {
    path: PathBuf,
    first_lsn: u64,
    in_use: Arc<InUse>,
    /// Open for cutting, with its length.
    file: Option<(Arc<dyn IoFile>, u64)>,
}

impl Leftover {
    /// One that an open has found.
    pub(crate) fn found(facts: &SegmentFacts) -> Self {
        // It may hold the header of another one.
        let first_lsn = facts.named.map_or(1, |(_, first_lsn)| first_lsn);
        Self { path: facts.path.clone(), first_lsn, in_use: Arc::new(InUse), file: None }
    }

    fn of(segment: SegmentRef) -> Self {
        let SegmentRef { path, header, in_use, .. } = segment;
        Self { path, first_lsn: header.first_lsn, in_use, file: None }
    }

    pub(crate) fn holder(&self) -> Holder {
        Holder {
            kind: HolderKind::Leftover,
            name: self.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            lsn: Lsn::at_least_first(self.first_lsn),
        }
    }

    /// Whether somebody is within it. Nobody enters it any more: once free it stays free.
    fn is_in_use(&mut self) -> bool {
        Arc::get_mut(&mut self.in_use).is_none()
    }
}

/// The files that are to go.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    /// Nothing durable is known to say that they were trimmed: they stay until something is.
    waiting: Vec<Leftover>,
    /// They may go.
    ready: VecDeque<Leftover>,
    /// One of them is out for a step.
    stepping: Option<Holder>,
    /// The system refused to remove them; the next trim tries again.
    refused: Vec<Leftover>,
}

impl Removal {
    pub(crate) fn waiting(found: Vec<Leftover>) -> Self {
        Self { waiting: found, ..Self::default() }
    }

    /// What the system refused to remove gets another chance.
    pub(crate) fn try_again(&mut self) {
        self.ready.extend(self.refused.drain(..));
    }

    /// Whether a trim has to be recorded again before files may go.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether there is a step to take.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A durable slot states the trim: what it dropped may go.
    pub(crate) fn release(&mut self, dropped: impl Iterator<Item = SegmentRef>) {
        self.ready.extend(self.waiting.drain(..));
        self.ready.extend(dropped.map(Leftover::of));
    }

    /// The files that are still there, the one that is out for a step included.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> {
        let all = self.waiting.iter().chain(&self.refused).chain(&self.ready);
        all.map(Leftover::holder).chain(self.stepping.clone())
    }

    /// How many those are.
    pub(crate) fn file_count(&self) -> usize {
        let named = self.waiting.len().saturating_add(self.refused.len());
        named.saturating_add(self.ready.len()).saturating_add(usize::from(self.stepping.is_some()))
    }
}

/// What became of a file in one step.
enum Step {
    Shorter,
    Gone,
}

impl Shared {
    /// Takes one step at the oldest file that may go; says whether there was one. A refusal of the
    /// system puts the file aside.
    pub(crate) fn remove_step(&self) -> bool {
        let mut gate = self.gate();
        // Nothing is written after a failure, here neither.
        if gate.removal.stepping.is_some() || gate.poison.is_some() {
            return false;
        }
        // A waker or a subscriber of events may have closed the log on this very thread: the
        // directory may be another one's, and so may what bears these names.
        if lock(&self.lock).is_none() {
            return false;
        }
        let Some(mut leftover) = gate.removal.ready.pop_front() else { return false };
        gate.removal.stepping = Some(leftover.holder());
        drop(gate);
        let step = self.shorten(&mut leftover);
        let mut gate = self.gate();
        gate.removal.stepping = None;
        match step {
            Ok(Step::Gone) => {}
            Ok(Step::Shorter) => gate.removal.ready.push_front(leftover),
            Err(e) => {
                gate.told.push(Told::NotRemoved(e));
                leftover.file = None;
                gate.removal.refused.push(leftover);
            }
        }
        let is_last = !gate.removal.has_ready();
        drop(self.settle(gate));
        if is_last {
            self.maps.end_cut();
        }
        true
    }

    fn shorten(&self, leftover: &mut Leftover) -> Result<Step> {
        let least = FRAMES_OFFSET.max(self.removal_step_bytes);
        let is_free = leftover.file.is_some() || !leftover.is_in_use();
        let may_cut = is_free && self.maps.begin_cut(&*self.io);
        if may_cut && leftover.file.is_none() {
            leftover.file = match self.io.open(&leftover.path, OpenHow::ReadWrite) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Step::Gone),
                opened => {
                    let opened = opened.and_then(|file| file.len().map(|len| (file, len)));
                    let what = "cannot open the trimmed segment";
                    Some(opened.map_err(|e| Error::io(what, &leftover.path, e))?)
                }
            };
        }
        // The header and the slots stay: they tell whoever finds the file what it was.
        if may_cut
            && let Some((file, len)) = &mut leftover.file
            && *len > least
        {
            let shorter = len.saturating_sub(self.removal_step_bytes).max(FRAMES_OFFSET);
            let cut = file.set_len(shorter);
            cut.map_err(|e| Error::io("cannot cut the trimmed segment", &leftover.path, e))?;
            *len = shorter;
            return Ok(Step::Shorter);
        }
        match self.io.remove(&leftover.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("cannot remove the trimmed segment", &leftover.path, e))
            }
            _ => Ok(Step::Gone),
        }
    }
}

impl Gate {
    /// The segments wholly below the oldest LSN leave the log; their files may go.
    pub(crate) fn let_go(&mut self) -> Dropped {
        let count = self.trimmed_count();
        let bytes = self.segments.iter().take(count).map(|segment| segment.bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        self.removal.release(self.segments.drain(..count));
        Dropped { segments: u64::try_from(count).unwrap_or(u64::MAX), bytes }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::io::Io as _;
    use crate::io::mem::MemIo;
    use crate::log::{CreateMode, Fill, Log, Options};

    /// The thread that trims went on behind a close by its own waker, without the lock.
    #[test]
    fn nothing_is_removed_once_the_directory_may_be_anothers() {
        let io = MemIo::default();
        let options = Options::new().create(CreateMode::IfMissing).background(false);
        let options = options.segment_bytes_max(65_536).fill(Fill::None).io(Arc::new(io.clone()));
        let (log, _) = Log::open("/log", &options).unwrap();
        (0..20).for_each(|_| assert!(log.append(&[1; 9000]).is_ok()));
        log.trim(log.next_lsn()).unwrap();
        let shared = Arc::clone(&log.handle.shared);
        assert!(shared.remove_step());
        log.close().unwrap();
        let left = io.list(Path::new("/log")).unwrap();
        assert!(left.len() > 3 && shared.gate().removal.has_ready());
        assert!(!shared.remove_step(), "a step was taken");
        assert_eq!(io.list(Path::new("/log")).unwrap(), left);
    }
}
