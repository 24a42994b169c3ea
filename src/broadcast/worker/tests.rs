//! What a task asks for while nobody works.

use std::sync::Arc;
use std::thread;

use oncelog_format::message::{BroadcastId, Scope};

use crate::broadcast::core::Inner;
use crate::broadcast::handle::Handle;
use crate::broadcast::{Broadcaster, MessageType, Options, Request, Task, Verdict, replayed};
use crate::error::{Error, ErrorKind};
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

/// A task that is parked, in a broadcaster that has no thread any more.
fn parked() -> (MemIo, Broadcaster, BroadcastId) {
    let io = MemIo::new(Machine::new());
    let logs = crate::log::Options::new().segment_bytes_max(64 << 10).fill(Fill::None);
    let options = StoreOptions::new().log(logs).create(CreateMode::IfMissing);
    let options = options.io(Arc::new(io.clone()));
    let store = Store::open("/s", &options).unwrap();
    let inner = replayed(store, Options::new().register(Arc::new(Parks))).unwrap();
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
