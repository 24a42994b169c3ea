//! Damage of every kind to logs that are kept as files, with the verdict that each must get.
//!
//! The library and the reference reader look at the same bytes; what must be said of them is in
//! the files, or follows from which bytes a sync had promised.

mod corpus;
mod fields;
mod flips;
mod golden;
mod pieces;
#[cfg(planted)]
mod planted;
pub(crate) mod seal;
mod seeds;
mod sound;
mod splice;
mod table;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::{fs, panic};

use crate::figures::is_release;
use crate::image::{Directory, Image};
use crate::reference::bytes::crc;
use crate::reference::{Finding, Verdict, judge};

/// The directory of the images of a kind.
fn data(kind: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/data").join(kind)
}

/// The images of a kind with their names, in the order of these.
pub(crate) fn images(kind: &str) -> Vec<(String, Image)> {
    let entries = fs::read_dir(data(kind)).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort_by_key(|path| path.file_stem().map(ToOwned::to_owned));
    let name = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    paths
        .iter()
        .map(|path| (name(path), Image::parse(&fs::read_to_string(path).unwrap())))
        .collect()
}

/// What the reference says, in the lines of an image.
fn verdict(finding: &Finding, directory: &Directory) -> Vec<String> {
    let word = match finding.verdict {
        Verdict::Absent => "absent",
        Verdict::Clean if finding.degraded => "degraded",
        Verdict::Clean => "clean",
        Verdict::Torn => "torn",
        Verdict::Corrupt => "corrupt",
        Verdict::Unsupported => "unsupported",
    };
    let rows: String = finding.rows.iter().collect();
    let also = if finding.degraded && word != "degraded" { " also degraded" } else { "" };
    let mut lines = vec![format!("verdict {word} rows {rows}{also}")];
    let name_of = |number: u64| {
        let prefix = format!("{number:010}-");
        let named = directory.files.iter().find(|(name, _)| name.starts_with(&prefix));
        named.map_or_else(|| prefix.clone(), |(name, _)| name.clone())
    };
    if let Some(place) = finding.corrupt {
        let mut line = "damage".to_owned();
        if let Some(number) = place.segment {
            write!(line, " {}", name_of(number)).unwrap();
        }
        if let Some(offset) = finding.corrupt_at {
            write!(line, " offset {offset}").unwrap();
        }
        if let Some(lsn) = place.lsn {
            write!(line, " lsn {lsn}").unwrap();
        }
        lines.push(line);
    }
    if let Some(torn) = finding.torn {
        lines.push(format!("torn {} {} to {}", name_of(torn.segment), torn.from, torn.to));
    }
    let Finding { oldest, proven, last, .. } = finding;
    lines.push(format!("ends oldest {oldest} proven {proven} last {last}"));
    for record in &finding.records {
        let (len, digest) = (record.payload.len(), crc(0, &record.payload));
        let (lsn, time, kind) = (record.lsn, record.time, record.kind);
        lines.push(format!("record {lsn} time {time} kind {kind} len {len} crc {digest:08x}"));
    }
    lines
}

/// The lines for what a directory holds.
fn judged(directory: &Directory) -> Vec<String> {
    verdict(&judge(&directory.files, directory.lock.as_deref()), directory)
}

/// The answers of `work` for all of `pieces`, in no order, on as many threads as run at once here.
pub(crate) fn shared_out<T: Sync, A: Send>(pieces: &[T], work: impl Fn(&T) -> A + Sync) -> Vec<A> {
    shared_among(thread::available_parallelism().map_or(1, usize::from), pieces, work)
}

/// The same on a number of threads, for work that waits.
pub(crate) fn shared_among<T: Sync, A: Send>(
    threads: usize,
    pieces: &[T],
    work: impl Fn(&T) -> A + Sync,
) -> Vec<A> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut answers = Vec::new();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            answers.push(work(piece));
        }
        answers
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        let answers = running.into_iter().map(|thread| thread.join());
        answers.flat_map(|answers| answers.unwrap_or_else(|e| panic::resume_unwind(e))).collect()
    })
}

/// The number for the size of this run: of the proof at a release or at a change, or of the small
/// one beside the other tests.
pub(crate) fn sized<T>(release: T, change: T, small: T) -> T {
    match (cfg!(planted), is_release()) {
        (true, true) => release,
        (true, false) => change,
        (false, _) => small,
    }
}

/// How many damaged logs got which verdict.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    clean: u64,
    degraded: u64,
    torn: u64,
    corrupt: u64,
    unsupported: u64,
    absent: u64,
}

impl Counts {
    fn of(finding: &Finding) -> Self {
        let mut counts = Self::default();
        *match finding.verdict {
            Verdict::Clean if finding.degraded => &mut counts.degraded,
            Verdict::Clean => &mut counts.clean,
            Verdict::Torn => &mut counts.torn,
            Verdict::Corrupt => &mut counts.corrupt,
            Verdict::Unsupported => &mut counts.unsupported,
            Verdict::Absent => &mut counts.absent,
        } = 1;
        counts
    }

    fn plus(self, other: Self) -> Self {
        Self {
            clean: self.clean + other.clean,
            degraded: self.degraded + other.degraded,
            torn: self.torn + other.torn,
            corrupt: self.corrupt + other.corrupt,
            unsupported: self.unsupported + other.unsupported,
            absent: self.absent + other.absent,
        }
    }

    const fn all(&self) -> u64 {
        self.clean + self.degraded + self.torn + self.corrupt + self.unsupported + self.absent
    }
}

/// Whether this run makes the files that it would else compare with.
fn makes_files() -> bool {
    std::env::var_os("ONCELOG_MAKE_DATA").is_some()
}
