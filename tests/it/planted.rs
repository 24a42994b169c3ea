//! Each planted bug must break a promise where the proof looks.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use oncelog::planted::{Bug, plant, plant_here};

use crate::crash::explore::{Explorer, Reach};
use crate::crash::keyed::TURN;
use crate::crash::matrix::{When, exactly_once_of, verb_names};
use crate::crash::seen::Seen;
use crate::crash::workload;
use crate::figures::figure;

/// Drawn workloads among those written for a purpose.
const DRAWN: u64 = 20;
/// Fewer ways than the crash tests play: a bug that shows only there is one that hardly shows.
const REACH: Reach = Reach { ways: [12, 3], kills: 3, losses: 24, failures: 1, reuses: 1 };

/// The workload and the promise that it broke, or `None` when the bug survived all of them. Without
/// a bug `no_crash_breaks_a_promise` plays the same workloads, in more ways.
fn caught(bug: Bug) -> Option<String> {
    plant_here(bug);
    let seen = Seen::default();
    let mut explorer = Explorer::new(REACH, &seen);
    let found = workload::all(DRAWN).find_map(|workload| {
        let played = catch_unwind(AssertUnwindSafe(|| explorer.workload(&workload)));
        match played {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(e),
            Err(_) => Some(format!("{}: panic", workload.name)),
        }
    });
    plant_here(Bug::None);
    found
}

/// Plants the bugs of the log on threads of their own; those that survive.
#[expect(clippy::print_stdout, reason = "who was caught, and by what, is what the test is about")]
fn survivors_of_crashes() -> Vec<Bug> {
    let (bugs, survivors) = (Mutex::new(Bug::LOG.into_iter()), Mutex::new(Vec::new()));
    let run = || {
        loop {
            let Some(bug) = bugs.lock().unwrap().next() else { break };
            let begin = Instant::now();
            let found = caught(bug);
            let seconds = begin.elapsed().as_secs_f64();
            match found {
                Some(e) => println!("caught {bug:?} in {seconds:.1} s: {}", shown(&e)),
                None => {
                    println!("SURVIVED {bug:?} for {seconds:.1} s");
                    survivors.lock().unwrap().push(bug);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
    survivors.into_inner().unwrap()
}

#[test]
fn every_planted_bug_is_caught() {
    let mut survivors = survivors_of_crashes();
    let _turn = TURN.write().unwrap_or_else(PoisonError::into_inner);
    for bug in Bug::BROADCAST {
        let check = check_of(bug);
        assert!(!is_broken(check), "the test for {bug:?} fails without it");
        plant(bug);
        let broken = is_broken(check);
        plant(Bug::None);
        println!("{} {bug:?}", if broken { "caught" } else { "SURVIVED" });
        if !broken {
            survivors.push(bug);
        }
    }
    let all = Bug::LOG.len() + Bug::BROADCAST.len();
    figure(12, "planted bugs caught", all - survivors.len());
    figure(12, "planted bugs that survive", survivors.len());
    assert!(survivors.is_empty(), "{survivors:?}");
}

/// Bugs of the broadcaster, and verbs whose walk in the matrix shows them: each verb has one.
const OF_MATRIX: [(Bug, &str, &[When]); 22] = [
    (Bug::TombstoneReset, "policy refresh", &When::ALL),
    (Bug::FingerprintFastPath, "submit", &When::ALL),
    (Bug::CopyWithoutScan, "submit", &When::ALL),
    (Bug::UnknownIsRefusal, "submit", &When::ALL),
    (Bug::CheckpointCoversItself, "checkpoint", &When::ALL),
    (Bug::FoundIsAcked, "ack", &When::ALL),
    (Bug::HandedIsAccepted, "submit", &[When::Before]),
    (Bug::CopyWithoutScan, "append", &When::ALL),
    (Bug::DuplicateBeforeCallback, "callback", &When::ALL),
    (Bug::UnknownIsRefusal, "park", &When::ALL),
    (Bug::ToldBeforeSync, "resume", &When::ALL),
    (Bug::TombstoneReset, "skip", &When::ALL),
    (Bug::TombstoneReset, "tombstone", &When::ALL),
    (Bug::TombstoneReset, "drop", &When::ALL),
    (Bug::ToldBeforeSync, "collection creation", &When::ALL),
    (Bug::UnknownIsRefusal, "plan", &When::ALL),
    (Bug::UnknownIsRefusal, "slice", &When::ALL),
    (Bug::UnknownIsRefusal, "commit", &When::ALL),
    (Bug::UnknownIsRefusal, "abort", &When::ALL),
    (Bug::TombstoneReset, "cancel", &When::ALL),
    (Bug::TombstoneReset, "re-attempt", &When::ALL),
    (Bug::TombstoneReset, "take-over", &When::ALL),
];

#[test]
fn every_planted_bug_of_exactly_once_is_caught_by_the_matrix() {
    let _turn = TURN.write().unwrap_or_else(PoisonError::into_inner);
    let is_broken = |bug, verb, whens| {
        plant(bug);
        let broken = is_broken(move || exactly_once_of(verb, whens));
        plant(Bug::None);
        broken
    };
    let mut survivors = Vec::new();
    for (bug, verb, whens) in OF_MATRIX {
        let begin = Instant::now();
        let broken = is_broken(bug, verb, whens);
        let seconds = begin.elapsed().as_secs_f64();
        let said = if broken { "caught" } else { "SURVIVED" };
        println!("{said} {bug:?} under {verb} in {seconds:.1} s");
        if !broken {
            survivors.push((bug, verb));
        }
    }
    // What only a duplicate in flight shows, no other does: without that third it would survive.
    let is_seen_behind = is_broken(Bug::HandedIsAccepted, "submit", &[When::Behind]);
    assert!(!is_seen_behind, "a bug that needs a duplicate in flight is seen without one");
    let verbs: BTreeSet<&str> = OF_MATRIX.iter().map(|(_, verb, _)| *verb).collect();
    assert_eq!(verbs, verb_names().collect(), "each verb has a bug that its walk shows");
    figure(13, "planted bugs caught by the matrix", OF_MATRIX.len() - survivors.len());
    figure(13, "verbs whose walk shows a planted bug", verbs.len());
    assert!(survivors.is_empty(), "{survivors:?}");
}

#[test]
fn every_planted_bug_of_readers_and_backups_is_caught() {
    let survivors: Vec<Bug> = Bug::READING
        .into_iter()
        .filter(|bug| {
            let check = check_of_reading(*bug);
            check();
            plant_here(*bug);
            let caught = catch_unwind(check).is_err();
            plant_here(Bug::None);
            println!("{} {bug:?}", if caught { "caught" } else { "SURVIVED" });
            !caught
        })
        .collect();
    figure(12, "planted bugs of readers caught", Bug::READING.len() - survivors.len());
    assert!(survivors.is_empty(), "{survivors:?}");
}

/// The test that a bug of readers and backups breaks.
fn check_of_reading(bug: Bug) -> fn() {
    use crate::crash::neighbours;
    use crate::{backup, log::subscribe};
    match bug {
        Bug::BackupUnmarked => backup::a_crash_at_any_point_of_a_backup_leaves_no_shorter_log,
        Bug::BackupUnnamed => neighbours::blocks_that_another_log_was_given_are_a_leftover,
        Bug::GapUntold => subscribe::a_subscription_below_the_oldest_record_begins_with_one_gap,
        other => unreachable!("{other:?} is not a bug of readers"),
    }
}

#[test]
fn every_planted_bug_of_space_is_caught() {
    let survivors = survivors(&Bug::SPACE, check_of_space);
    figure(12, "planted bugs of space caught", Bug::SPACE.len() - survivors.len());
    assert!(survivors.is_empty(), "{survivors:?}");
}

#[test]
fn every_planted_bug_of_locks_is_caught() {
    let survivors = survivors(&Bug::LOCKS, check_of_locks);
    figure(12, "planted bugs of locks caught", Bug::LOCKS.len() - survivors.len());
    assert!(survivors.is_empty(), "{survivors:?}");
}

/// Bugs that the tests for them do not see, planted for all threads of the process one by one.
#[expect(clippy::print_stdout, reason = "who runs the proof reads it")]
fn survivors(bugs: &[Bug], check_of: fn(Bug) -> fn()) -> Vec<Bug> {
    let _turn = TURN.write().unwrap_or_else(PoisonError::into_inner);
    let survives = |bug: &Bug| {
        let check = check_of(*bug);
        assert!(!is_broken(check), "the test for {bug:?} fails without it");
        plant(*bug);
        let caught = is_broken(check);
        plant(Bug::None);
        println!("{} {bug:?}", if caught { "caught" } else { "SURVIVED" });
        !caught
    };
    bugs.iter().copied().filter(survives).collect()
}

/// The test that a bug of locks breaks.
fn check_of_locks(bug: Bug) -> fn() {
    use crate::backup::raced;
    match bug {
        Bug::LockNameless => raced::a_lock_that_a_failed_backup_removes_makes_nobody_an_owner,
        Bug::LockOfAnother => raced::a_lock_whose_name_another_file_has_makes_nobody_an_owner,
        Bug::LockTrusted => {
            crate::made::a_store_whose_making_failed_is_made_by_the_next_attempt_and_stays
        }
        other => unreachable!("{other:?} is not a bug of locks"),
    }
}

/// The test that a bug of space breaks.
fn check_of_space(bug: Bug) -> fn() {
    use crate::broadcast::{pins, space, taken};
    match bug {
        Bug::ReserveSpent => space::what_was_accepted_ends_on_a_full_disk_and_makes_room,
        Bug::ReserveUnsynced => space::the_name_of_a_reserve_is_durable_when_something_counts_on_it,
        Bug::ReserveDoubled => taken::what_was_accepted_ends_though_a_crash_takes_the_reserve,
        Bug::EndUnpinned => pins::no_retention_takes_what_unfinished_work_reads_back,
        Bug::CheckpointUncounted => {
            space::a_checkpoint_is_written_on_a_disk_that_large_work_has_filled
        }
        Bug::TickUnkept => {
            crate::ticks::no_trim_and_no_crash_takes_the_last_tick_behind_late_chunks
        }
        other => unreachable!("{other:?} is not a bug of space"),
    }
}

/// The test that a bug of the broadcaster breaks.
fn check_of(bug: Bug) -> fn() {
    use crate::broadcast::{chunks, crash, decisions, retention};
    match bug {
        Bug::TombstoneReset => {
            retention::a_key_replays_until_its_instant_and_is_new_work_from_then_on
        }
        Bug::FingerprintFastPath => {
            crate::broadcast::another_payload_conflicts_names_the_fields_and_leaves_the_original
        }
        Bug::ScopeWithoutOwner => retention::a_scope_that_has_a_newer_owner_stays_with_it,
        Bug::DuplicateBeforeCallback => {
            crate::broadcast::a_duplicate_waits_for_the_effect_and_a_deadline_says_in_flight
        }
        Bug::ReservedIsAccepted => crate::broadcast::a_reservation_is_no_acceptance,
        Bug::LockLeaked => crate::broadcast::a_refusal_behind_the_locks_releases_them,
        Bug::CopyWithoutScan => crash::a_submit_killed_at_any_point_has_one_effect_for_each_key,
        Bug::FoundIsAcked => crate::broadcast::consumers_acknowledge_and_a_scan_does_not,
        Bug::ChunkAppendedAgain => {
            chunks::a_broadcast_in_chunks_killed_at_any_point_gives_each_vchannel_each_chunk_once
        }
        Bug::EvictPromised => {
            retention::eviction_takes_the_oldest_key_without_a_promise_and_never_a_firm_one
        }
        Bug::JumpBelieved => {
            retention::a_jump_of_the_wall_clock_expires_nothing_until_an_operator_says_so
        }
        Bug::UnknownIsRefusal => crash::a_write_that_fails_once_is_never_taken_for_a_refusal,
        Bug::ReservationLeaked => crate::broadcast::a_refusal_by_the_type_consumes_nothing,
        Bug::SkipWithoutCopies => decisions::a_skip_is_refused_while_a_copy_is_missing,
        Bug::DecidedBesideBatch => decisions::callers_who_make_a_collection_at_once_make_one,
        Bug::CheckpointCoversItself => decisions::what_overtakes_a_checkpoint_is_replayed_behind_it,
        other => unreachable!("{other:?} is caught by crashes"),
    }
}

/// Whether a test fails. One that does not come to an end shows nothing: the machine may be slow.
#[expect(clippy::print_stdout, reason = "who runs the proof reads it")]
fn is_broken(check: impl FnOnce() + Send + UnwindSafe + 'static) -> bool {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(catch_unwind(check).is_err()));
    told.recv_timeout(Duration::from_secs(300)).unwrap_or_else(|_| {
        println!("a test came to no end");
        false
    })
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
