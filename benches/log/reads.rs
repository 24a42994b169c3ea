//! Readers: everything from a reopened log, and single records.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use oncelog::{Log, Lsn};

use crate::appends::buffer;
use crate::table::{Scale, Table, float, median, seconds};
use crate::{MIDDLE, SMALL, open, record};

/// W5: open after a clean close, and read everything, warm, with every checksum verified. The raw
/// limit reads the files and sums one checksum over all of it; that of an open reads the two ends of
/// each file, and looks at each byte of the last one.
pub(crate) fn replay(scale: &Scale, table: &mut Table) {
    for (name, len, count) in [("1 KiB", MIDDLE, 1 << 20), ("100 B", SMALL, 2_000_000)] {
        let count = scale.count(count);
        let dir = tempfile::tempdir().unwrap();
        let filled = open(dir.path());
        fill(&filled, len, count);
        let crashed = Crashed::of(&dir.path().join("log"));
        filled.close().unwrap();
        let (mut raw, mut log) = (Vec::new(), Vec::new());
        let (mut ends, mut opening, mut crash) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..scale.rounds() {
            raw.push(seconds(|| assert!(sum(&dir.path().join("log")) > 0)));
            ends.push(seconds(|| look(&dir.path().join("log"))));
            let mut opened = None;
            opening.push(seconds(|| opened = Some(open(dir.path()))));
            let opened = opened.expect("it was opened");
            log.push(seconds(|| assert!(read(&opened, len, count) > 0.0)));
            opened.close().unwrap();
            crashed.put_back();
            let mut opened = None;
            crash.push(seconds(|| opened = Some(open(dir.path()))));
            opened.expect("it was opened").close().unwrap();
        }
        let rate = |times| float(count) / median(times) / 1e6;
        table.row(format!("W5 replay {name}"), "M records/s", rate(raw), rate(log));
        let ends = median(ends) * 1e3;
        table.row(format!("W5 open {name}, clean"), "ms", ends, median(opening) * 1e3);
        table.row(format!("W5 open {name}, after a kill"), "ms", ends, median(crash) * 1e3);
    }
}

/// W8: the anonymous memory that a replay of 10 GiB takes at most, looked at as it goes.
pub(crate) fn memory(scale: &Scale, table: &mut Table) {
    let count = scale.count(10 << 20);
    let dir = tempfile::tempdir().unwrap();
    let opened = open(dir.path());
    fill(&opened, MIDDLE, count);
    opened.close().unwrap();
    let opened = open(dir.path());
    let before = anonymous_bytes();
    let most = read(&opened, MIDDLE, count);
    opened.close().unwrap();
    let name = format!("W8 replay of {} MiB, memory at most", count >> 10);
    table.alone(name, "MiB", (most - before) / f64::from(1 << 20));
}

/// The last segment and `LOCK` of a log as a writer that was killed leaves them.
struct Crashed(Vec<(PathBuf, Vec<u8>)>);

impl Crashed {
    fn of(dir: &Path) -> Self {
        let last = files(dir).pop().expect("a log has a segment");
        let kept = [last, dir.join("LOCK")].map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            (path, bytes)
        });
        Self(kept.into())
    }

    fn put_back(&self) {
        for (path, bytes) in &self.0 {
            std::fs::write(path, bytes).unwrap();
        }
    }
}

/// Reads the first and the last 16 KiB of each segment, and looks for what is no zero in the last one.
fn look(dir: &Path) {
    let names = files(dir);
    let mut bytes = vec![0; 16 << 10];
    for name in &names {
        let file = File::open(name).unwrap();
        let len = file.metadata().unwrap().len();
        for at in [0, len.saturating_sub(16 << 10)] {
            assert!(file.read_at(&mut bytes, at).unwrap() > 0);
        }
    }
    let file = File::open(names.last().expect("a log has a segment")).unwrap();
    let mut bytes = vec![0; 1 << 20];
    let (mut at, mut used) = (0, 0);
    loop {
        let n = file.read_at(&mut bytes, at).unwrap();
        if n == 0 {
            break;
        }
        let read = bytes.get(..n).expect("a read fills no more than its buffer");
        used += read.chunks(8).filter(|word| word.iter().any(|byte| *byte != 0)).count();
        at += u64::try_from(n).unwrap();
    }
    assert!(used > 0);
}

/// W6: single records in no order, each verified. The raw limit reads as many bytes.
pub(crate) fn random(scale: &Scale, table: &mut Table) {
    for (name, len) in [("1 KiB", MIDDLE), ("100 B", SMALL)] {
        let (stored, asked) = (scale.count(100_000), scale.count(100_000));
        let dir = tempfile::tempdir().unwrap();
        let opened = open(dir.path());
        fill(&opened, len, stored);
        let files = files(&dir.path().join("log")).into_iter().map(|f| File::open(f).unwrap());
        // The tail may have just begun.
        let is_whole = |file: &File| file.metadata().unwrap().len() > 100_000;
        let files: Vec<File> = files.filter(is_whole).collect();
        let (mut raw, mut log) = (Vec::new(), Vec::new());
        for round in 0..scale.rounds() {
            let choices: Vec<u64> = (0..asked)
                .map(|i| {
                    let i = u64::try_from(i * 8 + round).unwrap();
                    i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20
                })
                .collect();
            let mut bytes = vec![0; len];
            raw.push(seconds(|| {
                for choice in &choices {
                    let file = files.get(usize::try_from(*choice).unwrap() % files.len());
                    let file = file.expect("an index below the count");
                    assert!(file.read_at(&mut bytes, (choice % 1000) * 64).unwrap() > 0);
                }
            }));
            let mut reader = opened.reader(Lsn::FIRST).unwrap();
            log.push(seconds(|| {
                for choice in &choices {
                    let lsn = Lsn::new(choice % u64::try_from(stored).unwrap() + 1).unwrap();
                    reader.seek(lsn);
                    let record = reader.next().unwrap().expect("it is there");
                    assert_eq!((record.lsn, record.payload.len()), (lsn, len));
                }
            }));
        }
        let rate = |times| float(asked) / median(times) / 1e6;
        table.row(format!("W6 random reads {name}"), "M reads/s", rate(raw), rate(log));
        opened.close().unwrap();
    }
}

/// Appends `count` records in batches and closes nothing.
pub(crate) fn fill(log: &Log, len: usize, count: usize) {
    for first in (0..count).step_by(1000) {
        let records: Vec<Vec<u8>> = (first..count.min(first + 1000))
            .map(|i| record(len, u64::try_from(i).unwrap()))
            .collect();
        let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        buffer(log, &slices);
    }
    log.sync().unwrap();
}

/// Reads everything; returns the most anonymous memory that there was meanwhile, looked at every
/// 16 MiB or so.
fn read(log: &Log, len: usize, count: usize) -> f64 {
    let mut reader = log.reader(Lsn::FIRST).unwrap();
    let (mut found, mut most) = (0, 0.0_f64);
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.payload.len(), len);
        if found % (1 << 14) == 0 {
            most = most.max(anonymous_bytes());
        }
        found += 1;
    }
    assert_eq!(found, count);
    most
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"))
        .collect();
    names.sort();
    names
}

/// One checksum over all bytes of a log.
fn sum(dir: &Path) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    for name in files(dir) {
        let file = File::open(name).unwrap();
        let mut at = 0;
        loop {
            let n = file.read_at(&mut buffer, at).unwrap();
            if n == 0 {
                break;
            }
            crc.update(buffer.get(..n).expect("a read fills no more than its buffer"));
            at += u64::try_from(n).unwrap();
        }
    }
    crc.finalize()
}

/// Anonymous memory of this process in bytes: without the files that it has mapped.
fn anonymous_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u32>().ok());
    f64::from(kib.unwrap_or(0)) * 1024.0
}
