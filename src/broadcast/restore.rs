//! The state from control: the newest checkpoint that is whole, and the records behind what it
//! covers; without one, all records from the first on (SPEC 13.3).

use oncelog_format::control::{Body, CheckpointEnd, ControlRecord};

use super::checkpoint::{Checkpoint, Loading, digest};
use super::state::State;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Log, Reader, Record};
use crate::lsn::Lsn;
#[cfg(planted)]
use crate::planted::{Bug, is_active};
use crate::store::control_record;

/// The type byte of a record that ends a checkpoint.
const END_TYPE: u8 = 0x0F;

/// Records between two words about how far a replay is.
const PROGRESS_RECORDS: u64 = 1 << 16;

/// Where control begins and ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) oldest: Lsn,
    /// Behind the last record.
    pub(crate) next: Lsn,
}

/// What control comes to.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) state: State,
    /// The newest time of a frame, in milliseconds; `None` without a record.
    pub(crate) newest_ms: Option<u64>,
    /// The checkpoint that it began with.
    pub(crate) checkpoint: Option<Checkpoint>,
    /// Payload bytes of the records behind it.
    pub(crate) behind_bytes: u64,
    /// Records behind what it covers.
    pub(crate) records: u64,
}

/// Restores the state from the log of this process.
///
/// # Errors
///
/// As [`restore`].
pub(crate) fn of_log(control: &Log) -> Result<Restored> {
    let extent = Extent { oldest: control.oldest_lsn(), next: control.next_lsn() };
    restore(&mut control.reader(extent.oldest)?, extent)
}

/// Restores the state.
///
/// # Errors
///
/// `Corrupt` where records are missing at the begin that no checkpoint covers, or one does not
/// decode; `Unsupported`; those of the reader.
pub(crate) fn restore(reader: &mut Reader, extent: Extent) -> Result<Restored> {
    let mut restored = begin(reader, extent, &mut Ends::all(extent))?;
    let from = restored.checkpoint.map_or(extent.oldest, |checkpoint| checkpoint.covers.next());
    #[cfg(planted)]
    let from = match restored.checkpoint {
        Some(it) if is_active(Bug::CheckpointCoversItself) => it.end,
        _ => from,
    };
    let state = &mut restored.state;
    let (mut newest_ms, mut bytes, mut records) = (None, 0_u64, 0_u64);
    replay(reader, from, |record, control| {
        newest_ms = Some(record.time_ms);
        records = records.saturating_add(1);
        if records.is_multiple_of(PROGRESS_RECORDS) {
            tell_progress(record.lsn, from, extent.next);
        }
        bytes = bytes.saturating_add(u64::try_from(record.payload.len()).unwrap_or(u64::MAX));
        state.apply(control);
    })?;
    // The checkpoint itself stands behind what it covers: there is a record.
    (restored.newest_ms, restored.behind_bytes) = (newest_ms, bytes);
    restored.records = records;
    Ok(restored)
}

/// Says how far a replay is, which begins at `from` and ends before `next`.
fn tell_progress(lsn: Lsn, from: Lsn, next: Lsn) {
    tracing::info!(%from, %lsn, %next, "control is replayed");
    #[cfg(feature = "metrics")]
    {
        let behind = |lsn: Lsn| lsn.get().saturating_sub(from.get());
        let ratio = behind(lsn) as f64 / behind(next).max(1) as f64;
        metrics::gauge!("oncelog_replay_progress_ratio").set(ratio);
    }
}

/// The state to begin with: that of the newest checkpoint which is whole.
fn begin(reader: &mut Reader, extent: Extent, ends: &mut Ends) -> Result<Restored> {
    while let Some((end, lsn)) = ends.next(reader)? {
        match load(reader, end, lsn)? {
            Some(state) => {
                let checkpoint = Some(Checkpoint::of(&end, lsn));
                return Ok(Restored { state, checkpoint, ..Restored::default() });
            }
            None => {
                tracing::warn!(%lsn, "a checkpoint is not whole: an older one is taken");
            }
        }
    }
    if extent.oldest > Lsn::FIRST && extent.oldest <= extent.next {
        let what =
            "control begins behind its first record, and no checkpoint covers what is missing";
        return Err(Error::new(ErrorKind::Corrupt, what).at_lsn(extent.oldest.get()));
    }
    Ok(Restored::default())
}

/// Hands out the records from `from` on.
///
/// # Errors
///
/// As [`restore`].
pub(crate) fn replay(
    reader: &mut Reader,
    from: Lsn,
    mut apply: impl FnMut(&Record, &ControlRecord),
) -> Result<()> {
    reader.seek(from);
    while let Some(record) = reader.next()? {
        if let Some(control) = control_record(&record)? {
            apply(&record, &control);
        }
    }
    Ok(())
}

/// The ends of checkpoints, newest first.
#[derive(Debug)]
pub(crate) struct Ends {
    extent: Extent,
    /// Those before it are still to be looked at.
    before: Lsn,
}

impl Ends {
    pub(crate) fn all(extent: Extent) -> Self {
        Self { extent, before: extent.next }
    }

    /// The next one; its records may be damaged.
    pub(crate) fn next(&mut self, reader: &mut Reader) -> Result<Option<(CheckpointEnd, Lsn)>> {
        reader.seek(self.before);
        // Before the oldest record stands a gap, not an end.
        while self.before > self.extent.oldest
            && let Some(record) = reader.prev()?
        {
            self.before = record.lsn;
            if record.payload.first() != Some(&END_TYPE) {
                continue;
            }
            if let Some(ControlRecord { body: Body::CheckpointEnd(end), .. }) =
                control_record(&record)?
            {
                let begins = end.begin_lsn >= self.extent.oldest.get();
                if begins && end.covers.saturating_add(1) >= self.extent.oldest.get() {
                    return Ok(Some((end, record.lsn)));
                }
            }
        }
        Ok(None)
    }
}

/// The state of a checkpoint that ends at `lsn`; `None` when it is not whole.
fn load(reader: &mut Reader, end: CheckpointEnd, lsn: Lsn) -> Result<Option<State>> {
    read(reader, Loading::whole(end), lsn).map(|(_, state)| state)
}

/// Reads a checkpoint that ends at `lsn`: whether it is whole, and its state where that is asked for.
pub(crate) fn read(
    reader: &mut Reader,
    mut loading: Loading,
    lsn: Lsn,
) -> Result<(bool, Option<State>)> {
    reader.seek(loading.begin());
    while let Some(record) = reader.next()? {
        if record.lsn >= lsn {
            break;
        }
        if let Some(control) = control_record(&record)? {
            loading.take(&control);
        }
    }
    Ok(loading.finish())
}

/// The oldest checkpoint that is whole, and the last LSN that it covers.
pub(crate) fn oldest(reader: &mut Reader, extent: Extent) -> Result<Option<(State, Lsn)>> {
    let (mut ends, mut oldest) = (Ends::all(extent), None);
    while let Some((end, lsn)) = ends.next(reader)? {
        if let Some(state) = load(reader, end, lsn)? {
            oldest = Some((state, Lsn::at_least_first(end.covers)));
        }
    }
    Ok(oldest)
}

/// Rebuilds each checkpoint from what stands before it, and compares digests; returns how many.
///
/// # Errors
///
/// `Corrupt` for one that differs, is not whole, or without which control does not begin.
pub(crate) fn verify(reader: &mut Reader, extent: Extent) -> Result<usize> {
    let (mut ends, mut all) = (Ends::all(extent), Vec::new());
    while let Some(end) = ends.next(reader)? {
        all.push(end);
    }
    let (mut state, mut from, mut count) = (State::default(), extent.oldest, 0);
    for (i, (end, lsn)) in all.into_iter().rev().enumerate() {
        let Some(stored) = load(reader, end, lsn)? else {
            return Err(differs(lsn, "a checkpoint is not whole"));
        };
        if i == 0 && extent.oldest > Lsn::FIRST {
            // Nothing stands before it.
            (state, from) = (stored, Lsn::at_least_first(end.covers).next());
            continue;
        }
        let covers = Lsn::at_least_first(end.covers);
        replay_until(reader, from, covers, &mut state)?;
        if digest(&state)? != end.sha256 {
            return Err(differs(lsn, "a checkpoint is not what the records before it come to"));
        }
        (from, count) = (covers.next(), count + 1);
    }
    Ok(count)
}

fn replay_until(reader: &mut Reader, from: Lsn, last: Lsn, state: &mut State) -> Result<()> {
    reader.seek(from);
    while reader.next_lsn() <= last
        && let Some(record) = reader.next()?
    {
        if let Some(control) = control_record(&record)? {
            state.apply(&control);
        }
    }
    Ok(())
}

fn differs(lsn: Lsn, what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, what).at_lsn(lsn.get())
}
