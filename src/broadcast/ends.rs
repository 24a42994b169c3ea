//! The records that end a task's way for now: Done, Park and Skip. Room is kept for each, with a
//! short reason, so that all can be written on a full disk. A longer one is written where nobody
//! else was promised that space, and no reason is longer than a record takes.

use oncelog_format::control::{Body, Done, Outcome as Ending, Park};
use oncelog_format::limits::TEXT_LEN_MAX;
use oncelog_format::message::BroadcastId;

use super::core::{Core, Inner, Settled};
use super::deciding::DECISION_LEN;
use super::owed::REASON_BYTES_MAX;
use super::worker::Next;
use crate::error::{ErrorKind, Result};
use crate::log::Pending;

/// What stands before the reason of whoever skips a task.
pub(super) const SKIPPED: &str = "skipped: ";

/// Longest reason in bytes, whatever stands before it.
const REASON_LEN_MAX: usize = TEXT_LEN_MAX as usize - SKIPPED.len();

/// A reason as a record takes it.
pub(super) fn fitting(reason: &str) -> &str {
    cut(reason, REASON_LEN_MAX)
}

fn cut(reason: &str, len: usize) -> &str {
    reason.get(..reason.floor_char_boundary(len)).unwrap_or_default()
}

/// The task that a record ends or parks, with a reason for which no room is kept.
pub(super) fn beyond_room(body: &Body) -> Option<BroadcastId> {
    let (id, reason) = match body {
        Body::Done(Done { id, outcome: Ending::Failed(reason) }) => (*id, reason),
        Body::Park(park) => (park.id, &park.reason),
        Body::Skip(skip) => (skip.id, &skip.reason),
        _ => return None,
    };
    (reason.len() > REASON_BYTES_MAX.saturating_add(SKIPPED.len())).then_some(id)
}

impl Inner {
    /// Hands over records with a reason: as it is, or as short as room is kept for. Returns what was
    /// handed over, when, and the reason.
    pub(super) fn hand_over_reason(
        &self,
        core: &mut Core,
        reason: &str,
        bodies: impl Fn(&str) -> Vec<Body>,
    ) -> Result<(Pending, u64, String)> {
        let whole = fitting(reason);
        let (handed, reason) = match self.hand_over(core, bodies(whole)) {
            Err(e) if e.kind() == ErrorKind::StoreFull && whole.len() > REASON_BYTES_MAX => {
                let short = cut(whole, REASON_BYTES_MAX);
                (self.hand_over(core, bodies(short)), short)
            }
            handed => (handed, whole),
        };
        handed.map(|(pending, at_ms)| (pending, at_ms, reason.to_owned()))
    }

    /// Hands a Park over.
    pub(super) fn park(&self, core: &mut Core, id: BroadcastId, reason: &str) -> Result<()> {
        let park = |reason: &str| vec![Body::Park(Park { id, reason: reason.to_owned() })];
        let (pending, at_ms, reason) = self.hand_over_reason(core, reason, park)?;
        self.settle_later(core, pending, Settled::Parked(id, reason, at_ms));
        Ok(())
    }

    /// Hands a Done over.
    pub(super) fn end(&self, id: BroadcastId, ending: Ending) -> Result<Next> {
        let mut core = self.lock_to_decide(DECISION_LEN);
        let failed = if let Ending::Failed(reason) = &ending { Some(reason) } else { None };
        let ended = |reason: &str| {
            failed.map_or_else(|| ending.clone(), |_| Ending::Failed(reason.to_owned()))
        };
        let done = |reason: &str| vec![Body::Done(Done { id, outcome: ended(reason) })];
        let reason = failed.map_or("", String::as_str);
        let (pending, at_ms, reason) = self.hand_over_reason(&mut core, reason, done)?;
        self.settle_later(&mut core, pending, Settled::Ended(id, ended(&reason), at_ms));
        if let Some(run) = core.runs.get_mut(&id) {
            run.ending = true;
        }
        Ok(Next::Leave)
    }
}
