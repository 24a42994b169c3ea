//! `oncelog import`: files into a collection, every row exactly once.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oncelog::CreateMode;
use oncelog::broadcast::check_client_key;
use oncelog::format::control::JobPhase;
use oncelog::import::{ImportCall, ImportProgress, ImportReport, ImportRequest};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::render::{self, Out, count};
use crate::value::wait;
use crate::writer::{Writer, WriterArgs};

/// Import files into a collection, every row exactly once, however often this is killed and run
/// again with the same key.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the store; made when it is absent or empty.
    dir: PathBuf,
    /// Files: .parquet, .csv with a header, .jsonl or .ndjson, .json (an array of objects, or an
    /// object with `rows`), .npy (a column each; those of one directory are one set of rows).
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The collection; made when it is absent.
    #[arg(long, value_name = "NAME")]
    collection: String,
    /// Idempotency key: 1 to 256 bytes of printable ASCII.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
    /// Vchannels of a collection that is made [default: 1].
    #[arg(long, value_name = "N")]
    vchannels: Option<u32>,
    /// Column that identifies a row; every row must have it.
    #[arg(long, value_name = "COLUMN")]
    primary_key: Option<String>,
    /// Try again what failed under this key.
    #[arg(long)]
    retry_failed: bool,
    /// Longest wait, such as 10m; without it there is no limit.
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    wait: Option<Duration>,
    #[command(flatten)]
    writer: WriterArgs,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    if let Some(key) = &args.key {
        check_client_key(key.as_bytes())?;
    }
    let request = ImportRequest::new(args.collection.clone(), args.files.clone())
        .primary_key(args.primary_key.clone())
        .vchannels(args.vchannels);
    let call = ImportCall::of(args.writer.principal.clone())
        .key(args.key.clone())
        .wait(args.wait)
        .retry_failed(args.retry_failed);
    let writer = Writer::open(&args.dir, &args.writer, CreateMode::IfMissing)?;
    let bar = bar();
    let report = writer.run(|writer| {
        let mut show = |progress| draw(&bar, progress);
        Ok(writer.imports.run(&writer.broadcaster, request, &call, &mut show)?)
    });
    bar.finish_and_clear();
    let report = match &args.key {
        Some(_) => report?,
        None => report.map_err(Failure::keyless_unless_refused)?,
    };
    let mut out = Out::new(json);
    if json {
        out.object(&object(&report))?;
    } else {
        out.line(&line(&report))?;
    }
    out.flush()?;
    let is_failed = report.phase == JobPhase::Failed;
    Ok(if is_failed { Exit::Failed } else { Exit::Clean })
}

/// A bar on standard error, where that is a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr_with_hz(10));
    let template = "{msg:14} [{bar:40}] {percent:>3}% {prefix}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| {
        // The template is a constant; a plain bar stands in for it all the same.
        ProgressStyle::default_bar()
    });
    bar.with_style(style.progress_chars("=> "))
}

fn draw(bar: &ProgressBar, progress: ImportProgress) {
    bar.set_message(progress.phase.name());
    bar.set_position(u64::from(progress.percent));
    let rows = count(progress.rows);
    bar.set_prefix(match progress.rows_total {
        Some(total) => format!("{rows} of {} rows", count(total)),
        None => format!("{rows} rows"),
    });
}

fn object(report: &ImportReport) -> Value {
    json!({
        "job_id": report.job.to_string(),
        "state": report.phase.name(),
        "rows": report.rows,
        "progress": report.progress,
        "duplicated": report.duplicated,
        "expires_at": report.expires_at_ms.map(render::time),
        "reason": report.reason,
        "source_changed": report.source_changed,
        "clock_held": report.clock_held,
    })
}

fn line(report: &ImportReport) -> String {
    let mut line = format!(
        "job {}: {}, {} rows, duplicated: {}",
        report.job,
        report.phase.name(),
        count(report.rows),
        report.duplicated
    );
    if let Some(at_ms) = report.expires_at_ms {
        render::write_to(&mut line, format_args!(", key expires {}", render::time(at_ms)));
    }
    if !report.reason.is_empty() {
        render::write_to(&mut line, format_args!(": {}", report.reason));
    }
    if report.source_changed {
        line.push_str("; a source is by now unlike what was imported");
    }
    line
}
