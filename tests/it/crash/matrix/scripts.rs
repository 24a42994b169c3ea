//! The scripts of the matrix: one for each verb.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncelog::broadcast::{BroadcastId, Broadcaster, CollectionSpec, Policy, Request};
use oncelog::testing::{Machine, MemIo};
use oncelog::{ErrorKind, Result};

use super::job;
use super::world::{
    CALLS, HEARD, KEY, LOAD, PATIENCE, PLAIN, Process, Told, VCHANNELS, request_of,
};
use crate::broadcast::desk::Hands;
use crate::broadcast::resource;

const DAY_MS: u64 = 86_400_000;
/// Other keys whose payload is small: those of a checkpoint, and of the callback that submits.
pub(super) const SMALL: [&str; 5] = ["l", "l2", "l3", "l4", "inner"];
/// A payload of which a few fill a segment.
pub(super) const LARGE: usize = 22_000;

/// Something that callers or operators do. Done twice, or by the process behind the one that was cut
/// off in it, each does what is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Asks for the key until there is an answer.
    Submit,
    /// Asks for the key, and waits for no end.
    Try,
    /// Asks for another key, with a large payload: logs roll.
    Fill(&'static str),
    /// Callbacks wait, or no longer do.
    Hold(bool),
    /// Callbacks of the key park, or no longer do.
    Park(bool),
    Resume,
    Skip,
    /// Consumers of every vchannel acknowledge.
    Hear,
    Checkpoint,
    /// A checkpoint beside submits.
    CheckpointBeside,
    Refresh,
    Collection,
    /// Two days go by.
    Pass,
    /// Waits until the key is forgotten.
    Sweep,
    Plan,
    /// Appends so many parts of slices.
    Slices(usize),
    Commit,
    Abort,
    /// Commit and abort at once.
    Cancel,
    Reattempt,
}

/// A verb: where it begins, what it does, and how an orchestrator brings it to its end.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) name: &'static str,
    /// Type of the key's broadcast.
    pub(super) kind: &'static str,
    pub(super) large: bool,
    /// The opening of the process that acts is cut off, too.
    pub(super) opens: bool,
    /// Done before, by a process of its own.
    pub(super) before: &'static [Step],
    /// Cut off at each persistence point.
    pub(super) act: &'static [Step],
    /// Done behind it.
    pub(super) finish: &'static [Step],
}

const fn script(
    name: &'static str,
    kind: &'static str,
    before: &'static [Step],
    act: &'static [Step],
    finish: &'static [Step],
) -> Script {
    Script { name, kind, large: false, opens: false, before, act, finish }
}

use Step::{
    Abort, Cancel, Checkpoint, CheckpointBeside, Collection, Commit, Fill, Hear, Hold, Park, Pass,
    Plan, Reattempt, Refresh, Resume, Skip, Slices, Submit, Sweep, Try,
};

pub(super) const SCRIPTS: [Script; 19] = [
    script("submit", PLAIN, &[], &[Submit], &[Submit]),
    Script { large: true, ..script("append", PLAIN, &[Fill("f")], &[Submit], &[Submit]) },
    script("ack", HEARD, &[Try], &[Hear], &[Hear, Submit]),
    script("callback", CALLS, &[], &[Submit], &[Submit]),
    script("park", PLAIN, &[Hold(true), Try], &[Park(true), Hold(false), Try], &[Resume, Submit]),
    script("resume", PLAIN, &[Park(true), Try], &[Resume], &[Resume, Submit]),
    script("skip", PLAIN, &[Park(true), Try], &[Skip], &[Skip]),
    script("tombstone", PLAIN, &[Hold(true), Try], &[Hold(false), Submit], &[Submit]),
    script("drop", PLAIN, &[Submit], &[Pass, Sweep], &[Submit]),
    script(
        "checkpoint",
        PLAIN,
        &[Submit, Fill("f"), Fill("g"), Fill("h"), Checkpoint, Fill("i"), Fill("j"), Fill("m")],
        &[CheckpointBeside],
        &[Checkpoint, Submit],
    ),
    script("policy refresh", PLAIN, &[Submit], &[Refresh], &[Refresh, Submit]),
    script("collection creation", PLAIN, &[Submit], &[Collection], &[Collection, Submit]),
    script("plan", LOAD, &[Submit], &[Plan], &[Plan, Slices(4), Commit]),
    script("slice", LOAD, &[Submit, Plan, Slices(1)], &[Slices(4)], &[Slices(4), Commit]),
    script("commit", LOAD, &[Submit, Plan, Slices(4)], &[Commit], &[Commit]),
    script("abort", LOAD, &[Submit, Plan, Slices(3)], &[Abort], &[Abort]),
    script("cancel", LOAD, &[Submit, Plan, Slices(4)], &[Cancel], &[Cancel]),
    script(
        "re-attempt",
        LOAD,
        &[Submit, Plan, Slices(3), Abort],
        &[Reattempt, Plan],
        &[Reattempt, Plan, Slices(4), Commit],
    ),
    Script {
        opens: true,
        ..script("take-over", PLAIN, &[Fill("f"), Hold(true), Try], &[Submit], &[Submit])
    },
];

impl Script {
    /// The request of the key, with one of the two payloads.
    pub(super) fn request(&self, payload: u8) -> Request {
        let text = char::from(payload).to_string();
        let len = if self.large { LARGE } else { 1 };
        let request = request_of(self.kind, KEY, &text.repeat(len));
        if self.kind == LOAD {
            return request.resources(vec![resource("collection", "1", true)]);
        }
        request
    }

    /// A machine on which all is done that comes before.
    pub(super) fn base(&self) -> (Machine, Told) {
        let hands = Arc::new(Hands::default());
        let none = Told::default();
        let process = Process::start(MemIo::new(Machine::new()), &hands, &none, false).unwrap();
        process.broadcaster.ensure_vchannels(&VCHANNELS.map(str::to_owned)).unwrap();
        for step in self.before {
            if let Err(e) = self.play(&process, *step) {
                let left = [ErrorKind::InFlight, ErrorKind::Parked];
                assert!(*step == Try && left.contains(&e.kind()), "{}: {step:?}: {e}", self.name);
            }
        }
        process.end()
    }

    /// Whether callbacks wait when a process takes this up.
    pub(super) fn holds(&self) -> bool {
        self.before.contains(&Hold(true)) && !self.opens
    }

    pub(super) fn play(&self, process: &Process, step: Step) -> Result<()> {
        let broadcaster = &process.broadcaster;
        match step {
            Submit => match process.ask_until(&self.request(b'p')) {
                // Another payload was accepted first, by a caller who asked beside this one.
                Err(e) if e.kind() == ErrorKind::Conflict => {
                    process.ask_until(&self.request(b'q')).map(drop)
                }
                asked => asked.map(drop),
            },
            Try => self.try_once(process),
            Fill(key) => {
                let request = request_of(PLAIN, key, &"p".repeat(LARGE));
                process.ask_until(&request).map(drop)
            }
            Hold(holds) => {
                process.hand.hold(holds);
                Ok(())
            }
            Park(parks) => {
                process.hand.park(parks);
                Ok(())
            }
            Resume => {
                process.hand.park(false);
                self.parked(process, |broadcaster, id| broadcaster.resume(id, "go on"))
            }
            Skip => {
                process.hand.park(true);
                self.parked(process, |broadcaster, id| broadcaster.skip(id, "given up"))
            }
            Hear => self.hear(process),
            Checkpoint => broadcaster.checkpoint().map(drop),
            CheckpointBeside => std::thread::scope(|scope| {
                let ask = |key| process.ask_until(&request_of(PLAIN, key, "p")).map(drop);
                let beside = scope.spawn(move || SMALL[..4].iter().try_for_each(|key| ask(key)));
                let written = broadcaster.checkpoint().map(drop);
                beside.join().unwrap()?;
                written
            }),
            Refresh => {
                let policy = Policy::default();
                let window_lifetime = policy.window_lifetime / 2;
                let mut policy = policy;
                policy.window_lifetime = window_lifetime;
                broadcaster.refresh(policy)
            }
            Collection => {
                let vchannels = VCHANNELS.map(str::to_owned).into();
                let (name, schema, primary_key) = ("c".to_owned(), Vec::new(), None);
                let spec = CollectionSpec { name, schema, primary_key, vchannels };
                let id = broadcaster.ensure_collection(&spec)?.id;
                let known = *process.told().collection.get_or_insert(id);
                assert_eq!(known, id, "one name has two collections");
                Ok(())
            }
            Pass => {
                let mut told = process.told();
                process.hands.pass(2 * DAY_MS);
                told.pass();
                Ok(())
            }
            Sweep => self.sweep(process),
            Plan => job::plan(process),
            Slices(most) => job::slices(process, most),
            Commit => job::end(process, true),
            Abort => job::end(process, false),
            Cancel => job::cancel(process),
            Reattempt => job::reattempt(process),
        }
    }

    /// Asks once the request is accepted, and until it is parked where it will be.
    fn try_once(&self, process: &Process) -> Result<()> {
        let request = self.request(b'p');
        let asked = loop {
            let asked = if process.hand.parks() {
                process.ask_until(&request)
            } else {
                process.ask(&request, PATIENCE.map(|patience| 10 * patience))
            };
            let unknown = asked.as_ref().is_err_and(|e| e.kind() == ErrorKind::OutcomeUnknown);
            if !unknown || process.io.is_stopped() || process.io.struck() > 0 {
                break asked;
            }
        };
        match asked {
            Err(e) if e.kind() == ErrorKind::Conflict => Ok(()),
            asked => asked.map(drop),
        }
    }

    /// Does something to the task of the key as long as it is parked.
    fn parked(
        &self,
        process: &Process,
        verb: impl Fn(&Broadcaster, BroadcastId) -> Result<()>,
    ) -> Result<()> {
        let payload = process.told().keys.get(KEY).and_then(|of| of.accepted).unwrap_or(b'p');
        match process.ask_until(&self.request(payload)) {
            Err(e) if e.kind() == ErrorKind::Parked => {
                let id = process.id(self.kind).ok_or(e)?;
                match verb(&process.broadcaster, id) {
                    // Somebody was faster.
                    Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
                    done => done,
                }
            }
            asked => asked.map(drop),
        }
    }

    fn hear(&self, process: &Process) -> Result<()> {
        let Some(id) = process.id(self.kind) else { return Ok(()) };
        for vchannel in VCHANNELS {
            process.told().heard.insert(vchannel);
            loop {
                match process.broadcaster.ack(id, vchannel) {
                    Err(e) if e.kind() == ErrorKind::InFlight && process.io.struck() == 0 => {
                        // It was not looked for yet.
                        std::thread::yield_now();
                    }
                    acknowledged => break acknowledged?,
                }
            }
        }
        Ok(())
    }

    /// Has the sweeper look, and waits for it.
    fn sweep(&self, process: &Process) -> Result<()> {
        let old = process.told().over.clone();
        let forgotten = |process: &Process| {
            process.broadcaster.read(|state, _| old.iter().all(|id| state.task(*id).is_none()))
        };
        let until = Instant::now() + Duration::from_secs(1);
        while !forgotten(process) && !process.io.is_stopped() {
            process.broadcaster.refresh(process.broadcaster.policy())?;
            if process.io.struck() > 0 || Instant::now() > until {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
