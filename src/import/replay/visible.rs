//! Which slices a reader may see: those whose attempt was committed, in every vchannel by itself.
//!
//! A row is visible from its vchannel's commit message on. The first verdict about an attempt in a
//! vchannel's order counts; an abort hides its rows for ever, and so does the lack of a verdict.
//! Nothing but the channels is asked: job records may be long gone. Memory is that of one entry a
//! slice.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use oncelog_format::message::{Message, MessageType, SliceStamp, Vchannel};

use crate::error::{Error, ErrorKind, Result};
use crate::import::verdict::{ABORT, AttemptOf, COMMIT};
use crate::lsn::Lsn;

/// The channels of a store, to read.
pub(crate) trait Channels {
    /// Messages of a pchannel in order, from an LSN on or from the oldest.
    fn read<'a>(&'a self, pchannel: &str, from: Option<Lsn>) -> Result<Box<dyn Messages + 'a>>;

    /// What the record of a job says of an attempt.
    #[cfg(planted)]
    fn is_committed_by_record(&self, attempt: AttemptOf) -> bool {
        let _ = attempt;
        false
    }
}

/// Messages of one pchannel in order.
pub(crate) trait Messages {
    /// The next message and its LSN.
    fn next(&mut self) -> Result<Option<(Lsn, Bytes)>>;

    /// Messages of a vchannel so far that are not whole any more: their first chunks are trimmed.
    fn lost_count(&self, vchannel: &str) -> u64 {
        let _ = vchannel;
        0
    }
}

/// A slice of an attempt; the order is that in which rows are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SliceOf {
    pub(crate) attempt: AttemptOf,
    pub(crate) file: u32,
    pub(crate) first_row: u64,
}

/// Where one vchannel's rows of a slice stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartAt {
    /// Index of the vchannel among those asked for.
    pub(crate) vchannel: usize,
    /// Index of its pchannel.
    pub(crate) pchannel: usize,
    pub(crate) lsn: Lsn,
    pub(crate) rows: u32,
}

/// What the channels hold.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    /// The committed slices in the order of their rows.
    pub(crate) slices: BTreeMap<SliceOf, Vec<PartAt>>,
    /// Rows of them.
    pub(crate) rows: u64,
    /// Rows that were aborted.
    pub(crate) aborted_rows: u64,
    /// Rows without a verdict.
    pub(crate) pending_rows: u64,
    /// Messages that are not whole any more.
    pub(crate) lost_messages: u64,
}

/// Reads every pchannel once; of each vchannel in `vchannels` the rows are told apart.
pub(crate) fn scan(
    channels: &dyn Channels,
    pchannels: &[String],
    vchannels: &[String],
) -> Result<Visible> {
    let wanted: HashMap<&str, usize> =
        vchannels.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
    let mut scan = Scan { visible: Visible::default(), open: HashMap::new() };
    for (pchannel, name) in pchannels.iter().enumerate() {
        let mut messages = channels.read(name, None)?;
        while let Some((lsn, record)) = messages.next()? {
            let message = decoded(&record, lsn)?;
            let vchannel = message.property::<Vchannel>().map_err(|e| damaged(lsn, e))?;
            let vchannel = vchannel.and_then(|name| wanted.get(name.0.as_str()).copied());
            if let Some(vchannel) = vchannel {
                scan.take(&message, vchannel, pchannel, lsn)?;
            }
        }
        scan.visible.lost_messages +=
            wanted.keys().map(|name| messages.lost_count(name)).sum::<u64>();
    }
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::VisibleByRecord) {
        for ((_, attempt), open) in &mut scan.open {
            let open = open.take_if(|_| channels.is_committed_by_record(*attempt));
            for (slice, part) in open.into_iter().flatten() {
                scan.visible.rows += u64::from(part.rows);
                scan.visible.slices.entry(slice).or_default().push(part);
            }
        }
    }
    Ok(scan.finish())
}

struct Scan {
    visible: Visible,
    /// Slices of an attempt in a vchannel until their verdict, then `None`.
    open: HashMap<(usize, AttemptOf), Option<BTreeMap<SliceOf, PartAt>>>,
}

impl Scan {
    fn take(
        &mut self,
        message: &Message<'_>,
        vchannel: usize,
        pchannel: usize,
        lsn: Lsn,
    ) -> Result<()> {
        let stamp = message.property::<SliceStamp>().map_err(|e| damaged(lsn, e))?;
        if let Some(stamp) = stamp {
            let attempt = AttemptOf { job: stamp.job, attempt: stamp.attempt };
            let slice = SliceOf { attempt, file: stamp.file, first_row: stamp.first_row };
            let part = PartAt { vchannel, pchannel, lsn, rows: stamp.rows };
            let open =
                self.open.entry((vchannel, attempt)).or_insert_with(|| Some(BTreeMap::new()));
            // Behind its verdict, or a second time, a slice is not of the attempt.
            if let Some(open) = open {
                open.entry(slice).or_insert(part);
            }
            return Ok(());
        }
        let kind = message.property::<MessageType>().map_err(|e| damaged(lsn, e))?;
        let commit = match kind.as_ref().map(|kind| kind.0.as_str()) {
            Some(COMMIT) => true,
            Some(ABORT) => false,
            _ => return Ok(()),
        };
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::VisibleByRecord) {
            return Ok(());
        }
        let attempt = AttemptOf::decode(message.payload()).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "a verdict names no attempt").at_lsn(lsn.get())
        })?;
        let open = self.open.entry((vchannel, attempt)).or_insert(None).take();
        for (slice, part) in open.into_iter().flatten() {
            let rows = u64::from(part.rows);
            if commit {
                self.visible.rows += rows;
                self.visible.slices.entry(slice).or_default().push(part);
            } else {
                self.visible.aborted_rows += rows;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Visible {
        let open = self.open.into_values().flatten().flat_map(BTreeMap::into_values);
        self.visible.pending_rows = open.map(|part| u64::from(part.rows)).sum();
        self.visible.slices.values_mut().for_each(|parts| parts.sort_unstable());
        self.visible
    }
}

/// The message that a record of a channel is.
pub(crate) fn decoded(record: &Bytes, lsn: Lsn) -> Result<Message<'_>> {
    Message::decode(record).map_err(|e| damaged(lsn, e))
}

pub(crate) fn damaged(lsn: Lsn, error: oncelog_format::error::DecodeError) -> Error {
    Error::new(ErrorKind::Corrupt, "a message cannot be decoded")
        .at_lsn(lsn.get())
        .with_source(error)
}
