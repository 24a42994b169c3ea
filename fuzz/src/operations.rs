//! Operations on a log that bytes choose, with crashes and faults, against a model.
//!
//! The model is what the caller knows: every record in the order of its LSN, and how many of them
//! were acknowledged. After each crash the log must hold all that were acknowledged, and nothing
//! but a prefix of what was appended, whole batches only.

use std::path::Path;
use std::sync::Arc;

use oncelog::io::Io as _;
use oncelog::testing::{Dice, EIO, ENOSPC, Fault, Machine, MemIo, Which, survivors};
use oncelog::{Batch, CreateMode, Durability, ErrorKind, Log, Lsn, Options, RecordKind};

const DIR: &str = "/log";
/// Operations of an input.
const OPERATIONS_MAX: usize = 200;

/// What a caller knows.
struct Model {
    io: MemIo,
    log: Option<Log>,
    /// Payloads from LSN 1 on, and whether each ends its batch.
    records: Vec<(Vec<u8>, bool)>,
    /// Records that were acknowledged as synced.
    acknowledged: usize,
    /// Records below were trimmed, or may have been.
    oldest: u64,
    /// A trim that failed may hold or not.
    oldest_max: u64,
}

/// Runs the operations that bytes choose.
pub(crate) fn run(data: &[u8]) {
    let io = MemIo::default();
    io.create_dir(Path::new(DIR)).expect("a root");
    io.alter(Machine::sync_all);
    let mut model =
        Model { io, log: None, records: Vec::new(), acknowledged: 0, oldest: 1, oldest_max: 1 };
    model.open();
    for pair in data.chunks(2).take(OPERATIONS_MAX) {
        let [what, with] = [0, 1].map(|at| pair.get(at).copied().unwrap_or(0));
        model.step(what, with);
    }
    // The last word of a log that ends well.
    model.io.disarm();
    model.crash(None);
    model.check();
}

impl Model {
    fn step(&mut self, what: u8, with: u8) {
        match what % 16 {
            0..=3 => self.append(&[usize::from(with)], Durability::Synced),
            4 => self.append(&[usize::from(with) * 97], Durability::Synced),
            5 => self.append(&[3, usize::from(with), 40], Durability::Synced),
            6 | 7 => self.append(&[usize::from(with); 2], Durability::Buffered),
            8 => self.tell(|log| log.flush()),
            9 => {
                let count = self.records.len();
                if self.log.as_ref().is_some_and(|log| log.sync().is_ok()) {
                    self.acknowledged = self.acknowledged.max(count);
                }
            }
            10 => self.tell(|log| log.write_idle_slot()),
            11 => self.trim(with),
            12 => {
                let nth = 1 + u64::from(with % 32);
                let number = if with < 128 { EIO } else { ENOSPC };
                self.io.arm(Which::Persist, nth, 1, Fault::Error(number));
            }
            13 => {
                self.crash(Some(u64::from(with)));
                self.check();
            }
            14 => {
                self.crash(None);
                self.check();
            }
            _ => {
                let count = self.records.len();
                if self.log.take().is_some_and(|log| log.close().is_ok()) {
                    self.acknowledged = self.acknowledged.max(count);
                }
                self.crash(None);
                self.check();
            }
        }
    }

    fn tell(&self, call: impl Fn(&Log) -> oncelog::Result<()>) {
        if let Some(log) = &self.log {
            // A refusal is none of the model's: it promises nothing.
            drop(call(log));
        }
    }

    fn append(&mut self, lens: &[usize], durability: Durability) {
        let Some(log) = &self.log else { return };
        let first = self.records.len() + 1;
        let payloads: Vec<Vec<u8>> = (first..)
            .zip(lens)
            .map(|(lsn, &len)| lsn.to_string().bytes().cycle().take(len).collect())
            .collect();
        let records: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let appended =
            log.append_batch(Batch { kind: RecordKind::RECORD, records: &records }, durability);
        let is_known = match &appended {
            Ok(lsns) => {
                assert_eq!(lsns.first.get(), first as u64, "LSNs are dense");
                true
            }
            // It may be there after a crash.
            Err(e) => e.kind() == ErrorKind::OutcomeUnknown,
        };
        if is_known {
            let last = payloads.len();
            let with_ends = payloads.into_iter().zip(1..).map(|(bytes, at)| (bytes, at == last));
            self.records.extend(with_ends);
        }
        if appended.is_ok() && durability == Durability::Synced {
            self.acknowledged = self.records.len();
        }
    }

    fn trim(&mut self, with: u8) {
        let Some(log) = &self.log else { return };
        let span = log.next_lsn().get() - log.oldest_lsn().get() + 1;
        let to = log.oldest_lsn().get() + u64::from(with) % span;
        let count = self.records.len();
        let trimmed = log.trim(Lsn::new(to).expect("from 1 on"));
        match trimmed.map_err(|e| e.kind()) {
            Ok(()) => {
                (self.oldest, self.oldest_max) = (to, self.oldest_max.max(to));
                // Everything below it was synced first.
                self.acknowledged = self.acknowledged.max(count.min(to as usize - 1));
            }
            Err(_) => self.oldest_max = self.oldest_max.max(to),
        }
    }

    /// Ends the process; with a seed the power goes too, and leaves what the seed says.
    fn crash(&mut self, power: Option<u64>) {
        self.io.kill();
        self.log = None;
        let machine = self.io.machine();
        let left = match power {
            None => machine,
            Some(seed) => {
                let unsynced = machine.unsynced();
                let ways = survivors(&unsynced, 4, &mut Dice::new(seed));
                let way = ways.get(seed as usize % ways.len().max(1));
                way.map_or_else(
                    || machine.power_loss(&unsynced, &[]),
                    |way| machine.power_loss(&unsynced, way),
                )
            }
        };
        self.io = MemIo::new(left);
        self.open();
    }

    fn open(&mut self) {
        let options = Options::new()
            .segment_bytes_max(65_536)
            .background(false)
            .create(CreateMode::IfMissing)
            .io(Arc::new(self.io.clone()));
        match Log::open(DIR, &options) {
            Ok((log, _)) => self.log = Some(log),
            Err(e) => panic!("a log that crashed does not open: {e}"),
        }
    }

    /// Holds the log against what the caller knows, and takes over what it decided.
    fn check(&mut self) {
        let log = self.log.as_ref().expect("open");
        let last = log.durable_lsn().map_or(0, Lsn::get);
        let oldest = log.oldest_lsn().get();
        assert!(oldest >= self.oldest && oldest <= self.oldest_max, "oldest LSN {oldest}");
        assert!(last >= self.acknowledged as u64, "{last} of {} are left", self.acknowledged);
        assert!(last <= self.records.len() as u64, "{last} records were never appended");
        let mut reader = log.reader(log.oldest_lsn()).expect("a reader");
        for lsn in oldest..=last {
            let record = reader.next().expect("a record").expect("a record up to the durable LSN");
            assert_eq!(record.lsn.get(), lsn);
            assert_eq!(record.payload, self.records[lsn as usize - 1].0, "record {lsn}");
        }
        assert!(reader.next().expect("an end").is_none());
        let end = (last as usize).checked_sub(1).and_then(|at| self.records.get(at));
        assert!(end.is_none_or(|(_, ends_batch)| *ends_batch), "half a batch is left");
        self.records.truncate(last as usize);
        self.acknowledged = self.records.len();
        (self.oldest, self.oldest_max) = (oldest, oldest);
    }
}
