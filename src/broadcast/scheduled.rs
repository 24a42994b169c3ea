//! What schedules of a broadcaster are played with: a store in memory, time that the schedule alone
//! moves, and a type that refuses, or lets others go on within its callbacks.

#[cfg(shuttle)]
#[cfg(test)]
mod drawn_schedules;

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::clock::Clock;
use crate::io::Io;
use crate::io::mem::{Machine, MemIo};
use crate::log::{CreateMode, Fill, Options as LogOptions};
use crate::store::StoreOptions;
use crate::sync::{Mutex, now, play_once};

pub(super) const DIR: &str = "/store";

/// Time that the schedule alone moves, from this many milliseconds behind the first store on.
#[derive(Debug)]
struct Scheduled(u64);

impl Clock for Scheduled {
    fn wall_ms(&self) -> u64 {
        let passed = u64::try_from(now().as_millis()).unwrap_or(u64::MAX);
        1_700_000_000_000 + self.0 + passed
    }

    fn monotonic(&self) -> Duration {
        now()
    }
}

/// Refuses a payload that says so, before the locks or behind them; where it is slow, others go on
/// within its callbacks.
#[derive(Debug, Default)]
pub(super) struct Fussy {
    slow: bool,
    /// A callback runs. Whoever looks may come in between.
    pub(super) inside: Mutex<bool>,
    /// One has run.
    pub(super) over: AtomicBool,
}

impl Fussy {
    pub(super) fn slow(slow: bool) -> Arc<Self> {
        Arc::new(Self { slow, ..Self::default() })
    }
}

impl MessageType for Fussy {
    fn name(&self) -> &str {
        "Fussy"
    }

    fn validate(&self, request: &Request) -> Result<()> {
        if request.payload == b"bad" { Err(refusal::invalid("bad")) } else { Ok(()) }
    }

    fn recheck(&self, request: &Request, _state: &State) -> Result<()> {
        if request.payload == b"late" { Err(refusal::invalid("late")) } else { Ok(()) }
    }

    fn apply(&self, _task: &Task) -> Verdict {
        if self.slow {
            *self.inside.lock().unwrap() = true;
            *self.inside.lock().unwrap() = false;
        }
        self.over.store(true, Ordering::SeqCst);
        Verdict::Done
    }
}

/// A store that is opened so many milliseconds behind the first one.
pub(super) fn store(io: Arc<dyn Io>, later_ms: u64) -> Store {
    let log = LogOptions::new().io(io).clock(Arc::new(Scheduled(later_ms)));
    let log = log.segment_bytes_max(65_536).fill(Fill::None).background(false);
    Store::open(DIR, &StoreOptions::new().create(CreateMode::IfMissing).log(log)).unwrap()
}

/// A broadcaster whose threads do not run.
pub(super) fn open(io: &MemIo) -> Broadcaster {
    open_with(store(Arc::new(io.clone()), 0), Fussy::slow(false))
}

pub(super) fn open_with(store: Store, kind: Arc<Fussy>) -> Broadcaster {
    let inner = replayed(store, Options::new().register(kind)).unwrap();
    Broadcaster { handle: Arc::new(Handle::new(&inner)) }
}

/// A store with the vchannel `v`.
pub(super) fn made() -> Machine {
    made_with(|_| {})
}

/// The same, behind what `fill` does.
pub(super) fn made_with(fill: impl Fn(&Broadcaster) + Send + Sync + 'static) -> Machine {
    let left = Arc::new(std::sync::Mutex::new(Machine::new()));
    let made = Arc::clone(&left);
    play_once(move || {
        let io = MemIo::new(Machine::new());
        let broadcaster = open(&io);
        broadcaster.ensure_vchannels(&["v".to_owned()]).unwrap();
        fill(&broadcaster);
        broadcaster.close().unwrap();
        *made.lock().unwrap() = io.machine();
    });
    left.lock().unwrap().clone()
}

pub(super) fn request(key: Option<&str>, payload: &str) -> Request {
    let scope = key.map(|key| Scope {
        principal: "p".into(),
        message_type: "Fussy".into(),
        domain: "d".into(),
        identity: String::new(),
        generation: 0,
        client_key: key.into(),
    });
    Request::new("Fussy", scope, vec!["v".into()], payload.into())
}
