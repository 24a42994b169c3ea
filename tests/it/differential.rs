//! The library and the reference reader, on the same damaged directories.
//!
//! Logs are forged, or written by the library, then damaged by seeds. Whatever the bytes are, the
//! two must agree on the verdict, on the ends, on where the damage is, and on every record. A
//! failure prints the shape, the damage and the seed; the seed alone makes it again.
//! `ONCELOG_SEEDS` in the environment is the count of seeds of the random ones.

mod damage;
pub(crate) mod library;
pub(crate) mod shape;
pub(crate) mod written;

use std::fmt::Write as _;
use std::path::Path;

use oncelog::testing::Machine;
use oncelog::{Check, ErrorKind};

use crate::image::Directory;
use crate::reference::{Finding, Kept, Verdict, judge, judge_alone};
use damage::damage;
use library::{DIR, Seen, directory_of, look, look_at, machine_of, write};
use shape::Dice;

/// The places where the library and the reference differ; empty when they agree.
pub(crate) fn differences(expected: &Finding, seen: &Seen) -> String {
    let mut told = String::new();
    let mut tell = |what: &str, expected: String, found: String| {
        if expected != found {
            writeln!(told, "{what}: the reference has {expected}, the library {found}").unwrap();
        }
    };
    let verdict = expected.verdict;
    tell("verdict", format!("{verdict:?}"), format!("{:?}", seen.verdict_beside(verdict)));
    if matches!(verdict, Verdict::Clean | Verdict::Torn) {
        tell("degraded", expected.degraded.to_string(), seen.degraded.to_string());
        let ends = |oldest, proven, last| format!("{oldest} {proven} {last}");
        tell(
            "oldest, proven, last",
            ends(expected.oldest, expected.proven, expected.last.max(expected.oldest - 1)),
            ends(seen.oldest, seen.proven, seen.last.unwrap_or(seen.oldest - 1)),
        );
        for (row, name) in [('S', "creation_unfinished"), ('T', "tail_bare"), ('U', "unproven")] {
            let found = seen.findings.iter().any(|finding| finding.kind == name);
            tell(name, expected.rows.contains(&row).to_string(), found.to_string());
        }
    }
    let is_told_where = expected.rows.iter().any(|row| "MN".contains(*row));
    if is_told_where {
        tell("place", format!("{:?}", expected.corrupt), format!("{:?}", seen.place()));
        let offset = seen.error.and_then(|(_, offset)| offset);
        tell("offset", format!("{:?}", expected.corrupt_at), format!("{offset:?}"));
    }
    if is_told_where || verdict != Verdict::Corrupt && verdict != Verdict::Unsupported {
        tell("records", records(&expected.records), records(&seen.records));
    }
    told
}

/// A line a record, with a digest of its payload.
fn records(records: &[Kept]) -> String {
    let mut lines = String::new();
    for Kept { lsn, time, kind, payload, segment, offset } in records {
        let digest = crate::reference::bytes::crc(0, payload);
        write!(lines, "\n  {lsn} {time} {kind} {segment}:{offset} {digest:08x}").unwrap();
    }
    lines
}

/// The places where a writer that opens the log, and what it leaves, differ from the reference.
pub(crate) fn differences_of_writer(expected: &Finding, machine: &Machine) -> String {
    // Damage within a sealed segment shows when its frames are read; all else, without that.
    let check = if expected.rows.contains(&'M') { Check::Full } else { Check::Tail };
    let written = match (write(machine, check, b"one more"), expected.verdict) {
        (Ok(written), Verdict::Clean | Verdict::Torn) => written,
        (Err(ErrorKind::InvalidInput), Verdict::Absent)
        | (Err(ErrorKind::Corrupt | ErrorKind::Unsupported), Verdict::Corrupt)
        | (Err(ErrorKind::Corrupt | ErrorKind::Unsupported), Verdict::Unsupported) => {
            return String::new();
        }
        // Somebody set a counter to its end: nothing can follow it.
        (Err(ErrorKind::Limit), Verdict::Clean | Verdict::Torn) => return String::new(),
        (answer, verdict) => {
            let answer = answer.map(|_| "a log");
            return format!("the reference says {verdict:?}, a writer gets {answer:?}\n");
        }
    };
    let directory = directory_of(&written.after, String::new());
    let after = judge(&directory.files, directory.lock.as_deref());
    let last = expected.last + 1;
    let found = [
        ("ends", format!("{} {} {}", expected.oldest, expected.proven, expected.last)),
        ("torn", format!("{:?}", expected.torn)),
        ("records", records(&expected.records)),
        ("afterwards", format!("{:?} {} {last} {last}", Verdict::Clean, expected.oldest)),
        ("records afterwards", format!("{} and {last}", records(&expected.records))),
    ];
    let (records_before, added) = after.records.split_at(after.records.len().saturating_sub(1));
    let added = added.first().filter(|record| record.payload == b"one more");
    let ends = format!("{} {} {}", after.oldest, after.proven, after.last);
    let theirs = [
        format!("{} {} {}", written.oldest, written.proven, written.last),
        format!("{:?}", written.torn),
        records(&written.records),
        format!("{:?} {ends}", after.verdict),
        format!("{} and {}", records(records_before), added.map_or(0, |record| record.lsn)),
    ];
    let mut told = String::new();
    for ((what, expected), found) in found.iter().zip(theirs).filter(|((_, a), b)| a != b) {
        writeln!(told, "writer, {what}: the reference has {expected}, the library {found}")
            .unwrap();
    }
    told
}

#[track_caller]
pub(crate) fn check(directory: &Directory, story: &str) {
    let expected = judge(&directory.files, directory.lock.as_deref());
    let machine = machine_of(directory);
    check_seen(&expected, &look(&machine), story);
    let differences = differences_of_writer(&expected, &machine);
    assert!(differences.is_empty(), "{story}\n{differences}rows {:?}", expected.rows);
}

#[track_caller]
pub(crate) fn check_seen(expected: &Finding, seen: &Seen, story: &str) {
    let differences = differences(expected, seen);
    let findings: Vec<_> = seen.findings.iter().map(|told| format!("\n  {told:?}")).collect();
    let findings = findings.concat();
    assert!(differences.is_empty(), "{story}\n{differences}rows {:?}{findings}", expected.rows);
}

/// Checks `count` damaged variants of the directories that `make` answers.
#[track_caller]
fn check_damaged(first_seed: u64, count: u64, make: impl Fn(&mut Dice) -> Directory) {
    let count = std::env::var("ONCELOG_SEEDS").map_or(count, |n| n.parse().unwrap());
    for seed in first_seed..first_seed + count {
        let mut dice = Dice::new(seed);
        let mut directory = make(&mut dice);
        let mut story = format!("seed {seed}: {}", directory.story);
        for _ in 0..=dice.below(2) {
            write!(story, "; {}", damage(&mut directory, &mut dice)).unwrap();
        }
        check(&directory, &story);
    }
}

#[test]
fn forged_logs_are_judged_alike() {
    for seed in 0..150 {
        let directory = shape::forged(&mut Dice::new(seed), 0);
        check(&directory, &format!("seed {seed}: {}", directory.story));
    }
}

#[test]
fn forged_logs_with_damage_are_judged_alike() {
    check_damaged(10_000, 300, |dice| shape::forged(dice, 1));
}

/// Checks a directory with one file changed.
#[track_caller]
fn check_changed(whole: &Directory, index: usize, how: &str, change: impl Fn(&mut Vec<u8>)) {
    let mut directory = whole.clone();
    let Some((name, file)) = directory.files.get_mut(index) else { return };
    change(file);
    let story = format!("{}; {name} {how}", whole.story);
    check(&directory, &story);
}

#[test]
fn every_length_of_the_last_records_is_judged_alike() {
    for seed in 20_000..20_004 {
        let mut dice = Dice::new(seed);
        let whole =
            if seed % 2 == 0 { shape::forged(&mut dice, 0) } else { written::written(&mut dice) };
        let last = whole.files.iter().rposition(|(name, _)| name.ends_with(".seg")).unwrap();
        let file = &whole.files[last].1;
        let used = file.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        for len in used.saturating_sub(60)..=used {
            check_changed(&whole, last, &format!("cut to {len}"), |file| file.truncate(len));
        }
    }
}

#[test]
fn every_zeroed_block_is_judged_alike() {
    for (seed, len) in [(21_000, 512), (21_001, 512), (21_002, 4096), (21_003, 4096)] {
        let whole = shape::forged(&mut Dice::new(seed), 0);
        for (index, (_, file)) in whole.files.iter().enumerate() {
            for at in (0..file.len()).step_by(len) {
                check_changed(&whole, index, &format!("{len} zeros at {at}"), |file| {
                    file.iter_mut().skip(at).take(len).for_each(|byte| *byte = 0);
                });
            }
        }
    }
}

#[test]
fn every_flipped_byte_is_judged_alike() {
    let whole = shape::forged(&mut Dice::new(23_002), 0);
    for (index, (_, file)) in whole.files.iter().enumerate() {
        let blocks = [0..80, 4096..4224, 8192..8320];
        let frames = 12_288..file.len().min(12_288 + 130);
        for at in blocks.into_iter().flatten().step_by(5).chain(frames) {
            check_changed(&whole, index, &format!("flipped at {at}"), |file| {
                file[at] ^= 1 << (at % 8);
            });
        }
    }
}

#[test]
fn every_segment_alone_is_judged_alike() {
    // Once, one under the name of another segment was called foreign.
    let mut moved = shape::forged(&mut Dice::new(24_000), 0);
    let other = format!("{:010}-{:020}.seg", 77, 88);
    moved.files.iter_mut().take(1).for_each(|(name, _)| name.clone_from(&other));
    let file = &moved.files[0].1;
    let seen = look_at(&machine_of(&moved), &Path::new(DIR).join(&other));
    check_seen(&judge_alone(file), &seen, &format!("{}; as {other}", moved.story));
    for seed in 24_000..24_060 {
        let mut dice = Dice::new(seed);
        let mut directory = shape::forged(&mut dice, 0);
        let mut story = format!("seed {seed}: {}", directory.story);
        if dice.once_in(2) {
            write!(story, "; {}", damage(&mut directory, &mut dice)).unwrap();
        }
        let machine = machine_of(&directory);
        for (name, file) in directory.files.iter().filter(|(name, _)| name.ends_with(".seg")) {
            let path = Path::new(DIR).join(name);
            check_seen(&judge_alone(file), &look_at(&machine, &path), &format!("{story}; {name}"));
        }
    }
}

#[test]
fn every_pair_of_segments_swapped_and_every_one_missing_is_judged_alike() {
    for seed in 22_000..22_006 {
        let whole = shape::forged(&mut Dice::new(seed), 0);
        for a in 0..whole.files.len() {
            let mut directory = whole.clone();
            let (name, file) = directory.files.remove(a);
            check(&directory, &format!("seed {seed}: {} without {name}", whole.story));
            for (b, (other, _)) in whole.files.iter().enumerate() {
                let mut swapped = whole.clone();
                let theirs = std::mem::replace(&mut swapped.files[b].1, file.clone());
                check(&swapped, &format!("seed {seed}: {} {name} for {other}", whole.story));
                swapped.files[a].1 = theirs;
                check(&swapped, &format!("seed {seed}: {} {name} and {other}", whole.story));
            }
        }
    }
}

#[test]
fn logs_of_the_writer_are_judged_alike() {
    for seed in 30_000..30_040 {
        let directory = written::written(&mut Dice::new(seed));
        check(&directory, &format!("seed {seed}: {}", directory.story));
    }
}

#[test]
fn logs_of_the_writer_with_damage_are_judged_alike() {
    check_damaged(40_000, 100, written::written);
}
