//! A pchannel on a log in a local directory.
//!
//! Two locks: one is held while a batch is stamped and handed over, so that time ticks ascend by
//! LSN, and may be held as long as the log makes appenders wait; the other guards which log is open,
//! and only for a moment, so that readers never wait for appenders.
//!
//! Whole messages, and the first chunks of others, have a tick above every one before. Later chunks
//! carry that of their first one, and may stand behind later ticks when a crash came in between; so
//! the last tick that was given is looked for behind them.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use oncelog_format::EncodeError;
use oncelog_format::message::{
    LastConfirmed, MESSAGE_VERSION, Message, Property, TimeTick, Vchannel, Version,
};

use super::pins::{Pins, pin_within};
use super::{
    ChannelLimits, ChannelLog, ChannelPin, MessageReader, Outgoing, PendingMessages, Position,
    StoredMessage, WholeReader, damaged,
};
use crate::clock::{Clock, LogTime};
use crate::error::{Error, ErrorKind, Result};
use crate::log::reserve::Use;
use crate::log::{
    Batch, CreateMode, Holder, Log, LogStats, Options, Pending, Reader, RecordKind, RecoveryReport,
};
use crate::lsn::Lsn;
use crate::sync::{AtomicU64, Mutex, MutexGuard};

/// A pchannel on a log in a local directory.
#[derive(Debug)]
pub struct LocalChannel {
    dir: PathBuf,
    options: Options,
    message_len_max: u64,
    time: Arc<LogTime>,
    /// The last tick that was given.
    tick: Mutex<TimeTick>,
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
        let options = options.clone().clock(Arc::<LogTime>::clone(&time));
        let (log, report) = Log::open(dir, &options)?;
        let tick = newest_tick(&log)?;
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
            message_len_max: u64::from(options.record_len_max),
            options,
            time,
            tick: Mutex::new(tick),
            promised: AtomicU64::new(0),
            pins: Pins::default(),
            open: Mutex::new(open),
        };
        Ok((channel, report))
    }

    /// Sets the largest encoded message in bytes, where that is less than the log's largest record.
    #[must_use]
    pub fn message_len_max(mut self, len: u64) -> Self {
        self.message_len_max = len.min(u64::from(self.options.record_len_max));
        self
    }

    fn reader(&self, from: Lsn) -> Result<LocalReader> {
        let log = self.open_log()?;
        log.check_open()?;
        let reader = log.reader(from)?;
        Ok(LocalReader { log, reader })
    }

    fn is_long(&self, len: u64) -> bool {
        len > self.message_len_max
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
        let mut drafts = messages.iter().map(Draft::new).collect::<Result<Vec<_>>>()?;
        if let Some(long) = drafts.iter().map(|draft| draft.len()).find(|len| self.is_long(*len)) {
            let max = self.message_len_max;
            let what =
                format!("a message is too large: expected at most {max} bytes, found {long}");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        let mut last = locked(&self.tick);
        let log = self.open_log()?;
        let confirmed = log.durable_lsn().map_or(0, Lsn::get);
        // Before the log stamps the frames: a tick is not ahead of its frame.
        let now_ms = self.time.wall_ms();
        let mut tick = *last;
        let mut ticks = Vec::with_capacity(drafts.len());
        for draft in &mut drafts {
            let given = match draft.tick {
                Tick::Fresh => {
                    tick = tick
                        .next(now_ms)
                        .ok_or_else(|| Error::new(ErrorKind::Limit, "time ticks are used up"))?;
                    tick
                }
                Tick::OfBefore => *ticks.last().ok_or_else(no_run)?,
                Tick::Of(of) if of <= *last => of,
                Tick::Of(_) => return Err(no_run()),
            };
            draft.stamp(given, LastConfirmed(confirmed));
            ticks.push(given);
        }
        let records: Vec<&[u8]> = drafts.iter().map(|draft| draft.record.as_slice()).collect();
        let batch = Batch { kind: RecordKind::MESSAGE, records: &records };
        let pending = log.enqueue_as(batch, usage)?;
        *last = tick;
        Ok(Box::new(LocalPending { pending, ticks }))
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
        self.open_log()?.promise(bytes)?;
        self.promised.store(bytes, Ordering::SeqCst);
        Ok(())
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
        locked(&self.open).log.why_not_trimmed()
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
        // Without the message that holds the last tick, none is known to be above.
        let Some(newest) = log.durable_lsn() else { return Ok(()) };
        let (_, holder) = newest_given(&log, newest.next())?;
        let below = below.min(holder.unwrap_or(newest));
        if below <= log.oldest_lsn() { Ok(()) } else { log.trim(below) }
    }

    fn limits(&self) -> ChannelLimits {
        ChannelLimits {
            message_len_max: self.message_len_max,
            batch_bytes_max: self.options.batch_bytes_max,
        }
    }

    fn stats(&self) -> Option<LogStats> {
        let open = locked(&self.open);
        Some(open.log.stats().continued(&open.before))
    }

    fn reopen(&self) -> Result<()> {
        // Nobody stamps meanwhile.
        let mut last = locked(&self.tick);
        let log = {
            let mut open = locked(&self.open);
            if open.closed {
                return Err(closed());
            }
            let Err(e) = open.log.check_open() else { return Ok(()) };
            tracing::info!(error = %e, dir = %self.dir.display(), "a channel reopens");
            // The first one stays: what a log says that was closed tells nothing.
            open.failed.get_or_insert_with(|| Arc::new(e));
            open.log.clone()
        };
        // Frees the directory for the next open. What a poisoned log says of its close was known.
        if let Err(e) = log.close() {
            tracing::debug!(error = %e, "a poisoned channel closes");
        }
        let (log, _) = Log::open(&self.dir, &self.options)?;
        // Ticks of batches that are lost are not given again.
        *last = newest_tick(&log)?.max(*last);
        self.replace(log)
    }

    fn close(&self) -> Result<()> {
        let (log, cause) = {
            let mut open = locked(&self.open);
            let was_closed = std::mem::replace(&mut open.closed, true);
            (open.log.clone(), open.failed.clone().filter(|_| !was_closed))
        };
        let closed = log.close();
        cause.map_or(closed, |cause| Err(failed(&cause)))
    }
}

/// A message that lacks its stamps: encoded before the lock is taken, with room for them.
#[derive(Debug)]
struct Draft {
    record: Vec<u8>,
    tick: Tick,
}

/// Which tick a message gets.
#[derive(Clone, Copy, Debug)]
enum Tick {
    /// One of its own.
    Fresh,
    /// That of the chunk before it in its batch.
    OfBefore,
    /// That of a run which begun in an earlier batch.
    Of(TimeTick),
}

impl Draft {
    fn new(outgoing: &Outgoing<'_>) -> Result<Self> {
        if outgoing.properties.value(Vchannel::KEY).is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "a message names no vchannel"));
        }
        let mut properties = outgoing.properties.clone();
        let stated = properties.get::<TimeTick>().map_err(|e| no_run().with_source(e))?;
        properties
            .set(&Version(MESSAGE_VERSION))
            .and_then(|()| properties.set(&TimeTick(0)))
            .and_then(|()| properties.set(&LastConfirmed(0)))
            .map_err(no_encoding)?;
        let mut record = Vec::new();
        properties.encode(outgoing.payload, &mut record);
        let chunk = Message::decode(&record).and_then(|message| message.chunk());
        let tick = match chunk.map_err(|e| no_run().with_source(e))? {
            None => Tick::Fresh,
            Some(chunk) => match stated {
                Some(of) => Tick::Of(of),
                None if chunk.index() == 0 => Tick::Fresh,
                None => Tick::OfBefore,
            },
        };
        Ok(Self { record, tick })
    }

    fn len(&self) -> u64 {
        u64::try_from(self.record.len()).unwrap_or(u64::MAX)
    }

    fn stamp(&mut self, tick: TimeTick, confirmed: LastConfirmed) {
        for (key, value) in [(TimeTick::KEY, tick.0), (LastConfirmed::KEY, confirmed.0)] {
            let at = Message::decode(&self.record).ok().and_then(|found| found.value_range(key));
            if let Some(field) = at.and_then(|at| self.record.get_mut(at)) {
                field.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

fn no_encoding(e: EncodeError) -> Error {
    Error::new(ErrorKind::InvalidInput, "a message has no encoding").with_source(e)
}

fn no_run() -> Error {
    Error::new(ErrorKind::InvalidInput, "a chunk belongs to no message that began before it")
}

/// The last tick that was given.
fn newest_tick(log: &Log) -> Result<TimeTick> {
    newest_given(log, log.next_lsn()).map(|(tick, _)| tick)
}

/// The last tick that was given below an LSN, and the message that it was given to. Chunks behind
/// the first of their run carry an older one.
fn newest_given(log: &Log, below: Lsn) -> Result<(TimeTick, Option<Lsn>)> {
    let oldest = log.oldest_lsn();
    let mut reader = log.reader(below.max(oldest))?;
    let (mut newest, mut holder) = (TimeTick(0), None);
    while reader.next_lsn() > oldest {
        let Some(record) = reader.prev()? else { break };
        if record.kind != RecordKind::MESSAGE.as_u8() {
            continue;
        }
        let message = Message::decode(&record.payload).map_err(|e| damaged(record.lsn, e))?;
        let tick = message.property::<TimeTick>().map_err(|e| damaged(record.lsn, e))?;
        let tick = tick.unwrap_or(TimeTick(0));
        if holder.is_none() || tick > newest {
            (newest, holder) = (tick, Some(record.lsn));
        }
        let chunk = message.chunk().map_err(|e| damaged(record.lsn, e))?;
        if chunk.is_none_or(|chunk| chunk.index() == 0) {
            break;
        }
    }
    Ok((newest, holder))
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
            if record.kind == RecordKind::MESSAGE.as_u8() {
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
