//! Named cursors: where they stand is durable, and nothing that one needs is dropped.

use std::path::Path;
use std::sync::{Arc, Barrier};

use oncelog::testing::{CallKind, EIO, ENOSPC, Fault, MemIo, Which};
use oncelog::{
    Batch, CreateMode, Cursor, Durability, ErrorKind, FindingKind, HolderKind, Log, LogView,
    Options, RecordKind, Severity,
};

use super::{fill, memory};
use crate::log::{lsn, open, place};

/// Names and places of the cursors, as another process reads them.
pub(super) fn seen(io: &MemIo) -> Vec<(String, u64)> {
    let view = LogView::open_unshared("/log", Arc::new(io.clone())).unwrap();
    assert_eq!(view.severity(), Severity::Info, "{:?}", view.findings());
    let held = view.why_not_trimmed().into_iter();
    let cursors = held.filter(|holder| holder.kind == HolderKind::Cursor);
    cursors.map(|holder| (holder.name, holder.lsn.get())).collect()
}

/// What a power loss leaves that takes everything unsynced.
pub(super) fn lost(io: &MemIo) -> MemIo {
    let machine = io.machine();
    MemIo::new(machine.power_loss(&machine.unsynced(), &[]))
}

pub(super) fn filled() -> (MemIo, Options, Log) {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 12);
    (io, options, log)
}

#[test]
fn a_cursor_stands_where_it_was_put_after_a_power_loss() {
    let (io, options, log) = filled();
    let cursor = log.cursor("indexer").unwrap();
    assert_eq!((cursor.lsn().unwrap(), cursor.name()), (lsn(1), "indexer"));
    assert_eq!(seen(&lost(&io)), [("indexer".to_owned(), 1)]);
    for to in [4, 5, 11] {
        cursor.advance(lsn(to)).unwrap();
        assert_eq!(seen(&lost(&io)), [("indexer".to_owned(), to)]);
    }
    let after = lost(&io);
    let (log, _) = Log::open("/log", &options.clone().io(Arc::new(after))).unwrap();
    assert_eq!(log.cursor("indexer").unwrap().lsn().unwrap(), lsn(11));
    assert_eq!(
        log.trim(lsn(12)).map_err(|e| (e.kind(), e.lsn())),
        Err((ErrorKind::Pinned, Some(lsn(11))))
    );
    log.trim(lsn(11)).unwrap();
}

#[test]
fn a_cursor_that_was_removed_holds_nothing_and_its_place_is_given_again() {
    let (io, options, log) = filled();
    for name in ["a", "b"] {
        log.cursor(name).unwrap();
    }
    let handle = log.cursor("a").unwrap();
    handle.clone().remove().unwrap();
    assert_eq!(seen(&lost(&io)), [("b".to_owned(), 1)]);
    for refused in [handle.lsn().map(drop), handle.advance(lsn(2)), handle.remove()] {
        let e = refused.unwrap_err();
        assert_eq!(
            (e.kind(), e.to_string()),
            (ErrorKind::InvalidInput, "the cursor \"a\" was removed".into())
        );
    }
    log.cursor("b").unwrap().advance(lsn(9)).unwrap();
    log.trim(lsn(9)).unwrap();
    log.close().unwrap();
    let (log, _) = Log::open("/log", &options).unwrap();
    assert_eq!(log.cursor("c").unwrap().lsn().unwrap(), lsn(9), "it stands at the oldest record");
    let both = [("b".to_owned(), 9), ("c".to_owned(), 9)];
    assert_eq!(seen(&lost(&io)), both);
    let (log, _) = Log::open("/log", &options.io(Arc::new(lost(&io)))).unwrap();
    log.cursor("c").unwrap().advance(lsn(12)).unwrap();
    assert_eq!(log.cursor("b").unwrap().lsn().unwrap(), lsn(9));
}

/// It would drop what the other one's owner needs.
#[test]
fn a_handle_of_a_removed_cursor_never_touches_the_next_one_of_its_name() {
    let (io, _options, log) = filled();
    let mut gone = Vec::new();
    for round in 1..=3 {
        let cursor = log.cursor("c").unwrap();
        // Also in another place than before.
        let found = log.find_cursor("c").unwrap().unwrap();
        log.cursor(&format!("beside {round}")).unwrap();
        found.advance(lsn(2)).unwrap();
        assert_eq!(cursor.lsn().unwrap(), lsn(2), "handles of one cursor are the same");
        for old in &gone {
            let calls: [oncelog::Result<()>; 3] =
                [Cursor::lsn(old).map(drop), old.advance(lsn(9)), old.remove()];
            for refused in calls {
                assert_eq!(refused.map_err(|e| e.kind()), Err(ErrorKind::InvalidInput), "{round}");
            }
        }
        assert_eq!((cursor.lsn().unwrap(), cursor.name()), (lsn(2), "c"));
        assert_eq!(log.trim(lsn(9)).unwrap_err().kind(), ErrorKind::Pinned);
        assert!(seen(&lost(&io)).contains(&("c".to_owned(), 2)));
        cursor.remove().unwrap();
        gone.extend([cursor, found]);
        if round == 2 {
            // A cursor of another name has its place.
            log.cursor("takes the place").unwrap();
        }
    }
}

#[test]
fn names_and_counts_are_bounded_and_moves_go_forward() {
    let (_io, _options, log) = filled();
    let kind = |name: &str| log.cursor(name).map(drop).map_err(|e| e.kind());
    assert_eq!(kind(""), Err(ErrorKind::InvalidInput));
    assert_eq!(kind(&"n".repeat(129)), Err(ErrorKind::Limit));
    for k in 0..127 {
        log.cursor(&format!("{k}")).unwrap();
    }
    let last = log.cursor(&"\u{e9}".repeat(64)).unwrap();
    assert_eq!(kind("one too many"), Err(ErrorKind::Limit));
    assert_eq!(kind("126"), Ok(()), "one that is there is no further one");
    last.advance(lsn(7)).unwrap();
    last.advance(lsn(7)).unwrap();
    for to in [6, 14] {
        assert_eq!(last.advance(lsn(to)).unwrap_err().kind(), ErrorKind::InvalidInput, "{to}");
    }
    assert_eq!(last.lsn().unwrap(), lsn(7));
    log.cursor("0").unwrap().remove().unwrap();
    assert_eq!(kind("one that fits"), Ok(()));
    log.clone().close().unwrap();
    assert_eq!(last.advance(lsn(8)).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(kind("0"), Err(ErrorKind::Closed));
}

#[test]
fn a_cursor_whose_removal_was_refused_is_removed_by_the_same_handle() {
    for fault in [Fault::Error(ENOSPC), Fault::Error(EIO)] {
        let (io, _options, log) = filled();
        let cursor = log.cursor("c").unwrap();
        io.arm(Which::Kind(CallKind::Write), 1, 1, fault);
        assert!(cursor.remove().is_err());
        assert_eq!(cursor.lsn().unwrap(), lsn(1), "it holds what it held");
        assert_eq!(log.trim(lsn(6)).unwrap_err().kind(), ErrorKind::Pinned);
        cursor.remove().unwrap();
        assert_eq!(cursor.remove().unwrap_err().kind(), ErrorKind::InvalidInput);
        log.trim(lsn(6)).unwrap();
        assert_eq!(seen(&lost(&io)), []);
    }
}

/// Were they lost, their LSNs would be given to records that the cursor's owner never saw.
#[test]
fn what_a_cursor_lets_go_of_is_durable_first() {
    let (io, _options, log) = filled();
    let cursor = log.cursor("c").unwrap();
    let batch = Batch { kind: RecordKind::RECORD, records: &[b"x", b"y"] };
    log.append_batch(batch, Durability::Buffered).unwrap();
    cursor.advance(lsn(15)).unwrap();
    let view = LogView::open_unshared("/log", Arc::new(lost(&io))).unwrap();
    assert_eq!((view.last_lsn(), view.severity()), (Some(lsn(14)), Severity::Info));
}

/// Counts of calls: one write and one sync, in the file of the cursors alone.
#[test]
fn a_move_takes_one_sync_and_needs_no_space() {
    let (io, options, log) = filled();
    let cursor = log.cursor("c").unwrap();
    log.cursor("d").unwrap();
    let calls = io.counts().0;
    cursor.advance(lsn(3)).unwrap();
    assert_eq!(io.counts().0 - calls, 2);
    io.set_free_blocks(Some(0));
    cursor.advance(lsn(4)).unwrap();
    cursor.clone().remove().unwrap();
    log.cursor("e").unwrap();
    log.close().unwrap();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.cursor("d").unwrap().advance(lsn(12)).unwrap();
    log.cursor("e").unwrap().advance(lsn(12)).unwrap();
    log.trim(lsn(12)).unwrap();
}

#[test]
fn a_disk_that_refuses_a_move_leaves_the_cursor_where_it_stood() {
    for fault in [Fault::Error(ENOSPC), Fault::Error(EIO), Fault::Short(100), Fault::Short(511)] {
        let (io, options, log) = filled();
        let cursor = log.cursor("c").unwrap();
        cursor.advance(lsn(5)).unwrap();
        io.arm(Which::Kind(CallKind::Write), 1, 1, fault);
        if let Fault::Short(_) = fault {
            io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(ENOSPC));
        }
        let e = cursor.advance(lsn(9)).unwrap_err();
        let expected =
            if fault == Fault::Error(EIO) { ErrorKind::Io } else { ErrorKind::StoreFull };
        assert_eq!((e.kind(), e.path()), (expected, Some(Path::new("/log/CURSORS"))), "{fault:?}");
        assert_eq!(cursor.lsn().unwrap(), lsn(5));
        assert_eq!(log.trim(lsn(6)).unwrap_err().kind(), ErrorKind::Pinned);
        log.append(b"a refusal poisons nothing").unwrap();
        // What stands of it is no damage to the cursor, wherever the process ends.
        for io in [MemIo::new(io.machine()), lost(&io)] {
            let (log, _) = Log::open("/log", &options.clone().io(Arc::new(io))).unwrap();
            let found = log.cursor("c").unwrap().lsn().unwrap();
            // A write that failed may have been made all the same.
            assert!([lsn(5), lsn(9)].contains(&found), "{fault:?} {found}");
        }
        cursor.advance(lsn(9)).unwrap();
        assert_eq!(seen(&lost(&io)), [("c".to_owned(), 9)]);
    }
}

#[test]
fn a_disk_without_space_for_the_first_cursor_refuses_it_and_a_later_one_is_made() {
    for free in 0..32 {
        let (io, _options, log) = filled();
        io.set_free_blocks(Some(free));
        assert_eq!(log.cursor("c").unwrap_err().kind(), ErrorKind::StoreFull, "{free}");
        log.append(b"more").unwrap();
        log.trim(lsn(3)).unwrap();
        io.set_free_blocks(None);
        assert_eq!(log.cursor("c").unwrap().lsn().unwrap(), lsn(3));
    }
}

/// What was refused may stand in the file all the same: the name goes nowhere else.
#[test]
fn a_cursor_whose_making_was_refused_is_made_where_it_was_begun() {
    for nth in 1..=2 {
        for seed in 0..16 {
            let (io, options, log) = filled();
            let first = log.cursor("first").unwrap();
            io.seed(seed);
            io.arm(Which::Kind(CallKind::Write), nth, 1, Fault::Error(EIO));
            assert_eq!(log.cursor("c").unwrap_err().kind(), ErrorKind::Io);
            io.disarm();
            first.remove().unwrap();
            log.trim(lsn(4)).unwrap();
            log.cursor("other").unwrap();
            let cursor = log.cursor("c").unwrap();
            assert_eq!(cursor.lsn().unwrap(), lsn(4));
            cursor.advance(lsn(5)).unwrap();
            let expected = [("other".to_owned(), 4), ("c".to_owned(), 5)];
            assert_eq!(seen(&lost(&io)), expected, "write {nth}, seed {seed}");
            drop(log);
            let (log, _) = Log::open("/log", &options).unwrap();
            log.cursor("other").unwrap().remove().unwrap();
            log.trim(lsn(5)).unwrap();
        }
    }
}

#[test]
fn a_cursor_whose_removal_was_refused_is_there_when_it_is_asked_for_again() {
    for seed in 0..16 {
        let (io, _options, log) = filled();
        let cursor = log.cursor("c").unwrap();
        cursor.advance(lsn(5)).unwrap();
        io.seed(seed);
        io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Error(EIO));
        assert_eq!(cursor.remove().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(log.trim(lsn(6)).unwrap_err().kind(), ErrorKind::Pinned);
        log.cursor("other").unwrap();
        assert_eq!(log.cursor("c").unwrap().lsn().unwrap(), lsn(5));
        let expected = [("other".to_owned(), 1), ("c".to_owned(), 5)];
        for io in [MemIo::new(io.machine()), lost(&io)] {
            assert_eq!(seen(&io), expected, "seed {seed}");
        }
    }
}

/// A slot that was refused may stand there all the same, and count at the next open.
#[test]
fn a_cursor_that_is_made_behind_a_refused_trim_keeps_its_records() {
    for (closed, rolled) in [(false, false), (false, true), (true, false), (true, true)] {
        for seed in 0..32 {
            let (io, options, log) = filled();
            log.sync().unwrap();
            log.write_idle_slot().unwrap();
            io.seed(seed);
            io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Error(ENOSPC));
            assert_eq!(log.trim(lsn(9)).unwrap_err().kind(), ErrorKind::StoreFull);
            if rolled {
                let rolls = log.stats().rolls;
                fill(&log, 12);
                assert!(log.stats().rolls > rolls);
            }
            assert_eq!(log.cursor("c").unwrap().lsn().unwrap(), lsn(1));
            if closed {
                log.close().unwrap();
            } else {
                io.kill();
                drop(log);
            }
            for io in [MemIo::new(io.machine()), lost(&io)] {
                let (log, _) = Log::open("/log", &options.clone().io(Arc::new(io))).unwrap();
                let story = format!("seed {seed}, closed {closed}, rolled {rolled}");
                assert_eq!(log.oldest_lsn(), lsn(1), "{story}");
                assert_eq!(log.cursor("c").unwrap().lsn().unwrap(), lsn(1));
            }
        }
    }
}

#[test]
fn a_trim_whose_slot_fails_for_another_reason_than_space_is_final() {
    let (io, options, log) = filled();
    io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Error(EIO));
    assert_eq!(log.trim(lsn(9)).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.cursor("c").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.append(b"late").unwrap_err().kind(), ErrorKind::Poisoned);
    drop(log);
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(b"again").unwrap();
}

#[test]
fn a_failed_sync_of_a_cursor_is_final_and_leaves_it_old_or_new() {
    let (io, options, log) = filled();
    let cursor = log.cursor("c").unwrap();
    cursor.advance(lsn(5)).unwrap();
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    assert_eq!(cursor.advance(lsn(9)).unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(cursor.lsn().unwrap(), lsn(5), "nothing goes on a guess");
    assert_eq!(log.append(b"late").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(cursor.advance(lsn(10)).unwrap_err().kind(), ErrorKind::Poisoned);
    drop((log, cursor));
    // The cache shows the new one and calls it clean: a trim that believed it would take from the
    // old one what a power loss gives back to it.
    let (log, _) = Log::open("/log", &options).unwrap();
    assert_eq!(log.cursor("c").unwrap().lsn().unwrap(), lsn(9));
    assert_eq!(seen(&lost(&io)), [("c".to_owned(), 9)], "what is told is durable");
    drop(log);
    let (log, _) = Log::open("/log", &options).unwrap();
    log.trim(lsn(9)).unwrap();
    assert_eq!(seen(&lost(&io)), [("c".to_owned(), 9)]);
}

#[test]
fn damaged_cursors_stop_trims_and_nothing_else() {
    let (io, options, log) = filled();
    log.cursor("c").unwrap().advance(lsn(5)).unwrap();
    log.close().unwrap();
    let mut bytes = io.machine().bytes("/log/CURSORS").unwrap();
    for copy in [0, 65_536] {
        bytes[copy + 41] ^= 1;
    }
    io.alter(|machine| machine.put("/log/CURSORS", &bytes)).unwrap();
    let (log, report) = Log::open("/log", &options).unwrap();
    let found: Vec<_> =
        report.findings.iter().map(|finding| (finding.kind, finding.severity)).collect();
    assert_eq!(found, [(FindingKind::CursorsDamaged, Severity::Degraded)]);
    let refused = [
        log.trim(lsn(2)),
        log.trim_by_retention().map(drop),
        log.cursor("c").map(drop),
        log.cursor("d").map(drop),
    ];
    let kinds: Vec<_> = refused
        .into_iter()
        .map(|refused| refused.map_err(|e| (e.kind(), e.path() == Some(Path::new("/log/CURSORS")))))
        .collect();
    let corrupt = Err((ErrorKind::Corrupt, true));
    // No limit is set: retention drops nothing, and needs to know nothing.
    assert_eq!(kinds, [corrupt, Ok(()), corrupt, corrupt]);
    log.append(b"appends go on").unwrap();
    assert_eq!(crate::log::read(&log, 1).len(), 13);
    assert_eq!(io.machine().bytes("/log/CURSORS").unwrap(), bytes, "the evidence stays");
}

#[test]
fn a_directory_that_holds_cursors_alone_is_not_made_a_log() {
    let (_home, dir) = place();
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("CURSORS"), [7; 512]).unwrap();
    let e = Log::open(&dir, &Options::new().create(CreateMode::IfMissing)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
}

#[test]
fn cursors_that_move_at_once_share_syncs_and_each_gets_where_it_wanted() {
    let (_home, dir) = place();
    let log = open(&dir);
    fill(&log, 60);
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for k in 0..8 {
            let (log, barrier) = (&log, &barrier);
            scope.spawn(move || {
                let cursor = log.cursor(&format!("c{k}")).unwrap();
                barrier.wait();
                for to in 2..=50 {
                    cursor.advance(lsn(to)).unwrap();
                    assert_eq!(cursor.lsn().unwrap(), lsn(to));
                }
            });
        }
    });
    log.trim(lsn(50)).unwrap();
    log.close().unwrap();
    let view = LogView::open(&dir, Arc::new(oncelog::io::fs::FsIo::new())).unwrap();
    let held = view.why_not_trimmed();
    assert_eq!(held.len(), 8);
    assert!(held.iter().all(|holder| holder.lsn == lsn(50)), "{held:?}");
}

#[test]
fn cursors_are_listed_and_found_without_being_made() {
    let (io, options, log) = filled();
    assert!(log.cursors().unwrap().is_empty());
    assert!(log.find_cursor("c").unwrap().is_none());
    assert!(io.machine().bytes("/log/CURSORS").is_err(), "nothing was made");
    for (name, at) in [("c", 5), ("a", 3)] {
        log.cursor(name).unwrap().advance(lsn(at)).unwrap();
    }
    let found = |log: &Log| -> Vec<(String, u64)> {
        let cursors = log.cursors().unwrap().into_iter();
        cursors.map(|cursor| (cursor.name().to_owned(), cursor.lsn().unwrap().get())).collect()
    };
    let both = [("a".to_owned(), 3), ("c".to_owned(), 5)];
    assert_eq!(found(&log), both);
    log.close().unwrap();
    let (log, _) = Log::open("/log", &options).unwrap();
    assert_eq!(found(&log), both);
    assert!(log.find_cursor("d").unwrap().is_none());
    log.find_cursor("c").unwrap().unwrap().remove().unwrap();
    assert!(log.find_cursor("c").unwrap().is_none());
    assert_eq!(seen(&lost(&io)), [("a".to_owned(), 3)]);
    log.clone().close().unwrap();
    assert_eq!(log.cursors().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_cursor_that_is_found_stands_though_its_removal_was_refused() {
    let (io, _, log) = filled();
    let cursor = log.cursor("c").unwrap();
    // All that counts of the copy is written, and the system refuses the zeros behind it.
    io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Short(400));
    io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(EIO));
    assert_eq!(cursor.remove().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(seen(&MemIo::new(io.machine())), [], "the file says that it is gone");
    assert!(log.find_cursor("c").unwrap().is_some());
    let stands = [("c".to_owned(), 1)];
    assert_eq!(seen(&MemIo::new(io.machine())), stands);
    assert_eq!(seen(&lost(&io)), stands);
}
