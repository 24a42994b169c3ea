//! What can be said of a key: from the records, never from guesses.

use std::collections::{BTreeMap, HashMap};

use oncelog_format::control::{Body, ControlRecord, DropCause, Outcome};
use oncelog_format::message::{BroadcastId, Scope};

use super::policy::Policy;
use super::state::{State, TaskState};

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyState {
    /// Accepted, not done.
    InFlight,
    /// Done, and kept.
    Done,
    /// Failed, and kept.
    Failed,
    /// Accepted, and waiting for an operator.
    Parked,
    /// Its window is over.
    Expired,
    /// It made room for another.
    Evicted,
    /// No record of it.
    Unknown,
}

impl KeyState {
    /// Returns the word for it in output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Parked => "parked",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Unknown => "unknown",
        }
    }
}

/// A key in one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyInfo {
    /// The scope; `None` for a key of which nothing is known.
    pub scope: Option<Scope>,
    /// The client key.
    pub key: Vec<u8>,
    /// What is known.
    pub state: KeyState,
    /// The broadcast that it was accepted for.
    pub id: Option<BroadcastId>,
    /// When, in milliseconds of log time.
    pub accepted_at_ms: Option<u64>,
    /// When it was done, in milliseconds of log time.
    pub done_at_ms: Option<u64>,
    /// When its window is over, where that was promised.
    pub expires_at_ms: Option<u64>,
    /// Why it failed, is parked or is gone.
    pub cause: Option<String>,
    /// Of an unknown key: it was accepted before, as far as filters can tell, which are wrong about
    /// one key in a few hundred that was not, and do not know the oldest of a long history.
    pub probably_seen: bool,
    /// A process that has the store open may find it in another state: whether its window is over
    /// depends on whether that process believes the wall clock by now.
    pub unsure: bool,
}

impl KeyInfo {
    /// What a state knows of the key of one scope, at `at_ms`.
    #[cfg(feature = "gateway")]
    pub(crate) fn of(state: &State, scope: &Scope, at_ms: u64) -> Self {
        let owner = state.owner(scope);
        match owner.and_then(|id| Some((id, state.task(id)?))) {
            Some((id, task)) => {
                Seen::of(id, &task).into_info(scope.clone(), state.is_running(id), at_ms)
            }
            None => {
                let (principal, key) = (&scope.principal, &scope.client_key);
                Self::unknown(key.clone(), state.seen().holds(principal, key, Some(scope)))
            }
        }
    }

    pub(crate) fn unknown(key: Vec<u8>, probably_seen: bool) -> Self {
        Self {
            scope: None,
            key,
            state: KeyState::Unknown,
            id: None,
            accepted_at_ms: None,
            done_at_ms: None,
            expires_at_ms: None,
            cause: None,
            probably_seen,
            unsure: false,
        }
    }
}

/// Follows the keys of a principal through the records.
#[derive(Clone, Debug)]
pub struct KeyHistory {
    principal: String,
    key: Option<Vec<u8>>,
    /// The newest acceptance of each scope.
    newest: BTreeMap<Scope, Seen>,
    scopes: HashMap<BroadcastId, Scope>,
}

#[derive(Clone, Debug)]
struct Seen {
    id: BroadcastId,
    accepted_at_ms: u64,
    lifetime_ms: u64,
    firm: bool,
    parked: Option<String>,
    done: Option<(Outcome, u64)>,
    dropped: Option<DropCause>,
}

impl KeyHistory {
    /// Follows one key in every scope of a principal, or all its keys.
    #[must_use]
    pub fn new(principal: &str, key: Option<&[u8]>) -> Self {
        let (newest, scopes) = (BTreeMap::new(), HashMap::new());
        Self { principal: principal.to_owned(), key: key.map(<[u8]>::to_vec), newest, scopes }
    }

    /// Begins with the keys of a state.
    pub(crate) fn begin(&mut self, state: &State) {
        for (id, task) in state.tasks() {
            let Some(scope) = &task.accepted.scope else { continue };
            let other = self.key.as_ref().is_some_and(|key| *key != scope.client_key);
            if scope.principal != self.principal || other || state.owner(scope) != Some(id) {
                continue;
            }
            self.newest.insert(scope.clone(), Seen::of(id, &task));
            self.scopes.insert(id, scope.clone());
        }
    }

    /// Takes the next record.
    pub fn observe(&mut self, record: &ControlRecord) {
        let at_ms = record.at_ms;
        match &record.body {
            Body::Accepted(x) => {
                let Some(scope) = &x.scope else { return };
                let other = self.key.as_ref().is_some_and(|key| *key != scope.client_key);
                if scope.principal != self.principal || other {
                    return;
                }
                let seen = Seen {
                    id: x.id(),
                    accepted_at_ms: at_ms,
                    lifetime_ms: x.lifetime_ms,
                    firm: x.firm,
                    parked: None,
                    done: None,
                    dropped: None,
                };
                if let Some(before) = self.newest.insert(scope.clone(), seen) {
                    self.scopes.remove(&before.id);
                }
                self.scopes.insert(x.id(), scope.clone());
            }
            Body::Park(x) => self.note(x.id, |seen| seen.parked = Some(x.reason.clone())),
            Body::Resume(x) => self.note(x.id, |seen| seen.parked = None),
            Body::Done(x) => self.note(x.id, |seen| {
                if seen.done.is_none() {
                    seen.done = Some((x.outcome.clone(), at_ms));
                    seen.parked = None;
                }
            }),
            Body::Dropped(x) if x.cause != DropCause::Retired => {
                self.note(x.id, |seen| seen.dropped = Some(x.cause));
            }
            _ => {}
        }
    }

    fn note(&mut self, id: BroadcastId, change: impl FnOnce(&mut Seen)) {
        if let Some(seen) = self.scopes.get(&id).and_then(|scope| self.newest.get_mut(scope)) {
            change(seen);
        }
    }

    /// Returns what is known at `at_ms`, by the state at that time.
    #[must_use]
    pub fn into_keys(self, state: &State, at_ms: u64) -> Vec<KeyInfo> {
        if let (true, Some(key)) = (self.newest.is_empty(), &self.key) {
            let probably_seen = state.seen().holds(&self.principal, key, None);
            return vec![KeyInfo::unknown(key.clone(), probably_seen)];
        }
        let info = |(scope, seen): (Scope, Seen)| {
            let running = state.is_running(seen.id);
            seen.into_info(scope, running, at_ms)
        };
        self.newest.into_iter().map(info).collect()
    }
}

impl Seen {
    fn of(id: BroadcastId, task: &TaskState) -> Self {
        Self {
            id,
            accepted_at_ms: task.accepted_at_ms,
            lifetime_ms: task.accepted.lifetime_ms,
            firm: task.accepted.firm,
            parked: task.parked.as_ref().map(|(reason, _)| reason.clone()),
            done: task.done.clone(),
            dropped: None,
        }
    }

    fn into_info(self, scope: Scope, running: bool, at_ms: u64) -> KeyInfo {
        let done_at_ms = self.done.as_ref().map(|(_, at)| *at);
        let over_at_ms = done_at_ms.map(|at| at.saturating_add(self.lifetime_ms));
        let is_over = over_at_ms.is_some_and(|at| at_ms >= at) && !running;
        let (state, cause) = match (self.dropped, self.done, self.parked) {
            (Some(DropCause::Evicted), ..) => {
                (KeyState::Evicted, Some(DropCause::Evicted.name().to_owned()))
            }
            (Some(cause), ..) => (KeyState::Expired, Some(cause.name().to_owned())),
            (None, Some(_), _) if is_over => {
                (KeyState::Expired, Some(DropCause::Expired.name().to_owned()))
            }
            (None, Some((Outcome::Failed(reason), _)), _) => (KeyState::Failed, Some(reason)),
            (None, Some(_), _) => (KeyState::Done, None),
            (None, None, Some(reason)) => (KeyState::Parked, Some(reason)),
            (None, None, None) => (KeyState::InFlight, None),
        };
        KeyInfo {
            key: scope.client_key.clone(),
            scope: Some(scope),
            state,
            id: Some(self.id),
            accepted_at_ms: Some(self.accepted_at_ms),
            done_at_ms,
            expires_at_ms: over_at_ms.filter(|_| self.firm),
            cause,
            probably_seen: true,
            unsure: false,
        }
    }
}

/// The window at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowSummary {
    /// Keys that count.
    pub live_count: usize,
    /// Most keys at once, by the policy recorded last.
    pub count_max: u64,
    /// The lifetime that the policy promises, in milliseconds.
    pub lifetime_ms: u64,
    /// Keys that count beyond that, as a policy with `history = "warn"` allows.
    pub beyond_count: usize,
    /// For how long back a key is surely known that was accepted under the policy recorded last and
    /// is done, whoever's it is, in milliseconds. One that was accepted under a shorter lifetime
    /// lives as long as it was told, also behind a policy that has a longer one.
    pub effective_ms: u64,
    /// Keys that were dropped because their window was over.
    pub expired_count: u64,
    /// Keys that were dropped to make room.
    pub evicted_count: u64,
    /// A process that has the store open may find another number of keys: it may not believe the
    /// wall clock by now.
    pub unsure: bool,
}

impl WindowSummary {
    /// Looks at the window at `at_ms`.
    #[must_use]
    pub fn of(state: &State, at_ms: u64) -> Self {
        let default = Policy::default().record();
        let policy = state.policy().unwrap_or(&default);
        let window = state.window();
        let live_count = window.live_count(at_ms);
        let bound = usize::try_from(policy.window_count_max).unwrap_or(usize::MAX);
        Self {
            live_count,
            beyond_count: live_count.saturating_sub(bound),
            count_max: policy.window_count_max,
            lifetime_ms: policy.window_lifetime_ms,
            effective_ms: window.effective_ms(policy.window_lifetime_ms, at_ms),
            expired_count: window.expired_count(),
            evicted_count: window.evicted_count(),
            unsure: false,
        }
    }
}
