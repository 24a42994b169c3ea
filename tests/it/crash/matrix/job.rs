//! An import of the matrix: two slices, each with a part for every vchannel, driven as the import of
//! files is, and read by what the channels alone say.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::broadcast::{BroadcastId, Ended, Job, SliceMessage};
use oncelog::{ErrorKind, Lsn, Result};
use oncelog_format::control::JobPlan;
use oncelog_format::message::{MessageType, SliceStamp, Vchannel};

use super::world::{ABORT, COMMIT, LOAD, Process, VCHANNELS};

const SLICES: u64 = 2;

/// The slices that a reader sees, by vchannel: attempt and first row.
pub(super) type Visible = BTreeMap<String, Vec<(u32, u64)>>;

fn current(process: &Process) -> Option<(BroadcastId, std::sync::Arc<Job>)> {
    let id = process.id(LOAD)?;
    process.broadcaster.jobs().get(id).map(|job| (id, job))
}

pub(super) fn plan(process: &Process) -> Result<()> {
    let Some((id, job)) = current(process) else { return Ok(()) };
    if job.plan.is_some() || job.end.is_some() {
        return Ok(());
    }
    let jobs = process.broadcaster.jobs();
    let plan = JobPlan {
        job: id,
        attempt: job.attempt,
        files: vec![],
        slice_rows: 1,
        partition_function: 1,
        partition_version: 1,
        vchannels: VCHANNELS.map(str::to_owned).into(),
        from: vec![],
        detail: vec![],
    };
    jobs.plan(plan).map(drop)
}

/// Appends what is missing, at most so many parts.
pub(super) fn slices(process: &Process, most: usize) -> Result<()> {
    let Some((id, job)) = current(process) else { return Ok(()) };
    let Some(plan) = job.plan.as_ref().filter(|_| job.end.is_none()) else { return Ok(()) };
    let (jobs, mut appended) = (process.broadcaster.jobs(), 0);
    for first_row in 0..SLICES {
        for vchannel in VCHANNELS {
            let Some(pchannel) = jobs.pchannel_of(vchannel) else { continue };
            let from = plan.from.iter().find(|end| end.pchannel == pchannel);
            let from = from.and_then(|end| Lsn::new(end.next_lsn)).unwrap_or(Lsn::FIRST);
            if standing(process, &pchannel, from)?.contains(&(id, job.attempt, first_row)) {
                continue;
            }
            if appended == most {
                return Ok(());
            }
            appended += 1;
            let attempt = job.attempt;
            let stamp = SliceStamp { job: id, attempt, file: 0, first_row, rows: 1 };
            let payload = b"row".to_vec();
            let message = SliceMessage { vchannel: vchannel.to_owned(), stamp, payload };
            jobs.append(&pchannel, "Slice", &[message])?;
        }
    }
    Ok(())
}

fn standing(
    process: &Process,
    pchannel: &str,
    from: Lsn,
) -> Result<BTreeSet<(BroadcastId, u32, u64)>> {
    let mut standing = BTreeSet::new();
    let Some(channel) = process.broadcaster.jobs().channel(pchannel) else { return Ok(standing) };
    channel.reopen()?;
    let mut reader = channel.read(from)?;
    while let Some(stored) = reader.next()? {
        if let Some(stamp) = stored.property::<SliceStamp>()? {
            standing.insert((stamp.job, stamp.attempt, stamp.first_row));
        }
    }
    Ok(standing)
}

pub(super) fn end(process: &Process, commit: bool) -> Result<()> {
    let Some((id, job)) = current(process) else { return Ok(()) };
    ask_end(process, id, job.attempt, commit).map(drop)
}

fn ask_end(process: &Process, job: BroadcastId, attempt: u32, commit: bool) -> Result<Ended> {
    let verdict = if commit { COMMIT } else { ABORT };
    let payload = attempt.to_le_bytes().to_vec();
    let ended = process.broadcaster.jobs().end(job, attempt, verdict, payload)?;
    let known = *process.told().verdicts.entry(attempt).or_insert(ended.committed);
    assert_eq!(known, ended.committed, "an attempt ended in two ways");
    Ok(ended)
}

/// Commits and aborts at once: the first that is accepted is the verdict.
pub(super) fn cancel(process: &Process) -> Result<()> {
    let Some((id, job)) = current(process) else { return Ok(()) };
    std::thread::scope(|scope| {
        let abort = scope.spawn(|| ask_end(process, id, job.attempt, false));
        let commit = ask_end(process, id, job.attempt, true);
        let (commit, abort) = (commit?, abort.join().unwrap()?);
        assert_eq!((commit.id, commit.committed), (abort.id, abort.committed));
        assert!(!(commit.mine && abort.mine), "two endings were accepted");
        Ok(())
    })
}

pub(super) fn reattempt(process: &Process) -> Result<()> {
    let Some((id, job)) = current(process) else { return Ok(()) };
    if job.attempt > 1 {
        return Ok(());
    }
    match process.broadcaster.jobs().reattempt(id, super::world::PATIENCE) {
        // Its abort is in control and not everywhere else yet.
        Err(e) if e.kind() == ErrorKind::InvalidInput => {
            process.broadcaster.jobs().wait(id, super::world::PATIENCE)?;
            process.broadcaster.jobs().reattempt(id, super::world::PATIENCE).map(drop)
        }
        begun => begun.map(drop),
    }
}

/// What a reader of the channels sees of the rows; each part of a slice stands once.
pub(super) fn visible(process: &Process) -> Visible {
    let jobs = process.broadcaster.jobs();
    let mut visible = Visible::new();
    let mut stands = BTreeSet::new();
    let mut open: BTreeMap<(String, u32), Option<Vec<u64>>> = BTreeMap::new();
    for pchannel in ["p0", "p1"] {
        let channel = jobs.channel(pchannel).unwrap();
        let mut reader = channel.read(channel.oldest()).unwrap();
        while let Some(stored) = reader.next().unwrap() {
            let Vchannel(vchannel) = stored.property().unwrap().unwrap();
            if let Some(stamp) = stored.property::<SliceStamp>().unwrap() {
                let at = (vchannel.clone(), stamp.job, stamp.attempt, stamp.first_row);
                assert!(stands.insert(at), "a part of a slice stands twice: {stamp:?}");
                let rows = open.entry((vchannel, stamp.attempt)).or_insert_with(|| Some(vec![]));
                rows.as_mut().expect("a slice behind its verdict").push(stamp.first_row);
                continue;
            }
            let MessageType(kind) = stored.property().unwrap().unwrap();
            if kind != COMMIT.0 && kind != ABORT.0 {
                continue;
            }
            let message = stored.message().unwrap();
            let attempt = u32::from_le_bytes(message.payload().try_into().unwrap());
            let rows = open.entry((vchannel.clone(), attempt)).or_insert(None).take();
            if kind == COMMIT.0 {
                let rows = rows.into_iter().flatten().map(|row| (attempt, row));
                visible.entry(vchannel).or_default().extend(rows);
            }
        }
    }
    visible
}

/// The rows are those of the one attempt that was committed, whole and on every vchannel; none where
/// none was.
pub(super) fn judge(process: &Process) {
    let Some((id, job)) = current(process) else { return };
    let (committed, _) = job.over.unwrap_or_else(|| panic!("job {id} is not over"));
    let visible = visible(process);
    for vchannel in VCHANNELS {
        let rows = visible.get(vchannel).cloned().unwrap_or_default();
        let whole: Vec<(u32, u64)> = (0..SLICES).map(|row| (job.attempt, row)).collect();
        let expected = if committed { whole } else { Vec::new() };
        let sorted: BTreeSet<_> = rows.iter().copied().collect();
        assert_eq!(rows.len(), expected.len(), "rows of {vchannel}: {rows:?}");
        assert_eq!(sorted, expected.into_iter().collect(), "rows of {vchannel}");
    }
    for (attempt, told) in &process.told().verdicts {
        let is = *attempt == job.attempt && committed;
        assert_eq!(*told, is, "attempt {attempt} was told to have ended otherwise");
    }
}
