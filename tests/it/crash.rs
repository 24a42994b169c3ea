//! Crashes at every persistence point of many workloads, from opening an empty directory on.
//!
//! The file system in memory loses any part of what was not synced. After each crash the log is
//! opened, compared with what its caller relied on, appended to, and crashed again in the midst of
//! that. Every seed is fixed, and what random bytes the log draws depends on its steps alone, so
//! that two workloads that begin alike leave the same states, which count once.
//!
//! In the proof's build these run at full size, else a sample of them.

pub(crate) mod crowd;
pub(crate) mod drive;
pub(crate) mod explore;
pub(crate) mod hold;
pub(crate) mod keyed;
pub(crate) mod matrix;
pub(crate) mod neighbours;
pub(crate) mod oracle;
pub(crate) mod seen;
mod sequences;
pub(crate) mod workload;

use std::time::Instant;

use self::explore::{Reach, explore};
use self::seen::Seen;
use crate::figures::{figure, is_release, of_release};

/// What a run has to reach.
struct Size {
    reach: Reach,
    /// Workloads that are drawn.
    drawn: u64,
    /// Different disk images.
    distinct: usize,
}

fn size() -> Size {
    let reach = Reach { ways: [80, 4], kills: 3, losses: 24, failures: 1, reuses: 4 };
    if !cfg!(planted) {
        let reach = Reach { ways: [16, 2], kills: 6, losses: 48, failures: 1, reuses: 1 };
        return Size { reach, drawn: 40, distinct: 10_000 };
    }
    let reach = Reach { ways: [400, 6], failures: 2, ..reach };
    if is_release() {
        return Size { reach, drawn: u64::MAX, distinct: of_release(100_000_000) };
    }
    Size { reach, drawn: 490, distinct: 1_000_000 }
}

#[test]
fn no_crash_breaks_a_promise() {
    let begin = Instant::now();
    let size = size();
    let seen = Seen::default();
    // Without a bound of workloads it goes on until it has seen enough; else it plays the same each
    // time.
    let is_enough = || size.drawn == u64::MAX && seen.distinct() >= size.distinct;
    let found = explore(workload::all(size.drawn), size.reach, &seen, is_enough);
    let found = found.unwrap_or_else(|e| panic!("{e}"));
    println!(
        "crash: {} workloads, {} points, {} distinct states, {} openings, {} damaged, {:.1} s",
        found.workloads,
        found.points,
        seen.distinct(),
        found.openings,
        found.damages,
        begin.elapsed().as_secs_f64()
    );
    figure(1, "distinct crash states", seen.distinct());
    figure(1, "workloads", found.workloads);
    figure(1, "persistence points", found.points);
    let of = |first: &str, within: &str, second: &str| {
        let meant = |part: &str, wanted: &str| wanted == "*" || part == wanted;
        found.crashes(|(a, b, c)| meant(a, first) && meant(b, within) && meant(c, second))
    };
    figure(1, "power losses", of("power loss", "", ""));
    let reused = of(explore::REUSE, "*", "*") + of("*", "*", explore::REUSE);
    figure(1, "power losses with blocks reused", reused);
    assert!(reused > 0, "no removed file has come back");
    figure(1, "kills, then a power loss", of("kill", "*", "power loss"));
    figure(1, "failed syncs, then a kill", of("failed sync, kill", "", ""));
    figure(1, "failed syncs, then a power loss", of("failed sync, power loss", "", ""));
    figure(
        1,
        "failed syncs, then a kill, then a power loss",
        of("failed sync, kill", "*", "power loss"),
    );
    figure(1, "power losses, then another", of("power loss", "*", "power loss"));
    figure(1, "crashes in recovery", of("*", "recovery", "*"));
    figure(1, "crashes in the first append after it", of("*", "append", "*"));
    assert!(seen.distinct() >= size.distinct, "{} distinct states", seen.distinct());
    assert!(found.workloads >= 100, "{} workloads", found.workloads);
}
