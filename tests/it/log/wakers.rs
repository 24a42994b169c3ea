//! Wakers that close the log, on whatever thread of it wakes them.

use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use oncelog::testing::{CallKind, EIO, Fault, Machine, MemIo, Which};
use oncelog::{Durability, Durable, ErrorKind, Fill, Log, Options, Result, Retention};

use super::{batch, lsn, options, read};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Closes its log as it is woken, and says how that went.
struct Closing(Mutex<Option<(Log, Sender<Result<()>>)>>);

impl Wake for Closing {
    fn wake(self: Arc<Self>) {
        let taken = self.0.lock().unwrap().take();
        if let Some((log, told)) = taken {
            told.send(log.close()).unwrap();
        }
    }
}

/// Has a log closed by the waker of a task that waits for an LSN.
fn close_at(log: Log, at: u64) -> (Durable, Receiver<Result<()>>) {
    let (told, closed) = mpsc::channel();
    let mut durable = log.durable(lsn(at));
    let waker = Waker::from(Arc::new(Closing(Mutex::new(Some((log, told))))));
    let polled = Future::poll(Pin::new(&mut durable), &mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    (durable, closed)
}

fn memory() -> Options {
    options().io(Arc::new(MemIo::new(Machine::new())))
}

#[test]
fn a_waker_that_what_a_roll_seals_wakes_may_close_the_log() {
    let options = memory().background(false);
    let (log, _) = Log::open("/log", &options).unwrap();
    for _ in 0..2 {
        log.append_batch(batch(&[&[1; 20_000]]), Durability::Buffered).unwrap();
    }
    let (_durable, closed) = close_at(log.clone(), 2);
    let rolling = thread::spawn(move || log.append(&[1; 20_000]).map_err(|e| e.kind()));
    closed.recv_timeout(PATIENCE).expect("the close returns").unwrap();
    assert_eq!(rolling.join().unwrap(), Err(ErrorKind::Closed), "it came behind the close");
    let (log, _) = Log::open("/log", &options).unwrap();
    assert_eq!(read(&log, 1).len(), 2);
}

#[test]
fn a_waker_that_the_trimming_thread_wakes_may_close_the_log() {
    let io = MemIo::new(Machine::new());
    let options = memory().io(Arc::new(io.clone())).fill(Fill::None);
    let retention = Retention::new().segment_count_max(1);
    let (log, _) = Log::open("/log", &options.clone().retention(retention)).unwrap();
    let pin = log.pin("until all is in place", lsn(1)).unwrap();
    for _ in 0..20 {
        log.append(&[1; 9000]).unwrap();
    }
    assert!(log.trim_by_retention().unwrap().held_by.is_some());
    let (_durable, closed) = close_at(log, 1000);
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    drop(pin);
    let closed = closed.recv_timeout(PATIENCE).expect("the close returns");
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(io.struck(), 1);
    // Not `Busy`.
    let (log, _) = Log::open("/log", &options).unwrap();
    assert_eq!(log.next_lsn(), lsn(21));
}
