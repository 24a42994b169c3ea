//! A sweep that waits for the disk: nobody waits for it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use oncelog::broadcast::{Broadcaster, Options};
use oncelog::io::{Io, IoFile, OpenHow};
use oncelog::testing::{Machine, MemIo, tell_waits};
use oncelog::{Clock, CreateMode, Store, StoreOptions};

use super::desk::{DIR, Hands, LONG, Script, assert_same, request, wait};
use crate::pass_on::pass_on;

/// Most keys that a sweep drops in one batch.
const BATCH_COUNT: u64 = 128;

/// Syncs of control wait while it is shut.
#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    turned: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap() = is_shut;
        self.turned.notify_all();
    }

    fn pass(&self) {
        let is_shut = self.is_shut.lock().unwrap();
        // A test that fails opens nothing.
        drop(self.turned.wait_timeout_while(is_shut, LONG, |is_shut| *is_shut).unwrap());
    }
}

/// A machine whose syncs of control can be held, and nothing else.
#[derive(Debug)]
struct Gated {
    io: MemIo,
    gate: Arc<Gate>,
}

impl Io for Gated {
    pass_on!(io: open_dir list kind rename remove create_dir sync_dir blocks random);

    fn open(&self, path: &Path, how: OpenHow) -> std::io::Result<Arc<dyn IoFile>> {
        let file = self.io.open(path, how)?;
        let is_control = path.parent().is_some_and(|dir| dir.ends_with("control"));
        if !is_control {
            return Ok(file);
        }
        Ok(Arc::new(GatedFile { file, gate: Arc::clone(&self.gate) }))
    }
}

#[derive(Debug)]
struct GatedFile {
    file: Arc<dyn IoFile>,
    gate: Arc<Gate>,
}

impl IoFile for GatedFile {
    pass_on!(file: len read_at write_at set_len allocate try_lock id map evict);

    fn sync(&self) -> std::io::Result<()> {
        self.gate.pass();
        self.file.sync()
    }
}

#[test]
fn a_request_is_taken_in_and_a_known_key_answered_while_a_sweep_waits_for_the_disk() {
    const COUNT: u64 = 300;
    let (gate, hands) = (Arc::<Gate>::default(), Arc::<Hands>::default());
    let io = Arc::new(Gated { io: MemIo::new(Machine::new()), gate: Arc::clone(&gate) });
    let clock: Arc<dyn Clock> = Arc::<Hands>::clone(&hands);
    let store = StoreOptions::new().create(CreateMode::IfMissing).io(io).clock(clock);
    let options = Options::new().register(Arc::<Script>::default());
    let broadcaster = Broadcaster::open(Store::open(Path::new(DIR), &store).unwrap(), options);
    let broadcaster = broadcaster.unwrap();
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let known = broadcaster.submit(&request("known", "p"), None).unwrap();
    let mut policy = broadcaster.policy();
    policy.window_lifetime = Duration::from_secs(60);
    broadcaster.refresh(policy.clone()).unwrap();
    for key in 0..COUNT {
        drop(broadcaster.submit(&request(&key.to_string(), "p"), None).unwrap());
    }
    hands.pass(3_600_000);
    gate.set(true);
    let is_taken_in = Arc::new(AtomicBool::new(false));
    let expired = || broadcaster.read(|state, _| state.window().expired_count());
    std::thread::scope(|threads| {
        // It wakes the sweeper, and waits for the disk itself.
        let refresh = threads.spawn(|| broadcaster.refresh(policy.clone()));
        wait("a sweep", || expired() > 0);
        assert_same(&known, &broadcaster.submit(&request("known", "p"), None).unwrap());
        let taken_in = Arc::clone(&is_taken_in);
        let caller = threads.spawn(|| {
            let tell = move || taken_in.store(true, Ordering::SeqCst);
            tell_waits(tell, || broadcaster.submit(&request("new", "p"), None))
        });
        wait("a new request", || is_taken_in.load(Ordering::SeqCst));
        let held = broadcaster.read(|state, _| state.open_tasks().count());
        assert_eq!(held, 1, "it is decided, and waits for nothing but its own sync");
        // The sweeper goes on when its batch is durable, and others go between two.
        assert_eq!(expired(), BATCH_COUNT);
        gate.set(false);
        assert!(!caller.join().unwrap().unwrap().duplicated);
        refresh.join().unwrap().unwrap();
    });
    wait("the sweep", || expired() == COUNT);
    broadcaster.close().unwrap();
}
