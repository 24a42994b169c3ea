//! Which parts of what was not synced survive a power loss: all ways when they are few, else a
//! seeded choice that begins with the telling ones.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::sync::Arc;

use super::machine::{Machine, Node, ROOT};
use super::node::{DirChange, DirNode, Ino};
use crate::io::fault::Dice;

/// Bytes of a file system's block.
const BLOCK: u64 = 4096;
/// Bytes of a reused file that are another's: three blocks, which say what a file of a log is, and
/// the one in which its first frame begins.
const REUSED_LEN: usize = 4 * 4096;

/// One thing that was not synced: a power loss leaves it as it was, or any newer version of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsynced {
    place: Place,
    steps: Vec<u64>,
}

/// What an [`Unsynced`] stands for, in the order that [`Machine::unsynced`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Change(Ino, usize),
    Len(Ino),
    Sector(Ino, u64),
}

impl Unsynced {
    /// Newer versions, each of which a power loss may leave; at least one.
    #[must_use]
    pub const fn version_count(&self) -> usize {
        self.steps.len()
    }

    /// Number of the newest version that was written at or before a step; 0 is the old state.
    #[must_use]
    pub fn version_at(&self, step: u64) -> usize {
        self.steps.iter().take_while(|written| **written <= step).count()
    }

    /// Step of version `number + 1`, or of the newest.
    pub(super) fn step(&self, number: usize) -> u64 {
        self.steps.get(number).or_else(|| self.steps.last()).copied().unwrap_or(0)
    }

    /// True for an entry of a directory.
    #[must_use]
    pub const fn is_entry(&self) -> bool {
        matches!(self.place, Place::Change(..))
    }
}

impl Machine {
    /// What a power loss would decide about: directory entries first, then lengths and sectors.
    /// What no name, old or new, leads to is left out.
    #[must_use]
    pub fn unsynced(&self) -> Vec<Unsynced> {
        let mut found = Vec::new();
        for ino in self.reachable() {
            match self.nodes.get(ino) {
                Some(Node::Dir(dir)) => {
                    found.extend(dir.unsynced.iter().enumerate().map(|(k, (step, _))| Unsynced {
                        place: Place::Change(ino, k),
                        steps: vec![*step],
                    }));
                }
                Some(Node::File(file)) => {
                    if !file.unsynced_lens.is_empty() {
                        let steps = file.unsynced_lens.iter().map(|(step, _)| *step).collect();
                        found.push(Unsynced { place: Place::Len(ino), steps });
                    }
                    found.extend(file.unsynced().map(|(at, versions)| Unsynced {
                        place: Place::Sector(ino, at),
                        steps: versions.iter().map(|version| version.step).collect(),
                    }));
                }
                None => {}
            }
        }
        found.sort_by_key(|u| u.place);
        found
    }

    /// The machine after a power loss that left version `survivors[k]` of `unsynced[k]`, 0 for the
    /// old state; what is missing in `survivors` is old.
    #[must_use]
    pub fn power_loss(&self, unsynced: &[Unsynced], survivors: &[usize]) -> Self {
        // In the order of [`Machine::unsynced`].
        let chosen = |place| {
            let found = unsynced.binary_search_by_key(&place, |u| u.place).ok();
            found.and_then(|k| survivors.get(k)).copied().unwrap_or(0)
        };
        let mut after = self.clone();
        for (ino, node) in after.nodes.iter_mut().enumerate() {
            match node {
                Node::Dir(dir) if dir.unsynced.is_empty() && dir.entries == dir.disk => {}
                Node::Dir(dir) => {
                    let dir = Arc::make_mut(dir);
                    dir.land(|k| chosen(Place::Change(ino, k)) > 0);
                    dir.reload();
                }
                Node::File(file) if file.is_settled() => {}
                Node::File(file) => {
                    let file = Arc::make_mut(file);
                    file.land(|at, _| chosen(Place::Sector(ino, at)), |_| chosen(Place::Len(ino)));
                    file.reload();
                }
            }
        }
        after
    }

    /// Sectors that read as they were written although a failed sync kept them from the disk. The
    /// system may drop each from the cache at any time.
    #[must_use]
    pub fn deceptive_count(&self) -> usize {
        self.files().map(|(_, file)| file.deceptive().len()).sum()
    }

    /// The machine after the system dropped those deceptive sectors that `drops` says true for, by
    /// their number.
    #[must_use]
    pub fn evict(&self, mut drops: impl FnMut(usize) -> bool) -> Self {
        let mut after = self.clone();
        let found = self.files().flat_map(|(ino, file)| {
            file.deceptive().into_iter().map(move |at| (ino, at)).collect::<Vec<_>>()
        });
        for (k, (ino, at)) in found.enumerate() {
            if drops(k)
                && let Ok(file) = after.file_mut(ino)
            {
                file.evict(at);
            }
        }
        after
    }

    /// `left`, which a power loss made of this machine, as a file system leaves it that hands out the
    /// blocks of a file before it is on disk that this one has lost them: a file whose name was
    /// removed and came back holds bytes of another one, or noise, and so does one that was cut and
    /// has its length again, where it was cut. `None` when there is no such file.
    #[must_use]
    pub fn reuse_blocks(&self, left: &Self, dice: &mut Dice) -> Option<Self> {
        let (now, then) = (self.homes(|dir| &dir.entries), left.homes(|dir| &dir.entries));
        let durable = self.homes(|dir| &dir.disk);
        // Files, and the first of the bytes that are another's.
        let whole = then.keys().filter(|ino| !now.contains_key(*ino)).map(|ino| (*ino, 0));
        let cut = then.keys().filter(|ino| now.contains_key(*ino)).filter_map(|ino| {
            let (now, left) = (self.file(*ino).ok()?.len, left.file(*ino).ok()?.len);
            Some((*ino, now.next_multiple_of(BLOCK))).filter(|(_, from)| *from < left)
        });
        let given: Vec<(Ino, u64)> = whole.chain(cut).collect();
        let kept = |ino: &Ino| given.iter().all(|(given, _)| given != ino);
        let mut after = left.clone();
        for (ino, from) in &given {
            // One of the same directory, or one that no sync of another directory has given a name
            // yet: such a sync made durable what was lost before (SPEC 14.12). The begin of a file
            // says the most, wherever it comes to lie.
            let is_near = |other: &Ino| now.get(other) == then.get(ino);
            let may_have = |other: &Ino| !durable.contains_key(other) || is_near(other);
            let others = now.keys().filter(|other| kept(other) && may_have(other));
            let others: Vec<Ino> = others.copied().collect();
            let mut bytes = [0; REUSED_LEN];
            match others.get(dice.index(others.len() + 1)).map(|other| self.file(*other)) {
                Some(Ok(other)) => drop(other.read(&mut bytes, 0)),
                _ => bytes.fill_with(|| dice.roll().to_le_bytes()[0]),
            }
            if let Ok(file) = after.file_mut(*ino) {
                let blocks = file.len.saturating_sub(*from) / BLOCK;
                // Most often all from there on, else blocks in the midst of it.
                let later = if dice.below(4) == 0 { dice.below(blocks) * BLOCK } else { 0 };
                let from = from.saturating_add(later);
                let left = usize::try_from(file.len.saturating_sub(from)).unwrap_or(usize::MAX);
                file.write(bytes.get(..left).unwrap_or(&bytes), from, 0);
                file.sync();
            }
        }
        (!given.is_empty()).then_some(after)
    }

    /// The directory that each file has a name in, of those names of it.
    fn homes(&self, names: impl Fn(&DirNode) -> &BTreeMap<OsString, Ino>) -> BTreeMap<Ino, Ino> {
        let dirs = self.nodes.iter().enumerate().filter_map(|(home, node)| match node {
            Node::Dir(dir) => Some(names(dir).values().map(move |ino| (*ino, home))),
            Node::File(_) => None,
        });
        dirs.flatten().collect()
    }

    /// Numbers that some name, old or new, leads to.
    fn reachable(&self) -> BTreeSet<Ino> {
        let mut found = BTreeSet::new();
        let mut todo = vec![ROOT];
        while let Some(ino) = todo.pop() {
            if !found.insert(ino) {
                continue;
            }
            if let Some(Node::Dir(dir)) = self.nodes.get(ino) {
                todo.extend(dir.entries.values().chain(dir.disk.values()));
                todo.extend(dir.unsynced.iter().filter_map(|(_, change)| match change {
                    DirChange::Link(_, ino) => Some(*ino),
                    DirChange::Unlink(_) => None,
                }));
            }
        }
        found
    }
}

/// Up to `limit` different ways to survive, each with one version for every element of `unsynced`:
/// every way there is, when there are no more than that. Else nothing, everything, what was written
/// up to each step, everything up to each place, each thing alone and everything but it come first,
/// as far as half of them goes, and seeded mixtures then.
#[must_use]
pub fn survivors(unsynced: &[Unsynced], limit: usize, dice: &mut Dice) -> Vec<Vec<usize>> {
    let ways = unsynced
        .iter()
        .try_fold(1_usize, |ways, u| ways.checked_mul(u.version_count() + 1))
        .filter(|ways| *ways <= limit);
    if ways.is_some() { every(unsynced) } else { chosen(unsynced, limit, dice) }
}

fn every(unsynced: &[Unsynced]) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new()];
    for u in unsynced {
        found = found
            .into_iter()
            .flat_map(|left: Vec<usize>| {
                (0..=u.version_count()).map(move |version| {
                    let mut left = left.clone();
                    left.push(version);
                    left
                })
            })
            .collect();
    }
    found
}

/// Ways that tell more than others.
#[derive(Clone, Copy, Debug)]
enum Telling {
    /// The order of writing is kept up to this step.
    UpTo(u64),
    /// The order of places is kept up to this one.
    Before(usize),
    Without(usize),
    Alone(usize),
}

impl Telling {
    fn way(self, unsynced: &[Unsynced]) -> Vec<usize> {
        let newest = |keeps: &dyn Fn(usize) -> bool| {
            let all = unsynced.iter().enumerate();
            all.map(|(k, u)| if keeps(k) { u.version_count() } else { 0 }).collect()
        };
        match self {
            Self::UpTo(step) => unsynced.iter().map(|u| u.version_at(step)).collect(),
            Self::Before(end) => newest(&|k| k < end),
            Self::Without(one) => newest(&|k| k != one),
            Self::Alone(one) => newest(&|k| k == one),
        }
    }
}

fn chosen(unsynced: &[Unsynced], limit: usize, dice: &mut Dice) -> Vec<Vec<usize>> {
    let each =
        |f: &mut dyn FnMut(&Unsynced) -> usize| -> Vec<usize> { unsynced.iter().map(f).collect() };
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    let mut add = |way: Vec<usize>| {
        if found.len() < limit && known.insert(way.clone()) {
            found.push(way);
        }
    };
    add(each(&mut |_| 0));
    add(each(&mut Unsynced::version_count));
    add(each(&mut |u| if u.is_entry() { u.version_count() } else { 0 }));
    add(each(&mut |u| if u.is_entry() { 0 } else { u.version_count() }));
    let steps: BTreeSet<u64> = unsynced.iter().flat_map(|u| u.steps.iter().copied()).collect();
    let mut telling: Vec<Telling> = steps.into_iter().map(Telling::UpTo).collect();
    for k in 0..unsynced.len() {
        telling.extend([Telling::Before(k), Telling::Without(k), Telling::Alone(k)]);
    }
    for taken in 0..telling.len().min(limit / 2) {
        let drawn = taken + dice.index(telling.len() - taken);
        telling.swap(taken, drawn);
        if let Some(one) = telling.get(taken) {
            add(one.way(unsynced));
        }
    }
    // Repeats cost a round and add nothing; there are more ways than `limit`.
    for round in 0..limit {
        let odds = [2, 8].get(round % 3);
        let one = dice.index(unsynced.len());
        add(match odds {
            // Half, and most.
            Some(odds) => each(&mut |u| match dice.below(*odds) {
                0 => dice.index(u.version_count() + 1),
                _ => u.version_count(),
            }),
            // One thing in any version, with all that was written before it.
            None => {
                let step = unsynced.get(one).map_or(0, |u| u.step(dice.index(u.version_count())));
                let mut way = each(&mut |u| u.version_at(step));
                if let (Some(version), Some(u)) = (way.get_mut(one), unsynced.get(one)) {
                    *version = dice.index(u.version_count() + 1);
                }
                way
            }
        });
    }
    found
}
