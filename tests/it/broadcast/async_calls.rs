//! The async front of the broadcaster on a runtime of one thread.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use oncelog::ErrorKind;
use tokio::runtime::Builder;

use super::SOON;
use super::desk::{self, Desk, request};

#[test]
fn a_task_that_submits_lets_others_run() {
    let desk = Desk::open();
    let runtime = Builder::new_current_thread().build().unwrap();
    desk.script.hold();
    let answers = runtime.block_on(async {
        let tasks = ["k", "k", "other"].map(|key| {
            let broadcaster = desk.broadcaster.clone();
            tokio::spawn(async move { broadcaster.submit_async(request(key, "p"), None).await })
        });
        // Reached while all of them wait: nobody has taken this thread.
        tokio::task::yield_now().await;
        desk.script.wait_called();
        desk.script.let_go();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap().unwrap());
        }
        answers
    });
    desk::assert_same(&answers[0], &answers[1]);
    assert_ne!(answers[0].id, answers[2].id);
    assert_eq!(desk.script.effects().len(), 2);
    runtime.block_on(desk.broadcaster.close_async()).unwrap();
    let late = runtime.block_on(desk.broadcaster.submit_async(request("late", "p"), SOON));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_dropped_submit_goes_its_way_and_a_retry_gets_its_answer() {
    let desk = Desk::open();
    let runtime = Builder::new_current_thread().build().unwrap();
    desk.script.hold();
    // Not polled: the key is not consumed, another payload may take it.
    drop(desk.broadcaster.submit_async(request("k", "never"), None));
    {
        let _inside = runtime.enter();
        let submit = pin!(desk.broadcaster.submit_async(request("k", "p"), None));
        let polled = submit.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending));
    }
    desk.script.wait_called();
    desk.script.let_go();
    let answer = runtime.block_on(desk.broadcaster.submit_async(request("k", "p"), None)).unwrap();
    assert!(answer.duplicated, "the dropped one was accepted");
    assert_eq!(desk.copies(answer.id), 2);
    assert_eq!(desk.script.effects(), [answer.id]);
}

#[test]
fn a_submit_outside_of_a_runtime_is_refused_and_consumes_nothing() {
    let desk = Desk::open();
    let mut submit = pin!(desk.broadcaster.submit_async(request("k", "p"), None));
    match submit.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(refused) => assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput),
        Poll::Pending => panic!("it waits for nothing"),
    }
    assert!(!desk.submit("k", "other").unwrap().duplicated);
}
