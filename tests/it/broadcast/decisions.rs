//! Decisions that are easily made on less than what is known: without looking for a copy, beside a
//! batch in flight, from a checkpoint that was overtaken.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{CollectionSpec, Verdict};
use oncelog::testing::CallKind;
use oncelog_format::control::{Body, Park};

use super::checkpoint::forge;
use super::desk::{Desk, assert_same};

#[test]
pub(crate) fn a_skip_is_refused_while_a_copy_is_missing() {
    let desk = Desk::open();
    desk.script.next(Verdict::Park("stuck".into()));
    desk.submit("k", "p").unwrap_err();
    let accepted = desk.broadcaster.read(|state, _| {
        let (_, task) = state.tasks().next().unwrap();
        Arc::clone(&task.accepted)
    });
    desk.broadcaster.close().unwrap();
    // The records of the same task in a store to which no copy came.
    let desk = Desk::open();
    desk.broadcaster.close().unwrap();
    let id = accepted.header.id;
    let machine = forge(&desk.io.machine(), &desk.hands, |_| {
        let park = Park { id, reason: "no space for its copies".into() };
        vec![Body::Accepted(Arc::clone(&accepted)), Body::Park(park)]
    });
    let desk = Desk::on(machine, desk.hands, desk.script, desk.options).unwrap();
    assert_eq!(desk.submit("k", "p").unwrap_err().kind(), ErrorKind::Parked);
    let refused = desk.broadcaster.skip(id, "given up").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert_eq!((desk.copies(id), desk.script.effects().len()), (0, 0));
    desk.broadcaster.resume(id, "there is space").unwrap();
    assert_eq!(desk.submit("k", "p").unwrap().id, id);
    assert_eq!(desk.copies(id), 2);
}

#[test]
pub(crate) fn callers_who_make_a_collection_at_once_make_one() {
    let desk = Desk::open();
    let vchannels = vec!["a".into()];
    let spec = CollectionSpec { name: "c".into(), schema: vec![], primary_key: None, vchannels };
    let make = || desk.broadcaster.ensure_collection(&spec).unwrap().id;
    let ids: Vec<u64> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_eq!(ids, [ids[0]; 4]);
    let desk = desk.reopen();
    assert_eq!(desk.broadcaster.read(|state, _| state.collections().count()), 1);
}

#[test]
pub(crate) fn what_overtakes_a_checkpoint_is_replayed_behind_it() {
    let mut desk = Desk::open();
    // A sync of its own, of the log's background, may be the one that waits: not every time.
    for round in 0..3 {
        desk = overtake(desk, &format!("overtaking {round}"));
    }
}

/// Has a vchannel made while a checkpoint is written, and restarts.
fn overtake(desk: Desk, vchannel: &str) -> Desk {
    let key = desk.submit(vchannel, "p").unwrap();
    let (reached, is_reached) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let may_go = Mutex::new(may_go);
    // The sync of its first part waits until another record stands behind that part.
    desk.io.observe(move |_, kind| {
        if kind == CallKind::Sync && reached.send(()).is_ok() {
            let waited = may_go.lock().unwrap().recv_timeout(Duration::from_secs(10));
            assert_ne!(waited, Err(RecvTimeoutError::Timeout), "nothing overtakes it");
        }
    });
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| desk.broadcaster.checkpoint());
        is_reached.recv().unwrap();
        let overtaking = scope.spawn(|| desk.broadcaster.ensure_vchannels(&[vchannel.into()]));
        while desk.broadcaster.read(|state, _| state.pchannel_of(vchannel).is_none()) {
            std::thread::yield_now();
        }
        drop((is_reached, go));
        assert!(checkpoint.join().unwrap().unwrap());
        overtaking.join().unwrap().unwrap();
    });
    desk.io.unobserve();
    let desk = desk.reopen();
    assert!(desk.broadcaster.read(|state, _| state.pchannel_of(vchannel).is_some()));
    assert_same(&key, &desk.submit(vchannel, "p").unwrap());
    desk
}
