//! Room for what was accepted: it is made while nobody waits for it but who needs it, and it is there
//! whatever the store is opened with later.

use std::io::Result;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};

use bytes::Bytes;
use oncelog::broadcast::{Broadcaster, Options};
use oncelog::io::{Blocks, DirEntry, EntryKind, FileId, Io, IoFile, OpenHow};
use oncelog::testing::{Machine, MemIo};
use oncelog::{Clock, CreateMode, Options as LogOptions, Retention, Store, StoreOptions};

use super::desk::{DIR, Desk, Hands, LONG, Script, request};
use super::{jobs, pins};

/// Syncs that are held.
#[derive(Debug)]
struct Held {
    /// How many are let through.
    free: u64,
    /// How many came.
    reached: u64,
}

/// A file system on which syncs of some files take as long as the test says.
#[derive(Clone, Debug)]
pub(super) struct Slow {
    io: MemIo,
    /// Of these, by their paths.
    of: fn(&Path) -> bool,
    held: Arc<(Mutex<Held>, Condvar)>,
}

impl Slow {
    pub(super) fn new(io: &MemIo, of: fn(&Path) -> bool) -> Self {
        let held = Held { free: u64::MAX, reached: 0 };
        Self { io: io.clone(), of, held: Arc::new((Mutex::new(held), Condvar::new())) }
    }

    /// How many came.
    pub(super) fn reached(&self) -> u64 {
        self.held.0.lock().unwrap().reached
    }

    /// Lets no more through than so many of those that come; returns how many came.
    pub(super) fn free(&self, more: u64) -> u64 {
        let mut held = self.held.0.lock().unwrap();
        held.free = held.reached.saturating_add(more);
        self.held.1.notify_all();
        held.reached
    }

    fn wait_reached(&self, count: u64) {
        let held = self.held.0.lock().unwrap();
        let is_so = |held: &mut Held| held.reached < count;
        let (held, waited) = self.held.1.wait_timeout_while(held, LONG, is_so).unwrap();
        assert!(!waited.timed_out(), "no reserve is made: {held:?}");
    }
}

impl Io for Slow {
    fn open(&self, path: &Path, how: OpenHow) -> Result<Arc<dyn IoFile>> {
        let file = self.io.open(path, how)?;
        let held = Arc::clone(&self.held);
        Ok(if (self.of)(path) { Arc::new(SlowFile { file, held }) } else { file })
    }

    fn open_dir(&self, dir: &Path) -> Result<Arc<dyn IoFile>> {
        self.io.open_dir(dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.io.list(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.io.kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.io.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.io.remove(path)
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.io.create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.io.sync_dir(dir)
    }

    fn blocks(&self, dir: &Path) -> Result<Blocks> {
        self.io.blocks(dir)
    }

    fn random(&self, buf: &mut [u8]) -> Result<()> {
        self.io.random(buf)
    }
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn IoFile>,
    held: Arc<(Mutex<Held>, Condvar)>,
}

impl IoFile for SlowFile {
    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.file.write_at(buf, offset)
    }

    fn sync(&self) -> Result<()> {
        let mut held = self.held.0.lock().unwrap();
        held.reached += 1;
        let nth = held.reached;
        self.held.1.notify_all();
        drop(self.held.1.wait_while(held, |held| held.free < nth).unwrap());
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> Result<()> {
        self.file.allocate(len)
    }

    fn try_lock(&self) -> Result<bool> {
        self.file.try_lock()
    }

    fn id(&self) -> Result<Option<FileId>> {
        self.file.id()
    }

    fn map(&self, len: u64) -> Result<Bytes> {
        self.file.map(len)
    }
}

/// Up to a GiB was written and synced while every look-up, every ack and every other submission
/// waited, whatever its deadline.
#[test]
fn nobody_waits_for_room_that_another_one_needs() {
    let slow = Slow::new(&MemIo::new(Machine::new()), |path| path.ends_with("unfinished.spare"));
    let log = LogOptions::new().io(Arc::new(slow.clone()));
    let store = StoreOptions::new().create(CreateMode::IfMissing).log(log);
    let script = Arc::new(Script::default());
    let options = Options::new().register(Arc::<Script>::clone(&script));
    let broadcaster = Broadcaster::open(Store::open(Path::new(DIR), &store).unwrap(), options);
    let broadcaster = broadcaster.unwrap();
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    drop(broadcaster.submit(&request("before", "p"), None).unwrap());
    let mut large = request("large", "p");
    large.payload = vec![7; 3 << 20];
    std::thread::scope(|scope| {
        let begun = slow.free(0);
        let submitted = scope.spawn(|| broadcaster.submit(&large, None));
        // Of the channel, and of control.
        for nth in 1..=2 {
            slow.wait_reached(begun + nth);
            let (tell, told) = mpsc::channel();
            let broadcaster = broadcaster.clone();
            scope.spawn(move || {
                let duplicate = broadcaster.submit(&request("before", "p"), Some(LONG));
                let other = broadcaster.submit(&request(&format!("other {nth}"), "p"), Some(LONG));
                let policy = broadcaster.refresh(broadcaster.policy());
                let look = broadcaster.read(|state, _| state.task_count());
                drop(tell.send((duplicate, other, policy, look)));
            });
            let told = told.recv_timeout(LONG);
            // This one goes on, and where all goes well the next one is held.
            slow.free(if told.is_ok() && nth == 1 { 0 } else { u64::MAX });
            let (duplicate, other, policy, look) = told.expect("all wait for one reserve");
            assert!(duplicate.unwrap().duplicated);
            assert!(!other.unwrap().duplicated);
            policy.unwrap();
            assert!(look > 1);
        }
        drop(submitted.join().unwrap().unwrap());
    });
    broadcaster.close().unwrap();
}

/// The ending of a job was held to the limits of the day: with lower ones it was refused for good, or
/// asked for more room than its job had been promised, which the job itself kept from being made.
#[test]
fn a_job_ends_whatever_the_channels_take_by_then() {
    let limit = Retention::new().bytes_max(2 * pins::SEGMENT_BYTES);
    for message_len_max in [50, 150, 250, 400] {
        for (kind, is_filled) in [(jobs::COMMIT, true), (jobs::ABORT, true), (jobs::ABORT, false)] {
            let what = format!("{message_len_max} bytes, filled: {is_filled}, {kind:?}");
            let desk = jobs::desk();
            let desk = pins::reopened(desk, limit);
            let (jobs, job) = jobs::start(&desk, "k");
            jobs.plan(jobs::plan(&jobs, job, 1)).unwrap();
            if is_filled {
                pins::fill(&desk, job, 8 << 10);
            }
            let machine = desk.io.machine();
            desk.io.kill();
            drop(desk.broadcaster.close());
            let io = MemIo::new(machine);
            let clock: Arc<dyn Clock> = Arc::<Hands>::clone(&desk.hands);
            let log = LogOptions::new().segment_bytes_max(pins::SEGMENT_BYTES);
            let store = StoreOptions::new().log(log.io(Arc::new(io.clone())).clock(clock));
            let store = store.retention(limit).message_len_max(message_len_max);
            let store = Store::open(Path::new(DIR), &store).unwrap();
            let broadcaster = Broadcaster::open(store, desk.options.clone()).unwrap();
            let ended = broadcaster.jobs().end(job, 1, kind, vec![7; 200]);
            let ended = ended.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!((ended.committed, ended.mine), (kind == jobs::COMMIT, true), "{what}");
            let hands = Arc::clone(&desk.hands);
            let script = Arc::clone(&desk.script);
            let desk = Desk { io, hands, script, options: desk.options.clone(), broadcaster };
            // Retention may drop them behind the end.
            assert!(is_filled || desk.copies(ended.id) == 2, "{what}");
        }
    }
}
