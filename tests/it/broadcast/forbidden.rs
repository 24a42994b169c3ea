//! What users of other brokers reported, where no other test forbids its kind.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::Duration;

use oncelog::broadcast::{BroadcastId, Policy, Verdict};
use oncelog::{ErrorKind, Lsn};
use oncelog_format::message::BroadcastHeader;

use super::desk::{Desk, LONG, assert_same, request, wait};
use super::resource;

/// Elsewhere one entry with a time in the far future stopped all sweeping behind it.
#[test]
fn a_key_that_lives_for_long_holds_up_no_sweep_of_others() {
    let desk = Desk::open();
    let long = desk.submit("long", "p").unwrap();
    let mut policy = desk.broadcaster.policy();
    policy.window_lifetime = Duration::from_secs(60);
    desk.broadcaster.refresh(policy.clone()).unwrap();
    for key in 0..3_000 {
        drop(desk.submit(&format!("short {key}"), "p").unwrap());
    }
    desk.hands.pass(3_600_000);
    desk.broadcaster.refresh(policy).unwrap();
    let held = || desk.broadcaster.read(|state, _| state.window().held_count());
    wait("a sweep", || held() == 1);
    assert_same(&long, &desk.submit("long", "p").unwrap());
}

/// Elsewhere a start took hours: state that a snapshot had was rebuilt from its begin.
#[test]
fn a_restart_replays_what_stands_behind_its_checkpoint_and_no_more() {
    const RECORDS: u64 = 3;
    let mut desk = Desk::open();
    for key in 0..40 {
        drop(desk.submit(&key.to_string(), "p").unwrap());
    }
    desk = desk.reopen();
    assert!(desk.broadcaster.stats().replay.records >= 40 * RECORDS);
    assert!(desk.broadcaster.checkpoint().unwrap());
    for key in 40..43 {
        drop(desk.submit(&key.to_string(), "p").unwrap());
    }
    desk = desk.reopen();
    // Those of the checkpoint itself stand behind what it covers.
    let records = desk.broadcaster.stats().replay.records;
    assert!((3 * RECORDS..=3 * RECORDS + 5).contains(&records), "{records} records");
}

/// Elsewhere callbacks ran in the order of identities of another node, or in none.
#[test]
fn callbacks_of_conflicting_holders_run_in_the_order_of_their_acceptance() {
    let desk = Desk::open();
    let (told, ids) = channel();
    for _ in 0..16 {
        let told = told.clone();
        desk.script.then(move |task| {
            told.send(task.id()).unwrap();
            Verdict::Done
        });
    }
    std::thread::scope(|threads| {
        for n in 0..16 {
            let desk = &desk;
            threads.spawn(move || {
                let held = request(&n.to_string(), "p");
                let held = held.resources(vec![resource("thing", "1", false)]);
                drop(desk.broadcaster.submit(&held, None).unwrap());
            });
        }
    });
    let ran: Vec<BroadcastId> = (0..16).map(|_| ids.recv_timeout(LONG).unwrap()).collect();
    assert!(ran.is_sorted(), "{ran:?}");
    // That of the acceptances in control, which is that of the copies of each vchannel.
    let channel = desk.broadcaster.jobs().channel("p0").unwrap();
    let mut reader = channel.read(Lsn::FIRST).unwrap();
    let mut copies = Vec::new();
    while let Some(message) = reader.next().unwrap() {
        copies.extend(message.property::<BroadcastHeader>().unwrap().map(|header| header.id));
    }
    copies.dedup();
    assert_eq!(copies, ran);
}

/// Elsewhere an ack of what nobody knew was a panic, or made a task anew.
#[test]
fn an_ack_of_what_never_was_or_is_forgotten_changes_nothing() {
    let desk = Desk::open();
    let done = desk.submit("k", "p").unwrap();
    desk.hands.pass(25 * 3_600_000);
    let next = desk.submit("k", "p").unwrap();
    assert_ne!(done.id, next.id);
    let digest = |state: &oncelog::broadcast::State| (state.tasks().count(), state.next_id());
    let before = desk.broadcaster.read(|state, _| digest(state));
    for id in [BroadcastId(0), done.id, BroadcastId(u64::MAX)] {
        desk.broadcaster.ack(id, "a").unwrap();
        assert!(desk.broadcaster.resume(id, "").is_err());
        assert!(desk.broadcaster.skip(id, "").is_err());
    }
    assert_eq!(desk.broadcaster.read(|state, _| digest(state)), before);
    let desk = desk.reopen();
    assert_same(&next, &desk.submit("k", "p").unwrap());
}

/// Elsewhere a header of the user was taken for the broker's because their ends were alike.
#[test]
fn a_property_whose_name_is_like_a_reserved_one_is_the_callers_own() {
    let desk = Desk::open();
    for name in ["x_ik", "ik", "I_ik", "x_fp"] {
        let value = b"another key".to_vec();
        let mut asked = request(name, "p");
        asked.properties = BTreeMap::from([(name.to_owned(), value.clone())]);
        let original = desk.broadcaster.submit(&asked, None).unwrap();
        assert!(!original.duplicated);
        let channel = desk.broadcaster.jobs().channel("p0").unwrap();
        let mut reader = channel.read(original.channels["a"].lsn).unwrap();
        let message = reader.next().unwrap().unwrap();
        assert_eq!(message.message().unwrap().value(name), Some(&value[..]));
    }
    for name in ["_ik", "_x", "_"] {
        let mut asked = request("reserved", "p");
        asked.properties = BTreeMap::from([(name.to_owned(), vec![1])]);
        let refused = desk.broadcaster.submit(&asked, None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{name}");
    }
}

/// Elsewhere the digest of a request depended on an order without a meaning.
#[test]
fn the_same_request_in_another_order_is_the_same_request() {
    let desk = Desk::open();
    let asked = |turn: bool| {
        let mut asked = request("k", "p");
        let mut resources = vec![resource("x", "1", true), resource("y", "2", false)];
        asked.vchannels = vec!["a".into(), "b".into(), "a".into()];
        if turn {
            asked.vchannels = vec!["b".into(), "a".into()];
            resources.reverse();
            resources.push(resource("x", "1", true));
        }
        let names = if turn { ["p2", "p1"] } else { ["p1", "p2"] };
        asked.properties = names.map(|name| (name.to_owned(), name.into())).into();
        asked.resources(resources)
    };
    let original = desk.broadcaster.submit(&asked(false), None).unwrap();
    let again = desk.broadcaster.submit(&asked(true), None).unwrap();
    assert!(again.duplicated);
    assert_same(&original, &again);
}

/// Elsewhere each retry of a callback, or of its record, made a request of a new identity.
#[test]
fn a_task_has_one_identity_through_all_its_tries_and_restarts() {
    let desk = Desk::open();
    let (told, ids) = channel();
    let retry = |desk: &Desk, verdict: Verdict| {
        let told = told.clone();
        desk.script.then(move |task| {
            told.send((task.id(), task.accepted.payload.clone())).unwrap();
            verdict
        });
    };
    for _ in 0..3 {
        retry(&desk, Verdict::Retry("not yet".into()));
    }
    retry(&desk, Verdict::Park("look".into()));
    let parked = desk.submit("k", "p").unwrap_err();
    let desk = desk.reopen();
    retry(&desk, Verdict::Done);
    let id = parked.broadcast_id().unwrap();
    desk.broadcaster.resume(id, "").unwrap();
    assert_eq!(desk.submit("k", "p").unwrap().id, id);
    drop(told);
    let said: Vec<_> = (0..5).map(|_| ids.recv_timeout(LONG).unwrap()).collect();
    assert!(said.iter().all(|of| *of == (id, b"p".to_vec())), "{said:?}");
    assert_eq!(desk.copies(id), 2);
}

/// Elsewhere two values that belong together were refreshed one by one, or half of them was taken.
#[test]
fn a_refresh_is_taken_whole_or_not_at_all() {
    let desk = Desk::open();
    let mut policy = Policy::default();
    policy.window_lifetime = Duration::from_secs(60);
    policy.task_retention = Duration::from_secs(120);
    policy.window_count_max = 0;
    assert!(desk.broadcaster.refresh(policy.clone()).is_err());
    let original = desk.submit("k", "p").unwrap();
    assert_eq!(original.expires_at_ms, Some(original.done_at_ms + 86_400_000));
    policy.window_count_max = 10;
    desk.broadcaster.refresh(policy.clone()).unwrap();
    assert_eq!(desk.broadcaster.policy(), policy);
    let short = desk.submit("short", "p").unwrap();
    assert_eq!(short.expires_at_ms, Some(short.done_at_ms + 60_000));
}

/// A shorter interval counted only once the longer one was over.
#[test]
fn a_shorter_interval_of_the_sweep_counts_from_when_it_is_set() {
    let desk = Desk::open();
    let mut policy = desk.broadcaster.policy();
    policy.check_interval = Duration::from_secs(100 * 86_400);
    desk.broadcaster.refresh(policy.clone()).unwrap();
    // One whole interval of before, so that the long one is what the sweeper waits for.
    desk.hands.pass(600_000);
    desk.broadcaster.refresh(policy.clone()).unwrap();
    drop(desk.submit("k", "p").unwrap());
    desk.hands.pass(25 * 3_600_000);
    policy.check_interval = Duration::from_millis(1);
    desk.broadcaster.refresh(policy).unwrap();
    let held = || desk.broadcaster.read(|state, _| state.window().held_count());
    wait("a sweep", || held() == 0);
}
