//! Entries by their indices.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use openraft::{LogId, RaftLogId as _, RaftLogReader, RaftTypeConfig, StorageError, TokioRuntime};

use super::Shared;
use super::fault::Deed;
use super::record;
use super::runs::Stretch;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Reader;
use crate::log::async_calls::{off_thread, runtime};
use crate::lsn::Lsn;

/// Bytes of entries that [`RaftLogReader::limited_get_log_entries`] reads at most, but for the
/// first: what a follower that lags behind may cost its leader in memory.
const LIMITED_BYTES: usize = 4 << 20;
/// Records of another kind that are read over rather than sought past.
const SKIPPED_COUNT: u64 = 64;

/// Reads a node's entries, beside the [`RaftLog`](super::RaftLog) that it comes from.
///
/// It serves what is durable: an entry that is on its way there is waited for.
#[derive(Debug)]
pub struct EntryReader<C: RaftTypeConfig> {
    shared: Arc<Shared>,
    /// Stands behind the entry that was read last; `None` while a read has it.
    records: Option<Records>,
    config: PhantomData<fn() -> C>,
}

impl<C: RaftTypeConfig> EntryReader<C> {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, records: None, config: PhantomData }
    }

    /// A reader of its own of the same entries.
    pub(super) fn another(&self) -> Self {
        Self::new(Arc::clone(&self.shared))
    }

    /// Id of the last entry; `None` without one. Blocks.
    pub(super) fn last_id(&mut self) -> Result<Option<LogId<C::NodeId>>> {
        let Some(last) = self.shared.runs().indices().next_back() else { return Ok(None) };
        let mut records = self.records.take().unwrap_or_default();
        let stretches = self.shared.runs().stretches(last..last.saturating_add(1));
        let found = records.read(&self.shared, &stretches, usize::MAX)?;
        self.records = Some(records);
        let entry =
            found.first().map(|(index, payload)| decode::<C>(*index, payload)).transpose()?;
        Ok(entry.map(|entry| entry.get_log_id().clone()))
    }

    /// The entries of a range that are there, as many as `bytes_max` bytes hold, and the first of
    /// them in any case.
    pub(super) async fn entries(
        &mut self,
        range: Range<u64>,
        bytes_max: usize,
    ) -> Result<Vec<C::Entry>> {
        let mut stretches = self.shared.runs().stretches(range.clone());
        loop {
            let Some(last) = stretches.last() else { return Ok(Vec::new()) };
            let last = Lsn::at_least_first(last.lsn.saturating_add(last.count.saturating_sub(1)));
            self.shared.log.wait_durable_async(last).await?;
            let shared = Arc::clone(&self.shared);
            let mut records = self.records.take().unwrap_or_default();
            let wanted = mem::take(&mut stretches);
            let (found, records) = off_thread(&runtime()?, move || {
                let found = records.read(&shared, &wanted, bytes_max);
                Ok(((found, wanted), records))
            })
            .await?;
            self.records = Some(records);
            match found {
                (Ok(found), _) => {
                    return found
                        .iter()
                        .map(|(index, payload)| decode::<C>(*index, payload))
                        .collect();
                }
                // A purge was faster: then the runs say so, too.
                (Err(e), before) if e.kind() == ErrorKind::Trimmed => {
                    stretches = self.shared.runs().stretches(range.clone());
                    if stretches == before {
                        return Err(e);
                    }
                }
                (Err(e), _) => return Err(e),
            }
        }
    }
}

/// The entry of a record, which must be that of `index`.
fn decode<C: RaftTypeConfig>(index: u64, payload: &Bytes) -> Result<C::Entry> {
    let entry: C::Entry = record::decode_entry(payload)?;
    let found = entry.get_log_id().index;
    if found != index {
        let what = format!("a raft entry that says index {found}: expected {index}");
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    Ok(entry)
}

/// A reader of the log, where there is one yet.
#[derive(Debug, Default)]
struct Records(Option<Reader>);

impl Records {
    /// The records of entries, with their indices.
    fn read(
        &mut self,
        shared: &Shared,
        stretches: &[Stretch],
        bytes_max: usize,
    ) -> Result<Vec<(u64, Bytes)>> {
        let (mut found, mut bytes) = (Vec::new(), 0_usize);
        for stretch in stretches {
            for k in 0..stretch.count {
                let payload = self.payload(shared, stretch.lsn.saturating_add(k))?;
                bytes = bytes.saturating_add(payload.len());
                if bytes > bytes_max && !found.is_empty() {
                    return Ok(found);
                }
                found.push((stretch.index.saturating_add(k), payload));
            }
        }
        Ok(found)
    }

    fn payload(&mut self, shared: &Shared, lsn: u64) -> Result<Bytes> {
        let near = |reader: &Reader| {
            lsn.checked_sub(reader.next_lsn().get()).is_some_and(|gap| gap <= SKIPPED_COUNT)
        };
        if let Some(reader) = self.0.take().filter(near) {
            match self.read_on(reader, lsn) {
                // What is between the last entry and this one may be trimmed, and this one not.
                Err(e) if e.kind() == ErrorKind::Trimmed => {}
                read => return read,
            }
        }
        self.read_on(shared.log.reader(Lsn::at_least_first(lsn))?, lsn)
    }

    fn read_on(&mut self, mut reader: Reader, lsn: u64) -> Result<Bytes> {
        while let Some(record) = reader.next()? {
            if record.lsn.get() == lsn {
                self.0 = Some(reader);
                return Ok(record.payload);
            }
        }
        let what = "a durable raft entry that is not there";
        Err(Error::new(ErrorKind::Corrupt, what).at_lsn(lsn))
    }
}

impl<C> RaftLogReader<C> for EntryReader<C>
where
    C: RaftTypeConfig<AsyncRuntime = TokioRuntime>,
{
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        // No entry has the greatest index.
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => u64::MAX,
        };
        let found = self.entries(start..end, usize::MAX).await;
        found.map_err(|e| Deed::READ_ENTRIES.failed(&e))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let found = self.entries(start..end, LIMITED_BYTES).await;
        found.map_err(|e| Deed::READ_ENTRIES.failed(&e))
    }
}
