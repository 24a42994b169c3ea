//! The window: what is promised, what expires, what a full window does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oncelog::broadcast::{AckMode, KeyState, Options, Policy, Request, WhenFull};
use oncelog::{ErrorKind, LogView, Retention};
use oncelog_format::control::{Body, ControlRecord};

use super::desk::{DIR, Desk, Script, assert_same, request};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

fn desk(change: impl FnOnce(&mut Policy)) -> Desk {
    let mut policy = Policy::default();
    change(&mut policy);
    Desk::with(Arc::new(Script::default()), |options: Options| options.policy(policy))
}

fn request_of(principal: &str, key: &str) -> Request {
    let mut request = request(key, "p");
    if let Some(scope) = request.scope.as_mut().and_then(Arc::get_mut) {
        scope.principal = principal.into();
    }
    request
}

#[test]
pub(crate) fn a_key_replays_until_its_instant_and_is_new_work_from_then_on() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    let expires_at_ms = original.expires_at_ms.unwrap();
    assert_eq!(expires_at_ms, original.done_at_ms + DAY_MS);
    // Half of it in this process, half in the next.
    desk.hands.pass(12 * HOUR_MS);
    let desk = desk.reopen();
    assert_same(&original, &desk.submit("k", "p").unwrap());
    let now_ms = desk.broadcaster.jobs().now_ms();
    desk.hands.pass(expires_at_ms - now_ms - 500);
    assert_same(&original, &desk.submit("k", "p").unwrap());
    desk.hands.pass(500);
    let next = desk.submit("k", "other").unwrap();
    assert!(!next.duplicated && next.id != original.id);
    // The old one went with the batch that took its place, not with a later sweep.
    assert!(desk.broadcaster.read(|state, _| state.task(original.id).is_none()));
    let desk = desk.reopen();
    assert_same(&next, &desk.submit("k", "other").unwrap());
}

#[test]
pub(crate) fn a_jump_of_the_wall_clock_expires_nothing_until_an_operator_says_so() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    desk.hands.wall_ms.fetch_add(30 * DAY_MS, Ordering::SeqCst);
    let again = desk.submit("k", "p").unwrap();
    assert!(again.clock_held && again.duplicated);
    assert_same(&original, &again);
    desk.broadcaster.rebase_clock().unwrap();
    let next = desk.submit("k", "p").unwrap();
    assert!(!next.clock_held && !next.duplicated);
    // The verb is in the log: a restart with the wall clock set right does not undo it.
    desk.hands.wall_ms.fetch_sub(30 * DAY_MS, Ordering::SeqCst);
    let desk = desk.reopen();
    assert_same(&next, &desk.submit("k", "p").unwrap());
}

/// Keys and retries went on to expire by the monotonic clock, while answers said that nothing does.
#[test]
fn what_would_be_over_while_the_clock_is_held_is_over_behind_that() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    desk.hands.pass(DAY_MS - 60_000);
    desk.hands.wall_ms.fetch_add(3 * HOUR_MS, Ordering::SeqCst);
    assert!(desk.submit("k", "p").unwrap().clock_held);
    for _ in 0..9 {
        desk.hands.pass(60_000);
        // A record is stamped behind the instant, and the sweeper looks.
        desk.broadcaster.refresh(desk.broadcaster.policy()).unwrap();
        let again = desk.submit("k", "p").unwrap();
        assert!(again.clock_held && again.duplicated);
        assert_same(&original, &again);
    }
    assert!(desk.broadcaster.jobs().now_ms() > original.expires_at_ms.unwrap());
    assert_eq!(desk.broadcaster.stats().window.live_count, 1);
    // The clock is set right: what passed meanwhile has passed.
    desk.hands.wall_ms.fetch_sub(3 * HOUR_MS, Ordering::SeqCst);
    let next = desk.submit("k", "p").unwrap();
    assert!(!next.clock_held && !next.duplicated);
}

#[test]
fn a_rebase_that_is_refused_changes_no_time() {
    // Of segments so small that nothing is freed of control.
    let desk = super::pins::desk(AckMode::Append, Retention::new());
    let original = desk.submit("k", "p").unwrap();
    desk.hands.wall_ms.fetch_add(30 * DAY_MS, Ordering::SeqCst);
    desk.io.set_free_blocks(Some(0));
    let reason = "x".repeat(4_000);
    while desk.broadcaster.accept_window(&reason).is_ok() {}
    while desk.broadcaster.accept_window("").is_ok() {}
    assert_eq!(desk.broadcaster.rebase_clock().unwrap_err().kind(), ErrorKind::StoreFull);
    let again = desk.submit("k", "p").unwrap();
    assert!(again.clock_held && again.duplicated);
    assert_same(&original, &again);
    desk.io.set_free_blocks(None);
    let now_ms = desk.broadcaster.rebase_clock().unwrap();
    assert!(now_ms >= original.expires_at_ms.unwrap());
    let control = Path::new(DIR).join("control");
    let view = LogView::open(&control, Arc::new(desk.io.clone())).unwrap();
    let (mut reader, mut from_ms) = (view.reader(None).unwrap(), None);
    while let Some(record) = reader.next().unwrap() {
        if let Body::ClockRebase(rebase) = ControlRecord::decode(&record.payload).unwrap().body {
            from_ms = Some(rebase.from_ms);
        }
    }
    assert!(from_ms.unwrap() < original.expires_at_ms.unwrap(), "what it was before");
}

#[test]
pub(crate) fn a_full_window_refuses_new_keys_and_answers_known_ones() {
    let desk = desk(|policy| policy.window_count_max = 2);
    let first = desk.submit("1", "p").unwrap();
    desk.hands.pass(HOUR_MS);
    drop(desk.submit("2", "p").unwrap());
    let full = desk.submit("3", "p").unwrap_err();
    assert_eq!(full.kind(), ErrorKind::WindowFull);
    let wait = full.retry_after().unwrap();
    assert!(wait > Duration::from_secs(22 * 3600) && wait <= Duration::from_secs(23 * 3600));
    assert_same(&first, &desk.submit("1", "p").unwrap());
    assert_eq!(desk.submit("1", "q").unwrap_err().kind(), ErrorKind::Conflict);
    // An unkeyed one needs no slot.
    let mut unkeyed = request("-", "p");
    unkeyed.scope = None;
    drop(desk.broadcaster.submit(&unkeyed, None).unwrap());
    // An expired key does not count, swept or not.
    desk.hands.pass(23 * HOUR_MS);
    assert!(!desk.submit("3", "p").unwrap().duplicated);
    assert_eq!(desk.submit("4", "p").unwrap_err().kind(), ErrorKind::WindowFull);
}

#[test]
fn a_window_that_was_filled_behind_expired_keys_opens_again_with_its_policy() {
    // The sweeper may not have come to the expired ones: they counted against the bound at an open.
    let desk = desk(|policy| policy.window_count_max = 2);
    drop(desk.submit("1", "p").unwrap());
    drop(desk.submit("2", "p").unwrap());
    desk.hands.pass(DAY_MS + 1_000);
    let third = desk.submit("3", "p").unwrap();
    let desk = desk.reopen();
    assert_same(&third, &desk.submit("3", "p").unwrap());
    desk.broadcaster.refresh(desk.broadcaster.policy()).unwrap();
}

#[test]
pub(crate) fn eviction_takes_the_oldest_key_without_a_promise_and_never_a_firm_one() {
    let desk = desk(|policy| policy.window_count_max = 2);
    let firm = desk.submit("firm", "p").unwrap();
    assert!(firm.expires_at_ms.is_some());
    let mut policy = desk.broadcaster.policy();
    policy.window_full = WhenFull::EvictOldest;
    desk.broadcaster.refresh(policy).unwrap();
    let one = desk.submit("1", "p").unwrap();
    assert_eq!(one.expires_at_ms, None);
    drop(desk.submit("2", "p").unwrap());
    assert_same(&firm, &desk.submit("firm", "p").unwrap());
    let view = desk.view();
    let at_ms = view.newest_ms();
    let keys = view.keys("default", Some(b"1"), at_ms).unwrap();
    assert_eq!(keys.iter().map(|key| key.state).collect::<Vec<_>>(), [KeyState::Evicted]);
    let window = view.window(at_ms).unwrap();
    assert_eq!((window.live_count, window.evicted_count, window.expired_count), (2, 1, 0));
    assert!(window.effective_ms < window.lifetime_ms);
    let again = desk.submit("1", "p").unwrap();
    assert!(!again.duplicated && again.id != one.id);
    let mut policy = desk.broadcaster.policy();
    policy.window_full = WhenFull::Refuse;
    desk.broadcaster.refresh(policy).unwrap();
    assert_eq!(desk.submit("2", "p").unwrap_err().kind(), ErrorKind::WindowFull);
}

#[test]
pub(crate) fn one_principal_has_the_window_alone_and_a_share_beside_others() {
    let desk = desk(|policy| {
        policy.window_count_max = 8;
        policy.principal_share_max = 25;
    });
    let submit = |principal, key| desk.broadcaster.submit(&request_of(principal, key), None);
    for key in ["1", "2", "3"] {
        drop(submit("x", key).unwrap());
    }
    drop(submit("y", "1").unwrap());
    assert_eq!(submit("x", "4").unwrap_err().kind(), ErrorKind::WindowFull);
    drop(submit("y", "2").unwrap());
    assert_eq!(submit("y", "3").unwrap_err().kind(), ErrorKind::WindowFull);
    assert!(submit("x", "1").unwrap().duplicated);
}

/// A principal that was over its share evicted the keys of all others, one by one.
#[test]
fn a_principal_over_its_share_makes_room_with_keys_of_its_own() {
    let desk = desk(|policy| {
        policy.window_count_max = 8;
        policy.principal_share_max = 25;
        policy.window_full = WhenFull::EvictOldest;
    });
    let submit = |principal: &str, key: &str| {
        desk.broadcaster.submit(&request_of(principal, key), None).unwrap()
    };
    let others = ["y1", "y2", "z1", "z2", "v1", "v2"];
    others.iter().for_each(|key| drop(submit(&key[..1], key)));
    let keys: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    for key in &keys {
        assert!(!submit("x", key).duplicated);
    }
    for key in others {
        assert!(submit(&key[..1], key).duplicated, "{key} was evicted by x");
    }
    // Of its own the oldest went.
    let kept = |state: &oncelog::broadcast::State| {
        let of_x = |key: &&String| {
            let scope = request_of("x", key).scope.unwrap();
            state.owner(&scope).is_some()
        };
        keys.iter().filter(of_x).cloned().collect::<Vec<_>>()
    };
    assert_eq!(desk.broadcaster.read(|state, _| kept(state)), ["18", "19"]);
}

/// Another principal's keys stand for a day, and its own were evicted within a second.
#[test]
fn the_effective_window_promises_no_key_that_another_principals_share_evicted() {
    let desk = desk(|policy| {
        policy.window_count_max = 8;
        policy.principal_share_max = 25;
        policy.window_full = WhenFull::EvictOldest;
    });
    let submit = |desk: &Desk, principal: &str, key: &str| {
        desk.broadcaster.submit(&request_of(principal, key), None).unwrap()
    };
    for key in ["y1", "y2", "z1", "z2", "v1", "v2"] {
        assert!(!submit(&desk, &key[..1], key).duplicated);
    }
    desk.hands.pass(10 * HOUR_MS);
    let keys: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let answers: Vec<_> = keys.iter().map(|key| submit(&desk, "x", key)).collect();
    desk.hands.pass(30_000);
    // All but the last two are gone, the youngest of them half a minute ago.
    let youngest_ms = answers[17].done_at_ms;
    let check = |desk: &Desk| {
        let window = desk.broadcaster.stats().window;
        let now_ms = desk.broadcaster.jobs().now_ms();
        assert!(window.effective_ms < now_ms - youngest_ms, "{window:?}");
        assert!(window.effective_ms >= 29_000, "{window:?}");
        let (view, at_ms) = (desk.view(), desk.view().newest_ms());
        assert!(view.window(at_ms).unwrap().effective_ms <= at_ms.saturating_sub(youngest_ms));
    };
    check(&desk);
    assert!(desk.broadcaster.checkpoint().unwrap());
    let desk = desk.reopen();
    check(&desk);
    assert!(!submit(&desk, "x", "17").duplicated);
}

/// A share stood until its last key was swept, so that a principal alone was refused for hours.
#[test]
fn a_principal_whose_keys_are_over_makes_no_other_ones_share_count() {
    let desk = desk(|policy| {
        policy.window_count_max = 8;
        policy.principal_share_max = 25;
        policy.check_interval = Duration::from_secs(30 * 24 * 3600);
    });
    let submit = |principal, key| desk.broadcaster.submit(&request_of(principal, key), None);
    drop(submit("y", "1").unwrap());
    desk.hands.pass(DAY_MS + 1_000);
    for key in ["1", "2", "3", "4"] {
        assert!(!submit("x", key).unwrap().duplicated);
    }
    assert_eq!(desk.broadcaster.read(|state, _| state.window().held_count()), 5, "none is swept");
    assert_eq!(submit("y", "2").unwrap().outcome, oncelog::broadcast::Outcome::Done);
    assert_eq!(submit("x", "5").unwrap_err().kind(), ErrorKind::WindowFull);
}

/// One key went for each that came: a bound that was lowered was never reached.
#[test]
fn a_bound_below_the_keys_that_are_kept_is_counted_and_takes_hold() {
    let desk = desk(|policy| {
        policy.window_count_max = 10;
        policy.window_full = WhenFull::EvictOldest;
    });
    for key in 0..10 {
        drop(desk.submit(&key.to_string(), "p").unwrap());
    }
    let mut policy = desk.broadcaster.policy();
    policy.window_count_max = 5;
    let refused = desk.broadcaster.refresh(policy.clone()).unwrap_err();
    assert_eq!(refused.fields(), ["window_count_max"]);
    assert!(refused.to_string().contains("10") && refused.to_string().contains('5'), "{refused}");
    policy.history_warns = true;
    desk.broadcaster.refresh(policy.clone()).unwrap();
    let window = || desk.broadcaster.stats().window;
    assert_eq!((window().live_count, window().beyond_count), (10, 5));
    drop(desk.submit("10", "p").unwrap());
    assert_eq!((window().live_count, window().beyond_count, window().evicted_count), (5, 0, 6));
    // The youngest are kept.
    for key in ["7", "8", "9", "10"] {
        assert!(desk.submit(key, "p").unwrap().duplicated, "{key}");
    }
    // A promise is kept beyond every bound.
    policy.window_full = WhenFull::Refuse;
    desk.broadcaster.refresh(policy.clone()).unwrap();
    policy.window_count_max = 2;
    desk.broadcaster.refresh(policy).unwrap();
    assert_eq!(desk.submit("11", "p").unwrap_err().kind(), ErrorKind::WindowFull);
    assert_eq!((window().live_count, window().beyond_count), (5, 3));
}

#[test]
pub(crate) fn a_policy_that_breaks_a_rule_leaves_the_old_one_in_force() {
    let desk = Desk::open();
    let old = desk.broadcaster.policy();
    drop(desk.submit("1", "p").unwrap());
    drop(desk.submit("2", "p").unwrap());
    let refuse = |change: fn(&mut Policy), names: &[&str]| {
        let mut policy = old.clone();
        change(&mut policy);
        let error = desk.broadcaster.refresh(policy).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.fields(), names);
        assert_eq!(desk.broadcaster.policy(), old);
    };
    refuse(|policy| policy.window_lifetime *= 2, &["task_retention"]);
    refuse(|policy| policy.window_count_max = 1, &["window_count_max"]);
    refuse(|policy| policy.broadcasts_per_hour_max = Some(1_000_000), &["window_count_max"]);
}

#[test]
pub(crate) fn a_shorter_lifetime_moves_no_expiry_that_was_promised() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    let mut policy = desk.broadcaster.policy();
    policy.window_lifetime = Duration::from_secs(60);
    desk.broadcaster.refresh(policy.clone()).unwrap();
    desk.hands.pass(HOUR_MS);
    assert_same(&original, &desk.submit("k", "p").unwrap());
    let desk = desk.reopen_with(|options| options.policy(policy));
    assert_same(&original, &desk.submit("k", "p").unwrap());
    let short = desk.submit("short", "p").unwrap();
    assert_eq!(short.expires_at_ms, Some(short.done_at_ms + 60_000));
}

#[test]
pub(crate) fn keys_say_what_the_records_prove() {
    let desk = Desk::open();
    let check = |key: &str, ahead_ms: u64, expected: &[KeyState]| {
        let view = desk.view();
        let at_ms = view.newest_ms() + ahead_ms;
        let keys = view.keys("default", Some(key.as_bytes()), at_ms).unwrap();
        assert_eq!(keys.iter().map(|key| key.state).collect::<Vec<_>>(), expected, "{key}");
    };
    drop(desk.submit("done", "p").unwrap());
    desk.script.next(oncelog::broadcast::Verdict::Fail("no".into()));
    drop(desk.submit("failed", "p").unwrap());
    desk.script.next(oncelog::broadcast::Verdict::Park("look".into()));
    desk.submit("parked", "p").unwrap_err();
    check("done", 0, &[KeyState::Done]);
    check("done", DAY_MS, &[KeyState::Expired]);
    check("failed", 0, &[KeyState::Failed]);
    check("parked", DAY_MS, &[KeyState::Parked]);
    check("never", 0, &[KeyState::Unknown]);
    let unknown = desk.view().keys("default", Some(b"never"), 0).unwrap();
    assert!(!unknown[0].probably_seen);
    assert_eq!(desk.view().keys("default", None, u64::MAX).unwrap().len(), 3);
    assert_eq!(desk.view().keys("other", None, u64::MAX).unwrap().len(), 0);
}

#[test]
pub(crate) fn the_sweeper_forgets_keys_whose_window_is_over() {
    let desk = Desk::open();
    for key in 0..50 {
        drop(desk.submit(&key.to_string(), "p").unwrap());
    }
    desk.hands.pass(DAY_MS + 1_000);
    // A refresh has it look at once.
    desk.broadcaster.refresh(desk.broadcaster.policy()).unwrap();
    while desk.broadcaster.read(|state, _| state.window().held_count()) > 0 {
        std::thread::yield_now();
    }
    let desk = desk.reopen();
    let counts = desk.broadcaster.read(|state, _| {
        (state.tasks().count(), state.window().expired_count(), state.window().held_count())
    });
    assert_eq!(counts, (0, 50, 0));
}

#[test]
pub(crate) fn a_scope_that_has_a_newer_owner_stays_with_it() {
    use oncelog::broadcast::{BroadcastId, State};
    use oncelog_format::control::{Accepted, Done, DropCause, Dropped, JobLink, Outcome};
    use oncelog_format::message::{AckMode, BroadcastHeader, Fingerprint};

    let accepted = |id| {
        let (vchannels, resources) = (vec!["a".into()], vec![]);
        let id = BroadcastId(id);
        Body::Accepted(Arc::new(Accepted {
            header: BroadcastHeader { id, vchannels, resources, ack: AckMode::Append },
            message_type: "Script".into(),
            scope: Some(super::desk::scope("k")),
            fingerprint: Fingerprint { version: 1, fields: vec![] },
            ends: vec![],
            lifetime_ms: 1,
            firm: true,
            job: JobLink::None,
            properties: vec![],
            trace: None,
            payload: vec![],
        }))
    };
    let mut state = State::default();
    let bodies = [
        accepted(1),
        Body::Done(Done { id: BroadcastId(1), outcome: Outcome::Done }),
        accepted(2),
        Body::Dropped(Dropped { id: BroadcastId(1), cause: DropCause::Expired }),
        // Not even twice.
        Body::Dropped(Dropped { id: BroadcastId(1), cause: DropCause::Expired }),
    ];
    for (at_ms, body) in (0..).zip(bodies) {
        state.apply(&ControlRecord { at_ms, body });
    }
    assert_eq!(state.owner(&super::desk::scope("k")), Some(BroadcastId(2)));
    assert_eq!(state.window().held_count(), 1);
    assert_eq!(state.ignored_count(), 1);
}
