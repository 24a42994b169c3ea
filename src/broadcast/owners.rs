//! Which broadcast owns a scope, by the scope's hash alone: the scope itself stands with the task.
//!
//! 1,024 sorted lists by the first bits of the hash. A list of a window of a million keys has a
//! thousand entries, so that one more or less moves a few kilobytes, and no growth ever moves all
//! of them at once.

use std::hash::{BuildHasher as _, RandomState};

use oncelog_format::message::{BroadcastId, Scope};

const LIST_BITS: u32 = 10;

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
    /// The owners whose scope has the hash.
    fn range(&self, hash: u32) -> std::ops::Range<usize> {
        let begin = self.hashes.partition_point(|other| *other < hash);
        let rest = self.hashes.get(begin..).unwrap_or_default();
        begin..begin + rest.iter().take_while(|other| **other == hash).count()
    }
}

impl Owners {
    /// The owner of a scope; `is_of` says whether a broadcast is of that scope.
    pub(crate) fn find(
        &self,
        scope: &Scope,
        is_of: impl Fn(BroadcastId) -> bool,
    ) -> Option<BroadcastId> {
        let (list, hash) = self.place(scope);
        let list = self.lists.get(list)?;
        list.owners.get(list.range(hash))?.iter().copied().find(|id| is_of(*id))
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
