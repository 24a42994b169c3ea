//! The removal of a key whose window is over, beside a retry of it.

use super::super::scheduled::{Fussy, open_with, store};
use super::*;

/// Longer than a key is kept.
const LATER_MS: u64 = 25 * 60 * 60 * 1000;

#[test]
fn a_retry_beside_the_sweep_of_its_key_is_new_work_once_and_stays_known() {
    let old = made_with(|broadcaster| {
        accept(broadcaster, &request(Some("k"), "p"));
        serve(broadcaster, 1);
    });
    explored("sweep and retry", move || {
        let io = Arc::new(MemIo::new(old.clone()));
        let broadcaster = open_with(store(io, LATER_MS), Fussy::slow(false));
        let first = broadcaster.read(|state, _| state.tasks().next().map(|(id, _)| id)).unwrap();
        let asks = broadcaster.clone();
        let caller = thread::spawn(move || asks.submit(&request(Some("k"), "q"), None).unwrap());
        broadcaster.inner().sweep().unwrap();
        serve(&broadcaster, 1);
        let answer = caller.join().unwrap();
        assert!(!answer.duplicated && answer.id != first, "the window was over");
        // It is dropped once, by whoever came first, and the newer one is there to stay.
        let again = broadcaster.submit(&request(Some("k"), "q"), None).unwrap();
        assert_eq!((again.id, again.duplicated), (answer.id, true));
        let (left, expired) =
            broadcaster.read(|state, _| (state.tasks().count(), state.window().expired_count()));
        assert_eq!((left, expired), (1, 1));
        broadcaster.close().unwrap();
    });
}
