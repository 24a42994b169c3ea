//! Replay: committed rows as data that others read.
//!
//! The file holds every visible row of the collection once, with the values of its source, and
//! appears under its name only when it is whole. Rows come in the order of their jobs, files and
//! numbers, whatever order their slices have in the channels; of a single vchannel likewise.

pub(crate) mod cell;
mod messages;
mod output;
mod sink;
pub(crate) mod unify;
mod view;
mod visible;

use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use arrow_select::interleave::interleave_record_batch;
use bytes::Bytes;

use self::output::Output;
use self::sink::Sink;
use self::unify::{Unified, conform};
use self::view::ViewChannels;
pub(crate) use self::visible::{Channels, Messages};
use self::visible::{PartAt, decoded};
use super::slice::{self, Decoded};
use crate::broadcast::{State, StoreView};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;
use crate::lsn::Lsn;

/// What a replay wrote, and what it left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Rows in the file.
    pub rows: u64,
    /// Rows of attempts that were aborted.
    pub aborted_rows: u64,
    /// Rows of attempts that have no verdict yet.
    pub pending_rows: u64,
    /// Messages in chunks that are not whole any more: their first chunks are trimmed.
    pub lost_messages: u64,
}

/// What to replay; nothing set is every collection of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplaySelection {
    /// Rows of this collection alone.
    pub collection: Option<String>,
    /// What this vchannel holds alone: rows where a collection owns it, else its messages.
    pub vchannel: Option<String>,
}

impl ReplaySelection {
    /// Selects by collection, by vchannel, or by both.
    #[must_use]
    pub fn new(collection: Option<String>, vchannel: Option<String>) -> Self {
        Self { collection, vchannel }
    }

    /// The columns of the collection that is asked for, once an import has stated them.
    fn columns(&self, state: &State) -> Result<Option<SchemaRef>> {
        let found = self.collection.as_ref().and_then(|name| state.collection_named(name));
        let schema = found.map(|found| found.schema.as_slice()).filter(|bytes| !bytes.is_empty());
        schema.map(slice::schema).transpose()
    }

    /// The vchannels whose rows are asked for; `None` where messages are.
    fn vchannels(&self, state: &State) -> Result<Option<Vec<String>>> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
        let Some(name) = &self.collection else {
            let all = state.collections().flat_map(|found| found.vchannels.iter().cloned());
            let all: Vec<String> = all.collect();
            return match &self.vchannel {
                None => Ok(Some(all)),
                Some(one) if all.contains(one) => Ok(Some(vec![one.clone()])),
                Some(one) if state.pchannel_of(one).is_some() => Ok(None),
                Some(one) => refuse(format!("there is no vchannel `{one}`")),
            };
        };
        let Some(found) = state.collection_named(name) else {
            return refuse(format!("there is no collection `{name}`"));
        };
        match &self.vchannel {
            None => Ok(Some(found.vchannels.clone())),
            Some(one) if found.vchannels.contains(one) => Ok(Some(vec![one.clone()])),
            Some(one) => refuse(format!("the collection `{name}` has no vchannel `{one}`")),
        }
    }
}

/// Writes what a store's channels hold to a file, whose name tells its format: `.jsonl`, `.csv` or
/// `.parquet`. `progress` is told rows written and rows in all.
///
/// # Errors
///
/// `InvalidInput` for a selection or a name that is none; `Corrupt` where a channel is damaged, and
/// then there is no file; `Io`.
///
/// # Durability
///
/// When this returns `Ok`, the file is durable under its name; otherwise what had the name stays.
pub fn replay(
    view: &StoreView,
    selection: &ReplaySelection,
    io: &Arc<dyn Io>,
    target: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ReplayReport> {
    let vchannels = selection.vchannels(view.state())?;
    let channels = ViewChannels::open(view)?;
    let report = match (vchannels, &selection.vchannel) {
        (None, Some(vchannel)) => messages::replay(&channels, vchannel, io, target)?,
        (vchannels, _) => {
            let vchannels = vchannels.unwrap_or_default();
            let columns = selection.columns(view.state())?;
            let columns = columns.unwrap_or_else(empty_schema);
            let from = (channels.names(), vchannels.as_slice());
            replay_rows(&channels, from, &columns, (io, target), progress)?
        }
    };
    if report.lost_messages > 0 {
        let count = report.lost_messages;
        tracing::warn!(count, "messages are left out whose first chunks are trimmed");
    }
    Ok(report)
}

/// Writes the visible rows of these pchannels and vchannels; where there are none, these columns.
fn replay_rows(
    channels: &dyn Channels,
    (pchannels, vchannels): (&[String], &[String]),
    columns: &SchemaRef,
    (io, target): (&Arc<dyn Io>, &Path),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ReplayReport> {
    let format = Sink::format_of(target)?;
    let output = Output::create(io, target)?;
    let visible = visible::scan(channels, pchannels, vchannels)?;
    let mut parts =
        Parts { channels, pchannels, cursors: pchannels.iter().map(|_| None).collect() };
    let mut unified = Unified::default();
    if visible.slices.is_empty() {
        unified.add(columns);
    }
    if Sink::wants_one_schema(format) {
        for part in visible.slices.values().filter_map(|parts| parts.first()) {
            let record = parts.record(part)?;
            unified.add(&slice::schema(decoded(&record, part.lsn)?.payload())?);
        }
    }
    let schema = unified.schema();
    let mut sink = Sink::open(format, output, &schema)?;
    let mut rows = 0;
    for at in visible.slices.values() {
        let batch = parts.slice(at)?;
        rows += batch.num_rows() as u64;
        if Sink::wants_one_schema(format) {
            sink.write(&conform(&batch, &schema).map_err(undecoded)?)?;
        } else {
            sink.write(&batch)?;
        }
        progress(rows, visible.rows);
    }
    sink.finish()?;
    Ok(ReplayReport {
        rows,
        aborted_rows: visible.aborted_rows,
        pending_rows: visible.pending_rows,
        lost_messages: visible.lost_messages,
    })
}

/// Reads parts of slices; each pchannel goes forward, and starts anew only to go back.
struct Parts<'a> {
    channels: &'a dyn Channels,
    pchannels: &'a [String],
    cursors: Vec<Option<Cursor<'a>>>,
}

struct Cursor<'a> {
    messages: Box<dyn Messages + 'a>,
    /// LSN of the next message, at least.
    next: Lsn,
}

impl Parts<'_> {
    /// The rows of a slice in order.
    fn slice(&mut self, parts: &[PartAt]) -> Result<RecordBatch> {
        let mut found = Vec::new();
        for part in parts {
            let record = self.record(part)?;
            let payload = decoded(&record, part.lsn)?.payload();
            found.push(slice::decode(payload, part.rows).map_err(|e| e.at_lsn(part.lsn.get()))?);
        }
        merged(&found)
    }

    fn record(&mut self, part: &PartAt) -> Result<Bytes> {
        let missing = || {
            Error::new(ErrorKind::Corrupt, "a message is no longer there").at_lsn(part.lsn.get())
        };
        let cursor = self.cursors.get_mut(part.pchannel).ok_or_else(missing)?;
        if cursor.as_ref().is_none_or(|cursor| cursor.next > part.lsn) {
            let name = self.pchannels.get(part.pchannel).ok_or_else(missing)?;
            let messages = self.channels.read(name, Some(part.lsn))?;
            *cursor = Some(Cursor { messages, next: part.lsn });
        }
        let cursor = cursor.as_mut().ok_or_else(missing)?;
        loop {
            let (lsn, record) = cursor.messages.next()?.ok_or_else(missing)?;
            cursor.next = lsn.next();
            if lsn == part.lsn {
                return Ok(record);
            }
            if lsn > part.lsn {
                return Err(missing());
            }
        }
    }
}

/// The parts of a slice as one batch, in the order of its rows.
fn merged(parts: &[Decoded]) -> Result<RecordBatch> {
    let Some(first) = parts.first() else {
        return Ok(RecordBatch::new_empty(empty_schema()));
    };
    if parts.len() == 1 {
        return Ok(first.batch.clone());
    }
    let mut order: Vec<(u32, usize, usize)> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let what = "a part of a slice does not number its rows";
        let numbers = part.numbers.as_ref();
        let numbers = numbers.ok_or_else(|| Error::new(ErrorKind::Corrupt, what))?;
        order.extend(numbers.values().iter().enumerate().map(|(row, number)| (*number, at, row)));
    }
    order.sort_unstable();
    let batches: Vec<&RecordBatch> = parts.iter().map(|part| &part.batch).collect();
    let indices: Vec<(usize, usize)> = order.into_iter().map(|(_, at, row)| (at, row)).collect();
    interleave_record_batch(&batches, &indices).map_err(undecoded)
}

fn empty_schema() -> SchemaRef {
    Arc::new(Schema::empty())
}

fn undecoded(error: arrow_schema::ArrowError) -> Error {
    Error::new(ErrorKind::Corrupt, "the rows of a slice do not belong together").with_source(error)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod typed;
