//! Hostile bytes cost no more memory than the options of a log allow.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use allocation_counter::{AllocationInfo, measure};
use oncelog::channel::{Earlier, Runs};
use oncelog::io::Io;
use oncelog::{Batch, CreateMode, Durability, Log, LogView, Lsn, Options, RecordKind};
use oncelog_format::control::ControlRecord;
use oncelog_format::limits::CHUNK_COUNT_MAX;
use oncelog_format::message::{
    AckMode, BroadcastHeader, BroadcastId, Chunk, Fingerprint, Properties, Scope, TimeTick,
};
use oncelog_format::{FrameHeader, Message, Place, decode_frame};

use crate::figures::{figure, is_release};
use crate::image::still::{DIR, Harm, Still};
use crate::image::{Directory, Image};

/// What a look or an open may hold at once besides its windows: what it tells, and what the segments
/// are described by.
const LOOK_BYTES: u64 = 256 << 10;
/// The largest window of a file that is read or scanned.
const WINDOW_BYTES: u64 = 1 << 20;
/// The largest segment of a long log.
const LONG_BYTES: u64 = 16 << 20;
/// Where the first frame stands.
const FRAMES_OFFSET: u64 = 12_288;
/// What a decoder may hold for each byte of its input, and besides.
const DECODE_FACTOR: u64 = 32;
const DECODE_BYTES: u64 = 1 << 10;

fn data(below: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(below);
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

/// What a look or an open of this log may hold at once, whatever its files hold: two windows are open
/// together, and none is longer than a file.
fn look_bytes_max(directory: &Directory) -> u64 {
    let longest = directory.files.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(0);
    LOOK_BYTES + 2 * WINDOW_BYTES.min(longest as u64)
}

/// Where a file is damaged: about so many of the bytes that are no zeros, from its first to its last:
/// header, slots, frames, footer.
fn places(bytes: &[u8], count: usize) -> impl Iterator<Item = (usize, u8)> + '_ {
    let used = || bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
    let step = (used().count() / count).max(1);
    used().step_by(step).map(|(at, byte)| (at, *byte))
}

/// The directories of the golden logs, of those with damage, and of every input of the fuzzer that
/// is kept.
fn directories() -> Vec<(String, Directory)> {
    let images = data("tests/it/data/golden").into_iter().chain(data("tests/it/data/corpus"));
    let images = images.map(|path| {
        let image = Image::parse(&fs::read_to_string(&path).unwrap());
        (path.display().to_string(), image.directory)
    });
    let inputs = data("fuzz/corpus/open_directory").into_iter().map(|path| {
        let directory = crate::directory::decode(&fs::read(&path).unwrap());
        (path.display().to_string(), directory)
    });
    images.chain(inputs).collect()
}

/// Opens the log for appending and closes it.
fn open(directory: &Directory) -> AllocationInfo {
    let home = tempfile::tempdir().unwrap();
    for (name, bytes) in &directory.files {
        fs::write(home.path().join(name), bytes).unwrap();
    }
    if let Some(lock) = &directory.lock {
        fs::write(home.path().join("LOCK"), lock).unwrap();
    }
    let options = Options::new().segment_bytes_max(1 << 20).background(false);
    measure(|| {
        // Damage is an error, and costs no more.
        if let Ok((log, _)) = Log::open(home.path(), &options) {
            drop(log.close());
        }
    })
}

/// Looks, verifies, and reads all that is served.
fn look(io: Arc<dyn Io>) -> AllocationInfo {
    measure(|| {
        let view = LogView::open_unshared(DIR, io).unwrap();
        view.verify(&mut |_| {}).unwrap();
        let mut reader = view.reader(None).unwrap();
        while matches!(reader.next(), Ok(Some(_))) {}
    })
}

#[track_caller]
fn check(info: &AllocationInfo, max: u64, story: &str) -> u64 {
    assert!(info.bytes_max <= max, "{story}: {} bytes at once", info.bytes_max);
    assert!(info.bytes_current <= 0, "{story}: {} bytes stay", info.bytes_current);
    info.bytes_max
}

#[test]
fn no_damaged_log_costs_more_memory_than_the_options_allow() {
    let (mut worst, mut count, mut behind_slots) = (0, 0, 0);
    let sample = if is_release() { 400 } else { 24 };
    for (story, directory) in directories() {
        let max = look_bytes_max(&directory);
        let still = Still::new(&directory);
        worst = worst.max(check(&look(Arc::new(still.clone())), max, &story));
        count += 1;
        for file in 0..directory.count() {
            let (_, bytes) = directory.file(file).unwrap();
            for (at, byte) in places(bytes, sample) {
                behind_slots += u64::from(at as u64 >= FRAMES_OFFSET);
                let harm = Harm::Byte { at, value: byte ^ 0x80 };
                let info = look(still.with(file, harm));
                worst = worst.max(check(&info, max, &format!("{story} {file}:{at}")));
                count += 1;
            }
        }
    }
    figure(14, "damaged logs looked at", count);
    figure(14, "damaged logs looked at whose frames or footers are", behind_slots);
    figure(14, "most bytes that a look held at once", worst);
}

#[test]
fn no_damaged_log_costs_a_writer_more_memory_than_the_options_allow() {
    let (mut worst, mut count) = (0, 0);
    for (story, directory) in directories() {
        worst = worst.max(check(&open(&directory), look_bytes_max(&directory), &story));
        count += 1;
    }
    figure(14, "damaged logs opened by a writer", count);
    figure(14, "most bytes that an open held at once", worst);
}

/// A log of one sealed segment that is many windows long, and the first record behind it.
fn long() -> Directory {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("log");
    let options = Options::new().create(CreateMode::IfMissing).background(false);
    let (log, _) = Log::open(&dir, &options.segment_bytes_max(LONG_BYTES)).unwrap();
    let records = vec![[b'.'; 1000]; 64];
    let records: Vec<&[u8]> = records.iter().map(|record| &record[..]).collect();
    // Segments double until one has this size.
    while log.stats().segment_count < 6 {
        let batch = Batch { kind: RecordKind::RECORD, records: &records };
        log.append_batch(batch, Durability::Buffered).unwrap();
    }
    log.close().unwrap();
    let named = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "seg"));
    let mut files: Vec<_> = files.map(|path| (named(&path), fs::read(&path).unwrap())).collect();
    files.sort();
    // What is before it was trimmed, as a log that begins there says.
    let behind = files.len() - 2;
    let story = "a long segment".to_owned();
    Directory { files: files.split_off(behind), lock: None, story }
}

#[test]
fn a_look_at_damage_in_a_long_segment_holds_windows_of_it_alone() {
    let (directory, mut worst, mut count) = (long(), 0, 0);
    let still = Still::new(&directory);
    let (_, bytes) = directory.file(0).unwrap();
    assert!(bytes.len() as u64 > 8 * WINDOW_BYTES, "{} bytes", bytes.len());
    let max = look_bytes_max(&directory);
    for (at, byte) in places(bytes, if is_release() { 400 } else { 40 }) {
        let info = look(still.with(0, Harm::Byte { at, value: byte ^ 0x80 }));
        worst = worst.max(check(&info, max, &format!("byte {at}")));
        count += 1;
    }
    // All of what follows is scanned for what damage may have cut off.
    for from in [12_288, bytes.len() / 2] {
        let info = look(still.with(0, Harm::Zeros { from, to: bytes.len() }));
        worst = worst.max(check(&info, max, &format!("zeros from {from}")));
        count += 1;
    }
    figure(14, "damages of a long segment looked at", count);
    figure(14, "most bytes that a look at a long segment held at once", worst);
}

/// Every decoder on the bytes, however little they are meant for it.
fn decode(bytes: &[u8]) -> AllocationInfo {
    measure(|| {
        let place = Place { salt: 1, offset: 12_288 };
        let _header = FrameHeader::decode(bytes, place, bytes.len() as u64);
        let _frame = decode_frame(bytes, place);
        if let Ok(message) = Message::decode(bytes) {
            drop(message.property::<BroadcastHeader>());
            drop(message.property::<Scope>());
            drop(message.property::<Fingerprint>());
            let _chunk = message.chunk();
        }
        drop(ControlRecord::decode(bytes));
    })
}

#[test]
fn no_hostile_length_or_count_costs_more_memory_than_its_bytes() {
    let mut count: u64 = 0;
    let mut inputs = Vec::new();
    for target in ["decode_frame", "decode_segment", "decode_message", "decode_control"] {
        inputs.extend(data(&format!("fuzz/corpus/{target}")));
    }
    for path in inputs {
        let whole = fs::read(&path).unwrap();
        let max = DECODE_BYTES + DECODE_FACTOR * whole.len() as u64;
        check(&decode(&whole), max, &path.display().to_string());
        // A length or a count stands at some offset: each is set to the ends of its range.
        for at in 0..whole.len() {
            let left = (whole.len() - at) as u64;
            for value in [0, 1, left, left + 1, 1 << 31, u64::from(u32::MAX), 1 << 63, u64::MAX] {
                for width in [4, 8] {
                    let mut bytes = whole.clone();
                    for (to, from) in bytes.iter_mut().skip(at).zip(&value.to_le_bytes()[..width]) {
                        *to = *from;
                    }
                    let story = format!("{}: {value} at {at}", path.display());
                    check(&decode(&bytes), max, &story);
                    count += 1;
                }
            }
        }
    }
    figure(14, "hostile lengths and counts decoded", count);
}

/// A channel that holds nothing of what came before.
#[derive(Debug)]
struct Nothing;

impl Earlier for Nothing {
    fn oldest(&self) -> Lsn {
        Lsn::FIRST
    }

    fn begin(&mut self, _tick: TimeTick) -> oncelog::Result<Lsn> {
        Ok(Lsn::FIRST)
    }

    fn each(
        &mut self,
        _from: Lsn,
        _below: Lsn,
        _see: &mut dyn FnMut(Lsn, &bytes::Bytes) -> oncelog::Result<()>,
    ) -> oncelog::Result<()> {
        Ok(())
    }
}

#[test]
fn a_run_of_chunks_costs_memory_for_those_that_came_and_none_for_its_total() {
    const COUNT: u64 = 10_000;
    let mut properties = Properties::new();
    let vchannels = vec!["a".to_owned()];
    let (id, resources, ack) = (BroadcastId(1), Vec::new(), AckMode::Append);
    properties.set(&BroadcastHeader { id, vchannels, resources, ack }).unwrap();
    properties.set_chunk(Chunk::new(0, CHUNK_COUNT_MAX).unwrap()).unwrap();
    // Each begins a run that never ends.
    let records = (1..=COUNT).map(|tick| {
        properties.set(&TimeTick(tick)).unwrap();
        let mut record = Vec::new();
        properties.encode(&[7; 100], &mut record);
        bytes::Bytes::from(record)
    });
    let records: Vec<_> = records.collect();
    let info = measure(|| {
        let mut runs = Runs::new();
        for (lsn, record) in (1..).zip(&records) {
            assert!(runs.take(Lsn::new(lsn).unwrap(), record, &mut Nothing).unwrap().is_none());
        }
    });
    // The newest thousand are kept, at what a chunk and its run cost.
    let held = check(&info, 2 << 20, "runs that never end");
    figure(14, "most bytes held of ten thousand runs that never end", held);
}
