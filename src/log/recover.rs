//! SPEC section 12: what the files of a log amount to.
//!
//! A verdict is a pure function of the bytes: nothing is written, no clock is read, and the same
//! files read alike in the writer and in any other process. Comments name the rows of the table.
//!
//! Memory is bounded by the largest record and by the number of segments.

use std::path::Path;

use oncelog_format::{Owner, SegmentHeader};

use super::decision::{self, End, Ending, FooterTaken, Identity, Row};
use super::facts::{FooterFacts, LOCK_NAME, Listing, LockFacts, SegmentFacts, SlotFacts};
use super::finding::{Finding, FindingKind, Severity};
use super::options::Check;
use super::reserve::RESERVE_NAME;
use super::scan::{Behind, Frames, Tally};
use super::survey::{Segment, Survey, Tail, TailState};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;

impl Survey {
    /// Judges a directory; with [`Check::Full`] every frame is read.
    ///
    /// # Errors
    ///
    /// `Io` when the system refuses to read, `InvalidInput` for the directory of a store. Damage
    /// is a finding, not an error.
    pub(crate) fn read(io: &dyn Io, dir: &Path, check: Check) -> Result<Self> {
        let listing =
            Listing::read(io, dir).map_err(|e| Error::io("cannot list the directory", dir, e))?;
        let lock = if listing.lock { LockFacts::read(io, dir)? } else { LockFacts::NoIdentity };
        let mut facts = Vec::with_capacity(listing.segments.len());
        for name in &listing.segments {
            facts.push(SegmentFacts::read(io, &dir.join(name))?);
        }
        let mut survey = Self::empty(dir);
        survey.listing = listing;
        survey.judge_lock(lock)?;
        survey.admit_all(facts);
        survey.check_order();
        survey.leave_out_leftovers();
        survey.read_cursors(io);
        survey.judge_segments(io, check, true)?;
        survey.judge_cursors(); // @Y
        survey.name_others();
        Ok(survey)
    }

    /// Judges a log without damage again, of which only the frames of the tail may have changed.
    /// Where more has, all of it is judged.
    ///
    /// # Errors
    ///
    /// As [`Survey::read`].
    pub(crate) fn look_at_tail_again(mut self, io: &dyn Io, check: Check) -> Result<Self> {
        let Some(before) = self.segments.pop() else { return Self::read(io, &self.dir, check) };
        let facts = SegmentFacts::read(io, &before.facts.path)?;
        let header = (facts.header, facts.header_damage, facts.slots);
        if header != (Ok(before.header), None, before.facts.slots) {
            return Self::read(io, &self.dir, check);
        }
        let others = [FindingKind::Spare, FindingKind::Stray];
        self.findings.retain(|f| f.path != facts.path && !others.contains(&f.kind));
        let mut segment = Segment::new(facts, before.header);
        self.tail = None;
        self.judge_tail(io, &mut segment, true)?;
        self.last = segment.last;
        self.segments.push(segment);
        self.name_others();
        Ok(self)
    }

    /// Judges one segment by itself, as if it were the tail.
    ///
    /// # Errors
    ///
    /// `Io` when the system refuses to read.
    pub(crate) fn read_segment(io: &dyn Io, path: &Path) -> Result<Self> {
        let mut facts = SegmentFacts::read(io, path)?;
        if facts.header.is_ok() {
            // Row @G is not for it: a file alone may have been given any name.
            facts.named = None;
        }
        let mut survey = Self::empty(path.parent().unwrap_or_else(|| Path::new("")));
        let unseen = Finding::new(FindingKind::SuccessorUnseen, Severity::Info, path);
        survey.findings.push(unseen.in_segment(facts.number()));
        survey.identified = true;
        survey.admit_all(vec![facts]);
        survey.judge_segments(io, Check::Full, false)?;
        Ok(survey)
    }

    fn judge_lock(&mut self, lock: LockFacts) -> Result<()> {
        if let Some((at, found)) = lock.damage() {
            // @C
            let path = self.dir.join(LOCK_NAME);
            let damaged = Finding::new(FindingKind::LockDamaged, Severity::Corrupt, &path);
            self.findings.push(damaged.at_offset(at).saying("zeros or an identity", found));
        }
        let identity = match lock {
            LockFacts::NoIdentity => Identity::Absent,
            LockFacts::Foreign => {
                self.is_foreign = true;
                Identity::Absent
            }
            LockFacts::Identity(Owner::Log, uuid) => {
                (self.uuid, self.identified) = (Some(uuid), true);
                Identity::Stated
            }
            LockFacts::Identity(..) => {
                let what = "the directory holds a store, not a log";
                return Err(Error::new(ErrorKind::InvalidInput, what).at_path(&self.dir));
            }
            LockFacts::Unfinished | LockFacts::Damaged(_) => Identity::Damaged,
        };
        // @A: there is no log, and nothing to tell.
        if decision::of_directory(!self.listing.segments.is_empty(), identity) == Some(Row::B) {
            let gone = Finding::new(FindingKind::SegmentsGone, Severity::Corrupt, &self.dir);
            let uuid = self.uuid.map_or_else(String::new, |uuid| format!("segments of {uuid}"));
            self.findings.push(gone.saying(uuid, "none")); // @B
        }
        Ok(())
    }

    fn admit_all(&mut self, all: Vec<SegmentFacts>) {
        for facts in all {
            // Where the two differ the log is refused, or the name says that the file was trimmed.
            let number = facts.named.map_or_else(|| facts.number(), |(number, _)| number);
            self.number_max = self.number_max.max(number);
            match self.admit(&facts) {
                Ok(header) => {
                    let oldest = facts.valid_slots().map(|slot| slot.oldest_lsn).max();
                    self.oldest = self.oldest.max(oldest.unwrap_or(1));
                    self.segments.push(Segment::new(facts, header));
                }
                // What the slots of a refused segment state of a trim does not count either.
                Err(finding) => {
                    self.findings.push(finding);
                    self.refused.push(facts);
                }
            }
        }
        self.segments.sort_by_key(|segment| segment.header.number);
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::NamesAsText) {
            self.segments.sort_by_key(|segment| segment.header.number.to_string());
        }
    }

    /// The header of a segment that belongs here.
    fn admit(&mut self, facts: &SegmentFacts) -> std::result::Result<SegmentHeader, Finding> {
        let finding =
            |kind, severity| Finding::new(kind, severity, &facts.path).in_segment(facts.number());
        if let Some(e) = facts.header_damage {
            // @F
            let copied = finding(FindingKind::HeaderFromSlot, Severity::Degraded);
            let copied = copied.at_offset(offset_of(e.at));
            self.findings.push(copied.saying("a segment header", e.to_string()));
        }
        let refused = match (decision::of_head(facts.head(self.uuid, false)), facts.header) {
            (Ok(_), Ok(header)) => {
                self.uuid.get_or_insert(header.uuid);
                return Ok(header);
            }
            (Err(row), _) => row,
            (Ok(_), Err(_)) => Row::E,
        };
        Err(match (refused, facts.header) {
            (Row::G, Ok(header)) => {
                // @G
                let foreign = finding(FindingKind::SegmentForeign, Severity::Corrupt);
                match (facts.named, self.uuid) {
                    (Some((number, first)), _) if !facts.is_named_as(&header) => {
                        let expected = format!("number {number} and first LSN {first}");
                        let found = format!("{} and {}", header.number, header.first_lsn);
                        foreign.saying(expected, found)
                    }
                    (_, uuid) => {
                        let expected = uuid.map_or_else(String::new, |uuid| format!("UUID {uuid}"));
                        foreign.saying(expected, header.uuid.to_string())
                    }
                }
            }
            (row, header) => {
                let (kind, severity) = if row == Row::D {
                    (FindingKind::VersionUnsupported, Severity::Unsupported) // @D
                } else {
                    (FindingKind::HeaderDamaged, Severity::Corrupt) // @E
                };
                let expected = "a segment header of this version";
                let damage = header.err().map(|e| (offset_of(e.at), e.to_string()));
                let (at, found) = damage.unwrap_or_default();
                finding(kind, severity).at_offset(at).saying(expected, found)
            }
        })
    }

    fn check_order(&mut self) {
        // @H
        for (a, b) in self.segments.iter().zip(self.segments.iter().skip(1)) {
            let number = b.header.number.cmp(&a.header.number);
            let first = b.header.first_lsn.cmp(&a.header.first_lsn);
            if decision::of_order(number, first).is_some() {
                let expected = format!(
                    "a number above {} and a first LSN of at least {}",
                    a.header.number, a.header.first_lsn
                );
                let found = format!("{} and {}", b.header.number, b.header.first_lsn);
                let broken = b.finding(FindingKind::OrderBroken, Severity::Corrupt);
                self.findings.push(broken.at_lsn(b.header.first_lsn).saying(expected, found));
            }
        }
    }

    fn leave_out_leftovers(&mut self) {
        self.leave_out_unplaced();
        // @I: first LSNs ascend, so leftovers come first.
        let firsts = self.segments.iter().skip(1).map(|next| next.header.first_lsn);
        let is_leftover =
            |first: &u64| decision::of_leftover(Some(first.cmp(&self.oldest))).is_some();
        let count = firsts.take_while(is_leftover).count();
        self.leftovers.extend(self.segments.drain(..count).map(|segment| segment.facts));
        self.leftovers.sort_by_key(|facts| facts.named);
        for facts in &self.leftovers {
            // What was trimmed is not read: nothing that it holds is told, but where it stands is.
            let is_order = |f: &Finding| f.kind == FindingKind::OrderBroken;
            self.findings.retain(|f| f.path != facts.path || is_order(f));
            let leftover = Finding::new(FindingKind::Leftover, Severity::Info, &facts.path);
            let number = facts.named.map_or_else(|| facts.number(), |(number, _)| number);
            self.findings.push(leftover.in_segment(number));
        }
        // @J
        if let Some(first) = self.segments.first()
            && decision::of_begin(first.header.first_lsn.cmp(&self.oldest)).is_some()
        {
            let missing = first.finding(FindingKind::RecordsMissing, Severity::Corrupt);
            let expected = format!("a segment from LSN {} on", self.oldest);
            let found = format!("first LSN {}", first.header.first_lsn);
            self.findings.push(missing.at_lsn(self.oldest).saying(expected, found));
        }
    }

    /// @E, @G: of a file whose removal was not synced the name may be back and the bytes gone: cut
    /// away, or those of another file that was given its blocks. The name alone says then which
    /// segment it was. Numbers order the segments, so it was wholly below the first LSN of any
    /// greater one.
    fn leave_out_unplaced(&mut self) {
        let (oldest, uuid) = (self.oldest, self.uuid.filter(|_| self.identified));
        let begun = self.segments.iter().filter(|segment| segment.header.first_lsn <= oldest);
        let Some(number) = begun.map(|segment| segment.header.number).max() else { return };
        let last = self.segments.last().map_or(number, |segment| segment.header.number);
        let is_leftover = |facts: &mut SegmentFacts| {
            let is_below = facts.named.is_some_and(|(named, _)| named < number);
            let trimmed = is_below && !facts.is_moved_here(uuid, last);
            decision::of_head(facts.head(uuid, trimmed)) == Err(Row::I)
        };
        self.leftovers.extend(self.refused.extract_if(.., is_leftover));
    }

    /// `whole`: the log was seen, so that what its slots say of the oldest LSN holds for it.
    fn judge_segments(&mut self, io: &dyn Io, check: Check, whole: bool) -> Result<()> {
        let refused = self.refused.iter().map(SegmentFacts::number).min();
        let unordered = [FindingKind::OrderBroken, FindingKind::RecordsMissing];
        let mut reached = !self.findings.iter().any(|f| unordered.contains(&f.kind));
        let mut segments = std::mem::take(&mut self.segments);
        let firsts: Vec<u64> = segments.iter().map(|segment| segment.header.first_lsn).collect();
        for (i, segment) in segments.iter_mut().enumerate() {
            // What follows a refused segment, or one with damage, is not reached.
            reached &= refused.is_none_or(|refused| segment.header.number < refused);
            let told = self.findings.len();
            match firsts.get(i.saturating_add(1)) {
                Some(&next) => self.judge_sealed(io, segment, next, check)?,
                None => self.judge_tail(io, segment, whole)?,
            }
            if reached {
                self.last = segment.last;
                self.readable = i.saturating_add(1);
            }
            let told = self.findings.get(told..).unwrap_or_default();
            reached &= !told.iter().any(|f| f.severity >= Severity::Unsupported);
        }
        self.segments = segments;
        if !reached || refused.is_some() {
            self.tail = None;
        }
        Ok(())
    }

    fn judge_sealed(
        &mut self,
        io: &dyn Io,
        segment: &mut Segment,
        next: u64,
        check: Check,
    ) -> Result<()> {
        let wanted = next.saturating_sub(1);
        let footer = match &segment.facts.footer {
            FooterFacts::Valid(footer) => Some(footer.clone()),
            FooterFacts::Damaged(_) | FooterFacts::Absent => None,
        };
        let stands = footer.as_ref().is_some_and(|f| segment.agrees_with_neighbours(f, wanted));
        if let Some(footer) = footer.filter(|_| stands && check == Check::Tail) {
            // @L, as the footer has it.
            (segment.last, segment.end) = (footer.last_lsn, footer.end);
            segment.tally = Tally::of_footer(&footer);
            segment.dead = (footer.end < footer.offset).then_some(footer.end..footer.offset);
        } else {
            let (frames, behind) = segment.read(io, Some(next))?;
            segment.take(&frames, &behind);
            let footer = segment.footer_found(&frames, &behind, wanted);
            let (row, taken) = decision::of_sealed(footer, frames.last >= wanted);
            self.tell_footer(segment, &frames, taken);
            if row == Row::M {
                // @M
                self.findings.push(missing(segment, &frames, wanted));
                return Ok(());
            }
        }
        // @L
        if let Some(dead) = &segment.dead {
            let found = segment.finding(FindingKind::DeadBytes, Severity::Info);
            let bytes = dead.end.saturating_sub(dead.start);
            self.findings.push(found.at_offset(dead.start).saying("", format!("{bytes} bytes")));
        }
        Ok(())
    }

    fn tell_footer(&mut self, segment: &Segment, frames: &Frames, taken: FooterTaken) {
        // @K
        let severity = match taken {
            FooterTaken::Held => return,
            FooterTaken::Degraded => Severity::Degraded,
            // A full disk may have refused it: then nothing of it is there.
            FooterTaken::Refused => Severity::Info,
        };
        let ignored = segment.finding(FindingKind::FooterIgnored, severity);
        self.findings.push(match &segment.facts.footer {
            FooterFacts::Valid(footer) => {
                let found = format!("{} at {:#x}", footer.last_lsn, footer.end);
                let expected = format!("last LSN {} and end {:#x}", frames.last, frames.end);
                ignored.at_offset(footer.offset).saying(expected, found)
            }
            FooterFacts::Damaged(e) => ignored.saying("a footer", e.to_string()),
            FooterFacts::Absent => ignored.saying("a footer", "none"),
        });
    }

    fn judge_tail(&mut self, io: &dyn Io, segment: &mut Segment, whole: bool) -> Result<()> {
        let (frames, behind) = segment.read(io, None)?;
        segment.take(&frames, &behind);
        let slots = segment.facts.valid_slots().map(|slot| slot.durable_lsn).max();
        self.proven = segment.header.first_lsn.saturating_sub(1);
        self.proven = self.proven.max(slots.unwrap_or(0)).max(frames.stated).max(behind.stated);
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::FooterIsProof)
            && let FooterFacts::Valid(footer) = &segment.facts.footer
        {
            self.proven = self.proven.max(footer.last_lsn);
        }
        // @N: a trim is recorded after a sync of everything below it.
        let trimmed = if whole { self.oldest.saturating_sub(1) } else { 0 };
        let wanted = self.proven.max(trimmed);
        let ending = decision::of_end(End {
            missing: frames.last < wanted,
            record: frames.last >= segment.header.first_lsn,
            slot: slots.is_some(),
            turned: segment.facts.newest_slot().is_some_and(|slot| slot.counter > 1),
            open_batch: frames.valid_end > frames.end,
            footer: matches!(&segment.facts.footer, FooterFacts::Valid(footer)
                if footer.last_lsn == frames.last && footer.end == frames.end),
            used: behind.used > frames.end,
            identified: self.identified,
            unproven: frames.last > self.proven,
        });
        if ending.row == Row::N {
            // What stands after the damage was promised: it is no torn end.
            let mut lost = missing(segment, &frames, wanted);
            if frames.last >= wanted {
                // Its first slot was synced before it was named, so no crash leaves it so.
                lost = lost.saying("a record or a valid slot", "neither");
            }
            self.findings.push(lost);
        } else {
            self.tell_ending(segment, &frames, &behind, ending);
        }
        self.judge_slots(segment);
        let state = match ending.row {
            Row::P => TailState::Sealed,
            Row::R => TailState::Clean,
            Row::Q => TailState::Torn,
            _ => return Ok(()),
        };
        let entries = frames.tally.entries;
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::CutBatchIsClean) && ending.cut {
            let (used, state, bare) = (frames.end, TailState::Clean, false);
            self.tail = Some(Tail { used, state, bare, entries });
            return Ok(());
        }
        self.tail = Some(Tail { used: behind.used, state, bare: ending.bare, entries });
        Ok(())
    }

    /// What is worth telling of a last segment without damage.
    fn tell_ending(&mut self, segment: &Segment, frames: &Frames, behind: &Behind, end: Ending) {
        let tell = |kind, severity| segment.finding(kind, severity);
        if end.cut {
            // @O
            let cut = tell(FindingKind::BatchCut, Severity::Torn);
            let cut = cut.at_offset(frames.end).at_lsn(frames.last.saturating_add(1));
            self.findings.push(cut.saying("the last frame of the batch", "none"));
        } else if end.row == Row::P {
            // @P
            self.findings.push(tell(FindingKind::TailSealed, Severity::Info));
        } else if end.row == Row::Q {
            // @Q; of @R there is nothing to tell
            let bytes = behind.used.saturating_sub(frames.end);
            let torn = tell(FindingKind::TornTail, Severity::Torn).at_offset(frames.end);
            self.findings.push(torn.saying("zeros", format!("{bytes} bytes")));
        }
        if end.unfinished {
            // @S
            self.findings.push(tell(FindingKind::CreationUnfinished, Severity::Info));
        }
        if end.bare {
            // @T
            self.findings.push(tell(FindingKind::TailBare, Severity::Info));
        }
        if end.unproven {
            // @U
            let unproven = tell(FindingKind::Unproven, Severity::Info);
            let count = frames.last.saturating_sub(self.proven);
            let unproven = unproven.at_lsn(self.proven.saturating_add(1));
            self.findings.push(unproven.saying("", format!("{count} records")));
        }
    }

    fn judge_slots(&mut self, segment: &Segment) {
        // @V
        for (slot, offset) in segment.facts.slots.iter().zip([4096, 8192]) {
            let found = match slot {
                SlotFacts::Zeros | SlotFacts::Valid(_) => continue,
                SlotFacts::Foreign => "the header of another segment".to_owned(),
                SlotFacts::Damaged(e) => e.to_string(),
            };
            let ignored = segment.finding(FindingKind::SlotIgnored, Severity::Degraded);
            self.findings.push(ignored.at_offset(offset).saying("a slot of this segment", found));
        }
    }

    fn name_others(&mut self) {
        // @W; a reserve is where it belongs.
        let spares = self.listing.spares.iter().filter(|name| *name != RESERVE_NAME);
        let spares = spares.map(|name| (name, FindingKind::Spare));
        let strays = self.listing.strays.iter().map(|name| (name, FindingKind::Stray)); // @X
        for (name, kind) in spares.chain(strays) {
            self.findings.push(Finding::new(kind, Severity::Info, &self.dir.join(name)));
        }
    }
}

pub(super) fn missing(segment: &Segment, frames: &Frames, wanted: u64) -> Finding {
    let found = frames.invalid.map_or_else(|| "none".to_owned(), |invalid| invalid.to_string());
    segment
        .finding(FindingKind::RecordMissing, Severity::Corrupt)
        .at_offset(frames.valid_end)
        .at_lsn(frames.last.saturating_add(1))
        .saying(format!("records up to LSN {wanted}"), found)
}

fn offset_of(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX)
}
