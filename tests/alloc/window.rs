//! What a window of many keys holds in memory, and a checkpoint of large work takes.

use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use oncelog::broadcast::{
    AckMode, BroadcastId, Broadcaster, MessageType, Options, Request, Scope, State, Task, TimeTick,
    Verdict,
};
use oncelog::{CreateMode, Store, StoreOptions};
use oncelog_format::control::{
    Accepted, Ack, AckPosition, Body, ControlRecord, Done, DropCause, Dropped, JobLink, Outcome,
};
use oncelog_format::message::{BroadcastHeader, Fingerprint, FingerprintField};

use crate::figures::figure;

/// Keys of the window.
const KEYS: u64 = 100_000;
/// What each of them may hold.
const KEY_BYTES_MAX: i64 = 160;

/// The records of a broadcast of two vchannels, a millisecond behind the one before it.
fn broadcast(state: &mut State, id: u64) {
    let at_ms = 1_700_000_000_000 + id;
    let field = |name: &str, with: u8| {
        let digest = std::array::from_fn(|at| with ^ id.to_le_bytes()[at % 8]);
        FingerprintField { name: name.into(), digest }
    };
    let accepted = Accepted {
        header: BroadcastHeader {
            id: BroadcastId(id),
            vchannels: vec!["v0".into(), "v1".into()],
            resources: Vec::new(),
            ack: AckMode::Append,
        },
        message_type: "Noop".into(),
        scope: Some(Scope {
            principal: "default".into(),
            message_type: "Noop".into(),
            domain: "store".into(),
            identity: "0".into(),
            generation: 0,
            client_key: format!("nightly-{id:08}").into_bytes(),
        }),
        fingerprint: Fingerprint {
            version: 1,
            fields: vec![field("payload", 1), field("vchannels", 2)],
        },
        ends: Vec::new(),
        lifetime_ms: 24 * 60 * 60 * 1000,
        firm: true,
        job: JobLink::None,
        properties: Vec::new(),
        trace: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        payload: vec![b'.'; 100],
    };
    let position = |vchannel: u32| AckPosition {
        vchannel,
        lsn: 2 * id + u64::from(vchannel),
        time_tick: TimeTick((at_ms << 18) + u64::from(vchannel)),
    };
    let ack = Ack { id: BroadcastId(id), positions: vec![position(0), position(1)] };
    let done = Done { id: BroadcastId(id), outcome: Outcome::Done };
    for body in [Body::Accepted(Arc::new(accepted)), Body::Ack(ack), Body::Done(done)] {
        state.apply(&ControlRecord { at_ms, body });
    }
}

#[test]
fn a_key_of_the_window_holds_few_bytes_and_leaves_none_behind() {
    let mut state = State::default();
    let filled = measure(|| (1..=KEYS).for_each(|id| broadcast(&mut state, id)));
    let each = filled.bytes_current / i64::try_from(KEYS).unwrap();
    assert_eq!(state.window().held_count(), usize::try_from(KEYS).unwrap());
    assert!(each <= KEY_BYTES_MAX, "{each} bytes a key");
    figure(14, "bytes in memory of a key of a window of 100,000", each);
    let emptied = measure(|| {
        for id in (1..=KEYS).map(BroadcastId) {
            let dropped = Body::Dropped(Dropped { id, cause: DropCause::Expired });
            state.apply(&ControlRecord { at_ms: 1_800_000_000_000, body: dropped });
        }
    });
    // Filters remember that the keys were there, four bytes each and a power of two of them.
    let left = filled.bytes_current + emptied.bytes_current;
    assert!(left < 2 << 20, "{left} bytes stay");
}

/// Waits for a consumer that never comes.
#[derive(Debug)]
struct Waits;

impl MessageType for Waits {
    fn name(&self) -> &str {
        "Waits"
    }

    fn ack_mode(&self) -> AckMode {
        AckMode::Consumer
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }
}

#[test]
fn a_checkpoint_of_large_unfinished_work_encodes_one_task_at_a_time() {
    const TASKS: usize = 48;
    let dir = tempfile::tempdir().unwrap();
    let store = StoreOptions::new().create(CreateMode::IfMissing);
    let store = Store::open(dir.path().join("store"), &store).unwrap();
    let options = Options::new().register(Arc::new(Waits));
    let broadcaster = Broadcaster::open(store, options).unwrap();
    for _ in 0..TASKS {
        let request = Request::new("Waits", None, vec!["v".to_owned()], vec![7; 1 << 20]);
        let open = broadcaster.submit(&request.making_vchannels(), Some(Duration::ZERO));
        assert!(open.is_err(), "nobody acknowledges it");
    }
    let written = measure(|| assert!(broadcaster.checkpoint().unwrap()));
    // A task, what is left of the one before it, its part, and the record of that.
    let most = written.bytes_max;
    assert!(most < 16 << 20, "{most} bytes at once for {TASKS} MiB of payloads");
    figure(14, "most bytes that a checkpoint of 48 MiB of unfinished work held at once", most);
    broadcaster.close().unwrap();
}
