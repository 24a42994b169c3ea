//! Crashes at every persistence point of many workloads, from opening an empty directory on.
//!
//! The file system in memory loses any part of what was not synced. After each crash the log is
//! opened, compared with what its caller relied on, appended to, and crashed again in the midst of
//! that. Nothing here is drawn at random twice: every seed is fixed.

pub(crate) mod drive;
pub(crate) mod explore;
pub(crate) mod hold;
pub(crate) mod oracle;
pub(crate) mod workload;

use std::time::Instant;

use self::drive::{Op, ROOM};
use self::explore::{Explorer, WAYS};

/// Different disk images that the run must have met, at least.
const DISTINCT_MIN: usize = 50_000;
/// Workloads that are drawn.
const DRAWN: u64 = 100;

#[test]
fn no_crash_breaks_a_promise() {
    let begin = Instant::now();
    let mut explorer = Explorer::new(WAYS);
    let workloads = workload::all(DRAWN);
    for workload in &workloads {
        if let Err(e) = explorer.workload(workload) {
            panic!("{e}");
        }
    }
    println!(
        "crash: {} workloads, {} points, {} distinct states, {} openings, {} damaged, {:.1} s",
        workloads.len(),
        explorer.points,
        explorer.distinct(),
        explorer.openings,
        explorer.damages,
        begin.elapsed().as_secs_f64()
    );
    assert!(explorer.distinct() >= DISTINCT_MIN, "{} distinct states", explorer.distinct());
}

/// What the short sequences are made of.
fn alphabet() -> Vec<Op> {
    vec![
        Op::Synced(vec![40]),
        Op::Synced(vec![ROOM - 1000]),
        Op::Buffered(vec![500, 500]),
        Op::Flush,
        Op::Trim(3),
        Op::IdleSlot,
        Op::Fill,
        Op::Close,
        Op::Kill,
        Op::FailSync,
    ]
}

/// Longest of the short sequences.
const LENGTH: u32 = 3;

#[test]
fn no_short_sequence_breaks_a_promise() {
    let begin = Instant::now();
    let alphabet = alphabet();
    let mut explorer = Explorer::new(WAYS);
    let mut sequences = 0;
    for length in 1..=LENGTH {
        for code in 0..alphabet.len().pow(length) {
            let mut rest = code;
            let ops: Vec<Op> = (0..length)
                .map(|_| {
                    let op = alphabet[rest % alphabet.len()].clone();
                    rest /= alphabet.len();
                    op
                })
                .collect();
            if let Err(e) = explorer.sequence(&ops) {
                panic!("{e}");
            }
            sequences += 1;
        }
    }
    println!(
        "sequences: {sequences} of up to {LENGTH} steps, {} points, {} openings, {:.1} s",
        explorer.points,
        explorer.openings,
        begin.elapsed().as_secs_f64()
    );
}
