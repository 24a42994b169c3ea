use super::fault::{EINTR, EIO, ENOSPC};
use super::loss::survivors;
use super::*;

fn fresh() -> (MemIo, Arc<dyn IoFile>) {
    let io = MemIo::default();
    let file = io.open(Path::new("/a"), OpenHow::CreateNew).unwrap();
    (io, file)
}

fn durable(io: &MemIo, file: &Arc<dyn IoFile>) {
    file.sync().unwrap();
    io.sync_dir(Path::new("/")).unwrap();
}

/// Every state that a power loss can leave, as the bytes of `/a`, sorted and without repeats.
fn left(io: &MemIo) -> Vec<Option<Vec<u8>>> {
    let machine = io.machine();
    let unsynced = machine.unsynced();
    let mut found: Vec<_> = survivors(&unsynced, 1 << 12, &mut Dice::new(1))
        .iter()
        .map(|way| machine.power_loss(&unsynced, way).bytes("/a").ok())
        .collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn reads_see_what_was_written_across_sectors() {
    let (_, file) = fresh();
    let bytes: Vec<u8> = (0..2000_u16).map(|n| n.to_le_bytes()[0]).collect();
    file.write_all_at(&bytes, 300).unwrap();
    file.write_all_at(b"xyz", 511).unwrap();
    let mut expect = vec![0; 300];
    expect.extend(&bytes);
    expect[511..514].copy_from_slice(b"xyz");
    let mut buf = vec![1; 4000];
    assert_eq!(file.read_full_at(&mut buf, 0).unwrap(), 2300);
    assert_eq!(buf[..2300], expect);
    assert_eq!(file.read_full_at(&mut buf[..700], 600).unwrap(), 700);
    assert_eq!(buf[..700], expect[600..1300]);
    assert_eq!(file.map(2300).unwrap(), expect);
}

#[test]
fn a_file_without_a_synced_entry_may_be_gone_or_empty_or_whole() {
    let (_io, file) = fresh();
    file.write_all_at(b"abc", 0).unwrap();
    let found = left(&_io);
    assert_eq!(found, [None, Some(vec![]), Some(vec![0; 3]), Some(b"abc".to_vec())]);
    file.sync().unwrap();
    assert_eq!(left(&_io), [None, Some(b"abc".to_vec())]);
    _io.sync_dir(Path::new("/")).unwrap();
    assert_eq!(left(&_io), [Some(b"abc".to_vec())]);
}

#[test]
fn sectors_survive_one_by_one_in_any_version() {
    let (io, file) = fresh();
    file.write_all_at(&[1; 1024], 0).unwrap();
    durable(&io, &file);
    file.write_all_at(&[2; 1024], 0).unwrap();
    file.write_all_at(&[3; 512], 512).unwrap();
    let found = left(&io);
    assert_eq!(found.len(), 6, "two versions of one sector times three of the other");
    assert!(found.contains(&Some([[1; 512], [3; 512]].concat())));
}

#[test]
fn a_length_can_be_lost_without_the_bytes_and_the_bytes_without_the_length() {
    let (io, file) = fresh();
    file.write_all_at(&[1; 512], 0).unwrap();
    durable(&io, &file);
    file.write_all_at(&[2; 512], 512).unwrap();
    let old = vec![1; 512];
    let found = left(&io);
    assert_eq!(
        found,
        [
            Some(old.clone()),
            Some([[1; 512], [0; 512]].concat()),
            Some([[1; 512], [2; 512]].concat())
        ]
    );
}

#[test]
fn a_cut_that_was_not_synced_leaves_either_length() {
    let (io, file) = fresh();
    file.write_all_at(&[1; 1000], 0).unwrap();
    durable(&io, &file);
    file.set_len(600).unwrap();
    let found = left(&io);
    assert!(found.contains(&Some(vec![1; 1000])) && found.contains(&Some(vec![1; 600])));
    file.set_len(1000).unwrap();
    let mut buf = [9; 1000];
    file.read_full_at(&mut buf, 0).unwrap();
    assert_eq!((buf[599], buf[600], buf[999]), (1, 0, 0));
    durable(&io, &file);
    assert_eq!(left(&io), [Some([vec![1; 600], vec![0; 400]].concat())]);
}

#[test]
fn the_halves_of_a_rename_survive_apart() {
    let (io, file) = fresh();
    durable(&io, &file);
    io.rename(Path::new("/a"), Path::new("/b")).unwrap();
    let machine = io.machine();
    let unsynced = machine.unsynced();
    let mut found: Vec<(bool, bool)> = survivors(&unsynced, 100, &mut Dice::new(1))
        .iter()
        .map(|way| machine.power_loss(&unsynced, way))
        .map(|m| (m.bytes("/a").is_ok(), m.bytes("/b").is_ok()))
        .collect();
    found.sort_unstable();
    assert_eq!(found, [(false, false), (false, true), (true, false), (true, true)]);
}

#[test]
fn a_directory_is_lost_with_all_that_is_in_it() {
    let io = MemIo::default();
    io.create_dir(Path::new("/d")).unwrap();
    let file = io.open(Path::new("/d/a"), OpenHow::CreateNew).unwrap();
    file.sync().unwrap();
    io.sync_dir(Path::new("/d")).unwrap();
    let machine = io.machine();
    let lost = machine.power_loss(&machine.unsynced(), &[]);
    assert!(lost.bytes("/d/a").is_err());
    io.sync_dir(Path::new("/")).unwrap();
    let machine = io.machine();
    assert!(machine.power_loss(&machine.unsynced(), &[]).bytes("/d/a").is_ok());
}

#[test]
fn a_failed_sync_cleans_what_it_did_not_write_and_another_sync_proves_nothing() {
    let (io, file) = fresh();
    file.write_all_at(&[1; 4096], 0).unwrap();
    durable(&io, &file);
    let deceived = (0..50).any(|seed| {
        let io = MemIo::new(io.machine());
        let file = io.open(Path::new("/a"), OpenHow::ReadWrite).unwrap();
        io.seed(seed);
        file.write_all_at(&[2; 4096], 0).unwrap();
        io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(EIO));
        let mut buf = [0; 4096];
        file.read_full_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [2; 4096], "the cache shows what was written");
        file.sync().unwrap();
        let machine = io.machine();
        assert!(machine.unsynced().is_empty());
        let evicted = machine.evict(|_| true).bytes("/a").unwrap();
        let lost = machine.power_loss(&[], &[]).bytes("/a").unwrap();
        assert_eq!(evicted, lost);
        // Writing the same bytes again makes them dirty, and a sync then durable.
        file.write_all_at(&[2; 4096], 0).unwrap();
        file.sync().unwrap();
        assert_eq!(io.machine().power_loss(&[], &[]).bytes("/a").unwrap(), [2; 4096]);
        lost != [2; 4096]
    });
    assert!(deceived, "some seed loses a sector");
}

#[test]
fn a_block_that_a_failed_sync_was_to_write_first_is_lost_until_it_leaves_the_cache() {
    let seeds = (0..50).filter(|seed| {
        let (io, file) = fresh();
        durable(&io, &file);
        io.seed(*seed);
        file.write_all_at(&[1; 4096], 0).unwrap();
        io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(EIO));
        let mut reached = [0; 4096];
        let left = io.machine().evict(|_| true).bytes("/a").unwrap();
        reached[..left.len()].copy_from_slice(&left);
        if reached != [0; 4096] {
            return false;
        }
        let again = |bytes: [u8; 4096]| {
            file.write_all_at(&bytes, 0).unwrap();
            file.sync().unwrap();
            io.machine().power_loss(&[], &[]).bytes("/a").unwrap().iter().any(|byte| *byte > 0)
        };
        assert!(!again([1; 4096]) && !again([2; 4096]), "in the cache it is taken for written");
        file.evict(0..4096).unwrap();
        assert!(again([1; 4096]), "it is asked for again");
        true
    });
    assert!(seeds.count() > 5);
}

#[test]
fn each_description_is_told_of_a_failed_write_back_once() {
    let (io, first) = fresh();
    let second = io.open(Path::new("/a"), OpenHow::ReadWrite).unwrap();
    first.write_all_at(&[1; 512], 0).unwrap();
    io.alter(|machine| machine.fail_write_back("/a", 7)).unwrap();
    let late = io.open(Path::new("/a"), OpenHow::ReadWrite).unwrap();
    assert!(first.sync().is_err());
    assert!(second.sync().is_err());
    assert!(late.sync().is_err(), "nobody had been told when it was opened");
    let later = io.open(Path::new("/a"), OpenHow::ReadWrite).unwrap();
    for file in [&first, &second, &late, &later] {
        file.sync().unwrap();
    }
}

#[test]
fn a_full_disk_takes_what_fits_and_frees_what_is_removed() {
    let (io, file) = fresh();
    io.set_free_blocks(Some(2));
    assert_eq!(file.write_at(&[1; 10_000], 0).unwrap(), 8192);
    let full = file.write_at(&[1; 10], 8192).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    file.write_all_at(&[2; 8192], 0).unwrap();
    assert!(io.open(Path::new("/b"), OpenHow::CreateNew).is_err());
    file.set_len(4096).unwrap();
    let other = io.open(Path::new("/b"), OpenHow::CreateNew).unwrap();
    assert!(other.allocate(4097).is_err());
    other.allocate(4096).unwrap();
    io.remove(Path::new("/b")).unwrap();
    file.allocate(8192).unwrap();
}

#[test]
fn faults_strike_the_call_they_are_armed_for() {
    let (io, file) = fresh();
    io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(EINTR));
    io.arm(Which::Kind(CallKind::Write), 3, 1, Fault::Short(5));
    io.arm(Which::Kind(CallKind::Read), 1, 1, Fault::Error(EINTR));
    assert_eq!(file.write_at(b"0123456789", 0).unwrap(), 10);
    assert_eq!(file.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(EINTR));
    assert_eq!(file.write_at(b"abcdefghij", 0).unwrap(), 5);
    let mut buf = [0; 10];
    assert_eq!(file.read_full_at(&mut buf, 0).unwrap(), 10);
    assert_eq!(&buf, b"abcde56789");
    assert!(file.write_whole_at(b"zz", 0).is_ok());
}

#[test]
fn a_failed_write_leaves_any_begin_of_it() {
    let mut found: Vec<usize> = (0..100)
        .map(|seed| {
            let (io, file) = fresh();
            io.seed(seed);
            io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Error(ENOSPC));
            let error = file.write_at(&[1; 1200], 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(ENOSPC));
            io.machine().bytes("/a").unwrap().len()
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, [0, 512, 1024, 1200]);
}

#[test]
fn a_stopped_process_does_nothing_more_and_frees_its_locks() {
    let (io, file) = fresh();
    assert!(file.try_lock().unwrap());
    io.arm(Which::Persist, 2, 1, Fault::Stop);
    file.write_all_at(b"a", 0).unwrap();
    assert!(fault::is_stopped(&file.write_all_at(b"b", 0).unwrap_err()));
    assert!(fault::is_stopped(&file.len().unwrap_err()));
    let next = MemIo::new(io.machine());
    assert_eq!(next.machine().bytes("/a").unwrap(), b"a");
    assert!(next.open(Path::new("/a"), OpenHow::ReadWrite).unwrap().try_lock().unwrap());
}

#[test]
fn the_lock_belongs_to_one_description() {
    let (io, first) = fresh();
    let second = io.open(Path::new("/a"), OpenHow::ReadWrite).unwrap();
    assert!(first.try_lock().unwrap());
    assert!(!second.try_lock().unwrap());
    drop(first);
    assert!(second.try_lock().unwrap());
}

/// What both file systems say of the locks of a directory.
#[track_caller]
pub(in crate::io) fn check_locks(io: &dyn Io, dir: &Path) {
    let [first, second, third] = [(); 3].map(|()| io.open_dir(dir).unwrap());
    assert!(first.try_lock_shared().unwrap() && second.try_lock_shared().unwrap());
    assert!(first.try_lock_shared().unwrap(), "again");
    assert!(!third.try_lock().unwrap());
    // A conversion that is refused costs the lock that was there.
    assert!(!first.try_lock().unwrap());
    drop(second);
    assert!(third.try_lock().unwrap());
    assert!(!first.try_lock_shared().unwrap() && !first.try_lock().unwrap());
    assert!(third.try_lock_shared().unwrap() && first.try_lock_shared().unwrap());
    drop(third);
    assert!(first.try_lock().unwrap(), "alone, it becomes the exclusive one");
    drop(first);
    assert!(io.open_dir(dir).unwrap().try_lock().unwrap());
}

#[test]
fn the_locks_of_a_directory_are_shared_or_exclusive() {
    let (io, _file) = fresh();
    io.create_dir(Path::new("/d")).unwrap();
    check_locks(&io, Path::new("/d"));
    let no_dir = |path| io.open_dir(Path::new(path)).unwrap_err().kind();
    assert_eq!(no_dir("/a"), io::ErrorKind::NotADirectory);
    assert_eq!(no_dir("/b"), io::ErrorKind::NotFound);
    let held = io.open_dir(Path::new("/d")).unwrap();
    assert!(held.try_lock_shared().unwrap());
    io.kill();
    let next = MemIo::new(io.machine());
    assert!(next.open_dir(Path::new("/d")).unwrap().try_lock().unwrap());
}

#[test]
fn an_observer_sees_the_state_before_each_point_and_a_kill_within_a_write() {
    let (io, file) = fresh();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    io.observe(move |machine, kind| {
        sink.lock().unwrap().push((kind, machine.bytes("/a").unwrap().len()));
    });
    file.write_all_at(&[1; 10_000], 100).unwrap();
    file.sync().unwrap();
    let expect = [
        (CallKind::Write, 0),
        (CallKind::Write, 4096),
        (CallKind::Write, 8192),
        (CallKind::Sync, 10_100),
    ];
    assert_eq!(*seen.lock().unwrap(), expect);
}

#[test]
fn choices_are_different_and_repeat_with_their_seed() {
    let (io, file) = fresh();
    file.write_all_at(&[1; 20_000], 0).unwrap();
    let unsynced = io.machine().unsynced();
    let ways = survivors(&unsynced, 200, &mut Dice::new(5));
    assert!(ways.len() > 100, "{}", ways.len());
    assert_eq!(ways, survivors(&unsynced, 200, &mut Dice::new(5)));
    assert_ne!(ways, survivors(&unsynced, 200, &mut Dice::new(6)));
}

#[test]
fn a_choice_has_all_nothing_each_thing_alone_and_each_one_missing() {
    let (io, file) = fresh();
    durable(&io, &file);
    file.write_all_at(&[1; 10_240], 0).unwrap();
    let unsynced = io.machine().unsynced();
    let count = unsynced.len();
    assert_eq!(count, 21, "twenty sectors and a length");
    let ways = survivors(&unsynced, 200, &mut Dice::new(5));
    let only = |kept: &dyn Fn(usize) -> bool| {
        let way: Vec<usize> = (0..count).map(|k| usize::from(kept(k))).collect();
        assert!(ways.contains(&way), "{way:?}");
    };
    only(&|_| false);
    only(&|_| true);
    for one in 0..count {
        only(&|k| k == one);
        only(&|k| k != one);
        only(&|k| k < one);
    }
}

/// A call and its answer, in the words that both file systems share.
fn answer(io: &dyn Io, root: &Path, files: &mut [Option<Arc<dyn IoFile>>], seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let names = ["a", "b", "d", "d/a", "missing/a"];
    let path = root.join(names[dice.index(names.len())]);
    let other = root.join(names[dice.index(names.len())]);
    let slot = dice.index(files.len());
    let (offset, len) = (dice.below(3000), dice.index(2000));
    let shown = |r: io::Result<String>| match r {
        Ok(text) => text,
        Err(e) => format!("{:?}", e.kind()),
    };
    let on_file = |f: &dyn Fn(&dyn IoFile) -> io::Result<String>| match &files[slot] {
        Some(file) => shown(f(&**file)),
        None => String::new(),
    };
    match dice.below(16) {
        0..=2 => {
            let how = [OpenHow::Read, OpenHow::ReadWrite, OpenHow::CreateNew][dice.index(3)];
            // A directory opens for reading on a real system, and reads as none.
            if io.kind(&path).ok().flatten() == Some(EntryKind::Dir) {
                return String::new();
            }
            let opened = io.open(&path, how);
            let text = shown(opened.as_ref().map(|_| String::new()).map_err(|e| e.kind().into()));
            files[slot] = opened.ok();
            text
        }
        3..=5 => on_file(&|f| {
            f.write_at(&vec![offset.to_le_bytes()[0]; len], offset).map(|n| n.to_string())
        }),
        6..=8 => on_file(&|f| {
            let mut buf = vec![1; len];
            let read = f.read_full_at(&mut buf, offset)?;
            Ok(format!("{read} {:?}", buf))
        }),
        9 => on_file(&|f| f.set_len(offset).map(|()| f.len().unwrap().to_string())),
        10 => on_file(&|f| f.allocate(offset + 1).map(|()| f.len().unwrap().to_string())),
        11 => on_file(&|f| f.map(offset).map(|b| format!("{b:?}"))),
        12 => shown(io.kind(&path).map(|k| format!("{k:?}"))),
        13 => {
            let from = io.kind(&path).unwrap_or(None);
            if from != Some(EntryKind::File)
                || io.kind(&other).unwrap_or(None) == Some(EntryKind::Dir)
            {
                return String::new();
            }
            shown(io.rename(&path, &other).map(|()| String::new()))
        }
        14 => match io.kind(&path).unwrap_or(None) {
            Some(EntryKind::Dir) => shown(io.create_dir(&path).map(|()| String::new())),
            _ => shown(io.remove(&path).map(|()| String::new())),
        },
        _ => {
            let listed = io.list(&root.join(["", "d", "a"][dice.index(3)]));
            let mut names: Vec<String> =
                listed.unwrap_or_default().iter().map(|e| format!("{e:?}")).collect();
            names.sort();
            names.concat()
        }
    }
}

#[test]
fn without_faults_it_answers_as_a_real_file_system() {
    for seed in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let (real, mem) = (crate::io::fs::FsIo::new(), MemIo::default());
        real.create_dir(&dir.path().join("d")).unwrap();
        mem.create_dir(Path::new("/d")).unwrap();
        let (mut real_files, mut mem_files) = (vec![None, None, None], vec![None, None, None]);
        let mut dice = Dice::new(seed);
        for step in 0..150 {
            let call = dice.roll();
            let expect = answer(&real, dir.path(), &mut real_files, call);
            let found = answer(&mem, Path::new("/"), &mut mem_files, call);
            assert_eq!(found, expect, "seed {seed}, step {step}");
        }
    }
}
