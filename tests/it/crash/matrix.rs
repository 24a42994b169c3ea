//! The matrix of exactly once: each verb of a broadcaster, cut off by each mishap at each of its
//! persistence points, with a duplicate of the same or another payload before, during recovery, or
//! behind.
//!
//! A verb is a script (`scripts.rs`), and cases are made of all of them alike (`case.rs`). Before and
//! during recovery the duplicate is in flight at a point: whoever comes there waits until the
//! duplicate does (`in_flight.rs`). Before, that is the point of the mishap or the one before it, in
//! a release each one before it; during recovery the points are walked over the cases, as are those
//! of the second kill, which a release has at each of them behind each of the first. Behind the mishap the store is opened again and
//! the script brought to its end, as whoever runs it would. Then: one effect per accepted key, on its
//! copies, each of which stands once; visible rows are those of one attempt; a conflict only with
//! what was accepted; every answer is the first one, or an error that says what to do; and no expiry
//! moves. As the threads of a broadcaster take turns as they like, the n-th point is not the same in
//! every run: whichever it is, this has to hold.
//!
//! Only what happened is counted: a kill in recovery where it struck, a duplicate before where it was
//! in flight.

mod case;
mod in_flight;
mod job;
mod scripts;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(planted)]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use oncelog::testing::{EDQUOT, EINTR, EIO, EMFILE, ENOSPC, EROFS, Fault, Machine};

pub(crate) use self::case::When;
use self::case::{Case, Mishap, Played, Recoveries};
use self::in_flight::Stage;
use self::scripts::{SCRIPTS, Script};
use self::world::Told;
use super::keyed::{TURN, run_all};
use crate::figures::{figure, is_release, of_release};

/// Seeds of a release: what survives a power loss or a failed sync, where the second kill and the
/// duplicate come, how a process ends.
const SEEDS: u64 = 100;

/// Cases by what was drawn up.
#[derive(Default)]
struct Counts(Mutex<BTreeMap<String, usize>>);

impl Counts {
    fn add(&self, name: String, count: usize) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(name).or_default() += count;
    }
}

/// What cases begin with: a machine, what callers were told, and how far recoveries go.
struct Base {
    left: (Machine, Told),
    reach: Recoveries,
}

impl Base {
    fn of(script: &Script) -> Self {
        Self { left: script.base(), reach: Recoveries::default() }
    }
}

/// Every point of a case, or each `step`-th; how many were judged.
fn play_all(case: &Case<'_>, base: &Base, step: usize, count: impl Fn(&Played)) -> usize {
    let mut judged = 0;
    for nth in (1 + case.seed % u64::try_from(step).unwrap()..).step_by(step) {
        let played = catch_unwind(AssertUnwindSafe(|| case.play(&base.left, nth, &base.reach)));
        let played = played.unwrap_or_else(|_| panic!("at point {nth} of {case:?}"));
        count(&played);
        judged += played.judged;
        if !played.struck {
            break;
        }
    }
    judged
}

fn cases<'a>(script: &'a Script, seed: u64) -> impl Iterator<Item = Case<'a>> {
    Mishap::ALL.into_iter().flat_map(move |mishap| {
        When::ALL.into_iter().flat_map(move |when| {
            [b'p', b'q'].map(|payload| Case { script, mishap, when, payload, seed })
        })
    })
}

/// Counts a case as what it was.
fn note(counts: &Counts, case: &Case<'_>, played: &Played) {
    let mishap = match case.mishap {
        Mishap::KillTwice if !played.struck_again => Mishap::Kill,
        mishap => mishap,
    };
    counts.add(format!("cases of {} by {}", case.script.name, mishap.name()), played.judged);
    let in_flight = matches!(played.stage, Some(Stage::Waits | Stage::Answered));
    if in_flight || case.when != When::Before {
        let payload = if case.payload == b'p' { "the same" } else { "another" };
        counts.add(format!("cases with {payload} payload {}", case.when.name()), played.judged);
    }
    if played.stage == Some(Stage::Waits) {
        let name = format!("cases with a duplicate that waits {}", case.when.name());
        counts.add(name, played.judged);
    }
    if played.stage == Some(Stage::Late) {
        counts.add("duplicates that came too late for their point".to_owned(), 1);
    }
}

#[test]
fn no_mishap_at_any_point_of_any_verb_breaks_exactly_once() {
    let _turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    let (seeds, step) = match (cfg!(planted), is_release()) {
        (false, _) => (1, 29),
        (true, false) => (1, 1),
        (true, true) => (of_release(SEEDS), 1),
    };
    let bases: Vec<Base> = SCRIPTS.iter().map(Base::of).collect();
    let counts = Counts::default();
    let mut jobs = Vec::new();
    for seed in 0..seeds {
        for (script, base) in SCRIPTS.iter().zip(&bases) {
            jobs.extend(cases(script, seed).enumerate().map(|(n, case)| {
                // Where not all are played, not the same points of each.
                let seed = if step == 1 { seed } else { u64::try_from(n).unwrap() };
                (Case { seed, ..case }, base)
            }));
        }
    }
    if seeds == 1 && step == 1 {
        // A recovery has few points, or none: each first kill has two others behind it.
        for (script, base) in SCRIPTS.iter().zip(&bases) {
            let again = cases(script, 1).filter(|case| case.mishap == Mishap::KillTwice);
            jobs.extend(again.map(|case| (case, base)));
        }
    }
    let all = run_all(&jobs, |(case, base)| {
        play_all(case, base, step, |played| note(&counts, case, played))
    });
    println!("matrix: {all} cases, {:.1} s", begin.elapsed().as_secs_f64());
    figure(13, "cases of exactly once", all);
    for (name, count) in counts.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
        figure(13, &name, count);
    }
    let mut struck = 0;
    for (script, base) in SCRIPTS.iter().zip(&bases) {
        let (points, last) = base.reach.struck();
        println!("matrix: {} of {last} points of recoveries of {}", points, script.name);
        struck += points;
    }
    figure(13, "points of recoveries that a second kill struck", struck);
}

/// All verbs whose points are walked.
#[cfg(planted)]
pub(crate) fn verb_names() -> impl Iterator<Item = &'static str> {
    SCRIPTS.iter().map(|script| script.name)
}

/// The verb of this name alone, cut off by every mishap at every point, with duplicates of these
/// times: for a planted bug.
#[cfg(planted)]
pub(crate) fn exactly_once_of(name: &str, whens: &[When]) {
    let script = SCRIPTS.iter().find(|script| script.name == name).unwrap();
    let base = Base::of(script);
    let cases = (0..6).flat_map(|seed| cases(script, seed));
    let cases: Vec<Case<'_>> = cases.filter(|case| whens.contains(&case.when)).collect();
    let broken = AtomicBool::new(false);
    run_all(&cases, |case| {
        // One is enough.
        if broken.load(Ordering::Relaxed) {
            return 0;
        }
        let played = catch_unwind(AssertUnwindSafe(|| play_all(case, &base, 1, |_| ())));
        broken.fetch_or(played.is_err(), Ordering::Relaxed);
        played.unwrap_or_default()
    });
    assert!(!broken.into_inner(), "{name} is not exactly once");
}

#[test]
fn no_failing_call_under_any_verb_breaks_exactly_once() {
    let _turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    let errors = [EIO, ENOSPC, EINTR, EDQUOT, EROFS, EMFILE].map(Fault::Error);
    let faults = errors.into_iter().chain([Fault::Short(1), Fault::Short(100)]);
    let step = if cfg!(planted) { 1 } else { 61 };
    let bases: Vec<Base> = SCRIPTS.iter().map(Base::of).collect();
    let mut jobs = Vec::new();
    for (n, fault) in (0..).zip(faults) {
        for times in [1, 40] {
            for (script, base) in SCRIPTS.iter().zip(&bases) {
                let mishap = Mishap::Call(fault, times);
                let (when, payload) = (When::Behind, if times == 1 { b'p' } else { b'q' });
                jobs.push((Case { script, mishap, when, payload, seed: n }, base));
            }
        }
    }
    let all = run_all(&jobs, |(case, base)| play_all(case, base, step, |_| ()));
    println!("matrix: {all} cases of failing calls");
    figure(5, "cases of a failing call under the verbs of a broadcaster", all);
}
