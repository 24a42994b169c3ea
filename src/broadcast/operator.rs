//! What an operator does with parked work: lets it go on, or ends it.

use oncelog_format::control::{Ack, Body, Done, Outcome as Ending, Resume, Skip};
use oncelog_format::message::BroadcastId;

use super::acks::unacked;
use super::core::{Copy, Core, Inner, Run};
use super::deciding::DECISION_LEN;
use super::ends::{SKIPPED, fitting};
use super::refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Pending;

impl Inner {
    /// Takes up a parked task again.
    pub(crate) fn resume(&self, id: BroadcastId, reason: &str) -> Result<()> {
        let mut core = self.lock_to_take_in(reason.len() + DECISION_LEN);
        check_parked(&core, id)?;
        let body = Body::Resume(Resume { id, reason: fitting(reason).to_owned() });
        let (pending, _) = self.hand_over(&mut core, vec![body])?;
        if let Some(run) = core.runs.get_mut(&id) {
            run.ending = true;
        }
        drop(core);
        self.settle(pending)?;
        let mut core = self.lock();
        if let Some(run) = core.runs.get_mut(&id) {
            run.ending = false;
            run.parked = None;
            (run.stalled, run.retries) = (None, 0);
        }
        self.schedule(&mut core, id, std::time::Duration::ZERO);
        Ok(())
    }

    /// Gives up a parked task whose copies stand.
    pub(crate) fn skip(&self, id: BroadcastId, reason: &str) -> Result<()> {
        let unresolved = {
            let core = self.lock();
            check_parked(&core, id)?;
            Self::in_state(&core, id, Copy::Unresolved)
        };
        for (pchannel, _) in unresolved {
            self.resolve(&pchannel)?;
        }
        let (pending, at_ms, ending) =
            self.with_reason(reason, |reason| self.hand_over_skip(id, reason))?;
        self.settle(pending)?;
        self.ended(&mut self.lock(), id, ending, at_ms);
        Ok(())
    }

    fn hand_over_skip(&self, id: BroadcastId, reason: &str) -> Result<(Pending, u64, Ending)> {
        let mut core = self.lock_to_decide(2 * reason.len() + DECISION_LEN);
        check_parked(&core, id)?;
        let whole = core.runs.get(&id).is_some_and(Run::is_whole);
        #[cfg(planted)]
        let whole = whole || crate::planted::is_active(crate::planted::Bug::SkipWithoutCopies);
        if !whole {
            let message = format!("broadcast {id} has not a copy on every vchannel: resume it");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let ending = Ending::Failed(format!("{SKIPPED}{reason}"));
        let positions = unacked(&core, id);
        let acks = (!positions.is_empty()).then_some(Body::Ack(Ack { id, positions }));
        let skip = Body::Skip(Skip { id, reason: reason.to_owned() });
        let done = Body::Done(Done { id, outcome: ending.clone() });
        let batch = acks.into_iter().chain([skip, done]).collect();
        let (pending, at_ms) = self.hand_over(&mut core, batch)?;
        if let Some(run) = core.runs.get_mut(&id) {
            run.ending = true;
        }
        Ok((pending, at_ms, ending))
    }
}

fn check_parked(core: &Core, id: BroadcastId) -> Result<()> {
    core.usable()?;
    let parked = core.runs.get(&id).is_some_and(|run| run.parked.is_some() && !run.ending);
    if parked { Ok(()) } else { Err(refusal::invalid(format!("broadcast {id} is not parked"))) }
}
