//! A whole log under drawn schedules and drawn work: appenders of every kind, a follower, trims,
//! rolls, failures, a close or none, and a power loss at the end.

use std::collections::BTreeMap;

use super::super::Durability;
use super::*;
use crate::io::fault::Dice;
use crate::sync::{explored, roll};

/// Bytes of the first record: the segment is all but full after it.
const FIRST_LEN: usize = 60_000;
const APPENDERS: u8 = 3;
const APPENDS: u8 = 2;

/// What the appenders know.
#[derive(Debug, Default)]
struct Told {
    /// Payloads that were acknowledged as durable.
    acked: BTreeMap<Lsn, Vec<u8>>,
    /// A failure was told to somebody.
    failed: bool,
}

type Shared = Arc<std::sync::Mutex<Told>>;

fn payload(appender: u8, number: u8, dice: &mut Dice) -> Vec<u8> {
    let len = [8, 500, 3_000, 6_000][dice.index(4)];
    let mut payload = vec![appender; len];
    payload[0] = number;
    payload
}

fn append(play: &Play, told: &Shared, appender: u8, mut dice: Dice) {
    for number in 0..APPENDS {
        let payload = payload(appender, number, &mut dice);
        let records: [&[u8]; 1] = [&payload];
        let batch = batch(&records);
        let outcome = match dice.below(6) {
            0 => play.log.append_batch(batch, Durability::Buffered).map(|_| None),
            1 => play.log.enqueue(batch).map(|_| None),
            2 => play.log.enqueue(batch).and_then(block_on).map(Some),
            3 => play.log.enqueue(batch).and_then(super::super::Pending::wait).map(Some),
            _ => play.log.append_batch(batch, Durability::Synced).map(Some),
        };
        let mut told = told.lock().unwrap();
        match outcome {
            Ok(Some(lsns)) => drop(told.acked.insert(lsns.last, payload)),
            Ok(None) => {}
            Err(e) => {
                assert!(is_due(play, &e), "{e}");
                told.failed |= is_failure(&e);
                return;
            }
        }
    }
}

/// Reads what comes until there is no more; nothing is missing but what was trimmed.
fn follow(play: &Play) {
    let mut next = Lsn::FIRST;
    let mut reader = play.log.reader(next);
    loop {
        let found = match &mut reader {
            Ok(reader) => reader.next(),
            Err(e) if e.kind() == ErrorKind::Trimmed => {
                next = e.lsn().unwrap();
                reader = play.log.reader(next);
                continue;
            }
            Err(e) => return assert_eq!(e.kind(), ErrorKind::Closed),
        };
        match found {
            Ok(Some(record)) => {
                assert_eq!((record.lsn, record.durable), (next, true));
                next = next.next();
            }
            Ok(None) => match play.log.wait_durable(next, None) {
                Ok(durable) => assert!(durable),
                Err(e) => return assert!(is_due(play, &e), "{e}"),
            },
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Trimmed | ErrorKind::Closed), "{e}");
                reader = Err(e);
            }
        }
    }
}

/// Something that has to go beside appends.
fn tend(play: &Play, mut dice: Dice) {
    for _ in 0..2 {
        let done = match dice.below(5) {
            0 => play.log.trim(Lsn::new(2).unwrap().min(play.log.next_lsn())),
            1 => play.log.flush(),
            2 => play.log.sync().map(drop),
            3 => play.log.write_idle_slot(),
            _ => play.log.wait_durable(Lsn::FIRST, None).map(drop),
        };
        if let Err(e) = done {
            assert!(is_due(play, &e), "{e}");
        }
    }
}

/// Whether something has happened that the error may tell of.
fn is_due(play: &Play, e: &Error) -> bool {
    match e.kind() {
        ErrorKind::Closed => true,
        // Where nothing hangs on what failed, it is refused.
        ErrorKind::OutcomeUnknown | ErrorKind::Poisoned | ErrorKind::Io => play.io.mem.struck() > 0,
        _ => false,
    }
}

/// What was acknowledged is there, in one piece with all around it.
fn check_left(machine: &Machine, told: &Told) {
    let view = LogView::open_unshared(DIR, Arc::new(MemIo::new(machine.clone()))).unwrap();
    let mut reader = view.reader(None).unwrap();
    let mut next = view.oldest_lsn();
    let mut found = BTreeMap::new();
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.lsn, next, "a gap");
        found.insert(next, record.payload);
        next = next.next();
    }
    for (lsn, payload) in told.acked.range(view.oldest_lsn()..) {
        assert_eq!(found.get(lsn).map(|found| &found[..]), Some(&payload[..]), "{lsn}");
    }
}

fn play(full: &Machine) {
    let mut dice = Dice::new(roll());
    let play = Play::with(full, |options| options.fill(Fill::Zero));
    if dice.below(4) == 0 {
        let kind = if dice.below(2) == 0 { CallKind::Sync } else { CallKind::Write };
        play.fail(kind, 1 + dice.below(4));
    }
    let told = Shared::default();
    let appenders: Vec<_> = (0..APPENDERS)
        .map(|appender| {
            let (told, dice) = (Arc::clone(&told), Dice::new(dice.roll()));
            play.beside(move |play| append(play, &told, appender, dice))
        })
        .collect();
    let follower = play.beside(follow);
    let tender = {
        let dice = Dice::new(dice.roll());
        play.beside(move |play| tend(play, dice))
    };
    // A close beside all of them, or after those that append, or after the power loss.
    let closes = dice.below(3);
    if closes == 0 {
        drop(play.log.clone().close());
    }
    appenders.into_iter().for_each(|appender| appender.join().unwrap());
    if closes == 1 {
        let closed = play.log.clone().close();
        assert!(closed.is_ok() || play.io.mem.struck() > 0, "{closed:?}");
    }
    let left = play.io.certain();
    let told_before = std::mem::take(&mut *told.lock().unwrap());
    assert!(!told_before.failed || play.io.mem.struck() > 0);
    drop(play.log.clone().close());
    follower.join().unwrap();
    tender.join().unwrap();
    check_left(&left, &told_before);
    check_left(&play.io.certain(), &told_before);
}

#[test]
fn a_whole_log_keeps_its_promises() {
    let full = made(|play| play.append(&vec![9; FIRST_LEN]));
    explored("a whole log", move || play(&full));
}
