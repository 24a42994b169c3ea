//! A reader that waits: from any place of the log on to what is appended next.
//!
//! There is one way to a record, whether it is old or has just become durable: from its segment.
//! What was written a moment ago is read from the page cache, so that no second copy in memory has
//! to be handed over from, and nothing can be lost or doubled between the two. The only state is
//! the LSN to be handed over next. It moves when a record or a gap is handed to the caller and at
//! no other time: a future that is dropped, or a read on another thread, changes nothing.
//!
//! Waiting is for the durable LSN to reach that LSN, which the gate tells under its lock: between
//! finding nothing and waiting, nothing can be missed.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin as Pinned;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Log;
use super::async_calls::runtime;
use super::log_source::{LogSource, Reach};
use super::pending::Durable;
use super::pins::HolderKind;
use super::reader::{Held, Reader, Record, Source};
use super::wait::now;
use super::writer::{Shared, closed};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// Records, and bytes of them, that are read at once on another thread.
const STRETCH_COUNT: usize = 256;
const STRETCH_BYTES: u64 = 1 << 20;

/// Records after which a pin is moved though there are more.
const ADVANCE_COUNT: u64 = 256;

/// What a subscription hands over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// The next record.
    Record(Record),
    /// Retention dropped the next records before they were handed over; what is left follows.
    Gap {
        /// The first of them.
        from: Lsn,
        /// The last of them.
        to: Lsn,
    },
}

/// Hands over every durable record from an LSN on, and waits for those to come.
///
/// Each LSN is handed over once, in order: as its record, or within a gap. After an error the same
/// LSN is next.
///
/// # Examples
///
/// ```
/// use oncelog::{CreateMode, Delivery, Log, Lsn, Options};
///
/// # fn main() -> oncelog::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let options = Options::new().create(CreateMode::IfMissing);
/// let (log, _report) = Log::open(dir.path().join("log"), &options)?;
/// log.append(b"before")?;
/// let mut subscription = log.subscribe(Lsn::FIRST)?;
/// let consumer = std::thread::spawn(move || {
///     let mut seen = Vec::new();
///     loop {
///         match subscription.next() {
///             Ok(Delivery::Record(record)) => seen.push(record.payload),
///             Ok(Delivery::Gap { from, to }) => println!("{from} to {to} were trimmed"),
///             Err(end) => break (seen, end.kind()), // closed, or poisoned
///             Ok(_) => {}
///         }
///     }
/// });
/// log.append(b"and behind it")?;
/// log.close()?;
/// let (seen, end) = consumer.join().expect("no panic");
/// assert_eq!((seen.len(), end), (2, oncelog::ErrorKind::Closed));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<Shared>,
    /// The LSN that is handed over next.
    next: u64,
    /// `None` while another thread has it, and after that was given up.
    reader: Option<Reader>,
    /// What another thread has read, from `next` on.
    ready: VecDeque<Record>,
    reading: Option<JoinHandle<Stretch>>,
    waiting: Option<(u64, Durable)>,
    pin: Option<Held>,
}

/// What another thread has read.
#[derive(Debug)]
struct Stretch {
    reader: Reader,
    records: VecDeque<Record>,
}

impl Log {
    /// Hands over every durable record from `from` on, and waits for those to come. Retention goes
    /// its way: what it drops before it was handed over is told as a gap.
    ///
    /// # Errors
    ///
    /// `Closed`.
    pub fn subscribe(&self, from: Lsn) -> Result<Subscription> {
        let shared = Arc::clone(&self.handle.shared);
        if shared.gate().closed {
            return Err(closed());
        }
        Ok(Subscription {
            shared,
            next: from.get(),
            reader: None,
            ready: VecDeque::new(),
            reading: None,
            waiting: None,
            pin: None,
        })
    }

    /// As [`Log::subscribe`], with a pin of this name on what was not handed over: no trim drops
    /// it, and there is no gap. The pin moves when the subscriber waits for more, and at least
    /// every 256 records.
    ///
    /// # Errors
    ///
    /// Those of [`Log::pin`].
    pub fn subscribe_pinned(&self, name: &str, from: Lsn) -> Result<Subscription> {
        let pin = self.handle.shared.pin(HolderKind::Reader, name, from)?;
        Ok(Subscription { pin: Some(Held::new(pin)), ..self.subscribe(from)? })
    }
}

impl Subscription {
    /// The LSN that is handed over next, as a record or as the begin of a gap.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        Lsn::at_least_first(self.next)
    }

    /// Hands over what is next, and waits for it.
    ///
    /// # Errors
    ///
    /// `Closed` and `Poisoned` after the last durable record: nothing more will come. `Corrupt`
    /// where the record is damaged, `Io` when the system refuses: the same LSN is next.
    #[expect(clippy::should_implement_trait, reason = "an iterator ends without saying why")]
    pub fn next(&mut self) -> Result<Delivery> {
        loop {
            if let Some(delivery) = self.try_next()? {
                return Ok(delivery);
            }
            self.shared.wait_durable(self.next, None)?;
        }
    }

    /// As [`Subscription::next`]; `None` when the time is over.
    ///
    /// # Errors
    ///
    /// As [`Subscription::next`].
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Delivery>> {
        let until = now().saturating_add(timeout);
        loop {
            if let Some(delivery) = self.try_next()? {
                return Ok(Some(delivery));
            }
            let left = until.saturating_sub(now());
            if !self.shared.wait_durable(self.next, Some(left))? {
                return Ok(None);
            }
        }
    }

    /// Hands over what is there; `None` where there is nothing yet.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`; the end is told by the calls that wait for it.
    pub fn try_next(&mut self) -> Result<Option<Delivery>> {
        if let Some(record) = self.ready.pop_front() {
            return Ok(Some(self.hand_over(record)));
        }
        if let Some(reading) = self.reading.take() {
            // A future was dropped; what it had asked for is read again.
            reading.abort();
        }
        self.read()
    }

    /// As [`Subscription::next`], for a task on a tokio runtime: what lies in a sealed segment, and
    /// may have to come from the disk, is read on the runtime's pool for blocking work.
    ///
    /// # Errors
    ///
    /// As [`Subscription::next`]; `InvalidInput` outside of a tokio runtime.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped has handed over nothing: the next call hands it over.
    pub async fn next_async(&mut self) -> Result<Delivery> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// One step of [`Subscription::next_async`], for streams.
    ///
    /// # Errors
    ///
    /// As [`Subscription::next_async`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Delivery>> {
        loop {
            if let Some(record) = self.ready.pop_front() {
                return Poll::Ready(Ok(self.hand_over(record)));
            }
            if let Some(reading) = &mut self.reading {
                let Poll::Ready(read) = Pinned::new(reading).poll(context) else {
                    return Poll::Pending;
                };
                self.reading = None;
                // Without an answer, the runtime ended or the read panicked: it is done here.
                if let Ok(Stretch { reader, records }) = read {
                    (self.reader, self.ready) = (Some(reader), records);
                }
                if self.ready.is_empty()
                    && let Some(delivery) = self.read()?
                {
                    return Poll::Ready(Ok(delivery));
                }
                continue;
            }
            if self.is_sealed() {
                let mut reader = self.take_reader();
                let read = move || Stretch { records: stretch(&mut reader), reader };
                self.reading = Some(runtime()?.spawn_blocking(read));
                continue;
            }
            if let Some(delivery) = self.read()? {
                return Poll::Ready(Ok(delivery));
            }
            let durable = match &mut self.waiting {
                Some((lsn, durable)) if *lsn == self.next => durable,
                other => {
                    let durable = Durable::new(Arc::clone(&self.shared), self.next);
                    &mut other.insert((self.next, durable)).1
                }
            };
            let Poll::Ready(turned) = Pinned::new(durable).poll(context) else {
                return Poll::Pending;
            };
            self.waiting = None;
            turned?;
        }
    }

    /// Whether what is next lies in a segment that was sealed.
    fn is_sealed(&self) -> bool {
        let is_open = self.reader.as_ref().is_some_and(Reader::is_in_tail);
        !is_open && self.next < self.shared.gate().header.first_lsn
    }

    /// Reads what is next.
    fn read(&mut self) -> Result<Option<Delivery>> {
        let mut reader = self.take_reader();
        let read = reader.next();
        self.reader = Some(reader);
        match read {
            Ok(Some(record)) => Ok(Some(self.hand_over(record))),
            Ok(None) => {
                self.advance(1);
                Ok(None)
            }
            Err(error) => self.gap(error).map(Some),
        }
    }

    /// The reader, before what is next.
    fn take_reader(&mut self) -> Reader {
        let mut reader = self.reader.take().unwrap_or_else(|| {
            let shared = Arc::clone(&self.shared);
            let source: Arc<dyn Source> =
                Arc::new(LogSource { shared, reach: Reach::DurableBehindClose });
            Reader::new(source, self.next)
        });
        reader.seek(self.next_lsn());
        reader
    }

    fn hand_over(&mut self, record: Record) -> Delivery {
        assert!(record.lsn.get() == self.next, "records are handed over in order");
        self.advance(ADVANCE_COUNT);
        self.next = self.next.saturating_add(1);
        Delivery::Record(record)
    }

    /// What an error amounts to, to who reads on.
    fn gap(&mut self, error: Error) -> Result<Delivery> {
        match (error.kind(), error.lsn()) {
            (ErrorKind::Trimmed, Some(oldest)) if oldest.get() > self.next => {
                let from = self.next_lsn();
                self.next = oldest.get();
                #[cfg(planted)]
                if crate::planted::is_active(crate::planted::Bug::GapUntold) {
                    return self.next();
                }
                let to = oldest.prev().unwrap_or(Lsn::FIRST);
                Ok(Delivery::Gap { from, to })
            }
            _ => Err(error),
        }
    }

    /// Lets go of what was handed over, once that is so many records.
    fn advance(&mut self, count: u64) {
        if let Some(held) = &mut self.pin {
            held.advance(self.next, count);
        }
    }
}

/// The next records, as many as are read at once. What ends them is met again by who reads on.
fn stretch(reader: &mut Reader) -> VecDeque<Record> {
    let mut records = VecDeque::new();
    let mut bytes = 0_u64;
    while records.len() < STRETCH_COUNT && bytes < STRETCH_BYTES {
        let Ok(Some(record)) = reader.next() else { break };
        bytes = bytes.saturating_add(record.frame_bytes);
        records.push_back(record);
    }
    records
}
