//! Identities in the order of an instant: a sorted list in pieces, two words for each.
//!
//! Keys mostly come at one end and go at the other. A tree of the standard library is filled by
//! half then, and half as large again as what it holds.

use std::collections::BTreeMap;
use std::ops::Bound;

use oncelog_format::message::BroadcastId;

/// Entries of a piece at most.
const PIECE_COUNT_MAX: usize = 128;

/// An instant, in milliseconds, and whose it is.
pub(crate) type At = (u64, BroadcastId);

#[cfg(test)]
thread_local! {
    /// Entries that this thread has looked at one by one.
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Identities in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// Pieces that are not empty, by an entry that none of theirs is below.
    pieces: BTreeMap<At, Vec<At>>,
    count: usize,
}

impl Order {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes an entry in; one that is there stays.
    pub(crate) fn insert(&mut self, at: At) {
        let piece = self.pieces.range_mut(..=at).next_back();
        let Some((_, piece)) = piece else {
            // Below all others.
            self.pieces.insert(at, vec![at]);
            self.count += 1;
            return;
        };
        let Err(place) = piece.binary_search(&at) else { return };
        self.count += 1;
        if piece.len() < PIECE_COUNT_MAX {
            piece.insert(place, at);
            return;
        }
        // At the end a piece begins; in between one is cut in half.
        let mut behind = piece.split_off(place.max(PIECE_COUNT_MAX / 2));
        if behind.is_empty() {
            behind.push(at);
        } else {
            piece.insert(place, at);
        }
        if let Some(first) = behind.first() {
            self.pieces.insert(*first, behind);
        }
    }

    pub(crate) fn remove(&mut self, at: At) {
        let Some((begin, piece)) = self.pieces.range_mut(..=at).next_back() else { return };
        let Ok(place) = piece.binary_search(&at) else { return };
        let begin = *begin;
        piece.remove(place);
        self.count -= 1;
        if piece.is_empty() {
            self.pieces.remove(&begin);
        }
    }

    /// Entries up to an instant, it included, in order.
    pub(crate) fn until(&self, ms: u64) -> impl Iterator<Item = At> {
        let last = (ms, BroadcastId(u64::MAX));
        let pieces = self.pieces.range(..=last).flat_map(|(_, piece)| piece);
        pieces.copied().take_while(move |at| {
            #[cfg(test)]
            LOOKS.set(LOOKS.get() + 1);
            *at <= last
        })
    }

    /// How many entries there are up to an instant, it included, counted up to `enough`.
    pub(crate) fn count_until(&self, ms: u64, enough: usize) -> usize {
        let last = (ms, BroadcastId(u64::MAX));
        let mut count = 0;
        for (_, piece) in self.pieces.range(..=last) {
            count += piece.partition_point(|at| *at <= last);
            if count >= enough {
                return enough;
            }
        }
        count
    }

    /// Entries behind an instant, in order.
    pub(crate) fn behind(&self, ms: u64) -> impl Iterator<Item = At> {
        let last = (ms, BroadcastId(u64::MAX));
        let before = self.pieces.range(..=last).next_back().into_iter();
        let behind = self.pieces.range((Bound::Excluded(last), Bound::Unbounded));
        let entries = before.chain(behind).flat_map(move |(_, piece)| {
            let place = piece.partition_point(|at| *at <= last);
            piece.get(place..).unwrap_or_default()
        });
        entries.copied()
    }
}

impl PartialEq for Order {
    /// The same entries, however they came.
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.until(u64::MAX).eq(other.until(u64::MAX))
    }
}

impl Eq for Order {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::io::fault::Dice;

    #[test]
    fn an_order_says_what_a_set_says() {
        let (mut dice, mut order, mut set) = (Dice::new(9), Order::default(), BTreeSet::new());
        for n in 0..30_000_u64 {
            // It grows at its end, goes at its begin, and is hit in between.
            let near = n.saturating_sub(dice.below(3_000));
            let at = (near / 4, BroadcastId(dice.below(4)));
            if dice.below(3) > 0 {
                order.insert(at);
                set.insert(at);
            } else {
                order.remove(at);
                set.remove(&at);
            }
            let ms = near / 4 + 10;
            let last = (ms, BroadcastId(u64::MAX));
            assert_eq!(order.behind(ms).next(), set.range(last..).next().copied());
            if n % 100 == 0 {
                assert!(order.until(ms).eq(set.range(..=last).copied()));
                assert!(order.behind(ms).eq(set.range(last..).copied()));
                let count = set.range(..=last).count();
                assert_eq!(order.count_until(ms, usize::MAX), count);
                assert_eq!(order.count_until(ms, 5), count.min(5));
                assert!(order.pieces.values().all(|piece| !piece.is_empty()));
            }
        }
        assert_eq!(order.count, set.len());
        set.into_iter().for_each(|at| order.remove(at));
        assert!(order.is_empty() && order.pieces.is_empty());
    }
}
