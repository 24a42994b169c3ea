//! What openraft does with a log: append, truncate, purge, and remember a vote.
//!
//! Writes come one after the other, as the log is borrowed for each. Each is a record or several in
//! the order of the calls, and a sync of a later one covers those before it: so no crash keeps a
//! write and loses an earlier one.

use std::fmt::Debug;
use std::ops::RangeBounds;

use oncelog_format::frame_len;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    LogId, LogState, NodeId, RaftLogId as _, RaftLogReader, RaftTypeConfig, StorageError,
    TokioRuntime, Vote,
};

use super::fault::{Deed, io_error};
use super::record::{self, State};
use super::{EntryReader, RaftLog};
use crate::error::{Error, ErrorKind, Result};
use crate::log::async_calls::{off_thread, runtime};
use crate::log::{Batch, Durability, Pending, RecordKind};
use crate::lsn::{Lsn, LsnRange};

type Stored<C, T> = std::result::Result<T, StorageError<<C as RaftTypeConfig>::NodeId>>;

/// An entry as a record.
type Encoded<N> = (LogId<N>, Vec<u8>);

/// Openraft's callback, which is called once whatever happens.
struct Callback<C: RaftTypeConfig>(Option<LogFlushed<C>>);

impl<C: RaftTypeConfig> Callback<C> {
    fn call(mut self, outcome: Result<()>) {
        if let Some(callback) = self.0.take() {
            callback.log_io_completed(outcome.map_err(io_error));
        }
    }
}

impl<C: RaftTypeConfig> Drop for Callback<C> {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            let what = "the append was given up before it was known to be durable";
            let e = Error::new(ErrorKind::OutcomeUnknown, what);
            callback.log_io_completed(Err(io_error(e)));
        }
    }
}

impl<C: RaftTypeConfig> RaftLog<C> {
    /// Refuses a write behind one that was given up half-way.
    fn begin(&mut self) -> Result<()> {
        if self.unsettled {
            let what = "an earlier write was given up half-way: the log must be opened again";
            return Err(Error::new(ErrorKind::Poisoned, what));
        }
        self.unsettled = true;
        Ok(())
    }

    /// Puts records into the log. A refusal wrote nothing.
    async fn enqueue(&mut self, kind: RecordKind, records: &[&[u8]]) -> Result<Pending> {
        self.begin()?;
        let enqueued = self.shared.log.enqueue_async(Batch { kind, records }).await;
        self.unsettled = false;
        enqueued
    }

    /// Remembers a state, and says when it is durable.
    async fn enqueue_state(&mut self, state: State<C::NodeId>) -> Result<Pending> {
        let record = record::encode_state(&state)?;
        let pending = self.enqueue(record::STATE, &[&record]).await?;
        self.remember(state, pending.lsns());
        Ok(pending)
    }

    fn remember(&mut self, state: State<C::NodeId>, lsns: LsnRange) {
        self.state = state;
        self.state_lsn = Some(lsns.last.get());
    }

    /// Remembers what is committed.
    async fn note_committed(&mut self, committed: Option<LogId<C::NodeId>>) -> Result<()> {
        if committed == self.state.committed {
            return Ok(());
        }
        let state = State { committed, ..self.state.clone() };
        if self.committed_durability == Durability::Synced {
            return self.enqueue_state(state).await?.await.map(drop);
        }
        let record = record::encode_state(&state)?;
        self.begin()?;
        let batch = Batch { kind: record::STATE, records: &[&record] };
        let appended = self.shared.log.append_batch_async(batch, Durability::Buffered).await;
        self.unsettled = false;
        self.remember(state, appended?);
        Ok(())
    }

    /// Appends entries, which have no hole to those before them; what is returned says when all of
    /// them are durable. `None` without entries.
    ///
    /// Entries up to the purged one are left out: a snapshot has them, and they would be no more
    /// than what the next replay forgets.
    ///
    /// They need not stand in one batch: any first part of what was not acknowledged may be left.
    async fn append_entries(
        &mut self,
        entries: Vec<Encoded<C::NodeId>>,
    ) -> Result<Option<Pending>> {
        let purged = self.state.purged.as_ref().map(|purged| purged.index);
        let known = entries.partition_point(|(id, _)| Some(id.index) <= purged);
        let mut rest = entries.get(known..).unwrap_or_default();
        self.check_next(rest)?;
        let mut pending = None;
        while !rest.is_empty() {
            let count = fitting(rest, self.batch_bytes_max).max(1);
            let (batch, behind) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            let records: Vec<&[u8]> = batch.iter().map(|(_, record)| record.as_slice()).collect();
            let enqueued = self.enqueue(record::ENTRY, &records).await?;
            self.place(batch, enqueued.lsns());
            // The last one covers those before it.
            pending = Some(enqueued);
            rest = behind;
        }
        Ok(pending)
    }

    fn place(&mut self, entries: &[Encoded<C::NodeId>], lsns: LsnRange) {
        let mut runs = self.shared.runs();
        let mut lsn = lsns.first;
        for (id, _) in entries {
            runs.push(id.index, lsn.get());
            lsn = lsn.next();
        }
        drop(runs);
        self.last = entries.last().map(|(id, _)| id.clone());
    }

    /// Raft only looks at the last entry: nothing may be missing before it.
    fn check_next(&self, entries: &[Encoded<C::NodeId>]) -> Result<()> {
        let indices = self.shared.runs().indices();
        let purged = self.state.purged.as_ref().map(|purged| purged.index.saturating_add(1));
        let mut next = if indices.is_empty() { purged } else { Some(indices.end) };
        for (id, _) in entries {
            let expected = next.unwrap_or(id.index);
            if id.index != expected || id.index == u64::MAX {
                let what = format!("an append of raft entry {}: expected {expected}", id.index);
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
            next = id.index.checked_add(1);
        }
        Ok(())
    }

    /// Forgets the entries from `from` on: a record says so, and is durable when this returns.
    async fn rewind(&mut self, from: u64) -> Result<()> {
        let indices = self.shared.runs().indices();
        if from >= indices.end {
            return Ok(());
        }
        // Before anything is written: a failure to read leaves all as it was.
        let before = match from.checked_sub(1).filter(|before| indices.contains(before)) {
            Some(before) => {
                let found = self.reader.entries(before..from, usize::MAX).await?;
                found.first().map(|entry| entry.get_log_id().clone())
            }
            None => None,
        };
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::RewindInMemory) {
            self.shared.runs().rewind(from);
            self.last = before;
            return Ok(());
        }
        let pending = self.enqueue(record::REWIND, &[&record::encode_rewind(from)]).await?;
        self.shared.runs().rewind(from);
        self.last = before;
        pending.await.map(drop)
    }

    /// Forgets the entries up to `upto`: the state says so durably, then the records go that nothing
    /// needs.
    async fn forget(&mut self, upto: LogId<C::NodeId>) -> Result<()> {
        if self.state.purged.as_ref().is_some_and(|purged| purged.index >= upto.index) {
            return Ok(());
        }
        let index = upto.index;
        // The record holds vote and committed too: those before it are free to go.
        let state = State { purged: Some(upto), ..self.state.clone() };
        let pending = self.enqueue_state(state).await?;
        let left = {
            let mut runs = self.shared.runs();
            runs.purge(index);
            !runs.indices().is_empty()
        };
        self.last = self.last.take().filter(|_| left);
        pending.await?;
        self.trim().await
    }

    /// Trims what neither the first entry nor the state needs.
    async fn trim(&self) -> Result<()> {
        let first = self.shared.runs().first_lsn();
        let needed = first.into_iter().chain(self.state_lsn).min();
        #[cfg(planted)]
        let needed = if crate::planted::is_active(crate::planted::Bug::TrimTakesState) {
            first.or(Some(self.shared.log.next_lsn().get()))
        } else {
            needed
        };
        let Some(oldest) = needed.and_then(Lsn::new) else { return Ok(()) };
        self.needed.advance(oldest)?;
        let log = self.shared.log.clone();
        match off_thread(&runtime()?, move || log.trim(oldest)).await {
            // The purge holds without it, and the next one tries again. A node has no cursors; what
            // is `Corrupt` of a trim, and `Io` of one that poisons nothing, is the file of those that
            // somebody else has made.
            Err(e) if may_come_later(e.kind()) => {
                tracing::warn!(error = %e, "purged raft entries keep their space for now");
                Ok(())
            }
            trimmed => trimmed,
        }
    }
}

/// Whether a refusal of a trim leaves the log as it was.
fn may_come_later(refusal: ErrorKind) -> bool {
    matches!(refusal, ErrorKind::StoreFull | ErrorKind::Pinned | ErrorKind::Corrupt | ErrorKind::Io)
}

/// How many entries from the first on one batch holds.
fn fitting<N: NodeId>(entries: &[Encoded<N>], bytes_max: u64) -> usize {
    let mut bytes = 0_u64;
    let fits = |(_, record): &&Encoded<N>| {
        bytes = bytes.saturating_add(frame_len(u32::try_from(record.len()).unwrap_or(u32::MAX)));
        bytes <= bytes_max
    };
    entries.iter().take_while(fits).count()
}

impl<C> RaftLogReader<C> for RaftLog<C>
where
    C: RaftTypeConfig<AsyncRuntime = TokioRuntime>,
{
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Stored<C, Vec<C::Entry>> {
        self.reader.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Stored<C, Vec<C::Entry>> {
        self.reader.limited_get_log_entries(start, end).await
    }
}

impl<C> RaftLogStorage<C> for RaftLog<C>
where
    C: RaftTypeConfig<AsyncRuntime = TokioRuntime>,
{
    type LogReader = EntryReader<C>;

    async fn get_log_state(&mut self) -> Stored<C, LogState<C>> {
        let purged = self.state.purged.clone();
        let last = self.last.clone().or_else(|| purged.clone());
        Ok(LogState { last_purged_log_id: purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> EntryReader<C> {
        self.reader.another()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Stored<C, ()> {
        let failed = |e: Error| Deed::WRITE_VOTE.failed(&e);
        let state = State { vote: Some(vote.clone()), ..self.state.clone() };
        let pending = self.enqueue_state(state).await.map_err(failed)?;
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::VoteNotAwaited) {
            return Ok(());
        }
        pending.await.map(drop).map_err(failed)
    }

    async fn read_vote(&mut self) -> Stored<C, Option<Vote<C::NodeId>>> {
        Ok(self.state.vote.clone())
    }

    async fn save_committed(&mut self, committed: Option<LogId<C::NodeId>>) -> Stored<C, ()> {
        self.note_committed(committed).await.map_err(|e| Deed::WRITE_STATE.failed(&e))
    }

    async fn read_committed(&mut self) -> Stored<C, Option<LogId<C::NodeId>>> {
        Ok(self.state.committed.clone())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> Stored<C, ()>
    where
        I: IntoIterator<Item = C::Entry> + Send,
        I::IntoIter: Send,
    {
        let callback = Callback(Some(callback));
        let appended = match encode::<C>(entries) {
            Ok(entries) => self.append_entries(entries).await,
            Err(e) => Err(e),
        };
        match appended {
            Ok(Some(pending)) => {
                #[cfg(planted)]
                if crate::planted::is_active(crate::planted::Bug::FlushedBeforeSync) {
                    callback.call(Ok(()));
                    return Ok(());
                }
                // The log's own thread syncs it; this task only tells.
                drop(tokio::spawn(async move { callback.call(pending.await.map(drop)) }));
                Ok(())
            }
            Ok(None) => {
                callback.call(Ok(()));
                Ok(())
            }
            Err(e) => {
                let failed = Deed::WRITE_ENTRIES.failed(&e);
                callback.call(Err(e));
                Err(failed)
            }
        }
    }

    async fn truncate(&mut self, log_id: LogId<C::NodeId>) -> Stored<C, ()> {
        self.rewind(log_id.index).await.map_err(|e| Deed::DELETE_ENTRIES.failed(&e))
    }

    async fn purge(&mut self, log_id: LogId<C::NodeId>) -> Stored<C, ()> {
        self.forget(log_id).await.map_err(|e| Deed::DELETE_ENTRIES.failed(&e))
    }
}

fn encode<C: RaftTypeConfig>(
    entries: impl IntoIterator<Item = C::Entry>,
) -> Result<Vec<Encoded<C::NodeId>>> {
    let one = |entry: C::Entry| {
        let id = entry.get_log_id().clone();
        let record = record::encode_entry(id.index, &entry)?;
        Ok((id, record))
    };
    entries.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests;
