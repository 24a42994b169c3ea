//! The log as the log storage of a raft node: [`RaftLog`] implements openraft's
//! [`RaftLogStorage`](openraft::storage::RaftLogStorage), feature `openraft`.
//!
//! Raft's log is cut at both ends and has indices of its own; this log is not cut, and its LSNs are
//! never given twice. So entries, rewinds and the node's state are records, one behind the other,
//! and what raft's log is follows from reading them in order. docs/raft.md states their bytes, and
//! why no crash between two of them breaks raft.
//!
//! - What returned is durable: a vote, a truncation, a purge, what is committed (see
//!   [`RaftLog::committed_durability`]), and an append whose callback said so.
//! - An append returns once its entries have their place; openraft's callback is called once, by a
//!   task, when a sync has covered them, or with the failure. Appends that come meanwhile share the
//!   next sync.
//! - Entries are not kept in memory, only where they lie: 16 bytes an entry at most, and 16 bytes
//!   for all entries that no other record parts. Opening reads every record that was not trimmed.
//! - A failed write or sync is a storage error, which ends the node, as openraft means it to. The
//!   node is opened again.
//!
//! It does **not** hold the state machine or its snapshots, and never calls the network.

mod fault;
mod reader;
mod record;
mod replay;
mod runs;
mod storage;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::{LogId, RaftTypeConfig};

pub use self::reader::EntryReader;
use self::record::State;
use self::runs::Runs;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Durability, Log, Options, Pin, RecoveryReport, Retention};

/// The log of a raft node, for [`openraft::Raft::new`].
///
/// It runs on tokio, openraft's default runtime.
///
/// # Examples
///
/// ```
/// use std::io::Cursor;
///
/// use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
/// use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, Vote};
/// use oncelog::raft::RaftLog;
/// use oncelog::{CreateMode, Options};
///
/// openraft::declare_raft_types!(
///     pub Config: D = String, R = (), NodeId = u64, Node = openraft::BasicNode,
/// );
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let options = Options::new().create(CreateMode::IfMissing);
/// let (mut log, _report) = RaftLog::<Config>::open(dir.path().join("node-1"), &options)?;
///
/// // What openraft does with it.
/// log.save_vote(&Vote::new(1, 1)).await?;
/// let log_id = LogId::new(CommittedLeaderId::new(1, 1), 0);
/// log.blocking_append([Entry { log_id, payload: EntryPayload::Normal("set a 1".into()) }]).await?;
/// assert_eq!(log.get_log_state().await?.last_log_id, Some(log_id));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RaftLog<C: RaftTypeConfig> {
    shared: Arc<Shared>,
    /// For openraft's own reads of the entries.
    reader: EntryReader<C>,
    state: State<C::NodeId>,
    /// LSN of the record that holds `state`; `None` while that is the default.
    state_lsn: Option<u64>,
    /// Id of the last entry; `None` without entries.
    last: Option<LogId<C::NodeId>>,
    batch_bytes_max: u64,
    committed_durability: Durability,
    /// Keeps what the node needs from whoever else trims.
    needed: Pin,
    /// A write was begun and its future dropped: what is in memory may lack it.
    unsettled: bool,
}

/// What the log and its readers share.
#[derive(Debug)]
struct Shared {
    log: Log,
    runs: Mutex<Runs>,
}

impl Shared {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: RaftTypeConfig> RaftLog<C> {
    /// Opens, or as the options say makes, the log of a node in `dir`, and reads every record that
    /// is left of it. Blocks; from a task, by [`tokio::task::spawn_blocking`].
    ///
    /// An entry has to fit into a record, 16 MiB unless [`Options::record_len_max`] says otherwise:
    /// openraft ends a node whose log refuses an entry.
    ///
    /// # Errors
    ///
    /// Those of [`Log::open`]; also `InvalidInput` with a [`Retention`], for raft says what may go,
    /// `Unsupported` when it is the log of another program or version, and `Corrupt` when its
    /// records make no log of raft.
    ///
    /// # Durability
    ///
    /// Everything that it then serves.
    pub fn open(dir: impl AsRef<Path>, options: &Options) -> Result<(Self, RecoveryReport)> {
        if options.retention != Retention::new() {
            let what = "a raft log with a retention of its own: purges alone may trim it";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let (log, report) = Log::open(dir, options)?;
        let needed = log.pin("raft", log.oldest_lsn())?;
        let replay::Replayed { runs, state, state_lsn } = replay::replay(&log)?;
        let shared = Arc::new(Shared { log, runs: Mutex::new(runs) });
        let mut reader = EntryReader::new(Arc::clone(&shared));
        let last = reader.last_id()?;
        let log = Self {
            shared,
            reader,
            state,
            state_lsn,
            last,
            batch_bytes_max: options.batch_bytes_max,
            committed_durability: Durability::Synced,
            needed,
            unsettled: false,
        };
        Ok((log, report))
    }

    /// When [`save_committed`](openraft::storage::RaftLogStorage::save_committed) returns:
    /// [`Durability::Synced`] by default.
    ///
    /// Raft itself needs no record of what is committed. Openraft 0.9 does in one case: a leader
    /// that starts again in its own term answers linearizable reads by what was saved, before it
    /// knows what is committed since. With [`Durability::Buffered`] a commit costs one sync instead
    /// of two, and a write that was answered just before a crash of most nodes at once may be missing
    /// from such a read, until the next write is committed. An application that writes something
    /// before it serves reads does not see it.
    #[must_use]
    pub fn committed_durability(mut self, durability: Durability) -> Self {
        self.committed_durability = durability;
        self
    }

    /// The log underneath: to look at, and to [close](Log::close) once the node was shut down.
    /// What another hand appends breaks the log of the node; a trim of what it needs is refused.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.shared.log
    }
}
