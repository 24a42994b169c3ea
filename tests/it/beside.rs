//! Readers of another kind beside a writer: they take no lock, and never mistake work for damage.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncelog::io::fs::FsIo;
use oncelog::{CreateMode, ErrorKind, Log, LogView, Lsn, Options, Severity};

const SEGMENT_BYTES: u64 = 65_536;

fn open(dir: &Path) -> Log {
    let options = Options::new().create(CreateMode::IfMissing).segment_bytes_max(SEGMENT_BYTES);
    Log::open(dir, &options).unwrap().0
}

fn view(dir: &Path) -> LogView {
    LogView::open(dir, Arc::new(FsIo::new())).unwrap()
}

/// Stops a writer also where a check fails, which else would wait for it for ever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Appends records that say their own LSN until told to stop, and trims behind itself.
fn write(log: &Log, stop: &AtomicBool, trims: bool) -> Lsn {
    loop {
        let next = log.next_lsn();
        let text = format!("{next} {}", "x".repeat(usize::try_from(next.get() % 700).unwrap()));
        let lsn = log.append(text.as_bytes()).unwrap();
        if trims && lsn.get().is_multiple_of(200) {
            log.trim(Lsn::new(lsn.get() - 100).unwrap()).unwrap();
        }
        if stop.load(Ordering::Relaxed) {
            return lsn;
        }
    }
}

#[track_caller]
fn check(trims: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = open(&path);
    log.append(b"1").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&log, &stop, trims));
        let stopped = Stop(&stop);
        for look in 0..30 {
            let view = view(&path);
            assert_eq!(view.severity(), Severity::Info, "{:#?}", view.findings());
            let mut found = Vec::new();
            let summary = view.verify(&mut |finding| found.push(finding.clone())).unwrap();
            assert_eq!(summary.severity, Severity::Info, "{found:#?}");
            assert!(summary.proven_lsn <= summary.last_lsn);
            read_all(&view);
            // The log grows meanwhile: not too often.
            if look < 3 {
                read_back(&view);
                back_up(&view, trims);
            }
        }
        drop(stopped);
        let last = writer.join().unwrap();
        log.clone().close().unwrap();
        let view = view(&path);
        assert_eq!((view.last_lsn(), view.proven_lsn()), (Some(last), Some(last)));
    });
}

/// Every record from the oldest to the last, or a typed gap where they were trimmed meanwhile.
fn read_all(view: &LogView) {
    let mut reader = view.reader(None).unwrap();
    let mut lsn = view.oldest_lsn();
    loop {
        match reader.next() {
            Ok(Some(record)) => {
                assert_eq!(record.lsn, lsn);
                assert!(record.payload.starts_with(lsn.to_string().as_bytes()));
                lsn = lsn.next();
            }
            Ok(None) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Trimmed, "{error}");
                assert!(error.lsn() > Some(lsn));
                return;
            }
        }
    }
    assert_eq!(Some(lsn), view.last_lsn().map(Lsn::next));
}

/// From the last record to the oldest, or a typed gap where the rest was trimmed meanwhile.
fn read_back(view: &LogView) {
    let Some(last) = view.last_lsn() else { return };
    let mut reader = view.reader(Some(last.next())).unwrap();
    let mut times = Vec::new();
    for lsn in (view.oldest_lsn().get()..=last.get()).rev() {
        match reader.prev() {
            Ok(record) => {
                let record = record.unwrap();
                assert_eq!(record.lsn.get(), lsn);
                assert!(record.payload.starts_with(lsn.to_string().as_bytes()));
                times.push((record.time_ms, record.lsn));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Trimmed, "{error}");
                return;
            }
        }
    }
    // The first record of each time: what was read last of it.
    for pair in times.windows(2).filter(|pair| pair[0].0 > pair[1].0).take(5) {
        match view.seek_time(pair[0].0) {
            Ok(found) => assert_eq!(found, pair[0].1),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Trimmed, "{error}"),
        }
    }
}

/// A copy of what the view saw, whole; or a typed gap.
fn back_up(view: &LogView, trims: bool) {
    let home = tempfile::tempdir().unwrap();
    let to = home.path().join("copy");
    match view.backup(&to) {
        Ok(report) => {
            let copy = self::view(&to);
            let summary = copy.verify(&mut |_| ()).unwrap();
            assert_eq!(summary.severity, Severity::Info);
            assert_eq!((summary.last_lsn, report.last_lsn), (view.last_lsn(), view.last_lsn()));
            assert_eq!(copy.oldest_lsn(), view.oldest_lsn());
            read_all(&copy);
        }
        Err(error) => assert!(trims && error.kind() == ErrorKind::Trimmed, "{error}"),
    }
}

#[test]
fn a_view_beside_a_writer_that_rolls_finds_no_damage() {
    check(false);
}

#[test]
fn a_view_beside_a_writer_that_trims_finds_no_damage_and_typed_gaps() {
    check(true);
}

#[test]
fn a_view_below_the_oldest_record_is_told_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for _ in 0..10 {
        log.append(b"r").unwrap();
    }
    log.trim(Lsn::new(7).unwrap()).unwrap();
    let view = view(dir.path());
    let error = view.reader(Some(Lsn::FIRST)).unwrap_err();
    assert_eq!((error.kind(), error.lsn()), (ErrorKind::Trimmed, Lsn::new(7)));
    assert_eq!(view.reader(None).unwrap().next().unwrap().unwrap().lsn.get(), 7);
    log.close().unwrap();
}

#[test]
fn one_segment_alone_is_judged_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let record = [b'z'; 1_000];
    for _ in 0..200 {
        log.append(&record).unwrap();
    }
    log.close().unwrap();
    let whole = view(dir.path());
    let segments = whole.segments();
    assert!(segments.len() > 3);
    let mut records = 0;
    for info in &segments {
        let alone = view(&info.path);
        let summary = alone.verify(&mut |_| {}).unwrap();
        assert_eq!(summary.severity, Severity::Info);
        assert_eq!(summary.first_lsn, Some(info.first_lsn));
        assert_eq!(summary.last_lsn, info.last_lsn);
        records += summary.record_count;
    }
    assert_eq!(records, 200);
}

/// A writer in a process of its own.
#[cfg(feature = "cli")]
#[test]
fn a_view_of_another_process_is_read_both_ways_and_backed_up() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_oncelog"))
        .args(["append", "--segment-bytes", "65536", "--batch", "3"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let stop = AtomicBool::new(false);
    let last = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut lsn = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                lsn += 1;
                writeln!(input, "{lsn} {}", "x".repeat(usize::try_from(lsn % 700).unwrap()))
                    .unwrap();
            }
            drop(input);
            lsn
        });
        let stopped = Stop(&stop);
        let mut seen = 0;
        while seen < 5 {
            // The child makes the log.
            let Ok(view) = LogView::open(&path, Arc::new(FsIo::new())) else { continue };
            if view.last_lsn().is_none() {
                continue;
            }
            seen += 1;
            assert_eq!(view.severity(), Severity::Info, "{:#?}", view.findings());
            read_all(&view);
            read_back(&view);
            back_up(&view, false);
        }
        drop(stopped);
        writer.join().unwrap()
    });
    assert!(child.wait().unwrap().success());
    let view = view(&path);
    assert_eq!(view.last_lsn().map(Lsn::get), Some(last));
    read_back(&view);
    back_up(&view, false);
}

#[test]
fn a_wait_takes_no_unpark_of_its_caller() {
    let (_home, dir) = crate::log::place();
    let log = open(&dir);
    log.append(b"x").unwrap();
    let view = view(&dir);
    std::thread::current().unpark();
    view.wait_changed().unwrap();
    // Returns at once, as the unpark is still there.
    let since = std::time::Instant::now();
    std::thread::park_timeout(Duration::from_secs(30));
    assert!(since.elapsed() < Duration::from_secs(15), "the unpark is gone");
}
