//! The broadcaster: one message to N vchannels, at most once per idempotency key.
//!
//! # The contract with a caller
//!
//! 1. An accepted key replays for at least the promised lifetime; a store that cannot promise says
//!    so at admission.
//! 2. An answer is sent only when the effect exists and is durable.
//! 3. A request refused before acceptance does not consume its key. Where it cannot be known, the
//!    answer is "outcome unknown": retry with the same key and payload.
//! 4. The same key with another payload is refused, names the fields, and leaves the original
//!    untouched.
//! 5. The expiry instant is part of every answer and does not move, by restart, crash, clock step
//!    or policy change.
//! 6. After expiry, and once its work is terminal, a retry is new work; `keys` tells beforehand
//!    whether a key was probably seen.
//! 7. A failed original stays failed under its key, unless the caller asks for a re-attempt of
//!    failed work only.
//!
//! # How it keeps it
//!
//! The control log is the only durable state; [`State`] is what its records mean. Decisions are made
//! under one lock, in the order of control, against the state with everything handed over applied;
//! answers leave when control is durable. Reservations and locks are volatile and guarded.

mod admission;
mod copies;
mod core;
mod fingerprint;
mod jobs;
mod keys;
mod kind;
mod locks;
mod policy;
mod refusal;
mod request;
mod state;
mod sweep;
mod view;
mod window;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use oncelog_format::control::{Body, Channel, ClockRebase, PolicyRecord, WindowAccepted};
use oncelog_format::limits::VCHANNEL_NAME_LEN_MAX;

use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;
use crate::store::Store;

use self::core::{Copy, Core, Inner};
use self::locks::{Claim, Holder};

pub use self::admission::check_client_key;
pub use self::jobs::{Ended, Jobs, SliceMessage};
pub use self::keys::{KeyHistory, KeyInfo, KeyState, WindowSummary};
pub use self::kind::{MessageType, Noop, Role, Task, Verdict};
pub use self::policy::{Policy, Setting, Violation, WindowFull, parse_duration};
pub use self::request::{Answer, Identity, Outcome, Request};
pub use self::state::{Job, State, TaskState};
pub use self::view::StoreView;
pub use self::window::Window;
pub use oncelog_format::control::Collection;
pub use oncelog_format::message::{AckMode, BroadcastId, Resource, Scope, TimeTick};

/// Jobs at once by default.
const JOB_SLOTS_MAX: usize = 1_024;

/// Threads that bring tasks to their end, by default.
const WORKER_COUNT: usize = 8;

/// How a broadcaster is opened.
#[derive(Clone, Debug)]
pub struct Options {
    policy: Policy,
    types: Vec<Arc<dyn MessageType>>,
    job_slots_max: usize,
    worker_count: usize,
}

impl Options {
    /// The default policy, no type but [`Noop`], 1,024 job slots, 8 workers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            policy: Policy::default(),
            types: Vec::new(),
            job_slots_max: JOB_SLOTS_MAX,
            worker_count: WORKER_COUNT,
        }
    }

    /// Sets the retention policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Registers a message type.
    #[must_use]
    pub fn register(mut self, kind: Arc<dyn MessageType>) -> Self {
        self.types.push(kind);
        self
    }

    /// Sets the most jobs at once, at least 1.
    #[must_use]
    pub fn job_slots_max(mut self, count: usize) -> Self {
        self.job_slots_max = count;
        self
    }

    /// Sets the threads that bring tasks to their end, at least 1.
    #[must_use]
    pub fn worker_count(mut self, count: usize) -> Self {
        self.worker_count = count;
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// What a collection is to be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct CollectionSpec {
    /// Its name.
    pub name: String,
    /// Its schema, opaque here; may be empty.
    pub schema: Vec<u8>,
    /// The field that rows are identified by.
    pub primary_key: Option<String>,
    /// Its vchannels; those that do not exist are made.
    pub vchannels: Vec<String>,
}

/// A broadcaster on a store; cheap to clone. Closing one closes all; the last one dropped closes.
#[derive(Clone, Debug)]
pub struct Broadcaster {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::debug!(error = %e, "a broadcaster that was dropped closes");
        }
    }
}

impl Handle {
    fn close(&self) -> Result<()> {
        let inner = &self.inner;
        {
            let mut core = inner.lock();
            core.closing = true;
            inner.wake_all(&core);
        }
        inner.types.values().for_each(|kind| kind.close());
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A callback that drops the last handle runs on one of them.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of the broadcaster panicked");
            }
        }
        inner.store.close()
    }
}

impl Broadcaster {
    /// Opens a broadcaster: replayed state, locks and slots are whole when this returns, and
    /// unfinished work goes on behind it. [`Noop`] is always registered.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a policy that breaks a rule, two types of one name, or options out of
    /// range; the store is closed then. `Io`, `Poisoned`.
    ///
    /// # Durability
    ///
    /// A policy unlike the one recorded last is recorded.
    pub fn open(mut store: Store, options: Options) -> Result<Self> {
        let mut types: BTreeMap<String, Arc<dyn MessageType>> = BTreeMap::new();
        types.insert(Noop::NAME.to_owned(), Arc::new(Noop));
        for kind in &options.types {
            if types.insert(kind.name().to_owned(), Arc::clone(kind)).is_some() {
                return Err(refusal::invalid(format!("two types are named {}", kind.name())));
            }
        }
        if options.job_slots_max == 0 || options.worker_count == 0 {
            return Err(refusal::invalid("job slots and workers: expected at least 1, found 0"));
        }
        let mut state = State::default();
        let newest_ms = store.replay(|record| state.apply(record))?;
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::TombstoneReset) {
            state.reset_tombstones();
        }
        check_policy(&options.policy, &state)?;
        let newest_ms = newest_ms.map(|newest_ms| newest_ms.max(state.newest_ms()));
        let named = state.vchannels().map(|(_, pchannel)| pchannel.to_owned()).collect();
        store.start(newest_ms, &named)?;
        let mut core = Core::new(state, options.policy.clone());
        take_up(&mut core);
        let scans = store.pchannels().map(|name| (name.to_owned(), Mutex::new(()))).collect();
        let worker_count = options.worker_count;
        let inner = Arc::new(Inner {
            store,
            types,
            options,
            core: Mutex::new(core),
            work: Condvar::new(),
            handed: Condvar::new(),
            turned: Condvar::new(),
            waiting: AtomicUsize::new(0),
            scans,
        });
        inner.note_policy()?;
        let broadcaster = Self {
            handle: Arc::new(Handle { inner: Arc::clone(&inner), threads: Mutex::default() }),
        };
        broadcaster.start(worker_count)?;
        for job in broadcaster.jobs().running() {
            inner.tell_driver(job);
        }
        Ok(broadcaster)
    }

    fn start(&self, worker_count: usize) -> Result<()> {
        let inner = &self.handle.inner;
        let mut threads = self.handle.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut spawn = |name: &str, body: fn(&Arc<Inner>)| {
            let inner = Arc::clone(inner);
            let builder = std::thread::Builder::new().name(name.to_owned());
            let thread = builder.spawn(move || body(&inner));
            let thread = thread.map_err(|e| {
                Error::new(ErrorKind::Io, "a thread could not be started").with_source(e)
            })?;
            threads.push(thread);
            Ok::<_, Error>(())
        };
        spawn("oncelog-settle", Inner::settle_all)?;
        spawn("oncelog-sweep", |inner| inner.sweep_all())?;
        (0..worker_count).try_for_each(|_| spawn("oncelog-work", Inner::work))
    }

    /// Broadcasts a request, at most once per key, and waits for the effect. Dropping out at the
    /// timeout changes nothing about a request that was handed over.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, `Conflict`, `WindowFull`, `StoreFull`, `Limit`, `LockTimeout`: refused, the
    /// key is not consumed. `OutcomeUnknown`: not known, ask again with the same key and payload.
    /// `InFlight`, `Parked`: accepted and not done. `Poisoned`, `Closed`.
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
    /// `InvalidInput` when it is not parked; `StoreFull`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn resume(&self, id: BroadcastId, reason: &str) -> Result<()> {
        self.inner().resume(id, reason)
    }

    /// Ends a parked task as failed. It stands in for missing acks of consumers and for the
    /// callback, never for a missing copy.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when it is not parked, or a copy is missing; `StoreFull`, `Poisoned`,
    /// `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn skip(&self, id: BroadcastId, reason: &str) -> Result<()> {
        self.inner().skip(id, reason)
    }

    /// Acknowledges a copy for a consumer of a vchannel; of a broadcast that is done or unknown it
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a vchannel that gets no copy; `StoreFull`, `Poisoned`, `Closed`.
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
    /// `InvalidInput` with every rule that it breaks: the old one stays. `StoreFull`, `Poisoned`,
    /// `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn refresh(&self, policy: Policy) -> Result<()> {
        let inner = self.inner();
        let mut core = inner.lock();
        core.usable()?;
        check_policy(&policy, &core.state)?;
        let (pending, _) = inner.hand_over(&mut core, vec![Body::Policy(policy.record())])?;
        core.policy = policy;
        inner.turned.notify_all();
        drop(core);
        inner.settle(pending)
    }

    /// Makes the vchannels that do not exist.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name that is empty or too long; `StoreFull`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn ensure_vchannels(&self, names: &[String]) -> Result<()> {
        let inner = self.inner();
        let mut core = inner.lock();
        core.usable()?;
        let bodies = inner.missing_vchannels(&core, names)?;
        if bodies.is_empty() {
            return Ok(());
        }
        let (pending, _) = inner.hand_over(&mut core, bodies)?;
        drop(core);
        inner.settle(pending)
    }

    /// Returns the collection of a name, made of `spec` where there is none. What exists is not
    /// compared with `spec`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for names that are empty or too long; `StoreFull`, `Poisoned`, `Closed`.
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

    /// Looks at the state, with log time in milliseconds. What it shows may not be durable yet.
    pub fn read<R>(&self, look: impl FnOnce(&State, u64) -> R) -> R {
        use crate::clock::Clock as _;
        let core = self.inner().lock();
        let now_ms = self.inner().time().wall_ms().max(core.state.newest_ms());
        look(&core.state, now_ms)
    }

    /// Returns the LSN below which a pchannel is needed by no unfinished work; `None` when nothing
    /// pins it.
    #[must_use]
    pub fn pinned(&self, pchannel: &str) -> Option<Lsn> {
        let core = self.inner().lock();
        self.inner().pinned(&core, pchannel)
    }

    /// Believes the wall clock where it is ahead of log time, and records that.
    ///
    /// # Errors
    ///
    /// `StoreFull`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`; a refusal leaves log time raised in this process.
    pub fn rebase_clock(&self) -> Result<u64> {
        use crate::clock::Clock as _;
        let inner = self.inner();
        let mut core = inner.lock();
        core.usable()?;
        let from_ms = inner.time().wall_ms();
        let to_ms = inner.time().rebase();
        let body = Body::ClockRebase(ClockRebase { from_ms });
        let (pending, _) = inner.hand_over(&mut core, vec![body])?;
        drop(core);
        inner.settle(pending)?;
        Ok(to_ms)
    }

    /// Records that an operator accepts an incomplete window.
    ///
    /// # Errors
    ///
    /// `StoreFull`, `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// Durable when this returns `Ok`.
    pub fn accept_window(&self, reason: &str) -> Result<()> {
        let inner = self.inner();
        let mut core = inner.lock();
        let body = Body::WindowAccepted(WindowAccepted { reason: reason.to_owned() });
        let (pending, _) = inner.hand_over(&mut core, vec![body])?;
        drop(core);
        inner.settle(pending)
    }

    /// Stops: no new work, steps in flight finish or are left to recovery. The store's lock is free
    /// when this returns.
    ///
    /// # Errors
    ///
    /// The first error of closing a log.
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

impl Inner {
    /// Records the policy in force where another one was recorded last.
    fn note_policy(&self) -> Result<()> {
        let mut core = self.lock();
        let record: PolicyRecord = core.policy.record();
        if core.state.policy() == Some(&record) {
            return Ok(());
        }
        match self.hand_over(&mut core, vec![Body::Policy(record)]) {
            Ok((pending, _)) => {
                drop(core);
                self.settle(pending)
            }
            // Opening needs no free byte; the policy holds in this process all the same.
            Err(e) if e.kind() == ErrorKind::StoreFull => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn missing_vchannels(&self, core: &Core, names: &[String]) -> Result<Vec<Body>> {
        let max = usize::try_from(VCHANNEL_NAME_LEN_MAX).unwrap_or(usize::MAX);
        let mut missing: Vec<&String> = Vec::new();
        for name in names {
            if name.is_empty() || name.len() > max {
                let len = name.len();
                let message = format!("a vchannel: expected 1 to {max} bytes, found {len}");
                return Err(refusal::invalid(message));
            }
            if core.state.pchannel_of(name).is_none() && !missing.contains(&name) {
                missing.push(name);
            }
        }
        let pchannels: Vec<&str> = self.store.pchannels().collect();
        let begin = core.state.vchannels().count();
        let round = pchannels.iter().cycle().skip(begin % pchannels.len().max(1));
        let record = |(vchannel, pchannel): (&String, &&str)| {
            let (vchannel, pchannel) = (vchannel.clone(), (*pchannel).to_owned());
            Body::Channel(Channel { vchannel, pchannel })
        };
        Ok(missing.into_iter().zip(round).map(record).collect())
    }

    fn ensure_collection(&self, spec: &CollectionSpec) -> Result<Arc<Collection>> {
        if spec.name.is_empty() || spec.vchannels.is_empty() {
            return Err(refusal::invalid("a collection needs a name and a vchannel"));
        }
        let mut core = self.lock();
        core.usable()?;
        if let Some(found) = core.state.collection_named(&spec.name) {
            return Ok(Arc::clone(found));
        }
        let mut bodies = self.missing_vchannels(&core, &spec.vchannels)?;
        let collection = Arc::new(Collection {
            id: core.state.next_collection_id(),
            name: spec.name.clone(),
            generation: 0,
            schema: spec.schema.clone(),
            primary_key: spec.primary_key.clone(),
            partition_function: 1,
            partition_version: 1,
            vchannels: spec.vchannels.clone(),
        });
        bodies.push(Body::Collection(Arc::clone(&collection)));
        let (pending, _) = self.hand_over(&mut core, bodies)?;
        drop(core);
        self.settle(pending)?;
        Ok(collection)
    }

    pub(crate) fn update_collection(&self, collection: Collection) -> Result<()> {
        let mut core = self.lock();
        core.usable()?;
        if core.state.collection(collection.id).is_none() {
            return Err(refusal::invalid(format!("unknown collection {}", collection.id)));
        }
        let body = Body::Collection(Arc::new(collection));
        let (pending, _) = self.hand_over(&mut core, vec![body])?;
        drop(core);
        self.settle(pending)
    }
}

fn check_policy(policy: &Policy, state: &State) -> Result<()> {
    let mut broken = policy.violations();
    broken.extend(policy.violations_against(state));
    if broken.is_empty() {
        return Ok(());
    }
    let fields = broken.iter().map(|violation| violation.name.clone()).collect();
    let lines: Vec<String> = broken.iter().map(ToString::to_string).collect();
    Err(refusal::invalid(format!("the policy is refused: {}", lines.join("; ")))
        .with_fields(fields))
}

/// Takes up what was not done: runs, locks, and the order in which workers look at it.
fn take_up(core: &mut Core) {
    let open = core.state.tasks().filter(|(_, task)| task.done.is_none());
    let open: Vec<BroadcastId> = open.map(|(id, _)| id).collect();
    let unseen = Copy::Unresolved;
    #[cfg(planted)]
    let unseen = if crate::planted::is_active(crate::planted::Bug::CopyWithoutScan) {
        Copy::Absent
    } else {
        unseen
    };
    for id in open {
        let Some(mut run) = core.run_of(id, unseen) else { continue };
        run.admitted = true;
        let claim = core.claim(&run.accepted, run.accepted_at_ms);
        core.locks.seize(Holder::Task(id), claim);
        if run.parked.is_none() {
            core.due.insert((Duration::ZERO, id));
        }
        core.runs.insert(id, run);
    }
    let running = core.state.jobs().filter(|(_, job)| job.over.is_none());
    let running: Vec<(BroadcastId, Claim)> =
        running.map(|(id, job)| (id, core.claim(&job.accepted, job.made_at_ms))).collect();
    for (id, claim) in running {
        core.locks.seize(Holder::Job(id), claim);
    }
}
