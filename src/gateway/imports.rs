//! The jobs of a principal: asking for an import, looking at it, cancelling it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncelog_format::control::JobPhase;
use serde_json::{Value, json};

use super::answer::{Answer, time};
use super::body::wrong;
use super::desk::{Asked, Desk, identity, refused};
use super::refusal::{Refusal, Row};
use crate::broadcast::{Answer as Broadcasted, BroadcastId, Broadcaster, Job, State, TaskState};
use crate::import::{
    ImportCall, ImportJob, ImportRequest, JobLook, is_under_way, known, paths_of_machine,
    principal_of,
};

/// Most jobs of one page, and how many there are where nothing is asked.
const PAGE_MAX: u64 = 1000;
const PAGE: u64 = 100;

/// The states of a job.
const STATES: [JobPhase; 6] = [
    JobPhase::Pending,
    JobPhase::PreImporting,
    JobPhase::Importing,
    JobPhase::Committing,
    JobPhase::Completed,
    JobPhase::Failed,
];

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
    /// Refuses what is above a limit, unless its key is known: that is answered, whatever the limits
    /// are by now.
    fn check(&self, desk: &Desk, asked: &Asked, broadcaster: &Broadcaster) -> Result<(), Refusal> {
        let max = desk.limits.files_max;
        let count = self.sets.iter().map(Vec::len).sum::<usize>();
        let is_known =
            |key: &String| known(broadcaster, &self.collection, &asked.principal, key).is_some();
        if count <= max || asked.key.as_ref().is_some_and(is_known) {
            return Ok(());
        }
        let what = format!("expected at most {max} files, found {count}");
        Err(Refusal::new(&Row::LIMIT, what))
    }

    fn request(self) -> ImportRequest {
        let vchannels = self.vchannels.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let paths = |set: Vec<String>| set.into_iter().map(PathBuf::from).collect();
        let sets = self.sets.into_iter().map(paths).collect();
        ImportRequest::of_sets(self.collection, sets)
            .partition(self.partition)
            .primary_key(self.primary_key)
            .vchannels(vchannels)
    }
}

/// Asks for an import.
pub(crate) fn submit(
    desk: &Desk,
    asked: &Asked,
    wanted: Wanted,
    wait: Duration,
) -> Result<(Broadcaster, Broadcasted), Refusal> {
    let broadcaster = desk.broadcaster()?;
    wanted.check(desk, asked, &broadcaster)?;
    let request = wanted.request();
    let call = ImportCall::of(&*asked.principal)
        .key(asked.key.clone())
        .wait(Some(wait))
        .retry_failed(asked.retry_failed);
    let answer = desk.imports.submit(&broadcaster, request, &call).map_err(|e| refused(&e))?;
    Ok((broadcaster, answer))
}

/// Whether a source is by now unlike what the key of this answer stands for.
pub(crate) fn is_source_changed(
    desk: &Desk,
    broadcaster: &Broadcaster,
    answer: &Broadcasted,
) -> bool {
    answer.duplicated && desk.imports.is_source_changed_of(broadcaster, answer.id)
}

/// What is told of a job.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) job: ImportJob,
    pub(crate) expires_at_ms: Option<u64>,
}

impl Told {
    /// What is told of a job whose end is durable, or is told as one that has not ended.
    fn of(mut job: ImportJob, broadcaster: &Broadcaster, wait: Duration) -> Self {
        if job.over_at_ms.is_some() && broadcaster.jobs().wait(job.id, Some(wait)).is_err() {
            (job.phase, job.over_at_ms, job.progress) = (JobPhase::Committing, None, 99);
        }
        hide(&mut job, broadcaster);
        let expires_at_ms = broadcaster.read(|state, _| expiry(state, job.id));
        Self { job, expires_at_ms }
    }

    /// All of it.
    fn object(&self) -> Value {
        let job = &self.job;
        let mut object = self.summary();
        let files = job.files.iter().map(|file| {
            json!({
                "path": file.path.to_string_lossy(),
                "set": file.set,
                "state": file.phase.name(),
                "bytes": file.bytes,
                "rows": file.rows,
                "rows_total": file.rows_total,
                "reason": file.reason,
            })
        });
        let files = files.collect::<Vec<_>>();
        object.as_object_mut().map(|object| object.insert("files".into(), files.into()));
        object
    }

    /// What a list says of it.
    fn summary(&self) -> Value {
        let job = &self.job;
        json!({
            "job_id": job.id.to_string(),
            "collection": job.collection,
            "state": job.phase.name(),
            "progress": job.progress,
            "rows": job.rows,
            "rows_total": job.rows_total,
            "reason": job.reason,
            "stopped": job.stopped,
            "attempt": job.attempt,
            "file_count": job.file_count,
            "made_at": time(job.made_at_ms),
            "over_at": job.over_at_ms.map(time),
            "expires_at": self.expires_at_ms.map(time),
        })
    }
}

/// Hides the files of a job of the command line: their paths are absolute, and no affair of a client.
fn hide(job: &mut ImportJob, broadcaster: &Broadcaster) {
    for file in job.files.iter_mut().filter(|file| file.path.is_absolute()) {
        file.path = HIDDEN.into();
    }
    let reasons = job.files.iter_mut().map(|file| &mut file.reason);
    let reasons = reasons.chain([&mut job.reason]).chain(&mut job.stopped);
    let reasons: Vec<&mut String> = reasons.filter(|reason| !reason.is_empty()).collect();
    if reasons.is_empty() {
        return;
    }
    let record = broadcaster.read(|state, _| state.job(job.id).cloned());
    let mut paths = record.map(|record| paths_of_machine(&record)).unwrap_or_default();
    // One that begins as another does comes before it.
    paths.sort_unstable_by_key(|path| std::cmp::Reverse(path.len()));
    for reason in reasons {
        for path in &paths {
            if reason.contains(path) {
                *reason = reason.replace(path, HIDDEN);
            }
        }
    }
}

/// What stands for a path that no client may see.
const HIDDEN: &str = "(a file of this machine)";

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
    let unknown = || Refusal::new(&Row::NOT_FOUND, format!("no job {id} is known"));
    let is_others = broadcaster
        .read(|state, _| state.job(id).is_some_and(|job| principal_of(job) != principal));
    if is_others {
        return Err(unknown());
    }
    match desk.imports.look(broadcaster, id) {
        JobLook::Known(job) => Ok(Told::of(*job, broadcaster, SETTLES)),
        JobLook::Gone => {
            // Whether it was a job is kept no longer either.
            let what = format!("no job {id} is known: what had this identity is kept no longer");
            Err(Refusal::new(&Row::GONE, what))
        }
        JobLook::Never => Err(unknown()),
    }
}

/// Which jobs a client wants to see.
#[derive(Debug)]
pub(crate) struct Filter {
    principal: Arc<str>,
    /// The resource of the collection, where one is named; empty where there is none of its name.
    collection: Option<String>,
    state: Option<String>,
}

impl Filter {
    pub(crate) fn new(
        broadcaster: &Broadcaster,
        principal: &Arc<str>,
        collection: Option<&str>,
        state: Option<String>,
    ) -> Self {
        let id_of = |name: &str| {
            let id = broadcaster.read(|state, _| Some(state.collection_named(name)?.id));
            id.map(|id| id.to_string()).unwrap_or_default()
        };
        Self { principal: Arc::clone(principal), collection: collection.map(id_of), state }
    }

    pub(crate) fn takes(&self, job: &Job) -> bool {
        let is_of = |id: &String| {
            let mut held = job.accepted.header.resources.iter();
            held.any(|resource| resource.domain == "collection" && resource.key == *id)
        };
        principal_of(job) == &*self.principal
            && self.collection.as_ref().is_none_or(is_of)
            && self.state.as_ref().is_none_or(|state| *state == job.phase().name())
    }

    /// How many jobs there are.
    pub(crate) fn count(&self, broadcaster: &Broadcaster) -> usize {
        broadcaster.read(|state, _| state.jobs().filter(|(_, job)| self.takes(job)).count())
    }

    /// Jobs before one of them, the newest first, and where the next page begins.
    pub(crate) fn page(
        &self,
        desk: &Desk,
        broadcaster: &Broadcaster,
        before: Option<BroadcastId>,
        (skip, count): (usize, usize),
    ) -> (Vec<Told>, Option<BroadcastId>) {
        let wanted = |job: &Job| self.takes(job);
        let before = match skip.checked_sub(1) {
            None => before,
            Some(last) => broadcaster.read(|state, _| {
                let jobs = state.jobs_before(before.unwrap_or(BroadcastId(u64::MAX)));
                let last = jobs.filter(|job| self.takes(job)).nth(last).map(|job| job.id());
                // Behind the last job there is none.
                Some(last.unwrap_or(BroadcastId(0)))
            }),
        };
        let page = desk.imports.page(broadcaster, before, count, &wanted);
        (
            page.jobs.into_iter().map(|job| Told::of(job, broadcaster, Duration::ZERO)).collect(),
            page.next,
        )
    }
}

/// `POST /v1/jobs`.
pub(crate) fn create(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let members = asked.members()?;
    members.only(&["collection", "files", "partition", "primary_key", "vchannels"])?;
    let text = |name: &str| members.text(name).map(|text| text.map(str::to_owned));
    let sets = match (members.sets("files"), members.texts("files")) {
        (Ok(sets), _) => sets,
        (_, Ok(files)) => ImportRequest::sets_of(files),
        _ => return Err(wrong("files", "a list of texts, or a list of lists of texts")),
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
        drop(broadcaster.jobs().wait(answer.id, Some(wait)));
    }
    let told = find(desk, &broadcaster, &asked.principal, answer.id)?;
    let mut object = told.object();
    if let Some(members) = object.as_object_mut() {
        members.insert("duplicated".into(), json!(answer.duplicated));
        members.insert("clock_held".into(), json!(answer.clock_held));
        let is_changed = is_source_changed(desk, &broadcaster, &answer);
        members.insert("source_changed".into(), json!(is_changed));
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
    let limit = match asked.queried("limit")?.map(|text| text.parse::<u64>()) {
        None => PAGE,
        Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => limit,
        Some(_) => return Err(Refusal::invalid(format!("`limit`: expected 1 to {PAGE_MAX}"))),
    };
    let before = match asked.queried("before")? {
        None => None,
        Some(text) => {
            let id = identity(&text).ok_or_else(|| Refusal::invalid("`before`: expected a job"))?;
            Some(id)
        }
    };
    let collection = asked.queried("collection")?;
    let state = asked.queried("state")?;
    if state.as_ref().is_some_and(|state| !STATES.iter().any(|phase| phase.name() == state)) {
        let names = STATES.map(|phase| phase.name()).join(", ");
        return Err(Refusal::invalid(format!("`state`: expected one of {names}")));
    }
    let filter = Filter::new(&broadcaster, &asked.principal, collection.as_deref(), state);
    let count = usize::try_from(limit).unwrap_or(usize::MAX);
    let (told, next) = filter.page(desk, &broadcaster, before, (0, count));
    let jobs: Vec<Value> = told.iter().map(Told::summary).collect();
    let next = next.map(|id| id.to_string());
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
