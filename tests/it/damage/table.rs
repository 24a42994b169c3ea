//! The decision table of SPEC 12, walked: every combination of its predicates, in the functions
//! that recovery asks, and on logs that are forged to have them.
//!
//! The functions are total by their types. What each row takes precedence over is stated here as
//! the document has it, row by row. Each combination of the last segment that can exist is then
//! made as files: the function, the library and the reference must name the same rows.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use oncelog::testing::rows::{
    End, FooterFound, FooterTaken, Head, HeaderFound, Identity, Row, of_begin, of_directory,
    of_end, of_head, of_leftover, of_order, of_sealed,
};

use super::images;
use crate::differential;
use crate::figures::figure;
use crate::image::Directory;
use crate::reference::forge::{Forge, UUID, lock_with};
use crate::reference::judge;

const BOTH: [bool; 2] = [false, true];
const ORDERS: [Ordering; 3] = [Ordering::Less, Ordering::Equal, Ordering::Greater];

/// The first row of a list whose condition holds, and how many of the rows behind it hold as well.
#[track_caller]
fn first(rows: &[(Row, bool)]) -> Row {
    rows.iter().find(|(_, holds)| *holds).expect("the last row always holds").0
}

/// Walks the stages before the last segment; how many combinations there are.
fn walk_stages(reached: &mut BTreeSet<Row>) -> u64 {
    let mut count = 0;
    for segments in BOTH {
        for identity in [Identity::Absent, Identity::Stated, Identity::Damaged] {
            let found = of_directory(segments, identity);
            let expected = match (segments, identity) {
                (false, Identity::Absent) => Some(Row::A),
                (false, Identity::Stated) => Some(Row::B),
                (_, Identity::Damaged) => Some(Row::C),
                (true, Identity::Absent | Identity::Stated) => None,
            };
            assert_eq!(found, expected);
            reached.extend(found);
            count += 1;
        }
    }
    for header in [HeaderFound::Valid, HeaderFound::Unsupported, HeaderFound::Invalid] {
        for bits in 0..16 {
            let [slot, trimmed, named, ours] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 == 1);
            let head = Head { header, slot, trimmed, named, ours };
            let gone = header == HeaderFound::Invalid && !slot;
            let placed = !gone && named && ours;
            let found = of_head(head);
            match found {
                Err(Row::D) => assert_eq!(header, HeaderFound::Unsupported),
                Err(Row::I) => assert!(!placed && trimmed),
                Err(Row::E) => assert!(gone && !trimmed),
                Err(Row::G) => assert!(!gone && !placed && !trimmed),
                Ok(from_copy) => {
                    assert!(placed && header != HeaderFound::Unsupported);
                    assert_eq!(from_copy, header == HeaderFound::Invalid);
                }
                Err(other) => panic!("{head:?}: {other:?}"),
            }
            reached.extend(found.err());
            reached.extend(matches!(found, Ok(true)).then_some(Row::F));
            count += 1;
        }
    }
    for number in ORDERS {
        for lsn in ORDERS {
            let in_order = number == Ordering::Greater && lsn != Ordering::Less;
            assert_eq!(of_order(number, lsn), (!in_order).then_some(Row::H));
            reached.extend(of_order(number, lsn));
            count += 1;
        }
    }
    for order in ORDERS {
        let leftover = of_leftover(Some(order));
        assert_eq!(leftover.is_some(), order != Ordering::Greater);
        assert_eq!(of_begin(order).is_some(), order == Ordering::Greater);
        reached.extend([leftover, of_begin(order)].into_iter().flatten());
        count += 2;
    }
    assert_eq!(of_leftover(None), None);
    use FooterFound::{Absent, Agrees, Contradicts, Damaged};
    for footer in [Agrees, Contradicts, Damaged, Absent] {
        for reaches in BOTH {
            let (row, taken) = of_sealed(footer, reaches);
            assert_eq!(row, if reaches { Row::L } else { Row::M });
            assert_eq!(taken == FooterTaken::Held, footer == Agrees);
            assert_eq!(taken == FooterTaken::Refused, footer == Absent);
            reached.insert(row);
            reached.extend((taken != FooterTaken::Held).then_some(Row::K));
            count += 1;
        }
    }
    count + 1
}

/// Every combination of the last segment.
fn ends() -> impl Iterator<Item = End> {
    (0..512).map(|bits: u32| {
        let bit = |at: u32| bits >> at & 1 == 1;
        End {
            missing: bit(0),
            record: bit(1),
            slot: bit(2),
            turned: bit(3),
            open_batch: bit(4),
            footer: bit(5),
            used: bit(6),
            identified: bit(7),
            unproven: bit(8),
        }
    })
}

/// The rows that a combination of the last segment comes to, as one letter each.
fn labels(end: End) -> String {
    let ending = of_end(end);
    let adds = [
        (ending.cut, Row::O),
        (ending.unfinished, Row::S),
        (ending.bare, Row::T),
        (ending.unproven, Row::U),
    ];
    let mut rows: Vec<Row> = adds.iter().filter(|(holds, _)| *holds).map(|(_, row)| *row).collect();
    rows.push(ending.row);
    rows.sort();
    rows.iter().map(|row| format!("{row:?}")).collect()
}

#[test]
fn every_combination_of_the_table_is_decided_by_one_row() {
    let mut reached = BTreeSet::new();
    let mut count = walk_stages(&mut reached);
    for end in ends() {
        let ending = of_end(end);
        let row = first(&[
            (Row::N, end.missing || !end.record && !end.slot),
            (Row::Q, end.open_batch),
            (Row::P, end.footer),
            (Row::Q, end.used),
            (Row::R, true),
        ]);
        assert_eq!(ending.row, row, "{end:?}");
        let is_open = row == Row::Q || row == Row::R;
        assert_eq!(ending.cut, row != Row::N && end.open_batch, "{end:?}");
        assert_eq!(ending.unfinished, is_open && !end.record && !end.identified, "{end:?}");
        assert_eq!(ending.bare, row == Row::R && !end.record && !end.turned, "{end:?}");
        assert_eq!(ending.unproven, row != Row::N && end.unproven, "{end:?}");
        reached.extend(labels(end).chars().map(|label| format!("{label}")).map(|label| {
            let rows = [Row::N, Row::O, Row::P, Row::Q, Row::R, Row::S, Row::T, Row::U];
            rows.into_iter().find(|row| format!("{row:?}") == label).expect("a row of the end")
        }));
        count += 1;
    }
    assert_eq!(reached.len(), 21, "{reached:?}");
    figure(7, "combinations", count);
}

/// Why no file can have a combination; `None` when one can.
fn impossible(end: End) -> Option<&'static str> {
    if end.turned && !end.slot {
        return Some("a slot with a counter is a slot");
    }
    if (end.open_batch || end.footer) && !end.used {
        return Some("a frame, and a footer, are bytes that are not zero");
    }
    if end.unproven && !end.record {
        return Some("without a record the last LSN is the one before the first, which is proven");
    }
    None
}

/// A log whose last segment has this combination.
fn forged(end: End) -> Directory {
    // Records 1 to 4 stand in a sealed segment before it.
    let mut sealed = Forge::new(1, 1, 1_000, 1);
    sealed.batch(1, &[b"one", b"two"]);
    sealed.batch(3, &[b"three", b"four"]);
    let time = sealed.next().1;
    sealed.footer(0);
    let mut tail = Forge::new(2, 5, time, 1);
    if end.record {
        // Without another frame behind it, lag 0 alone proves it.
        tail.batch(u32::from(end.unproven), &[b"five"]);
    }
    let last = tail.next().0 - 1;
    let durable = if end.unproven { 4 } else { last };
    if end.footer {
        // It states the kept frames, whatever stands between.
        let before = tail.clone();
        if end.open_batch {
            tail.frame(u32::MAX, b"open", false);
        }
        if end.missing {
            hidden(&mut tail, last);
        }
        let dead = tail.file.len() - before.file.len();
        let mut stating = before;
        stating.file.resize(tail.file.len(), 0);
        let at = tail.file.len();
        stating.footer(dead);
        tail.file.extend(stating.file.split_off(at));
    } else {
        if end.open_batch {
            tail.frame(u32::MAX, b"open", false);
        }
        if end.missing && end.used {
            hidden(&mut tail, last);
        } else if end.used && !end.open_batch {
            tail.file.extend([0, 0, 0, 0, 0, 0, 0, 0, 7]);
        }
        tail.file.extend([0; 64]);
    }
    match (end.slot, end.turned) {
        (false, _) => tail.put(8192, &[0; 128]),
        (true, false) => {}
        (true, true) => tail.slot(2, durable, 12_288, 1),
    }
    let mut files = vec![sealed.done(), tail.done()];
    if end.missing && !end.used {
        // Nothing in the segment says so: a trim does, recorded in the one before.
        let mut sealed = Forge::new(1, 1, 1_000, last + 2);
        sealed.batch(1, &[b"one", b"two"]);
        sealed.batch(3, &[b"three", b"four"]);
        sealed.footer(0);
        files[0] = sealed.done();
    }
    let lock = if end.identified { lock_with(UUID) } else { vec![0; 512] };
    Directory { files, lock: Some(lock), story: format!("{end:?}") }
}

/// A valid header behind a hole, whose record is not kept and which proves one that is not.
fn hidden(tail: &mut Forge, last: u64) {
    tail.file.extend([0; 64]);
    let at = tail.file.len();
    let mut frame = tail.encode(at, last + 2, 1, b"proof", true);
    frame[33] ^= 1; // of the payload
    tail.file.extend(frame);
}

#[test]
fn every_combination_of_the_last_segment_that_can_exist_is_judged_by_its_row() {
    let (mut made, mut reasons) = (0, BTreeSet::new());
    for end in ends() {
        if let Some(reason) = impossible(end) {
            reasons.insert(reason);
            continue;
        }
        let directory = forged(end);
        let found = judge(&directory.files, directory.lock.as_deref());
        let expected = labels(end);
        let told: String = found.rows.iter().filter(|row| "NOPQRSTU".contains(**row)).collect();
        assert_eq!(told, expected, "{end:?}: {found:#?}");
        differential::check(&directory, &directory.story);
        made += 1;
    }
    figure(7, "combinations of the last segment made as files", made);
    assert_eq!(reasons.len(), 3);
}

#[test]
fn every_row_is_reached_by_a_log_that_is_kept() {
    let mut reached = BTreeSet::new();
    for kind in ["golden", "corpus"] {
        for (_, image) in images(kind) {
            let finding = judge(&image.directory.files, image.directory.lock.as_deref());
            reached.extend(finding.rows);
        }
    }
    let all: BTreeSet<char> = ('A'..='Y').collect();
    assert_eq!(reached, all, "rows without a log");
    figure(7, "rows reached", reached.len());
}
