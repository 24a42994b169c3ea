//! Random steps on a node's log, with the process killed or the power lost within or between them,
//! compared with a list of entries.

use std::ops::Range;

use oncelog::Durability;
use oncelog::raft::RaftLog;
use oncelog::testing::{Dice, EIO, Fault, MemIo, Which};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{Entry, LogId, RaftLogReader, StorageError, Vote};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use crate::figures::{is_release, of_release};
use crate::node::{self, Text, entry};

type Stored<T> = Result<T, StorageError<u64>>;

/// What raft asks for. Numbers count from an end of what is there.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Append { count: u64, len: usize, later_term: bool },
    Truncate(u64),
    Purge(u64),
    Vote,
    Committed(u64),
    Read(u64, u64),
}

/// What happens to the process then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    LivesOn,
    Closes,
    Killed,
    PowerLost,
    /// Killed at the n-th persistence point of the call, and the power lost.
    PowerLostWithin(u64),
    /// Killed there, and nothing else.
    KilledWithin(u64),
    /// That call fails, and the node is killed for it.
    FailsWithin(u64),
}

pub(crate) type Step = (Ask, Fate);

/// What a node must find again.
#[derive(Clone, Debug, PartialEq)]
struct Content {
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
    entries: Vec<Entry<Text>>,
}

impl Content {
    fn last(&self) -> Option<LogId<u64>> {
        self.entries.last().map(|entry| entry.log_id).or(self.purged)
    }

    fn next(&self) -> u64 {
        self.last().map_or(0, |last| last.index + 1)
    }

    fn indices(&self) -> Range<u64> {
        self.entries.first().map_or(0, |first| first.log_id.index)..self.next()
    }
}

struct Model {
    dice: Dice,
    content: Content,
    /// What may be found as committed: the last one that is durable, and those saved since.
    committed: Vec<Option<LogId<u64>>>,
    term: u64,
    count: u64,
}

impl Model {
    /// What the step does to the content; `None` where raft would not ask for it.
    fn after(&mut self, ask: &Ask) -> Option<(Call, Content)> {
        let mut after = self.content.clone();
        let committed = self.committed.last().copied().flatten();
        let call = match *ask {
            Ask::Append { count, len, later_term } => {
                self.term += u64::from(later_term);
                let first = after.next();
                let new = (first..first + count).map(|index| {
                    self.count += 1;
                    entry(self.term, index, format!("{} {}", self.count, "x".repeat(len)))
                });
                let new: Vec<_> = new.collect();
                after.entries.extend(new.iter().cloned());
                Call::Append(new)
            }
            Ask::Truncate(count) => {
                let end = after.entries.len().saturating_sub(usize::try_from(count).unwrap());
                let free = |entry: &Entry<Text>| Some(entry.log_id) > committed;
                let since = after.entries.get(end).filter(|since| free(since))?.log_id;
                after.entries.truncate(end);
                Call::Truncate(since)
            }
            Ask::Purge(count) => {
                let at = usize::try_from(count).unwrap();
                let upto = after.entries.get(at)?.log_id;
                (after.purged, after.entries) = (Some(upto), after.entries.split_off(at + 1));
                Call::Purge(upto)
            }
            Ask::Vote => {
                self.term += 1;
                let vote = Vote::new(self.term, 1);
                after.vote = Some(vote);
                Call::Vote(vote)
            }
            Ask::Committed(count) => {
                let at = usize::try_from(count).unwrap();
                let committed = after.entries.get(at)?.log_id;
                Call::Committed(committed)
            }
            Ask::Read(from, len) => Call::Read(from..from + len),
        };
        Some((call, after))
    }

    /// A later record is durable, so what was saved before it is.
    fn settle(&mut self) {
        self.committed.drain(..self.committed.len() - 1);
    }
}

/// A call as openraft makes it.
#[derive(Debug)]
enum Call {
    Append(Vec<Entry<Text>>),
    Truncate(LogId<u64>),
    Purge(LogId<u64>),
    Vote(Vote<u64>),
    Committed(LogId<u64>),
    Read(Range<u64>),
}

async fn make(log: &mut RaftLog<Text>, call: &Call) -> Stored<()> {
    match call {
        Call::Append(entries) => log.blocking_append(entries.clone()).await,
        Call::Truncate(since) => log.truncate(*since).await,
        Call::Purge(upto) => log.purge(*upto).await,
        Call::Vote(vote) => log.save_vote(vote).await,
        Call::Committed(committed) => log.save_committed(Some(*committed)).await,
        Call::Read(range) => log.try_get_log_entries(range.clone()).await.map(drop),
    }
}

/// Everything that the log answers, and whether it agrees with itself.
async fn found(log: &mut RaftLog<Text>) -> (Content, Option<LogId<u64>>) {
    let state = log.get_log_state().await.unwrap();
    let entries = log.try_get_log_entries(..).await.unwrap();
    let vote = log.read_vote().await.unwrap();
    let content = Content { vote, purged: state.last_purged_log_id, entries };
    assert_eq!(state.last_log_id, content.last());
    (content, log.read_committed().await.unwrap())
}

/// Plays steps, and compares after each.
pub(crate) async fn play(seed: u64, steps: &[Step]) {
    let mut io = MemIo::default();
    io.seed(seed);
    let durability = if seed.is_multiple_of(2) { Durability::Synced } else { Durability::Buffered };
    let open = |io: &MemIo| node::open(io).committed_durability(durability);
    let mut log = open(&io);
    let mut model = Model {
        dice: Dice::new(seed),
        content: Content { vote: None, purged: None, entries: Vec::new() },
        committed: vec![None],
        term: 1,
        count: 0,
    };
    for (ask, fate) in steps {
        let Some((call, after)) = model.after(ask) else { continue };
        let within = match *fate {
            Fate::PowerLostWithin(n) | Fate::KilledWithin(n) => Some((n, Fault::Stop)),
            Fate::FailsWithin(n) => Some((n, Fault::Error(EIO))),
            _ => None,
        };
        let struck = io.struck();
        if let Some((n, fault)) = within {
            io.arm(Which::Persist, n, 1, fault);
        }
        let made = make(&mut log, &call).await;
        io.disarm();
        let fails = io.struck() > struck || io.is_stopped();
        assert!(fails || made.is_ok(), "{call:?}: {made:?}");
        if let Call::Committed(committed) = &call {
            model.committed.push(Some(*committed));
            if made.is_ok() && durability == Durability::Synced {
                model.settle();
            }
        } else if made.is_ok() && after != model.content {
            model.settle();
        }
        // Only a call that was answered is sure to have happened.
        let mut possible = vec![after];
        if made.is_err() {
            possible.push(model.content.clone());
        }
        let dies = fails || !matches!(fate, Fate::LivesOn | Fate::Closes);
        if matches!(fate, Fate::Closes) && !dies {
            log.log().clone().close().unwrap();
            model.settle();
            drop(log);
            log = open(&io);
        } else if dies {
            let lost = matches!(fate, Fate::PowerLost | Fate::PowerLostWithin(_));
            io = if lost { node::power_loss(&io, &mut model.dice) } else { node::kill(&io) };
            drop(log);
            log = open(&io);
        }
        let (content, committed) = found(&mut log).await;
        assert!(possible.contains(&content), "{call:?}, {fate:?}: {content:?} of {possible:?}");
        assert!(model.committed.contains(&committed), "{committed:?} of {:?}", model.committed);
        if dies {
            model.committed = vec![committed];
        }
        assert!(dies || Some(&committed) == model.committed.last(), "{committed:?}");
        assert!(committed <= content.last(), "{committed:?} is behind {:?}", content.last());
        model.content = content;
        parts(&mut log, &mut model).await;
    }
}

/// Any range reads as that part of the whole.
async fn parts(log: &mut RaftLog<Text>, model: &mut Model) {
    let indices = model.content.indices();
    let mut reader = log.get_log_reader().await;
    for _ in 0..2 {
        let from = model.dice.below(indices.end + 2);
        let to = from + model.dice.below(6);
        let inside = |entry: &&Entry<Text>| (from..to).contains(&entry.log_id.index);
        let expected: Vec<_> = model.content.entries.iter().filter(inside).cloned().collect();
        assert_eq!(reader.try_get_log_entries(from..to).await.unwrap(), expected);
        let limited = reader.limited_get_log_entries(from, to).await.unwrap();
        assert_eq!(limited, expected);
    }
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ask = prop_oneof![
        6 => (1..6_u64, prop_oneof![Just(0_usize), 0..300_usize, Just(9000)], any::<bool>())
            .prop_map(|(count, len, later_term)| Ask::Append { count, len, later_term }),
        2 => (1..8_u64).prop_map(Ask::Truncate),
        2 => (0..8_u64).prop_map(Ask::Purge),
        1 => Just(Ask::Vote),
        2 => (0..8_u64).prop_map(Ask::Committed),
        1 => (0..20_u64, 0..9_u64).prop_map(|(from, len)| Ask::Read(from, len)),
    ];
    let fate = prop_oneof![
        8 => Just(Fate::LivesOn),
        1 => Just(Fate::Closes),
        1 => Just(Fate::Killed),
        2 => Just(Fate::PowerLost),
        2 => (1..8_u64).prop_map(Fate::PowerLostWithin),
        1 => (1..8_u64).prop_map(Fate::KilledWithin),
        1 => (1..8_u64).prop_map(Fate::FailsWithin),
    ];
    prop::collection::vec((ask, fate), 1..40)
}

/// Plays drawn steps, the same ones every time, and shows those that fail after so many attempts
/// to make them fewer.
pub(crate) fn play_many(cases: u32, max_shrink_iters: u32) {
    let config = ProptestConfig {
        cases,
        max_shrink_iters,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let drawn = (any::<u64>(), steps());
    let played = TestRunner::new_with_rng(config, rng).run(&drawn, |(seed, steps)| {
        node::run(play(seed, &steps));
        Ok(())
    });
    played.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_raft_log_is_a_list_of_entries_whatever_happens_to_its_process() {
    play_many(if is_release() { of_release(50_000) } else { 600 }, 1000);
}
