//! `oncelog verify`: every checksum and rule of a store, a log or a segment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog::broadcast::StoreView;
use oncelog::io::Io;
use oncelog::io::fs::FsIo;
use oncelog::{Error, ErrorKind, Finding, Lsn, Severity, VerifySummary};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::logs::{self, Seen};
use crate::render::{Out, things};

/// Check every checksum and rule; never writes, works beside a live writer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A store, a log or a segment.
    path: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let mut out = Out::new(json);
    let place = logs::open(&args.path)?;
    for finding in &place.findings {
        if json {
            out.object(&logs::finding_object(finding, ""))?;
        } else {
            out.line(&logs::finding_line(finding, ""))?;
        }
    }
    let mut worst = place.severity();
    let mut totals = Vec::new();
    for seen in place.logs {
        let summary = verify(&seen, &mut out)?;
        if logs::strict_exit(summary.severity) > logs::strict_exit(worst) {
            worst = summary.severity;
        }
        totals.push((seen, summary));
    }
    // Damage within a log was told.
    if place.is_store
        && worst < Severity::Unsupported
        && let Some((severity, error)) = store_damage(&args.path)?
    {
        print_store(severity, &error, &mut out)?;
        worst = severity;
    }
    for (seen, summary) in &totals {
        print(seen, summary, &mut out)?;
    }
    if place.is_store && json {
        out.object(&whole(&totals, worst))?;
    } else if place.is_store {
        out.line(&format!("store: {}", logs::status(worst)))?;
    }
    out.flush()?;
    Ok(logs::strict_exit(worst))
}

/// What keeps writers out of a store although each of its logs may be whole: its lock file, a log
/// that is gone, a control record that does not decode.
fn store_damage(path: &Path) -> Result<Option<(Severity, Error)>, Failure> {
    let io: Arc<dyn Io> = Arc::new(FsIo::new());
    let seen = StoreView::open(path, io).and_then(|view| view.pchannels());
    let Err(error) = seen else { return Ok(None) };
    match error.kind() {
        ErrorKind::Corrupt => Ok(Some((Severity::Corrupt, error))),
        ErrorKind::Unsupported => Ok(Some((Severity::Unsupported, error))),
        // Its making was cut off.
        ErrorKind::InvalidInput => Ok(None),
        _ => Err(error.into()),
    }
}

fn print_store(severity: Severity, error: &Error, out: &mut Out) -> Result<(), Failure> {
    let (word, consequence) = (logs::severity(severity), "writers refuse the store");
    if !out.is_json() {
        return out.line(&format!("{word:<11} {error}; {consequence}"));
    }
    out.object(&json!({
        "kind": "store_damaged",
        "severity": word,
        "segment": error.path().map(|path| path.display().to_string()),
        "offset": error.offset(),
        "lsn": error.lsn().map(Lsn::get),
        "expected": "",
        "found": error.to_string(),
        "consequence": consequence,
    }))
}

/// Prints the findings of one log.
fn verify(seen: &Seen, out: &mut Out) -> Result<VerifySummary, Failure> {
    let mut printed = Ok(());
    let summary = seen.view.verify(&mut |finding: &Finding| {
        if printed.is_ok() {
            printed = if out.is_json() {
                out.object(&seen.finding(finding))
            } else {
                out.line(&seen.finding_line(finding))
            };
        }
    })?;
    printed?;
    Ok(summary)
}

/// The summary of one log; of a store it is not the last line.
fn print(seen: &Seen, summary: &VerifySummary, out: &mut Out) -> Result<(), Failure> {
    let status = logs::status(summary.severity);
    if out.is_json() {
        let mut object = serde_json::Map::new();
        seen.tag(&mut object);
        object.insert("status".into(), json!(status));
        object.insert("segments".into(), json!(summary.segment_count));
        object.insert("records".into(), json!(summary.record_count));
        object.insert("first_lsn".into(), json!(summary.first_lsn.map(Lsn::get)));
        object.insert("last_lsn".into(), json!(summary.last_lsn.map(Lsn::get)));
        object.insert("durable_lsn".into(), json!(summary.proven_lsn.map(Lsn::get)));
        let key = if seen.name.is_empty() { "summary" } else { "log_summary" };
        return out.object(&json!({ key: object }));
    }
    let name = if seen.name.is_empty() { "log" } else { &seen.name };
    out.line(&format!(
        "{name}: {status}, {} in {}, LSN {} to {}, durable {}",
        things(summary.record_count, "record"),
        things(summary.segment_count, "segment"),
        shown(summary.first_lsn),
        shown(summary.last_lsn),
        shown(summary.proven_lsn),
    ))
}

/// The summary of a store: the worst status, sums, and no LSNs, which each log has of its own.
fn whole(totals: &[(Seen, VerifySummary)], worst: Severity) -> Value {
    let segments: u64 = totals.iter().map(|(_, summary)| summary.segment_count).sum();
    let records: u64 = totals.iter().map(|(_, summary)| summary.record_count).sum();
    json!({ "summary": {
        "status": logs::status(worst), "segments": segments, "records": records,
        "first_lsn": null, "last_lsn": null, "durable_lsn": null, "logs": totals.len(),
    }})
}

fn shown(lsn: Option<Lsn>) -> String {
    lsn.map_or_else(|| "-".into(), |lsn| lsn.to_string())
}
