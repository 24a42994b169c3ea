//! SPEC 4.1: named cursors, each in two copies that are written in turn.
//!
//! A copy is one sector, so that no crash tears it. Which of two copies counts, and what damage to
//! one means, is not this crate's matter.

use crate::error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};
use crate::limits::CURSOR_NAME_LEN_MAX;
use crate::segment::{Uuid, check_rules};
use crate::wire::{self, Reader};

/// Bytes of one copy of a cursor.
pub const CURSOR_LEN: usize = 512;

/// Bytes of the file `CURSORS`.
pub const CURSORS_LEN: usize = 2 * COPIES_LEN;

/// Bytes of one copy of every cursor.
const COPIES_LEN: usize = 65_536;

const MAGIC: [u8; 8] = *b"oncecurs";
const NAME_AT: usize = 48;
const CRC_AT: usize = 508;

/// One copy of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorCopy<'a> {
    /// Its place among the cursors of the log, from 0.
    pub index: u32,
    /// The greater of two valid copies is the newer.
    pub counter: u64,
    /// The oldest LSN that is needed; [`CursorCopy::REMOVED`] for a cursor that was removed.
    pub lsn: u64,
    /// Its name.
    pub name: &'a str,
}

impl<'a> CursorCopy<'a> {
    /// The LSN of a cursor that was removed: nothing is needed.
    pub const REMOVED: u64 = u64::MAX;

    /// Where copy 0 or 1 of a cursor stands in the file.
    #[must_use]
    pub fn offset_of(index: u32, copy: u64) -> u64 {
        let within = u64::from(index).saturating_mul(wire::u64_of(CURSOR_LEN));
        copy.wrapping_rem(2).saturating_mul(wire::u64_of(COPIES_LEN)).saturating_add(within)
    }

    /// Encodes it for the log of this identity.
    ///
    /// # Errors
    ///
    /// `Limit` for a name that is too long, `Empty` for none.
    pub fn encode(&self, uuid: Uuid) -> Result<[u8; CURSOR_LEN], EncodeError> {
        let len = wire::check_count("name", self.name.len(), CURSOR_NAME_LEN_MAX)?;
        if len == 0 {
            return Err(EncodeError::new("name", EncodeErrorKind::Empty));
        }
        let mut out = Vec::with_capacity(CURSOR_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&uuid.0);
        wire::put_u32(&mut out, self.index);
        wire::put_u32(&mut out, len);
        wire::put_u64(&mut out, self.counter);
        wire::put_u64(&mut out, self.lsn);
        out.extend_from_slice(self.name.as_bytes());
        out.resize(CRC_AT, 0);
        let crc = wire::crc(&out);
        wire::put_u32(&mut out, crc);
        let mut bytes = [0; CURSOR_LEN];
        bytes.copy_from_slice(&out);
        Ok(bytes)
    }

    /// The copy at the begin of `bytes`, which were read at [`CursorCopy::offset_of`] `index` and
    /// `copy` of a log's file; `None` for zeros.
    ///
    /// # Errors
    ///
    /// `Truncated`, `Magic`, `Checksum`, then `Field`, `Limit` and `Text`.
    pub fn decode(
        bytes: &'a [u8],
        uuid: Uuid,
        index: u32,
        copy: u64,
    ) -> Result<Option<Self>, DecodeError> {
        let Some(bytes) = bytes.first_chunk::<CURSOR_LEN>() else {
            let kind = DecodeErrorKind::Truncated { need: CURSOR_LEN, have: bytes.len() };
            return Err(DecodeError::new(0, kind));
        };
        if *bytes == [0; CURSOR_LEN] {
            return Ok(None);
        }
        let (covered, crc) = bytes.split_at(CRC_AT);
        let mut reader = Reader::new(bytes);
        wire::check_magic(&mut reader, MAGIC)?;
        wire::check_crc(&mut Reader::new(crc), covered).map_err(|e| e.shifted(CRC_AT))?;
        let stored_uuid = Uuid(reader.array()?);
        let [a, b, c, d, e, f, g, h, ..] = stored_uuid.0;
        let stored_index = reader.u32()?;
        let len = reader.u32()?;
        let counter = reader.u64()?;
        let lsn = reader.u64()?;
        if len > CURSOR_NAME_LEN_MAX {
            let (len, max) = (u64::from(len), u64::from(CURSOR_NAME_LEN_MAX));
            return Err(DecodeError::new(28, DecodeErrorKind::Limit { len, max }));
        }
        let is_turn = counter.wrapping_rem(2) == copy.wrapping_rem(2);
        check_rules(&[
            (8, "uuid", u64::from_le_bytes([a, b, c, d, e, f, g, h]), stored_uuid == uuid),
            (24, "index", u64::from(stored_index), stored_index == index),
            (28, "length", u64::from(len), len > 0),
            (32, "counter", counter, counter >= 1 && is_turn),
            (40, "lsn", lsn, lsn >= 1),
        ])?;
        let name = reader.take(wire::usize_of(len))?;
        let Ok(name) = std::str::from_utf8(name) else {
            return Err(DecodeError::new(NAME_AT, DecodeErrorKind::Text { name: "name" }));
        };
        let behind_at = reader.at();
        let behind = covered.get(behind_at..).unwrap_or_default();
        match behind.iter().position(|&byte| byte != 0) {
            None => Ok(Some(Self { index, counter, lsn, name })),
            Some(at) => {
                let found = behind.get(at).copied().map_or(0, u64::from);
                Err(DecodeError::field(behind_at.saturating_add(at), "padding", found))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: Uuid = Uuid([7; 16]);

    #[test]
    fn a_copy_comes_back_from_its_own_place_in_its_own_log_alone() {
        let name = "n".repeat(wire::usize_of(CURSOR_NAME_LEN_MAX));
        let copy = CursorCopy { index: 3, counter: 9, lsn: u64::MAX, name: &name };
        let bytes = copy.encode(UUID).unwrap();
        assert_eq!(CursorCopy::decode(&bytes, UUID, 3, 1), Ok(Some(copy)));
        let error =
            |uuid, index, turn| CursorCopy::decode(&bytes, uuid, index, turn).unwrap_err().at;
        assert_eq!((error(Uuid([8; 16]), 3, 1), error(UUID, 4, 1), error(UUID, 3, 0)), (8, 24, 32));
    }

    #[test]
    fn no_name_and_a_long_one_have_no_encoding() {
        for name in [String::new(), "n".repeat(129)] {
            assert!(CursorCopy { index: 0, counter: 1, lsn: 1, name: &name }.encode(UUID).is_err());
        }
    }

    #[test]
    fn zeros_are_no_cursor_and_copies_never_share_a_block() {
        assert_eq!(CursorCopy::decode(&[0; CURSOR_LEN], UUID, 0, 0), Ok(None));
        for index in 0..crate::limits::CURSOR_COUNT_MAX {
            let places = [0, 1].map(|copy| CursorCopy::offset_of(index, copy));
            assert_eq!(places[1] - places[0], 65_536);
            assert!(places[1] + 512 <= wire::u64_of(CURSORS_LEN));
        }
    }
}
