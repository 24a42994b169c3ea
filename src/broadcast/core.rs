//! What all threads of a broadcaster share, and the one way into the control log.
//!
//! Every decision is made under one lock, against the state with everything handed over before
//! applied: [`Inner::hand_over`] enqueues a batch and applies it in one critical section, so that
//! the order of control is the order of decisions. A batch that the log refuses is never applied,
//! and nothing was decided on top of it. What was handed over is not durable yet: [`Settled`] runs
//! once it is, on the thread that waits for the disk, in order; no answer leaves before.
//!
//! A failed write of control stops the broadcaster: nothing is decided on top of the unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use oncelog_format::control::{Accepted, Body, ControlRecord, Outcome};
use oncelog_format::message::{BroadcastId, Scope};

use super::age::Stall;
use super::checkpoint::Checkpoints;
use super::chunks::Begun;
use super::counts::Counts;
use super::freeing::Freeing;
use super::holds::Hold;
use super::kind::MessageType;
use super::locks::{Holder, Locks};
use super::options::Options;
use super::owed::{Owed, PROMISED_MAX};
use super::policy::Policy;
use super::refusal;
use super::request::Answer;
use super::room;
use super::snapshot::Snapshot;
use super::state::State;
use super::told::Told;
use super::window::Reserved;
use crate::channel::{ChannelLog, ChannelPin, Position};
use crate::clock::{Clock, LogTime};
use crate::error::{Error, ErrorKind, Result};
use crate::log::reserve::{Taken, Use};
use crate::log::{Batch, Pending, RecordKind};
use crate::lsn::Lsn;
use crate::store::Store;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) types: BTreeMap<String, Arc<dyn MessageType>>,
    pub(crate) options: Options,
    pub(crate) core: Mutex<Core>,
    /// A task is due, or may be earlier than a worker thought.
    pub(crate) work: Condvar,
    /// A batch was handed over.
    pub(crate) handed: Condvar,
    /// A job ended, or everything stops.
    pub(crate) turned: Condvar,
    /// Callers that wait for a key.
    pub(crate) waiting: AtomicUsize,
    /// One scan of a pchannel at a time.
    pub(crate) scans: BTreeMap<String, Mutex<()>>,
    /// One checkpoint at a time.
    pub(crate) checkpoints: Mutex<Checkpoints>,
    pub(crate) counts: Counts,
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct Core {
    /// The state with everything that was handed over applied.
    pub(crate) state: State,
    /// Tasks whose end is not durable.
    pub(crate) runs: BTreeMap<BroadcastId, Run>,
    pub(crate) reservations: HashMap<Arc<Scope>, Reservation>,
    /// Reservations by principal.
    pub(crate) reserved: BTreeMap<String, usize>,
    /// Broadcasts that will start a job and are not accepted.
    pub(crate) reserved_jobs: usize,
    pub(crate) locks: Locks,
    /// Who waits for locks, to be told.
    pub(crate) lock_waiters: HashMap<Holder, Arc<Condvar>>,
    /// Tasks by the instant from which a worker may take them.
    pub(crate) due: BTreeSet<(Duration, BroadcastId)>,
    pub(crate) settling: VecDeque<(Pending, Settled)>,
    /// Ends of pchannels that were read for a plan, by job.
    pub(crate) plan_pins: BTreeMap<BroadcastId, Vec<(String, ChannelPin)>>,
    /// Jobs that nobody drives, and why.
    pub(crate) stopped: BTreeMap<BroadcastId, Arc<Error>>,
    /// What accepted work may yet write.
    pub(crate) owed: Owed,
    /// Tasks whose acks nobody waits for, with the last LSN of them.
    pub(crate) acked: VecDeque<(Lsn, BroadcastId)>,
    pub(crate) policy: Policy,
    /// A checkpoint that is being written.
    pub(crate) snapshot: Option<Snapshot>,
    /// Bytes of records behind the last checkpoint, and behind which the next one is due.
    pub(crate) unchecked_bytes: u64,
    pub(crate) checkpoint_due_bytes: u64,
    /// Bytes of the last checkpoint.
    pub(crate) stream_bytes: u64,
    /// Most bytes that control keeps for what was accepted, and for checkpoints.
    pub(crate) promised_max: u64,
    /// Bytes that a checkpoint was expected to take that is being written; else 0.
    pub(crate) begun_bytes: u64,
    /// Space that a checkpoint may make.
    pub(crate) freeing: Freeing,
    pub(crate) failed: Option<Arc<Error>>,
    /// What nobody was told yet, in order.
    pub(crate) told: Vec<Told>,
    pub(crate) closing: bool,
    next_ticket: u64,
}

/// A volatile hold on a scope.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// Somebody is being admitted; otherwise it is free for one of the waiters.
    pub(crate) owned: bool,
    pub(crate) waiters: usize,
    pub(crate) fell: Arc<Condvar>,
}

/// A task in this process.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) accepted: Arc<Accepted>,
    pub(crate) accepted_at_ms: u64,
    /// Log time since which this process has it, in milliseconds.
    pub(crate) taken_up_at_ms: u64,
    /// Its acceptance is durable.
    pub(crate) admitted: bool,
    /// By the order of the acceptance's vchannels.
    pub(crate) copies: Vec<Copy>,
    /// The pchannels that it needs, until their acks are durable.
    pub(crate) holds: Vec<Hold>,
    /// The last LSN of its acks of this process.
    pub(crate) acked_at: Option<Lsn>,
    /// What stands of copies that are absent in part.
    pub(crate) begun: BTreeMap<usize, Begun>,
    /// A worker has it.
    pub(crate) busy: bool,
    /// Something happened while a worker had it.
    pub(crate) again: bool,
    /// Its end was handed over.
    pub(crate) ending: bool,
    /// Why it is parked and since when, durably.
    pub(crate) parked: Option<(String, u64)>,
    /// When a worker is to take it.
    pub(crate) due: Option<Duration>,
    pub(crate) retries: u32,
    /// Calls of its callback.
    pub(crate) calls: u32,
    /// Steps that ended.
    pub(crate) tries: u64,
    /// The last of them was refused for space.
    pub(crate) full: Option<Arc<Error>>,
    /// Since when it is retried, or waits for consumers.
    pub(crate) stalled: Option<Stall>,
    pub(crate) cell: Arc<Cell>,
}

/// What is known of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// An append failed, or this process did not see it: only the pchannel tells.
    Unresolved,
    Absent,
    At(Position),
}

/// Where callers wait for a task.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub(crate) turned: Condvar,
    pub(crate) end: OnceLock<Answer>,
    pub(crate) waiters: AtomicUsize,
}

/// What follows when a batch is durable.
#[derive(Debug)]
pub(crate) enum Settled {
    /// A task was accepted.
    Admitted(BroadcastId),
    /// A task ended, at this log time.
    Ended(BroadcastId, Outcome, u64),
    /// A task was parked, at this log time.
    Parked(BroadcastId, String, u64),
}

pub(crate) type Guard<'a> = MutexGuard<'a, Core>;

/// When a caller stops waiting, on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(pub(super) Option<Duration>);

impl Deadline {
    /// Waits as long as it takes.
    pub(crate) const fn never() -> Self {
        Self(None)
    }

    pub(crate) const fn is_never(self) -> bool {
        self.0.is_none()
    }
}

impl Inner {
    pub(crate) fn lock(&self) -> Guard<'_> {
        // Every critical section leaves the core whole before it can panic: user code runs in it
        // only where nothing is half done.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn time(&self) -> &Arc<LogTime> {
        self.store.time()
    }

    pub(crate) fn monotonic(&self) -> Duration {
        self.store.time().monotonic()
    }

    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        Deadline(timeout.map(|timeout| self.monotonic().saturating_add(timeout)))
    }

    /// Says whether this process brings a task any further.
    pub(crate) fn steps(&self, id: BroadcastId) -> bool {
        self.options.only.is_none_or(|only| only == id)
    }

    /// Refuses new work where nobody would do it.
    pub(crate) fn takes_work(&self) -> Result<()> {
        self.options.only.map_or(Ok(()), |only| Err(refusal::open_for(only)))
    }

    /// Decides: enqueues records in one batch and applies them.
    ///
    /// Nothing is durable when this returns. An error means that nothing was written or applied,
    /// unless it stops the broadcaster; one that says so asks for room first, see
    /// [`Inner::with_room`].
    pub(crate) fn hand_over(&self, core: &mut Core, bodies: Vec<Body>) -> Result<(Pending, u64)> {
        self.hand_over_at(core, bodies, self.time().wall_ms())
    }

    /// The same at a log time, in milliseconds.
    pub(crate) fn hand_over_at(
        &self,
        core: &mut Core,
        bodies: Vec<Body>,
        at_ms: u64,
    ) -> Result<(Pending, u64)> {
        core.usable()?;
        // Log time never stands behind a record: a clock that was raised by one cannot go back.
        let at_ms = at_ms.max(core.state.newest_ms());
        let records: Vec<ControlRecord> =
            bodies.into_iter().map(|body| ControlRecord { at_ms, body }).collect();
        let encode = |record: &ControlRecord| {
            let name = record.body.name();
            record.encode().map_err(|e| {
                refusal::invalid(format!("the record {name} does not encode")).with_source(e)
            })
        };
        let encoded = records.iter().map(encode).collect::<Result<Vec<_>>>()?;
        let slices: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let bodies: Vec<&Body> = records.iter().map(|record| &record.body).collect();
        let usage = core.usage(&bodies, bytes, self.options.open_bytes_max);
        let usage = usage.map_err(|e| self.until_free(core, e))?;
        let batch = Batch { kind: RecordKind::CONTROL, records: &slices };
        match self.store.control().enqueue_kept(batch, usage) {
            Ok(Taken::Lacks(bytes)) => Err(room::lacks(None, bytes)),
            Ok(Taken::In(pending)) => {
                for record in &records {
                    if let Some(snapshot) = &mut core.snapshot {
                        snapshot.note(&core.state, record);
                    }
                    core.state.apply(record);
                }
                // A checkpoint does not bring the next one nearer.
                let counted = records.iter().zip(&encoded);
                let counted = counted.filter(|(record, _)| !record.body.is_checkpoint());
                let bytes: usize = counted.map(|(_, encoded)| encoded.len()).sum();
                self.count(core, u64::try_from(bytes).unwrap_or(u64::MAX));
                Ok((pending, at_ms))
            }
            Err(e) if matches!(e.kind(), ErrorKind::StoreFull | ErrorKind::Limit) => {
                if matches!(usage, Use::New(_)) {
                    self.note_refusal(core, &e);
                }
                Err(e)
            }
            // Refused before a byte was written, for want of a descriptor, say: nothing is unknown.
            Err(e) if e.kind() == ErrorKind::Io && !self.store.control().stats().poisoned => {
                Err(refusal::for_now(e))
            }
            Err(e) => {
                let cause = Arc::new(e);
                self.fail(core, Arc::clone(&cause));
                Err(refusal::failed(&cause))
            }
        }
    }

    /// Counts bytes of records, and has a checkpoint written when one is due.
    fn count(&self, core: &mut Core, bytes: u64) {
        let before = core.unchecked_bytes;
        core.unchecked_bytes = before.saturating_add(bytes);
        if before < core.checkpoint_due_bytes && core.unchecked_bytes >= core.checkpoint_due_bytes {
            self.turned.notify_all();
        }
    }

    /// Hands over and leaves the rest to the thread that waits for the disk.
    pub(crate) fn hand_over_and_settle(
        &self,
        core: &mut Core,
        bodies: Vec<Body>,
        settled: impl FnOnce(u64) -> Settled,
    ) -> Result<()> {
        let (pending, at_ms) = self.hand_over(core, bodies)?;
        self.settle_later(core, pending, settled(at_ms));
        Ok(())
    }

    /// Leaves a batch that was handed over to the thread that waits for the disk.
    pub(crate) fn settle_later(&self, core: &mut Core, pending: Pending, settled: Settled) {
        core.settling.push_back((pending, settled));
        self.handed.notify_one();
    }

    /// Waits until a batch that was handed over is durable.
    pub(crate) fn settle(&self, pending: Pending) -> Result<()> {
        let Err(e) = pending.wait() else { return Ok(()) };
        let mut core = self.lock();
        self.fail(&mut core, Arc::new(e));
        core.usable()
    }

    /// Waits until everything that was handed over before is durable: what the state shows may not
    /// be yet.
    pub(crate) fn settle_before(&self) -> Result<()> {
        let Err(e) = self.store.control().sync() else { return Ok(()) };
        let mut core = self.lock();
        if e.kind() != ErrorKind::Closed {
            self.fail(&mut core, Arc::new(e));
        }
        core.usable()
    }

    /// Stops everything: control is not known any more.
    pub(crate) fn fail(&self, core: &mut Core, cause: Arc<Error>) {
        if core.failed.is_none() {
            core.told.push(Told::Stopped(Arc::clone(&cause)));
            core.failed = Some(cause);
        }
        self.wake_all(core);
    }

    pub(crate) fn wake_all(&self, core: &Core) {
        core.runs.values().for_each(|run| run.cell.turned.notify_all());
        core.reservations.values().for_each(|reservation| reservation.fell.notify_all());
        core.lock_waiters.values().for_each(|waiter| waiter.notify_all());
        self.work.notify_all();
        self.handed.notify_all();
        self.turned.notify_all();
    }

    /// Gives up locks and tells those who get them.
    pub(crate) fn release(&self, core: &mut Core, holder: Holder) {
        for granted in core.locks.release(holder) {
            if let Some(waiter) = core.lock_waiters.get(&granted) {
                waiter.notify_all();
            }
        }
    }

    /// Has a worker take a task, at once or later.
    pub(crate) fn schedule(&self, core: &mut Core, id: BroadcastId, after: Duration) {
        core.set_due(id, self.monotonic().saturating_add(after));
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::WorkUntold) {
            return;
        }
        self.work.notify_one();
    }

    pub(crate) fn channel_of(&self, state: &State, vchannel: &str) -> Result<&Arc<dyn ChannelLog>> {
        let pchannel = state.pchannel_of(vchannel);
        pchannel
            .and_then(|pchannel| self.store.channel(pchannel))
            .ok_or_else(|| refusal::invalid(format!("unknown vchannel {vchannel}")))
    }
}

impl Core {
    pub(crate) fn new(state: State, policy: Policy) -> Self {
        Self {
            state,
            runs: BTreeMap::new(),
            reservations: HashMap::new(),
            reserved: BTreeMap::new(),
            reserved_jobs: 0,
            locks: Locks::default(),
            lock_waiters: HashMap::new(),
            due: BTreeSet::new(),
            settling: VecDeque::new(),
            plan_pins: BTreeMap::new(),
            stopped: BTreeMap::new(),
            owed: Owed::default(),
            acked: VecDeque::new(),
            policy,
            snapshot: None,
            unchecked_bytes: 0,
            checkpoint_due_bytes: u64::MAX,
            stream_bytes: 0,
            promised_max: PROMISED_MAX,
            begun_bytes: 0,
            freeing: Freeing::default(),
            failed: None,
            told: Vec::new(),
            closing: false,
            next_ticket: 0,
        }
    }

    /// Says whether anything may still be decided.
    pub(crate) fn usable(&self) -> Result<()> {
        if let Some(cause) = &self.failed {
            return Err(refusal::failed(cause));
        }
        if self.closing { Err(refusal::closed()) } else { Ok(()) }
    }

    pub(crate) fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    pub(crate) fn reserved_beside(&self, principal: &str) -> Reserved {
        Reserved {
            all: self.reserved.values().sum(),
            of_principal: self.reserved.get(principal).copied().unwrap_or_default(),
            others: self.reserved.keys().any(|other| other != principal),
        }
    }

    /// Has a task taken at an instant, or earlier where that was said before: once, however many
    /// ask for it.
    pub(crate) fn set_due(&mut self, id: BroadcastId, at: Duration) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if run.due.is_some_and(|due| due <= at) {
            return;
        }
        if let Some(later) = run.due.replace(at) {
            self.due.remove(&(later, id));
        }
        self.due.insert((at, id));
    }

    /// Takes the task that is due first, whenever that is.
    pub(crate) fn take_due(&mut self) -> Option<BroadcastId> {
        let (_, id) = self.due.pop_first()?;
        if let Some(run) = self.runs.get_mut(&id) {
            run.due = None;
        }
        Some(id)
    }

    /// What a run of an acceptance starts with: copies that are acknowledged stand.
    pub(crate) fn run_of(&self, id: BroadcastId, unseen: Copy) -> Option<Run> {
        let task = self.state.task(id)?;
        let stands = |ack: &oncelog_format::control::AckPosition| {
            Lsn::new(ack.lsn).map(|lsn| Copy::At(Position::new(lsn, ack.time_tick)))
        };
        let copies = task.acks.iter().map(|ack| ack.as_ref().and_then(stands).unwrap_or(unseen));
        Some(Run {
            accepted: Arc::clone(&task.accepted),
            accepted_at_ms: task.accepted_at_ms,
            taken_up_at_ms: task.accepted_at_ms,
            admitted: false,
            copies: copies.collect(),
            holds: Vec::new(),
            acked_at: None,
            begun: BTreeMap::new(),
            busy: false,
            again: false,
            ending: false,
            parked: task.parked.clone(),
            due: None,
            retries: 0,
            calls: 0,
            tries: 0,
            full: None,
            stalled: None,
            cell: Arc::default(),
        })
    }
}
