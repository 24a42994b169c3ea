//! A roll of control, which takes several syncs: those who only look wait for none of them.

use std::io;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use oncelog::broadcast::{Broadcaster, Options, Request};
use oncelog::io::{DirEntry, EntryKind, Io, IoFile, OpenHow};
use oncelog::testing::{Machine, MemIo};
use oncelog::{CreateMode, Options as LogOptions, Store, StoreOptions};

use super::desk::{DIR, Script, request};

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

    fn wait_for_roll(&self) {
        let door = self.door.0.lock().unwrap();
        drop(self.door.1.wait_while(door, |door| !door.is_waited_at).unwrap());
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
        if to.parent().is_some_and(|dir| dir.ends_with("control")) {
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

#[test]
fn a_known_key_is_answered_while_control_rolls() {
    let io = Doored { io: MemIo::new(Machine::new()), door: Arc::default() };
    let broadcaster = open(&io);
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let first = broadcaster.submit(&request("k", "p"), None).unwrap();
    io.set(true);
    let writer = {
        let broadcaster = broadcaster.clone();
        // Some of them meet the end of a segment.
        std::thread::spawn(move || {
            (0..8).for_each(|key| drop(broadcaster.submit(&large(key), None).unwrap()));
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
    let (again, held) = answers.recv_timeout(LOOK_MAX).expect("a lookup waits for the roll");
    assert!(again.duplicated && again.id == first.id && held >= 1);
    io.set(false);
    looker.join().unwrap();
    writer.join().unwrap();
    assert_eq!(broadcaster.read(|state, _| state.window().held_count()), 9);
    broadcaster.close().unwrap();
}
