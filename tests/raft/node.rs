//! A raft log on the file system in memory, and what kills its process or takes its power.

use std::io::Cursor;
use std::sync::Arc;

use oncelog::raft::RaftLog;
use oncelog::testing::{Dice, MemIo};
use oncelog::{CreateMode, Options};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};

openraft::declare_raft_types!(
    /// Entries of text.
    pub(crate) Text: D = String, R = (), NodeId = u64, Node = openraft::EmptyNode,
);

/// Where the log lies.
pub(crate) const DIR: &str = "/node";

pub(crate) fn options(io: &MemIo) -> Options {
    // Without a thread of the log nothing happens but what a call does.
    let options = Options::new().io(Arc::new(io.clone())).background(false);
    options.segment_bytes_max(65_536).create(CreateMode::IfMissing)
}

pub(crate) fn open(io: &MemIo) -> RaftLog<Text> {
    RaftLog::open(DIR, &options(io)).unwrap().0
}

/// Ends the process; its successor finds the page cache as it was.
pub(crate) fn kill(io: &MemIo) -> MemIo {
    io.kill();
    io.successor(io.machine())
}

/// Ends the process and the machine; of what was not synced any part is left.
pub(crate) fn power_loss(io: &MemIo, dice: &mut Dice) -> MemIo {
    io.kill();
    let machine = io.machine();
    let unsynced = machine.unsynced();
    let survivors: Vec<usize> =
        unsynced.iter().map(|part| dice.index(part.version_count() + 1)).collect();
    io.successor(machine.power_loss(&unsynced, &survivors))
}

pub(crate) fn id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

pub(crate) fn entry(term: u64, index: u64, text: impl Into<String>) -> Entry<Text> {
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(text.into()) }
}

/// Runs a future on a runtime of its own, whose end waits for its threads.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}
