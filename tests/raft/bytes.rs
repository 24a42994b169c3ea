//! The bytes of the records, as docs/raft.md shows them.

use oncelog::testing::MemIo;
use oncelog::{Batch, Durability, Log, Lsn, RecordKind};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{RaftLogReader, Vote};

use crate::node::{self, entry, id};

/// Kind and bytes of each record in the table of section 3.
fn shown() -> Vec<(u8, Vec<u8>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/raft.md");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("0x"));
    let parse = |digits: &str| u8::from_str_radix(digits, 16).unwrap();
    let records = lines.map(|line| {
        let (kind, bytes) = line.split_once(": ").unwrap();
        (parse(kind), bytes.split_whitespace().map(parse).collect())
    });
    records.collect()
}

#[test]
fn records_are_written_as_the_document_shows_them() {
    node::run(async {
        let io = MemIo::default();
        let mut log = node::open(&io);
        log.save_vote(&Vote::new_committed(3, 1)).await.unwrap();
        log.blocking_append([entry(3, 0, "a"), entry(3, 1, "b")]).await.unwrap();
        log.truncate(id(3, 1)).await.unwrap();
        log.save_committed(Some(id(3, 0))).await.unwrap();
        let mut reader = log.log().reader(Lsn::FIRST).unwrap();
        let mut found = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            println!("0x{:02x}: {:02x?}", record.kind.as_u8(), &record.payload[..]);
            found.push((record.kind.as_u8(), record.payload.to_vec()));
        }
        assert_eq!(found, shown());
    });
}

#[test]
fn records_are_read_as_the_document_shows_them() {
    node::run(async {
        let io = MemIo::default();
        let (log, _) = Log::open(node::DIR, &node::options(&io)).unwrap();
        for (kind, record) in shown() {
            let kind = RecordKind::private(kind).unwrap();
            log.append_batch(Batch { kind, records: &[&record] }, Durability::Synced).unwrap();
        }
        log.close().unwrap();
        let mut log = node::open(&io);
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(3, 1)));
        assert_eq!(log.read_committed().await.unwrap(), Some(id(3, 0)));
        assert_eq!(log.try_get_log_entries(..).await.unwrap(), [entry(3, 0, "a")]);
    });
}
