//! The broadcaster: one message to N vchannels, at most once per idempotency key.
//!
#![doc = include_str!("../docs/contract.md")]
//!
//! # How it keeps it
//!
//! The control log is the only durable state; [`State`] is what its records mean. Decisions are
//! made under one lock, in the order of control, against the state with everything handed over
//! applied; answers leave when control is durable. Reservations and locks are volatile and guarded.

mod acks;
mod admission;
mod age;
mod async_calls;
mod blocker;
mod canonical_json;
mod catalogue;
mod checkpoint;
mod chunks;
mod copies;
mod core;
mod counts;
mod deciding;
mod ends;
mod fingerprint;
mod freeing;
mod handle;
mod holds;
mod jobs;
mod keys;
mod kind;
mod locks;
mod made;
mod opening;
mod operator;
mod options;
mod order;
mod owed;
mod owners;
mod policy;
mod refusal;
mod replay;
mod request;
mod restore;
mod room;
#[cfg(any(loom, shuttle))]
#[cfg(test)]
mod scheduled;
#[cfg(loom)]
#[cfg(test)]
mod schedules;
mod seen;
mod sizes;
mod snapshot;
mod state;
mod stats;
mod sweep;
mod told;
mod tombstones;
mod trace;
mod view;
pub(crate) mod waiting;
mod weight;
mod window;
mod worker;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncelog_format::control::{Body, ClockRebase, WindowAccepted};

use crate::error::{Error, ErrorKind, Result};
use crate::log::Holder as LogHolder;
use crate::lsn::Lsn;
use crate::store::{Store, StoreReport};
use crate::sync::thread;

use self::core::Inner;
use self::deciding::DECISION_LEN;
use self::handle::{Handle, inside, to_the_end};
use self::replay::replayed;

pub use self::canonical_json::canonical_json;
pub use self::jobs::{Ended, Jobs, SliceMessage};
pub use self::keys::{KeyHistory, KeyInfo, KeyState, WindowSummary};
pub use self::kind::{JobEnding, MessageType, Noop, OnConflict, PayloadForm, Role, Task, Verdict};
pub use self::opening::Opening;
pub use self::options::{CollectionSpec, Options};
pub use self::policy::{Policy, Setting, Violation, WhenFull, format_duration, parse_duration};
pub use self::request::{Answer, Identity, Outcome, Request, check_client_key};
pub use self::seen::Seen;
pub use self::state::{Job, State, TaskState};
pub use self::stats::{
    BroadcastStats, CheckpointStats, JobStats, KeyStats, ReplayStats, TaskCounts, TypeStats,
    WaitStats,
};
pub use self::trace::TraceParent;
pub use self::view::{LogTimes, StoreView};
pub use self::window::Window;
pub use oncelog_format::control::Collection;
pub use oncelog_format::message::{AckMode, BroadcastId, Resource, Scope, TimeTick};

/// A broadcaster on a store; cheap to clone. Closing one closes all; the last one dropped closes.
///
/// `Io` of a call is a refusal of the system before anything was written, for want of a descriptor,
/// say: [`Error::retry_after`] says when to ask again. A write or sync that fails is `Poisoned`.
///
/// Events for `tracing` are told while no lock is held, by the thread that waits for the disk: a
/// subscriber may ask the broadcaster, is not to wait for an effect, and one that is slow delays
/// answers.
#[derive(Clone, Debug)]
pub struct Broadcaster {
    handle: Arc<Handle>,
}

impl Broadcaster {
    /// Opens a broadcaster: replayed state, locks and slots are whole when this returns, and
    /// unfinished work goes on behind it; [`Opening`] does the same in the background. [`Noop`] is
    /// always registered.
    ///
    /// # Errors
    ///
    /// The store is closed then.
    ///
    /// - `InvalidInput` for a policy that breaks a rule, two types of one name, a name that is
    ///   none, or options out of range.
    /// - `Corrupt`, `Unsupported` where a record of control does not decode, or a pchannel that
    ///   control names is gone; and where a channel's log is damaged or of a newer version.
    /// - `Busy`, `StoreFull`, `Limit`, `Io` as of [`Log::open`](crate::Log::open) for each channel,
    ///   and `Poisoned`, `OutcomeUnknown` where the policy could not be recorded.
    ///
    /// # Durability
    ///
    /// A policy unlike the one recorded last is recorded, but for [`Options::only`].
    pub fn open(store: Store, options: Options) -> Result<Self> {
        let broadcaster = Self::opened(store, options)?;
        broadcaster.tell_drivers();
        Ok(broadcaster)
    }

    /// Opens a broadcaster, whose drivers are not told of their jobs yet.
    fn opened(store: Store, options: Options) -> Result<Self> {
        let worker_count = options.worker_count;
        let inner = replayed(store, options)?;
        let broadcaster = Self { handle: Arc::new(Handle::new(&inner)) };
        broadcaster.start(worker_count)?;
        Ok(broadcaster)
    }

    /// Tells the drivers of the jobs that are there.
    fn tell_drivers(&self) {
        self.jobs().running().into_iter().for_each(|job| self.inner().tell_driver(job));
    }

    /// What opening the store, its control log and its channels found and did.
    #[must_use]
    pub fn report(&self) -> &StoreReport {
        self.handle.inner.store.report()
    }

    fn start(&self, worker_count: usize) -> Result<()> {
        let inner = &self.handle.inner;
        let mut threads = self.handle.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut spawn = |name: &str, body: fn(&Arc<Inner>)| {
            let inner = Arc::clone(inner);
            let builder = thread::Builder::new().name(name.to_owned());
            let own = name.to_owned();
            let body = move || inside(&inner, || to_the_end(&inner, &own, || body(&inner)));
            let thread = builder.spawn(body);
            let thread = thread.map_err(|e| {
                Error::new(ErrorKind::Io, "a thread could not be started").with_source(e)
            })?;
            threads.push(thread);
            Ok::<_, Error>(())
        };
        spawn("oncelog-settle", Inner::settle_all)?;
        if inner.options.sweeps() {
            spawn("oncelog-sweep", |inner| inner.sweep_all())?;
        }
        spawn("oncelog-checkpoint", |inner| inner.checkpoint_all())?;
        (0..worker_count).try_for_each(|_| spawn("oncelog-work", Inner::work))
    }

    /// Broadcasts a request, at most once per key, and waits for its end. `Ok` says that it ended,
    /// and not yet that it ended well: [`Answer::outcome`] is [`Outcome::Failed`] where its
    /// callback failed, or an operator skipped it, also of the original under a key. Dropping out
    /// at the timeout changes nothing about a request that was handed over. Room is kept on the
    /// disk for what was accepted: where some has to be made for this request, the timeout does not
    /// cut that short.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, `Conflict`, `WindowFull`, `StoreFull`, `Limit`, `LockTimeout`, `Io`:
    /// refused, the key is not consumed by this call; `StoreFull` also where unfinished work
    /// carries as much as [`Options::open_bytes_max`]. `OutcomeUnknown`: not known, ask again with
    /// the same key and payload; also where another request with this key is being admitted, which
    /// may be the caller's own first one, and the deadline is over or too many wait. `InFlight`,
    /// `Parked`: accepted and not done. `Poisoned`, `Closed`. Without a timeout `InFlight` comes as
    /// soon as there is no space for a copy or a record of what was accepted, with that as its
    /// source; the task goes on when there is.
    ///
    /// # Durability
    ///
    /// Acceptance, copies and end are durable when this returns `Ok`.
    pub fn submit(&self, request: &Request, timeout: Option<Duration>) -> Result<Answer> {
        self.inner().submit(request, timeout)
    }

    /// Takes up a parked task again.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when it is not parked; `StoreFull`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn resume(&self, id: BroadcastId, reason: &str) -> Result<()> {
        let inner = self.inner();
        inner.with_room(|| inner.resume(id, reason))
    }

    /// Ends a parked task as failed. It stands in for missing acks of consumers and for the
    /// callback, never for a missing copy.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when it is not parked, or a copy is missing; `StoreFull`, `Io`, `Poisoned`,
    /// `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn skip(&self, id: BroadcastId, reason: &str) -> Result<()> {
        self.inner().skip(id, reason)
    }

    /// Acknowledges a copy for a consumer of a vchannel; of a broadcast that is done or unknown it
    /// changes nothing, and is counted.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a vchannel that gets no copy; `InFlight` while it is not known yet that
    /// the copy stands; `StoreFull`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn ack(&self, id: BroadcastId, vchannel: &str) -> Result<()> {
        self.inner().ack(id, vchannel)
    }

    /// Returns the policy in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.inner().lock().policy.clone()
    }

    /// Puts another policy in force, for keys accepted from here on.
    ///
    /// # Errors
    ///
    /// `InvalidInput` with every rule that it breaks: the old one stays. `StoreFull`, `Io`,
    /// `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn refresh(&self, policy: Policy) -> Result<()> {
        self.inner().refresh(&policy)
    }

    /// Makes the vchannels that do not exist.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name that is empty or too long; `StoreFull`, `Io`, `Poisoned`,
    /// `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn ensure_vchannels(&self, names: &[String]) -> Result<()> {
        let inner = self.inner();
        let handed = inner.with_room(|| inner.make_vchannels(names))?;
        handed.map_or_else(|| inner.settle_before(), |pending| inner.settle(pending))
    }

    /// Returns the collection of a name, made of `spec` where there is none. What exists is not
    /// compared with `spec`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for names that are empty or too long; `StoreFull`, `Io`, `Poisoned`,
    /// `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn ensure_collection(&self, spec: &CollectionSpec) -> Result<Arc<Collection>> {
        self.inner().ensure_collection(spec)
    }

    /// Returns what drivers of jobs need.
    #[must_use]
    pub fn jobs(&self) -> Jobs {
        Jobs::of(Arc::clone(self.inner()))
    }

    /// Looks at the state, with the time by which keys expire, in milliseconds: log time, or where
    /// that stood when a wall clock far ahead began not to be believed. What it shows may not be
    /// durable yet. Decisions wait meanwhile: `look` is short, and does not call the broadcaster.
    pub fn read<R>(&self, look: impl FnOnce(&State, u64) -> R) -> R {
        use crate::clock::Clock as _;
        let core = self.inner().lock();
        let now_ms = self.inner().time().expiry_ms(core.state.newest_ms());
        look(&core.state, now_ms)
    }

    /// Returns the LSN below which a pchannel is needed by no unfinished work; `None` when nothing
    /// pins it.
    #[must_use]
    pub fn pinned(&self, pchannel: &str) -> Option<Lsn> {
        let core = self.inner().lock();
        self.inner().pinned(&core, pchannel)
    }

    /// Everything that keeps messages of a pchannel on the disk, the holder of the oldest one
    /// first: broadcasts whose acks are not durable, jobs that run by a plan, cursors, and what is
    /// kept anyway; `None` where there is no such pchannel.
    #[must_use]
    pub fn why_not_trimmed(&self, pchannel: &str) -> Option<Vec<LogHolder>> {
        self.inner().store.channel(pchannel).map(|channel| channel.holders())
    }

    /// Everything that keeps records of control on the disk: the checkpoint that a restart may
    /// need.
    #[must_use]
    pub fn why_control_is_not_trimmed(&self) -> Vec<LogHolder> {
        self.inner().store.control().why_not_trimmed()
    }

    /// Writes the state into control, reads it back, and drops the records that no restart needs
    /// any more; a broadcaster does so by itself, see [`Options::checkpoint_bytes`], and where
    /// somebody is refused for want of space that this frees. False when there was nothing to write
    /// behind the last checkpoint.
    ///
    /// # Errors
    ///
    /// `StoreFull`, `Io`, `Poisoned`, `Closed`; `Corrupt` when it reads otherwise than it was
    /// written. Control is as it was then.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn checkpoint(&self) -> Result<bool> {
        self.inner().checkpoint().map(|written| written.is_some())
    }

    /// Believes the wall clock where it is ahead of log time, and records that; returns log time
    /// then, in milliseconds since 1970-01-01 UTC.
    ///
    /// # Errors
    ///
    /// `StoreFull`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`; a refusal leaves log time as it was.
    pub fn rebase_clock(&self) -> Result<u64> {
        use crate::clock::Clock as _;
        let inner = self.inner();
        let (pending, to_ms) = inner.with_room(|| {
            let mut core = inner.lock_to_take_in(DECISION_LEN);
            let (from_ms, to_ms) = (inner.time().wall_ms(), inner.time().rebased_ms());
            let body = Body::ClockRebase(ClockRebase { from_ms });
            let (pending, _) = inner.hand_over_at(&mut core, vec![body], to_ms)?;
            // Not before it is in the log: else what was refused would expire keys.
            Ok((pending, inner.time().rebase()))
        })?;
        inner.settle(pending)?;
        Ok(to_ms)
    }

    /// Records that an operator accepts an incomplete window, with his reason.
    ///
    /// It is history, which `dump` shows beside the decisions around it: nothing is refused before
    /// it, and nothing is taken behind it that was not before. A store whose control is damaged
    /// does not open, with or without it.
    ///
    /// # Errors
    ///
    /// `StoreFull`, `Io`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn accept_window(&self, reason: &str) -> Result<()> {
        let inner = self.inner();
        let accepted = WindowAccepted { reason: ends::fitting(reason).to_owned() };
        let len = accepted.reason.len() + DECISION_LEN;
        let body = Body::WindowAccepted(accepted);
        let (pending, _) = inner
            .with_room(|| inner.hand_over(&mut inner.lock_to_take_in(len), vec![body.clone()]))?;
        inner.settle(pending)
    }

    /// Stops: no new work, steps in flight finish or are left to recovery. The store's lock is free
    /// when this returns. A callback may call it: where another thread closes already, which waits
    /// for the callback, it returns at once.
    ///
    /// # Errors
    ///
    /// The first error of closing a log, whoever closes and how often.
    ///
    /// # Durability
    ///
    /// Everything that was handed over is durable when this returns `Ok`.
    pub fn close(&self) -> Result<()> {
        self.handle.close()
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }
}
