//! The records that end a task's way for now: Done, Park and Skip. Room is kept for each, with a
//! short reason, so that all can be written on a full disk. A longer one is written where nobody
//! else was promised that space, the next checkpoint least of all; and no reason is longer than a
//! record takes.

use oncelog_format::control::{Body, Done, Outcome as Ending, Park};
use oncelog_format::limits::TEXT_LEN_MAX;
use oncelog_format::message::BroadcastId;

use super::core::{Inner, Settled};
use super::deciding::DECISION_LEN;
use super::owed::REASON_BYTES_MAX;
use super::worker::Next;
use crate::error::{ErrorKind, Result};

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

/// A reason for which no room is kept.
pub(super) struct BeyondRoom {
    pub(super) id: BroadcastId,
    /// Its record ends the task: a Skip does, with the Done behind it. One that is parked still
    /// owes all of its end.
    pub(super) ends: bool,
    pub(super) reason_bytes: u64,
}

/// The reason in a record, where no room is kept for it.
pub(super) fn beyond_room(body: &Body) -> Option<BeyondRoom> {
    let (id, reason, ends) = match body {
        Body::Done(Done { id, outcome: Ending::Failed(reason) }) => (*id, reason, true),
        Body::Park(park) => (park.id, &park.reason, false),
        Body::Skip(skip) => (skip.id, &skip.reason, true),
        _ => return None,
    };
    let reason_bytes = u64::try_from(reason.len()).unwrap_or(u64::MAX);
    let is_beyond = reason.len() > REASON_BYTES_MAX.saturating_add(SKIPPED.len());
    is_beyond.then_some(BeyondRoom { id, ends, reason_bytes })
}

impl Inner {
    /// Decides with a reason as it is; where there is no space for it, and none for a larger
    /// reserve, with one as short as room is kept for. Nothing is locked.
    ///
    /// # Errors
    ///
    /// Those of `decide`.
    pub(super) fn with_reason<T>(
        &self,
        reason: &str,
        mut decide: impl FnMut(&str) -> Result<T>,
    ) -> Result<T> {
        let whole = fitting(reason);
        match self.with_room(|| decide(whole)) {
            Err(e) if e.kind() == ErrorKind::StoreFull && whole.len() > REASON_BYTES_MAX => {
                self.with_room(|| decide(cut(whole, REASON_BYTES_MAX)))
            }
            decided => decided,
        }
    }

    /// Hands a Park over, of a task that a worker has: it lets go of it then.
    pub(super) fn park(&self, id: BroadcastId, reason: &str) -> Result<()> {
        self.with_reason(reason, |reason| {
            let mut core = self.lock_to_decide(reason.len() + DECISION_LEN);
            let park = Body::Park(Park { id, reason: reason.to_owned() });
            self.hand_over_and_settle(&mut core, vec![park], |at_ms| {
                Settled::Parked(id, reason.to_owned(), at_ms)
            })?;
            if let Some(run) = core.runs.get_mut(&id) {
                (run.ending, run.busy, run.again) = (true, false, false);
            }
            Ok(())
        })
    }

    /// Hands a Done over.
    pub(super) fn end(&self, id: BroadcastId, ending: &Ending) -> Result<Next> {
        let reason = if let Ending::Failed(reason) = ending { reason.as_str() } else { "" };
        self.with_reason(reason, |reason| {
            let outcome = match ending {
                Ending::Failed(_) => Ending::Failed(reason.to_owned()),
                ending => ending.clone(),
            };
            let mut core = self.lock_to_decide(reason.len() + DECISION_LEN);
            let done = Body::Done(Done { id, outcome: outcome.clone() });
            self.hand_over_and_settle(&mut core, vec![done], |at_ms| {
                Settled::Ended(id, outcome, at_ms)
            })?;
            if let Some(run) = core.runs.get_mut(&id) {
                run.ending = true;
            }
            Ok(Next::Leave)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use oncelog_format::control::Skip;
    use oncelog_format::message::AckMode;

    use super::*;
    use crate::broadcast::owed::{CHECKPOINT_COUNT, OPEN_BYTES_MAX};
    use crate::broadcast::{Broadcaster, MessageType, Options, Request, Task, Verdict};
    use crate::io::mem::{Machine, MemIo};
    use crate::log::CreateMode;
    use crate::log::reserve::Use;
    use crate::store::{Store, StoreOptions};

    /// Waits for consumers.
    #[derive(Debug)]
    struct Waits;

    impl MessageType for Waits {
        fn name(&self) -> &str {
            "Waits"
        }

        fn ack_mode(&self) -> AckMode {
            AckMode::Consumer
        }

        fn apply(&self, _task: &Task) -> Verdict {
            Verdict::Done
        }
    }

    /// A Park was allowed the room of the task's own end, which it owes still; and all of them that
    /// of the checkpoint, in which the reason stands, too.
    #[test]
    fn a_long_reason_takes_the_room_of_the_end_that_it_is_written_with_alone() {
        let io = Arc::new(MemIo::new(Machine::new()));
        let store = StoreOptions::new().create(CreateMode::IfMissing).io(io);
        let options = Options::new().register(Arc::new(Waits));
        let broadcaster = Broadcaster::open(Store::open("/s", &store).unwrap(), options).unwrap();
        let ids = [1, 2].map(|_| {
            let asked = Request::new("Waits", None, vec!["v".to_owned()], vec![]);
            let refused = broadcaster.submit(&asked.making_vchannels(), Some(Duration::ZERO));
            assert!(refused.is_err());
            broadcaster.inner().lock().runs.last_key_value().map(|(id, _)| *id).unwrap()
        });
        let core = broadcaster.inner().lock();
        let owed = core.owed.control();
        let [long, short] = [60_000, REASON_BYTES_MAX].map(|len| "x".repeat(len));
        let id = ids[0];
        let done = |reason: &str| {
            Body::Done(Done { id, outcome: Ending::Failed(format!("{SKIPPED}{reason}")) })
        };
        let skip = |reason: &str| Body::Skip(Skip { id, reason: reason.to_owned() });
        let park = |reason: &str| Body::Park(Park { id, reason: reason.to_owned() });
        let kept = |bodies: &[Body]| {
            let bodies: Vec<&Body> = bodies.iter().collect();
            match core.usage(&bodies, 0, OPEN_BYTES_MAX).unwrap() {
                Use::Ending(kept) => kept,
                Use::New(_) => panic!("it ends no work"),
            }
        };
        let promised = core.promised_bytes(0);
        assert!(promised > owed + core.state.checkpoint_bytes());
        // Two of a kind: half of it is its own.
        let (skipped, parked) = (CHECKPOINT_COUNT * (60_000 + 9), CHECKPOINT_COUNT * 60_000);
        assert_eq!(kept(&[done(&long)]), promised - owed / 2 + skipped);
        assert_eq!(kept(&[skip(&long), done(&long)]), promised - owed / 2 + parked);
        assert_eq!(kept(&[park(&long)]), promised + parked);
        for bodies in [vec![done(&short)], vec![skip(&short), done(&short)], vec![park(&short)]] {
            assert_eq!(kept(&bodies), 0);
        }
        drop(core);
        broadcaster.close().unwrap();
    }
}
