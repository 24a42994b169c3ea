//! Runs operations on a log over the file system in memory, and notes the machine and the oracle
//! before each persistence point.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncelog::io::Io;
use oncelog::testing::{
    CallKind, Dice, EDQUOT, EIO, ENOSPC, Fault, Machine, MemIo, Which, survivors,
};
use oncelog::{
    Batch, Check, Clock, CreateMode, Durability, ErrorKind, Fill, Log, Lsn, LsnRange, Options,
    Pending, RecordKind,
};

use super::crowd::{Meanwhile, Meeting};
use super::hold::{self, Held, Hold};
use super::oracle::{End, Oracle};

/// Where the log lies.
pub(crate) const DIR: &str = "/db";
/// The smallest segments there are: rolls come soon and scans are short.
pub(crate) const SEGMENT_BYTES: u64 = 65_536;
/// Bytes for frames in such a segment.
pub(crate) const ROOM: usize = 65_536 - 12_288;

/// One step of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// A batch of records of these lengths, synced.
    Synced(Vec<usize>),
    /// The same, buffered.
    Buffered(Vec<usize>),
    /// Batches of several appenders, each of which waits, and records of others that come in, one
    /// at each write and at each sync of the first ones.
    Crowd {
        waiting: Vec<Vec<usize>>,
        meanwhile: Vec<usize>,
    },
    Flush,
    Sync,
    /// Trims this many quarters of what is durable.
    Trim(u64),
    /// The slot of an idle writer.
    IdleSlot,
    /// A step of filling ahead.
    Fill,
    /// The files of trimmed segments are removed, step by step.
    Remove,
    /// A segment that is degraded is rebuilt.
    Rebuild,
    Close,
    Kill,
    /// A kill, and the system drops clean pages.
    Evict,
    /// The system drops clean pages, and the process goes on.
    Drop,
    Power,
    /// Leaves this many blocks free.
    Space(Option<u64>),
    /// The next sync of a file fails.
    FailSync,
    /// The sync of a file behind the next one fails.
    FailSecondSync,
    /// The next sync of the directory fails.
    FailSyncDir,
    /// The next write fails, or takes so many bytes.
    FailWrite(Option<usize>),
    /// The system fails to write the newest segment back, behind everyone's back.
    FailWriteBack,
    /// What is kept, and what goes.
    Hold(Hold),
}

/// A persistence point: what a crash there finds.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) machine: Machine,
    pub(crate) oracle: Oracle,
    pub(crate) kind: CallKind,
}

/// What became of those who came in: what waits, and why others were refused.
type Late = (Vec<Pending>, Vec<ErrorKind>);

#[derive(Debug)]
struct Notes {
    oracle: Oracle,
    points: Option<Vec<Point>>,
}

/// A process, its log, and what its caller relies on.
pub(crate) struct Driver {
    io: MemIo,
    meanwhile: Meanwhile,
    /// The fault that may meet any call.
    armed: Option<Fault>,
    log: Option<Log>,
    notes: Arc<Mutex<Notes>>,
    dice: Dice,
    pub(crate) held: Held,
    /// Faults that had struck when the step began.
    struck: u64,
    pub(crate) poisoned: bool,
    full: bool,
}

/// A clock that goes back and forth, the same in every run.
#[derive(Debug, Default)]
struct Wanderer {
    asked: AtomicU64,
}

impl Clock for Wanderer {
    fn wall_ms(&self) -> u64 {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        1_700_000_000_000 + asked * 7919 % 100
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// How every log of these tests is opened.
pub(crate) fn options(io: impl Io) -> Options {
    Options::new()
        .segment_bytes_max(SEGMENT_BYTES)
        .create(CreateMode::IfMissing)
        .background(false)
        .retention(hold::retention())
        .removal_step_bytes(hold::STEP_BYTES)
        .fill(Fill::Zero)
        .clock(Arc::new(Wanderer::default()))
        .io(Arc::new(io))
}

impl Driver {
    /// A process that has not opened its log yet.
    pub(crate) fn new(machine: Machine, oracle: Oracle, seed: u64, record: bool) -> Self {
        let points = record.then(Vec::new);
        let notes = Arc::new(Mutex::new(Notes { oracle, points }));
        let io = MemIo::default();
        let mut dice = Dice::new(seed);
        io.seed(dice.roll());
        let mut driver = Self {
            io,
            meanwhile: Meanwhile::default(),
            armed: None,
            log: None,
            notes,
            dice,
            held: Held::default(),
            struck: 0,
            poisoned: false,
            full: false,
        };
        driver.start(machine);
        driver
    }

    /// Any call may be the one that fails.
    pub(crate) fn arm_anywhere(&mut self, nth: u64, times: u64, fault: Fault) {
        self.io.arm(Which::Any, nth, times, fault);
        self.armed = Some(fault);
    }

    /// A number of this run, which another one shares that makes the same calls and in which the same
    /// ones fail.
    pub(crate) fn trace(&self) -> u64 {
        self.io.trace()
    }

    /// Calls that armed faults have met until here.
    pub(crate) fn spent(&self) -> u64 {
        self.io.spent()
    }

    /// A refusal for space is told as what it is, and nothing else is told as one.
    fn is_told(&self, kind: ErrorKind) -> Result<(), String> {
        match self.armed {
            // A short count may end in a full disk.
            Some(Fault::Error(number)) if kind == ErrorKind::StoreFull && !self.full => {
                let is_full = number == ENOSPC || number == EDQUOT;
                is_full.then_some(()).ok_or_else(|| format!("{number} is told as a full store"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn disarm(&self) {
        self.io.disarm();
    }

    /// Notes the calls from here on.
    pub(crate) fn note_calls(&self) {
        self.io.note_calls();
    }

    pub(crate) fn noted_calls(&self) -> Vec<(CallKind, usize)> {
        self.io.noted_calls()
    }

    fn start(&mut self, machine: Machine) {
        self.io = self.io.successor(machine);
        if self.notes.lock().unwrap().points.is_some() {
            let notes = Arc::clone(&self.notes);
            self.io.observe(move |machine, kind| {
                let mut notes = notes.lock().unwrap();
                let oracle = notes.oracle.clone();
                let point = Point { machine: machine.clone(), oracle, kind };
                notes.points.as_mut().unwrap().push(point);
            });
        }
    }

    /// A fault has met this step, or one that nobody was told of waits for its next sync.
    pub(crate) fn is_struck(&self) -> bool {
        self.io.struck() > self.struck || self.oracle(|o| o.failing)
    }

    fn options(&self) -> Options {
        options(Meeting { io: self.io.clone(), meanwhile: self.meanwhile.clone() })
    }

    pub(crate) fn oracle<T>(&self, f: impl FnOnce(&mut Oracle) -> T) -> T {
        f(&mut self.notes.lock().unwrap().oracle)
    }

    pub(crate) fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    /// Persistence points until here.
    pub(crate) fn point_count(&self) -> usize {
        self.notes.lock().unwrap().points.as_ref().map_or(0, Vec::len)
    }

    pub(crate) fn machine(&self) -> Machine {
        self.io.machine()
    }

    /// Last LSN that the log holds or may hold.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.oracle(|o| o.last())
    }

    /// The points until here, and one for the end.
    pub(crate) fn into_points(self) -> Vec<Point> {
        let machine = self.io.machine();
        self.io.kill();
        let mut notes = self.notes.lock().unwrap();
        let oracle = notes.oracle.clone();
        let mut points = notes.points.take().unwrap_or_default();
        points.push(Point { machine, oracle, kind: CallKind::Sync });
        points
    }

    /// Opens the log and compares it with the oracle.
    pub(crate) fn open(&mut self, end: End) -> Result<(), String> {
        self.poisoned = false;
        // What a failed sync left, the system may drop at any time, and whoever opens the log does.
        let dropped = self.io.machine().deceptive_count() > 0;
        let created = self.oracle(|o| {
            if end == End::Power || end == End::Evict || dropped {
                o.written = o.promised;
            }
            o.failing &= end != End::Power;
            o.created
        });
        let mut opened = Log::open(DIR, &self.options());
        if let Err(e) = &opened {
            self.is_told(e.kind())?;
            // A fault that was armed may have met the open; only making a log needs space.
            let excused = match e.kind() {
                ErrorKind::Io => self.is_struck(),
                ErrorKind::StoreFull => !created || self.is_struck(),
                _ => false,
            };
            if !excused {
                return Err(format!("G4: open: {} ({})", chain(e), e.kind()));
            }
            self.io.disarm();
            self.io.set_free_blocks(None);
            self.full = false;
            opened = Log::open(DIR, &self.options());
        }
        let (log, report) =
            opened.map_err(|e| format!("G4: open: {} ({})", chain(&e), e.kind()))?;
        let is_unread = hold::is_unread(&report);
        if is_unread && !self.is_struck() {
            return Err(format!("G4: cursors: {:?}", report.findings));
        }
        self.held = Held::new(is_unread);
        let mut oracle = self.oracle(|o| o.clone());
        if !is_unread {
            oracle.cursor.check(&log)?;
        }
        let mut checked = oracle.check(&log);
        if checked.is_err() && self.is_struck() {
            // The fault may have met the reading.
            self.io.disarm();
            oracle = self.oracle(|o| o.clone());
            checked = oracle.check(&log);
        }
        checked?;
        self.oracle(|o| *o = oracle);
        self.log = Some(log);
        Ok(())
    }

    /// Takes one step; the error is a promise that was broken.
    pub(crate) fn step(&mut self, op: &Op) -> Result<(), String> {
        self.struck = self.io.struck();
        match op {
            Op::Synced(lens) => self.append(lens, Durability::Synced),
            Op::Buffered(lens) => self.append(lens, Durability::Buffered),
            Op::Crowd { waiting, meanwhile } => self.crowd(waiting, meanwhile),
            Op::Flush => {
                let done = self.log().flush();
                self.settle_all(done, |o, last| o.written = last)
            }
            Op::Sync => {
                let done = self.log().sync().map(drop);
                self.settle_all(done, |o, last| (o.promised, o.written) = (last, last))
            }
            Op::Trim(quarters) => self.trim(*quarters),
            Op::IdleSlot => {
                // A failure to write it is ignored; a failed sync before it is final.
                let done = self.log().write_idle_slot();
                self.settle(done, |_, _| {})
            }
            Op::Fill => {
                // Whatever befalls a spare is harmless; a failed sync of the tail is final.
                let done = self.log().fill_step().map(drop);
                self.settle(done, |_, _| {})
            }
            Op::Remove => {
                // A refusal puts a file aside.
                while self.log().remove_step().unwrap_or(false) {}
                Ok(())
            }
            Op::Rebuild => {
                while self.log().rebuild_step() {}
                Ok(())
            }
            Op::Close => {
                let done = self.log.take().unwrap().close();
                self.settle_all(done, |o, last| (o.promised, o.written) = (last, last))?;
                self.restart(self.io.machine(), End::Close)
            }
            Op::Kill => self.restart(self.io.machine(), End::Kill),
            Op::Evict => {
                let machine = self.io.machine().evict(|_| self.dice.below(2) == 1);
                self.restart(machine, End::Evict)
            }
            Op::Drop => {
                self.io.alter(|machine| *machine = machine.evict(|_| true));
                Ok(())
            }
            Op::Power => {
                let machine = self.io.machine();
                let unsynced = machine.unsynced();
                let ways = survivors(&unsynced, 16, &mut self.dice);
                let way = &ways[self.dice.index(ways.len())];
                self.restart(machine.power_loss(&unsynced, way), End::Power)
            }
            Op::Space(free) => {
                self.io.set_free_blocks(*free);
                self.full = free.is_some();
                Ok(())
            }
            Op::FailSync => self.arm(CallKind::Sync, 1, Fault::Error(EIO)),
            Op::FailSecondSync => self.arm(CallKind::Sync, 2, Fault::Error(EIO)),
            Op::FailSyncDir => self.arm(CallKind::SyncDir, 1, Fault::Error(EIO)),
            Op::FailWrite(None) => self.arm(CallKind::Write, 1, Fault::Error(ENOSPC)),
            Op::FailWrite(Some(len)) => self.arm(CallKind::Write, 1, Fault::Short(*len)),
            Op::FailWriteBack => {
                let newest = segments(&self.io.machine()).pop().unwrap_or_default();
                let (path, seed) = (Path::new(DIR).join(newest), self.dice.roll());
                let failed = self.io.alter(|machine| machine.fail_write_back(path, seed).is_ok());
                self.oracle(|o| o.failing |= failed);
                Ok(())
            }
            Op::Hold(step) => self.hold(*step),
        }
    }

    fn arm(&mut self, kind: CallKind, nth: u64, fault: Fault) -> Result<(), String> {
        self.io.arm(Which::Kind(kind), nth, 1, fault);
        Ok(())
    }

    /// The process ends and another one opens the log.
    fn restart(&mut self, machine: Machine, end: End) -> Result<(), String> {
        self.io.kill();
        (self.log, self.held) = (None, Held::default());
        self.start(machine);
        self.open(end)
    }

    /// Hands a batch of new records to the oracle, and then to the log.
    fn hand<T>(&self, lens: &[usize], take: impl FnOnce(&Log, Batch<'_>) -> T) -> T {
        let stale = self.stale(lens.len());
        let payloads: Vec<_> =
            self.oracle(|o| lens.iter().map(|len| o.payload(*len, &stale)).collect());
        self.oracle(|o| {
            for (k, payload) in payloads.iter().enumerate() {
                o.push(payload.clone(), k + 1 == lens.len());
            }
        });
        let records: Vec<&[u8]> = payloads.iter().map(|p| &*p.bytes).collect();
        take(self.log(), Batch { kind: RecordKind::RECORD, records: &records })
    }

    /// LSNs were given to a batch behind `before`.
    fn given(&self, lsns: LsnRange, before: u64, count: usize) -> Result<(), String> {
        if self.poisoned {
            return Err("G5: an append after a failed write or sync".into());
        }
        let found = (lsns.first.get(), lsns.last.get());
        let expected = (before + 1, before + count as u64);
        if found == expected {
            Ok(())
        } else {
            Err(format!("G7: expected LSNs {expected:?}, found {found:?}"))
        }
    }

    fn append(&mut self, lens: &[usize], durability: Durability) -> Result<(), String> {
        let before = self.last_lsn();
        match self.hand(lens, |log, batch| log.append_batch(batch, durability)) {
            Ok(lsns) => {
                self.given(lsns, before, lens.len())?;
                if durability == Durability::Synced {
                    let last = lsns.last.get();
                    self.oracle(|o| (o.promised, o.written) = (last, last));
                }
                Ok(())
            }
            Err(e) => self.refused(&e, before),
        }
    }

    fn crowd(&mut self, waiting: &[Vec<usize>], meanwhile: &[usize]) -> Result<(), String> {
        let mut pending = Vec::new();
        for lens in waiting {
            let before = self.last_lsn();
            match self.hand(lens, |log, batch| log.enqueue(batch)) {
                Ok(enqueued) => {
                    self.given(enqueued.lsns(), before, lens.len())?;
                    pending.push(enqueued);
                }
                Err(e) => self.refused(&e, before)?,
            }
        }
        let late = self.come_in(meanwhile.to_vec());
        for enqueued in pending {
            self.wait(enqueued)?;
        }
        self.meanwhile.clear();
        let (late, refused) = std::mem::take(&mut *late.lock().unwrap());
        // All that can befall who comes in is that the log is poisoned, by what strikes here.
        for kind in refused {
            if kind != ErrorKind::Poisoned || !(self.poisoned || self.is_struck()) {
                return Err(format!("G3: who came in was refused: {kind}"));
            }
        }
        // Some of those who came in wait, and some do not care.
        for enqueued in late.into_iter().step_by(2) {
            self.wait(enqueued)?;
        }
        Ok(())
    }

    /// Has a record of each of these lengths appended, one at the next write, one at the next sync,
    /// and so on.
    fn come_in(&self, lens: Vec<usize>) -> Arc<Mutex<Late>> {
        let late = Arc::new(Mutex::new(Late::default()));
        let (log, notes, found) = (self.log().clone(), Arc::clone(&self.notes), Arc::clone(&late));
        let mut lens = lens.into_iter();
        self.meanwhile.set(move |_| {
            let Some(len) = lens.next() else { return };
            let payload = {
                let oracle = &mut notes.lock().unwrap().oracle;
                // Whoever asks now is told of this.
                oracle.promised = oracle.promised.max(log.durable_lsn().map_or(0, Lsn::get));
                let payload = oracle.payload(len, &[]);
                oracle.push(payload.clone(), true);
                payload
            };
            match log.try_enqueue(Batch { kind: RecordKind::RECORD, records: &[&payload.bytes] }) {
                Ok(Some(enqueued)) => found.lock().unwrap().0.push(enqueued),
                Ok(None) => notes.lock().unwrap().oracle.pop(),
                Err(e) => {
                    notes.lock().unwrap().oracle.pop();
                    found.lock().unwrap().1.push(e.kind());
                }
            }
        });
        late
    }

    fn wait(&mut self, enqueued: Pending) -> Result<(), String> {
        match enqueued.wait() {
            Ok(lsns) => {
                let told = self.log().durable_lsn().map_or(0, Lsn::get);
                if told < lsns.last.get() {
                    return Err(format!("G1: LSN {} is acknowledged, {told} durable", lsns.last));
                }
                self.oracle(|o| {
                    o.promised = o.promised.max(told);
                    o.written = o.written.max(o.promised);
                });
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::OutcomeUnknown => {
                let excused = self.poisoned || self.is_struck();
                self.poisoned = true;
                if excused { Ok(()) } else { Err(format!("wait: {}", chain(&e))) }
            }
            Err(e) => Err(format!("wait: {} ({})", chain(&e), e.kind())),
        }
    }

    /// An append failed: either nothing of it will ever be seen, or the log is poisoned.
    fn refused(&mut self, e: &oncelog::Error, before: u64) -> Result<(), String> {
        self.is_told(e.kind())?;
        match e.kind() {
            ErrorKind::StoreFull if !self.poisoned => {
                if !self.full && !self.is_struck() {
                    return Err(format!("G6: refused for space that is there: {}", chain(e)));
                }
                self.oracle(|o| o.cut(before));
                Ok(())
            }
            // Refused before a byte of it was written.
            ErrorKind::Io if self.is_struck() && !self.poisoned => {
                self.oracle(|o| o.cut(before));
                Ok(())
            }
            ErrorKind::Poisoned if self.poisoned || self.is_struck() => {
                self.oracle(|o| o.cut(before));
                self.poisoned = true;
                Ok(())
            }
            // It may be found after all.
            ErrorKind::OutcomeUnknown if self.is_struck() && !self.poisoned => {
                self.poisoned = true;
                Ok(())
            }
            // No batch of a workload is as large as that.
            kind => Err(format!("append: {} ({kind})", chain(e))),
        }
    }

    /// The end of a call that makes all records so far durable, or written. Behind a failed write or
    /// sync there is none that ends well, until the next open.
    fn settle_all(
        &mut self,
        done: oncelog::Result<()>,
        promise: impl FnOnce(&mut Oracle, u64),
    ) -> Result<(), String> {
        if self.poisoned && done.is_ok() {
            return Err("G5: a flush, sync or close after a failed write or sync".into());
        }
        self.settle(done, promise)
    }

    /// The end of a call that promises something about all records so far.
    pub(crate) fn settle(
        &mut self,
        done: oncelog::Result<()>,
        promise: impl FnOnce(&mut Oracle, u64),
    ) -> Result<(), String> {
        match done {
            Ok(()) if self.poisoned => Ok(()),
            Ok(()) => {
                self.oracle(|o| promise(o, o.last()));
                Ok(())
            }
            Err(e) => match self.is_told(e.kind()).map(|()| e.kind())? {
                ErrorKind::StoreFull if self.full || self.is_struck() => Ok(()),
                ErrorKind::Io if self.is_struck() => Ok(()),
                ErrorKind::Poisoned if self.poisoned || self.is_struck() => {
                    self.poisoned = true;
                    Ok(())
                }
                kind => Err(format!("{} ({kind})", chain(&e))),
            },
        }
    }

    fn trim(&mut self, quarters: u64) -> Result<(), String> {
        let (oldest, promised) = self.oracle(|o| (o.oldest, o.promised));
        let oldest = oldest.1 + (promised + 1).saturating_sub(oldest.1) * quarters / 4;
        if !self.is_held(oldest) {
            self.oracle(|o| o.oldest.1 = oldest);
        }
        let before = self.log().oldest_lsn().get();
        match self.log().trim(Lsn::new(oldest).unwrap()) {
            Ok(()) => self.trimmed(before, oldest),
            Err(e) => self.settle_trim(e, oldest),
        }
    }

    /// Frames of the newest segment, for payloads that hold some, if one of the next ones does.
    fn stale(&self, count: usize) -> Vec<u8> {
        if !self.oracle(|o| o.wants_stale(count)) {
            return Vec::new();
        }
        let machine = self.io.machine();
        let newest = segments(&machine).pop();
        let bytes = newest.and_then(|name| machine.bytes(Path::new(DIR).join(name)).ok());
        bytes.and_then(|b| b.get(12_288..14_336).map(<[u8]>::to_vec)).unwrap_or_default()
    }
}

/// Names of the segments, in order.
pub(crate) fn segments(machine: &Machine) -> Vec<String> {
    let io = MemIo::new(machine.clone());
    let mut names: Vec<String> = io
        .list(Path::new(DIR))
        .unwrap_or_default()
        .into_iter()
        .filter_map(|entry| entry.name.into_string().ok())
        .filter(|name| name.ends_with(".seg"))
        .collect();
    names.sort();
    names
}

/// The log opened as a caller would who wants every byte looked at.
pub(crate) fn open_full(machine: &Machine) -> oncelog::Result<Log> {
    let io = MemIo::new(machine.clone());
    let options = options(io).create(CreateMode::Never).check(Check::Full);
    Log::open(DIR, &options).map(|(log, _)| log)
}

/// An error with its causes, in one line.
pub(crate) fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
