//! A store that lost a part of itself: readers see it as writers do, and nobody answers as if what
//! is gone had never been.

use std::fs;
use std::path::Path;

use crate::cli::{fresh, run};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/airports.csv");

fn import(store: &str) -> crate::cli::Run {
    run(&["import", store, SOURCE, "--collection", "c", "--key", "k", "--json"], b"")
}

/// Imports a file, damages the store, and expects that `verify` and a retry refuse it as corrupt,
/// and of the readers those named.
#[track_caller]
fn check(damage: impl Fn(&Path), readers: &[&str]) {
    let (dir, store) = fresh("store");
    assert_eq!(import(&store).code, 0);
    damage(Path::new(&store));
    let out = dir.path().join("rows.jsonl").to_str().unwrap().to_owned();
    let verified = run(&["verify", &store, "--json"], b"");
    assert_eq!(verified.code, 4, "{} {}", verified.out, verified.err);
    assert_eq!(verified.objects().last().unwrap()["summary"]["status"], "corrupt");
    for reader in readers {
        let read = match *reader {
            "replay" => run(&["replay", &store, "--out", &out, "--json"], b""),
            "keys" => run(&["keys", &store, "k", "--json"], b""),
            other => run(&[other, &store, "--json"], b""),
        };
        assert_eq!(read.code, 4, "{reader}: {} {}", read.out, read.err);
        assert_eq!(read.error()["kind"], "Corrupt", "{reader}");
    }
    let retried = import(&store);
    assert_eq!(retried.code, 4, "{} {}", retried.out, retried.err);
    assert_eq!(retried.error()["kind"], "Corrupt");
}

fn remove_all(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
}

fn cut(dir: &Path, len: u64) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ext| ext == "seg") {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
        }
    }
}

#[test]
fn a_pchannel_that_is_gone_is_corrupt_to_all() {
    // Its rows were left out without a word, with exit code 0.
    check(|store| fs::remove_dir_all(store.join("channels/p0")).unwrap(), &["replay"]);
    check(|store| fs::remove_dir_all(store.join("channels")).unwrap(), &["replay"]);
    check(|store| remove_all(&store.join("channels/p0")), &["replay"]);
}

#[test]
fn a_control_log_that_is_gone_is_corrupt_to_all() {
    // Every key was `unknown`, with exit code 0.
    check(|store| remove_all(&store.join("control")), &["keys", "jobs", "replay"]);
    check(|store| fs::remove_dir_all(store.join("control")).unwrap(), &["keys", "jobs"]);
}

#[test]
fn a_damaged_lock_file_of_a_store_is_corrupt_to_all() {
    let flip = |store: &Path| {
        let mut bytes = fs::read(store.join("LOCK")).unwrap();
        bytes[9] ^= 1;
        fs::write(store.join("LOCK"), bytes).unwrap();
    };
    check(flip, &["keys", "jobs", "replay"]);
    check(|store| fs::remove_file(store.join("LOCK")).unwrap(), &["keys", "jobs", "replay"]);
}

#[test]
fn a_log_cut_into_its_slots_is_corrupt_to_all() {
    // It read as an empty log: the key was free, and a retry imported the rows again.
    for len in [80, 4096, 8192, 8319, 12_288] {
        check(|store| cut(&store.join("control"), len), &["keys", "jobs", "replay"]);
        check(|store| cut(&store.join("channels/p0"), len), &["replay"]);
    }
}

#[test]
fn a_directory_beside_the_pchannels_is_nobodys_affair() {
    let (_dir, store) = fresh("store");
    assert_eq!(import(&store).code, 0);
    let strays =
        ["lost+found", "empty", "old copy"].map(|n| Path::new(&store).join("channels").join(n));
    for stray in &strays {
        fs::create_dir(stray).unwrap();
    }
    fs::write(strays[2].join("x"), b"y").unwrap();
    assert_eq!(import(&store).code, 0);
    assert_eq!(run(&["verify", &store, "--json"], b"").code, 0);
    assert_eq!(fs::read_dir(&strays[1]).unwrap().count(), 0, "nothing is made in it");
}

#[test]
fn a_pchannel_behind_a_link_is_read_as_it_is_written() {
    let (dir, store) = fresh("store");
    assert_eq!(import(&store).code, 0);
    let (here, there) = (Path::new(&store).join("channels/p0"), dir.path().join("p0"));
    fs::rename(&here, &there).unwrap();
    std::os::unix::fs::symlink(&there, &here).unwrap();
    let out = dir.path().join("rows.jsonl").to_str().unwrap().to_owned();
    let replayed = run(&["replay", &store, "--out", &out, "--json"], b"");
    assert_eq!(replayed.objects()[0]["rows"], 3376);
    let verified = run(&["verify", &store, "--json"], b"");
    assert_eq!(verified.objects().last().unwrap()["summary"]["logs"], 2);
}
