//! How segments begin: what a roll needs, what it does without, and what it says of itself.

use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog::io::fs::FsIo;
use oncelog::io::{DirEntry, EntryKind, Io, IoFile, OpenHow};
use oncelog::testing::{CallKind, EIO, EMFILE, ENOSPC, Fault, Machine, MemIo, Which};
use oncelog::{ErrorKind, Fill, FindingKind, Log, LogView, Options, Retention, Severity};
use oncelog_format::segment::MINOR;
use oncelog_format::{SegmentHeader, Slot};

use super::{lsn, memory, options, place, read};

const DIR: &str = "/log";

/// Appends records of which a segment holds a few.
fn fill(log: &Log, records: usize) {
    for _ in 0..records {
        log.append(&[1; 9000]).unwrap();
    }
}

/// The segments below a directory, in order.
fn segments(io: &dyn Io, dir: &str) -> Vec<PathBuf> {
    let names = io.list(Path::new(dir)).unwrap().into_iter().map(|entry| entry.name);
    let paths = names.map(|name| Path::new(dir).join(name));
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
    paths.sort();
    paths
}

/// A log of many segments and one more that is bare, on a disk without a free block.
fn bare_and_full() -> (MemIo, Options) {
    (1..200)
        .find_map(|nth| {
            let io = MemIo::new(Machine::new());
            let options = options().background(false).fill(Fill::Allocate);
            let (log, _) = Log::open(DIR, &options.clone().io(Arc::new(io.clone()))).unwrap();
            fill(&log, 25);
            io.arm(Which::Persist, nth, 1, Fault::Stop);
            while !io.is_stopped() {
                drop(log.append(&[1; 9000]));
            }
            let mut machine = io.machine();
            machine.set_free_blocks(Some(0));
            let io = MemIo::new(machine);
            let view = LogView::open_unshared(DIR, Arc::new(io.clone())).unwrap();
            let is_bare = view.findings().iter().any(|found| found.kind == FindingKind::TailBare);
            is_bare.then(|| (io.clone(), options.io(Arc::new(io))))
        })
        .expect("a kill that leaves a bare tail")
}

#[test]
fn a_bare_tail_on_a_full_disk_keeps_neither_trims_nor_appends_from_going_on() {
    #[track_caller]
    fn check(free: impl Fn(&Log), oldest_moves: bool) {
        let (io, options) = bare_and_full();
        let options = options.retention(Retention::new().segment_count_max(2));
        let (log, report) = Log::open(DIR, &options).unwrap();
        assert!(report.segment_count > 3);
        let (oldest, next) = (log.oldest_lsn(), log.next_lsn());
        free(&log);
        assert_eq!(log.oldest_lsn() > oldest, oldest_moves);
        while log.remove_step().unwrap() {}
        // What was freed is what the log goes on with.
        if oldest_moves {
            fill(&log, 12);
        }
        let next = if oldest_moves { log.next_lsn() } else { next.next() };
        assert_eq!(log.next_lsn(), next);
        log.close().unwrap();
        let (log, report) = Log::open(DIR, &options.io(Arc::new(io))).unwrap();
        assert_eq!((log.next_lsn(), report.torn), (next, None));
        let records = read(&log, log.oldest_lsn().get());
        assert_eq!(records.last().map(|record| record.lsn), next.prev());
    }
    check(|log| log.trim(lsn(20)).unwrap(), true);
    check(|log| assert!(log.trim_by_retention().unwrap().segment_count > 0), true);
    let append = |log: &Log| assert!(log.append(b"small").is_ok());
    check(append, false);
}

#[test]
fn a_roll_without_a_free_file_handle_is_refused_and_poisons_nothing() {
    let (io, options) = memory();
    let (log, _) = Log::open(DIR, &options).unwrap();
    fill(&log, 5);
    io.arm(Which::Kind(CallKind::OpenDir), 1, 1, Fault::Error(EMFILE));
    let refused = log.append(&[1; 9000]).unwrap_err();
    assert_eq!((refused.kind(), io.struck()), (ErrorKind::Io, 1), "{refused}");
    assert_eq!(segments(&io, DIR).len(), 1);
    // Nothing was sealed: what fits goes on where it was.
    assert_eq!(log.append(b"small").unwrap(), lsn(6));
    assert_eq!(segments(&io, DIR).len(), 1);
    assert_eq!(log.append(&[1; 9000]).unwrap(), lsn(7));
    assert_eq!(segments(&io, DIR).len(), 2);
    io.arm(Which::Kind(CallKind::OpenDir), 1, 1, Fault::Error(EMFILE));
    assert_eq!(log.cursor("consumer").unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(io.struck(), 2);
    log.cursor("consumer").unwrap();
    // A sync that fails is as final as ever.
    fill(&log, 4);
    io.arm(Which::Kind(CallKind::SyncDir), 1, 1, Fault::Error(EIO));
    assert_eq!(log.append(&[1; 9000]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(io.struck(), 3);
}

/// A footer stands behind the last frame then, and no frame comes there.
#[test]
fn an_append_behind_a_roll_that_was_refused_behind_the_footer_rolls() {
    #[track_caller]
    fn check(kind: CallKind, nth: u64) {
        let (io, options) = memory();
        let (log, _) = Log::open(DIR, &options).unwrap();
        fill(&log, 5);
        io.arm(Which::Kind(kind), nth, 1, Fault::Error(ENOSPC));
        let refused = log.append(&[1; 9000]).unwrap_err();
        assert_eq!((refused.kind(), io.struck()), (ErrorKind::StoreFull, 1), "{refused}");
        let [first] = &segments(&io, DIR)[..] else { panic!("a segment was made") };
        let sealed = io.machine().bytes(first).unwrap();
        assert_eq!(log.append(b"small").unwrap(), lsn(6));
        assert_eq!(segments(&io, DIR).len(), 2);
        assert_eq!(io.machine().bytes(first).unwrap(), sealed, "one footer");
        io.kill();
        drop(log);
        let options = options.io(Arc::new(MemIo::new(io.machine())));
        let (log, report) = Log::open(DIR, &options).unwrap();
        assert_eq!(read(&log, 1).len(), 6);
        assert!(report.findings.iter().all(|found| found.severity == Severity::Info), "{report:?}");
    }
    // The header of the next segment, its slot, and its name.
    check(CallKind::Write, 2);
    check(CallKind::Write, 3);
    check(CallKind::Rename, 1);
}

#[test]
fn the_identity_of_a_log_is_durable_when_its_open_returns() {
    let (io, options) = memory();
    let (log, _) = Log::open(DIR, &options).unwrap();
    let machine = io.machine();
    let left = machine.power_loss(&machine.unsynced(), &[]);
    let lock = left.bytes(Path::new(DIR).join("LOCK")).unwrap();
    let found = oncelog_format::decode_lock(&lock[..32]).unwrap().expect("an identity");
    assert_eq!(found.1, log.uuid());
}

#[test]
fn a_segment_is_of_the_version_that_begins_it_and_takes_frames_of_no_other() {
    #[track_caller]
    fn check(minor: u16, compat: u32) {
        let (io, options) = memory();
        let (log, _) = Log::open(DIR, &options).unwrap();
        fill(&log, 2);
        log.close().unwrap();
        let first = segments(&io, DIR).remove(0);
        let mut bytes = io.machine().bytes(&first).unwrap();
        let header = SegmentHeader { minor, compat, ..SegmentHeader::decode(&bytes).unwrap() };
        for index in [0, 1] {
            let at = usize::try_from(Slot::offset_of(index)).unwrap();
            let place = &mut bytes[at..at + Slot::LEN];
            let slot = Slot { header, ..Slot::decode(place, index).unwrap() };
            place.copy_from_slice(&slot.encode());
        }
        bytes[..SegmentHeader::LEN].copy_from_slice(&header.encode());
        io.alter(|machine| machine.put(&first, &bytes)).unwrap();
        let (log, report) = Log::open(DIR, &options).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        fill(&log, 8);
        let version = |path: &PathBuf| {
            let header = SegmentHeader::decode(&io.machine().bytes(path).unwrap()).unwrap();
            (header.minor, header.compat)
        };
        let paths = segments(&io, DIR);
        assert_eq!(version(&paths[0]), (minor, compat));
        assert!(paths[1..].iter().all(|path| version(path) == (MINOR, 0)));
        let records = read(&log, 1);
        let in_first = records.iter().filter(|record| record.segment.get() == 1).count();
        assert_eq!((records.len(), in_first), (10, 2));
        log.backup("/copy").unwrap();
        assert!(segments(&io, "/copy").iter().all(|path| version(path) == (MINOR, 0)));
        log.close().unwrap();
    }
    check(MINOR + 7, 0);
    check(MINOR, 0x10);
    check(MINOR + 1, 1);
}

/// The files of the machine, by absolute paths alone.
#[derive(Debug)]
struct Absolute(FsIo);

impl Absolute {
    fn under(&self, path: &Path) -> &FsIo {
        assert!(path.is_absolute(), "{}", path.display());
        &self.0
    }
}

impl Io for Absolute {
    fn open(&self, path: &Path, how: OpenHow) -> Result<Arc<dyn IoFile>> {
        self.under(path).open(path, how)
    }

    fn open_dir(&self, dir: &Path) -> Result<Arc<dyn IoFile>> {
        self.under(dir).open_dir(dir)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.under(dir).list(dir)
    }

    fn kind(&self, path: &Path) -> Result<Option<EntryKind>> {
        self.under(path).kind(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.under(to).rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.under(path).remove(path)
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.under(path).create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.under(dir).sync_dir(dir)
    }

    fn random(&self, buf: &mut [u8]) -> Result<()> {
        self.0.random(buf)
    }
}

#[test]
fn a_relative_path_is_that_of_the_open_whatever_becomes_the_directory_of_the_process() {
    let (home, _) = place();
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let relative = up.join(home.path().strip_prefix("/").unwrap());
    assert!(relative.is_relative());
    let io: Arc<dyn Io> = Arc::new(Absolute(FsIo::new()));
    let options = options().io(Arc::clone(&io));
    let (log, _) = Log::open(relative.join("log"), &options).unwrap();
    fill(&log, 12);
    log.cursor("consumer").unwrap();
    log.backup(relative.join("copy")).unwrap();
    let view = LogView::open(relative.join("log"), Arc::clone(&io)).unwrap();
    assert!(view.path().is_absolute());
    assert_eq!(view.segments().len(), 3);
    view.backup(relative.join("copy of the view")).unwrap();
    log.close().unwrap();
    let empty = Log::open("", &options).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::InvalidInput);
}
