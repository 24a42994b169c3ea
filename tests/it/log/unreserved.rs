//! File systems that cannot reserve blocks: no roll writes zeros for want of it, and what the
//! filler has not written by then a full disk refuses under a record.

use oncelog::testing::{CallKind, Fault, MemIo, Which};
use oncelog::{Durability, ErrorKind, Fill, Log, Options};

use super::{batch, lsn, memory, read};

/// `EOPNOTSUPP`: what ext3, and NFS before 4.2, answer to fallocate(2).
const EOPNOTSUPP: i32 = 95;
/// More than half of a segment.
const HALF: usize = 30_000;

fn unreserved(fill: Fill) -> (MemIo, Options) {
    let (io, options) = memory();
    io.arm(Which::Kind(CallKind::Allocate), 1, u64::MAX, Fault::Error(EOPNOTSUPP));
    (io, options.fill(fill))
}

/// Takes every step there is, and says how many.
fn fill(log: &Log) -> usize {
    std::iter::from_fn(|| log.fill_step().unwrap().then_some(())).count()
}

/// Bytes that a call writes.
fn written(io: &MemIo, call: impl FnOnce()) -> usize {
    io.note_calls();
    call();
    let calls = io.noted_calls().into_iter().filter(|(kind, _)| *kind == CallKind::Write);
    calls.map(|(_, len)| len).sum()
}

/// A roll wrote the zeros of a whole segment, up to 1 GiB, while every appender waited.
#[test]
fn a_roll_writes_no_zeros_where_blocks_cannot_be_reserved() {
    /// The filler takes so many steps before each record.
    #[track_caller]
    fn check(option: Fill, steps: usize, lens: &[usize]) {
        let (io, options) = unreserved(option);
        let (log, _) = Log::open("/log", &options).unwrap();
        for len in lens {
            for _ in 0..steps {
                log.fill_step().unwrap();
            }
            let record = vec![1; *len];
            let bytes = written(&io, || assert!(log.append(&record).is_ok()));
            // Its frame, the footer of the segment before, a header and a slot.
            assert!(bytes < len + 1024, "{option:?}, {steps} steps: {bytes} for {len}");
        }
        assert!(log.stats().rolls >= 2);
        log.close().unwrap();
        let (log, report) = Log::open("/log", &options).unwrap();
        assert_eq!((read(&log, 1).len(), report.torn), (lens.len(), None));
    }
    for option in [Fill::Zero, Fill::Allocate, Fill::Auto, Fill::None] {
        for steps in [0, 1, 3] {
            check(option, steps, &[HALF; 9]);
            // No segment that was made ahead holds it.
            check(option, steps, &[HALF, 5, 200_000, HALF, 300_000, HALF, HALF]);
        }
    }
}

#[test]
fn a_spare_that_has_no_blocks_is_filled_so_that_a_full_disk_refuses_appends() {
    for (option, tail) in [(Fill::Zero, 4), (Fill::Allocate, 0), (Fill::Auto, 0)] {
        let (io, options) = unreserved(option);
        let (log, _) = Log::open("/log", &options).unwrap();
        assert_eq!(fill(&log), tail, "{option:?}: windows of the tail");
        log.append(&[1; HALF]).unwrap();
        assert_eq!(fill(&log), 5, "{option:?}: the spare, and its windows");
        io.set_free_blocks(Some(8));
        log.append(&[2; HALF]).unwrap();
        assert_eq!(log.stats().spares_used, 1);
        log.append(&[3; 20_000]).unwrap();
        // Not even a name can be made.
        io.set_free_blocks(Some(0));
        let refused = log.append(&[4; HALF]).map_err(|e| e.kind());
        assert_eq!(refused, Err(ErrorKind::StoreFull), "{option:?}");
        log.check_open().unwrap();
    }
}

#[test]
fn a_disk_that_fills_up_under_a_record_poisons_where_nothing_was_filled() {
    for option in [Fill::Zero, Fill::Allocate, Fill::Auto, Fill::None] {
        let (io, options) = unreserved(option);
        let (log, _) = Log::open("/log", &options).unwrap();
        log.append(b"promised").unwrap();
        io.set_free_blocks(Some(2));
        let failed = log.append(&[1; HALF]).map_err(|e| e.kind());
        assert_eq!(failed, Err(ErrorKind::OutcomeUnknown), "{option:?}");
        assert_eq!(log.check_open().unwrap_err().kind(), ErrorKind::Poisoned);
        drop(log);
        io.set_free_blocks(None);
        let (log, _) = Log::open("/log", &options).unwrap();
        assert_eq!(read(&log, 1)[0].payload, b"promised"[..]);
        log.append_batch(batch(&[&[2; HALF]]), Durability::Synced).unwrap();
    }
}

#[test]
fn cursors_are_made_where_blocks_cannot_be_reserved() {
    let (io, options) = unreserved(Fill::Auto);
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(b"one").unwrap();
    let cursor = log.cursor("consumer").unwrap();
    io.set_free_blocks(Some(0));
    cursor.advance(lsn(2)).unwrap();
    assert!(io.struck() > 0);
}
