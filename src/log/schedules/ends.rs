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
    // Nothing is written behind a close, and the lock is free.
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
