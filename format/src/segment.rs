//! SPEC 4 and 5: names of segments, their header and their slots.
//!
//! A decoded header or slot holds only values that SPEC.md allows. Whether it fits its name, its
//! neighbours and its place is recovery's to judge.

use std::fmt;

use crate::error::{DecodeError, DecodeErrorKind};
use crate::limits::{ALIGNMENT, FRAMES_OFFSET, TIME_MS_MAX};
use crate::wire::{self, Reader};

/// The format version that this crate writes; it reads every minor of this major.
pub const MAJOR: u16 = 1;

/// The minor version that this crate writes.
pub const MINOR: u16 = 0;

const HEADER_MAGIC: [u8; 8] = *b"oncelog\n";
const HEADER_CRC_AT: usize = 76;
const SLOT_MAGIC: [u8; 8] = *b"onceslot";
const SLOT_HEADER_AT: usize = 40;
const SLOT_CRC_AT: usize = 124;

/// Identity of a log, or of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Whether all bytes are zero, which is no identity.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// SPEC 5.1: what a segment says of itself, written once, before its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Minor format version: what may be ignored.
    pub minor: u16,
    /// Features that a reader may ignore.
    pub compat: u32,
    /// Identity of the log.
    pub uuid: Uuid,
    /// Number of the segment, at least 1.
    pub number: u64,
    /// LSN of its first record, at least 1.
    pub first_lsn: u64,
    /// Random, of this segment alone.
    pub salt: u64,
    /// Time in milliseconds of the record before `first_lsn`, 0 when there is none.
    pub base_time_ms: u64,
}

impl SegmentHeader {
    /// Length in bytes.
    pub const LEN: usize = 80;

    /// The bytes at the begin of the segment.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend_from_slice(&HEADER_MAGIC);
        wire::put_u16(&mut out, MAJOR);
        wire::put_u16(&mut out, self.minor);
        wire::put_u32(&mut out, 0);
        wire::put_u32(&mut out, self.compat);
        wire::put_u32(&mut out, 0);
        out.extend_from_slice(&self.uuid.0);
        wire::put_u64(&mut out, self.number);
        wire::put_u64(&mut out, self.first_lsn);
        wire::put_u64(&mut out, self.salt);
        wire::put_u64(&mut out, self.base_time_ms);
        wire::put_u32(&mut out, 0);
        let crc = wire::crc(&out);
        wire::put_u32(&mut out, crc);
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// The header at the begin of `bytes`; what follows it is ignored.
    ///
    /// # Errors
    ///
    /// `Truncated`, `Magic`, `Checksum`, then `Unsupported`, then `Field`: a damaged header is
    /// never called unsupported.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some(bytes) = bytes.first_chunk::<{ Self::LEN }>() else {
            let kind = DecodeErrorKind::Truncated { need: Self::LEN, have: bytes.len() };
            return Err(DecodeError::new(0, kind));
        };
        let (covered, crc) = bytes.split_at(HEADER_CRC_AT);
        let mut reader = Reader::new(bytes);
        wire::check_magic(&mut reader, HEADER_MAGIC)?;
        wire::check_crc(&mut Reader::new(crc), covered).map_err(|e| e.shifted(HEADER_CRC_AT))?;
        let major = reader.u16()?;
        if major != MAJOR {
            return Err(unsupported(8, u32::from(major), u32::from(MAJOR)));
        }
        let minor = reader.u16()?;
        let incompat = reader.u32()?;
        if incompat != 0 {
            return Err(unsupported(12, incompat, 0));
        }
        let compat = reader.u32()?;
        let reserved = reader.u32()?;
        let header = Self {
            minor,
            compat,
            uuid: Uuid(reader.array()?),
            number: reader.u64()?,
            first_lsn: reader.u64()?,
            salt: reader.u64()?,
            base_time_ms: reader.u64()?,
        };
        let reserved_behind = reader.u32()?;
        let rules = [
            (20, "reserved", u64::from(reserved), reserved == 0),
            (24, "uuid", 0, !header.uuid.is_zero()),
            (40, "number", header.number, header.number >= 1),
            (48, "first_lsn", header.first_lsn, header.first_lsn >= 1),
            (64, "base_time", header.base_time_ms, header.base_time_ms <= TIME_MS_MAX),
            (72, "reserved", u64::from(reserved_behind), reserved_behind == 0),
        ];
        check_rules(&rules)?;
        Ok(header)
    }
}

/// SPEC 5.2: the durable LSN and the oldest LSN, as one of a segment's two slots states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The greater of two valid slots is the newer; at least 1.
    pub counter: u64,
    /// Every record up to it is durable.
    pub durable_lsn: u64,
    /// The offset after the frame of `durable_lsn`.
    pub durable_offset: u64,
    /// Records below it were trimmed.
    pub oldest_lsn: u64,
    /// A copy of the segment's header.
    pub header: SegmentHeader,
}

impl Slot {
    /// Length in bytes.
    pub const LEN: usize = 128;

    /// Which of the two slots it is: `counter` mod 2, so that they take turns.
    #[must_use]
    pub const fn index(&self) -> u32 {
        if self.counter.is_multiple_of(2) { 0 } else { 1 }
    }

    /// Where the slot stands: 4096 for index 0, 8192 for any other.
    #[must_use]
    pub const fn offset_of(index: u32) -> u64 {
        if index == 0 { 4096 } else { 8192 }
    }

    /// The bytes at [`Slot::offset_of`] its index.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend_from_slice(&SLOT_MAGIC);
        wire::put_u64(&mut out, self.counter);
        wire::put_u64(&mut out, self.durable_lsn);
        wire::put_u64(&mut out, self.durable_offset);
        wire::put_u64(&mut out, self.oldest_lsn);
        out.extend_from_slice(&self.header.encode());
        wire::put_u32(&mut out, self.index());
        let crc = wire::crc(&out);
        wire::put_u32(&mut out, crc);
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// The slot at the begin of `bytes`, which were read at [`Slot::offset_of`] `index`.
    ///
    /// # Errors
    ///
    /// `Truncated`, `Magic`, `Checksum`, then `Field`; those of [`SegmentHeader::decode`] for the
    /// copy of the header.
    pub fn decode(bytes: &[u8], index: u32) -> Result<Self, DecodeError> {
        let Some(bytes) = bytes.first_chunk::<{ Self::LEN }>() else {
            let kind = DecodeErrorKind::Truncated { need: Self::LEN, have: bytes.len() };
            return Err(DecodeError::new(0, kind));
        };
        let (covered, crc) = bytes.split_at(SLOT_CRC_AT);
        let mut reader = Reader::new(bytes);
        wire::check_magic(&mut reader, SLOT_MAGIC)?;
        wire::check_crc(&mut Reader::new(crc), covered).map_err(|e| e.shifted(SLOT_CRC_AT))?;
        let counter = reader.u64()?;
        let durable_lsn = reader.u64()?;
        let durable_offset = reader.u64()?;
        let oldest_lsn = reader.u64()?;
        let header = SegmentHeader::decode(reader.take(SegmentHeader::LEN)?)
            .map_err(|e| e.shifted(SLOT_HEADER_AT))?;
        let stored_index = reader.u32()?;
        let slot = Self { counter, durable_lsn, durable_offset, oldest_lsn, header };
        let behind_frame =
            durable_offset >= FRAMES_OFFSET && durable_offset.is_multiple_of(ALIGNMENT);
        let before_first = header.first_lsn.saturating_sub(1);
        let rules = [
            (8, "counter", counter, counter >= 1 && slot.index() == stored_index),
            (16, "durable_lsn", durable_lsn, durable_lsn >= before_first),
            (24, "durable_offset", durable_offset, behind_frame),
            (32, "oldest_lsn", oldest_lsn, oldest_lsn >= 1),
            (120, "index", u64::from(stored_index), stored_index == index),
        ];
        check_rules(&rules)?;
        Ok(slot)
    }
}

/// The file name of a segment.
#[must_use]
pub fn segment_name(number: u64, first_lsn: u64) -> String {
    format!("{number:010}-{first_lsn:020}.seg")
}

/// Number and first LSN that a file name states, when it is spelt as [`segment_name`] spells it.
#[must_use]
pub fn parse_segment_name(name: &str) -> Option<(u64, u64)> {
    let (number, first_lsn) = name.strip_suffix(".seg")?.split_once('-')?;
    let is_spelt = is_padded(number, 10) && is_padded(first_lsn, 20);
    Some((number.parse().ok()?, first_lsn.parse().ok()?)).filter(|_| is_spelt)
}

/// Whether a number is digits alone, with zeros before them up to this width and no further: one
/// segment, one name.
fn is_padded(number: &str, width: usize) -> bool {
    let is_short = number.len() == width || (number.len() > width && !number.starts_with('0'));
    is_short && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Offset, name and value of a field, and whether it is as SPEC.md wants it.
pub(crate) type Rule = (usize, &'static str, u64, bool);

pub(crate) fn check_rules(rules: &[Rule]) -> Result<(), DecodeError> {
    match rules.iter().find(|(.., holds)| !holds) {
        Some(&(at, name, found, _)) => Err(DecodeError::field(at, name, found)),
        None => Ok(()),
    }
}

const fn unsupported(at: usize, found: u32, supported: u32) -> DecodeError {
    DecodeError::new(at, DecodeErrorKind::Unsupported { found, supported })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            minor: MINOR,
            compat: 0,
            uuid: Uuid(*b"0123456789abcdef"),
            number: 3,
            first_lsn: 41,
            salt: 0x1122_3344_5566_7788,
            base_time_ms: 1_700_000_000_000,
        }
    }

    fn slot(counter: u64) -> Slot {
        Slot {
            counter,
            durable_lsn: 40,
            durable_offset: FRAMES_OFFSET,
            oldest_lsn: 2,
            header: header(),
        }
    }

    /// Changes bytes and makes the checksum good again.
    fn resealed(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[at..at + new.len()].copy_from_slice(new);
        let end = bytes.len() - 4;
        let crc = wire::crc(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn header_comes_back() {
        let bytes = header().encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header()));
        assert_eq!(SegmentHeader::decode(&[&bytes[..], &[1]].concat()), Ok(header()));
    }

    #[test]
    fn every_rule_of_the_header_is_checked() {
        let bytes = header().encode();
        for (at, new, name) in [
            (20, &[1][..], "reserved"),
            (24, &[0; 16], "uuid"),
            (40, &[0; 8], "number"),
            (48, &[0; 8], "first_lsn"),
            (64, &[0xFF; 8], "base_time"),
            (72, &[1], "reserved"),
        ] {
            let error = SegmentHeader::decode(&resealed(&bytes, at, new)).unwrap_err();
            assert_eq!(error.at, at, "{name}");
            assert!(matches!(error.kind, DecodeErrorKind::Field { name: n, .. } if n == name));
        }
    }

    #[test]
    fn a_damaged_header_is_never_called_unsupported() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        let error = SegmentHeader::decode(&bytes).unwrap_err();
        assert!(matches!(error.kind, DecodeErrorKind::Checksum { .. }));
        let error = SegmentHeader::decode(&resealed(&bytes, 8, &[2])).unwrap_err();
        assert_eq!(error, unsupported(8, 2, 1));
        let error = SegmentHeader::decode(&resealed(&header().encode(), 12, &[1])).unwrap_err();
        assert_eq!(error, unsupported(12, 1, 0));
    }

    #[test]
    fn minor_and_compat_may_be_any() {
        let known = SegmentHeader { minor: 9, compat: 0xFFFF_FFFF, ..header() };
        assert_eq!(SegmentHeader::decode(&known.encode()), Ok(known));
    }

    #[test]
    fn slot_comes_back_in_its_own_place_only() {
        for counter in [1, 2] {
            let slot = slot(counter);
            assert_eq!(Slot::decode(&slot.encode(), slot.index()), Ok(slot));
            let error = Slot::decode(&slot.encode(), 1 - slot.index()).unwrap_err();
            assert_eq!(error, DecodeError::field(120, "index", u64::from(slot.index())));
        }
    }

    #[test]
    fn every_rule_of_a_slot_is_checked() {
        let bytes = slot(1).encode();
        for (at, new, name) in [
            (8, 0_u64, "counter"),
            (8, 2, "counter"),
            (16, 39, "durable_lsn"),
            (24, FRAMES_OFFSET - 8, "durable_offset"),
            (24, FRAMES_OFFSET + 4, "durable_offset"),
            (32, 0, "oldest_lsn"),
        ] {
            let error = Slot::decode(&resealed(&bytes, at, &new.to_le_bytes()), 1).unwrap_err();
            assert_eq!(error, DecodeError::field(at, name, new));
        }
        let error = Slot::decode(&resealed(&bytes, 41, b"X"), 1).unwrap_err();
        assert_eq!(error, DecodeError::new(40, DecodeErrorKind::Magic));
    }

    #[test]
    fn names_have_one_spelling() {
        assert_eq!(segment_name(7, 42), "0000000007-00000000000000000042.seg");
        for (number, first_lsn) in [(1, 1), (7, 42), (12_345_678_901, 9), (u64::MAX, u64::MAX)] {
            let name = segment_name(number, first_lsn);
            assert_eq!(parse_segment_name(&name), Some((number, first_lsn)));
        }
        for stray in [
            "7-42.seg",
            "00000000007-00000000000000000042.seg",
            "+000000007-00000000000000000042.seg",
            "0000000007-+0000000000000000042.seg",
            "0000000007-000000000000000000042.seg",
            "0000000007-00000000000000000042-1.seg",
            "0000000007-00000000000000000042.seg.bak",
            "0000000007-00000000000000000042.SEG",
            "0000000007.seg",
            "99999999999999999999-00000000000000000042.seg",
            ".seg",
            "LOCK",
        ] {
            assert_eq!(parse_segment_name(stray), None, "{stray}");
        }
    }

    #[test]
    fn uuid_is_shown_with_hyphens() {
        let uuid =
            Uuid([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 1, 2, 3, 4, 5, 6, 0xff]);
        assert_eq!(uuid.to_string(), "01234567-89ab-cdef-0001-0203040506ff");
    }
}
