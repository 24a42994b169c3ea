use std::sync::Arc;

use super::*;
use crate::io::fault::{CallKind, EIO, ENOSPC, Fault as Injected, Which};
use crate::io::mem::MemIo;
use crate::log::spare::write_zeros;
use crate::log::{CreateMode, Options, RecordKind};

/// Bytes of frames that a reserve of the least size takes.
const RESERVED: u64 = (64 << 10) - FRAMES_OFFSET;

/// A log whose segments and reserves are of the least size.
fn small(io: &MemIo) -> Options {
    let options = Options::new().create(CreateMode::IfMissing).background(false);
    let options = options.segment_bytes_max(64 << 10).keep_reserve();
    options.io(Arc::new(io.clone()))
}

fn hand_over(log: &Log, len: usize, usage: Use) -> Result<Taken> {
    let record = vec![7; len];
    log.enqueue_kept(Batch { kind: RecordKind::CONTROL, records: &[&record] }, usage)
}

/// Leaves room for less than a thousand bytes in the tail, and none on the disk.
fn fill_up(log: &Log, io: &MemIo) {
    assert!(log.promise(1).is_ok());
    while log.has_room(1_100) {
        assert!(matches!(hand_over(log, 500, Use::New(1)), Ok(Taken::In(_))));
    }
    io.set_free_blocks(Some(0));
}

/// A checkpoint was begun that nothing had room for but its first record, and its begin took the
/// reserve that would have held the next one.
#[test]
fn what_leaves_room_to_others_goes_where_one_place_has_all_of_it() {
    let io = MemIo::default();
    let (log, _) = Log::open("/log", &small(&io)).unwrap();
    log.promise(1).unwrap();
    #[track_caller]
    fn check(log: &Log, left: u64, lacks: bool) {
        let taken = hand_over(log, 100, Use::Ending(left)).unwrap();
        assert_eq!(matches!(taken, Taken::Lacks(bytes) if bytes == left), lacks, "{taken:?}");
    }
    check(&log, 0, false);
    check(&log, RESERVED, false);
    // Beside the tail it has room for that, but not in one piece.
    check(&log, RESERVED + 1, true);
    log.promise(RESERVED + 1).unwrap();
    check(&log, RESERVED + 1, false);
}

/// It was refused although a reserve that is smaller than a segment could have been made.
#[test]
fn without_space_for_a_segment_what_leaves_room_to_others_asks_for_a_reserve() {
    let io = MemIo::default();
    let (log, _) = Log::open("/log", &small(&io)).unwrap();
    fill_up(&log, &io);
    let taken = hand_over(&log, 2_000, Use::Ending(RESERVED)).unwrap();
    assert!(matches!(taken, Taken::Lacks(bytes) if bytes > RESERVED + 2_000), "{taken:?}");
    assert!(matches!(hand_over(&log, 2_000, Use::Ending(0)), Ok(Taken::In(_))));
}

/// It was refused for want of blocks that came free a moment later.
#[test]
fn new_work_waits_for_a_reserve_that_is_being_made_where_a_segment_finds_no_space() {
    let io = MemIo::default();
    let (log, _) = Log::open("/log", &small(&io)).unwrap();
    fill_up(&log, &io);
    let shared = &*log.handle.shared;
    shared.gate().kept.making = true;
    // Who holds a lock is told to wait without it.
    let taken = hand_over(&log, 2_000, Use::New(1));
    assert!(matches!(taken, Ok(Taken::Lacks(bytes)) if bytes == with_rest(1)), "{taken:?}");
    let records: &[&[u8]] = &[&[7; 2_000]];
    let batch = Batch { kind: RecordKind::CONTROL, records };
    std::thread::scope(|scope| {
        let room = scope.spawn(|| log.make_room(2_000, Some(1)));
        let append = scope.spawn(move || shared.enqueue_as(batch, true, Use::New(1)));
        while shared.gate().waiting < 2 && !room.is_finished() && !append.is_finished() {
            std::thread::yield_now();
        }
        io.set_free_blocks(Some(1_000));
        drop(Making(shared));
        room.join().unwrap().unwrap();
        append.join().unwrap().unwrap();
    });
}

/// The failure was told to who asked for room alone: whoever changed a name of the directory at
/// that time took his own change for durable.
#[test]
fn a_sync_of_the_name_of_a_reserve_that_fails_is_final() {
    let io = MemIo::default();
    let options = Options::new().create(CreateMode::IfMissing).background(false);
    let options = options.keep_reserve().io(Arc::new(io.clone()));
    let (log, _) = Log::open("/log", &options).unwrap();
    log.promise(1).unwrap();
    io.arm(Which::Kind(CallKind::SyncDir), 1, 1, Injected::Error(EIO));
    // More than the one that stands has room for.
    assert_eq!(log.promise(2 << 20).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(io.struck(), 1);
    assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Poisoned);
    drop(log);
    io.disarm();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.promise(2 << 20).unwrap();
}

#[test]
fn a_reserve_has_its_blocks_also_where_none_can_be_reserved() {
    let io = MemIo::default();
    io.arm(Which::Kind(CallKind::Allocate), 1, u64::MAX, Injected::Error(95));
    let options = Options::new().create(CreateMode::IfMissing).background(false);
    let options = options.keep_reserve().io(Arc::new(io.clone()));
    let (log, _) = Log::open("/log", &options).unwrap();
    log.promise(2 << 20).unwrap();
    io.set_free_blocks(Some(0));
    let reserve = io.open(&Path::new("/log").join(RESERVE_NAME), OpenHow::ReadWrite).unwrap();
    let len = reserve.len().unwrap();
    assert!(len > 2 << 20);
    write_zeros(&*reserve, 0, len).unwrap();
}

/// What was made behind a kill was to be as large as before, of less than that, or there was none.
#[test]
fn a_reserve_that_a_kill_takes_is_made_again_for_all_that_was_promised() {
    const FRAME: u64 = 256;
    let len = usize::try_from(FRAME - oncelog_format::frame_len(0)).unwrap();
    for promised in [1, RESERVED / 2, RESERVED - FRAMES_OFFSET, RESERVED, RESERVED + 1] {
        // The name as a segment, and the sync of the directory behind it.
        for kind in [CallKind::Rename, CallKind::SyncDir] {
            let io = MemIo::default();
            let (log, _) = Log::open("/log", &small(&io)).unwrap();
            fill_up(&log, &io);
            io.set_free_blocks(None);
            log.promise(promised).unwrap();
            io.set_free_blocks(Some(0));
            io.arm(Which::Kind(kind), 1, 1, Injected::Stop);
            assert!(hand_over(&log, 2_000, Use::Ending(0)).is_err());
            assert!(io.is_stopped());
            drop(log);
            let io = MemIo::new(io.machine());
            let (log, _) = Log::open("/log", &small(&io)).unwrap();
            // Another log keeps room before this one does, and takes all that came free.
            io.set_free_blocks(Some(0));
            // As whoever opens a store keeps room.
            let kept = log.promise(promised).map_err(|e| e.kind());
            assert!(matches!(kept, Ok(()) | Err(ErrorKind::StoreFull)), "{kept:?}");
            for nth in 0..promised / FRAME {
                let taken = hand_over(&log, len, Use::Ending(0));
                assert!(
                    matches!(taken, Ok(Taken::In(_))),
                    "{promised}, {kind:?}, {nth}: {taken:?}"
                );
            }
        }
    }
}

/// The frames of a write that a kill tore close the tail, which had become of the reserve: nothing
/// was left to make another one of.
#[test]
fn a_reserve_whose_first_batch_a_kill_tears_is_made_again_for_all_that_was_promised() {
    const FRAME: u64 = 256;
    const BATCH: usize = 10_000;
    let len = usize::try_from(FRAME - oncelog_format::frame_len(0)).unwrap();
    let mut torn = 0;
    for promised in [BATCH as u64 + FRAME, RESERVED / 2, RESERVED - FRAMES_OFFSET, RESERVED + 1] {
        let io = MemIo::default();
        let (log, _) = Log::open("/log", &small(&io)).unwrap();
        fill_up(&log, &io);
        io.set_free_blocks(None);
        log.promise(promised).unwrap();
        io.set_free_blocks(Some(0));
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let notes = Arc::clone(&seen);
        io.observe(move |machine, _| notes.lock().unwrap().push(machine.clone()));
        let taken = hand_over(&log, BATCH, Use::Ending(0)).unwrap();
        let Taken::In(pending) = taken else { panic!("{promised}: {taken:?}") };
        let pending_lsn = pending.wait().unwrap().first;
        io.unobserve();
        for (nth, machine) in std::mem::take(&mut *seen.lock().unwrap()).into_iter().enumerate() {
            let what = format!("{promised}, point {nth}");
            let io = MemIo::new(machine);
            let (log, report) = Log::open("/log", &small(&io)).unwrap();
            torn += u32::from(report.torn.is_some());
            let kept = log.promise(promised).map_err(|e| e.kind());
            assert!(matches!(kept, Ok(()) | Err(ErrorKind::StoreFull)), "{what}: {kept:?}");
            let is_whole = report.last_lsn >= Some(pending_lsn);
            let left = if is_whole { promised - BATCH as u64 - FRAME } else { promised };
            for record in 0..left / FRAME {
                let taken = hand_over(&log, len, Use::Ending(0));
                assert!(matches!(taken, Ok(Taken::In(_))), "{what}, record {record}: {taken:?}");
            }
        }
    }
    assert!(torn >= 4, "{torn} torn");
}

/// A file of that name that no log has made is not made again in all its length.
#[test]
fn what_is_longer_than_a_segment_was_no_reserve() {
    let io = MemIo::default();
    let options = small(&io);
    drop(Log::open("/log", &options).unwrap());
    let file = io.open(&Path::new("/log").join(RESERVE_NAME), OpenHow::CreateNew).unwrap();
    file.write_all_at(b"something else", 0).unwrap();
    file.set_len(1 << 40).unwrap();
    let (log, _) = Log::open("/log", &options).unwrap();
    assert!(log.handle.shared.gate().kept.spare.is_none());
    assert!(io.open(&Path::new("/log").join(RESERVE_NAME), OpenHow::ReadWrite).is_err());
}

/// A roll that was refused behind the footer was tried again on a full disk, and cut it off.
#[test]
fn a_torn_tail_keeps_its_footer_where_the_roll_is_tried_again_without_space() {
    let io = MemIo::default();
    let (log, _) = Log::open("/log", &small(&io)).unwrap();
    log.promise(1).unwrap();
    let Taken::In(first) = hand_over(&log, 100, Use::New(1)).unwrap() else { panic!("no reserve") };
    first.wait().unwrap();
    drop(log);
    let mut machine = io.machine();
    let path = "/log/0000000001-00000000000000000001.seg";
    let mut bytes = machine.bytes(path).unwrap();
    let torn = usize::try_from(FRAMES_OFFSET).unwrap() + 1_000;
    bytes[torn] = 1;
    machine.put(path, &bytes).unwrap();
    let io = MemIo::new(machine);
    let (log, report) = Log::open("/log", &small(&io)).unwrap();
    assert!(report.torn.is_some());
    io.arm(Which::Kind(CallKind::Rename), 1, 1, Injected::Error(ENOSPC));
    assert!(log.make_room(100, None).is_err());
    assert_eq!(io.struck(), 1);
    let sealed = io.machine().bytes(path).unwrap();
    io.set_free_blocks(Some(0));
    assert_eq!(log.make_room(100, None).unwrap_err().kind(), ErrorKind::StoreFull);
    assert!(io.machine().bytes(path).unwrap() == sealed, "the footer is cut");
}
