//! The library and the reference reader, on the same damaged directories.
//!
//! Logs are forged, or written by the library, then damaged by seeds. Whatever the bytes are, the
//! two must agree on the verdict, on the ends, on where the damage is, and on every record. A
//! failure prints the shape, the damage and the seed; the seed alone makes it again.

mod damage;
mod library;
mod shape;

use std::fmt::Write as _;

use crate::reference::{Finding, Kept, Verdict, judge};
use damage::damage;
use library::{Seen, look};
use shape::{Dice, Directory};

/// The places where the library and the reference differ; empty when they agree.
fn differences(expected: &Finding, seen: &Seen) -> String {
    let mut told = String::new();
    let mut tell = |what: &str, expected: String, found: String| {
        if expected != found {
            let _ = writeln!(told, "{what}: the reference has {expected}, the library {found}");
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
        let _ = write!(lines, "\n  {lsn} {time} {kind} {segment}:{offset} {digest:08x}");
    }
    lines
}

#[track_caller]
fn check(directory: &Directory, story: &str) {
    let expected = judge(&directory.files, directory.lock.as_deref());
    let seen = look(directory);
    let differences = differences(&expected, &seen);
    if !differences.is_empty() {
        let rows: String = expected.rows.iter().collect();
        let mut findings = String::new();
        for finding in &seen.findings {
            let _ = writeln!(findings, "  {finding:?}");
        }
        panic!("{story}\n{differences}rows {rows}; findings of the library:\n{findings}");
    }
}

/// Checks `count` damaged variants of the directories that `make` answers.
#[track_caller]
fn check_damaged(first_seed: u64, count: u64, make: impl Fn(&mut Dice) -> Directory) {
    for seed in first_seed..first_seed + count {
        let mut dice = Dice::new(seed);
        let mut directory = make(&mut dice);
        let mut story = format!("seed {seed}: {}", directory.story);
        for _ in 0..dice.below(3) {
            let _ = write!(story, "; {}", damage(&mut directory, &mut dice));
        }
        check(&directory, &story);
    }
}

#[test]
fn forged_logs_are_judged_alike() {
    check_damaged(0, 300, |dice| shape::forged(dice, 0));
}

#[test]
fn forged_logs_with_damage_are_judged_alike() {
    check_damaged(10_000, 2_000, |dice| shape::forged(dice, 1 + dice.below(2)));
}

#[test]
fn every_length_of_the_last_records_is_judged_alike() {
    for seed in 20_000..20_003 {
        let whole = shape::forged(&mut Dice::new(seed), 0);
        let Some((name, file)) = whole.files.last() else { continue };
        for cut in 0..200.min(file.len()) {
            let mut directory = whole.clone();
            if let Some((_, file)) = directory.files.last_mut() {
                file.truncate(file.len() - cut);
            }
            check(&directory, &format!("seed {seed}: {}; {name} cut by {cut}", whole.story));
        }
    }
}
