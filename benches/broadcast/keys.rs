//! A window of many keys: looking them up, coming back to them, forgetting them.

use std::fs::File;
use std::time::Instant;

use allocation_counter::measure;
use oncelog::broadcast::{Broadcaster, Request};

use crate::raw::{write_and_sync, written_file};
use crate::submits::RECORD_LEN;
use crate::table::{Scale, Table, float, median, quantile, seconds};
use crate::{made, open, request};

/// Keys of the window.
const KEYS: usize = 1_000_000;
/// How long keys are kept that are not to go, in milliseconds.
const LONG_MS: u64 = 24 * 60 * 60 * 1000;

/// B3: known keys are submitted again, in no order, by one caller and by two; and the memory that
/// the state takes for each of them.
pub(crate) fn lookups(scale: &Scale, table: &mut Table) {
    let (count, asked) = (scale.count(KEYS), scale.count(KEYS / 4));
    let dir = tempfile::tempdir().unwrap();
    made::store(dir.path(), u64::try_from(count).unwrap(), LONG_MS);
    let mut opened = None;
    let held = measure(|| opened = Some(open(dir.path()))).bytes_current;
    let broadcaster = opened.expect("it was opened");
    let held = u32::try_from(held / i64::try_from(count).unwrap()).unwrap();
    table.alone("B3 memory of a key", "bytes", f64::from(held));
    for callers in [1, 2] {
        let (mut rates, mut own) = (Vec::new(), Vec::new());
        for round in 0..scale.rounds() {
            let keys = |caller: usize| -> Vec<_> {
                let key = |n: usize| {
                    let n = u64::try_from(n * 8 + round + caller * 3).unwrap();
                    (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % u64::try_from(count).unwrap()
                };
                (0..asked).map(|n| request(key(n))).collect()
            };
            let requests: Vec<_> = (0..callers).map(keys).collect();
            let mut busy = 0.0;
            let taken = seconds(|| {
                std::thread::scope(|threads| {
                    let mut callers = Vec::new();
                    for own in &requests {
                        callers.push(threads.spawn(|| look_up(&broadcaster, own)));
                    }
                    busy = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
                });
            });
            rates.push(float(asked * callers) / taken / 1e6);
            own.push(float(asked * callers) / busy / 1e6);
        }
        table.alone(format!("B3 lookups, {callers} callers"), "M/s", median(rates));
        let name = format!("B3 the same, a second of a processor, {callers} callers");
        table.alone(name, "M/s", median(own));
    }
    broadcaster.close().unwrap();
}

/// Returns for how many seconds a processor was busy with it: beside other work of the machine the
/// rate says little.
fn look_up(broadcaster: &Broadcaster, requests: &[Request]) -> f64 {
    let begin = busy_seconds();
    for request in requests {
        assert!(broadcaster.submit(request, None).unwrap().duplicated);
    }
    busy_seconds() - begin
}

/// What the kernel says of the calling thread; zero where it keeps no such account.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

/// B4: opening a store of so many keys, from all of its records, and from a checkpoint.
pub(crate) fn restarts(scale: &Scale, table: &mut Table) {
    let count = scale.count(KEYS);
    let dir = tempfile::tempdir().unwrap();
    made::store(dir.path(), u64::try_from(count).unwrap(), LONG_MS);
    for name in ["without a checkpoint", "from a checkpoint"] {
        let mut times = Vec::new();
        for _ in 0..scale.rounds() {
            let mut opened = None;
            times.push(seconds(|| opened = Some(open(dir.path()))));
            let broadcaster = opened.expect("it was opened");
            assert_eq!(broadcaster.read(|state, _| state.window().held_count()), count);
            broadcaster.close().unwrap();
        }
        table.alone(format!("B4 restart {name}"), "s", median(times));
        let broadcaster = open(dir.path());
        broadcaster.checkpoint().unwrap();
        broadcaster.close().unwrap();
    }
}

/// B5: so many keys are over at once. What they cost each, and how long a new broadcast takes while
/// they are swept, and as many of them when there is nothing to sweep, each beside one raw write and
/// sync.
pub(crate) fn expiry(scale: &Scale, table: &mut Table) {
    let count = scale.count(KEYS);
    let dir = tempfile::tempdir().unwrap();
    made::store(dir.path(), u64::try_from(count).unwrap(), 1);
    let mut raw = Raw { file: written_file(dir.path(), RAW_LEN), at: 0 };
    let broadcaster = open(dir.path());
    let swept = || broadcaster.read(|state, _| state.window().expired_count());
    let all = u64::try_from(count).unwrap();
    let mut next = all;
    let (mut own, mut beside, begin) = (Vec::new(), Vec::new(), Instant::now());
    while swept() < all {
        beside.push(raw.write());
        own.push(submit(&broadcaster, &mut next));
    }
    let taken = begin.elapsed().as_secs_f64();
    let (mut rest, mut beside_rest) = (Vec::new(), Vec::new());
    for _ in 0..own.len() {
        beside_rest.push(raw.write());
        rest.push(submit(&broadcaster, &mut next));
    }
    assert_eq!(swept(), all);
    broadcaster.close().unwrap();
    table.alone("B5 expiry of a key", "us", taken / float(count) * 1e6);
    for (when, mut raw, mut own) in
        [("while keys are swept", beside, own), ("with none to sweep", beside_rest, rest)]
    {
        for (name, share) in [("p50", 0.5), ("longest", 1.0)] {
            let name = format!("B5 new broadcast {when}, {name}");
            table.row(name, "us", quantile(&mut raw, share) * 1e6, quantile(&mut own, share) * 1e6);
        }
    }
}

/// Bytes of the raw file, which is written from its begin again when it is full.
const RAW_LEN: usize = 16 << 20;

/// What the raw limit of a new broadcast goes to.
struct Raw {
    file: File,
    at: u64,
}

impl Raw {
    /// Writes and syncs once, and returns how many seconds that took.
    fn write(&mut self) -> f64 {
        let record = [1; RECORD_LEN];
        let times = write_and_sync(&self.file, self.at, &record, 1);
        let len = u64::try_from(RECORD_LEN).unwrap();
        self.at = (self.at + len) % u64::try_from(RAW_LEN).unwrap();
        times.iter().sum()
    }
}

/// Submits the next key, which nobody has used, and returns how many seconds that took.
fn submit(broadcaster: &Broadcaster, next: &mut u64) -> f64 {
    let request = request(*next);
    *next += 1;
    let begin = Instant::now();
    let answer = broadcaster.submit(&request, None).unwrap();
    let taken = begin.elapsed().as_secs_f64();
    assert!(!answer.duplicated);
    taken
}
