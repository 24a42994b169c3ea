//! What a broadcast holds from its acceptance on, so that it can be ended whatever becomes of the
//! disk: its pchannels from where their ends were read, and room for its copies and for its
//! records.
//!
//! A pchannel is let go once the acks of all its copies are durable, the rest with the end. A store
//! that is opened holds the same for what it takes up.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncelog_format::control::{Accepted, Body, JobLink, Outcome as Ending, PchannelEnd};
use oncelog_format::message::BroadcastId;

use super::core::{Cell, Copy, Core, Guard, Inner, Run, Settled};
use super::locks::{Claim, Holder};
use super::owed::Promise;
use super::refusal;
use super::room;
use super::sizes::CopySizes;
use super::state::{job_name, task_name};
use crate::channel::{ChannelLog, ChannelPin};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Pending;
use crate::log::reserve::RESERVED_MAX;
use crate::lsn::Lsn;
use crate::store::Store;

/// How long acks that nobody waits for take to be durable, about.
const ACKS_WAIT: Duration = Duration::from_millis(10);

/// A pchannel that a broadcast holds.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) pchannel: String,
    pub(crate) pin: ChannelPin,
    /// Of the copies that are to come.
    pub(super) bytes: u64,
}

impl Inner {
    /// Pins the pchannels of a broadcast where they end, and has them keep room for its copies, of
    /// so many bytes by pchannel; where it starts a job, for those of the job's ending too. Those
    /// of an ending were promised with its job, and nothing is asked for: nothing that the job
    /// holds keeps it from ending.
    ///
    /// # Errors
    ///
    /// `Limit` where no reserve holds them, `StoreFull` where they may not fit, or room is to be
    /// made first; the errors of the channels. Behind any of them [`Inner::tell_owed`] is to be
    /// called.
    pub(crate) fn hold_ends(
        &self,
        core: &Core,
        accepted: &Accepted,
        copies: &[(String, u64)],
    ) -> Result<(Vec<Hold>, Vec<PchannelEnd>)> {
        let header = &accepted.header;
        let name = task_name(header.id);
        let ending = match accepted.job {
            JobLink::Starts => Promise::of_ending(&self.store, &core.state, accepted)?,
            _ => Promise::default(),
        };
        let (mut holds, mut ends): (Vec<Hold>, Vec<PchannelEnd>) = (Vec::new(), Vec::new());
        for vchannel in &header.vchannels {
            let channel = self.channel_of(&core.state, vchannel)?;
            let pchannel = core.state.pchannel_of(vchannel).unwrap_or_default();
            if ends.iter().any(|end| end.pchannel == pchannel) {
                continue;
            }
            let bytes = copies.iter().find(|(name, _)| name == pchannel).map_or(0, |found| found.1);
            if !matches!(accepted.job, JobLink::Ends { .. }) {
                let more = bytes.saturating_add(ending.to(pchannel));
                keep(&**channel, pchannel, (core.owed.to(pchannel), more))?;
            }
            let pin = channel.pin(&name, None).map_err(|e| room::of_channel(pchannel, e))?;
            #[cfg(planted)]
            let pin = if crate::planted::is_active(crate::planted::Bug::EndUnpinned) {
                ChannelPin::new(pin.lsn(), ())
            } else {
                pin
            };
            let pchannel = pchannel.to_owned();
            ends.push(PchannelEnd { pchannel: pchannel.clone(), next_lsn: pin.lsn().get() });
            holds.push(Hold { pchannel, pin, bytes });
        }
        Ok((holds, ends))
    }

    /// Hands an acceptance over and makes its run.
    pub(crate) fn begin(
        &self,
        core: &mut Core,
        batch: Vec<Body>,
        id: BroadcastId,
        holds: Vec<Hold>,
    ) -> Result<Arc<Cell>> {
        // What was promised to it, and refused, is nobody's.
        let handed = self.hand_over_and_settle(core, batch, |_| Settled::Admitted(id));
        handed.inspect_err(|_| self.tell_owed(core))?;
        let run = core.run_of(id, Copy::Absent);
        // What was applied is there.
        let run = run.ok_or_else(refusal::unknown)?;
        let cell = Arc::clone(&run.cell);
        core.runs.insert(id, Run { holds, ..run });
        core.owe(id);
        core.owe_ending_of(&self.store, id);
        Ok(cell)
    }

    /// Lets go of the pchannels of a task whose acks are durable.
    pub(crate) fn let_go_of_acked(&self, core: &mut Core, id: BroadcastId) {
        let Core { runs, state, owed, .. } = core;
        let Some(run) = runs.get_mut(&id) else { return };
        if run.acked_at.is_some_and(|lsn| self.store.control().durable_lsn() < Some(lsn)) {
            return;
        }
        let needed = state.ends_needed(id);
        run.holds.retain(|hold| {
            let stays = needed.iter().any(|end| end.pchannel == hold.pchannel);
            if !stays {
                owed.copies_end(hold);
            }
            stays
        });
        self.tell_owed(core);
    }

    /// Makes sure that the ending of a job will fit which is to run again.
    ///
    /// # Errors
    ///
    /// As [`Inner::hold_ends`].
    pub(crate) fn promise_ending(&self, core: &Core, starts: &Accepted) -> Result<()> {
        let ending = Promise::of_ending(&self.store, &core.state, starts)?;
        for (pchannel, bytes) in ending.by_pchannel() {
            if let Some(channel) = self.store.channel(pchannel) {
                keep(&**channel, pchannel, (core.owed.to(pchannel), bytes))?;
            }
        }
        Ok(())
    }

    /// Takes a run out that has ended: it holds nothing any more, and nothing is kept for it.
    pub(crate) fn take_run(
        &self,
        core: &mut Core,
        id: BroadcastId,
        ending: &Ending,
    ) -> Option<Run> {
        let run = core.take_run(id)?;
        if run.accepted.job == JobLink::Starts && *ending != Ending::Done {
            core.disown_ending(id);
        }
        self.tell_owed(core);
        Some(run)
    }

    /// Tells the channels what is owed to them: what was promised beside that is new work's again.
    pub(crate) fn tell_owed(&self, core: &Core) {
        tell_owed(&self.store, core);
    }

    /// Has the pchannels of a task let go of once its acks are durable.
    pub(crate) fn let_go_when_durable(&self, core: &mut Core, id: BroadcastId, acks: &Pending) {
        core.acked.push_back((acks.lsns().last, id));
        self.handed.notify_one();
    }

    /// Waits for a batch to be handed over, and looks meanwhile whether acks are durable.
    pub(crate) fn rest<'a>(&self, mut core: Guard<'a>) -> Guard<'a> {
        self.let_go_of_durable(&mut core);
        if core.acked.is_empty() {
            return self.handed.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        let waited = self.handed.wait_timeout(core, ACKS_WAIT);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Lets go of the pchannels of tasks whose acks have become durable while nobody waited for
    /// that.
    pub(crate) fn let_go_of_durable(&self, core: &mut Core) {
        if core.acked.is_empty() {
            return;
        }
        let durable = self.store.control().durable_lsn();
        while let Some((lsn, id)) = core.acked.front().copied()
            && Some(lsn) <= durable
        {
            core.acked.pop_front();
            self.let_go_of_acked(core, id);
        }
    }

    /// The LSN below which nothing of a pchannel is needed by work that is not done.
    pub(crate) fn pinned(&self, core: &Core, pchannel: &str) -> Option<Lsn> {
        let runs = core.runs.values().flat_map(|run| &run.holds);
        let runs = runs.filter(|hold| hold.pchannel == pchannel).map(|hold| hold.pin.lsn());
        let plans = core.plan_pins.values().flatten();
        let plans = plans.filter(|(name, _)| name == pchannel).map(|(_, pin)| pin.lsn());
        runs.chain(plans).min()
    }
}

/// Every channel: one that nothing accepted goes to has no entry, and may have been promised room.
fn tell_owed(store: &Store, core: &Core) {
    for pchannel in store.pchannels() {
        if let Some(channel) = store.channel(pchannel) {
            channel.owe(core.owed.to(pchannel));
        }
    }
}

/// Has a channel keep room for so many bytes beside those that it is owed, where there is some; see
/// [`super::room`].
fn keep(channel: &dyn ChannelLog, pchannel: &str, (owed, bytes): (u64, u64)) -> Result<()> {
    if bytes > RESERVED_MAX {
        let what = format!(
            "the copies on one pchannel are too large: expected at most {RESERVED_MAX} bytes, \
             found {bytes}"
        );
        return Err(Error::new(ErrorKind::Limit, what));
    }
    let all = owed.saturating_add(bytes);
    if all > RESERVED_MAX {
        let what =
            "a pchannel owes as much as a reserve holds: until copies stand, it takes no more";
        return Err(Error::new(ErrorKind::StoreFull, what));
    }
    if !channel.is_promised(all).map_err(|e| room::of_channel(pchannel, e))? {
        return Err(room::lacks(Some(pchannel), all));
    }
    channel.owe(all);
    Ok(())
}

/// Takes up what was not done: runs, locks, what they hold, and the order in which workers look at
/// it.
///
/// # Errors
///
/// Those of the channels.
pub(super) fn take_up(core: &mut Core, store: &Store) -> Result<()> {
    let now_ms = store.time().wall_ms();
    let open: Vec<BroadcastId> = core.state.open_tasks().map(|(id, _)| id).collect();
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
        run.taken_up_at_ms = now_ms;
        let claim = core.claim(&run.accepted, run.accepted_at_ms);
        core.locks.seize(Holder::Task(id), claim);
        let goes_on = run.parked.is_none();
        core.runs.insert(id, run);
        if goes_on {
            core.set_due(id, Duration::ZERO);
        }
        hold_again(store, core, id)?;
    }
    let running = core.state.running_jobs();
    let running: Vec<(BroadcastId, Claim)> =
        running.map(|(id, job)| (id, core.claim(&job.accepted, job.made_at_ms))).collect();
    for (id, claim) in running {
        core.locks.seize(Holder::Job(id), claim);
        hold_plan(store, core, id)?;
        core.owe_ending(store, id);
    }
    keep_room(store, core);
    Ok(())
}

/// Keeps room for what was accepted, as the process before did. Without space for that, new work is
/// refused until there is.
fn keep_room(store: &Store, core: &Core) {
    for (pchannel, bytes) in core.owed.by_pchannel().filter(|(_, bytes)| *bytes > 0) {
        let Some(channel) = store.channel(pchannel) else { continue };
        if let Err(e) = channel.promise(bytes.min(RESERVED_MAX)) {
            tracing::warn!(pchannel, bytes, error = %e, "no room is kept for what was accepted");
        }
    }
    tell_owed(store, core);
    if core.owed.control() > 0
        && let Err(e) = store.control().promise(core.promised_bytes(0))
    {
        tracing::warn!(error = %e, "no room is kept for the end of what was accepted");
    }
}

/// Holds what a broadcast of an earlier process held: the pchannels with a copy that has no ack.
///
/// # Errors
///
/// Those of the channels.
fn hold_again(store: &Store, core: &mut Core, id: BroadcastId) -> Result<()> {
    let Some(task) = core.state.task(id) else { return Ok(()) };
    let accepted = Arc::clone(&task.accepted);
    let copies = accepted.header.vchannels.iter().zip(&task.acks);
    let missing: Vec<&String> =
        copies.filter(|(_, ack)| ack.is_none()).map(|(vchannel, _)| vchannel).collect();
    let mut holds: Vec<Hold> = Vec::new();
    let ends = core.state.ends_needed(id);
    let mut sizes = CopySizes::new(&accepted, core.state.term());
    for end in &ends {
        let of_this =
            |vchannel: &&&String| core.state.pchannel_of(vchannel) == Some(end.pchannel.as_str());
        let missing = missing.iter().filter(of_this);
        let Some(channel) = store.channel(&end.pchannel) else { continue };
        let mut bytes = 0_u64;
        for vchannel in missing {
            let copy = sizes.of((&end.pchannel, &**channel), vchannel)?;
            bytes = bytes.saturating_add(copy);
        }
        let pin = channel.pin(&task_name(id), Lsn::new(end.next_lsn))?;
        holds.push(Hold { pchannel: end.pchannel.clone(), pin, bytes });
    }
    if let Some(run) = core.runs.get_mut(&id) {
        run.holds = holds;
    }
    core.owe(id);
    core.owe_ending_of(store, id);
    Ok(())
}

/// Pins the pchannels of a job from where its messages can stand.
///
/// # Errors
///
/// Those of the channels.
fn hold_plan(store: &Store, core: &mut Core, job: BroadcastId) -> Result<()> {
    let plan = core.state.job(job).and_then(|job| job.plan.clone());
    let mut pins = Vec::new();
    for end in plan.iter().flat_map(|plan| &plan.from) {
        let Some(channel) = store.channel(&end.pchannel) else { continue };
        let pin = channel.pin(&job_name(job), Lsn::new(end.next_lsn))?;
        pins.push((end.pchannel.clone(), pin));
    }
    if !pins.is_empty() {
        core.plan_pins.insert(job, pins);
    }
    Ok(())
}

/// Where the acks of a task end.
pub(super) fn note_acks(core: &mut Core, id: BroadcastId, pending: &Pending) {
    if let Some(run) = core.runs.get_mut(&id) {
        run.acked_at = Some(pending.lsns().last);
    }
}
