//! A bug to order, for tests of the tests: compiled only with `--cfg planted`.
//!
//! It belongs to the thread that asks for it.

use std::cell::Cell;

use crate::frame::FrameHeader;

thread_local! {
    static IGNORES_LENGTH: Cell<bool> = const { Cell::new(false) };
}

/// From here on the checksums of frames do, or do not, cover the length.
pub fn ignore_length(ignores: bool) {
    IGNORES_LENGTH.set(ignores);
}

/// The words that the header check covers.
pub(crate) fn covered([lsn, length_and_lag, rest]: [u64; 3]) -> [u64; 3] {
    let length_and_lag =
        if IGNORES_LENGTH.get() { length_and_lag >> 32 << 32 } else { length_and_lag };
    [lsn, length_and_lag, rest]
}

/// What the CRC covers of a frame from its header check on, with padding where there is any.
pub(crate) fn without_length(frame: &[u8]) -> Option<Vec<u8>> {
    if !IGNORES_LENGTH.get() || frame.len() < FrameHeader::LEN.saturating_sub(4) {
        return None;
    }
    let mut covered = frame.to_vec();
    covered.get_mut(12..16)?.fill(0);
    covered.resize(covered.len().saturating_add(4).next_multiple_of(8).saturating_sub(4), 0);
    Some(covered)
}
