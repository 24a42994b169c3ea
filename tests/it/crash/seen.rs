//! What was seen of the disk images, for all threads, and how much of what was done.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Mutex;

/// A digest is spread already.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only digests are put in");
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }
}

/// A set of digests, in parts so that threads seldom wait for each other.
#[derive(Debug, Default)]
struct Digests([Mutex<HashSet<u64, BuildHasherDefault<AsIs>>>; 32]);

impl Digests {
    /// False when it was there.
    fn insert(&self, digest: u64) -> bool {
        let part = usize::try_from(digest >> 20).unwrap() % self.0.len();
        self.0[part].lock().unwrap().insert(digest)
    }

    fn len(&self) -> usize {
        self.0.iter().map(|part| part.lock().unwrap().len()).sum()
    }
}

/// What all threads have seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    states: Digests,
    judged: Digests,
}

impl Seen {
    /// Counts what a crash left: all names, kinds, lengths and bytes, as the next process reads
    /// them. What else could still be lost makes no other state.
    pub(crate) fn state(&self, digest: u64) {
        self.states.insert(digest);
    }

    /// False when a state was judged before by an oracle that said the same.
    pub(crate) fn is_first(&self, digest: u64, oracle: u64) -> bool {
        self.judged.insert(digest ^ oracle.rotate_left(32))
    }

    /// Different states.
    pub(crate) fn distinct(&self) -> usize {
        self.states.len()
    }
}

/// How a process ended, again, and in what.
pub(crate) type Crash = (&'static str, &'static str, &'static str);

/// How much was done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) workloads: u64,
    pub(crate) points: u64,
    pub(crate) openings: u64,
    pub(crate) damages: u64,
    /// Crashes that were judged: the first, what was crashed again behind it, and how.
    crashes: BTreeMap<Crash, u64>,
}

impl Counts {
    pub(crate) fn crash(&mut self, crash: Crash) {
        *self.crashes.entry(crash).or_default() += 1;
    }

    /// Crashes for which `is_meant` holds.
    pub(crate) fn crashes(&self, is_meant: impl Fn(Crash) -> bool) -> u64 {
        self.crashes.iter().filter(|(crash, _)| is_meant(**crash)).map(|(_, count)| count).sum()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.workloads += other.workloads;
        self.points += other.points;
        self.openings += other.openings;
        self.damages += other.damages;
        for (crash, count) in &other.crashes {
            *self.crashes.entry(*crash).or_default() += count;
        }
    }
}
