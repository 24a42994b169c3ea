//! No wait without an end: of a task, over restarts too; of a caller, for space too.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use oncelog::broadcast::{
    AckMode, BroadcastId, MessageType, Options, Outcome, Policy, Request, Role, State, Task,
    Verdict,
};
use oncelog::testing::{CallKind, ENOSPC, Fault, Which};
use oncelog::{Error, ErrorKind};

use super::desk::{Desk, Script, ends, request, wait};
use super::{jobs, pins};

const MINUTE_MS: u64 = 60_000;

const AGE_MAX_MS: u64 = 10 * MINUTE_MS;

/// Two tries of a process that lives for two minutes: the callback wants another one both times.
fn two_minutes(desk: &Desk) {
    desk.script.next(Verdict::Retry("not yet".into()));
    let hands = Arc::clone(&desk.hands);
    desk.script.then(move |_| {
        hands.pass(2 * MINUTE_MS);
        Verdict::Retry("not yet".into())
    });
}

/// When a task was accepted and when it was parked, where it is.
fn times(desk: &Desk, id: BroadcastId) -> (u64, Option<u64>) {
    let of = |state: &State| {
        let task = state.task(id).unwrap();
        (task.accepted_at_ms, task.parked.as_ref().map(|(_, at_ms)| *at_ms))
    };
    desk.broadcaster.read(|state, _| of(state))
}

/// Waits until a task is parked, and for how long it had been accepted by then.
#[track_caller]
fn parked_after(desk: &Desk, id: BroadcastId) -> u64 {
    wait("the task to be parked", || times(desk, id).1.is_some());
    let error = desk.broadcaster.submit(&request("k", "p"), None).unwrap_err();
    assert_eq!((error.kind(), error.broadcast_id()), (ErrorKind::Parked, Some(id)), "{error}");
    let (accepted_at_ms, parked_at_ms) = times(desk, id);
    parked_at_ms.unwrap() - accepted_at_ms
}

/// Each process counted from its own beginning: a store that was opened every few minutes retried
/// for ever.
#[test]
fn a_task_is_parked_in_the_end_however_often_the_store_is_opened_again() {
    ends(|| {
        let mut desk = Desk::open();
        desk.script.next_retries_for_ever();
        let mut id = None;
        while desk.hands.passed_ms() < AGE_MAX_MS {
            two_minutes(&desk);
            let before = desk.script.calls();
            id = Some(desk.accepted(&request("k", "p")));
            wait("two tries", || desk.script.calls() >= before + 2);
            desk = desk.reopen();
        }
        // Its time was over before this process began.
        let id = id.unwrap();
        assert!(parked_after(&desk, id) >= AGE_MAX_MS);
        // Resumed, it has its time again.
        desk.script.forget();
        desk.broadcaster.resume(id, "try again").unwrap();
        let desk = desk.reopen();
        two_minutes(&desk);
        assert_eq!(desk.submit("k", "p").unwrap().outcome, Outcome::Done);
    });
}

/// Each process gave every task a part of its time again, and ended before it was over.
#[test]
fn processes_that_each_live_for_a_moment_park_what_does_not_go_on() {
    ends(|| {
        let desk = Desk::open();
        desk.script.next_retries_for_ever();
        let id = desk.accepted(&request("k", "p"));
        wait("a try", || desk.script.calls() > 0);
        desk.broadcaster.close().unwrap();
        // Closed for an hour between two moments.
        desk.hands.pass(60 * MINUTE_MS);
        let before = desk.script.calls();
        let desk = desk.reopen();
        assert!(parked_after(&desk, id) >= AGE_MAX_MS);
        // As many tries as a process gives any task, and the one behind them.
        assert_eq!(desk.script.calls() - before, 4);
    });
}

#[test]
fn a_store_that_was_closed_for_long_gives_up_no_task_at_its_first_try() {
    ends(|| {
        let desk = Desk::open();
        desk.script.next_retries_for_ever();
        desk.accepted(&request("k", "p"));
        desk.broadcaster.close().unwrap();
        desk.hands.pass(100 * AGE_MAX_MS);
        desk.script.forget();
        desk.script.next(Verdict::Retry("not yet".into()));
        desk.script.next(Verdict::Retry("not yet".into()));
        let desk = desk.reopen();
        assert_eq!(desk.submit("k", "p").unwrap().outcome, Outcome::Done);
    });
}

#[test]
fn a_wait_for_consumers_ends_however_often_the_store_is_opened_again() {
    ends(|| {
        let mut policy = Policy::default();
        policy.retry_age_max = Duration::from_millis(1_000);
        let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
        let mut desk = Desk::with(script, |options: Options| options.policy(policy));
        let id = desk.accepted(&request("k", "p"));
        for _ in 0..4 {
            wait("the copies", || desk.copies(id) == 2);
            // The wall clock of a desk stands still by itself.
            desk.hands.pass(250);
            desk = desk.reopen();
        }
        // Its time was over before this process began.
        assert!(parked_after(&desk, id) >= 1_000);
    });
}

pub(super) fn large(key: &str) -> Request {
    let mut request = request(key, "p");
    // Two copies are more than the first segment of a channel holds.
    request.payload = vec![7; 600_000];
    request
}

#[track_caller]
pub(super) fn check_no_space(error: &Error) -> BroadcastId {
    assert_eq!(error.kind(), ErrorKind::InFlight, "{error}");
    let cause = error.source().unwrap().downcast_ref::<Error>().unwrap();
    assert_eq!(cause.kind(), ErrorKind::StoreFull, "{cause}");
    assert!(error.is_retryable() && error.retry_after().is_some());
    error.broadcast_id().unwrap()
}

/// Has what is kept for accepted work taken away: nothing gets the name of a segment behind the
/// reserves that hold the next acceptance, of its channel and of control.
pub(super) fn take_reserve(desk: &Desk) {
    desk.io.arm(Which::Kind(CallKind::Rename), 3, u64::MAX / 2, Fault::Error(ENOSPC));
}

/// Without a deadline it waited for the task to be parked, without a word.
#[test]
fn who_asks_without_a_deadline_is_told_that_there_is_no_space() {
    ends(|| {
        let desk = Desk::open();
        take_reserve(&desk);
        let request = large("k");
        let id = check_no_space(&desk.broadcaster.submit(&request, None).unwrap_err());
        assert_eq!(check_no_space(&desk.broadcaster.submit(&request, None).unwrap_err()), id);
        let late = desk.broadcaster.submit(&request, Some(Duration::ZERO)).unwrap_err();
        assert_eq!((late.kind(), late.broadcast_id()), (ErrorKind::InFlight, Some(id)));
        desk.io.disarm();
        let answer = desk.broadcaster.submit(&request, None).unwrap();
        assert_eq!((answer.id, answer.duplicated), (id, true));
        assert_eq!(desk.copies(id), 2);
    });
}

#[test]
fn who_waits_for_a_job_is_told_that_there_is_no_space_for_its_ending() {
    ends(|| {
        let desk = jobs::desk();
        let (jobs, job) = jobs::start(&desk, "k");
        desk.io.set_free_blocks(Some(0));
        // To the last byte.
        for len in [8 << 10, 64] {
            pins::fill(&desk, job, len);
        }
        // Not even what is kept for it becomes a segment.
        desk.io.arm(Which::Kind(CallKind::Rename), 1, u64::MAX / 2, Fault::Error(ENOSPC));
        let told = jobs.end(job, 1, jobs::COMMIT, vec![7; 256]).unwrap_err();
        let ending = check_no_space(&told);
        assert_eq!(check_no_space(&jobs.wait(job, None).unwrap_err()), ending);
        desk.io.disarm();
        desk.io.set_free_blocks(None);
        let over = jobs.wait(job, None).unwrap();
        assert!(over.over.is_some_and(|(committed, _)| committed));
        assert_eq!(desk.copies(ending), 2);
    });
}

/// An ending that no operator has looked at yet.
#[derive(Debug)]
pub(super) struct Stuck;

impl MessageType for Stuck {
    fn name(&self) -> &str {
        "Stuck"
    }

    fn role(&self) -> Role {
        Role::EndsJob
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Park("look at it".into())
    }
}

#[test]
fn who_waits_for_a_job_is_told_that_its_ending_is_parked() {
    ends(|| {
        let desk = jobs::desk_with(|options| options.register(Arc::new(Stuck)));
        let (jobs, job) = jobs::start(&desk, "k");
        let told = jobs.end(job, 1, ("Stuck", true), vec![]).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Parked);
        let waited = jobs.wait(job, None).unwrap_err();
        assert_eq!(
            (waited.kind(), waited.broadcast_id()),
            (ErrorKind::Parked, told.broadcast_id())
        );
    });
}

/// A reason that no record takes made a record that does not encode: the task was tried again every
/// ten seconds, and never parked; one that had failed ran again until it was parked.
#[test]
fn a_reason_that_no_record_takes_is_cut_and_the_task_ends() {
    ends(|| {
        // Characters of two bytes, cut between two of them.
        let long = "\u{e9}".repeat(40_000);
        let cut = |reason: &str| reason.len() > 60_000 && long.starts_with(reason);
        let desk = Desk::open();
        desk.script.next(Verdict::Fail(long.clone()));
        let answer = desk.submit("fails", "p").unwrap();
        let Outcome::Failed { reason } = &answer.outcome else { panic!("{:?}", answer.outcome) };
        assert!(cut(reason), "{} bytes", reason.len());
        assert_eq!(desk.script.calls(), 1);
        desk.script.next(Verdict::Park(long.clone()));
        let parked = desk.submit("parks", "p").unwrap_err();
        assert_eq!(parked.kind(), ErrorKind::Parked);
        assert_eq!(desk.script.calls(), 2);
        // An operator's reasons are cut too.
        let id = parked.broadcast_id().unwrap();
        desk.script.next(Verdict::Park("again".into()));
        desk.broadcaster.resume(id, &long).unwrap();
        assert_eq!(desk.submit("parks", "p").unwrap_err().kind(), ErrorKind::Parked);
        desk.broadcaster.skip(id, &long).unwrap();
        let skipped = desk.submit("parks", "p").unwrap();
        let Outcome::Failed { reason } = &skipped.outcome else { panic!("{:?}", skipped.outcome) };
        assert!(reason.strip_prefix("skipped: ").is_some_and(cut));
        // One that wants another try is parked when its time is over.
        for _ in 0..5 {
            let (hands, again) = (Arc::clone(&desk.hands), long.clone());
            desk.script.then(move |_| {
                hands.pass(AGE_MAX_MS);
                Verdict::Retry(again)
            });
        }
        assert_eq!(desk.submit("retries", "p").unwrap_err().kind(), ErrorKind::Parked);
        let desk = desk.reopen();
        assert_eq!(desk.submit("retries", "p").unwrap_err().kind(), ErrorKind::Parked);
    });
}
