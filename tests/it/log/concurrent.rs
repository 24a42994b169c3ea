//! Appends, tasks, closes and failures beside each other.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use oncelog::{Durability, ErrorKind, Log, Lsn, Pending};

use super::watch::{Event, Watch};
use super::{batch, lsn, open, options, place, read};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn watched() -> (tempfile::TempDir, std::path::PathBuf, Watch, Log) {
    let (home, dir) = place();
    let watch = Watch::default();
    let (log, _) = Log::open(&dir, &options().io(Arc::new(watch.clone()))).unwrap();
    (home, dir, watch, log)
}

/// Lets others go on until it is so.
#[track_caller]
fn yield_until(mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < PATIENCE, "nothing happened");
        thread::yield_now();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
    }
}

/// Polls once, with a waker that does nothing.
fn poll_once(pending: &mut Pending) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(pending).poll(&mut context).is_pending());
}

/// Reads from the oldest record on beside writers and a trim, which alone may end it before what was
/// durable as it began.
fn read_beside(log: &Log, seen: &Mutex<BTreeMap<u64, (u8, u8)>>) {
    let durable = log.durable_lsn().map_or(0, Lsn::get);
    let mut reader = match log.reader(log.oldest_lsn()) {
        Ok(reader) => reader,
        Err(e) => return assert_eq!(e.kind(), ErrorKind::Trimmed, "{e}"),
    };
    let mut next = reader.next_lsn().get();
    loop {
        let record = match reader.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(e) => return assert_eq!(e.kind(), ErrorKind::Trimmed, "{e}"),
        };
        assert_eq!((record.lsn.get(), record.durable), (next, true));
        // The first of a batch names its writer, the second is made of that name; a writer notes
        // what it appended behind its call.
        let first = if record.batch_end { next - 1 } else { next };
        let known = seen.lock().unwrap().get(&first).copied();
        match known {
            Some((writer, i)) if record.batch_end => {
                assert_eq!(record.payload[..], vec![writer; usize::from(i) * 50]);
            }
            Some((writer, i)) => assert_eq!(record.payload[..], [writer, i]),
            None => assert!(record.batch_end || record.payload.len() == 2),
        }
        next += 1;
    }
    assert!(next > durable, "the end at LSN {next}, {durable} was durable");
}

#[test]
fn appends_of_many_threads_are_dense_and_whole_across_rolls_trims_and_reads() {
    let (_home, dir) = place();
    let log = open(&dir);
    let seen = Mutex::new(BTreeMap::new());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..6_u8)
            .map(|writer| {
                let (log, seen) = (&log, &seen);
                scope.spawn(move || {
                    for i in 0..60_u8 {
                        let long = vec![writer; usize::from(i) * 50];
                        let records: [&[u8]; 2] = [&[writer, i], &long];
                        let durability =
                            if i % 3 == 0 { Durability::Buffered } else { Durability::Synced };
                        let lsns = match i % 5 {
                            0 => log.enqueue(batch(&records)).unwrap().wait().unwrap(),
                            1 => block_on(log.enqueue(batch(&records)).unwrap()).unwrap(),
                            _ => log.append_batch(batch(&records), durability).unwrap(),
                        };
                        assert_eq!(lsns.first.next(), lsns.last);
                        if durability == Durability::Synced {
                            assert!(log.durable_lsn().unwrap() >= lsns.last);
                        }
                        seen.lock().unwrap().insert(lsns.first.get(), (writer, i));
                    }
                })
            })
            .collect();
        let (log, done, seen) = (&log, &done, &seen);
        scope.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                let next = log.next_lsn().get();
                log.trim(lsn((next / 2).max(1))).unwrap();
                log.write_idle_slot().unwrap();
                read_beside(log, seen);
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    let oldest = log.oldest_lsn().get();
    log.close().unwrap();
    let log = open(&dir);
    let records = read(&log, oldest);
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 360);
    assert!(seen.keys().zip(seen.keys().skip(1)).all(|(a, b)| a + 2 == *b));
    assert_eq!(records.last().unwrap().lsn, lsn(720));
    for record in records.iter().filter(|record| !record.batch_end) {
        let (writer, i) = seen[&record.lsn.get()];
        assert_eq!(record.payload[..], [writer, i]);
    }
}

#[test]
fn one_sync_covers_all_that_were_written_before_it_and_none_after() {
    let (_home, _dir, watch, log) = watched();
    log.append(b"first").unwrap();
    watch.hold();
    thread::scope(|scope| {
        let leader = scope.spawn(|| log.append(b"leads"));
        watch.wait_held();
        let followers: Vec<_> = (0..8).map(|_| scope.spawn(|| log.append(b"follows"))).collect();
        yield_until(|| log.next_lsn() >= lsn(11));
        assert_eq!(log.durable_lsn(), Some(lsn(1)), "no sync has returned");
        assert!(!log.wait_durable(lsn(2), Some(Duration::ZERO)).unwrap());
        let before = watch.events().len();
        watch.release();
        leader.join().unwrap().unwrap();
        for follower in followers {
            follower.join().unwrap().unwrap();
        }
        let events = &watch.events()[before..];
        let writes = events
            .iter()
            .filter(|event| matches!(event, Event::Write { offset, .. } if *offset >= 12_288));
        assert_eq!(writes.count(), 1, "one write for all that followed: {events:?}");
    });
}

#[test]
fn while_the_disk_is_at_a_roll_nobody_waits_but_who_appends() {
    // The old tail's sync, the spare's, and that of the first group behind it.
    for passing in 0..3 {
        let (_home, _dir, watch, log) = watched();
        log.append(&[1; 40_000]).unwrap();
        watch.hold_behind(passing);
        let rolls = thread::spawn({
            let log = log.clone();
            move || log.append(&[2; 40_000])
        });
        watch.wait_held();
        let (over, ended) = mpsc::channel();
        let looks = thread::spawn({
            let log = log.clone();
            move || {
                assert_eq!(log.durable_lsn(), Some(lsn(1)));
                assert!(log.stats().bytes >= 40_000);
                assert!(log.next_lsn() >= lsn(2));
                let mut reader = log.reader(lsn(1)).unwrap();
                assert_eq!(reader.next().unwrap().unwrap().payload.len(), 40_000);
                assert!(reader.next().unwrap().is_none());
                drop(log.pin("beside a roll", lsn(1)).unwrap());
                assert!(!log.wait_durable(lsn(2), Some(Duration::from_millis(1))).unwrap());
                over.send(()).unwrap();
            }
        });
        let looked = ended.recv_timeout(PATIENCE);
        watch.release();
        looks.join().unwrap();
        assert!(looked.is_ok(), "behind {passing} syncs of a roll a look waits for the disk");
        assert_eq!(rolls.join().unwrap().unwrap(), lsn(2));
        log.close().unwrap();
    }
}

#[test]
fn a_dropped_future_changes_nothing() {
    let (_home, dir, _watch, log) = watched();
    drop(log.enqueue(batch(&[b"never polled"])).unwrap());
    let mut polled = log.enqueue(batch(&[b"polled once"])).unwrap();
    let ready = Pin::new(&mut polled).poll(&mut Context::from_waker(Waker::noop()));
    drop(ready);
    drop(polled);
    assert!(log.wait_durable(lsn(2), Some(PATIENCE)).unwrap(), "synced although nobody waits");
    log.close().unwrap();
    assert_eq!(read(&open(&dir), 1).len(), 2);
}

#[test]
fn buffered_records_are_written_without_a_flush() {
    let (_home, _dir, watch, log) = watched();
    let seen = watch.events().len();
    log.append_batch(batch(&[b"buffered"]), Durability::Buffered).unwrap();
    watch.wait_event(seen, |event| matches!(event, Event::Write { offset: 12_288, .. }));
    assert_eq!(log.durable_lsn(), None, "written is not synced");
    assert_eq!(log.sync().unwrap(), Some(lsn(1)));
}

#[test]
fn an_idle_log_writes_its_slot_without_a_sync() {
    let (_home, dir, watch, log) = watched();
    log.append(b"durable").unwrap();
    watch.wait_event(0, |event| matches!(event, Event::Write { offset: 4096, .. }));
    let events = watch.events();
    assert!(matches!(events.last(), Some(Event::Write { .. })), "{events:?}");
    let copy = place();
    std::fs::create_dir(&copy.1).unwrap();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.1.join(entry.file_name())).unwrap();
    }
    let (_log, report) = Log::open(&copy.1, &options()).unwrap();
    assert_eq!(report.proven_lsn, Some(lsn(1)), "the slot vouches for the last group");
}

#[test]
fn appenders_wait_while_the_buffer_is_full() {
    let (_home, dir) = place();
    let watch = Watch::default();
    let options = options().io(Arc::new(watch.clone())).buffer_bytes_max(2000);
    let (log, _) = Log::open(&dir, &options).unwrap();
    watch.hold();
    thread::scope(|scope| {
        let leader = scope.spawn(|| log.append(&[1; 1900]));
        watch.wait_held();
        let waiter = scope.spawn(|| log.append_batch(batch(&[&[2; 1000]]), Durability::Buffered));
        yield_until(|| log.stats().waits > 0);
        assert!(!waiter.is_finished());
        assert_eq!(log.next_lsn(), lsn(2), "2900 bytes would wait");
        watch.release();
        leader.join().unwrap().unwrap();
        assert_eq!(waiter.join().unwrap().unwrap().first, lsn(2));
    });
    assert_eq!(log.append(&[3; 5000]).unwrap(), lsn(3), "one batch alone may be larger");
}

#[test]
fn a_close_makes_everything_durable_and_ends_those_that_wait() {
    let (_home, dir, watch, log) = watched();
    let mut pending = log.enqueue(batch(&[b"pending"])).unwrap();
    watch.hold();
    thread::scope(|scope| {
        let leader = scope.spawn(|| log.append(b"leads"));
        watch.wait_held();
        poll_once(&mut pending);
        log.append_batch(batch(&[b"buffered"]), Durability::Buffered).unwrap();
        let closer = log.clone();
        let closer = scope.spawn(move || closer.close());
        // Not by appending until it is refused: a full segment would wait for the sync held here.
        yield_until(|| log.check_open().is_err());
        let late = log.append_batch(batch(&[b"x"]), Durability::Buffered).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Closed);
        watch.release();
        closer.join().unwrap().unwrap();
        leader.join().unwrap().unwrap();
    });
    let last = log.next_lsn().get() - 1;
    assert_eq!(block_on(pending).unwrap().last, lsn(1));
    assert_eq!(log.durable_lsn(), Some(lsn(last)));
    assert_eq!(read(&open(&dir), 1).len() as u64, last);
}

/// Behind the lock of the directory another writer may be at work (G10).
#[test]
fn a_close_lets_the_directory_go_behind_its_last_io() {
    let (_home, dir) = place();
    let log = open(&dir);
    for _ in 0..30 {
        log.append(&[1; 9000]).unwrap();
    }
    log.close().unwrap();
    let watch = Watch::default();
    let (log, _) = Log::open(&dir, &options().io(Arc::new(watch.clone()))).unwrap();
    watch.keep();
    log.trim(log.next_lsn()).unwrap();
    watch.wait_held();
    thread::scope(|scope| {
        let closer = log.clone();
        let closer = scope.spawn(move || closer.close());
        yield_until(|| log.check_open().is_err());
        assert!(!watch.is_let_go_within(Duration::from_millis(300)), "a file is being removed");
        let busy = Log::open(&dir, &options()).map(drop).map_err(|e| e.kind());
        assert_eq!(busy, Err(ErrorKind::Busy));
        watch.release();
        closer.join().unwrap().unwrap();
    });
    assert!(watch.is_let_go_within(Duration::ZERO));
    drop(open(&dir));
}

#[test]
fn every_waiter_is_told_of_a_failed_sync() {
    let (_home, _dir, watch, log) = watched();
    log.append(b"durable").unwrap();
    watch.hold();
    let failed = AtomicU64::new(0);
    thread::scope(|scope| {
        for i in 0..6 {
            let (log, failed) = (&log, &failed);
            scope.spawn(move || {
                let caught = if i % 2 == 0 {
                    log.append(b"caught").map(drop)
                } else {
                    block_on(log.enqueue(batch(&[b"caught"])).unwrap()).map(drop)
                };
                assert_eq!(caught.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
                failed.fetch_add(1, Ordering::SeqCst);
            });
        }
        yield_until(|| log.next_lsn() >= lsn(8));
        watch.fail();
        watch.release();
    });
    assert_eq!(failed.load(Ordering::SeqCst), 6);
    assert_eq!(log.durable_lsn(), Some(lsn(1)));
    assert_eq!(log.append(b"late").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(log.close().unwrap_err().kind(), ErrorKind::Poisoned);
}

#[test]
fn a_wait_has_an_end() {
    let (_home, _dir, watch, log) = watched();
    watch.hold();
    let pending = log.enqueue(batch(&[b"held"])).unwrap();
    assert!(!pending.wait_timeout(Duration::from_millis(1)).unwrap());
    watch.release();
    assert!(pending.wait_timeout(PATIENCE).unwrap());
    assert!(!log.wait_durable(lsn(2), Some(Duration::from_millis(1))).unwrap());
}

/// A waker that owns a log, as a task that is dropped on its wake-up does.
struct Owner(Mutex<Option<Log>>, mpsc::Sender<()>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.send(()).unwrap();
    }
}

#[test]
fn the_last_handle_may_be_dropped_by_a_waker() {
    let (_home, dir, watch, log) = watched();
    watch.hold();
    let mut pending = log.enqueue(batch(&[b"task"])).unwrap();
    let (sender, receiver) = mpsc::channel();
    let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(log)), sender)));
    assert!(Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending());
    watch.release();
    receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(open(&dir).next_lsn(), lsn(2));
}

/// A waker whose task panics.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        std::panic::panic_any("scripted");
    }
}

/// The panic ended the background thread, and whoever relied on it waited for ever.
#[test]
fn a_waker_that_panics_keeps_nobody_else_waiting() {
    let (_home, _dir, watch, log) = watched();
    watch.hold();
    let mut bomb = log.enqueue(batch(&[b"bomb"])).unwrap();
    let waker = Waker::from(Arc::new(Bomb));
    assert!(Pin::new(&mut bomb).poll(&mut Context::from_waker(&waker)).is_pending());
    watch.release();
    assert!(bomb.wait_timeout(PATIENCE).unwrap());
    for _ in 0..3 {
        let next = log.enqueue(batch(&[b"next"])).unwrap();
        assert!(next.wait_timeout(PATIENCE).unwrap());
    }
    log.close().unwrap();
}
