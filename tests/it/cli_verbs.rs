//! What a verb of an operator leaves alone, and what the commands say of what may be asked again.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncelog::broadcast::{
    Broadcaster, MessageType, Options, Policy, Request, Role, Scope, Task, Verdict,
};
use oncelog::{
    Batch, CreateMode, Durability, Log, Options as LogOptions, RecordKind, Store, StoreOptions,
};
use oncelog_format::control::{
    Body, CheckpointBegin, CheckpointEnd, CheckpointPart, ControlRecord, STATE_VERSION,
};
use serde_json::{Value, json};

use crate::cli::{fresh, run};
use crate::cli_work::Ago;

const CARS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/cars.json");
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

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

fn types(options: Options) -> Options {
    let parks = Kind("Parks", Role::Plain, Verdict::Park("a person has to look".into()));
    options
        .register(Arc::new(parks))
        .register(Arc::new(Kind("Load", Role::StartsJob, Verdict::Done)))
        .register(Arc::new(Kind("Abort", Role::EndsJob, Verdict::Done)))
}

fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.window_lifetime = Duration::from_secs(36 * 60 * 60);
    policy.task_retention = 30 * DAY;
    policy.window_count_max = 77;
    policy
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
    Request::new(message_type, Some(scope), vec!["a".into()], b"p".to_vec()).making_vchannels()
}

fn open(dir: &str, ago: Duration, options: Options) -> Broadcaster {
    let store = StoreOptions::new().create(CreateMode::IfMissing).clock(Arc::new(Ago(ago)));
    let store = Store::open(Path::new(dir), &store).unwrap();
    Broadcaster::open(store, types(options)).unwrap()
}

/// A store of five days ago, of a policy that keeps jobs for a month: a parked task, a failed job
/// whose key is over, and another such job.
fn five_days_old(store: &str) -> [String; 3] {
    let broadcaster = open(store, 5 * DAY, Options::new().policy(policy()));
    let parked = broadcaster.submit(&request("Parks", "parked"), None).unwrap_err();
    let jobs = ["job", "other"].map(|key| {
        let job = broadcaster.submit(&request("Load", key), None).unwrap().id;
        broadcaster.jobs().end(job, 1, ("Abort", false), Vec::new()).unwrap();
        job.to_string()
    });
    broadcaster.close().unwrap();
    let [job, other] = jobs;
    [parked.broadcast_id().unwrap().to_string(), job, other]
}

fn objects(args: &[&str]) -> Vec<Value> {
    let run = run(&[args, &["--json"]].concat(), b"");
    assert_eq!(run.code, 0, "{args:?}: {}", run.err);
    run.objects()
}

/// How many records of a name control has.
fn records(store: &str, name: &str) -> usize {
    let all = objects(&["dump", &format!("{store}/control"), "--payload", "none"]);
    all.iter().filter(|record| record["type"] == name).count()
}

/// The built-in policy was put in force and recorded, and by it the record of the failed job was
/// dropped while a person looked at why.
#[test]
fn a_verb_without_a_configuration_keeps_the_policy_of_the_store_and_forgets_nothing() {
    let (_dir, store) = fresh("store");
    let [parked, job, other] = five_days_old(&store);
    assert_eq!(records(&store, "Policy"), 1);
    let verbs: [(&[&str], i32); 4] = [
        (&["clock", "rebase", &store], 0),
        (&["jobs", "cancel", &store, &job], 0),
        (&["tasks", "resume", &store, "99"], 2),
        (&["tasks", "skip", &store, &parked], 0),
    ];
    for (args, code) in verbs {
        let run = run(args, b"");
        assert_eq!(run.code, code, "{args:?}: {}", run.err);
        let left = (records(&store, "Policy"), records(&store, "Dropped"));
        assert_eq!(left, (1, 0), "{args:?}");
    }
    for id in [&job, &other] {
        assert_eq!(objects(&["jobs", &store, id])[0]["state"], "Failed");
    }
    let lifetime_ms = 36 * 3_600_000;
    let in_force = || {
        let summary = objects(&["keys", &store, "--summary"]).remove(0);
        (summary["lifetime_ms"].clone(), summary["count_max"].clone())
    };
    assert_eq!(in_force(), (json!(lifetime_ms), json!(77)));

    // So do the commands that bring work; what they are given is recorded.
    let sent = |extra: &[&str]| {
        let args = ["broadcast", &store, "--type", "Noop", "--vchannels", "a"];
        objects(&[&args[..], extra].concat()).remove(0)
    };
    let answer = sent(&["--key", "kept"]);
    let time = |name: &str| -> jiff::Timestamp { answer[name].as_str().unwrap().parse().unwrap() };
    let promised = time("expires_at").duration_since(time("done_at"));
    assert_eq!(promised.as_millis(), lifetime_ms);
    assert_eq!(records(&store, "Policy"), 1);
    let file = Path::new(&store).with_extension("toml");
    fs::write(&file, "[retention]\nwindow_lifetime = \"1h\"\ntask_retention = \"99h\"\n").unwrap();
    sent(&["--key", "given", "--config", file.to_str().unwrap()]);
    assert_eq!(records(&store, "Policy"), 2);
    assert_eq!(in_force(), (json!(3_600_000), json!(1_048_576)));
}

#[test]
fn a_store_that_is_opened_for_one_broadcast_records_no_policy_whatever_it_is_given() {
    let (_dir, store) = fresh("store");
    let [parked, ..] = five_days_old(&store);
    let id = oncelog::broadcast::BroadcastId(parked.parse().unwrap());
    let mut other = policy();
    other.window_count_max = 5;
    let broadcaster = open(&store, Duration::ZERO, Options::new().only(id).policy(other.clone()));
    assert_eq!(broadcaster.policy(), other);
    broadcaster.skip(id, "seen to").unwrap();
    broadcaster.close().unwrap();
    assert_eq!((records(&store, "Policy"), records(&store, "Dropped")), (1, 0));
    // Who says nothing has the one that was recorded, and sweeps by it.
    let broadcaster = open(&store, Duration::ZERO, Options::new());
    assert_eq!(broadcaster.policy(), policy());
    let begin = std::time::Instant::now();
    while broadcaster.read(|state, _| state.window().held_count()) > 1 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is swept");
        std::thread::yield_now();
    }
    broadcaster.close().unwrap();
    assert_eq!((records(&store, "Policy"), records(&store, "Dropped")), (1, 2));
}

/// A script ran the same command again, as it was told to, and sent two broadcasts.
#[test]
fn what_may_have_been_accepted_without_a_key_is_not_called_retryable() {
    #[track_caller]
    fn check(command: &[&str]) {
        for key in [&["--key", "k"][..], &[]] {
            let (_dir, store) = fresh("store");
            let args = [&command[..1], &[&store], &command[1..], key, &["--json"]].concat();
            let run = run(&args, b"");
            let error = run.error();
            assert_eq!(run.code, 7, "{args:?}: {}", run.err);
            let kind = error["kind"].as_str().unwrap();
            assert!(["InFlight", "OutcomeUnknown"].contains(&kind), "{error}");
            assert_eq!(error["retryable"], !key.is_empty(), "{args:?}: {error}");
        }
    }
    check(&["broadcast", "--type", "Noop", "--vchannels", "a", "--wait", "0ms"]);
    check(&["import", CARS, "--collection", "c", "--wait", "0ms"]);

    // What was refused may be asked for again, with a key or without.
    let (_dir, store) = fresh("store");
    let holder = open(&store, Duration::ZERO, Options::new());
    for key in [&["--key", "k"][..], &[]] {
        let args = ["broadcast", &store, "--type", "Noop", "--vchannels", "a", "--json"];
        let run = run(&[&args[..], key].concat(), b"");
        assert_eq!((run.code, &run.error()["kind"]), (7, &json!("Busy")));
        assert_eq!(run.error()["retryable"], true);
    }
    holder.close().unwrap();
}

#[test]
fn every_verb_says_the_same_of_an_expiry_and_none_where_none_was_promised() {
    for (full, is_promised) in [("refuse", true), ("evict_oldest", false)] {
        let (dir, store) = fresh("store");
        let file = dir.path().join("oncelog.toml");
        fs::write(&file, format!("[retention]\nwindow_full = \"{full}\"\n")).unwrap();
        let config = ["--config", file.to_str().unwrap()];
        let import = ["import", &store, CARS, "--collection", "c", "--key", "k"];
        let import = objects(&[&import[..], &config].concat()).remove(0);
        assert_eq!(import["expires_at"].is_string(), is_promised, "{import}");
        let id = import["job_id"].as_str().unwrap();
        // It has committed: nothing is left to cancel.
        let cancel = run(&["jobs", "cancel", &store, id, "--json"], b"");
        assert_eq!(cancel.code, 1, "{}", cancel.err);
        let said = [
            ("jobs", objects(&["jobs", &store, id]).remove(0)),
            ("jobs cancel", cancel.objects().remove(0)),
            ("keys", objects(&["keys", &store, "k"]).remove(0)),
        ];
        for (verb, object) in said {
            assert_eq!(object["expires_at"], import["expires_at"], "{verb}: {object}");
        }
        let bare = ["import", &store, CARS, "--collection", "c"];
        let bare = objects(&[&bare[..], &config].concat()).remove(0);
        let id = bare["job_id"].as_str().unwrap();
        assert_eq!(bare["expires_at"], Value::Null);
        assert_eq!(objects(&["jobs", &store, id])[0]["expires_at"], Value::Null);
    }
}

#[test]
fn a_configuration_that_is_refused_fails_with_one_and_names_every_value_as_the_file_does() {
    let (dir, store) = fresh("store");
    let file = dir.path().join("oncelog.toml");
    let ask = |text: &[u8], key: &str| {
        fs::write(&file, text).unwrap();
        let args = ["broadcast", &store, "--type", "Noop", "--vchannels", "a", "--key", key];
        run(&[&args[..], &["--json", "--config", file.to_str().unwrap()]].concat(), b"")
    };
    for key in ["1", "2"] {
        assert_eq!(ask(b"", key).code, 0);
    }
    let refused: [(&[u8], &[&str]); 6] = [
        (
            b"[retention]\nwindow_lifetime = \"25h\"\n",
            &["task_retention", "at least 50h", "window_lifetime of 25h", "found 48h"],
        ),
        (
            b"[retention]\nwindow_count_max = 99\nbroadcasts_per_hour_max = 5\n",
            &["window_count_max", "at least 120", "5 an hour", "of 24h", "found 99"],
        ),
        // Against what the store has.
        (
            b"[retention]\nwindow_count_max = 1\n",
            &["window_count_max", "at least the keys", "at least 2", "found 1"],
        ),
        (b"[retention]\nlifetime = \"1h\"\n", &["unknown name", "lifetime"]),
        (b"[retention\n", &["not a TOML file", "line 1"]),
        (b"\xff", &["not UTF-8 at byte 0"]),
    ];
    for (text, parts) in refused {
        let shown = String::from_utf8_lossy(text).into_owned();
        let run = ask(text, "3");
        let error = run.error();
        assert_eq!((run.code, &error["kind"]), (1, &json!("InvalidInput")), "{shown}: {error}");
        assert_eq!((&error["retryable"], &error["path"]), (&json!(false), &json!(file)), "{shown}");
        for part in parts {
            assert!(error["message"].as_str().unwrap().contains(part), "{part}: {error}");
        }
    }
    // A wrong call is still one.
    let absent = run(&["jobs", "cancel", &store, "99", "--json"], b"");
    assert_eq!((absent.code, &absent.error()["kind"]), (2, &json!("InvalidInput")));
}

/// A look at a time before the oldest record that was left showed the keys of later.
#[test]
fn keys_of_a_time_that_nothing_tells_of_are_refused_with_the_oldest_that_can_be_asked_for() {
    let (_dir, store) = fresh("store");
    let broadcaster = open(&store, Duration::ZERO, Options::new());
    let at = |args: &[&str], time: &str| {
        run(&[&["keys", &store], args, &["--at", time, "--json"]].concat(), b"")
    };
    let all: [&[&str]; 3] = [&[], &["0"], &["--summary"]];
    for round in 0..3 {
        for n in 0..30 {
            let mut large = request("Noop", &(30 * round + n).to_string());
            large.payload = vec![b'x'; 60_000];
            drop(broadcaster.submit(&large, None).unwrap());
        }
        if round == 0 {
            for args in all {
                let early = at(args, "2001-02-03T04:05:06Z");
                assert_eq!(early.code, 0, "{args:?}: {}", early.err);
                let told = early.objects();
                assert!(told.iter().all(|key| key["state"] == "unknown" || key["live_count"] == 0));
            }
        }
        broadcaster.checkpoint().unwrap();
    }
    broadcaster.close().unwrap();
    for args in all {
        let early = at(args, "2001-02-03T04:05:06Z");
        let error = early.error();
        assert_eq!((early.code, &error["kind"]), (1, &json!("Trimmed")), "{args:?}: {error}");
        assert_eq!((error["retryable"].as_bool(), &early.out), (Some(false), &String::new()));
        let message = error["message"].as_str().unwrap();
        let oldest = message
            .split_whitespace()
            .find_map(|word| word.trim_end_matches(':').parse::<jiff::Timestamp>().ok());
        let oldest = oldest.unwrap_or_else(|| panic!("no time in {message}")).to_string();
        assert_eq!(at(args, &oldest).code, 0, "{args:?} at {oldest}");
    }
}

#[test]
fn keys_of_a_store_that_rested_say_where_a_process_that_has_it_may_find_something_else() {
    let (_dir, store) = fresh("store");
    let mut hour = Policy::default();
    hour.window_lifetime = Duration::from_secs(60 * 60);
    let ago = Duration::from_secs(2 * 60 * 60);
    let broadcaster = open(&store, ago, Options::new().policy(hour));
    drop(broadcaster.submit(&request("Noop", "k"), None).unwrap());
    let told = || {
        let key = objects(&["keys", &store, "k"]).remove(0);
        let summary = objects(&["keys", &store, "--summary"]).remove(0);
        assert_eq!(key["unsure"], summary["unsure"]);
        let text = run(&["keys", &store, "k"], b"").out;
        assert_eq!(text.contains("may not believe this clock"), key["unsure"] == true, "{text}");
        (key["state"].clone(), key["unsure"].clone())
    };
    assert_eq!(told(), (json!("expired"), json!(true)), "beside a writer");
    broadcaster.close().unwrap();
    let broadcaster = open(&store, Duration::ZERO, Options::new().unswept());
    drop(broadcaster.submit(&request("Noop", "other"), None).unwrap());
    assert_eq!(told(), (json!("expired"), json!(false)), "behind a record of this minute");
    broadcaster.close().unwrap();
}

/// A store whose control was trimmed by a later release was called corrupt.
#[test]
fn a_store_of_a_later_release_exits_with_five_and_none_of_its_commands_calls_it_corrupt() {
    let (_dir, store) = fresh("store");
    let broadcaster = open(&store, Duration::ZERO, Options::new());
    drop(broadcaster.submit(&request("Noop", "k"), None).unwrap());
    broadcaster.close().unwrap();
    let (log, _) = Log::open(Path::new(&store).join("control"), &LogOptions::new()).unwrap();
    let begin = log.next_lsn();
    let (covers, begin_lsn) = (begin.get() - 1, begin.get());
    let part = CheckpointPart { covers, index: 0, bytes: vec![1, 2, 3] };
    let (part_count, stream_bytes, sha256) = (1, 3, [0; 32]);
    let end = CheckpointEnd { covers, begin_lsn, part_count, stream_bytes, sha256 };
    for body in [
        Body::CheckpointBegin(CheckpointBegin { covers, state_version: STATE_VERSION + 1 }),
        Body::CheckpointPart(part),
        Body::CheckpointEnd(end),
    ] {
        let record = ControlRecord { at_ms: log.newest_ms().unwrap(), body }.encode().unwrap();
        let batch = Batch { kind: RecordKind::CONTROL, records: &[&record] };
        log.append_batch(batch, Durability::Synced).unwrap();
    }
    log.trim(begin).unwrap();
    log.close().unwrap();
    let send = ["broadcast", &store, "--type", "Noop", "--vchannels", "a"];
    let commands: [&[&str]; 6] = [
        &["keys", &store],
        &["keys", &store, "--verify"],
        &["jobs", &store],
        &["stats", &store],
        &["inspect", &store],
        &send,
    ];
    for command in commands {
        let run = run(&[command, &["--json"]].concat(), b"");
        let error = run.error();
        assert_eq!((run.code, &error["kind"]), (5, &json!("Unsupported")), "{command:?}: {error}");
        assert_eq!(error["lsn"], begin_lsn + 2, "{command:?}: {error}");
    }
    let verify = run(&["verify", &store, "--json"], b"");
    assert_eq!(verify.code, 5, "{}", verify.out);
}
