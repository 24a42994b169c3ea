//! A histogram of fixed size: counting a value is a few shifts and one addition, and allocates
//! nothing.
//!
//! Buckets are a quarter of a power of two wide, so a value is known to a quarter of itself; sum and
//! longest are exact. It knows no unit: whoever counts says what a value is.

use std::fmt;

/// Buckets of each power of two, and the values below that each have one of their own.
const STEPS: u64 = 4;
const STEP_BITS: u32 = 2;
/// Values of more bits are counted in the last bucket: 2^33 microseconds are over two hours.
const BITS_MAX: u32 = 33;
const BUCKETS: usize = 128;
const _: () =
    assert!(BUCKETS == 4 * (1 + BITS_MAX - STEP_BITS) as usize && STEPS == 1 << STEP_BITS);

/// How often each value was seen, to a quarter of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum: u64,
    max: u64,
}

/// Values of one bucket of a [`Histogram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The least value that it counts.
    pub from: u64,
    /// The greatest value that it counts.
    pub to: u64,
    /// How many it counted.
    pub count: u64,
}

impl Histogram {
    /// Nothing was seen.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: [0; BUCKETS], sum: 0, max: 0 }
    }

    pub(crate) fn record(&mut self, value: u64) {
        if let Some(count) = self.counts.get_mut(bucket_of(value)) {
            *count = count.saturating_add(1);
        }
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// Returns how many values were seen.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the sum of all values, exactly.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the greatest value, exactly; 0 where none was seen.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Returns the buckets that counted something, least values first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> {
        let counted = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(at, count)| {
            let (from, to) = bounds_of(at);
            Bucket { from, to: if at + 1 == BUCKETS { u64::MAX } else { to }, count: *count }
        })
    }

    /// Returns a value that so many percent of those seen do not exceed, at most a quarter above the
    /// least one; `None` where none was seen.
    #[must_use]
    pub fn percentile(&self, percent: u8) -> Option<u64> {
        let of = u128::from(self.count()) * u128::from(percent.min(100));
        let mut seen = 0_u128;
        let reached = self.buckets().find(|bucket| {
            seen += u128::from(bucket.count);
            seen * 100 >= of
        });
        reached.map(|bucket| bucket.to.min(self.max))
    }

    /// Takes what another one has seen as seen by this one too.
    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Each bucket's greatest value, and how many it counted since `before`.
    #[cfg(feature = "metrics")]
    pub(crate) fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let grown = self.counts.iter().zip(&before.counts).enumerate();
        let grown = grown.map(|(at, (now, then))| (bounds_of(at).1, now.saturating_sub(*then)));
        grown.filter(|(_, count)| *count > 0)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.buckets().map(|bucket| (bucket.to, bucket.count));
        f.debug_map().entries(shown).finish()
    }
}

fn bucket_of(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    let at = if bits <= STEP_BITS {
        value
    } else if bits > BITS_MAX {
        u64::MAX
    } else {
        let shift = bits - STEP_BITS - 1;
        // The leading bit counts powers, the two behind it their quarters.
        u64::from(shift) * STEPS + (value >> shift)
    };
    usize::try_from(at).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The least and the greatest value of a bucket.
fn bounds_of(at: usize) -> (u64, u64) {
    let at = u64::try_from(at).unwrap_or(u64::MAX);
    if at < STEPS {
        return (at, at);
    }
    let shift = at / STEPS - 1;
    let from = (STEPS + at % STEPS) << shift;
    (from, from + (1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_the_bounds_of_its_bucket_and_buckets_meet() {
        let mut end = 0;
        for at in 0..BUCKETS {
            let (from, to) = bounds_of(at);
            assert_eq!(from, end, "bucket {at}");
            assert!(from <= to && to - from <= from / STEPS, "bucket {at}: {from} to {to}");
            assert_eq!((bucket_of(from), bucket_of(to)), (at, at));
            end = to + 1;
        }
        assert_eq!(end, 1 << BITS_MAX);
        assert_eq!(bucket_of(end), BUCKETS - 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_was_seen_is_counted_exactly_and_placed_to_a_quarter() {
        let mut seen = Histogram::new();
        assert_eq!((seen.percentile(50), seen.count(), seen.buckets().count()), (None, 0, 0));
        (1..=1_000).for_each(|value| seen.record(value));
        assert_eq!((seen.count(), seen.sum(), seen.max()), (1_000, 500_500, 1_000));
        for (percent, exact) in [(1, 10), (50, 500), (99, 990), (100, 1_000)] {
            let said = seen.percentile(percent).unwrap();
            assert!((exact..=exact + exact / 4).contains(&said), "{percent}: {said}");
        }
        seen.record(u64::MAX);
        assert_eq!(seen.buckets().last().unwrap().to, u64::MAX);
        let mut both = seen.clone();
        both.add(&seen);
        assert_eq!((both.count(), both.max()), (2_002, u64::MAX));
    }
}
