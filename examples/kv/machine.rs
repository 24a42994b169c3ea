//! The state machine: values in memory, snapshots of them in a log of its own.
//!
//! A snapshot is one record, and the last one counts. Openraft takes one now and then, and purges
//! the entries of the raft log that it covers.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncelog::{Log, Options};
use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, EmptyNode, Entry, EntryPayload, LogId, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use serde::{Deserialize, Serialize};

use super::{Command, Failure, Kv};

type Stored<T> = Result<T, StorageError<u64>>;

/// All of the state, as it stands in a snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Data {
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, EmptyNode>,
    values: BTreeMap<String, String>,
}

impl Data {
    /// What openraft is told of a snapshot of this data. The same entries give the same snapshot,
    /// so the last of them names it.
    fn snapshot(&self, bytes: Vec<u8>) -> Snapshot<Kv> {
        let meta = SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
            snapshot_id: self.applied.map(|id| id.to_string()).unwrap_or_default(),
        };
        Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    data: Arc<Mutex<Data>>,
    snapshots: Log,
    /// What the last snapshot covers.
    kept: Arc<Mutex<Option<LogId<u64>>>>,
}

impl Machine {
    /// Begins where the last snapshot ends; openraft applies what is behind it.
    pub(crate) fn open(dir: &Path, options: &Options) -> Result<Self, Failure> {
        // A snapshot is one record: 256 MiB is the most that this small database holds.
        let options = options.clone().record_len_max(256 << 20).batch_bytes_max(512 << 20);
        let (snapshots, _) = Log::open(dir, &options)?;
        let data = match last(&snapshots)? {
            Some(bytes) => ciborium::from_reader(bytes.as_slice())?,
            None => Data::default(),
        };
        let kept = Arc::new(Mutex::new(data.applied));
        Ok(Self { data: Arc::new(Mutex::new(data)), snapshots, kept })
    }

    pub(crate) fn value(&self, key: &str) -> Option<String> {
        self.data().values.get(key).cloned()
    }

    pub(crate) async fn close(self) -> oncelog::Result<()> {
        self.snapshots.close_async().await
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a snapshot durably, and drops those before it. Openraft purges entries only behind
    /// this. One that was built while a later one was received covers less, and is left out.
    async fn keep(&self, applied: Option<LogId<u64>>, bytes: Vec<u8>) -> Result<(), Failure> {
        let (snapshots, kept) = (self.snapshots.clone(), Arc::clone(&self.kept));
        let keep = move || {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if applied < *kept {
                return Ok(());
            }
            let lsn = snapshots.append(&bytes)?;
            *kept = applied;
            snapshots.trim(lsn)
        };
        Ok(tokio::task::spawn_blocking(keep).await??)
    }
}

/// The newest snapshot's bytes.
fn last(snapshots: &Log) -> oncelog::Result<Option<Vec<u8>>> {
    let Some(lsn) = snapshots.durable_lsn() else { return Ok(None) };
    Ok(snapshots.reader(lsn)?.next()?.map(|record| record.payload.to_vec()))
}

fn failed(e: impl std::fmt::Display) -> StorageError<u64> {
    StorageIOError::write_snapshot(None, AnyError::error(e)).into()
}

impl RaftSnapshotBuilder<Kv> for Machine {
    async fn build_snapshot(&mut self) -> Stored<Snapshot<Kv>> {
        let data = self.data().clone();
        let mut bytes = Vec::new();
        ciborium::into_writer(&data, &mut bytes).map_err(failed)?;
        self.keep(data.applied, bytes.clone()).await.map_err(failed)?;
        Ok(data.snapshot(bytes))
    }
}

impl RaftStateMachine<Kv> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Stored<(Option<LogId<u64>>, StoredMembership<u64, EmptyNode>)> {
        let data = self.data();
        Ok((data.applied, data.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Option<String>>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Kv>> + Send,
        I::IntoIter: Send,
    {
        let mut data = self.data();
        let apply = |entry: Entry<Kv>| {
            data.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => None,
                EntryPayload::Normal(Command::Set { key, value }) => data.values.insert(key, value),
                EntryPayload::Normal(Command::Remove { key }) => data.values.remove(&key),
                EntryPayload::Membership(membership) => {
                    data.membership = StoredMembership::new(Some(entry.log_id), membership);
                    None
                }
            }
        };
        Ok(entries.into_iter().map(apply).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Stored<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        _: &SnapshotMeta<u64, EmptyNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Stored<()> {
        let bytes = snapshot.into_inner();
        let data: Data = ciborium::from_reader(bytes.as_slice()).map_err(failed)?;
        self.keep(data.applied, bytes).await.map_err(failed)?;
        *self.data() = data;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Stored<Option<Snapshot<Kv>>> {
        let Some(bytes) = last(&self.snapshots).map_err(failed)? else { return Ok(None) };
        let data: Data = ciborium::from_reader(bytes.as_slice()).map_err(failed)?;
        Ok(Some(data.snapshot(bytes)))
    }
}
