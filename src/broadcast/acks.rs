//! Acks: of consumers, and of copies that stand where the append acknowledges.

use std::time::Duration;

use oncelog_format::control::{Ack, AckPosition, Body};
use oncelog_format::message::{AckMode, BroadcastId};

use super::core::{Copy, Core, Inner};
use super::deciding::DECISION_LEN;
use super::holds::note_acks;
use super::refusal;
use crate::error::Result;

impl Inner {
    /// Records the copies that stand and are not acknowledged, where the append acknowledges.
    pub(crate) fn record_acks(&self, id: BroadcastId, mode: AckMode) -> Result<()> {
        // Mostly there are none, and no room is made for them.
        if to_record(&self.lock(), id, mode).is_empty() {
            return Ok(());
        }
        let mut core = self.lock_to_decide(DECISION_LEN);
        let positions = to_record(&core, id, mode);
        if positions.is_empty() {
            return Ok(());
        }
        // Nobody waits for it: the copies stand, and the Done that follows is synced with it. Where
        // it fails, so does everything handed over behind it.
        let (pending, _) = self.hand_over(&mut core, vec![Body::Ack(Ack { id, positions })])?;
        note_acks(&mut core, id, &pending);
        self.let_go_when_durable(&mut core, id, &pending);
        Ok(())
    }

    /// A consumer of a vchannel has its copy.
    pub(crate) fn ack(&self, id: BroadcastId, vchannel: &str) -> Result<()> {
        let mut core = self.lock();
        let mut acked = acked_by(&core, id, vchannel)?;
        self.counts.acks_ignored.add(u64::from(matches!(acked, Acked::Nothing)));
        if let Acked::Now(_) = acked {
            // Only what is recorded has room made for it.
            drop(core);
            core = self.lock_to_decide(DECISION_LEN);
            acked = acked_by(&core, id, vchannel)?;
        }
        let positions = match acked {
            Acked::Now(position) => vec![position],
            Acked::Nothing => return Ok(()),
            Acked::Before => {
                drop(core);
                return self.settle_before();
            }
        };
        let (pending, _) = self.hand_over(&mut core, vec![Body::Ack(Ack { id, positions })])?;
        note_acks(&mut core, id, &pending);
        drop(core);
        self.settle(pending)?;
        let mut core = self.lock();
        self.let_go_of_acked(&mut core, id);
        self.schedule(&mut core, id, Duration::ZERO);
        Ok(())
    }
}

/// What an ack of a consumer comes to.
enum Acked {
    /// What is done, or was never, or acknowledges its copies itself, is not changed by it.
    Nothing,
    /// It was recorded before, and may not be durable yet.
    Before,
    Now(AckPosition),
}

/// Looks at what an ack of a consumer comes to.
fn acked_by(core: &Core, id: BroadcastId, vchannel: &str) -> Result<Acked> {
    core.usable()?;
    let Some(run) = core.runs.get(&id) else { return Ok(Acked::Nothing) };
    let at = run.accepted.header.vchannels.iter().position(|name| name == vchannel);
    let known = at.and_then(|at| u32::try_from(at).ok());
    let known = known
        .ok_or_else(|| refusal::invalid(format!("broadcast {id} has no vchannel {vchannel}")))?;
    if run.accepted.header.ack != AckMode::Consumer {
        return Ok(Acked::Nothing);
    }
    if let Some(position) = unacked(core, id).into_iter().find(|ack| ack.vchannel == known) {
        return Ok(Acked::Now(position));
    }
    let task = core.state.task(id);
    // Else whoever saw the copy was faster than this process, which does not know yet where it
    // stands.
    match task.zip(at).and_then(|(task, at)| *task.acks.get(at)?) {
        Some(_) => Ok(Acked::Before),
        None => Err(refusal::in_flight(id)),
    }
}

/// The copies of a task that stand without an Ack, where this is how they are acknowledged.
fn to_record(core: &Core, id: BroadcastId, mode: AckMode) -> Vec<AckPosition> {
    let run = core.runs.get(&id).filter(|run| run.accepted.header.ack == mode);
    run.map_or_else(Vec::new, |_| unacked(core, id))
}

/// The copies of a task that stand without an Ack.
pub(super) fn unacked(core: &Core, id: BroadcastId) -> Vec<AckPosition> {
    let (Some(run), Some(task)) = (core.runs.get(&id), core.state.task(id)) else {
        return Vec::new();
    };
    let copies = (0..).zip(run.copies.iter().zip(&task.acks));
    let position = |(vchannel, (copy, ack)): (u32, (&Copy, &Option<AckPosition>))| match (copy, ack)
    {
        (Copy::At(at), None) => {
            Some(AckPosition { vchannel, lsn: at.lsn.get(), time_tick: at.time_tick })
        }
        _ => None,
    };
    copies.filter_map(position).collect()
}
