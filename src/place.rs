//! What stands at a path: a store, a log, or one segment of a log.
//!
//! It looks at names and at `LOCK`, takes no lock and writes nothing.

use std::path::{Path, PathBuf};

use oncelog_format::{Owner, parse_segment_name};

use crate::error::{Error, ErrorKind, Result};
use crate::io::{EntryKind, Io};
use crate::log::facts::{LOCK_NAME, LockFacts, SPARE_SUFFIX};
use crate::log::{Finding, FindingKind, Severity};
use crate::store::{CHANNELS, CONTROL};

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlaceKind {
    /// A store: a control log and a log for each pchannel.
    Store,
    /// The directory of one log.
    Log,
    /// One segment file.
    Segment,
}

/// The logs at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    kind: PlaceKind,
    logs: Vec<(String, PathBuf)>,
    findings: Vec<Finding>,
}

impl Place {
    /// Looks at a path.
    ///
    /// An empty directory is a log without records.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when nothing is there, or something else than a store, a log or a segment;
    /// `Io`.
    pub fn at(io: &dyn Io, path: &Path) -> Result<Self> {
        let refuse = |what| Err(Error::new(ErrorKind::InvalidInput, what).at_path(path));
        let kind = io.kind(path).map_err(|e| Error::io("cannot look at the path", path, e))?;
        match kind {
            Some(EntryKind::Dir) => {}
            Some(EntryKind::File) => {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if !name.ends_with(".seg") {
                    return refuse("not a segment: its name does not end in .seg");
                }
                return Ok(Self::one(PlaceKind::Segment, path));
            }
            Some(_) => return refuse("neither a directory nor a regular file"),
            None => return refuse("nothing is there"),
        }
        let entries = io.list(path).map_err(|e| Error::io("cannot list the directory", path, e))?;
        let has = |name: &str, kind| entries.iter().any(|e| e.name == name && e.kind == kind);
        let lock =
            if has(LOCK_NAME, EntryKind::File) { Some(LockFacts::read(io, path)?) } else { None };
        let has_control = has(CONTROL, EntryKind::Dir);
        let is_store = matches!(lock, Some(LockFacts::Identity(Owner::Store, _)));
        if is_store || has_control {
            let findings = store_findings(path, lock, has_control);
            return Ok(Self { kind: PlaceKind::Store, logs: store_logs(io, path)?, findings });
        }
        let is_log = lock.is_some()
            || entries.iter().any(|entry| {
                let name = entry.name.to_string_lossy();
                parse_segment_name(&name).is_some() || name.ends_with(SPARE_SUFFIX)
            });
        if !is_log && !entries.is_empty() {
            return refuse("neither a store nor a log: the directory holds something else");
        }
        Ok(Self::one(PlaceKind::Log, path))
    }

    fn one(kind: PlaceKind, path: &Path) -> Self {
        Self { kind, logs: vec![(String::new(), path.to_path_buf())], findings: Vec::new() }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> PlaceKind {
        self.kind
    }

    /// Its logs: the name below the path, empty for a log or a segment, and the path of each. Of a
    /// store, control comes first and the channels by name.
    #[must_use]
    pub fn logs(&self) -> &[(String, PathBuf)] {
        &self.logs
    }

    /// What is wrong with a store beside its logs: its lock file, a control log that is gone.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// What is wrong with a store beside its logs.
fn store_findings(path: &Path, lock: Option<LockFacts>, has_control: bool) -> Vec<Finding> {
    let corrupt = |kind, path: &Path| Finding::new(kind, Severity::Corrupt, path);
    let mut findings = Vec::new();
    if let Some((_, found)) = lock.as_ref().and_then(LockFacts::damage) {
        let damaged = corrupt(FindingKind::LockDamaged, &path.join(LOCK_NAME));
        findings.push(damaged.saying("zeros or an identity", found));
    }
    if matches!(lock, Some(LockFacts::Identity(..))) && !has_control {
        let gone = corrupt(FindingKind::SegmentsGone, path);
        findings.push(gone.saying("the control log of the store", "none"));
    }
    findings
}

fn store_logs(io: &dyn Io, path: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut logs = Vec::new();
    let control = path.join(CONTROL);
    let is_dir = |path: &Path| match io.kind(path) {
        Ok(kind) => Ok(kind == Some(EntryKind::Dir)),
        Err(e) => Err(Error::io("cannot look at the path", path, e)),
    };
    if is_dir(&control)? {
        logs.push((CONTROL.to_owned(), control));
    }
    let channels = path.join(CHANNELS);
    if is_dir(&channels)? {
        let entries =
            io.list(&channels).map_err(|e| Error::io("cannot list the directory", &channels, e))?;
        let mut names: Vec<_> = entries.into_iter().map(|e| e.name).collect();
        names.sort();
        for name in names {
            // A writer follows a link to a directory on another disk, so readers do.
            if is_dir(&channels.join(&name))? {
                let shown = format!("{CHANNELS}/{}", name.to_string_lossy());
                logs.push((shown, channels.join(name)));
            }
        }
    }
    Ok(logs)
}
