//! What the callers of a log know, and its comparison with what the log holds after a power cut or
//! a kill. Contents are compared, never answers alone.

use std::collections::{BTreeMap, HashMap};

use oncelog::testing::Dice;
use oncelog::{Log, LsnRange};

/// A batch that a writer of a run has made: the run, the writer, the how-manieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BatchId {
    pub(crate) run: u32,
    pub(crate) writer: u32,
    pub(crate) seq: u32,
}

/// A record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RecordId {
    batch: BatchId,
    index: u32,
    count: u32,
}

/// Bytes that say which record it is.
const NAME_LEN: usize = 20;

impl BatchId {
    fn dice(self) -> Dice {
        let Self { run, writer, seq } = self;
        Dice::new(Dice::new(u64::from(run) << 32 | u64::from(seq)).roll() ^ u64::from(writer))
    }

    /// The records, a function of the name alone.
    pub(crate) fn records(self) -> Vec<Vec<u8>> {
        let mut dice = self.dice();
        let count = [1, 1, 1, 1, 2, 3, 5][dice.index(7)];
        (0..count).map(|index| RecordId { batch: self, index, count }.payload()).collect()
    }
}

impl RecordId {
    fn payload(self) -> Vec<u8> {
        let BatchId { run, writer, seq } = self.batch;
        let mut dice = self.batch.dice();
        dice = Dice::new(dice.roll() ^ u64::from(self.index) << 8);
        let most = [0, 100, 700, 700, 700, 5_000, 5_000, 25_000][dice.index(8)];
        let len = dice.index(most + 1);
        let mut bytes = Vec::with_capacity(NAME_LEN + len + 8);
        for word in [run, writer, seq, self.index, self.count] {
            bytes.extend(word.to_le_bytes());
        }
        // Zeros look like what a file system shows for blocks that it never wrote.
        let zeros = dice.below(4) == 0;
        while bytes.len() < NAME_LEN + len {
            bytes.extend(if zeros { [0; 8] } else { dice.roll().to_le_bytes() });
        }
        bytes.truncate(NAME_LEN + len);
        bytes
    }

    /// The record that has these bytes, if one does.
    fn of(payload: &[u8]) -> Option<Self> {
        let mut words = payload
            .get(..NAME_LEN)?
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
        let mut word = || words.next().expect("five words");
        let batch = BatchId { run: word(), writer: word(), seq: word() };
        let id = Self { batch, index: word(), count: word() };
        (id.payload() == payload).then_some(id)
    }
}

/// What the callers know.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    /// What was acknowledged as durable, or served after a reopen.
    held: BTreeMap<u64, RecordId>,
    /// For each writer of each run, how many batches it has begun to append.
    begun: BTreeMap<(u32, u32), u32>,
    /// The oldest LSN of the last trim that returned, and the greatest that was asked for.
    trim: (u64, u64),
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { held: BTreeMap::new(), begun: BTreeMap::new(), trim: (1, 1) }
    }

    /// How many records are held to be durable.
    pub(crate) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// How many batches a writer of a run has begun to append.
    pub(crate) fn begun_count(&self, run: u32, writer: u32) -> u32 {
        self.begun.get(&(run, writer)).copied().unwrap_or(0)
    }

    /// A batch is about to be appended; those of a writer come in order.
    pub(crate) fn begin(&mut self, batch: BatchId) {
        self.begun.insert((batch.run, batch.writer), batch.seq + 1);
    }

    /// A batch was acknowledged as durable.
    pub(crate) fn acknowledge(&mut self, batch: BatchId, lsns: LsnRange) {
        let count = u32::try_from(lsns.last.get() - lsns.first.get() + 1).unwrap();
        for (index, lsn) in (0..count).zip(lsns.first.get()..) {
            self.held.insert(lsn, RecordId { batch, index, count });
        }
    }

    pub(crate) fn ask_trim(&mut self, oldest: u64) {
        self.trim.1 = self.trim.1.max(oldest);
    }

    pub(crate) fn acknowledge_trim(&mut self, oldest: u64) {
        self.trim.0 = self.trim.0.max(oldest);
    }

    /// Compares what an opened log serves with what is known, and holds it from then on.
    ///
    /// # Errors
    ///
    /// What was lost or invented.
    pub(crate) fn check(&mut self, log: &Log) -> Result<(), String> {
        let oldest = log.oldest_lsn().get();
        let (done, asked) = self.trim;
        if oldest < done || oldest > asked {
            return Err(format!("oldest LSN {oldest}, trimmed to {done}, asked for {asked}"));
        }
        let found = self.found(log, oldest)?;
        let next = oldest + u64::try_from(found.len()).unwrap();
        if log.next_lsn().get() != next {
            return Err(format!("next LSN {}, records up to {next}", log.next_lsn()));
        }
        for (&lsn, expect) in self.held.range(oldest..) {
            let at = usize::try_from(lsn - oldest).unwrap();
            match found.get(at) {
                Some(id) if id == expect => {}
                Some(id) => return Err(format!("LSN {lsn}: expected {expect:?}, found {id:?}")),
                None => return Err(format!("LSN {lsn} is lost: {expect:?}, {next} is next")),
            }
        }
        self.held = (oldest..).zip(found).collect();
        self.trim.0 = oldest;
        Ok(())
    }

    /// Every record from `oldest` on, each of them one that was appended, batches whole and in the
    /// order of their writers.
    fn found(&self, log: &Log, oldest: u64) -> Result<Vec<RecordId>, String> {
        let mut reader = log.reader(log.oldest_lsn()).map_err(|e| format!("no reader: {e}"))?;
        let mut found: Vec<RecordId> = Vec::new();
        let mut last_of: HashMap<(u32, u32), u32> = HashMap::new();
        for lsn in oldest.. {
            let record = match reader.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(e) => return Err(format!("LSN {lsn} cannot be read: {e}")),
            };
            if record.lsn.get() != lsn {
                return Err(format!("expected LSN {lsn}, found {}", record.lsn));
            }
            let Some(id) = RecordId::of(&record.payload) else {
                return Err(format!("LSN {lsn} was never appended: {:02x?}", record.payload));
            };
            let writer = (id.batch.run, id.batch.writer);
            if id.batch.seq >= self.begun_count(id.batch.run, id.batch.writer) {
                return Err(format!("LSN {lsn} was not appended yet: {id:?}"));
            }
            if record.batch_end != (id.index + 1 == id.count) {
                return Err(format!("LSN {lsn} ends no batch: {id:?}"));
            }
            // A trim may have left the end of a batch.
            let follows = found.last().is_none_or(|before| {
                let within = id.index > 0 && before.batch == id.batch;
                if within {
                    id.index == before.index + 1
                } else {
                    before.index + 1 == before.count && id.index == 0
                }
            });
            let ascends =
                id.index > 0 || last_of.get(&writer).is_none_or(|&seq| seq < id.batch.seq);
            if !follows || !ascends {
                return Err(format!("LSN {lsn} does not follow: {id:?}"));
            }
            last_of.insert(writer, id.batch.seq);
            found.push(id);
        }
        match found.last() {
            Some(id) if id.index + 1 != id.count => Err(format!("half a batch at the end: {id:?}")),
            _ => Ok(found),
        }
    }
}
