//! A pchannel on a log in a local directory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    log: Log,
    /// The last tick that was given.
    tick: TimeTick,
    /// Where the log ended when it was opened, durable by then.
    end: Lsn,
    /// An append failed: what stands is unknown until the log is opened again.
    broken: Arc<AtomicBool>,
    closed: bool,
}

impl LocalChannel {
    /// Opens the log in `dir`; its frames and ticks are stamped with `time`.
    ///
    /// # Errors
    ///
    /// Those of opening a log; `Corrupt` where its last message does not decode.
    pub fn open(dir: &Path, options: Options, time: Arc<LogTime>) -> Result<(Self, RecoveryReport)> {
        let options = options.clock(Arc::clone(&time) as _);
        let (open, report) = Open::new(dir, &options)?;
        // Reopening must find the log that this was.
        let options = options.create(CreateMode::Never);
        Ok((Self { dir: dir.to_owned(), options, time, open: Mutex::new(open) }, report))
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn new(dir: &Path, options: &Options) -> Result<(Self, RecoveryReport)> {
        let (log, report) = Log::open(dir, options)?;
        let end = log.next_lsn();
        let mut tick = TimeTick(0);
        if let Some(last) = end.prev().filter(|last| *last >= log.oldest_lsn()) {
            let mut reader = Local(log.reader(last)?);
            while let Some(stored) = reader.next()? {
                tick = tick.max(stored.tick()?);
            }
        }
        Ok((Self { log, tick, end, broken: Arc::default(), closed: false }, report))
    }

    fn check(&self) -> Result<()> {
        if self.closed {
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
        // One lock around ticks and hand-over: ticks ascend by LSN.
        let mut open = self.lock();
        open.check()?;
        let confirmed = open.log.durable_lsn().map_or(0, Lsn::get);
        let (mut tick, now_ms) = (open.tick, self.time.wall_ms());
        let mut ticks = Vec::with_capacity(messages.len());
        let mut records = Vec::with_capacity(messages.len());
        for outgoing in messages {
            let next = tick.next(now_ms);
            tick = next.ok_or_else(|| Error::new(ErrorKind::Limit, "time ticks are used up"))?;
            let mut properties = outgoing.properties.clone();
            let stamped = properties.set(&tick).and_then(|()| {
                properties.set(&LastConfirmed(confirmed))
            });
            stamped.map_err(|e| {
                Error::new(ErrorKind::InvalidInput, "a message does not encode").with_source(e)
            })?;
            let mut record = Vec::new();
            properties.encode(outgoing.payload, &mut record);
            ticks.push(tick);
            records.push(record);
        }
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let batch = Batch { kind: RecordKind::MESSAGE, records: &records };
        match open.log.enqueue(batch) {
            Ok(pending) => {
                open.tick = tick;
                let broken = Arc::clone(&open.broken);
                Ok(Box::new(LocalPending { pending, ticks, broken }))
            }
            Err(e) => {
                if !matches!(e.kind(), ErrorKind::StoreFull | ErrorKind::Limit) {
                    open.broken.store(true, Ordering::SeqCst);
                }
                Err(e)
            }
        }
    }

    fn end(&self) -> Lsn {
        let open = self.lock();
        open.log.durable_lsn().map_or(open.end, |durable| durable.next().max(open.end))
    }

    fn oldest(&self) -> Lsn {
        self.lock().log.oldest_lsn()
    }

    fn read(&self, from: Lsn) -> Result<Box<dyn MessageReader>> {
        let open = self.lock();
        open.check()?;
        Ok(Box::new(Local(open.log.reader(from)?)))
    }

    fn trim(&self, below: Lsn) -> Result<()> {
        let log = self.lock().log.clone();
        log.trim(below)
    }

    fn limits(&self) -> ChannelLimits {
        ChannelLimits {
            message_len_max: u64::from(self.options.record_len_max),
            batch_bytes_max: BATCH_BYTES_MAX.min(self.options.segment_bytes_max),
        }
    }

    fn reopen(&self) -> Result<()> {
        let mut open = self.lock();
        if open.closed {
            return open.check();
        }
        if !open.broken.load(Ordering::SeqCst) {
            return Ok(());
        }
        // The lock of the directory must be free for the next open; a poisoned log has nothing more
        // to write, so that its refusal to close says nothing new.
        if let Err(e) = open.log.clone().close() {
            tracing::debug!(error = %e, "a poisoned channel closes");
        }
        let (next, _) = Open::new(&self.dir, &self.options)?;
        let tick = open.tick.max(next.tick);
        *open = Open { tick, ..next };
        Ok(())
    }

    fn close(&self) -> Result<()> {
        let log = {
            let mut open = self.lock();
            open.closed = true;
            open.log.clone()
        };
        log.close()
    }
}

#[derive(Debug)]
struct LocalPending {
    pending: Pending,
    ticks: Vec<TimeTick>,
    broken: Arc<AtomicBool>,
}

impl PendingMessages for LocalPending {
    fn wait(self: Box<Self>) -> Result<Vec<Position>> {
        let Self { pending, ticks, broken } = *self;
        // What was enqueued before a reopen marks the log that it was enqueued to, not its successor.
        let first = pending.wait().inspect_err(|_| broken.store(true, Ordering::SeqCst))?.first;
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
