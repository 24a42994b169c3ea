//! The async front on a runtime of one thread, which never waits for the disk.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use oncelog::{Durability, ErrorKind, Log, Options};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::watch::Watch;
use super::{batch, lsn, open, options, place, read, segments};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

struct Scene {
    _home: TempDir,
    dir: PathBuf,
    watch: Watch,
    log: Log,
    runtime: Runtime,
}

/// A log that another thread has opened, and a runtime whose tasks run on this one.
fn scene(options: &Options) -> Scene {
    let (home, dir) = place();
    let watch = Watch::default();
    let options = options.clone().io(Arc::new(watch.clone()));
    let log =
        thread::scope(|scope| scope.spawn(|| Log::open(&dir, &options).unwrap().0).join().unwrap());
    let runtime = Builder::new_current_thread().build().unwrap();
    Scene { _home: home, dir, watch, log, runtime }
}

impl Scene {
    /// Closes the log on another thread, and says where it is.
    fn close(self) -> (TempDir, PathBuf) {
        let (log, runtime) = (self.log, &self.runtime);
        runtime.block_on(log.close_async()).unwrap();
        assert!(!self.watch.has_waited(thread::current().id()), "the runtime's thread waited");
        (self._home, self.dir)
    }

    /// As [`Scene::close`], once the pool has done what was handed to it.
    fn close_pool(self) -> (TempDir, PathBuf) {
        drop(self.runtime);
        self.log.close().unwrap();
        (self._home, self.dir)
    }

    /// Polls a future once, and drops it.
    #[track_caller]
    fn begin<T>(&self, future: impl Future<Output = T>) {
        let _inside = self.runtime.enter();
        let future = pin!(future);
        let polled = future.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending));
    }
}

/// The records of a log, opened again.
fn payloads(dir: &Path) -> Vec<Vec<u8>> {
    read(&open(dir), 1).into_iter().map(|record| record.payload.to_vec()).collect()
}

/// Appends `count` records of `len` bytes at once, each from a task of its own.
#[track_caller]
fn check_tasks(count: u8, len: usize) -> (TempDir, PathBuf) {
    let scene = scene(&options());
    let log = &scene.log;
    let lsns = scene.runtime.block_on(async {
        let tasks = (0..count).map(|i| {
            let log = log.clone();
            tokio::spawn(async move {
                let lsn = log.append_async(&vec![i; len]).await.unwrap();
                assert!(log.durable_lsn() >= Some(lsn), "durable once it says so");
                lsn
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut lsns = Vec::new();
        for task in tasks {
            lsns.push(task.await.unwrap());
        }
        lsns
    });
    let (home, dir) = scene.close();
    let found = payloads(&dir);
    assert_eq!(found.len(), usize::from(count), "dense");
    for (i, lsn) in lsns.iter().enumerate() {
        let at = usize::try_from(lsn.get()).unwrap() - 1;
        assert_eq!(found[at], vec![u8::try_from(i).unwrap(); len]);
    }
    (home, dir)
}

#[test]
fn appends_of_many_tasks_are_durable_dense_and_synced_elsewhere() {
    let (_home, dir) = check_tasks(64, 100);
    assert_eq!(segments(&dir).len(), 1);
}

#[test]
fn a_roll_does_not_stop_the_tasks_of_a_runtime() {
    let (_home, dir) = check_tasks(64, 4000);
    assert!(segments(&dir).len() > 3, "rolled in between");
}

#[test]
fn a_task_that_waits_for_the_buffer_lets_others_run() {
    let scene = scene(&options().buffer_bytes_max(2000));
    let (log, watch) = (&scene.log, &scene.watch);
    watch.hold();
    scene.runtime.block_on(async {
        let first = tokio::spawn({
            let log = log.clone();
            async move { log.append_async(&[1; 1900]).await }
        });
        tokio::task::yield_now().await;
        watch.wait_held();
        let second = tokio::spawn({
            let log = log.clone();
            async move { log.append_async(&[2; 1000]).await }
        });
        // Reached while both wait: nobody has taken this thread.
        tokio::spawn(async {}).await.unwrap();
        assert_eq!((log.durable_lsn(), log.next_lsn()), (None, lsn(2)), "2900 bytes would wait");
        watch.release();
        assert_eq!(first.await.unwrap().unwrap(), lsn(1));
        assert_eq!(second.await.unwrap().unwrap(), lsn(2));
    });
    scene.close();
}

#[test]
fn a_future_dropped_at_any_await_leaves_its_record_once_and_harms_no_other() {
    let scene = scene(&options());
    let (log, watch) = (&scene.log, &scene.watch);
    // Not polled: nothing has begun.
    drop(log.append_async(b"never"));
    // Dropped while it waits for its sync.
    scene.begin(log.append_async(&[1; 40_000]));
    let kept = scene.runtime.spawn({
        let log = log.clone();
        async move { log.append_async(b"kept").await }
    });
    assert_eq!(scene.runtime.block_on(kept).unwrap().unwrap(), lsn(2));
    // Dropped while a roll, which the pool is at, waits for the disk; then behind the roll.
    watch.hold();
    scene.begin(log.append_async(&[3; 40_000]));
    watch.wait_held();
    let waiting = scene.runtime.spawn({
        let log = log.clone();
        async move { log.append_async(b"waits behind the roll").await }
    });
    scene.runtime.block_on(tokio::task::yield_now());
    watch.release();
    let last = scene.runtime.block_on(waiting).unwrap().unwrap();
    assert!(log.wait_durable(lsn(4), Some(PATIENCE)).unwrap(), "synced although nobody waits");
    let (_home, dir) = scene.close();
    let found = payloads(&dir);
    let at = usize::try_from(last.get()).unwrap() - 1;
    assert_eq!(found[at], b"waits behind the roll");
    let mut lens: Vec<usize> = found.iter().map(Vec::len).collect();
    lens[2..].sort_unstable();
    assert_eq!(lens, [40_000, 4, 21, 40_000], "each once, and the unpolled one never");
}

/// Polls a future so many times at most, each time it is woken, and drops it then.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = times;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context).map(Some);
        if left == 0 && polled.is_pending() { Poll::Ready(None) } else { polled }
    })
    .await
}

#[test]
fn futures_may_be_dropped_behind_any_of_their_polls() {
    let scene = scene(&options().buffer_bytes_max(50_000));
    let log = &scene.log;
    let mut told = Vec::new();
    // A small record, and one that needs a roll or room in the buffer.
    for (tag, (times, len)) in
        (0_u8..).zip((0..5).flat_map(|times| [10, 40_000, 45_000].map(|len| (times, len))))
    {
        let record = vec![tag; len];
        let append = polled(times, log.append_async(&record));
        let sync = polled(times, log.sync_async());
        let watched = polled(times, log.durable(log.next_lsn()));
        let waited = polled(times, log.wait_durable_async(log.next_lsn()));
        let (append, ..) = scene
            .runtime
            .block_on(async { (append.await, sync.await, watched.await, waited.await) });
        assert!(times > 0 || append.is_none(), "not polled");
        told.push((tag, times, append.map(|appended| appended.unwrap())));
        let next = scene.runtime.block_on(log.append_async(&[255])).unwrap();
        assert_eq!(
            scene.runtime.block_on(log.durable(next)).unwrap().max(next),
            log.durable_lsn().unwrap()
        );
    }
    let (_home, dir) = scene.close();
    let found = payloads(&dir);
    for (tag, times, told) in told {
        let count = found.iter().filter(|payload| payload[0] == tag).count();
        // From its first poll on it no longer depends on who asked.
        assert_eq!(count, usize::from(times > 0), "record {tag}, dropped behind {times} polls");
        if let Some(lsn) = told {
            assert_eq!(found[usize::try_from(lsn.get()).unwrap() - 1][0], tag);
        }
    }
}

#[test]
fn a_batch_may_be_left_to_the_buffer() {
    let scene = scene(&options());
    let log = &scene.log;
    let lsns = scene.runtime.block_on(async {
        let lsns = log.append_batch_async(batch(&[b"a", b"b"]), Durability::Buffered).await;
        assert_eq!(log.durable_lsn(), None, "in the buffer");
        assert_eq!(log.sync_async().await.unwrap(), Some(lsn(2)));
        lsns.unwrap()
    });
    assert_eq!((lsns.first, lsns.last), (lsn(1), lsn(2)));
    let (_home, dir) = scene.close();
    assert_eq!(payloads(&dir), [b"a", b"b"]);
}

#[test]
fn a_task_follows_what_becomes_durable_until_the_log_closes() {
    let scene = scene(&options());
    let log = scene.log.clone();
    let follower = scene.runtime.spawn({
        let log = log.clone();
        async move {
            let mut seen = 0;
            loop {
                match log.wait_durable_async(lsn(seen + 1)).await {
                    Ok(()) => seen += 1,
                    Err(e) => break (seen, e.kind()),
                }
            }
        }
    });
    scene.runtime.block_on(async {
        for _ in 0..10 {
            log.append_async(b"followed").await.unwrap();
            tokio::task::yield_now().await;
        }
        log.close_async().await.unwrap();
    });
    assert_eq!(scene.runtime.block_on(follower).unwrap(), (10, ErrorKind::Closed));
}

#[test]
fn a_refusal_is_the_same_on_both_ways_in() {
    let scene = scene(&options().record_len_max(100));
    let log = &scene.log;
    let check = |append: oncelog::Result<oncelog::Lsn>, kind| {
        assert_eq!(append.unwrap_err().kind(), kind);
        assert_eq!(log.next_lsn(), lsn(1));
    };
    check(scene.runtime.block_on(log.append_async(&[0; 101])), ErrorKind::Limit);
    let mut outside = pin!(log.append_async(b"without a runtime"));
    match outside.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(refused) => check(refused, ErrorKind::InvalidInput),
        Poll::Pending => panic!("it waits for nothing"),
    }
    log.clone().close().unwrap();
    check(scene.runtime.block_on(log.append_async(b"late")), ErrorKind::Closed);
}

#[test]
fn every_task_is_told_of_a_failed_sync() {
    let scene = scene(&options());
    let log = &scene.log;
    scene.watch.fail();
    scene.watch.hold();
    scene.runtime.block_on(async {
        let append = |len: usize| {
            let log = log.clone();
            tokio::spawn(async move { log.append_async(&vec![0; len]).await.unwrap_err().kind() })
        };
        // The last one needs a roll, whose sync fails: it has no LSN yet.
        let tasks = [append(10), append(30_000), append(60_000)];
        // No sync fails before the first two have their LSNs.
        while log.next_lsn() < lsn(3) {
            tokio::task::yield_now().await;
        }
        scene.watch.release();
        let mut kinds = Vec::new();
        for task in tasks {
            kinds.push(task.await.unwrap());
        }
        assert_eq!(kinds[..2], [ErrorKind::OutcomeUnknown, ErrorKind::OutcomeUnknown]);
        assert_eq!(kinds[2], ErrorKind::Poisoned);
        let late = log.append_async(b"late").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Poisoned);
        let waiting = log.wait_durable_async(lsn(1)).await.unwrap_err();
        assert_eq!(waiting.kind(), ErrorKind::Poisoned);
    });
}

#[test]
fn a_large_batch_is_encoded_off_the_thread_that_polls() {
    #[track_caller]
    fn check(len: usize, is_at_once: bool) {
        let mut scene = scene(&options().segment_bytes_max(8 << 20));
        scene.runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        scene.log.append(b"first").unwrap();
        let record = vec![7; len];
        let records: [&[u8]; 1] = [&record];
        // The one thread of the pool is busy, so that it does not end before the poll.
        let (free, busy) = mpsc::channel::<()>();
        scene.runtime.spawn_blocking(move || busy.recv());
        {
            let _inside = scene.runtime.enter();
            let append = scene.log.append_batch_async(batch(&records), Durability::Buffered);
            let polled = pin!(append).poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled.is_ready(), is_at_once, "{len} bytes");
        }
        drop(free);
        // A pool that ends drops what it has not begun.
        scene.runtime.block_on(scene.runtime.spawn_blocking(|| ())).unwrap();
        // Given up, it is appended all the same, by the pool.
        let (_home, dir) = scene.close_pool();
        assert_eq!(payloads(&dir)[1..], [record]);
    }
    check(200 << 10, true);
    check((256 << 10) - 32, true);
    check(256 << 10, false);
    check(600 << 10, false);
}
