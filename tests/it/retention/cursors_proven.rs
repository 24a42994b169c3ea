//! Cursors behind a failed sync: what a process tells of them, or drops because of them, holds
//! after a power loss, whatever the cache made it believe.

use std::path::Path;
use std::sync::Arc;

use oncelog::io::{Io as _, OpenHow};
use oncelog::testing::{CallKind, EIO, Fault, MemIo, Which};
use oncelog::{Cursor, ErrorKind, Log, Options};

use super::cursors::{filled, lost, seen};
use crate::log::lsn;

fn fail_sync(io: &MemIo, nth: u64) {
    io.arm(Which::Kind(CallKind::Sync), nth, 1, Fault::Error(EIO));
}

/// Another process on the same machine.
fn successor(io: &MemIo, options: &Options) -> (MemIo, Log) {
    let io = io.successor(io.machine());
    let (log, _) = Log::open("/log", &options.clone().io(Arc::new(io.clone()))).unwrap();
    (io, log)
}

/// The system drops all pages that it takes for clean.
fn drop_pages(io: &MemIo) {
    io.alter(|machine| *machine = machine.evict(|_| true));
}

/// Moves a cursor and compares each time where a power loss leaves it.
fn check_moves(what: &str, io: &MemIo, cursor: &Cursor) {
    let at = cursor.lsn().unwrap().get();
    assert_eq!(seen(&lost(io)), [("a".to_owned(), at)], "{what}: told");
    for to in [5, 9, 11, 12].into_iter().filter(|to| *to > at) {
        cursor.advance(lsn(to)).unwrap();
        assert_eq!(seen(&lost(io)), [("a".to_owned(), to)], "{what}: acknowledged");
    }
}

#[test]
fn a_cursor_whose_making_failed_is_there_for_certain_once_another_process_has_it() {
    for nth in 1..=3 {
        for drops in [false, true] {
            let (io, options, log) = filled();
            fail_sync(&io, nth);
            let e = log.cursor("a").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "sync {nth}");
            drop(log);
            let (io, log) = successor(&io, &options);
            if drops {
                drop_pages(&io);
            }
            let what = format!("sync {nth} failed, dropped: {drops}");
            check_moves(&what, &io, &log.cursor("a").unwrap());
        }
    }
}

/// As a version made it that reserved the file and wrote no zeros: the file system takes a block
/// for written that it failed to write the first time, as long as it is cached.
#[test]
fn cursors_in_blocks_that_stay_unwritten_while_they_are_cached_are_written() {
    let (io, options, log) = filled();
    log.cursor("a").unwrap();
    log.close().unwrap();
    let path = Path::new("/log/CURSORS");
    let bytes = io.machine().bytes(path).unwrap();
    io.remove(path).unwrap();
    let file = io.open(path, OpenHow::CreateNew).unwrap();
    file.allocate(bytes.len() as u64).unwrap();
    file.sync().unwrap();
    io.sync_dir(Path::new("/log")).unwrap();
    file.write_at(&bytes, 0).unwrap();
    fail_sync(&io, 1);
    file.sync().unwrap_err();
    drop(file);
    let (io, log) = successor(&io, &options);
    check_moves("reserved", &io, &log.cursor("a").unwrap());
}

/// A cursor that was at each of its two copies, and one whose move to 9 failed then.
fn half_moved(moves: u64) -> (MemIo, Options) {
    let (io, options, log) = filled();
    let cursor = log.cursor("a").unwrap();
    for to in 2..2 + moves {
        cursor.advance(lsn(to)).unwrap();
    }
    fail_sync(&io, 1);
    assert_eq!(cursor.advance(lsn(9)).unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    (io, options)
}

#[test]
fn a_cursor_that_the_cache_has_lost_is_told_where_it_stands_now() {
    for moves in 0..3 {
        let (io, options) = half_moved(moves);
        let (io, log) = successor(&io, &options);
        drop_pages(&io);
        let cursor = log.cursor("a").unwrap();
        let at = cursor.lsn().unwrap();
        assert_eq!(at, lsn(1 + moves), "what the disk has");
        log.trim(at).unwrap();
        let e = log.trim(lsn(9)).unwrap_err();
        assert_eq!((e.kind(), e.lsn()), (ErrorKind::Pinned, Some(at)));
        assert_eq!(seen(&lost(&io)), [("a".to_owned(), at.get())]);
        check_moves("lost by the cache", &io, &cursor);
    }
}

#[test]
fn a_trim_relies_on_no_cursor_that_a_power_loss_takes_back() {
    for moves in 0..3 {
        for drops in [false, true] {
            let (io, options) = half_moved(moves);
            let (io, log) = successor(&io, &options);
            if drops {
                drop_pages(&io);
            }
            let at = if drops { 1 + moves } else { 9 };
            let trimmed = log.trim(lsn(9)).map_err(|e| (e.kind(), e.lsn()));
            let expected = if drops { Err((ErrorKind::Pinned, Some(lsn(at)))) } else { Ok(()) };
            assert_eq!(trimmed, expected, "{moves} moves");
            drop(log);
            let (_, log) = successor(&lost(&io), &options);
            assert!(log.oldest_lsn() <= lsn(at), "{moves} moves, dropped: {drops}");
            assert_eq!(log.cursor("a").unwrap().lsn().unwrap(), lsn(at));
        }
    }
}

#[test]
fn cursors_that_cannot_be_proven_are_refused_and_all_else_goes_on() {
    for kind in [CallKind::Evict, CallKind::Write] {
        let (io, options) = half_moved(1);
        let (io, log) = successor(&io, &options);
        io.set_free_blocks(Some(0));
        io.arm(Which::Kind(kind), 1, 2, Fault::Error(EIO));
        assert_eq!(log.cursor("a").unwrap_err().kind(), ErrorKind::Io, "{kind:?}");
        assert_eq!(log.trim(lsn(2)).unwrap_err().kind(), ErrorKind::Io, "{kind:?}");
        log.append(b"more").unwrap();
        check_moves("at last", &io, &log.cursor("a").unwrap());
    }
}
