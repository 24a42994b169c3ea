//! What the library says of a directory, in the reference's terms.

use std::path::Path;
use std::sync::Arc;

use oncelog::io::Io;
use oncelog::testing::{Machine, MemIo};
use oncelog::{Check, ErrorKind, Finding, Log, LogView, Lsn, Options, RecoveryReport, Severity};

use crate::image::Directory;
use crate::reference::{Kept, Place, TornRange, Verdict};

/// The directory of the log on every machine here.
pub(crate) const DIR: &str = "/log";

/// One finding of the library.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) kind: &'static str,
    pub(crate) severity: Severity,
    pub(crate) place: Place,
    /// Printed on failure.
    #[expect(dead_code, reason = "read by Debug alone")]
    pub(crate) words: String,
}

/// All that a read-only look and a verification tell.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) is_empty: bool,
    pub(crate) degraded: bool,
    pub(crate) oldest: u64,
    pub(crate) proven: u64,
    pub(crate) last: Option<u64>,
    pub(crate) records: Vec<Kept>,
    /// What ended the reading of the records, and at which offset.
    pub(crate) error: Option<(Place, Option<u64>)>,
    pub(crate) findings: Vec<Told>,
}

impl Seen {
    /// The verdict to hold against that of the reference. The document ends at the first row that
    /// decides; the library tells every finding, so that it may know of more.
    pub(crate) fn verdict_beside(&self, expected: Verdict) -> Verdict {
        let has = |severity| self.findings.iter().any(|told| told.severity == severity);
        let decided = [
            (Verdict::Unsupported, has(Severity::Unsupported)),
            (Verdict::Corrupt, has(Severity::Corrupt)),
        ];
        if decided.contains(&(expected, true)) {
            return expected;
        }
        let found = decided.iter().find(|(_, found)| *found).map(|(verdict, _)| *verdict);
        found.unwrap_or_else(|| {
            if self.is_empty {
                Verdict::Absent
            } else if has(Severity::Torn) {
                Verdict::Torn
            } else {
                Verdict::Clean
            }
        })
    }

    /// Where the reading of the records ends for damage. The segment is that of the first finding:
    /// a verification names the damaged frames, which may lie behind the first one of their batch.
    pub(crate) fn place(&self) -> Option<Place> {
        let corrupt = self.findings.iter().find(|told| told.severity == Severity::Corrupt)?;
        self.error.map(|(error, _)| Place { segment: corrupt.place.segment, lsn: error.lsn })
    }
}

/// A machine that holds a directory, durably.
pub(crate) fn machine_of(directory: &Directory) -> Machine {
    let io = MemIo::default();
    io.create_dir(Path::new(DIR)).unwrap();
    let mut machine = io.machine();
    machine.sync_all();
    let path = |name: &str| Path::new(DIR).join(name);
    for (name, bytes) in &directory.files {
        machine.put(path(name), bytes).unwrap();
    }
    if let Some(lock) = &directory.lock {
        machine.put(path("LOCK"), lock).unwrap();
    }
    machine
}

/// The directory on a machine, as another process reads it.
pub(crate) fn directory_of(machine: &Machine, story: String) -> Directory {
    let mut directory = Directory { files: Vec::new(), lock: None, story };
    for entry in MemIo::new(machine.clone()).list(Path::new(DIR)).unwrap_or_default() {
        let name = entry.name.into_string().unwrap();
        let bytes = machine.bytes(Path::new(DIR).join(&name)).unwrap();
        if name == "LOCK" {
            directory.lock = Some(bytes);
        } else {
            directory.files.push((name, bytes));
        }
    }
    directory.files.sort();
    directory
}

/// Looks at a directory that stands still.
pub(crate) fn look(machine: &Machine) -> Seen {
    look_at(machine, Path::new(DIR))
}

/// Looks at the directory, or at one segment alone.
pub(crate) fn look_at(machine: &Machine, path: &Path) -> Seen {
    look_by(Arc::new(MemIo::new(machine.clone())), path)
}

/// Looks at a directory, or at one segment alone, in any file system that stands still.
pub(crate) fn look_by(io: Arc<dyn Io>, path: &Path) -> Seen {
    let view = LogView::open_unshared(path, io).unwrap();
    let mut findings = Vec::new();
    let mut tell = |finding: &Finding| {
        let Finding { kind, severity, segment, offset, lsn, expected, found, .. } = finding;
        findings.push(Told {
            kind: kind.as_str(),
            severity: *severity,
            place: Place { segment: segment.map(|id| id.get()), lsn: lsn.map(Lsn::get) },
            words: format!("{offset:?}: expected {expected}, found {found}"),
        });
    };
    view.verify(&mut tell).unwrap();
    let (records, error) = read(&view);
    Seen {
        is_empty: view.segments().is_empty(),
        degraded: findings.iter().any(|told| told.severity == Severity::Degraded),
        oldest: view.oldest_lsn().get(),
        proven: view.proven_lsn().map_or(0, Lsn::get),
        last: view.last_lsn().map(Lsn::get),
        records,
        error,
        findings,
    }
}

fn read(view: &LogView) -> (Vec<Kept>, Option<(Place, Option<u64>)>) {
    let mut records = Vec::new();
    let mut reader = view.reader(None).unwrap();
    loop {
        match reader.next() {
            Ok(None) => return (records, None),
            Ok(Some(record)) => records.push(kept(&record)),
            Err(error) => {
                let place = Place { segment: None, lsn: error.lsn().map(Lsn::get) };
                return (records, Some((place, error.offset())));
            }
        }
    }
}

fn kept(record: &oncelog::Record) -> Kept {
    Kept {
        lsn: record.lsn.get(),
        time: record.time_ms,
        kind: record.kind.as_u8(),
        payload: record.payload.to_vec(),
        segment: record.segment.get(),
        offset: record.offset,
    }
}

/// How the logs here are opened: no clock but a still one, no thread.
pub(crate) fn options(io: &MemIo) -> Options {
    Options::new()
        .segment_bytes_max(65_536)
        .background(false)
        .removal_step_bytes(20_000)
        .io(Arc::new(io.clone()))
}

/// What a writer concludes, and what it leaves behind after one append and a close.
pub(crate) struct Written {
    pub(crate) oldest: u64,
    pub(crate) proven: u64,
    pub(crate) last: u64,
    pub(crate) torn: Option<TornRange>,
    pub(crate) records: Vec<Kept>,
    pub(crate) after: Machine,
}

/// Opens the log as a writer, reads all, appends a record, and closes.
pub(crate) fn write(machine: &Machine, check: Check, record: &[u8]) -> Result<Written, ErrorKind> {
    let io = MemIo::new(machine.clone());
    let opened = Log::open(DIR, &options(&io).check(check));
    let (log, report) = opened.map_err(|error| error.kind())?;
    let RecoveryReport { oldest_lsn, proven_lsn, last_lsn, torn, .. } = report;
    let mut records = Vec::new();
    let mut reader = log.reader(log.oldest_lsn()).unwrap();
    while let Some(record) = reader.next().unwrap() {
        records.push(kept(&record));
    }
    log.append(record).map_err(|error| error.kind())?;
    log.close().map_err(|error| error.kind())?;
    Ok(Written {
        oldest: oldest_lsn.get(),
        proven: proven_lsn.map_or(0, Lsn::get),
        last: last_lsn.map_or(0, Lsn::get),
        torn: torn.map(|torn| TornRange {
            segment: torn.segment.get(),
            from: torn.bytes.start,
            to: torn.bytes.end,
        }),
        records,
        after: io.machine(),
    })
}
