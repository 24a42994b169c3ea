//! Whoever waits without a deadline for what others hold is told once one of them goes no further:
//! whichever of them, and whether it stopped before or behind the question.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use oncelog::broadcast::{
    BroadcastId, Broadcaster, MessageType, Options, Request, Resource, Verdict,
};
use oncelog::{Error, ErrorKind};

use super::desk::{Desk, Held, LONG, ends, request, wait};
use super::{jobs, resource, waits};

/// Objects that a request holds, exclusively where they are in capitals.
fn holding(key: &str, objects: &str) -> Request {
    let of = |object: char| {
        resource("thing", &object.to_ascii_lowercase().to_string(), object.is_ascii_lowercase())
    };
    request(key, "p").resources(objects.chars().map(of).collect())
}

#[track_caller]
fn check_locked(error: &Error, words: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::LockTimeout, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
}

/// Begins work whose callback waits.
fn begin(desk: &Desk, request: Request) -> (Held, std::thread::JoinHandle<oncelog::Result<()>>) {
    let held = desk.script.next_waits();
    let caller = ask(&desk.broadcaster, request);
    held.wait_met();
    (held, caller)
}

fn ask(
    broadcaster: &Broadcaster,
    request: Request,
) -> std::thread::JoinHandle<oncelog::Result<()>> {
    let broadcaster = broadcaster.clone();
    std::thread::spawn(move || broadcaster.submit(&request, None).map(drop))
}

fn wait_for_locks(desk: &Desk, count: u64) {
    wait("who waits for locks", || desk.broadcaster.stats().locks.waiting == count);
}

/// Two hold what a third asks for: one of them runs, the other is parked, before the question or
/// behind it. The one that ran ends: nothing is left that would wake who waits.
fn check_two(holders: [&'static str; 2], asked: &'static str, parks: usize, before: bool) {
    ends(move || {
        let desk = Desk::open();
        let [a, b] = [0, 1].map(|n| begin(&desk, holding(&n.to_string(), holders[n])));
        let (runs, parked) = if parks == 0 { (b, a) } else { (a, b) };
        let (held, caller) = parked;
        let park = || {
            held.go(Verdict::Park("look at it".into()));
            let error = caller.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Parked);
            error.broadcast_id().unwrap()
        };
        let (id, told) = if before {
            let id = park();
            (id, desk.broadcaster.submit(&holding("third", asked), None).unwrap_err())
        } else {
            let third = ask(&desk.broadcaster, holding("third", asked));
            wait_for_locks(&desk, 1);
            (park(), third.join().unwrap().unwrap_err())
        };
        check_locked(&told, &[&format!("broadcast {id}, parked since"), "look at it"]);
        let (held, caller) = runs;
        held.go(Verdict::Done);
        caller.join().unwrap().unwrap();
        // The key was not consumed, and nothing is left of the question.
        wait_for_locks(&desk, 0);
        desk.broadcaster.resume(id, "seen to").unwrap();
        assert!(!desk.broadcaster.submit(&holding("third", asked), None).unwrap().duplicated);
    });
}

#[test]
fn of_two_holders_the_one_that_is_parked_ends_a_wait_for_both() {
    for (holders, asked) in [(["A", "B"], "AB"), (["a", "a"], "A"), (["Ac", "c"], "aC")] {
        for parks in [0, 1] {
            for before in [true, false] {
                check_two(holders, asked, parks, before);
            }
        }
    }
}

/// It waits behind a request, which waits for a parked one only until its deadline.
#[test]
fn who_waits_behind_a_request_that_waits_is_told_of_the_parked_one_too() {
    ends(|| {
        let desk = Desk::open();
        let (held, caller) = begin(&desk, holding("1", "A"));
        let (running, runner) = begin(&desk, holding("2", "B"));
        let patient = {
            let broadcaster = desk.broadcaster.clone();
            let request = holding("3", "AB");
            std::thread::spawn(move || broadcaster.submit(&request, Some(LONG)).map(drop))
        };
        wait_for_locks(&desk, 1);
        let last = ask(&desk.broadcaster, holding("4", "A"));
        wait_for_locks(&desk, 2);
        held.go(Verdict::Park("look at it".into()));
        let parked = caller.join().unwrap().unwrap_err();
        check_locked(&last.join().unwrap().unwrap_err(), &["parked since"]);
        wait_for_locks(&desk, 1);
        let id = parked.broadcast_id().unwrap();
        desk.broadcaster.skip(id, "seen to").unwrap();
        running.go(Verdict::Done);
        runner.join().unwrap().unwrap();
        patient.join().unwrap().unwrap();
    });
}

/// The callers of its key were told, and those of its resources waited in silence.
#[test]
fn who_waits_for_a_lock_without_a_deadline_is_told_that_its_holder_has_no_space() {
    let check = |before: bool| {
        ends(move || {
            let desk = Desk::open();
            waits::take_reserve(&desk);
            let mut large = holding("1", "A");
            large.payload = waits::large("").payload;
            let told = if before {
                waits::check_no_space(&desk.broadcaster.submit(&large, None).unwrap_err());
                desk.broadcaster.submit(&holding("2", "A"), None).unwrap_err()
            } else {
                // The disk is full until both of them wait.
                let holder = desk.accepted(&large);
                let told = desk.broadcaster.submit(&holding("2", "A"), None).unwrap_err();
                assert_eq!(desk.accepted(&large), holder);
                told
            };
            check_locked(&told, &["without space"]);
            desk.io.disarm();
            drop(desk.broadcaster.submit(&holding("2", "A"), Some(LONG)).unwrap());
            assert!(desk.broadcaster.submit(&large, None).unwrap().duplicated);
        });
    };
    check(true);
    check(false);
}

/// The resources of a job, exclusively.
fn of_job(desk: &Desk, job: BroadcastId) -> Vec<Resource> {
    let of = |state: &oncelog::broadcast::State| {
        state.job(job).unwrap().accepted.header.resources.clone()
    };
    let mut resources = desk.broadcaster.read(|state, _| of(state));
    assert!(!resources.is_empty());
    resources.iter_mut().for_each(|resource| resource.shared = false);
    resources
}

#[track_caller]
fn check_stopped(error: &Error, job: BroadcastId, words: &str) {
    assert_eq!((error.kind(), error.broadcast_id()), (ErrorKind::InFlight, Some(job)), "{error}");
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains(words), "{cause}");
    assert!(error.is_retryable() && error.retry_after().is_some());
}

/// Nobody started the driver again, and both waited for ever.
#[test]
fn who_waits_for_a_job_or_for_what_it_holds_is_told_that_nobody_drives_it() {
    ends(|| {
        let desk = jobs::desk();
        let (work, job) = jobs::start(&desk, "k");
        let exclusive = request("other", "p").resources(of_job(&desk, job));
        let stop = || work.stopped(job, Error::invalid_input("the cellar is flooded"));
        let stopped = format!("job {job}, stopped");
        let told = &[stopped.as_str(), "flooded"][..];
        // Whoever waits already, and whoever comes behind it.
        let waiter = ask(&desk.broadcaster, exclusive.clone());
        wait_for_locks(&desk, 1);
        let of_end = {
            let work = work.clone();
            std::thread::spawn(move || work.wait(job, None).map(drop))
        };
        stop();
        check_locked(&waiter.join().unwrap().unwrap_err(), told);
        check_stopped(&of_end.join().unwrap().unwrap_err(), job, "flooded");
        check_locked(&desk.broadcaster.submit(&exclusive, None).unwrap_err(), told);
        check_stopped(&work.wait(job, None).unwrap_err(), job, "flooded");
        // Somebody drives it again.
        work.going(job);
        let locked = desk.broadcaster.submit(&exclusive, Some(Duration::ZERO)).unwrap_err();
        check_locked(&locked, &[&format!("job {job}, running")]);
        let waiter = ask(&desk.broadcaster, exclusive);
        wait_for_locks(&desk, 1);
        work.end(job, 1, jobs::COMMIT, vec![]).unwrap();
        waiter.join().unwrap().unwrap();
        assert!(work.wait(job, None).unwrap().over.is_some());
        // It is over: what a driver says of it is late.
        stop();
        assert!(work.wait(job, None).is_ok());
    });
}

/// A driver that panics when it is told of its job.
#[derive(Debug)]
struct Panics;

impl MessageType for Panics {
    fn name(&self) -> &str {
        "Load"
    }

    fn role(&self) -> oncelog::broadcast::Role {
        oncelog::broadcast::Role::StartsJob
    }

    fn apply(&self, _task: &oncelog::broadcast::Task) -> Verdict {
        Verdict::Done
    }

    fn job_ready(&self, _job: BroadcastId, _jobs: &oncelog::broadcast::Jobs) {
        std::panic::panic_any("scripted");
    }
}

#[test]
fn a_job_whose_type_is_not_registered_or_whose_driver_panics_is_driven_by_nobody() {
    let check = |registered: fn(Options) -> Options, words: &'static str| {
        ends(move || {
            let desk = jobs::desk();
            let (_, job) = jobs::start(&desk, "k");
            let resources = of_job(&desk, job);
            desk.broadcaster.close().unwrap();
            let script = Arc::clone(&desk.script);
            let options = registered(Options::new().register(script));
            let desk = Desk::on(desk.io.machine(), desk.hands, desk.script, options).unwrap();
            check_stopped(&desk.broadcaster.jobs().wait(job, None).unwrap_err(), job, words);
            let exclusive = request("other", "p").resources(resources);
            let locked = desk.broadcaster.submit(&exclusive, None).unwrap_err();
            check_locked(&locked, &[&format!("job {job}, stopped"), words]);
        });
    };
    check(|options| options, "type Load is not registered");
    check(|options| options.register(Arc::new(Panics)), "panicked");
}
