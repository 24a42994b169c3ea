//! From a request to its acceptance: lookup, reservation, validation, locks, the batch.
//!
//! A reservation is volatile and consumes nothing. [`Admission`] is its guard: on every way out
//! before the batch is handed over it gives up the scope, the slots and the locks, once. From the
//! hand-over on they belong to the task.

use std::sync::Arc;
use std::time::Duration;

use oncelog_format::control::{Accepted, Body, DropCause, Dropped, JobLink};
use oncelog_format::message::{BroadcastHeader, BroadcastId, Scope};

use super::copies;
use super::core::{Cell, Core, Deadline, Guard, Inner};
use super::deciding::DECISION_LEN;
use super::fingerprint::{Asked, Stated};
use super::kind::{MessageType, OnConflict, PayloadForm, Role};
use super::locks::{Claim, Holder, canonical};
use super::made::Lent;
use super::policy::WhenFull;
use super::refusal;
use super::request::{Answer, Request, check_key, tombstone_answer};
use super::room;
use super::state::Known;
use super::told::Told;
use super::trace::{self, TraceParent};
use super::waiting::{WAITERS_MAX, WAITERS_PER_KEY_MAX, Waiting};
use super::window::{Admission as Room, Reserved};
use crate::clock::Clock;
use crate::error::Result;

/// What the first critical section says.
pub(super) enum Looked<'a> {
    /// The key is known: this is its answer.
    Known(Answer),
    /// It is not, and is reserved.
    Reserved(Admission<'a>),
}

/// Holds a reservation, slots and locks until the request is handed over.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    inner: &'a Inner,
    ticket: u64,
    scope: Option<Arc<Scope>>,
    starts_job: bool,
    armed: bool,
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if self.armed {
            let mut core = self.inner.lock();
            #[cfg(planted)]
            if crate::planted::is_active(crate::planted::Bug::LockLeaked) {
                self.let_go(&mut core);
                return;
            }
            #[cfg(planted)]
            if crate::planted::is_active(crate::planted::Bug::ReservationLeaked) {
                self.inner.release(&mut core, self.holder());
                return;
            }
            self.let_go(&mut core);
            self.inner.release(&mut core, self.holder());
        }
    }
}

impl Admission<'_> {
    fn holder(&self) -> Holder {
        Holder::Admission(self.ticket)
    }

    /// Gives up the scope and the slots. All waiters look again: where nothing was accepted, one of
    /// them reserves the scope and goes on with its own request, and the others wait for it.
    fn let_go(&mut self, core: &mut Core) {
        self.armed = false;
        core.reserved_jobs -= usize::from(self.starts_job);
        let Some(scope) = &self.scope else { return };
        if let Some(count) = core.reserved.get_mut(&scope.principal) {
            *count -= 1;
            if *count == 0 {
                core.reserved.remove(&scope.principal);
            }
        }
        if let Some(reservation) = core.reservations.get_mut(scope) {
            reservation.owned = false;
            reservation.fell.notify_all();
            if reservation.waiters == 0 {
                core.reservations.remove(scope);
            }
        }
    }
}

impl Inner {
    pub(crate) fn submit(&self, request: &Request, timeout: Option<Duration>) -> Result<Answer> {
        let name = request.message_type.as_str();
        let parent = request.trace_context.as_deref().and_then(TraceParent::parse);
        let trace_id = parent.as_ref().map(TraceParent::trace_id);
        let parent_id = parent.as_ref().map(TraceParent::parent_id);
        let span = tracing::info_span!("submit", message_type = name, trace_id, parent_id);
        let _entered = span.entered();
        let answered = self.answer(request, timeout);
        answered.inspect_err(|e| self.counts.error(e))
    }

    fn answer(&self, request: &Request, timeout: Option<Duration>) -> Result<Answer> {
        let deadline = self.deadline(timeout);
        check_key(request)?;
        let kind = self.types.get(&request.message_type);
        let form = kind.map_or(PayloadForm::Bytes, |kind| kind.payload_form());
        let mut asked = Asked::new(request, canonical(&request.resources), form)?;
        asked.warns = kind.is_some_and(|kind| kind.on_conflict() == OnConflict::Warn);
        let starts_job = kind.is_some_and(|kind| kind.role() == Role::StartsJob);
        loop {
            let mut admission = match self.look_up(&asked, starts_job, deadline)? {
                Looked::Known(answer) => {
                    self.counts.key_hits.one();
                    return Ok(answer);
                }
                Looked::Reserved(admission) => admission,
            };
            let kind = self.check(&asked)?;
            kind.validate(request)?;
            self.probe(request).map_err(refusal::for_now)?;
            let claim = Claim {
                resources: asked.resources.clone(),
                message_type: request.message_type.clone(),
                since_ms: self.time().wall_ms(),
            };
            self.ask(admission.holder(), claim, deadline)?;
            let accepted = self.with_room(|| self.accept(&mut admission, &asked, kind.as_ref()))?;
            // Without one, the key came to life again while this request waited for its locks.
            let Some((id, cell)) = accepted else { continue };
            return self.wait_for_end(self.lock(), id, &cell, false, deadline);
        }
    }

    /// Lookup and reservation, in one critical section.
    pub(super) fn look_up(
        &self,
        asked: &Asked<'_>,
        starts_job: bool,
        deadline: Deadline,
    ) -> Result<Looked<'_>> {
        let (mut now_ms, mut clock_held) = self.time().look();
        let mut core = self.lock();
        let Some(scope) = &asked.request.scope else {
            core.usable()?;
            self.takes_work()?;
            self.check_slots(&core, starts_job)?;
            let ticket = core.ticket();
            core.reserved_jobs += usize::from(starts_job);
            let admission = Admission { inner: self, ticket, scope: None, starts_job, armed: true };
            return Ok(Looked::Reserved(admission));
        };
        loop {
            // A known key answers also when nothing can be decided any more.
            if core.closing {
                return Err(refusal::closed());
            }
            if core.reservations.get(scope).is_some_and(|reservation| reservation.owned) {
                core = self.wait_for_reservation(core, scope, deadline)?;
                (now_ms, clock_held) = self.time().look();
                continue;
            }
            let owner = match core.state.known(scope, now_ms) {
                Known::Done(stone) => match stone.answer() {
                    // The end of a run may not be durable yet.
                    Some(answer) if !core.runs.contains_key(&stone.id()) => {
                        let differs = self.compare_fast(stone.print(), asked)?;
                        self.warn(&mut core, answer.id, &differs);
                        return Ok(Looked::Known(Answer { differs, clock_held, ..answer }));
                    }
                    _ => Some(stone.id()),
                },
                Known::Owned(id) => Some(id),
                Known::New => None,
            };
            if let Some(id) = owner {
                if let Some(answer) = self.answer_duplicate(core, id, asked, deadline)? {
                    return Ok(Looked::Known(answer));
                }
                (now_ms, clock_held) = self.time().look();
                core = self.lock();
                continue;
            }
            core.usable()?;
            self.takes_work()?;
            let reserved = core.reserved_beside(&scope.principal);
            let window = core.state.window();
            match window.admit(&scope.principal, reserved, &core.policy, now_ms) {
                Room::Room | Room::Evict(_) => {}
                Room::Full { count, bound, next_free_in_ms } => {
                    return Err(refusal::window_full(count, bound, next_free_in_ms));
                }
            }
            self.check_slots(&core, starts_job)?;
            let ticket = core.ticket();
            core.reserved_jobs += usize::from(starts_job);
            *core.reserved.entry(scope.principal.clone()).or_default() += 1;
            core.reservations.entry(Arc::clone(scope)).or_default().owned = true;
            self.counts.key_misses.one();
            let scope = Some(Arc::clone(scope));
            let admission = Admission { inner: self, ticket, scope, starts_job, armed: true };
            return Ok(Looked::Reserved(admission));
        }
    }

    fn check_slots(&self, core: &Core, starts_job: bool) -> Result<()> {
        if !starts_job {
            return Ok(());
        }
        let (count, bound) =
            (core.state.live_job_count() + core.reserved_jobs, self.options.job_slots_max);
        if count < bound { Ok(()) } else { Err(refusal::slots_full(count, bound)) }
    }

    fn wait_for_reservation<'a>(
        &self,
        mut core: Guard<'a>,
        scope: &Arc<Scope>,
        deadline: Deadline,
    ) -> Result<Guard<'a>> {
        let Some(reservation) = core.reservations.get_mut(scope) else { return Ok(core) };
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::ReservedIsAccepted) {
            return Err(refusal::conflict(Vec::new()));
        }
        if reservation.waiters >= WAITERS_PER_KEY_MAX {
            return Err(refusal::crowded(WAITERS_PER_KEY_MAX, None));
        }
        let _waiting = Waiting::enter(&self.waiting, WAITERS_MAX, None)?;
        reservation.waiters += 1;
        let fell = Arc::clone(&reservation.fell);
        let (mut core, told) = self.wait(core, &fell, deadline);
        if let Some(reservation) = core.reservations.get_mut(scope) {
            reservation.waiters -= 1;
            if !reservation.owned && reservation.waiters == 0 {
                core.reservations.remove(scope);
            }
        }
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::WaitersAllGo) {
            core.reservations.remove(scope);
        }
        if told { Ok(core) } else { Err(refusal::admission_pending()) }
    }

    /// The answer of a key that is known; `None` when it was forgotten meanwhile.
    fn answer_duplicate(
        &self,
        mut core: Guard<'_>,
        id: BroadcastId,
        asked: &Asked<'_>,
        deadline: Deadline,
    ) -> Result<Option<Answer>> {
        if let Some(run) = core.runs.get(&id) {
            let (accepted, cell) = (Arc::clone(&run.accepted), Arc::clone(&run.cell));
            let in_flight = run.admitted.then_some(id);
            let _one = Waiting::enter(&cell.waiters, WAITERS_PER_KEY_MAX, in_flight)?;
            let _all = Waiting::enter(&self.waiting, WAITERS_MAX, in_flight)?;
            // Until its acceptance is durable it answers nothing, not even Conflict.
            while core.runs.get(&id).is_some_and(|run| !run.admitted) {
                if core.usable().is_err() {
                    return Err(refusal::unknown());
                }
                #[cfg(planted)]
                if crate::planted::is_active(crate::planted::Bug::HandedIsAccepted) {
                    break;
                }
                let (next, told) = self.wait(core, &cell.turned, deadline);
                core = next;
                if !told {
                    return Err(refusal::unknown());
                }
            }
            let differs = self.compare(Stated::from(&accepted.fingerprint), asked)?;
            self.warn(&mut core, id, &differs);
            #[cfg(planted)]
            if crate::planted::is_active(crate::planted::Bug::DuplicateBeforeCallback)
                && let Some(run) = core.runs.get(&id)
            {
                return Ok(Some(run.early_answer()));
            }
            let answer = self.wait_for_end(core, id, &cell, true, deadline)?;
            return Ok(Some(Answer { differs, ..answer }));
        }
        let Some(task) = core.state.task(id) else { return Ok(None) };
        let differs = self.compare(Stated::from(&task.accepted.fingerprint), asked)?;
        let answer = tombstone_answer(&task);
        self.warn(&mut core, id, &differs);
        Ok(answer.map(|answer| self.as_given(Answer { differs, ..answer }, true)))
    }

    /// The names of the fields in which a request differs from the one that its key was accepted
    /// for, where its type warns of that; none where it is the same.
    fn compare(&self, stated: Stated<'_>, asked: &Asked<'_>) -> Result<Vec<String>> {
        let fields = asked.differences(stated)?;
        if fields.is_empty() || asked.warns {
            return Ok(fields);
        }
        self.counts.key_conflicts.one();
        Err(refusal::conflict(fields))
    }

    /// The same, of a key that is answered from its tombstone.
    fn compare_fast(&self, stated: Stated<'_>, asked: &Asked<'_>) -> Result<Vec<String>> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::FingerprintFastPath) {
            return Ok(Vec::new());
        }
        self.compare(stated, asked)
    }

    /// Counts and tells that a request which differs is answered as the original.
    fn warn(&self, core: &mut Core, id: BroadcastId, differs: &[String]) {
        if !differs.is_empty() {
            self.counts.key_warnings.one();
            self.keep_told(core, Told::Differs(id, differs.join(", ")));
        }
    }

    /// What a request alone shows, once no accepted key answers it.
    fn check(&self, asked: &Asked<'_>) -> Result<Arc<dyn MessageType>> {
        let (request, resources) = (asked.request, &asked.resources);
        let name = &request.message_type;
        let kind = self.types.get(name);
        let kind = kind.ok_or_else(|| refusal::invalid(format!("unknown message type {name}")))?;
        if kind.role() == Role::EndsJob {
            return Err(refusal::invalid(format!("{name} is submitted by the job it ends")));
        }
        if let Some(resource) = resources.iter().find(|r| r.domain.starts_with('_')) {
            let domain = &resource.domain;
            return Err(refusal::invalid(format!("resource domain {domain} is reserved")));
        }
        if let Some(key) = request.properties.keys().find(|key| key.starts_with('_')) {
            return Err(refusal::invalid(format!("property key {key} is reserved")));
        }
        asked.check_payload()?;
        Ok(Arc::clone(kind))
    }

    /// Checks again, builds the batch, and hands it over; `None` when the key lives again.
    fn accept(
        &self,
        admission: &mut Admission<'_>,
        asked: &Asked<'_>,
        kind: &dyn MessageType,
    ) -> Result<Option<(BroadcastId, Arc<Cell>)>> {
        let request = asked.request;
        let trace = request.trace_context.as_deref().and_then(trace::kept);
        let mut core = self.lock_to_take_in(request.carried_len() + DECISION_LEN);
        core.usable()?;
        let made = self.made_by(&core, request)?;
        kind.recheck(request, &Lent::new(&mut core, &made).state)?;
        let now_ms = self.time().expiry_ms(core.state.newest_ms());
        let (mut batch, mut evicted) = (Vec::new(), Vec::new());
        if let Some(scope) = &request.scope {
            if let Some(id) = core.state.owner(scope) {
                if !core.state.is_over(id, now_ms) {
                    return Ok(None);
                }
                batch.push(Body::Dropped(Dropped { id, cause: DropCause::Expired }));
            }
            // The slots of those that are being admitted were counted when they were reserved, this
            // one's too.
            let others = core.reserved_beside(&scope.principal).others;
            let reserved = Reserved { others, ..Reserved::default() };
            let window = core.state.window();
            match window.admit(&scope.principal, reserved, &core.policy, now_ms) {
                Room::Room => {}
                Room::Evict(ids) => evicted = ids,
                Room::Full { count, bound, next_free_in_ms } => {
                    return Err(refusal::window_full(count, bound, next_free_in_ms));
                }
            }
            evicted.extend(core.heavy_victims(&evicted, now_ms));
            let cause = DropCause::Evicted;
            batch.extend(evicted.iter().map(|id| Body::Dropped(Dropped { id: *id, cause })));
        }
        let mut accepted = acceptance(&core, asked, kind);
        accepted.trace = trace;
        if admission.starts_job {
            accepted.job = JobLink::Starts;
        }
        self.let_go_of_durable(&mut core);
        let held = {
            let lent = Lent::new(&mut core, &made);
            let copies = copies::check(self, &lent, &accepted)?;
            self.hold_ends(&lent, &accepted, &copies)
        };
        let held = held.map_err(refusal::for_now);
        let holds;
        (holds, accepted.ends) = held.inspect_err(|e| {
            self.tell_owed(&core);
            if !room::is_lack(e) {
                self.note_refusal(&mut core, e);
            }
        })?;
        let accepted = Arc::new(accepted);
        batch.extend(made);
        batch.push(Body::Accepted(Arc::clone(&accepted)));
        let cell = self.begin(&mut core, batch, accepted.id(), holds)?;
        core.told.extend(evicted.into_iter().map(Told::Evicted));
        core.locks.transfer(admission.holder(), Holder::Task(accepted.id()));
        admission.let_go(&mut core);
        Ok(Some((accepted.id(), cell)))
    }
}

/// The acceptance of a request that starts no job, without the ends of its pchannels and its trace.
fn acceptance(core: &Core, asked: &Asked<'_>, kind: &dyn MessageType) -> Accepted {
    let request = asked.request;
    let mut vchannels = request.vchannels.clone();
    vchannels.sort();
    vchannels.dedup();
    Accepted {
        ends: Vec::new(),
        header: BroadcastHeader {
            id: core.state.next_id(),
            vchannels,
            resources: asked.resources.clone(),
            ack: kind.ack_mode(),
        },
        message_type: request.message_type.clone(),
        scope: request.scope.as_deref().cloned(),
        fingerprint: asked.print.clone(),
        lifetime_ms: core.policy.lifetime_ms(),
        firm: core.policy.window_full == WhenFull::Refuse,
        job: JobLink::None,
        properties: request.properties.clone().into_iter().collect(),
        trace: None,
        payload: request.payload.clone(),
    }
}
