//! Levels and lengths in pages, counted without being decoded: a few bytes may stand for billions.

use super::thrift::varint;

/// Counts the levels that each row has.
#[derive(Debug, Default)]
pub(super) struct RowLevels {
    /// Rows that began.
    pub(super) rows: u64,
    /// Levels of the row that is open.
    open: u64,
    /// Most levels of a row, and which row, from 1.
    pub(super) most: (u64, u64),
}

impl RowLevels {
    /// Counts `levels` repetition levels: runs of one value and packed groups (RLE, as Parquet has
    /// it). Level 0 begins a row. `None` where the bytes do not hold as many.
    pub(super) fn add(&mut self, mut bytes: &[u8], width: u32, levels: u64) -> Option<()> {
        let mut left = levels;
        while left > 0 {
            let head = varint(&mut bytes)?;
            if head & 1 == 0 {
                let count = (head >> 1).min(left);
                let (value, rest) = bytes.split_at_checked(width.div_ceil(8) as usize)?;
                bytes = rest;
                let begins = value.iter().all(|byte| *byte == 0);
                self.run(begins, count);
                // A run of nothing takes bytes all the same, so that this ends.
                left -= count;
                continue;
            }
            let count = (head >> 1).checked_mul(8)?;
            let size = (head >> 1).checked_mul(u64::from(width))?;
            let size = usize::try_from(size).ok()?.min(bytes.len());
            let (packed, rest) = bytes.split_at_checked(size)?;
            bytes = rest;
            let count = count.min(left);
            for at in 0..count {
                self.run(bits_are_zero(packed, at.checked_mul(u64::from(width))?, width)?, 1);
            }
            left -= count;
        }
        Some(())
    }

    /// Counts levels whose rows are not known: they may all be of one.
    pub(super) const fn add_unknown(&mut self, levels: u64) {
        self.run(false, levels);
    }

    const fn run(&mut self, begins: bool, count: u64) {
        if count == 0 {
            return;
        }
        if begins {
            self.rows = self.rows.saturating_add(count);
            self.open = 1;
        } else {
            self.open = self.open.saturating_add(count);
        }
        if self.open > self.most.0 {
            self.most = (self.open, self.rows);
        }
    }
}

/// Whether `width` bits behind the first `from` are zero; the lowest bit of a byte is its first.
fn bits_are_zero(bytes: &[u8], from: u64, width: u32) -> Option<bool> {
    for bit in from..from + u64::from(width) {
        let byte = bytes.get(usize::try_from(bit / 8).ok()?)?;
        if byte >> (bit % 8) & 1 == 1 {
            return Some(false);
        }
    }
    Some(true)
}

/// Count of the numbers that a `DELTA_BINARY_PACKED` block holds, and the bytes behind them.
pub(super) fn delta_count(mut bytes: &[u8]) -> Option<(u64, &[u8])> {
    let block = varint(&mut bytes)?;
    let minis = varint(&mut bytes)?;
    let count = varint(&mut bytes)?;
    varint(&mut bytes)?;
    let per_mini = block.checked_div(minis).filter(|per_mini| *per_mini > 0)?;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        varint(&mut bytes)?;
        let (widths, mut rest) = bytes.split_at_checked(usize::try_from(minis).ok()?)?;
        for width in widths {
            if left == 0 {
                break;
            }
            let size = u64::from(*width).checked_mul(per_mini)?.div_ceil(8);
            rest = rest.get(usize::try_from(size).ok()?.min(rest.len())..)?;
            left = left.saturating_sub(per_mini);
        }
        bytes = rest;
    }
    Some((count, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], levels: u64, expect: Option<(u64, (u64, u64))>) {
        let mut found = RowLevels::default();
        let counted = found.add(bytes, 1, levels);
        assert_eq!(counted.map(|()| (found.rows, found.most)), expect);
    }

    #[test]
    fn levels_are_counted_by_rows_in_runs_and_groups() {
        // One 0, then 20 times 1: one row of 21.
        check(&[2, 0, 40, 1], 21, Some((1, (21, 1))));
        // A group of eight: 0 1 1 0 0 1 0 1.
        check(&[3, 0b1010_0110], 8, Some((4, (3, 1))));
        check(&[2, 0], 2, None);
        // A billion levels take six bytes.
        check(&[2, 0, 0xFE, 0xFF, 0xFF, 0xFF, 7, 1], 1 << 29, Some((1, (1 << 29, 1))));
    }

    #[test]
    fn numbers_of_a_delta_block_are_counted_to_their_end() {
        // 128 a block, 4 parts of 32, 3 numbers, the first 0; a least delta and four widths.
        let mut bytes = vec![0x80, 1, 4, 3, 0, 2, 1, 0, 0, 0];
        bytes.extend([0; 4]);
        bytes.extend(b"rest");
        assert_eq!(delta_count(&bytes), Some((3, &b"rest"[..])));
        assert_eq!(delta_count(&[0x80, 1, 0, 3, 0]), None);
        assert_eq!(delta_count(&bytes[..8]), None);
    }
}
