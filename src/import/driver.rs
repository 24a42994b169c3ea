//! Drives one attempt of a job from where its records say it is to its end.
//!
//! The order of its steps is what makes a kill anywhere harmless:
//!
//! 1. every file is read once, nothing is appended;
//! 2. the ends of the pchannels are read and pinned, then the plan is recorded: every message of
//!    the attempt stands behind those ends;
//! 3. each pchannel is read from there for the slices that stand already, and only then the missing
//!    ones are appended, each as one batch a pchannel, so that it stands whole or not at all;
//! 4. when all stand, the attempt is committed by a broadcast. A failure before that aborts it.
//!
//! What is wrong with a source fails the attempt. What is wrong with the store, or with the system
//! that reads the source, stops the driver and leaves the attempt as it is: whoever opens the store
//! again, or asks again, goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use oncelog_format::control::{Collection, JobPhase, JobState, PchannelEnd};
use oncelog_format::message::{BroadcastId, SliceStamp};

use super::jobs::Watch;
use super::plan::{self, Plan};
use super::replay::unify::Unified;
use super::request::ImportRequest;
use super::roots::Origin;
use super::slice;
use super::slices::{self, ReadySlice, SliceAt};
use super::source::GoOn;
use super::verdict::{ABORT, AttemptOf, COMMIT, SLICE};
use crate::broadcast::{Job, Jobs, SliceMessage};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// Why an attempt goes no further.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Its rows cannot be imported: it will be aborted, for this reason.
    Failed(Error),
    /// The store or the system did not do its part: the attempt stays as it is.
    Stopped(Error),
}

type Step<T> = std::result::Result<T, Halt>;

/// Slices that are read ahead of the one being appended.
const READY_SLICES: usize = 2;

/// Percent between two records of progress, for readers in other processes.
const RECORD_STEP: u64 = 10;

/// Percent of a job's progress that are behind it once all files were read for the first time.
const SURVEYED: u64 = 30;

/// Percent once all slices stand.
const APPENDED: u64 = 95;

/// Drives the current attempt of a job to its end.
pub(crate) fn drive(id: BroadcastId, jobs: &Jobs, watch: &Watch) -> Result<()> {
    let Some(job) = jobs.get(id) else { return Ok(()) };
    if job.over.is_some() {
        return Ok(());
    }
    if job.end.is_some() {
        // Its ending was accepted, and is completed by the broadcaster, whatever we do.
        watch.set(JobPhase::Committing, APPENDED, job.state.as_ref().map_or(0, |s| s.rows));
        return jobs.wait(id, None).map(drop);
    }
    let driver = Driver { id, attempt: job.attempt, jobs, watch };
    match driver.work(&job) {
        Ok(rows) => {
            driver.record_before_end(JobPhase::Committing, (APPENDED, rows), ("", Vec::new()))?;
            driver.end(true)
        }
        Err(Halt::Failed(error)) => {
            let fault = fault_of(&job, &error);
            driver.record_before_end(JobPhase::Failed, (100, 0), (&told(&error), fault))?;
            driver.end(false)
        }
        Err(Halt::Stopped(error)) => Err(error),
    }
}

/// Which file of a job an error is about, as its record says it.
fn fault_of(job: &Job, error: &Error) -> Vec<u8> {
    let Ok((request, _)) = ImportRequest::decode(&job.accepted.payload) else { return Vec::new() };
    let number = request.paths().position(|path| error.path() == Some(path));
    number.map(plan::fault).unwrap_or_default()
}

/// An error with its place and causes, in one line.
pub(crate) fn told(error: &Error) -> String {
    told_without(error, |_path| false)
}

/// The same, with such paths alone as a client of a service may see: they are relative.
pub(crate) fn told_to_clients(error: &Error) -> String {
    told_without(error, Path::is_absolute)
}

fn told_without(error: &Error, is_hidden: fn(&Path) -> bool) -> String {
    let mut text = error.told_without(is_hidden);
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        let own = error.downcast_ref::<Error>().map(|own| own.told_without(is_hidden));
        text.push_str(&own.unwrap_or_else(|| error.to_string()));
        cause = error.source();
    }
    // A reason is one line of a record of limited length.
    const BYTES_MAX: usize = 1000;
    if text.len() > BYTES_MAX {
        text.truncate(text.floor_char_boundary(BYTES_MAX));
    }
    text
}

struct Driver<'a> {
    id: BroadcastId,
    attempt: u32,
    jobs: &'a Jobs,
    watch: &'a Watch,
}

impl Driver<'_> {
    /// All but the ending; the number of rows that stand.
    fn work(&self, job: &Job) -> Step<u64> {
        // A job is cancelled also where its source cannot be read.
        self.watch.go_on(self.attempt).map_err(|e| self.halt(e))?;
        let (request, collection) =
            ImportRequest::decode(&job.accepted.payload).map_err(Halt::Failed)?;
        let gone = || Error::new(ErrorKind::InvalidInput, "the collection is no longer there");
        let origin = self.watch.origin(&request).map_err(Halt::Stopped)?;
        let find = || self.jobs.collection(collection).ok_or_else(gone).map_err(Halt::Failed);
        let mut collection = find()?;
        let (plan, from) = match &job.plan {
            Some(record) => (Plan::of(record).map_err(Halt::Failed)?, record.from.clone()),
            None => loop {
                match self.plan(&request, &origin, &collection)? {
                    Some(planned) => break planned,
                    // Another import was first, and its rows are judged by what it stated: so are
                    // these.
                    None => collection = find()?,
                }
            },
        };
        let said = job.state.as_ref().map_or((0, 0), |state| (state.progress, state.rows));
        let recorded = SURVEYED.max(u64::from(said.0));
        self.watch.set(JobPhase::Importing, recorded, said.1);
        self.watch.expect(plan.rows);
        let lanes = self.lanes(&collection, &from)?;
        self.append_all((&plan, &origin), &collection, &lanes, recorded)?;
        Ok(plan.rows)
    }

    /// Reads every file once, and records what will be done; `None` where the collection has become
    /// another one meanwhile.
    fn plan(
        &self,
        request: &ImportRequest,
        origin: &Origin,
        collection: &Collection,
    ) -> Step<Option<(Plan, Vec<PchannelEnd>)>> {
        self.record(JobPhase::PreImporting, 0, 0).map_err(Halt::Stopped)?;
        let total: u64 = request.paths().map(|path| size_of(origin, path)).sum();
        let mut read = 0_u64;
        let mut report = |bytes: u64| {
            read = read.saturating_add(bytes);
            let percent = (read.saturating_mul(SURVEYED) / total.max(1)).min(SURVEYED);
            self.watch.set(JobPhase::PreImporting, percent, 0);
            self.watch.go_on(self.attempt)
        };
        let expected = match collection.schema.as_slice() {
            [] => None,
            schema => Some(slice::schema(schema).map_err(Halt::Failed)?),
        };
        let key = collection.primary_key.as_deref();
        let max = self.watch.slice_rows_max();
        let surveyed = Plan::survey(
            request,
            origin,
            (key, expected.as_deref()),
            max,
            (&mut report, &self.go_on()),
        );
        let plan = surveyed.map_err(|e| self.halt(e))?;
        if expected.is_none() && !self.state_schema(&plan, collection)? {
            return Ok(None);
        }
        let vchannels = collection.vchannels.clone();
        let record = plan.record(self.id, self.attempt, vchannels, Vec::new());
        let record = record.map_err(Halt::Failed)?;
        let from = self.jobs.plan(record).map_err(Halt::Stopped)?;
        self.watch.gets_further(self.jobs);
        self.record(JobPhase::Importing, SURVEYED, 0).map_err(Halt::Stopped)?;
        Ok(Some((plan, from)))
    }

    /// Asked by whoever reads a source.
    fn go_on(&self) -> GoOn {
        let (watch, attempt) = (self.watch.clone(), self.attempt);
        GoOn::new(move || watch.go_on(attempt))
    }

    /// The first import of a collection states its schema; whether it is the first.
    fn state_schema(&self, plan: &Plan, collection: &Collection) -> Step<bool> {
        let mut unified = Unified::default();
        plan.sets.iter().for_each(|set| unified.add(&set.survey.schema));
        let schema = slice::encode_schema(&unified.schema()).map_err(Halt::Failed)?;
        let stated = Collection { schema, ..collection.clone() };
        self.jobs.update_collection(collection, stated).map_err(Halt::Stopped)
    }

    /// The pchannels of the collection, each with the slices that stand on it.
    fn lanes(&self, collection: &Collection, from: &[PchannelEnd]) -> Step<Vec<Lane>> {
        let mut lanes: BTreeMap<String, Lane> = BTreeMap::new();
        for (at, vchannel) in collection.vchannels.iter().enumerate() {
            let unknown =
                || Error::new(ErrorKind::Corrupt, format!("no channel carries {vchannel}"));
            let name =
                self.jobs.pchannel_of(vchannel).ok_or_else(unknown).map_err(Halt::Stopped)?;
            let lane =
                Lane { pchannel: name.clone(), vchannels: Vec::new(), have: BTreeSet::new() };
            lanes.entry(name).or_insert(lane).vchannels.push((at, vchannel.clone()));
        }
        let mut lanes: Vec<Lane> = lanes.into_values().collect();
        for lane in &mut lanes {
            let start = from.iter().find(|end| end.pchannel == lane.pchannel);
            let start = start.and_then(|end| Lsn::new(end.next_lsn)).unwrap_or(Lsn::FIRST);
            lane.have = self.standing(&lane.pchannel, start).map_err(Halt::Stopped)?;
        }
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::StampWithoutVchannel) {
            let all: BTreeSet<SliceAt> = lanes.iter().flat_map(|lane| lane.have.clone()).collect();
            lanes.iter_mut().for_each(|lane| lane.have.clone_from(&all));
        }
        Ok(lanes)
    }

    /// The slices of this attempt on a pchannel.
    fn standing(&self, pchannel: &str, from: Lsn) -> Result<BTreeSet<SliceAt>> {
        let unknown = || Error::new(ErrorKind::Corrupt, format!("no channel {pchannel}"));
        let channel = self.jobs.channel(pchannel).ok_or_else(unknown)?;
        // After an append that failed, what stands is known once the channel was opened again.
        channel.reopen()?;
        let mut messages = channel.read(from)?;
        let mut have = BTreeSet::new();
        loop {
            let next = messages.next();
            let behind = Some(messages.next_lsn());
            let stored = match next {
                Ok(Some(stored)) => stored,
                Ok(None) => break,
                // Of a broadcast whose first chunks are gone: all that is a job's is pinned.
                Err(e) if e.kind() == ErrorKind::Trimmed && e.lsn() == behind => continue,
                Err(e) => return Err(e),
            };
            let stamp = stored.message()?.property::<SliceStamp>();
            let Some(stamp) = stamp.map_err(|e| stored.damage(e))? else { continue };
            if stamp.job == self.id && stamp.attempt == self.attempt {
                have.insert(SliceAt { file: stamp.file, first_row: stamp.first_row });
            }
        }
        Ok(have)
    }

    /// Appends the slices that do not stand yet, while the next ones are read. `recorded` percent
    /// were told of before.
    fn append_all(
        &self,
        (plan, origin): (&Plan, &Origin),
        collection: &Collection,
        lanes: &[Lane],
        mut recorded: u64,
    ) -> Step<()> {
        let (ready, slices) = mpsc::sync_channel(READY_SLICES);
        thread::scope(|scope| {
            let go_on = self.go_on();
            let produce = move || {
                let stands = |at: SliceAt| lanes.iter().all(|lane| lane.have.contains(&at));
                let mut take = |slice| ready.send(Ok(slice)).is_ok();
                if let Err(error) =
                    slices::produce((plan, origin, &go_on), collection, &stands, &mut take)
                {
                    // Without a receiver nobody wants to know.
                    drop(ready.send(Err(error)));
                }
            };
            let reader = thread::Builder::new().name(format!("import-{}-read", self.id));
            let started = reader.spawn_scoped(scope, produce);
            started.map_err(|e| {
                let what = "a thread for an import cannot be started";
                Halt::Stopped(Error::new(ErrorKind::Io, what).with_source(e))
            })?;
            for slice in slices {
                let mut slice = slice.map_err(|e| self.halt(e))?;
                self.watch.go_on(self.attempt).map_err(|e| self.halt(e))?;
                self.append(&mut slice, lanes)?;
                let percent = self.show(slice.rows_behind, plan.rows);
                if percent >= recorded + RECORD_STEP && percent < APPENDED {
                    recorded = percent;
                    let rows = slice.rows_behind;
                    match self.record(JobPhase::Importing, percent, rows) {
                        // Rows that stand are committed without it, also on a full disk.
                        Err(e) if e.kind() == ErrorKind::StoreFull => {}
                        recorded => recorded.map_err(Halt::Stopped)?,
                    }
                }
            }
            Ok(())
        })
    }

    /// Appends what is missing of one slice.
    fn append(&self, slice: &mut ReadySlice, lanes: &[Lane]) -> Step<()> {
        for lane in lanes.iter().filter(|lane| !lane.have.contains(&slice.at)) {
            let messages = lane.vchannels.iter().filter_map(|(index, vchannel)| {
                let part = slice.parts.get_mut(*index)?;
                let stamp = SliceStamp {
                    job: self.id,
                    attempt: self.attempt,
                    file: slice.at.file,
                    first_row: slice.at.first_row,
                    rows: part.rows,
                };
                let payload = std::mem::take(&mut part.payload);
                Some(SliceMessage { vchannel: vchannel.clone(), stamp, payload })
            });
            let messages: Vec<SliceMessage> = messages.collect();
            let appended = self.jobs.append(&lane.pchannel, SLICE, &messages);
            appended.map_err(|e| match e.kind() {
                // Refused before a byte was written, and would be again.
                ErrorKind::Limit => Halt::Failed(e),
                _ => Halt::Stopped(e),
            })?;
            self.watch.gets_further(self.jobs);
        }
        Ok(())
    }

    /// Tells how far the appends are; the percent.
    fn show(&self, rows: u64, total: u64) -> u64 {
        let part = u128::from(rows) * u128::from(APPENDED - SURVEYED) / u128::from(total.max(1));
        let part = u64::try_from(part).unwrap_or_default().min(APPENDED - SURVEYED);
        self.watch.set(JobPhase::Importing, SURVEYED + part, rows);
        SURVEYED + part
    }

    /// A step that was told to end by its watch, or was not let by the system, is not the source's
    /// fault: the next driver may get further.
    fn halt(&self, error: Error) -> Halt {
        if self.watch.is_stopping() || error.kind() == ErrorKind::Io {
            Halt::Stopped(error)
        } else {
            Halt::Failed(error)
        }
    }

    fn record(&self, phase: JobPhase, progress: u64, rows: u64) -> Result<()> {
        self.record_with(phase, (progress, rows), ("", Vec::new()))
    }

    fn record_with(
        &self,
        phase: JobPhase,
        (progress, rows): (u64, u64),
        (reason, detail): (&str, Vec<u8>),
    ) -> Result<()> {
        let progress = percent(progress);
        self.watch.set(phase, u64::from(progress), rows);
        self.jobs.record(JobState {
            job: self.id,
            attempt: self.attempt,
            phase,
            progress,
            rows,
            reason: reason.to_owned(),
            detail,
        })
    }

    /// Records what the job ends with. Room is kept for the ending, and for no record before it: a
    /// full disk, which the ending may be what frees, is no reason not to end.
    fn record_before_end(
        &self,
        phase: JobPhase,
        done: (u64, u64),
        (reason, detail): (&str, Vec<u8>),
    ) -> Result<()> {
        match self.record_with(phase, done, (reason, detail)) {
            Err(e) if e.kind() == ErrorKind::StoreFull => {
                let job = self.id.0;
                tracing::warn!(job, reason, error = %e, "a job ends without a record of it");
                Ok(())
            }
            recorded => recorded,
        }
    }

    fn end(&self, commit: bool) -> Result<()> {
        let attempt = AttemptOf { job: self.id, attempt: self.attempt };
        let kind = if commit { COMMIT } else { ABORT };
        self.jobs.end(self.id, self.attempt, (kind, commit), attempt.encode()).map(drop)
    }
}

/// A pchannel with its vchannels and the slices that stand on it.
struct Lane {
    pchannel: String,
    /// Index in the collection, and name.
    vchannels: Vec<(usize, String)>,
    have: BTreeSet<SliceAt>,
}

fn percent(value: u64) -> u8 {
    u8::try_from(value.min(100)).unwrap_or(100)
}

fn size_of(origin: &Origin, path: &Path) -> u64 {
    origin.open(path).map_or(0, |source| source.identity.bytes)
}
