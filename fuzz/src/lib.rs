//! What the fuzz targets do with their input, apart from the engine.
//!
//! Each function gives hostile bytes to the decoders, twice: as they are, and with the checksums
//! made good, because an engine that has to guess 64 bits of checksum never gets behind them.
//! What decodes must encode to bytes that decode to the same value. Every function panics when
//! that fails, and is linear in its input.
//!
//! What reads the bytes a second time is the reference reader of the tests, the same files.

mod directory;
mod operations;

#[path = "../../tests/it"]
#[allow(dead_code, unused_imports, unused_macros, reason = "the tests use the rest")]
mod tests_of_log {
    pub(crate) mod differential;
    pub(crate) mod image;
    pub(crate) mod reference;
}

#[path = "../../tests/it/damage"]
#[allow(dead_code, reason = "the tests use the rest")]
mod tests_of_damage {
    pub(crate) mod seal;
}

use std::path::Path;
use std::sync::Arc;

use oncelog::io::Io;
use oncelog::testing::MemIo;
use oncelog::{Check, ErrorKind, Log, Options};
use tests_of_damage::seal;
use tests_of_log::{differential, image, reference};

use crate::differential::library::{look_by, machine_of};
use crate::image::still::{DIR, Still};

use oncelog_format::control::ControlRecord;
use oncelog_format::message::{
    BroadcastHeader, Fingerprint, LastConfirmed, MessageType, Scope, SliceStamp, TimeTick,
    TraceContext, Vchannel, Version, WriterTerm,
};
use oncelog_format::{
    Footer, FrameHeader, Message, Place, Properties, Property, SegmentHeader, Slot,
    decode_frame as frame_at, encode_frame, limits,
};

/// Puts in the bug that `ONCELOG_PLANT` names, so that a target can show that it would find it.
#[cfg(planted)]
fn plant() {
    use oncelog::planted::{Bug, plant_here};
    let name = std::env::var("ONCELOG_PLANT").unwrap_or_default();
    let bug = Bug::LOG.into_iter().chain([Bug::None]).find(|bug| format!("{bug:?}") == name);
    // No panic: that would count as a find.
    let Some(bug) = bug else { std::process::exit(3) };
    plant_here(bug);
}

#[cfg(not(planted))]
fn plant() {}

/// Salt and offset (8 bytes each), then a frame.
pub fn decode_frame(data: &[u8]) {
    let Some((salt, rest)) = data.split_first_chunk() else { return };
    let Some((offset, bytes)) = rest.split_first_chunk() else { return };
    let place = Place { salt: u64::from_le_bytes(*salt), offset: u64::from_le_bytes(*offset) & !7 };
    check_frame(bytes, place);
    let mut sealed = bytes.to_vec();
    seal_frame(&mut sealed, place);
    check_frame(&sealed, place);
}

/// A segment without the zeros between its blocks: header, slot 0, slot 1, and what begins at
/// offset 12288.
pub fn decode_segment(data: &[u8]) {
    let Some((header, rest)) = data.split_first_chunk::<{ SegmentHeader::LEN }>() else { return };
    let Some((slot0, rest)) = rest.split_first_chunk::<{ Slot::LEN }>() else { return };
    let Some((slot1, frames)) = rest.split_first_chunk::<{ Slot::LEN }>() else { return };
    let mut salt = 0;
    for header in [*header, sealed(*header)] {
        if let Ok(decoded) = SegmentHeader::decode(&header) {
            let again = decoded.encode();
            assert_eq!(SegmentHeader::decode(&again), Ok(decoded));
            assert_eq!(again, header);
            salt = decoded.salt;
        }
    }
    for (index, slot) in [(0, slot0), (1, slot1)] {
        for slot in [*slot, sealed(*slot)] {
            if let Ok(decoded) = Slot::decode(&slot, index) {
                assert_eq!(decoded.index(), index);
                assert_eq!(decoded.encode(), slot);
            }
        }
    }
    walk(frames, salt);
    check_footer(frames, salt);
}

/// A record that is a message.
pub fn decode_message(data: &[u8]) {
    let Ok(message) = Message::decode(data) else { return };
    let mut again = Vec::new();
    let properties = Properties::of(&message);
    properties.encode(message.payload(), &mut again);
    assert_eq!(again, data);
    check_property::<Version>(&message);
    check_property::<MessageType>(&message);
    check_property::<WriterTerm>(&message);
    check_property::<TimeTick>(&message);
    check_property::<LastConfirmed>(&message);
    check_property::<Vchannel>(&message);
    check_property::<BroadcastHeader>(&message);
    check_property::<Scope>(&message);
    check_property::<Fingerprint>(&message);
    check_property::<TraceContext>(&message);
    check_property::<SliceStamp>(&message);
    if let Ok(Some(chunk)) = message.chunk() {
        assert!(chunk.total() >= 2 && chunk.index() < chunk.total());
    }
}

/// The files of a log: whoever looks at it, and who opens it for writing.
pub fn open_directory(data: &[u8]) {
    plant();
    for sealed in [false, true] {
        let mut directory = directory::decode(data);
        if sealed {
            directory::seal(&mut directory);
        }
        let seen = look_by(Arc::new(Still::new(&directory)), Path::new(DIR));
        // SPEC 5.1: the time at which a segment begins is not held against the one before.
        let is_first = |lsn: u64| {
            let ending = format!("-{lsn:020}.seg");
            directory.files.iter().any(|(name, _)| name.ends_with(&ending))
        };
        for (before, after) in seen.records.iter().zip(seen.records.iter().skip(1)) {
            assert_eq!(before.lsn + 1, after.lsn);
            assert!(before.time <= after.time || is_first(after.lsn), "LSN {}", after.lsn);
        }
        write(&directory);
    }
}

/// Opens a log for writing, appends, and finds the same again.
fn write(directory: &image::Directory) {
    let io = MemIo::new(machine_of(directory));
    let options = || Options::new().segment_bytes_max(65_536).background(false).io(mem(&io));
    let before = io.machine().digest();
    let (log, _) = match Log::open(DIR, &options().check(Check::Full)) {
        Ok(opened) => opened,
        Err(e) => {
            let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::InvalidInput];
            let is_at_end = e.kind() == ErrorKind::Limit;
            assert!(kinds.contains(&e.kind()) || is_at_end, "{e}");
            assert!(is_at_end || before == io.machine().digest(), "a refusal touches nothing");
            return;
        }
    };
    let (oldest, next) = (log.oldest_lsn(), log.next_lsn());
    let mut reader = log.reader(oldest).expect("a reader");
    while reader.next().expect("what was checked is read").is_some() {}
    match log.append(b"one more") {
        Ok(lsn) => assert_eq!(lsn, next),
        Err(e) => assert_eq!(e.kind(), ErrorKind::Limit, "{e}"),
    }
    let end = (log.oldest_lsn(), log.next_lsn());
    log.close().expect("a close");
    let (log, report) = Log::open(DIR, &options().check(Check::Full)).expect("a sound log");
    assert_eq!((log.oldest_lsn(), log.next_lsn()), end);
    assert!(report.torn.is_none(), "{report:?}");
}

fn mem(io: &MemIo) -> Arc<dyn Io> {
    Arc::new(io.clone())
}

/// The library beside the reference, on the files of a log.
pub fn against_reference(data: &[u8]) {
    plant();
    for sealed in [false, true] {
        let mut directory = directory::decode(data);
        if sealed {
            directory::seal(&mut directory);
        }
        differential::check(&directory, "these bytes");
        for (name, file) in directory.files.iter().filter(|(name, _)| name.ends_with(".seg")) {
            let seen = look_by(Arc::new(Still::new(&directory)), &Path::new(DIR).join(name));
            differential::check_seen(&reference::judge_alone(file), &seen, name);
        }
    }
}

/// Operations on a log, with crashes, against a model.
pub fn operations(data: &[u8]) {
    plant();
    operations::run(data);
}

/// A control record.
pub fn decode_control(data: &[u8]) {
    let Ok(record) = ControlRecord::decode(data) else { return };
    let again = record.encode().expect("what decodes has an encoding");
    assert_eq!(ControlRecord::decode(&again), Ok(record));
    assert!(again.len() <= data.len());
}

fn check_property<P: Property>(message: &Message<'_>) {
    if let Ok(Some(value)) = message.property::<P>() {
        let mut again = Vec::new();
        value.encode_value(&mut again).expect("what decodes has an encoding");
        assert_eq!(message.value(P::KEY), Some(&again[..]));
    }
}

fn check_frame(bytes: &[u8], place: Place) {
    let Ok((header, payload)) = frame_at(bytes, place) else { return };
    let mut again = Vec::new();
    encode_frame(&header, place, &[payload], &mut again);
    assert_eq!(again[..], bytes[..again.len()]);
    assert_eq!(frame_at(&again, place), Ok((header, payload)));
}

/// Frames one behind the other, and after an invalid one a scan of every multiple of 8.
fn walk(frames: &[u8], salt: u64) {
    let mut at = 0;
    while at < frames.len() {
        let place = Place { salt, offset: limits::FRAMES_OFFSET + at as u64 };
        let room = (frames.len() - at) as u64;
        let Ok(header) = FrameHeader::decode(&frames[at..], place, room) else {
            at += 8;
            continue;
        };
        assert!(header.frame_len() <= room);
        check_frame(&frames[at..], place);
        at += header.frame_len() as usize;
    }
}

fn check_footer(frames: &[u8], salt: u64) {
    let Some(len) = Footer::len_from_tail(frames) else { return };
    let Some(at) = frames.len().checked_sub(len as usize) else { return };
    let place = Place { salt, offset: limits::FRAMES_OFFSET + at as u64 };
    let mut bytes = frames[at..].to_vec();
    let crc_at = bytes.len() - 12;
    let crc = oncelog_format::frame::seeded_crc(place, &bytes[..crc_at]);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    for bytes in [&frames[at..], &bytes] {
        if let Ok(footer) = Footer::decode(bytes, place) {
            assert_eq!(footer.encode(salt), bytes);
        }
    }
}

/// The same bytes with a good CRC in the last four.
fn sealed<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
    let crc = crc32fast::hash(&bytes[..N - 4]);
    bytes[N - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Makes check and CRC of a frame good, as SPEC 8 says.
fn seal_frame(bytes: &mut [u8], place: Place) {
    if bytes.len() < FrameHeader::LEN {
        return;
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let mut h = place.salt;
    for at in [8, 16, 24] {
        h = (h ^ word(at)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        h ^= h >> 32;
    }
    let check = (h as u32) ^ ((place.offset / 8) as u32);
    let len = word(16) as u32 as usize;
    bytes[4..8].copy_from_slice(&check.to_le_bytes());
    let end = bytes.len().min(FrameHeader::LEN.saturating_add(len));
    let crc = oncelog_format::frame::seeded_crc(place, &bytes[4..end]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// The seeds on a stable compiler.
    #[test]
    fn every_seed_holds() {
        let targets: [(&str, fn(&[u8])); 7] = [
            ("decode_frame", super::decode_frame),
            ("decode_segment", super::decode_segment),
            ("decode_message", super::decode_message),
            ("decode_control", super::decode_control),
            ("open_directory", super::open_directory),
            ("open_directory", super::against_reference),
            ("operations", super::operations),
        ];
        for (target, run) in targets {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
            let mut count = 0;
            for entry in fs::read_dir(corpus).unwrap() {
                run(&fs::read(entry.unwrap().path()).unwrap());
                count += 1;
            }
            assert!(count > 5, "{target} has seeds");
        }
    }
}
