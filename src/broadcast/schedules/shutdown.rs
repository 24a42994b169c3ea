//! A close beside a worker in a callback, with the loop of the worker, and one that waits for the
//! disk as that of a broadcaster does, but for what it does again and again: a checker would follow
//! that without an end.

use std::sync::atomic::Ordering;

use super::super::scheduled::{Fussy, open_with, store};
use super::*;

/// Waits for the disk until the broadcaster stops.
fn settle(inner: &Arc<Inner>) {
    let mut core = inner.lock();
    loop {
        if let Some((pending, settled)) = core.settling.pop_front() {
            drop(core);
            pending.wait().unwrap();
            core = inner.lock();
            inner.settled(&mut core, settled);
        } else if core.closing {
            return;
        } else {
            core = inner.handed.wait(core).unwrap();
        }
    }
}

/// Starts a worker, and a thread that waits for the disk.
fn start(broadcaster: &Broadcaster) {
    let mut threads = broadcaster.handle.threads.lock().unwrap();
    for body in [settle, Inner::work as fn(&Arc<Inner>)] {
        let inner = Arc::clone(broadcaster.inner());
        threads.push(thread::spawn(move || body(&inner)));
    }
}

/// A store in which a key was accepted, and no more.
fn accepted() -> Machine {
    made_with(|broadcaster| {
        accept(broadcaster, &request(Some("k"), "p"));
        let mut core = broadcaster.inner().lock();
        while let Some((pending, _)) = core.settling.pop_front() {
            pending.wait().unwrap();
        }
    })
}

#[test]
fn a_close_waits_for_the_callback_that_runs_and_loses_no_end() {
    let accepted = accepted();
    explored("close and callback", move || {
        let (io, kind) = (MemIo::new(accepted.clone()), Fussy::slow(true));
        let broadcaster = open_with(store(Arc::new(io.clone()), 0), Arc::clone(&kind));
        start(&broadcaster);
        broadcaster.close().unwrap();
        assert!(!*kind.inside.lock().unwrap(), "a callback outlives the close");
        let next = open(&MemIo::new(io.machine()));
        let (done, open) = next.read(|state, _| {
            let done = state.tasks().filter(|(_, task)| task.done.is_some()).count();
            (done, state.open_tasks().count())
        });
        // Its end is there, or is left to the next process.
        assert_eq!(done + open, 1);
        assert!(done == 0 || kind.over.load(Ordering::SeqCst), "done without its callback");
        next.close().unwrap();
    });
}

#[test]
fn who_waits_for_an_effect_is_woken_by_the_threads_that_bring_it_about() {
    let accepted = accepted();
    explored("effect", move || {
        let broadcaster = open(&MemIo::new(accepted.clone()));
        start(&broadcaster);
        let answer = broadcaster.submit(&request(Some("k"), "p"), None).unwrap();
        assert!(answer.duplicated && answer.channels.len() == 1);
        broadcaster.close().unwrap();
    });
}
