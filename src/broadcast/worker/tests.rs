//! What a task asks for while nobody works.

#![expect(clippy::unwrap_used, reason = "a test may stop")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use oncelog_format::control::{Body, CheckpointEnd};
use oncelog_format::message::{BroadcastId, Properties, Scope, Vchannel};

use crate::broadcast::core::Inner;
use crate::broadcast::deciding::DECISION_LEN;
use crate::broadcast::handle::Handle;
use crate::broadcast::room::is_lack;
use crate::broadcast::{Broadcaster, MessageType, Options, Request, Task, Verdict, replayed};
use crate::channel::Outgoing;
use crate::error::{Error, ErrorKind};
use crate::io::fault::{CallKind, EIO, Fault, Which};
use crate::io::mem::{Machine, MemIo};
use crate::log::{CreateMode, Fill};
use crate::store::{Store, StoreOptions};

#[derive(Debug)]
struct Parks;

impl MessageType for Parks {
    fn name(&self) -> &str {
        "Parks"
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Park("for good".to_owned())
    }
}

fn opened(io: &MemIo) -> Arc<Inner> {
    let logs = crate::log::Options::new().segment_bytes_max(64 << 10).fill(Fill::None);
    let options = StoreOptions::new().log(logs).create(CreateMode::IfMissing);
    let store = Store::open("/s", &options.io(Arc::new(io.clone()))).unwrap();
    replayed(store, Options::new().register(Arc::new(Parks))).unwrap()
}

/// A task that is parked, in a broadcaster that has no thread any more.
fn parked() -> (MemIo, Broadcaster, BroadcastId) {
    let io = MemIo::new(Machine::new());
    let inner = opened(&io);
    let broadcaster = Broadcaster { handle: Arc::new(Handle::new(&inner)) };
    let scope = Scope {
        principal: "p".to_owned(),
        message_type: "Parks".to_owned(),
        domain: "d".to_owned(),
        identity: String::new(),
        generation: 0,
        client_key: "k".into(),
    };
    let vchannels = (0..100).map(|n| format!("v{n}")).collect();
    let asked = Request::new("Parks", Some(scope), vchannels, vec![0; 20_000]);
    let asked = asked.making_vchannels();
    let asking = broadcaster.clone();
    let asker = thread::spawn(move || asking.submit(&asked, None));
    let id = serve_until_parked(broadcaster.inner());
    let refused = asker.join().unwrap().unwrap_err();
    assert_eq!((refused.kind(), refused.broadcast_id()), (ErrorKind::Parked, Some(id)));
    (io, broadcaster, id)
}

fn serve_until_parked(inner: &Arc<Inner>) -> BroadcastId {
    let mut core = inner.lock();
    loop {
        if let Some((id, _)) = core.runs.iter().find(|(_, run)| run.parked.is_some()) {
            return *id;
        }
        if let Some((pending, settled)) = core.settling.pop_front() {
            drop(core);
            inner.wait_durable(pending).unwrap();
            core = inner.lock();
            inner.settled(&mut core, settled);
        } else if let Some(id) = core.take_due() {
            drop(core);
            let stepped = inner.step(id);
            core = inner.after_step(id, stepped);
        } else {
            core = inner.handed.wait(core).unwrap();
        }
    }
}

/// Each one that came to wait for a task without space had it tried once more, and so did each of
/// those tries: without an end, beside one another.
#[test]
fn a_task_is_due_once_however_many_wait_for_it() {
    let (_, broadcaster, id) = parked();
    let inner = broadcaster.inner();
    let mut core = inner.lock();
    let run = core.runs.get_mut(&id).unwrap();
    run.full = Some(Arc::new(Error::new(ErrorKind::StoreFull, "no space")));
    for _ in 0..3 {
        inner.watch(&mut core, id);
        // The clock goes on in between.
        thread::yield_now();
    }
    assert_eq!(core.due.len(), 1);
    drop(core);
    broadcaster.close().unwrap();
}

/// All of it was written once more, up to a gigabyte, for want of a few blocks that were there.
#[test]
fn the_end_of_a_checkpoint_has_its_room_made_and_no_part_is_written_again() {
    let (io, broadcaster, _) = parked();
    let inner = broadcaster.inner();
    let control = inner.store.control();
    let owed = inner.lock().owed.control();
    // Room for an End, and not for what is owed behind it.
    while control.has_room(owed + 100) {
        broadcaster.accept_window(&"x".repeat(500)).unwrap();
    }
    control.give_back(0);
    // For a segment there is no space, for the least reserve there is.
    io.set_free_blocks(Some(8));
    let next = control.next_lsn().get();
    let end = CheckpointEnd {
        covers: next - 1,
        begin_lsn: next,
        part_count: 0,
        stream_bytes: 0,
        sha256: [0; 32],
    };
    let decided = {
        let mut core = inner.lock_to_decide(DECISION_LEN);
        inner.hand_over(&mut core, vec![Body::CheckpointEnd(end)]).map(drop)
    };
    assert!(is_lack(&decided.unwrap_err()));
    assert_eq!(inner.write_end(end).unwrap().wait().unwrap().first.get(), next);
    broadcaster.close().unwrap();
}

/// A checkpoint was begun without a word where the file of a segment was refused for another reason
/// than space.
#[test]
fn what_keeps_a_checkpoint_for_space_from_its_segment_is_told() {
    let (io, broadcaster, _) = parked();
    let inner = broadcaster.inner();
    let bytes = inner.lock().checkpoint_with(0);
    while inner.store.control().has_room(bytes) {
        broadcaster.accept_window(&"x".repeat(500)).unwrap();
    }
    io.arm(Which::Any, 1, 1, Fault::Error(EIO));
    let told = inner.free_space().map_err(|e| e.kind());
    assert_eq!((told, io.struck()), (Err(ErrorKind::Io), 1));
    broadcaster.close().unwrap();
}

/// Whoever made his vchannels on it was told that control had failed, and to open the store again.
#[test]
fn a_channel_that_failed_is_opened_again_for_whoever_is_taken_in() {
    let (io, broadcaster, _) = parked();
    broadcaster.close().unwrap();
    drop(broadcaster);
    let io = MemIo::new(io.machine());
    let inner = opened(&io);
    let broadcaster = Broadcaster { handle: Arc::new(Handle::new(&inner)) };
    let channel = Arc::clone(inner.store.channel("p0").unwrap());
    let mut properties = Properties::new();
    properties.set(&Vchannel("v0".to_owned())).unwrap();
    channel.promise(1).unwrap();
    let append = || channel.enqueue(&[Outgoing { properties, payload: b"x" }])?.wait();
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    assert_eq!(append().unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    let asked = Request::new("Parks", None, vec!["another".to_owned()], vec![]).making_vchannels();
    let told = broadcaster.submit(&asked, Some(Duration::ZERO)).unwrap_err();
    // It is accepted: nobody waits for the disk here.
    assert_eq!(told.kind(), ErrorKind::OutcomeUnknown, "{told}");
    assert_eq!(broadcaster.inner().lock().runs.len(), 2);
    broadcaster.close().unwrap();
}
