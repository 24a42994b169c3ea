//! The async front of a log, for callers on a tokio runtime.
//!
//! A thread of the runtime never waits for the disk here, nor for longer than another append is
//! encoded: what fits into the buffer goes there at once, and the log's own thread writes and syncs
//! it; what has to wait, or starts a segment, runs on the runtime's pool for blocking work. The log
//! itself needs no runtime, and is the same log: both ways in may be mixed.
//!
//! [`Log::open`], readers, and dropping the last handle block; hand them to
//! [`tokio::task::spawn_blocking`].

use std::sync::Arc;

use tokio::runtime::Handle as Runtime;

use super::Log;
use super::options::{Batch, Durability, RecordKind};
use super::pending::{Durable, Pending};
use super::writer::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::{Lsn, LsnRange};

/// Bytes of frames up to which a batch is encoded by the thread that polls: a fraction of a
/// millisecond. A larger one is encoded on the pool.
const POLL_BYTES_MAX: u64 = 256 << 10;

impl Log {
    /// Appends one record of kind [`RecordKind::RECORD`], as [`Log::append`] does.
    ///
    /// # Errors
    ///
    /// As [`Log::append_batch_async`].
    ///
    /// # Durability
    ///
    /// When this resolves to `Ok`, the record survives a power loss.
    ///
    /// # Cancellation
    ///
    /// As [`Log::append_batch_async`].
    pub async fn append_async(&self, record: &[u8]) -> Result<Lsn> {
        let batch = Batch { kind: RecordKind::RECORD, records: &[record] };
        Ok(self.append_batch_async(batch, Durability::Synced).await?.first)
    }

    /// Appends records as one, as [`Log::append_batch`] does, and never blocks the thread that
    /// polls for a disk. Where the buffer is full, a segment has to be started, or the batch has
    /// more than 256 KiB, the records are copied for a thread of the runtime's pool, which does the
    /// rest: all that a large batch costs the thread that polls is this copy. Appends have one
    /// order, and while the records of one are copied and checksummed every other call of the log
    /// waits, a poll included: where many megabytes at a time would hold up a runtime,
    /// [`Options::batch_bytes_max`](crate::Options::batch_bytes_max) bounds them.
    ///
    /// Futures that are polled one after the other get their LSNs in that order, unless one of them
    /// had to wait.
    ///
    /// # Errors
    ///
    /// Those of [`Log::append_batch`]; also `InvalidInput` outside of a tokio runtime, and `Closed`
    /// when the runtime ends before the append began: nothing was written.
    ///
    /// # Durability
    ///
    /// That of [`Log::append_batch`], once this resolves to `Ok`.
    ///
    /// # Cancellation
    ///
    /// Before its first poll it has done nothing. Dropped later, the batch is appended once all the
    /// same, unless it is refused, or the log is closed or the runtime ends first; the sync of one
    /// that is to be synced begins as that of [`Pending`]. Only who is told changes.
    pub async fn append_batch_async(
        &self,
        batch: Batch<'_>,
        durability: Durability,
    ) -> Result<LsnRange> {
        let sync = durability == Durability::Synced;
        let lsns = self.take_in_async(batch, sync).await?;
        if sync { Pending::new(Arc::clone(&self.handle.shared), lsns).await } else { Ok(lsns) }
    }

    /// Puts a batch into the log's buffer, as [`Log::enqueue`] does, and never blocks the thread
    /// that polls. What it resolves to is a future of its own, which says when the batch is
    /// durable: an append and the wait for its sync in two halves, for who has to know the LSNs at
    /// once.
    ///
    /// # Errors
    ///
    /// Those of [`Log::enqueue`]; also `InvalidInput` outside of a tokio runtime, and `Closed` when
    /// the runtime ends before the call began: nothing was written.
    ///
    /// # Durability
    ///
    /// None yet. Whether or not anybody waits for it, a write and sync of the batch begins within
    /// 10 ms, or when the one under way returns.
    ///
    /// # Cancellation
    ///
    /// As [`Log::append_batch_async`].
    pub async fn enqueue_async(&self, batch: Batch<'_>) -> Result<Pending> {
        let lsns = self.take_in_async(batch, true).await?;
        Ok(Pending::new(Arc::clone(&self.handle.shared), lsns))
    }

    async fn take_in_async(&self, batch: Batch<'_>, sync: bool) -> Result<LsnRange> {
        let runtime = runtime()?;
        let shared = &self.handle.shared;
        match shared.try_enqueue(batch, sync, POLL_BYTES_MAX)? {
            Some(lsns) => Ok(lsns),
            None => {
                let (shared, copy) = (Arc::clone(shared), Copied::of(batch));
                off_thread(&runtime, move || copy.enqueue(&shared, sync)).await
            }
        }
    }

    /// The durable LSN, once it is at least `lsn`. The record need not have been appended yet, and
    /// this syncs nothing itself. Needs no runtime.
    ///
    /// # Errors
    ///
    /// Resolves to `Poisoned` or `Closed`: it will not come.
    ///
    /// # Cancellation
    ///
    /// Dropping it changes nothing.
    pub fn durable(&self, lsn: Lsn) -> Durable {
        Durable::new(Arc::clone(&self.handle.shared), lsn.get())
    }

    /// Waits until the durable LSN is at least `lsn`, as [`Log::wait_durable`] does. The record
    /// need not have been appended yet, and this syncs nothing itself: a task that follows the log
    /// waits so for what it reads next. Needs no runtime.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Closed`: it will not come.
    ///
    /// # Cancellation
    ///
    /// Dropping it changes nothing.
    pub async fn wait_durable_async(&self, lsn: Lsn) -> Result<()> {
        self.durable(lsn).await.map(drop)
    }

    /// Makes everything that was appended before the first poll durable, as [`Log::sync`] does.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Closed`; `InvalidInput` outside of a tokio runtime.
    ///
    /// # Durability
    ///
    /// When this resolves to `Ok`, those records survive a power loss.
    ///
    /// # Cancellation
    ///
    /// Dropped after its first poll, the sync goes on.
    pub async fn sync_async(&self) -> Result<Option<Lsn>> {
        let shared = Arc::clone(&self.handle.shared);
        off_thread(&runtime()?, move || shared.sync()).await
    }

    /// Syncs what was appended, and releases the directory before it resolves, as [`Log::close`]
    /// does.
    ///
    /// # Errors
    ///
    /// Those of [`Log::close`]; `InvalidInput` outside of a tokio runtime, where the log is closed
    /// by its drop, and blocks.
    ///
    /// # Durability
    ///
    /// When this resolves to `Ok`, every record that was appended.
    ///
    /// # Cancellation
    ///
    /// Dropped after its first poll, the close goes on.
    pub async fn close_async(self) -> Result<()> {
        off_thread(&runtime()?, move || self.close()).await
    }
}

/// A batch that outlives the call.
#[derive(Debug)]
struct Copied {
    kind: RecordKind,
    records: Vec<Vec<u8>>,
}

impl Copied {
    fn of(batch: Batch<'_>) -> Self {
        let records = batch.records.iter().map(|record| record.to_vec()).collect();
        Self { kind: batch.kind, records }
    }

    fn enqueue(&self, shared: &Shared, sync: bool) -> Result<LsnRange> {
        let records: Vec<&[u8]> = self.records.iter().map(Vec::as_slice).collect();
        shared.enqueue(Batch { kind: self.kind, records: &records }, sync)
    }
}

/// The runtime of the task that asks. Asked for whether or not it turns out to be needed: a caller
/// without one learns of it at once, not at the first roll.
pub(crate) fn runtime() -> Result<Runtime> {
    Runtime::try_current().map_err(|e| {
        let what = "an async call outside of a tokio runtime";
        Error::new(ErrorKind::InvalidInput, what).with_source(e)
    })
}

/// Runs what blocks on the runtime's pool. Once it was handed over it runs whether or not anybody
/// waits for it, unless the runtime ends before it begins.
pub(crate) async fn off_thread<T: Send + 'static>(
    runtime: &Runtime,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // What the call does is told within the span of the task that asked.
    let span = tracing::Span::current();
    let e = match runtime.spawn_blocking(move || span.in_scope(work)).await {
        Ok(done) => return done,
        Err(e) => e,
    };
    if e.is_panic() {
        std::panic::resume_unwind(e.into_panic());
    }
    let what = "the runtime ended before the call began";
    Err(Error::new(ErrorKind::Closed, what).with_source(e))
}
