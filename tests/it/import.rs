//! Imports by the real binary: killed at random moments, and given what no import can take.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use oncelog::broadcast::StoreView;
use oncelog::io::fs::FsIo;
use oncelog::testing::Dice;
use oncelog_format::control::JobPhase;

use crate::cli::{fresh, run};
use crate::figures::{figure, is_release, of_release};

const BIN: &str = env!("CARGO_BIN_EXE_oncelog");

const ROWS: u64 = 300_000;

/// Kills of one run, and of one before a release.
const KILLS: u32 = 20;
const KILLS_RELEASE: u64 = 200;

fn import_args<'a>(store: &'a str, file: &'a str, key: &'a str) -> [&'a str; 9] {
    ["import", store, file, "--collection", "c", "--key", key, "--json", "--vchannels=2"]
}

/// Text of all rows of the collection, as JSON Lines.
fn rows(store: &str) -> String {
    let out = format!("{store}.jsonl");
    let done = run(&["replay", store, "--collection", "c", "--out", &out], b"");
    assert_eq!(done.code, 0, "{done:?}");
    fs::read_to_string(out).unwrap()
}

/// What an import had got to when it was killed, as its records say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Nothing appended: the store is being opened or made, the file read for the first time.
    Plan,
    Slices,
    /// All slices stand; the commit is about to be accepted, or was.
    Commit,
}

fn stage(store: &str) -> Stage {
    let io = Arc::new(FsIo::new());
    // Before the store is whole there is nothing to look at.
    let Ok(view) = StoreView::open(store, io) else { return Stage::Plan };
    let Some((_, job)) = view.state().jobs().next() else { return Stage::Plan };
    match job.state.as_ref().map(|state| state.phase) {
        _ if job.end.is_some() => Stage::Commit,
        Some(JobPhase::Committing) => Stage::Commit,
        _ if job.plan.is_some() => Stage::Slices,
        _ => Stage::Plan,
    }
}

/// When an import is killed.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// Not before it has got there.
    from: Stage,
    then: Duration,
}

/// Between two looks at where an import is.
const LOOK: Duration = Duration::from_millis(2);

/// Runs an import and kills it; says where, or nothing when it had ended before.
fn killed(store: &str, args: &[&str], moment: Moment) -> Option<Stage> {
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
    let runs_for = |time| end.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    let mut runs = true;
    while runs && moment.from > Stage::Plan && stage(store) < moment.from {
        runs = runs_for(LOOK);
    }
    if runs && runs_for(moment.then) {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    watcher.join().unwrap();
    // One that ended between the last look and the kill was not killed.
    let killed = status.signal() == Some(9);
    assert!(killed || status.success(), "ended by itself: {status}");
    killed.then(|| stage(store))
}

/// Every row of the file is there once, and nothing else; a retry says so too.
fn check_whole(store: &str, args: &[&str], whole: &str, context: &str) {
    let done = run(args, b"");
    let report = done.objects().pop().unwrap();
    assert_eq!((done.code, &report["state"]), (0, &"Completed".into()), "{context}: {done:?}");
    assert_eq!(report["rows"], ROWS, "{context}");
    assert!(rows(store) == whole, "{context}: the rows differ");
    assert_eq!(run(&["verify", store], b"").code, 0, "{context}");
}

#[test]
fn an_import_that_is_killed_at_random_moments_has_every_row_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("big.csv");
    let (mut text, mut whole) = (String::from("id,name,v\n"), String::new());
    for id in 0..ROWS {
        let v = id / 2;
        writeln!(text, "{id},name {id},{v}").unwrap();
        writeln!(whole, r#"{{"id":"{id}","name":"name {id}","v":"{v}"}}"#).unwrap();
    }
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let (_probe, probe) = fresh("probe");
    let begun = Instant::now();
    assert_eq!(run(&import_args(&probe, file, "p"), b"").code, 0);
    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap();

    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = since.as_secs();
    let mut dice = Dice::new(seed);
    let mut landed: BTreeMap<Stage, u32> = BTreeMap::new();
    let (mut kills, mut imports) = (0, 0);
    let wanted: u32 = if is_release() { of_release(KILLS_RELEASE) } else { KILLS };
    while kills < wanted || landed.len() < 3 {
        imports += 1;
        let (_dir, store) = fresh("store");
        let key = format!("key {imports}");
        let args = import_args(&store, file, &key);
        loop {
            // Anywhere; while a retry recovers; about the commit, which is too short to be met.
            let (from, below_us) = match dice.below(8) {
                0..=2 => (Stage::Plan, took_us),
                3 | 4 => (Stage::Plan, took_us / 8),
                5 | 6 => (Stage::Slices, took_us / 2),
                _ => (Stage::Commit, took_us / 100),
            };
            let then = Duration::from_micros(dice.below(below_us));
            let Some(stage) = killed(&store, &args, Moment { from, then }) else { break };
            *landed.entry(stage).or_default() += 1;
            kills += 1;
            if kills >= wanted && landed.len() == 3 {
                break;
            }
        }
        let context = format!("seed {seed}, import {imports}, killed so far: {landed:?}");
        println!("import: {context}");
        assert!(imports < 5 * wanted, "{context}");
        check_whole(&store, &args, &whole, &context);
    }
    figure(4, "kills of an import", kills);
    for (stage, count) in landed {
        figure(4, &format!("kills of an import, {stage:?}"), count);
    }
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
    assert_eq!(fs::read_to_string(out).unwrap().lines().count(), before.lines().count());
    assert_eq!(run(&["verify", store], b"").code, 0);
}

#[test]
fn bad_input_is_one_clear_error_and_no_row() {
    let key = ["--primary-key", "id"];
    let deep = format!("{{\"id\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let whole = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/airports.parquet"));
    let whole = whole.unwrap();
    let npy = |descr: &str, shape: &str, data: &[u8]| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n");
        let len = u16::try_from(text.len()).unwrap().to_le_bytes();
        [b"\x93NUMPY\x01\0", &len[..], text.as_bytes(), data].concat()
    };
    check_bad("a.npy", &npy("|O", "(1,)", b"x"), &[], 1, "column `a`: values are Python objects");
    check_bad("a.npy", &npy("|b1", "(2,)", &[1, 2]), &[], 1, "row 2, column `a`: a boolean");
    check_bad("a.npy", &npy("<i8", "(9,)", &[0; 8]), &[], 1, "column `a`: expected");
    check_bad("a.npy", b"PAR1", &[], 1, "the name says NumPy, the content is not");
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

/// What the bulk writer of pymilvus leaves, one of its formats each.
#[test]
fn files_of_a_bulk_writer_are_imported_as_they_are() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/inputs/bulk");
    let mut columns: Vec<String> = fs::read_dir(dir.join("1"))
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .collect();
    columns.sort();
    let text = |name: &str| vec![dir.join(name).to_str().unwrap().to_owned()];
    let id = |n: usize| format!("\"id\":{n},");
    for (files, key, row) in [
        (text("1.parquet"), "id", id as fn(usize) -> String),
        (text("1.json"), "id", id),
        (columns, "id", id),
        (text("1.csv"), "id", |n| format!("\"id\":\"{n}\",")),
    ] {
        let (_dir, store) = fresh("store");
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let rest = ["--collection", "c", "--key", "k", "--json", "--primary-key", key];
        let args = [&["import", &store], files.as_slice(), &rest].concat();
        let done = run(&args, b"");
        assert_eq!((done.code, &done.objects()[0]["rows"]), (0, &5.into()), "{files:?}: {done:?}");
        assert_eq!(run(&args, b"").objects()[0]["duplicated"], true, "{files:?}");
        let rows = rows(&store);
        assert_eq!(rows.lines().count(), 5, "{files:?}");
        for (n, line) in rows.lines().enumerate() {
            let title = format!("\"title\":\"caf\u{e9} {n}\"");
            assert!(line.contains(&row(n)) && line.contains(&title), "{files:?}: {line}");
            assert!(line.contains("$meta"), "{files:?}: {line}");
        }
        let job = run(&["jobs", &store, "1", "--json"], b"").objects().remove(0);
        let list = job["file_list"].as_array().unwrap();
        assert_eq!(list.len(), files.len());
        assert!(list.iter().all(|file| file["rows"] == 5 && file["set"] == 0), "{list:?}");
    }
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
    check_refused(&store, Path::new("/dev/null.csv"), &[], 2, "does not exist");
    let pipe = dir.path().join("pipe.csv");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    check_refused(&store, &pipe, &[], 2, "not a regular file");
}
