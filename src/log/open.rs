//! Opening by a writer (SPEC section 10): lock, recover, make good what needs it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use oncelog_format::limits::{FRAMES_OFFSET, SEGMENT_BYTES_MAX};
use oncelog_format::segment::MINOR;
use oncelog_format::{Owner, SegmentHeader, Uuid};

use super::dir::{self, DirLock, NameSync};
use super::fill::{Filling, Plan};
use super::options::{Check, CreateMode, Options};
use super::pins::Holds;
use super::prove::{Proven, prove, tail_of};
use super::remove::{Leftover, Removal};
use super::report::{RecoveryReport, TornEnd};
use super::reserve::{Kept, RESERVE_NAME};
use super::retention::Retaining;
use super::roll::{Source, next_size};
use super::scan::Tally;
use super::spare::Spare;
use super::stats::LogStats;
use super::survey::{self, Segment, Survey, TailState};
use super::tail::{Mark, Tail};
use super::wait::{Callers, now};
use super::writer::{Gate, SegmentRef, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;
use crate::lsn::{Lsn, SegmentId};
use crate::told;

/// Opens or makes a log; the directory is locked when this returns.
pub(crate) fn open(path: &Path, options: &Options) -> Result<(Shared, RecoveryReport)> {
    options.validate()?;
    let begin = now();
    let (path, io) = (&*dir::absolute(path)?, &*options.io);
    dir::prepare(io, path, options.create)?;
    let lock = dir::wait_free(options.lock_wait, || match DirLock::find(io, path)? {
        Some(lock) => Ok(lock),
        // A directory that is refused gets no lock file: judged without the lock, and again with
        // it.
        None => match judge(path, options) {
            Ok(_) => DirLock::take(io, path),
            // Another process may have made the log that this looked at.
            Err(e) => DirLock::find(io, path)?.ok_or(e),
        },
    })?;
    let survey = judge(path, options)?;
    let lock = lock.complete(io, path, survey.identified)?;
    remove_spares(io, path, &survey, options.reserve);
    let opened = if survey.is_absent() {
        create(path, options, lock, &survey)
    } else {
        resume(path, options, lock, survey)
    };
    opened.and_then(|opened| {
        if options.reserve {
            opened.0.gate().kept = Kept::found(io, path)?;
        }
        if options.retention_rests {
            opened.0.gate().retaining = Retaining::resting();
        }
        Ok(since(begin, opened))
    })
}

/// Whether a directory holds no log, or one without damage that never had a record.
///
/// # Errors
///
/// `InvalidInput` where it holds something else; `Io`.
pub(crate) fn is_unused(io: &dyn Io, path: &Path) -> Result<bool> {
    let survey = Survey::read(io, path, Check::Tail)?;
    survey.expect_free()?;
    Ok(survey.damage().is_none() && survey.last == 0)
}

/// What is there; an error where that is damaged, or `create` forbids it. Touches nothing.
fn judge(path: &Path, options: &Options) -> Result<Survey> {
    let survey = Survey::read(&*options.io, path, options.check)?;
    if let Some(damage) = survey.damage() {
        return Err(damage.to_error());
    }
    let refuse = |what: &'static str| Err(Error::new(ErrorKind::InvalidInput, what).at_path(path));
    match (survey.is_absent(), options.create) {
        (true, CreateMode::Never) => refuse("there is no log"),
        (false, CreateMode::Always) => refuse("there is a log already"),
        _ => survey.expect_free().map(|()| survey),
    }
}

fn since(begin: Duration, mut opened: (Shared, RecoveryReport)) -> (Shared, RecoveryReport) {
    opened.1.duration = now().saturating_sub(begin);
    opened
}

/// @W
fn remove_spares(io: &dyn Io, path: &Path, survey: &Survey, keeps_reserve: bool) {
    let others =
        survey.listing.spares.iter().filter(|name| !keeps_reserve || *name != RESERVE_NAME);
    for spare in others.map(|name| path.join(name)) {
        if let Err(e) = io.remove(&spare)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            told::tell(
                move || tracing::warn!(path = %spare.display(), error = %e, "a spare stays"),
            );
        }
    }
}

fn create(
    path: &Path,
    options: &Options,
    lock: DirLock,
    survey: &Survey,
) -> Result<(Shared, RecoveryReport)> {
    let io = &*options.io;
    let header = SegmentHeader {
        minor: MINOR,
        compat: 0,
        uuid: Uuid(dir::random(io)?),
        number: survey.number_max.saturating_add(1),
        first_lsn: 1,
        salt: u64::from_le_bytes(dir::random(io)?),
        base_time_ms: 0,
    };
    let plan = Plan::of(options.fill, io, path);
    let size = next_size(0, 0, options.segment_bytes_max);
    let names = NameSync::open(io, path)?;
    let spare = Spare::make(io, path, header.number, size, plan.reserve())?;
    let segment = spare.enter(io, names, &header, 1).map_err(dir::Fault::into_error)?;
    lock.identify(Owner::Log, header.uuid)?;
    let refs = vec![SegmentRef::new(segment.path.clone(), header, 0)];
    let start = Mark { lsn: 0, offset: FRAMES_OFFSET };
    let tail = Tail::of_new(segment, 1);
    let mut gate = gate(tail, start, Tally::new(0), refs);
    gate.number_max = header.number;
    (gate.fill.plan, gate.fill.begun) = (plan, true);
    let report = RecoveryReport {
        created: true,
        segment_count: 1,
        oldest_lsn: Lsn::FIRST,
        last_lsn: None,
        record_count: 0,
        proven_lsn: None,
        torn: None,
        leftovers: Vec::new(),
        duration: Duration::ZERO,
        findings: survey.findings.clone(),
    };
    Ok((Shared::new(path.to_owned(), options, lock, gate), report))
}

fn resume(
    path: &Path,
    options: &Options,
    lock: DirLock,
    survey: Survey,
) -> Result<(Shared, RecoveryReport)> {
    let Proven { file, survey, is_trim_refused } = prove(path, options, survey)?;
    let (segment, judged) = tail_of(path, &survey)?;
    let slot = segment.facts.newest_slot();
    let tail = Tail {
        file,
        path: segment.facts.path.clone(),
        header: segment.header,
        used: judged.used.max(segment.end),
        size: segment.facts.size,
        bare: judged.bare,
        ended_at: ended_at(segment, judged),
        sealed: judged.state == TailState::Sealed,
        counter: slot.map_or(0, |slot| slot.counter),
        found: slot,
        slot_dirty: false,
        stated: None,
        refused: is_trim_refused,
        told: Vec::new(),
    };
    let end = Mark { lsn: segment.last, offset: segment.end };
    let tally = segment.tally.with_entries(judged.entries.clone());
    let refs = survey.segments.iter().map(SegmentRef::of).collect();
    let mut gate = gate(tail, end, tally, refs);
    gate.number_max = survey.number_max;
    gate.fill.plan = Plan::of(options.fill, &*options.io, path);
    (gate.oldest, gate.degraded) = (survey.oldest, survey.degraded());
    gate.holds = Holds::new(&survey.cursors);
    gate.slot_lsn = slot.map_or(0, |slot| slot.durable_lsn);
    gate.must_roll = judged.bare || is_closed_to_frames(segment, judged);
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::BareTailWritten) && judged.bare {
        gate.must_roll = is_closed_to_frames(segment, judged);
        if let Some(tail) = &mut gate.tail {
            tail.bare = false;
        }
    }
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::AppendBehindTorn)
        && judged.state == TailState::Torn
    {
        gate.must_roll = judged.bare;
    }
    gate.removal = Removal::waiting(survey.leftovers.iter().map(Leftover::found).collect());
    let empty = segment.last < segment.header.first_lsn && judged.state != TailState::Sealed;
    let remake = !survey.identified && empty;
    let uuid = segment.header.uuid;
    let report = report(&survey);
    let shared = Shared::new(path.to_owned(), options, lock, gate);
    if remake {
        // Creation did not finish: nothing shows that the first segment's name is durable.
        let mut gate = shared.gate();
        gate.must_roll = true;
        let (gate, rolled) = shared.roll(gate, 0, Source::Spare);
        drop(gate);
        rolled?;
    }
    identify(&shared, &survey, uuid)?;
    shared.release_leftovers()?;
    Ok((shared, report))
}

/// Sees to the identity in the lock file. Whoever made the log may have failed to sync it; where
/// there is a record, an open has returned since.
fn identify(shared: &Shared, survey: &Survey, uuid: Uuid) -> Result<()> {
    match super::lock(&shared.lock).as_ref() {
        Some(lock) if !survey.identified => lock.identify(Owner::Log, uuid),
        Some(lock) if survey.last == 0 => lock.prove(Owner::Log, uuid),
        _ => Ok(()),
    }
}

/// Whether the next frame needs a segment of its own. One of another minor may promise what this
/// version does not know how to keep.
fn is_closed_to_frames(segment: &Segment, judged: &survey::Tail) -> bool {
    let version = (segment.header.minor, segment.header.compat);
    judged.state != TailState::Clean || version != (MINOR, 0)
}

/// Where a tail that takes no more frames ends, but for one that was sealed, which was cut then.
fn ended_at(segment: &Segment, judged: &survey::Tail) -> Option<u64> {
    match judged.state {
        _ if judged.bare => Some(FRAMES_OFFSET),
        TailState::Sealed => None,
        TailState::Torn | TailState::Clean => {
            is_closed_to_frames(segment, judged).then_some(segment.end)
        }
    }
}

impl SegmentRef {
    fn of(segment: &Segment) -> Self {
        Self::new(segment.facts.path.clone(), segment.header, segment.facts.size)
    }
}

fn gate(tail: Tail, end: Mark, tally: Tally, segments: Vec<SegmentRef>) -> Gate {
    Gate {
        queue: Vec::new(),
        recycled: Vec::new(),
        writing: 0,
        queued_at: Duration::ZERO,
        header: tail.header,
        end: end.offset,
        capacity: tail.size.min(SEGMENT_BYTES_MAX),
        must_roll: false,
        next_lsn: end.lsn.saturating_add(1),
        time_ms: tally.time_last_ms,
        written: end,
        durable: end,
        oldest: 1,
        slot_lsn: end.lsn,
        tally,
        segments,
        degraded: Vec::new(),
        removal: Removal::default(),
        retaining: Retaining::default(),
        holds: Holds::default(),
        number_max: tail.header.number,
        fill: Filling::new(end.offset),
        kept: Kept::default(),
        stats: LogStats::default(),
        told: Vec::new(),
        tail: Some(tail),
        rolling: false,
        poison: None,
        closed: false,
        stop: false,
        parked: false,
        called: false,
        waiting: 0,
        group: 0,
        syncing: 0,
        grouped: (0, 0),
        callers: Callers::default(),
        moved: false,
        blocked: false,
        waiters: BTreeMap::new(),
        token: 0,
        sync_wanted: 0,
        sync_due: 0,
        sync_due_at: Duration::ZERO,
        #[cfg(planted)]
        reused: false,
    }
}

fn report(survey: &Survey) -> RecoveryReport {
    let torn = survey.last_segment().filter(|(_, tail)| tail.state == TailState::Torn);
    RecoveryReport {
        created: false,
        segment_count: u64::try_from(survey.segments.len()).unwrap_or(u64::MAX),
        oldest_lsn: Lsn::at_least_first(survey.oldest),
        last_lsn: Lsn::new(survey.last),
        record_count: survey.last.saturating_add(1).saturating_sub(survey.oldest),
        proven_lsn: Lsn::new(survey.proven),
        torn: torn.map(|(segment, tail)| TornEnd {
            segment: SegmentId::at_least_first(segment.header.number),
            path: segment.facts.path.clone(),
            bytes: segment.end..tail.used,
        }),
        leftovers: survey.leftovers.iter().map(|facts| facts.path.clone()).collect(),
        duration: Duration::ZERO,
        findings: survey.findings.clone(),
    }
}

impl Shared {
    /// Lets go of what a trim left, once the tail states the trim: what [`prove`] has made durable
    /// of it, or a slot that is written here, where other segments alone state it. A bare tail
    /// takes no slot, so leftovers wait for its roll; they wait too where a slot was refused just
    /// before.
    fn release_leftovers(&self) -> Result<()> {
        let mut gate = self.gate();
        let may_state = |tail: &&Tail| !tail.bare && !tail.refused;
        let Some(tail) = gate.tail.as_ref().filter(may_state) else { return Ok(()) };
        if !gate.removal.has_waiting() {
            return Ok(());
        }
        if tail.found.is_some_and(|slot| slot.oldest_lsn >= gate.oldest) {
            gate.removal.release(std::iter::empty());
            return Ok(());
        }
        let (gate, tail) = self.take_tail(gate);
        let (durable, oldest) = (gate.stated_by_slot(), gate.oldest);
        let (mut gate, tail, stated) =
            self.with_tail(gate, tail, |tail| tail.write_slot_synced(durable, oldest));
        gate.tail = Some(tail);
        match stated {
            Ok(()) => gate.removal.release(std::iter::empty()),
            // No space for a slot: they stay. Opening needs no free byte.
            Err(dir::Fault::Refused(e)) if e.kind() == ErrorKind::StoreFull => {}
            Err(fault) => return Err(fault.into_error()),
        }
        Ok(())
    }
}
