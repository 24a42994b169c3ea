//! What the library says of a directory, in the reference's terms.

use std::path::Path;
use std::sync::Arc;

use oncelog::io::fs::FsIo;
use oncelog::{LogView, Severity};

use super::shape::Directory;
use crate::reference::{Kept, Place, Verdict};

/// One finding of the library.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) kind: &'static str,
    pub(super) severity: Severity,
    pub(super) place: Place,
    /// Printed on failure.
    #[expect(dead_code, reason = "read by Debug alone")]
    pub(super) words: String,
}

/// All that a read-only look and a verification tell.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) is_empty: bool,
    pub(super) degraded: bool,
    pub(super) oldest: u64,
    pub(super) proven: u64,
    pub(super) last: Option<u64>,
    pub(super) records: Vec<Kept>,
    /// What ended the reading of the records.
    pub(super) error: Option<Place>,
    pub(super) findings: Vec<Told>,
}

impl Seen {
    /// The verdict to hold against that of the reference. The document ends at the first row that
    /// decides; the library tells every finding, so that it may know of more.
    pub(super) fn verdict_beside(&self, expected: Verdict) -> Verdict {
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

    /// Where the first missing record is, as the reference has it.
    pub(super) fn place(&self) -> Option<Place> {
        self.findings.iter().find(|told| told.severity == Severity::Corrupt).map(|told| told.place)
    }
}

/// Writes a directory and looks at it.
pub(super) fn look(directory: &Directory) -> Seen {
    let home = tempfile::tempdir().unwrap();
    for (name, bytes) in &directory.files {
        std::fs::write(home.path().join(name), bytes).unwrap();
    }
    if let Some(lock) = &directory.lock {
        std::fs::write(home.path().join("LOCK"), lock).unwrap();
    }
    look_at(home.path())
}

/// Looks at a directory that stands still.
pub(super) fn look_at(path: &Path) -> Seen {
    let view = LogView::open_unshared(path, Arc::new(FsIo)).unwrap();
    let mut findings = Vec::new();
    let mut tell = |finding: &oncelog::Finding| {
        findings.push(Told {
            kind: finding.kind.as_str(),
            severity: finding.severity,
            place: Place { segment: finding.segment.map(|id| id.get()), lsn: finding.lsn },
            words: format!(
                "{:?}: expected {}, found {}",
                finding.offset, finding.expected, finding.found
            ),
        });
    };
    view.verify(&mut tell).unwrap();
    let (records, error) = read(&view);
    Seen {
        is_empty: view.segments().is_empty(),
        degraded: findings.iter().any(|told| told.severity == Severity::Degraded),
        oldest: view.oldest_lsn().get(),
        proven: view.proven_lsn().map_or(0, |lsn| lsn.get()),
        last: view.last_lsn().map(|lsn| lsn.get()),
        records,
        error,
        findings,
    }
}

fn read(view: &LogView) -> (Vec<Kept>, Option<Place>) {
    let mut records = Vec::new();
    let mut reader = view.reader(None).unwrap();
    loop {
        match reader.next() {
            Ok(None) => return (records, None),
            Ok(Some(record)) => records.push(Kept {
                lsn: record.lsn.get(),
                time: record.time_ms,
                kind: record.kind,
                payload: record.payload.to_vec(),
                segment: record.segment.get(),
                offset: record.offset,
            }),
            Err(error) => {
                let lsn = error.lsn().map(|lsn| lsn.get());
                return (records, Some(Place { segment: None, lsn }));
            }
        }
    }
}
