//! What a broadcast holds from its acceptance on, so that it can be ended whatever becomes of the disk:
//! its pchannels from where their ends were read, and room for its copies and for its records.
//!
//! A pchannel is let go once the acks of all its copies are durable, the rest with the end. A store
//! that is opened holds the same for what it takes up.

use std::sync::PoisonError;
use std::time::Duration;

use oncelog_format::control::{Accepted, Body, PchannelEnd};
use oncelog_format::message::{BroadcastHeader, BroadcastId};

use super::core::{Copy, Core, Guard, Inner};
use super::ends;
use super::locks::{Claim, Holder};
use crate::channel::ChannelPin;
use crate::clock::Clock;
use crate::error::Result;
use crate::log::Pending;
use crate::log::reserve::Use;
use crate::lsn::Lsn;
use crate::store::Store;

/// Bytes of control that the end of a task takes: Done, Park and Skip, each with its frame and a
/// reason of [`REASON_BYTES_MAX`].
const ENDING_BYTES: u64 = 1_280;

/// Bytes of an Ack of one vchannel, with its frame.
const ACK_BYTES: u64 = 96;

/// Bytes of a reason where there is no space for a longer one.
pub(super) const REASON_BYTES_MAX: usize = 256;

/// Bytes that a task takes in a checkpoint, about, and those of all else.
const ENTRY_BYTES: u64 = 256;
const CHECKPOINT_BYTES: u64 = 16 << 10;

/// How long acks that nobody waits for take to be durable, about.
const ACKS_WAIT: Duration = Duration::from_millis(10);

/// A pchannel that a broadcast holds.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) pchannel: String,
    pub(crate) pin: ChannelPin,
    /// Of the copies that are to come.
    bytes: u64,
}

/// Bytes of control that a task may yet take.
fn control_bytes(accepted: &Accepted) -> u64 {
    let vchannels = u64::try_from(accepted.header.vchannels.len()).unwrap_or(u64::MAX);
    vchannels.saturating_mul(ACK_BYTES).saturating_add(ENDING_BYTES)
}

impl Inner {
    /// Pins the pchannels of a broadcast where they end, and makes sure that its copies, of so many
    /// bytes by pchannel, will fit.
    ///
    /// # Errors
    ///
    /// `StoreFull` where they may not; the errors of the channels.
    pub(crate) fn hold_ends(
        &self,
        core: &Core,
        header: &BroadcastHeader,
        copies: &[(String, u64)],
    ) -> Result<(Vec<Hold>, Vec<PchannelEnd>)> {
        let name = format!("broadcast {}", header.id);
        let (mut holds, mut ends): (Vec<Hold>, Vec<PchannelEnd>) = (Vec::new(), Vec::new());
        for vchannel in &header.vchannels {
            let channel = self.channel_of(&core.state, vchannel)?;
            let pchannel = core.state.pchannel_of(vchannel).unwrap_or_default();
            if ends.iter().any(|end| end.pchannel == pchannel) {
                continue;
            }
            let bytes = copies.iter().find(|(name, _)| name == pchannel).map_or(0, |found| found.1);
            channel.promise(core.owed_to(pchannel).saturating_add(bytes))?;
            let pin = channel.pin(&name, None)?;
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

    /// Lets go of the pchannels of a task whose acks are durable.
    pub(crate) fn let_go_of_acked(&self, core: &mut Core, id: BroadcastId) {
        let Core { runs, state, owed, .. } = core;
        let Some(run) = runs.get_mut(&id) else { return };
        if run.acked_at.is_some_and(|lsn| self.store.control().durable_lsn() < Some(lsn)) {
            return;
        }
        let Some(task) = state.task(id) else { return };
        let copies = run.accepted.header.vchannels.iter().zip(&task.acks);
        let missing = copies.filter(|(_, ack)| ack.is_none());
        let missing: Vec<&str> =
            missing.filter_map(|(vchannel, _)| state.pchannel_of(vchannel)).collect();
        run.holds.retain(|hold| {
            let stays = missing.contains(&hold.pchannel.as_str());
            if !stays {
                owed.copies_end(hold);
            }
            stays
        });
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

    /// Lets go of the pchannels of tasks whose acks have become durable while nobody waited for that.
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

/// Bytes that accepted work may yet take.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    control: u64,
    copies: std::collections::BTreeMap<String, u64>,
}

impl Owed {
    fn copies_end(&mut self, hold: &Hold) {
        if let Some(bytes) = self.copies.get_mut(&hold.pchannel) {
            *bytes = bytes.saturating_sub(hold.bytes);
        }
    }
}

impl Core {
    fn owed_to(&self, pchannel: &str) -> u64 {
        self.owed.copies.get(pchannel).copied().unwrap_or_default()
    }

    /// What a batch is to control's reserve.
    pub(crate) fn usage(&self, bodies: &[Body]) -> Use {
        let owed = self.owed.control;
        if !bodies.iter().all(Body::is_finishing) {
            let new = bodies.iter().filter_map(|body| match body {
                Body::Accepted(accepted) => Some(control_bytes(accepted)),
                _ => None,
            });
            return Use::New(new.fold(owed, u64::saturating_add));
        }
        // A checkpoint frees space, and comes before what only makes it smaller.
        let begins = |body: &Body| matches!(body, Body::Dropped(_) | Body::CheckpointBegin(_));
        if bodies.iter().any(begins) {
            Use::Ending(owed.saturating_add(self.checkpoint_bytes()))
        } else if bodies.iter().any(Body::is_checkpoint) {
            Use::Ending(owed)
        } else if let Some(id) = bodies.iter().find_map(ends::beyond_room) {
            // It takes what nobody else was promised.
            let own = self.runs.get(&id).map_or(0, |run| control_bytes(&run.accepted));
            Use::Ending(owed.saturating_sub(own))
        } else {
            Use::Ending(0)
        }
    }

    /// Bytes that a checkpoint takes, about.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        let tasks = u64::try_from(self.state.task_count()).unwrap_or(u64::MAX);
        let about = tasks.saturating_mul(ENTRY_BYTES).saturating_add(CHECKPOINT_BYTES);
        about.max(self.stream_bytes)
    }

    /// Bytes that control keeps for work that was accepted, and for one checkpoint.
    pub(crate) fn promised_bytes(&self) -> u64 {
        self.owed.control.saturating_add(self.checkpoint_bytes())
    }

    /// Counts what a run owes, from its acceptance on.
    pub(crate) fn owe(&mut self, id: BroadcastId) {
        let Some(run) = self.runs.get(&id) else { return };
        self.owed.control = self.owed.control.saturating_add(control_bytes(&run.accepted));
        for hold in &run.holds {
            let bytes = self.owed.copies.entry(hold.pchannel.clone()).or_default();
            *bytes = bytes.saturating_add(hold.bytes);
        }
    }

    /// Takes a run out that has ended; it holds nothing any more.
    pub(crate) fn take_run(&mut self, id: BroadcastId) -> Option<super::core::Run> {
        let mut run = self.runs.remove(&id)?;
        self.owed.control = self.owed.control.saturating_sub(control_bytes(&run.accepted));
        run.holds.drain(..).for_each(|hold| self.owed.copies_end(&hold));
        Some(run)
    }
}

/// Takes up what was not done: runs, locks, what they hold, and the order in which workers look at it.
///
/// # Errors
///
/// Those of the channels.
pub(super) fn take_up(core: &mut Core, store: &Store) -> Result<()> {
    let now_ms = store.time().wall_ms();
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
        run.taken_up_at_ms = now_ms;
        let claim = core.claim(&run.accepted, run.accepted_at_ms);
        core.locks.seize(Holder::Task(id), claim);
        if run.parked.is_none() {
            core.due.insert((Duration::ZERO, id));
        }
        core.runs.insert(id, run);
        hold_again(store, core, id)?;
    }
    let running = core.state.running_jobs();
    let running: Vec<(BroadcastId, Claim)> =
        running.map(|(id, job)| (id, core.claim(&job.accepted, job.made_at_ms))).collect();
    for (id, claim) in running {
        core.locks.seize(Holder::Job(id), claim);
        hold_plan(store, core, id)?;
    }
    Ok(())
}

/// Holds what a broadcast of an earlier process held: the pchannels with a copy that has no ack.
///
/// # Errors
///
/// Those of the channels.
fn hold_again(store: &Store, core: &mut Core, id: BroadcastId) -> Result<()> {
    let Some(task) = core.state.task(id) else { return Ok(()) };
    let accepted = std::sync::Arc::clone(&task.accepted);
    let copies = accepted.header.vchannels.iter().zip(&task.acks);
    let missing: Vec<&String> =
        copies.filter(|(_, ack)| ack.is_none()).map(|(vchannel, _)| vchannel).collect();
    let mut holds: Vec<Hold> = Vec::new();
    for end in &accepted.ends {
        let of_this =
            |vchannel: &&&String| core.state.pchannel_of(vchannel) == Some(end.pchannel.as_str());
        let missing = missing.iter().filter(of_this);
        let Some(channel) = store.channel(&end.pchannel) else { continue };
        let mut bytes = 0_u64;
        for vchannel in missing {
            let copy =
                super::copies::copy_bytes(&**channel, &accepted, core.state.term(), vchannel)?;
            bytes = bytes.saturating_add(copy);
        }
        if bytes > 0 {
            let pin = channel.pin(&format!("broadcast {id}"), Lsn::new(end.next_lsn))?;
            holds.push(Hold { pchannel: end.pchannel.clone(), pin, bytes });
        }
    }
    if let Some(run) = core.runs.get_mut(&id) {
        run.holds = holds;
    }
    core.owe(id);
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
        let pin = channel.pin(&format!("job {job}"), Lsn::new(end.next_lsn))?;
        pins.push((end.pchannel.clone(), pin));
    }
    if !pins.is_empty() {
        core.plan_pins.insert(job, pins);
    }
    Ok(())
}
