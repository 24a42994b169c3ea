//! How many rows a slice may hold.
//!
//! A slice is one batch of a log and a message of it one record, so it is bounded in bytes; the
//! number of rows is fixed for a whole job, so that a resume finds the same slices. The largest
//! power of two is taken for which every aligned window of rows stays below the bound.

use super::stream::ROW_BYTES_MAX;

/// Rows of a slice, where their size does not ask for less.
pub(crate) const SLICE_ROWS: u32 = 8192;

/// Bytes that a slice is kept below, as estimated from its source: a quarter more than the largest
/// row, so that one wide row does not make all slices narrow; half of the largest record, because
/// an estimate may be wrong.
const SLICE_BYTES: u64 = 8 << 20;

/// Windows of 1, 2, 4 .. `SLICE_ROWS` rows.
const LEVELS: usize = SLICE_ROWS.trailing_zeros() as usize + 1;

const _: () = assert!(SLICE_ROWS.is_power_of_two());
const _: () = assert!(SLICE_BYTES > ROW_BYTES_MAX as u64);

/// Sizes of all aligned windows of the rows seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct SliceSizer {
    rows: u64,
    sums: [u64; LEVELS],
    max: [u64; LEVELS],
}

impl SliceSizer {
    /// Counts a row.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.rows += 1;
        for (level, (sum, max)) in self.sums.iter_mut().zip(&mut self.max).enumerate() {
            *sum = sum.saturating_add(bytes as u64);
            *max = (*max).max(*sum);
            if self.rows.trailing_zeros() as usize >= level {
                *sum = 0;
            }
        }
    }

    /// Rows seen.
    pub(crate) const fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows of a slice, when each row costs `overhead` bytes beside what was counted.
    pub(crate) fn slice_rows(&self, overhead: u64) -> u32 {
        let fits = |level: &u32| {
            let bytes = self.max.get(*level as usize).copied().unwrap_or(u64::MAX);
            bytes.saturating_add(overhead.saturating_mul(1 << level)) <= SLICE_BYTES
        };
        (0..=SLICE_ROWS.trailing_zeros()).rev().find(fits).map_or(1, |level| 1 << level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rows: &[usize], overhead: u64, expect: u32) {
        let mut sizer = SliceSizer::default();
        rows.iter().for_each(|bytes| sizer.add(*bytes));
        assert_eq!(sizer.slice_rows(overhead), expect);
        assert_eq!(sizer.rows(), rows.len() as u64);
    }

    #[test]
    fn slices_shrink_with_the_largest_window_of_rows() {
        check(&[], 0, SLICE_ROWS);
        check(&[100; 20_000], 0, SLICE_ROWS);
        check(&[1 << 11; 20_000], 0, 4096);
        check(&[0; 20_000], 1 << 11, 4096);
        check(&[6 << 20; 3], 0, 1);
        check(&[2 << 20; 8], 0, 4);
        // One wide row among narrow ones costs no more than its own window.
        let mut rows = vec![64; 20_000];
        rows[7] = 3 << 20;
        check(&rows, 0, SLICE_ROWS);
        rows[7] = 8 << 20;
        check(&rows, 0, 1);
    }
}
