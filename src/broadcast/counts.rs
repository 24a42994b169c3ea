//! What a broadcaster counts of itself as it works: numbers that nobody waits for and no decision
//! depends on, so that counting takes no lock.
//!
//! They are of this process. What outlives it is in the records, and counted from the state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oncelog_format::control::{Accepted, Outcome};

use super::kind::{MessageType, Verdict};
use super::stats::{CheckpointStats, KeyStats, ReplayStats, TypeStats, WaitStats};
use crate::error::{Error, ErrorKind};

/// Kinds of error that a submit may answer with.
const KINDS: [ErrorKind; 12] = [
    ErrorKind::InvalidInput,
    ErrorKind::Conflict,
    ErrorKind::WindowFull,
    ErrorKind::StoreFull,
    ErrorKind::Limit,
    ErrorKind::InFlight,
    ErrorKind::LockTimeout,
    ErrorKind::OutcomeUnknown,
    ErrorKind::Parked,
    ErrorKind::Io,
    ErrorKind::Poisoned,
    ErrorKind::Closed,
];

/// Under which work of a type is counted that is not registered.
pub(crate) const UNREGISTERED: &str = "(unregistered)";

/// A number that only grows, read at leisure.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn at_least(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// How a wait for locks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Got,
    /// The caller's deadline was over.
    TooLong,
    /// There was no use in waiting, or no broadcaster any more.
    Refused,
}

/// Callers that waited.
#[derive(Debug, Default)]
struct Waits {
    count: Count,
    micros: Count,
    micros_max: Count,
    timeouts: Count,
    refused: Count,
}

/// Broadcasts of one type.
#[derive(Debug, Default)]
struct OfType {
    accepted: Count,
    done: Count,
    failed: Count,
    parked: Count,
    callbacks: [Count; VERDICTS.len()],
}

/// What a callback came to, as [`OfType`] counts it.
const VERDICTS: [&str; 5] = ["done", "fail", "retry", "park", "panic"];

/// All counters of a broadcaster.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    types: BTreeMap<String, OfType>,
    unregistered: OfType,
    pub(crate) key_hits: Count,
    pub(crate) key_misses: Count,
    pub(crate) key_conflicts: Count,
    pub(crate) key_warnings: Count,
    pub(crate) acks_ignored: Count,
    errors: [Count; KINDS.len()],
    other_errors: Count,
    locks: Waits,
    pub(crate) copies_found: Count,
    pub(crate) copies_appended: Count,
    checkpoints: Count,
    checkpoint_failures: Count,
    checkpoint_fails: AtomicBool,
    checkpoint_bytes: Count,
    replay_records: Count,
    replay_micros: Count,
}

impl Counts {
    /// Counts for these types.
    pub(crate) fn new(types: &BTreeMap<String, Arc<dyn MessageType>>) -> Self {
        let types = types.keys().map(|name| (name.clone(), OfType::default())).collect();
        Self { types, ..Self::default() }
    }

    fn of(&self, message_type: &str) -> &OfType {
        self.types.get(message_type).unwrap_or(&self.unregistered)
    }

    /// A submit ended so.
    pub(crate) fn error(&self, error: &Error) {
        let at = KINDS.iter().position(|kind| *kind == error.kind());
        at.and_then(|at| self.errors.get(at)).unwrap_or(&self.other_errors).one();
    }

    /// A callback returned, or panicked where there is no verdict.
    pub(crate) fn called(&self, message_type: &str, verdict: Option<&Verdict>) {
        let at = match verdict {
            Some(Verdict::Done) => 0,
            Some(Verdict::Fail(_)) => 1,
            Some(Verdict::Retry(_)) => 2,
            Some(Verdict::Park(_)) => 3,
            None => 4,
        };
        if let Some(count) = self.of(message_type).callbacks.get(at) {
            count.one();
        }
    }

    /// A broadcast was accepted, durably.
    pub(crate) fn accepted(&self, accepted: &Accepted) {
        self.of(&accepted.message_type).accepted.one();
    }

    /// A broadcast was parked, durably.
    pub(crate) fn parked(&self, accepted: &Accepted) {
        self.of(&accepted.message_type).parked.one();
    }

    /// A broadcast ended so, durably.
    pub(crate) fn ended(&self, accepted: &Accepted, ending: &Outcome) {
        let of_type = self.of(&accepted.message_type);
        if *ending == Outcome::Done { of_type.done.one() } else { of_type.failed.one() }
    }

    /// A request that had to wait for its locks waited so long.
    pub(crate) fn waited_for_locks(&self, time: Duration, ended: Waited) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.locks.count.one();
        self.locks.micros.add(micros);
        self.locks.micros_max.at_least(micros);
        match ended {
            Waited::Got => {}
            Waited::TooLong => self.locks.timeouts.one(),
            Waited::Refused => self.locks.refused.one(),
        }
    }

    /// A checkpoint of so many bytes was written and read back.
    pub(crate) fn checkpointed(&self, bytes: u64) {
        self.checkpoints.one();
        self.checkpoint_bytes.set(bytes);
        self.checkpoint_fails.store(false, Ordering::Relaxed);
    }

    pub(crate) fn checkpoint_failed(&self) {
        self.checkpoint_failures.one();
        self.checkpoint_fails.store(true, Ordering::Relaxed);
    }

    /// The open replayed so many records, in so long.
    pub(crate) fn replayed(&self, replay: ReplayStats) {
        self.replay_records.set(replay.records);
        self.replay_micros.set(u64::try_from(replay.time.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn types(&self) -> BTreeMap<String, TypeStats> {
        let known = self.types.iter().map(|(name, counts)| (name.clone(), counts.stats()));
        let mut types: BTreeMap<String, TypeStats> = known.collect();
        types.insert(UNREGISTERED.to_owned(), self.unregistered.stats());
        types
    }

    pub(super) fn keys(&self) -> KeyStats {
        let named = KINDS.iter().zip(&self.errors).map(|(kind, count)| (kind.as_str(), count));
        let all = named.chain([("other", &self.other_errors)]);
        KeyStats {
            hits: self.key_hits.now(),
            misses: self.key_misses.now(),
            conflicts: self.key_conflicts.now(),
            warnings: self.key_warnings.now(),
            errors: all.map(|(name, count)| (name, count.now())).filter(|(_, n)| *n > 0).collect(),
        }
    }

    pub(super) fn locks(&self, waiting: usize) -> WaitStats {
        WaitStats {
            count: self.locks.count.now(),
            time: Duration::from_micros(self.locks.micros.now()),
            longest: Duration::from_micros(self.locks.micros_max.now()),
            timeouts: self.locks.timeouts.now(),
            refused: self.locks.refused.now(),
            waiting: u64::try_from(waiting).unwrap_or(u64::MAX),
        }
    }

    pub(super) fn checkpoints(&self, behind_bytes: u64) -> CheckpointStats {
        CheckpointStats {
            written: self.checkpoints.now(),
            failed: self.checkpoint_failures.now(),
            is_failing: self.checkpoint_fails.load(Ordering::Relaxed),
            bytes: self.checkpoint_bytes.now(),
            behind_bytes,
        }
    }

    pub(super) fn replay(&self) -> ReplayStats {
        ReplayStats {
            records: self.replay_records.now(),
            time: Duration::from_micros(self.replay_micros.now()),
        }
    }
}

impl OfType {
    fn stats(&self) -> TypeStats {
        let calls = VERDICTS.iter().zip(&self.callbacks);
        TypeStats {
            accepted: self.accepted.now(),
            done: self.done.now(),
            failed: self.failed.now(),
            parks: self.parked.now(),
            callbacks: calls.map(|(name, count)| (*name, count.now())).collect(),
            in_flight: 0,
            parked: 0,
        }
    }
}
