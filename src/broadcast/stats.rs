//! What a broadcaster has done since it was opened, and has at this moment.
//!
//! Plain values: whoever wants them elsewhere asks for them and hands them on. Nothing here decides
//! anything.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Broadcaster;
use super::core::Inner;
use super::counts::UNREGISTERED;
use super::keys::WindowSummary;
use super::state::State;
use crate::clock::Clock as _;
use crate::log::LogStats;

/// What a broadcaster has done and has. Times are log time where nothing else is said; counts are
/// of this process and only grow, but for those that say "at this moment".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BroadcastStats {
    /// By message type; every registered one is there, and `(unregistered)` for all others.
    pub types: BTreeMap<String, TypeStats>,
    /// Look-ups of keys, and how submits were refused.
    pub keys: KeyStats,
    /// The idempotency window at this moment.
    pub window: WindowSummary,
    /// Bytes that the keys of the window take of a checkpoint, at this moment.
    pub window_bytes: u64,
    /// Most bytes that they may take, beside all else that there is at this moment. Above it new
    /// work is refused with `WindowFull`, or keys are evicted, as with the bound of their number.
    pub window_bytes_max: u64,
    /// Requests that waited for resource locks.
    pub locks: WaitStats,
    /// Callers that wait for a key at this moment: for its admission, or for its effect.
    pub callers_waiting: u64,
    /// Acks of consumers that changed nothing: of a broadcast that is done, forgotten or never was,
    /// or whose copies are acknowledged by their append.
    pub acks_ignored: u64,
    /// Copies that were appended.
    pub copies_appended: u64,
    /// Copies whose append was not known to have succeeded and that were found standing.
    pub copies_found: u64,
    /// Checkpoints of the state.
    pub checkpoints: CheckpointStats,
    /// The replay of control when it was opened.
    pub replay: ReplayStats,
    /// Jobs that are known at this moment, by the name of their phase.
    pub jobs: BTreeMap<&'static str, JobStats>,
    /// Jobs that are not over and that nobody drives, at this moment: there is no space, say.
    pub jobs_stopped: u64,
    /// Wall clock minus log time, in milliseconds.
    pub clock_offset_ms: i64,
    /// A wall clock far ahead is not believed: nothing expires.
    pub clock_held: bool,
    /// The logs: `control`, and `channels/` with the name of a pchannel.
    pub logs: BTreeMap<String, LogStats>,
}

/// Broadcasts of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeStats {
    /// Accepted by this process.
    pub accepted: u64,
    /// Ended well, durably.
    pub done: u64,
    /// Ended as failed, durably.
    pub failed: u64,
    /// How often one was parked, durably.
    pub parks: u64,
    /// Attempts of the callback by what they came to: `done`, `fail`, `retry`, `park`, `panic`.
    pub callbacks: BTreeMap<&'static str, u64>,
    /// Accepted, neither ended nor parked, at this moment.
    pub in_flight: u64,
    /// Parked at this moment.
    pub parked: u64,
}

/// Look-ups of keys, by what came of them. A submit without a key looks nothing up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyStats {
    /// Submits that were given the answer of the request that their key was accepted for before.
    /// One that is told to come back is none, however often it does.
    pub hits: u64,
    /// The key was not known, and was reserved.
    pub misses: u64,
    /// It was accepted before, for another request, and this one was refused.
    pub conflicts: u64,
    /// It was accepted before, for another request, of a type that warns of it.
    pub warnings: u64,
    /// Submits that were answered with an error, keyed or not, by the name of its kind.
    pub errors: BTreeMap<&'static str, u64>,
}

/// Requests that had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitStats {
    /// How many have waited.
    pub count: u64,
    /// How long in all, by the monotonic clock.
    pub time: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// How many of them did not get what they waited for before their deadline.
    pub timeouts: u64,
    /// How many of them were told before, or without one, that there is no use in waiting: who
    /// holds it goes no further by itself, a callback asked whose task holds others, the
    /// broadcaster was closed.
    pub refused: u64,
    /// How many wait at this moment.
    pub waiting: u64,
}

/// Checkpoints of the state in control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointStats {
    /// Written and read back.
    pub written: u64,
    /// Tries that failed.
    pub failed: u64,
    /// The last try failed: control grows, and a restart replays more.
    pub is_failing: bool,
    /// Bytes of the last one.
    pub bytes: u64,
    /// Bytes of records since the last try, at this moment.
    pub behind_bytes: u64,
}

/// The replay of control at an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayStats {
    /// Records behind the checkpoint that it began with.
    pub records: u64,
    /// How long it took, with the checkpoint, by the monotonic clock.
    pub time: Duration,
}

/// Jobs of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStats {
    /// How many there are.
    pub count: u64,
    /// Rows that their current attempts have appended, as last recorded.
    pub rows: u64,
}

/// Tasks of one type in a state, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskCounts {
    /// Accepted, neither ended nor parked.
    pub in_flight: u64,
    /// Parked.
    pub parked: u64,
    /// Done, and kept as tombstones.
    pub done: u64,
    /// Failed, and kept as tombstones.
    pub failed: u64,
}

impl State {
    /// Counts the tasks by type; looks at every one.
    #[must_use]
    pub fn task_counts(&self) -> BTreeMap<String, TaskCounts> {
        use oncelog_format::control::Outcome;
        let mut counts: BTreeMap<String, TaskCounts> = BTreeMap::new();
        for (_, task) in self.tasks() {
            let of_type = counts.entry(task.accepted.message_type.clone()).or_default();
            let count = match (&task.done, &task.parked) {
                (Some((Outcome::Done, _)), _) => &mut of_type.done,
                (Some(_), _) => &mut of_type.failed,
                (None, Some(_)) => &mut of_type.parked,
                (None, None) => &mut of_type.in_flight,
            };
            *count += 1;
        }
        counts
    }

    /// Counts the jobs by the name of their phase, every phase, with the rows that they have
    /// recorded.
    #[must_use]
    pub fn job_counts(&self) -> BTreeMap<&'static str, JobStats> {
        use oncelog_format::control::JobPhase as Phase;
        let phases = [
            Phase::Pending,
            Phase::PreImporting,
            Phase::Importing,
            Phase::Committing,
            Phase::Completed,
            Phase::Failed,
        ];
        let mut counts: BTreeMap<&'static str, JobStats> =
            phases.into_iter().map(|phase| (phase.name(), JobStats::default())).collect();
        for (_, job) in self.jobs() {
            let of_phase = counts.entry(job.phase().name()).or_default();
            let rows = job.state.as_ref().map_or(0, |state| state.rows);
            of_phase.count += 1;
            of_phase.rows = of_phase.rows.saturating_add(rows);
        }
        counts
    }
}

impl Broadcaster {
    /// Returns what was done since the open, and what there is at this moment. Decisions wait while
    /// it looks at unfinished work, at jobs, and at keys that are over and not swept yet; how many
    /// keys live does not matter.
    #[must_use]
    pub fn stats(&self) -> BroadcastStats {
        self.inner().stats()
    }
}

impl Inner {
    fn stats(&self) -> BroadcastStats {
        let counts = &self.counts;
        let mut stats = BroadcastStats {
            types: counts.types(),
            keys: counts.keys(),
            acks_ignored: counts.acks_ignored.now(),
            copies_appended: counts.copies_appended.now(),
            copies_found: counts.copies_found.now(),
            replay: counts.replay(),
            callers_waiting: u64::try_from(self.waiting.load(Ordering::Relaxed))
                .unwrap_or(u64::MAX),
            clock_offset_ms: self.time().offset_ms(),
            clock_held: self.time().clock_held(),
            ..BroadcastStats::default()
        };
        {
            let core = self.lock();
            let now_ms = self.time().expiry_ms(core.state.newest_ms());
            stats.window = WindowSummary::of(&core.state, now_ms);
            (stats.window_bytes, stats.window_bytes_max) = core.key_bytes();
            stats.locks = counts.locks(core.lock_waiters.len());
            stats.checkpoints = counts.checkpoints(core.unchecked_bytes);
            stats.jobs = core.state.job_counts();
            let stopped = core.stopped.keys().filter(|job| core.state.is_running(**job));
            stats.jobs_stopped = u64::try_from(stopped.count()).unwrap_or(u64::MAX);
            for run in core.runs.values() {
                let name = run.accepted.message_type.as_str();
                let name = if self.types.contains_key(name) { name } else { UNREGISTERED };
                let Some(of_type) = stats.types.get_mut(name) else { continue };
                match run.parked {
                    Some(_) => of_type.parked += 1,
                    None => of_type.in_flight += 1,
                }
            }
        }
        // Behind the lock: a log may make whoever looks wait for its appenders.
        stats.logs.insert("control".to_owned(), self.store.control().stats());
        for name in self.store.pchannels() {
            if let Some(of_log) = self.store.channel(name).and_then(|channel| channel.stats()) {
                stats.logs.insert(format!("channels/{name}"), of_log);
            }
        }
        stats
    }
}
