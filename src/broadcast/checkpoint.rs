//! Checkpoints: the state written into control now and then, so that a restart replays little and
//! control can be trimmed (SPEC 13.3).
//!
//! One is written behind [`super::Options::checkpoint_bytes`] of records, or four times its own
//! size, by a thread of its own, in steps that hold nobody up. It is read back before it counts;
//! control is trimmed to what the older of two that were read back covers.

use std::sync::PoisonError;

use oncelog_format::control::{
    Body, CheckpointBegin, CheckpointEnd, CheckpointPart, ControlRecord, Entries, Entry,
    STATE_VERSION,
};
use oncelog_format::limits::CHECKPOINT_PART_LEN_MAX;
use sha2::{Digest as _, Sha256};

use super::core::{Core, Guard, Inner};
use super::deciding::DECISION_LEN;
use super::freeing::Next;
use super::options::Options;
use super::refusal;
use super::restore;
use super::snapshot::Snapshot;
use super::state::{EntryOrder, State};
use super::told::Told;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Log, Pending, Pin};
use crate::lsn::Lsn;
use crate::told;

/// Entries that are taken under the lock at a time: one where a checker of schedules lets others in
/// between.
const STEP_COUNT: usize = if cfg!(any(loom, shuttle)) { 1 } else { 128 };
/// A checkpoint is due behind so many times its own size.
const SIZE_FACTOR: u64 = 4;

/// Why a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It is due, or was asked for: none right behind another one.
    Records,
    /// Space is wanted: none that frees less than it takes.
    Space,
}

/// A checkpoint that was read back and found whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The last LSN that its state covers.
    pub(crate) covers: Lsn,
    /// LSN of its last record.
    pub(crate) end: Lsn,
    /// Bytes of its stream.
    pub(crate) stream_bytes: u64,
    /// SHA-256 of its stream.
    pub(crate) sha256: [u8; 32],
}

/// What is known of the checkpoints of a store.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// Those that were read back, oldest first, at most two.
    pub(crate) whole: Vec<Checkpoint>,
    /// Holds the records that a restart from the older of them replays.
    pin: Pin,
}

impl Checkpoint {
    pub(crate) fn of(end: &CheckpointEnd, lsn: Lsn) -> Self {
        Self {
            covers: Lsn::at_least_first(end.covers),
            end: lsn,
            stream_bytes: end.stream_bytes,
            sha256: end.sha256,
        }
    }
}

impl Checkpoints {
    /// Begins with the one that the state was restored from.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub(crate) fn new(control: &Log, restored: Option<Checkpoint>) -> Result<Self> {
        let from = restored.map_or(Lsn::FIRST, |restored| restored.covers.next());
        let pin = control.pin("checkpoint", from.max(control.oldest_lsn()))?;
        Ok(Self { whole: restored.into_iter().collect(), pin })
    }

    /// The first LSN that a restart from the older of two needs.
    fn oldest_needed(&self) -> Option<Lsn> {
        match self.whole[..] {
            [older, _] => Some(older.covers.next()),
            _ => None,
        }
    }

    fn push(&mut self, checkpoint: Checkpoint) {
        self.whole.push(checkpoint);
        let over = self.whole.len().saturating_sub(2);
        self.whole.drain(..over);
    }
}

/// Reads a checkpoint, record by record.
#[derive(Debug)]
pub(crate) struct Loading {
    end: CheckpointEnd,
    /// `None` where the checkpoint is compared with its End and nothing more: a second state of a
    /// million keys has no place beside the one in use.
    state: Option<State>,
    entries: Entries,
    order: EntryOrder,
    hasher: Sha256,
    stream_bytes: u64,
    part_count: u32,
    /// Its Begin was seen, and states a version that is known here.
    begun: bool,
    /// Something does not fit: it is no checkpoint.
    broken: bool,
}

impl Loading {
    /// Puts the state of a run together, which ends so.
    pub(crate) fn whole(end: CheckpointEnd) -> Self {
        Self { state: Some(State::default()), ..Self::compared(end) }
    }

    /// Compares a run with its End, and looks at all that a restart would but for owners of scopes,
    /// of which a state writes no two.
    pub(crate) fn compared(end: CheckpointEnd) -> Self {
        Self {
            end,
            state: None,
            entries: Entries::default(),
            order: EntryOrder::default(),
            hasher: Sha256::new(),
            stream_bytes: 0,
            part_count: 0,
            begun: false,
            broken: false,
        }
    }

    /// LSN of the run's Begin.
    pub(crate) fn begin(&self) -> Lsn {
        Lsn::at_least_first(self.end.begin_lsn)
    }

    /// Takes a record that stands from the run's Begin on.
    pub(crate) fn take(&mut self, record: &ControlRecord) {
        match &record.body {
            Body::CheckpointBegin(x) if x.covers == self.end.covers => {
                self.begun = x.state_version == STATE_VERSION;
            }
            Body::CheckpointPart(x) if x.covers == self.end.covers => self.take_part(x),
            _ => {}
        }
    }

    fn take_part(&mut self, part: &CheckpointPart) {
        self.broken |= !self.begun || part.index != self.part_count;
        if self.broken {
            return;
        }
        self.part_count = self.part_count.saturating_add(1);
        self.hasher.update(&part.bytes);
        let len = u64::try_from(part.bytes.len()).unwrap_or(u64::MAX);
        self.stream_bytes = self.stream_bytes.saturating_add(len);
        let (state, order, mut fits) = (&mut self.state, &mut self.order, true);
        let taken = self.entries.push(&part.bytes, |entry| {
            fits = fits
                && order.take(&entry)
                && state.as_mut().is_none_or(|state| state.take_entry(entry));
        });
        self.broken = taken.is_err() || !fits;
    }

    /// Whether all of it is there and is what its End says; with the state where that was asked
    /// for.
    pub(crate) fn finish(self) -> (bool, Option<State>) {
        let Self { end, state, entries, order, hasher, .. } = self;
        let whole = !self.broken
            && order.has_begun()
            && entries.finish().is_ok()
            && (self.part_count, self.stream_bytes) == (end.part_count, end.stream_bytes)
            && hasher.finalize()[..] == end.sha256;
        let state = state.filter(|_| whole).map(|mut state| {
            state.end_entries();
            state
        });
        (whole, state)
    }
}

/// The stream of a state, as it grows.
#[derive(Debug, Default)]
struct Stream {
    /// What is in no part yet, behind `taken` bytes that are.
    bytes: Vec<u8>,
    taken: usize,
    hasher: Sha256,
    stream_bytes: u64,
    part_count: u32,
}

impl Stream {
    fn push(&mut self, entry: &Entry) -> Result<()> {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        let begin = self.bytes.len();
        entry.encode(&mut self.bytes).map_err(|e| {
            refusal::invalid("an entry of the state does not encode").with_source(e)
        })?;
        let added = self.bytes.get(begin..).unwrap_or_default();
        self.hasher.update(added);
        let len = u64::try_from(added.len()).unwrap_or(u64::MAX);
        self.stream_bytes = self.stream_bytes.saturating_add(len);
        Ok(())
    }

    /// The same for who writes no part.
    fn pass(&mut self, entry: &Entry) -> Result<()> {
        self.push(entry)?;
        self.taken = self.bytes.len();
        Ok(())
    }

    /// The next part, once there is a full one, or with `all` what is left.
    fn take(&mut self, covers: u64, all: bool) -> Option<Body> {
        let max = usize::try_from(CHECKPOINT_PART_LEN_MAX).unwrap_or(usize::MAX);
        let left = self.bytes.get(self.taken..).unwrap_or_default();
        if left.is_empty() || (left.len() < max && !all) {
            return None;
        }
        let bytes = left.get(..max).unwrap_or(left).to_vec();
        self.taken += bytes.len();
        let index = self.part_count;
        self.part_count = self.part_count.saturating_add(1);
        Some(Body::CheckpointPart(CheckpointPart { covers, index, bytes }))
    }

    fn end(self, covers: u64, begin: Lsn) -> CheckpointEnd {
        CheckpointEnd {
            covers,
            begin_lsn: begin.get(),
            part_count: self.part_count,
            stream_bytes: self.stream_bytes,
            sha256: self.hasher.finalize().into(),
        }
    }
}

/// Bytes of records behind which the next checkpoint is due.
pub(crate) fn due_bytes(options: &Options, last: Option<&Checkpoint>) -> u64 {
    let size = last.map_or(0, |last| last.stream_bytes);
    options.checkpoint_bytes.max(size.saturating_mul(SIZE_FACTOR))
}

/// The SHA-256 of the stream that a state comes to.
pub(crate) fn digest(state: &State) -> Result<[u8; 32]> {
    let (mut snapshot, mut stream) = (Snapshot::new(state), Stream::default());
    loop {
        let entries = snapshot.next(state, STEP_COUNT);
        if entries.is_empty() {
            break;
        }
        entries.iter().try_for_each(|entry| stream.pass(entry))?;
    }
    snapshot.filters().try_for_each(|filter| stream.pass(&filter))?;
    Ok(stream.hasher.finalize().into())
}

impl Inner {
    /// Writes a checkpoint each time that one is due, or frees space that is wanted, until the
    /// broadcaster stops.
    pub(crate) fn checkpoint_all(&self) {
        let mut core = self.lock();
        while core.usable().is_ok() {
            let is_due = core.unchecked_bytes >= core.checkpoint_due_bytes;
            let next = if is_due { Next::Nothing } else { self.next_freeing(&mut core) };
            if !is_due && matches!(next, Next::Nothing | Next::Wait(_)) {
                core = self.rest_unchecked(core, next);
                continue;
            }
            drop(core);
            let written = match next {
                Next::Trim => self.trim_again(),
                Next::Checkpoint => self.free_space().map(drop),
                Next::Nothing | Next::Wait(_) => self.checkpoint().map(drop),
            };
            core = self.lock();
            match written {
                Ok(()) => {}
                Err(e) if next == Next::Trim => {
                    self.keep_told(&mut core, Told::NotTrimmed(e));
                    self.pause_freeing(&mut core);
                }
                Err(e) => {
                    if e.kind() != ErrorKind::Closed {
                        self.keep_told(&mut core, Told::NoCheckpoint(e));
                    }
                    // The next try is behind as many bytes again, or when space is wanted later.
                    core.checkpoint_due_bytes = core
                        .unchecked_bytes
                        .saturating_add(core.stream_bytes.saturating_mul(SIZE_FACTOR))
                        .saturating_add(self.options.checkpoint_bytes);
                    self.pause_freeing(&mut core);
                }
            }
        }
    }

    /// Writes a checkpoint, reads it back, and trims control; `None` when no record stands behind
    /// the last one.
    pub(crate) fn checkpoint(&self) -> Result<Option<Checkpoint>> {
        self.checkpoint_for(Why::Records)
    }

    /// The same for a reason: for space there is one also right behind the last one.
    pub(crate) fn checkpoint_for(&self, why: Why) -> Result<Option<Checkpoint>> {
        let written = self.with_room(|| self.checkpoint_next(why));
        match &written {
            Ok(Some(checkpoint)) => {
                let Checkpoint { covers, stream_bytes, .. } = *checkpoint;
                told::tell(move || {
                    tracing::debug!(%covers, stream_bytes, "a checkpoint was written");
                });
                self.counts.checkpointed(stream_bytes);
            }
            Ok(None) => {}
            Err(e) if e.kind() == ErrorKind::Closed => {}
            Err(_) => self.counts.checkpoint_failed(),
        }
        written
    }

    fn checkpoint_next(&self, why: Why) -> Result<Option<Checkpoint>> {
        let mut known = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let mut core = self.lock_to_decide(DECISION_LEN);
        core.usable()?;
        let covers = self.store.control().next_lsn().get().saturating_sub(1);
        let last = known.whole.last().map_or(0, |last| last.end.get());
        let is_wanted = match why {
            Why::Records => covers != last,
            Why::Space => self.is_freeing(&core),
        };
        if covers == last {
            // What was counted beside the last one waits for the next record: none is due before.
            core.unchecked_bytes = 0;
        }
        if covers == 0 || !is_wanted {
            return Ok(None);
        }
        let unchecked_bytes = std::mem::take(&mut core.unchecked_bytes);
        core.snapshot = Some(Snapshot::new(&core.state));
        let written = self.write(core, covers);
        {
            let mut core = self.lock();
            (core.snapshot, core.begun_bytes) = (None, 0);
        }
        let whole = written.and_then(|(end, pending)| {
            let end_lsn = pending.lsns().last;
            self.settle(pending)?;
            self.read_back(end, end_lsn)
        });
        let checkpoint = whole.inspect_err(|_| {
            let mut core = self.lock();
            core.unchecked_bytes = core.unchecked_bytes.saturating_add(unchecked_bytes);
        })?;
        known.push(checkpoint);
        let oldest = known.oldest_needed();
        let promised = {
            let mut core = self.lock();
            core.checkpoint_due_bytes = due_bytes(&self.options, Some(&checkpoint));
            core.stream_bytes = checkpoint.stream_bytes;
            core.freeing.checkpointed(checkpoint.covers, oldest);
            core.promised_bytes(0)
        };
        // Without space for a larger reserve the next checkpoint may be refused on a full disk.
        if let Err(e) = self.store.control().promise(promised) {
            self.keep_told(&mut self.lock(), Told::NoLargerReserve(e));
        }
        if let Some(oldest) = oldest {
            known.pin.advance(oldest)?;
            self.trim_control(oldest)?;
        }
        Ok(Some(checkpoint))
    }

    /// Trims control once more to what no checkpoint needs; the refusal is the caller's.
    fn trim_again(&self) -> Result<()> {
        let known = self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner);
        known.oldest_needed().map_or(Ok(()), |oldest| self.store.control().trim(oldest))
    }

    /// Drops what no checkpoint needs; a refusal leaves it for the next time.
    fn trim_control(&self, oldest: Lsn) -> Result<()> {
        match self.store.control().trim(oldest) {
            Err(e)
                if matches!(e.kind(), ErrorKind::Pinned | ErrorKind::StoreFull | ErrorKind::Io) =>
            {
                self.keep_told(&mut self.lock(), Told::NotTrimmed(e));
                Ok(())
            }
            trimmed => trimmed,
        }
    }

    fn write<'a>(&'a self, mut core: Guard<'a>, covers: u64) -> Result<(CheckpointEnd, Pending)> {
        let begin = Body::CheckpointBegin(CheckpointBegin { covers, state_version: STATE_VERSION });
        let (pending, _) = self.hand_over(&mut core, vec![begin])?;
        core.begun_bytes = core.state.checkpoint_bytes();
        let begin = pending.lsns().first;
        let mut stream = Stream::default();
        let snapshot = loop {
            let Core { snapshot: Some(snapshot), state, .. } = &mut *core else {
                return Err(refusal::closed());
            };
            let entries = snapshot.next(state, STEP_COUNT);
            if entries.is_empty() {
                break core.snapshot.take();
            }
            drop(core);
            // A few of them may come to gigabytes: no more than one is encoded at a time.
            for entry in &entries {
                stream.push(entry)?;
                self.write_parts(&mut stream, covers, false)?;
            }
            core = self.lock();
            core.usable()?;
        };
        drop(core);
        for filter in snapshot.into_iter().flat_map(Snapshot::filters) {
            stream.push(&filter)?;
            self.write_parts(&mut stream, covers, false)?;
        }
        self.write_parts(&mut stream, covers, true)?;
        let end = stream.end(covers, begin);
        Ok((end, self.write_end(end)?))
    }

    /// Where it lacks room that is made, and no part is written again.
    pub(super) fn write_end(&self, end: CheckpointEnd) -> Result<Pending> {
        self.with_room(|| {
            let mut core = self.lock_to_decide(DECISION_LEN);
            self.hand_over(&mut core, vec![Body::CheckpointEnd(end)]).map(|(pending, _)| pending)
        })
    }

    /// Writes the parts that are full, or with `all` what there is.
    fn write_parts(&self, stream: &mut Stream, covers: u64, all: bool) -> Result<()> {
        while let Some(part) = stream.take(covers, all) {
            // As much as it is: room for a whole one would start a segment for a small one.
            let len = if let Body::CheckpointPart(part) = &part { part.bytes.len() } else { 0 };
            let (pending, _) = self.with_room(|| {
                let mut core = self.lock_to_decide(len + DECISION_LEN);
                self.hand_over(&mut core, vec![part.clone()])
            })?;
            // One part is in memory at a time, and others have the disk in between.
            self.settle(pending)?;
        }
        Ok(())
    }

    fn read_back(&self, end: CheckpointEnd, lsn: Lsn) -> Result<Checkpoint> {
        let mut reader = self.store.control().reader(Lsn::at_least_first(end.begin_lsn))?;
        if !restore::read(&mut reader, Loading::compared(end), lsn)?.0 {
            let what = "a checkpoint that was written is not what is read";
            return Err(Error::new(ErrorKind::Corrupt, what).at_lsn(lsn.get()));
        }
        Ok(Checkpoint::of(&end, lsn))
    }
}

#[cfg(test)]
mod tests;
