//! What raft is told of failures, and what is refused.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use oncelog::io::Io as _;
use oncelog::raft::{EntryReader, RaftLog};
use oncelog::testing::{CallKind, EIO, Fault, MemIo, Which};
use oncelog::{Batch, CreateMode, Durability, ErrorKind, Log, Lsn, Options, RecordKind, Retention};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{EntryPayload, RaftLogReader, StorageError, Vote};
use proptest::prelude::*;

use crate::node::{self, Text, entry, id};

/// What an error says it was about, and its text.
fn said(e: StorageError<u64>) -> (String, String) {
    let e = e.into_io().unwrap();
    let shown = e.to_string();
    let (about, text) = shown.split_once(": ").unwrap();
    (about.to_owned(), text.to_owned())
}

#[test]
fn a_failed_sync_is_told_as_a_failure_and_ends_the_node() {
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        log.blocking_append([entry(1, 0, "a")]).await.unwrap();
        io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
        let (about, text) = said(log.blocking_append([entry(1, 1, "b")]).await.unwrap_err());
        assert_eq!(about, "when Write Logs");
        assert!(text.contains("is unknown until a reopen"), "{text}");

        // Nothing is tried again.
        let poisoned = "the log must be opened again";
        for (call, expected) in [
            (log.save_vote(&Vote::new(2, 1)).await, "when Write Vote"),
            (log.save_committed(Some(id(1, 0))).await, "when Write Store"),
            (log.blocking_append([entry(1, 2, "c")]).await, "when Write Logs"),
            (log.truncate(id(1, 1)).await, "when Delete Logs"),
            (log.purge(id(1, 0)).await, "when Delete Logs"),
        ] {
            let (about, text) = said(call.unwrap_err());
            assert_eq!(about, expected);
            assert!(text.contains(poisoned), "{text}");
        }
        // What was durable can be read, and the rest is not served.
        assert_eq!(log.try_get_log_entries(0..1).await.unwrap(), [entry(1, 0, "a")]);
        assert_eq!(said(log.try_get_log_entries(0..2).await.unwrap_err()).0, "when Read Logs");

        let mut log = node::open(&node::kill(&io));
        let found = log.try_get_log_entries(..).await.unwrap();
        assert_eq!(found[..1], [entry(1, 0, "a")]);
        assert!(found.len() <= 2, "{found:?}");
        assert_eq!(log.read_vote().await.unwrap(), None);
    });
}

#[test]
fn a_full_disk_refuses_an_append_and_loses_nothing() {
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        io.set_free_blocks(Some(0));
        let text = "x".repeat(9000);
        let mut count = 0;
        let refused = loop {
            match log.blocking_append([entry(1, count, text.as_str())]).await {
                Ok(()) => count += 1,
                Err(e) => break said(e),
            }
        };
        assert_eq!(refused.0, "when Write Logs");
        assert!(count > 0);
        // The refusal wrote nothing, and poisons nothing.
        io.set_free_blocks(None);
        log.blocking_append([entry(2, count, "behind it")]).await.unwrap();
        let mut log = node::open(&node::kill(&io));
        let found = log.try_get_log_entries(..).await.unwrap();
        assert_eq!(found.last(), Some(&entry(2, count, "behind it")));
        assert_eq!(u64::try_from(found.len()).unwrap(), count + 1);
    });
}

#[test]
fn a_hole_is_refused_and_what_was_purged_is_left_out() {
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        // A node that joins late begins anywhere.
        log.blocking_append([entry(1, 4, "a"), entry(1, 5, "b")]).await.unwrap();
        for holed in [
            vec![entry(1, 7, "c")],
            vec![entry(1, 5, "c")],
            vec![entry(1, 6, "c"), entry(1, 8, "d")],
        ] {
            let (_, text) = said(log.blocking_append(holed).await.unwrap_err());
            assert!(text.contains("expected"), "{text}");
        }
        // A snapshot was installed, far ahead.
        log.purge(id(2, 20)).await.unwrap();
        log.blocking_append([entry(2, 20, "old"), entry(2, 21, "e")]).await.unwrap();
        let (_, text) = said(log.blocking_append([entry(2, 23, "f")]).await.unwrap_err());
        assert!(text.contains("expected 22"), "{text}");
        let mut log = node::open(&node::kill(&io));
        assert_eq!(log.try_get_log_entries(..).await.unwrap(), [entry(2, 21, "e")]);
        let state = log.get_log_state().await.unwrap();
        assert_eq!(
            (state.last_purged_log_id, state.last_log_id),
            (Some(id(2, 20)), Some(id(2, 21)))
        );
    });
}

#[test]
fn purges_give_space_back_and_keep_the_state() {
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        log.save_vote(&Vote::new_committed(7, 1)).await.unwrap();
        for n in 0..300 {
            log.blocking_append([entry(7, n, "x".repeat(3000))]).await.unwrap();
            if n % 20 == 19 {
                log.purge(id(7, n - 5)).await.unwrap();
            }
        }
        // What a thread of the log does.
        while log.log().remove_step().unwrap() {}
        let names = io.list(node::DIR.as_ref()).unwrap();
        let segments = names.iter().filter(|entry| entry.name.to_str().unwrap().ends_with(".seg"));
        // Of 900,000 bytes appended, the last 25 entries are left.
        assert!(segments.count() <= 3, "{names:?}");
        let mut log = node::open(&node::kill(&io));
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(7, 1)));
        let state = log.get_log_state().await.unwrap();
        assert_eq!(
            (state.last_purged_log_id, state.last_log_id),
            (Some(id(7, 294)), Some(id(7, 299)))
        );
        assert_eq!(log.try_get_log_entries(..).await.unwrap().len(), 5);
    });
}

#[test]
fn only_a_purge_lets_records_of_the_node_go() {
    node::run(async {
        let io = MemIo::default();
        let week = node::options(&io).retention(Retention::new().age_ms_max(1000));
        let refused = RaftLog::<Text>::open(node::DIR, &week).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");

        let mut log = node::open(&io);
        log.blocking_append([entry(1, 0, "a"), entry(1, 1, "b")]).await.unwrap();
        let end = log.log().next_lsn();
        assert_eq!(log.log().trim(end).unwrap_err().kind(), ErrorKind::Pinned);
        // A backup holds them longer: the purge is as good without the trim.
        let backup = log.log().pin("backup", Lsn::FIRST).unwrap();
        log.purge(id(1, 0)).await.unwrap();
        assert_eq!(log.log().oldest_lsn(), Lsn::FIRST);
        drop(backup);
        log.purge(id(1, 1)).await.unwrap();
        assert_eq!(log.log().oldest_lsn(), log.log().next_lsn().prev().unwrap());
    });
}

#[test]
fn a_purge_holds_where_no_space_is_left_for_the_trim() {
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        log.blocking_append([entry(1, 0, "a"), entry(1, 1, "b")]).await.unwrap();
        // The state's record is written and synced, then the first slot refuses.
        io.arm(Which::Kind(CallKind::Write), 2, 1, Fault::Error(oncelog::testing::ENOSPC));
        log.purge(id(1, 0)).await.unwrap();
        assert_eq!(io.struck(), 1);
        let mut log = node::open(&node::kill(&io));
        assert_eq!(log.try_get_log_entries(..).await.unwrap(), [entry(1, 1, "b")]);
    });
}

/// Somebody else's cursors, which the system refuses to read.
#[test]
fn a_purge_holds_where_the_cursors_cannot_be_read() {
    node::run(async {
        let io = MemIo::default();
        let (log, _) = Log::open(node::DIR, &node::options(&io)).unwrap();
        log.cursor("a consumer of another program").unwrap();
        log.close().unwrap();
        let mut log = node::open(&io);
        log.blocking_append([entry(1, 0, "a"), entry(1, 1, "b")]).await.unwrap();
        io.arm(Which::Kind(CallKind::Read), 1, 1, Fault::Error(EIO));
        log.purge(id(1, 0)).await.unwrap();
        assert_eq!(io.struck(), 1);
        log.blocking_append([entry(1, 2, "c")]).await.unwrap();
        let mut log = node::open(&node::kill(&io));
        let left = log.try_get_log_entries(..).await.unwrap();
        assert_eq!(left, [entry(1, 1, "b"), entry(1, 2, "c")]);
    });
}

#[test]
fn a_write_that_was_given_up_is_not_built_upon() {
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        let large = || "x".repeat(40_000);
        log.blocking_append([entry(1, 0, large())]).await.unwrap();
        {
            // The next one starts a segment, which another thread does.
            let mut append = pin!(log.blocking_append([entry(1, 1, large())]));
            let mut context = Context::from_waker(Waker::noop());
            assert!(append.as_mut().poll(&mut context).is_pending());
        }
        let (_, text) = said(log.blocking_append([entry(1, 1, "b")]).await.unwrap_err());
        assert!(text.contains("given up"), "{text}");
        let mut log = node::open(&node::kill(&io));
        let found = log.try_get_log_entries(..).await.unwrap().len();
        assert!([1, 2].contains(&found), "{found}");
    });
}

/// Opens a log of these records.
#[track_caller]
fn check(records: &[(u8, &[u8])], expected: ErrorKind) {
    let io = MemIo::default();
    let (log, _) = Log::open(node::DIR, &node::options(&io)).unwrap();
    for (kind, record) in records {
        let kind = RecordKind::private(*kind).unwrap_or(RecordKind::RECORD);
        log.append_batch(Batch { kind, records: &[record] }, Durability::Synced).unwrap();
    }
    log.close().unwrap();
    let refused = RaftLog::<Text>::open(node::DIR, &node::options(&io)).map(drop).unwrap_err();
    assert_eq!(refused.kind(), expected, "{refused}");
    assert_eq!(refused.lsn(), Lsn::new(records.len() as u64), "{refused}");
}

#[test]
fn records_that_make_no_log_of_raft_are_refused() {
    let entry = |index: u8| [1, index, 0, 0, 0, 0, 0, 0, 0, 0xf6];
    check(&[(0x01, b"another program's")], ErrorKind::Unsupported);
    check(&[(0x83, b"\x01")], ErrorKind::Unsupported);
    check(&[(0x80, b"")], ErrorKind::Corrupt);
    check(&[(0x80, b"\x02")], ErrorKind::Unsupported);
    check(&[(0x80, b"\x01\x00\x00")], ErrorKind::Corrupt);
    check(&[(0x80, b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xf6")], ErrorKind::Corrupt);
    check(&[(0x81, b"\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")], ErrorKind::Corrupt);
    check(&[(0x80, &entry(3)), (0x80, &entry(5))], ErrorKind::Corrupt);
    check(&[(0x80, &entry(3)), (0x80, &entry(3))], ErrorKind::Corrupt);
    // CBOR of another type, cut, of a hostile length, nested without end.
    check(&[(0x82, b"\x01\xf6")], ErrorKind::Unsupported);
    check(&[(0x82, b"\x01\xa1")], ErrorKind::Unsupported);
    check(&[(0x82, b"\x01\xbb\xff\xff\xff\xff\xff\xff\xff\xff")], ErrorKind::Unsupported);
    check(&[(0x82, &[&[1], [0x81; 5000].as_slice()].concat())], ErrorKind::Unsupported);
}

/// Records near to those of raft, and far from them.
fn any_record() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let index = prop_oneof![4 => 0..6_u64, 1 => Just(u64::MAX), 1 => any::<u64>()];
    let bytes = prop::collection::vec(any::<u8>(), 0..24);
    let version = prop_oneof![9 => Just(1_u8), 1 => any::<u8>()];
    let near = (0x80..0x84_u8, version, index, bytes).prop_map(|(kind, version, index, bytes)| {
        let index = index.to_le_bytes();
        let index = if kind == 0x82 { &index[..0] } else { &index };
        (kind, [&[version], index, &bytes].concat())
    });
    // Rewinds have nothing behind their index.
    let rewind = (0..6_u64).prop_map(|from| (0x81, [&[1], &from.to_le_bytes()[..]].concat()));
    prop_oneof![4 => near, 2 => rewind]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_records_are_opened_or_refused(records in prop::collection::vec(any_record(), 1..12)) {
        let io = MemIo::default();
        let (log, _) = Log::open(node::DIR, &node::options(&io)).unwrap();
        for (kind, record) in &records {
            let kind = RecordKind::private(*kind).unwrap();
            log.append_batch(Batch { kind, records: &[record] }, Durability::Buffered).unwrap();
        }
        log.close().unwrap();
        if let Err(e) = RaftLog::<Text>::open(node::DIR, &node::options(&io)) {
            prop_assert!([ErrorKind::Corrupt, ErrorKind::Unsupported].contains(&e.kind()), "{e}");
        }
    }
}

#[test]
fn an_entry_of_another_type_is_refused_and_never_misread() {
    openraft::declare_raft_types!(Numbers: D = u32, R = (), NodeId = u64, Node = openraft::EmptyNode);
    use std::io::Cursor;
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        log.blocking_append([entry(1, 0, "a"), entry(1, 1, "b")]).await.unwrap();
        let io = node::kill(&io);
        let refused =
            RaftLog::<Numbers>::open(node::DIR, &node::options(&io)).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    });
}

/// Many entries are appended as several batches, and read by a bounded number of bytes.
#[test]
fn a_large_append_is_whole_and_a_limited_read_is_not_empty() {
    node::run(async {
        let io = MemIo::default();
        let options = node::options(&io).record_len_max(1 << 20).batch_bytes_max(2 << 20);
        let (mut log, _) = RaftLog::<Text>::open(node::DIR, &options).unwrap();
        let text = "x".repeat(900_000);
        let entries: Vec<_> = (0..8).map(|n| entry(1, n, text.as_str())).collect();
        log.blocking_append(entries.clone()).await.unwrap();
        assert_eq!(log.try_get_log_entries(..).await.unwrap(), entries);
        assert_eq!(log.limited_get_log_entries(0, 8).await.unwrap(), entries[..4]);
        assert_eq!(log.limited_get_log_entries(7, 8).await.unwrap(), entries[7..]);
        let (_, text) =
            said(log.blocking_append([entry(1, 8, "x".repeat(1 << 20))]).await.unwrap_err());
        assert!(text.contains("expected at most"), "{text}");
    });
}

/// A reader of replication: goes forward, and back a little where it has come to the end.
async fn read_on(mut reader: EntryReader<Text>, step: u64, over: Arc<AtomicBool>) {
    let mut from = 0_u64;
    while !over.load(Ordering::SeqCst) {
        let found = reader.limited_get_log_entries(from, from + step).await.unwrap();
        let first = found.first().map_or(from, |entry| entry.log_id.index);
        assert!(first >= from);
        for (entry, index) in found.iter().zip(first..) {
            let EntryPayload::Normal(text) = &entry.payload else { panic!("{entry:?}") };
            assert!(text.starts_with(&format!("{} ", entry.log_id)), "{text}");
            assert_eq!(entry.log_id.index, index);
        }
        let behind = found.last().map(|last| last.log_id.index + 1);
        from = behind.unwrap_or_else(|| from.saturating_sub(10));
        tokio::task::yield_now().await;
    }
}

/// On a real directory, with the log's own thread.
#[test]
fn readers_beside_a_writer_that_truncates_and_purges_read_entries_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().segment_bytes_max(65_536).create(CreateMode::IfMissing);
    let (mut log, _) = RaftLog::<Text>::open(dir.path().join("log"), &options).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    runtime.block_on(async {
        let mut readers = Vec::new();
        for step in [5, 6] {
            let reader = log.get_log_reader().await;
            readers.push(tokio::spawn(read_on(reader, step, Arc::clone(&over))));
        }
        let mut next = 0;
        for round in 1..=150_u64 {
            let new = |n| entry(round, n, format!("{} {}", id(round, n), "x".repeat(700)));
            log.blocking_append((next..next + 8).map(new).collect::<Vec<_>>()).await.unwrap();
            next += 8;
            if round % 3 == 0 {
                next -= 4;
                log.truncate(id(round, next)).await.unwrap();
            }
            if round % 10 == 0 {
                log.purge(id(round, next - 15)).await.unwrap();
            }
        }
        over.store(true, Ordering::SeqCst);
        for reader in readers {
            reader.await.unwrap();
        }
        assert_eq!(log.get_log_state().await.unwrap().last_log_id.unwrap().index, next - 1);
    });
}

#[test]
fn a_purge_holds_where_the_cursors_of_the_log_are_damaged() {
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        // A node has none: somebody else has made it.
        drop(log.log().cursor("backup").unwrap());
        log.blocking_append([entry(1, 0, "a"), entry(1, 1, "b")]).await.unwrap();
        let io = node::kill(&io);
        let path = format!("{}/CURSORS", node::DIR);
        let mut bytes = io.machine().bytes(&path).unwrap();
        for copy in [0, 65_536] {
            bytes[copy + 41] ^= 1;
        }
        io.alter(|machine| machine.put(&path, &bytes)).unwrap();
        let mut log = node::open(&io);
        assert_eq!(log.log().trim(Lsn::new(2).unwrap()).unwrap_err().kind(), ErrorKind::Corrupt);
        log.purge(id(1, 0)).await.unwrap();
        assert_eq!(log.try_get_log_entries(..).await.unwrap(), [entry(1, 1, "b")]);
    });
}
