//! The contract of the broadcaster with its callers, sentence by sentence.

mod async_calls;
mod beside;
mod checkpoint;
pub(crate) mod chunks;
mod contract;
pub(crate) mod crash;
mod cut_short;
pub(crate) mod decisions;
pub(crate) mod desk;
mod forbidden;
mod freeing;
mod halts;
mod history;
mod holders;
mod jobs;
mod made;
#[cfg(feature = "metrics")]
mod metrics;
mod model;
mod operator;
mod panics;
mod past;
pub(crate) mod pins;
pub(crate) mod retention;
mod roll;
mod room;
mod sameness;
pub(crate) mod space;
mod stats;
mod store;
mod sweeping;
pub(crate) mod taken;
mod trace;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{AckMode, Outcome, Resource, Verdict};

use desk::{Desk, LONG, Script, request, scope};

const SOON: Option<Duration> = Some(Duration::from_millis(50));

#[test]
pub(crate) fn a_duplicate_gets_the_originals_answer_and_says_so() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    assert!(!original.duplicated);
    assert_eq!(original.channels.keys().collect::<Vec<_>>(), ["a", "b"]);
    let again = desk.submit("k", "p").unwrap();
    assert!(again.duplicated);
    desk::assert_same(&original, &again);
    let reopened = desk.reopen();
    let again = reopened.submit("k", "p").unwrap();
    assert!(again.duplicated);
    desk::assert_same(&original, &again);
    assert_eq!(reopened.copies(original.id), 2);
}

#[test]
pub(crate) fn another_payload_conflicts_names_the_fields_and_leaves_the_original() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    let conflict = desk.submit("k", "secret").unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    assert_eq!(conflict.fields(), ["payload"]);
    assert!(!conflict.to_string().contains("secret"));
    desk::assert_same(&original, &desk.submit("k", "p").unwrap());
}

#[test]
pub(crate) fn scopes_keep_equal_keys_apart() {
    let desk = Desk::open();
    let first = desk.submit("k", "p").unwrap();
    let mut others = vec![];
    let changes: [fn(&mut oncelog::broadcast::Scope); 4] = [
        |s| s.principal = "other".into(),
        |s| s.domain = "other".into(),
        |s| s.identity = "other".into(),
        |s| s.generation += 1,
    ];
    for change in changes {
        let mut scope = scope("k");
        change(&mut scope);
        let mut request = request("k", "other payload");
        request.scope = Some(Arc::new(scope));
        let answer = desk.broadcaster.submit(&request, None).unwrap();
        assert!(!answer.duplicated);
        others.push(answer.id);
    }
    others.push(first.id);
    others.sort();
    others.dedup();
    assert_eq!(others.len(), 5);
}

#[test]
pub(crate) fn a_malformed_key_is_refused_before_anything_else() {
    let desk = Desk::open();
    let long = "x".repeat(257);
    for key in ["", "tab\there", "\u{e9}", long.as_str()] {
        let error = desk.submit(key, "p").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{key:?}");
    }
    assert!(desk.submit(&"x".repeat(256), "p").is_ok());
}

#[test]
pub(crate) fn a_refusal_by_the_type_consumes_nothing() {
    let desk = Desk::open();
    desk.script.validates(|| Err(oncelog::Error::invalid_input("no such file")));
    let refused = desk.submit("k", "p").unwrap_err();
    assert_eq!(refused.to_string(), "no such file");
    let other = desk.broadcaster.submit(&request("k", "other"), Some(LONG)).unwrap();
    // A known key answers, whatever the type would say.
    desk.script.validates(|| Err(oncelog::Error::invalid_input("no such file")));
    desk::assert_same(&other, &desk.submit("k", "other").unwrap());
}

#[test]
pub(crate) fn a_refusal_behind_the_locks_releases_them() {
    let desk = Desk::open();
    desk.script.rechecks(|| Err(oncelog::Error::invalid_input("changed meanwhile")));
    let held = request("k", "p").resources(vec![resource("thing", "1", false)]);
    assert!(desk.broadcaster.submit(&held, Some(LONG)).is_err());
    let held = request("other", "p").resources(vec![resource("thing", "1", false)]);
    drop(desk.broadcaster.submit(&held, Some(LONG)).unwrap());
}

#[test]
pub(crate) fn a_reservation_is_no_acceptance() {
    let desk = Desk::open();
    let (begun, wait_begun) = std::sync::mpsc::channel();
    let (go, wait_go) = std::sync::mpsc::channel::<()>();
    desk.script.validates(move || {
        begun.send(()).unwrap();
        wait_go.recv_timeout(Duration::from_secs(10)).unwrap();
        Err(oncelog::Error::invalid_input("no"))
    });
    std::thread::scope(|threads| {
        let first = threads.spawn(|| desk.submit("k", "p"));
        wait_begun.recv().unwrap();
        // Another payload waits for it, and is told nothing about a conflict.
        let late = desk.broadcaster.submit(&request("k", "q"), SOON).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::OutcomeUnknown);
        let others: Vec<_> = (0..4).map(|_| threads.spawn(|| desk.submit("k", "q"))).collect();
        go.send(()).unwrap();
        assert!(first.join().unwrap().is_err());
        let answers: Vec<_> = others.into_iter().map(|o| o.join().unwrap().unwrap()).collect();
        assert_eq!(answers.iter().filter(|answer| !answer.duplicated).count(), 1);
    });
}

#[test]
pub(crate) fn an_unkeyed_broadcast_happens_each_time_and_leaves_no_tombstone() {
    let desk = Desk::open();
    let mut request = request("k", "p");
    request.scope = None;
    let one = desk.broadcaster.submit(&request, None).unwrap();
    let two = desk.broadcaster.submit(&request, None).unwrap();
    assert_ne!(one.id, two.id);
    assert_eq!(one.expires_at_ms, None);
    assert_eq!(desk.broadcaster.read(|state, _| state.tasks().count()), 0);
}

#[test]
pub(crate) fn what_a_request_alone_shows_is_refused_and_consumes_nothing() {
    let desk = Desk::open();
    let check = |change: &dyn Fn(&mut oncelog::broadcast::Request)| {
        let mut request = request("k", "p");
        change(&mut request);
        let error = desk.broadcaster.submit(&request, None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Limit), "{error}");
    };
    check(&|r| r.vchannels.push("unknown".into()));
    check(&|r| r.vchannels.clear());
    check(&|r| drop(r.properties.insert("_t".into(), vec![1])));
    check(&|r| r.resources.push(resource("_job", "1", false)));
    check(&|r| r.payload = vec![0; 17 << 20]);
    check(&|r| {
        r.message_type = "Unknown".into();
        r.scope = r.scope.as_deref().cloned().map(|mut scope| {
            scope.message_type = "Unknown".into();
            Arc::new(scope)
        });
    });
    assert!(!desk.submit("k", "another").unwrap().duplicated);
}

#[test]
pub(crate) fn many_callers_of_one_key_are_one_broadcast() {
    let desk = Desk::open();
    let answers: Vec<_> = std::thread::scope(|threads| {
        let callers: Vec<_> =
            (0..32).map(|_| threads.spawn(|| desk.submit("k", "p").unwrap())).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|answer| !answer.duplicated).count(), 1);
    answers.iter().for_each(|answer| desk::assert_same(answer, &answers[0]));
    assert_eq!(desk.copies(answers[0].id), 2);
    assert_eq!(desk.script.effects(), [answers[0].id]);
}

#[test]
pub(crate) fn a_duplicate_waits_for_the_effect_and_a_deadline_says_in_flight() {
    let desk = Desk::open();
    desk.script.hold();
    std::thread::scope(|threads| {
        let original = threads.spawn(|| desk.submit("k", "p").unwrap());
        desk.script.wait_called();
        let late = desk.broadcaster.submit(&request("k", "p"), SOON).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::InFlight);
        assert!(late.broadcast_id().is_some() && late.is_retryable());
        let conflict = desk.broadcaster.submit(&request("k", "q"), SOON).unwrap_err();
        assert_eq!(conflict.kind(), ErrorKind::Conflict);
        desk.script.let_go();
        let original = original.join().unwrap();
        assert_eq!(late.broadcast_id(), Some(original.id));
        desk::assert_same(&original, &desk.submit("k", "p").unwrap());
    });
}

#[test]
pub(crate) fn a_failed_original_stays_failed_under_its_key() {
    let desk = Desk::open();
    desk.script.next(Verdict::Fail("no such thing".into()));
    let failed = desk.submit("k", "p").unwrap();
    assert_eq!(failed.outcome, Outcome::Failed { reason: "no such thing".into() });
    let reopened = desk.reopen();
    desk::assert_same(&failed, &reopened.submit("k", "p").unwrap());
}

#[test]
pub(crate) fn retries_and_panics_are_tried_again_until_done() {
    let desk = Desk::open();
    desk.script.next(Verdict::Retry("not yet".into()));
    desk.script.next_panics();
    desk.script.next(Verdict::Retry("not yet".into()));
    assert_eq!(desk.submit("k", "p").unwrap().outcome, Outcome::Done);
    assert_eq!(desk.script.calls(), 4);
    assert_eq!(desk.copies(desk.submit("k", "p").unwrap().id), 2);
}

#[test]
pub(crate) fn a_parked_task_keeps_key_and_locks_until_it_is_resumed() {
    let desk = Desk::open();
    desk.script.next(Verdict::Park("look at it".into()));
    let mut held = request("k", "p");
    held.resources.push(resource("thing", "1", false));
    let parked = desk.broadcaster.submit(&held, None).unwrap_err();
    assert_eq!(parked.kind(), ErrorKind::Parked);
    assert!(parked.to_string().contains("look at it"));
    let desk = desk.reopen();
    let again = desk.broadcaster.submit(&held, None).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Parked);
    let mut other = request("other", "p");
    other.resources.push(resource("thing", "1", true));
    let locked = desk.broadcaster.submit(&other, SOON).unwrap_err();
    assert_eq!(locked.kind(), ErrorKind::LockTimeout);
    let id = again.broadcast_id().unwrap();
    assert!(locked.to_string().contains(&format!("broadcast {id}")), "{locked}");
    assert!(locked.to_string().contains("Script"), "{locked}");
    desk.broadcaster.resume(id, "fixed").unwrap();
    assert_eq!(desk.broadcaster.submit(&held, None).unwrap().id, id);
    assert!(desk.broadcaster.submit(&other, None).is_ok());
}

#[test]
pub(crate) fn a_skip_ends_a_parked_task_as_failed() {
    let desk = Desk::open();
    desk.script.next(Verdict::Park("stuck".into()));
    let parked = desk.submit("k", "p").unwrap_err();
    let id = parked.broadcast_id().unwrap();
    let desk = desk.reopen();
    desk.broadcaster.skip(id, "given up").unwrap();
    let answer = desk.submit("k", "p").unwrap();
    assert!(matches!(&answer.outcome, Outcome::Failed { reason } if reason.contains("given up")));
    assert_eq!((desk.copies(id), answer.channels.len()), (2, 2));
    let error = desk.broadcaster.skip(id, "again").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
pub(crate) fn consumers_acknowledge_and_a_scan_does_not() {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let desk = Desk::with(script, |options| options);
    let id = desk.accepted(&request("k", "p"));
    acknowledge(&desk, id, "a");
    // A restart finds the copies, which acknowledges nothing.
    let desk = desk.reopen();
    let late = desk.broadcaster.submit(&request("k", "p"), SOON).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::InFlight);
    assert_eq!(desk.script.calls(), 0);
    acknowledge(&desk, id, "b");
    assert_eq!(desk.submit("k", "p").unwrap().id, id);
    assert_eq!(desk.copies(id), 2);
    desk.broadcaster.ack(id, "a").unwrap();
}

/// Acknowledges a copy as a consumer does who asks again.
fn acknowledge(desk: &Desk, id: oncelog::broadcast::BroadcastId, vchannel: &str) {
    while let Err(e) = desk.broadcaster.ack(id, vchannel) {
        assert_eq!(e.kind(), ErrorKind::InFlight, "{e}");
    }
}

/// An ack that came before the copy's place was known was answered `Ok` and forgotten.
#[test]
fn an_ack_that_is_answered_counts() {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let mut desk = Desk::with(script, |options| options);
    let id = desk.accepted(&request("k", "p"));
    for vchannel in ["a", "b"] {
        desk = desk.reopen();
        // At once: the copies may not have been looked for yet.
        acknowledge(&desk, id, vchannel);
    }
    assert_eq!(desk.submit("k", "p").unwrap().id, id);
}

#[test]
fn a_callback_is_retried_for_its_own_time_behind_the_wait_for_consumers() {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let desk = Desk::with(script, |options| options);
    let id = desk.accepted(&request("k", "p"));
    desk.hands.pass(9 * 60_000);
    let hands = Arc::clone(&desk.hands);
    desk.script.then(move |_| {
        hands.pass(2 * 60_000);
        Verdict::Retry("not yet".into())
    });
    acknowledge(&desk, id, "a");
    acknowledge(&desk, id, "b");
    assert_eq!(desk.submit("k", "p").unwrap().outcome, Outcome::Done);
}

#[test]
pub(crate) fn a_callback_may_not_ask_for_what_its_own_task_holds() {
    let desk = Desk::open();
    let mut inner = request("inner", "p");
    inner.resources.push(resource("thing", "1", true));
    let broadcaster = desk.broadcaster.clone();
    desk.script.then(move |_| match broadcaster.submit(&inner, None) {
        Err(e) if e.kind() == ErrorKind::InvalidInput => Verdict::Done,
        other => Verdict::Fail(format!("{other:?}")),
    });
    let mut outer = request("outer", "p");
    outer.resources.push(resource("thing", "1", false));
    let answer = desk.broadcaster.submit(&outer, None).unwrap();
    assert_eq!(answer.outcome, Outcome::Done);
}

#[test]
pub(crate) fn work_of_an_unknown_type_is_parked_after_a_restart() {
    let desk = Desk::open();
    desk.script.next(Verdict::Park("stuck".into()));
    let parked = desk.submit("k", "p").unwrap_err();
    let id = parked.broadcast_id().unwrap();
    desk.broadcaster.resume(id, "").unwrap();
    drop(desk.submit("k", "p").unwrap());
    desk.script.hold();
    let broadcaster = desk.broadcaster.clone();
    let caller = std::thread::spawn(move || broadcaster.submit(&request("other", "p"), None));
    desk.script.wait_called();
    desk.script.next_retries_for_ever();
    desk.script.let_go();
    desk.broadcaster.close().unwrap();
    assert_eq!(caller.join().unwrap().unwrap_err().kind(), ErrorKind::InFlight);
    let desk = desk.without_types();
    let id = loop {
        let open = |state: &oncelog::broadcast::State| {
            let mut open = state.tasks().filter(|(_, task)| task.done.is_none());
            open.next().map(|(id, task)| (id, task.parked.clone()))
        };
        if let Some((id, Some((reason, _)))) = desk.broadcaster.read(|state, _| open(state)) {
            assert!(reason.contains("not registered"), "{reason}");
            break id;
        }
    };
    let error = desk.submit("other", "p").unwrap_err();
    assert_eq!((error.kind(), error.broadcast_id()), (ErrorKind::Parked, Some(id)));
}

#[test]
pub(crate) fn closing_frees_the_store_and_clones_answer_closed() {
    let desk = Desk::open();
    let clone = desk.broadcaster.clone();
    drop(desk.submit("k", "p").unwrap());
    let desk = desk.reopen();
    assert_eq!(clone.submit(&request("k", "p"), None).unwrap_err().kind(), ErrorKind::Closed);
    assert!(desk.submit("k", "p").unwrap().duplicated);
}

pub(crate) fn resource(domain: &str, key: &str, shared: bool) -> Resource {
    Resource { domain: domain.into(), key: key.into(), shared }
}
