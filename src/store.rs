//! A store: a directory with a lock of its own, the control log, and one log for each pchannel.
//!
//! It opens and closes what is in the directory. What the control records mean is the broadcaster's
//! affair.
//!
//! # Order
//!
//! A new store is made in the order of SPEC 4.2: the lock file first, its identity last, so that a
//! store whose making was cut off is told from one whose logs are gone.

pub(crate) mod dir;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use oncelog_format::control::ControlRecord;
use oncelog_format::{DecodeErrorKind, Owner, Uuid, limits};

use crate::channel::{ChannelLog, LocalChannel};
use crate::clock::{Clock, ClockLimits, LogTime};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;
use crate::log::dir::{DirLock, absolute, wait_free};
use crate::log::{CreateMode, Log, Options, Record, RecordKind, RecoveryReport, Retention};
use crate::sync::Mutex;
use dir::{
    check_pchannel, expect_log, expect_makeable, identity, kind, make_dir, pchannel_dirs, prepare,
    random_uuid,
};

/// The control log, below the store's directory.
pub(crate) const CONTROL: &str = "control";

/// The channels' logs, below the store's directory.
pub(crate) const CHANNELS: &str = "channels";

/// What is wrong where control names a pchannel that is not there.
pub(crate) const CHANNEL_GONE: &str = "the log of a pchannel is gone";

/// The pchannel of a store that was not told others.
const PCHANNEL: &str = "p0";

/// What an acceptance adds to its payload, in bytes, at most where names have usual lengths.
const ACCEPTED_EXTRA: u32 = 1 << 20;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    create: CreateMode,
    log: Options,
    clock_limits: ClockLimits,
    pchannels: Vec<String>,
    retention: Retention,
    message_len_max: u64,
}

impl StoreOptions {
    /// The store must exist; logs as by default, one pchannel, the machine's clock and files.
    #[must_use]
    pub fn new() -> Self {
        Self {
            create: CreateMode::Never,
            log: Options::new(),
            clock_limits: ClockLimits::new(),
            pchannels: vec![PCHANNEL.to_owned()],
            retention: Retention::new(),
            message_len_max: u64::MAX,
        }
    }

    /// Sets whether the store may be, or must be, made.
    #[must_use]
    pub fn create(mut self, create: CreateMode) -> Self {
        self.create = create;
        self
    }

    /// Sets the clock below log time.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.log = self.log.clock(clock);
        self
    }

    /// Sets how far the wall clock is believed.
    #[must_use]
    pub fn clock_limits(mut self, limits: ClockLimits) -> Self {
        self.clock_limits = limits;
        self
    }

    /// Sets the file system.
    #[must_use]
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.log = self.log.io(io);
        self
    }

    /// Sets the options of all logs: sizes, limits, clock and files; whether they are made is the
    /// store's affair.
    #[must_use]
    pub fn log(mut self, options: Options) -> Self {
        self.log = options;
        self
    }

    /// Sets what the channels keep: beyond it the oldest messages of each pchannel go, whole
    /// segments at a time, but none that work needs which was accepted and is not done, or a job
    /// that runs. Where such work keeps a channel beyond a limit of its size, new work of that
    /// channel is refused as `StoreFull`, and the error names what keeps it. Everything is kept
    /// unless told otherwise; control keeps what a restart needs, whatever this says.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Sets the largest message of a channel in bytes, where that is less than the largest record
    /// of the logs: the copies of a broadcast that are larger are sent in chunks.
    #[must_use]
    pub fn message_len_max(mut self, len: u64) -> Self {
        self.message_len_max = len;
        self
    }

    /// Sets the pchannels that there shall be; those that exist stay.
    #[must_use]
    pub fn pchannels(mut self, names: Vec<String>) -> Self {
        self.pchannels = names;
        self
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What opening a store found and did: [`Store::report`], and with the channels the `report` of its
/// broadcaster.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreReport {
    /// The store was made.
    pub created: bool,
    /// What the control log's recovery found.
    pub control: RecoveryReport,
    /// What the recovery of each pchannel's log found, once they are open.
    pub channels: BTreeMap<String, RecoveryReport>,
}

/// An open store. Dropping it frees its lock last.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    uuid: Uuid,
    options: StoreOptions,
    report: StoreReport,
    time: Arc<LogTime>,
    channels: BTreeMap<String, Arc<dyn ChannelLog>>,
    control: Log,
    lock: Mutex<Option<DirLock>>,
}

impl Store {
    /// Opens the store in `dir`, and with [`CreateMode::IfMissing`] makes one where the directory
    /// is absent or empty, but for the `lost+found` of a file system.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: there is no store, the directory holds something else, or the options of the
    /// logs have a retention of their own, which would also drop what a restart needs of control:
    /// that of the channels is [`StoreOptions::retention`]. Nothing was touched. `Busy`: another
    /// process has it, and had until the end of the logs' [`Options::lock_wait`]. `Corrupt`,
    /// `Unsupported`, `StoreFull`, `Io`.
    ///
    /// # Durability
    ///
    /// What was made is durable when this returns.
    pub fn open(dir: impl AsRef<Path>, options: &StoreOptions) -> Result<Self> {
        let (dir, io) = (&*absolute(dir.as_ref())?, Arc::clone(&options.log.io));
        let _span = tracing::debug_span!("open_store", dir = %dir.display()).entered();
        if !options.log.retention.is_everything() {
            let what = "a retention of all logs of a store: it is set for its channels alone";
            return Err(Error::new(ErrorKind::InvalidInput, what).at_path(dir));
        }
        let wrong = |what| Error::new(ErrorKind::InvalidInput, what).at_path(dir);
        options.retention.validate().map_err(wrong)?;
        prepare(&*io, dir, options.create)?;
        let lock = wait_free(options.log.lock_wait, || DirLock::take(&*io, dir))?;
        // Under the lock: nobody makes it meanwhile.
        let found = identity(&*io, dir)?;
        if found.is_none() {
            expect_makeable(&*io, dir, options.create)?;
        }
        let time = Arc::new(LogTime::new(Arc::clone(&options.log.clock), options.clock_limits));
        let control_dir = dir.join(CONTROL);
        if found.is_some() {
            expect_log(&*io, &control_dir, "the control log is gone")?;
        }
        let lock = lock.complete(&*io, dir, found.is_some())?;
        if found.is_some() {
            lock.remove_replaced(&*io, dir)?;
        }
        let create = if found.is_some() { CreateMode::Never } else { CreateMode::IfMissing };
        let record_len_max = options.log.record_len_max.saturating_add(ACCEPTED_EXTRA);
        let batch_bytes_max = options.log.batch_bytes_max.saturating_add(ACCEPTED_EXTRA.into());
        let control_options = options
            .log
            .clone()
            .record_len_max(record_len_max.min(limits::RECORD_LEN_MAX))
            .batch_bytes_max(batch_bytes_max.min(limits::BATCH_BYTES_MAX))
            .clock(Arc::<LogTime>::clone(&time))
            .keep_reserve()
            .tell_later()
            .create(create);
        let (control, report) = Log::open(&control_dir, &control_options)?;
        let uuid = match found {
            Some(uuid) => {
                // Where control has a record an open has returned since, and this one needs no
                // space.
                if report.last_lsn.is_none() {
                    lock.prove(Owner::Store, uuid)?;
                }
                uuid
            }
            None => {
                let uuid = random_uuid(&*io, dir)?;
                // The identity says that all of the store was made, so it comes last.
                make_dir(&*io, dir, CHANNELS)?;
                lock.identify(Owner::Store, uuid)?;
                uuid
            }
        };
        let report =
            StoreReport { created: found.is_none(), control: report, channels: BTreeMap::new() };
        Ok(Self {
            dir: dir.to_owned(),
            uuid,
            options: options.clone(),
            report,
            time,
            channels: BTreeMap::new(),
            control,
            lock: Mutex::new(Some(lock)),
        })
    }

    /// Starts log time and opens the channels: those that control names must be there.
    pub(crate) fn start(&mut self, newest_ms: Option<u64>, named: &BTreeSet<String>) -> Result<()> {
        self.time.start(newest_ms);
        let io = Arc::clone(&self.options.log.io);
        let dir = self.dir.join(CHANNELS);
        let is_there = kind(&*io, &dir)?.is_some();
        let found = if is_there { pchannel_dirs(&*io, &dir)? } else { Vec::new() };
        if found.is_empty() {
            // Whoever made the directory may not have synced its name.
            make_dir(&*io, &self.dir, CHANNELS)?;
        }
        let mut names: BTreeSet<String> = named.clone();
        names.extend(self.options.pchannels.iter().cloned());
        names.extend(found);
        for name in names {
            check_pchannel(&name)?;
            let path = dir.join(&name);
            let must_exist = named.contains(&name);
            if must_exist {
                expect_log(&*io, &path, CHANNEL_GONE)?;
            }
            let create = if must_exist { CreateMode::Never } else { CreateMode::IfMissing };
            let options = self.options.log.clone().create(create).keep_reserve();
            let options = options.resting_retention(self.options.retention);
            let (channel, report) = LocalChannel::open(&path, &options, Arc::clone(&self.time))?;
            self.report.channels.insert(name.clone(), report);
            let channel = channel.message_len_max(self.options.message_len_max);
            self.channels.insert(name, Arc::new(channel));
        }
        Ok(())
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The identity of the store.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// What opening it found and did.
    #[must_use]
    pub fn report(&self) -> &StoreReport {
        &self.report
    }

    pub(crate) fn control(&self) -> &Log {
        &self.control
    }

    pub(crate) fn time(&self) -> &Arc<LogTime> {
        &self.time
    }

    pub(crate) fn channel(&self, pchannel: &str) -> Option<&Arc<dyn ChannelLog>> {
        self.channels.get(pchannel)
    }

    /// Ends the rest of the channels' retention: what is needed of them is pinned.
    pub(crate) fn begin_retention(&self) {
        self.channels.values().for_each(|channel| channel.begin_retention());
    }

    pub(crate) fn pchannels(&self) -> impl Iterator<Item = &str> {
        self.channels.keys().map(String::as_str)
    }

    /// Closes all logs and frees the lock, whatever happens; the first error is told.
    pub(crate) fn close(&self) -> Result<()> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.is_none() {
            return Ok(());
        }
        let channels = self.channels.values().map(|channel| channel.close());
        // Control last: what it says of the channels is then true.
        let closed: Vec<Result<()>> = channels.collect();
        let closed = closed.into_iter().chain([self.control.clone().close()]).collect();
        *lock = None;
        closed
    }
}

/// Decodes a record of control; `None` for one that may be skipped.
pub(crate) fn control_record(record: &Record) -> Result<Option<ControlRecord>> {
    let damaged = |kind, what: &'static str| Error::new(kind, what).at_lsn(record.lsn.get());
    if record.kind != RecordKind::CONTROL {
        // SPEC 7: what may be skipped, and what is private to a caller, is not ours to judge.
        return match record.kind.as_u8() {
            0x40.. => Ok(None),
            _ => Err(damaged(ErrorKind::Unsupported, "a record of an unknown kind in control")),
        };
    }
    ControlRecord::decode(&record.payload).map(Some).map_err(|e| {
        let kind = match e.kind {
            DecodeErrorKind::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Corrupt,
        };
        damaged(kind, "a control record does not decode").with_source(e)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn a_store_whose_logs_would_trim_themselves_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("store");
        let log = Options::new().retention(Retention::new().segment_count_max(9));
        let options = StoreOptions::new().create(CreateMode::IfMissing).log(log);
        let refused = Store::open(&dir, &options).unwrap_err();
        assert_eq!((refused.kind(), dir.exists()), (ErrorKind::InvalidInput, false));
    }

    /// Who lost the race to make the directory was told of an error of the system.
    #[test]
    fn rivals_that_make_one_store_are_told_that_it_is_busy() {
        let home = tempfile::tempdir().unwrap();
        let options = StoreOptions::new().create(CreateMode::IfMissing);
        for round in 0..30 {
            let dir = home.path().join(round.to_string());
            let begin = Barrier::new(4);
            let opened = thread::scope(|threads| {
                let rival = || {
                    begin.wait();
                    Store::open(&dir, &options)
                };
                let rivals: Vec<_> = (0..4).map(|_| threads.spawn(rival)).collect();
                // A store that was opened stays open until all have tried.
                rivals.into_iter().map(|rival| rival.join().unwrap()).collect::<Vec<_>>()
            });
            let kinds = opened.iter().filter_map(|opened| opened.as_ref().err().map(Error::kind));
            assert_eq!(kinds.collect::<Vec<_>>(), [ErrorKind::Busy; 3], "round {round}");
        }
    }
}
