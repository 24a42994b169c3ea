//! Rolling: sealing the tail and starting the next segment (SPEC section 10).
//!
//! The order of the steps is what a crash between any two of them survives. A refusal for space
//! before the new segment has its name leaves the log as it was, or its tail sealed.

use oncelog_format::limits::{self, FRAMES_OFFSET};
use oncelog_format::segment::MINOR;
use oncelog_format::{Footer, Place, SegmentHeader};

use super::dir::{Fault, NameSync, random};
use super::fill::Next;
use super::group::recycle;
use super::scan::Tally;
use super::spare::{BLOCK_BYTES, NewSegment, Reserve, Spare};
use super::stats::Synced;
use super::tail::{Mark, Tail};
use super::told::Told;
use super::writer::{Gate, Guard, SegmentRef, Shared};
use crate::error::{Error, ErrorKind, Result, is_full};

/// Size of the first segment in bytes, where the largest is not less.
const SEGMENT_BYTES_FIRST: u64 = 1 << 20;

/// Where the next segment is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The spare that was made ahead, or a file that is made for it.
    Spare,
    /// The reserve.
    Reserve,
}

impl Source {
    fn take(self, gate: &mut Gate) -> Option<Spare> {
        match self {
            Self::Spare => gate.fill.take_ready(),
            Self::Reserve => gate.kept.take(),
        }
    }

    fn put_back(self, gate: &mut Gate, spare: Spare) {
        match self {
            Self::Spare => gate.fill.next = Next::Ready(spare),
            Self::Reserve => gate.kept.put_back(spare),
        }
    }
}

/// Bytes that are to fit, and where the segment is taken from.
type Wanted = (u64, Source);

/// A spare, the directory in which it gets its name, and a salt; else what was ready before, and
/// why.
type Prepared<'a> = std::result::Result<(Spare, NameSync<'a>, u64), (Option<Spare>, Error)>;

type Rolled<'a> = (Guard<'a>, Tail, std::result::Result<(), Fault>);

/// The next size after a segment of `before` bytes, doubled until `batch` bytes fit.
pub(crate) fn next_size(before: u64, batch: u64, max: u64) -> u64 {
    let mut size = SEGMENT_BYTES_FIRST.min(max);
    while size <= before && size < max {
        size = size.saturating_mul(2).min(max);
    }
    let needed = batch.saturating_add(FRAMES_OFFSET);
    while size < needed {
        size = size.saturating_mul(2);
    }
    size.min(limits::SEGMENT_BYTES_MAX.max(needed))
}

/// The least size of a segment in which `batch` bytes fit, in whole blocks.
pub(super) fn least_size(batch: u64) -> u64 {
    batch.saturating_add(FRAMES_OFFSET).next_multiple_of(BLOCK_BYTES)
}

impl Shared {
    /// Starts a segment in which a batch of so many bytes fits. Nothing is encoded meanwhile.
    ///
    /// # Errors
    ///
    /// `StoreFull` without space: nothing that a later append could meet was written. `Poisoned`
    /// when a write or sync failed.
    pub(crate) fn roll<'a>(
        &'a self,
        mut gate: Guard<'a>,
        bytes: u64,
        source: Source,
    ) -> (Guard<'a>, Result<()>) {
        gate.rolling = true;
        let (gate, tail) = self.take_tail(gate);
        let gate = self.wait_unfilled(gate);
        let (mut gate, tail, rolled) = self.roll_tail(gate, tail, (bytes, source));
        gate.tail = Some(tail);
        (gate.rolling, gate.moved) = (false, true);
        gate.writing = 0;
        let rolled = match rolled {
            Ok(()) => Ok(()),
            Err(Fault::Refused(e)) => {
                if e.kind() == ErrorKind::StoreFull {
                    // The tail has grown since the last look: limits may free the space.
                    self.look_again(&mut gate);
                }
                Err(e)
            }
            Err(Fault::Final(e)) => {
                gate.set_poison(e);
                gate.check_open()
            }
        };
        (self.settle(gate), rolled)
    }

    fn roll_tail<'a>(&'a self, gate: Guard<'a>, tail: Tail, wanted: Wanted) -> Rolled<'a> {
        let (bytes, source) = wanted;
        if let Err(e) = gate.check_open() {
            return (gate, tail, Err(Fault::Refused(e)));
        }
        let Some(number) = gate.number_max.checked_add(1) else {
            let e = Error::new(ErrorKind::Limit, "the log has no further segment number");
            return (gate, tail, Err(Fault::Refused(e)));
        };
        // A refused trim would be made durable with the segment.
        let (mut gate, tail, stated) = self.restate(gate, tail);
        if let Err(fault) = stated {
            return (gate, tail, Err(fault));
        }
        // 1. The spare, before a byte is written.
        let (ready, reserve) = (source.take(&mut gate), gate.fill.plan.reserve());
        let made_ahead = ready.is_some();
        let (mut gate, tail, made) = self
            .with_tail(gate, tail, |tail| self.prepare_behind(tail, ready, number, bytes, reserve));
        let (spare, names, salt) = match made {
            Ok(made) => made,
            Err((ready, e)) => {
                if let Some(spare) = ready {
                    source.put_back(&mut gate, spare);
                }
                return (gate, tail, Err(Fault::Refused(e)));
            }
        };
        gate.stats.count_spare(made_ahead);
        let group = std::mem::take(&mut gate.queue);
        gate.writing = group.len();
        let counted = gate.group_of(group.len());
        gate.called = false;
        let (from, upto, tally) = (gate.written.offset, gate.mark(), gate.tally.clone());
        let header = gate.next_header(number, salt);
        let (oldest, durable) = (gate.oldest, gate.durable);
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::NamedBeforeSync) {
            let (gate, tail, entered) = self.with_tail(gate, tail, |tail| {
                let entered = spare.enter(&*self.io, names, &header, oldest);
                tail.write_frames(&group, from).map_err(Fault::Final)?;
                tail.seal(upto, durable, &tally).map_err(Fault::Final)?;
                entered
            });
            return self.install(gate, tail, upto, entered);
        }
        // 2. What is buffered. 3. to 5. Footer, cut, sync.
        let (mut gate, tail, sealed) = self.with_tail(gate, tail, |tail| {
            tail.write_frames(&group, from)?;
            tail.seal(upto, durable, &tally)
        });
        gate.stats.count_group(counted, true, sealed.as_ref().ok().copied().flatten());
        recycle(&mut gate, group);
        gate.writing = 0;
        if let Err(e) = sealed {
            return (gate, tail, Err(Fault::Final(e)));
        }
        // From here on only a roll may follow: a footer may stand there.
        gate.must_roll = true;
        (gate.written, gate.durable, gate.moved) = (upto, upto, true);
        // Tasks are woken at the end: a waker that closes the log would wait for this roll.
        self.turn(&mut gate);
        // 6. to 8. Header, name, directory.
        let (gate, tail, entered) =
            self.with_tail(gate, tail, |_| spare.enter(&*self.io, names, &header, oldest));
        self.install(gate, tail, upto, entered)
    }

    /// Has the tail state the oldest LSN that holds, where a slot of it was refused and may stand
    /// all the same.
    pub(crate) fn restate<'a>(&'a self, gate: Guard<'a>, tail: Tail) -> Rolled<'a> {
        if !tail.refused || tail.bare {
            return (gate, tail, Ok(()));
        }
        let (durable, oldest) = (gate.stated_by_slot(), gate.oldest);
        self.with_tail(gate, tail, |tail| tail.write_slot_synced(durable, oldest))
    }

    /// A spare of the next size after a tail, in which a batch fits.
    fn prepare_behind(
        &self,
        tail: &mut Tail,
        ready: Option<Spare>,
        number: u64,
        batch: u64,
        reserve: Reserve,
    ) -> Prepared<'_> {
        let size = next_size(tail.size, batch, self.segment_bytes_max);
        match self.prepare(ready, number, (size, batch), reserve) {
            // Its blocks are what the next one lacks: not even a trim could make room else.
            Err((ready, e)) if tail.ended_at.is_some() && e.kind() == ErrorKind::StoreFull => {
                tail.cut_ended();
                self.prepare(ready, number, (least_size(batch), batch), reserve)
            }
            made => made,
        }
    }

    fn prepare(
        &self,
        ready: Option<Spare>,
        number: u64,
        (size, batch): (u64, u64),
        reserve: Reserve,
    ) -> Prepared<'_> {
        let salt = match random(&*self.io) {
            Ok(salt) => u64::from_le_bytes(salt),
            Err(e) => return Err((ready, e)),
        };
        // Without a handle for the directory nothing is sealed, and the spare stays.
        let names = match NameSync::open(&*self.io, &self.dir) {
            Ok(names) => names,
            Err(e) => return Err((ready, e)),
        };
        match ready {
            Some(mut spare) => {
                let fits = spare.size >= batch.saturating_add(FRAMES_OFFSET);
                match if fits { Ok(()) } else { spare.grow(size, reserve) } {
                    Ok(()) => Ok((spare, names, salt)),
                    Err(e) => Err((Some(spare), e)),
                }
            }
            None => Spare::make(&*self.io, &self.dir, number, size, reserve)
                .map(|spare| (spare, names, salt))
                .map_err(|e| (None, e)),
        }
    }

    /// 9. Only then a frame.
    fn install<'a>(
        &'a self,
        mut gate: Guard<'a>,
        mut tail: Tail,
        upto: Mark,
        entered: std::result::Result<NewSegment, Fault>,
    ) -> Rolled<'a> {
        let segment = match entered {
            Ok(segment) => segment,
            Err(fault) => return (gate, tail, Err(fault)),
        };
        // The sealed tail goes.
        gate.told.append(&mut tail.told);
        let start = Mark { lsn: upto.lsn, offset: FRAMES_OFFSET };
        let pays = gate.pays();
        (gate.written, gate.durable, gate.end) = (start, start, FRAMES_OFFSET);
        gate.header = segment.header;
        gate.number_max = segment.header.number;
        gate.capacity = segment.size;
        gate.fill.restart(segment.filled, pays);
        gate.stats.rolls = gate.stats.rolls.saturating_add(1);
        gate.must_roll = false;
        gate.slot_lsn = upto.lsn;
        gate.tally = Tally::new(segment.header.base_time_ms);
        // The new segment's first slot states the trim, durably: what it left may go.
        self.after_roll(&mut gate, tail.used);
        gate.segments.push(SegmentRef::new(segment.path.clone(), segment.header, 0));
        let oldest = gate.oldest;
        (gate, Tail::of_new(segment, oldest), Ok(()))
    }
}

impl Gate {
    /// The header of the segment after the tail.
    fn next_header(&self, number: u64, salt: u64) -> SegmentHeader {
        SegmentHeader {
            number,
            first_lsn: self.next_lsn,
            salt,
            base_time_ms: self.time_ms,
            // Whatever the tail says that it holds: this one holds what is known here.
            minor: MINOR,
            compat: 0,
            ..self.header
        }
    }
}

impl Tail {
    /// Gives back what a tail that takes no more frames holds behind them: zeros, and what a kill
    /// or a power loss has torn. Sealing it syncs that.
    pub(super) fn cut_ended(&mut self) {
        let Some(end) = self.ended_at.take() else { return };
        match self.file.set_len(end) {
            Ok(()) => self.used = self.used.min(end),
            Err(e) => self.told.push(Told::ZerosStay(self.path.clone(), e)),
        }
    }

    /// Footer after the last byte in use, zeros after it cut, sync. Into a bare tail nothing is
    /// written.
    ///
    /// # Errors
    ///
    /// Final, whatever it is: a refusal for space of footer and cut is none.
    fn seal(&mut self, last: Mark, durable: Mark, tally: &Tally) -> Result<Option<Synced>> {
        // What it gives back is cut here; a roll that is tried again leaves the footer.
        self.ended_at = None;
        if !self.bare && !self.sealed {
            let offset = self.used.next_multiple_of(limits::ALIGNMENT);
            let footer = footer(self, Place { offset, ..self.place(0) }, last, durable, tally);
            let bytes = footer.encode(self.header.salt);
            match self.file.write_all_at(&bytes, offset) {
                Ok(()) => {
                    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    self.used = offset.saturating_add(len);
                    self.sealed = true;
                }
                // A cache: without it the segment is read in full. What stands of it is cut below.
                Err(e) if is_no_space(&e) => {
                    self.told.push(Told::NoFooter(self.path.clone(), e));
                }
                // It shares a block with frames that were acknowledged.
                Err(e) => return Err(Error::io("cannot write the footer", &self.path, e)),
            }
        }
        match self.file.set_len(self.used) {
            Err(e) if is_no_space(&e) => {
                self.told.push(Told::ZerosStay(self.path.clone(), e));
            }
            cut => cut.map_err(|e| Error::io("cannot cut the zeros", &self.path, e))?,
        }
        Synced::time(|| self.sync())
    }
}

/// SPEC 10, roll, step 3: all else poisons, as where frames are written.
pub(super) fn is_no_space(e: &std::io::Error) -> bool {
    is_full(e) || e.kind() == std::io::ErrorKind::WriteZero
}

fn footer(tail: &Tail, place: Place, last: Mark, durable: Mark, tally: &Tally) -> Footer {
    Footer {
        offset: place.offset,
        last_lsn: last.lsn,
        end: last.offset,
        durable_lsn: durable.lsn.min(last.lsn),
        record_count: last.lsn.saturating_add(1).saturating_sub(tail.header.first_lsn),
        payload_bytes: tally.payload_bytes,
        time_first_ms: tally.time_first_ms,
        time_last_ms: tally.time_last_ms,
        entries: tally.entries.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_up_to_the_largest_and_hold_the_batch() {
        #[track_caller]
        fn check(before: u64, batch: u64, max: u64, size: u64) {
            assert_eq!(next_size(before, batch, max), size);
        }
        const MIB: u64 = 1 << 20;
        check(0, 0, 64 * MIB, MIB);
        check(MIB, 0, 64 * MIB, 2 * MIB);
        check(64 * MIB, 0, 64 * MIB, 64 * MIB);
        check(2 * MIB, 0, 3 * MIB, 3 * MIB);
        check(0, 0, 65_536, 65_536);
        check(65_536, 65_536, 65_536, 131_072);
        check(8 * MIB, 10, MIB, MIB);
        check(0, limits::BATCH_BYTES_MAX, 64 * MIB, limits::SEGMENT_BYTES_MAX);
        // Doubling what is just too small would pass the largest size.
        let odd = limits::BATCH_BYTES_MAX + 8;
        check(odd, limits::BATCH_BYTES_MAX, odd, limits::SEGMENT_BYTES_MAX);
    }
}
