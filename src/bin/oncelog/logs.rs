//! The logs at a path, as every command that reads sees them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog::{ErrorKind, Finding, LogView, Lsn, Place, PlaceKind, Record, SegmentId, Severity};
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure};
use crate::render;

/// A log, or a segment of one, with what it is called below the path that was given.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Empty for a log or a segment, else `control` or `channels/NAME`.
    pub(crate) name: String,
    pub(crate) view: LogView,
    /// The files of the segments.
    files: BTreeMap<SegmentId, String>,
}

/// What stands at a path.
#[derive(Debug)]
pub(crate) struct Logs {
    pub(crate) is_store: bool,
    pub(crate) logs: Vec<Seen>,
    /// What is wrong with a store beside its logs.
    pub(crate) findings: Vec<Finding>,
}

impl Logs {
    /// The worst of the findings beside the logs.
    pub(crate) fn severity(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Info)
    }
}

/// Looks at the store, log or segment at a path.
pub(crate) fn open(path: &Path) -> Result<Logs, Failure> {
    let io: Arc<dyn oncelog::io::Io> = Arc::new(oncelog::io::fs::FsIo::new());
    let place = Place::at(&*io, path)?;
    let mut logs = Vec::new();
    for (name, path) in place.logs() {
        logs.push(Seen::new(name.clone(), LogView::open(path, Arc::clone(&io))?));
    }
    let is_store = place.kind() == PlaceKind::Store;
    Ok(Logs { is_store, logs, findings: place.findings().to_vec() })
}

/// The name of a pchannel's log below a store.
pub(crate) fn channel_name(pchannel: &str) -> String {
    format!("{CHANNELS}{pchannel}")
}

/// The pchannel whose log has this name below a store.
pub(crate) fn pchannel(log: &str) -> Option<&str> {
    log.strip_prefix(CHANNELS)
}

const CHANNELS: &str = "channels/";

/// Whether an error says that bytes are damaged or unknown, and nothing of this machine.
pub(crate) fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::Unsupported)
}

/// What reading several logs amounts to: damage in one does not hide the next.
#[derive(Debug)]
pub(crate) struct Verdict {
    exit: Exit,
    damage: Vec<Failure>,
}

impl Verdict {
    /// Begins with what is wrong beside the logs.
    pub(crate) fn new(place: &Logs) -> Self {
        let damage = place.findings.iter().filter(|f| f.severity >= Severity::Unsupported);
        let damage = damage.map(|finding| finding.to_error().into()).collect();
        Self { exit: exit(place.severity()), damage }
    }

    /// Counts what reading one log came to. An error that is no damage ends the command.
    pub(crate) fn add(&mut self, seen: &Seen, end: Result<(), Failure>) -> Result<(), Failure> {
        self.exit = self.exit.max(exit(seen.view.severity()));
        let Err(failure) = end else { return Ok(()) };
        if matches!(&failure, Failure::Library(error) if is_damage(error.kind())) {
            self.exit = self.exit.max(failure.exit());
            self.damage.push(failure);
            return Ok(());
        }
        if self.damage.is_empty() || failure.each().is_empty() {
            return Err(failure);
        }
        let mut all = std::mem::take(&mut self.damage);
        all.push(failure);
        Err(Failure::Several(all, self.exit))
    }

    /// The worst: 5 over 4 over 3.
    pub(crate) fn end(self) -> Result<Exit, Failure> {
        if self.damage.is_empty() {
            return Ok(self.exit);
        }
        Err(Failure::Several(self.damage, self.exit))
    }
}

impl Seen {
    /// Whether it is the log of a pchannel of a store.
    pub(crate) fn is_channel(&self) -> bool {
        self.name.starts_with(CHANNELS)
    }

    pub(crate) fn new(name: String, view: LogView) -> Self {
        let mut seen = Self { name, view, files: BTreeMap::new() };
        let segments = seen.view.segments();
        seen.files = segments.iter().map(|info| (info.number, seen.file(&info.path))).collect();
        seen
    }

    /// A file of the log, as a path below the one that was given.
    pub(crate) fn file(&self, path: &Path) -> String {
        file(path, &self.name)
    }

    /// The segment that a record stands in.
    pub(crate) fn segment(&self, record: &Record) -> String {
        self.files.get(&record.segment).cloned().unwrap_or_default()
    }

    /// The object that a finding is printed as.
    pub(crate) fn finding(&self, finding: &Finding) -> Value {
        finding_object(finding, &self.name)
    }

    /// The line that a finding is printed as.
    pub(crate) fn finding_line(&self, finding: &Finding) -> String {
        finding_line(finding, &self.name)
    }

    /// Names the log in an object, where there may be several.
    pub(crate) fn tag(&self, object: &mut Map<String, Value>) {
        if !self.name.is_empty() {
            object.insert("log".into(), json!(self.name));
        }
    }
}

/// A file of the log of this name, as a path below the one that was given.
fn file(path: &Path, log: &str) -> String {
    let name = path.file_name().map(PathBuf::from).unwrap_or_default();
    Path::new(log).join(name).display().to_string()
}

/// The object that a finding is printed as.
pub(crate) fn finding_object(finding: &Finding, log: &str) -> Value {
    let mut object = Map::new();
    object.insert("kind".into(), json!(finding.kind.as_str()));
    object.insert("severity".into(), json!(severity(finding.severity)));
    if !log.is_empty() {
        object.insert("log".into(), json!(log));
    }
    object.insert("segment".into(), json!(file(&finding.path, log)));
    object.insert("offset".into(), json!(finding.offset));
    object.insert("lsn".into(), json!(finding.lsn.map(Lsn::get)));
    object.insert("expected".into(), json!(finding.expected));
    object.insert("found".into(), json!(finding.found));
    object.insert("consequence".into(), json!(finding.kind.consequence()));
    Value::Object(object)
}

/// The line that a finding is printed as.
pub(crate) fn finding_line(finding: &Finding, log: &str) -> String {
    let mut line = format!("{:<11} {}", severity(finding.severity), file(&finding.path, log));
    if let Some(offset) = finding.offset {
        render::write_to(&mut line, format_args!(" at {offset:#x}"));
    }
    if let Some(lsn) = finding.lsn {
        render::write_to(&mut line, format_args!(", LSN {lsn}"));
    }
    let (expected, found) = (&finding.expected, &finding.found);
    match (expected.is_empty(), found.is_empty()) {
        (false, false) => {
            render::write_to(&mut line, format_args!(": expected {expected}, found {found}"));
        }
        (false, true) => render::write_to(&mut line, format_args!(": expected {expected}")),
        (true, false) => render::write_to(&mut line, format_args!(": {found}")),
        (true, true) => {}
    }
    render::write_to(&mut line, format_args!("; {}", finding.kind.consequence()));
    line
}

/// A severity as it is printed.
pub(crate) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Torn => "torn",
        Severity::Degraded => "degraded",
        Severity::Corrupt => "corrupt",
        Severity::Unsupported => "unsupported",
        _ => "info",
    }
}

/// The `status` of a summary: damage to a copy is `corrupt`, too; its findings tell the two apart.
pub(crate) fn status(severity: Severity) -> &'static str {
    match severity {
        Severity::Torn => "torn",
        Severity::Degraded | Severity::Corrupt => "corrupt",
        Severity::Unsupported => "unsupported",
        _ => "clean",
    }
}

/// The exit code of a verdict, where `degraded` counts.
pub(crate) fn strict_exit(severity: Severity) -> Exit {
    match severity {
        Severity::Torn => Exit::Torn,
        Severity::Degraded | Severity::Corrupt => Exit::Corrupt,
        Severity::Unsupported => Exit::Unsupported,
        _ => Exit::Clean,
    }
}

/// The exit code of a verdict for who only wants the records.
pub(crate) fn exit(severity: Severity) -> Exit {
    if severity == Severity::Degraded { Exit::Clean } else { strict_exit(severity) }
}
