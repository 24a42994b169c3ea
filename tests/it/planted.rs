//! Each planted bug must break a promise where the crash tests look.
//!
//! Built by `scripts/planted` with `--cfg planted`, a test binary of its own so that it needs the
//! library alone. Without that configuration it is empty.

#![cfg(planted)]
#![expect(clippy::disallowed_methods, reason = "tests look at real time")]

mod crash;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use oncelog::planted::{Bug, plant};

use self::crash::explore::Explorer;
use self::crash::workload;

/// Drawn workloads among those written for a purpose.
const DRAWN: u64 = 20;
/// Fewer ways than the crash tests play: a bug that shows only there is one that hardly shows.
const WAYS: [usize; 2] = [12, 3];

/// The workload and the promise that it broke, or `None` when the bug survived all of them.
fn caught(bug: Bug) -> Option<String> {
    plant(bug);
    let mut explorer = Explorer::new(WAYS);
    let found = workload::all(DRAWN).iter().find_map(|workload| {
        let played = catch_unwind(AssertUnwindSafe(|| explorer.workload(workload)));
        match played {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(e),
            Err(_) => Some(format!("{}: panic", workload.name)),
        }
    });
    plant(Bug::None);
    found
}

#[test]
fn every_planted_bug_is_caught() {
    let mut survivors = Vec::new();
    for bug in Bug::ALL {
        let begin = Instant::now();
        let found = caught(bug);
        let seconds = begin.elapsed().as_secs_f64();
        match found {
            Some(e) => println!("caught {bug:?} in {seconds:.1} s: {}", shown(&e)),
            None => {
                println!("SURVIVED {bug:?} for {seconds:.1} s");
                survivors.push(bug);
            }
        }
    }
    assert!(survivors.is_empty(), "{survivors:?}");
}

/// The begin and the end of a long line.
fn shown(e: &str) -> String {
    let text: String = e.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let (head, tail) = (text.chars().take(60), text.chars().rev().take(120));
    if text.len() < 200 {
        return text;
    }
    format!(
        "{} .. {}",
        head.collect::<String>(),
        tail.collect::<Vec<_>>().iter().rev().collect::<String>()
    )
}
