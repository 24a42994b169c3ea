//! LSNs and segment numbers: newtypes without arithmetic operators.
//!
//! Both begin at 1, so that zeros on a disk are never one of them. A sum that leaves the range is
//! `None` or the last value, never a wrap.

use std::fmt;
use std::num::NonZeroU64;

/// Dense sequence number of a record, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(NonZeroU64);

impl Lsn {
    /// LSN of the first record of a log.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// The LSN of this value; `None` for 0.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// The value, at least 1.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The LSN behind this one; the last one stays.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The LSN before this one; `None` before the first.
    #[must_use]
    pub const fn prev(self) -> Option<Self> {
        Self::new(self.get().saturating_sub(1))
    }

    /// The LSN `n` records behind this one; `None` past the last.
    #[must_use]
    pub const fn checked_add(self, n: u64) -> Option<Self> {
        match self.0.checked_add(n) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// For values that another check has shown not to be 0; 0 reads as the first.
    pub(crate) fn at_least_first(value: u64) -> Self {
        Self(NonZeroU64::new(value).unwrap_or(NonZeroU64::MIN))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The LSNs of one batch, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a range has two ends")]
pub struct LsnRange {
    /// LSN of the first record.
    pub first: Lsn,
    /// LSN of the last record, at least `first`.
    pub last: Lsn,
}

/// Number of a segment, from 1; it orders the segments of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(NonZeroU64);

impl SegmentId {
    /// Number of the first segment of a log.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// The segment of this number; `None` for 0.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number, at least 1.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// For numbers out of a header, whose decoder has refused 0.
    pub(crate) fn at_least_first(number: u64) -> Self {
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_no_lsn_and_no_segment() {
        assert_eq!(Lsn::new(0), None);
        assert_eq!(SegmentId::new(0), None);
        assert_eq!(Lsn::new(1), Some(Lsn::FIRST));
    }

    #[test]
    fn the_ends_of_the_range_do_not_wrap() {
        let last = Lsn::new(u64::MAX).unwrap();
        assert_eq!(last.next(), last);
        assert_eq!(last.checked_add(1), None);
        assert_eq!(Lsn::FIRST.prev(), None);
        assert_eq!(Lsn::FIRST.next().prev(), Some(Lsn::FIRST));
    }
}
