//! Pins: no trim drops what is held, and every refusal says by whom.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use oncelog::testing::{CallKind, EIO, Fault, Machine, MemIo, Which};
use oncelog::{ErrorKind, Holder, HolderKind, Log, Lsn};

use crate::log::{lsn, open, options, place, read};

fn filled(records: usize) -> (tempfile::TempDir, Log) {
    let (home, dir) = place();
    let log = open(&dir);
    for _ in 0..records {
        log.append(&[1; 9000]).unwrap();
    }
    (home, log)
}

#[track_caller]
fn check_pinned(log: &Log, oldest: u64, by: &str, at: u64) {
    let before = log.oldest_lsn();
    let e = log.trim(lsn(oldest)).unwrap_err();
    assert_eq!(
        (e.kind(), e.lsn(), e.is_retryable()),
        (ErrorKind::Pinned, Lsn::new(at), true),
        "{e:?}"
    );
    assert!(e.to_string().contains(by), "{e}");
    assert_eq!(log.oldest_lsn(), before, "nothing goes");
}

#[test]
fn a_trim_that_meets_a_pin_is_refused_whole_and_names_it() {
    let (_home, log) = filled(30);
    let pin = log.pin("backup", lsn(12)).unwrap();
    let other = log.pin("audit", lsn(20)).unwrap();
    check_pinned(&log, 13, "pin \"backup\"", 12);
    check_pinned(&log, 31, "pin \"backup\"", 12);
    log.trim(lsn(12)).unwrap();
    assert_eq!(read(&log, 12).len(), 19);
    pin.advance(lsn(25)).unwrap();
    check_pinned(&log, 21, "pin \"audit\"", 20);
    drop(other);
    log.trim(lsn(25)).unwrap();
    drop(pin);
    log.trim(lsn(31)).unwrap();
    let pins = log.why_not_trimmed().into_iter().filter(|holder| holder.kind == HolderKind::Pin);
    assert_eq!(pins.count(), 0);
}

#[test]
fn pins_go_forward_only_and_stay_within_the_log() {
    let (_home, log) = filled(10);
    let pin = log.pin("p", lsn(4)).unwrap();
    assert_eq!(pin.lsn(), lsn(4));
    pin.advance(lsn(4)).unwrap();
    for wrong in [3, 12] {
        assert_eq!(pin.advance(lsn(wrong)).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(pin.lsn(), lsn(4), "a refusal changes nothing");
    }
    pin.advance(lsn(11)).unwrap();
    assert_eq!(log.pin("p", lsn(12)).unwrap_err().kind(), ErrorKind::InvalidInput);
    log.trim(lsn(6)).unwrap();
    let e = log.pin("p", lsn(5)).unwrap_err();
    assert_eq!((e.kind(), e.lsn()), (ErrorKind::Trimmed, Lsn::new(6)));
    log.clone().close().unwrap();
    assert_eq!(log.pin("p", lsn(7)).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(pin.lsn(), lsn(11), "a pin outlives the log that it was made of");
}

#[test]
fn why_not_trimmed_tells_every_pin_the_oldest_first() {
    let (_home, log) = filled(10);
    let pins: Vec<_> =
        [("c", 9), ("a", 3), ("b", 3)].map(|(name, at)| log.pin(name, lsn(at)).unwrap()).into();
    let told: Vec<(HolderKind, String, Lsn)> = log
        .why_not_trimmed()
        .into_iter()
        .map(|Holder { kind, name, lsn, .. }| (kind, name, lsn))
        .collect();
    let pin = |name: &str, at| (HolderKind::Pin, name.to_owned(), lsn(at));
    let policy = (HolderKind::Policy, "everything is kept".to_owned(), lsn(1));
    assert_eq!(told, [policy, pin("a", 3), pin("b", 3), pin("c", 9)]);
    drop(pins);
}

/// A trim has looked for pins and writes its slots: a pin that comes meanwhile must not be granted
/// what the trim is about to drop.
#[test]
fn a_pin_waits_for_the_trim_that_is_under_way() {
    let io = MemIo::new(Machine::new());
    let options = options().io(Arc::new(io.clone())).background(false);
    let (log, _) = Log::open("/log", &options).unwrap();
    for _ in 0..10 {
        log.append(&[1; 100]).unwrap();
    }
    let (tell, told) = mpsc::channel();
    let racing = log.clone();
    let racer = std::sync::Mutex::new(None);
    let racer = Arc::new(racer);
    let kept = Arc::clone(&racer);
    io.observe(move |_, kind| {
        let mut racer = kept.lock().unwrap();
        if kind == CallKind::Write && racer.is_none() {
            let (log, tell) = (racing.clone(), tell.clone());
            *racer = Some(std::thread::spawn(move || {
                let low = log.pin("late", lsn(3)).map(|pin| pin.lsn());
                tell.send(low.map_err(|e| e.kind())).unwrap();
            }));
        }
    });
    log.trim(lsn(6)).unwrap();
    let answer = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(answer, Err(ErrorKind::Trimmed));
    let racer = racer.lock().unwrap().take().unwrap();
    racer.join().unwrap();
}

#[test]
fn a_trim_that_fails_holds_no_later_pin_up() {
    let io = MemIo::new(Machine::new());
    let options = options().io(Arc::new(io.clone())).background(false);
    let (log, _) = Log::open("/log", &options).unwrap();
    for _ in 0..10 {
        log.append(&[1; 100]).unwrap();
    }
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    assert_eq!(log.trim(lsn(6)).unwrap_err().kind(), ErrorKind::Poisoned);
    // Reads of a poisoned log go on, and may want their records kept.
    assert_eq!(log.pin("reader", lsn(3)).unwrap().lsn(), lsn(3));
}

#[test]
fn a_log_says_where_it_lies_and_which_one_it_is() {
    let (io, options) = super::memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    let uuid = log.uuid();
    assert_eq!(log.path(), std::path::Path::new("/log"));
    log.close().unwrap();
    let (log, _) = Log::open("/log", &options).unwrap();
    assert_eq!(log.uuid(), uuid);
    let view = oncelog::LogView::open_unshared("/log", Arc::new(io)).unwrap();
    assert_eq!(view.uuid(), Some(log.uuid()));
}
