//! A pchannel on a log in a local directory.
//!
//! Two locks: one is held while a batch is stamped and handed over, so that time ticks ascend by
//! LSN, and may be held as long as the log makes appenders wait; the other guards which log is open,
//! and only for a moment, so that readers never wait for appenders.
//!
//! Whole messages, and the first chunks of others, have a tick above every one before. Later chunks
//! carry that of their first one, and may stand behind later ticks when a crash came in between; so
//! the last tick that was given is looked for behind them.

mod given;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncelog_format::frame_len;
use oncelog_format::limits::{BATCH_BYTES_MAX, RECORD_LEN_MAX};
use oncelog_format::message::{LastConfirmed, TimeTick};

use self::given::{Given, newest_given, tick_holder};
use super::draft::{Draft, Tick, no_run};
use super::pins::{Pins, pin_within};
use super::{
    ChannelLimits, ChannelLog, ChannelPin, MessageReader, Outgoing, PendingMessages, Position,
    StoredMessage, WholeReader,
};
use crate::clock::{Clock, LogTime};
use crate::error::{Error, ErrorKind, Result};
use crate::log::reserve::Use;
use crate::log::{
    Batch, CreateMode, Holder, Log, LogStats, Options, Pending, Reader, RecordKind, RecoveryReport,
};
use crate::lsn::Lsn;
use crate::sync::{AtomicU64, Mutex, MutexGuard};
use crate::told;

pub(crate) use self::given::tick_holder_of;

/// A pchannel on a log in a local directory.
#[derive(Debug)]
pub struct LocalChannel {
    dir: PathBuf,
    options: Options,
    limits: ChannelLimits,
    time: Arc<LogTime>,
    /// The last tick that was given.
    given: Mutex<Given>,
    /// Bytes of messages that were promised to come.
    promised: AtomicU64,
    pins: Pins,
    open: Mutex<Open>,
}

#[derive(Clone, Debug)]
struct Open {
    log: Log,
    /// Where the log ended when it was opened, durable by then.
    end: Lsn,
    /// Why it is not open: an append failed, and no attempt to open it again has succeeded.
    failed: Option<Arc<Error>>,
    /// Everybody who needs messages has pinned them.
    retains: bool,
    closed: bool,
    /// What logs did that were open before.
    before: LogStats,
}

impl LocalChannel {
    /// Opens the log in `dir`; its frames and ticks are stamped with `time`.
    ///
    /// # Errors
    ///
    /// Those of [`Log::open`]; `Corrupt` where its newest message does not decode.
    ///
    /// # Durability
    ///
    /// As [`Log::open`].
    pub fn open(
        dir: &Path,
        options: &Options,
        time: Arc<LogTime>,
    ) -> Result<(Self, RecoveryReport)> {
        let limits = ChannelLimits {
            message_len_max: u64::from(options.record_len_max),
            batch_bytes_max: options.batch_bytes_max,
        };
        options.validate()?;
        // What was accepted is taken whatever the limits are by then: they are those of new work.
        let options =
            options.clone().record_len_max(RECORD_LEN_MAX).batch_bytes_max(BATCH_BYTES_MAX);
        let options = options.clock(Arc::<LogTime>::clone(&time));
        let (log, report) = Log::open(dir, &options)?;
        let given = newest_given(&log, log.next_lsn())?;
        log.keep_from(given.kept);
        let open = Open {
            end: log.next_lsn(),
            log,
            failed: None,
            retains: false,
            closed: false,
            before: LogStats::default(),
        };
        // Reopening must find the log that this was.
        let options = options.create(CreateMode::Never);
        let channel = Self {
            dir: dir.to_owned(),
            limits,
            options,
            time,
            given: Mutex::new(given),
            promised: AtomicU64::new(0),
            pins: Pins::default(),
            open: Mutex::new(open),
        };
        Ok((channel, report))
    }

    /// Sets the largest encoded message in bytes, where that is less than the log's largest record.
    #[must_use]
    pub fn message_len_max(mut self, len: u64) -> Self {
        self.limits.message_len_max = len.min(self.limits.message_len_max);
        self
    }

    fn reader(&self, from: Lsn) -> Result<LocalReader> {
        let log = self.open_log()?;
        log.check_open()?;
        let reader = log.reader(from)?;
        Ok(LocalReader { log, reader })
    }

    /// Refuses what is more than new work may append.
    fn check_new(&self, drafts: &[Draft]) -> Result<()> {
        let max = self.limits.message_len_max;
        if let Some(long) = drafts.iter().map(Draft::len).find(|len| *len > max) {
            let what =
                format!("a message is too large: expected at most {max} bytes, found {long}");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        let max = self.limits.batch_bytes_max;
        let frame = |draft: &Draft| frame_len(u32::try_from(draft.len()).unwrap_or(u32::MAX));
        let bytes = drafts.iter().map(frame).fold(0, u64::saturating_add);
        if bytes > max {
            let what = format!("a batch of {bytes} bytes: expected at most {max}");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        Ok(())
    }

    fn open_log(&self) -> Result<Log> {
        let open = locked(&self.open);
        if open.closed {
            return Err(closed());
        }
        match &open.failed {
            Some(cause) => Err(failed(cause)),
            None => Ok(open.log.clone()),
        }
    }

    fn enqueue_as(
        &self,
        messages: &[Outgoing<'_>],
        usage: Use,
    ) -> Result<Box<dyn PendingMessages>> {
        let drafts = messages.iter().map(Draft::new).collect::<Result<Vec<_>>>()?;
        if matches!(usage, Use::New(_)) {
            self.check_new(&drafts)?;
        }
        told::behind(|| self.stamp(drafts, usage))
    }

    /// Hands over what one lock gives ticks to.
    fn stamp(&self, mut drafts: Vec<Draft>, usage: Use) -> Result<Box<dyn PendingMessages>> {
        let mut last = locked(&self.given);
        let log = self.open_log()?;
        let confirmed = log.durable_lsn().map_or(0, Lsn::get);
        // Before the log stamps the frames: a tick is not ahead of its frame.
        let now_ms = self.time.wall_ms();
        let is_late = drafts.iter().all(|draft| !matches!(draft.tick, Tick::Fresh));
        last.keep(&log, is_late, confirmed);
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::TickUnkept) {
            last.is_late = is_late;
        }
        let mut given = *last;
        let mut fresh = None;
        let mut ticks = Vec::with_capacity(drafts.len());
        for (at, draft) in (0_u64..).zip(&mut drafts) {
            let tick = match draft.tick {
                Tick::Fresh => {
                    let next = given.tick.next(now_ms);
                    given.tick =
                        next.ok_or_else(|| Error::new(ErrorKind::Limit, "time ticks are used up"))?;
                    fresh = Some(at);
                    given.tick
                }
                Tick::OfBefore => *ticks.last().ok_or_else(no_run)?,
                Tick::Of(of) if of <= last.tick => of,
                Tick::Of(_) => return Err(no_run()),
            };
            draft.stamp(tick, LastConfirmed(confirmed));
            ticks.push(tick);
        }
        let records: Vec<&[u8]> = drafts.iter().map(|draft| draft.record.as_slice()).collect();
        let batch = Batch { kind: RecordKind::MESSAGE, records: &records };
        let pending = log.enqueue_as(batch, usage)?;
        if let Some(at) = fresh {
            given.at = Lsn::new(pending.lsns().first.get().saturating_add(at));
        }
        given.is_late = is_late;
        *last = given;
        Ok(Box::new(LocalPending { pending, ticks }))
    }

    /// Opens the log again where an append to it has failed.
    fn reopen_alone(&self) -> Result<()> {
        // Nobody stamps meanwhile.
        let mut last = locked(&self.given);
        let log = {
            let mut open = locked(&self.open);
            if open.closed {
                return Err(closed());
            }
            let Err(e) = open.log.check_open() else { return Ok(()) };
            // The first one stays: what a log says that was closed tells nothing.
            let (cause, dir) = (Arc::new(e), self.dir.clone());
            open.failed.get_or_insert_with(|| Arc::clone(&cause));
            told::tell(move || {
                tracing::info!(error = %cause, dir = %dir.display(), "a channel reopens");
            });
            open.log.clone()
        };
        // Frees the directory for the next open. What a poisoned log says of its close was known.
        if let Err(e) = log.close() {
            told::tell(move || tracing::debug!(error = %e, "a poisoned channel closes"));
        }
        let (log, _) = Log::open(&self.dir, &self.options)?;
        // Ticks of batches that are lost are not given again.
        let found = newest_given(&log, log.next_lsn())?;
        *last = Given { tick: found.tick.max(last.tick), ..found };
        log.keep_from(found.kept);
        self.replace(log)
    }

    /// Puts another log in the place of the one that failed.
    fn replace(&self, log: Log) -> Result<()> {
        let mut pins = self.pins.lock();
        pins.renew(&log)?;
        let mut open = locked(&self.open);
        if open.closed {
            drop(open);
            drop(pins);
            return log.close();
        }
        if open.retains {
            log.begin_retention();
        }
        open.end = log.next_lsn().max(open.end);
        open.before = open.log.stats().continued(&open.before);
        (open.log, open.failed) = (log, None);
        Ok(())
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the channel was closed")
}

fn failed(cause: &Arc<Error>) -> Error {
    let what = "an append failed, and the channel could not be opened again";
    Error::new(ErrorKind::Poisoned, what).with_shared_source(Arc::clone(cause))
}

impl ChannelLog for LocalChannel {
    fn enqueue(&self, messages: &[Outgoing<'_>]) -> Result<Box<dyn PendingMessages>> {
        self.enqueue_as(messages, Use::New(self.promised.load(Ordering::SeqCst)))
    }

    fn enqueue_promised(&self, messages: &[Outgoing<'_>]) -> Result<Box<dyn PendingMessages>> {
        self.enqueue_as(messages, Use::Ending(0))
    }

    fn promise(&self, bytes: u64) -> Result<()> {
        self.open_log()?.promise(bytes)
    }

    fn is_promised(&self, bytes: u64) -> Result<bool> {
        self.open_log()?.is_promised(bytes)
    }

    fn owe(&self, bytes: u64) {
        self.promised.store(bytes, Ordering::SeqCst);
    }

    fn pin(&self, name: &str, from: Option<Lsn>) -> Result<ChannelPin> {
        let mut table = self.pins.lock();
        let log = self.open_log()?;
        let pinned = match from {
            Some(lsn) => pin_within(&log, name, lsn)?,
            None => loop {
                log.check_open()?;
                let end = self.end();
                match log.pin(name, end) {
                    // Others have appended since, and retention was faster.
                    Err(e) if e.kind() == ErrorKind::Trimmed => {}
                    pin => break (end, pin?),
                }
            },
        };
        let lsn = pinned.0;
        Ok(ChannelPin::new(lsn, self.pins.hold(&mut table, name, pinned)))
    }

    fn holders(&self) -> Vec<Holder> {
        let log = locked(&self.open).log.clone();
        let mut holders = log.why_not_trimmed();
        if let Some(newest) = log.durable_lsn() {
            let mut given = locked(&self.given);
            given.keep(&log, false, newest.get());
            holders.extend(given.kept.and_then(|kept| tick_holder(kept, newest)));
        }
        Holder::in_order(holders.into_iter())
    }

    fn begin_retention(&self) {
        let mut open = locked(&self.open);
        open.retains = true;
        open.log.begin_retention();
    }

    fn end(&self) -> Lsn {
        let open = locked(&self.open);
        open.log.durable_lsn().map_or(open.end, |durable| durable.next().max(open.end))
    }

    fn oldest(&self) -> Lsn {
        locked(&self.open).log.oldest_lsn()
    }

    fn read(&self, from: Lsn) -> Result<Box<dyn MessageReader>> {
        let reader = self.reader(from)?;
        let earlier = Box::new(reader.log.clone());
        Ok(Box::new(WholeReader::new(Box::new(reader), earlier)))
    }

    fn read_chunks(&self, from: Lsn) -> Result<Box<dyn MessageReader>> {
        Ok(Box::new(self.reader(from)?))
    }

    fn trim(&self, below: Lsn) -> Result<()> {
        let log = self.open_log()?;
        let Some(newest) = log.durable_lsn() else { return Ok(()) };
        // Without the message that holds the last tick, none is known to be above.
        let below = {
            let mut given = locked(&self.given);
            given.keep(&log, false, newest.get());
            below.min(given.held_from(newest))
        };
        if below <= log.oldest_lsn() { Ok(()) } else { log.trim(below) }
    }

    fn limits(&self) -> ChannelLimits {
        self.limits
    }

    fn stats(&self) -> Option<LogStats> {
        let open = locked(&self.open);
        Some(open.log.stats().continued(&open.before))
    }

    fn reopen(&self) -> Result<()> {
        let log = locked(&self.open).log.clone();
        if log.sync().is_ok() {
            return Ok(());
        }
        told::behind(|| self.reopen_alone())
    }

    fn close(&self) -> Result<()> {
        let (log, cause) = {
            let mut open = locked(&self.open);
            let was_closed = std::mem::replace(&mut open.closed, true);
            (open.log.clone(), open.failed.clone().filter(|_| !was_closed))
        };
        log.give_back(self.promised.load(Ordering::SeqCst));
        let closed = log.close();
        cause.map_or(closed, |cause| Err(failed(&cause)))
    }
}

#[derive(Debug)]
struct LocalPending {
    pending: Pending,
    ticks: Vec<TimeTick>,
}

impl PendingMessages for LocalPending {
    fn wait(self: Box<Self>) -> Result<Vec<Position>> {
        let Self { pending, ticks } = *self;
        let first = pending.wait()?.first;
        let lsns = std::iter::successors(Some(first), |lsn| Some(lsn.next()));
        Ok(lsns.zip(ticks).map(|(lsn, tick)| Position::new(lsn, tick)).collect())
    }

    fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.pending.wait_timeout(timeout)
    }
}

#[derive(Debug)]
struct LocalReader {
    log: Log,
    reader: Reader,
}

impl MessageReader for LocalReader {
    fn next(&mut self) -> Result<Option<StoredMessage>> {
        while let Some(record) = self.reader.next()? {
            if record.kind == RecordKind::MESSAGE {
                let (lsn, time_ms) = (record.lsn, record.time_ms);
                return Ok(Some(StoredMessage { lsn, time_ms, record: record.payload }));
            }
        }
        Ok(None)
    }

    fn next_lsn(&self) -> Lsn {
        self.reader.next_lsn()
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        self.log.wait_durable(self.reader.next_lsn(), Some(timeout))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both values hold after every statement, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
