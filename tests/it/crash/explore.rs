//! Crashes a workload at every persistence point, in every way or in a seeded choice of ways, opens
//! what is left, and crashes that, too.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use oncelog::testing::{Dice, Machine, MemIo, survivors};
use oncelog::{ErrorKind, LogView, Lsn, Severity};

use super::drive::{DIR, Driver, Op, Point, chain, open_full, segments};
use super::oracle::{End, Oracle, count_of};
use super::workload::Workload;

/// Ways in which a power loss is played at a point of the workload, and at one of a recovery.
pub(crate) const WAYS: [usize; 2] = [80, 4];

/// Everything that was seen, and how much of it.
#[derive(Debug)]
pub(crate) struct Explorer {
    /// Ways in which a power loss is played, by the crashes before it.
    ways: [usize; 2],
    /// Digests of what the crashes left.
    states: HashSet<u64>,
    /// Digests of power losses with the oracle that they were judged by.
    judged: HashSet<(u64, u64)>,
    pub(crate) points: u64,
    pub(crate) openings: u64,
    pub(crate) damages: u64,
}

impl Explorer {
    pub(crate) fn new(ways: [usize; 2]) -> Self {
        let (states, judged) = (HashSet::new(), HashSet::new());
        Self { ways, states, judged, points: 0, openings: 0, damages: 0 }
    }

    pub(crate) fn distinct(&self) -> usize {
        self.states.len()
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
        for (k, point) in points.iter().enumerate() {
            self.points += 1;
            let mut dice = Dice::new(workload.seed ^ k as u64);
            self.point(point, 0, &mut dice)
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
            self.points += 1;
            let mut dice = Dice::new(k as u64);
            self.point(point, 1, &mut dice)
                .map_err(|e| at(format!("crash before {:?}, point {k}: {e}", point.kind)))?;
        }
        Ok(())
    }

    /// Every end of the process at one point. `depth` counts the crashes before it.
    fn point(&mut self, point: &Point, depth: usize, dice: &mut Dice) -> Result<(), String> {
        let machine = &point.machine;
        let mut oracle = point.oracle.clone();
        // What another process took for durable at this moment is promised to it.
        oracle.promised = oracle.promised.max(seen(machine, &oracle)?);
        let oracle = &oracle;
        let seed = dice.roll();
        self.visit(machine, oracle, End::Kill, depth, seed).map_err(|e| format!("kill: {e}"))?;
        if machine.deceptive_count() > 0 {
            let all = machine.evict(|_| true);
            let some = machine.evict(|_| dice.below(2) == 1);
            for machine in [all, some] {
                self.visit(&machine, oracle, End::Evict, depth, seed)
                    .map_err(|e| format!("eviction: {e}"))?;
            }
        }
        let unsynced = machine.unsynced();
        for way in survivors(&unsynced, self.ways[depth], dice) {
            let left = machine.power_loss(&unsynced, &way);
            self.visit(&left, oracle, End::Power, depth, seed)
                .map_err(|e| format!("power loss that left {way:?}: {e}"))?;
        }
        Ok(())
    }

    /// Opens what a crash left, compares, and appends; on the first level each persistence point of
    /// that is crashed again.
    fn visit(
        &mut self,
        machine: &Machine,
        oracle: &Oracle,
        end: End,
        depth: usize,
        seed: u64,
    ) -> Result<(), String> {
        let digest = machine.digest();
        self.states.insert(digest);
        let facts = oracle.promised << 40 | oracle.oldest.0 << 20 | oracle.last();
        if end == End::Power && !self.judged.insert((digest, facts)) {
            return Ok(());
        }
        self.openings += 1;
        // Recovery is crashed again behind one kill of three and one power loss of twenty-four, by
        // the digest, so that every run plays the same.
        let one_of = if end == End::Power { 24 } else { 3 };
        let again = depth + 1 < self.ways.len() && digest.is_multiple_of(one_of);
        let mut driver = Driver::new(machine.clone(), oracle.clone(), seed, again);
        driver.open(end)?;
        // As long as the record that was lost, so that stale frames behind it would fit.
        let lost = count_of(driver.last_lsn());
        let len = oracle.history.get(lost).map_or(20, |rec| rec.payload.len());
        driver.step(&Op::Space(None))?;
        driver.step(&Op::Synced(vec![len])).map_err(|e| format!("append after it: {e}"))?;
        let points = driver.into_points();
        let (last, before) = points.split_last().ok_or("no point")?;
        let mut dice = Dice::new(seed);
        for (k, point) in before.iter().enumerate() {
            self.point(point, depth + 1, &mut dice)
                .map_err(|e| format!("crash again before {:?}, point {k}: {e}", point.kind))?;
        }
        if again || digest.is_multiple_of(8) {
            let lost = last.machine.power_loss(&last.machine.unsynced(), &[]);
            self.openings += 1;
            Driver::new(lost, last.oracle.clone(), seed, false)
                .open(End::Power)
                .map_err(|e| format!("power loss after the append: {e}"))?;
        }
        Ok(())
    }

    /// After a clean close every sector of every record is vouched for: without it the log is
    /// corrupt (G4).
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
            let at = (offset + dice.below(len)) / 512 * 512;
            self.zero(&closed, Path::new(DIR).join(name).as_path(), at, lsn)?;
        }
        Ok(())
    }

    fn zero(&mut self, machine: &Machine, path: &Path, at: u64, lsn: Lsn) -> Result<(), String> {
        let mut bytes = machine.bytes(path).map_err(|e| e.to_string())?;
        let from = usize::try_from(at).map_err(|e| e.to_string())?;
        let to = bytes.len().min(from + 512);
        if bytes[from..to].iter().all(|b| *b == 0) {
            return Ok(());
        }
        bytes[from..to].fill(0);
        let mut damaged = machine.clone();
        damaged.put(path, &bytes).map_err(|e| e.to_string())?;
        self.damages += 1;
        match open_full(&damaged) {
            Err(e) if e.kind() == ErrorKind::Corrupt => Ok(()),
            Err(e) => Err(format!("G4: LSN {lsn} without a sector: {e} ({})", e.kind())),
            Ok(_) => Err(format!("G4: LSN {lsn} lost the sector at {at} of {path:?}, unnoticed")),
        }
    }
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
