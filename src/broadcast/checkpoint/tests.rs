//! When a checkpoint is due.

use std::path::Path;
use std::sync::Arc;

use crate::broadcast::{Options, replayed};
use crate::io::mem::{Machine, MemIo};
use crate::log::CreateMode;
use crate::store::{Store, StoreOptions};

/// The thread that writes checkpoints took the lock again and again, for as long as nothing came
/// behind the last one: what was counted beside that one was more than the next is due behind.
#[test]
fn no_checkpoint_is_due_where_nothing_stands_behind_the_last_one() {
    let options = StoreOptions::new().create(CreateMode::IfMissing);
    let options = options.io(Arc::new(MemIo::new(Machine::new())));
    let store = Store::open(Path::new("/s"), &options).unwrap();
    // No thread runs.
    let inner = replayed(store, Options::new().checkpoint_bytes(1)).unwrap();
    assert!(inner.checkpoint().unwrap().is_some());
    let is_due = || {
        let core = inner.lock();
        core.unchecked_bytes >= core.checkpoint_due_bytes
    };
    assert!(!is_due());
    {
        // As records do that come between its Begin and its End.
        let mut core = inner.lock();
        core.unchecked_bytes = core.checkpoint_due_bytes;
    }
    assert!(is_due());
    assert!(inner.checkpoint().unwrap().is_none());
    assert!(!is_due());
    // The next record brings one.
    let spec = crate::broadcast::CollectionSpec {
        name: "c".into(),
        schema: vec![0; 4_096],
        primary_key: None,
        vchannels: vec!["a".into()],
    };
    inner.ensure_collection(&spec).unwrap();
    assert!(is_due());
    assert!(inner.checkpoint().unwrap().is_some());
}
