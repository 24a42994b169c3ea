//! Random operations on a log in a real directory, with its background thread, compared with a map
//! of what each LSN must hold.

use std::collections::BTreeMap;
use std::path::Path;

use oncelog::testing::Dice;
use oncelog::{Batch, CreateMode, Durability, ErrorKind, Log, Lsn, LsnRange, Options, RecordKind};

/// Seeds of the runs, and operations of each.
const SEEDS: u64 = 12;
const OPERATIONS: u64 = 150;

struct Model {
    seed: u64,
    dice: Dice,
    log: Option<Log>,
    /// Every record from the oldest one on.
    records: BTreeMap<u64, Vec<u8>>,
    next: u64,
    oldest: u64,
    payloads: u64,
}

impl Model {
    fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    #[track_caller]
    fn same<T: PartialEq + std::fmt::Debug>(&self, found: T, expected: T, what: &str) {
        assert_eq!(found, expected, "{what}, seed {}", self.seed);
    }

    fn payload(&mut self) -> Vec<u8> {
        self.payloads += 1;
        let len = [0, 1, 100, 500, 4000, 20_000][self.dice.index(6)];
        let mut bytes = format!("{}:", self.payloads).into_bytes();
        bytes.resize(len.max(bytes.len()), b'.');
        bytes
    }

    fn batch(&mut self) -> Vec<Vec<u8>> {
        let count = [1, 1, 1, 2, 5][self.dice.index(5)];
        (0..count).map(|_| self.payload()).collect()
    }

    fn appended(&mut self, lsns: LsnRange, payloads: Vec<Vec<u8>>) {
        let last = self.next + payloads.len() as u64 - 1;
        self.same((lsns.first.get(), lsns.last.get()), (self.next, last), "LSNs of a batch");
        for payload in payloads {
            self.records.insert(self.next, payload);
            self.next += 1;
        }
    }

    fn append(&mut self, durability: Durability) {
        let payloads = self.batch();
        let records: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let batch = Batch { kind: RecordKind::RECORD, records: &records };
        let lsns = self.log().append_batch(batch, durability).unwrap();
        self.appended(lsns, payloads);
        if durability == Durability::Synced {
            self.same(self.log().durable_lsn(), Lsn::new(self.next - 1), "durable after an append");
        }
    }

    /// Several batches share a sync.
    fn enqueue(&mut self) {
        let mut pending = Vec::new();
        for _ in 0..=self.dice.below(4) {
            let payloads = self.batch();
            let records: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
            let batch = Batch { kind: RecordKind::RECORD, records: &records };
            let enqueued = self.log().enqueue(batch).unwrap();
            self.appended(enqueued.lsns(), payloads);
            pending.push(enqueued);
        }
        for enqueued in pending {
            let lsns = enqueued.lsns();
            self.same(enqueued.wait().unwrap(), lsns, "LSNs after the wait");
        }
    }

    fn trim(&mut self) {
        let durable = self.log().durable_lsn().map_or(0, Lsn::get);
        let oldest = self.oldest + self.dice.below((durable + 2).saturating_sub(self.oldest));
        self.log().trim(Lsn::new(oldest).unwrap()).unwrap();
        self.oldest = oldest;
        self.records = self.records.split_off(&oldest);
    }

    fn reopen(&mut self, dir: &Path) {
        if let Some(log) = self.log.take() {
            log.close().unwrap();
        }
        let size = [65_536, 65_536, 131_072][self.dice.index(3)];
        let options = Options::new().segment_bytes_max(size).create(CreateMode::IfMissing);
        self.log = Some(Log::open(dir, &options).unwrap().0);
        self.same(self.log().next_lsn().get(), self.next, "next LSN after an opening");
    }

    /// Reads from anywhere to the end.
    fn read(&mut self) {
        let durable = self.log().durable_lsn().map_or(0, Lsn::get);
        let from = (1 + self.dice.below(durable + 1)).min(durable + 1);
        let reader = self.log().reader(Lsn::new(from).unwrap());
        if from < self.oldest {
            let error = reader.map(drop).unwrap_err();
            self.same(error.kind(), ErrorKind::Trimmed, "kind");
            self.same(error.lsn(), Lsn::new(self.oldest), "oldest that a refusal states");
            return;
        }
        let mut reader = reader.unwrap();
        let mut expected = self.records.range(from..);
        let mut last = from - 1;
        while let Some(found) = reader.next().unwrap() {
            let (lsn, payload) = expected.next().unwrap();
            self.same(found.lsn.get(), *lsn, "LSN");
            self.same(&found.payload[..], payload, "payload");
            last = *lsn;
        }
        assert!(last >= durable, "read to {last} of {durable}, seed {}", self.seed);
    }

    fn step(&mut self, dir: &Path) {
        match self.dice.below(20) {
            0..=4 => self.append(Durability::Synced),
            5..=9 => self.append(Durability::Buffered),
            10..=11 => self.enqueue(),
            12 => self.log().flush().unwrap(),
            13 => {
                let durable = self.log().sync().unwrap();
                self.same(durable, Lsn::new(self.next - 1), "durable after a sync");
            }
            14 => self.trim(),
            15..=16 => self.reopen(dir),
            _ => self.read(),
        }
        self.same(self.log().next_lsn().get(), self.next, "next LSN");
        self.same(self.log().oldest_lsn().get(), self.oldest, "oldest LSN");
    }
}

#[test]
fn a_log_behaves_as_a_map_from_lsn_to_record() {
    for seed in 1..=SEEDS {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("log");
        let mut model = Model {
            seed,
            dice: Dice::new(seed),
            log: None,
            records: BTreeMap::new(),
            next: 1,
            oldest: 1,
            payloads: 0,
        };
        model.reopen(&dir);
        for _ in 0..OPERATIONS {
            model.step(&dir);
        }
        model.log().sync().unwrap();
        model.read();
    }
}
