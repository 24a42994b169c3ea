//! A window of many keys: looking them up, coming back to them, forgetting them.

use std::time::Instant;

use allocation_counter::measure;
use oncelog::broadcast::{Broadcaster, Request};

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

/// B5: so many keys are over at once. What they cost each, and how long a lookup of another key, and
/// a new broadcast, take meanwhile.
pub(crate) fn expiry(scale: &Scale, table: &mut Table) {
    let count = scale.count(KEYS);
    let dir = tempfile::tempdir().unwrap();
    made::store(dir.path(), u64::try_from(count).unwrap(), 1);
    let broadcaster = open(dir.path());
    let known = request(u64::try_from(count).unwrap());
    let mut times = Vec::new();
    let taken = seconds(|| {
        while broadcaster.read(|state, _| state.window().held_count()) > 1 {
            let begin = Instant::now();
            drop(broadcaster.submit(&known, None).unwrap());
            times.push(begin.elapsed().as_secs_f64());
            std::thread::yield_now();
        }
    });
    let expired = broadcaster.read(|state, _| state.window().expired_count());
    assert_eq!(expired, u64::try_from(count).unwrap());
    broadcaster.close().unwrap();
    table.alone("B5 expiry of a key", "us", taken / float(count) * 1e6);
    // The first one is new work: it waits for the disk.
    let mut times = times.split_off(1.min(times.len()));
    table.alone("B5 lookup meanwhile, p50", "us", quantile(&mut times, 0.5) * 1e6);
    table.alone("B5 lookup meanwhile, longest", "us", quantile(&mut times, 1.0) * 1e6);
}
