//! Subscriptions: every LSN once and in order, as its record or within a typed gap, whatever rolls,
//! trims, closes and fails meanwhile, and whenever a future is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use oncelog::testing::{EIO, Fault, Machine, MemIo, Which};
use oncelog::{Delivery, Durability, ErrorKind, HolderKind, Log, Lsn, Subscription};
use tokio::runtime::Builder;

use super::{batch, check_refused, lsn, open, options, place, segments};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The payload of a record, whose length depends on its LSN.
fn payload(lsn: u64) -> Vec<u8> {
    let mut bytes = lsn.to_string().into_bytes();
    bytes.resize(bytes.len() + usize::try_from(lsn * 7919 % 3000).unwrap(), b'.');
    bytes
}

/// What was handed over so far.
#[derive(Debug, Default)]
struct Seen {
    records: u64,
    gaps: u64,
    /// The last LSN.
    last: u64,
}

impl Seen {
    fn from(first: u64) -> Self {
        Self { last: first - 1, ..Self::default() }
    }

    /// Takes what is next: exactly behind what was before.
    #[track_caller]
    fn take(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Record(record) => {
                assert_eq!(record.lsn.get(), self.last + 1);
                assert_eq!(record.payload, payload(record.lsn.get()));
                assert!(record.durable);
                self.records += 1;
                self.last += 1;
            }
            Delivery::Gap { from, to } => {
                assert_eq!(from.get(), self.last + 1);
                assert!(to >= from);
                self.gaps += 1;
                self.last = to.get();
            }
            other => panic!("{other:?}"),
        }
    }

    /// Takes everything up to the end of the log, which must be this one.
    #[track_caller]
    fn take_all(&mut self, subscription: &mut Subscription, end: ErrorKind) {
        loop {
            assert_eq!(subscription.next_lsn().get(), self.last + 1);
            match subscription.next() {
                Ok(delivery) => self.take(delivery),
                Err(e) => {
                    assert_eq!(e.kind(), end, "{e}");
                    return;
                }
            }
        }
    }
}

/// Appends records up to an LSN, synced and buffered, alone and in batches.
fn append_to(log: &Log, last: u64) {
    loop {
        let next = log.next_lsn().get();
        if next > last {
            log.sync().unwrap();
            return;
        }
        let payloads: Vec<Vec<u8>> = (next..=last.min(next + next % 4)).map(payload).collect();
        let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let durability =
            if next.is_multiple_of(3) { Durability::Synced } else { Durability::Buffered };
        log.append_batch(batch(&slices), durability).unwrap();
    }
}

#[test]
fn subscribers_get_every_record_once_across_the_rolls_of_a_writer() {
    const LAST: u64 = 1500;
    let (_home, dir) = place();
    let log = open(&dir);
    append_to(&log, 300);
    thread::scope(|scope| {
        let subscribers: Vec<_> = [1, 2, 150, 300, 301, 700]
            .map(|from| {
                let mut subscription = log.subscribe(lsn(from)).unwrap();
                let check = move || {
                    let mut seen = Seen::from(from);
                    seen.take_all(&mut subscription, ErrorKind::Closed);
                    assert_eq!((seen.last, seen.records, seen.gaps), (LAST, LAST + 1 - from, 0));
                };
                scope.spawn(check)
            })
            .into();
        append_to(&log, LAST);
        assert!(segments(&dir).len() > 10);
        log.clone().close().unwrap();
        for subscriber in subscribers {
            subscriber.join().unwrap();
        }
    });
}

#[test]
fn subscribers_that_retention_overtakes_get_typed_gaps_and_lose_no_lsn() {
    const LAST: u64 = 3000;
    let (_home, dir) = place();
    let log = open(&dir);
    thread::scope(|scope| {
        let log = &log;
        let subscribers: Vec<_> = (0..4_u64)
            .map(|slow| {
                let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
                scope.spawn(move || {
                    let mut seen = Seen::default();
                    while seen.last < LAST {
                        seen.take(subscription.next().unwrap());
                        // Some fall behind: they go on once what they hold is gone.
                        if slow > 0 && seen.gaps == 0 && seen.records == slow * 100 {
                            let begin = Instant::now();
                            while log.oldest_lsn() < lsn(seen.last + 200) {
                                assert!(begin.elapsed() < PATIENCE, "nothing is trimmed");
                                thread::yield_now();
                            }
                        }
                    }
                    assert!(slow == 0 || seen.gaps > 0, "{seen:?}");
                    seen
                })
            })
            .collect();
        let trimmer = scope.spawn(move || {
            for oldest in (100..LAST).step_by(100) {
                assert!(log.wait_durable(lsn(oldest), Some(PATIENCE)).unwrap());
                log.trim(lsn(oldest)).unwrap();
            }
        });
        append_to(log, LAST);
        trimmer.join().unwrap();
        for subscriber in subscribers {
            assert_eq!(subscriber.join().unwrap().last, LAST);
        }
    });
}

#[test]
pub(crate) fn a_subscription_below_the_oldest_record_begins_with_one_gap() {
    let (_home, dir) = place();
    let log = open(&dir);
    append_to(&log, 200);
    log.trim(lsn(120)).unwrap();
    let mut seen = Seen::default();
    let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
    let gap = Delivery::Gap { from: lsn(1), to: lsn(119) };
    assert_eq!(subscription.try_next().unwrap(), Some(gap.clone()));
    seen.take(gap);
    while seen.last < 200 {
        seen.take(subscription.next().unwrap());
    }
    assert_eq!((seen.records, seen.gaps), (81, 1));
    // Everything is gone, and the subscriber waits at the end of a gap.
    let mut behind = log.subscribe(lsn(150)).unwrap();
    log.trim(lsn(201)).unwrap();
    let gap = Delivery::Gap { from: lsn(150), to: lsn(200) };
    assert_eq!(behind.next_timeout(PATIENCE).unwrap(), Some(gap));
    assert_eq!(behind.next_timeout(Duration::ZERO).unwrap(), None);
    append_to(&log, 201);
    for subscription in [&mut subscription, &mut behind] {
        let Delivery::Record(record) = subscription.next().unwrap() else { panic!("a gap") };
        assert_eq!(record.lsn, lsn(201));
    }
}

#[test]
fn a_pinned_subscription_holds_what_it_did_not_hand_over() {
    let (_home, dir) = place();
    let log = open(&dir);
    append_to(&log, 600);
    let mut subscription = log.subscribe_pinned("replica", Lsn::FIRST).unwrap();
    let mut reader = log.reader_pinned("audit", lsn(100)).unwrap();
    let e = check_refused(log.trim(lsn(2)), ErrorKind::Pinned);
    assert!(e.to_string().contains("reader \"replica\""), "{e}");
    let mut seen = Seen::default();
    while seen.last < 600 {
        seen.take(subscription.next().unwrap());
    }
    assert_eq!(subscription.try_next().unwrap(), None);
    let e = check_refused(log.trim(lsn(601)), ErrorKind::Pinned);
    assert!(e.to_string().contains("reader \"audit\""), "{e}");
    log.trim(lsn(100)).unwrap();
    while reader.next().unwrap().is_some() {}
    log.trim(lsn(601)).unwrap();
    assert_eq!((seen.records, seen.gaps), (600, 0));
    check_refused(log.subscribe_pinned("late", lsn(600)), ErrorKind::Trimmed);
    drop((subscription, reader));
    assert!(log.why_not_trimmed().iter().all(|holder| holder.kind != HolderKind::Reader));
}

#[test]
fn a_poisoned_log_hands_over_what_is_durable_and_says_so() {
    let io = MemIo::new(Machine::new());
    let options = options().background(false).io(Arc::new(io.clone()));
    let (log, _) = Log::open("/log", &options).unwrap();
    append_to(&log, 50);
    let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
    io.arm(Which::Any, 2, 1, Fault::Error(EIO));
    check_refused(log.append(&payload(51)), ErrorKind::OutcomeUnknown);
    let mut seen = Seen::default();
    seen.take_all(&mut subscription, ErrorKind::Poisoned);
    assert_eq!(seen.last, 50);
    check_refused(subscription.next(), ErrorKind::Poisoned);
    check_refused(subscription.next_timeout(PATIENCE), ErrorKind::Poisoned);
    assert_eq!(subscription.try_next().unwrap(), None);
}

#[test]
fn who_waits_is_woken_by_a_close_and_by_nothing_else_than_records() {
    let (_home, dir) = place();
    let log = open(&dir);
    thread::scope(|scope| {
        let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
        let waiter = scope.spawn(move || {
            let mut seen = Seen::default();
            seen.take_all(&mut subscription, ErrorKind::Closed);
            check_refused(subscription.next(), ErrorKind::Closed);
            seen.last
        });
        log.append_batch(batch(&[&payload(1), &payload(2)]), Durability::Buffered).unwrap();
        log.clone().close().unwrap();
        assert_eq!(waiter.join().unwrap(), 2, "a close makes durable what it hands over");
    });
    check_refused(log.subscribe(Lsn::FIRST), ErrorKind::Closed);
}

/// A subscriber may come late: what the log had is there until another process takes it.
#[test]
fn a_subscription_goes_on_to_the_end_behind_a_close() {
    let (_home, dir) = place();
    let log = open(&dir);
    append_to(&log, 300);
    let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
    let mut late = log.subscribe(Lsn::FIRST).unwrap();
    log.close().unwrap();
    let mut seen = Seen::default();
    seen.take_all(&mut subscription, ErrorKind::Closed);
    assert_eq!(seen.last, 300);
    let log = open(&dir);
    append_to(&log, 400);
    log.trim(lsn(400)).unwrap();
    log.close().unwrap();
    let mut seen = Seen::default();
    seen.take_all(&mut late, ErrorKind::Closed);
    assert!(seen.last <= 300 && seen.gaps == 0);
}

/// Records of 8 MiB between small ones: a reader once stuck behind such a one.
#[test]
fn a_large_record_between_small_ones_is_handed_over() {
    let (_home, dir) = place();
    let log = open(&dir);
    let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
    let large = vec![7; 8 << 20];
    for record in [&b"small"[..], &large, b"small", &large, b""] {
        log.append(record).unwrap();
        let Delivery::Record(found) = subscription.next().unwrap() else { panic!("a gap") };
        assert_eq!(found.payload, record);
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_task_is_woken_by_the_durable_lsn_and_not_by_a_timer() {
    let io = MemIo::new(Machine::new());
    let options = options().background(false).io(Arc::new(io));
    let (log, _) = Log::open("/log", &options).unwrap();
    let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    assert!(subscription.poll_next(&mut context).is_pending());
    log.append_batch(batch(&[&payload(1)]), Durability::Buffered).unwrap();
    log.flush().unwrap();
    assert!(subscription.poll_next(&mut context).is_pending());
    assert_eq!(count.0.load(Ordering::SeqCst), 0, "written is not durable");
    log.sync().unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    let mut seen = Seen::default();
    let Poll::Ready(delivery) = subscription.poll_next(&mut context) else { panic!("pending") };
    seen.take(delivery.unwrap());
    assert!(subscription.poll_next(&mut context).is_pending());
    log.close().unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 2);
    let Poll::Ready(end) = subscription.poll_next(&mut context) else { panic!("pending") };
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_dropped_future_loses_no_record() {
    const LAST: u64 = 2000;
    let (_home, dir) = place();
    let log = open(&dir);
    append_to(&log, 1000);
    let runtime = Builder::new_current_thread().build().unwrap();
    let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| append_to(&log, LAST));
        let mut seen = Seen::default();
        let mut dropped = 0;
        runtime.block_on(async {
            while seen.last < LAST {
                // One poll each; what the pool for blocking work reads is asked for again.
                for _ in 0..seen.last % 4 {
                    let next = pin!(subscription.next_async());
                    match next.poll(&mut Context::from_waker(Waker::noop())) {
                        Poll::Ready(delivery) => seen.take(delivery.unwrap()),
                        Poll::Pending => dropped += 1,
                    }
                }
                // A call of another kind in between.
                if seen.last.is_multiple_of(97)
                    && let Some(delivery) = subscription.try_next().unwrap()
                {
                    seen.take(delivery);
                }
                if seen.last < LAST {
                    seen.take(subscription.next_async().await.unwrap());
                }
            }
        });
        writer.join().unwrap();
        assert_eq!((seen.last, seen.records, seen.gaps), (LAST, LAST, 0));
        assert!(dropped > 0);
    });
}

#[test]
fn a_task_reads_sealed_segments_on_the_pool_for_blocking_work() {
    let (_home, dir) = place();
    let watch = super::watch::Watch::default();
    let fill = || {
        let (log, _) = Log::open(&dir, &options().io(Arc::new(watch.clone()))).unwrap();
        append_to(&log, 500);
        log.trim(lsn(2)).unwrap();
        log
    };
    let log = thread::scope(|scope| scope.spawn(fill).join().unwrap());
    let runtime = Builder::new_current_thread().build().unwrap();
    let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
    let seen = runtime.block_on(async {
        let mut seen = Seen::default();
        while seen.last < 500 {
            seen.take(subscription.next_async().await.unwrap());
        }
        seen
    });
    assert_eq!((seen.records, seen.gaps), (499, 1));
    assert!(!watch.has_waited(thread::current().id()), "the runtime's thread mapped a segment");
    // Without a runtime the call is refused, and nothing is lost by it.
    let mut outside = log.subscribe(lsn(2)).unwrap();
    let Poll::Ready(refused) = outside.poll_next(&mut Context::from_waker(Waker::noop())) else {
        panic!("pending")
    };
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut seen = Seen::from(2);
    seen.take(outside.next().unwrap());
}

#[test]
fn a_task_reads_sealed_segments_on_the_pool_where_they_are_not_mapped() {
    let (_home, dir) = place();
    let watch = super::watch::Watch::default();
    watch.refuse_dir_locks();
    let options = options().segment_bytes_max(1 << 20).io(Arc::new(watch.clone()));
    let (log, _) = Log::open(&dir, &options).unwrap();
    for _ in 0..1000 {
        log.append_batch(batch(&[&[1; 2000]]), Durability::Buffered).unwrap();
    }
    log.sync().unwrap();
    drop(watch.take_readers());
    let runtime = Builder::new_current_thread().build().unwrap();
    let mut subscription = log.subscribe(Lsn::FIRST).unwrap();
    // Within one segment there is more than is read at once.
    runtime.block_on(async {
        for at in 1..=500 {
            let Delivery::Record(record) = subscription.next_async().await.unwrap() else {
                panic!("a gap")
            };
            assert_eq!(record.lsn, lsn(at));
        }
    });
    let readers = watch.take_readers();
    assert!(readers.len() > 1);
    assert!(!readers.contains(&thread::current().id()), "the runtime's thread read");
}
