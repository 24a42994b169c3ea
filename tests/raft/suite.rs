//! Openraft's own tests of a storage: on a real directory, and with the power lost before every
//! call.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oncelog::raft::{EntryReader, RaftLog};
use oncelog::testing::{Dice, MemIo};
use oncelog::{CreateMode, Options};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{Entry, LogId, LogState, RaftLogReader, StorageError, Vote};
use tempfile::TempDir;

use crate::kv::{Kv, Machine};
use crate::node;

type Stored<T> = Result<T, StorageError<u64>>;

struct OnDisk;

impl StoreBuilder<Kv, RaftLog<Kv>, Machine, TempDir> for OnDisk {
    async fn build(&self) -> Stored<(TempDir, RaftLog<Kv>, Machine)> {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().create(CreateMode::IfMissing);
        let (log, _) = RaftLog::open(dir.path().join("log"), &options).unwrap();
        let machine = Machine::open(&dir.path().join("snapshots"), &options).unwrap();
        Ok((dir, log, machine))
    }
}

#[test]
fn the_storage_tests_of_openraft_pass() {
    Suite::test_all(OnDisk).unwrap();
}

/// A log whose machine loses its power before every call: what a call is told is what was durable.
struct Mortal {
    io: MemIo,
    dice: Dice,
    log: Option<RaftLog<Kv>>,
    losses: Arc<AtomicU64>,
}

impl Mortal {
    fn risen(&mut self) -> &mut RaftLog<Kv> {
        self.io = node::power_loss(&self.io, &mut self.dice);
        self.losses.fetch_add(1, Ordering::Relaxed);
        // Of the process before nothing is left but its handles, which fail.
        drop(self.log.take());
        self.log.insert(RaftLog::open(node::DIR, &node::options(&self.io)).unwrap().0)
    }
}

impl RaftLogReader<Kv> for Mortal {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Stored<Vec<Entry<Kv>>> {
        self.risen().try_get_log_entries(range).await
    }
}

impl RaftLogStorage<Kv> for Mortal {
    type LogReader = EntryReader<Kv>;

    async fn get_log_state(&mut self) -> Stored<LogState<Kv>> {
        self.risen().get_log_state().await
    }

    async fn get_log_reader(&mut self) -> EntryReader<Kv> {
        self.risen().get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Stored<()> {
        self.risen().save_vote(vote).await
    }

    async fn read_vote(&mut self) -> Stored<Option<Vote<u64>>> {
        self.risen().read_vote().await
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Stored<()> {
        self.risen().save_committed(committed).await
    }

    async fn read_committed(&mut self) -> Stored<Option<LogId<u64>>> {
        self.risen().read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Kv>) -> Stored<()>
    where
        I: IntoIterator<Item = Entry<Kv>> + Send,
        I::IntoIter: Send,
    {
        self.risen().append(entries, callback).await
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Stored<()> {
        self.risen().truncate(log_id).await
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Stored<()> {
        self.risen().purge(log_id).await
    }
}

struct InMemory {
    seeds: AtomicU64,
    losses: Arc<AtomicU64>,
}

impl StoreBuilder<Kv, Mortal, Machine> for InMemory {
    async fn build(&self) -> Stored<((), Mortal, Machine)> {
        let seed = self.seeds.fetch_add(1, Ordering::Relaxed);
        let io = MemIo::default();
        // The state machine is not what is tested.
        let machine = Machine::open(Path::new("/snapshots"), &node::options(&io)).unwrap();
        let (io, losses) = (MemIo::default(), Arc::clone(&self.losses));
        Ok(((), Mortal { io, dice: Dice::new(seed), log: None, losses }, machine))
    }
}

#[test]
fn the_storage_tests_of_openraft_pass_when_the_power_is_lost_before_every_call() {
    let losses = Arc::new(AtomicU64::new(0));
    Suite::test_all(InMemory { seeds: AtomicU64::new(1), losses: Arc::clone(&losses) }).unwrap();
    let losses = losses.load(Ordering::Relaxed);
    assert!(losses > 400, "{losses}");
    println!("raft: {losses} losses of power between the calls of openraft's storage tests");
}
