//! Drives one attempt of a job from where its records say it is to its end.
//!
//! The order of its steps is what makes a kill anywhere harmless:
//!
//! 1. every file is read once, nothing is appended;
//! 2. the ends of the pchannels are read and pinned, then the plan is recorded: every message of the
//!    attempt stands behind those ends;
//! 3. each pchannel is read from there for the slices that stand already, and only then the missing
//!    ones are appended, each as one batch a pchannel, so that it stands whole or not at all;
//! 4. when all stand, the attempt is committed by a broadcast. A failure before that aborts it.
//!
//! What is wrong with a source fails the attempt. What is wrong with the store stops the driver and
//! leaves the attempt as it is: whoever opens the store again, or asks again, goes on.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::RecordBatch;
use oncelog_format::control::{Collection, JobPhase, JobState, PchannelEnd};
use oncelog_format::message::{BroadcastId, SliceStamp};

use super::jobs::Watch;
use super::partition::partition;
use super::plan::{Plan, PlannedFile};
use super::read::{self, RowReader};
use super::request::ImportRequest;
use super::slice;
use super::source::{Source, source_changed};
use super::verdict::AttemptOf;
use crate::broadcast::{Job, Jobs, SliceMessage};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// Why an attempt goes no further.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Its rows cannot be imported: it will be aborted, for this reason.
    Failed(Error),
    /// The store did not do its part: the attempt stays as it is.
    Stopped(Error),
}

type Step<T> = std::result::Result<T, Halt>;

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
            driver.record(JobPhase::Committing, APPENDED, rows, "")?;
            driver.end(true)
        }
        Err(Halt::Failed(error)) => {
            driver.record(JobPhase::Failed, 100, 0, &told(&error))?;
            driver.end(false)
        }
        Err(Halt::Stopped(error)) => Err(error),
    }
}

/// An error with its place and causes, in one line.
pub(crate) fn told(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
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
        let (request, collection) =
            ImportRequest::decode(&job.accepted.payload).map_err(Halt::Failed)?;
        let gone = || Error::new(ErrorKind::InvalidInput, "the collection is no longer there");
        let collection = self.jobs.collection(collection).ok_or_else(gone).map_err(Halt::Failed)?;
        let (plan, from) = match &job.plan {
            Some(record) => (Plan::of(record).map_err(Halt::Failed)?, record.from.clone()),
            None => self.plan(&request, &collection)?,
        };
        let progress = job.state.as_ref().map_or(0, |state| state.rows);
        self.watch.set(JobPhase::Importing, SURVEYED, progress);
        self.watch.expect(plan.rows);
        let lanes = self.lanes(&collection, &from)?;
        self.append_all(&plan, &collection, &lanes)?;
        Ok(plan.rows)
    }

    /// Reads every file once, and records what will be done.
    fn plan(
        &self,
        request: &ImportRequest,
        collection: &Collection,
    ) -> Step<(Plan, Vec<PchannelEnd>)> {
        self.record(JobPhase::PreImporting, 0, 0, "").map_err(Halt::Stopped)?;
        let total: u64 = request.files.iter().map(|path| size_of(path)).sum();
        let mut read = 0_u64;
        let mut report = |bytes: u64| {
            read = read.saturating_add(bytes);
            let percent = (read.saturating_mul(SURVEYED) / total.max(1)).min(SURVEYED);
            self.watch.set(JobPhase::PreImporting, percent, 0);
            self.watch.go_on()
        };
        let surveyed = Plan::survey(request, collection.primary_key.as_deref(), &mut report);
        let plan = surveyed.map_err(|e| self.halt(e))?;
        let ends = self.jobs.pin_ends(self.id).map_err(Halt::Stopped)?;
        let from: Vec<PchannelEnd> = ends
            .into_iter()
            .map(|(pchannel, next)| PchannelEnd { pchannel, next_lsn: next.get() })
            .collect();
        let vchannels = collection.vchannels.clone();
        let record = plan.record(self.id, self.attempt, vchannels, from.clone());
        let record = record.map_err(Halt::Failed)?;
        self.jobs.plan(record).map_err(Halt::Stopped)?;
        self.record(JobPhase::Importing, SURVEYED, 0, "").map_err(Halt::Stopped)?;
        Ok((plan, from))
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
        Ok(lanes)
    }

    /// The slices of this attempt on a pchannel.
    fn standing(&self, pchannel: &str, from: Lsn) -> Result<BTreeSet<(u32, u64)>> {
        let unknown = || Error::new(ErrorKind::Corrupt, format!("no channel {pchannel}"));
        let channel = self.jobs.channel(pchannel).ok_or_else(unknown)?;
        let mut messages = channel.read(from)?;
        let mut have = BTreeSet::new();
        while let Some(stored) = messages.next()? {
            let stamp = stored.message()?.property::<SliceStamp>();
            let Some(stamp) = stamp.map_err(|e| stored.damage(e))? else { continue };
            if stamp.job == self.id && stamp.attempt == self.attempt {
                have.insert((stamp.file, stamp.first_row));
            }
        }
        Ok(have)
    }

    /// Appends the slices that do not stand yet.
    fn append_all(&self, plan: &Plan, collection: &Collection, lanes: &[Lane]) -> Step<()> {
        for (number, file) in (0..).zip(&plan.files) {
            let source = Source::reopen(&file.path, file.identity).map_err(Halt::Failed)?;
            let opened = read::open(&source, file.format, &file.survey);
            let mut reader = opened.map_err(Halt::Failed)?;
            let mut first_row = 0;
            while first_row < file.survey.rows {
                self.watch.go_on().map_err(|e| self.halt(e))?;
                let rows = u64::from(plan.slice_rows).min(file.survey.rows - first_row);
                let slice = SliceAt { file: number, first_row, rows };
                self.slice(slice, file, collection, lanes, &mut *reader)?;
                first_row += rows;
                self.show(file.rows_before + first_row, plan.rows);
            }
            if reader.finish().map_err(Halt::Failed)? != file.survey.sha256 {
                return Err(Halt::Failed(source_changed(&file.path, "its SHA-256 is another")));
            }
            source.unchanged(file.identity).map_err(Halt::Failed)?;
        }
        Ok(())
    }

    /// Appends what is missing of one slice.
    fn slice(
        &self,
        at: SliceAt,
        file: &PlannedFile,
        collection: &Collection,
        lanes: &[Lane],
        reader: &mut dyn RowReader,
    ) -> Step<()> {
        let missing = |lane: &&Lane| !lane.have.contains(&(at.file, at.first_row));
        if !lanes.iter().any(|lane| missing(&lane)) {
            return reader.skip(at.rows).map_err(Halt::Failed);
        }
        let rows = usize::try_from(at.rows).unwrap_or(usize::MAX);
        let batch = reader.next_batch(rows).map_err(Halt::Failed)?;
        let fewer = || source_changed(&file.path, "it has fewer rows");
        let batch = batch.filter(|batch| batch.num_rows() == rows);
        let batch = batch.ok_or_else(fewer).map_err(Halt::Failed)?;
        let parts = self.parts(&batch, collection, file.rows_before + at.first_row);
        let parts = parts.map_err(Halt::Failed)?;
        for lane in lanes.iter().filter(missing) {
            let messages = lane.vchannels.iter().filter_map(|(index, vchannel)| {
                let part = parts.get(*index)?;
                let stamp = SliceStamp {
                    job: self.id,
                    attempt: self.attempt,
                    file: at.file,
                    first_row: at.first_row,
                    rows: part.rows,
                };
                Some(SliceMessage::new(vchannel.clone(), stamp, part.payload.clone()))
            });
            let appended = self.jobs.append(&lane.pchannel, messages.collect());
            appended.map_err(|e| match e.kind() {
                // Refused before a byte was written, and would be again.
                ErrorKind::Limit => Halt::Failed(e),
                _ => Halt::Stopped(e),
            })?;
        }
        Ok(())
    }

    fn parts(
        &self,
        batch: &RecordBatch,
        collection: &Collection,
        first_row: u64,
    ) -> Result<Vec<slice::Part>> {
        let count = u32::try_from(collection.vchannels.len()).unwrap_or(u32::MAX);
        let key = collection.primary_key.as_deref();
        let places = partition(batch, key, first_row, count)?;
        slice::split(batch, &places, count)
    }

    fn show(&self, rows: u64, total: u64) {
        let part = u128::from(rows) * u128::from(APPENDED - SURVEYED) / u128::from(total.max(1));
        let part = u64::try_from(part).unwrap_or_default().min(APPENDED - SURVEYED);
        self.watch.set(JobPhase::Importing, SURVEYED + part, rows);
    }

    /// A step that was told to end by its watch is not the source's fault.
    fn halt(&self, error: Error) -> Halt {
        if self.watch.is_stopping() { Halt::Stopped(error) } else { Halt::Failed(error) }
    }

    fn record(&self, phase: JobPhase, progress: u64, rows: u64, reason: &str) -> Result<()> {
        let progress = percent(progress);
        self.watch.set(phase, u64::from(progress), rows);
        self.jobs.record(JobState {
            job: self.id,
            attempt: self.attempt,
            phase,
            progress,
            rows,
            reason: reason.to_owned(),
            detail: Vec::new(),
        })
    }

    fn end(&self, commit: bool) -> Result<()> {
        let attempt = AttemptOf { job: self.id, attempt: self.attempt };
        self.jobs.end(self.id, self.attempt, commit, attempt.encode()).map(drop)
    }
}

/// A pchannel with its vchannels and the slices that stand on it.
struct Lane {
    pchannel: String,
    /// Index in the collection, and name.
    vchannels: Vec<(usize, String)>,
    /// File and first row.
    have: BTreeSet<(u32, u64)>,
}

#[derive(Clone, Copy)]
struct SliceAt {
    file: u32,
    first_row: u64,
    rows: u64,
}

fn percent(value: u64) -> u8 {
    u8::try_from(value.min(100)).unwrap_or(100)
}

fn size_of(path: &std::path::Path) -> u64 {
    Source::open(path).map_or(0, |source| source.identity.bytes)
}
