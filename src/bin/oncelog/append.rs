//! `oncelog append`: one record a line from standard input.
//!
//! What the input holds at one moment is enqueued together and shares a sync; each LSN is printed
//! once its record is as durable as was asked for. It never waits for input while it holds
//! records that were not acknowledged.

use std::io::{self, Read, StdinLock};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oncelog::io::fs::FsIo;
use oncelog::{
    Batch, Check, CreateMode, Durability, Log, LsnRange, Options, Place, PlaceKind, RecordKind,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::{Exit, Failure};
use crate::render::Out;
use crate::value::wait;

/// Append one record for each line of standard input; print the LSN of each.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the log; made when it is absent.
    log: PathBuf,
    /// When an LSN is printed: after its record was synced, or once it was written.
    #[arg(long, value_enum, default_value = "synced")]
    durability: DurabilityArg,
    /// Records that are kept or cut as one; fewer when the input would block or ends.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Largest size of a segment from this open on, 64 KiB to 1 GiB [default: 64 MiB].
    #[arg(long, value_name = "N")]
    segment_bytes: Option<u64>,
    /// Longest wait for another writer of the log to end, such as 30s [default: none].
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    lock_wait: Option<Duration>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DurabilityArg {
    Synced,
    Buffered,
}

/// Largest record, in bytes; the default of the library.
const RECORD_LEN_MAX: usize = 16 << 20;

/// Largest batch, in bytes: the library would refuse it, and nothing above it is kept in memory.
const BATCH_BYTES_MAX: usize = 512 << 20;

/// Bytes of input that share a sync at most, so that memory stays bounded.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// Bytes of an incomplete batch at most; it lies in memory until its last line is read.
const BATCH_LEN_MAX: usize = 256 << 20;

/// Bytes asked of standard input at a time: what a pipe holds.
const READ_BYTES: usize = 64 << 10;

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    refuse_log_of_a_store(&args.log)?;
    let mut options = Options::new().create(CreateMode::IfMissing).check(Check::Full);
    options = options.lock_wait(args.lock_wait.unwrap_or_default());
    if let Some(bytes) = args.segment_bytes {
        options = options.segment_bytes_max(bytes);
    }
    let (log, _report) = Log::open(&args.log, &options)?;
    let mut appender = Appender { log: &log, args, out: Out::new(false) };
    let end = appender.run();
    // Closing syncs what is buffered also when the input ended in an error.
    let closed = log.clone().close();
    end.map_err(Failure::keyless)?;
    closed.map_err(|e| Failure::from(e).keyless())?;
    Ok(Exit::Clean)
}

/// A plain record among those of a store would keep its broadcaster from opening it again.
fn refuse_log_of_a_store(log: &Path) -> Result<(), Failure> {
    let is_store = |dir: &Path| {
        Place::at(&FsIo::new(), dir).is_ok_and(|place| place.kind() == PlaceKind::Store)
    };
    // The log itself may be absent.
    let whole = log.canonicalize().or_else(|_| std::path::absolute(log)).unwrap_or_default();
    if whole.ancestors().skip(1).take(2).any(is_store) {
        let message = "the log is part of a store, which has its own records".into();
        return Err(Failure::Usage { message, path: Some(log.into()) });
    }
    Ok(())
}

struct Appender<'a> {
    log: &'a Log,
    args: &'a Args,
    out: Out,
}

impl Appender<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let mut input = Input::new();
        let mut records: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut bytes = 0_usize;
            let mut stop = None;
            while bytes < GROUP_BYTES_MAX {
                match input.line(records.is_empty()) {
                    Ok(Line::Record(record)) => {
                        bytes = bytes.saturating_add(record.len()).saturating_add(64);
                        records.push(record);
                    }
                    Ok(Line::WouldBlock) => break,
                    Ok(Line::End) => {
                        stop = Some(Ok(()));
                        break;
                    }
                    Err(failure) => {
                        stop = Some(Err(failure));
                        break;
                    }
                }
            }
            // A full group keeps its incomplete batch back: more input is there.
            let keep = if stop.is_none() && bytes >= GROUP_BYTES_MAX && !input.would_block() {
                records.len() % self.batch_len()
            } else {
                0
            };
            let rest = records.split_off(records.len() - keep);
            self.append(&records)?;
            records = rest;
            if records.iter().map(Vec::len).sum::<usize>() > BATCH_BYTES_MAX {
                return Err(Failure::Limit(format!(
                    "a batch of {} lines is larger than the largest, {BATCH_BYTES_MAX} bytes",
                    self.args.batch
                )));
            }
            if records.iter().map(Vec::len).sum::<usize>() > BATCH_LEN_MAX {
                return Err(Failure::Limit(format!(
                    "a batch is longer than the command holds, {BATCH_LEN_MAX} bytes"
                )));
            }
            if let Some(end) = stop {
                return end;
            }
        }
    }

    /// Appends whole batches that share their syncs, and prints the LSNs.
    fn append(&mut self, records: &[Vec<u8>]) -> Result<(), Failure> {
        let mut open = Vec::new();
        let mut done = Vec::new();
        let mut end = Ok(());
        for records in records.chunks(self.batch_len()) {
            let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
            let batch = Batch { kind: RecordKind::RECORD, records: &records };
            let step = match self.args.durability {
                DurabilityArg::Synced => self.log.enqueue(batch).map(|pending| open.push(pending)),
                DurabilityArg::Buffered => {
                    self.log.append_batch(batch, Durability::Buffered).map(|lsns| done.push(lsns))
                }
            };
            if let Err(error) = step {
                end = Err(error.into());
                break;
            }
        }
        // What was enqueued before a refusal is acknowledged all the same.
        if !done.is_empty() {
            self.log.flush()?;
            self.print(&done)?;
        }
        for pending in open {
            let lsns = pending.wait()?;
            self.print(&[lsns])?;
        }
        end
    }

    fn print(&mut self, ranges: &[LsnRange]) -> Result<(), Failure> {
        for range in ranges {
            for lsn in range.first.get()..=range.last.get() {
                self.out.line(&lsn.to_string()).map_err(reader_gone)?;
            }
        }
        self.out.flush().map_err(reader_gone)
    }

    fn batch_len(&self) -> usize {
        usize::try_from(self.args.batch).unwrap_or(usize::MAX)
    }
}

/// Input that nobody saw acknowledged is not appended: that is no success, though a quiet one.
fn reader_gone(failure: Failure) -> Failure {
    if matches!(failure, Failure::Pipe(_)) { Failure::Pipe(Exit::Failed) } else { failure }
}

enum Line {
    Record(Vec<u8>),
    WouldBlock,
    End,
}

/// Standard input as lines of raw bytes, which knows whether reading on would block.
struct Input {
    stream: StdinLock<'static>,
    chunk: Vec<u8>,
    /// Begin of what is left of the chunk.
    at: usize,
    partial: Vec<u8>,
    ended: bool,
}

impl Input {
    fn new() -> Self {
        Self {
            stream: io::stdin().lock(),
            chunk: Vec::new(),
            at: 0,
            partial: Vec::new(),
            ended: false,
        }
    }

    /// The next line without its newline; waits for it only where `may_wait`.
    fn line(&mut self, may_wait: bool) -> Result<Line, Failure> {
        loop {
            let rest = self.chunk.get(self.at..).unwrap_or_default();
            if let Some(len) = rest.iter().position(|byte| *byte == b'\n') {
                let mut record = std::mem::take(&mut self.partial);
                record.extend(rest.iter().take(len));
                self.at += len + 1;
                return Self::checked(record).map(Line::Record);
            }
            self.partial.extend_from_slice(rest);
            self.at = self.chunk.len();
            if self.partial.len() > RECORD_LEN_MAX {
                return Err(too_long());
            }
            if self.ended {
                if self.partial.is_empty() {
                    return Ok(Line::End);
                }
                let record = std::mem::take(&mut self.partial);
                return Self::checked(record).map(Line::Record);
            }
            if !may_wait && self.would_block() {
                return Ok(Line::WouldBlock);
            }
            self.fill()?;
        }
    }

    fn checked(record: Vec<u8>) -> Result<Vec<u8>, Failure> {
        if record.len() > RECORD_LEN_MAX { Err(too_long()) } else { Ok(record) }
    }

    fn fill(&mut self) -> Result<(), Failure> {
        self.chunk.resize(READ_BYTES, 0);
        let len = loop {
            match self.stream.read(&mut self.chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let len = len.map_err(|source| {
            self.chunk.clear();
            Failure::Stream { message: "cannot read standard input".into(), path: None, source }
        })?;
        self.chunk.truncate(len);
        self.at = 0;
        self.ended = len == 0;
        Ok(())
    }

    /// Whether there is neither a byte left nor one to read at once, nor the end.
    fn would_block(&self) -> bool {
        if self.ended || self.at < self.chunk.len() {
            return false;
        }
        let mut ready = [PollFd::new(&self.stream, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Where the system cannot tell, waiting records go first.
        !matches!(poll(&mut ready, Some(&now)), Ok(count) if count > 0)
    }
}

fn too_long() -> Failure {
    Failure::Limit(format!("a line is longer than the largest record, {RECORD_LEN_MAX} bytes"))
}
