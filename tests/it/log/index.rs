//! The sparse index of a footer: it spares a reader what stands before, and is never believed.

use std::path::{Path, PathBuf};

use oncelog::{Durability, ErrorKind, Log, Lsn};
use oncelog_format::{Footer, FooterEntry, Place, SegmentHeader};
use tempfile::TempDir;

use super::{batch, check_refused, lsn, open, options, place, segments};

/// Bytes of a record, and of its frame.
const RECORD_LEN: usize = 4064;
const FRAME_BYTES: usize = 4096;

/// A log whose first segment, of 1 MiB, is sealed; it holds more than 200 records.
fn sealed() -> (TempDir, PathBuf) {
    let (home, dir) = place();
    let (log, _) = Log::open(&dir, &options().segment_bytes_max(1 << 20)).unwrap();
    for i in 0..300_u64 {
        let mut record = vec![0; RECORD_LEN];
        record[..8].copy_from_slice(&i.to_le_bytes());
        log.append_batch(batch(&[&record]), Durability::Buffered).unwrap();
    }
    log.close().unwrap();
    assert_eq!(segments(&dir).len(), 2);
    (home, dir)
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Changes what the footer says of entries, validly.
fn lie(path: &Path, entries: impl FnOnce(&mut Vec<FooterEntry>)) {
    change(path, |bytes| {
        let header = SegmentHeader::decode(bytes).unwrap();
        let len = Footer::len_from_tail(&bytes[bytes.len() - 16..]).unwrap();
        let offset = bytes.len() - usize::try_from(len).unwrap();
        let place = Place { salt: header.salt, offset: u64::try_from(offset).unwrap() };
        let mut footer = Footer::decode(&bytes[offset..], place).unwrap();
        assert!(footer.entries.len() > 10);
        entries(&mut footer.entries);
        bytes.truncate(offset);
        bytes.extend(footer.encode(header.salt));
    });
}

#[track_caller]
fn check_read(log: &Log, from: u64) {
    let mut reader = log.reader(lsn(from)).unwrap();
    for wanted in from..from + 3 {
        let record = reader.next().unwrap().unwrap();
        assert_eq!(
            (record.lsn, &record.payload[..8]),
            (lsn(wanted), &(wanted - 1).to_le_bytes()[..])
        );
    }
}

/// Flips a bit of a frame, `at` bytes behind its begin.
fn flip(path: &Path, record: usize, at: usize) {
    change(path, |bytes| bytes[12_288 + (record - 1) * FRAME_BYTES + at] ^= 1);
}

/// Within the header, and within the payload.
const HEADER: usize = 10;
const PAYLOAD: usize = 100;

#[test]
fn a_reader_begins_near_what_it_looks_for() {
    let (_home, dir) = sealed();
    flip(&segments(&dir)[0], 1, HEADER);
    let log = open(&dir);
    // Entries are 64 KiB apart: 16 records.
    for from in [17, 18, 100, 200] {
        check_read(&log, from);
    }
    for from in [1, 2, 3] {
        let e = check_refused(log.reader(lsn(from)).unwrap().next(), ErrorKind::Corrupt);
        assert_eq!(e.lsn(), Lsn::new(1));
    }
}

#[test]
fn a_footer_that_is_damaged_or_lies_misleads_no_reader() {
    #[track_caller]
    fn check(spoil: impl FnOnce(&Path)) {
        let (_home, dir) = sealed();
        spoil(&segments(&dir)[0]);
        let log = open(&dir);
        for from in [1, 17, 100, 200] {
            check_read(&log, from);
        }
    }
    check(|path| lie(path, |_| ()));
    check(|path| change(path, |bytes| *bytes.last_mut().unwrap() ^= 1));
    check(|path| {
        change(path, |bytes| {
            let at = bytes.len() - 40;
            bytes[at] ^= 1;
        });
    });
    // Not at a frame, but for the first, which a footer must state as it is.
    check(|path| lie(path, |entries| entries[1..].iter_mut().for_each(|e| e.offset += 8)));
    // At the frame of another record.
    check(|path| lie(path, |entries| entries[1..].iter_mut().for_each(|e| e.lsn -= 1)));
    check(|path| {
        lie(path, |entries| {
            entries[1..].iter_mut().for_each(|e| e.offset += u64::try_from(FRAME_BYTES).unwrap());
        });
    });
}

#[test]
fn damage_to_a_payload_concerns_its_record_alone() {
    let (_home, dir) = sealed();
    flip(&segments(&dir)[0], 17, PAYLOAD);
    let log = open(&dir);
    let e = check_refused(log.reader(lsn(17)).unwrap().next(), ErrorKind::Corrupt);
    assert_eq!(e.lsn(), Lsn::new(17));
    for from in [14, 18, 20, 40] {
        check_read(&log, from);
    }
}

#[test]
fn damage_to_a_frame_that_the_index_names_is_told_to_who_needs_it() {
    let (_home, dir) = sealed();
    flip(&segments(&dir)[0], 17, HEADER);
    let log = open(&dir);
    for from in [17, 18] {
        let e = check_refused(log.reader(lsn(from)).unwrap().next(), ErrorKind::Corrupt);
        assert_eq!(e.lsn(), Lsn::new(17));
    }
    check_read(&log, 40);
    let mut reader = log.reader(lsn(40)).unwrap();
    let e = loop {
        match reader.prev() {
            Ok(record) => assert!(record.unwrap().lsn > lsn(17)),
            Err(e) => break e,
        }
    };
    assert_eq!((e.kind(), e.lsn()), (ErrorKind::Corrupt, Lsn::new(17)));
}
