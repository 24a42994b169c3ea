//! The gate that every append passes: LSNs are assigned and frames encoded under one short lock.
//!
//! What is behind the gate is memory; the file is behind the [`Tail`], which whoever does I/O takes
//! out of the gate and puts back. So there is one I/O on the tail at a time, and the gate is never
//! locked during one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use oncelog_format::{FrameHeader, Place, SegmentHeader, encode_frame, frame_len, limits};

use super::cursors::CursorFile;
use super::dir::DirLock;
use super::fill::Filling;
use super::maps::Maps;
use super::options::{Batch, Options, WaitPolicy};
use super::pins::Holds;
use super::rebuild::Degraded;
use super::remove::{InUse, Removal};
use super::reserve::{Entered, Kept, Use};
use super::retention::{Retaining, Retention};
use super::scan::Tally;
use super::stats::LogStats;
use super::tail::{Mark, Tail};
use super::told::Told;
use super::wait::{Callers, now};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;
use crate::lsn::{Lsn, LsnRange};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard};

/// Buffered bytes that are written without waiting for more.
pub(crate) const WRITE_BYTES: usize = 256 << 10;

/// What the handles, the futures, the readers and the background thread of a log share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) segment_bytes_max: u64,
    pub(crate) record_len_max: u32,
    pub(crate) batch_bytes_max: u64,
    pub(crate) buffer_bytes_max: u64,
    pub(crate) has_background: bool,
    pub(crate) retention: Retention,
    pub(crate) removal_step_bytes: u64,
    /// What there is to tell waits for [`super::Log::tell`].
    pub(crate) tells_later: bool,
    gate: Mutex<Gate>,
    /// The state of the gate has changed: for every thread but the background one.
    pub(crate) turned: Condvar,
    /// For those that wait for a group to be durable, by whether its number is even or odd.
    pub(crate) groups: (Condvar, Condvar),
    pub(crate) wait_policy: WaitPolicy,
    /// How often the gate has turned, and the durable LSN, for those that look without the lock.
    pub(crate) turns: AtomicU64,
    pub(crate) durable: AtomicU64,
    /// Callers that came since the last group was taken.
    pub(crate) came: AtomicU64,
    /// There is work for the background thread.
    pub(crate) wanted: Condvar,
    /// There is work for the thread that fills.
    pub(crate) filling: Condvar,
    /// There is work for the thread that trims.
    pub(crate) trim_wanted: Condvar,
    /// Shared with readers that enter a segment.
    pub(crate) maps: Arc<Maps>,
    pub(crate) lock: Mutex<Option<DirLock>>,
    pub(crate) cursor_file: Mutex<CursorFile>,
}

pub(crate) type Guard<'a> = MutexGuard<'a, Gate>;

/// Everything that the lock guards.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Frames that wait to be written, in one piece up to `end`.
    pub(crate) queue: Vec<u8>,
    /// A buffer that was written, to be filled again.
    pub(crate) recycled: Vec<u8>,
    /// Bytes that are being written.
    pub(crate) writing: usize,
    /// When the first byte of the queue came.
    pub(crate) queued_at: Duration,
    pub(crate) header: SegmentHeader,
    /// Offset of the next frame.
    pub(crate) end: u64,
    /// Offset after which no frame goes.
    pub(crate) capacity: u64,
    /// Nothing more goes into the tail.
    pub(crate) must_roll: bool,
    pub(crate) next_lsn: u64,
    pub(crate) time_ms: u64,
    pub(crate) written: Mark,
    pub(crate) durable: Mark,
    pub(crate) oldest: u64,
    /// The durable LSN of the last slot that was written or tried.
    pub(crate) slot_lsn: u64,
    pub(crate) tally: Tally,
    /// The segments of the log, oldest first, the tail last.
    pub(crate) segments: Vec<SegmentRef>,
    /// Sealed segments with something to rebuild, when there is nothing to trim.
    pub(crate) degraded: Vec<Degraded>,
    /// Files of trimmed segments that are still there.
    pub(crate) removal: Removal,
    /// What retention has to look at.
    pub(crate) retaining: Retaining,
    /// Who holds records against a trim.
    pub(crate) holds: Holds,
    /// Greatest number that was ever given to a segment.
    pub(crate) number_max: u64,
    /// `None` while a thread does I/O on it.
    pub(crate) tail: Option<Tail>,
    /// A thread starts a segment: nothing is encoded meanwhile.
    pub(crate) rolling: bool,
    /// The first failure: final.
    pub(crate) poison: Option<Arc<Error>>,
    pub(crate) closed: bool,
    /// The close has done its work: the background thread ends.
    pub(crate) stop: bool,
    /// The background thread waits without a limit of time.
    pub(crate) parked: bool,
    /// It was called to write the queue.
    pub(crate) called: bool,
    /// Threads that wait for the gate to turn.
    pub(crate) waiting: usize,
    /// Number of the last group.
    pub(crate) group: u64,
    /// What the sync that a thread is at will cover; 0 when there is none.
    pub(crate) syncing: u64,
    /// Threads that wait for groups of even, and of odd numbers.
    pub(crate) grouped: (usize, usize),
    pub(crate) callers: Callers,
    /// More became durable than a group: everybody has to look.
    pub(crate) moved: bool,
    /// The background thread waits for the tail.
    pub(crate) blocked: bool,
    /// Tasks that wait, by the LSN that they wait for and a token of their own.
    pub(crate) waiters: BTreeMap<(u64, u64), Waker>,
    pub(crate) token: u64,
    /// A future waits for this LSN to be durable.
    pub(crate) sync_wanted: u64,
    /// Appends up to this LSN are to be synced although nobody waits yet.
    pub(crate) sync_due: u64,
    /// When the first of them came.
    pub(crate) sync_due_at: Duration,
    pub(crate) fill: Filling,
    /// What is kept for batches that end work.
    pub(crate) kept: Kept,
    pub(crate) stats: LogStats,
    /// What is told once the gate is open.
    pub(crate) told: Vec<Told>,
    /// A planted bug refused a group for space.
    #[cfg(planted)]
    pub(crate) reused: bool,
}

/// A segment of the log, as readers find it.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRef {
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    /// Size of the file once it is sealed.
    pub(crate) bytes: u64,
    /// Held by whoever reads it, so that the file is not cut under him.
    pub(crate) in_use: Arc<InUse>,
}

impl SegmentRef {
    pub(crate) fn new(path: PathBuf, header: SegmentHeader, bytes: u64) -> Self {
        Self { path, header, bytes, in_use: Arc::new(InUse) }
    }
}

impl Gate {
    pub(crate) fn last_lsn(&self) -> u64 {
        self.next_lsn.saturating_sub(1)
    }

    /// How many segments lie wholly below the oldest LSN: those of a trim that was refused half
    /// way.
    pub(crate) fn trimmed_count(&self) -> usize {
        let firsts = self.segments.iter().skip(1).map(|next| next.header.first_lsn);
        firsts.take_while(|&first| first <= self.oldest).count()
    }

    /// The last record that was encoded.
    pub(crate) fn mark(&self) -> Mark {
        Mark { lsn: self.last_lsn(), offset: self.end }
    }

    /// Whether a batch of so many bytes may be encoded into the tail.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        !self.must_roll && self.end.checked_add(bytes).is_some_and(|end| end <= self.capacity)
    }

    /// Whether so many bytes more may wait. A batch alone may be larger than the bound.
    pub(crate) fn may_buffer(&self, bytes: u64, max: u64) -> bool {
        let waiting = self.queue.len().saturating_add(self.writing);
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        waiting == 0 || waiting.saturating_add(bytes) <= max
    }

    /// What a slot may state: only what a returned sync covered.
    pub(crate) fn stated_by_slot(&self) -> Mark {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::SlotStatesWritten) {
            return self.written;
        }
        self.durable
    }

    /// Whether a slot would state more than the last one.
    pub(crate) fn slot_is_due(&self) -> bool {
        self.durable.lsn > self.slot_lsn && self.poison.is_none()
    }

    /// Refuses what comes after the end.
    pub(crate) fn check_open(&self) -> Result<()> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::PoisonForgotten) {
            return if self.closed { Err(closed()) } else { Ok(()) };
        }
        if let Some(cause) = &self.poison {
            return Err(poisoned(cause));
        }
        if self.closed { Err(closed()) } else { Ok(()) }
    }

    /// Refuses a batch that cannot get LSNs.
    fn check_append(&self, batch: Batch<'_>) -> Result<()> {
        self.check_open()?;
        let count = u64::try_from(batch.records.len()).unwrap_or(u64::MAX);
        match self.next_lsn.checked_add(count) {
            Some(next) if next < u64::MAX => Ok(()),
            _ => Err(Error::new(ErrorKind::Limit, "the log has no further LSN")),
        }
    }

    /// The first failure stays. It is told as the log settles.
    pub(crate) fn set_poison(&mut self, cause: Error) {
        if self.poison.is_none() {
            let cause = Arc::new(cause);
            self.told.push(Told::Poisoned(Arc::clone(&cause)));
            self.poison = Some(cause);
            self.stats.poisonings = self.stats.poisonings.saturating_add(1);
        }
    }
}

pub(crate) fn poisoned(cause: &Arc<Error>) -> Error {
    let what = "an earlier write or sync failed: the log must be opened again";
    Error::new(ErrorKind::Poisoned, what).with_shared_source(Arc::clone(cause))
}

/// For an append that the failure met: it may or may not be found after a reopen.
pub(crate) fn unknown(cause: &Arc<Error>, lsn: u64) -> Error {
    let what = "a write or sync failed: whether the append is durable is unknown until a reopen";
    Error::new(ErrorKind::OutcomeUnknown, what).at_lsn(lsn).with_shared_source(Arc::clone(cause))
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the log was closed")
}

impl Shared {
    pub(crate) fn new(dir: PathBuf, options: &Options, lock: DirLock, gate: Gate) -> Self {
        let cursor_file = CursorFile::new(&dir, gate.holds.has_used_cursors());
        Self {
            dir: dir.clone(),
            io: Arc::clone(&options.io),
            clock: Arc::clone(&options.clock),
            segment_bytes_max: options.segment_bytes_max,
            record_len_max: options.record_len_max,
            batch_bytes_max: options.batch_bytes_max,
            buffer_bytes_max: options.buffer_bytes_max,
            has_background: options.background,
            retention: options.retention,
            removal_step_bytes: options.removal_step_bytes,
            tells_later: options.tells_later,
            gate: Mutex::new(gate),
            turned: Condvar::new(),
            groups: (Condvar::new(), Condvar::new()),
            wait_policy: options.wait_policy,
            turns: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            came: AtomicU64::new(0),
            wanted: Condvar::new(),
            filling: Condvar::new(),
            trim_wanted: Condvar::new(),
            maps: Arc::new(Maps::new(dir, options.map_sealed)),
            lock: Mutex::new(Some(lock)),
            cursor_file: Mutex::new(cursor_file),
        }
    }

    /// Locks the gate. A thread that panicked while it held it has poisoned the log, if anything.
    pub(crate) fn gate(&self) -> Guard<'_> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait<'a>(&'a self, mut gate: Guard<'a>) -> Guard<'a> {
        gate.waiting = gate.waiting.saturating_add(1);
        let mut gate = self.turned.wait(gate).unwrap_or_else(PoisonError::into_inner);
        gate.waiting = gate.waiting.saturating_sub(1);
        gate
    }

    /// Takes the tail out of the gate, once nobody else has it.
    pub(crate) fn take_tail<'a>(&'a self, mut gate: Guard<'a>) -> (Guard<'a>, Tail) {
        loop {
            if let Some(tail) = gate.tail.take() {
                return (gate, tail);
            }
            gate = self.wait(gate);
        }
    }

    /// Puts a batch into the buffer. `sync` says that it is to be synced soon, whoever waits.
    ///
    /// Waits while the buffer is full, and starts a segment where the batch does not fit.
    pub(crate) fn enqueue(&self, batch: Batch<'_>, sync: bool) -> Result<LsnRange> {
        self.enqueue_as(batch, sync, Use::New(0))
    }

    /// Puts a batch into the buffer and makes it durable.
    pub(crate) fn append(&self, batch: Batch<'_>) -> Result<LsnRange> {
        let (gate, lsns) = self.enter(batch, false, Use::New(0))?;
        self.make_durable(gate, lsns.last.get())?;
        Ok(lsns)
    }

    /// As [`Shared::enter`], but for making a reserve. A reserve that another thread makes holds
    /// nobody up who does not need it.
    pub(crate) fn enter_kept<'a>(
        &'a self,
        batch: Batch<'_>,
        sync: bool,
        usage: Use,
    ) -> Result<Entered<'a>> {
        let bytes = self.check(batch)?;
        let mut gate = self.gate();
        let (mut has_waited, mut full) = (false, None);
        loop {
            gate.check_append(batch)?;
            if gate.rolling {
                gate = self.wait(gate);
            } else if let Some(e) = self.beyond_limits(&gate, usage) {
                return Err(e);
            } else if let Some(promised) = gate.missing_reserve(bytes, usage) {
                return Ok(Entered::Lacks(gate, promised));
            } else if !gate.has_room(bytes) {
                if full.is_some()
                    && let Some(promised) = gate.helpful_reserve(bytes, usage)
                {
                    return Ok(Entered::Lacks(gate, promised));
                }
                let (behind, rolled) = self.roll_for(gate, bytes, usage, &mut full);
                gate = behind;
                rolled?;
            } else if !gate.may_buffer(bytes, self.buffer_bytes_max) {
                gate.stats.count_wait(!std::mem::replace(&mut has_waited, true));
                let since = now();
                gate = if gate.tail.is_some() { self.lead(gate, false) } else { self.wait(gate) };
                gate.stats.count_wait_time(now().saturating_sub(since));
            } else {
                let lsns = self.take_in(&mut gate, batch, sync);
                return Ok(Entered::In(gate, lsns));
            }
        }
    }

    /// As [`Shared::enqueue`]; `None` where that would wait or do I/O, and for a batch of more than
    /// `bytes_max`.
    pub(crate) fn try_enqueue(
        &self,
        batch: Batch<'_>,
        sync: bool,
        bytes_max: u64,
    ) -> Result<Option<LsnRange>> {
        let bytes = self.check(batch)?;
        if bytes > bytes_max {
            return Ok(None);
        }
        let mut gate = self.gate();
        gate.check_append(batch)?;
        let now = !gate.rolling
            && gate.missing_reserve(bytes, Use::New(0)).is_none()
            && gate.has_room(bytes)
            && gate.may_buffer(bytes, self.buffer_bytes_max);
        Ok(now.then(|| self.take_in(&mut gate, batch, sync)))
    }

    fn take_in(&self, gate: &mut Gate, batch: Batch<'_>, sync: bool) -> LsnRange {
        let (first, from) = (gate.next_lsn, gate.end);
        self.encode(gate, batch);
        let count = u64::try_from(batch.records.len()).unwrap_or(u64::MAX);
        assert!(gate.next_lsn.checked_sub(first) == Some(count), "every record takes one LSN");
        gate.stats.count_batch(count, gate.end.saturating_sub(from));
        if sync {
            if gate.sync_due <= gate.durable.lsn {
                gate.sync_due_at = now();
            }
            gate.sync_due = gate.last_lsn();
        }
        gate.fill.begun = true;
        self.call_filler(gate);
        self.call_background(gate);
        LsnRange { first: Lsn::at_least_first(first), last: Lsn::at_least_first(gate.last_lsn()) }
    }

    /// Bytes of the batch with its headers and padding.
    fn check(&self, batch: Batch<'_>) -> Result<u64> {
        if batch.records.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "a batch holds at least one record"));
        }
        let mut bytes = 0_u64;
        for record in batch.records {
            let len = u32::try_from(record.len()).ok().filter(|&len| len <= self.record_len_max);
            let Some(len) = len else {
                let max = self.record_len_max;
                let what = format!("a record of {} bytes: expected at most {max}", record.len());
                return Err(Error::new(ErrorKind::Limit, what));
            };
            bytes = bytes.saturating_add(frame_len(len));
        }
        if bytes > self.batch_bytes_max {
            let max = self.batch_bytes_max;
            let what = format!("a batch of {bytes} bytes: expected at most {max}");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        Ok(bytes)
    }

    fn encode(&self, gate: &mut Gate, batch: Batch<'_>) {
        if gate.queue.is_empty() {
            gate.queued_at = now();
        }
        // Time never decreases, whatever the clock says.
        gate.time_ms = self.clock.wall_ms().clamp(gate.time_ms, limits::TIME_MS_MAX);
        let last = batch.records.len().saturating_sub(1);
        for (i, record) in batch.records.iter().enumerate() {
            // Over whole batches: the durable LSN moves from one group to the next.
            let lag = FrameHeader::lag_of(gate.next_lsn, gate.durable.lsn);
            #[cfg(planted)]
            let lag = mistaken(lag, gate, i);
            let header = FrameHeader {
                lsn: gate.next_lsn,
                len: u32::try_from(record.len()).unwrap_or(u32::MAX),
                lag,
                time_ms: gate.time_ms,
                kind: batch.kind.as_u8(),
                batch_end: i == last,
            };
            let place = Place { salt: gate.header.salt, offset: gate.end };
            encode_frame(&header, place, &[record], &mut gate.queue);
            gate.tally.count(&header, place.offset, i == 0);
            gate.end = gate.end.saturating_add(header.frame_len());
            gate.next_lsn = gate.next_lsn.saturating_add(1);
        }
    }

    /// Wakes the background thread where it would not wake in time by itself.
    fn call_background(&self, gate: &mut Gate) {
        let full = gate.queue.len() >= WRITE_BYTES && !gate.called;
        if gate.parked || full {
            gate.called |= full;
            gate.parked = false;
            self.wanted.notify_one();
        }
    }
}

/// What a planted bug has record `i` of a batch state, the next one to be encoded.
#[cfg(planted)]
fn mistaken(lag: Option<u32>, gate: &Gate, i: usize) -> Option<u32> {
    use crate::planted::{Bug, is_active};
    if is_active(Bug::WatermarkTooHigh) {
        FrameHeader::lag_of(gate.next_lsn, gate.written.lsn)
    } else if is_active(Bug::LagInBatch) && i > 0 {
        Some(1)
    } else if is_active(Bug::SaturatedLag) {
        lag.map(|lag| lag.min(2))
    } else {
        lag
    }
}
