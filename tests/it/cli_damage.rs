//! What `verify`, `dump` and a writer say of each kind of damage to a closed log of many segments.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::cli::{fresh, run};

/// The segments of a log in order.
fn segments(log: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).collect();
    found.sort();
    found
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Damages a log of 300 records, then compares the exit codes of verify, dump and append, and how
/// many records a dump shows: those before the segment of this number, counted from 0.
#[track_caller]
fn check(damage: impl FnOnce(&Path, &[PathBuf]), codes: [i32; 3], stops_at: Option<usize>) {
    let (_dir, log) = fresh("log");
    let lines: String = (0..300).map(|i| format!("{i} {}\n", "d".repeat(1_000))).collect();
    assert_eq!(run(&["append", &log, "--segment-bytes", "65536"], lines.as_bytes()).code, 0);
    let path = Path::new(&log);
    let all = segments(path);
    assert!(all.len() > 4, "{all:?}");
    let dumped = stops_at.map_or(300, |at| before(&all[at]));
    damage(path, &all);
    let verify = run(&["verify", &log, "--json"], b"");
    let dump = run(&["dump", &log, "--json", "--payload", "none"], b"");
    let append = run(&["append", &log], b"x\n");
    assert_eq!([verify.code, dump.code, append.code], codes, "{}{}", verify.out, dump.err);
    assert_eq!(dump.out.lines().count(), dumped, "{}", dump.err);
    if codes[1] == 4 {
        assert_eq!(dump.error()["kind"], "Corrupt", "{}", dump.err);
    }
}

/// How many records stand before a segment.
fn before(segment: &Path) -> usize {
    let name = segment.file_stem().unwrap().to_str().unwrap();
    name.split_once('-').unwrap().1.parse::<usize>().unwrap() - 1
}

#[test]
fn a_damaged_footer_is_degraded() {
    check(
        |_, all| flip(&all[1], usize::try_from(fs::metadata(&all[1]).unwrap().len()).unwrap() - 40),
        [4, 0, 0],
        None,
    );
}

#[test]
fn a_damaged_slot_of_a_sealed_segment_is_degraded() {
    check(|_, all| flip(&all[1], 8192 + 30), [4, 0, 0], None);
}

#[test]
fn a_damaged_header_whose_copy_stands_is_degraded() {
    check(|_, all| flip(&all[1], 30), [4, 0, 0], None);
}

#[test]
fn a_byte_beside_header_and_slots_is_degraded() {
    for at in [100, 4096 + 200, 8192 + 4000] {
        check(|_, all| flip(&all[2], at), [4, 0, 0], None);
    }
}

#[test]
fn a_segment_without_header_and_slots_is_corrupt() {
    check(
        |_, all| {
            let mut bytes = fs::read(&all[2]).unwrap();
            bytes[..12_288].fill(0);
            fs::write(&all[2], bytes).unwrap();
        },
        [4, 4, 4],
        Some(2),
    );
}

#[test]
fn a_missing_segment_is_corrupt_behind_what_stands_before_it() {
    check(|_, all| fs::remove_file(&all[2]).unwrap(), [4, 4, 4], Some(2));
    check(|_, all| fs::remove_file(&all[0]).unwrap(), [4, 4, 4], Some(0));
}

#[test]
fn what_stands_behind_a_lost_segment_is_shown_when_damage_is_skipped() {
    let without_header = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[..12_288].fill(0);
        fs::write(path, bytes).unwrap();
    };
    for lose in [&without_header as &dyn Fn(&Path), &|path| fs::remove_file(path).unwrap()] {
        let (_dir, log) = fresh("log");
        let lines: String = (0..300).map(|i| format!("{i} {}\n", "d".repeat(1_000))).collect();
        run(&["append", &log, "--segment-bytes", "65536"], lines.as_bytes());
        let all = segments(Path::new(&log));
        lose(&all[2]);
        let lost = before(&all[2])..before(&all[3]);
        let dump = run(&["dump", &log, "--json", "--payload", "none", "--skip-damage"], b"");
        assert_eq!((dump.code, &dump.error()["kind"]), (4, &"Corrupt".into()));
        let shown: Vec<_> = dump.objects().iter().map(|row| row["lsn"].as_u64().unwrap()).collect();
        let at = |lsn: &u64| !lost.contains(&(usize::try_from(*lsn).unwrap() - 1));
        assert_eq!(shown, (1..=300).filter(at).collect::<Vec<u64>>());
    }
}

#[test]
fn segments_that_are_all_gone_are_corrupt_not_an_empty_log() {
    let remove = |path: &PathBuf| fs::remove_file(path).unwrap();
    check(|_, all| all.iter().for_each(remove), [4, 4, 4], Some(0));
}

#[test]
fn a_segment_under_anothers_name_is_corrupt() {
    // Two files claim number 2: what either holds is not shown.
    let copy = |from: &Path, to: &Path| assert!(fs::copy(from, to).unwrap() > 0);
    check(|_, all| copy(&all[1], &all[2]), [4, 4, 4], Some(1));
}

#[test]
fn a_damaged_lock_file_is_corrupt() {
    let (_dir, log) = fresh("log");
    run(&["append", &log], b"a\n");
    flip(&Path::new(&log).join("LOCK"), 12);
    assert_eq!(run(&["verify", &log], b"").code, 4);
    assert_eq!(run(&["append", &log], b"x\n").code, 4);
}

#[test]
fn strays_and_spares_are_told_and_harm_nothing() {
    check(
        |log, _| {
            fs::write(log.join("note.txt"), "stray").unwrap();
            fs::write(log.join("1.spare"), [7; 100]).unwrap();
            fs::create_dir(log.join("0000000099-00000000000000000001.seg")).unwrap();
        },
        [0, 0, 0],
        None,
    );
}

/// What editors, copies, file systems and other programs leave beside segments. Each has the bytes of
/// a segment of this very log.
const ODD_NAMES: [&str; 16] = [
    "0000000001-00000000000000000001.seg~",
    ".0000000001-00000000000000000001.seg.swp",
    "#0000000001-00000000000000000001.seg#",
    "0000000001-00000000000000000001.seg.bak",
    "0000000001-00000000000000000001.SEG",
    "0000000001-00000000000000000001.seg (copy)",
    "1-1.seg",
    "00000000001-00000000000000000001.seg",
    "+000000002-00000000000000000003.seg",
    "0000000002-00000000000000000003.seg.tmp",
    "99999999999999999999-00000000000000000003.seg",
    ".seg",
    "seg",
    "LOCK~",
    "core",
    "caf\u{e9}.seg",
];

#[test]
fn odd_names_beside_segments_are_told_and_ignored_and_stay() {
    let (_dir, path) = fresh("log");
    assert_eq!(run(&["append", &path], b"a\nb\n").out, "1\n2\n");
    let log = Path::new(&path);
    let segment = fs::read(log.join("0000000001-00000000000000000001.seg")).unwrap();
    for name in ODD_NAMES {
        fs::write(log.join(name), &segment).unwrap();
    }
    let no_text = OsStr::from_bytes(b"no\xfftext.seg");
    fs::write(log.join(no_text), &segment).unwrap();
    fs::create_dir(log.join("lost+found")).unwrap();
    let check = |records: usize| {
        let verify = run(&["verify", &path, "--json"], b"");
        assert_eq!(verify.code, 0, "{}", verify.out);
        let told = verify.objects();
        let strays = told.iter().filter(|finding| finding["kind"] == "stray");
        let mut strays: Vec<_> = strays.map(|it| it["segment"].as_str().unwrap()).collect();
        strays.sort_unstable();
        let mut expected = [&ODD_NAMES[..], &["no\u{fffd}text.seg", "lost+found"]].concat();
        expected.sort_unstable();
        assert_eq!(strays, expected);
        let dump = run(&["dump", &path, "--payload", "none"], b"");
        assert_eq!((dump.code, dump.out.lines().count()), (0, records), "{}", dump.err);
    };
    check(2);
    assert_eq!(run(&["append", &path], b"c\n").out, "3\n");
    check(3);
    for name in ODD_NAMES {
        assert!(fs::read(log.join(name)).unwrap() == segment, "{name}");
    }
    assert!(fs::read(log.join(no_text)).unwrap() == segment);
}

#[test]
fn a_store_without_its_control_log_or_with_a_damaged_lock_is_corrupt() {
    let make = || {
        let (dir, store) = fresh("store");
        let args = ["broadcast", &store, "--type", "Noop", "--vchannels", "a"];
        assert_eq!(run(&args, b"").code, 0);
        (dir, store)
    };
    let (_dir, store) = make();
    fs::remove_dir_all(Path::new(&store).join("control")).unwrap();
    let verify = run(&["verify", &store, "--json"], b"");
    assert_eq!(
        (verify.code, &verify.objects().last().unwrap()["summary"]["status"]),
        (4, &"corrupt".into())
    );
    let (_dir, store) = make();
    flip(&Path::new(&store).join("LOCK"), 12);
    let verify = run(&["verify", &store, "--json"], b"");
    assert_eq!(verify.code, 4);
    assert_eq!(verify.objects()[0]["kind"], "lock_damaged");
}
