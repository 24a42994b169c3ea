//! A memory of dropped keys, so that a key that was once accepted is told from one that never was.
//!
//! Bloom filters (SPEC 13.3): they never deny a key that is in them, and sometimes know one that is
//! not, about one in a thousand for each filter that is full. They are a function of the records,
//! and bounded: the oldest keys are forgotten, and counted.
//!
//! The bits stand in blocks that a copy shares until they change: a checkpoint takes a copy of
//! mebibytes while everybody waits.

use std::sync::Arc;

use oncelog_format::control::FilterEntry;
use oncelog_format::limits::FILTER_KEY_COUNT_MAX;
use oncelog_format::message::Scope;
use sha2::{Digest as _, Sha256};

/// Keys of the first filter.
const CAPACITY_FIRST: u32 = 1_024;
/// Bits of a scope.
const PROBE_COUNT: u64 = 6;
/// Bytes of a block: what a key that is dropped behind a copy has copied for each of its bits.
const BLOCK_LEN: usize = 4_096;

/// One filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    capacity: u32,
    count: u32,
    blocks: Vec<Arc<Vec<u8>>>,
}

impl Filter {
    fn new(capacity: u32) -> Self {
        let mut left = usize::try_from(capacity).unwrap_or(0).saturating_mul(4);
        let zeros = Arc::new(vec![0; left.min(BLOCK_LEN)]);
        let mut blocks = Vec::with_capacity(left.div_ceil(BLOCK_LEN));
        while left > 0 {
            // A capacity is a power of two: blocks are of one size. One block of zeros is enough.
            blocks.push(Arc::clone(&zeros));
            left = left.saturating_sub(BLOCK_LEN);
        }
        Self { capacity, count: 0, blocks }
    }

    fn of(entry: &FilterEntry) -> Self {
        let blocks = entry.bits.chunks(BLOCK_LEN).map(|block| Arc::new(block.to_vec())).collect();
        Self { capacity: entry.capacity, count: entry.count, blocks }
    }

    /// Bytes of its bits.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.capacity).saturating_mul(4)
    }

    /// The filter as a checkpoint has it.
    pub(super) fn entry(&self) -> FilterEntry {
        let bits = self.blocks.iter().flat_map(|block| block.iter().copied()).collect();
        FilterEntry { capacity: self.capacity, count: self.count, bits }
    }

    fn holds(&self, probe: u64) -> bool {
        let (byte, bit) = place(self.capacity, probe);
        let block = self.blocks.get(byte / BLOCK_LEN);
        let bits = block.and_then(|block| block.get(byte % BLOCK_LEN));
        bits.is_some_and(|bits| bits & bit != 0)
    }

    fn set(&mut self, probe: u64) {
        let (byte, bit) = place(self.capacity, probe);
        let block = self.blocks.get_mut(byte / BLOCK_LEN).map(Arc::make_mut);
        if let Some(bits) = block.and_then(|block| block.get_mut(byte % BLOCK_LEN)) {
            *bits |= bit;
        }
    }
}

/// Keys that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Oldest first; only the last one takes keys.
    filters: Vec<Filter>,
    forgotten: u64,
}

impl Seen {
    /// Begins without a filter, and with so many keys that are in none any more.
    pub(super) fn forgetting(forgotten: u64) -> Self {
        Self { filters: Vec::new(), forgotten }
    }

    pub(super) fn filters(&self) -> &[Filter] {
        &self.filters
    }

    /// Takes the next filter of a checkpoint.
    pub(super) fn take_filter(&mut self, entry: &FilterEntry) {
        self.filters.push(Filter::of(entry));
    }

    /// Returns how many dropped keys are in no filter any more.
    #[must_use]
    pub fn forgotten_count(&self) -> u64 {
        self.forgotten
    }

    /// Says whether a key was probably dropped before, in one scope or, without that, in any scope
    /// of a principal. A `false` is certain, unless some keys were forgotten.
    #[must_use]
    pub fn holds(&self, principal: &str, key: &[u8], scope: Option<&Scope>) -> bool {
        let any = any_scope(principal, key);
        let Some(probes) = probes(scope.unwrap_or(&any)) else { return false };
        self.filters.iter().any(|filter| probes.iter().all(|probe| filter.holds(*probe)))
    }

    pub(super) fn insert(&mut self, scope: &Scope) {
        let any = any_scope(&scope.principal, &scope.client_key);
        let (Some(own), Some(any)) = (probes(scope), probes(&any)) else { return };
        if self.filters.last().is_none_or(|filter| filter.count >= filter.capacity) {
            self.begin_filter();
        }
        let Some(filter) = self.filters.last_mut() else { return };
        own.into_iter().chain(any).for_each(|probe| filter.set(probe));
        filter.count = filter.count.saturating_add(1);
    }

    /// Bytes of the filter that begins when so many more keys are dropped; 0 where the last one
    /// takes them. A filter that begins behind that one is smaller than what the keys between took.
    pub(super) fn bytes_ahead(&self, key_count: usize) -> u64 {
        let room = self.filters.last().map_or(0, |last| last.capacity.saturating_sub(last.count));
        let takes_all = usize::try_from(room).is_ok_and(|room| key_count <= room);
        if takes_all { 0 } else { u64::from(self.next_capacity()).saturating_mul(4) }
    }

    fn next_capacity(&self) -> u32 {
        self.filters.last().map_or(CAPACITY_FIRST, |filter| {
            filter.capacity.saturating_mul(4).min(FILTER_KEY_COUNT_MAX)
        })
    }

    fn begin_filter(&mut self) {
        let capacity = self.next_capacity();
        let held: u64 = self.filters.iter().map(|filter| u64::from(filter.count)).sum();
        let mut spare = held.saturating_sub(FILTER_KEY_COUNT_MAX.into());
        let over = self.filters.iter().take_while(|filter| {
            let goes = u64::from(filter.count) <= spare;
            spare = spare.saturating_sub(filter.count.into());
            goes
        });
        let over = over.count();
        let gone = self.filters.drain(..over).map(|filter| u64::from(filter.count));
        self.forgotten = self.forgotten.saturating_add(gone.sum());
        self.filters.push(Filter::new(capacity));
    }
}

/// Stands for a key in every scope of a principal.
fn any_scope(principal: &str, key: &[u8]) -> Scope {
    Scope {
        principal: principal.to_owned(),
        message_type: String::new(),
        domain: String::new(),
        identity: String::new(),
        generation: 0,
        client_key: key.to_vec(),
    }
}

/// A scope that does not encode was never accepted.
fn probes(scope: &Scope) -> Option<[u64; 6]> {
    let mut bytes = Vec::new();
    scope.encode(&mut bytes).ok()?;
    let digest = Sha256::digest(&bytes);
    let word = |at: usize| {
        let word = digest.get(at..).and_then(|rest| rest.first_chunk::<8>());
        word.map_or(0, |word| u64::from_le_bytes(*word))
    };
    let (first, step) = (word(0), word(8) | 1);
    let mut probes = [0; 6];
    for (probe, i) in probes.iter_mut().zip(0..PROBE_COUNT) {
        *probe = first.wrapping_add(step.wrapping_mul(i));
    }
    Some(probes)
}

fn place(capacity: u32, probe: u64) -> (usize, u8) {
    let bits = u64::from(capacity).saturating_mul(32).max(1);
    let bit = probe % bits;
    (usize::try_from(bit / 8).unwrap_or(usize::MAX), 1 << (bit % 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(n: u32) -> Scope {
        Scope {
            principal: "p".into(),
            message_type: "t".into(),
            domain: "d".into(),
            identity: "i".into(),
            generation: 1,
            client_key: n.to_string().into_bytes(),
        }
    }

    #[test]
    fn no_key_that_is_in_a_filter_is_denied_and_few_others_are_known() {
        let mut seen = Seen::default();
        let known = |seen: &Seen, n: u32| {
            let scope = scope(n);
            let any = seen.holds("p", &scope.client_key, None);
            assert!(any || !seen.holds("p", &scope.client_key, Some(&scope)) || n >= 30_000);
            seen.holds("p", &scope.client_key, Some(&scope))
        };
        assert!(!known(&seen, 0));
        (0..30_000).for_each(|n| seen.insert(&scope(n)));
        assert!((0..30_000).all(|n| known(&seen, n)));
        let wrong = (30_000..60_000).filter(|n| known(&seen, *n)).count();
        // Three full filters and one that is not: one in a thousand each.
        assert!(wrong < 30_000 / 200, "{wrong}");
        let capacities: Vec<u32> = seen.filters().iter().map(|filter| filter.capacity).collect();
        assert_eq!(capacities, [1_024, 4_096, 16_384, 65_536]);
        assert_eq!(seen.forgotten_count(), 0);
    }

    /// Room for a checkpoint is kept for keys before they are dropped.
    #[test]
    fn the_filter_that_begins_was_counted_ahead() {
        let mut seen = Seen::default();
        let held = |seen: &Seen| -> u64 { seen.filters().iter().map(Filter::bytes).sum() };
        assert_eq!(seen.bytes_ahead(0), 0);
        for n in 0..6_000 {
            let (before, ahead) = (held(&seen), seen.bytes_ahead(1));
            seen.insert(&scope(n));
            assert_eq!(held(&seen), before + ahead, "{n} keys");
        }
        assert_eq!(seen.bytes_ahead(10_000), 0);
        assert_eq!(seen.bytes_ahead(20_000), 65_536 * 4);
    }

    #[test]
    fn a_copy_does_not_change_with_what_it_was_copied_from() {
        let mut seen = Seen::default();
        (0..3_000).for_each(|n| seen.insert(&scope(n)));
        let (copy, entries) = (seen.clone(), |seen: &Seen| {
            seen.filters.iter().map(Filter::entry).collect::<Vec<_>>()
        });
        let before = entries(&seen);
        (3_000..6_000).for_each(|n| seen.insert(&scope(n)));
        assert_eq!(entries(&copy), before);
        let mut again = Seen::forgetting(copy.forgotten);
        before.iter().for_each(|entry| again.take_filter(entry));
        assert_eq!(again, copy);
        // What a copy shares is one piece of memory.
        let shared =
            |a: &Filter, b: &Filter| a.blocks.iter().zip(&b.blocks).all(|(a, b)| Arc::ptr_eq(a, b));
        assert!(shared(&copy.filters[0], &seen.filters[0]) && copy.filters[0] == seen.filters[0]);
    }

    #[test]
    fn what_is_forgotten_is_counted_and_memory_has_a_bound() {
        let mut seen = Seen::default();
        let full = |capacity: u32| Filter { count: capacity, ..Filter::new(capacity) };
        seen.filters = vec![full(1_024), full(FILTER_KEY_COUNT_MAX), full(FILTER_KEY_COUNT_MAX)];
        seen.insert(&scope(0));
        assert_eq!(seen.forgotten_count(), u64::from(FILTER_KEY_COUNT_MAX) + 1_024);
        assert_eq!(seen.filters().len(), 2, "the keys behind reach back far enough");
        seen.insert(&scope(1));
        assert_eq!(seen.filters().len(), 2);
    }
}
