//! What a broadcaster tells of its tasks to whoever collects its events.
//!
//! A subscriber of events is code of the embedder, which may ask the broadcaster. So nothing is
//! told by who holds a lock, nor by the control log that he calls: it is kept, and told by the
//! thread that waits for the disk, in order. That thread tells of every effect, so that a
//! subscriber waits for none, nor for somebody who does.

use std::sync::Arc;

use oncelog_format::control::Outcome;
use oncelog_format::message::BroadcastId;

use super::core::{Core, Inner};
use crate::error::Error;

/// Something to be told.
#[derive(Debug)]
pub(crate) enum Told {
    /// A broadcast is durable.
    Accepted(BroadcastId),
    /// A key that was promised nothing goes for a new one.
    Evicted(BroadcastId),
    /// A request that differs from the original in these fields was answered as that.
    Differs(BroadcastId, String),
    /// More keys are kept than the policy in force allows.
    Beyond { kept: usize, bound: u64 },
    /// The next checkpoint may find no space.
    NoLargerReserve(Error),
    /// None was written.
    NoCheckpoint(Error),
    /// Control stays as long as it is.
    NotTrimmed(Error),
    /// A step of a task failed, and is tried again.
    Retried(BroadcastId, String),
    /// A task waits for an operator, durably.
    Parked(BroadcastId, String),
    /// The record that would park a task is refused.
    NotParked(BroadcastId, Error),
    /// A task ended so, durably.
    Ended(BroadcastId, Outcome),
    /// A task ended that had ended before.
    EndedTwice(BroadcastId),
    /// The driver of a job gave it up before its end.
    NotDriven(BroadcastId, Arc<Error>),
    /// Nothing is kept for the ending of a job.
    NoRoom(BroadcastId, Error),
    /// The first failure.
    Stopped(Arc<Error>),
}

impl Told {
    fn tell(self) {
        match self {
            Self::Accepted(id) => tracing::debug!(broadcast = id.0, "a broadcast was accepted"),
            Self::Evicted(id) => {
                tracing::debug!(broadcast = id.0, "a key makes room for another");
            }
            Self::Differs(id, fields) => {
                tracing::warn!(broadcast = id.0, fields, "a key was used for another request");
            }
            Self::Beyond { kept, bound } => {
                tracing::warn!(kept, bound, "more keys are kept than the bound of the window");
            }
            Self::NoLargerReserve(e) => tracing::debug!(error = %e, "no larger reserve"),
            Self::NoCheckpoint(e) => tracing::warn!(error = %e, "no checkpoint"),
            Self::NotTrimmed(e) => tracing::warn!(error = %e, "control is not trimmed"),
            Self::Retried(id, reason) => {
                tracing::debug!(broadcast = id.0, reason, "a task is tried again");
            }
            Self::Parked(id, reason) => {
                tracing::warn!(broadcast = id.0, reason, "a broadcast is parked");
            }
            Self::NotParked(id, e) => {
                tracing::warn!(broadcast = id.0, error = %e, "a task cannot be parked");
            }
            Self::Ended(id, ending) => {
                let outcome = if ending == Outcome::Done { "done" } else { "failed" };
                tracing::debug!(broadcast = id.0, outcome, "a broadcast ended");
            }
            Self::EndedTwice(id) => tracing::error!(broadcast = id.0, "a task ended twice"),
            Self::NotDriven(job, e) => {
                tracing::warn!(job = job.0, error = %e, "a job is driven by nobody");
            }
            Self::NoRoom(job, e) => {
                tracing::warn!(job = job.0, error = %e, "no room is kept for an ending");
            }
            Self::Stopped(cause) => {
                tracing::error!(error = %cause, "the broadcaster stops: control is not known");
            }
        }
    }
}

impl Inner {
    /// Keeps something to be told.
    pub(crate) fn keep_told(&self, core: &mut Core, told: Told) {
        core.told.push(told);
        self.handed.notify_one();
    }

    /// Takes what is kept, and tells it.
    pub(crate) fn tell_kept(&self) {
        let told = std::mem::take(&mut self.lock().told);
        self.tell(told);
    }

    /// Tells what was kept, and what control has kept. The caller holds no lock.
    pub(crate) fn tell(&self, told: Vec<Told>) {
        self.store.control().tell();
        told.into_iter().for_each(|told| crate::told::tell(|| told.tell()));
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Mutex, mpsc};
    use std::thread;
    use std::time::Duration;

    use oncelog_format::message::{Properties, Scope, Vchannel};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::broadcast::deciding::DECISION_LEN;
    use crate::broadcast::handle::Handle;
    use crate::broadcast::{Broadcaster, Options, Request, Verdict, replayed};
    use crate::broadcast::{Jobs, MessageType, OnConflict, Role, Task};
    use crate::channel::Outgoing;
    use crate::error::ErrorKind;
    use crate::io::fault::{CallKind, EIO, Fault, Which};
    use crate::io::mem::{Machine, MemIo};
    use crate::log::{CreateMode, Fill};
    use crate::store::{Store, StoreOptions};

    /// Longer than an answer takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Asks the broadcaster at each event, notes the event, and panics.
    struct Asking {
        broadcaster: Broadcaster,
        events: Arc<Mutex<Vec<String>>>,
    }

    #[derive(Default)]
    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }

    impl Subscriber for Asking {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut text = Text::default();
            event.record(&mut text);
            let (answer, answered) = mpsc::channel();
            let broadcaster = self.broadcaster.clone();
            thread::spawn(move || {
                drop(broadcaster.why_not_trimmed("p0"));
                answer.send(broadcaster.stats().clock_held)
            });
            let answered = answered.recv_timeout(PATIENCE);
            let held = if answered.is_ok() { "" } else { ", with a lock held" };
            self.events.lock().unwrap().push(format!("{}{held}", text.0));
            panic!("a subscriber panics");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// Retries once, parks once, and is done.
    #[derive(Debug, Default)]
    struct Steps(Mutex<u32>);

    impl MessageType for Steps {
        fn name(&self) -> &str {
            "Steps"
        }

        fn apply(&self, _task: &Task) -> Verdict {
            let mut step = self.0.lock().unwrap();
            *step += 1;
            match *step {
                1 => Verdict::Retry("once".to_owned()),
                2 => Verdict::Park("once".to_owned()),
                _ => Verdict::Done,
            }
        }
    }

    fn request(message_type: &str, key: &str) -> Request {
        let key = Scope {
            principal: "p".to_owned(),
            message_type: message_type.to_owned(),
            domain: "d".to_owned(),
            identity: String::new(),
            generation: 0,
            client_key: key.into(),
        };
        let asked = Request::new(message_type, Some(key), vec!["v".to_owned()], vec![]);
        asked.making_vchannels()
    }

    /// Starts jobs whose driver gives them up at once, twice.
    #[derive(Debug)]
    struct GivesUp;

    impl MessageType for GivesUp {
        fn name(&self) -> &str {
            "GivesUp"
        }

        fn role(&self) -> Role {
            Role::StartsJob
        }

        fn apply(&self, _task: &Task) -> Verdict {
            Verdict::Done
        }

        fn job_ready(&self, job: BroadcastId, jobs: &Jobs) {
            let why = || Error::new(ErrorKind::StoreFull, "no space");
            jobs.stopped(job, why());
            jobs.stopped_again(job, why());
        }
    }

    #[test]
    fn a_job_that_is_given_up_is_told_once_and_counted_as_long_as_it_is() {
        let (broadcaster, dispatch, events) = asked(&MemIo::new(Machine::new()));
        let jobs = broadcaster.jobs();
        beside(&broadcaster, &dispatch, || {
            let mut asked = request("GivesUp", "k");
            asked.scope = None;
            let job = broadcaster.submit(&asked, None).unwrap().id;
            // Whoever waits for it is told as soon as it was given up.
            assert_eq!(jobs.wait(job, None).unwrap_err().kind(), ErrorKind::InFlight);
            assert_eq!(broadcaster.stats().jobs_stopped, 1);
            jobs.going(job);
            assert_eq!(broadcaster.stats().jobs_stopped, 0);
            broadcaster.close().unwrap();
        });
        let mut told = events.lock().unwrap().clone();
        told.retain(|event| event.contains("driven"));
        assert_eq!(told, ["a job is driven by nobody"]);
    }

    /// A broadcaster without threads, what it tells, and to whom.
    fn asked(io: &MemIo) -> (Broadcaster, tracing::Dispatch, Arc<Mutex<Vec<String>>>) {
        let logs = crate::log::Options::new().segment_bytes_max(64 << 10).fill(Fill::None);
        let store = StoreOptions::new().log(logs).create(CreateMode::IfMissing);
        let store = Store::open("/s", &store.io(Arc::new(io.clone()))).unwrap();
        let options = Options::new().register(Arc::new(Steps::default()));
        let options = options.register(Arc::new(Warns)).register(Arc::new(GivesUp));
        let inner = replayed(store, options).unwrap();
        let broadcaster = Broadcaster { handle: Arc::new(Handle::new(&inner)) };
        let events = Arc::new(Mutex::new(Vec::new()));
        let asking = Asking { broadcaster: broadcaster.clone(), events: Arc::clone(&events) };
        (broadcaster, tracing::Dispatch::new(asking), events)
    }

    /// Runs a call beside the threads of the broadcaster, all of them with the subscriber.
    fn beside(broadcaster: &Broadcaster, dispatch: &tracing::Dispatch, call: impl FnOnce()) {
        thread::scope(|scope| {
            for thread in [Inner::settle_all as fn(&Arc<Inner>), Inner::work] {
                let inner = Arc::clone(broadcaster.inner());
                scope.spawn(move || {
                    tracing::dispatcher::with_default(dispatch, || thread(&inner));
                });
            }
            // A call that fails leaves nobody waiting.
            let called = catch_unwind(AssertUnwindSafe(|| {
                tracing::dispatcher::with_default(dispatch, call);
            }));
            drop(broadcaster.close());
            called.unwrap();
        });
    }

    #[test]
    fn a_subscriber_may_ask_the_broadcaster_that_tells_it_and_panic() {
        let (broadcaster, dispatch, events) = asked(&MemIo::new(Machine::new()));
        beside(&broadcaster, &dispatch, || {
            let asked = request("Steps", "k");
            let parked = broadcaster.submit(&asked, None).unwrap_err();
            broadcaster.resume(parked.broadcast_id().unwrap(), "").unwrap();
            drop(broadcaster.submit(&asked, None).unwrap());
            broadcaster.close().unwrap();
        });
        let expected = [
            "a broadcast was accepted",
            "a task is tried again",
            "a broadcast is parked",
            "a broadcast ended",
        ];
        assert_eq!(*events.lock().unwrap(), expected);
    }

    /// A type that warns of another request under its key.
    #[derive(Debug)]
    struct Warns;

    impl MessageType for Warns {
        fn name(&self) -> &str {
            "Warns"
        }

        fn on_conflict(&self) -> OnConflict {
            OnConflict::Warn
        }

        fn apply(&self, _task: &Task) -> Verdict {
            Verdict::Done
        }
    }

    #[test]
    fn warnings_of_a_policy_and_of_a_type_are_told_and_hold_nothing() {
        let io = MemIo::new(Machine::new());
        let (broadcaster, dispatch, events) = asked(&io);
        beside(&broadcaster, &dispatch, || {
            for (key, payload) in [("1", b"p"), ("2", b"p"), ("1", b"q")] {
                let mut asked = request("Warns", key);
                asked.payload = payload.to_vec();
                drop(broadcaster.submit(&asked, None).unwrap());
            }
            let mut policy = broadcaster.policy();
            (policy.window_count_max, policy.history_warns) = (1, true);
            broadcaster.refresh(policy).unwrap();
            broadcaster.close().unwrap();
        });
        let mut told = events.lock().unwrap().clone();
        told.retain(|event| !event.starts_with("a broadcast"));
        let expected = [
            "a key was used for another request",
            "more keys are kept than the bound of the window",
        ];
        assert_eq!(told, expected);
    }

    /// Whoever asked it, of the channel or at all, waited for itself, with the channel locked.
    #[test]
    fn a_subscriber_may_ask_when_a_roll_of_a_channel_fails_and_it_is_opened_again() {
        let io = MemIo::new(Machine::new());
        let (broadcaster, dispatch, events) = asked(&io);
        let channel = Arc::clone(broadcaster.inner().store.channel("p0").unwrap());
        broadcaster.ensure_vchannels(&["v".to_owned()]).unwrap();
        beside(&broadcaster, &dispatch, || {
            let append = || {
                let mut properties = Properties::new();
                properties.set(&Vchannel("v".to_owned())).unwrap();
                channel.enqueue(&[Outgoing { properties, payload: &[7; 40_000] }])
            };
            drop(append().unwrap().wait().unwrap());
            io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
            assert!(append().is_err());
            drop(broadcaster.submit(&request("Warns", "k"), None).unwrap());
            broadcaster.close().unwrap();
        });
        let expected = [
            "the log is poisoned until it is opened again",
            "a channel reopens",
            "a poisoned channel closes",
            "a broadcast was accepted",
            "a broadcast ended",
        ];
        assert_eq!(*events.lock().unwrap(), expected);
    }

    /// The control log fails while the broadcaster decides, and has something to tell itself.
    #[test]
    fn a_subscriber_may_ask_when_control_is_poisoned_by_a_decision() {
        let io = MemIo::new(Machine::new());
        let (broadcaster, dispatch, events) = asked(&io);
        beside(&broadcaster, &dispatch, || {
            let reason = "x".repeat(1000);
            // Whoever decides has this much room made before.
            let room = u64::try_from(reason.len() + DECISION_LEN).unwrap();
            while broadcaster.inner().store.control().has_room(room) {
                broadcaster.accept_window(&reason).unwrap();
            }
            // The next decision rolls, and begins with the sync of what is full.
            io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
            assert!(broadcaster.accept_window(&reason).is_err());
            drop(broadcaster.close());
        });
        let expected = [
            "the log is poisoned until it is opened again",
            "the broadcaster stops: control is not known",
        ];
        assert_eq!(*events.lock().unwrap(), expected);
    }
}
