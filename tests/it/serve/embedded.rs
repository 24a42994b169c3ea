//! The service in a process of its embedder, with message types of his.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use oncelog::broadcast::{MessageType, OnConflict, Opening, Options, Task, Verdict};
use oncelog::gateway::{Gateway, Tokens};
use oncelog::import::{ImportRoots, Imports};
use oncelog::{CreateMode, StoreOptions};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::{Ask, Reply, TOKEN};

/// A type whose effect waits for its door, or for a person.
#[derive(Debug, Default)]
struct Door {
    is_open: AtomicBool,
    parks: bool,
}

impl MessageType for Door {
    fn name(&self) -> &str {
        if self.parks { "Parks" } else { "Door" }
    }

    fn apply(&self, task: &Task) -> Verdict {
        match (self.parks, self.is_open.load(Ordering::SeqCst)) {
            (true, _) => Verdict::Park("a person has to look".into()),
            (false, true) if task.accepted.payload == b"fail" => Verdict::Fail("shut".into()),
            (false, true) => Verdict::Done,
            (false, false) => Verdict::Retry("shut".into()),
        }
    }
}

/// A type that answers another request under its key, and says so.
#[derive(Debug)]
struct Warns;

impl MessageType for Warns {
    fn name(&self) -> &str {
        "Warns"
    }

    fn on_conflict(&self) -> OnConflict {
        OnConflict::Warn
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }
}

/// A gateway in this process.
struct Embedded {
    address: SocketAddr,
    door: Arc<Door>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _home: TempDir,
}

impl Embedded {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let tokens = Tokens::parse(TOKEN).unwrap();
        let gateway = Gateway::bind("127.0.0.1:0".parse().unwrap(), tokens).unwrap();
        let address = gateway.address();
        let door = Arc::new(Door::default());
        let imports = Imports::new().below(ImportRoots::open([home.path()]).unwrap());
        let options = imports.types().into_iter().fold(Options::new(), Options::register);
        let options = options.register(Arc::<Door>::clone(&door));
        let options = options.register(Arc::new(Door { parks: true, ..Door::default() }));
        let options = options.register(Arc::new(Warns));
        let store = StoreOptions::new().create(CreateMode::IfMissing);
        let opening = Opening::begin(home.path().join("store"), store, options).unwrap();
        opening.wait(None).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(2).enable_all().build().unwrap();
            let until = async { drop(stopped.await) };
            runtime.block_on(gateway.serve(opening.clone(), imports, until)).unwrap();
            opening.wait(None).unwrap().close().unwrap();
        });
        Self { address, door, stop: Some(stop), thread: Some(thread), _home: home }
    }

    fn ask(&self, asked: &Ask<'_>) -> Reply {
        let mut stream = TcpStream::connect(self.address).unwrap();
        std::io::Write::write_all(&mut stream, &asked.bytes()).unwrap();
        Reply::whole(&mut stream)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.door.is_open.store(true, Ordering::SeqCst);
        drop(self.stop.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

fn asked(of_type: &str, payload: &str) -> Ask<'static> {
    let body = json!({ "type": of_type, "vchannels": ["a"], "payload": payload });
    Ask::post("/v1/broadcasts", &body).header("Idempotency-Key", "k")
}

#[test]
fn a_request_under_way_is_told_at_once_unless_its_client_waits() {
    let gateway = Embedded::new();
    let hurried = gateway.ask(&asked("Door", "p").header("Prefer", "wait=1"));
    let problem = hurried.problem(409, "in-flight");
    assert_eq!(hurried.header("preference-applied"), Some("wait=1"));
    let id = problem["broadcast_id"].as_str().unwrap().to_owned();
    let again = gateway.ask(&asked("Door", "p"));
    assert_eq!(again.problem(409, "in-flight")["broadcast_id"], *id);
    assert!(again.header("retry-after").is_some());
    assert_eq!(again.header("preference-applied"), None);
    // Another request under the key is told what differs, also while the first is under way.
    let other = gateway.ask(&asked("Door", "q")).problem(422, "conflict");
    assert_eq!(other["fields"], json!(["payload"]));
    let key = gateway.ask(&Ask::get("/v1/keys/k?type=Door&scope=store:0")).json();
    assert_eq!(key["keys"][0]["state"], "in_flight");
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| gateway.ask(&asked("Door", "p").header("Prefer", "wait=60")));
        gateway.door.is_open.store(true, Ordering::SeqCst);
        let done = waits.join().unwrap();
        assert_eq!((done.status, done.header("idempotency-replayed")), (200, Some("true")));
        assert_eq!(done.json()["broadcast_id"], *id);
    });
}

#[test]
fn work_that_waits_for_a_person_says_so() {
    let gateway = Embedded::new();
    for _ in 0..2 {
        let parked = gateway.ask(&asked("Parks", "p"));
        let problem = parked.problem(409, "parked");
        assert!(problem["detail"].as_str().unwrap().contains("a person has to look"));
    }
}

#[test]
fn what_differs_is_named_where_a_type_only_warns_of_it() {
    let gateway = Embedded::new();
    let first = gateway.ask(&asked("Warns", "p"));
    assert_eq!((first.status, &first.json()["differs"]), (201, &json!([])));
    let other = gateway.ask(&asked("Warns", "q"));
    assert_eq!((other.status, &other.json()["differs"]), (200, &json!(["payload"])));
    assert_eq!(other.header("idempotency-replayed"), Some("true"));
    assert_eq!(other.json()["broadcast_id"], first.json()["broadcast_id"]);
    assert_eq!(gateway.ask(&asked("Warns", "p")).json()["differs"], json!([]));
}

/// What is preferred is granted where there is something to wait for, and no longer than is allowed.
#[test]
fn a_preference_is_applied_where_there_is_something_to_wait_for() {
    let gateway = Embedded::new();
    gateway.door.is_open.store(true, Ordering::SeqCst);
    for (prefers, applied) in [("wait=2", "wait=2"), ("wait=100000", "wait=60")] {
        let sent = gateway.ask(&asked("Door", "p").header("Prefer", prefers));
        assert_eq!(sent.header("preference-applied"), Some(applied));
    }
    let create = Ask::post(super::CREATE, &json!({ "collectionName": "c", "files": [] }));
    let refused = gateway.ask(&create.header("Prefer", "wait=100000"));
    assert_eq!((refused.code(), refused.header("preference-applied")), (1100, Some("wait=15")));
    let looks = gateway.ask(&Ask::get("/v1/jobs").header("Prefer", "wait=1"));
    assert_eq!((looks.status, looks.header("preference-applied")), (200, None));
    let other = gateway.ask(&asked("Door", "p").header("Prefer", "respond-async"));
    assert_eq!((other.status, other.header("preference-applied")), (200, None));
}

#[test]
fn a_broadcast_that_failed_is_answered_as_such_and_is_not_tried_again() {
    let gateway = Embedded::new();
    gateway.door.is_open.store(true, Ordering::SeqCst);
    for status in [201, 200] {
        let failed = gateway.ask(&asked("Door", "fail"));
        assert_eq!(failed.status, status);
        assert_eq!(
            (&failed.json()["state"], &failed.json()["reason"]),
            (&"failed".into(), &"shut".into())
        );
    }
    let retry = asked("Door", "fail").header("Idempotency-Retry", "failed-only");
    gateway.ask(&retry).problem(400, "invalid-input");
}
