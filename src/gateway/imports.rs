//! The jobs of a principal: asking for an import, looking at it, cancelling it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncelog_format::control::JobPhase;
use serde_json::{Value, json};

use super::answer::{Answer, time};
use super::desk::{Asked, Desk, identity, refused};
use super::refusal::{Refusal, Row};
use crate::broadcast::{
    Answer as Broadcasted, BroadcastId, Broadcaster, Job, Jobs, State, TaskState,
};
use crate::error::ErrorKind;
use crate::import::{ImportCall, ImportProgress, ImportRequest, is_under_way, principal_of};

/// Most jobs of one page, and how many there are where nothing is asked.
const PAGE_MAX: u64 = 1000;
const PAGE: u64 = 100;

/// Longest wait of a look for an end that is handed over to be durable.
const SETTLES: Duration = Duration::from_secs(1);

/// What is asked of an import, before it is known whether it may be.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) collection: String,
    pub(crate) sets: Vec<Vec<String>>,
    pub(crate) partition: Option<String>,
    pub(crate) primary_key: Option<String>,
    pub(crate) vchannels: Option<u64>,
}

impl Wanted {
    fn request(self, desk: &Desk) -> Result<ImportRequest, Refusal> {
        let max = desk.limits.files_max;
        let count = self.sets.iter().map(Vec::len).sum::<usize>();
        if count > max {
            let what = format!("expected at most {max} files, found {count}");
            return Err(Refusal::new(&Row::LIMIT, what));
        }
        let vchannels = self.vchannels.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let paths = |set: Vec<String>| set.into_iter().map(PathBuf::from).collect();
        let sets = self.sets.into_iter().map(paths).collect();
        Ok(ImportRequest::of_sets(self.collection, sets)
            .partition(self.partition)
            .primary_key(self.primary_key)
            .vchannels(vchannels))
    }
}

/// Asks for an import. A job of the key that failed is tried again where the client wants that, and
/// one that stopped goes on.
pub(crate) fn submit(
    desk: &Desk,
    asked: &Asked,
    wanted: Wanted,
    wait: Duration,
) -> Result<(Broadcaster, Broadcasted), Refusal> {
    let request = wanted.request(desk)?;
    let broadcaster = desk.broadcaster()?;
    let call = ImportCall::of(&*asked.principal).key(asked.key.clone()).wait(Some(wait));
    let answer = desk.imports.submit(&broadcaster, request, &call).map_err(|e| refused(&e))?;
    if answer.duplicated {
        let jobs = broadcaster.jobs();
        let failed = |job: &Arc<Job>| matches!(job.over, Some((false, _)));
        if asked.retry_failed && jobs.get(answer.id).as_ref().is_some_and(failed) {
            jobs.wait(answer.id, Some(wait)).map_err(|e| refused(&e))?;
            match jobs.reattempt(answer.id, Some(wait)) {
                // Another request was faster.
                Err(e)
                    if e.kind() == ErrorKind::InvalidInput
                        && jobs.get(answer.id).is_some_and(|job| !failed(&job)) => {}
                begun => drop(begun.map_err(|e| refused(&e))?),
            }
        }
        if jobs.get(answer.id).is_some_and(|job| job.over.is_none()) {
            desk.imports.drive(answer.id, &jobs);
        }
    }
    Ok((broadcaster, answer))
}

/// What is told of a job.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) id: BroadcastId,
    pub(crate) collection: String,
    pub(crate) phase: JobPhase,
    pub(crate) percent: u8,
    pub(crate) rows: u64,
    pub(crate) rows_total: Option<u64>,
    pub(crate) reason: String,
    pub(crate) attempt: u32,
    pub(crate) files: Vec<ToldFile>,
    pub(crate) made_at_ms: u64,
    pub(crate) over_at_ms: Option<u64>,
    pub(crate) expires_at_ms: Option<u64>,
}

/// What is told of a file of a job.
#[derive(Debug)]
pub(crate) struct ToldFile {
    /// As its request named it, where that may be said.
    pub(crate) path: String,
    pub(crate) bytes: Option<u64>,
    pub(crate) rows: u64,
    pub(crate) rows_total: Option<u64>,
}

impl Told {
    fn of(job: &Job, expires_at_ms: Option<u64>, live: Option<ImportProgress>) -> Self {
        let said = job.state.as_ref();
        let live = live.filter(|_| job.over.is_none());
        let asked = ImportRequest::decode(&job.accepted.payload).ok().map(|(request, _)| request);
        let phase = match live {
            // What is recorded is terminal, or further on.
            Some(live) if job.end.is_none() => live.phase.min(JobPhase::Importing),
            _ => job.phase(),
        };
        let percent = match (job.over, live) {
            (Some(_), _) => 100,
            (None, Some(live)) => live.percent,
            (None, None) => said.map_or(0, |said| said.progress),
        };
        let rows = live.map_or_else(|| said.map_or(0, |said| said.rows), |live| live.rows);
        let planned = job.plan.as_ref();
        let total = planned.map(|plan| plan.files.iter().map(|file| file.rows).sum());
        let mut left = rows;
        let files = match (planned, &asked) {
            (Some(plan), _) => plan
                .files
                .iter()
                .map(|file| {
                    let rows = left.min(file.rows);
                    left -= rows;
                    let (bytes, rows_total) = (Some(file.bytes), Some(file.rows));
                    ToldFile { path: shown(Path::new(&file.path)), bytes, rows, rows_total }
                })
                .collect(),
            (None, Some(request)) => request
                .paths()
                .map(|path| ToldFile { path: shown(path), bytes: None, rows: 0, rows_total: None })
                .collect(),
            (None, None) => Vec::new(),
        };
        let mut reason = job.reason().to_owned();
        for path in asked.iter().flat_map(ImportRequest::paths) {
            if path.is_absolute() {
                reason = reason.replace(&path.display().to_string(), HIDDEN);
            }
        }
        Self {
            id: job.id(),
            collection: asked.as_ref().map(|asked| asked.collection.clone()).unwrap_or_default(),
            phase,
            percent,
            rows,
            rows_total: total.or_else(|| live.and_then(|live| live.rows_total)),
            reason: if phase == JobPhase::Completed { String::new() } else { reason },
            attempt: job.attempt,
            files,
            made_at_ms: job.made_at_ms,
            over_at_ms: job.over.map(|(_, at_ms)| at_ms),
            expires_at_ms,
        }
    }

    /// The same, where its end is durable; while it is not, it has not ended.
    fn settled(mut self, jobs: &Jobs, wait: Duration) -> Self {
        if self.over_at_ms.is_some() && jobs.wait(self.id, Some(wait)).is_err() {
            (self.phase, self.over_at_ms, self.percent) = (JobPhase::Committing, None, 99);
        }
        self
    }

    fn object(&self) -> Value {
        let files = self.files.iter().map(|file| {
            json!({
                "path": file.path,
                "bytes": file.bytes,
                "rows": file.rows,
                "rows_total": file.rows_total,
            })
        });
        json!({
            "job_id": self.id.to_string(),
            "collection": self.collection,
            "state": self.phase.name(),
            "progress": self.percent,
            "rows": self.rows,
            "rows_total": self.rows_total,
            "reason": self.reason,
            "attempt": self.attempt,
            "files": files.collect::<Vec<_>>(),
            "made_at": time(self.made_at_ms),
            "over_at": self.over_at_ms.map(time),
            "expires_at": self.expires_at_ms.map(time),
        })
    }
}

/// What stands for a path that no client may see.
const HIDDEN: &str = "(a file of this machine)";

fn shown(path: &Path) -> String {
    if path.is_absolute() { HIDDEN.to_owned() } else { path.display().to_string() }
}

fn expiry(state: &State, id: BroadcastId) -> Option<u64> {
    let task = state.task(id)?;
    let promised = |task: &TaskState| task.accepted.firm && task.accepted.scope.is_some();
    task.expires_at_ms().filter(|_| promised(&task))
}

/// A job of the principal.
///
/// # Errors
///
/// For one that never was, or is another's; and for one that is kept no longer.
pub(crate) fn find(
    desk: &Desk,
    broadcaster: &Broadcaster,
    principal: &str,
    id: BroadcastId,
) -> Result<Told, Refusal> {
    let (job, expires_at_ms) =
        broadcaster.read(|state, _| (state.job(id).cloned(), expiry(state, id)));
    match job {
        Some(job) if principal_of(&job) == principal => {
            let told = Told::of(&job, expires_at_ms, desk.imports.progress(id));
            Ok(told.settled(&broadcaster.jobs(), SETTLES))
        }
        None if broadcaster.jobs().is_forgotten(id) => {
            Err(Refusal::new(&Row::GONE, format!("the job {id} is kept no longer")))
        }
        _ => Err(Refusal::new(&Row::NOT_FOUND, format!("no job {id} is known"))),
    }
}

/// Jobs of the principal, the newest first: those of a page, and how many there are in all.
pub(crate) fn page(
    desk: &Desk,
    broadcaster: &Broadcaster,
    wanted: impl Fn(&Told) -> bool,
    principal: &str,
    (skip, count): (usize, usize),
) -> (Vec<Told>, usize) {
    let all: Vec<(Arc<Job>, Option<u64>)> = broadcaster.read(|state, _| {
        let own = state.jobs().filter(|(_, job)| principal_of(job) == principal);
        own.map(|(id, job)| (Arc::clone(job), expiry(state, id))).collect()
    });
    let told = all
        .iter()
        .rev()
        .map(|(job, expires_at_ms)| Told::of(job, *expires_at_ms, desk.imports.progress(job.id())));
    let jobs = broadcaster.jobs();
    let told = told.map(|told| told.settled(&jobs, Duration::ZERO));
    let told: Vec<Told> = told.filter(wanted).collect();
    let total = told.len();
    (told.into_iter().skip(skip).take(count).collect(), total)
}

/// `POST /v1/jobs`.
pub(crate) fn create(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let members = asked.members()?;
    members.only(&["collection", "files", "partition", "primary_key", "vchannels"])?;
    let text = |name: &str| members.text(name).map(|text| text.map(str::to_owned));
    let sets = match members.sets("files") {
        Ok(sets) => sets,
        Err(_flat) => members.texts("files")?.into_iter().map(|file| vec![file]).collect(),
    };
    let wanted = Wanted {
        collection: members.needed("collection")?.to_owned(),
        sets,
        partition: text("partition")?,
        primary_key: text("primary_key")?,
        vchannels: members.count("vchannels")?,
    };
    // Who does not say that he waits is told at once that his request is under way.
    let hurries = match (&asked.key, asked.prefers_wait) {
        (Some(key), None) => {
            is_under_way(&desk.broadcaster()?, &wanted.collection, &asked.principal, key)
        }
        _ => false,
    };
    let wait = if hurries { Duration::ZERO } else { desk.wait(asked) };
    let (broadcaster, answer) = submit(desk, asked, wanted, wait)?;
    if let Some(wait) = asked.prefers_wait.filter(|wait| !wait.is_zero()) {
        // Whether it ended by then is in the answer.
        drop(broadcaster.jobs().wait(answer.id, Some(wait.min(desk.limits.wait_max))));
    }
    let told = find(desk, &broadcaster, &asked.principal, answer.id)?;
    let mut object = told.object();
    if let Some(members) = object.as_object_mut() {
        members.insert("duplicated".into(), json!(answer.duplicated));
        members.insert("clock_held".into(), json!(answer.clock_held));
    }
    let status = if answer.duplicated { 200 } else { 201 };
    let place = format!("/v1/jobs/{}", answer.id);
    Ok(Answer::json(status, &object).header("location", &place).of_key(&answer))
}

/// `GET /v1/jobs/{id}`.
pub(crate) fn show(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let broadcaster = desk.broadcaster()?;
    let told = find(desk, &broadcaster, &asked.principal, asked.id()?)?;
    Ok(Answer::json(200, &told.object()))
}

/// `GET /v1/jobs`.
pub(crate) fn list(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let broadcaster = desk.broadcaster()?;
    let limit = match asked.queried("limit").map(|text| text.parse::<u64>()) {
        None => PAGE,
        Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => limit,
        Some(_) => return Err(Refusal::invalid(format!("`limit`: expected 1 to {PAGE_MAX}"))),
    };
    let before = match asked.queried("before") {
        None => None,
        Some(text) => {
            let id = identity(&text).ok_or_else(|| Refusal::invalid("`before`: expected a job"))?;
            Some(id)
        }
    };
    let (collection, state) = (asked.queried("collection"), asked.queried("state"));
    let wanted = |told: &Told| {
        before.is_none_or(|before| told.id < before)
            && collection.as_ref().is_none_or(|name| *name == told.collection)
            && state.as_ref().is_none_or(|name| *name == told.phase.name())
    };
    let count = usize::try_from(limit).unwrap_or(usize::MAX);
    let (told, total) = page(desk, &broadcaster, wanted, &asked.principal, (0, count));
    let next = told.last().filter(|_| total > told.len()).map(|told| told.id.to_string());
    let jobs: Vec<Value> = told.iter().map(Told::object).collect();
    Ok(Answer::json(200, &json!({ "jobs": jobs, "next_before": next })))
}

/// `POST /v1/jobs/{id}/cancel`.
pub(crate) fn cancel(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let broadcaster = desk.broadcaster()?;
    let id = asked.id()?;
    find(desk, &broadcaster, &asked.principal, id)?;
    let wait = desk.wait(asked);
    desk.imports.cancel(&broadcaster, id, Some(wait)).map_err(|e| refused(&e))?;
    let told = find(desk, &broadcaster, &asked.principal, id)?;
    Ok(Answer::json(200, &told.object()))
}
