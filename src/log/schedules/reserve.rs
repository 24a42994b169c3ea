//! A reserve that is made beside a change of another name, under a sync of the directory that
//! fails.

use std::path::Path;

use super::*;
use crate::error::Result;
use crate::log::reserve::{RESERVE_NAME, Use};
use crate::sync::explored;

/// A log that keeps a reserve, of which none was made yet.
fn keeping(machine: &Machine) -> Play {
    let play =
        Play::with(machine, |options| options.background(false).fill(Fill::None).keep_reserve());
    play.fail(CallKind::SyncDir, 1);
    play
}

/// Whatever was told of the reserve is so.
fn check_reserve(play: &Play, promised: &Result<()>) {
    match promised {
        Ok(()) => {
            let named = Path::new(DIR).join(RESERVE_NAME);
            assert!(play.io.certain().bytes(named).unwrap().len() >= 65_536, "it is promised");
        }
        Err(e) => assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}"),
    }
}

/// A failed sync is told once: were it told to who makes the reserve, the cursor's name would be
/// taken for durable, or the other way round.
#[test]
fn a_sync_of_the_directory_that_fails_is_told_to_all_who_changed_a_name() {
    let empty = made(|_| {});
    explored("a reserve beside a cursor", move || {
        let play = keeping(&empty);
        let held = Arc::new(std::sync::Mutex::new(false));
        let told = Arc::clone(&held);
        let other = play.beside(move |play| {
            let cursor = play.log.cursor("c").map(drop);
            match &cursor {
                Ok(()) => {
                    let machine = Arc::new(MemIo::new(play.io.certain()));
                    let view = LogView::open_unshared(DIR, machine).unwrap();
                    assert!(view.why_not_trimmed().iter().any(|held| held.name == "c"));
                }
                Err(e) => assert!(is_failure(e), "{e}"),
            }
            *told.lock().unwrap() = cursor.is_ok();
        });
        let promised = play.log.promise(1);
        check_reserve(&play, &promised);
        other.join().unwrap();
        assert!(!(*held.lock().unwrap() && promised.is_ok()), "one of the two syncs has failed");
        assert!(is_failure(&play.log.append(b"a").unwrap_err()), "it is final");
    });
}

/// What ends work waits for a reserve that is being made, and is told when that fails.
#[test]
fn an_append_beside_a_reserve_whose_sync_fails_is_durable_or_told() {
    let empty = made(|_| {});
    explored("a reserve beside an append", move || {
        let play = keeping(&empty);
        let other = play.beside(|play| {
            let ending = play.log.enqueue_as(batch(&[b"a"]), Use::Ending(0));
            let lsns = ending.and_then(super::super::Pending::wait);
            check_outcome(play, lsns.map(|lsns| lsns.last));
        });
        let promised = play.log.promise(1);
        assert!(promised.is_err(), "its sync was the first");
        check_reserve(&play, &promised);
        other.join().unwrap();
        assert_eq!(play.log.close().unwrap_err().kind(), ErrorKind::Poisoned);
    });
}
