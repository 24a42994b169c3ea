//! `oncelog inspect`: a store, a log or a segment at a glance.

use std::path::PathBuf;
use std::sync::Arc;

use oncelog::broadcast::StoreView;
use oncelog::io::fs::FsIo;
use oncelog::{Holder, HolderKind, Lsn, SegmentInfo};
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure};
use crate::logs::{self, Seen};
use crate::render::{self, Out, count};

/// Show segments, ends and findings; never writes, works beside a live writer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A store, a log or a segment.
    path: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let mut out = Out::new(json);
    let place = logs::open(&args.path)?;
    let mut exit = logs::exit(place.severity());
    for finding in &place.findings {
        if json {
            out.object(&logs::finding_object(finding, ""))?;
        } else {
            out.line(&logs::finding_line(finding, ""))?;
        }
    }
    // A store whose control log is damaged has no pins that could be told.
    let looked = place.is_store.then(|| StoreView::open(&args.path, Arc::new(FsIo::new())));
    let (store, untold): (_, Option<Failure>) = match looked {
        Some(Ok(store)) => (Some(store), None),
        Some(Err(error)) if logs::is_damage(error.kind()) => (None, Some(error.into())),
        _ => (None, None),
    };
    for seen in place.logs {
        let usage = Use::of(store.as_ref(), &seen);
        if json {
            out.object(&log_object(&seen, &usage))?;
        } else {
            print(&seen, &usage, &mut out)?;
        }
        exit = exit.max(logs::exit(seen.view.severity()));
    }
    out.flush()?;
    match untold {
        // Unless a finding has said as much.
        Some(failure) if failure.exit() > exit => Err(failure),
        _ => Ok(exit),
    }
}

/// Work that needs records of a log, and from which LSN on.
#[derive(Debug)]
struct Pin {
    by: String,
    lsn: u64,
}

impl Pin {
    /// A file that is still to go pins nothing.
    fn of(holder: Holder) -> Option<Self> {
        let by = match holder.kind {
            HolderKind::Leftover => return None,
            HolderKind::Cursor => format!("{} {:?}", holder.kind, holder.name),
            _ => holder.name,
        };
        Some(Self { by, lsn: holder.lsn.get() })
    }
}

/// The control log of a store.
const CONTROL: &str = "control";

/// What the next open needs of control; nothing of one that is empty.
fn restart(store: &StoreView) -> oncelog::Result<Option<Pin>> {
    if store.control().last_lsn().is_none() {
        return Ok(None);
    }
    let (checkpoint, from) = store.restart_needs()?;
    let by = checkpoint.map_or_else(
        || "restart without two checkpoints".to_owned(),
        |lsn| format!("restart from the checkpoint at LSN {lsn}"),
    );
    Ok(Some(Pin { by, lsn: from.get() }))
}

/// What a store uses a log for.
#[derive(Debug, Default)]
struct Use {
    /// The vchannels that it carries.
    vchannels: Vec<String>,
    pins: Vec<Pin>,
}

impl Use {
    fn of(store: Option<&StoreView>, seen: &Seen) -> Self {
        let is_here = |pchannel: &str| logs::channel_name(pchannel) == seen.name;
        let all = store.iter().flat_map(|store| store.state().vchannels());
        let here = all.filter(|(_, pchannel)| is_here(pchannel));
        let vchannels = here.map(|(name, _)| name.to_owned()).collect();
        let pchannel = logs::pchannel(&seen.name);
        // Damage that keeps it from being told is a finding.
        let told = store.zip(pchannel).and_then(|(store, name)| store.why_not_trimmed(name).ok());
        let held = told.unwrap_or_else(|| seen.view.why_not_trimmed());
        let mut pins: Vec<Pin> = held.into_iter().filter_map(Pin::of).collect();
        if let Some(store) = store.filter(|_| seen.name == CONTROL) {
            pins.extend(restart(store).ok().flatten());
        }
        Self { vchannels, pins }
    }
}

/// Vchannels that are named in text; JSON has all of them.
const VCHANNELS_SHOWN: usize = 8;

fn log_object(seen: &Seen, usage: &Use) -> Value {
    let view = &seen.view;
    let mut object = Map::new();
    seen.tag(&mut object);
    object.insert("path".into(), json!(view.path().display().to_string()));
    object.insert("uuid".into(), json!(view.uuid().map(|uuid| uuid.to_string())));
    object.insert("status".into(), json!(logs::status(view.severity())));
    object.insert("oldest_lsn".into(), json!(view.oldest_lsn().get()));
    object.insert("last_lsn".into(), json!(view.last_lsn().map(Lsn::get)));
    object.insert("durable_lsn".into(), json!(view.proven_lsn().map(Lsn::get)));
    object.insert("file_bytes".into(), json!(file_bytes(seen)));
    let segments: Vec<Value> = view.segments().iter().map(|info| segment(seen, info)).collect();
    object.insert("segments".into(), json!(segments));
    let findings: Vec<Value> = view.findings().iter().map(|f| seen.finding(f)).collect();
    object.insert("findings".into(), json!(findings));
    if seen.is_channel() {
        object.insert("vchannels".into(), json!(usage.vchannels));
    }
    let pins: Vec<Value> =
        usage.pins.iter().map(|pin| json!({ "by": pin.by, "lsn": pin.lsn })).collect();
    object.insert("why_not_trimmed".into(), json!(pins));
    Value::Object(object)
}

fn segment(seen: &Seen, info: &SegmentInfo) -> Value {
    json!({
        "segment": seen.file(&info.path),
        "number": info.number.get(),
        "first_lsn": info.first_lsn.get(),
        "last_lsn": info.last_lsn.map(Lsn::get),
        "records": info.record_count,
        "file_bytes": info.file_bytes,
        "end_offset": info.end_offset,
        "dead_bytes": info.dead_bytes,
        "time_first": info.time_first_ms.map(render::time),
        "time_last": info.time_last_ms.map(render::time),
        "slot_counter": info.slot_counter,
        "slot_durable_lsn": info.slot_durable_lsn.map(Lsn::get),
        "footer": info.has_footer,
        "tail": info.is_tail,
    })
}

fn file_bytes(seen: &Seen) -> u64 {
    seen.view.segments().iter().map(|info| info.file_bytes).sum()
}

fn print(seen: &Seen, usage: &Use, out: &mut Out) -> Result<(), Failure> {
    let view = &seen.view;
    let name =
        if seen.name.is_empty() { view.path().display().to_string() } else { seen.name.clone() };
    let shown = |lsn: Option<Lsn>| lsn.map_or_else(|| "-".into(), |lsn| count(lsn.get()));
    out.line(&format!(
        "{name}: {}, LSN {} to {}, durable {}, {} bytes",
        logs::status(view.severity()),
        count(view.oldest_lsn().get()),
        shown(view.last_lsn()),
        shown(view.proven_lsn()),
        count(file_bytes(seen)),
    ))?;
    let segments = view.segments();
    if !segments.is_empty() {
        out.line(&format!(
            "  {:<35} {:>12} {:>12} {:>14} {:>12}  {}",
            "segment", "first", "last", "bytes", "end", "state"
        ))?;
    }
    for info in &segments {
        let name = info.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let state = match (info.is_tail, info.has_footer) {
            (true, true) => "tail, sealed",
            (true, false) => "tail",
            (false, true) => "sealed",
            (false, false) => "sealed, no footer",
        };
        out.line(&format!(
            "  {name:<35} {:>12} {:>12} {:>14} {:>12}  {state}",
            count(info.first_lsn.get()),
            shown(info.last_lsn),
            count(info.file_bytes),
            format!("{:#x}", info.end_offset),
        ))?;
    }
    if !usage.vchannels.is_empty() {
        let shown = usage.vchannels.iter().take(VCHANNELS_SHOWN).map(String::as_str);
        let mut text = shown.collect::<Vec<_>>().join(", ");
        if let Some(more) = usage.vchannels.len().checked_sub(VCHANNELS_SHOWN).filter(|n| *n > 0) {
            render::write_to(&mut text, format_args!(" and {more} more"));
        }
        out.line(&format!("  vchannels: {text}"))?;
    }
    for pin in &usage.pins {
        out.line(&format!("  {} needs LSN {} and later", pin.by, count(pin.lsn)))?;
    }
    for finding in view.findings() {
        out.line(&format!("  {}", seen.finding_line(finding)))?;
    }
    Ok(())
}
