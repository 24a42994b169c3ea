//! Schedules of a log: who appends, syncs, waits, reads, rolls and closes beside each other.
//!
//! loom plays each situation in all its schedules, up to a bound; shuttle plays long ones in drawn
//! schedules. What a log promised at a moment is compared with what a power loss at that moment
//! leaves for certain.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::options::Fill;
use super::{Batch, CreateMode, Log, LogView, Options, RecordKind};
use crate::error::{Error, ErrorKind};
use crate::io::fault::{CallKind, EIO, Fault, Which};
use crate::io::mem::{Machine, MemIo};
use crate::io::turns::Turns;
use crate::lsn::Lsn;
use crate::sync::{Condvar, Mutex, play_once, thread};

#[cfg(loom)]
mod ends;
#[cfg(loom)]
mod filling;
#[cfg(loom)]
mod queue;
#[cfg(loom)]
mod reading;
#[cfg(loom)]
mod reserve;
#[cfg(loom)]
mod tasks;
#[cfg(shuttle)]
mod whole;

const DIR: &str = "/log";

/// A log of one execution, and the machine below it.
#[derive(Clone, Debug)]
struct Play {
    io: Turns,
    log: Log,
}

impl Play {
    /// Opens the log on a machine. With `background` it has a thread of its own.
    fn on(machine: &Machine, background: bool) -> Self {
        Self::with(machine, |options| options.background(background).fill(Fill::None))
    }

    fn with(machine: &Machine, set: impl FnOnce(Options) -> Options) -> Self {
        let io = Turns::new(machine.clone());
        let options = Options::new().segment_bytes_max(65_536).create(CreateMode::IfMissing);
        let options = set(options.io(Arc::new(io.clone())));
        let (log, _) = Log::open(DIR, &options).unwrap();
        Self { io, log }
    }

    /// Has a thread use it.
    fn beside(&self, run: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let play = self.clone();
        thread::spawn(move || run(&play))
    }

    /// An append that must succeed, and is checked.
    fn append(&self, payload: &[u8]) {
        let lsn = self.log.append(payload).unwrap();
        self.check_durable(lsn);
    }

    /// Has the `nth` call of a kind fail from here on.
    fn fail(&self, kind: CallKind, nth: u64) {
        self.io.mem.arm(Which::Kind(kind), nth, 1, Fault::Error(EIO));
    }

    /// Fails unless a power loss now leaves every record up to this one.
    fn check_durable(&self, lsn: Lsn) {
        let view = LogView::open_unshared(DIR, Arc::new(MemIo::new(self.io.certain()))).unwrap();
        let mut reader = view.reader(None).unwrap();
        let mut next = view.oldest_lsn();
        while next <= lsn {
            let record = reader.next().unwrap();
            assert_eq!(record.map(|record| record.lsn), Some(next), "{lsn} was acknowledged");
            next = next.next();
        }
    }

    /// Closes it, which must leave everything durable.
    fn close(self) {
        self.log.clone().close().unwrap();
        if let Some(last) = Lsn::new(self.log.next_lsn().get() - 1) {
            self.check_durable(last);
        }
    }
}

/// What a first process leaves behind, closed.
fn made(fill: impl Fn(&Play) + Send + Sync + 'static) -> Machine {
    let left = Arc::new(std::sync::Mutex::new(Machine::new()));
    let made = Arc::clone(&left);
    play_once(move || {
        let play = Play::on(&Machine::new(), false);
        fill(&play);
        let io = play.io.clone();
        play.close();
        *made.lock().unwrap() = io.certain();
    });
    left.lock().unwrap().clone()
}

/// An append under a failure: acknowledged and durable, or told of the failure.
#[cfg(loom)]
fn check_outcome(play: &Play, outcome: crate::error::Result<Lsn>) {
    match outcome {
        Ok(lsn) => play.check_durable(lsn),
        Err(e) => assert!(is_failure(&e), "{e}"),
    }
}

fn is_failure(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::OutcomeUnknown | ErrorKind::Poisoned)
}

/// Wakes the thread that waits for a task.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<bool>,
    turned: Condvar,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap() = true;
        self.turned.notify_one();
    }
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.turned.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Runs a task on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => bell.wait(),
        }
    }
}

fn batch<'a>(records: &'a [&'a [u8]]) -> Batch<'a> {
    Batch { kind: RecordKind::RECORD, records }
}
