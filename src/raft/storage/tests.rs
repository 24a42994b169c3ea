//! What openraft's traits do not let a test see: appends on their way.

use std::io::Cursor;
use std::sync::Arc;

use openraft::{CommittedLeaderId, EmptyNode, Entry, EntryPayload};

use super::*;
use crate::log::{CreateMode, Options};
use crate::testing::MemIo;

openraft::declare_raft_types!(
    /// Entries of text.
    Text: D = String, R = (), NodeId = u64, Node = EmptyNode,
);

fn entry(index: u64) -> Entry<Text> {
    let log_id = LogId::new(CommittedLeaderId::new(1, 1), index);
    Entry { log_id, payload: EntryPayload::Normal(format!("entry {index}")) }
}

fn open(io: &MemIo) -> RaftLog<Text> {
    let options = Options::new().io(Arc::new(io.clone())).background(false);
    RaftLog::open("/node", &options.create(CreateMode::IfMissing)).unwrap().0
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

#[test]
fn appends_on_their_way_share_a_write_and_a_sync() {
    run(async {
        let io = MemIo::default();
        let mut log = open(&io);
        log.append_entries(encode::<Text>([entry(0)]).unwrap())
            .await
            .unwrap()
            .unwrap()
            .await
            .unwrap();
        let before = io.counts().1;
        let mut pending = Vec::new();
        for n in 1..=20 {
            let entries = encode::<Text>([entry(n)]).unwrap();
            pending.extend(log.append_entries(entries).await.unwrap());
        }
        assert_eq!(io.counts().1, before);
        for append in pending {
            append.await.unwrap();
        }
        assert_eq!(io.counts().1, before + 2, "one write, one sync");
    });
}

#[test]
fn an_entry_on_its_way_is_read_once_it_is_durable() {
    run(async {
        let io = MemIo::default();
        let mut log = open(&io);
        let mut reader = log.reader.another();
        let pending =
            log.append_entries(encode::<Text>([entry(0)]).unwrap()).await.unwrap().unwrap();
        let read = tokio::spawn(async move { reader.try_get_log_entries(0..1).await });
        tokio::task::yield_now().await;
        assert!(!read.is_finished());
        pending.await.unwrap();
        assert_eq!(read.await.unwrap().unwrap(), [entry(0)]);
    });
}
