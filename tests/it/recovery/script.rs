//! The commands of a recovery script.
//!
//! ```text
//! append 3x100        three synced records of 100 bytes        trim 4      oldest LSN
//! batch 3x100         the same as one batch                    flush, sync, idle, close
//! buffer 3x100        one batch, buffered                      kill        ends the process
//! fill 64             a record that leaves 64 bytes            power       and loses the unsynced
//! full, space         no block is free, or all are             put NAME TEXT, rename A B, remove A
//! flip S:AT           flips a bit                              copy A B
//! zero S:AT+LEN       overwrites with zeros                    lock zeros, damaged, store, none
//! cut S AT            shortens the file to AT                  header S FIELD VALUE
//! open, open never, open full                                  slot S INDEX FIELD VALUE
//! ls                  names and lengths                        at MS       what the clock shows
//! kind 128 3x100      as append, of a kind                     file 2 PATH one of a kind, from a file
//! ls                  names and lengths                        step        of a removal
//! cursor NAME LSN     makes and advances it                    cursors     where they stand
//! refused trim LSN    why
//! ```
//!
//! `S` is the place of a segment in the order of names, from 0, or `tail`; for `flip`, `zero` and
//! `cut` also the name of a file. `AT` is an offset, `@7`
//! the frame of LSN 7, `end` the end of the file; each with `+N` or `-N` behind it. A command that
//! changes files ends the process first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncelog::io::{Io as _, OpenHow};
use oncelog::testing::{Machine, MemIo};
use oncelog::{
    Batch, Check, Clock, CreateMode, Durability, HolderKind, Log, Lsn, Options, RecordKind,
};
use oncelog_format::{Owner, SegmentHeader, Slot, Uuid, encode_lock, segment_name};

const DIR: &str = "/log";
const SEGMENT_BYTES: u64 = 65_536;

type Outcome<T> = Result<T, String>;

/// Shows what a script says.
#[derive(Debug, Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn wall_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.wall_ms())
    }
}

/// The state of a script.
pub(crate) struct Script {
    io: MemIo,
    clock: Arc<Hand>,
    log: Option<Log>,
    payloads: u8,
}

impl Script {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(Hand(AtomicU64::new(1_000_000)));
        Self { io: MemIo::default(), clock, log: None, payloads: 0 }
    }

    /// Ends the process; the machine as it is.
    pub(crate) fn end(mut self) -> Machine {
        self.end_process();
        self.io.machine()
    }

    /// Runs one command; what it prints.
    pub(crate) fn run(&mut self, words: &[&str]) -> Outcome<Vec<String>> {
        match words {
            ["append", what] => {
                let (count, len) = times(what)?;
                for _ in 0..count {
                    self.batch(1, len, Durability::Synced)?;
                }
            }
            ["kind", kind, what] => {
                let (count, len) = times(what)?;
                for _ in 0..count {
                    let payload = self.payload(len)?;
                    self.one(kind, &payload)?;
                }
            }
            ["file", kind, path] => {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
                self.one(kind, &std::fs::read(path).map_err(text)?)?;
            }
            ["at", ms] => self.clock.0.store(number(ms)?, Ordering::Relaxed),
            ["batch", what] => {
                let (count, len) = times(what)?;
                self.batch(count, len, Durability::Synced)?;
            }
            ["buffer", what] => {
                let (count, len) = times(what)?;
                self.batch(count, len, Durability::Buffered)?;
            }
            ["fill", left] => {
                let end = self.behind_last()?;
                let len = SEGMENT_BYTES - end - 32 - number(left)?;
                self.batch(1, len, Durability::Synced)?;
            }
            ["trim", lsn] => {
                let lsn = Lsn::new(number(lsn)?).ok_or("LSN 0")?;
                self.log()?.trim(lsn).map_err(text)?;
            }
            ["step"] | ["cursor" | "cursors" | "refused", ..] => return self.trimming(words),
            ["flush"] => self.log()?.flush().map_err(text)?,
            ["sync"] => self.log()?.sync().map(drop).map_err(text)?,
            ["idle"] => self.log()?.write_idle_slot().map_err(text)?,
            ["close"] => self.log.take().ok_or("not open")?.close().map_err(text)?,
            ["kill"] => self.end_process(),
            ["power"] => {
                self.end_process();
                self.io = MemIo::new(self.lost());
            }
            ["full"] => self.io.set_free_blocks(Some(0)),
            ["space"] => self.io.set_free_blocks(None),
            ["open"] => return Ok(self.open(CreateMode::IfMissing, Check::Tail)),
            ["open", "never"] => return Ok(self.open(CreateMode::Never, Check::Tail)),
            ["open", "full"] => return Ok(self.open(CreateMode::Never, Check::Full)),
            ["ls"] => return self.ls(),
            _ => self.damage(words)?,
        }
        Ok(Vec::new())
    }

    /// What holds records, and what becomes of trimmed files.
    fn trimming(&self, words: &[&str]) -> Outcome<Vec<String>> {
        match words {
            ["step"] => drop(self.log()?.remove_step().map_err(text)?),
            ["cursor", name, lsn] => {
                let lsn = Lsn::new(number(lsn)?).ok_or("LSN 0")?;
                self.log()?.cursor(name).and_then(|c| c.advance(lsn)).map_err(text)?;
            }
            ["cursors"] => {
                let held = self.log()?.why_not_trimmed().into_iter();
                let cursors = held.filter(|holder| holder.kind == HolderKind::Cursor);
                return Ok(cursors.map(|c| format!("{} at {}", c.name, c.lsn)).collect());
            }
            ["refused", "trim", lsn] => {
                let lsn = Lsn::new(number(lsn)?).ok_or("LSN 0")?;
                let e = self.log()?.trim(lsn).err().ok_or("not refused")?;
                let place = e.path().and_then(Path::file_name);
                let place = place.map(|name| name.display().to_string()).unwrap_or_default();
                return Ok(vec![format!("{} {place}", e.kind()).trim_end().to_owned()]);
            }
            _ => return Err("no such command".to_owned()),
        }
        Ok(Vec::new())
    }

    fn log(&self) -> Outcome<&Log> {
        self.log.as_ref().ok_or_else(|| "not open".to_owned())
    }

    fn end_process(&mut self) {
        self.io.kill();
        self.log = None;
        self.io = MemIo::new(self.io.machine());
    }

    /// The machine after a power loss that left nothing unsynced.
    fn lost(&self) -> Machine {
        let machine = self.io.machine();
        machine.power_loss(&machine.unsynced(), &[])
    }

    fn batch(&mut self, count: u64, len: u64, durability: Durability) -> Outcome<()> {
        let payloads: Vec<Vec<u8>> =
            (0..count).map(|_| self.payload(len)).collect::<Outcome<_>>()?;
        let records: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let batch = Batch { kind: RecordKind::RECORD, records: &records };
        self.log()?.append_batch(batch, durability).map(drop).map_err(text)
    }

    fn payload(&mut self, len: u64) -> Outcome<Vec<u8>> {
        self.payloads = self.payloads.wrapping_add(1);
        Ok(vec![self.payloads | 1; usize::try_from(len).map_err(text)?])
    }

    /// Appends one record of a kind.
    fn one(&self, kind: &str, payload: &[u8]) -> Outcome<()> {
        let kind = match kind {
            "1" => RecordKind::RECORD,
            "2" => RecordKind::MESSAGE,
            "3" => RecordKind::CONTROL,
            kind => {
                let kind = u8::try_from(number(kind)?).map_err(text)?;
                RecordKind::private(kind).ok_or("no kind of a caller")?
            }
        };
        let batch = Batch { kind, records: &[payload] };
        self.log()?.append_batch(batch, Durability::Synced).map(drop).map_err(text)
    }

    /// Offset behind the last durable frame.
    fn behind_last(&self) -> Outcome<u64> {
        let log = self.log()?;
        let mut reader = log.reader(log.oldest_lsn()).map_err(text)?;
        let mut end = 12_288;
        let mut segment = None;
        while let Some(found) = reader.next().map_err(text)? {
            end = found.offset + found.frame_bytes;
            segment = Some(found.segment);
        }
        // A segment without a record yet.
        let newest = self.segments()?.pop().unwrap_or_default();
        let number = segment.map_or(0, oncelog::SegmentId::get);
        Ok(if newest.starts_with(&format!("{number:010}-")) { end } else { 12_288 })
    }

    fn open(&mut self, create: CreateMode, check: Check) -> Vec<String> {
        self.log = None;
        let options = Options::new()
            .segment_bytes_max(SEGMENT_BYTES)
            .background(false)
            .removal_step_bytes(32_768)
            .create(create)
            .check(check)
            .clock(Arc::<Hand>::clone(&self.clock))
            .io(Arc::new(self.io.clone()));
        match Log::open(DIR, &options) {
            Ok((log, report)) => {
                let mut lines = vec![format!(
                    "ok: oldest {}, next {}, durable {}",
                    log.oldest_lsn(),
                    log.next_lsn(),
                    log.durable_lsn().map_or(0, Lsn::get)
                )];
                lines.extend(report.findings.iter().map(finding));
                self.log = Some(log);
                lines
            }
            Err(e) => {
                let shown = e.to_string();
                let what = shown.split(':').next().unwrap_or_default().to_owned();
                let place = e.path().and_then(Path::file_name).map(|n| n.display().to_string());
                let mut line = format!("{}: {what}, {}", e.kind(), place.unwrap_or_default());
                if let Some(offset) = e.offset() {
                    line.push_str(&format!(", offset {offset}"));
                }
                if let Some(lsn) = e.lsn() {
                    line.push_str(&format!(", LSN {lsn}"));
                }
                vec![line]
            }
        }
    }

    fn ls(&self) -> Outcome<Vec<String>> {
        let machine = self.io.machine();
        let mut lines = Vec::new();
        for entry in self.io.list(Path::new(DIR)).map_err(text)? {
            let len = machine.bytes(Path::new(DIR).join(&entry.name)).map_err(text)?.len();
            lines.push(format!("{} {len}", entry.name.display()));
        }
        lines.sort();
        Ok(lines)
    }

    /// Commands that change files behind the back of any process.
    fn damage(&mut self, words: &[&str]) -> Outcome<()> {
        let frames = self.frames();
        self.end_process();
        match words {
            ["flip", place] => self.edit(place, &frames, |bytes| {
                if let Some(byte) = bytes.first_mut() {
                    *byte ^= 1;
                }
            }),
            ["zero", place] => {
                let (place, len) = place.rsplit_once('+').ok_or("no length")?;
                let len = usize::try_from(number(len)?).map_err(text)?;
                self.edit(place, &frames, |bytes| bytes.iter_mut().take(len).for_each(|b| *b = 0))
            }
            ["cut", segment, at] => {
                let path = self.named(segment)?;
                let at = self.place(&path, at, &frames)?;
                let file = self.io.open(&path, OpenHow::ReadWrite).map_err(text)?;
                file.set_len(at).and_then(|()| file.sync()).map_err(text)
            }
            ["put", name, rest @ ..] => self.put(&at(name), rest.join(" ").as_bytes()),
            ["remove", name] => {
                let path = self.named(name)?;
                self.io.alter(|machine| machine.take(path)).map_err(text)
            }
            ["copy", name, to] => {
                let bytes = self.io.machine().bytes(self.named(name)?).map_err(text)?;
                self.put(&at(to), &bytes)
            }
            ["rename", name, to] => {
                let path = self.named(name)?;
                let bytes = self.io.machine().bytes(&path).map_err(text)?;
                self.put(&at(to), &bytes)?;
                self.io.alter(|machine| machine.take(path)).map_err(text)
            }
            ["lock", what] => self.lock(what),
            ["header", segment, field, value] => self.header(segment, field, number(value)?),
            ["slot", segment, index, field, value] => {
                let index = u32::try_from(number(index)?).map_err(text)?;
                self.slot(segment, index, field, number(value)?)
            }
            _ => Err("no such command".to_owned()),
        }
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> Outcome<()> {
        let _exists_already = self.io.create_dir(Path::new(DIR)).is_err();
        self.io.alter(|machine| machine.put(path, bytes)).map_err(text)
    }

    fn lock(&self, what: &str) -> Outcome<()> {
        let uuid = Uuid([7; 16]);
        let content = match what {
            "none" => return self.io.alter(|m| m.take(at("LOCK"))).map_err(text),
            "zeros" => [0; 32],
            "damaged" => {
                let mut content = encode_lock(Owner::Log, uuid);
                content[9] ^= 1;
                content
            }
            "log" => encode_lock(Owner::Log, uuid),
            "store" => encode_lock(Owner::Store, uuid),
            _ => return Err(format!("lock {what}?")),
        };
        let mut bytes = content.to_vec();
        bytes.resize(512, 0);
        self.put(&at("LOCK"), &bytes)
    }

    /// Writes a header and both slots again with another value in a field, under the right name.
    fn header(&self, segment: &str, field: &str, value: u64) -> Outcome<()> {
        let path = self.segment(segment)?;
        let mut bytes = self.io.machine().bytes(&path).map_err(text)?;
        // It may be of another version, from a step before.
        let mut known = bytes[..80].to_vec();
        (known[8], known[12]) = (1, 0);
        let crc = crc32(&known[..76]);
        known[76..].copy_from_slice(&crc.to_le_bytes());
        let mut header = SegmentHeader::decode(&known).map_err(text)?;
        match field {
            "number" => header.number = value,
            "uuid" => header.uuid = Uuid([u8::try_from(value).map_err(text)?; 16]),
            // These are checked before anything else is looked at.
            "major" | "incompat" => {}
            _ => return Err(format!("header {field}?")),
        }
        let mut encoded = header.encode();
        match field {
            "major" => encoded[8] = u8::try_from(value).map_err(text)?,
            "incompat" => encoded[12] = u8::try_from(value).map_err(text)?,
            _ => {}
        }
        let crc = crc32(&encoded[..76]);
        encoded[76..].copy_from_slice(&crc.to_le_bytes());
        bytes[..80].copy_from_slice(&encoded);
        for index in [0, 1] {
            let from = if index == 0 { 4096 } else { 8192 };
            let old = Slot::decode(&bytes[from..from + Slot::LEN], index);
            if let Ok(old) = old {
                let mut slot = Slot { header, ..old }.encode();
                slot[40..120].copy_from_slice(&encoded);
                let crc = crc32(&slot[..124]);
                slot[124..].copy_from_slice(&crc.to_le_bytes());
                bytes[from..from + Slot::LEN].copy_from_slice(&slot);
            }
        }
        self.io.alter(|machine| machine.take(&path)).map_err(text)?;
        self.put(&at(&segment_name(header.number, header.first_lsn)), &bytes)
    }

    fn slot(&self, segment: &str, index: u32, field: &str, value: u64) -> Outcome<()> {
        let path = self.segment(segment)?;
        let mut bytes = self.io.machine().bytes(&path).map_err(text)?;
        let from = if index == 0 { 4096 } else { 8192 };
        let mut slot = Slot::decode(&bytes[from..from + Slot::LEN], index).map_err(text)?;
        match field {
            "durable" => slot.durable_lsn = value,
            "oldest" => slot.oldest_lsn = value,
            "salt" => slot.header.salt = value,
            _ => return Err(format!("slot {field}?")),
        }
        bytes[from..from + Slot::LEN].copy_from_slice(&slot.encode());
        self.put(&path, &bytes)
    }

    /// Changes bytes from a place on.
    fn edit(
        &self,
        place: &str,
        frames: &BTreeMap<u64, u64>,
        change: impl FnOnce(&mut [u8]),
    ) -> Outcome<()> {
        let (segment, at) = place.split_once(':').ok_or("no place")?;
        let path = self.named(segment)?;
        let from = usize::try_from(self.place(&path, at, frames)?).map_err(text)?;
        let mut bytes = self.io.machine().bytes(&path).map_err(text)?;
        change(bytes.get_mut(from..).ok_or("behind the end")?);
        self.put(&path, &bytes)
    }

    /// Offsets of the frames, as a reader tells them.
    fn frames(&self) -> BTreeMap<u64, u64> {
        let mut found = BTreeMap::new();
        if let Some(log) = &self.log
            && let Ok(mut reader) = log.reader(log.oldest_lsn())
        {
            while let Ok(Some(record)) = reader.next() {
                found.insert(record.lsn.get(), record.offset);
            }
        }
        found
    }

    fn place(&self, path: &Path, at: &str, frames: &BTreeMap<u64, u64>) -> Outcome<u64> {
        let sign = at.find(['+', '-']).unwrap_or(at.len());
        let (base, offset) = at.split_at(sign);
        let base = match base.strip_prefix('@') {
            Some(lsn) => *frames.get(&number(lsn)?).ok_or("no such frame")?,
            None if base == "end" => self.io.machine().bytes(path).map_err(text)?.len() as u64,
            None => number(base)?,
        };
        match offset.split_at_checked(1) {
            Some(("+", n)) => Ok(base + number(n)?),
            Some(("-", n)) => Ok(base - number(n)?),
            _ => Ok(base),
        }
    }

    fn segments(&self) -> Outcome<Vec<String>> {
        let listed = self.io.list(Path::new(DIR)).map_err(text)?;
        let names = listed.into_iter().filter_map(|entry| entry.name.into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".seg")).collect();
        names.sort();
        Ok(names)
    }

    fn segment(&self, which: &str) -> Outcome<PathBuf> {
        let mut names = self.segments()?;
        let place = match which {
            "tail" => names.len().saturating_sub(1),
            place => usize::try_from(number(place)?).map_err(text)?,
        };
        if place >= names.len() {
            return Err(format!("no segment {which}"));
        }
        Ok(at(&names.swap_remove(place)))
    }

    /// A segment by its place, or any file by its name.
    fn named(&self, name: &str) -> Outcome<PathBuf> {
        self.segment(name).or_else(|_| Ok(at(name)))
    }
}

fn at(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn number(word: &str) -> Outcome<u64> {
    word.parse().map_err(|e| format!("{word}: {e}"))
}

/// `3x100` as its two numbers.
fn times(word: &str) -> Outcome<(u64, u64)> {
    let (count, len) = word.split_once('x').ok_or("expected COUNTxLEN")?;
    Ok((number(count)?, number(len)?))
}

fn finding(found: &oncelog::Finding) -> String {
    let severity = format!("{:?}", found.severity).to_lowercase();
    let name = found.path.file_name().map(|n| n.display().to_string()).unwrap_or_default();
    let mut line = format!("{} ({severity}): {name}", found.kind);
    if let Some(offset) = found.offset {
        line.push_str(&format!(", offset {offset}"));
    }
    if let Some(lsn) = found.lsn {
        line.push_str(&format!(", LSN {lsn}"));
    }
    line
}

/// CRC-32/ISO-HDLC, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 }
        })
    })
}
