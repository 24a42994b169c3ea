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
    desk.submit("2", "p").unwrap();
    let full = desk.submit("3", "p").unwrap_err();
    assert_eq!(full.kind(), ErrorKind::WindowFull);
    let wait = full.retry_after().unwrap();
    assert!(wait > Duration::from_secs(22 * 3600) && wait <= Duration::from_secs(23 * 3600));
    assert_same(&first, &desk.submit("1", "p").unwrap());
    assert_eq!(desk.submit("1", "q").unwrap_err().kind(), ErrorKind::Conflict);
    // An unkeyed one needs no slot.
    let mut unkeyed = request("-", "p");
    unkeyed.scope = None;
    desk.broadcaster.submit(&unkeyed, None).unwrap();
    // An expired key does not count, swept or not.
    desk.hands.pass(23 * HOUR_MS);
    assert!(!desk.submit("3", "p").unwrap().duplicated);
    assert_eq!(desk.submit("4", "p").unwrap_err().kind(), ErrorKind::WindowFull);
}

#[test]
fn a_window_that_was_filled_behind_expired_keys_opens_again_with_its_policy() {
    // The sweeper may not have come to the expired ones: they counted against the bound at an open.
    let desk = desk(|policy| policy.window_count_max = 2);
    desk.submit("1", "p").unwrap();
    desk.submit("2", "p").unwrap();
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
    desk.submit("2", "p").unwrap();
    assert_same(&firm, &desk.submit("firm", "p").unwrap());
    let view = desk.view();
    let at_ms = view.newest_ms();
    let keys = view.keys("default", Some(b"1"), at_ms).unwrap();
    assert_eq!(keys.iter().map(|key| key.state).collect::<Vec<_>>(), [KeyState::Evicted]);
    let window = view.window(at_ms);
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
        submit("x", key).unwrap();
    }
    submit("y", "1").unwrap();
    assert_eq!(submit("x", "4").unwrap_err().kind(), ErrorKind::WindowFull);
    submit("y", "2").unwrap();
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

#[test]
pub(crate) fn a_policy_that_breaks_a_rule_leaves_the_old_one_in_force() {
    let desk = Desk::open();
    let old = desk.broadcaster.policy();
    desk.submit("1", "p").unwrap();
    desk.submit("2", "p").unwrap();
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
    desk.submit("done", "p").unwrap();
    desk.script.next(oncelog::broadcast::Verdict::Fail("no".into()));
    desk.submit("failed", "p").unwrap();
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
        desk.submit(&key.to_string(), "p").unwrap();
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
