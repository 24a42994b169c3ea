//! The fields of every structure on disk, and checksums that hold again after one was changed.

use crate::reference::bytes::{crc, frame_header, header_check, seeded_crc};

/// A structure and where it begins in its file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Structure {
    Lock,
    /// The header of the segment.
    Header,
    /// The copy of the header in a slot, and the slot.
    Copy(usize),
    Slot(usize),
    Frame(usize),
    Footer(usize),
}

/// A field: its name, its offset in the structure, and its size in bytes.
pub(crate) type Field = (&'static str, usize, usize);

const LOCK: &[Field] = &[("magic", 0, 8), ("uuid", 8, 8), ("reserved", 24, 4), ("crc", 28, 4)];
const HEADER: &[Field] = &[
    ("magic", 0, 8),
    ("major", 8, 2),
    ("minor", 10, 2),
    ("incompat", 12, 4),
    ("compat", 16, 4),
    ("reserved", 20, 4),
    ("uuid", 24, 8),
    ("number", 40, 8),
    ("first_lsn", 48, 8),
    ("salt", 56, 8),
    ("base_time", 64, 8),
    ("reserved2", 72, 4),
    ("crc", 76, 4),
];
const SLOT: &[Field] = &[
    ("magic", 0, 8),
    ("counter", 8, 8),
    ("durable_lsn", 16, 8),
    ("durable_offset", 24, 8),
    ("oldest_lsn", 32, 8),
    ("index", 120, 4),
    ("crc", 124, 4),
];
const FRAME: &[Field] = &[
    ("crc", 0, 4),
    ("check", 4, 4),
    ("lsn", 8, 8),
    ("length", 16, 4),
    ("lag", 20, 4),
    ("time", 24, 6),
    ("kind", 30, 1),
    ("flags", 31, 1),
];
const FOOTER: &[Field] = &[
    ("magic", 0, 8),
    ("offset", 8, 8),
    ("last_lsn", 16, 8),
    ("end", 24, 8),
    ("durable_lsn", 32, 8),
    ("record_count", 40, 8),
    ("payload_bytes", 48, 8),
    ("time_first", 56, 8),
    ("time_last", 64, 8),
    ("entry_count", 72, 4),
    ("reserved", 76, 4),
    ("entry_lsn", 80, 8),
    ("entry_offset", 88, 8),
    ("entry_time", 96, 8),
    ("length", 104, 4),
    ("crc", 108, 4),
    ("tail_magic", 112, 8),
];

impl Structure {
    /// Where it begins.
    pub(crate) fn at(self) -> usize {
        match self {
            Self::Lock | Self::Header => 0,
            Self::Copy(index) => slot_at(index) + 40,
            Self::Slot(index) => slot_at(index),
            Self::Frame(at) | Self::Footer(at) => at,
        }
    }

    /// Its fields; those of a footer are of one with a single entry.
    pub(crate) fn fields(self) -> &'static [Field] {
        match self {
            Self::Lock => LOCK,
            Self::Header | Self::Copy(_) => HEADER,
            Self::Slot(_) => SLOT,
            Self::Frame(_) => FRAME,
            Self::Footer(_) => FOOTER,
        }
    }

    /// Makes its checksums good.
    pub(crate) fn seal(self, file: &mut [u8]) {
        let at = self.at();
        match self {
            Self::Lock => seal_crc(file, at, 28),
            Self::Header => seal_crc(file, at, 76),
            Self::Copy(_) => {
                seal_crc(file, at, 76);
                seal_crc(file, at - 40, 124);
            }
            Self::Slot(_) => seal_crc(file, at, 124),
            Self::Frame(_) => seal_frame(file, at),
            Self::Footer(_) => {
                let Some(len) = file.len().checked_sub(at + 12) else { return };
                let salt = word(file, 56);
                let Some(covered) = file.get(at..at + len) else { return };
                let sum = seeded_crc(salt, at, covered).to_le_bytes();
                put(file, at + len, &sum);
            }
        }
    }
}

/// Every structure of a segment.
pub(crate) fn structures(file: &[u8]) -> Vec<Structure> {
    let mut all = vec![Structure::Header, Structure::Copy(0), Structure::Copy(1)];
    all.extend([Structure::Slot(0), Structure::Slot(1)]);
    all.extend(frames(file).into_iter().map(Structure::Frame));
    all.extend(footer(file));
    all
}

/// Where the frames of a segment begin.
pub(crate) fn frames(file: &[u8]) -> Vec<usize> {
    let salt = word(file, 56);
    let mut found = Vec::new();
    let mut at = 12_288;
    while let Some(header) = frame_header(file, at, salt) {
        found.push(at);
        at += (32 + header.length).next_multiple_of(8);
    }
    found
}

/// The footer that ends a segment, when it has one entry at most.
pub(crate) fn footer(file: &[u8]) -> Option<Structure> {
    let length = word(file, file.len().checked_sub(16)?) & 0xFFFF_FFFF;
    let at = file.len().checked_sub(usize::try_from(length).ok()?)?;
    (file.ends_with(b"toofecno") && length == 120).then_some(Structure::Footer(at))
}

/// Overwrites bytes where there are some.
pub(crate) fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, &from) in file.iter_mut().skip(at).zip(bytes) {
        *to = from;
    }
}

/// The number in eight bytes.
pub(crate) fn word(file: &[u8], at: usize) -> u64 {
    let bytes = file.get(at..).and_then(|bytes| bytes.first_chunk());
    u64::from_le_bytes(bytes.copied().unwrap_or_default())
}

const fn slot_at(index: usize) -> usize {
    if index == 0 { 4096 } else { 8192 }
}

fn seal_crc(file: &mut [u8], at: usize, len: usize) {
    let Some(covered) = file.get(at..at + len) else { return };
    let sum = crc(0, covered).to_le_bytes();
    put(file, at + len, &sum);
}

fn seal_frame(file: &mut [u8], at: usize) {
    let salt = word(file, 56);
    let words = [8, 16, 24].map(|field| word(file, at + field));
    put(file, at + 4, &header_check(salt, at, words).to_le_bytes());
    let length = usize::try_from(words[1] & 0xFFFF_FFFF).unwrap_or(usize::MAX);
    let end = at.saturating_add(32).saturating_add(length).min(file.len());
    let Some(covered) = file.get(at + 4..end) else { return };
    let sum = seeded_crc(salt, at, covered).to_le_bytes();
    put(file, at, &sum);
}
