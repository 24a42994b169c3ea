//! The compact protocol of Thrift, walked without building anything of it.
//!
//! What a list or a page announces is compared with limits before the decoder makes room for it.

/// Deepest nesting of what Parquet has, and some.
const DEPTH_MAX: u32 = 24;

/// Kind of a field: a whole number of 32 bits.
pub(super) const I32: u8 = 5;
/// Kind of a field: a list.
pub(super) const LIST: u8 = 9;
/// Kind of a field: a structure.
pub(super) const STRUCT: u8 = 12;

/// A field as it is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Structures around it.
    pub(super) depth: u32,
    /// The field that its structure is the value of, or an item of; 0 at the top.
    pub(super) parent: i16,
    pub(super) id: i16,
    pub(super) kind: u8,
    /// A number, or the count of a list; 1 for true, else 0.
    pub(super) value: i64,
}

/// A walk over bytes of the protocol.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that were not walked over.
    pub(super) const fn left(&self) -> usize {
        self.rest.len()
    }

    /// Walks over one structure; `None` where the bytes end within it, where they are none, or where
    /// `seen` answers false.
    pub(super) fn structure(&mut self, seen: &mut dyn FnMut(Field) -> bool) -> Option<()> {
        self.fields((0, 0), seen)
    }

    fn fields(
        &mut self,
        (depth, parent): (u32, i16),
        seen: &mut dyn FnMut(Field) -> bool,
    ) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        let mut id = 0_i16;
        loop {
            let head = self.byte()?;
            let kind = head & 0x0F;
            if kind == 0 {
                return Some(());
            }
            id = match head >> 4 {
                0 => i16::try_from(self.number()?).ok()?,
                step => id.checked_add(i16::from(step))?,
            };
            let field = Field { depth, parent, id, kind, value: i64::from(kind == 1) };
            match kind {
                1 | 2 => seen(field).then_some(())?,
                _ => self.value(field, seen)?,
            }
        }
    }

    fn value(&mut self, field: Field, seen: &mut dyn FnMut(Field) -> bool) -> Option<()> {
        match field.kind {
            1..=3 => drop(self.byte()?),
            4..=6 => {
                let value = self.number()?;
                seen(Field { value, ..field }).then_some(())?;
            }
            7 => self.skip(8)?,
            8 => {
                let len = self.varint()?;
                self.skip(len)?;
            }
            LIST | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // Each takes a byte at least.
                let value =
                    i64::try_from(count).ok().filter(|_| count <= self.rest.len() as u64)?;
                seen(Field { value, ..field }).then_some(())?;
                self.items(count, field, head & 0x0F, seen)?;
            }
            11 => {
                let count = self.varint()?;
                if count > 0 {
                    let kinds = self.byte()?;
                    for _ in 0..count {
                        self.items(1, field, kinds >> 4, &mut |_| true)?;
                        self.items(1, field, kinds & 0x0F, &mut |_| true)?;
                    }
                }
            }
            STRUCT => {
                seen(field).then_some(())?;
                self.fields((field.depth + 1, field.id), seen)?;
            }
            _ => return None,
        }
        Some(())
    }

    fn items(
        &mut self,
        count: u64,
        list: Field,
        kind: u8,
        seen: &mut dyn FnMut(Field) -> bool,
    ) -> Option<()> {
        if list.depth >= DEPTH_MAX {
            return None;
        }
        for _ in 0..count {
            if kind == STRUCT {
                self.fields((list.depth + 1, list.id), seen)?;
            } else {
                // Of numbers and texts nothing is told.
                let item = Field { depth: list.depth + 1, kind, ..list };
                self.value(item, &mut |_| true)?;
            }
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, count: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        varint(&mut self.rest)
    }

    /// A number whose sign is its last bit.
    fn number(&mut self) -> Option<i64> {
        let coded = self.varint()?;
        Some((coded >> 1).cast_signed() ^ -(coded & 1).cast_signed())
    }
}

/// A number of seven bits a byte.
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expect: Option<&[(i16, i16, i64)]>) {
        let mut found = Vec::new();
        let walked = Walk::new(bytes).structure(&mut |field| {
            found.push((field.parent, field.id, field.value));
            true
        });
        assert_eq!(walked.map(|()| found.as_slice()), expect, "{bytes:?}");
    }

    #[test]
    fn a_walk_tells_numbers_and_counts_and_refuses_what_is_cut() {
        check(&[0], Some(&[]));
        check(&[0x15, 3, 0x15, 4, 0], Some(&[(0, 1, -2), (0, 2, 2)]));
        check(&[0x5C, 0x15, 2, 0, 0], Some(&[(0, 5, 0), (5, 1, 1)]));
        // A list of two structures, and one of more items than there are bytes.
        check(&[0x19, 0x2C, 0x15, 2, 0, 0, 0], Some(&[(0, 1, 2), (1, 1, 1)]));
        check(&[0x19, 0xFC, 0xFF, 0xFF, 3, 0, 0], None);
        check(&[0x15], None);
        check(&[0x18, 9, 1, 0], None);
        check(&[0x1C; 100], None);
    }
}
