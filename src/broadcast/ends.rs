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

/// The task that a record ends or parks, with a reason for which no room is kept, and whether it ends
/// it: a Skip does, with the Done behind it. One that is parked still owes all of its end.
pub(super) fn beyond_room(body: &Body) -> Option<(BroadcastId, bool)> {
    let (id, reason, ends) = match body {
        Body::Done(Done { id, outcome: Ending::Failed(reason) }) => (*id, reason, true),
        Body::Park(park) => (park.id, &park.reason, false),
        Body::Skip(skip) => (skip.id, &skip.reason, true),
        _ => return None,
    };
    (reason.len() > REASON_BYTES_MAX.saturating_add(SKIPPED.len())).then_some((id, ends))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use oncelog_format::control::Skip;
    use oncelog_format::message::AckMode;

    use super::*;
    use crate::broadcast::owed::OPEN_BYTES_MAX;
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

    /// A Park was allowed the room of the task's own end, which it owes still.
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
        // Two of a kind: half of it is its own.
        assert_eq!(kept(&[done(&long)]), owed / 2);
        assert_eq!(kept(&[skip(&long), done(&long)]), owed / 2);
        assert_eq!(kept(&[park(&long)]), owed);
        for bodies in [vec![done(&short)], vec![skip(&short), done(&short)], vec![park(&short)]] {
            assert_eq!(kept(&bodies), 0);
        }
        drop(core);
        broadcaster.close().unwrap();
    }
}
