//! A pchannel on a log in a local directory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use oncelog_format::limits::BATCH_BYTES_MAX;
use oncelog_format::message::{LastConfirmed, Message, TimeTick};

use super::{
    ChannelLimits, ChannelLog, MessageReader, Outgoing, PendingMessages, Position, StoredMessage,
};
use crate::clock::{Clock, LogTime};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Batch, CreateMode, Log, Options, Pending, Reader, RecordKind, RecoveryReport};
use crate::lsn::Lsn;

/// A pchannel on a log in a local directory.
#[derive(Debug)]
pub struct LocalChannel {
    dir: PathBuf,
    options: Options,
    time: Arc<LogTime>,
    /// The last tick that was given; held over a hand-over, so that ticks ascend by LSN.
    tick: Mutex<TimeTick>,
    current: RwLock<Arc<Current>>,
}

/// The log since it was opened last.
#[derive(Debug)]
struct Current {
    log: Log,
    /// Where it ended then, all of it durable.
    end: Lsn,
    /// An append failed: what stands is unknown until the log is opened again.
    broken: AtomicBool,
    closed: AtomicBool,
}

impl LocalChannel {
    /// Opens the log in `dir`; its frames and ticks are stamped with `time`.
    ///
    /// # Errors
    ///
    /// Those of opening a log; `Corrupt` where its last message does not decode.
    pub fn open(
        dir: &Path,
        options: Options,
        time: Arc<LogTime>,
    ) -> Result<(Self, RecoveryReport)> {
        let options = options.clock(Arc::clone(&time) as _);
        let (current, tick, report) = Current::open(dir, &options)?;
        // Reopening must find the log that this was.
        let options = options.create(CreateMode::Never);
        let (tick, current) = (Mutex::new(tick), RwLock::new(Arc::new(current)));
        Ok((Self { dir: dir.to_owned(), options, time, tick, current }, report))
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn tick(&self) -> MutexGuard<'_, TimeTick> {
        self.tick.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn open(dir: &Path, options: &Options) -> Result<(Self, TimeTick, RecoveryReport)> {
        let (log, report) = Log::open(dir, options)?;
        let end = log.next_lsn();
        let mut tick = TimeTick(0);
        if let Some(last) = end.prev().filter(|last| *last >= log.oldest_lsn()) {
            let mut reader = Local(log.reader(last)?);
            while let Some(stored) = reader.next()? {
                tick = tick.max(stored.tick()?);
            }
        }
        let (broken, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok((Self { log, end, broken, closed }, tick, report))
    }

    fn check(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the channel was closed"));
        }
        if self.broken.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Poisoned, "an append to the channel failed"));
        }
        Ok(())
    }
}

impl StoredMessage {
    fn tick(&self) -> Result<TimeTick> {
        let tick = Message::decode(&self.record).and_then(|message| message.property());
        Ok(tick.map_err(|e| self.damage(e))?.unwrap_or(TimeTick(0)))
    }
}

impl ChannelLog for LocalChannel {
    fn enqueue(&self, messages: &[Outgoing<'_>]) -> Result<Box<dyn PendingMessages>> {
        let mut last = self.tick();
        let current = self.current();
        current.check()?;
        let confirmed = LastConfirmed(current.log.durable_lsn().map_or(0, Lsn::get));
        let (mut tick, now_ms) = (*last, self.time.wall_ms());
        let mut ticks = Vec::with_capacity(messages.len());
        let mut records = Vec::with_capacity(messages.len());
        for outgoing in messages {
            let next = tick.next(now_ms);
            tick = next.ok_or_else(|| Error::new(ErrorKind::Limit, "time ticks are used up"))?;
            let mut properties = outgoing.properties.clone();
            properties.set(&tick).and_then(|()| properties.set(&confirmed)).map_err(|e| {
                Error::new(ErrorKind::InvalidInput, "a message does not encode").with_source(e)
            })?;
            let mut record = Vec::new();
            properties.encode(outgoing.payload, &mut record);
            ticks.push(tick);
            records.push(record);
        }
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let batch = Batch { kind: RecordKind::MESSAGE, records: &records };
        match current.log.enqueue(batch) {
            Ok(pending) => {
                *last = tick;
                Ok(Box::new(LocalPending { pending, ticks, current }))
            }
            Err(e) => {
                if !matches!(e.kind(), ErrorKind::StoreFull | ErrorKind::Limit) {
                    current.broken.store(true, Ordering::SeqCst);
                }
                Err(e)
            }
        }
    }

    fn end(&self) -> Lsn {
        let current = self.current();
        let durable = current.log.durable_lsn();
        durable.map_or(current.end, |durable| durable.next().max(current.end))
    }

    fn oldest(&self) -> Lsn {
        self.current().log.oldest_lsn()
    }

    fn read(&self, from: Lsn) -> Result<Box<dyn MessageReader>> {
        let current = self.current();
        current.check()?;
        Ok(Box::new(Local(current.log.reader(from)?)))
    }

    fn trim(&self, below: Lsn) -> Result<()> {
        self.current().log.trim(below)
    }

    fn limits(&self) -> ChannelLimits {
        ChannelLimits {
            message_len_max: u64::from(self.options.record_len_max),
            batch_bytes_max: BATCH_BYTES_MAX,
        }
    }

    fn reopen(&self) -> Result<()> {
        // Nothing is handed over meanwhile.
        let mut tick = self.tick();
        let old = self.current();
        if !old.broken.load(Ordering::SeqCst) {
            return Ok(());
        }
        if old.closed.load(Ordering::SeqCst) {
            return old.check();
        }
        // The lock of the directory must be free for the next open. A log whose append failed has
        // nothing to say at its close that is not known.
        if let Err(e) = old.log.clone().close() {
            tracing::debug!(error = %e, "a channel whose append failed closes");
        }
        let (next, newest, _) = Current::open(&self.dir, &self.options)?;
        *tick = newest.max(*tick);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        let current = self.current();
        current.closed.store(true, Ordering::SeqCst);
        current.log.clone().close()
    }
}

#[derive(Debug)]
struct LocalPending {
    pending: Pending,
    ticks: Vec<TimeTick>,
    current: Arc<Current>,
}

impl PendingMessages for LocalPending {
    fn wait(self: Box<Self>) -> Result<Vec<Position>> {
        let Self { pending, ticks, current } = *self;
        // What was enqueued before a reopen marks the log that it was enqueued to, not the next.
        let mark = |_: &Error| current.broken.store(true, Ordering::SeqCst);
        let first = pending.wait().inspect_err(mark)?.first;
        let lsns = std::iter::successors(Some(first), |lsn| Some(lsn.next()));
        Ok(lsns.zip(ticks).map(|(lsn, tick)| Position::new(lsn, tick)).collect())
    }
}

#[derive(Debug)]
struct Local(Reader);

impl MessageReader for Local {
    fn next(&mut self) -> Result<Option<StoredMessage>> {
        while let Some(record) = self.0.next()? {
            if record.kind == RecordKind::MESSAGE.as_u8() {
                let (lsn, time_ms) = (record.lsn, record.time_ms);
                return Ok(Some(StoredMessage { lsn, time_ms, record: record.payload }));
            }
        }
        Ok(None)
    }
}
