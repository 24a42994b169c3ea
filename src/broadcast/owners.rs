//! Which broadcast owns a scope, by the scope's hash alone: the scope itself stands with the task.
//!
//! 1,024 sorted lists by the first bits of the hash. A list of a window of a million keys has a
//! thousand entries, so that one more or less moves a few kilobytes, and no growth ever moves all
//! of them at once.

use std::hash::{BuildHasher as _, RandomState};

use oncelog_format::message::{BroadcastId, Scope};

const LIST_BITS: u32 = 10;

/// How far from the place that is expected a hash of a list of a thousand mostly stands.
const REACH: usize = 16;

/// Owners of scopes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    hasher: RandomState,
    /// None before the first owner.
    lists: Vec<List>,
}

/// Two lists in one order, because pairs of them would be padded.
#[derive(Clone, Debug, Default)]
struct List {
    hashes: Vec<u32>,
    owners: Vec<BroadcastId>,
}

impl List {
    /// The first place of a hash that is not less. Hashes are spread evenly: it is near to where as
    /// large a part of them stands before it as of all hashes, and what is far away is not looked
    /// at.
    fn begin(&self, hash: u32) -> usize {
        let len = self.hashes.len();
        let expected = u64::try_from(len).unwrap_or(u64::MAX).saturating_mul(hash.into()) >> 32;
        let expected = usize::try_from(expected).unwrap_or(len);
        let is_less = |at: usize| self.hashes.get(at).is_some_and(|other| *other < hash);
        let mut reach = REACH;
        loop {
            let from = expected.saturating_sub(reach);
            let to = expected.saturating_add(reach).min(len);
            let begins = from.checked_sub(1).is_none_or(is_less);
            if begins && (to == len || !is_less(to)) {
                let near = self.hashes.get(from..to).unwrap_or_default();
                return from + near.partition_point(|other| *other < hash);
            }
            reach = reach.saturating_mul(4);
        }
    }

    /// The owners whose scope has the hash.
    fn range(&self, hash: u32) -> std::ops::Range<usize> {
        let begin = self.begin(hash);
        let rest = self.hashes.get(begin..).unwrap_or_default();
        begin..begin + rest.iter().take_while(|other| **other == hash).count()
    }
}

impl Owners {
    /// What the owner of a scope says; `of` of a broadcast of another scope says nothing.
    pub(crate) fn find<T>(
        &self,
        scope: &Scope,
        of: impl FnMut(BroadcastId) -> Option<T>,
    ) -> Option<T> {
        let (list, hash) = self.place(scope);
        let list = self.lists.get(list)?;
        list.owners.get(list.range(hash))?.iter().copied().find_map(of)
    }

    /// Makes a broadcast an owner of its scope; others of the same scope are removed before.
    pub(crate) fn insert(&mut self, scope: &Scope, id: BroadcastId) {
        let (list, hash) = self.place(scope);
        if self.lists.is_empty() {
            self.lists.resize_with(1 << LIST_BITS, List::default);
        }
        let Some(list) = self.lists.get_mut(list) else { return };
        let at = list.range(hash).end;
        if list.hashes.len() == list.hashes.capacity() {
            // A sixteenth more: a doubled list would stand half empty.
            let more = (list.hashes.len() / 16).max(4);
            list.hashes.reserve_exact(more);
            list.owners.reserve_exact(more);
        }
        list.hashes.insert(at, hash);
        list.owners.insert(at, id);
    }

    /// Takes a broadcast out of the owners of its scope.
    pub(crate) fn remove(&mut self, scope: &Scope, id: BroadcastId) {
        let (list, hash) = self.place(scope);
        let Some(list) = self.lists.get_mut(list) else { return };
        let range = list.range(hash);
        let owners = list.owners.get(range.clone()).unwrap_or_default();
        if let Some(at) = owners.iter().position(|owner| *owner == id) {
            let at = range.start + at;
            list.hashes.remove(at);
            list.owners.remove(at);
            if list.hashes.len() < list.hashes.capacity() / 2 {
                list.hashes.shrink_to_fit();
                list.owners.shrink_to_fit();
            }
        }
    }

    /// All owners, by identity.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> std::collections::BTreeSet<BroadcastId> {
        self.lists.iter().flat_map(|list| list.owners.iter().copied()).collect()
    }

    fn place(&self, scope: &Scope) -> (usize, u32) {
        let hash = self.hasher.hash_one(scope);
        let list = usize::try_from(hash >> (u64::BITS - LIST_BITS)).unwrap_or(0);
        (list, u32::try_from(hash & u64::from(u32::MAX)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fault::Dice;

    #[test]
    fn a_hash_is_found_where_it_stands_however_they_are_spread() {
        let mut dice = Dice::new(3);
        for (count, spread) in [(0, 1), (1, 1 << 32), (40, 3), (1_000, 1 << 32), (3_000, 1 << 20)] {
            let hash = |dice: &mut Dice| u32::try_from(dice.below(spread)).unwrap();
            let mut hashes: Vec<u32> = (0..count).map(|_| hash(&mut dice)).collect();
            hashes.sort_unstable();
            let list = List { hashes, owners: Vec::new() };
            let edges = [0, u32::MAX];
            for asked in (0..2_000).map(|_| hash(&mut dice)).chain(edges) {
                let expected = list.hashes.partition_point(|other| *other < asked);
                assert_eq!(list.begin(asked), expected, "{asked} among {count} below {spread}");
            }
        }
    }
}
