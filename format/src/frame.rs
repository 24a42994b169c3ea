//! SPEC 6 to 8: frames and their checksums.
//!
//! A frame is bound to its [`Place`]: its checksums take the segment's salt and its own offset, so
//! that a copy of it elsewhere is not valid. A header alone can be judged too
//! ([`FrameHeader::decode`]): it bounds the length, and it is a witness although its payload may
//! be damaged.
//!
//! What depends on the neighbours (dense LSNs, times that do not fall) is recovery's to judge.

use crc32fast::Hasher;

use crate::error::{DecodeError, DecodeErrorKind};
use crate::limits::{RECORD_LEN_MAX, TIME_MS_MAX};
#[cfg(planted)]
use crate::planted::without_length;
use crate::segment::check_rules;
use crate::wire::{low32, u64_of, usize_of};

/// Record kind: opaque bytes of the caller.
pub const KIND_RECORD: u8 = 0x01;

/// Record kind: a message of a channel (SPEC 13.1).
pub const KIND_MESSAGE: u8 = 0x02;

/// Record kind: a control record of the broadcaster (SPEC 13.2).
pub const KIND_CONTROL: u8 = 0x03;

/// The first kind that is private to the caller.
pub const KIND_PRIVATE_MIN: u8 = 0x80;

const LAG_NONE: u32 = u32::MAX;
const FLAG_BATCH_END: u8 = 0x01;
const CRC_AT: usize = 0;
const CHECK_AT: usize = 4;
const LENGTH_AT: usize = 16;
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
/// Copying and checksumming go in steps of this many bytes, so that the second finds the first's
/// bytes in the cache.
const STEP_LEN: usize = 16 * 1024;

/// Where a frame or a footer stands: both numbers bind its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The salt of the segment.
    pub salt: u64,
    /// Offset in the segment, a multiple of 8.
    pub offset: u64,
}

/// What a frame says before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// LSN of the record, at least 1.
    pub lsn: u64,
    /// Length of the payload in bytes.
    pub len: u32,
    /// `lsn` minus the durable LSN when the frame was encoded, at most `lsn`; `None` states
    /// nothing.
    pub lag: Option<u32>,
    /// Milliseconds since 1970-01-01 UTC.
    pub time_ms: u64,
    /// Kind of the record (SPEC 7), not 0.
    pub kind: u8,
    /// Whether the frame is the last of its batch.
    pub batch_end: bool,
}

impl FrameHeader {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// Bytes of the whole frame with its padding.
    #[must_use]
    pub const fn frame_len(&self) -> u64 {
        frame_len(self.len)
    }

    /// The durable LSN that the frame states.
    #[must_use]
    pub fn durable_lsn(&self) -> Option<u64> {
        self.lag.and_then(|lag| self.lsn.checked_sub(u64::from(lag)))
    }

    /// The lag of record `lsn` beside the durable LSN `durable`; `None` where it does not fit.
    #[must_use]
    pub fn lag_of(lsn: u64, durable: u64) -> Option<u32> {
        let lag = u32::try_from(lsn.checked_sub(durable)?).ok()?;
        (lag != LAG_NONE).then_some(lag)
    }

    /// A valid frame header (SPEC 6) at the begin of `bytes`, with `room` bytes from the frame's
    /// begin to the physical end of the file.
    ///
    /// # Errors
    ///
    /// `Truncated` when `bytes` are too short or the frame does not fit into `room`; `Checksum`
    /// for the header check; `Limit` for the length; `Field` for any other condition that needs
    /// neither payload nor neighbour.
    #[inline]
    pub fn decode(bytes: &[u8], place: Place, room: u64) -> Result<Self, DecodeError> {
        let Some(bytes) = bytes.first_chunk::<{ Self::LEN }>() else {
            let kind = DecodeErrorKind::Truncated { need: Self::LEN, have: bytes.len() };
            return Err(DecodeError::new(0, kind));
        };
        let [crc_and_check, lsn, length_and_lag, rest] = words_of(bytes);
        let stored = high32(crc_and_check);
        let computed = header_check([lsn, length_and_lag, rest], place);
        if stored != computed {
            let kind = DecodeErrorKind::Checksum { stored, computed };
            return Err(DecodeError::new(CHECK_AT, kind));
        }
        let [.., kind, flags] = rest.to_le_bytes();
        let lag = high32(length_and_lag);
        let header = Self {
            lsn,
            len: low32(length_and_lag),
            lag: (lag != LAG_NONE).then_some(lag),
            time_ms: rest & TIME_MS_MAX,
            kind,
            batch_end: flags & FLAG_BATCH_END != 0,
        };
        let lag_holds = header.lag.is_none_or(|lag| u64::from(lag) <= lsn);
        let flags_hold = flags & !FLAG_BATCH_END == 0;
        // Told apart only where one is broken: this is the way of every frame.
        if lsn == 0 || !lag_holds || kind == 0 || !flags_hold {
            check_rules(&[
                (8, "lsn", lsn, lsn >= 1),
                (20, "lag", u64::from(lag), lag_holds),
                (30, "kind", u64::from(kind), kind != 0),
                (31, "flags", u64::from(flags), flags_hold),
            ])?;
        }
        header.check_len(room)?;
        Ok(header)
    }

    fn check_len(&self, room: u64) -> Result<(), DecodeError> {
        if self.len > RECORD_LEN_MAX {
            let kind =
                DecodeErrorKind::Limit { len: u64::from(self.len), max: u64::from(RECORD_LEN_MAX) };
            return Err(DecodeError::new(LENGTH_AT, kind));
        }
        if self.frame_len() > room {
            let kind = DecodeErrorKind::Truncated {
                need: usize::try_from(self.frame_len()).unwrap_or(usize::MAX),
                have: usize::try_from(room).unwrap_or(usize::MAX),
            };
            return Err(DecodeError::new(LENGTH_AT, kind));
        }
        Ok(())
    }

    /// The header's bytes, with zeros for the CRC, which needs the payload.
    fn encode(&self, place: Place) -> [u8; Self::LEN] {
        assert!(self.lsn >= 1, "LSNs begin at 1");
        assert!(self.len <= RECORD_LEN_MAX, "the log admits no longer record");
        assert!(self.time_ms <= TIME_MS_MAX, "the log clamps times to six bytes");
        assert!(self.kind != 0, "kind 0 is never written");
        let lag = self.lag.unwrap_or(LAG_NONE);
        assert!(lag == LAG_NONE || u64::from(lag) <= self.lsn, "the durable LSN is not negative");
        let length_and_lag = u64::from(self.len) | (u64::from(lag) << 32);
        let flags = if self.batch_end { FLAG_BATCH_END } else { 0 };
        let rest = self.time_ms | (u64::from(self.kind) << 48) | (u64::from(flags) << 56);
        let words = [self.lsn, length_and_lag, rest];
        let check = u64::from(header_check(words, place)) << 32;
        let mut bytes = [0; Self::LEN];
        let fields = bytes.as_chunks_mut::<8>().0.iter_mut();
        for (field, word) in fields.zip([check].into_iter().chain(words)) {
            *field = word.to_le_bytes();
        }
        bytes
    }
}

/// Appends one whole frame (header, payload, padding) to `out`; the payload may come in parts.
///
/// # Panics
///
/// When `header` breaks a rule of SPEC 6, or its length is not that of the payload: a bug of the
/// caller.
pub fn encode_frame(header: &FrameHeader, place: Place, payload: &[&[u8]], out: &mut Vec<u8>) {
    let payload_len =
        payload.iter().fold(0_u64, |len, part| len.saturating_add(u64_of(part.len())));
    assert!(payload_len == u64::from(header.len), "the header states the payload's length");
    let head = header.encode(place);
    let begin = out.len();
    let end = begin.saturating_add(usize::try_from(header.frame_len()).unwrap_or(usize::MAX));
    out.reserve(end.saturating_sub(begin));
    out.extend_from_slice(&head);
    let mut hasher = Hasher::new_with_initial(seed(place));
    hasher.update(head.get(CHECK_AT..).unwrap_or_default());
    for step in payload.iter().flat_map(|part| part.chunks(STEP_LEN)) {
        out.extend_from_slice(step);
        hasher.update(step);
    }
    out.resize(end, 0);
    #[cfg(planted)]
    if let Some(covered) = out.get(begin.saturating_add(CHECK_AT)..end).and_then(without_length) {
        hasher = Hasher::new_with_initial(seed(place));
        hasher.update(&covered);
    }
    let crc = hasher.finalize().to_le_bytes();
    if let Some(field) = out.get_mut(begin..).and_then(|frame| frame.first_chunk_mut()) {
        *field = crc;
    }
}

/// Header and payload of the valid frame (SPEC 6) at the begin of `bytes`; what follows it is
/// ignored.
///
/// # Errors
///
/// Those of [`FrameHeader::decode`], with the length of `bytes` as room; `Checksum` for the CRC;
/// `Field` for padding that is not zero.
pub fn decode_frame(bytes: &[u8], place: Place) -> Result<(FrameHeader, &[u8]), DecodeError> {
    let header = FrameHeader::decode(bytes, place, u64_of(bytes.len()))?;
    Ok((header, decode_payload(&header, bytes, place)?))
}

/// The payload of the valid frame at the begin of `bytes` whose header was decoded from them at
/// this place; what follows the frame is ignored.
///
/// # Errors
///
/// `Truncated` when `bytes` are shorter than the frame; `Checksum` for the CRC; `Field` for padding
/// that is not zero.
#[inline]
pub fn decode_payload<'a>(
    header: &FrameHeader,
    bytes: &'a [u8],
    place: Place,
) -> Result<&'a [u8], DecodeError> {
    let payload_end = FrameHeader::LEN.saturating_add(usize_of(header.len));
    let frame_end = usize::try_from(header.frame_len()).unwrap_or(usize::MAX);
    let (Some(covered), Some(payload), Some(padding)) = (
        bytes.get(CHECK_AT..payload_end),
        bytes.get(FrameHeader::LEN..payload_end),
        bytes.get(payload_end..frame_end),
    ) else {
        let kind = DecodeErrorKind::Truncated { need: frame_end, have: bytes.len() };
        return Err(DecodeError::new(LENGTH_AT, kind));
    };
    let stored = bytes.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc));
    let computed = seeded_crc(place, covered);
    #[cfg(planted)]
    let computed = without_length(covered).map_or(computed, |covered| seeded_crc(place, &covered));
    if stored != computed {
        let kind = DecodeErrorKind::Checksum { stored, computed };
        return Err(DecodeError::new(CRC_AT, kind));
    }
    if let Some(i) = padding.iter().position(|&byte| byte != 0) {
        let found = padding.get(i).copied().map_or(0, u64::from);
        return Err(DecodeError::field(payload_end.saturating_add(i), "padding", found));
    }
    Ok(payload)
}

/// Bytes of a frame with its padding, for a payload of `payload_len` bytes.
#[must_use]
pub const fn frame_len(payload_len: u32) -> u64 {
    // Widening; `u64::from` is not const.
    let [a, b, c, d] = payload_len.to_le_bytes();
    let len = u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0]);
    len.saturating_add(32).next_multiple_of(8)
}

/// The value from which a seeded CRC continues (SPEC 8).
#[must_use]
pub const fn seed(place: Place) -> u32 {
    low32(place.salt) ^ low32(place.offset / 8)
}

/// The seeded CRC of `bytes` (SPEC 8).
#[must_use]
pub fn seeded_crc(place: Place, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed(place));
    hasher.update(bytes);
    hasher.finalize()
}

/// The header check of SPEC 8 over the words at bytes 8, 16 and 24.
fn header_check(words: [u64; 3], place: Place) -> u32 {
    #[cfg(planted)]
    let words = crate::planted::covered(words);
    let [w1, w2, w3] = words;
    let h = mix(mix(mix(place.salt, w1), w2), w3);
    low32(h) ^ low32(place.offset / 8)
}

const fn mix(h: u64, word: u64) -> u64 {
    let h = (h ^ word).wrapping_mul(MULTIPLIER);
    h ^ (h >> 32)
}

const fn high32(word: u64) -> u32 {
    low32(word >> 32)
}

fn words_of(bytes: &[u8; FrameHeader::LEN]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, field) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*field);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place { salt: 0x1122_3344_5566_7788, offset: 12_288 };

    fn header(len: u32) -> FrameHeader {
        FrameHeader {
            lsn: 41,
            len,
            lag: Some(1),
            time_ms: 1_700_000_000_000,
            kind: KIND_RECORD,
            batch_end: true,
        }
    }

    fn encoded(header: &FrameHeader, place: Place, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_frame(header, place, &[payload], &mut out);
        out
    }

    /// A frame with some bytes of its header changed, and every checksum good again.
    fn resealed(at: usize, new: &[u8]) -> Vec<u8> {
        let mut bytes = encoded(&header(3), PLACE, b"abc");
        bytes[at..at + new.len()].copy_from_slice(new);
        let [_, words @ ..] = words_of(bytes.first_chunk().unwrap());
        bytes[4..8].copy_from_slice(&header_check(words, PLACE).to_le_bytes());
        let crc = seeded_crc(PLACE, &bytes[4..35]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn frame_len_counts_header_and_padding() {
        for (payload_len, len) in [(0, 32), (1, 40), (8, 40), (9, 48), (u32::MAX, 0x1_0000_0020)] {
            assert_eq!(frame_len(payload_len), len);
        }
    }

    #[test]
    fn parts_of_a_payload_are_one_payload() {
        let len = if cfg!(miri) { 3_000 } else { 100_000 };
        let payload: Vec<u8> = (0..len).map(|i: u32| i.to_le_bytes()[0]).collect();
        let header = header(len);
        let whole = encoded(&header, PLACE, &payload);
        let mut parts = vec![9; 3];
        let (a, b) = payload.split_at(payload.len() / 3);
        encode_frame(&header, PLACE, &[a, &[], b], &mut parts);
        assert_eq!(parts[3..], whole);
        assert_eq!(decode_frame(&whole, PLACE), Ok((header, &payload[..])));
    }

    #[test]
    fn every_rule_of_the_header_is_checked() {
        for (at, new, name, found) in [
            (8, &[0; 8][..], "lsn", 0),
            (20, &[42, 0, 0, 0], "lag", 42),
            (30, &[0], "kind", 0),
            (31, &[0x03], "flags", 3),
        ] {
            let error = decode_frame(&resealed(at, new), PLACE).unwrap_err();
            assert_eq!(error, DecodeError::field(at, name, found));
        }
    }

    #[test]
    fn length_is_bounded_before_it_is_used() {
        let over = (RECORD_LEN_MAX + 1).to_le_bytes();
        let error = FrameHeader::decode(&resealed(16, &over), PLACE, u64::MAX).unwrap_err();
        let (len, max) = (u64::from(RECORD_LEN_MAX) + 1, u64::from(RECORD_LEN_MAX));
        assert_eq!(error, DecodeError::new(16, DecodeErrorKind::Limit { len, max }));
        let error = FrameHeader::decode(&resealed(16, &[9]), PLACE, 40).unwrap_err();
        let kind = DecodeErrorKind::Truncated { need: 48, have: 40 };
        assert_eq!(error, DecodeError::new(16, kind));
    }

    #[test]
    fn padding_must_be_zero() {
        let mut bytes = encoded(&header(3), PLACE, b"abc");
        bytes[39] = 5;
        assert_eq!(decode_frame(&bytes, PLACE), Err(DecodeError::field(39, "padding", 5)));
    }

    #[test]
    fn zeros_are_never_a_frame() {
        for salt in [0, 1, u64::MAX, PLACE.salt] {
            for offset in (12_288..20_480).step_by(if cfg!(miri) { 512 } else { 8 }) {
                assert!(decode_frame(&[0; 64], Place { salt, offset }).is_err());
            }
        }
    }

    #[test]
    fn a_lag_that_does_not_fit_states_nothing() {
        assert_eq!(FrameHeader::lag_of(41, 40), Some(1));
        assert_eq!(FrameHeader::lag_of(41, 42), None);
        assert_eq!(FrameHeader::lag_of(0xFFFF_FFFF, 0), None);
        let frame = FrameHeader { lag: None, ..header(0) };
        let bytes = encoded(&frame, PLACE, b"");
        assert_eq!(decode_frame(&bytes, PLACE).unwrap().0.durable_lsn(), None);
        assert_eq!(header(0).durable_lsn(), Some(40));
    }

    proptest! {
        #[test]
        fn frames_come_back(
            lsn in 1..=u64::MAX,
            lag in proptest::option::of(0..u32::MAX),
            time_ms in 0..=TIME_MS_MAX,
            kind in 1..=u8::MAX,
            batch_end in any::<bool>(),
            payload in proptest::collection::vec(any::<u8>(), 0..200),
            salt in any::<u64>(),
            block in 1536..u64::MAX / 8,
        ) {
            let lag = lag.filter(|&lag| u64::from(lag) <= lsn);
            let len = u32::try_from(payload.len()).unwrap();
            let header = FrameHeader { lsn, len, lag, time_ms, kind, batch_end };
            let place = Place { salt, offset: block * 8 };
            let bytes = encoded(&header, place, &payload);
            prop_assert_eq!(u64_of(bytes.len()), header.frame_len());
            prop_assert_eq!(decode_frame(&bytes, place), Ok((header, &payload[..])));
        }

        #[test]
        fn a_frame_is_valid_in_one_place_of_its_segment(a in 0..1_u64 << 27, b in 0..1_u64 << 27) {
            let bytes = encoded(&header(3), Place { offset: a * 8, ..PLACE }, b"abc");
            let elsewhere = decode_frame(&bytes, Place { offset: b * 8, ..PLACE });
            prop_assert_eq!(elsewhere.is_ok(), a == b);
        }
    }
}
