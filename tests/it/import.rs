//! Imports by the real binary: killed at random moments, and given what no import can take.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use oncelog::testing::Dice;
use serde_json::Value;

use crate::cli::{fresh, run};

const BIN: &str = env!("CARGO_BIN_EXE_oncelog");

const ROWS: u64 = 300_000;

const KILLS: u32 = 20;

fn import_args<'a>(store: &'a str, file: &'a str, key: &'a str) -> [&'a str; 9] {
    ["import", store, file, "--collection", "c", "--key", key, "--json", "--vchannels=2"]
}

/// Rows of the collection, as JSON Lines.
fn rows(store: &str) -> Vec<Value> {
    let out = format!("{store}.jsonl");
    let done = run(&["replay", store, "--collection", "c", "--out", &out], b"");
    assert_eq!(done.code, 0, "{done:?}");
    let text = fs::read_to_string(out).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs an import and kills it after a while; true when it was killed before its end.
fn killed_after(args: &[&str], while_: Duration) -> bool {
    let mut child = Command::new(BIN)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let (ended, end) = mpsc::channel();
    let watcher = std::thread::spawn(move || {
        // The pipe ends with the process.
        std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        // Whoever killed the process waits no longer.
        ended.send(()).unwrap_or(());
    });
    let killed = end.recv_timeout(while_) == Err(RecvTimeoutError::Timeout);
    if killed {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    watcher.join().unwrap();
    assert!(killed || status.success(), "ended by itself: {status}");
    killed
}

#[test]
fn an_import_that_is_killed_at_random_moments_has_every_row_once() {
    let (dir, store) = fresh("store");
    let file = dir.path().join("big.csv");
    let mut text = String::from("id,name,v\n");
    for id in 0..ROWS {
        writeln!(text, "{id},name {id},{}", id / 2).unwrap();
    }
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let (_probe, probe) = fresh("probe");
    let begun = Instant::now();
    assert_eq!(run(&import_args(&probe, file, "p"), b"").code, 0);
    let took = begun.elapsed();

    let args = import_args(&store, file, "big");
    let mut dice = Dice::new(20);
    let mut landed = 0;
    for _ in 0..KILLS {
        // Half of a whole run at most, so that the last of them still find something to do.
        let millis = 1 + dice.below(u64::try_from(took.as_millis()).unwrap() / 2);
        if !killed_after(&args, Duration::from_millis(millis)) {
            break;
        }
        landed += 1;
    }
    assert!(landed >= 3, "only {landed} kills before the end");
    let done = run(&args, b"");
    let report = done.objects().pop().unwrap();
    assert_eq!((done.code, &report["state"]), (0, &"Completed".into()), "{done:?}");
    assert_eq!(report["rows"], ROWS);
    let rows = rows(&store);
    let expect = (0..ROWS).map(|id| id.to_string());
    assert!(rows.iter().map(|row| row["id"].as_str().unwrap()).eq(expect), "after {landed} kills");
    assert_eq!(run(&["verify", &store], b"").code, 0);
}

/// Imports a file that no import takes: the answer names it and says what and where, and what was
/// there before stays as it is.
#[track_caller]
fn check_bad(name: &str, content: &[u8], extra: &[&str], code: i32, expect: &str) {
    let (dir, store) = fresh("store");
    let good = dir.path().join("good.csv");
    fs::write(&good, "id\n1\n").unwrap();
    let args = import_args(&store, good.to_str().unwrap(), "good");
    assert_eq!(run(&args, b"").code, 0);
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    check_refused(&store, &path, extra, code, expect);
}

#[track_caller]
fn check_refused(store: &str, path: &Path, extra: &[&str], code: i32, expect: &str) {
    let before = rows(store);
    let file = path.to_str().unwrap();
    let args = ["import", store, file, "--collection", "d", "--json"];
    let done = run(&[&args, extra].concat(), b"");
    assert_eq!(done.code, code, "{file}: {done:?}");
    let told = match done.objects().pop() {
        Some(report) => report["reason"].as_str().unwrap().to_owned(),
        None => done.error().to_string(),
    };
    assert!(told.contains(expect), "{file}: {told}");
    assert!(told.contains(file), "{file}: {told}");
    assert_eq!(rows(store), before);
    let out = format!("{store}.all.jsonl");
    assert_eq!(run(&["replay", store, "--out", &out], b"").code, 0);
    assert_eq!(fs::read_to_string(out).unwrap().lines().count(), before.len());
    assert_eq!(run(&["verify", store], b"").code, 0);
}

#[test]
fn bad_input_is_one_clear_error_and_no_row() {
    let key = ["--primary-key", "id"];
    let deep = format!("{{\"id\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let whole = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/airports.parquet"));
    let whole = whole.unwrap();
    check_bad("a.csv", b"", &[], 2, "empty");
    check_bad("a.txt", b"id\n1\n", &[], 2, "tells no format");
    check_bad("a.parquet", b"id\n1\n", &[], 1, "the name says Parquet, the content is not");
    check_bad("a.json", &whole, &[], 1, "the content is Parquet");
    check_bad("a.parquet", &whole[..whole.len() / 2], &[], 1, "damaged or truncated");
    check_bad("a.csv", b"id,x\n1,2\n3\n", &[], 1, "row 2, line 3: expected 2 fields, found 1");
    check_bad("a.csv", b"id,id\n1,2\n", &[], 1, "two columns have the name `id`");
    check_bad("a.csv", b"id,x\n1,2\n,3\n", &key, 1, "row 2, line 3, column `id`: the primary key");
    check_bad("a.csv", b"x\n1\n", &key, 1, "column `id`: no such column");
    check_bad("a.jsonl", b"{\"id\":1}\n{\"id\":null}\n", &key, 1, "row 2, line 2, column `id`");
    check_bad("a.jsonl", b"{\"id\":1}\n{\"x\":1}\n", &key, 1, "row 2, line 2, column `id`");
    check_bad(
        "a.jsonl",
        b"{\"id\":1,\"id\":2}\n",
        &[],
        1,
        "row 1, line 1, column `id`: the row has",
    );
    check_bad("a.json", b"[{\"id\":\"x}]", &[], 1, "row 1, line 1: a string is not closed");
    check_bad("a.jsonl", b"{\"id\":18446744073709551616}", &[], 1, "does not fit in 64 bits");
    check_bad("a.jsonl", b"{\"id\":\"\xff\"}", &[], 1, "row 1, line 1: the text is not UTF-8");
    check_bad("a.csv", b"id\n\xff\n", &[], 1, "row 1, line 2, column `id`: the text is not UTF-8");
    check_bad("a.jsonl", deep.as_bytes(), &[], 1, "nested deeper than 128 levels");
    check_bad("a.json", format!("[{deep}]").as_bytes(), &[], 1, "nested deeper than 128 levels");
}

#[test]
fn what_is_no_file_is_refused() {
    let (dir, store) = fresh("store");
    let good = dir.path().join("good.csv");
    fs::write(&good, "id\n1\n").unwrap();
    assert_eq!(run(&import_args(&store, good.to_str().unwrap(), "good"), b"").code, 0);
    check_refused(&store, &dir.path().join("none.csv"), &[], 2, "does not exist");
    fs::create_dir(dir.path().join("dir.csv")).unwrap();
    check_refused(&store, &dir.path().join("dir.csv"), &[], 2, "directory");
}
