//! What the commands tell of work that is not done: who pins a log, what is parked, how many.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncelog::broadcast::{
    AckMode, BroadcastId, Broadcaster, MessageType, Options, Request, Role, Scope, Task, Verdict,
    WhenFull,
};
use oncelog::{Clock, CreateMode, ErrorKind, HolderKind, Store, StoreOptions, SystemClock};
use oncelog_format::control::{JobPhase, JobPlan, JobState};
use serde_json::{Value, json};

use crate::cli::{fresh, run};

/// A type whose callback says the same each time.
#[derive(Debug)]
struct Kind(&'static str, Role, Verdict);

impl MessageType for Kind {
    fn name(&self) -> &str {
        self.0
    }

    fn role(&self) -> Role {
        self.1
    }

    fn apply(&self, _task: &Task) -> Verdict {
        self.2.clone()
    }
}

/// A type whose copies its consumers acknowledge.
#[derive(Debug)]
struct Read;

impl MessageType for Read {
    fn name(&self) -> &str {
        "Read"
    }

    fn ack_mode(&self) -> AckMode {
        AckMode::Consumer
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }
}

fn open(dir: &str) -> Broadcaster {
    let store = StoreOptions::new().create(CreateMode::IfMissing);
    let store = Store::open(Path::new(dir), &store).unwrap();
    let parks = Kind("Parks", Role::Plain, Verdict::Park("a person has to look".into()));
    let loads = Kind("Load", Role::StartsJob, Verdict::Done);
    let ends = Kind("CommitImport", Role::Plain, Verdict::Park("not sure yet".into()));
    let options = Options::new().register(Arc::new(parks)).register(Arc::new(loads));
    let options = options.register(Arc::new(ends));
    let waits = Kind("Waits", Role::Plain, Verdict::Retry("not yet".into()));
    let options = options.register(Arc::new(waits)).register(Arc::new(Read));
    let broadcaster = Broadcaster::open(store, options).unwrap();
    broadcaster.ensure_vchannels(&["a".into()]).unwrap();
    broadcaster
}

fn request(message_type: &str, key: &str) -> Request {
    let scope = Scope {
        principal: "default".into(),
        message_type: message_type.into(),
        domain: "store".into(),
        identity: "0".into(),
        generation: 0,
        client_key: key.into(),
    };
    Request::new(message_type, Some(scope), vec!["a".into()], b"p".to_vec())
}

/// Submits what will not be done, until its acceptance is known.
fn accepted(broadcaster: &Broadcaster, request: &Request) -> BroadcastId {
    loop {
        let late = broadcaster.submit(request, Some(Duration::from_millis(1))).unwrap_err();
        match late.kind() {
            ErrorKind::InFlight => return late.broadcast_id().unwrap(),
            // The deadline was over before the disk said so.
            ErrorKind::OutcomeUnknown | ErrorKind::LockTimeout => {}
            other => panic!("{other}: {late}"),
        }
    }
}

fn objects(args: &[&str]) -> Vec<Value> {
    let run = run(&[args, &["--json"]].concat(), b"");
    assert_eq!(run.code, 0, "{args:?}: {}", run.err);
    run.objects()
}

/// Who pins a log, and from which LSN on.
fn pins(store: &str, log: &str) -> Value {
    let all = objects(&["inspect", store]);
    all.iter().find(|object| object["log"] == log).unwrap()["why_not_trimmed"].clone()
}

/// The same by the process that has the store.
fn held(broadcaster: &Broadcaster) -> Value {
    let held = broadcaster.why_not_trimmed("p0").unwrap().into_iter();
    let held = held.filter(|holder| holder.kind == HolderKind::Pin);
    held.map(|pin| json!({ "by": pin.name, "lsn": pin.lsn.get() })).collect()
}

#[test]
fn every_pin_of_a_stores_logs_is_named_and_parked_work_is_told() {
    let (_dir, store) = fresh("store");
    let broadcaster = open(&store);
    let parked = broadcaster.submit(&request("Parks", "1"), None).unwrap_err();
    assert_eq!(parked.kind(), ErrorKind::Parked);
    let parked = parked.broadcast_id().unwrap();
    let job = broadcaster.submit(&request("Load", "2"), None).unwrap().id;
    let jobs = broadcaster.jobs();
    let plan = JobPlan {
        job,
        attempt: 1,
        files: vec![],
        slice_rows: 8_192,
        partition_function: 1,
        partition_version: 1,
        vchannels: vec!["a".into()],
        from: vec![],
        detail: vec![],
    };
    let next = jobs.plan(plan).unwrap()[0].next_lsn;
    let state = JobState {
        job,
        attempt: 1,
        phase: JobPhase::Importing,
        progress: 50,
        rows: 7,
        reason: String::new(),
        detail: vec![],
    };
    jobs.record(state).unwrap();
    // Beside the writer, too.
    let unread = accepted(&broadcaster, &request("Read", "3"));
    // As they are sorted: by LSN, then by name.
    let on_channel = json!([
        { "by": format!("broadcast {unread}"), "lsn": next },
        { "by": format!("job {job}"), "lsn": next },
    ]);
    // Parked work whose acks are durable holds nothing, here as for the process that has it.
    assert_eq!(pins(&store, "channels/p0"), on_channel);
    assert_eq!(held(&broadcaster), on_channel);
    let restart = json!([{ "by": "restart without two checkpoints", "lsn": 1 }]);
    assert_eq!(pins(&store, "control"), restart);
    assert!(broadcaster.checkpoint().unwrap());
    assert_eq!(pins(&store, "control"), restart);
    broadcaster.ensure_vchannels(&["b".into()]).unwrap();
    assert!(broadcaster.checkpoint().unwrap());
    let pinned = pins(&store, "control");
    let by = pinned[0]["by"].as_str().unwrap();
    assert!(by.starts_with("restart from the checkpoint at LSN "), "{pinned}");
    let end: u64 = by.rsplit(' ').next().unwrap().parse().unwrap();
    let lsn = pinned[0]["lsn"].as_u64().unwrap();
    assert!(1 < lsn && lsn < end, "{pinned}");
    broadcaster.close().unwrap();
    assert_eq!(pins(&store, "channels/p0"), on_channel);
    let control = &objects(&["stats", &store])[0];
    let of = |in_flight, parked, done, failed| json!({ "in_flight": in_flight, "parked": parked, "done": done, "failed": failed });
    let expected =
        json!({ "Load": of(0, 0, 1, 0), "Parks": of(0, 1, 0, 0), "Read": of(1, 0, 0, 0) });
    assert_eq!(control["broadcasts"], expected);
    assert_eq!(control["jobs"], json!({ "Importing": { "count": 1, "rows": 7 } }));
    let told = &control["parked"][0];
    assert_eq!(told["broadcast_id"], parked.to_string());
    assert_eq!(told["reason"], "a person has to look");
    let text = run(&["stats", &store], b"").out;
    assert!(text.contains(&format!("broadcast {parked} of type Parks is parked since ")), "{text}");
    let text = run(&["inspect", &store], b"").out;
    for part in [format!("broadcast {unread} needs LSN"), format!("job {job} needs LSN")] {
        assert!(text.contains(&part), "{part} is not in {text}");
    }
    assert!(!text.contains(&format!("broadcast {parked} needs")), "{text}");
}

#[test]
fn the_summary_of_keys_has_the_effective_window_and_evictions() {
    let (_dir, store) = fresh("store");
    let broadcaster = open(&store);
    let summary = || objects(&["keys", &store, "--summary"])[0].clone();
    drop(broadcaster.submit(&request("Load", "1"), None).unwrap());
    assert_eq!(summary()["effective_ms"], 86_400_000);
    let mut policy = broadcaster.policy();
    (policy.window_count_max, policy.window_full) = (2, WhenFull::EvictOldest);
    broadcaster.refresh(policy).unwrap();
    for key in ["2", "3"] {
        let noop = request("Noop", key);
        drop(broadcaster.submit(&noop, None).unwrap());
    }
    broadcaster.close().unwrap();
    let summary = summary();
    assert_eq!((&summary["evicted_count"], &summary["expired_count"]), (&1.into(), &0.into()));
    assert!(summary["effective_ms"].as_u64().unwrap() < 60_000, "{summary}");
    let text = run(&["keys", &store, "--summary"], b"").out;
    assert!(text.contains("0 expired, 1 evicted"), "{text}");
}

/// The verb for one task parked every other one of a type that the program does not know.
#[test]
fn a_verb_for_one_task_leaves_all_others_as_they_are() {
    let (_dir, store) = fresh("store");
    let broadcaster = open(&store);
    let parked = broadcaster.submit(&request("Parks", "parked"), None).unwrap_err();
    let id = parked.broadcast_id().unwrap().to_string();
    for n in 0..20 {
        let late = broadcaster.submit(&request("Waits", &n.to_string()), Some(Duration::ZERO));
        assert!(late.is_err());
    }
    broadcaster.close().unwrap();
    let states = || {
        let keys = objects(&["keys", &store]);
        let of = |key: &Value| (key["key"].as_str().unwrap().to_owned(), key["state"].clone());
        let states: std::collections::BTreeMap<String, Value> = keys.iter().map(of).collect();
        states
    };
    let mut expected = states();
    assert_eq!(
        (expected.len(), &expected["parked"], &expected["7"]),
        (21, &json!("parked"), &json!("in_flight"))
    );
    for verb in ["resume", "skip"] {
        let run = run(&["tasks", verb, &store, &id], b"");
        assert_eq!(run.code, if verb == "skip" { 0 } else { 2 }, "{verb}: {}", run.err);
    }
    expected.insert("parked".into(), json!("failed"));
    assert_eq!(states(), expected);
}

#[test]
fn parked_work_is_resumed_or_skipped_from_outside() {
    let (_dir, store) = fresh("store");
    // The program registers the second type itself, with a callback that does not park.
    let broadcaster = open(&store);
    let mut ids = Vec::new();
    for (message_type, key) in [("Parks", "1"), ("CommitImport", "2")] {
        let parked = broadcaster.submit(&request(message_type, key), None).unwrap_err();
        assert_eq!(parked.kind(), ErrorKind::Parked);
        ids.push(parked.broadcast_id().unwrap().to_string());
    }
    let refused = run(&["tasks", "skip", &store, &ids[0]], b"");
    assert_eq!((refused.code, refused.out.as_str()), (7, ""), "beside a writer: {}", refused.err);
    broadcaster.close().unwrap();
    let states = || {
        let keys = objects(&["keys", &store]);
        let state = |id: &String| {
            let key = keys.iter().find(|key| key["broadcast_id"] == **id).unwrap();
            key["state"].as_str().unwrap().to_owned()
        };
        ids.iter().map(state).collect::<Vec<_>>()
    };
    assert_eq!(states(), ["parked", "parked"]);
    let check = |verb: &str, id: &str, code: i32, told: &str| {
        let run = run(&["tasks", verb, &store, id, "--reason", "seen to", "--json"], b"");
        assert_eq!(run.code, code, "{verb} {id}: {}", run.err);
        if code == 0 {
            assert_eq!(run.objects(), [json!({ "broadcast_id": id, "did": told })]);
        } else {
            let error = run.error();
            assert_eq!(error["kind"], "InvalidInput", "{error}");
            assert!(error["message"].as_str().unwrap().contains(told), "{error}");
        }
    };
    check("resume", &ids[0], 2, "of type Parks");
    check("resume", "99", 2, "is not parked");
    check("skip", "99", 2, "is not parked");
    assert_eq!(states(), ["parked", "parked"]);
    check("skip", &ids[0], 0, "skipped");
    check("resume", &ids[1], 0, "resumed");
    assert_eq!(states()[0], "failed");
    assert_ne!(states()[1], "parked");
    check("skip", &ids[0], 2, "is not parked");
    check("resume", &ids[1], 2, "is not parked");
    let records = objects(&["dump", &format!("{store}/control"), "--payload", "utf8"]);
    let recorded = |name: &str| {
        let of_type = records.iter().filter(|record| record["type"] == name);
        of_type.filter(|record| record["payload"].as_str().unwrap().contains("seen to")).count()
    };
    assert_eq!((recorded("Skip"), recorded("Resume")), (1, 1), "{records:?}");
}

/// A clock that stands still, so long ago.
#[derive(Debug)]
pub(crate) struct Ago(pub(crate) Duration);

impl Clock for Ago {
    fn wall_ms(&self) -> u64 {
        let ago_ms = u64::try_from(self.0.as_millis()).unwrap();
        SystemClock::new().wall_ms() - ago_ms
    }

    fn monotonic(&self) -> Duration {
        SystemClock::new().monotonic()
    }
}

#[test]
fn a_clock_far_ahead_is_believed_once_an_operator_says_so() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let (_dir, store) = fresh("store");
    let options = StoreOptions::new().create(CreateMode::IfMissing).clock(Arc::new(Ago(30 * DAY)));
    let past = Store::open(Path::new(&store), &options).unwrap();
    let broadcaster = Broadcaster::open(past, Options::new()).unwrap();
    let mut before = request("Noop", "k");
    before.vchannels = vec!["a".into()];
    drop(broadcaster.submit(&before.making_vchannels(), None).unwrap());
    broadcaster.close().unwrap();

    let ask = ["broadcast", &store, "--type", "Noop", "--vchannels", "a", "--key", "k"];
    let ask = || {
        let run = run(&[&ask[..], &["--scope", "store:0", "--payload", "p"]].concat(), b"");
        assert_eq!(run.code, 0, "{}", run.err);
        let [answer] = &run.objects()[..] else { panic!("{}", run.out) };
        (answer["clock_held"].clone(), answer["duplicated"].clone())
    };
    assert_eq!(ask(), (json!(true), json!(true)), "30 days ahead: nothing expires");
    let rebased = objects(&["clock", "rebase", &store]);
    let [rebased] = &rebased[..] else { panic!("{rebased:?}") };
    assert_eq!((&rebased["did"], &rebased["clock_held"]), (&json!("rebased"), &json!(true)));
    let now: jiff::Timestamp = rebased["now"].as_str().unwrap().parse().unwrap();
    let off_ms = now.as_millisecond().abs_diff(jiff::Timestamp::now().as_millisecond());
    assert!(off_ms < 600_000, "{now}");
    assert_eq!(ask(), (json!(false), json!(false)), "the key is over");
    let records = objects(&["dump", &format!("{store}/control"), "--payload", "none"]);
    assert_eq!(records.iter().filter(|record| record["type"] == "ClockRebase").count(), 1);

    let absent = run(&["clock", "rebase", &format!("{store}/none"), "--json"], b"");
    assert_eq!((absent.code, &absent.error()["kind"]), (2, &json!("InvalidInput")));
}
