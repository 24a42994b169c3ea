//! Every short sequence of steps, crashed at each persistence point of its last step: those before
//! it belong to shorter sequences.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::drive::{Op, ROOM};
use super::explore::{Explorer, Reach};
use super::seen::{Counts, Seen};
use crate::figures::{figure, is_release};

const REACH: Reach =
    Reach { ways: [80, 0], kills: u64::MAX, losses: u64::MAX, failures: 1, reuses: 1 };

/// What a log is asked to do.
fn calls() -> Vec<Op> {
    vec![
        Op::Synced(vec![40]),
        Op::Buffered(vec![9000]),
        Op::Buffered(vec![500, 500]),
        Op::Sync,
        // Fits into an empty segment alone, and leaves no room behind it.
        Op::Synced(vec![ROOM - 32]),
        Op::Trim(3),
        Op::Close,
        Op::Kill,
    ]
}

/// The same, and what else may happen to it.
fn mishaps() -> Vec<Op> {
    vec![
        Op::Synced(vec![40]),
        Op::Synced(vec![ROOM - 1000]),
        Op::Buffered(vec![500, 500]),
        Op::Crowd { waiting: vec![vec![40], vec![600]], meanwhile: vec![30, 50] },
        Op::Flush,
        Op::Trim(3),
        Op::Remove,
        Op::IdleSlot,
        Op::Fill,
        Op::Close,
        Op::Kill,
        Op::FailSync,
        Op::FailSyncDir,
        Op::FailWrite(Some(600)),
        Op::FailWriteBack,
        Op::Space(Some(0)),
    ]
}

/// The sequence of a number, or `None` behind the last one of this length.
fn sequence(alphabet: &[Op], length: u32, number: usize) -> Option<Vec<Op>> {
    let mut rest = number;
    let ops = (0..length).map(|_| {
        let op = alphabet[rest % alphabet.len()].clone();
        rest /= alphabet.len();
        op
    });
    let ops = ops.collect();
    (rest == 0).then_some(ops)
}

/// Plays every sequence of up to `length` steps, on every core; how many there were.
fn play(alphabet: &[Op], length: u32) -> Result<(usize, Counts), String> {
    let (seen, mut all, mut sequences) = (Seen::default(), Counts::default(), 0);
    for length in 1..=length {
        let next = AtomicUsize::new(0);
        let run = || {
            let mut explorer = Explorer::new(REACH, &seen);
            while let Some(ops) = sequence(alphabet, length, next.fetch_add(1, Ordering::Relaxed)) {
                explorer.sequence(&ops)?;
            }
            Ok::<Counts, String>(explorer.counts)
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let found: Vec<_> = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        for counts in found {
            all.add(&counts?);
        }
        sequences += alphabet.len().pow(length);
    }
    Ok((sequences, all))
}

#[track_caller]
fn check(name: &str, alphabet: &[Op], length: u32) {
    let (sequences, counts) = play(alphabet, length).unwrap_or_else(|e| panic!("{e}"));
    figure(2, &format!("steps in sequences of {name}"), length);
    figure(2, &format!("sequences of {name}"), sequences);
    figure(2, &format!("crash points in sequences of {name}"), counts.points);
}

#[test]
fn no_short_sequence_of_calls_breaks_a_promise() {
    let length = match (cfg!(planted), is_release()) {
        (false, _) => 2,
        (true, false) => 4,
        (true, true) => 5,
    };
    check("calls of a log", &calls(), length);
}

#[test]
fn no_short_sequence_of_mishaps_breaks_a_promise() {
    let length = match (cfg!(planted), is_release()) {
        (false, _) => 2,
        (true, false) => 3,
        (true, true) => 4,
    };
    check("calls and mishaps of a log", &mishaps(), length);
}
