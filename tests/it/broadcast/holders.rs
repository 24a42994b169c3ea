//! Who holds what others wait for: told by name and state, given up on every way out, and never
//! waited for without an end. A deadlock is what each of these tests would find: none is waited for.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use oncelog::broadcast::{
    BroadcastId, Broadcaster, MessageType, Options, Outcome, Request, State, Task, Verdict,
};
use oncelog::testing::{CallKind, EIO, Fault, Which};
use oncelog::{Error, ErrorKind};

use super::desk::{Desk, LONG, Script, ends, request, wait};
use super::{jobs, resource};

/// A request that holds `thing:1` alone.
fn holding(key: &str) -> Request {
    request(key, "p").resources(vec![resource("thing", "1", false)])
}

#[track_caller]
fn check_told(error: &Error, words: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::LockTimeout, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
}

fn parked(desk: &Desk, key: &str) -> BroadcastId {
    desk.script.next(Verdict::Park("look at it".into()));
    let error = desk.broadcaster.submit(&holding(key), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Parked);
    error.broadcast_id().unwrap()
}

/// It said "accepted" of a broadcast that nobody but an operator could make go on.
#[test]
fn an_error_of_a_lock_names_id_type_age_and_state_of_the_holder() {
    ends(|| {
        let desk = Desk::open();
        let id = parked(&desk, "k");
        desk.hands.pass(5_000);
        let locked = desk.broadcaster.submit(&holding("other"), Some(Duration::ZERO)).unwrap_err();
        check_told(
            &locked,
            &[&format!("broadcast {id}, parked since"), "look at it", "type Script"],
        );
        let age = locked.to_string();
        let age_ms: u64 = age.rsplit(' ').nth(1).unwrap().parse().unwrap();
        assert!(age_ms >= 5_000, "{age}");
        desk.script.hold();
        desk.broadcaster.resume(id, "fixed").unwrap();
        desk.script.wait_called();
        let locked = desk.broadcaster.submit(&holding("other"), Some(Duration::ZERO)).unwrap_err();
        check_told(&locked, &[&format!("broadcast {id}, running"), "type Script"]);
        desk.script.let_go();
        drop(desk.broadcaster.submit(&holding("other"), None).unwrap());
    });
}

/// Without a deadline it waited for ever, and said nothing.
#[test]
fn who_waits_for_a_lock_without_a_deadline_is_told_that_its_holder_is_parked() {
    ends(|| {
        let desk = Desk::open();
        let id = parked(&desk, "k");
        let locked = desk.broadcaster.submit(&holding("other"), None).unwrap_err();
        check_told(&locked, &[&format!("broadcast {id}, parked since")]);
        // The key was not consumed.
        desk.broadcaster.resume(id, "fixed").unwrap();
        assert!(!desk.broadcaster.submit(&holding("other"), None).unwrap().duplicated);
        // Also one who waits already when it is parked.
        desk.script.hold();
        std::thread::scope(|threads| {
            let holder =
                threads.spawn(|| desk.broadcaster.submit(&holding("3"), None).unwrap_err());
            desk.script.wait_called();
            let waiter =
                threads.spawn(|| desk.broadcaster.submit(&holding("4"), None).unwrap_err());
            wait("a waiter", || desk.broadcaster.stats().locks.waiting == 1);
            desk.script.next(Verdict::Park("look at it".into()));
            desk.script.let_go();
            assert_eq!(holder.join().unwrap().kind(), ErrorKind::Parked);
            check_told(&waiter.join().unwrap(), &["parked since"]);
        });
        assert_eq!(desk.broadcaster.stats().locks.waiting, 0);
    });
}

#[test]
fn a_deadline_of_no_time_at_all_is_one() {
    ends(|| {
        let desk = Desk::open();
        desk.script.hold();
        std::thread::scope(|threads| {
            let original = threads.spawn(|| desk.submit("k", "p").unwrap());
            desk.script.wait_called();
            let late =
                desk.broadcaster.submit(&request("k", "p"), Some(Duration::ZERO)).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::InFlight);
            desk.script.let_go();
            drop(original.join().unwrap());
        });
    });
}

/// The guard of an admission is given up by a panic of the type, too.
#[test]
fn a_type_that_panics_in_a_check_leaves_neither_key_nor_slot_nor_lock() {
    ends(|| {
        let check = |plan: &dyn Fn(&Script)| {
            let mut policy = oncelog::broadcast::Policy::default();
            policy.window_count_max = 1;
            let desk = Desk::with(Arc::default(), |options: Options| options.policy(policy));
            plan(&desk.script);
            let ask = || desk.broadcaster.submit(&holding("k"), None);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask)).is_err());
            // One slot, one lock, one key: all of them are free.
            let mut other = holding("k");
            other.payload = b"another".to_vec();
            assert!(!desk.broadcaster.submit(&other, Some(LONG)).unwrap().duplicated);
        };
        check(&|script| script.validates(|| std::panic::panic_any("scripted")));
        check(&|script| script.rechecks(|| std::panic::panic_any("scripted")));
    });
}

#[test]
fn callers_beyond_the_bound_of_a_key_are_told_to_come_back() {
    ends(|| {
        let desk = Desk::open();
        desk.script.hold();
        std::thread::scope(|threads| {
            let ask = || desk.submit("k", "p").unwrap();
            let original = threads.spawn(ask);
            desk.script.wait_called();
            let waiters: Vec<_> = (0..1_024).map(|_| threads.spawn(ask)).collect();
            wait("callers", || desk.broadcaster.stats().callers_waiting == 1_024);
            let crowded = desk.submit("k", "p").unwrap_err();
            assert_eq!(crowded.kind(), ErrorKind::InFlight);
            assert!(crowded.broadcast_id().is_some());
            assert!(crowded.is_retryable() && crowded.to_string().contains("1024"), "{crowded}");
            desk.script.let_go();
            let id = original.join().unwrap().id;
            waiters.into_iter().for_each(|waiter| assert_eq!(waiter.join().unwrap().id, id));
        });
        assert!(desk.submit("k", "p").unwrap().duplicated);
    });
}

#[test]
fn callers_beyond_the_bound_of_a_key_that_is_being_admitted_are_told_that_nothing_is_known() {
    ends(|| {
        let desk = Desk::open();
        let (begun, wait_begun) = channel();
        let (go, wait_go) = channel::<()>();
        desk.script.validates(move || {
            begun.send(()).unwrap();
            wait_go.recv_timeout(LONG).unwrap();
            Ok(())
        });
        std::thread::scope(|threads| {
            let ask = || desk.submit("k", "p").unwrap();
            let original = threads.spawn(ask);
            wait_begun.recv_timeout(LONG).unwrap();
            let waiters: Vec<_> = (0..1_024).map(|_| threads.spawn(ask)).collect();
            wait("callers", || desk.broadcaster.stats().callers_waiting == 1_024);
            let crowded = desk.submit("k", "p").unwrap_err();
            assert_eq!(crowded.kind(), ErrorKind::OutcomeUnknown);
            assert!(crowded.to_string().contains("with the same key, and too many"), "{crowded}");
            go.send(()).unwrap();
            let id = original.join().unwrap().id;
            waiters.into_iter().for_each(|waiter| assert_eq!(waiter.join().unwrap().id, id));
        });
    });
}

/// Whoever waits is answered by a close, and nothing is waited for but the callback that runs.
#[test]
fn a_close_answers_everybody_who_waits_and_leaves_the_rest_to_the_next_open() {
    ends(|| {
        let desk = Desk::open();
        let (begun, wait_begun) = channel();
        let (go, wait_go) = channel::<()>();
        desk.script.hold();
        std::thread::scope(|threads| {
            let of_effect =
                threads.spawn(|| desk.broadcaster.submit(&holding("1"), None).unwrap_err());
            desk.script.wait_called();
            let of_lock =
                threads.spawn(|| desk.broadcaster.submit(&holding("2"), None).unwrap_err());
            wait("a lock", || desk.broadcaster.stats().locks.waiting == 1);
            desk.script.validates(move || {
                begun.send(()).unwrap();
                wait_go.recv_timeout(LONG).unwrap();
                Ok(())
            });
            let admitted = threads.spawn(|| desk.submit("3", "p").unwrap_err());
            wait_begun.recv_timeout(LONG).unwrap();
            let of_key = threads.spawn(|| desk.submit("3", "p").unwrap_err());
            wait("a key", || desk.broadcaster.stats().callers_waiting == 1);
            let closer = threads.spawn(|| desk.broadcaster.close());
            // All but the callback and the check are answered while both are held.
            assert_eq!(of_lock.join().unwrap().kind(), ErrorKind::Closed);
            assert_eq!(of_key.join().unwrap().kind(), ErrorKind::Closed);
            go.send(()).unwrap();
            assert_eq!(admitted.join().unwrap().kind(), ErrorKind::Closed);
            desk.script.let_go();
            closer.join().unwrap().unwrap();
            assert_eq!(of_effect.join().unwrap().kind(), ErrorKind::InFlight);
        });
        let desk = desk.reopen();
        assert!(desk.broadcaster.submit(&holding("1"), None).unwrap().duplicated);
        assert!(!desk.broadcaster.submit(&holding("2"), None).unwrap().duplicated);
        assert!(!desk.submit("3", "p").unwrap().duplicated);
    });
}

/// The one who closed waited for the callback, and the callback for the one who closed.
#[test]
fn a_callback_may_close_while_another_closes_and_while_nobody_does() {
    ends(|| {
        let check = |beside: bool| {
            let desk = Desk::open();
            let broadcaster = desk.broadcaster.clone();
            let (begun, wait_begun): (Sender<()>, Receiver<()>) = channel();
            desk.script.then(move |_| {
                begun.send(()).unwrap();
                if beside {
                    // The other one has begun.
                    wait("a close", || {
                        let error = broadcaster.resume(BroadcastId(u64::MAX), "").unwrap_err();
                        error.kind() == ErrorKind::Closed
                    });
                }
                broadcaster.close().unwrap();
                Verdict::Done
            });
            let asked =
                desk.broadcaster.submit(&request("k", "p"), Some(Duration::ZERO)).unwrap_err();
            assert!(matches!(asked.kind(), ErrorKind::OutcomeUnknown | ErrorKind::InFlight));
            wait_begun.recv_timeout(LONG).unwrap();
            desk.broadcaster.close().unwrap();
            let desk = desk.reopen();
            assert!(desk.submit("k", "p").unwrap().duplicated);
        };
        check(true);
        check(false);
    });
}

/// A type whose own close fails.
#[derive(Debug)]
struct Clumsy;

impl MessageType for Clumsy {
    fn name(&self) -> &str {
        "Clumsy"
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }

    fn close(&self) {
        std::panic::panic_any("scripted");
    }
}

/// Threads ran on and the store's lock stayed.
#[test]
fn a_type_that_panics_when_it_is_closed_keeps_no_lock_of_the_store() {
    ends(|| {
        let desk =
            Desk::with(Arc::default(), |options: Options| options.register(Arc::new(Clumsy)));
        let original = desk.submit("k", "p").unwrap();
        let desk = desk.reopen();
        assert_eq!(desk.submit("k", "p").unwrap().id, original.id);
    });
}

/// The second one was told of what came behind the first one's cause.
#[test]
fn whoever_closes_is_told_what_the_first_one_was() {
    ends(|| {
        let check = |kind: CallKind| {
            let desk = Desk::open();
            drop(desk.submit("k", "p").unwrap());
            desk.io.arm(Which::Kind(kind), 1, u64::MAX / 2, Fault::Error(EIO));
            let first = desk.broadcaster.close().unwrap_err();
            let again = || desk.broadcaster.close().unwrap_err();
            for told in [again(), again()] {
                assert_eq!((told.kind(), told.to_string()), (first.kind(), first.to_string()));
                assert_eq!(told.path(), first.path());
            }
        };
        check(CallKind::Sync);
        check(CallKind::Write);
    });
}

/// Asks from within a callback.
fn ask(broadcaster: &Broadcaster, request: &Request) -> Verdict {
    match broadcaster.submit(request, None) {
        Ok(_) => Verdict::Done,
        Err(e) if e.kind() == ErrorKind::LockTimeout => Verdict::Retry(e.to_string()),
        Err(e) => Verdict::Fail(e.to_string()),
    }
}

/// Each held what the other asked for, and both waited for ever.
#[test]
fn callbacks_that_ask_for_each_others_resources_do_not_wait_for_each_other() {
    ends(|| {
        let desk = Desk::open();
        let of = |key: &str, object: &str| {
            request(key, "p").resources(vec![resource("thing", object, false)])
        };
        let (met, wait_met) = channel();
        let (go, wait_go) = channel::<()>();
        let (broadcaster, inner) = (desk.broadcaster.clone(), of("of x", "y"));
        desk.script.then(move |_| {
            met.send(()).unwrap();
            wait_go.recv_timeout(LONG).unwrap();
            ask(&broadcaster, &inner)
        });
        std::thread::scope(|threads| {
            let x = threads.spawn(|| desk.broadcaster.submit(&of("x", "x"), None).unwrap());
            wait_met.recv_timeout(LONG).unwrap();
            let (broadcaster, inner) = (desk.broadcaster.clone(), of("of y", "x"));
            desk.script.then(move |_| {
                go.send(()).unwrap();
                ask(&broadcaster, &inner)
            });
            let y = threads.spawn(|| desk.broadcaster.submit(&of("y", "y"), None).unwrap());
            for answer in [x.join().unwrap(), y.join().unwrap()] {
                assert_eq!(answer.outcome, Outcome::Done);
            }
        });
    });
}

#[test]
fn a_waiter_behind_a_job_is_told_that_its_ending_is_parked() {
    ends(|| {
        let desk = jobs::desk_with(|options| options.register(Arc::new(super::waits::Stuck)));
        let (work, job) = jobs::start(&desk, "k");
        let of = |state: &State| state.job(job).unwrap().accepted.header.resources.clone();
        let mut resources = desk.broadcaster.read(|state, _| of(state));
        assert!(!resources.is_empty());
        resources.iter_mut().for_each(|resource| resource.shared = false);
        let ending = work.end(job, 1, ("Stuck", true), vec![]).unwrap_err();
        assert_eq!(ending.kind(), ErrorKind::Parked);
        // Who ends it again is told of the first ending, and not to wait for its lock.
        let again = work.end(job, 1, jobs::COMMIT, vec![]).unwrap_err();
        assert_eq!(
            (again.kind(), again.broadcast_id()),
            (ErrorKind::Parked, ending.broadcast_id())
        );
        let locked = desk.broadcaster.submit(&request("other", "p").resources(resources), None);
        check_told(&locked.unwrap_err(), &[&format!("job {job}, ending, parked since")]);
    });
}
