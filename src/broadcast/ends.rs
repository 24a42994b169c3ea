//! The records that end a task's way for now: Done and Park. Room is kept for either, with a short
//! reason, so that both can be written on a full disk.

use oncelog_format::control::{Body, Done, Outcome as Ending, Park};
use oncelog_format::message::BroadcastId;

use super::core::{Core, Inner, Settled};
use super::holds::shorter;
use super::worker::Next;
use crate::error::{ErrorKind, Result};

impl Inner {
    /// Hands a Park over.
    pub(super) fn park(&self, core: &mut Core, id: BroadcastId, reason: String) -> Result<()> {
        let park = |reason: String| vec![Body::Park(Park { id, reason })];
        let (handed, reason) = match self.hand_over(core, park(reason.clone())) {
            // Room is kept for a short one.
            Err(e) if e.kind() == ErrorKind::StoreFull => {
                let reason = shorter(&reason);
                (self.hand_over(core, park(reason.clone())), reason)
            }
            handed => (handed, reason),
        };
        let (pending, at_ms) = handed?;
        self.settle_later(core, pending, Settled::Parked(id, reason, at_ms));
        Ok(())
    }

    /// Hands a Done over.
    pub(super) fn end(&self, id: BroadcastId, ending: Ending) -> Result<Next> {
        let mut core = self.lock();
        let body = Body::Done(Done { id, outcome: ending.clone() });
        let (handed, ending) = match (self.hand_over(&mut core, vec![body]), ending) {
            // Room is kept for a short reason.
            (Err(e), Ending::Failed(reason)) if e.kind() == ErrorKind::StoreFull => {
                let ending = Ending::Failed(shorter(&reason));
                let body = Body::Done(Done { id, outcome: ending.clone() });
                (self.hand_over(&mut core, vec![body]), ending)
            }
            handed => handed,
        };
        let (pending, at_ms) = handed?;
        self.settle_later(&mut core, pending, Settled::Ended(id, ending, at_ms));
        if let Some(run) = core.runs.get_mut(&id) {
            run.ending = true;
        }
        Ok(Next::Leave)
    }
}
