//! Cursors that several use at once, and callers that are woken in the midst of it.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use oncelog::testing::{CallKind, EIO, Fault, MemIo, Which};
use oncelog::{Batch, Durability, ErrorKind, Log, RecordKind};

use super::cursors::filled;
use crate::log::lsn;

/// A waker that does something, once.
struct Woken(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let work = self.0.lock().unwrap().take();
        if let Some(work) = work {
            work();
        }
    }
}

/// Has `work` done by whoever makes an LSN durable, or poisons the log.
fn when_durable(log: &Log, at: u64, work: impl FnOnce() + Send + 'static) {
    let mut durable = log.durable(lsn(at));
    let waker = Waker::from(Arc::new(Woken(Mutex::new(Some(Box::new(work))))));
    assert!(Pin::new(&mut durable).poll(&mut Context::from_waker(&waker)).is_pending());
    // Dropping it would take the waker back.
    std::mem::forget(durable);
}

/// Fails where the work does not end.
fn ends(what: &str, work: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        tell.send(())
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(100)), Ok(()), "{what} hangs");
}

#[test]
fn a_move_that_meets_a_removal_in_its_sync_moves_no_later_cursor() {
    let (_io, _options, log) = filled();
    let (a, b) = (log.cursor("a").unwrap(), log.cursor("b").unwrap());
    let removed = a.clone();
    when_durable(&log, 13, move || removed.remove().unwrap());
    let batch = Batch { kind: RecordKind::RECORD, records: &[b"x"] };
    log.append_batch(batch, Durability::Buffered).unwrap();
    // Its LSN is not durable: it syncs the log first, and the waker removes the cursor.
    assert_eq!(a.advance(lsn(14)).unwrap_err().kind(), ErrorKind::InvalidInput);
    let a = log.cursor("a").unwrap();
    b.advance(lsn(3)).unwrap();
    assert_eq!(a.lsn().unwrap(), lsn(1), "it holds what it held");
}

#[test]
fn a_move_that_meets_a_removal_moves_no_later_cursor() {
    let (_io, _options, log) = filled();
    for round in 0..2000 {
        let a = log.cursor("a").unwrap();
        let (moved, barrier) = (a.clone(), Barrier::new(2));
        let done = std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                barrier.wait();
                moved.advance(lsn(9)).map_err(|e| e.kind())
            });
            barrier.wait();
            a.remove().unwrap();
            mover.join().unwrap()
        });
        assert!([Ok(()), Err(ErrorKind::InvalidInput)].contains(&done), "{done:?}");
        let a = log.cursor("a").unwrap();
        let b = log.cursor("b").unwrap();
        b.advance(lsn(3)).unwrap();
        b.remove().unwrap();
        assert_eq!(a.lsn().unwrap(), lsn(1), "round {round}, the move was {done:?}");
        a.remove().unwrap();
    }
}

fn fail(io: &MemIo, kind: CallKind, nth: u64) {
    io.arm(Which::Kind(kind), nth, 1, Fault::Error(EIO));
}

#[test]
fn a_waker_may_close_the_log_where_a_cursor_poisons_it() {
    for removes in [false, true] {
        ends("a cursor", move || {
            let (io, options, log) = filled();
            let cursor = log.cursor("a").unwrap();
            let owner = log.clone();
            when_durable(&log, 1000, move || drop(owner));
            drop(log);
            fail(&io, CallKind::Sync, 1);
            let done = if removes { cursor.remove() } else { cursor.advance(lsn(2)) };
            assert_eq!(done.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
            // Its directory is free.
            Log::open("/log", &options).unwrap();
        });
    }
}

#[test]
fn a_waker_may_use_cursors_where_one_poisons_the_log() {
    let faults = [1, 2, 3].map(|nth| (CallKind::Sync, nth));
    for (kind, nth) in faults.into_iter().chain([(CallKind::SyncDir, 1)]) {
        ends("the first cursor", move || {
            let (io, _options, log) = filled();
            let inner = log.clone();
            when_durable(&log, 1000, move || assert!(inner.cursor("b").is_err()));
            fail(&io, kind, nth);
            let e = log.cursor("a").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{kind:?} {nth}");
        });
    }
    for trims in [false, true] {
        ends("the first use behind an open", move || {
            let (io, options, log) = filled();
            log.cursor("a").unwrap().advance(lsn(9)).unwrap();
            log.close().unwrap();
            let (log, _) = Log::open("/log", &options).unwrap();
            let inner = log.clone();
            when_durable(&log, 1000, move || assert!(inner.trim(lsn(9)).is_err()));
            fail(&io, CallKind::Sync, 1);
            let done = if trims { log.trim(lsn(9)) } else { log.cursor("a").map(drop) };
            assert_eq!(done.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        });
    }
}
