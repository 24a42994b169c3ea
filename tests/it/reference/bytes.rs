//! The fields of SPEC 4 to 8 read from bytes, and their checksums.
//!
//! Every function answers `None`, or an invalid state, for bytes that do not hold what it reads.
//! None of them knows about another segment.

use std::sync::LazyLock;

use super::{FRAMES_AT, wide};

const RECORD_LEN_MAX: usize = 268_435_456;
const FOOTER_LEN_MAX: usize = 393_336;
const FOOTER_STRIDE_BYTES: usize = 65_536;
const TIME_MS_MAX: u64 = (1 << 48) - 1;
const SLOT_OFFSETS: [usize; 2] = [4096, 8192];

static CRC_TABLE: LazyLock<[u32; 256]> = LazyLock::new(|| {
    let mut index = 0_u32;
    [(); 256].map(|()| {
        let entry = (0..8).fold(index, |value, _| {
            if value & 1 == 1 { (value >> 1) ^ 0xEDB8_8320 } else { value >> 1 }
        });
        index += 1;
        entry
    })
});

/// CRC-32/ISO-HDLC continued from `before`, the CRC of what came before; SPEC 8.
pub(crate) fn crc(before: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!before, |value, &byte| {
        let [low, ..] = value.to_le_bytes();
        let entry = CRC_TABLE.get(usize::from(low ^ byte)).copied().unwrap_or_default();
        (value >> 8) ^ entry
    })
}

/// `low32(x)`.
pub(crate) fn low32(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The seeded CRC of bytes at an offset of a segment; SPEC 8.
pub(crate) fn seeded_crc(salt: u64, offset: usize, bytes: &[u8]) -> u32 {
    crc(low32(salt) ^ low32(wide(offset) / 8), bytes)
}

/// The header check of a frame whose words at 8, 16 and 24 are given; SPEC 8.
pub(crate) fn header_check(salt: u64, offset: usize, words: [u64; 3]) -> u32 {
    let hash = words.iter().fold(salt, |hash, word| {
        let hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^ (hash >> 32)
    });
    low32(hash) ^ low32(wide(offset) / 8)
}

/// `len` bytes at `at`, when all of them are there.
fn part(bytes: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(len)?)
}

/// The little-endian number of up to eight bytes at `at`.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let digits = part(bytes, at, len)?;
    Some(digits.iter().rev().fold(0, |value, &digit| (value << 8) | u64::from(digit)))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at, 8)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at, 4).map(low32)
}

pub(super) fn uuid_at(bytes: &[u8], at: usize) -> Option<[u8; 16]> {
    let uuid: [u8; 16] = part(bytes, at, 16)?.try_into().ok()?;
    (uuid != [0; 16]).then_some(uuid)
}

/// What `LOCK` says; SPEC 4.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LockState {
    WithoutUuid,
    Uuid([u8; 16]),
    Damaged,
}

/// Reads `LOCK`.
pub(crate) fn lock(bytes: &[u8]) -> LockState {
    let Some(content) = part(bytes, 0, 32) else { return LockState::WithoutUuid };
    if content.iter().all(|&byte| byte == 0) {
        return LockState::WithoutUuid;
    }
    let sound = content.starts_with(b"oncelock")
        && u32_at(content, 24) == Some(0)
        && u32_at(content, 28) == part(content, 0, 28).map(|covered| crc(0, covered));
    match uuid_at(content, 8) {
        Some(uuid) if sound => LockState::Uuid(uuid),
        _ => LockState::Damaged,
    }
}

/// The header of a segment; SPEC 5.1.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    pub(crate) bytes: Vec<u8>,
    pub(crate) uuid: [u8; 16],
    pub(crate) number: u64,
    pub(crate) first_lsn: u64,
    pub(crate) salt: u64,
    pub(crate) base_time: u64,
}

/// What 80 bytes are, read as the header of a segment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum HeaderState {
    Valid(Header),
    Unsupported,
    Invalid,
}

fn read_header(bytes: &[u8]) -> HeaderState {
    let Some(bytes) = part(bytes, 0, 80) else { return HeaderState::Invalid };
    let sound = bytes.starts_with(b"oncelog\n")
        && u32_at(bytes, 76) == part(bytes, 0, 76).map(|covered| crc(0, covered));
    if !sound {
        return HeaderState::Invalid;
    }
    if number(bytes, 8, 2) != Some(1) || u32_at(bytes, 12) != Some(0) {
        return HeaderState::Unsupported;
    }
    read_rest_of_header(bytes).map_or(HeaderState::Invalid, HeaderState::Valid)
}

fn read_rest_of_header(bytes: &[u8]) -> Option<Header> {
    let header = Header {
        bytes: bytes.to_vec(),
        uuid: uuid_at(bytes, 24)?,
        number: u64_at(bytes, 40)?,
        first_lsn: u64_at(bytes, 48)?,
        salt: u64_at(bytes, 56)?,
        base_time: u64_at(bytes, 64)?,
    };
    let sound = u32_at(bytes, 20) == Some(0)
        && u32_at(bytes, 72) == Some(0)
        && header.number >= 1
        && header.first_lsn >= 1
        && header.base_time <= TIME_MS_MAX;
    sound.then_some(header)
}

/// The header of a segment, and whether a slot's copy had to stand in for it.
pub(crate) fn header_of(file: &[u8]) -> (HeaderState, bool) {
    let own = read_header(file);
    if own != HeaderState::Invalid {
        return (own, false);
    }
    let newest = (0..2).filter_map(|index| read_slot(file, index)).max_by_key(|slot| slot.counter);
    newest.map_or((HeaderState::Invalid, false), |slot| (HeaderState::Valid(slot.header), true))
}

/// One slot; SPEC 5.2.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Slot {
    pub(crate) counter: u64,
    pub(crate) durable_lsn: u64,
    pub(crate) oldest_lsn: u64,
    pub(crate) header: Header,
}

/// What stands in the place of a slot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum SlotState {
    Valid(Slot),
    Zeros,
    Invalid,
}

/// Both slots of a segment, held against its header.
pub(crate) fn slots_of(file: &[u8], header: &Header) -> [SlotState; 2] {
    [0, 1].map(|index| match read_slot(file, index) {
        Some(slot) if slot.header == *header => SlotState::Valid(slot),
        None if index == 0
            && slot_bytes(file, index).is_some_and(|slot| slot.iter().all(|&byte| byte == 0)) =>
        {
            SlotState::Zeros
        }
        _ => SlotState::Invalid,
    })
}

fn slot_bytes(file: &[u8], index: usize) -> Option<&[u8]> {
    part(file, *SLOT_OFFSETS.get(index)?, 128)
}

/// Whether the bytes beside header and slots are zeros.
pub(crate) fn gaps_are_zeros(file: &[u8]) -> bool {
    let places = [(0, 80), (4096, 128), (8192, 128), (FRAMES_AT, usize::MAX)];
    let ends = places.iter().map(|(at, len)| at.saturating_add(*len));
    ends.zip(places.iter().skip(1)).all(|(end, (next, _))| {
        let gap = file.iter().take(*next).skip(end);
        gap.copied().all(|byte| byte == 0)
    })
}

/// Reads what a slot says about itself.
fn read_slot(file: &[u8], index: usize) -> Option<Slot> {
    let bytes = slot_bytes(file, index)?;
    let HeaderState::Valid(header) = read_header(part(bytes, 40, 80)?) else { return None };
    let slot = Slot {
        counter: u64_at(bytes, 8)?,
        durable_lsn: u64_at(bytes, 16)?,
        oldest_lsn: u64_at(bytes, 32)?,
        header,
    };
    let durable_offset = u64_at(bytes, 24)?;
    let sound = bytes.starts_with(b"onceslot")
        && u32_at(bytes, 124) == part(bytes, 0, 124).map(|covered| crc(0, covered))
        && u32_at(bytes, 120).map(u64::from) == Some(wide(index))
        && slot.counter >= 1
        && slot.counter % 2 == wide(index)
        && slot.durable_lsn >= slot.header.first_lsn.saturating_sub(1)
        && slot.oldest_lsn >= 1
        && durable_offset >= wide(FRAMES_AT)
        && durable_offset.is_multiple_of(8);
    sound.then_some(slot)
}

/// The header of a frame, as far as it can be judged without its payload and neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHeader {
    pub(crate) lsn: u64,
    pub(crate) length: usize,
    /// The durable LSN that the lag states.
    pub(crate) witness: Option<u64>,
    pub(crate) time: u64,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
}

/// Reads a frame header; SPEC 6.
pub(crate) fn frame_header(file: &[u8], offset: usize, salt: u64) -> Option<FrameHeader> {
    let bytes = part(file, offset, 32)?;
    let words = [u64_at(bytes, 8)?, u64_at(bytes, 16)?, u64_at(bytes, 24)?];
    let length = usize::try_from(u32_at(bytes, 16)?).ok()?;
    let lag = u32_at(bytes, 20)?;
    let [lsn, ..] = words;
    let &[kind, flags] = part(bytes, 30, 2)? else { return None };
    let sound = u32_at(bytes, 4)? == header_check(salt, offset, words)
        && length <= RECORD_LEN_MAX
        && part(file, offset, (32 + length).next_multiple_of(8)).is_some()
        && lsn != 0
        && (u64::from(lag) <= lsn || lag == u32::MAX)
        && kind != 0
        && flags & 0b1111_1110 == 0;
    let witness = if lag == u32::MAX { None } else { lsn.checked_sub(u64::from(lag)) };
    let time = number(bytes, 24, 6)?;
    sound.then_some(FrameHeader { lsn, length, witness, time, kind, flags })
}

/// A valid frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) offset: usize,
    /// The offset behind its padding.
    pub(crate) end: usize,
    pub(crate) lsn: u64,
    pub(crate) witness: Option<u64>,
    pub(crate) time: u64,
    pub(crate) kind: u8,
    pub(crate) ends_batch: bool,
    pub(crate) payload: &'a [u8],
}

/// Reads the frame that must carry `lsn`, not before `time_before`.
pub(crate) fn frame(
    file: &[u8],
    offset: usize,
    salt: u64,
    lsn: u64,
    time_before: u64,
) -> Option<Frame<'_>> {
    let header = frame_header(file, offset, salt)?;
    let used = 32 + header.length;
    let whole = part(file, offset, used.next_multiple_of(8))?;
    let covered = part(whole, 4, used - 4)?;
    let padding = whole.get(used..)?;
    let sound = u32_at(whole, 0)? == seeded_crc(salt, offset, covered)
        && header.lsn == lsn
        && header.time >= time_before
        && padding.iter().all(|&byte| byte == 0);
    sound.then_some(Frame {
        offset,
        end: offset + whole.len(),
        lsn,
        witness: header.witness,
        time: header.time,
        kind: header.kind,
        ends_batch: header.flags & 1 == 1,
        payload: part(whole, 32, header.length)?,
    })
}

/// The footer of a segment; SPEC 5.3.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Footer {
    pub(crate) offset: usize,
    pub(crate) last_lsn: u64,
    pub(crate) end: u64,
    pub(crate) durable_lsn: u64,
    pub(crate) record_count: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) time_first: u64,
    pub(crate) time_last: u64,
    /// LSN, offset and time of each entry.
    pub(crate) entries: Vec<(u64, u64, u64)>,
}

/// Reads the footer that ends where the file ends.
pub(crate) fn footer(file: &[u8], header: &Header) -> Option<Footer> {
    let length = usize::try_from(u32_at(file, file.len().checked_sub(16)?)?).ok()?;
    let offset = file.len().checked_sub(length)?;
    let bytes = file.get(offset..)?;
    let entry_count = usize::try_from(u32_at(bytes, 72)?).ok()?;
    let sound = length <= FOOTER_LEN_MAX
        && entry_count.checked_mul(24)?.checked_add(96)? == length
        && offset >= FRAMES_AT
        && offset.is_multiple_of(8)
        && bytes.starts_with(b"oncefoot")
        && bytes.ends_with(b"toofecno")
        && u64_at(bytes, 8)? == wide(offset)
        && u32_at(bytes, 76)? == 0
        && u32_at(bytes, length.checked_sub(12)?)?
            == seeded_crc(header.salt, offset, bytes.get(..length - 12)?);
    if !sound {
        return None;
    }
    let entries: Vec<_> = (0..entry_count)
        .map(|index| 80 + 24 * index)
        .map(|at| Some((u64_at(bytes, at)?, u64_at(bytes, at + 8)?, u64_at(bytes, at + 16)?)))
        .collect::<Option<_>>()?;
    let footer = Footer {
        offset,
        last_lsn: u64_at(bytes, 16)?,
        end: u64_at(bytes, 24)?,
        durable_lsn: u64_at(bytes, 32)?,
        record_count: u64_at(bytes, 40)?,
        payload_bytes: u64_at(bytes, 48)?,
        time_first: u64_at(bytes, 56)?,
        time_last: u64_at(bytes, 64)?,
        entries,
    };
    contradicts_itself(&footer).is_none().then_some(footer)
}

/// Whether the fields of a footer exclude each other; SPEC 5.3.
fn contradicts_itself(footer: &Footer) -> Option<&'static str> {
    let Footer { offset, last_lsn, end, record_count, entries, .. } = footer;
    let is_empty = *record_count == 0;
    let first = (last_lsn.saturating_sub(*record_count).saturating_add(1), 12_288);
    let pairs = || entries.iter().zip(entries.iter().skip(1));
    let rules = [
        ("end", *end >= 12_288 && end.is_multiple_of(8) && *end <= wide(*offset)),
        ("durable_lsn", footer.durable_lsn <= *last_lsn),
        ("record_count", record_count <= last_lsn),
        ("payload_bytes", footer.payload_bytes < *end),
        ("time_last", footer.time_last <= TIME_MS_MAX),
        ("time_first", is_empty || footer.time_first <= footer.time_last),
        ("empty", !is_empty || (*end == 12_288 && footer.time_first == 0)),
        ("entries", entries.is_empty() == is_empty),
        ("first entry", entries.first().is_none_or(|entry| (entry.0, entry.1) == first)),
        ("time of entry", entries.first().is_none_or(|entry| entry.2 == footer.time_first)),
        ("ascends", pairs().all(|(a, b)| a.0 < b.0 && a.1 < b.1 && a.2 <= b.2)),
        ("inside", entries.iter().all(|entry| entry.0 <= *last_lsn && entry.1 < *end)),
        ("multiple of 8", entries.iter().all(|entry| entry.1.is_multiple_of(8))),
        ("last time", entries.iter().all(|entry| entry.2 <= footer.time_last)),
    ];
    rules.iter().find(|(_, holds)| !holds).map(|(name, _)| *name)
}

/// The footer that states `frames`; where it stands, and its durable LSN, are taken from `found`.
pub(crate) fn footer_of(header: &Header, frames: &[Frame<'_>], found: &Footer) -> Footer {
    let mut entries: Vec<(u64, u64, u64)> = Vec::new();
    let mut next_at = 0;
    let mut begins_batch = true;
    for frame in frames {
        if begins_batch && frame.offset >= next_at {
            entries.push((frame.lsn, wide(frame.offset), frame.time));
            next_at = frame.offset + FOOTER_STRIDE_BYTES;
        }
        begins_batch = frame.ends_batch;
    }
    let last = frames.last();
    Footer {
        offset: found.offset,
        last_lsn: last.map_or(header.first_lsn - 1, |frame| frame.lsn),
        end: wide(last.map_or(FRAMES_AT, |frame| frame.end)),
        durable_lsn: found.durable_lsn,
        record_count: wide(frames.len()),
        payload_bytes: frames.iter().map(|frame| wide(frame.payload.len())).sum(),
        time_first: frames.first().map_or(0, |frame| frame.time),
        time_last: last.map_or(header.base_time, |frame| frame.time),
        entries,
    }
}

/// Whether either magic of a footer stands at a multiple of 8 from `end` on; row @K.
pub(crate) fn magic_stands_behind(file: &[u8], end: usize) -> bool {
    file.get(end..)
        .unwrap_or_default()
        .chunks_exact(8)
        .any(|word| word == b"oncefoot" || word == b"toofecno")
}
