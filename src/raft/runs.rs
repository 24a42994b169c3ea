//! Where raft's entries lie: from index to LSN, in memory.
//!
//! Entries whose records follow one another share one run of 16 bytes. A record of another kind
//! between two of them begins a run: so 16 bytes an entry is the most, and entries that were
//! appended together cost no more than the first.

use std::collections::VecDeque;
use std::ops::Range;

/// Entries one behind the other, in raft's log and in this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    index: u64,
    lsn: u64,
}

/// A part of a run: how many entries from an index on, and the LSN of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) index: u64,
    pub(super) lsn: u64,
    pub(super) count: u64,
}

/// The entries of raft's log, without a hole.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Ascending; each ends where the next one begins, the last at `end`.
    runs: VecDeque<Run>,
    end: u64,
}

impl Runs {
    /// Indices of the entries; empty when there is none.
    pub(super) fn indices(&self) -> Range<u64> {
        self.runs.front().map_or(0..0, |first| first.index..self.end)
    }

    /// LSN of the first entry.
    pub(super) fn first_lsn(&self) -> Option<u64> {
        self.runs.front().map(|first| first.lsn)
    }

    /// Adds the entry behind the last one, or the first one; `index` is below the greatest `u64`.
    pub(super) fn push(&mut self, index: u64, lsn: u64) {
        let follows = |run: &Run| lsn.checked_sub(run.lsn) == index.checked_sub(run.index);
        assert!(self.runs.is_empty() || index == self.end, "raft's log has no hole");
        if !self.runs.back().is_some_and(follows) {
            self.runs.push_back(Run { index, lsn });
        }
        self.end = index.saturating_add(1);
    }

    /// Forgets the entries from `from` on.
    pub(super) fn rewind(&mut self, from: u64) {
        while self.runs.back().is_some_and(|run| run.index >= from) {
            self.runs.pop_back();
        }
        self.end = self.end.min(from);
    }

    /// Forgets the entries up to and including `upto`.
    pub(super) fn purge(&mut self, upto: u64) {
        let Some(first) = upto.checked_add(1).filter(|first| *first < self.end) else {
            self.runs.clear();
            return;
        };
        // The run that holds the first entry left: the last one that begins at or below it.
        let behind = self.runs.partition_point(|run| run.index <= first);
        let Some(at) = behind.checked_sub(1) else { return };
        self.runs.drain(..at);
        if let Some(run) = self.runs.front_mut() {
            run.lsn = run.lsn.saturating_add(first.saturating_sub(run.index));
            run.index = first;
        }
    }

    /// Where the entries of a range lie, those that are there.
    pub(super) fn stretches(&self, range: Range<u64>) -> Vec<Stretch> {
        let mut found = Vec::new();
        let begin = self.runs.partition_point(|run| run.index <= range.start).saturating_sub(1);
        for (i, run) in self.runs.iter().enumerate().skip(begin) {
            let end = self.runs.get(i.saturating_add(1)).map_or(self.end, |next| next.index);
            let (first, end) = (run.index.max(range.start), end.min(range.end));
            if run.index >= range.end {
                break;
            }
            let count = end.saturating_sub(first);
            if count > 0 {
                let lsn = run.lsn.saturating_add(first.saturating_sub(run.index));
                found.push(Stretch { index: first, lsn, count });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push { count: u64, gap: u64 },
        Rewind(u64),
        Purge(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1..6_u64, 0..3_u64).prop_map(|(count, gap)| Step::Push { count, gap }),
            1 => (0..40_u64).prop_map(Step::Rewind),
            1 => (0..40_u64).prop_map(Step::Purge),
        ]
    }

    fn check(runs: &Runs, model: &BTreeMap<u64, u64>) {
        let first = model.keys().next().copied();
        let end = model.keys().next_back().map(|last| last + 1);
        let indices = runs.indices();
        assert_eq!(first, (!indices.is_empty()).then_some(indices.start));
        assert_eq!(end, (!indices.is_empty()).then_some(indices.end));
        assert_eq!(runs.first_lsn(), model.values().next().copied());
        for index in 0..80 {
            let found = runs.stretches(index..index + 1);
            let lsn = found.first().map(|stretch| stretch.lsn);
            assert_eq!(lsn, model.get(&index).copied(), "index {index}");
        }
        for (begin, end) in [(0, 80), (3, 9), (7, 7), (20, 21)] {
            let mut found = Vec::new();
            for stretch in runs.stretches(begin..end) {
                found.extend((0..stretch.count).map(|k| (stretch.index + k, stretch.lsn + k)));
            }
            let expected: Vec<_> = model.range(begin..end).map(|(i, lsn)| (*i, *lsn)).collect();
            assert_eq!(found, expected);
        }
    }

    proptest! {
        #[test]
        fn runs_are_a_map_from_index_to_lsn(steps in prop::collection::vec(step(), 1..40)) {
            let (mut runs, mut model) = (Runs::default(), BTreeMap::new());
            let (mut lsn, mut next) = (1, 0);
            for step in steps {
                match step {
                    Step::Push { count, gap } => {
                        lsn += gap;
                        for _ in 0..count {
                            runs.push(next, lsn);
                            model.insert(next, lsn);
                            (next, lsn) = (next + 1, lsn + 1);
                        }
                    }
                    Step::Rewind(from) => {
                        runs.rewind(from);
                        model.split_off(&from);
                        next = next.min(from);
                    }
                    Step::Purge(upto) => {
                        runs.purge(upto);
                        model = model.split_off(&(upto + 1));
                        next = next.max(upto + 1);
                    }
                }
                check(&runs, &model);
            }
        }

        #[test]
        fn entries_appended_together_share_a_run(count in 1..100_u64) {
            let mut runs = Runs::default();
            for k in 0..count {
                runs.push(5 + k, 17 + k);
            }
            prop_assert_eq!(runs.runs.len(), 1);
        }
    }
}
