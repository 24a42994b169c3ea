//! Every golden log and every log of the corpus under every command.
//!
//! A command ends with a code that its documentation has, never with a panic, and one that reads
//! leaves every byte as it was. The verdict of `verify`, the records of `dump`, what `backup` copies
//! and where `append` goes on are those of the file.

use std::fs;
use std::path::Path;

use oncelog::{CreateMode, Log, Options};

use crate::cli::{Run, fresh, run, snapshot};
use crate::damage::{images, shared_among};
use crate::figures::figure;
use crate::image::{Directory, Image};

/// A look at damage waits for a writer that is not there.
const THREADS: usize = 16;

fn write(directory: &Directory, at: &Path) {
    fs::create_dir_all(at).unwrap();
    for index in 0..directory.count() {
        let (name, bytes) = directory.file(index).unwrap();
        fs::write(at.join(name), bytes).unwrap();
    }
}

/// `LOCK` of a store.
fn store_lock() -> Vec<u8> {
    let mut lock = b"oncestor".to_vec();
    lock.extend([7; 16]);
    lock.extend([0; 4]);
    lock.extend(crate::reference::bytes::crc(0, &lock).to_le_bytes());
    lock.resize(512, 0);
    lock
}

/// Runs a command that must not panic; its code is one of the documented ones.
#[track_caller]
fn ends(story: &str, args: &[&str]) -> Run {
    let found = run(args, b"");
    let shown = &found.err;
    assert!((0..=7).contains(&found.code), "{story}: {args:?} ended with {}: {shown}", found.code);
    assert!(!shown.contains("panicked"), "{story}: {args:?}: {shown}");
    found
}

/// The code of `verify` for a verdict.
fn code_of(verdict: &str) -> i32 {
    match verdict.split(' ').nth(1).unwrap() {
        "unsupported" => 5,
        "corrupt" | "degraded" => 4,
        _ if verdict.ends_with("also degraded") => 4,
        "torn" => 3,
        _ => 0,
    }
}

fn check((name, image): &(String, Image)) -> u64 {
    let (_dir, path) = fresh("log");
    write(&image.directory, Path::new(&path));
    let before = snapshot(Path::new(&path));
    let verdict = image.verdict[0].as_str();
    let is_absent = verdict.starts_with("verdict absent");

    let verify = ends(name, &["verify", &path, "--json"]);
    if !is_absent {
        assert_eq!(verify.code, code_of(verdict), "{name}: {}{}", verify.out, verify.err);
    }
    let dump = ends(name, &["dump", &path, "--json", "--payload", "none"]);
    let records = image.verdict.iter().filter(|line| line.starts_with("record ")).count();
    let is_told_where = image.verdict.iter().any(|line| line.contains(" offset "));
    let is_read = verdict.starts_with("verdict corrupt") && is_told_where;
    let is_sound = ["clean", "degraded", "torn"].contains(&verdict.split(' ').nth(1).unwrap());
    if is_read || is_sound {
        assert_eq!(dump.out.lines().count(), records, "{name}: {}", dump.err);
        let expected = if is_read { 4 } else { i32::from(verdict.starts_with("verdict torn")) * 3 };
        assert_eq!(dump.code, expected, "{name}: {}", dump.err);
    }
    for args in [
        &["inspect", &path][..],
        &["inspect", &path, "--json"],
        &["stats", &path, "--json"],
        &["dump", &path, "--skip-damage"],
        &["keys", &path, "k"],
        &["jobs", &path],
    ] {
        ends(name, args);
    }
    let copy = format!("{path}-copy");
    let backup = ends(name, &["backup", &path, &copy, "--json"]);
    assert!(before == snapshot(Path::new(&path)), "{name}: a command that reads has written");
    if is_sound {
        assert_eq!(backup.code, 0, "{name}: {}", backup.err);
        let copied = ends(name, &["dump", &copy, "--payload", "none"]);
        assert_eq!((copied.code, copied.out.lines().count()), (0, records), "{name}");
    } else if !is_absent {
        assert_eq!(backup.code, code_of(verdict), "{name}: {}", backup.err);
        let copied = Log::open(&copy, &Options::new().create(CreateMode::Never));
        assert!(copied.is_err(), "{name}: half a copy opens as a log");
    }
    12 + appends(name, &path, code_of(verdict), is_sound.then_some(records))
}

/// A writer goes on behind what is sound, refuses what it sees to be damaged, and hides nothing.
fn appends(name: &str, path: &str, code: i32, records: Option<usize>) -> u64 {
    let segments = || {
        let mut all = snapshot(Path::new(path));
        all.retain(|(file, ..)| file.extension().is_some_and(|ending| ending == "seg"));
        all
    };
    let before = segments();
    let append = run(&["append", path, "--json"], b"behind it\n");
    assert!(!append.err.contains("panicked"), "{name}: {}", append.err);
    if let Some(records) = records {
        assert_eq!(append.code, 0, "{name}: {}", append.err);
        let dump = ends(name, &["dump", path, "--payload", "utf8"]);
        assert_eq!(dump.out.lines().count(), records + 1, "{name}: {}", dump.err);
        assert!(dump.out.contains("behind it"), "{name}: {}", dump.out);
    } else if append.code == 0 {
        // Damage before the tail is met by who reads it.
        assert_eq!(ends(name, &["verify", path]).code, code, "{name}");
    } else {
        assert_eq!(append.code, code, "{name}: {}", append.err);
        assert!(before == segments(), "{name}: a log that is refused was written to");
    }
    2
}

/// The same log as the control log of a store, and as a channel of it.
fn check_store((name, image): &(String, Image)) -> u64 {
    let (_dir, path) = fresh("store");
    let store = Path::new(&path);
    fs::create_dir_all(store).unwrap();
    fs::write(store.join("LOCK"), store_lock()).unwrap();
    write(&image.directory, &store.join("control"));
    write(&image.directory, &store.join("channels").join("c0"));
    let out = store.with_file_name("rows.jsonl").to_str().unwrap().to_owned();
    let before = snapshot(store);
    for args in [
        &["verify", &path, "--json"][..],
        &["inspect", &path, "--json"],
        &["stats", &path],
        &["dump", &path, "--json"],
        &["keys", &path, "k", "--json"],
        &["keys", &path, "--summary"],
        &["jobs", &path, "--json"],
        &["replay", &path, "--out", &out],
    ] {
        ends(name, args);
    }
    assert!(before == snapshot(store), "{name}: a command that reads has written");
    let airports = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/airports.parquet");
    for args in [
        &["broadcast", &path, "--type", "Noop", "--vchannels", "v", "--key", "k"][..],
        &["import", &path, airports, "--collection", "c", "--key", "i", "--wait", "20s"],
        &["tasks", "resume", &path, "1"],
        &["tasks", "skip", &path, "1"],
        &["jobs", "cancel", &path, "1"],
        &["clock", "rebase", &path],
        &["keys", &path, "k", "--json"],
    ] {
        ends(name, args);
    }
    15
}

#[test]
fn every_command_takes_every_kept_log_for_what_it_is() {
    let logs: Vec<_> = ["golden", "corpus"].into_iter().flat_map(images).collect();
    let commands = shared_among(THREADS, &logs, |log| check(log) + check_store(log));
    figure(9, "commands run on the corpus", commands.iter().sum::<u64>());
}
