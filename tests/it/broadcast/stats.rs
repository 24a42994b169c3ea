//! What a broadcaster says of itself: exact numbers after scripted runs.

use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{BroadcastStats, Verdict, WhenFull};
use oncelog::testing::{CallKind, EIO, Fault, Which};

use super::desk::{Desk, request};
use super::{SOON, jobs, resource};

/// Counts by callback verdict of the scripted type, in the order of their names.
fn callbacks(stats: &BroadcastStats) -> Vec<(&'static str, u64)> {
    let of = &stats.types["Script"].callbacks;
    of.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (*name, *count)).collect()
}

#[test]
fn look_ups_and_refusals_are_counted_by_what_they_came_to() {
    let desk = Desk::open();
    drop(desk.submit("k", "p").unwrap());
    drop(desk.submit("k", "p").unwrap());
    drop(desk.submit("k", "p").unwrap());
    desk.submit("k", "q").unwrap_err();
    desk.submit("\n", "p").unwrap_err();
    desk.script.validates(|| Err(oncelog::Error::invalid_input("no such file")));
    desk.submit("other", "p").unwrap_err();
    let mut unkeyed = request("k", "p");
    unkeyed.scope = None;
    drop(desk.broadcaster.submit(&unkeyed, None).unwrap());
    let stats = desk.broadcaster.stats();
    let keys = &stats.keys;
    assert_eq!((keys.hits, keys.misses, keys.conflicts, keys.warnings), (2, 2, 1, 0));
    assert_eq!(keys.errors.iter().collect::<Vec<_>>(), [(&"conflict", &1), (&"invalid_input", &2)]);
    let of = &stats.types["Script"];
    assert_eq!((of.accepted, of.done, of.failed, of.parks), (2, 2, 0, 0));
    assert_eq!((of.in_flight, of.parked), (0, 0));
    assert_eq!(callbacks(&stats), [("done", 2)]);
    assert_eq!((stats.copies_appended, stats.copies_found), (4, 0));
    assert_eq!(stats.logs["channels/p0"].record_count, 4);
    assert_eq!((stats.window.live_count, stats.callers_waiting), (1, 0));
    assert_eq!(stats.window.effective_ms, stats.window.lifetime_ms);
}

#[test]
fn attempts_of_a_callback_are_counted_by_verdict_and_the_parked_while_they_are() {
    let desk = Desk::open();
    desk.script.next(Verdict::Retry("not yet".into()));
    desk.script.next_panics();
    desk.script.next(Verdict::Fail("no".into()));
    drop(desk.submit("fails", "p").unwrap());
    desk.script.next(Verdict::Park("a person has to look".into()));
    let parked = desk.submit("parks", "p").unwrap_err();
    assert_eq!(parked.kind(), ErrorKind::Parked);
    let stats = desk.broadcaster.stats();
    assert_eq!(callbacks(&stats), [("fail", 1), ("panic", 1), ("park", 1), ("retry", 1)]);
    let of = &stats.types["Script"];
    assert_eq!((of.accepted, of.done, of.failed, of.parks), (2, 0, 1, 1));
    assert_eq!((of.in_flight, of.parked), (0, 1));
    // A restart finds it parked, and has not parked it.
    let desk = desk.reopen();
    let stats = desk.broadcaster.stats();
    assert_eq!((stats.types["Script"].parked, stats.types["Script"].parks), (1, 0));
    assert!(stats.replay.records > 0);
    desk.broadcaster.resume(parked.broadcast_id().unwrap(), "look again").unwrap();
    drop(desk.submit("parks", "p").unwrap());
    let stats = desk.broadcaster.stats();
    assert_eq!((stats.types["Script"].parked, stats.types["Script"].done), (0, 1));
    let counts = desk.view().state().task_counts();
    let of = counts["Script"];
    assert_eq!((of.in_flight, of.parked, of.done, of.failed), (0, 0, 1, 1));
}

/// One caller that came back every 20 ms was fifty hits a second.
#[test]
fn a_hit_is_an_answer_and_not_a_word_to_come_back() {
    let desk = Desk::open();
    desk.script.hold();
    let id = desk.accepted(&request("k", "p"));
    for _ in 0..5 {
        let late = desk.broadcaster.submit(&request("k", "p"), SOON).unwrap_err();
        assert_eq!((late.kind(), late.broadcast_id()), (ErrorKind::InFlight, Some(id)));
    }
    assert_eq!((desk.broadcaster.stats().keys.hits, desk.broadcaster.stats().keys.misses), (0, 1));
    desk.script.let_go();
    drop(desk.submit("k", "p").unwrap());
    assert_eq!(desk.broadcaster.stats().keys.hits, 1);
}

/// Steps that failed before were counted as calls, and a resume began again.
#[test]
fn a_callback_is_told_how_often_it_was_called_before() {
    let desk = Desk::open();
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let step = |verdict: Verdict| {
        let told = std::sync::Arc::clone(&told);
        desk.script.then(move |task| {
            told.lock().unwrap().push(task.attempts);
            verdict
        });
    };
    // Two tries that get no copy appended.
    desk.io.arm(Which::Kind(CallKind::Write), 3, 2, Fault::Error(EIO));
    step(Verdict::Retry("not yet".into()));
    step(Verdict::Park("look".into()));
    step(Verdict::Done);
    let parked = loop {
        let asked = desk.broadcaster.submit(&request("k", "p"), Some(Duration::from_secs(20)));
        let error = asked.unwrap_err();
        if error.kind() == ErrorKind::Parked {
            break error;
        }
    };
    desk.broadcaster.resume(parked.broadcast_id().unwrap(), "go on").unwrap();
    drop(desk.submit("k", "p").unwrap());
    assert_eq!(*told.lock().unwrap(), [0, 1, 2]);
}

#[test]
fn acks_that_change_nothing_are_counted() {
    let desk = Desk::open();
    let done = desk.submit("k", "p").unwrap();
    desk.hands.pass(25 * 3_600_000);
    drop(desk.submit("k", "p").unwrap());
    let ignored = || desk.broadcaster.stats().acks_ignored;
    assert_eq!(ignored(), 0);
    for (count, id) in [(1, done.id), (2, oncelog::broadcast::BroadcastId(99))] {
        desk.broadcaster.ack(id, "a").unwrap();
        assert_eq!(ignored(), count);
    }
}

#[test]
fn work_of_a_type_that_is_not_registered_is_counted_apart() {
    let desk = Desk::open();
    desk.script.next(Verdict::Park("wait".into()));
    desk.submit("k", "p").unwrap_err();
    desk.broadcaster.close().unwrap();
    let desk = desk.without_types();
    let stats = desk.broadcaster.stats();
    assert_eq!(stats.types["(unregistered)"].parked, 1);
    assert!(!stats.types.contains_key("Script"));
}

#[test]
fn waits_for_locks_are_counted_timed_and_told_from_timeouts() {
    let desk = Desk::open();
    let held = |key| request(key, "p").resources(vec![resource("thing", "1", false)]);
    desk.script.hold();
    std::thread::scope(|threads| {
        let first = threads.spawn(|| desk.broadcaster.submit(&held("1"), None).unwrap());
        desk.script.wait_called();
        let late = desk.broadcaster.submit(&held("2"), SOON).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::LockTimeout);
        let waits = desk.broadcaster.stats().locks;
        assert_eq!((waits.count, waits.timeouts, waits.waiting), (1, 1, 0));
        // How much of the deadline is left when the wait begins is up to the machine.
        assert!(waits.longest > Duration::ZERO && waits.time == waits.longest, "{waits:?}");
        let second = threads.spawn(|| desk.broadcaster.submit(&held("3"), None).unwrap());
        while desk.broadcaster.stats().locks.waiting == 0 {
            std::thread::yield_now();
        }
        // A minute by the clock of the store.
        desk.hands.pass(60_000);
        desk.script.let_go();
        drop(first.join().unwrap());
        drop(second.join().unwrap());
    });
    let waits = desk.broadcaster.stats().locks;
    assert_eq!((waits.count, waits.timeouts, waits.refused, waits.waiting), (2, 1, 0, 0));
    assert!(waits.longest >= Duration::from_secs(60), "{waits:?}");
    assert!(waits.time > waits.longest, "{waits:?}");
    // Who is told that the holder is parked gave no deadline, and none was over.
    desk.script.next(Verdict::Park("look".into()));
    desk.broadcaster.submit(&held("parks"), None).unwrap_err();
    let halted = desk.broadcaster.submit(&held("4"), None).unwrap_err();
    assert_eq!(halted.kind(), ErrorKind::LockTimeout);
    let waits = desk.broadcaster.stats().locks;
    assert_eq!((waits.count, waits.timeouts, waits.refused), (3, 1, 1));
}

/// The oldest key with a promise was taken for the window, while keys were evicted within seconds.
#[test]
fn the_effective_window_is_the_age_of_the_oldest_key_that_may_be_evicted() {
    const HOUR_MS: u64 = 60 * 60 * 1000;
    let desk = Desk::open();
    let set = |change: &dyn Fn(&mut oncelog::broadcast::Policy)| {
        let mut policy = desk.broadcaster.policy();
        change(&mut policy);
        desk.broadcaster.refresh(policy).unwrap();
    };
    set(&|policy| policy.window_count_max = 3);
    drop(desk.submit("firm", "p").unwrap());
    set(&|policy| policy.window_full = WhenFull::EvictOldest);
    desk.hands.pass(20 * HOUR_MS);
    let window = || desk.broadcaster.stats().window;
    let day = window().lifetime_ms;
    assert_eq!(day, 24 * HOUR_MS);
    drop(desk.submit("1", "p").unwrap());
    desk.hands.pass(HOUR_MS);
    drop(desk.submit("2", "p").unwrap());
    desk.hands.pass(HOUR_MS);
    assert_eq!((window().effective_ms, window().evicted_count), (day, 0));
    drop(desk.submit("3", "p").unwrap());
    // 1 is gone, after two hours; 2 is an hour old.
    let (window, view) = (window(), desk.view());
    assert_eq!((window.evicted_count, window.expired_count, window.live_count), (1, 0, 3));
    assert!((HOUR_MS..HOUR_MS + 60_000).contains(&window.effective_ms), "{window:?}");
    let offline = view.window(view.newest_ms()).unwrap();
    assert!((HOUR_MS..HOUR_MS + 60_000).contains(&offline.effective_ms), "{offline:?}");
    // Behind the instant until which the evicted one would have lived, all is as promised again.
    desk.hands.pass(23 * HOUR_MS);
    assert_eq!(desk.broadcaster.stats().window.effective_ms, day);
}

#[test]
fn a_clock_far_ahead_is_held_and_its_lead_is_told() {
    let desk = Desk::open();
    assert!(!desk.broadcaster.stats().clock_held);
    desk.hands.wall_ms.fetch_add(3_600_000, std::sync::atomic::Ordering::SeqCst);
    let stats = desk.broadcaster.stats();
    assert!(stats.clock_held);
    assert!((3_500_000..=3_600_000).contains(&stats.clock_offset_ms), "{}", stats.clock_offset_ms);
    desk.broadcaster.rebase_clock().unwrap();
    let stats = desk.broadcaster.stats();
    assert!(!stats.clock_held && stats.clock_offset_ms.abs() < 60_000);
}

#[test]
fn checkpoints_are_counted_and_one_that_fails_is_told() {
    let desk = Desk::open();
    drop(desk.submit("k", "p").unwrap());
    assert!(desk.broadcaster.checkpoint().unwrap());
    let first = desk.broadcaster.stats().checkpoints;
    assert_eq!((first.written, first.failed, first.is_failing), (1, 0, false));
    assert!(first.bytes > 0);
    drop(desk.submit("2", "p").unwrap());
    assert!(desk.broadcaster.stats().checkpoints.behind_bytes > 0);
    desk.io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    desk.broadcaster.checkpoint().unwrap_err();
    let second = desk.broadcaster.stats().checkpoints;
    assert_eq!((second.written, second.failed, second.is_failing), (1, 1, true));
}

#[test]
fn jobs_are_counted_by_phase_with_the_rows_that_they_have() {
    use oncelog_format::control::{JobPhase, JobState};
    let desk = jobs::desk();
    let (all, job) = jobs::start(&desk, "k");
    assert_eq!(desk.broadcaster.stats().jobs["Pending"].count, 1);
    let state = JobState {
        job,
        attempt: 1,
        phase: JobPhase::Importing,
        progress: 40,
        rows: 123,
        reason: String::new(),
        detail: Vec::new(),
    };
    all.record(state).unwrap();
    let stats = desk.broadcaster.stats();
    assert_eq!((stats.jobs["Importing"].count, stats.jobs["Importing"].rows), (1, 123));
    assert_eq!((stats.jobs["Pending"].count, stats.jobs.len()), (0, 6));
    all.end(job, 1, jobs::COMMIT, Vec::new()).unwrap();
    let stats = desk.broadcaster.stats();
    assert_eq!((stats.jobs["Completed"].count, stats.jobs["Completed"].rows), (1, 123));
    assert_eq!(stats.types["Commit"].done, 1);
}
