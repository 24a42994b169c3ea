//! `oncelog jobs`: the jobs of a store, and cancelling one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncelog::broadcast::{BroadcastId, Job, State, StoreView};
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
        (None, Some(dir)) => show(dir, args.id.map(BroadcastId), json),
        (None, None) => Err(Failure::usage("a store is missing")),
    }
}

fn show(dir: &PathBuf, id: Option<BroadcastId>, json: bool) -> Result<Exit, Failure> {
    let view = StoreView::open(dir, Arc::new(FsIo::new()))?;
    let mut out = Out::new(json);
    let state = view.state();
    match id {
        Some(id) => {
            let Some(job) = state.job(id) else {
                return Err(Failure::Usage {
                    message: format!("no job {id} is known"),
                    path: Some(dir.clone()),
                });
            };
            print(job, state, &mut out)?;
        }
        None => {
            for (_, job) in state.jobs() {
                print(job, state, &mut out)?;
            }
        }
    }
    out.flush()?;
    Ok(Exit::Clean)
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
