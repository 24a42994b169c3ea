//! The state from control: the newest checkpoint that is whole, and the records behind what it
//! covers; without one, all records from the first on (SPEC 13.3).

use oncelog_format::control::{Body, CheckpointEnd, ControlRecord, STATE_VERSION};

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
/// decode; `Unsupported` where such a checkpoint is of another version; those of the reader.
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
    let mut other = None;
    while let Some(run) = ends.next(reader)? {
        let (end, lsn) = (run.end, run.lsn);
        if run.is_other() {
            tracing::warn!(%lsn, "a checkpoint is of another version: an older one is taken");
            other = other.or(Some(run));
            continue;
        }
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
        // What is missing stands in a checkpoint that only another release reads: no damage.
        if let Some(run) = other {
            return Err(run.unsupported());
        }
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

/// Records that may be a checkpoint: they begin and end as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) end: CheckpointEnd,
    /// LSN of its End.
    pub(crate) lsn: Lsn,
    /// The version of its entries.
    version: u16,
}

impl Run {
    /// Says whether its entries are of a version that is not known here.
    pub(crate) fn is_other(&self) -> bool {
        self.version != STATE_VERSION
    }

    fn unsupported(&self) -> Error {
        let what = format!(
            "the entries of a checkpoint are of another version: expected {STATE_VERSION}, found {}",
            self.version
        );
        Error::new(ErrorKind::Unsupported, what).at_lsn(self.lsn.get())
    }
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
    pub(crate) fn next(&mut self, reader: &mut Reader) -> Result<Option<Run>> {
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
                if begins
                    && end.covers.saturating_add(1) >= self.extent.oldest.get()
                    && let Some(version) = version_at_begin(reader, &end, record.lsn)?
                {
                    // Runs do not stand within each other: each record is read for one of them.
                    self.before = Lsn::at_least_first(end.begin_lsn);
                    return Ok(Some(Run { end, lsn: record.lsn, version }));
                }
                reader.seek(self.before);
            }
        }
        Ok(None)
    }
}

/// The version of the entries of a run, where it begins as the record says that ends it.
fn version_at_begin(reader: &mut Reader, end: &CheckpointEnd, lsn: Lsn) -> Result<Option<u16>> {
    let begin = Lsn::at_least_first(end.begin_lsn);
    if begin >= lsn {
        return Ok(None);
    }
    reader.seek(begin);
    let Some(record) = reader.next()? else { return Ok(None) };
    Ok(match control_record(&record)? {
        Some(ControlRecord { body: Body::CheckpointBegin(begin), .. }) => {
            (begin.covers == end.covers).then_some(begin.state_version)
        }
        _ => None,
    })
}

/// The state of a checkpoint that ends at `lsn`; `None` when it is not whole.
fn load(reader: &mut Reader, end: CheckpointEnd, lsn: Lsn) -> Result<Option<State>> {
    read(reader, Loading::whole(end), lsn).map(|(_, state)| state)
}

/// Reads a checkpoint that ends at `lsn`: whether it is whole, and its state where that is asked
/// for.
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
        #[cfg(test)]
        tests::READ.set(tests::READ.get() + 1);
        if let Some(control) = control_record(&record)? {
            loading.take(&control);
        }
    }
    Ok(loading.finish())
}

/// The oldest checkpoint that is whole, and the last LSN that it covers.
pub(crate) fn oldest(reader: &mut Reader, extent: Extent) -> Result<Option<(State, Lsn)>> {
    let (mut ends, mut oldest) = (Ends::all(extent), None);
    while let Some(Run { end, lsn, .. }) = ends.next(reader)? {
        if let Some(state) = load(reader, end, lsn)? {
            oldest = Some((state, Lsn::at_least_first(end.covers)));
        }
    }
    Ok(oldest)
}

/// The state as it was at a log time, in milliseconds; `None` where records of then are gone.
pub(crate) fn restore_at(reader: &mut Reader, extent: Extent, at_ms: u64) -> Result<Option<State>> {
    let (mut ends, mut begin) = (Ends::all(extent), None);
    while begin.is_none()
        && let Some(Run { end, lsn, .. }) = ends.next(reader)?
    {
        let state = load(reader, end, lsn)?.filter(|state| state.newest_ms() <= at_ms);
        begin = state.map(|state| (state, Lsn::at_least_first(end.covers).next()));
    }
    let (mut state, from) = match begin {
        Some(begin) => begin,
        None if extent.oldest == Lsn::FIRST => (State::default(), Lsn::FIRST),
        None => return Ok(None),
    };
    replay(reader, from, |_, record| {
        if record.at_ms <= at_ms {
            state.apply(record);
        }
    })?;
    Ok(Some(state))
}

/// Rebuilds each checkpoint from what stands before it, and compares digests; returns how many.
///
/// # Errors
///
/// `Corrupt` for one that differs, is not whole, or without which control does not begin;
/// `Unsupported` for one of another version, which cannot be compared.
pub(crate) fn verify(reader: &mut Reader, extent: Extent) -> Result<usize> {
    let (mut ends, mut all) = (Ends::all(extent), Vec::new());
    while let Some(run) = ends.next(reader)? {
        if run.is_other() {
            return Err(run.unsupported());
        }
        all.push((run.end, run.lsn));
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use oncelog_format::control::{CheckpointBegin, Resume, STATE_VERSION};
    use oncelog_format::message::BroadcastId;

    use super::*;
    use crate::io::mem::{Machine, MemIo};
    use crate::log::{Batch, CreateMode, Durability, Options, RecordKind};

    thread_local! {
        /// Records of runs that this thread has read.
        pub(super) static READ: Cell<u64> = const { Cell::new(0) };
    }

    /// A record that begins a run at an LSN, and covers all before.
    fn begin(at: u64) -> Body {
        let state_version = STATE_VERSION;
        Body::CheckpointBegin(CheckpointBegin { covers: at - 1, state_version })
    }

    /// A record that ends that run, or says so.
    fn end(begin_lsn: u64) -> Body {
        let (covers, part_count, stream_bytes, sha256) = (begin_lsn - 1, 1, 1, [7; 32]);
        Body::CheckpointEnd(CheckpointEnd { covers, begin_lsn, part_count, stream_bytes, sha256 })
    }

    fn other() -> Body {
        Body::Resume(Resume { id: BroadcastId(1), reason: String::new() })
    }

    /// Opens control of these records; how many were read for runs that none of them makes whole.
    #[track_caller]
    fn check(what: &str, bodies: Vec<Body>) {
        let count = u64::try_from(bodies.len()).unwrap();
        let options = Options::new().create(CreateMode::IfMissing);
        let (log, _) = Log::open("/l", &options.io(Arc::new(MemIo::new(Machine::new())))).unwrap();
        let encode = |body| ControlRecord { at_ms: 1, body }.encode().unwrap();
        let records: Vec<Vec<u8>> = bodies.into_iter().map(encode).collect();
        let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let batch = Batch { kind: RecordKind::CONTROL, records: &slices };
        log.append_batch(batch, Durability::Synced).unwrap();
        READ.set(0);
        let restored = of_log(&log).unwrap();
        assert_eq!((restored.records, restored.checkpoint), (count, None), "{what}");
        assert!(READ.get() <= count, "{what}: {} of {count} records", READ.get());
        let extent = Extent { oldest: log.oldest_lsn(), next: log.next_lsn() };
        READ.set(0);
        assert!(oldest(&mut log.reader(extent.oldest).unwrap(), extent).unwrap().is_none());
        assert!(READ.get() <= count, "{what}: {} of {count} records", READ.get());
    }

    /// Each of many forged ends had everything read again from the place that it names.
    #[test]
    fn ends_that_name_what_they_like_cost_no_more_than_their_number() {
        const COUNT: u64 = 200;
        let behind = |second: Body, ends: &dyn Fn(u64) -> Body| {
            [other(), second].into_iter().chain((3..3 + COUNT).map(ends)).collect()
        };
        check("no begin", behind(other(), &|_| end(2)));
        check("a begin of another run", behind(begin(3), &|_| end(2)));
        check("one begin of all", behind(begin(2), &|_| end(2)));
        let nested = (2..2 + COUNT).map(begin).chain((2..2 + COUNT).rev().map(end));
        check("nested", [other()].into_iter().chain(nested).collect());
        let paired = (0..COUNT).map(|n| 3 * n + 1);
        check("in a row", paired.flat_map(|at| [other(), begin(at + 1), end(at + 1)]).collect());
        check("none that is there", behind(other(), &|at| end(at + at % 3)));
    }
}
