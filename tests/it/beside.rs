//! Readers of another kind beside a writer: they take no lock, and never mistake work for damage.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
        for _ in 0..30 {
            let view = view(&path);
            assert_eq!(view.severity(), Severity::Info, "{:#?}", view.findings());
            let mut found = Vec::new();
            let summary = view.verify(&mut |finding| found.push(finding.clone())).unwrap();
            assert_eq!(summary.severity, Severity::Info, "{found:#?}");
            assert!(summary.durable_lsn <= summary.last_lsn);
            read_all(&view);
        }
        stop.store(true, Ordering::Relaxed);
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
                assert!(error.lsn() > Some(lsn.get()));
                return;
            }
        }
    }
    assert_eq!(Some(lsn), view.last_lsn().map(Lsn::next));
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
    assert_eq!((error.kind(), error.lsn()), (ErrorKind::Trimmed, Some(7)));
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
        records += summary.records;
    }
    assert_eq!(records, 200);
}
