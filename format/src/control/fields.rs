//! Fields of control records: integers, text and bytes behind a length, lists behind a count.

use crate::error::{DecodeError, DecodeErrorKind};

/// Appends fields.
#[derive(Debug, Default)]
pub(super) struct FieldWriter {
    bytes: Vec<u8>,
}

impl FieldWriter {
    pub(super) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    /// Text behind a u16, cut at the last character that fits.
    pub(super) fn text(&mut self, value: &str) {
        let cut = value.floor_char_boundary(usize::from(u16::MAX));
        let value = value.get(..cut).unwrap_or_default();
        self.u16(u16::try_from(value.len()).unwrap_or_default());
        self.raw(value.as_bytes());
    }

    /// Bytes behind a u32.
    pub(super) fn bytes(&mut self, value: &[u8]) {
        match u32::try_from(value.len()) {
            Ok(len) => {
                self.u32(len);
                self.raw(value);
            }
            Err(_) => self.u32(0),
        }
    }

    /// A list behind a u32.
    pub(super) fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        match u32::try_from(items.len()) {
            Ok(count) => {
                self.u32(count);
                for item in items {
                    each(self, item);
                }
            }
            Err(_) => self.u32(0),
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads fields, never beyond the bytes it was given.
#[derive(Debug)]
pub(super) struct FieldReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub(super) fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError { at: self.at, kind }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some((taken, _)) = rest.split_at_checked(len) else {
            let (need, have) = (len, rest.len());
            return Err(self.error(DecodeErrorKind::Truncated { need, have }));
        };
        self.at = self.at.saturating_add(len);
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let have = self.left();
        let error = self.error(DecodeErrorKind::Truncated { need: N, have });
        self.take(N)?.try_into().map_err(|_| error)
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn digest(&mut self) -> Result<[u8; 32], DecodeError> {
        self.array()
    }

    /// An integer that must not be zero.
    pub(super) fn nonzero(&mut self, name: &'static str) -> Result<u64, DecodeError> {
        let at = self.at;
        match self.u64()? {
            0 => Err(DecodeError { at, kind: DecodeErrorKind::Field { name, found: 0 } }),
            value => Ok(value),
        }
    }

    /// A byte that `known` maps to a value.
    pub(super) fn choice<T>(
        &mut self,
        name: &'static str,
        known: impl FnOnce(u8) -> Option<T>,
    ) -> Result<T, DecodeError> {
        let at = self.at;
        let found = self.u8()?;
        known(found).ok_or(DecodeError {
            at,
            kind: DecodeErrorKind::Field { name, found: u64::from(found) },
        })
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<String, DecodeError> {
        let len = usize::from(self.u16()?);
        let at = self.at;
        match std::str::from_utf8(self.take(len)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(DecodeError { at, kind: DecodeErrorKind::Text { name } }),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        self.take(len)
    }

    /// A list whose items take at least `item_len_min` bytes each, at most `max` of them.
    pub(super) fn list<T>(
        &mut self,
        item_len_min: usize,
        max: usize,
        mut each: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let at = self.at;
        let count = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        if count > max {
            let (len, max) = (count.try_into().unwrap_or(u64::MAX), max.try_into().unwrap_or(0));
            return Err(DecodeError { at, kind: DecodeErrorKind::Limit { len, max } });
        }
        // The count is believed only as far as the bytes that are left can hold it.
        let (need, have) = (count.saturating_mul(item_len_min), self.left());
        if need > have {
            return Err(DecodeError { at, kind: DecodeErrorKind::Truncated { need, have } });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(each(self)?);
        }
        Ok(items)
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(self.error(DecodeErrorKind::Field {
                name: "bytes behind the last field",
                found: left.try_into().unwrap_or(u64::MAX),
            })),
        }
    }
}
