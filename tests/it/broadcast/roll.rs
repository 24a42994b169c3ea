//! A roll of control, which takes several syncs: those who only look wait for none of them.

use std::io;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use oncelog::broadcast::{Broadcaster, Collection, CollectionSpec, Options, Request};
use oncelog::io::{DirEntry, EntryKind, Io, IoFile, OpenHow};
use oncelog::testing::{Machine, MemIo};
use oncelog::{CreateMode, Options as LogOptions, Result, Store, StoreOptions};

use super::desk::{DIR, Script, request};

/// More calls than it takes to fill a segment with records of the least size.
const CALLS_MAX: usize = 10_000;

/// Longest that a lookup which waits for nothing may take.
const LOOK_MAX: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Door {
    is_shut: bool,
    /// A roll of control waits at it.
    is_waited_at: bool,
}

/// A machine on which a segment of control gets no name while a door is shut.
#[derive(Clone, Debug)]
struct Doored {
    io: MemIo,
    door: Arc<(Mutex<Door>, Condvar)>,
}

impl Doored {
    fn set(&self, is_shut: bool) {
        self.door.0.lock().unwrap().is_shut = is_shut;
        self.door.1.notify_all();
    }

    fn is_waited_at(&self) -> bool {
        self.door.0.lock().unwrap().is_waited_at
    }

    fn wait_for_roll(&self) {
        let door = self.door.0.lock().unwrap();
        let is_not = |door: &mut Door| !door.is_waited_at;
        let (_door, waited) = self.door.1.wait_timeout_while(door, LOOK_MAX, is_not).unwrap();
        assert!(!waited.timed_out(), "control never rolls");
    }
}

impl Io for Doored {
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        self.io.open(path, how)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.io.list(dir)
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.io.kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        // A reserve gets its name while nobody has the lock, and whoever needs it waits for it.
        let is_segment = to.extension().is_some_and(|extension| extension == "seg");
        if is_segment && to.parent().is_some_and(|dir| dir.ends_with("control")) {
            let mut door = self.door.0.lock().unwrap();
            while door.is_shut {
                door.is_waited_at = true;
                self.door.1.notify_all();
                door = self.door.1.wait(door).unwrap();
            }
        }
        self.io.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.io.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.io.create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.io.sync_dir(dir)
    }

    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        self.io.random(buf)
    }
}

fn open(io: &Doored) -> Broadcaster {
    let log = LogOptions::new().io(Arc::new(io.clone())).segment_bytes_max(65_536);
    let options = StoreOptions::new().create(CreateMode::IfMissing).log(log);
    let store = Store::open(DIR, &options).unwrap();
    Broadcaster::open(store, Options::new().register(Arc::<Script>::default())).unwrap()
}

fn large(key: usize) -> Request {
    let mut request = request(&format!("large {key}"), "p");
    request.payload = vec![7; 20_000];
    request
}

type Verb = Box<dyn Fn(&Broadcaster, usize) -> Result<()> + Send>;

/// A key is looked up while a verb, which is called until it meets the end of a segment, has control
/// roll.
fn check(what: &str, verb: impl FnOnce(&Broadcaster) -> Verb) {
    let io = Doored { io: MemIo::new(Machine::new()), door: Arc::default() };
    let broadcaster = open(&io);
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let first = broadcaster.submit(&request("k", "p"), None).unwrap();
    let verb = verb(&broadcaster);
    io.set(true);
    let writer = {
        let (broadcaster, io) = (broadcaster.clone(), io.clone());
        std::thread::spawn(move || {
            let rolls = |n: usize| {
                verb(&broadcaster, n).unwrap();
                io.is_waited_at()
            };
            assert!((0..CALLS_MAX).any(rolls), "it never rolls");
        })
    };
    io.wait_for_roll();
    let (told, answers) = channel();
    let looker = {
        let broadcaster = broadcaster.clone();
        std::thread::spawn(move || {
            let again = broadcaster.submit(&request("k", "p"), None).unwrap();
            let held = broadcaster.read(|state, _| state.window().held_count());
            told.send((again, held)).unwrap();
        })
    };
    let Ok((again, held)) = answers.recv_timeout(LOOK_MAX) else {
        panic!("{what}: a lookup waits for the roll")
    };
    assert!(again.duplicated && again.id == first.id && held >= 1, "{what}");
    io.set(false);
    looker.join().unwrap();
    writer.join().unwrap();
    broadcaster.close().unwrap();
}

#[test]
fn a_known_key_is_answered_while_control_rolls() {
    let call = |_: &Broadcaster| -> Verb {
        Box::new(|broadcaster, n| broadcaster.submit(&large(n), None).map(drop))
    };
    check("a submit", call);
}

fn spec(name: &str, vchannels: &[&str]) -> CollectionSpec {
    let vchannels = vchannels.iter().map(|&name| name.to_owned()).collect();
    CollectionSpec { name: name.to_owned(), schema: vec![7; 6_000], primary_key: None, vchannels }
}

/// They rolled control under the lock: whoever looked a key up waited for the disk.
#[test]
fn a_known_key_is_answered_while_a_verb_without_a_key_has_control_roll() {
    check("a policy", |_| Box::new(|broadcaster, _| broadcaster.refresh(broadcaster.policy())));
    check("a clock", |_| Box::new(|broadcaster, _| broadcaster.rebase_clock().map(drop)));
    check("a window", |_| Box::new(|broadcaster, _| broadcaster.accept_window(&"w".repeat(9_000))));
    check("vchannels", |_| {
        Box::new(|broadcaster, n| {
            let name = |of: usize| format!("{n} {of} {}", "v".repeat(200));
            broadcaster.ensure_vchannels(&(0..50).map(name).collect::<Vec<_>>())
        })
    });
    check("a collection", |_| {
        Box::new(|broadcaster, n| {
            broadcaster.ensure_collection(&spec(&n.to_string(), &["a", "c"])).map(drop)
        })
    });
    check("a collection that changes", |broadcaster| {
        let collection = broadcaster.ensure_collection(&spec("c", &["a"])).unwrap();
        Box::new(move |broadcaster, n| {
            let jobs = broadcaster.jobs();
            let was = jobs.collection(collection.id).unwrap();
            let next = Collection { schema: vec![0; 9_000 + n], ..(*was).clone() };
            jobs.update_collection(&was, next).map(|updated| assert!(updated))
        })
    });
}
