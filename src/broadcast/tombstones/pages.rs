//! Records of a few bytes by number, 64 numbers to a page: one block of memory for all of them.

use std::collections::VecDeque;

/// Numbers of a page, one bit each.
const PAGE_COUNT: u64 = 64;
/// By how much a page grows, in bytes: pages fill from one end to the other, and a doubled one
/// would stand half empty.
const GROW_LEN: usize = 512;

/// Records by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    /// In their order. Those of identities that follow each other stand where counting from the
    /// first one leads.
    pages: VecDeque<(u64, Page)>,
    count: usize,
}

/// The records of 64 numbers, in their order.
#[derive(Clone, Debug, Default)]
struct Page {
    /// Which of its numbers have one.
    present: u64,
    /// Where each one that is there begins.
    begins: Vec<u32>,
    bytes: Vec<u8>,
}

impl Page {
    /// How many stand before a number, and whether it has one itself.
    fn rank(&self, bit: u64) -> (usize, bool) {
        let before = (self.present & bit.wrapping_sub(1)).count_ones();
        (usize::try_from(before).unwrap_or(0), self.present & bit != 0)
    }

    fn begin(&self, rank: usize) -> usize {
        let begin = self.begins.get(rank).and_then(|begin| usize::try_from(*begin).ok());
        begin.unwrap_or(self.bytes.len())
    }

    fn record(&self, bit: u64) -> Option<&[u8]> {
        let (rank, is_there) = self.rank(bit);
        if !is_there {
            return None;
        }
        self.bytes.get(self.begin(rank)..self.begin(rank + 1))
    }

    fn insert(&mut self, bit: u64, record: &[u8]) {
        self.remove(bit);
        let (rank, _) = self.rank(bit);
        let (at, len) = (self.begin(rank), u32::try_from(record.len()).unwrap_or(u32::MAX));
        if self.bytes.capacity() - self.bytes.len() < record.len() {
            self.bytes.reserve_exact(record.len().max(GROW_LEN));
        }
        self.bytes.splice(at..at, record.iter().copied());
        if self.begins.len() == self.begins.capacity() {
            self.begins.reserve_exact(16);
        }
        self.begins.insert(rank, u32::try_from(at).unwrap_or(u32::MAX));
        for begin in self.begins.iter_mut().skip(rank + 1) {
            *begin = begin.saturating_add(len);
        }
        self.present |= bit;
        if self.present == u64::MAX {
            self.bytes.shrink_to_fit();
        }
    }

    fn remove(&mut self, bit: u64) {
        let (rank, is_there) = self.rank(bit);
        if !is_there {
            return;
        }
        let (from, to) = (self.begin(rank), self.begin(rank + 1));
        let len = u32::try_from(to.saturating_sub(from)).unwrap_or(u32::MAX);
        self.bytes.drain(from..to);
        self.begins.remove(rank);
        for begin in self.begins.iter_mut().skip(rank) {
            *begin = begin.saturating_sub(len);
        }
        self.present &= !bit;
        if self.bytes.len() < self.bytes.capacity() / 2 {
            self.bytes.shrink_to_fit();
        }
    }
}

impl Pages {
    /// Where a page stands, or would.
    fn place(&self, page: u64) -> Result<usize, usize> {
        let Some((first, _)) = self.pages.front() else { return Err(0) };
        let Some(offset) = page.checked_sub(*first) else { return Err(0) };
        // No page is missing, or some are before it.
        let most = self.pages.len().saturating_sub(1);
        let at = usize::try_from(offset).map_or(most, |offset| offset.min(most));
        match self.pages.get(at) {
            Some((number, _)) if *number == page => Ok(at),
            Some((number, _)) if *number < page => Err(at + 1),
            _ => self.pages.binary_search_by_key(&page, |(number, _)| *number),
        }
    }

    pub(crate) fn record(&self, number: u64) -> Option<&[u8]> {
        let (_, page) = self.pages.get(self.place(number / PAGE_COUNT).ok()?)?;
        page.record(bit(number))
    }

    /// Puts a record in place of the one that is there.
    pub(crate) fn insert(&mut self, number: u64, record: &[u8]) {
        let at = self.place(number / PAGE_COUNT).unwrap_or_else(|at| {
            self.pages.insert(at, (number / PAGE_COUNT, Page::default()));
            at
        });
        let Some((_, page)) = self.pages.get_mut(at) else { return };
        self.count += usize::from(page.present & bit(number) == 0);
        page.insert(bit(number), record);
    }

    pub(crate) fn remove(&mut self, number: u64) {
        let Ok(at) = self.place(number / PAGE_COUNT) else { return };
        let Some((_, page)) = self.pages.get_mut(at) else { return };
        self.count -= usize::from(page.present & bit(number) != 0);
        page.remove(bit(number));
        if page.present == 0 {
            self.pages.remove(at);
        }
    }

    /// How many records there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The first number from `number` on that has a record.
    pub(crate) fn first_from(&self, number: u64) -> Option<u64> {
        let (first, from) = (number / PAGE_COUNT, bit(number));
        let of =
            |(page, present): (u64, u64)| page * PAGE_COUNT + u64::from(present.trailing_zeros());
        let begin = self.place(first).unwrap_or_else(|at| at);
        let mut pages = self.pages.range(begin..).map(|(at, page)| {
            let behind = if *at == first { !from.wrapping_sub(1) } else { u64::MAX };
            (*at, page.present & behind)
        });
        pages.find(|(_, present)| *present != 0).map(of)
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().flat_map(|(at, page)| {
            let bits = (0..PAGE_COUNT).filter(|n| page.present & (1 << n) != 0);
            bits.map(move |n| at * PAGE_COUNT + n)
        })
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % PAGE_COUNT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::io::fault::Dice;

    #[test]
    fn pages_hold_what_a_map_holds() {
        let (mut dice, mut pages, mut map) = (Dice::new(5), Pages::default(), BTreeMap::new());
        for n in 0..20_000_u32 {
            let number =
                if dice.below(50) == 0 { u64::MAX - dice.below(70) } else { dice.below(20_000) };
            if dice.below(2) == 0 {
                let record = vec![n.to_le_bytes()[0]; dice.index(40)];
                pages.insert(number, &record);
                map.insert(number, record);
            } else {
                pages.remove(number);
                map.remove(&number);
            }
            assert_eq!(pages.count(), map.len());
            let asked = dice.below(20_000);
            assert_eq!(pages.record(asked), map.get(&asked).map(Vec::as_slice));
            assert_eq!(pages.first_from(asked), map.range(asked..).next().map(|(n, _)| *n));
            if n % 100 == 0 {
                assert!(pages.numbers().eq(map.keys().copied()));
                let bytes: usize = map.values().map(Vec::len).sum();
                let held: usize = pages.pages.iter().map(|(_, page)| page.bytes.len()).sum();
                assert_eq!(held, bytes);
            }
        }
    }
}
