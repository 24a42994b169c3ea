//! `oncelog jobs`: the jobs of a store, and cancelling one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncelog::broadcast::{BroadcastId, Job, State, StoreView};
use oncelog::import::{ImportFile, ImportJob, JobLook};
use oncelog::io::fs::FsIo;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::render::{self, Out, count};
use crate::value::wait;
use crate::writer::{Writer, WriterArgs};

/// Show jobs (never writes, works beside a live writer), or cancel one.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Directory of the store.
    #[arg(required = true)]
    dir: Option<PathBuf>,
    /// The job; all jobs without it.
    id: Option<u64>,
    /// The jobs that were asked for after this one.
    #[arg(long, value_name = "ID", conflicts_with = "id")]
    after: Option<u64>,
    /// So many jobs at most; the last one is where the next page begins (`--after`).
    #[arg(long, value_name = "N", conflicts_with = "id")]
    limit: Option<usize>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Abort a job, unless its commit was accepted before.
    Cancel {
        /// Directory of the store.
        dir: PathBuf,
        /// The job.
        id: u64,
        /// Longest wait, such as 30s; without it there is no limit.
        #[arg(long, value_name = "DURATION", value_parser = wait)]
        wait: Option<Duration>,
        #[command(flatten)]
        writer: WriterArgs,
    },
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    match (&args.verb, &args.dir) {
        (Some(Verb::Cancel { dir, id, wait, writer }), _) => {
            let writer = Writer::open_unswept(dir, writer)?;
            writer.run(|writer| cancel(writer, BroadcastId(*id), *wait, json))
        }
        (None, Some(dir)) => {
            let view = StoreView::open(dir, Arc::new(FsIo::new()))?;
            let mut out = Out::new(json);
            match args.id {
                Some(id) => show(dir, view.state(), BroadcastId(id), &mut out)?,
                None => list(view.state(), args, &mut out)?,
            }
            out.flush()?;
            Ok(Exit::Clean)
        }
        (None, None) => Err(Failure::usage("a store is missing")),
    }
}

fn list(state: &State, args: &Args, out: &mut Out) -> Result<(), Failure> {
    let after = BroadcastId(args.after.unwrap_or(0));
    let jobs = state.jobs().filter(|(id, _)| *id > after);
    for (_, job) in jobs.take(args.limit.unwrap_or(usize::MAX)) {
        print(job, state, out)?;
    }
    Ok(())
}

/// One job, file by file.
fn show(dir: &Path, state: &State, id: BroadcastId, out: &mut Out) -> Result<(), Failure> {
    let Some(job) = state.job(id) else {
        let message = match JobLook::of(state, id) {
            JobLook::Gone => format!("the record of job {id} is gone: nothing keeps it any more"),
            _ => format!("there never was a job {id}"),
        };
        return Err(Failure::Usage { message, path: Some(dir.to_owned()) });
    };
    let files = ImportJob::of(job).files;
    if out.is_json() {
        let mut object = object(job, state);
        let files = files.iter().map(file_object).collect::<Vec<_>>();
        object.as_object_mut().map(|object| object.insert("file_list".to_owned(), files.into()));
        return out.object(&object);
    }
    out.line(&line(job))?;
    files.iter().try_for_each(|file| out.line(&file_line(file)))
}

fn file_object(file: &ImportFile) -> Value {
    json!({
        "path": file.path.to_string_lossy(),
        "set": file.set,
        "state": file.phase.name(),
        "bytes": file.bytes,
        "rows": file.rows,
        "rows_total": file.rows_total,
        "reason": file.reason,
    })
}

fn file_line(file: &ImportFile) -> String {
    let mut line = format!("  {}: {}", file.path.display(), file.phase.name());
    if let Some(total) = file.rows_total {
        let (rows, total) = (count(file.rows), count(total));
        render::write_to(&mut line, format_args!(", {rows} of {total} rows"));
    }
    line
}

/// Cancelling a job that has failed is success; one that had committed stays, which is a failure.
fn cancel(
    writer: &Writer,
    id: BroadcastId,
    wait: Option<Duration>,
    json: bool,
) -> Result<Exit, Failure> {
    let job = writer.imports.cancel(&writer.broadcaster, id, wait)?;
    let mut out = Out::new(json);
    writer.broadcaster.read(|state, _| print(&job, state, &mut out))?;
    out.flush()?;
    Ok(match job.over {
        Some((true, _)) => Exit::Failed,
        _ => Exit::Clean,
    })
}

fn print(job: &Job, state: &State, out: &mut Out) -> Result<(), Failure> {
    if out.is_json() { out.object(&object(job, state)) } else { out.line(&line(job)) }
}

fn object(job: &Job, state: &State) -> Value {
    let task = state.task(job.id());
    let said = job.state.as_ref();
    let is_over = job.over.is_some();
    let files = job.plan.as_ref().map(|plan| plan.files.len());
    json!({
        "job_id": job.id().to_string(),
        "state": job.phase().name(),
        "rows": said.map_or(0, |said| said.rows),
        "progress": if is_over { 100 } else { said.map_or(0, |said| said.progress) },
        "duplicated": false,
        "expires_at": task.and_then(|task| task.promised_until_ms()).map(render::time),
        "reason": job.reason(),
        "attempt": job.attempt,
        "files": files,
        "made_at": render::time(job.made_at_ms),
        "over_at": job.over.map(|(_, at_ms)| render::time(at_ms)),
    })
}

fn line(job: &Job) -> String {
    let mut line = format!("job {}: {}", job.id(), job.phase().name());
    if let Some(said) = &job.state {
        render::write_to(&mut line, format_args!(", {} rows", count(said.rows)));
    }
    if !job.reason().is_empty() {
        render::write_to(&mut line, format_args!(": {}", job.reason()));
    }
    line
}
