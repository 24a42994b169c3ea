//! `oncelog replay`: committed rows or messages as data that others read.

use std::path::PathBuf;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oncelog::broadcast::StoreView;
use oncelog::import::{ReplayReport, ReplaySelection, replay};
use oncelog::io::Io;
use oncelog::io::fs::FsIo;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::render::{Out, count};

/// Write committed rows or messages to a file; never writes into the store, works beside a live
/// writer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the store.
    dir: PathBuf,
    /// Rows of this collection; of all without it.
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// What this vchannel holds.
    #[arg(long, value_name = "NAME")]
    vchannel: Option<String>,
    /// The file; its name ends in .jsonl, .csv or .parquet.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let io: Arc<dyn Io> = Arc::new(FsIo::new());
    let view = StoreView::open(&args.dir, Arc::clone(&io))?;
    let selection = ReplaySelection::new(args.collection.clone(), args.vchannel.clone());
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10))
        .with_style(ProgressStyle::default_bar());
    let report = replay(&view, &selection, &io, &args.out, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    print(&report?, args, json)?;
    Ok(Exit::Clean)
}

fn print(report: &ReplayReport, args: &Args, json: bool) -> Result<(), Failure> {
    let mut out = Out::new(json);
    let file = args.out.display().to_string();
    if json {
        out.object(&json!({
            "out": file,
            "rows": report.rows,
            "aborted_rows": report.aborted_rows,
            "pending_rows": report.pending_rows,
            "lost_messages": report.lost_messages,
        }))?;
    } else {
        out.line(&format!(
            "{file}: {} rows; left out: {} aborted, {} without a verdict",
            count(report.rows),
            count(report.aborted_rows),
            count(report.pending_rows)
        ))?;
        if report.lost_messages > 0 {
            let lost = count(report.lost_messages);
            out.line(&format!("{file}: left out: {lost} messages whose first chunks are trimmed"))?;
        }
    }
    out.flush()
}
