//! Each row of SPEC 12, on forged logs.

use super::forge::{Forge, UUID, lock_with};
use super::{Finding, Place, Verdict, judge};

type Files = Vec<(String, Vec<u8>)>;

#[track_caller]
fn check(
    files: &[(String, Vec<u8>)],
    lock: Option<&[u8]>,
    verdict: Verdict,
    rows: &str,
) -> Finding {
    let finding = judge(files, lock);
    let found: String = finding.rows.iter().collect();
    assert_eq!((finding.verdict, found.as_str()), (verdict, rows), "{finding:#?}");
    finding
}

#[track_caller]
fn check_log(segments: Vec<Forge>, verdict: Verdict, rows: &str) -> Finding {
    let files: Files = segments.into_iter().map(Forge::done).collect();
    check(&files, Some(&lock_with(UUID)), verdict, rows)
}

/// Records 1 to 4; a slot proves all of them.
fn first() -> Forge {
    let mut forge = Forge::new(1, 1, 0, 1);
    forge.batch(1, &[b"one"]);
    forge.batch(1, &[b"two", b"three"]);
    forge.batch(3, &[&[4; 100]]);
    let end = forge.file.len() as u64;
    forge.slot(2, 4, end, 1);
    forge
}

fn sealed() -> Forge {
    let mut forge = first();
    forge.footer(0);
    forge
}

/// Records 5 and 6; the lag of 6 proves 5.
fn second() -> Forge {
    let mut forge = Forge::new(2, 5, 4, 1);
    forge.batch(1, &[b"five"]);
    forge.batch(1, &[b"six"]);
    forge.fill();
    forge
}

fn lsns(finding: &Finding) -> Vec<u64> {
    finding.records.iter().map(|record| record.lsn).collect()
}

#[test]
fn checksums_match_the_check_values_of_the_document() {
    assert_eq!(super::bytes::crc(0, b"123456789"), 0xCBF4_3926);
    assert_eq!(super::bytes::crc(0, &[0; 32]), 0x190A_55AD);
    let (left, right) = b"123456789".split_at(4);
    assert_eq!(super::bytes::crc(super::bytes::crc(0, left), right), 0xCBF4_3926);
}

#[test]
fn a_directory_without_segments_is_absent_unless_lock_names_a_log() {
    check(&[], None, Verdict::Absent, "A");
    check(&[], Some(&[0; 512]), Verdict::Absent, "A");
    check(&[], Some(&[1; 31]), Verdict::Absent, "A");
    check(&[], Some(&lock_with(UUID)), Verdict::Corrupt, "B");
    check(&[], Some(&[1; 512]), Verdict::Corrupt, "C");
    check(&[], Some(&lock_with([0; 16])), Verdict::Corrupt, "C");
    let spare = [("a.spare".to_owned(), sealed().file), ("b".to_owned(), vec![])];
    check(&spare, None, Verdict::Absent, "AWX");
}

#[test]
fn a_log_of_two_segments_is_clean_and_tells_what_is_proven() {
    let finding = check_log(vec![sealed(), second()], Verdict::Clean, "LRU");
    assert_eq!((finding.oldest, finding.proven, finding.last), (1, 5, 6));
    assert_eq!(lsns(&finding), [1, 2, 3, 4, 5, 6]);
    assert!(!finding.degraded);
}

#[test]
fn headers_are_told_apart() {
    let reseal = |forge: &mut Forge| {
        let crc = super::bytes::crc(0, &forge.file[..76]).to_le_bytes();
        forge.put(76, &crc);
    };
    let mut newer = first();
    newer.put(8, &[2]);
    reseal(&mut newer);
    check_log(vec![newer], Verdict::Unsupported, "D");

    let mut gone = first();
    for at in [0, 4096, 8192] {
        gone.flip(at);
    }
    check_log(vec![gone], Verdict::Corrupt, "E");

    let mut restored = sealed();
    restored.flip(30);
    let finding = check_log(vec![restored, second()], Verdict::Clean, "FLRU");
    assert!(finding.degraded);
    assert_eq!(finding.last, 6);

    let files = vec![("0000000002-00000000000000000001.seg".to_owned(), sealed().file)];
    check(&files, Some(&lock_with(UUID)), Verdict::Corrupt, "G");
    check(&[sealed().done()], Some(&lock_with([7; 16])), Verdict::Corrupt, "G");
    check_log(vec![sealed(), Forge::new(1, 5, 4, 1)], Verdict::Corrupt, "H");
    check_log(vec![Forge::new(1, 9, 4, 1), Forge::new(2, 5, 4, 1)], Verdict::Corrupt, "H");
}

#[test]
fn what_is_unknown_is_called_unsupported_whatever_else_is_damaged() {
    let mut newer = second();
    newer.put(8, &[2]);
    let crc = super::bytes::crc(0, &newer.file[..76]).to_le_bytes();
    newer.put(76, &crc);
    let mut headless = sealed();
    headless.file[..12_288].fill(0);
    let files = vec![headless.done(), newer.clone().done()];
    check(&files, Some(&lock_with(UUID)), Verdict::Unsupported, "D");
    check(&[newer.done()], Some(&[1; 512]), Verdict::Unsupported, "D");
}

#[test]
fn leftovers_are_left_out_and_missing_segments_are_found() {
    let mut tail = second();
    tail.slot(2, 6, 12_288, 5);
    let finding = check_log(vec![sealed(), tail.clone()], Verdict::Clean, "IR");
    assert_eq!((finding.oldest, lsns(&finding)), (5, vec![5, 6]));
    check_log(vec![tail], Verdict::Clean, "R");
    let finding = check_log(vec![second()], Verdict::Corrupt, "J");
    assert_eq!(finding.corrupt, Some(Place { segment: Some(2), lsn: Some(1) }));
    let mut third = Forge::new(3, 7, 9, 1);
    third.fill();
    let finding = check_log(vec![sealed(), third], Verdict::Corrupt, "M");
    assert_eq!(finding.corrupt, Some(Place { segment: Some(1), lsn: Some(5) }));
}

#[test]
fn sealed_segments_are_judged_without_their_footer() {
    let finding = check_log(vec![first(), second()], Verdict::Clean, "KLRU");
    assert!(!finding.degraded);
    let mut damaged = sealed();
    damaged.flip(first().file.len() + 20);
    assert!(check_log(vec![damaged, second()], Verdict::Clean, "KLRU").degraded);
    let mut damaged = sealed();
    damaged.flip(12_288 + 40 + 33);
    let finding = check_log(vec![damaged, second()], Verdict::Corrupt, "M");
    assert_eq!(finding.corrupt, Some(Place { segment: Some(1), lsn: Some(2) }));
    assert_eq!(lsns(&finding), [1]);
}

#[test]
fn a_dead_header_is_a_witness() {
    let mut damaged = second();
    damaged.flip(12_288 + 33);
    let finding = check_log(vec![sealed(), damaged], Verdict::Corrupt, "LN");
    assert_eq!(finding.corrupt, Some(Place { segment: Some(2), lsn: Some(5) }));
    let mut damaged = second();
    damaged.flip(12_288 + 40 + 33);
    let finding = check_log(vec![sealed(), damaged], Verdict::Torn, "LQ");
    assert_eq!((finding.proven, finding.last), (5, 5));
    let torn = finding.torn.unwrap();
    assert_eq!((torn.from, torn.to), (12_288 + 40, 12_288 + 75));
}

#[test]
fn an_open_batch_is_cut_whole() {
    let mut tail = second();
    tail.file.truncate(12_288 + 80);
    tail.frame(1, b"seven", false);
    tail.frame(2, b"eight", false);
    let finding = check_log(vec![sealed(), tail.clone()], Verdict::Torn, "LOQ");
    assert_eq!((finding.proven, finding.last), (6, 6));
    tail.frame(3, b"nine", true);
    let finding = check_log(vec![sealed(), tail], Verdict::Clean, "LRU");
    assert_eq!((finding.proven, finding.last), (6, 9));
}

#[test]
fn a_sealed_tail_is_clean_and_may_hold_dead_bytes() {
    check_log(vec![sealed()], Verdict::Clean, "P");
    let mut dead = first();
    let end = dead.file.len();
    dead.file.extend([0xAB; 24]);
    dead.footer(24);
    let finding = check_log(vec![dead.clone()], Verdict::Clean, "P");
    assert_eq!(finding.last, 4);
    dead.flip(end + 24 + 20);
    check_log(vec![dead], Verdict::Torn, "Q");
}

#[test]
fn an_unfinished_creation_and_a_bare_tail_are_told_apart() {
    let mut fresh = Forge::new(1, 1, 0, 1);
    fresh.fill();
    check(&[fresh.clone().done()], Some(&[0; 512]), Verdict::Clean, "RST");
    check_log(vec![fresh.clone()], Verdict::Clean, "RT");
    fresh.slot(2, 0, 12_288, 1);
    check_log(vec![fresh.clone()], Verdict::Clean, "R");
    fresh.flip(4100);
    let finding = check_log(vec![fresh], Verdict::Clean, "RTV");
    assert!(finding.degraded);
}

#[test]
fn no_cut_and_no_flip_panics_or_invents_a_record() {
    let whole: Files = vec![sealed().done(), second().done()];
    let lock = lock_with(UUID);
    let sound = judge(&whole, Some(&lock)).records;
    for file in 0..2 {
        let len = whole[file].1.len().min(12_288 + 512);
        for at in (0..len).filter(|at| *at < 128 || *at >= 4096 && *at % 5 == 0) {
            let mut flipped = whole.clone();
            flipped[file].1[at] ^= 0x10;
            let mut cut = whole.clone();
            cut[file].1.truncate(at);
            for damaged in [flipped, cut] {
                let finding = judge(&damaged, Some(&lock));
                assert!(sound.starts_with(&finding.records), "file {file} at {at}: {finding:#?}");
            }
        }
    }
}
