//! The log: append-only, segmented, checksummed, for one writer and any number of readers.
//!
//! [`Log::open`] locks the directory, recovers what is there (SPEC section 12) and makes it good
//! (section 10). Appends pass one gate, where LSNs are assigned; groups of them are written and
//! synced by whichever thread comes first. A failed write or sync is final until the log is opened
//! again.
//!
//! It does not know what a record means, and it retries nothing.

pub(crate) mod async_calls;
mod background;
mod backup;
mod backward;
mod close;
mod cursors;
pub(crate) mod decision;
pub(crate) mod dir;
pub(crate) mod facts;
mod fill;
mod finding;
mod group;
mod log_source;
mod maps;
pub(crate) mod open;
mod options;
mod pending;
mod pins;
mod prove;
mod reader;
mod rebuild;
mod recover;
mod remove;
mod report;
pub(crate) mod reserve;
mod retention;
mod roll;
mod room;
mod salvage;
mod scan;
#[cfg(any(loom, shuttle))]
#[cfg(test)]
mod schedules;
mod seek;
mod segment_reader;
mod spare;
mod stats;
mod subscribe;
mod survey;
mod tail;
mod told;
mod trim;
mod trimmer;
mod verify;
mod view;
mod view_source;
mod wait;
mod walk;
mod writer;

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncelog_format::Uuid;

pub use self::backup::BackupReport;
pub use self::cursors::Cursor;
pub use self::finding::{Finding, FindingKind, Severity};
pub use self::options::{
    Batch, Check, CreateMode, Durability, Fill, Options, RecordKind, WaitPolicy,
};
pub use self::pending::{Durable, Pending};
pub use self::pins::{Holder, HolderKind, Pin};
pub use self::reader::{Reader, Record};
pub use self::report::{RecoveryReport, TornEnd};
pub use self::retention::{Retention, TrimReport};
pub use self::stats::LogStats;
pub use self::subscribe::{Delivery, Subscription};
use self::trimmer::Trimmer;
pub use self::verify::VerifySummary;
pub use self::view::{LogView, SegmentInfo};
use self::writer::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::{Lsn, LsnRange};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Mutex, MutexGuard};

/// A log that is open for appending. Clones share it.
///
/// Dropping the last clone closes it, and blocks for a sync; [`Log::close`] also says how it went.
///
/// # Examples
///
/// ```
/// use oncelog::{CreateMode, Log, Lsn, Options};
///
/// # fn main() -> oncelog::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// let options = Options::new().create(CreateMode::IfMissing);
/// let (log, _report) = Log::open(dir.path().join("log"), &options)?;
/// let lsn = log.append(b"survives a power loss once this returns")?;
/// let record = log.reader(lsn)?.next()?;
/// assert_eq!(record.map(|record| record.lsn), Some(Lsn::FIRST));
/// log.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Log {
    handle: Arc<Handle>,
}

/// What the last clone ends.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    background: Mutex<Option<JoinHandle<()>>>,
    trimmer: Mutex<Trimmer>,
}

impl Log {
    /// Opens, and with [`CreateMode::IfMissing`] or [`CreateMode::Always`] makes, the log in `dir`.
    ///
    /// # Errors
    ///
    /// - `InvalidInput`: an option is out of its range, there is no log or (with `Always`) there is
    ///   one, or the directory holds something else. Nothing was touched.
    /// - `Busy`: another writer has it open, and had until the end of [`Options::lock_wait`].
    /// - `Corrupt`, `Unsupported`: what a sync had promised is damaged, or is of a newer version.
    ///   No segment was touched.
    /// - `StoreFull`: no space to make a log; or, where blocks are not written again in their place
    ///   (btrfs, ZFS and others that copy on write), none to write records again that may not have
    ///   reached the disk. A later open goes on where this one stopped.
    /// - `Io`: the system refused.
    ///
    /// # Durability
    ///
    /// Every record that the log then serves, and the directory where this made it.
    pub fn open(dir: impl AsRef<Path>, options: &Options) -> Result<(Self, RecoveryReport)> {
        let _span = tracing::debug_span!("open_log", dir = %dir.as_ref().display()).entered();
        let (shared, report) = open::open(dir.as_ref(), options)?;
        let shared = Arc::new(shared);
        let handle = Handle {
            shared: Arc::clone(&shared),
            background: Mutex::default(),
            trimmer: Mutex::default(),
        };
        if options.background {
            let started = thread::Builder::new().name("oncelog".to_owned());
            let thread = Arc::clone(&shared);
            let started = started
                .spawn(move || background::run(&thread))
                .map_err(|e| Error::io("cannot start the log's thread", dir.as_ref(), e))?;
            *lock(&handle.background) = Some(started);
            shared.call_filler(&mut shared.gate());
        }
        let is_degraded = !shared.gate().degraded.is_empty();
        if is_degraded || !options.retention.is_everything() || !report.leftovers.is_empty() {
            handle.start_trimmer();
        }
        Ok((Self { handle: Arc::new(handle) }, report))
    }

    /// The directory that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.handle.shared.dir
    }

    /// The identity of the log, which every segment of it carries.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.handle.shared.gate().header.uuid
    }

    /// Appends one record of kind [`RecordKind::RECORD`].
    ///
    /// # Errors
    ///
    /// As [`Log::append_batch`].
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, the record survives a power loss.
    pub fn append(&self, record: &[u8]) -> Result<Lsn> {
        let batch = Batch { kind: RecordKind::RECORD, records: &[record] };
        Ok(self.append_batch(batch, Durability::Synced)?.first)
    }

    /// Appends records as one: after a crash all of them are there, or none.
    ///
    /// # Errors
    ///
    /// - `InvalidInput` for an empty batch, `Limit` for a record or a batch that is too large:
    ///   nothing was written.
    /// - `StoreFull` when there is no space for the next segment, `Io` when it cannot be made for
    ///   another reason, as without a free file handle: nothing was written, and a later append may
    ///   succeed.
    /// - `OutcomeUnknown` when a write or sync failed after the LSNs were assigned: only opening
    ///   the log again tells.
    /// - `Poisoned` when one had failed before, `Closed` after a close: nothing was written.
    ///
    /// # Durability
    ///
    /// With [`Durability::Synced`], the records survive a power loss when this returns `Ok`. With
    /// [`Durability::Buffered`] they are in memory; see there.
    pub fn append_batch(&self, batch: Batch<'_>, durability: Durability) -> Result<LsnRange> {
        match durability {
            Durability::Synced => self.handle.shared.append(batch),
            Durability::Buffered => self.handle.shared.enqueue(batch, false),
        }
    }

    /// Puts a batch into the log's buffer, where it gets its LSNs; what is returned says when it is
    /// durable. Blocks while the buffer is full, and where a segment has to be started.
    ///
    /// # Errors
    ///
    /// As [`Log::append_batch`], except for `OutcomeUnknown`: a refusal here wrote nothing, also
    /// where it is `StoreFull` or `Io` because the next segment cannot be made.
    ///
    /// # Durability
    ///
    /// None yet. Whether or not anybody waits for it, a write and sync of the batch begins within
    /// 10 ms, or when the one under way returns.
    pub fn enqueue(&self, batch: Batch<'_>) -> Result<Pending> {
        let lsns = self.handle.shared.enqueue(batch, true)?;
        Ok(Pending::new(Arc::clone(&self.handle.shared), lsns))
    }

    /// Writes everything that was appended before the call.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, those records survive the end of the process, not a power loss.
    pub fn flush(&self) -> Result<()> {
        self.handle.shared.flush()
    }

    /// Makes everything that was appended before the call durable, and returns the durable LSN;
    /// `None` for a log that has never had a record.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Closed`.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, those records survive a power loss.
    pub fn sync(&self) -> Result<Option<Lsn>> {
        self.handle.shared.sync()
    }

    /// The highest LSN that survives a power loss; `None` before the first one does.
    #[must_use]
    pub fn durable_lsn(&self) -> Option<Lsn> {
        Lsn::new(self.handle.shared.gate().durable.lsn)
    }

    /// The LSN that the next record gets.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        Lsn::at_least_first(self.handle.shared.gate().next_lsn)
    }

    /// The LSN of the oldest record that was not trimmed, or of the next one when there is none.
    #[must_use]
    pub fn oldest_lsn(&self) -> Lsn {
        Lsn::at_least_first(self.handle.shared.gate().oldest)
    }

    /// Time of the newest record in milliseconds since 1970-01-01 UTC, also when retention has
    /// dropped it; `None` when the log has never had one.
    #[must_use]
    pub fn newest_ms(&self) -> Option<u64> {
        let gate = self.handle.shared.gate();
        (gate.next_lsn > 1).then_some(gate.time_ms)
    }

    /// Says whether appends may go on.
    ///
    /// # Errors
    ///
    /// `Poisoned` with its cause, `Closed`.
    pub fn check_open(&self) -> Result<()> {
        self.handle.shared.gate().check_open()
    }

    /// Waits until the durable LSN is at least `lsn`, or the time is over; says whether it is. The
    /// record need not have been appended yet, and this syncs nothing itself.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Closed`: it will not come.
    pub fn wait_durable(&self, lsn: Lsn, timeout: Option<Duration>) -> Result<bool> {
        self.handle.shared.wait_durable(lsn.get(), timeout)
    }

    /// Drops the records below `oldest`, which may be the next LSN at most: all of them, or none
    /// where somebody holds one. Segments that hold no other record leave the log, and their files
    /// go in the background. No reader that is made from here on serves a record below `oldest`,
    /// whether or not its bytes stay; one that is within a segment reads that to its end.
    ///
    /// # Errors
    ///
    /// - `InvalidInput` above the next LSN.
    /// - `Pinned` when a record below `oldest` is held, with the LSN up to which a trim may go.
    /// - `Corrupt` while the file of the cursors is damaged: nobody knows what they hold.
    /// - `StoreFull` when there is no space to say so. No file goes; but where the first of the two
    ///   slots was written, no reader that is made from here on serves a record below `oldest`, and
    ///   where the system wrote what it refused, that holds from the next open on.
    /// - `Io` when the system refuses to read or write the cursors, or to make the segment that an
    ///   empty last one needs: nothing goes.
    /// - `OutcomeUnknown` when a sync of the cursors failed: the log is poisoned.
    /// - `Poisoned` when a slot or its sync fails for another reason than space, a sync of records
    ///   below `oldest` that were only buffered fails, or something had failed before: whether the
    ///   trim holds, the next open decides. `Closed`.
    ///
    /// That a file could not be removed is no error: it is tried again at the next trim, and told
    /// by [`Log::why_not_trimmed`].
    ///
    /// # Durability
    ///
    /// The oldest LSN, before a file goes.
    pub fn trim(&self, oldest: Lsn) -> Result<()> {
        self.handle.start_trimmer();
        self.handle.shared.trim(oldest.get()).map(drop)
    }

    /// Takes one step in removing the files of trimmed segments, as a thread of the log does; says
    /// whether there was one to take.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Closed`.
    #[cfg(any(test, feature = "testing"))]
    pub fn remove_step(&self) -> Result<bool> {
        self.handle.shared.gate().check_open()?;
        Ok(self.handle.shared.remove_step())
    }

    /// Syncs what was appended, and releases the directory before it returns, whatever happens.
    /// Every clone answers `Closed` from here on. Payloads that were read live on; should the
    /// system refuse the lock that keeps the next writer from cutting the files below them, the
    /// directory is released with the last of them.
    ///
    /// # Errors
    ///
    /// `Poisoned` with its cause when a write or sync had failed or fails here; `StoreFull` or `Io`
    /// when only the last slot could not be written: the records are durable then; `Closed` when a
    /// clone was closed before.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, every record that was appended.
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }

    /// As [`Log::enqueue`]; `None` where that would wait or do I/O, so that it can be called within
    /// a write or a sync of this log.
    ///
    /// # Errors
    ///
    /// As [`Log::enqueue`].
    #[cfg(any(test, feature = "testing"))]
    pub fn try_enqueue(&self, batch: Batch<'_>) -> Result<Option<Pending>> {
        let shared = &self.handle.shared;
        let lsns = shared.try_enqueue(batch, true, u64::MAX)?;
        Ok(lsns.map(|lsns| Pending::new(Arc::clone(shared), lsns)))
    }

    /// What the log has done since it was opened, and has at this moment. Appends wait meanwhile,
    /// for about a microsecond and a few more for each thousand segments.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.handle.shared.gate().stats()
    }

    /// Takes one step of filling ahead, as the log's thread does; false when there is none to take.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Closed`. A refusal to fill is none.
    #[cfg(any(test, feature = "testing"))]
    pub fn fill_step(&self) -> Result<bool> {
        self.handle.shared.fill_step()
    }

    /// Writes a slot that states the durable LSN, as a log does after 10 ms without an append.
    ///
    /// # Errors
    ///
    /// `Poisoned`, `Closed`. A refusal to write the slot is none.
    #[cfg(any(test, feature = "testing"))]
    pub fn write_idle_slot(&self) -> Result<()> {
        let shared = &self.handle.shared;
        let gate = shared.gate();
        gate.check_open()?;
        shared.write_idle_slot(gate).check_open()
    }
}

#[cfg(any(test, feature = "testing"))]
impl Log {
    /// Rebuilds one degraded segment, as an idle log does; false when there was none.
    #[must_use]
    pub fn rebuild_step(&self) -> bool {
        let shared = &self.handle.shared;
        let gate = shared.gate();
        let any = !gate.degraded.is_empty();
        drop(shared.rebuild_next(gate));
        any
    }
}

impl Handle {
    fn close(&self) -> Result<()> {
        let closed = self.shared.close();
        if closed.as_ref().is_err_and(|e| e.kind() == ErrorKind::Closed) {
            return closed; // by another clone, which may be at it
        }
        let background = lock(&self.background).take();
        join(background, "the log's thread");
        self.shared.end_filler();
        self.end_trimmer();
        drop(self.shared.cursor_file());
        // Only here: every write has returned.
        let writer = lock(&self.shared.lock).take();
        self.shared.maps.close(writer);
        closed
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        match self.close() {
            Err(e) if e.kind() != ErrorKind::Closed => {
                crate::told::tell(move || {
                    tracing::warn!(error = %e, "the log was dropped and did not close well");
                });
            }
            _ => {}
        }
    }
}

/// Waits for a thread of the log that was closed. A waker that the thread itself calls may own the
/// last clone: it cannot wait for itself, and has no I/O under way then.
fn join(thread: Option<JoinHandle<()>>, name: &str) {
    if let Some(thread) = thread
        && thread.thread().id() != thread::current().id()
        && thread.join().is_err()
    {
        let name = name.to_owned();
        crate::told::tell(move || tracing::error!(thread = name, "a thread of the log panicked"));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::io::mem::MemIo;

    /// Behind the lock of the directory another writer may be at work (G10).
    #[test]
    fn a_close_lets_the_directory_go_behind_its_threads() {
        let options = Options::new().create(CreateMode::IfMissing).background(false);
        let (log, _) = Log::open("/log", &options.io(Arc::new(MemIo::default()))).unwrap();
        let handle = &*log.handle;
        let (end, ended) = channel::<()>();
        // In the place of the log's thread, at a write that takes its time.
        *lock(&handle.background) = Some(thread::spawn(move || assert!(ended.recv().is_ok())));
        thread::scope(|scope| {
            let closer = scope.spawn(|| log.clone().close());
            // Then the closer waits for it.
            while lock(&handle.background).is_some() {
                thread::yield_now();
            }
            let is_held = lock(&handle.shared.lock).is_some();
            end.send(()).unwrap();
            closer.join().unwrap().unwrap();
            assert!(is_held, "a thread of the log is at work");
        });
        assert!(lock(&handle.shared.lock).is_none());
    }
}
