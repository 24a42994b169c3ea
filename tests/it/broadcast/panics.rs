//! Code of the embedder that panics outside a callback, in a thread of the broadcaster: nobody waits
//! for ever.

use std::error::Error as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncelog::broadcast::{Broadcaster, Options};
use oncelog::testing::{Machine, MemIo};
use oncelog::{Clock, CreateMode, ErrorKind, Store, StoreOptions};

use super::desk::{DIR, Hands, LONG, Script, copies, ends, request, wait};

/// A clock that panics at a call of a thread with this name, and says whether it has.
#[derive(Debug, Default)]
struct Panics {
    hands: Hands,
    at: Mutex<Option<(&'static str, u32)>>,
}

impl Panics {
    fn arm(&self, thread: &'static str, nth: u32) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some((thread, nth));
    }

    fn is_armed(&self) -> bool {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn count(&self) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((thread, left)) = at.as_mut()
            && std::thread::current().name() == Some(thread)
        {
            *left -= 1;
            if *left == 0 {
                *at = None;
                drop(at);
                std::panic::panic_any("a clock panics");
            }
        }
    }
}

impl Clock for Panics {
    fn wall_ms(&self) -> u64 {
        self.count();
        self.hands.wall_ms()
    }

    fn monotonic(&self) -> Duration {
        self.count();
        self.hands.monotonic()
    }
}

fn open(io: &MemIo, clock: &Arc<Panics>, options: Options) -> Broadcaster {
    let clock: Arc<dyn Clock> = Arc::<Panics>::clone(clock);
    let store = StoreOptions::new().create(CreateMode::IfMissing).io(Arc::new(io.clone()));
    let store = store.pchannels(vec!["p0".into(), "p1".into()]);
    let options = options.register(Arc::new(Script::default()));
    Broadcaster::open(Store::open(Path::new(DIR), &store.clock(clock)).unwrap(), options).unwrap()
}

fn made(options: Options) -> (MemIo, Arc<Panics>, Broadcaster) {
    let (io, clock) = (MemIo::new(Machine::new()), Arc::<Panics>::default());
    let broadcaster = open(&io, &clock, options);
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    (io, clock, broadcaster)
}

/// The task was never taken again, and its locks were held for good; a few such panics ended all
/// work. One between two pchannels had what was handed over to the first of them handed over again.
#[test]
fn a_task_is_tried_again_whose_worker_panicked_wherever_it_did() {
    ends(|| {
        let (_, clock, broadcaster) = made(Options::new().worker_count(1));
        let mut panics = 0;
        for nth in 1.. {
            clock.arm("oncelog-work", nth);
            let key = format!("key {nth}");
            // One that is given back waits as long as any that is tried again.
            loop {
                match broadcaster.submit(&request(&key, "p"), Some(Duration::from_millis(1))) {
                    Ok(_) => break,
                    Err(e) => assert!(e.is_retryable(), "{key}: {e}"),
                }
                clock.hands.pass(20);
            }
            if clock.is_armed() {
                break;
            }
            panics += 1;
        }
        assert!(panics >= 4, "{panics} panics");
        drop(broadcaster.submit(&request("last", "p"), Some(LONG)).unwrap());
        let copies = copies(&broadcaster);
        assert!(copies.values().all(|count| *count == 1), "a copy stands twice: {copies:?}");
        broadcaster.close().unwrap();
    });
}

/// No answer came any more, and no error.
#[test]
fn a_broadcaster_stops_whose_settling_sweeping_or_checkpointing_thread_panicked() {
    for thread in ["oncelog-settle", "oncelog-sweep", "oncelog-checkpoint"] {
        ends(move || {
            let (io, clock, broadcaster) = made(Options::new().checkpoint_bytes(1));
            drop(broadcaster.submit(&request("before", "p"), None).unwrap());
            clock.arm(thread, 1);
            // Whoever waits without a deadline is told, too.
            let waits = broadcaster.clone();
            let waiter = std::thread::spawn(move || waits.submit(&request("k", "p"), None));
            wait(thread, || {
                drop(broadcaster.refresh(broadcaster.policy()));
                !clock.is_armed()
            });
            drop(waiter.join().unwrap());
            let mut told = None;
            wait(thread, || {
                told = broadcaster.refresh(broadcaster.policy()).err();
                told.is_some()
            });
            let told = told.unwrap();
            assert_eq!(told.kind(), ErrorKind::Poisoned, "{told}");
            let cause = told.source().unwrap().to_string();
            assert!(cause.contains(thread) && cause.contains("panicked"), "{cause}");
            assert!(broadcaster.submit(&request("later", "p"), None).is_err());
            broadcaster.close().unwrap();
            let again = open(&MemIo::new(io.machine()), &clock, Options::new());
            assert!(again.submit(&request("before", "p"), None).unwrap().duplicated);
            drop(again.submit(&request("k", "p"), None).unwrap());
            again.close().unwrap();
        });
    }
}
