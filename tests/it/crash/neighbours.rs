//! Logs of one file system: what one has freed, another may be given before it is on disk that it
//! was freed (SPEC 14.12). A power loss brings the name of a trimmed segment back then, and behind it
//! stands what another log has written, or a backup.

use std::path::Path;
use std::sync::{Arc, Mutex};

use oncelog::io::Io as _;
use oncelog::testing::{Dice, Machine, MemIo, survivors};
use oncelog::{Log, LogView, Lsn, Options};
use oncelog_format::{SegmentHeader, Uuid};

use super::drive::{ROOM, chain, options};
use crate::figures::{figure, is_release};

/// The log that trims, and another one.
const DIRS: [&str; 2] = ["/store/p0", "/store/p1"];

/// Where the first one is copied to.
const COPY: &str = "/store/copy";

/// What the caller of a log relies on.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The last LSN that was acknowledged.
    last: u64,
    /// The oldest LSN, and the one that a trim which runs goes to.
    oldest: (u64, u64),
}

/// A crash: what it finds, and what was told before it.
type Point = (Machine, [Told; 2]);

/// Both logs in one process, and what a crash before each persistence point finds.
struct Pair {
    io: MemIo,
    logs: [Log; 2],
    uuids: [Uuid; 2],
    told: Arc<Mutex<[Told; 2]>>,
    points: Arc<Mutex<Vec<Point>>>,
}

fn options_on(io: &MemIo, step_bytes: u64) -> Options {
    options(io.clone()).removal_step_bytes(step_bytes)
}

/// As long as what fills a segment, unlike that of any other LSN or log.
fn payload(log: usize, lsn: u64) -> Vec<u8> {
    let mut bytes = format!("{log} {lsn} ").into_bytes();
    bytes.resize(ROOM - 3000, b'.');
    bytes
}

impl Pair {
    /// `step_bytes`: what a step of a removal frees.
    fn open(seed: u64, step_bytes: u64) -> Self {
        let io = MemIo::default();
        io.seed(seed);
        for dir in ["/store", DIRS[0], DIRS[1]] {
            io.create_dir(Path::new(dir)).unwrap();
        }
        io.alter(Machine::sync_all);
        let open = |dir| Log::open(dir, &options_on(&io, step_bytes)).unwrap().0;
        let logs = DIRS.map(open);
        let uuid = |dir| LogView::open_unshared(dir, Arc::new(io.clone())).unwrap().uuid().unwrap();
        let told = Arc::new(Mutex::new([Told { last: 0, oldest: (1, 1) }; 2]));
        let points = Arc::new(Mutex::new(Vec::new()));
        let (notes, says) = (Arc::clone(&points), Arc::clone(&told));
        io.observe(move |machine, _| {
            notes.lock().unwrap().push((machine.clone(), *says.lock().unwrap()));
        });
        Self { uuids: DIRS.map(uuid), io, logs, told, points }
    }

    fn fill(&self, log: usize, records: usize) {
        for _ in 0..records {
            let lsn = self.logs[log].next_lsn().get();
            self.logs[log].append(&payload(log, lsn)).unwrap();
            self.told.lock().unwrap()[log].last = lsn;
        }
    }

    /// Drops all records but the last, and removes the files.
    fn trim(&self, log: usize) {
        let to = self.told.lock().unwrap()[log].last;
        self.told.lock().unwrap()[log].oldest.1 = to;
        self.logs[log].trim(Lsn::new(to).unwrap()).unwrap();
        self.told.lock().unwrap()[log].oldest.0 = to;
        while self.logs[log].remove_step().unwrap() {}
    }

    /// What any crash on the way found, and one at the end.
    fn points(self) -> (Vec<Point>, [Uuid; 2]) {
        self.io.unobserve();
        let mut points = std::mem::take(&mut *self.points.lock().unwrap());
        points.push((self.io.machine(), *self.told.lock().unwrap()));
        self.io.kill();
        (points, self.uuids)
    }
}

/// Identities in the files of a log's segments, but its own.
fn foreign(machine: &Machine, log: usize, own: Uuid) -> Vec<Uuid> {
    let io = MemIo::new(machine.clone());
    let names = io.list(Path::new(DIRS[log])).unwrap().into_iter().map(|entry| entry.name);
    let paths = names.map(|name| Path::new(DIRS[log]).join(name));
    let segments = paths.filter(|path| path.extension().is_some_and(|e| e == "seg"));
    let header = |path| SegmentHeader::decode(&machine.bytes(path).unwrap()).ok();
    segments.filter_map(header).map(|header| header.uuid).filter(|uuid| *uuid != own).collect()
}

/// A log opens, and has every record that its caller relies on.
fn check(machine: &Machine, log: usize, told: Told) -> Result<(), String> {
    let io = MemIo::new(machine.clone());
    let opened = Log::open(DIRS[log], &options_on(&io, 1 << 20));
    let (opened, _) = opened.map_err(|e| format!("G4: {}", chain(&e)))?;
    let oldest = opened.oldest_lsn().get();
    if oldest < told.oldest.0 || oldest > told.oldest.1 {
        return Err(format!("G8: LSN {oldest} is the oldest, expected {:?}", told.oldest));
    }
    let mut reader = opened.reader(opened.oldest_lsn()).map_err(|e| e.to_string())?;
    for lsn in oldest..=told.last {
        let record = reader.next().map_err(|e| format!("G1: LSN {lsn}: {e}"))?;
        if record.is_none_or(|record| record.payload != payload(log, lsn)) {
            return Err(format!("G1: LSN {lsn} is not what it was"));
        }
    }
    opened.append(b"it goes on").map_err(|e| format!("append after it: {e}"))?;
    // What the name that came back was trimmed to is removed, whatever it holds.
    while opened.remove_step().map_err(|e| e.to_string())? {}
    Ok(())
}

/// What power losses have shown.
#[derive(Default)]
struct Counts {
    reused: usize,
    /// A trimmed segment that holds the header of the other log, and of the copy.
    of_other: usize,
    of_copy: usize,
}

fn lose_power(pair: Pair, ways: usize, counts: &mut Counts) {
    let (points, uuids) = pair.points();
    for (k, (machine, told)) in points.into_iter().enumerate() {
        let unsynced = machine.unsynced();
        let mut dice = Dice::new(k as u64);
        for way in survivors(&unsynced, ways, &mut dice) {
            let left = machine.power_loss(&unsynced, &way);
            for _ in 0..2 {
                let Some(reused) = machine.reuse_blocks(&left, &mut dice) else { break };
                counts.reused += 1;
                for log in 0..2 {
                    let found = foreign(&reused, log, uuids[log]);
                    let of_other = found.iter().filter(|uuid| uuids.contains(uuid)).count();
                    counts.of_other += of_other;
                    counts.of_copy += found.len() - of_other;
                    check(&reused, log, told[log]).unwrap_or_else(|e| {
                        panic!("{}, point {k} that left {way:?}, {found:?}: {e}", DIRS[log])
                    });
                }
            }
        }
    }
}

#[test]
pub(crate) fn blocks_that_another_log_was_given_are_a_leftover() {
    let (seeds, ways) = match (cfg!(planted), is_release()) {
        (false, _) => (2, 12),
        (true, false) => (4, 24),
        (true, true) => (20, 100),
    };
    let mut counts = Counts::default();
    for seed in 0..seeds {
        // At once, or step by step.
        let pair = Pair::open(seed, if seed % 2 == 0 { 1 << 20 } else { 24_000 });
        pair.fill(1, 1);
        pair.fill(0, 3);
        pair.trim(0);
        pair.fill(1, 3);
        pair.fill(0, 2);
        pair.trim(0);
        pair.trim(1);
        pair.logs[0].backup(COPY).unwrap();
        pair.fill(0, 1);
        lose_power(pair, ways, &mut counts);
    }
    figure(1, "power losses of two logs with blocks reused", counts.reused);
    figure(1, "trimmed segments with the header of another log", counts.of_other);
    figure(1, "trimmed segments with the header of a backup", counts.of_copy);
    assert!(
        counts.of_other > 0 && counts.of_copy > 0,
        "no file has come back with another's bytes"
    );
}
