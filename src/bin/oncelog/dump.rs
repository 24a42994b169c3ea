//! `oncelog dump`: the records of a store, a log or a segment.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use oncelog::broadcast::StoreView;
use oncelog::channel::Runs;
use oncelog::io::fs::FsIo;
use oncelog::{ErrorKind, Lsn, Record, Severity};
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure};
use crate::logs::{self, Logs, Seen, Verdict};
use crate::record::{self, PayloadArg};
use crate::render::{self, Out};
use crate::value::lsn;

/// Print records and messages; never writes, works beside a live writer.
///
/// Of a damaged log, every record before the damage is printed, then the error; of a store, the
/// other logs are printed all the same.
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
    /// Go on with what becomes durable, until interrupted; of a store, in the only pchannel or in
    /// that of --vchannel.
    #[arg(long)]
    follow: bool,
    /// Show valid records behind damage, too, marked; the exit code is still that of the damage.
    #[arg(long, conflicts_with = "follow")]
    skip_damage: bool,
    /// Show the chunks of messages as they stand, also those of a message that is not whole;
    /// without it, a message is shown once, where its last chunk stands.
    #[arg(long)]
    chunks: bool,
    /// How payloads are shown.
    #[arg(long, value_enum, default_value = "utf8")]
    payload: PayloadArg,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let mut out = Out::new(json);
    let mut place = logs::open(&args.path)?;
    if args.follow {
        let seen = followed(&mut place, args)?;
        dump(&seen, args, args.from, &mut out)?;
        out.flush()?;
        return follow(seen, args, &mut out);
    }
    let mut verdict = Verdict::new(&place);
    for seen in &place.logs {
        if !json && place.is_store {
            out.line(&format!("{}:", seen.name))?;
        }
        let end = dump(seen, args, args.from, &mut out);
        out.flush()?;
        verdict.add(seen, end.map(|_| ()))?;
    }
    verdict.end()
}

/// The one log to follow.
fn followed(place: &mut Logs, args: &Args) -> Result<Seen, Failure> {
    if !place.is_store {
        return place.logs.pop().ok_or_else(|| Failure::usage("there is no log"));
    }
    let pchannel = match &args.vchannel {
        Some(vchannel) => {
            let view = StoreView::open(&args.path, Arc::new(FsIo::new()))?;
            let found = view.state().pchannel_of(vchannel).map(logs::channel_name);
            Some(
                found
                    .ok_or_else(|| Failure::usage(format!("there is no vchannel `{vchannel}`")))?,
            )
        }
        None => None,
    };
    let is_wanted = |seen: &Seen| match &pchannel {
        Some(name) => seen.name == *name,
        None => seen.is_channel(),
    };
    let mut wanted: Vec<Seen> = std::mem::take(&mut place.logs);
    wanted.retain(is_wanted);
    match (wanted.pop(), wanted.is_empty()) {
        (Some(seen), true) => Ok(seen),
        _ => Err(Failure::Usage {
            message: "--follow takes one log: name a --vchannel, or the directory of a log".into(),
            path: Some(args.path.clone()),
        }),
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
    let mut reader = seen.view.reader(begin(seen, args, from))?;
    let mut whole = Whole::default();
    loop {
        let record = match reader.next() {
            Ok(Some(record)) => record,
            Ok(None) => return whole.end(next),
            // A writer trimmed what was not asked for by its LSN: what is left follows.
            Err(error) if may_go_on && error.kind() == ErrorKind::Trimmed => {
                may_go_on = false;
                let Some(oldest) = error.lsn() else { return Err(error.into()) };
                reader = seen.view.reader(Some(oldest))?;
                continue;
            }
            Err(error) => {
                if args.skip_damage && logs::is_damage(error.kind()) {
                    dump_behind(seen, args, reader.next_lsn(), out)?;
                }
                return Err(error.into());
            }
        };
        // Times never decrease: behind a later record there is none to be shown.
        let is_past = args.to.is_some_and(|to| record.lsn > to)
            || args.until.is_some_and(|until| record.time_ms > ms(until));
        if is_past || (args.follow && !record.durable) {
            return whole.end(next);
        }
        next = Some(record.lsn.next());
        let Some(shown) = whole.take(seen, args, record)? else { continue };
        if wanted(&shown.record, args) {
            print(seen, &shown, args, out)?;
        }
    }
}

/// Messages of one log, put together where they stand in chunks.
#[derive(Debug, Default)]
struct Whole {
    runs: Runs,
    /// What contradicted itself and was shown as it stands.
    first_damage: Option<Failure>,
}

impl Whole {
    /// What is shown for a record; nothing for a chunk of a message that is not whole.
    fn take(
        &mut self,
        seen: &Seen,
        args: &Args,
        mut record: Record,
    ) -> Result<Option<Shown>, Failure> {
        let of_message = record::message(&record);
        if args.chunks || of_message.is_none() {
            return Ok(Some(Shown::plain(record)));
        }
        let chunk = of_message.and_then(|message| message.chunk().ok().flatten());
        match self.runs.take(record.lsn, &record.payload, &mut &seen.view) {
            Ok(None) => Ok(None),
            Ok(Some(message)) => {
                record.payload = message;
                let chunks = chunk.map(|chunk| chunk.total());
                Ok(Some(Shown { chunks, ..Shown::plain(record) }))
            }
            // All that is left of it.
            Err(error) if error.kind() == ErrorKind::Trimmed => Ok(Some(Shown::plain(record))),
            Err(error) if args.skip_damage && logs::is_damage(error.kind()) => {
                self.first_damage.get_or_insert_with(|| error.into());
                Ok(Some(Shown::plain(record)))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn end(self, next: Option<Lsn>) -> Result<Option<Lsn>, Failure> {
        self.first_damage.map_or(Ok(next), Err)
    }
}

/// Where to read from: not before `--since`, unless damage hides where that is. Then everything up
/// to the damage is read, and its error told.
fn begin(seen: &Seen, args: &Args, from: Option<Lsn>) -> Option<Lsn> {
    if from.is_some_and(|from| from < seen.view.oldest_lsn()) {
        return from; // a gap, to be told
    }
    let since = args.since.and_then(|since| seen.view.seek_time(ms(since)).ok());
    from.max(since)
}

fn ms(time: Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

/// Prints what stands behind damage.
fn dump_behind(seen: &Seen, args: &Args, from: Lsn, out: &mut Out) -> Result<(), Failure> {
    let mut printed = Ok(());
    seen.view.behind_damage(from, &mut |record| {
        if args.to.is_some_and(|to| record.lsn > to) {
            return ControlFlow::Break(());
        }
        if wanted(&record, args) {
            let shown = Shown { behind_damage: true, ..Shown::plain(record) };
            printed = print(seen, &shown, args, out);
        }
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    printed
}

/// A record as it is printed.
#[derive(Debug)]
struct Shown {
    record: Record,
    /// Recovery would not reach it.
    behind_damage: bool,
    /// In how many chunks the message stands, of which this is the last that came.
    chunks: Option<u32>,
}

impl Shown {
    fn plain(record: Record) -> Self {
        Self { record, behind_damage: false, chunks: None }
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

fn print(seen: &Seen, shown: &Shown, args: &Args, out: &mut Out) -> Result<(), Failure> {
    if out.is_json() {
        out.object(&object(seen, shown, args))
    } else {
        out.line(&line(shown, args))
    }
}

fn object(seen: &Seen, shown: &Shown, args: &Args) -> Value {
    let record = &shown.record;
    let mut object = Map::new();
    object.insert("lsn".into(), json!(record.lsn.get()));
    seen.tag(&mut object);
    object.insert("segment".into(), json!(seen.segment(record)));
    object.insert("offset".into(), json!(record.offset));
    object.insert("bytes".into(), json!(record.frame_bytes));
    object.insert("time".into(), json!(render::time(record.time_ms)));
    object.insert("kind".into(), json!(record::kind(record.kind.as_u8())));
    object.insert("durable".into(), json!(record.durable));
    object.insert("batch_end".into(), json!(record.batch_end));
    if shown.behind_damage {
        object.insert("behind_damage".into(), json!(true));
    }
    if let Some(chunks) = shown.chunks {
        object.insert("chunks".into(), json!(chunks));
    }
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

fn line(shown: &Shown, args: &Args) -> String {
    let record = &shown.record;
    let mut line = format!(
        "{:>10}  {}  {:#010x}  {}",
        record.lsn.get(),
        render::time(record.time_ms),
        record.offset,
        record::kind(record.kind.as_u8()),
    );
    if !record.durable {
        line.push_str(" (not yet durable)");
    }
    if shown.behind_damage {
        line.push_str(" (behind damage)");
    }
    if let Some(chunks) = shown.chunks {
        render::write_to(&mut line, format_args!(" ({chunks} chunks)"));
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
