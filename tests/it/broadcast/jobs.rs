//! Jobs: made by a broadcast, ended by a broadcast, once.

use std::sync::Arc;
use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{
    BroadcastId, Jobs, MessageType, Options, Request, Role, Scope, Task, Verdict,
};
use oncelog_format::control::{JobPhase, JobPlan, JobState};

use super::desk::{Desk, LONG, Script, assert_same, ends, request, scope, wait};
use super::resource;

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
pub(super) const COMMIT: (&str, bool) = ("Commit", true);
pub(super) const ABORT: (&str, bool) = ("Abort", false);

/// A type of a role, without an effect of its own.
#[derive(Debug)]
struct Kind(&'static str, Role);

impl MessageType for Kind {
    fn name(&self) -> &str {
        self.0
    }

    fn role(&self) -> Role {
        self.1
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }
}

pub(super) fn desk() -> Desk {
    desk_with(|options| options)
}

pub(super) fn desk_with(change: impl FnOnce(Options) -> Options) -> Desk {
    Desk::with(Arc::new(Script::default()), |options| {
        let kinds = [
            Kind("Load", Role::StartsJob),
            Kind("Commit", Role::EndsJob),
            Kind("Abort", Role::EndsJob),
        ];
        let options = kinds.into_iter().fold(options, |o, kind| o.register(Arc::new(kind)));
        change(options)
    })
}

fn load(key: &str) -> Request {
    let scope = Scope { message_type: "Load".into(), ..scope(key) };
    let vchannels = vec!["a".into(), "b".into()];
    Request::new("Load", Some(scope), vchannels, b"rows".to_vec()).resources(vec![resource(
        "collection",
        "1",
        true,
    )])
}

fn exclusive(key: &str) -> Request {
    request(key, "p").resources(vec![resource("collection", "1", false)])
}

pub(super) fn start(desk: &Desk, key: &str) -> (Jobs, BroadcastId) {
    let answer = desk.broadcaster.submit(&load(key), None).unwrap();
    (desk.broadcaster.jobs(), answer.id)
}

pub(super) fn state(job: BroadcastId, attempt: u32) -> JobState {
    JobState {
        job,
        attempt,
        phase: JobPhase::Importing,
        progress: 40,
        rows: 7,
        reason: String::new(),
        detail: vec![],
    }
}

pub(super) fn plan(jobs: &Jobs, job: BroadcastId, attempt: u32) -> JobPlan {
    assert!(jobs.get(job).is_some());
    JobPlan {
        job,
        attempt,
        files: vec![],
        slice_rows: 8_192,
        partition_function: 1,
        partition_version: 1,
        vchannels: vec!["a".into(), "b".into()],
        from: vec![],
        detail: vec![],
    }
}

#[test]
fn a_job_holds_the_locks_of_its_broadcast_until_it_is_over() {
    ends(|| {
        let desk = desk();
        let (_, job) = start(&desk, "k");
        let locked = desk.broadcaster.submit(&exclusive("x"), AT_ONCE).unwrap_err();
        assert_eq!(locked.kind(), ErrorKind::LockTimeout);
        assert!(locked.to_string().contains(&format!("job {job}")), "{locked}");
        let desk = desk.reopen();
        let locked = desk.broadcaster.submit(&exclusive("x"), AT_ONCE).unwrap_err();
        assert_eq!(locked.kind(), ErrorKind::LockTimeout);
        // Others may share it.
        let (jobs, other) = start(&desk, "other");
        jobs.end(other, 1, ABORT, vec![]).unwrap();
        jobs.end(job, 1, COMMIT, vec![]).unwrap();
        drop(desk.broadcaster.submit(&exclusive("x"), None).unwrap());
    });
}

#[test]
fn the_first_ending_of_an_attempt_wins_and_is_broadcast_once() {
    ends(|| {
        let desk = desk();
        let (jobs, job) = start(&desk, "k");
        let ends: Vec<_> = std::thread::scope(|threads| {
            let ends = [COMMIT, ABORT, COMMIT, ABORT];
            let jobs = &jobs;
            let ask = |end| threads.spawn(move || jobs.end(job, 1, end, vec![]).unwrap());
            let callers = ends.map(ask);
            callers.map(|caller| caller.join().unwrap()).into()
        });
        assert_eq!(ends.iter().filter(|end| end.mine).count(), 1);
        assert!(ends.iter().all(|end| (end.id, end.committed) == (ends[0].id, ends[0].committed)));
        assert_eq!(desk.copies(ends[0].id), 2);
        let state = jobs.wait(job, None).unwrap();
        assert_eq!(state.over.map(|(committed, _)| committed), Some(ends[0].committed));
        let desk = desk.reopen();
        let late = desk.broadcaster.jobs().end(job, 1, COMMIT, vec![]).unwrap();
        assert_eq!((late.id, late.mine), (ends[0].id, false));
        assert_eq!(super::desk::copies(&desk.broadcaster).len(), 4);
    });
}

#[test]
fn records_of_a_job_are_of_its_current_attempt() {
    ends(|| {
        let desk = desk();
        let (jobs, job) = start(&desk, "k");
        let first = plan(&jobs, job, 1);
        assert_eq!(desk.broadcaster.pinned("p0"), None);
        let from = jobs.plan(first.clone()).unwrap();
        let first = JobPlan { from, ..first };
        assert!(desk.broadcaster.pinned("p0").is_some());
        assert_eq!(jobs.plan(first.clone()).unwrap_err().kind(), ErrorKind::InvalidInput);
        let state = |attempt| state(job, attempt);
        jobs.record(state(1)).unwrap();
        assert_eq!(jobs.record(state(2)).unwrap_err().kind(), ErrorKind::InvalidInput);
        let desk = desk.reopen();
        let jobs = desk.broadcaster.jobs();
        assert_eq!(jobs.running(), [job]);
        let known = jobs.get(job).unwrap();
        assert_eq!((known.phase(), known.attempt), (JobPhase::Importing, 1));
        assert_eq!(known.plan.as_deref(), Some(&first));
        assert!(desk.broadcaster.pinned("p0").is_some());
        jobs.end(job, 1, ABORT, vec![]).unwrap();
        assert_eq!(desk.broadcaster.pinned("p0"), None);
        assert_eq!(jobs.record(state(1)).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(jobs.get(job).unwrap().phase(), JobPhase::Failed);
    });
}

#[test]
fn a_reattempt_follows_an_abort_takes_the_locks_and_moves_no_expiry() {
    ends(|| {
        let desk = desk();
        let original = desk.broadcaster.submit(&load("k"), None).unwrap();
        let (jobs, job) = (desk.broadcaster.jobs(), original.id);
        assert_eq!(jobs.reattempt(job, Some(LONG)).unwrap_err().kind(), ErrorKind::InvalidInput);
        jobs.end(job, 1, ABORT, vec![]).unwrap();
        assert_eq!(jobs.reattempt(job, Some(LONG)).unwrap(), 2);
        assert_eq!(jobs.end(job, 1, COMMIT, vec![]).unwrap_err().kind(), ErrorKind::InvalidInput);
        let desk = desk.reopen();
        let locked = desk.broadcaster.submit(&exclusive("x"), AT_ONCE).unwrap_err();
        assert_eq!(locked.kind(), ErrorKind::LockTimeout);
        let jobs = desk.broadcaster.jobs();
        jobs.plan(plan(&jobs, job, 2)).unwrap();
        jobs.end(job, 2, COMMIT, vec![]).unwrap();
        assert_same(&original, &desk.broadcaster.submit(&load("k"), None).unwrap());
        assert_eq!(jobs.reattempt(job, Some(LONG)).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_key_is_not_forgotten_while_its_job_runs() {
    ends(|| {
        let desk = desk();
        let original = desk.broadcaster.submit(&load("k"), None).unwrap();
        desk.hands.pass(3 * 86_400_000);
        assert_same(&original, &desk.broadcaster.submit(&load("k"), None).unwrap());
        let jobs = desk.broadcaster.jobs();
        jobs.end(original.id, 1, ABORT, vec![]).unwrap();
        assert_eq!(
            jobs.reattempt(original.id, Some(LONG)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        let next = desk.broadcaster.submit(&load("k"), None).unwrap();
        assert!(!next.duplicated && next.id != original.id);
        // The record of the job outlives its key for the retention of tasks.
        assert!(jobs.get(original.id).is_some());
        jobs.end(next.id, 1, COMMIT, vec![]).unwrap();
        desk.hands.pass(3 * 86_400_000);
        desk.broadcaster.refresh(desk.broadcaster.policy()).unwrap();
        wait("the record of the job to go", || jobs.get(original.id).is_none());
        assert!(jobs.is_forgotten(original.id) && !jobs.is_forgotten(BroadcastId(1_000)));
    });
}

#[test]
fn used_slots_refuse_new_jobs_and_answer_known_keys() {
    ends(|| {
        let desk = desk_with(|options| options.job_slots_max(1));
        let (jobs, job) = start(&desk, "k");
        let full = desk.broadcaster.submit(&load("other"), None).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::WindowFull);
        assert!(desk.broadcaster.submit(&load("k"), None).unwrap().duplicated);
        jobs.end(job, 1, COMMIT, vec![]).unwrap();
        start(&desk, "other");
    });
}

#[test]
fn only_a_job_submits_its_endings() {
    ends(|| {
        let desk = desk();
        let mut request = request("k", "p");
        request.scope = None;
        request.message_type = "Commit".into();
        let error = desk.broadcaster.submit(&request, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let (jobs, job) = start(&desk, "k");
        let error = jobs.end(job, 1, ("Load", true), vec![]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = jobs.end(BroadcastId(99), 1, COMMIT, vec![]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(jobs.end(job, 1, COMMIT, vec![]).unwrap().mine);
    });
}
