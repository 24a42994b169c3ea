//! Copying a log while it is written.
//!
//! A backup holds the records from the oldest one to an end that is fixed before the first is read:
//! same LSNs, times, kinds and batches, in frames of the same bytes at the same offsets. Every
//! frame is verified on the way, and damage ends it. All else of a segment is written anew, so that
//! nothing dead or degraded is carried over: header, slots, a footer after the last frame. The copy
//! is a log of its own and has an identity of its own, for it and the original may go different
//! ways from here on, and a segment of one is then no segment of the other.
//!
//! Until the last byte and name is durable, `LOCK` says that the copy is unfinished, and no log
//! opens there: a backup is whole or is none, whatever fails or crashes in between.

mod copy;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog_format::lock::{LOCK_CONTENT_LEN, LOCK_LEN, LOCK_UNFINISHED};
use oncelog_format::segment::MINOR;
use oncelog_format::{
    CURSORS_LEN, CursorCopy, Owner, SegmentHeader, Uuid, encode_lock, segment_name,
};

use self::copy::SegmentCopy;
use super::Log;
use super::dir::{
    self, DirLock, make_named, refusal, sync_dir, sync_parent, sync_parent_if_allowed,
};
use super::facts::{CURSORS_NAME, LOCK_NAME, is_lost_found};
use super::log_source::{LogSource, Reach};
use super::pins::HolderKind;
use super::reader::Source;
use super::view::LogView;
use super::writer::closed;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{DirEntry, EntryKind, Io, OpenHow};
use crate::lsn::Lsn;

const NOT_EMPTY: &str = "the directory is not empty";

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Identity of the copy.
    pub uuid: Uuid,
    /// LSN of its oldest record, or of the next one where it has none.
    pub oldest_lsn: Lsn,
    /// LSN of its last record; `None` where it has none.
    pub last_lsn: Option<Lsn>,
    /// Its segments.
    pub segment_count: u64,
    /// Sum of their sizes in bytes.
    pub bytes: u64,
}

/// What is to be copied.
#[derive(Debug)]
pub(super) struct Plan {
    /// Each segment, with the last record to be copied from it.
    segments: Vec<(SegmentHeader, u64)>,
    oldest: u64,
    /// Names and LSNs of the cursors; `None` where they are damaged.
    cursors: Option<Vec<(String, u64)>>,
}

impl Log {
    /// Copies the log into a directory that is absent or empty (but for the `lost+found` of a file
    /// system), while it is read and written: every record from the oldest one to the durable LSN
    /// at the time of the call. Retention waits for it, as for a pin of the name `backup`.
    ///
    /// The copy is a log of its own: same records, LSNs and cursors, another
    /// [`BackupReport::uuid`]. Sealed segments and tail alike are copied frame by frame, and each
    /// frame is verified.
    ///
    /// # Errors
    ///
    /// `InvalidInput` where the directory is neither absent nor empty; `Busy` where another process
    /// was faster to take it; `StoreFull` and `Io` where the system refuses; `Corrupt` where a
    /// record is damaged; `Closed`. What was made is removed then, as far as the system allows.
    /// What stays, and what a crash leaves, is no log: opening it is `Corrupt`, or `InvalidInput`
    /// where no file was left. Do not open a backup with
    /// [`CreateMode::IfMissing`](crate::CreateMode::IfMissing), which makes a log where there is
    /// none.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, the copy survives a power loss, with its directory.
    ///
    /// # Examples
    ///
    /// ```
    /// use oncelog::{CreateMode, Log, Options};
    ///
    /// # fn main() -> oncelog::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a directory");
    /// let options = Options::new().create(CreateMode::IfMissing);
    /// let (log, _report) = Log::open(dir.path().join("log"), &options)?;
    /// log.append(b"precious")?;
    /// let report = log.backup(dir.path().join("copy"))?;
    /// let (copy, _report) = Log::open(dir.path().join("copy"), &Options::new())?;
    /// assert_eq!(copy.durable_lsn(), report.last_lsn);
    /// # copy.close()?;
    /// # log.close()
    /// # }
    /// ```
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<BackupReport> {
        let shared = &self.handle.shared;
        let pin = loop {
            match shared.pin(HolderKind::Pin, "backup", self.oldest_lsn()) {
                // A trim was faster.
                Err(e) if e.kind() == ErrorKind::Trimmed => {}
                pinned => break pinned?,
            }
        };
        let plan = {
            let gate = shared.gate();
            if gate.closed {
                return Err(closed());
            }
            // A trim that was refused half-way has let nothing go yet, and any other one may.
            let kept = || gate.segments.iter().skip(gate.trimmed_count());
            let firsts = kept().skip(1).map(|next| next.header.first_lsn);
            let lasts = firsts.map(|first| first.saturating_sub(1)).chain([gate.durable.lsn]);
            let segments = kept().map(|segment| segment.header).zip(lasts);
            // One may stand after the end of a log that lost records.
            let end = gate.durable.lsn.saturating_add(1);
            let cursors = gate.holds.cursors.iter();
            let cursors = cursors.map(|(name, at)| (name.clone(), at.lsn.min(end)));
            let cursors = gate.holds.check_cursors().is_ok().then(|| cursors.collect());
            Plan { segments: segments.collect(), oldest: gate.oldest, cursors }
        };
        let source = LogSource { shared: Arc::clone(shared), reach: Reach::Durable };
        let report = copy(&source, &plan, to.as_ref());
        drop(pin);
        report
    }
}

impl LogView {
    /// Copies what this look saw into a directory that is absent or empty, as [`Log::backup`] does:
    /// every record up to [`LogView::last_lsn`], which the copy vouches for from then on.
    ///
    /// Nothing keeps a writer in another process from dropping records meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Log::backup`]; `Trimmed` when a writer was faster: look again. `InvalidInput` for a
    /// look at no log, or at one segment of it.
    ///
    /// # Durability
    ///
    /// As [`Log::backup`].
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<BackupReport> {
        let survey = &self.seen().survey;
        if let Some(damage) = survey.damage() {
            return Err(damage.to_error());
        }
        if survey.segments.is_empty() || survey.listing.segments.is_empty() {
            let what = "expected the directory of a log";
            return Err(Error::new(ErrorKind::InvalidInput, what).at_path(self.path()));
        }
        let last_of = |(at, segment): (usize, &super::survey::Segment)| {
            let next = self.seen().next_first(at);
            (segment.header, next.map_or(segment.last, |next| next.saturating_sub(1)))
        };
        let segments = survey.segments.iter().enumerate().map(last_of).collect();
        // A writer may have moved them since: it is enough that they hold what they held.
        let end = survey.last.saturating_add(1);
        let cursors = survey.cursors.cursors.iter();
        let cursors = cursors.map(|(name, at)| (name.clone(), at.lsn.min(end)));
        let cursors = survey.cursors.damage.is_none().then(|| cursors.collect());
        let plan = Plan { segments, oldest: self.seen().oldest(), cursors };
        copy(&*self.source(false), &plan, to.as_ref())
    }
}

fn copy(source: &dyn Source, plan: &Plan, to: &Path) -> Result<BackupReport> {
    let uuid = Uuid(dir::random(source.io())?);
    let to = dir::absolute(to)?;
    let mut target = Target::make(source.io(), &to)?;
    let copied = target.fill(source, plan, uuid);
    if copied.is_err() {
        target.abandon();
    }
    copied
}

/// The directory of an unfinished copy.
#[derive(Debug)]
struct Target<'a> {
    io: &'a dyn Io,
    dir: &'a Path,
    /// Locked, so that whoever opens the copy meanwhile is told to wait.
    lock: DirLock,
    files: Vec<PathBuf>,
}

impl<'a> Target<'a> {
    /// # Durability
    ///
    /// The directory, and a `LOCK` in it that says that it is unfinished.
    fn make(io: &'a dyn Io, dir: &'a Path) -> Result<Self> {
        let refuse = |what| Err(Error::new(ErrorKind::InvalidInput, what).at_path(dir));
        match io.kind(dir).map_err(|e| Error::io("cannot look at the path", dir, e))? {
            None => {
                make_named(io, dir)?;
                sync_parent(io, dir)?;
            }
            Some(EntryKind::Dir) => {
                if !list(io, dir)?.iter().all(|entry| is_lost_found(&entry.name)) {
                    return refuse(NOT_EMPTY);
                }
                sync_parent_if_allowed(io, dir)?;
            }
            Some(_) => return refuse("not a directory"),
        }
        let Some(lock) = DirLock::make(io, dir)? else { return refuse(NOT_EMPTY) };
        // Before it was locked, another process may have made a log there, and may be gone.
        let len = lock.file().len();
        let len = len.map_err(|e| Error::io("cannot look at the lock file", dir, e))?;
        let is_other = |entry: &DirEntry| entry.name != LOCK_NAME && !is_lost_found(&entry.name);
        if len > 0 || list(io, dir)?.iter().any(is_other) {
            return refuse(NOT_EMPTY);
        }
        let mut target = Self { io, dir, lock, files: Vec::new() };
        let marked = target.mark();
        if marked.is_err() {
            target.abandon();
        }
        marked.map(|()| target)
    }

    fn mark(&self) -> Result<()> {
        let path = self.dir.join(LOCK_NAME);
        let mut content = [0; LOCK_LEN];
        for (to, from) in content.iter_mut().zip(LOCK_UNFINISHED) {
            *to = from;
        }
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::BackupUnmarked) {
            content = [0; LOCK_LEN];
        }
        let written = self.lock.file().write_all_at(&content, 0);
        written.map_err(|e| refusal("cannot write the lock file", &path, e))?;
        let synced = self.lock.file().sync();
        synced.map_err(|e| Error::io("cannot sync the lock file", &path, e))?;
        // Before a segment has its name.
        sync_dir(self.io, self.dir)
    }

    fn fill(&mut self, source: &dyn Source, plan: &Plan, uuid: Uuid) -> Result<BackupReport> {
        let oldest = Lsn::at_least_first(plan.oldest);
        let mut report =
            BackupReport { uuid, oldest_lsn: oldest, last_lsn: None, segment_count: 0, bytes: 0 };
        let tail = plan.segments.len().saturating_sub(1);
        for (at, (header, last)) in plan.segments.iter().enumerate() {
            // A segment that was left without a record is not missed.
            if *last < header.first_lsn && at < tail {
                continue;
            }
            let path = self.dir.join(segment_name(header.number, header.first_lsn));
            let file = self.io.open(&path, OpenHow::CreateNew);
            let file = file.map_err(|e| refusal("cannot make a segment", &path, e))?;
            self.files.push(path.clone());
            let from = source.path(header);
            // Footer and slots are written anew, as this version does.
            let header = SegmentHeader { uuid, minor: MINOR, compat: 0, ..*header };
            let mut copy = SegmentCopy::new(from, (path, file), header);
            let slot = copy.begin(plan.oldest)?;
            // Before its first frame, as in any log: else its blocks may be those of a trimmed
            // segment whose removal is not on disk, and a crash shows the frames under that name.
            self.sync_names()?;
            copy.segment(source, *last, slot, at == tail)?;
            report.segment_count = report.segment_count.saturating_add(1);
            report.bytes = report.bytes.saturating_add(copy.written());
            report.last_lsn = Lsn::new(*last).filter(|last| *last >= oldest);
        }
        self.cursors(plan.cursors.as_deref(), uuid)?;
        sync_dir(self.io, self.dir)?;
        // Only here: everything else is durable.
        let path = self.dir.join(LOCK_NAME);
        let identified = self.lock.file().write_all_at(&encode_lock(Owner::Log, uuid), 0);
        let identified = identified.and_then(|()| self.lock.file().sync());
        identified.map_err(|e| Error::io("cannot write the lock file", &path, e))?;
        Ok(report)
    }

    fn sync_names(&self) -> Result<()> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::BackupUnnamed) {
            return Ok(());
        }
        sync_dir(self.io, self.dir)
    }

    /// The cursors stand where they stood. Of damaged ones the copy has a damaged file, too: what
    /// is still needed is as unknown there.
    fn cursors(&mut self, cursors: Option<&[(String, u64)]>, uuid: Uuid) -> Result<()> {
        let mut bytes = vec![0; CURSORS_LEN];
        match cursors {
            Some([]) => return Ok(()),
            Some(cursors) => {
                for (index, (name, lsn)) in (0..).zip(cursors) {
                    for counter in [1, 2] {
                        let copy = CursorCopy { index, counter, lsn: *lsn, name };
                        put_cursor(&mut bytes, &copy, uuid)?;
                    }
                }
            }
            None => bytes.clear(),
        }
        let path = self.dir.join(CURSORS_NAME);
        let file = self.io.open(&path, OpenHow::CreateNew);
        let file = file.map_err(|e| refusal("cannot make the file of the cursors", &path, e))?;
        self.files.push(path.clone());
        let written = file.write_all_at(&bytes, 0);
        written.map_err(|e| refusal("cannot write the cursors", &path, e))?;
        file.sync().map_err(|e| Error::io("cannot sync the cursors", &path, e))
    }

    /// Removes what was made, as far as that goes. While a segment may be there, `LOCK` says what
    /// it is.
    fn abandon(&mut self) {
        let lock = self.lock.file();
        let removed = lock.write_all_at(&LOCK_UNFINISHED, 0).and_then(|()| {
            lock.sync()?;
            self.files.iter().try_for_each(|path| self.io.remove(path))?;
            self.io.sync_dir(self.dir)?;
            self.io.remove(&self.dir.join(LOCK_NAME))
        });
        if let Err(e) = removed {
            tracing::warn!(path = %self.dir.display(), error = %e, "an unfinished backup stays");
        }
    }
}

fn list(io: &dyn Io, dir: &Path) -> Result<Vec<DirEntry>> {
    io.list(dir).map_err(|e| Error::io("cannot list the directory", dir, e))
}

fn put_cursor(bytes: &mut [u8], copy: &CursorCopy<'_>, uuid: Uuid) -> Result<()> {
    let refuse = |e| Error::new(ErrorKind::Limit, "a cursor has no encoding").with_source(e);
    let encoded = copy.encode(uuid).map_err(refuse)?;
    let offset = usize::try_from(CursorCopy::offset_of(copy.index, copy.counter));
    let place = bytes.get_mut(offset.unwrap_or(usize::MAX)..).unwrap_or_default();
    for (to, from) in place.iter_mut().zip(encoded) {
        *to = from;
    }
    Ok(())
}

const _: () = assert!(LOCK_UNFINISHED.len() == LOCK_CONTENT_LEN);
