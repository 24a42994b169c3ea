//! Bounded primitives of structured bytes: what every decoder here reads with.
//!
//! A [`Reader`] compares each length with its limit and with the bytes that are left before it
//! uses it; what it hands out borrows from the bytes it was given. The `put_*` functions append to
//! a buffer and refuse what a reader would refuse.
//!
//! Integers are little-endian (SPEC 3).

use byteorder::{ByteOrder, LittleEndian};

use crate::error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};

/// Reads fields in order, from the first byte to the last.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from their begin.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next field.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Bytes that were not read.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    ///
    /// `Truncated` when fewer are left.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = self.rest();
        let Some(taken) = rest.get(..len) else {
            let kind = DecodeErrorKind::Truncated { need: len, have: rest.len() };
            return Err(DecodeError::new(self.at, kind));
        };
        self.at = self.at.saturating_add(len);
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    ///
    /// `Truncated` when fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// One byte.
    ///
    /// # Errors
    ///
    /// `Truncated` when none is left.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// Two bytes.
    ///
    /// # Errors
    ///
    /// `Truncated` when fewer are left.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take(2).map(LittleEndian::read_u16)
    }

    /// Four bytes.
    ///
    /// # Errors
    ///
    /// `Truncated` when fewer are left.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take(4).map(LittleEndian::read_u32)
    }

    /// Eight bytes.
    ///
    /// # Errors
    ///
    /// `Truncated` when fewer are left.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take(8).map(LittleEndian::read_u64)
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    ///
    /// `Truncated`; `Field` for another value.
    pub fn bool(&mut self, name: &'static str) -> Result<bool, DecodeError> {
        let at = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::field(at, name, u64::from(other))),
        }
    }

    /// A u32 that is at most `max`: a count, checked before anything is sized by it.
    ///
    /// # Errors
    ///
    /// `Truncated`; `Limit` above `max`.
    pub fn count(&mut self, max: u32) -> Result<u32, DecodeError> {
        let at = self.at;
        let len = self.u32()?;
        if len > max {
            let kind = DecodeErrorKind::Limit { len: u64::from(len), max: u64::from(max) };
            return Err(DecodeError::new(at, kind));
        }
        Ok(len)
    }

    /// Bytes after their u32 length, at most `max` of them.
    ///
    /// # Errors
    ///
    /// `Truncated`; `Limit` above `max`.
    pub fn bytes(&mut self, max: u32) -> Result<&'a [u8], DecodeError> {
        let len = self.count(max)?;
        self.take(usize_of(len))
    }

    /// UTF-8 text after its u32 length, at most `max` bytes of it.
    ///
    /// # Errors
    ///
    /// `Truncated`; `Limit` above `max`; `Text` where it is not UTF-8.
    pub fn text(&mut self, name: &'static str, max: u32) -> Result<&'a str, DecodeError> {
        let at = self.at;
        let bytes = self.bytes(max)?;
        str::from_utf8(bytes).map_err(|_utf8| DecodeError::new(at, DecodeErrorKind::Text { name }))
    }

    /// A field that is absent (0) or present (1, then the field).
    ///
    /// # Errors
    ///
    /// As [`Reader::bool`] and `read`.
    pub fn option<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.bool(name)? { read(self).map(Some) } else { Ok(None) }
    }

    /// A u32 count, at most `max`, then that many items of at least `item_len_min` bytes each.
    ///
    /// # Errors
    ///
    /// As [`Reader::count`] and `read`; `Truncated` when the items cannot fit in what is left.
    pub fn list<T>(
        &mut self,
        max: u32,
        item_len_min: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let at = self.at;
        let count = usize_of(self.count(max)?);
        let need = count.saturating_mul(item_len_min.max(1));
        let have = self.rest().len();
        // Before the vector is sized: a count alone must not allocate.
        if need > have {
            return Err(DecodeError::new(at, DecodeErrorKind::Truncated { need, have }));
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    /// Ends reading.
    ///
    /// # Errors
    ///
    /// `Trailing` when bytes are left.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest().len() {
            0 => Ok(()),
            len => Err(DecodeError::new(self.at, DecodeErrorKind::Trailing { len })),
        }
    }
}

/// Appends a u16.
pub fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a u32.
pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a u64.
pub fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends 0 or 1.
pub fn put_bool(out: &mut Vec<u8>, value: bool) {
    out.push(u8::from(value));
}

/// Appends a count, refused above `max`.
///
/// # Errors
///
/// [`EncodeError`] above `max`; nothing is appended.
pub fn put_count(
    out: &mut Vec<u8>,
    name: &'static str,
    count: usize,
    max: u32,
) -> Result<(), EncodeError> {
    check_count(name, count, max).map(|count| put_u32(out, count))
}

/// Compares a count with its limit, inclusive, and narrows it.
///
/// # Errors
///
/// [`EncodeError`] above `max`.
pub fn check_count(name: &'static str, count: usize, max: u32) -> Result<u32, EncodeError> {
    match u32::try_from(count) {
        Ok(count) if count <= max => Ok(count),
        _ => {
            let kind = EncodeErrorKind::Limit { len: u64_of(count), max: u64::from(max) };
            Err(EncodeError::new(name, kind))
        }
    }
}

/// Appends bytes after their length, refused above `max` bytes.
///
/// # Errors
///
/// [`EncodeError`] above `max`; nothing is appended.
pub fn put_bytes(
    out: &mut Vec<u8>,
    name: &'static str,
    bytes: &[u8],
    max: u32,
) -> Result<(), EncodeError> {
    put_count(out, name, bytes.len(), max)?;
    out.extend_from_slice(bytes);
    Ok(())
}

/// Appends text after its length, refused above `max` bytes.
///
/// # Errors
///
/// [`EncodeError`] above `max`; nothing is appended.
pub fn put_text(
    out: &mut Vec<u8>,
    name: &'static str,
    text: &str,
    max: u32,
) -> Result<(), EncodeError> {
    put_bytes(out, name, text.as_bytes(), max)
}

/// Appends 0 for an absent field, 1 and the field for a present one.
///
/// # Errors
///
/// Those of `put`.
pub fn put_option<T>(
    out: &mut Vec<u8>,
    value: Option<T>,
    put: impl FnOnce(&mut Vec<u8>, T) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    put_bool(out, value.is_some());
    value.map_or(Ok(()), |value| put(out, value))
}

/// Appends a length that was compared with its limit before.
pub(crate) fn put_len(out: &mut Vec<u8>, len: usize) {
    put_u32(out, u32::try_from(len).unwrap_or(u32::MAX));
}

/// A u32 as a length in memory; saturates where memory is smaller, and then fits nothing.
pub(crate) fn usize_of(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// A length in memory as a u64.
pub(crate) fn u64_of(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// The low 32 bits.
pub(crate) const fn low32(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The CRC of SPEC 8.
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Compares the CRC that `reader` comes to with that of `covered`.
pub(crate) fn check_crc(reader: &mut Reader<'_>, covered: &[u8]) -> Result<(), DecodeError> {
    let at = reader.at();
    let stored = reader.u32()?;
    let computed = crc(covered);
    if stored == computed {
        Ok(())
    } else {
        Err(DecodeError::new(at, DecodeErrorKind::Checksum { stored, computed }))
    }
}

/// Compares the magic that `reader` comes to.
pub(crate) fn check_magic(reader: &mut Reader<'_>, magic: [u8; 8]) -> Result<(), DecodeError> {
    let at = reader.at();
    if reader.array()? == magic {
        Ok(())
    } else {
        Err(DecodeError::new(at, DecodeErrorKind::Magic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_has_the_check_values_of_spec_8() {
        assert_eq!(crc(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc(&[0; 32]), 0x190A_55AD);
    }

    #[test]
    fn a_length_over_its_limit_is_refused_before_it_is_used() {
        let bytes = [0xFF, 0xFF, 0xFF, 0xFF, 1];
        let kind = DecodeErrorKind::Limit { len: 0xFFFF_FFFF, max: 16 };
        assert_eq!(Reader::new(&bytes).bytes(16), Err(DecodeError::new(0, kind)));
        let error = Reader::new(&bytes).list(u32::MAX, 1, Reader::u8).unwrap_err();
        assert_eq!(error.kind, DecodeErrorKind::Truncated { need: 0xFFFF_FFFF, have: 1 });
    }

    #[test]
    fn fields_come_back_in_order_and_nothing_may_be_left() {
        let mut out = Vec::new();
        put_u16(&mut out, 0x0102);
        put_u64(&mut out, 3);
        put_bool(&mut out, true);
        put_text(&mut out, "name", "abc", 3).unwrap();
        put_option(&mut out, Some(7), |out, v| {
            put_u32(out, v);
            Ok(())
        })
        .unwrap();
        let mut reader = Reader::new(&out);
        assert_eq!(reader.u16(), Ok(0x0102));
        assert_eq!(reader.u64(), Ok(3));
        assert_eq!(reader.bool("flag"), Ok(true));
        assert_eq!(reader.text("name", 3), Ok("abc"));
        let left = reader.clone().finish().unwrap_err();
        assert_eq!(left.kind, DecodeErrorKind::Trailing { len: 5 });
        assert_eq!(reader.option("value", Reader::u32), Ok(Some(7)));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn what_a_reader_would_refuse_is_not_written() {
        let mut out = Vec::new();
        let error = put_text(&mut out, "name", "abcd", 3).unwrap_err();
        let kind = EncodeErrorKind::Limit { len: 4, max: 3 };
        assert_eq!(error, EncodeError::new("name", kind));
        assert!(out.is_empty());
    }
}
