//! `oncelog dump`: the records of a store, a log or a segment.

use std::path::PathBuf;

use jiff::Timestamp;
use oncelog::{ErrorKind, Lsn, Record, Severity};
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure};
use crate::logs::{self, Seen};
use crate::record::{self, PayloadArg};
use crate::render::{self, Out};
use crate::value::lsn;

/// Print records and messages; never writes, works beside a live writer.
///
/// Of a damaged log, every record before the damage is printed, then the error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A store, a log or a segment.
    path: PathBuf,
    /// First LSN.
    #[arg(long, value_name = "LSN", value_parser = lsn)]
    from: Option<Lsn>,
    /// Last LSN, inclusive.
    #[arg(long, value_name = "LSN", value_parser = lsn)]
    to: Option<Lsn>,
    /// Records of this time or later, such as 2026-01-31T10:00:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Records of this time or earlier.
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// Messages and control records of this type.
    #[arg(long = "type", value_name = "TYPE")]
    of_type: Option<String>,
    /// Messages of this vchannel.
    #[arg(long, value_name = "NAME")]
    vchannel: Option<String>,
    /// Messages whose idempotency key is this.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Go on with what becomes durable, until interrupted.
    #[arg(long)]
    follow: bool,
    /// How payloads are shown.
    #[arg(long, value_enum, default_value = "utf8")]
    payload: PayloadArg,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let mut out = Out::new(json);
    let place = logs::open(&args.path)?;
    let damage = place.findings.iter().find(|finding| finding.severity == Severity::Corrupt);
    let mut exit = Exit::Clean;
    let mut logs = place.logs;
    if args.follow && logs.len() != 1 {
        return Err(Failure::usage("--follow takes one log, not a store"));
    }
    for seen in &logs {
        let end = dump(seen, args, args.from, &mut out);
        out.flush()?;
        end?;
        exit = exit.max(logs::exit(seen.view.severity()));
    }
    if let Some(damage) = damage {
        return Err(damage.to_error().into());
    }
    match logs.pop() {
        Some(seen) if args.follow => follow(seen, args, &mut out),
        _ => Ok(exit),
    }
}

/// Prints a log up to its end, or to what a follower may see, and says where it goes on.
fn dump(
    seen: &Seen,
    args: &Args,
    from: Option<Lsn>,
    out: &mut Out,
) -> Result<Option<Lsn>, Failure> {
    let mut next = from;
    let mut may_go_on = from.is_none();
    let mut reader = seen.view.reader(from)?;
    loop {
        let record = match reader.next() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(next),
            // A writer trimmed what was not asked for by its LSN: what is left follows.
            Err(error) if may_go_on && error.kind() == ErrorKind::Trimmed => {
                may_go_on = false;
                let Some(oldest) = error.lsn().and_then(Lsn::new) else { return Err(error.into()) };
                reader = seen.view.reader(Some(oldest))?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let is_past = args.to.is_some_and(|to| record.lsn > to);
        if is_past || (args.follow && !record.durable) {
            return Ok(next);
        }
        next = Some(record.lsn.next());
        if wanted(&record, args) {
            print(seen, &record, args, out)?;
        }
    }
}

/// Looks again and again, and prints what has become durable.
fn follow(first: Seen, args: &Args, out: &mut Out) -> Result<Exit, Failure> {
    let mut next = dump_position(&first, args);
    let mut seen = first;
    loop {
        if args.to.is_some_and(|to| next.is_some_and(|next| next > to)) {
            return Ok(Exit::Clean);
        }
        if !seen.view.wait_changed()? {
            continue;
        }
        seen = Seen::new(seen.name, seen.view.look_again()?);
        if seen.view.severity() >= Severity::Unsupported {
            return Ok(logs::exit(seen.view.severity()));
        }
        next = dump(&seen, args, next, out)?.or(next);
        out.flush()?;
    }
}

/// Where a first dump of durable records ended.
fn dump_position(seen: &Seen, args: &Args) -> Option<Lsn> {
    let behind = seen.view.proven_lsn().map(Lsn::next);
    behind.max(args.from)
}

fn wanted(record: &Record, args: &Args) -> bool {
    let ms = |time: Timestamp| u64::try_from(time.as_millisecond()).unwrap_or(0);
    if args.since.is_some_and(|since| record.time_ms < ms(since))
        || args.until.is_some_and(|until| record.time_ms > ms(until))
    {
        return false;
    }
    let is = |wanted: &Option<String>, found: &dyn Fn() -> Option<String>| {
        wanted.as_ref().is_none_or(|wanted| found().as_ref() == Some(wanted))
    };
    is(&args.of_type, &|| record::type_of(record))
        && is(&args.vchannel, &|| record::text(&record::message(record)?, record::VCHANNEL))
        && is(&args.key, &|| record::client_key(&record::message(record)?))
}

fn print(seen: &Seen, record: &Record, args: &Args, out: &mut Out) -> Result<(), Failure> {
    if out.is_json() {
        out.object(&object(seen, record, args))
    } else {
        out.line(&line(record, args))
    }
}

fn object(seen: &Seen, record: &Record, args: &Args) -> Value {
    let mut object = Map::new();
    object.insert("lsn".into(), json!(record.lsn.get()));
    seen.tag(&mut object);
    object.insert("segment".into(), json!(seen.segment(record)));
    object.insert("offset".into(), json!(record.offset));
    object.insert("bytes".into(), json!(record.frame_bytes));
    object.insert("time".into(), json!(render::time(record.time_ms)));
    object.insert("kind".into(), json!(record::kind(record.kind)));
    object.insert("durable".into(), json!(record.durable));
    object.insert("batch_end".into(), json!(record.batch_end));
    let message = record::message(record);
    let bytes = message.as_ref().map_or(&record.payload[..], |message| message.payload());
    if let Some(name) = record::type_of(record) {
        object.insert("type".into(), json!(name));
    }
    if let Some(message) = &message {
        object.insert("vchannel".into(), json!(record::text(message, record::VCHANNEL)));
        object.insert("properties".into(), record::properties(message));
    }
    if let Some((text, is_lossy)) = record::payload(bytes, args.payload) {
        object.insert("payload".into(), json!(text));
        if is_lossy {
            object.insert("payload_lossy".into(), json!(true));
        }
    }
    Value::Object(object)
}

fn line(record: &Record, args: &Args) -> String {
    let mut line = format!(
        "{:>10}  {}  {:#010x}  {}",
        record.lsn.get(),
        render::time(record.time_ms),
        record.offset,
        record::kind(record.kind),
    );
    if !record.durable {
        line.push_str(" (not yet durable)");
    }
    let message = record::message(record);
    let bytes = message.as_ref().map_or(&record.payload[..], |message| message.payload());
    if let Some(name) = record::type_of(record) {
        render::write_to(&mut line, format_args!("  {name}"));
    }
    if let Some(vchannel) = message.and_then(|message| record::text(&message, record::VCHANNEL)) {
        render::write_to(&mut line, format_args!(" on {vchannel}"));
    }
    match record::payload(bytes, args.payload) {
        // Bytes that are no text say nothing as text.
        Some((text, is_lossy)) if is_lossy || text.contains('\0') => {
            render::write_to(&mut line, format_args!("  ({} bytes)", bytes.len()));
        }
        Some((text, _)) => render::write_to(&mut line, format_args!("  {text}")),
        None => {}
    }
    line
}
