//! `oncelog stats`: sizes, rates and histograms of a store, a log or a segment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use oncelog::broadcast::StoreView;
use oncelog::io::fs::FsIo;
use oncelog::{ErrorKind, Record};
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure};
use crate::logs::{self, Seen, Verdict};
use crate::record;
use crate::render::{self, Out, count, things};
use crate::work::Work;

/// Count records, bytes and times; never writes, works beside a live writer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A store, a log or a segment.
    path: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Exit, Failure> {
    let mut out = Out::new(json);
    let place = logs::open(&args.path)?;
    let mut verdict = Verdict::new(&place);
    let is_store = place.is_store;
    for seen in place.logs {
        let (seen, mut stats, mut end) = Stats::of(seen)?;
        if is_store && seen.name == "control" {
            match StoreView::open(&args.path, Arc::new(FsIo::new())) {
                Ok(store) => stats.work = Some(Work::of(&store)),
                // Damage of the log itself is told once.
                Err(error) => end = end.and(Err(error.into())),
            }
        }
        if json {
            out.object(&stats.object(&seen))?;
        } else {
            stats.print(&seen, &mut out)?;
        }
        out.flush()?;
        verdict.add(&seen, end)?;
    }
    verdict.end()
}

/// What is counted over the records of one log.
#[derive(Debug, Default)]
struct Stats {
    records: u64,
    batches: u64,
    payload_bytes: u64,
    frame_bytes: u64,
    time: Option<(u64, u64)>,
    kinds: BTreeMap<u8, u64>,
    /// Of messages and control records; at most [`NAMES_MAX`] names, so that memory does not grow
    /// with the log.
    types: BTreeMap<String, u64>,
    vchannels: BTreeMap<String, u64>,
    /// Payloads by the number of bits of their length.
    sizes: BTreeMap<u32, u64>,
    batch_sizes: BTreeMap<u32, u64>,
    open_batch: u64,
    /// Of the control log of a store.
    work: Option<Work>,
}

/// Names that are counted apart; further ones count as `others`.
const NAMES_MAX: usize = 1_024;

/// Most looks at a log that a writer trims meanwhile.
const LOOKS_MAX: u32 = 16;

impl Stats {
    /// What a log comes to; one that a writer has trimmed meanwhile is looked at again.
    fn of(mut seen: Seen) -> Result<(Seen, Self, Result<(), Failure>), Failure> {
        let mut looks = 1;
        loop {
            let mut stats = Self::default();
            let end = stats.read(&seen);
            let outrun = matches!(&end, Err(Failure::Library(e)) if e.kind() == ErrorKind::Trimmed);
            if !outrun || looks >= LOOKS_MAX {
                return Ok((seen, stats, end));
            }
            seen = Seen::new(seen.name, seen.view.look_again()?);
            looks += 1;
        }
    }

    fn read(&mut self, seen: &Seen) -> Result<(), Failure> {
        let mut reader = seen.view.reader(None)?;
        while let Some(record) = reader.next()? {
            self.count(&record);
        }
        Ok(())
    }

    fn count(&mut self, record: &Record) {
        self.records += 1;
        self.payload_bytes += record.payload.len() as u64;
        self.frame_bytes += record.frame_bytes;
        let first = self.time.map_or(record.time_ms, |(first, _)| first);
        self.time = Some((first, record.time_ms));
        *self.kinds.entry(record.kind.as_u8()).or_default() += 1;
        *self.sizes.entry(bits(record.payload.len() as u64)).or_default() += 1;
        self.open_batch += 1;
        if record.batch_end {
            self.batches += 1;
            *self.batch_sizes.entry(bits(self.open_batch)).or_default() += 1;
            self.open_batch = 0;
        }
        if let Some(name) = record::type_of(record) {
            add(&mut self.types, &name);
        }
        if let Some(message) = record::message(record) {
            let name = record::text(&message, record::VCHANNEL);
            add(&mut self.vchannels, &name.unwrap_or_else(|| "-".into()));
        }
    }

    fn seconds(&self) -> Option<f64> {
        let (first, last) = self.time?;
        Some(std::time::Duration::from_millis(last.saturating_sub(first)).as_secs_f64())
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
    fn rate(&self, of: u64) -> Option<f64> {
        let seconds = self.seconds().filter(|seconds| *seconds > 0.0)?;
        Some((of as f64 / seconds * 1000.0).round() / 1000.0)
    }

    fn object(&self, seen: &Seen) -> Value {
        let segments = seen.view.segments();
        let mut object = Map::new();
        seen.tag(&mut object);
        object.insert("segments".into(), json!(segments.len()));
        let file_bytes: u64 = segments.iter().map(|info| info.file_bytes).sum();
        object.insert("file_bytes".into(), json!(file_bytes));
        object.insert("records".into(), json!(self.records));
        object.insert("batches".into(), json!(self.batches));
        object.insert("payload_bytes".into(), json!(self.payload_bytes));
        object.insert("frame_bytes".into(), json!(self.frame_bytes));
        object.insert("time_first".into(), json!(self.time.map(|time| render::time(time.0))));
        object.insert("time_last".into(), json!(self.time.map(|time| render::time(time.1))));
        object.insert("records_per_second".into(), json!(self.rate(self.records)));
        object.insert("bytes_per_second".into(), json!(self.rate(self.frame_bytes)));
        let kinds: Map<String, Value> =
            self.kinds.iter().map(|(kind, n)| (record::kind(*kind), json!(n))).collect();
        object.insert("kinds".into(), Value::Object(kinds));
        object.insert("types".into(), json!(self.types));
        object.insert("vchannels".into(), json!(self.vchannels));
        object.insert("payload_histogram".into(), histogram(&self.sizes));
        object.insert("batch_histogram".into(), histogram(&self.batch_sizes));
        if let Some(work) = &self.work {
            work.insert_into(&mut object);
        }
        Value::Object(object)
    }

    fn print(&self, seen: &Seen, out: &mut Out) -> Result<(), Failure> {
        let name = if seen.name.is_empty() {
            seen.view.path().display().to_string()
        } else {
            seen.name.clone()
        };
        out.line(&format!(
            "{name}: {} in {}, {} payload bytes in {} frame bytes",
            things(self.records, "record"),
            if self.batches == 1 { "1 batch".into() } else { count(self.batches) + " batches" },
            count(self.payload_bytes),
            count(self.frame_bytes),
        ))?;
        if let Some((first, last)) = self.time {
            let rate = self.rate(self.records).map_or_else(String::new, |r| format!(", {r}/s"));
            out.line(&format!("  time {} to {}{rate}", render::time(first), render::time(last)))?;
        }
        let mut rows: Vec<(String, u64)> = Vec::new();
        rows.extend(
            self.kinds.iter().map(|(kind, n)| (format!("kind {}", record::kind(*kind)), *n)),
        );
        rows.extend(self.types.iter().map(|(name, n)| (format!("type {name}"), *n)));
        rows.extend(self.vchannels.iter().map(|(name, n)| (format!("vchannel {name}"), *n)));
        rows.extend(
            self.sizes.iter().map(|(bits, n)| (format!("payload of {} bytes", range(*bits)), *n)),
        );
        rows.extend(
            self.batch_sizes.iter().map(|(bits, n)| (format!("batch of {}", records(*bits)), *n)),
        );
        for (what, n) in rows {
            out.line(&format!("  {what:<40} {:>14}", count(n)))?;
        }
        self.work.as_ref().map_or(Ok(()), |work| work.print(out))
    }
}

fn add(names: &mut BTreeMap<String, u64>, name: &str) {
    if let Some(n) = names.get_mut(name) {
        *n += 1;
    } else {
        let name = if names.len() < NAMES_MAX { name } else { "others" };
        *names.entry(name.into()).or_default() += 1;
    }
}

fn records(bits: u32) -> String {
    if high(bits) == 1 { "1 record".into() } else { range(bits) + " records" }
}

fn range(bits: u32) -> String {
    let (low, high) = (low(bits), high(bits));
    if low == high { count(low) } else { format!("{} to {}", count(low), count(high)) }
}

/// Bits of a number: 0 for 0, 1 for 1, 2 for 2 and 3, and so on.
fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

fn low(bits: u32) -> u64 {
    bits.checked_sub(1).map_or(0, |shift| 1_u64.checked_shl(shift).unwrap_or(u64::MAX))
}

fn high(bits: u32) -> u64 {
    1_u64.checked_shl(bits).map_or(u64::MAX, |next| next - 1)
}

fn histogram(sizes: &BTreeMap<u32, u64>) -> Value {
    sizes
        .iter()
        .map(|(bits, n)| json!({ "from": low(*bits), "to": high(*bits), "count": n }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        for number in [0, 1, 2, 3, 4, 255, 256, u64::MAX] {
            let bits = bits(number);
            assert!(low(bits) <= number && number <= high(bits), "{number}");
        }
    }
}
