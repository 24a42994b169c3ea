//! `oncelog verify`: every checksum and rule of a store, a log or a segment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog::broadcast::StoreView;
use oncelog::io::Io;
use oncelog::io::fs::FsIo;
use oncelog::{Error, ErrorKind, Finding, Place, PlaceKind, Severity, VerifySummary};
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::logs::{self, Seen};
use crate::render::{Out, count};

/// Check every checksum and rule; never writes, works beside a live writer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A store, a log or a segment.
    path: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let mut out = Out::new(json);
    let mut exit = Exit::Clean;
    let mut totals = Vec::new();
    for seen in logs::open(&args.path)? {
        let summary = verify(&seen, &mut out)?;
        exit = exit.max(logs::strict_exit(summary.severity));
        totals.push((seen, summary));
    }
    let damage = store_damage(&args.path, &totals)?;
    if let Some((severity, error)) = &damage {
        print_store(*severity, error, &mut out)?;
        exit = exit.max(logs::strict_exit(*severity));
    }
    print(&totals, damage.map(|(severity, _)| severity), &mut out)?;
    out.flush()?;
    Ok(exit)
}

/// What keeps writers out of a store although each of its logs may be whole: its lock file, a log
/// that is gone, a control record that does not decode.
fn store_damage(
    path: &Path,
    totals: &[(Seen, VerifySummary)],
) -> Result<Option<(Severity, Error)>, Failure> {
    let io: Arc<dyn Io> = Arc::new(FsIo::new());
    // Damage within a log has been told.
    let told = |(_, summary): &(Seen, VerifySummary)| summary.severity >= Severity::Unsupported;
    if Place::at(&*io, path)?.kind() != PlaceKind::Store || totals.iter().any(told) {
        return Ok(None);
    }
    match StoreView::open(path, io).and_then(|view| view.pchannels()) {
        Err(e) if e.kind() == ErrorKind::Corrupt => Ok(Some((Severity::Corrupt, e))),
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(Some((Severity::Unsupported, e))),
        // Its making was cut off.
        Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(None),
        Err(e) => Err(e.into()),
        Ok(_) => Ok(None),
    }
}

fn print_store(severity: Severity, error: &Error, out: &mut Out) -> Result<(), Failure> {
    let (word, path) = (logs::severity(severity), error.path().map(|path| path.display()));
    let consequence = "writers refuse the store";
    if !out.is_json() {
        return out.line(&format!("{word:<11} {error}; {consequence}"));
    }
    out.object(&json!({
        "kind": "store_damaged",
        "severity": word,
        "segment": path.map(|path| path.to_string()),
        "offset": error.offset(),
        "lsn": error.lsn(),
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

/// The summaries of several logs, then the one of all: a worst status, sums, and no LSNs.
fn print(
    totals: &[(Seen, VerifySummary)],
    damage: Option<Severity>,
    out: &mut Out,
) -> Result<(), Failure> {
    for (seen, summary) in totals {
        let mut object = serde_json::Map::new();
        seen.tag(&mut object);
        object.insert("status".into(), json!(logs::status(summary.severity)));
        object.insert("segments".into(), json!(summary.segments));
        object.insert("records".into(), json!(summary.records));
        object.insert("first_lsn".into(), json!(summary.first_lsn.map(oncelog::Lsn::get)));
        object.insert("last_lsn".into(), json!(summary.last_lsn.map(oncelog::Lsn::get)));
        object.insert("durable_lsn".into(), json!(summary.durable_lsn.map(oncelog::Lsn::get)));
        if out.is_json() {
            let key = if seen.name.is_empty() { "summary" } else { "log_summary" };
            out.object(&json!({ key: object }))?;
        } else {
            let name = if seen.name.is_empty() { "log" } else { &seen.name };
            out.line(&format!(
                "{name}: {}, {} records in {} segments, LSN {} to {}, durable {}",
                logs::status(summary.severity),
                count(summary.records),
                count(summary.segments),
                shown(summary.first_lsn),
                shown(summary.last_lsn),
                shown(summary.durable_lsn),
            ))?;
        }
    }
    let several = totals.is_empty() || totals.iter().any(|(seen, _)| !seen.name.is_empty());
    if several && out.is_json() {
        let severities = totals.iter().map(|(_, summary)| summary.severity).chain(damage);
        let worst = severities.max_by_key(|&severity| logs::strict_exit(severity));
        let status = worst.map_or("clean", logs::status);
        let segments: u64 = totals.iter().map(|(_, s)| s.segments).sum();
        let records: u64 = totals.iter().map(|(_, s)| s.records).sum();
        out.object(&json!({ "summary": {
            "status": status, "segments": segments, "records": records,
            "first_lsn": null, "last_lsn": null, "durable_lsn": null, "logs": totals.len(),
        }}))?;
    }
    Ok(())
}

fn shown(lsn: Option<oncelog::Lsn>) -> String {
    lsn.map_or_else(|| "-".into(), |lsn| lsn.to_string())
}
