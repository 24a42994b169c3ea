//! A writer rebuilds what is degraded and holds no record, and no crash of that costs one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use oncelog::io::Io as _;
use oncelog::io::fs::FsIo;
use oncelog::testing::{
    CallKind, Dice, EDQUOT, EIO, EMFILE, ENOSPC, Fault, Machine, MemIo, Which, survivors,
};
use oncelog::{Durability, ErrorKind, Fill, FindingKind, Log, LogView, Options, Severity};

use super::watch::{Event, Watch};
use super::{batch, lsn, options, read};

const DIR: &str = "/db";
const RECORD_COUNT: usize = 120;

fn on(io: &MemIo) -> Options {
    options().background(false).io(Arc::new(io.clone()))
}

fn payload(i: usize) -> Vec<u8> {
    vec![u8::try_from(i).unwrap(); 1500]
}

/// Three segments and more, closed well.
fn logged() -> Machine {
    let io = MemIo::new(Machine::new());
    let (log, _) = Log::open(DIR, &on(&io)).unwrap();
    for i in 0..RECORD_COUNT {
        log.append_batch(batch(&[&payload(i)]), Durability::Buffered).unwrap();
    }
    log.close().unwrap();
    let mut machine = io.machine();
    machine.sync_all();
    machine
}

fn segments(machine: &Machine) -> Vec<PathBuf> {
    let names = MemIo::new(machine.clone()).list(Path::new(DIR)).unwrap();
    let mut names: Vec<PathBuf> = names.into_iter().map(|e| Path::new(DIR).join(e.name)).collect();
    names.retain(|path| path.extension().is_some_and(|ending| ending == "seg"));
    names.sort();
    names
}

fn change(machine: &mut Machine, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = machine.bytes(path).unwrap();
    change(&mut bytes);
    machine.put(path, &bytes).unwrap();
    machine.sync_all();
}

type Damage = fn(&mut Vec<u8>);

/// Everything in a sealed segment that no record needs.
const DAMAGES: [(&str, Damage); 8] = [
    ("footer flipped", |bytes| *bytes.iter_mut().rev().nth(30).unwrap() ^= 1),
    ("footer cut", |bytes| bytes.truncate(bytes.len() - 8)),
    ("footer zeroed", |bytes| {
        let len = bytes.len();
        bytes[len - 100..].fill(0);
    }),
    ("bytes behind the footer", |bytes| bytes.extend([7; 3])),
    ("first slot", |bytes| bytes[4096 + 20] ^= 1),
    ("second slot", |bytes| bytes[8192 + 20] ^= 1),
    ("both slots", |bytes| (bytes[4096 + 20], bytes[8192 + 20]) = (1, 1)),
    ("header and footer", |bytes| {
        bytes[20] ^= 1;
        bytes.pop();
    }),
];

/// The findings of every frame and copy that are worse than information.
fn complaints(machine: &Machine) -> Vec<FindingKind> {
    let view = LogView::open_unshared(DIR, Arc::new(MemIo::new(machine.clone()))).unwrap();
    let mut found = Vec::new();
    view.verify(&mut |finding| {
        if finding.severity > Severity::Info {
            found.push(finding.kind);
        }
    })
    .unwrap();
    found
}

#[track_caller]
fn check_whole(machine: &Machine, what: &str) {
    let (log, _) = Log::open(DIR, &on(&MemIo::new(machine.clone()))).unwrap();
    let records = read(&log, 1);
    assert_eq!(records.len(), RECORD_COUNT, "{what}");
    for (i, record) in records.iter().enumerate() {
        assert_eq!(record.payload, payload(i), "{what}");
    }
}

#[test]
fn what_no_record_needs_is_rebuilt_once() {
    let whole = logged();
    let paths = segments(&whole);
    assert!(paths.len() > 2, "{paths:?}");
    for (what, damage) in DAMAGES {
        let mut machine = whole.clone();
        for path in &paths[..2] {
            change(&mut machine, path, damage);
        }
        assert!(!complaints(&machine).is_empty(), "{what}");
        let io = MemIo::new(machine);
        let (log, _) = Log::open(DIR, &on(&io)).unwrap();
        assert!(log.rebuild_step() && log.rebuild_step() && !log.rebuild_step(), "{what}");
        log.close().unwrap();
        assert_eq!(complaints(&io.machine()), [], "{what}");
        check_whole(&io.machine(), what);

        let sizes: Vec<usize> =
            paths.iter().map(|p| io.machine().bytes(p).unwrap().len()).collect();
        let (log, _) = Log::open(DIR, &on(&io)).unwrap();
        assert!(!log.rebuild_step(), "{what}: rebuilt twice");
        log.close().unwrap();
        let after: Vec<usize> =
            paths.iter().map(|p| io.machine().bytes(p).unwrap().len()).collect();
        assert_eq!(sizes, after, "{what}");
    }
}

#[test]
fn a_crash_of_a_rebuild_loses_no_record_and_the_next_one_ends_it() {
    let whole = logged();
    let paths = segments(&whole);
    let mut states = 0;
    for (what, damage) in DAMAGES {
        let mut machine = whole.clone();
        change(&mut machine, &paths[0], damage);
        let io = MemIo::new(machine);
        let (log, _) = Log::open(DIR, &on(&io)).unwrap();
        let points = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&points);
        io.observe(move |machine, _| seen.lock().unwrap().push(machine.clone()));
        assert!(log.rebuild_step(), "{what}");
        io.unobserve();
        points.lock().unwrap().push(io.machine());
        let dice = &mut Dice::new(1);
        for point in std::mem::take(&mut *points.lock().unwrap()) {
            let unsynced = point.unsynced();
            let ways = survivors(&unsynced, 40, dice);
            let left = ways.iter().map(|way| point.power_loss(&unsynced, way));
            for left in left.chain([point.clone()]) {
                states += 1;
                check_whole(&left, what);
                let io = MemIo::new(left);
                let (log, _) = Log::open(DIR, &on(&io)).unwrap();
                while log.rebuild_step() {}
                log.close().unwrap();
                assert_eq!(complaints(&io.machine()), [], "{what}");
            }
        }
    }
    assert!(states > 50, "{states}");
}

#[test]
fn a_full_disk_leaves_a_segment_degraded_and_the_log_at_work() {
    let mut machine = logged();
    let path = segments(&machine)[0].clone();
    change(&mut machine, &path, DAMAGES[1].1);
    let io = MemIo::new(machine);
    let (log, _) = Log::open(DIR, &on(&io)).unwrap();
    io.arm(Which::Any, 1, u64::MAX, Fault::Error(ENOSPC));
    assert!(log.rebuild_step());
    io.disarm();
    assert_eq!(log.append(b"goes on").unwrap(), lsn(u64::try_from(RECORD_COUNT).unwrap() + 1));
    log.close().unwrap();
    assert!(!complaints(&io.machine()).is_empty());
}

/// A sync that fails is final. A write that is refused is so only where its block holds frames which
/// are promised: header and slots have blocks of their own, and a segment that cannot be made whole
/// again took the log with it at each open.
#[test]
fn a_rebuild_poisons_by_a_failed_sync_and_by_a_failed_write_beside_frames() {
    #[track_caller]
    fn check(damage: (&str, Damage), nth: u64, call: CallKind, number: i32, poisons: bool) {
        let (what, damage) = damage;
        let mut machine = logged();
        let path = segments(&machine)[0].clone();
        change(&mut machine, &path, damage);
        let io = MemIo::new(machine);
        let (log, _) = Log::open(DIR, &on(&io)).unwrap();
        let struck = io.struck();
        io.arm(Which::Kind(call), nth, 1, Fault::Error(number));
        assert!(log.rebuild_step());
        io.disarm();
        assert_eq!(io.struck(), struck + 1, "{what}: {call:?} {nth}");
        let refused = log.append(b"more").map_err(|e| e.kind()).err();
        let expected = poisons.then_some(ErrorKind::Poisoned);
        assert_eq!(refused, expected, "{what}: {call:?} {nth}: {number}");
        drop(log);
        let (log, _) = Log::open(DIR, &on(&io)).unwrap();
        while log.rebuild_step() {}
        log.check_open().unwrap();
        assert_eq!(read(&log, 1).len(), RECORD_COUNT + usize::from(!poisons), "{what}");
        log.close().unwrap();
        assert_eq!(complaints(&io.machine()), [], "{what}");
    }
    for (at, count) in [(0, 1), (4, 1), (6, 2), (7, 2)] {
        for nth in 1..=count {
            let is_footer = at == 0 || (at == 7 && nth == 2);
            check(DAMAGES[at], nth, CallKind::Write, EIO, is_footer);
            check(DAMAGES[at], nth, CallKind::Sync, EIO, true);
            check(DAMAGES[at], nth, CallKind::Sync, ENOSPC, true);
            check(DAMAGES[at], nth, CallKind::Write, ENOSPC, false);
            check(DAMAGES[at], nth, CallKind::Write, EDQUOT, false);
        }
        check(DAMAGES[at], 1, CallKind::Read, EIO, false);
        check(DAMAGES[at], 1, CallKind::Open, EMFILE, false);
    }
    // The footer begins in a block behind the last one of the frames.
    let apart: (&str, Damage) = ("blocks behind the footer", |bytes| bytes.extend([7; 8192]));
    check(apart, 1, CallKind::Write, EIO, false);
    check(apart, 1, CallKind::Sync, EIO, true);
}

/// A closed log on a disk, of whose first segment the second slot is damaged.
fn degraded(dir: &Path) {
    let (log, _) = Log::open(dir, &options()).unwrap();
    for i in 0..RECORD_COUNT {
        log.append_batch(batch(&[&payload(i)]), Durability::Buffered).unwrap();
    }
    log.close().unwrap();
    let path = super::segments(dir).remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8192 + 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn a_batch_is_synced_while_a_rebuild_waits_for_the_disk() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("log");
    degraded(&dir);
    let watch = Watch::default();
    watch.hold();
    let options = options().fill(Fill::None).io(Arc::new(watch.clone()));
    let (log, _) = Log::open(&dir, &options).unwrap();
    watch.wait_event(0, |event| matches!(event, Event::Write { offset: 8192, .. }));
    watch.wait_held();
    let pending = log.enqueue(batch(&[b"nobody waits for it"])).unwrap();
    watch.wait_held_count(2);
    watch.release();
    pending.wait().unwrap();
    log.close().unwrap();
}

#[test]
fn a_log_rebuilds_without_being_asked() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("log");
    degraded(&dir);
    let watch = Watch::default();
    let (log, _) = Log::open(&dir, &options().io(Arc::new(watch.clone()))).unwrap();
    watch.wait_event(0, |event| matches!(event, Event::Write { offset: 8192, .. }));
    watch.wait_event(0, |event| *event == Event::Sync);
    log.close().unwrap();
    let mut worst = Severity::Info;
    let view = LogView::open(&dir, Arc::new(FsIo::new())).unwrap();
    view.verify(&mut |finding| worst = worst.worse(finding.severity)).unwrap();
    assert_eq!(worst, Severity::Info);
}
