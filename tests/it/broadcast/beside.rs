//! Two broadcasters in one process: what belongs to one is not taken for the other's.

use std::sync::Arc;
use std::sync::mpsc::channel;

use oncelog::ErrorKind;
use oncelog::broadcast::{BroadcastId, Broadcaster, MessageType, Options, Request, Task, Verdict};

use super::desk::{Desk, LONG, ends, request, wait};
use super::resource;

fn holding(key: &str, object: &str) -> Request {
    request(key, "p").resources(vec![resource("thing", object, false)])
}

/// Both number their tasks from one: a callback was taken for that of the other store's task of its
/// number, and refused what that held, or any wait where that held anything.
#[test]
fn a_callback_of_one_store_waits_in_another_as_anybody_does() {
    let check = |asked: &'static str| {
        ends(move || {
            let (here, there) = (Desk::open(), Desk::open());
            let [x, y] = ["x", "y"].map(|object| {
                let held = there.script.next_waits();
                let broadcaster = there.broadcaster.clone();
                let ask = move || broadcaster.submit(&holding(object, object), None).unwrap().id;
                let caller = std::thread::spawn(ask);
                held.wait_met();
                (held, caller)
            });
            let (tell, told) = channel();
            let broadcaster = there.broadcaster.clone();
            here.script.then(move |task| {
                assert_eq!(task.id(), BroadcastId(1));
                tell.send(broadcaster.submit(&holding("asked", asked), Some(LONG))).unwrap();
                Verdict::Done
            });
            let broadcaster = here.broadcaster.clone();
            let asker = std::thread::spawn(move || {
                broadcaster.submit(&holding("outer", "own"), None).unwrap()
            });
            wait("the callback to wait", || {
                there.broadcaster.stats().locks.waiting == 1 || asker.is_finished()
            });
            let ids = [x, y].map(|(held, caller)| {
                held.go(Verdict::Done);
                caller.join().unwrap()
            });
            assert_eq!(ids, [BroadcastId(1), BroadcastId(2)]);
            assert!(!told.recv_timeout(LONG).unwrap().unwrap().duplicated);
            drop(asker.join().unwrap());
        });
    };
    check("x");
    check("y");
}

/// What a callback may not do in its own store is refused as before.
#[test]
fn a_callback_is_refused_what_its_own_task_holds() {
    ends(|| {
        let desk = Desk::open();
        let broadcaster = desk.broadcaster.clone();
        let (tell, told) = channel();
        desk.script.then(move |_| {
            tell.send(broadcaster.submit(&holding("inner", "x"), Some(LONG)).unwrap_err()).unwrap();
            Verdict::Done
        });
        drop(desk.broadcaster.submit(&holding("outer", "x"), None).unwrap());
        assert_eq!(told.recv_timeout(LONG).unwrap().kind(), ErrorKind::InvalidInput);
    });
}

/// A type of one store that closes another when it is told to close.
#[derive(Debug)]
struct Closes(Broadcaster);

impl MessageType for Closes {
    fn name(&self) -> &str {
        "Closes"
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }

    fn close(&self) {
        self.0.close().unwrap();
    }
}

/// The callback's store was forgotten within the other one's close: it waited for whoever closed it,
/// who waits for the callback.
#[test]
fn a_callback_may_close_a_store_whose_type_closes_the_callbacks_own() {
    ends(|| {
        let here = Desk::open();
        let kind: Arc<dyn MessageType> = Arc::new(Closes(here.broadcaster.clone()));
        let there = Desk::with(Arc::default(), |options: Options| options.register(kind));
        let (own, other) = (here.broadcaster.clone(), there.broadcaster.clone());
        let (met, wait_met) = channel();
        here.script.then(move |_| {
            met.send(()).unwrap();
            wait("a close", || {
                own.resume(BroadcastId(u64::MAX), "").unwrap_err().kind() == ErrorKind::Closed
            });
            other.close().unwrap();
            Verdict::Done
        });
        let broadcaster = here.broadcaster.clone();
        let asker = std::thread::spawn(move || drop(broadcaster.submit(&request("k", "p"), None)));
        wait_met.recv_timeout(LONG).unwrap();
        here.broadcaster.close().unwrap();
        asker.join().unwrap();
        assert_eq!(there.submit("k", "p").unwrap_err().kind(), ErrorKind::Closed);
    });
}
