//! Crashes a workload at every persistence point, in every way or in a seeded choice of ways, opens
//! what is left, and crashes that, too.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use oncelog::testing::{CallKind, Dice, Machine, MemIo, survivors};
use oncelog::{ErrorKind, LogView, Lsn, Severity};

use super::drive::{DIR, Driver, Op, Point, chain, open_full, segments};
use super::oracle::{End, Oracle, count_of};
use super::seen::{Counts, Seen};
use super::workload::Workload;

/// Where a segment's slots stand.
const SLOT_OFFSETS: [u64; 2] = [4096, 8192];

/// A power loss whose removed files come back with the blocks of others.
pub(crate) const REUSE: &str = "power loss, blocks reused";

/// How far the crashes of a workload are followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Ways in which a power loss is played at one point, by the crashes before it.
    pub(crate) ways: [usize; 2],
    /// One kill of so many is crashed again in what follows it, by the digest of what it left.
    pub(crate) kills: u64,
    /// The same for power losses.
    pub(crate) losses: u64,
    /// Times that each sync of a file or directory fails.
    pub(crate) failures: usize,
    /// One power loss of so many is played again with blocks given to others.
    pub(crate) reuses: u64,
}

/// What came before a second crash: nothing for the first one.
#[derive(Clone, Copy, Debug)]
struct Trail {
    first: &'static str,
    within: &'static str,
}

const BEGIN: Trail = Trail { first: "", within: "" };

impl Trail {
    fn depth(self) -> usize {
        usize::from(!self.first.is_empty())
    }
}

/// Follows workloads, one after the other.
#[derive(Debug)]
pub(crate) struct Explorer<'a> {
    reach: Reach,
    seen: &'a Seen,
    pub(crate) counts: Counts,
}

/// Follows all workloads until `is_enough`, on every core. The error is the first promise that was
/// broken. What is found does not depend on the threads: seeds come from what was left.
pub(crate) fn explore(
    workloads: impl Iterator<Item = Workload> + Send,
    reach: Reach,
    seen: &Seen,
    is_enough: impl Fn() -> bool + Sync,
) -> Result<Counts, String> {
    let (workloads, stop) = (Mutex::new(workloads), AtomicBool::new(false));
    let run = || {
        let mut explorer = Explorer::new(reach, seen);
        while !stop.load(Ordering::Relaxed) && !is_enough() {
            let next = workloads.lock().unwrap().next();
            let Some(workload) = next else { break };
            if let Err(e) = explorer.workload(&workload) {
                stop.store(true, Ordering::Relaxed);
                return Err(e);
            }
        }
        Ok(explorer.counts)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found: Vec<Result<Counts, String>> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let mut all = Counts::default();
    for counts in found {
        all.add(&counts?);
    }
    Ok(all)
}

impl<'a> Explorer<'a> {
    pub(crate) fn new(reach: Reach, seen: &'a Seen) -> Self {
        Self { reach, seen, counts: Counts::default() }
    }

    /// Plays a workload and all its crashes; the error is the first promise that was broken.
    pub(crate) fn workload(&mut self, workload: &Workload) -> Result<(), String> {
        let at = |e: String| format!("{} {:?}: {e}", workload.name, workload.ops);
        let mut driver = Driver::new(Machine::new(), Oracle::new(), workload.seed, true);
        driver.open(End::Close).map_err(at)?;
        for op in &workload.ops {
            driver.step(op).map_err(|e| at(format!("{op:?}: {e}")))?;
        }
        let machine = driver.machine();
        let points = driver.into_points();
        let oracle = points.last().map(|point| point.oracle.clone()).unwrap_or_default();
        self.counts.workloads += 1;
        for (k, point) in points.iter().enumerate() {
            self.counts.points += 1;
            let mut dice = Dice::new(workload.seed ^ k as u64);
            self.point(point, BEGIN, &mut dice)
                .map_err(|e| at(format!("crash before {:?}, point {k}: {e}", point.kind)))?;
        }
        self.damage(machine, oracle, workload.seed).map_err(at)
    }

    /// Plays a sequence of steps and the crashes of its last one; those before it belong to shorter
    /// sequences.
    pub(crate) fn sequence(&mut self, ops: &[Op]) -> Result<(), String> {
        let at = |e: String| format!("{ops:?}: {e}");
        let mut driver = Driver::new(Machine::new(), Oracle::new(), 1, true);
        driver.open(End::Close).map_err(at)?;
        let mut before = 0;
        for op in ops {
            before = driver.point_count();
            driver.step(op).map_err(|e| at(format!("{op:?}: {e}")))?;
        }
        let points = driver.into_points();
        for (k, point) in points.iter().enumerate().skip(before) {
            self.counts.points += 1;
            let mut dice = Dice::new(k as u64);
            self.point(point, BEGIN, &mut dice)
                .map_err(|e| at(format!("crash before {:?}, point {k}: {e}", point.kind)))?;
        }
        Ok(())
    }

    /// Every end of the process at one point.
    fn point(&mut self, point: &Point, trail: Trail, dice: &mut Dice) -> Result<(), String> {
        let machine = &point.machine;
        check_slots(machine)?;
        let mut oracle = point.oracle.clone();
        // What another process took for durable at this moment is promised to it.
        oracle.promised = oracle.promised.max(seen(machine, &oracle)?);
        let oracle = &oracle;
        let names = ["kill", "eviction", "power loss"];
        self.ends(machine, oracle, trail, (names, self.reach.ways[trail.depth()]), dice)?;
        if trail.depth() > 0 {
            return Ok(());
        }
        for _ in 0..self.reach.failures {
            let (mut failed, seed) = (machine.clone(), dice.roll());
            match point.kind {
                CallKind::Sync => failed.fail_syncs(seed),
                // Of a directory that was never synced nothing can be known.
                CallKind::SyncDir if oracle.created => {
                    failed.fail_dir_sync(DIR, seed).map_err(|e| e.to_string())?;
                }
                _ => break,
            }
            let names = ["failed sync, kill", "failed sync, eviction", "failed sync, power loss"];
            self.ends(&failed, oracle, trail, (names, 4), dice)?;
        }
        Ok(())
    }

    /// A kill, one that the system follows by dropping clean pages, and power losses.
    fn ends(
        &mut self,
        machine: &Machine,
        oracle: &Oracle,
        trail: Trail,
        ([kill, eviction, loss], ways): ([&'static str; 3], usize),
        dice: &mut Dice,
    ) -> Result<(), String> {
        self.visit(machine, oracle, (kill, End::Kill), trail)
            .map_err(|e| format!("{kill}: {e}"))?;
        if machine.deceptive_count() > 0 {
            let all = machine.evict(|_| true);
            let some = machine.evict(|_| dice.below(2) == 1);
            for machine in [all, some] {
                self.visit(&machine, oracle, (eviction, End::Evict), trail)
                    .map_err(|e| format!("{eviction}: {e}"))?;
            }
        }
        let unsynced = machine.unsynced();
        for way in survivors(&unsynced, ways, dice) {
            let left = machine.power_loss(&unsynced, &way);
            self.visit(&left, oracle, (loss, End::Power), trail)
                .map_err(|e| format!("{loss} that left {way:?}: {e}"))?;
            if dice.below(self.reach.reuses) == 0
                && let Some(reused) = machine.reuse_blocks(&left, dice)
            {
                self.visit(&reused, oracle, (REUSE, End::Power), trail)
                    .map_err(|e| format!("{loss} that left {way:?}, blocks reused: {e}"))?;
            }
        }
        Ok(())
    }

    /// Opens what a crash left, compares, and appends; behind a first crash each persistence point of
    /// that may be crashed again.
    fn visit(
        &mut self,
        machine: &Machine,
        oracle: &Oracle,
        (name, end): (&'static str, End),
        trail: Trail,
    ) -> Result<(), String> {
        let (digest, judge) = (machine.digest(), oracle.digest());
        // What stands in blocks that were given to others is drawn: it makes no state another one.
        let is_drawn = name == REUSE || trail.first == REUSE;
        if !is_drawn {
            self.seen.state(digest);
        }
        if end == End::Power && !self.seen.is_first(digest, judge) {
            return Ok(());
        }
        self.counts.openings += 1;
        self.counts.crash(match trail.depth() {
            0 => (name, "", ""),
            _ => (trail.first, trail.within, name),
        });
        let one_of = if end == End::Power { self.reach.losses } else { self.reach.kills };
        let again = trail.depth() == 0 && digest.is_multiple_of(one_of);
        let seed = digest ^ judge;
        let mut driver = Driver::new(machine.clone(), oracle.clone(), seed, again);
        driver.open(end)?;
        let recovered = driver.point_count();
        // As long as the record that was lost, so that stale frames behind it would fit.
        let lost = count_of(driver.last_lsn());
        let len = oracle.history.get(lost).map_or(20, |rec| rec.payload.bytes.len());
        driver.step(&Op::Space(None))?;
        driver.step(&Op::Synced(vec![len])).map_err(|e| format!("append after it: {e}"))?;
        let points = driver.into_points();
        let (last, before) = points.split_last().ok_or("no point")?;
        let mut dice = Dice::new(seed);
        for (k, point) in before.iter().enumerate() {
            let within = if k < recovered { "recovery" } else { "append" };
            self.point(point, Trail { first: name, within }, &mut dice)
                .map_err(|e| format!("crash again before {:?}, point {k}: {e}", point.kind))?;
        }
        if again || digest.is_multiple_of(8) {
            let lost = last.machine.power_loss(&last.machine.unsynced(), &[]);
            if !is_drawn {
                self.seen.state(lost.digest());
            }
            self.counts.openings += 1;
            self.counts.crash((name, "append that returned", "power loss"));
            Driver::new(lost, last.oracle.clone(), seed, false)
                .open(End::Power)
                .map_err(|e| format!("power loss after the append: {e}"))?;
        }
        Ok(())
    }

    /// After a clean close every sector and every bit of every record is vouched for: without it the
    /// log is corrupt (G4).
    fn damage(&mut self, machine: Machine, oracle: Oracle, seed: u64) -> Result<(), String> {
        let mut driver = Driver::new(machine, oracle, seed, false);
        driver.open(End::Kill)?;
        driver.step(&Op::Space(None))?;
        driver.step(&Op::Close)?;
        let mut closed = driver.into_points().pop().ok_or("no point")?.machine;
        closed.sync_all();
        let log = open_full(&closed).map_err(|e| format!("G4: after a close: {e}"))?;
        let mut reader = log.reader(log.oldest_lsn()).map_err(|e| e.to_string())?;
        let mut places = Vec::new();
        while let Some(found) = reader.next().map_err(|e| e.to_string())? {
            places.push((found.segment.get(), found.offset, found.frame_bytes, found.lsn));
        }
        drop((reader, log));
        let names = segments(&closed);
        let dice = &mut Dice::new(seed);
        for (number, offset, len, lsn) in places {
            let prefix = format!("{number:010}-");
            let name = names.iter().find(|n| n.starts_with(&prefix)).ok_or("segment is gone")?;
            let path = Path::new(DIR).join(name);
            let bytes = closed.bytes(&path).map_err(|e| e.to_string())?;
            let sector = count_of(offset + dice.below(len)) / 512 * 512;
            let mut zeroed = bytes.clone();
            let end = bytes.len().min(sector + 512);
            zeroed[sector..end].fill(0);
            self.damaged(&closed, &path, (&bytes, &zeroed), lsn)?;
            // One bit of what its header says about it.
            let mut flipped = bytes.clone();
            flipped[count_of(offset + 8 + dice.below(24))] ^= 1 << dice.below(8);
            self.damaged(&closed, &path, (&bytes, &flipped), lsn)?;
            // The length, as far as the padding allows.
            let mut longer = bytes.clone();
            longer[count_of(offset + 16)] |= 7;
            self.damaged(&closed, &path, (&bytes, &longer), lsn)?;
        }
        Ok(())
    }

    fn damaged(
        &mut self,
        machine: &Machine,
        path: &Path,
        (whole, bytes): (&[u8], &[u8]),
        lsn: Lsn,
    ) -> Result<(), String> {
        if whole == bytes {
            return Ok(());
        }
        let mut damaged = machine.clone();
        damaged.put(path, bytes).map_err(|e| e.to_string())?;
        self.counts.damages += 1;
        match open_full(&damaged) {
            Err(e) if e.kind() == ErrorKind::Corrupt => Ok(()),
            Err(e) => Err(format!("G4: damage to LSN {lsn}: {e} ({})", e.kind())),
            Ok(_) => Err(format!("G4: damage to LSN {lsn} in {path:?}, unnoticed")),
        }
    }
}

/// The slots of the tail: a device may lose a sector that it was writing, and while one of them is
/// at risk, the other holds what was promised (DESIGN 3.2, SPEC section 10).
fn check_slots(machine: &Machine) -> Result<(), String> {
    let Some(newest) = segments(machine).pop() else { return Ok(()) };
    let path = Path::new(DIR).join(newest);
    let mut settled = SLOT_OFFSETS.iter().map(|at| machine.is_settled_at(&path, *at));
    // A segment that was not synced yet has no name.
    if settled.any(|is| is.unwrap_or(true)) {
        return Ok(());
    }
    Err("G8: a slot was written while the other was not on the disk".into())
}

/// The durable LSN as a reader of another process finds it beside the writer (G10).
fn seen(machine: &Machine, oracle: &Oracle) -> Result<u64, String> {
    let view = match LogView::open_unshared(DIR, Arc::new(MemIo::new(machine.clone()))) {
        Ok(view) => view,
        Err(_) if !oracle.created => return Ok(0),
        Err(e) => return Err(format!("G10: reader beside the writer: {}", chain(&e))),
    };
    if view.severity() >= Severity::Unsupported {
        return Err(format!("G10: reader beside the writer: {:?}", view.findings()));
    }
    let proven = view.proven_lsn().map_or(0, Lsn::get);
    if proven > oracle.last() {
        return Err(format!("G10: a reader takes {proven} for durable of {}", oracle.last()));
    }
    Ok(proven)
}
