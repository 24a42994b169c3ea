//! Rebuilding caches and copies of sealed segments that recovery found damaged (SPEC section 10).
//!
//! No record needs them, so nothing may wait for this: it is work for the thread that trims, a
//! segment at a time, and a refusal leaves the segment as it was for the next open. Frames are
//! read, never written. A footer goes after the last byte of the file, so that nothing that is
//! there is overwritten but a damaged header and a damaged slot.
//!
//! A sync that fails poisons the log, as everywhere. So does a write, unless for space, of a footer
//! in whose block frames stand that are promised. Header and slots have blocks of their own, and a
//! write of them that fails is a refusal: a log whose records are whole is not taken from its
//! callers, at each open again, for a copy that nobody needs.
//!
//! The tail needs none of it: its next slots replace damaged ones, and it gets its footer at a
//! roll.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use oncelog_format::limits::{ALIGNMENT, FRAMES_OFFSET};
use oncelog_format::{Footer, Place, SegmentHeader, Slot};

use super::dir::{Fault, refusal};
use super::facts::{self, FooterFacts, SegmentFacts, SlotFacts};
use super::roll::is_no_space;
use super::scan::{self, Window};
use super::survey::{Segment, Survey};
use super::writer::{Guard, Shared};
use crate::error::Error;
use crate::io::{Io, IoFile, OpenHow};
use crate::told;

/// What a file system writes at least, and may fail to write: header and slots have one each.
const BLOCK_BYTES: u64 = 4096;

/// A sealed segment with something to rebuild.
#[derive(Clone, Debug)]
pub(crate) struct Degraded {
    path: PathBuf,
    header: SegmentHeader,
    /// First LSN of its successor.
    next: u64,
}

impl Survey {
    /// The sealed segments that a writer rebuilds.
    pub(crate) fn degraded(&self) -> Vec<Degraded> {
        let successors = self.segments.iter().skip(1);
        let pairs = self.segments.iter().zip(successors);
        let pairs = pairs.filter(|(segment, next)| is_degraded(segment, next.header.first_lsn));
        let degraded = pairs.map(|(segment, next)| Degraded {
            path: segment.facts.path.clone(),
            header: segment.header,
            next: next.header.first_lsn,
        });
        degraded.collect()
    }
}

fn is_degraded(segment: &Segment, next: u64) -> bool {
    let facts = &segment.facts;
    let footer = match &facts.footer {
        FooterFacts::Valid(footer) => footer.last_lsn.saturating_add(1) != next,
        FooterFacts::Absent | FooterFacts::Damaged(_) => true,
    };
    footer || facts.header_damage.is_some() || !damaged_slots(facts).is_empty()
}

/// The indexes of the slots that hold something else than a slot of this segment.
fn damaged_slots(facts: &SegmentFacts) -> Vec<u32> {
    let slots = [0, 1].into_iter().zip(&facts.slots);
    let damaged = slots.filter(|(_, s)| matches!(s, SlotFacts::Foreign | SlotFacts::Damaged(_)));
    damaged.map(|(index, _)| index).collect()
}

impl Shared {
    /// Rebuilds what is degraded in one segment; does nothing when no segment is left.
    pub(crate) fn rebuild_next<'a>(&'a self, mut gate: Guard<'a>) -> Guard<'a> {
        let Some(degraded) = gate.degraded.pop() else { return gate };
        let segment = gate.segments.iter().find(|segment| segment.path == degraded.path);
        let Some(segment) = segment else { return gate }; // trimmed since
        // A trim that comes meanwhile does not cut the file.
        let in_use = Arc::clone(&segment.in_use);
        drop(gate);
        let rebuilt = rebuild(&*self.io, &degraded);
        drop(in_use);
        match rebuilt {
            Ok(()) => {
                let path = degraded.path.clone();
                told::tell(move || {
                    tracing::info!(path = %path.display(), "rebuilt a degraded segment");
                });
                self.gate()
            }
            Err(Fault::Refused(e)) => {
                let path = degraded.path.clone();
                told::tell(move || {
                    tracing::warn!(path = %path.display(), error = %e, "a segment stays degraded");
                });
                self.gate()
            }
            Err(Fault::Final(e)) => {
                let mut gate = self.gate();
                gate.set_poison(e);
                self.settle(gate)
            }
        }
    }
}

type Outcome = Result<(), Fault>;

/// A degraded segment that is open.
struct Rebuilding<'a> {
    file: Arc<dyn IoFile>,
    degraded: &'a Degraded,
}

/// Each write is of one thing, and synced before the next.
fn rebuild(io: &dyn Io, degraded: &Degraded) -> Outcome {
    let facts = SegmentFacts::read(io, &degraded.path).map_err(Fault::Refused)?;
    let opened = io.open(&degraded.path, OpenHow::ReadWrite);
    let file = opened.map_err(|e| degraded.unread(e))?;
    let rebuilding = Rebuilding { file, degraded };
    if facts.header_damage.is_some() {
        // A slot has the copy, so that a crash in the midst of this loses nothing.
        rebuilding.put(&degraded.header.encode(), 0, 0)?;
    }
    rebuilding.slots(&facts)?;
    let missing = rebuilding.missing_footer().map_err(|e| degraded.unread(e))?;
    let Some(footer) = missing else { return Ok(()) };
    rebuilding.put(&footer.encode(degraded.header.salt), footer.offset, footer.end)
}

impl Degraded {
    fn unread(&self, e: io::Error) -> Fault {
        Fault::Refused(Error::io("cannot read the segment", &self.path, e))
    }
}

impl Rebuilding<'_> {
    /// Writes something behind frames that end at an offset, and syncs it.
    fn put(&self, bytes: &[u8], offset: u64, frames_end: u64) -> Outcome {
        let is_beside_frames = offset.saturating_sub(offset % BLOCK_BYTES) < frames_end;
        let path = &self.degraded.path;
        self.file.write_whole_at(bytes, offset).map_err(|e| {
            let refused = !is_beside_frames || is_no_space(&e);
            let error = refusal("cannot rebuild the segment", path, e).at_offset(offset);
            if refused { Fault::Refused(error) } else { Fault::Final(error) }
        })?;
        let synced = self.file.sync();
        synced.map_err(|e| Fault::Final(Error::io("cannot sync the segment", path, e)))
    }

    fn slots(&self, facts: &SegmentFacts) -> Outcome {
        let mut newest = facts.newest_slot();
        // Twice when both are damaged: the counter says which of them is next.
        for _ in damaged_slots(facts) {
            let slot = newest.map_or_else(
                || first_slot(self.degraded),
                |slot| Slot { counter: slot.counter.saturating_add(1), ..slot },
            );
            if matches!(slot_facts(facts, slot.index()), SlotFacts::Valid(_)) {
                break; // the next counter would replace the valid one
            }
            self.put(&slot.encode(), Slot::offset_of(slot.index()), 0)?;
            newest = Some(slot);
        }
        Ok(())
    }

    /// The footer that the frames call for, where there is another one or none.
    fn missing_footer(&self) -> io::Result<Option<Footer>> {
        let Degraded { header, next, .. } = self.degraded;
        let size = self.file.len()?;
        let frames = scan::frames(&mut Window::new(&*self.file)?, header, Some(*next))?;
        if frames.last.saturating_add(1) != *next {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "records are missing"));
        }
        if let FooterFacts::Valid(footer) = facts::footer_of(&*self.file, header, size)?
            && (footer.last_lsn, footer.end) == (frames.last, frames.end)
        {
            return Ok(None);
        }
        let footer = Footer {
            offset: size.next_multiple_of(ALIGNMENT),
            last_lsn: frames.last,
            end: frames.end,
            // The successor's name stands after a sync of all of it.
            durable_lsn: frames.last,
            record_count: frames.tally.records(),
            payload_bytes: frames.tally.payload_bytes,
            time_first_ms: frames.tally.time_first_ms,
            time_last_ms: frames.tally.time_last_ms,
            entries: frames.tally.entries,
        };
        debug_assert_eq!(
            Footer::decode(
                &footer.encode(header.salt),
                Place { salt: header.salt, offset: footer.offset }
            )
            .as_ref(),
            Ok(&footer),
        );
        Ok(Some(footer))
    }
}

fn slot_facts(facts: &SegmentFacts, index: u32) -> SlotFacts {
    let [first, second] = facts.slots;
    if index == 0 { first } else { second }
}

/// States less than there was: a successor proves the rest, and other slots the oldest LSN.
fn first_slot(degraded: &Degraded) -> Slot {
    Slot {
        counter: 1,
        durable_lsn: degraded.header.first_lsn.saturating_sub(1),
        durable_offset: FRAMES_OFFSET,
        oldest_lsn: 1,
        header: degraded.header,
    }
}
