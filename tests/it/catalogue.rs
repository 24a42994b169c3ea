//! What a broadcaster calls made is durable, also where somebody else was making it.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use oncelog::broadcast::{Broadcaster, CollectionSpec, Options};
use oncelog::{CreateMode, Result, Store, StoreOptions};

use crate::log::watch::Watch;

/// Two callers ask for the same thing while control's syncs are held, and then fail.
fn check(ensure: fn(&Broadcaster) -> Result<()>) {
    let dir = tempfile::tempdir().unwrap();
    let watch = Watch::default();
    let options = StoreOptions::new().create(CreateMode::IfMissing).io(Arc::new(watch.clone()));
    let store = Store::open(dir.path().join("store"), &options).unwrap();
    let broadcaster = Broadcaster::open(store, Options::new()).unwrap();
    watch.hold();
    let (tell, told) = mpsc::channel();
    let ask = |name: &'static str| {
        let (broadcaster, tell) = (broadcaster.clone(), tell.clone());
        thread::spawn(move || tell.send((name, ensure(&broadcaster))).unwrap())
    };
    let maker = ask("maker");
    watch.wait_held();
    // From here on the state shows what the maker handed over, and no sync has covered it.
    let finder = ask("finder");
    let early = told.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "answered before a sync: {early:?}");
    watch.fail();
    watch.release();
    for _ in 0..2 {
        let (name, answer) = told.recv().unwrap();
        assert!(answer.is_err(), "{name} was told of a durable record that no sync covered");
    }
    maker.join().unwrap();
    finder.join().unwrap();
    assert!(broadcaster.close().is_err());
}

#[test]
fn a_vchannel_that_is_being_made_is_not_called_made() {
    check(|broadcaster| broadcaster.ensure_vchannels(&["v".to_owned()]));
}

#[test]
fn a_collection_that_is_being_made_is_not_called_made() {
    check(|broadcaster| {
        let spec = CollectionSpec {
            name: "c".to_owned(),
            schema: Vec::new(),
            primary_key: None,
            vchannels: vec!["v".to_owned()],
        };
        broadcaster.ensure_collection(&spec).map(drop)
    });
}
