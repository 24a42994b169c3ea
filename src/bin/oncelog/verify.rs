//! `oncelog verify`: every checksum and rule of a store, a log or a segment.

use std::path::PathBuf;

use oncelog::{Finding, VerifySummary};
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
    print(&totals, &mut out)?;
    out.flush()?;
    Ok(exit)
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
fn print(totals: &[(Seen, VerifySummary)], out: &mut Out) -> Result<(), Failure> {
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
    let several = totals.iter().any(|(seen, _)| !seen.name.is_empty());
    if several && out.is_json() {
        let worst = totals.iter().max_by_key(|(_, s)| logs::strict_exit(s.severity));
        let status = worst.map_or("clean", |(_, s)| logs::status(s.severity));
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
