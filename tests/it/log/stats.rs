//! What a log says of itself: exact numbers after scripted runs.

use oncelog::testing::{EIO, Fault, Which};
use oncelog::{Durability, ErrorKind, Fill, Histogram, Log, Lsn};

use super::{batch, lsn, memory};

/// What a histogram has seen, each value as the greatest of its bucket.
fn seen(histogram: &Histogram) -> Vec<(u64, u64)> {
    histogram.buckets().map(|bucket| (bucket.to, bucket.count)).collect()
}

#[test]
fn groups_are_counted_by_records_bytes_and_the_time_of_their_syncs() {
    let (_io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    // Frames of 40 bytes; three records that are buffered go with the fourth.
    for _ in 0..3 {
        log.append_batch(batch(&[b"buffered"]), Durability::Buffered).unwrap();
    }
    assert_eq!(log.stats().buffered_bytes, 120);
    log.append(b"synced").unwrap();
    log.append_batch(batch(&[b"1", b"2"]), Durability::Synced).unwrap();
    log.append_batch(batch(&[b"written"]), Durability::Buffered).unwrap();
    log.flush().unwrap();
    log.sync().unwrap();
    let stats = log.stats();
    assert_eq!((stats.record_count, stats.batch_count, stats.bytes), (7, 6, 280));
    assert_eq!((stats.group_count, stats.syncs), (3, 3));
    assert_eq!(seen(&stats.group_records), [(1, 1), (2, 1), (4, 1)]);
    assert_eq!(stats.group_bytes.sum(), 280);
    assert_eq!((stats.group_bytes.count(), stats.group_bytes.max()), (3, 160));
    // The last sync had no record to wait for it.
    assert_eq!((stats.sync_latency.count(), stats.append_latency.count()), (3, 2));
    assert!(stats.append_latency.max() >= stats.append_latency.percentile(50).unwrap() / 2);
    assert_eq!((stats.segment_count, stats.buffered_bytes, stats.poisoned), (1, 0, false));
    assert_eq!(stats.segment_bytes, 12_288 + 280, "behind header and slots");
}

#[test]
fn rolls_and_trims_move_what_a_log_has() {
    let (_io, options) = memory();
    let options = options.segment_bytes_max(65_536).fill(Fill::None);
    let (log, _) = Log::open("/log", &options).unwrap();
    while log.stats().rolls < 3 {
        log.append(&[b'.'; 20_000]).unwrap();
    }
    let stats = log.stats();
    assert_eq!((stats.segment_count, stats.rolls, stats.trims), (4, 3, 0));
    assert_eq!(stats.sync_latency.count(), stats.syncs);
    assert_eq!(stats.spares_used + stats.spares_missed, 3);
    let before = stats.segment_bytes;
    log.trim(log.next_lsn()).unwrap();
    let stats = log.stats();
    assert_eq!(
        (stats.segment_count, stats.trims, stats.trimmed_segment_count, stats.leftover_count),
        (1, 1, 3, 3)
    );
    assert!(stats.segment_bytes < before);
    while log.remove_step().unwrap() {}
    assert_eq!(log.stats().leftover_count, 0);
    log.close().unwrap();
}

#[test]
fn a_failed_sync_is_counted_once_and_a_close_counts_its_group() {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append_batch(batch(&[b"buffered"]), Durability::Buffered).unwrap();
    let again = log.clone();
    log.close().unwrap();
    let stats = again.stats();
    assert_eq!((stats.group_count, stats.syncs, stats.append_latency.count()), (1, 1, 1));
    let (log, report) = Log::open("/log", &options).unwrap();
    assert_eq!(report.last_lsn, Some(Lsn::FIRST));
    assert_eq!((log.stats().record_count, log.stats().group_count), (0, 0), "counters begin anew");
    io.arm(Which::Kind(oncelog::testing::CallKind::Sync), 1, 1, Fault::Error(EIO));
    assert_eq!(log.append(b"lost").unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(log.append(b"refused").unwrap_err().kind(), ErrorKind::Poisoned);
    let stats = log.stats();
    assert_eq!((stats.poisonings, stats.poisoned), (1, true));
    assert_eq!((stats.syncs, stats.sync_latency.count()), (1, 0), "it did not return well");
    assert_eq!(log.next_lsn(), lsn(3));
}
