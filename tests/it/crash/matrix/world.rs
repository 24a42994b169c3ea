//! One process of the matrix, and what callers were told by all processes so far.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oncelog::broadcast::{
    AckMode, Answer, BroadcastId, Broadcaster, MessageType, Options, Request, Role, Scope, Task,
    Verdict,
};
use oncelog::testing::{Machine, MemIo};
use oncelog::{Clock, CreateMode, Error, ErrorKind, Result, Store, StoreOptions};

use super::super::drive::{SEGMENT_BYTES, chain};
use super::in_flight::is_admitted;
use crate::broadcast::desk::{DIR, Hands, assert_same, scope};

/// A caller's patience with one try; he asks again.
pub(super) const PATIENCE: Option<Duration> = Some(Duration::from_millis(20));
/// Longest that anything may take: behind it somebody waits for ever.
const LONGEST: Duration = Duration::from_secs(20);
/// The key that a case is about.
pub(super) const KEY: &str = "k";
/// The vchannels, each on a pchannel of its own.
pub(super) const VCHANNELS: [&str; 2] = ["a", "b"];
/// The types, by what they do.
pub(super) const PLAIN: &str = "Script";
pub(super) const HEARD: &str = "Heard";
pub(super) const CALLS: &str = "Calls";
pub(super) const LOAD: &str = "Load";
pub(super) const COMMIT: (&str, bool) = ("Commit", true);
pub(super) const ABORT: (&str, bool) = ("Abort", false);

/// What a callback is to do, and what callbacks did.
#[derive(Debug, Default)]
pub(super) struct Hand {
    said: Mutex<Said>,
    turned: Condvar,
}

#[derive(Debug, Default)]
struct Said {
    /// Callbacks wait.
    holds: bool,
    /// Callbacks of the key park.
    parks: bool,
    /// For callbacks that submit.
    broadcaster: Option<Broadcaster>,
    effects: Vec<Effect>,
}

/// An effect: whose, under which key, of which payload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Effect {
    pub(super) id: BroadcastId,
    pub(super) key: String,
    pub(super) payload: u8,
}

impl Hand {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(&self, holds: bool) {
        self.said().holds = holds;
        self.turned.notify_all();
    }

    pub(super) fn park(&self, parks: bool) {
        self.said().parks = parks;
    }

    pub(super) fn parks(&self) -> bool {
        self.said().parks
    }
}

#[derive(Debug)]
struct Kind {
    name: &'static str,
    role: Role,
    ack: AckMode,
    hand: Arc<Hand>,
}

impl MessageType for Kind {
    fn name(&self) -> &str {
        self.name
    }

    fn ack_mode(&self) -> AckMode {
        self.ack
    }

    fn role(&self) -> Role {
        self.role
    }

    fn validate(&self, _request: &Request) -> Result<()> {
        is_admitted();
        Ok(())
    }

    fn apply(&self, task: &Task) -> Verdict {
        let said = self.hand.said();
        let waited = self.hand.turned.wait_timeout_while(said, LONGEST, |said| said.holds);
        let (mut said, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let key = task.accepted.scope.as_ref();
        let key = key.map(|scope| String::from_utf8_lossy(&scope.client_key).into_owned());
        let Some(key) = key else { return Verdict::Done };
        if said.parks && key == KEY {
            return Verdict::Park("by the script".into());
        }
        if self.name == CALLS && task.attempts == 0 {
            return Verdict::Retry("once".into());
        }
        if let (CALLS, Some(broadcaster)) = (self.name, said.broadcaster.clone()) {
            drop(said);
            let inner = request_of(PLAIN, "inner", "p");
            if let Err(e) = broadcaster.submit(&inner, PATIENCE) {
                return Verdict::Retry(e.to_string());
            }
            said = self.hand.said();
        }
        let payload = task.accepted.payload.first().copied().unwrap_or_default();
        said.effects.push(Effect { id: task.id(), key, payload });
        Verdict::Done
    }
}

/// What callers were told.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// By key, since its window was over last.
    pub(super) keys: BTreeMap<String, OfKey>,
    pub(super) effects: Vec<Effect>,
    /// Identities whose window is over.
    pub(super) over: Vec<BroadcastId>,
    /// How often windows were over.
    epoch: u32,
    /// Calls that may have been accepted, by key and first byte of the payload.
    may: BTreeMap<(String, u8), u32>,
    pub(super) collection: Option<u64>,
    /// Consumers that acknowledged the key's copy, or were about to.
    pub(super) heard: BTreeSet<&'static str>,
    /// How attempts ended.
    pub(super) verdicts: BTreeMap<u32, bool>,
}

/// What was told of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct OfKey {
    /// The first byte of the payload that was accepted.
    pub(super) accepted: Option<u8>,
    pub(super) id: Option<BroadcastId>,
    pub(super) answer: Option<Answer>,
    /// Answers that were not of a duplicate.
    fresh: u32,
}

impl OfKey {
    fn accept(&mut self, payload: u8) {
        let known = *self.accepted.get_or_insert(payload);
        assert_eq!(known, payload, "two payloads of one key were accepted");
    }

    fn name(&mut self, id: BroadcastId) {
        assert_eq!(*self.id.get_or_insert(id), id, "one key has two broadcasts");
    }
}

impl Told {
    /// Log time went past every window.
    pub(super) fn pass(&mut self) {
        let keys = std::mem::take(&mut self.keys);
        self.over.extend(keys.values().filter_map(|key| key.id));
        self.over.extend(self.effects.iter().map(|effect| effect.id));
        self.epoch += 1;
    }

    fn note(&mut self, before: (u32, bool), key: &str, payload: u8, result: &Result<Answer>) {
        let (epoch, answered) = before;
        if let Err(e) = result
            && is_refusal(e)
        {
            *self.may.entry((key.to_owned(), payload)).or_default() -= 1;
        }
        if epoch != self.epoch {
            return;
        }
        let over = |id| self.over.contains(&id);
        match result {
            Ok(answer) => {
                assert!(!over(answer.id), "the window was over, and the old answer came");
                let of = self.keys.entry(key.to_owned()).or_default();
                assert!(answer.duplicated || !answered, "an answer was given and is forgotten");
                of.accept(payload);
                of.name(answer.id);
                of.fresh += u32::from(!answer.duplicated);
                assert!(of.fresh <= 1, "a key was accepted twice");
                assert_same(of.answer.get_or_insert_with(|| answer.clone()), answer);
            }
            Err(e) => {
                is_told(e);
                let of = self.keys.entry(key.to_owned()).or_default();
                match (e.kind(), e.broadcast_id()) {
                    (ErrorKind::Conflict, _) => {
                        of.accept(other(payload));
                        let may = self.may.get(&(key.to_owned(), other(payload)));
                        assert!(may.is_some_and(|may| *may > 0), "a refused request conflicts");
                    }
                    (_, Some(id)) => {
                        of.accept(payload);
                        of.name(id);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// There are two payloads, by their first byte.
pub(super) fn other(payload: u8) -> u8 {
    if payload == b'p' { b'q' } else { b'p' }
}

/// Errors that say that the request was not accepted.
fn is_refusal(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Conflict
            | ErrorKind::StoreFull
            | ErrorKind::LockTimeout
            | ErrorKind::Poisoned
            | ErrorKind::Io
            | ErrorKind::Closed
    )
}

/// Errors that leave a caller with something to do.
#[track_caller]
pub(super) fn is_told(e: &Error) {
    let told = [
        ErrorKind::Conflict,
        ErrorKind::OutcomeUnknown,
        ErrorKind::InFlight,
        ErrorKind::LockTimeout,
        ErrorKind::Parked,
        ErrorKind::StoreFull,
        ErrorKind::Poisoned,
        ErrorKind::Io,
        ErrorKind::Closed,
        ErrorKind::Recovering,
    ];
    assert!(told.contains(&e.kind()), "{} ({})", chain(e), e.kind());
}

pub(super) fn request_of(kind: &str, key: &str, payload: &str) -> Request {
    let scope = Scope { message_type: kind.into(), ..scope(key) };
    Request::new(kind, Some(scope), VCHANNELS.map(str::to_owned).into(), payload.into())
}

/// A process, and what outlives it of the world around.
pub(super) struct Process {
    pub(super) io: MemIo,
    pub(super) hands: Arc<Hands>,
    pub(super) hand: Arc<Hand>,
    pub(super) told: Arc<Mutex<Told>>,
    pub(super) broadcaster: Broadcaster,
}

impl Process {
    pub(super) fn start(io: MemIo, hands: &Arc<Hands>, told: &Told, holds: bool) -> Result<Self> {
        let hand = Arc::new(Hand::default());
        hand.hold(holds);
        let clock: Arc<dyn Clock> = Arc::<Hands>::clone(hands);
        let log = oncelog::Options::new().segment_bytes_max(SEGMENT_BYTES);
        let store = StoreOptions::new().log(log).create(CreateMode::IfMissing);
        let store = store.pchannels(vec!["p0".into(), "p1".into()]).clock(clock);
        let store = Store::open(Path::new(DIR), &store.io(Arc::new(io.clone())))?;
        let kind = |name, role, ack| {
            let hand = Arc::clone(&hand);
            Arc::new(Kind { name, role, ack, hand })
        };
        let options = Options::new()
            .worker_count(2)
            .register(kind(PLAIN, Role::Plain, AckMode::Append))
            .register(kind(HEARD, Role::Plain, AckMode::Consumer))
            .register(kind(CALLS, Role::Plain, AckMode::Append))
            .register(kind(LOAD, Role::StartsJob, AckMode::Append))
            .register(kind(COMMIT.0, Role::EndsJob, AckMode::Append))
            .register(kind(ABORT.0, Role::EndsJob, AckMode::Append));
        let broadcaster = Broadcaster::open(store, options)?;
        hand.said().broadcaster = Some(broadcaster.clone());
        let told = Arc::new(Mutex::new(told.clone()));
        Ok(Self { io, hands: Arc::clone(hands), hand, told, broadcaster })
    }

    pub(super) fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of a caller who knows what he was told.
    pub(super) fn ask(&self, request: &Request, patience: Option<Duration>) -> Result<Answer> {
        let key = request.scope.as_ref().map(|scope| scope.client_key.clone()).unwrap_or_default();
        let key = String::from_utf8_lossy(&key).into_owned();
        let payload = request.payload.first().copied().unwrap_or_default();
        let before = {
            let mut told = self.told();
            *told.may.entry((key.clone(), payload)).or_default() += 1;
            (told.epoch, told.keys.get(&key).is_some_and(|of| of.answer.is_some()))
        };
        let result = self.broadcaster.submit(request, patience);
        if result.is_ok() && request.message_type == HEARD {
            let heard = self.told().heard.len();
            assert_eq!(heard, VCHANNELS.len(), "done without the acks of its consumers");
        }
        self.told().note(before, &key, payload, &result);
        result
    }

    /// Asks until there is an answer, or none will come from this process.
    pub(super) fn ask_until(&self, request: &Request) -> Result<Answer> {
        let until = Instant::now() + LONGEST;
        let mut tries = 0;
        loop {
            let answer = self.ask(request, PATIENCE);
            tries += 1;
            let again = answer.as_ref().is_err_and(|e| match e.kind() {
                // What failed may be tried again by this process, and may be not.
                ErrorKind::InFlight => !self.io.is_stopped(),
                ErrorKind::OutcomeUnknown | ErrorKind::LockTimeout => self.io.struck() == 0,
                _ => false,
            });
            let enough = self.io.struck() > 0 && tries > 12;
            if !again || enough {
                return answer;
            }
            assert!(Instant::now() < until, "no answer for {LONGEST:?}");
        }
    }

    /// The broadcast of the key.
    pub(super) fn id(&self, kind: &str) -> Option<BroadcastId> {
        let scope = Scope { message_type: kind.into(), ..scope(KEY) };
        self.broadcaster.read(|state, _| state.owner(&scope))
    }

    /// The effects that exist.
    pub(super) fn effects(&self) -> Vec<Effect> {
        let mut effects = self.told().effects.clone();
        effects.extend(self.hand.said().effects.clone());
        effects.sort();
        effects.dedup();
        effects
    }

    /// Ends it as a kill does; what it leaves, and what was told until then.
    pub(super) fn end(self) -> (Machine, Told) {
        self.io.kill();
        // What a callback does from here on, nobody sees.
        let effects = self.effects();
        let mut told = self.told().clone();
        told.effects = effects;
        let broadcaster = self.hand.said().broadcaster.take();
        self.hand.hold(false);
        drop(broadcaster);
        let machine = self.io.machine();
        drop(self.broadcaster.close());
        (machine, told)
    }
}
