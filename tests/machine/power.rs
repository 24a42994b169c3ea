//! Power cuts of real file systems: several threads append, roll, trim, close and open again while
//! the file system stops. What was acknowledged is sampled before the cut, as a sync that races it
//! may be told that it succeeded.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::{fs, hint, thread};

use oncelog::testing::Dice;
use oncelog::{
    Batch, CreateMode, Durability, Error, ErrorKind, Fill, Log, LsnRange, Options, RecordKind,
};
use rustix::fs::{Advice, fadvise};

use super::child;
use super::disk::{self, Cut, Disk, EXT4, EXT4_SMALL, Kind, Stage, XFS};
use super::figures::{figure, is_release, of_release};
use super::ledger::{BatchId, Ledger};
use super::seam::{Lie, Seam};

/// Threads that append at once.
const WRITERS: u32 = 3;
/// Cuts before a log is left behind and another one made, so that creation is cut, too.
const CUTS_PER_LOG: u32 = 25;
/// Cuts under a log whose syncs do nothing, to show what a log that forgot them would lose.
const LIES: u32 = 20;

/// What the threads of a run and the one that cuts share.
struct Run<'a> {
    number: u32,
    options: Options,
    state: Mutex<State<'a>>,
    turned: Condvar,
}

struct State<'a> {
    ledger: &'a mut Ledger,
    /// Opens and acknowledgements so far.
    events: u64,
    /// What was acknowledged was sampled; the cut may have happened.
    sampled: bool,
    /// A broken promise.
    broken: Option<String>,
}

impl<'a> Run<'a> {
    fn new(number: u32, options: Options, ledger: &'a mut Ledger) -> Self {
        let state = State { ledger, events: 0, sampled: false, broken: None };
        Self { number, options, state: Mutex::new(state), turned: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap()
    }

    /// Notes what became true, unless the sample was taken before.
    fn note(&self, note: impl FnOnce(&mut Ledger)) {
        let mut state = self.state();
        if !state.sampled {
            note(state.ledger);
        }
        state.events += 1;
        self.turned.notify_all();
    }

    /// Waits for so many events, then until a moment that nothing is aligned with, and takes the
    /// sample.
    fn sample(&self, events: u64, spins: u64) {
        let mut state = self.state();
        while state.events < events && state.broken.is_none() {
            state = self.turned.wait(state).unwrap();
        }
        drop(state);
        (0..spins).for_each(|_| hint::spin_loop());
        self.state().sampled = true;
    }

    /// A call was refused: that is as it should be behind the cut alone.
    fn refused(&self, what: &str, e: &Error) {
        let mut state = self.state();
        let may = [ErrorKind::Io, ErrorKind::OutcomeUnknown, ErrorKind::Poisoned];
        if !state.sampled || !may.contains(&e.kind()) {
            let when = if state.sampled { "behind" } else { "before" };
            let source = std::error::Error::source(e).map(ToString::to_string);
            let told = format!("{what} {when} the cut: {:?}, {e}: {source:?}", e.kind());
            state.broken.get_or_insert(told);
            self.turned.notify_all();
        }
    }

    /// Opens, appends and closes, again and again, until the cut.
    fn until_cut(&self, dir: &Path, log: Option<Log>, dice: &mut Dice) {
        let mut log = log;
        loop {
            let open =
                match log.take().map_or_else(|| Log::open(dir, &self.options).map(|o| o.0), Ok) {
                    Ok(open) => open,
                    Err(e) => return self.refused("open", &e),
                };
            self.note(|_| ());
            let ops = 1 + dice.below(40);
            let seed = dice.roll();
            let ended = thread::scope(|scope| {
                let writers: Vec<_> = (0..WRITERS)
                    .map(|writer| {
                        let open = &open;
                        scope.spawn(move || Writer::new(self, open, writer, seed).run(ops))
                    })
                    .collect();
                writers.into_iter().any(|writer| !writer.join().unwrap())
            });
            let closed = open.close();
            match closed {
                Ok(()) if !ended => {}
                Ok(()) => return,
                Err(e) => return self.refused("close", &e),
            }
        }
    }
}

/// Options of a run: segments are prepared in another way in each.
fn options(number: u32, lie: Lie) -> Options {
    let fill = [Fill::Auto, Fill::Allocate, Fill::None][usize::try_from(number).unwrap() % 3];
    let options = Options::new().fill(fill).io(Arc::new(Seam::new(lie)));
    options.segment_bytes_max(65_536).create(CreateMode::IfMissing)
}

/// One thread that appends.
struct Writer<'a, 'b> {
    run: &'a Run<'b>,
    log: &'a Log,
    writer: u32,
    dice: Dice,
    /// What a sync to come makes durable.
    buffered: Vec<(BatchId, LsnRange)>,
}

impl<'a, 'b> Writer<'a, 'b> {
    fn new(run: &'a Run<'b>, log: &'a Log, writer: u32, seed: u64) -> Self {
        let dice = Dice::new(seed ^ u64::from(writer) << 40);
        Self { run, log, writer, dice, buffered: Vec::new() }
    }

    /// Says whether every call was answered well.
    fn run(&mut self, ops: u64) -> bool {
        for _ in 0..ops {
            let (what, done) = match self.dice.below(20) {
                0 => ("trim", self.trim()),
                1..3 => ("sync", self.sync()),
                3..7 => ("append", self.append(Durability::Buffered)),
                7..10 => ("enqueue", self.enqueue()),
                _ => ("append", self.append(Durability::Synced)),
            };
            if let Err(e) = done {
                self.run.refused(what, &e);
                return false;
            }
        }
        true
    }

    fn begin(&mut self) -> BatchId {
        let mut state = self.run.state();
        let (run, writer) = (self.run.number, self.writer);
        let seq = state.ledger.begun_count(run, writer);
        let batch = BatchId { run, writer, seq };
        state.ledger.begin(batch);
        batch
    }

    fn append(&mut self, durability: Durability) -> oncelog::Result<()> {
        let batch = self.begin();
        let records = batch.records();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let lsns = self
            .log
            .append_batch(Batch { kind: RecordKind::RECORD, records: &records }, durability)?;
        if durability == Durability::Buffered {
            self.buffered.push((batch, lsns));
            return Ok(());
        }
        self.run.note(|ledger| ledger.acknowledge(batch, lsns));
        Ok(())
    }

    fn enqueue(&mut self) -> oncelog::Result<()> {
        let batch = self.begin();
        let records = batch.records();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        let pending = self.log.enqueue(Batch { kind: RecordKind::RECORD, records: &records })?;
        let lsns = pending.wait()?;
        self.run.note(|ledger| ledger.acknowledge(batch, lsns));
        Ok(())
    }

    fn sync(&mut self) -> oncelog::Result<()> {
        self.log.sync()?;
        let buffered = std::mem::take(&mut self.buffered);
        self.run.note(|ledger| {
            for (batch, lsns) in buffered {
                ledger.acknowledge(batch, lsns);
            }
        });
        Ok(())
    }

    fn trim(&mut self) -> oncelog::Result<()> {
        let oldest = self.log.oldest_lsn().get();
        let next = self.log.next_lsn().get();
        let wanted = oldest + self.dice.below(next - oldest + 1);
        self.run.state().ledger.ask_trim(wanted);
        self.log.trim(oncelog::Lsn::new(wanted).unwrap())?;
        self.run.note(|ledger| ledger.acknowledge_trim(wanted));
        Ok(())
    }
}

/// Cuts the power of one file system again and again.
struct Cutter {
    disk: Disk,
    kind: Kind,
    dice: Dice,
    number: u32,
    dir: PathBuf,
    ledger: Ledger,
    log: Option<Log>,
    /// Cuts by how they treat the journal.
    cuts: BTreeMap<Cut, u32>,
    /// Records that were held to be durable at a cut, and found.
    records: usize,
    /// Recoveries that met a torn end, and those that wrote records again.
    torn: u32,
    rewritten: u32,
}

impl Cutter {
    fn new(stage: &Stage, kind: Kind, seed: u64) -> Self {
        let disk = Disk::make(stage, kind);
        let dir = disk.root().join("0");
        Self {
            disk,
            kind,
            dice: Dice::new(seed),
            number: 0,
            dir,
            ledger: Ledger::new(),
            log: None,
            cuts: BTreeMap::new(),
            records: 0,
            torn: 0,
            rewritten: 0,
        }
    }

    /// One cut, and what was wrong behind it.
    fn cut(&mut self, lie: Lie) -> Result<(), String> {
        self.number += 1;
        let run = Run::new(self.number, options(self.number, lie), &mut self.ledger);
        let mut dice = Dice::new(self.dice.roll());
        let lying = lie != Lie::None;
        let cut = match self.dice.below(8) {
            _ if lying => Cut::AtOnce,
            0 => Cut::AfterSync,
            1..3 => Cut::AfterJournal,
            _ => Cut::AtOnce,
        };
        let events = match self.dice.below(8) {
            _ if lying => 20,
            0 => 0,
            1..3 => self.dice.below(4),
            _ => self.dice.below(40),
        };
        let spins = self.dice.below(20_000);
        let log = self.log.take();
        thread::scope(|scope| {
            scope.spawn(|| run.until_cut(&self.dir, log, &mut dice));
            run.sample(events, spins);
            write_some(&self.dir, &mut self.dice);
            self.disk.cut(cut);
        });
        let broken = run.state.into_inner().unwrap().broken;
        let options = self.kind.options[self.dice.index(self.kind.options.len())];
        self.disk.unmount();
        self.disk.mount(options);
        *self.cuts.entry(cut).or_default() += 1;
        let held = self.ledger.held_count();
        let checked = broken.map_or(Ok(()), Err).and_then(|()| self.check());
        self.records += held;
        checked.map_err(|e| {
            let (number, name) = (self.number, self.kind.name);
            format!("cut {number} ({cut:?}) of {name} mounted with {options:?}: {e}")
        })
    }

    /// Opens what is left, and compares.
    fn check(&mut self) -> Result<(), String> {
        let (log, report) = Log::open(&self.dir, &options(self.number + 1, Lie::None))
            .map_err(|e| format!("open: {e}"))?;
        self.torn += u32::from(report.torn.is_some());
        self.rewritten += u32::from(report.last_lsn > report.proven_lsn);
        self.ledger.check(&log)?;
        // The next run goes on with this log, or with what its close leaves.
        if self.dice.below(2) == 0 {
            self.log = Some(log);
        } else {
            log.close().map_err(|e| format!("close: {e}"))?;
        }
        Ok(())
    }

    /// Leaves the log, and makes another one in the next run.
    fn leave(&mut self) {
        self.log = None;
        if self.dir.exists() {
            fs::remove_dir_all(&self.dir).unwrap();
        }
        self.dir = self.disk.root().join(self.number.to_string());
        self.ledger = Ledger::new();
    }
}

/// Has the system write some pages of the newest segments, in no order: a disk loses any part of
/// what was not synced, and a file system that stops soon after would lose all of it.
fn write_some(dir: &Path, dice: &mut Dice) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for _ in 0..dice.below(4) {
        let newest = paths.len() - dice.index(3).min(paths.len());
        let Some(file) = paths.get(newest).and_then(|path| File::open(path).ok()) else { continue };
        let pages = NonZeroU64::new(4096 * (1 + dice.below(4)));
        // posix_fadvise(2): dirty pages are written, and then dropped or not.
        let asked = fadvise(&file, 4096 * dice.below(16), pages, Advice::DontNeed);
        asked.expect("a file takes advice");
    }
}

/// The part that runs in a namespace of its own.
fn cut_often(kind: Kind, cuts: u32) {
    let stage = Stage::new(512 << 20);
    let mut cutter = Cutter::new(&stage, kind, u64::from(cuts));
    let mut seen = 0;
    for _ in 0..LIES {
        seen += u32::from(cutter.cut(Lie::NoSync).is_err());
        cutter.leave();
    }
    // What a missing sync of the directory loses, no cut of these file systems shows: they write
    // the entry with the file. That is for the crash tests in memory.
    assert!(seen >= LIES / 2, "{seen} of {LIES} cuts show that nothing is synced");
    figure(3, &format!("of {LIES} cuts of {} show that nothing was synced", kind.name), seen);
    (cutter.cuts, cutter.records) = (BTreeMap::new(), 0);
    (cutter.torn, cutter.rewritten) = (0, 0);
    for done in 1..=cuts {
        cutter.cut(Lie::None).unwrap();
        if done % CUTS_PER_LOG == 0 {
            cutter.leave();
        }
    }
    cutter.leave();
    let Kind { name, .. } = kind;
    figure(3, &format!("power cuts of {name}"), cuts);
    for (cut, count) in &cutter.cuts {
        figure(3, &format!("power cuts of {name}, {cut:?}"), count);
    }
    figure(3, &format!("acknowledged records that cuts of {name} left"), cutter.records);
    figure(3, &format!("torn ends behind cuts of {name}"), cutter.torn);
    figure(3, &format!("ends written again behind cuts of {name}"), cutter.rewritten);
}

/// Runs a test in both of its processes.
fn play(name: &str, kind: Kind, change: u32, release: u32) {
    if child::part().is_some() {
        cut_often(kind, if is_release() { of_release(release.into()) } else { change });
    } else if let Some(reason) = disk::missing(kind) {
        child::skip(&format!("cuts of {}", kind.name), &reason);
    } else {
        disk::on_stage(name, kind.name);
    }
}

#[test]
fn what_was_acknowledged_survives_power_cuts_of_ext4() {
    play("power::what_was_acknowledged_survives_power_cuts_of_ext4", EXT4, 700, 25_000);
}

#[test]
fn what_was_acknowledged_survives_power_cuts_of_ext4_with_small_blocks() {
    let name = "power::what_was_acknowledged_survives_power_cuts_of_ext4_with_small_blocks";
    play(name, EXT4_SMALL, 450, 15_000);
}

#[test]
fn what_was_acknowledged_survives_power_cuts_of_xfs() {
    play("power::what_was_acknowledged_survives_power_cuts_of_xfs", XFS, 400, 12_000);
}
