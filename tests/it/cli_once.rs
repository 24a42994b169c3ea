//! The contract from outside: processes that are killed, and processes that follow them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oncelog::{CreateMode, Log, Lsn, Options, Store, StoreOptions};
use serde_json::Value;

use crate::cli::{fresh, run};
use crate::figures::figure;

/// Processes that follow one another with one key.
const PROCESSES: u32 = 50;

fn begin(store: &str, key: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_oncelog"))
        .args(["broadcast", store, "--type", "Noop", "--vchannels", "a,b,c", "--key", key])
        .args(["--payload", "p", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What a process that may have been killed had said.
fn said(child: &mut Child) -> Option<Value> {
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    out.strip_suffix('\n').map(|line| serde_json::from_str(line).unwrap())
}

/// How long a whole run takes on this machine at this moment.
fn whole() -> Duration {
    let (_dir, store) = fresh("store");
    let began = Instant::now();
    assert!(begin(&store, "k").wait().unwrap().success());
    began.elapsed()
}

/// Whether a process has a file open.
fn has_open(child: &Child, file: &Path) -> bool {
    let Ok(file) = fs::canonicalize(file) else { return false };
    let Ok(files) = fs::read_dir(format!("/proc/{}/fd", child.id())) else { return false };
    files.flatten().any(|open| fs::read_link(open.path()).is_ok_and(|open| open == file))
}

#[test]
fn fifty_processes_that_are_killed_in_turn_are_one_broadcast_with_one_expiry() {
    let (_dir, store) = fresh("store");
    let (mut answers, mut kills) = (Vec::new(), 0);
    let lock = Path::new(&store).join("LOCK");
    let whole = whole();
    for turn in 0..PROCESSES {
        let mut child = begin(&store, "k");
        // Every second one from the moment on at which it has the store, the others from their first
        // call on, to behind the last; every fifth is left alone.
        let holds = |child: &Child| has_open(child, &lock);
        while turn % 2 == 0 && !holds(&child) && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        let moment = whole * (turn * 7 % PROCESSES) / PROCESSES;
        let began = Instant::now();
        while turn % 5 != 4 && began.elapsed() < moment {
            std::hint::spin_loop();
        }
        let mut at_work = false;
        if turn % 5 != 4 {
            at_work = holds(&child);
            child.kill().unwrap();
        }
        let answer = said(&mut child);
        at_work &= answer.is_none();
        answers.extend(answer);
        let mut complaint = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
        let status = child.wait().unwrap();
        // It had the store, and had not said what became of the key.
        kills += u32::from(at_work && status.signal() == Some(9));
        assert!(status.success() || status.signal() == Some(9), "{status}: {complaint}");
    }
    assert!(kills > 0, "nobody was killed at work");
    let of = |key: &str| -> BTreeSet<String> {
        answers.iter().map(|answer| answer[key].to_string()).collect()
    };
    for key in ["broadcast_id", "expires_at", "accepted_at", "done_at", "channels"] {
        assert_eq!(of(key).len(), 1, "{key}: {:?}", of(key));
    }
    let originals = answers.iter().filter(|answer| answer["duplicated"] == false).count();
    assert!(originals <= 1, "{originals} originals");
    let dump = run(&["dump", &store, "--json"], b"").objects();
    for vchannel in ["a", "b", "c"] {
        let copies = dump.iter().filter(|row| row["vchannel"] == vchannel).count();
        assert_eq!(copies, 1, "{vchannel}");
    }
    figure(13, "processes with one key, killed in turn, one broadcast", PROCESSES);
    figure(13, "of them killed with the store open, before they answered", kills);
}

#[test]
fn a_filled_window_refuses_from_outside_with_six_and_keeps_every_old_answer() {
    let (dir, store) = fresh("store");
    let file = dir.path().join("oncelog.toml");
    fs::write(&file, "[retention]\nwindow_count_max = 3\n").unwrap();
    let ask = |key: &str| {
        let args = ["broadcast", &store, "--type", "Noop", "--vchannels", "a", "--key", key];
        let run = run(&[&args[..], &["--json", "--config", file.to_str().unwrap()]].concat(), b"");
        (run.code, run.objects().pop().unwrap_or_default(), run.error())
    };
    let answers: Vec<_> = ["1", "2", "3"].map(|key| (key, ask(key))).into();
    for key in ["4", "5"] {
        let (code, _, error) = ask(key);
        assert_eq!((code, &error["kind"]), (6, &"WindowFull".into()), "{error}");
        assert!(error["retry_after_ms"].as_u64().unwrap() > 0);
    }
    for (key, (code, first, _)) in &answers {
        let (again_code, again, error) = ask(key);
        assert_eq!((code, again_code), (&0, 0), "{error}");
        assert_eq!(again["duplicated"], true);
        for name in ["broadcast_id", "expires_at", "channels"] {
            assert_eq!(again[name], first[name], "{name}");
        }
    }
}

#[test]
fn a_job_retention_below_twice_the_window_is_refused_from_outside_with_both_values() {
    let (dir, store) = fresh("store");
    let file = dir.path().join("oncelog.toml");
    fs::write(&file, "[retention]\nwindow_lifetime = \"25h\"\n").unwrap();
    let args = ["broadcast", &store, "--type", "Noop", "--vchannels", "a", "--key", "k", "--json"];
    let refused = run(&[&args[..], &["--config", file.to_str().unwrap()]].concat(), b"");
    assert_eq!((refused.code, &refused.error()["kind"]), (1, &"InvalidInput".into()));
    let message = refused.error()["message"].to_string();
    for value in ["lifetime of 25h", "at least 50h", "found 48h"] {
        assert!(message.contains(value), "{value} is not in {message}");
    }
    assert!(!Path::new(&store).exists());
}

/// A command that has the file of a lock open, and so asks for the lock.
fn begin_behind_lock(args: &[&str], lock: &Path) -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_oncelog"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while !has_open(&child, lock) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it asks for no lock");
        std::thread::yield_now();
    }
    child
}

/// What a command is told by `--lock-wait` beside another writer, whom `let_go` ends: it waits for
/// that one, no longer than it may, and not at all by itself.
#[track_caller]
fn check_lock_wait(args: &[&str], dir: &str, let_go: impl FnOnce()) {
    let patience = Duration::from_millis(30);
    for wait in [&[][..], &["--lock-wait", "30ms"]] {
        let begin = Instant::now();
        let refused = run(&[args, wait].concat(), b"late\n");
        assert_eq!(refused.code, 7, "{wait:?}: {}", refused.err);
        assert!(refused.out.is_empty(), "{wait:?}: {}", refused.out);
        let lock = format!("the directory is in use by another writer: {dir}/LOCK");
        assert!(refused.err.contains(&lock), "{wait:?}: {}", refused.err);
        assert!(wait.is_empty() || begin.elapsed() >= patience, "{wait:?}");
    }
    let args = [args, &["--lock-wait", "10m"]].concat();
    let mut waiting = begin_behind_lock(&args, &Path::new(dir).join("LOCK"));
    waiting.stdin.take().unwrap().write_all(b"in time\n").unwrap();
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    let_go();
    let end = waiting.wait_with_output().unwrap();
    assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
}

#[test]
fn a_command_waits_for_another_writer_as_long_as_it_is_told() {
    let (_dir, log) = fresh("log");
    let options = Options::new().create(CreateMode::IfMissing);
    let (writer, _) = Log::open(&log, &options).unwrap();
    writer.append(b"of the first").unwrap();
    check_lock_wait(&["append", &log], &log, || writer.close().unwrap());
    let (after, _) = Log::open(&log, &Options::new()).unwrap();
    let mut reader = after.reader(Lsn::FIRST).unwrap();
    let found = std::iter::from_fn(|| reader.next().unwrap().map(|record| record.payload));
    assert_eq!(found.collect::<Vec<_>>(), [&b"of the first"[..], b"in time"], "and nothing else");

    let (_dir, store) = fresh("store");
    let options = StoreOptions::new().create(CreateMode::IfMissing);
    let writer = Store::open(Path::new(&store), &options).unwrap();
    let submit = ["broadcast", &store, "--type", "Noop", "--vchannels", "a", "--key", "k"];
    check_lock_wait(&[&submit[..], &["--payload", "p"]].concat(), &store, || drop(writer));
}
