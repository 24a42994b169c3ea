//! Many writers at once: threads, and tasks of one runtime.

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use oncelog::{Log, WaitPolicy};

use crate::raw::{write_and_sync, written_file};
use crate::table::{Scale, Table, float, median, quantile};
use crate::{SMALL, SMALL_FRAME, options, record};

/// W3: each record of each thread durable before its next.
pub(crate) fn threads(scale: &Scale, table: &mut Table) {
    for writers in [1, 4, 16, 64] {
        for (name, policy) in [("park", WaitPolicy::Park), ("yield", WaitPolicy::Yield)] {
            let (mut raw, mut log, mut slow) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..scale.rounds() {
                let dir = tempfile::tempdir().unwrap();
                raw.push(float(writers) / lone(scale, dir.path()));
                let (rate, p99) = race(scale, dir.path(), writers, policy);
                log.push(rate);
                slow.push(p99);
            }
            let title = format!("W3 {writers} threads, {name}");
            table.row(&title, "k records/s", median(raw) / 1e3, median(log) / 1e3);
            table.alone(format!("{title}, p99"), "us", median(slow) * 1e6);
        }
    }
}

/// Seconds of one write and sync, on average: rates are compared, and those count every stall.
fn lone(scale: &Scale, dir: &Path) -> f64 {
    let frame = record(usize::try_from(SMALL_FRAME).unwrap(), 1);
    let file = written_file(dir, 4 << 20);
    let times = write_and_sync(&file, 0, &frame, scale.count(2000));
    times.iter().sum::<f64>() / float(times.len())
}

/// Records a second of so many threads, and the p99 of a record in seconds.
fn race(scale: &Scale, dir: &Path, writers: usize, policy: WaitPolicy) -> (f64, f64) {
    let opened = Log::open(dir.join("log"), &options().wait_policy(policy)).unwrap().0;
    let times = Mutex::new(Vec::new());
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (opened, times) = (&opened, &times);
            scope.spawn(move || {
                let bytes = record(SMALL, writer.try_into().unwrap());
                let mut own = Vec::new();
                while begin.elapsed() < scale.round() {
                    let begin = Instant::now();
                    opened.append(&bytes).unwrap();
                    own.push(begin.elapsed().as_secs_f64());
                }
                times.lock().unwrap().extend(own);
            });
        }
    });
    let taken = begin.elapsed().as_secs_f64();
    let mut times = times.into_inner().unwrap();
    opened.close().unwrap();
    (float(times.len()) / taken, quantile(&mut times, 0.99))
}

/// W3a: the same from tasks of a runtime of one thread.
pub(crate) fn tasks(scale: &Scale, table: &mut Table) {
    for callers in [64, 1024] {
        let (mut raw, mut log) = (Vec::new(), Vec::new());
        for _ in 0..scale.rounds() {
            let dir = tempfile::tempdir().unwrap();
            raw.push(float(callers) / lone(scale, dir.path()));
            log.push(crowd(scale, dir.path(), callers));
        }
        let title = format!("W3a {callers} tasks");
        table.row(title, "k records/s", median(raw) / 1e3, median(log) / 1e3);
    }
}

fn crowd(scale: &Scale, dir: &Path, callers: usize) -> f64 {
    let opened = Log::open(dir.join("log"), &options()).unwrap().0;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let begin = Instant::now();
    let count: usize = runtime.block_on(async {
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let (opened, limit) = (opened.clone(), scale.round());
                tokio::spawn(async move {
                    let bytes = record(SMALL, caller.try_into().unwrap());
                    let mut count = 0;
                    while begin.elapsed() < limit {
                        opened.append_async(&bytes).await.unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut count = 0;
        for task in tasks {
            count += task.await.unwrap();
        }
        count
    });
    let taken = begin.elapsed().as_secs_f64();
    opened.close().unwrap();
    float(count) / taken
}
