//! Broadcasts that are new: one caller, and many.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::raw::{write_and_sync, written_file};
use crate::table::{Scale, Table, float, median, quantile};
use crate::{open, request};

/// Callers of the crowd.
const CALLERS: usize = 64;
/// What the raw limit writes: as much as one record of control.
pub(crate) const RECORD_LEN: usize = 512;

/// B1: one caller, two vchannels on one pchannel, each broadcast done before the next. The raw limit
/// is one write and sync; a broadcast takes three, one behind the other.
pub(crate) fn lone(scale: &Scale, table: &mut Table) {
    // Short turns: both sides meet the same other work of the disk.
    let (rounds, count) = (scale.count(400), scale.rounds() * 2);
    let dir = tempfile::tempdir().unwrap();
    let frame = vec![1; RECORD_LEN];
    let file = written_file(dir.path(), 16 << 20);
    let broadcaster = open(dir.path());
    let (mut raw, mut own, mut at, mut key) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..rounds {
        raw.extend(write_and_sync(&file, at, &frame, count));
        at += u64::try_from(RECORD_LEN * count).unwrap();
        own.extend((0..count).map(|_| {
            key += 1;
            let request = request(key);
            let begin = Instant::now();
            let answer = broadcaster.submit(&request, None).unwrap();
            let taken = begin.elapsed().as_secs_f64();
            assert!(!answer.duplicated && answer.channels.len() == 2);
            taken
        }));
    }
    broadcaster.close().unwrap();
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let micros = |times: &mut Vec<f64>| quantile(times, share) * 1e6;
        let name = format!("B1 one caller, {name}");
        table.row(name, "us", micros(&mut raw), micros(&mut own));
    }
}

/// B2: 64 callers. The raw limit is as many writes and syncs one behind the other.
pub(crate) fn crowd(scale: &Scale, table: &mut Table) {
    let (mut raw, mut own, mut slow) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds() {
        let dir = tempfile::tempdir().unwrap();
        let frame = vec![1; RECORD_LEN];
        let file = written_file(dir.path(), 4 << 20);
        let times = write_and_sync(&file, 0, &frame, scale.count(2_000));
        raw.push(float(times.len()) / times.iter().sum::<f64>());
        drop(file);
        let broadcaster = open(dir.path());
        let (next, times) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let begin = Instant::now();
        std::thread::scope(|threads| {
            for _ in 0..CALLERS {
                let (broadcaster, next, times) = (&broadcaster, &next, &times);
                threads.spawn(move || {
                    let mut own = Vec::new();
                    while begin.elapsed() < scale.round() {
                        let request = request(next.fetch_add(1, Ordering::Relaxed));
                        let begin = Instant::now();
                        assert!(!broadcaster.submit(&request, None).unwrap().duplicated);
                        own.push(begin.elapsed().as_secs_f64());
                    }
                    times.lock().unwrap().extend(own);
                });
            }
        });
        let taken = begin.elapsed().as_secs_f64();
        let mut times = times.into_inner().unwrap();
        broadcaster.close().unwrap();
        own.push(float(times.len()) / taken);
        slow.push(quantile(&mut times, 0.99));
    }
    table.row("B2 64 callers", "k broadcasts/s", median(raw) / 1e3, median(own) / 1e3);
    table.alone("B2 64 callers, p99", "us", median(slow) * 1e6);
}
