//! What the caller of a log may rely on, and the comparison with what a log holds (DESIGN's G1 to
//! G8).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::hold::Stands;
use oncelog::testing::Dice;
use oncelog::{Log, Lsn, Record};

/// Payloads that a thread keeps at most, of those that it made.
const MADE_MAX: usize = 256;

thread_local! {
    /// By number and length: most are handed to many logs, behind one crash of thousands.
    static MADE: RefCell<HashMap<(u64, usize), Payload>> = RefCell::default();
}

/// The bytes of a record.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    pub(crate) bytes: Arc<[u8]>,
    crc: u32,
}

impl Payload {
    fn new(number: u64, len: usize, stale: &[u8]) -> Self {
        let mut bytes = vec![0; len];
        let mut dice = Dice::new(number);
        match number % 4 {
            0 => {}
            1 => {
                let count = len.min(stale.len());
                bytes[..count].copy_from_slice(&stale[..count]);
            }
            _ => {
                for chunk in bytes.chunks_mut(8) {
                    let word = dice.roll().to_le_bytes();
                    chunk.copy_from_slice(&word[..chunk.len()]);
                }
            }
        }
        // The number makes it unlike all others where there is room.
        let name = number.to_le_bytes();
        let room = len.min(name.len());
        bytes[len - room..].copy_from_slice(&name[..room]);
        Self { crc: crc32fast::hash(&bytes), bytes: bytes.into() }
    }
}

/// One record that was handed to the log.
#[derive(Clone, Debug)]
pub(crate) struct Rec {
    pub(crate) payload: Payload,
    /// Last of its batch.
    pub(crate) last: bool,
    /// Digest of this record and all before it.
    digest: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It closed its log, or did not run yet.
    Close,
    /// It was killed; the machine went on.
    Kill,
    /// It was killed and the system dropped clean pages.
    Evict,
    /// The machine lost its power.
    Power,
}

/// What the caller knows about his log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    /// What each LSN holds if it is recovered; LSN 1 comes first. Shared by all states that agree on
    /// it.
    pub(crate) history: Arc<Vec<Rec>>,
    /// Last LSN that was acknowledged as durable, or served by an open.
    pub(crate) promised: u64,
    /// Last LSN that a flush has written: a kill alone does not lose it.
    pub(crate) written: u64,
    /// Oldest LSN that a returned trim made durable, and the one that was asked for.
    pub(crate) oldest: (u64, u64),
    /// Where the cursor stands.
    pub(crate) cursor: Stands,
    /// An open has returned.
    pub(crate) created: bool,
    /// A write-back failed, and nobody may have been told of it.
    pub(crate) failing: bool,
    /// Payloads made until here.
    pub(crate) payloads: u64,
}

/// How many records there are up to an LSN.
pub(crate) fn count_of(lsn: u64) -> usize {
    usize::try_from(lsn).unwrap()
}

impl Oracle {
    pub(crate) fn new() -> Self {
        Self { oldest: (1, 1), ..Self::default() }
    }

    /// A payload that no other record has. Some are zeros, so that a lost sector looks like one
    /// that was written, and some hold `stale` bytes of a segment, frames and all.
    pub(crate) fn payload(&mut self, len: usize, stale: &[u8]) -> Payload {
        self.payloads += 1;
        let number = self.payloads;
        if number % 4 == 1 {
            return Payload::new(number, len, stale);
        }
        MADE.with_borrow_mut(|made| {
            if made.len() > MADE_MAX {
                made.clear();
            }
            made.entry((number, len)).or_insert_with(|| Payload::new(number, len, &[])).clone()
        })
    }

    /// True when one of the next `count` payloads holds stale bytes.
    pub(crate) fn wants_stale(&self, count: usize) -> bool {
        (1..=count as u64).any(|k| (self.payloads + k) % 4 == 1)
    }

    pub(crate) fn push(&mut self, payload: Payload, last: bool) {
        let before = self.history.last().map_or(0, |rec| rec.digest);
        let record =
            u64::from(payload.crc) << 32 | payload.bytes.len() as u64 | u64::from(last) << 31;
        let digest = Dice::new(before.rotate_left(17) ^ record).roll();
        Arc::make_mut(&mut self.history).push(Rec { payload, last, digest });
    }

    /// Forgets the records behind an LSN.
    pub(crate) fn cut(&mut self, last: u64) {
        if last < self.last() {
            Arc::make_mut(&mut self.history).truncate(count_of(last));
        }
    }

    /// Forgets the last record.
    pub(crate) fn pop(&mut self) {
        self.cut(self.last().saturating_sub(1));
    }

    /// A digest of everything that a check looks at.
    pub(crate) fn digest(&self) -> u64 {
        let records = self.history.last().map_or(0, |rec| rec.digest);
        let state = u64::from(self.created) << 1 | u64::from(self.failing);
        [self.promised, self.written, self.oldest.0, self.oldest.1, self.cursor.digest(), state]
            .into_iter()
            .fold(records, |h, word| Dice::new(h ^ word).roll())
    }

    pub(crate) fn last(&self) -> u64 {
        self.history.len() as u64
    }

    /// Compares an open log with what its caller relies on, and takes over what it found.
    pub(crate) fn check(&mut self, log: &Log) -> Result<(), String> {
        let last = log.next_lsn().get() - 1;
        if last < self.promised {
            return Err(format!("G1: LSN {} was promised, {last} is the last left", self.promised));
        }
        if last < self.written {
            return Err(format!("G1: LSN {} was written, a kill left {last}", self.written));
        }
        if last > self.last() {
            return Err(format!("G3: {} records were appended, {last} are there", self.last()));
        }
        let oldest = log.oldest_lsn().get();
        if oldest < self.oldest.0 || oldest > self.oldest.1 {
            return Err(format!("G8: oldest is {oldest}, trims allow {:?}", self.oldest));
        }
        if last > 0 && !self.history[count_of(last) - 1].last {
            return Err(format!("G2: LSN {last} is the last left and not the last of its batch"));
        }
        let durable = log.durable_lsn().map_or(0, Lsn::get);
        if durable != last {
            return Err(format!("G1: {last} is served, {durable} is durable"));
        }
        self.check_records(log, oldest, last)?;
        self.cut(last);
        (self.promised, self.written) = (last, last);
        // Whether a trim that did not return holds, the first opening behind it decides.
        self.oldest = (oldest, oldest);
        self.created = true;
        Ok(())
    }

    fn check_records(&self, log: &Log, oldest: u64, last: u64) -> Result<(), String> {
        let lsn = Lsn::new(oldest).ok_or("G7: LSN 0")?;
        let mut reader = log.reader(lsn).map_err(|e| format!("G8: reader at {oldest}: {e}"))?;
        let (mut next, mut time_ms) = (oldest, 0);
        while let Some(found) = reader.next().map_err(|e| format!("G1: read at {next}: {e}"))? {
            self.check_record(&found, next, last)?;
            if found.time_ms < time_ms {
                return Err(format!("time runs backwards at LSN {next}"));
            }
            (next, time_ms) = (next + 1, found.time_ms);
        }
        if next != last + 1 {
            return Err(format!("G7: reading ends at LSN {}, {last} is the last", next - 1));
        }
        if let Some(below) = lsn.prev()
            && log.reader(below).map(drop).map_err(|e| e.kind()) != Err(oncelog::ErrorKind::Trimmed)
        {
            return Err(format!("G8: LSN {below} reads although {oldest} is the oldest"));
        }
        Ok(())
    }

    fn check_record(&self, found: &Record, next: u64, last: u64) -> Result<(), String> {
        if found.lsn.get() != next || next > last {
            return Err(format!("G7: expected LSN {next} of {last}, found {}", found.lsn));
        }
        let known = &self.history[count_of(next) - 1];
        if found.payload[..] != *known.payload.bytes {
            return Err(format!("G3: LSN {next} holds other bytes"));
        }
        if found.batch_end != known.last {
            return Err(format!("G2: LSN {next} ends its batch: {}", found.batch_end));
        }
        Ok(())
    }
}
