//! What an operator does with one task, by a program that does not know the types of the others.

use std::sync::Arc;
use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{BroadcastId, Options, Outcome, Request, Scope, Verdict};

use super::desk::{Desk, assert_same, ends, request, scope, wait};
use super::jobs;

fn parked(desk: &Desk, key: &str) -> BroadcastId {
    desk.script.next(Verdict::Park("look at it".into()));
    let error = desk.submit(key, "p").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Parked);
    error.broadcast_id().unwrap()
}

fn parked_at(desk: &Desk, id: BroadcastId) -> Option<u64> {
    let at = |state: &oncelog::broadcast::State| {
        state.task(id).and_then(|task| task.parked.as_ref().map(|(_, at_ms)| *at_ms))
    };
    desk.broadcaster.read(|state, _| at(state))
}

/// Every task of a type that the tool did not know was parked, durably, by the tool for one of them.
#[test]
fn whoever_opens_for_one_task_leaves_all_others_as_they_are() {
    ends(|| {
        let desk = Desk::open();
        let done = desk.submit("done", "p").unwrap();
        let [second, third] = ["second", "third"].map(|key| parked(&desk, key));
        desk.script.next_retries_for_ever();
        let before = desk.script.calls();
        let first = desk.accepted(&request("first", "p"));
        wait("a try", || desk.script.calls() > before);
        desk.broadcaster.close().unwrap();
        // One worker, which takes what is due in order: whatever it does with the task, it has done
        // with those before it.
        let options = Options::new().worker_count(1).only(third);
        let tool = Desk::on(desk.io.machine(), desk.hands, desk.script, options).unwrap();
        let before = parked_at(&tool, third);
        tool.hands.pass(1);
        tool.broadcaster.resume(third, "seen to").unwrap();
        // It is of an unknown type itself.
        assert_eq!(tool.submit("third", "p").unwrap_err().kind(), ErrorKind::Parked);
        assert!(parked_at(&tool, third) > before);
        assert_eq!((parked_at(&tool, first), tool.copies(first)), (None, 2));
        tool.broadcaster.skip(second, "given up").unwrap();
        tool.broadcaster.skip(third, "given up").unwrap();
        // It answers what it knows, waits for nothing that it does not do, and takes nothing new.
        assert_same(&done, &tool.submit("done", "p").unwrap());
        let late = tool.submit("first", "p").unwrap_err();
        assert_eq!((late.kind(), late.broadcast_id()), (ErrorKind::InFlight, Some(first)));
        let scope = Scope { message_type: "Noop".into(), ..scope("new") };
        for scope in [Some(scope), None] {
            let asked = Request::new("Noop", scope, vec!["a".into()], vec![]);
            let refused = tool.broadcaster.submit(&asked, None).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        }
        tool.broadcaster.close().unwrap();
        tool.script.forget();
        let options = Options::new().register(Arc::clone(&tool.script) as _);
        let desk = Desk::on(tool.io.machine(), tool.hands, tool.script, options).unwrap();
        let first = desk.submit("first", "p").unwrap();
        assert_eq!((first.duplicated, first.outcome), (true, Outcome::Done));
        for key in ["second", "third"] {
            assert!(matches!(desk.submit(key, "p").unwrap().outcome, Outcome::Failed { .. }));
        }
    });
}

#[test]
fn whoever_opens_for_one_task_drives_no_job_and_ends_none() {
    ends(|| {
        let desk = jobs::desk();
        let stuck = parked(&desk, "k");
        let (_, job) = jobs::start(&desk, "job");
        let options = desk.options.clone();
        let desk = desk.reopen_with(|options| options.only(stuck));
        let work = desk.broadcaster.jobs();
        let told = work.wait(job, None).unwrap_err();
        assert_eq!((told.kind(), told.broadcast_id()), (ErrorKind::InFlight, Some(job)));
        let refused = work.end(job, 1, jobs::COMMIT, vec![]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let refused = work.reattempt(job, Some(Duration::ZERO)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        desk.broadcaster.skip(stuck, "given up").unwrap();
        desk.broadcaster.close().unwrap();
        let desk = Desk::on(desk.io.machine(), desk.hands, desk.script, options).unwrap();
        assert!(desk.broadcaster.jobs().end(job, 1, jobs::COMMIT, vec![]).unwrap().mine);
    });
}
