//! A duplicate that is in flight when the script comes to a call: whoever makes the call waits until
//! the duplicate waits itself, was answered, or is being validated.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncelog::broadcast::Request;
use oncelog::testing::{MemIo, Which, tell_waits};

use super::world::{PATIENCE, Process};

/// Longest that a call is held. What decides under the lock of a broadcaster, and writes there,
/// keeps the duplicate out as long as it is held itself.
const HELD_MAX: Duration = Duration::from_millis(500);

/// How far a duplicate has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// There is no process yet that it could be sent to.
    Closed,
    /// It is to be sent at a call that nobody has made yet.
    Ready,
    /// The call was made, and is held.
    Due,
    /// The call was made before there was a process that the duplicate could be sent to.
    Early,
    /// The call went on without it, for it did not come to wait in time.
    Late,
    /// It is past the look-up, and has no answer.
    Waits,
    /// It was answered before the call went on.
    Answered,
    /// The call was never made.
    Over,
}

/// Where the two meet.
#[derive(Debug)]
pub(super) struct HandOver {
    stage: Mutex<Stage>,
    turned: Condvar,
}

thread_local! {
    /// The hand-over of the duplicate that this thread sends.
    static OWN: RefCell<Option<Arc<HandOver>>> = const { RefCell::new(None) };
}

/// Tells that the calling thread is past the look-up of a key.
pub(super) fn is_admitted() {
    OWN.with_borrow(|own| own.iter().for_each(|own| own.reach(Stage::Waits)));
}

impl HandOver {
    /// Has the `nth` of these calls from here wait for a duplicate.
    pub(super) fn before(io: &MemIo, which: Which, nth: u64) -> Arc<Self> {
        let (stage, turned) = (Mutex::new(Stage::Closed), Condvar::new());
        let own = Arc::new(Self { stage, turned });
        let held = Arc::clone(&own);
        io.meet(which, nth, move || held.hold());
        own
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the call until the duplicate is in flight.
    fn hold(&self) {
        let mut stage = self.stage();
        match *stage {
            Stage::Ready => *stage = Stage::Due,
            Stage::Closed => return *stage = Stage::Early,
            _ => return,
        }
        self.turned.notify_all();
        let held = self.turned.wait_timeout_while(stage, HELD_MAX, |stage| *stage == Stage::Due);
        let (mut stage, _) = held.unwrap_or_else(PoisonError::into_inner);
        if *stage == Stage::Due {
            *stage = Stage::Late;
        }
    }

    /// There is a process: the duplicate may be sent from here on.
    pub(super) fn open(&self) {
        let mut stage = self.stage();
        if *stage == Stage::Closed {
            *stage = Stage::Ready;
        }
    }

    /// Sends the duplicate once its call is made, or has been.
    pub(super) fn send(self: &Arc<Self>, process: &Process, duplicate: &Request) {
        let stage = self.turned.wait_while(self.stage(), |stage| *stage < Stage::Due);
        let stage = *stage.unwrap_or_else(PoisonError::into_inner);
        if stage == Stage::Over {
            return;
        }
        OWN.set(Some(Arc::clone(self)));
        // Not so short that it gives up before the call goes on.
        let patience = PATIENCE.map(|patience| 10 * patience);
        drop(tell_waits(is_admitted, || process.ask(duplicate, patience)));
        OWN.set(None);
        self.reach(Stage::Answered);
    }

    /// Lets the call go on that is held.
    fn reach(&self, stage: Stage) {
        let mut held = self.stage();
        if *held == Stage::Due {
            *held = stage;
        }
        self.turned.notify_all();
    }

    /// The call will not be made any more; how far the duplicate came.
    pub(super) fn end(&self) -> Stage {
        let mut stage = self.stage();
        if *stage < Stage::Due {
            *stage = Stage::Over;
        }
        self.turned.notify_all();
        *stage
    }
}
