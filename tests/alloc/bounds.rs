//! Hostile bytes cost no more memory than the options of a log allow.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use allocation_counter::{AllocationInfo, measure};
use oncelog::channel::{Earlier, Runs};
use oncelog::io::Io;
use oncelog::{Log, LogView, Lsn, Options};
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
/// What a decoder may hold for each byte of its input, and besides.
const DECODE_FACTOR: u64 = 32;
const DECODE_BYTES: u64 = 1 << 10;

fn data(below: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(below);
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

/// What a look or an open of this log may hold at once: no window is longer than a file, and two are
/// open together.
fn look_bytes_max(directory: &Directory) -> u64 {
    let lengths = directory.files.iter().map(|(_, bytes)| bytes.len());
    LOOK_BYTES + 2 * lengths.max().unwrap_or(0) as u64
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
    let (mut worst, mut count) = (0, 0);
    let (step, sample) = if is_release() { (3, 2_000) } else { (13, 8) };
    for (story, directory) in directories() {
        let max = look_bytes_max(&directory);
        let still = Still::new(&directory);
        worst = worst.max(check(&look(Arc::new(still.clone())), max, &story));
        count += 1;
        // Of what is not zeros: headers, slots, frames, footers.
        for file in 0..directory.count() {
            let (_, bytes) = directory.file(file).unwrap();
            let used = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
            for (at, byte) in used.step_by(step).take(sample) {
                let harm = Harm::Byte { at, value: byte ^ 0x80 };
                let info = look(still.with(file, harm));
                worst = worst.max(check(&info, max, &format!("{story} {file}:{at}")));
                count += 1;
            }
        }
    }
    figure(14, "damaged logs looked at", count);
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
