//! A log of ten thousand segments and of the shape of a hundred gigabytes, opened, read, appended
//! to and trimmed by processes that the system gives little: 256 MiB of address space and 64 files.
//!
//! What is gated are counts: reads of an open, and memory that no file stands behind.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog::testing::Dice;
use oncelog::{CreateMode, ErrorKind, Fill, Log, LogView, Lsn, Options};
use oncelog_format::{
    Footer, FooterEntry, FrameHeader, Owner, Place, SegmentHeader, Slot, Uuid, encode_frame,
    encode_lock, limits, segment_name,
};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::child;
use super::figures::figure;
use super::seam::{Lie, Seam};

/// Segments of the log, the tail among them.
const SEGMENTS: u64 = 10_000;
/// Size of a sealed segment, most of it a hole: a hundred gigabytes in all.
const SEGMENT_BYTES: u64 = 10 << 20;
/// Size of one that is larger than the address space of who reads it.
const LARGE_BYTES: u64 = 1 << 30;
/// Records of each segment.
const RECORDS: u64 = 3;

/// Address space of a process, in bytes.
const ADDRESS_BYTES: u64 = 256 << 20;
/// Files that a process may have open.
const FILES: u64 = 64;
/// Memory of a replay that no file stands behind, in KiB.
const ANON_KIB_MAX: u64 = 32 << 10;
/// Where the directory of the log is told to a process.
const DIR: &str = "ONCELOG_MACHINE_LOG";

const IDENTITY: Uuid = Uuid(*b"ten thousand seg");

fn payload(lsn: u64) -> Vec<u8> {
    format!("record {lsn}").into_bytes()
}

/// Writes a segment as its writer leaves it, without what a crash left dead in it.
fn forge(dir: &Path, number: u64, dice: &mut Dice) {
    let first_lsn = (number - 1) * RECORDS + 1;
    let header = SegmentHeader {
        minor: 0,
        compat: 0,
        uuid: IDENTITY,
        number,
        first_lsn,
        salt: dice.roll(),
        base_time_ms: number - 1,
    };
    let slot = Slot {
        counter: 1,
        durable_lsn: first_lsn - 1,
        durable_offset: limits::FRAMES_OFFSET,
        oldest_lsn: 1,
        header,
    };
    let mut frames = Vec::new();
    let mut payload_bytes = 0;
    for lsn in first_lsn..first_lsn + RECORDS {
        let offset = limits::FRAMES_OFFSET + frames.len() as u64;
        let payload = payload(lsn);
        let frame = FrameHeader {
            lsn,
            len: u32::try_from(payload.len()).unwrap(),
            lag: FrameHeader::lag_of(lsn, lsn - 1),
            time_ms: number,
            kind: 1,
            batch_end: true,
        };
        payload_bytes += payload.len() as u64;
        encode_frame(&frame, Place { salt: header.salt, offset }, &[&payload], &mut frames);
    }
    let path = dir.join(segment_name(number, first_lsn));
    let file = File::options().write(true).create_new(true).open(path).unwrap();
    file.write_all_at(&header.encode(), 0).unwrap();
    file.write_all_at(&slot.encode(), Slot::offset_of(slot.index())).unwrap();
    file.write_all_at(&frames, limits::FRAMES_OFFSET).unwrap();
    if number == SEGMENTS {
        return file.set_len(1 << 20).unwrap();
    }
    let footer = |offset| Footer {
        offset,
        last_lsn: first_lsn + RECORDS - 1,
        end: limits::FRAMES_OFFSET + frames.len() as u64,
        durable_lsn: first_lsn + RECORDS - 1,
        record_count: RECORDS,
        payload_bytes,
        time_first_ms: number,
        time_last_ms: number,
        entries: vec![FooterEntry {
            lsn: first_lsn,
            offset: limits::FRAMES_OFFSET,
            time_ms: number,
        }],
    };
    let size = if number.is_multiple_of(4000) { LARGE_BYTES } else { SEGMENT_BYTES };
    let len = footer(size).encode(header.salt).len() as u64;
    let footer = footer(size - len);
    file.write_all_at(&footer.encode(header.salt), footer.offset).unwrap();
}

fn forge_log(dir: &Path) {
    let mut dice = Dice::new(1);
    for number in 1..=SEGMENTS {
        forge(dir, number, &mut dice);
    }
    let mut lock = [0; 512];
    lock[..32].copy_from_slice(&encode_lock(Owner::Log, IDENTITY));
    fs::write(dir.join("LOCK"), lock).unwrap();
}

/// Takes from this process what the system would give it.
fn give_little() {
    let limit = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::As, limit(ADDRESS_BYTES)).unwrap();
    setrlimit(Resource::Nofile, limit(FILES)).unwrap();
}

/// A number of /proc/self/status, in KiB.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

/// Memory of this process that no file stands behind, in KiB.
fn anon() -> u64 {
    status("RssAnon")
}

/// Reads a log to its end, and says how much memory it had at most.
fn replay(mut next: impl FnMut() -> oncelog::Result<Option<oncelog::Record>>, from: u64) -> u64 {
    let (mut lsn, mut most) = (from, 0);
    while let Some(record) = next().unwrap() {
        assert_eq!((record.lsn.get(), &record.payload[..]), (lsn, &payload(lsn)[..]));
        lsn += 1;
        if lsn.is_multiple_of(500) {
            most = most.max(anon());
        }
    }
    assert_eq!(lsn, SEGMENTS * RECORDS + 1);
    most
}

/// A writer: opens, reads all, appends and trims.
fn write(dir: &Path) {
    let seam = Seam::new(Lie::None);
    let before = anon();
    let (log, report) = Log::open(dir, &Options::new().io(Arc::new(seam.clone()))).unwrap();
    let counts = seam.counts();
    assert_eq!(report.segment_count, SEGMENTS);
    drop(report);
    figure(14, "reads to open 10,000 segments", counts["read"]);
    figure(14, "opens of files to open 10,000 segments", counts["open"]);
    // The tail and LOCK are read beside the sealed segments, in a few steps.
    assert!(counts["read"] <= 2 * SEGMENTS + 32, "{counts:?}");
    figure(14, "KiB of memory of a log of 10,000 segments", anon() - before);
    let mut reader = log.reader(Lsn::FIRST).unwrap();
    let most = replay(|| reader.next(), 1) - before;
    figure(14, "KiB of memory at most while a writer's reader replays 10,000 segments", most);
    assert!(most <= ANON_KIB_MAX, "{most} KiB");
    drop(reader);
    let next = log.append(b"still").unwrap();
    log.trim(next).unwrap();
    assert!(log.reader(Lsn::FIRST).is_err());
    log.close().unwrap();
    let (log, _) = Log::open(dir, &Options::new()).unwrap();
    assert_eq!((log.oldest_lsn(), log.next_lsn().get()), (next, next.get() + 1));
    log.close().unwrap();
}

/// A reader of another process.
fn read(dir: &Path) {
    let seam = Seam::new(Lie::None);
    let before = anon();
    let view = LogView::open(dir, Arc::new(seam.clone())).unwrap();
    assert!(seam.counts()["read"] <= 2 * SEGMENTS + 32, "{:?}", seam.counts());
    let mut reader = view.reader(None).unwrap();
    let most = replay(|| reader.next(), 1) - before;
    figure(14, "KiB of memory at most while another process replays 10,000 segments", most);
    assert!(most <= ANON_KIB_MAX, "{most} KiB");
}

#[test]
fn ten_thousand_segments_are_opened_read_and_trimmed_with_little() {
    if let Some(part) = child::part() {
        give_little();
        let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
        return if part == "read" { read(&dir) } else { write(&dir) };
    }
    let home = child::home();
    forge_log(home.path());
    let name = "limits::ten_thousand_segments_are_opened_read_and_trimmed_with_little";
    for part in ["read", "write"] {
        let mut command = child::again(name, part);
        command.env(DIR, home.path());
        child::play(command);
    }
}

/// Rolls onto a spare that is there, while other files of the process take every handle.
fn roll_without_a_handle(dir: &Path) {
    let options = Options::new().create(CreateMode::IfMissing).background(false);
    let options = options.segment_bytes_max(65_536).fill(Fill::Zero);
    let (log, _) = Log::open(dir, &options).unwrap();
    for _ in 0..5 {
        log.append(&[1; 9000]).unwrap();
    }
    while log.fill_step().unwrap() {}
    let handles = std::iter::from_fn(|| File::open("/dev/null").ok());
    let handles: Vec<File> = handles.collect();
    for _ in 0..3 {
        let refused = log.append(&[1; 9000]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    }
    drop(handles);
    assert_eq!(log.append(&[1; 9000]).unwrap().get(), 6);
    log.close().unwrap();
}

#[test]
fn a_process_that_has_no_file_handle_left_for_a_moment_goes_on_with_its_log() {
    if child::part().is_some() {
        give_little();
        return roll_without_a_handle(&PathBuf::from(std::env::var_os(DIR).unwrap()));
    }
    let home = child::home();
    let name = "limits::a_process_that_has_no_file_handle_left_for_a_moment_goes_on_with_its_log";
    let mut command = child::again(name, "roll");
    command.env(DIR, home.path().join("log"));
    child::play(command);
}
