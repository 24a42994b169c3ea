//! SPEC 5.3: the footer of a sealed segment.
//!
//! A footer is a cache. What decodes here is consistent in itself; whether it agrees with the
//! frames is recovery's to judge.

use crate::error::{DecodeError, DecodeErrorKind};
use crate::frame::{Place, seeded_crc};
use crate::limits::{ALIGNMENT, FOOTER_LEN_MAX, FRAMES_OFFSET, TIME_MS_MAX};
use crate::segment::check_rules;
use crate::wire::{self, Reader, u64_of, usize_of};

const MAGIC: [u8; 8] = *b"oncefoot";
const TAIL_MAGIC: [u8; 8] = *b"toofecno";
/// Bytes of a footer without entries.
const LEN_MIN: u32 = 96;
const ENTRY_LEN: u32 = 24;
const ENTRIES_AT: usize = 80;
/// Length, CRC and magic, at the end.
const TAIL_LEN: usize = 16;

/// A frame that begins a batch, for readers that seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterEntry {
    /// Its LSN.
    pub lsn: u64,
    /// Its offset.
    pub offset: u64,
    /// Its time in milliseconds.
    pub time_ms: u64,
}

/// Facts about a sealed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Where the footer begins.
    pub offset: u64,
    /// Last kept record; the segment's first LSN - 1 when it has none.
    pub last_lsn: u64,
    /// Offset after the frame of `last_lsn`.
    pub end: u64,
    /// Durable LSN when the footer was encoded.
    pub durable_lsn: u64,
    /// Records of the segment.
    pub record_count: u64,
    /// Sum of the payload lengths.
    pub payload_bytes: u64,
    /// Time in milliseconds of the first record, 0 when there is none.
    pub time_first_ms: u64,
    /// Time in milliseconds of the last record, the header's base time when there is none.
    pub time_last_ms: u64,
    /// The sparse index: the first frame, then batches at least a stride apart.
    pub entries: Vec<FooterEntry>,
}

impl Footer {
    /// Its first and its last eight bytes.
    pub const MAGICS: [[u8; 8]; 2] = [MAGIC, TAIL_MAGIC];

    /// The footer's bytes, for its own offset in the segment of this salt.
    ///
    /// # Panics
    ///
    /// When the entries are more than [`FOOTER_LEN_MAX`] holds: a bug of the caller.
    #[must_use]
    pub fn encode(&self, salt: u64) -> Vec<u8> {
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let len = count.saturating_mul(ENTRY_LEN).saturating_add(LEN_MIN);
        assert!(len <= FOOTER_LEN_MAX, "entries are a stride apart in one segment");
        let mut out = Vec::with_capacity(usize_of(len));
        out.extend_from_slice(&MAGIC);
        for field in [
            self.offset,
            self.last_lsn,
            self.end,
            self.durable_lsn,
            self.record_count,
            self.payload_bytes,
            self.time_first_ms,
            self.time_last_ms,
        ] {
            wire::put_u64(&mut out, field);
        }
        wire::put_u32(&mut out, count);
        wire::put_u32(&mut out, 0);
        for entry in &self.entries {
            wire::put_u64(&mut out, entry.lsn);
            wire::put_u64(&mut out, entry.offset);
            wire::put_u64(&mut out, entry.time_ms);
        }
        wire::put_u32(&mut out, len);
        let crc = seeded_crc(Place { salt, offset: self.offset }, &out);
        wire::put_u32(&mut out, crc);
        out.extend_from_slice(&TAIL_MAGIC);
        out
    }

    /// The footer that `bytes` are, from its begin at `place.offset` to the end of the file.
    ///
    /// # Errors
    ///
    /// `Truncated`, `Limit`, `Magic`, `Checksum`, then `Field` for facts that contradict each
    /// other or `place`.
    pub fn decode(bytes: &[u8], place: Place) -> Result<Self, DecodeError> {
        check_frame_of(bytes, place)?;
        let mut reader = Reader::new(bytes);
        wire::check_magic(&mut reader, MAGIC)?;
        let mut footer = Self {
            offset: reader.u64()?,
            last_lsn: reader.u64()?,
            end: reader.u64()?,
            durable_lsn: reader.u64()?,
            record_count: reader.u64()?,
            payload_bytes: reader.u64()?,
            time_first_ms: reader.u64()?,
            time_last_ms: reader.u64()?,
            entries: Vec::new(),
        };
        let count = reader.u32()?;
        let reserved = reader.u32()?;
        let room = u64_of(bytes.len()).saturating_sub(u64::from(LEN_MIN));
        check_rules(&[
            (8, "offset", footer.offset, footer.offset == place.offset),
            (72, "entry_count", u64::from(count), u64::from(count).saturating_mul(24) == room),
            (76, "reserved", u64::from(reserved), reserved == 0),
        ])?;
        footer.entries.reserve_exact(usize_of(count));
        for _ in 0..count {
            footer.entries.push(FooterEntry {
                lsn: reader.u64()?,
                offset: reader.u64()?,
                time_ms: reader.u64()?,
            });
        }
        footer.check_facts()?;
        footer.check_entries()?;
        Ok(footer)
    }

    /// The length of the footer that may end a file, from the file's last 16 bytes.
    ///
    /// `None` where they are not the end of a footer. The length is within its limit; nothing
    /// else is proven.
    #[must_use]
    pub fn len_from_tail(tail: &[u8]) -> Option<u32> {
        let tail = tail.last_chunk::<TAIL_LEN>()?;
        let mut reader = Reader::new(tail);
        let len = reader.u32().ok()?;
        let _crc = reader.u32().ok()?;
        let entries = len.checked_sub(LEN_MIN)?;
        let holds = reader.rest() == TAIL_MAGIC
            && len <= FOOTER_LEN_MAX
            && entries.is_multiple_of(ENTRY_LEN);
        holds.then_some(len)
    }

    fn check_facts(&self) -> Result<(), DecodeError> {
        let aligned = |offset: u64| offset >= FRAMES_OFFSET && offset.is_multiple_of(ALIGNMENT);
        let is_empty = self.record_count == 0;
        let times_hold = self.time_last_ms <= TIME_MS_MAX
            && (is_empty || self.time_first_ms <= self.time_last_ms);
        check_rules(&[
            (8, "offset", self.offset, aligned(self.offset)),
            (24, "end", self.end, aligned(self.end) && self.end <= self.offset),
            (24, "end", self.end, !is_empty || self.end == FRAMES_OFFSET),
            (32, "durable_lsn", self.durable_lsn, self.durable_lsn <= self.last_lsn),
            (40, "record_count", self.record_count, self.record_count <= self.last_lsn),
            (48, "payload_bytes", self.payload_bytes, self.payload_bytes < self.end),
            (56, "time_first", self.time_first_ms, !is_empty || self.time_first_ms == 0),
            (64, "time_last", self.time_last_ms, times_hold),
            (72, "entry_count", u64_of(self.entries.len()), is_empty == self.entries.is_empty()),
        ])
    }

    fn check_entries(&self) -> Result<(), DecodeError> {
        let first = FooterEntry {
            lsn: self.last_lsn.saturating_sub(self.record_count).saturating_add(1),
            offset: FRAMES_OFFSET,
            time_ms: self.time_first_ms,
        };
        let mut at = ENTRIES_AT;
        let mut before: Option<&FooterEntry> = None;
        for entry in &self.entries {
            let ascends = before.map_or(*entry == first, |before| {
                before.lsn < entry.lsn
                    && before.offset < entry.offset
                    && before.time_ms <= entry.time_ms
            });
            let inside = entry.lsn <= self.last_lsn
                && entry.offset < self.end
                && entry.offset.is_multiple_of(ALIGNMENT)
                && entry.time_ms <= self.time_last_ms;
            check_rules(&[(at, "entry", entry.lsn, ascends && inside)])?;
            at = at.saturating_add(usize_of(ENTRY_LEN));
            before = Some(entry);
        }
        Ok(())
    }
}

/// Length, tail magic and CRC, before any field is believed.
fn check_frame_of(bytes: &[u8], place: Place) -> Result<(), DecodeError> {
    let have = bytes.len();
    let (len_min, len_max) = (usize_of(LEN_MIN), u64::from(FOOTER_LEN_MAX));
    if have < len_min {
        return Err(DecodeError::new(0, DecodeErrorKind::Truncated { need: len_min, have }));
    }
    if u64_of(have) > len_max {
        let kind = DecodeErrorKind::Limit { len: u64_of(have), max: len_max };
        return Err(DecodeError::new(0, kind));
    }
    let tail_at = have.saturating_sub(TAIL_LEN);
    let mut tail = Reader::new(bytes.get(tail_at..).unwrap_or_default());
    let len = tail.u32()?;
    let stored = tail.u32()?;
    wire::check_magic(&mut tail, TAIL_MAGIC).map_err(|e| e.shifted(tail_at))?;
    check_rules(&[(tail_at, "length", u64::from(len), u64::from(len) == u64_of(have))])?;
    let crc_at = tail_at.saturating_add(4);
    let computed = seeded_crc(place, bytes.get(..crc_at).unwrap_or_default());
    if stored == computed {
        Ok(())
    } else {
        Err(DecodeError::new(crc_at, DecodeErrorKind::Checksum { stored, computed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 0x1122_3344_5566_7788;
    const PLACE: Place = Place { salt: SALT, offset: 100_000 };

    fn footer() -> Footer {
        let entry = |lsn, offset, time_ms| FooterEntry { lsn, offset, time_ms };
        Footer {
            offset: PLACE.offset,
            last_lsn: 50,
            end: 99_992,
            durable_lsn: 49,
            record_count: 10,
            payload_bytes: 80_000,
            time_first_ms: 7,
            time_last_ms: 9,
            entries: vec![entry(41, 12_288, 7), entry(49, 80_000, 8)],
        }
    }

    fn empty() -> Footer {
        Footer {
            offset: FRAMES_OFFSET,
            last_lsn: 40,
            end: FRAMES_OFFSET,
            durable_lsn: 40,
            record_count: 0,
            payload_bytes: 0,
            time_first_ms: 0,
            time_last_ms: 6,
            entries: Vec::new(),
        }
    }

    #[test]
    fn footers_come_back() {
        for footer in [footer(), empty()] {
            let bytes = footer.encode(SALT);
            let place = Place { salt: SALT, offset: footer.offset };
            assert_eq!(Footer::len_from_tail(&bytes), u32::try_from(bytes.len()).ok());
            assert_eq!(Footer::decode(&bytes, place), Ok(footer));
        }
    }

    #[test]
    fn a_footer_is_bound_to_its_place() {
        let bytes = footer().encode(SALT);
        for place in [Place { offset: 100_008, ..PLACE }, Place { salt: 1, ..PLACE }] {
            let error = Footer::decode(&bytes, place).unwrap_err();
            assert!(matches!(error.kind, DecodeErrorKind::Checksum { .. }));
            assert_eq!(error.at, bytes.len() - 12);
        }
    }

    #[test]
    fn every_contradiction_is_found() {
        type Change = fn(&mut Footer);
        let changes: [(usize, Change); 13] = [
            (24, |f| f.end = 99_996),
            (24, |f| f.end = 100_008),
            (32, |f| f.durable_lsn = 51),
            (40, |f| f.record_count = 51),
            (48, |f| f.payload_bytes = 99_992),
            (64, |f| f.time_last_ms = 6),
            (64, |f| f.time_last_ms = TIME_MS_MAX + 1),
            (72, |f| f.entries.clear()),
            (80, |f| f.entries[0].lsn = 42),
            (104, |f| f.entries[1].lsn = 51),
            (104, |f| f.entries[1].offset = 12_288),
            (104, |f| f.entries[1].offset = 99_992),
            (104, |f| f.entries[1].time_ms = 6),
        ];
        for (at, change) in changes {
            let mut wrong = footer();
            change(&mut wrong);
            let error = Footer::decode(&wrong.encode(SALT), PLACE).unwrap_err();
            assert_eq!(error.at, at, "{error}");
            assert!(matches!(error.kind, DecodeErrorKind::Field { .. }), "{error}");
        }
        let mut wrong = empty();
        wrong.end += 8;
        wrong.offset += 8;
        let place = Place { salt: SALT, offset: wrong.offset };
        assert_eq!(Footer::decode(&wrong.encode(SALT), place).unwrap_err().at, 24);
    }

    #[test]
    fn a_footer_is_no_longer_than_its_limit() {
        let decode = |len: u32| {
            let mut bytes = vec![0; usize::try_from(len).unwrap()];
            let at = bytes.len() - 16;
            bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
            bytes[at + 8..].copy_from_slice(&TAIL_MAGIC);
            Footer::decode(&bytes, PLACE).unwrap_err().kind
        };
        assert!(matches!(decode(FOOTER_LEN_MAX), DecodeErrorKind::Checksum { .. }));
        let (len, max) = (u64::from(FOOTER_LEN_MAX) + 24, u64::from(FOOTER_LEN_MAX));
        assert_eq!(decode(FOOTER_LEN_MAX + 24), DecodeErrorKind::Limit { len, max });
    }

    #[test]
    fn only_the_end_of_a_footer_has_a_length() {
        let bytes = footer().encode(SALT);
        for i in 0..8 {
            let mut tail = bytes[bytes.len() - 16..].to_vec();
            tail[8 + i] ^= 1;
            assert_eq!(Footer::len_from_tail(&tail), None);
        }
        for len in [0, 95, 97, 119, FOOTER_LEN_MAX + 24, u32::MAX] {
            let mut tail = bytes[bytes.len() - 16..].to_vec();
            tail[..4].copy_from_slice(&len.to_le_bytes());
            assert_eq!(Footer::len_from_tail(&tail), None, "{len}");
        }
        assert_eq!(Footer::len_from_tail(&bytes[..15]), None);
    }
}
