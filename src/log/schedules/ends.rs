//! Closes and trims beside appends.

use super::super::Durability;
use super::*;
use crate::sync::explored;

#[test]
fn an_append_beside_a_close_is_durable_or_refused() {
    explored("close", || closing(false));
}

#[test]
fn a_close_ends_the_thread_of_the_log_whatever_it_does() {
    explored("close with a thread", || closing(true));
}

fn closing(background: bool) {
    let play = Play::on(&Machine::new(), background);
    let other = play.beside(|play| match play.log.append(b"a") {
        Ok(lsn) => play.check_durable(lsn),
        Err(e) => assert_eq!(e.kind(), ErrorKind::Closed),
    });
    play.log.append_batch(batch(&[b"b"]), Durability::Buffered).unwrap();
    play.log.clone().close().unwrap();
    play.check_durable(Lsn::FIRST);
    other.join().unwrap();
    // Nothing is written after a close, and the lock is free.
    let before = play.io.mem.machine().step();
    let (log, _) = Log::open(DIR, &Options::new().io(Arc::new(play.io.mem.clone()))).unwrap();
    log.close().unwrap();
    assert!(play.io.mem.machine().step() > before);
}

#[test]
fn of_two_closes_one_closes() {
    explored("two closes", || {
        let play = Play::on(&Machine::new(), false);
        play.log.append_batch(batch(&[b"a"]), Durability::Buffered).unwrap();
        let other = play.beside(|play| match play.log.clone().close() {
            Ok(()) => play.check_durable(Lsn::FIRST),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Closed),
        });
        match play.log.clone().close() {
            Ok(()) => play.check_durable(Lsn::FIRST),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Closed),
        }
        other.join().unwrap();
        play.check_durable(Lsn::FIRST);
    });
}

#[test]
fn a_trim_beside_an_append_keeps_what_it_must() {
    let two = made(|play| {
        play.append(&[1; 60_000]);
        play.append(&[2; 8_000]);
    });
    explored("trim", move || {
        let play = Play::on(&two, false);
        let other = play.beside(|play| play.append(b"a"));
        play.log.trim(Lsn::new(2).unwrap()).unwrap();
        assert_eq!(play.log.oldest_lsn().get(), 2);
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_pin_that_was_granted_holds_its_records() {
    let two = made(|play| {
        play.append(&[1; 60_000]);
        play.append(&[2; 8_000]);
    });
    explored("pin", move || {
        let play = Play::on(&two, false);
        let other = play.beside(|play| match play.log.trim(Lsn::new(2).unwrap()) {
            Ok(()) => while play.log.remove_step().unwrap() {},
            Err(e) => assert_ne!(e.kind(), ErrorKind::Poisoned, "{e}"),
        });
        match play.log.pin("reader", Lsn::FIRST) {
            Ok(pin) => {
                let record = play.log.reader(Lsn::FIRST).unwrap().next().unwrap();
                assert_eq!(record.map(|record| record.lsn), Some(Lsn::FIRST));
                drop(pin);
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::Trimmed),
        }
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_segment_that_is_read_is_not_shortened() {
    let two = made(|play| {
        play.append(&[1; 60_000]);
        play.append(&[2; 8_000]);
    });
    explored("removal", move || {
        let play = Play::on(&two, false);
        let other = play.beside(|play| {
            play.log.trim(Lsn::new(2).unwrap()).unwrap();
            while play.log.remove_step().unwrap() {}
        });
        let read = play.log.reader(Lsn::FIRST).and_then(|mut reader| reader.next());
        match read {
            // The payload is a slice of the map: reading it after the end of the file is fatal.
            Ok(record) => assert!(record.unwrap().payload.iter().all(|byte| *byte == 1)),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Trimmed),
        }
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn an_idle_slot_states_no_more_than_is_durable() {
    explored("idle slot", || {
        let play = Play::on(&Machine::new(), false);
        let other = play.beside(|play| play.log.write_idle_slot().unwrap());
        play.append(b"a");
        other.join().unwrap();
        play.log.write_idle_slot().unwrap();
        play.close();
    });
}
