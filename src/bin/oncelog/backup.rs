//! `oncelog backup`: a consistent copy of one log, also while it is written.

use std::path::PathBuf;
use std::sync::Arc;

use oncelog::io::fs::FsIo;
use oncelog::{LogView, Lsn};
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::render::{Out, count};

/// Copy one log into a directory that is absent or empty (never writes to the log, works beside a
/// live writer).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log.
    log: PathBuf,
    /// Directory of the copy: a log of its own, with an identity of its own.
    dest: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let view = LogView::open(&args.log, Arc::new(FsIo::new()))?;
    let report = view.backup(&args.dest)?;
    let mut out = Out::new(json);
    let path = args.dest.display().to_string();
    if out.is_json() {
        out.object(&json!({
            "path": path,
            "uuid": report.uuid.to_string(),
            "oldest_lsn": report.oldest_lsn.get(),
            "last_lsn": report.last_lsn.map(Lsn::get),
            "segments": report.segment_count,
            "bytes": report.bytes,
        }))?;
    } else {
        let last = report.last_lsn.map_or_else(|| "none".to_owned(), |last| count(last.get()));
        let oldest = count(report.oldest_lsn.get());
        let (segments, bytes) = (count(report.segment_count), count(report.bytes));
        out.line(&format!(
            "{path}: oldest LSN {oldest}, last {last}; {segments} segments, {bytes} bytes"
        ))?;
    }
    out.flush()?;
    Ok(Exit::Clean)
}
