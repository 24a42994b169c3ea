//! The making of a log and of a store: a call fails, or the process ends with it, somebody tries
//! again, and what he is then promised survives a power loss. What a failed sync of a directory or a
//! file has left in the cache is no proof that the disk has it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use oncelog::io::{EntryKind, Io as _, OpenHow};
use oncelog::testing::{Dice, EIO, Fault, Machine, MemIo, Which, survivors};
use oncelog::{CreateMode, ErrorKind, Log, Lsn, Options, Result, Store, StoreOptions};

use crate::figures::figure;

const DIR: &str = "/db";

/// An attempt to open something, or to make it.
type Open = fn(&MemIo, CreateMode) -> Result<()>;

fn options(io: &MemIo, create: CreateMode) -> Options {
    let options = Options::new().segment_bytes_max(65_536).background(false);
    options.create(create).io(Arc::new(io.clone()))
}

fn open_log(io: &MemIo, create: CreateMode) -> Result<()> {
    let (log, _) = Log::open(Path::new(DIR), &options(io, create))?;
    match create {
        CreateMode::Never => assert_eq!(log.durable_lsn(), Some(Lsn::FIRST)),
        _ if log.durable_lsn().is_none() => drop(log.append(b"promised")?),
        _ => {}
    }
    log.close()
}

fn open_store(io: &MemIo, create: CreateMode) -> Result<()> {
    let store = StoreOptions::new().log(options(io, create)).create(create);
    Store::open(Path::new(DIR), &store).map(drop)
}

/// Opens once for each fault, at the call of that number that changes something, then without one;
/// afterwards the power fails. Says which faults have met a call.
#[track_caller]
fn check(open: Open, faults: &[(u64, Fault)], seed: u64) -> usize {
    let mut io = MemIo::new(Machine::new());
    io.seed(seed);
    let mut met = 0;
    for (nth, fault) in faults {
        let struck = io.struck();
        io.arm(Which::Persist, *nth, 1, *fault);
        let opened = open(&io, CreateMode::IfMissing);
        io.disarm();
        if io.struck() > struck {
            met += 1;
        } else {
            assert!(opened.is_ok(), "{faults:?}: {opened:?}");
        }
        if io.is_stopped() {
            io = io.successor(io.machine());
        }
    }
    let opened = open(&io, CreateMode::IfMissing);
    assert!(opened.is_ok(), "{faults:?}, seed {seed}: {opened:?}");
    let machine = io.machine();
    let unsynced = machine.unsynced();
    for way in survivors(&unsynced, 4, &mut Dice::new(seed)) {
        let left = machine.power_loss(&unsynced, &way);
        let lock = left.bytes(Path::new(DIR).join("LOCK")).unwrap();
        assert_ne!(lock[..32], [0; 32], "{faults:?}, seed {seed}: without a UUID");
        let io = MemIo::new(left);
        let opened = open(&io, CreateMode::Never);
        assert!(opened.is_ok(), "{faults:?}, seed {seed}, the power fails: {opened:?}");
    }
    met
}

/// Each call alone, and each with each call of the attempt behind it.
fn check_each(open: Open) -> usize {
    let mut cases = 0;
    for fault in [Fault::Error(EIO), Fault::Last(EIO)] {
        for seed in 0..4 {
            for nth in 1.. {
                if check(open, &[(nth, fault)], seed) == 0 {
                    break;
                }
                cases += 1;
                let both = |second: &u64| check(open, &[(nth, fault), (*second, fault)], seed) == 2;
                cases += (1..).take_while(both).count();
            }
        }
    }
    cases
}

#[test]
pub(crate) fn a_store_whose_making_failed_is_made_by_the_next_attempt_and_stays() {
    let cases = check_each(open_store);
    assert!(cases > 1000, "{cases}");
    figure(5, "cases of a failing call at the making of a store", cases);
}

#[test]
fn a_log_whose_making_failed_is_made_by_the_next_attempt_and_stays() {
    let cases = check_each(open_log);
    assert!(cases > 500, "{cases}");
    figure(5, "cases of a failing call at the making of a log", cases);
}

/// What a kill or a power loss leaves at each point of an attempt that changes something.
fn cut_off(open: Open, machine: &Machine, seen: &mut BTreeSet<u64>) -> Vec<Machine> {
    let io = MemIo::new(machine.clone());
    let points = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&points);
    io.observe(move |machine, _| noted.lock().unwrap().push(machine.clone()));
    open(&io, CreateMode::IfMissing).unwrap_or_else(|e| panic!("{e}"));
    io.unobserve();
    let points = std::mem::take(&mut *points.lock().unwrap());
    let mut left = Vec::new();
    let mut is_first = |machine: &Machine| seen.insert(machine.digest());
    for point in points {
        let (unsynced, dice) = (point.unsynced(), &mut Dice::new(1));
        for way in survivors(&unsynced, 6, dice) {
            let lost = point.power_loss(&unsynced, &way);
            left.extend(point.reuse_blocks(&lost, dice).filter(&mut is_first));
            left.extend(Some(lost).filter(&mut is_first));
        }
        // What is in the cache alone shows in no digest.
        left.push(point);
    }
    left
}

#[test]
fn a_making_that_was_cut_off_twice_is_made_whole_by_the_next_attempt() {
    #[track_caller]
    fn check(open: Open, least: usize) {
        let (mut seen, mut cases) = (BTreeSet::new(), 0);
        let once = cut_off(open, &Machine::new(), &mut seen);
        for machine in once {
            for left in cut_off(open, &machine, &mut seen) {
                cases += 1;
                let io = MemIo::new(left);
                open(&io, CreateMode::IfMissing).unwrap_or_else(|e| panic!("{e}"));
                open(&io, CreateMode::Never).unwrap_or_else(|e| panic!("{e}"));
            }
        }
        assert!(cases > least, "{cases}");
    }
    check(open_log, 500);
    check(open_store, 500);
}

/// A directory with these directories and files in it.
fn volume(dirs: &[&str], files: &[&str]) -> MemIo {
    let io = MemIo::new(Machine::new());
    io.create_dir(Path::new(DIR)).unwrap();
    for name in dirs {
        io.create_dir(&Path::new(DIR).join(name)).unwrap();
    }
    for name in files {
        drop(io.open(&Path::new(DIR).join(name), OpenHow::CreateNew).unwrap());
    }
    io
}

/// What stands in the directory, by path.
fn held(io: &MemIo) -> BTreeSet<(PathBuf, Option<Vec<u8>>)> {
    let (mut held, mut todo) = (BTreeSet::new(), vec![Path::new(DIR).to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in io.list(&dir).unwrap() {
            let path = dir.join(&entry.name);
            let bytes = io.machine().bytes(&path).ok();
            if entry.kind == EntryKind::Dir {
                todo.push(path.clone());
            }
            held.insert((path, bytes));
        }
    }
    held
}

/// RocksDB and LevelDB keep an empty file of the name `LOCK` in their directory, other programs one
/// with the id of a process. It was replaced, and a log made beside the files of a database that was
/// in use.
#[test]
fn the_lock_file_of_another_program_is_left_alone() {
    #[track_caller]
    fn check(open: Open, lock: &[u8], dirs: &[&str], files: &[&str], is_ours: bool) {
        let io = volume(dirs, files);
        io.alter(|machine| machine.put(Path::new(DIR).join("LOCK"), lock).unwrap());
        let before = held(&io);
        for create in [CreateMode::IfMissing, CreateMode::Always, CreateMode::Never] {
            if is_ours && create != CreateMode::Never {
                continue;
            }
            let opened = open(&io, create).map_err(|e| e.kind()).err();
            assert_eq!(opened, Some(ErrorKind::InvalidInput), "{lock:?} {dirs:?} {files:?}");
            assert_eq!(held(&io), before, "{lock:?} {dirs:?} {files:?}");
        }
        let made = open(&io, CreateMode::IfMissing);
        assert_eq!(made.is_ok(), is_ours, "{lock:?} {dirs:?} {files:?}: {made:?}");
    }
    let database = ["000004.log", "CURRENT", "MANIFEST-000005"];
    let both: [Open; 2] = [open_log, open_store];
    for open in both {
        check(open, b"", &[], &database, false);
        check(open, &[0; 512], &["lost+found"], &["notes.txt"], false);
        check(open, b"", &["archive"], &[], false);
        check(open, b"", &[], &["CURSORS"], false);
        check(open, b"4711\n", &[], &[], false);
        check(open, b"once upon a time", &[], &[], false);
        check(open, b"", &["channels"], &[], false);
        check(open, b"", &[], &["channels"], false);
        // Of a making of ours, and what a copy that was cut off left of it.
        check(open, b"", &["lost+found"], &["LOCK.0.spare"], true);
        check(open, &[0; 7], &[], &[], true);
        check(open, &[0; 512], &[], &[], true);
        check(open, b"oncest", &[], &[], true);
    }
    check(open_store, b"", &["control", "channels"], &[], true);
    check(open_store, b"", &["control"], &["control/LOCK"], true);
    check(open_store, b"", &["control"], &["control/CURRENT"], false);
    check(open_store, b"", &["control"], &["control/LOCK", "control/CURRENT"], false);
    check(open_store, b"", &["control", "channels"], &["channels/rows"], false);
    check(open_store, b"", &["control"], &["channels"], false);
    check(open_store, b"", &["control"], &["notes.txt"], false);
}

/// A power loss brings the old lock file back under the name that it had when it was replaced, and
/// an open that finds the new one whole has nothing to replace.
#[test]
fn a_lock_file_that_was_replaced_goes_at_the_next_open() {
    let both: [Open; 2] = [open_log, open_store];
    for open in both {
        let io = volume(&[], &[]);
        open(&io, CreateMode::IfMissing).unwrap();
        let spare = Path::new(DIR).join("LOCK.3.spare");
        io.alter(|machine| machine.put(&spare, &[0; 512]).unwrap());
        open(&io, CreateMode::Never).unwrap();
        assert!(io.machine().bytes(&spare).is_err());
    }
}

fn back_up(io: &MemIo, _: CreateMode) -> Result<()> {
    let (log, _) = Log::open("/log", &options(io, CreateMode::IfMissing))?;
    log.append(b"copied")?;
    let copied = log.backup(DIR);
    log.close()?;
    copied.map(drop)
}

#[test]
fn the_root_of_a_volume_is_as_good_as_an_empty_directory() {
    #[track_caller]
    fn check(make: Open, dirs: &[&str], files: &[&str], refused: Option<ErrorKind>) {
        let made = make(&volume(dirs, files), CreateMode::IfMissing);
        assert_eq!(made.as_ref().map_err(|e| e.kind()).err(), refused, "{dirs:?} {files:?}");
    }
    let refused = Some(ErrorKind::InvalidInput);
    let all: [Open; 3] = [open_log, open_store, back_up];
    for make in all {
        check(make, &[], &[], None);
        check(make, &["lost+found"], &[], None);
        check(make, &["lost+found", "photos"], &[], refused);
        check(make, &["lost+found"], &["notes.txt"], refused);
        check(make, &["Lost+Found"], &[], refused);
    }
    // Left by whoever ended while he made a lock file.
    for make in [open_log, open_store] {
        check(make, &["lost+found"], &["LOCK.0.spare"], None);
    }
    check(back_up, &[], &["LOCK.0.spare"], refused);
}
