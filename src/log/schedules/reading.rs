//! The live hand-over: a reader that has all there is waits for more.

use super::super::subscribe::{Delivery, Subscription};
use super::*;
use crate::sync::explored;

/// Reads from the first record to `last`, waiting where there is nothing yet.
fn follow(play: &Play, last: Lsn) {
    let mut reader = play.log.reader(Lsn::FIRST).unwrap();
    let mut next = Lsn::FIRST;
    while next <= last {
        match reader.next().unwrap() {
            Some(record) => {
                assert_eq!(record.lsn, next);
                assert!(record.durable);
                play.check_durable(record.lsn);
                next = next.next();
            }
            None => assert!(play.log.wait_durable(next, None).unwrap()),
        }
    }
}

#[test]
fn a_follower_sees_every_record_once_and_durable() {
    explored("follow", || {
        let play = Play::on(&Machine::new(), false);
        let other = play.beside(|play| {
            play.log.append(b"a").unwrap();
            play.log.append(b"b").unwrap();
        });
        follow(&play, Lsn::new(2).unwrap());
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_follower_goes_from_one_segment_into_the_next() {
    let full = made(|play| play.append(&[1; 60_000]));
    explored("follow a roll", move || {
        let play = Play::on(&full, false);
        let other = play.beside(|play| play.append(&[2; 8_000]));
        follow(&play, Lsn::new(2).unwrap());
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_reader_that_a_trim_overtakes_is_told() {
    let full = made(|play| {
        play.append(&[1; 60_000]);
        play.append(&[2; 8_000]);
    });
    explored("read and trim", move || {
        let play = Play::on(&full, false);
        let second = Lsn::new(2).unwrap();
        let other = play.beside(move |play| play.log.trim(second).unwrap());
        match play.log.reader(Lsn::FIRST).and_then(|mut reader| reader.next()) {
            Ok(record) => assert_eq!(record.map(|record| record.lsn), Some(Lsn::FIRST)),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Trimmed);
                assert_eq!(e.lsn(), Some(second));
            }
        }
        other.join().unwrap();
        play.check_durable(second);
        play.close();
    });
}

#[test]
fn a_follower_is_told_of_the_close() {
    explored("follow and close", || {
        let play = Play::on(&Machine::new(), false);
        let other = play.beside(|play| {
            let told = block_on(play.log.wait_durable_async(Lsn::new(2).unwrap()));
            assert_eq!(told.unwrap_err().kind(), ErrorKind::Closed);
        });
        play.append(b"a");
        play.close();
        other.join().unwrap();
    });
}

/// Has a subscriber take what comes until the log ends; each LSN up to `last` once, in order.
fn subscribe(play: &Play, subscription: &mut Subscription, last: u64) {
    let mut next = Lsn::FIRST;
    loop {
        match subscription.next() {
            Ok(Delivery::Record(record)) => {
                assert_eq!((record.lsn, record.durable), (next, true));
                play.check_durable(record.lsn);
                next = next.next();
            }
            Ok(Delivery::Gap { from, to }) => {
                assert_eq!(from, next);
                next = to.next();
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Closed);
                break assert_eq!(next.get(), last + 1);
            }
        }
    }
}

#[test]
fn a_subscriber_gets_every_record_up_to_the_close() {
    explored("subscribe", || {
        let play = Play::on(&Machine::new(), false);
        let mut subscription = play.log.subscribe(Lsn::FIRST).unwrap();
        let other = play.beside(|play| {
            play.log.append(b"a").unwrap();
            play.log.append(b"b").unwrap();
            play.log.clone().close().unwrap();
        });
        subscribe(&play, &mut subscription, 2);
        other.join().unwrap();
    });
}

#[test]
fn a_subscriber_is_told_what_a_trim_took() {
    let two = made(|play| {
        play.append(&[1; 60_000]);
        play.append(&[2; 8_000]);
    });
    explored("subscribe and trim", move || {
        let play = Play::on(&two, false);
        let mut subscription = play.log.subscribe(Lsn::FIRST).unwrap();
        let other = play.beside(move |play| subscribe(play, &mut subscription, 2));
        play.log.trim(Lsn::new(2).unwrap()).unwrap();
        while play.log.remove_step().unwrap() {}
        play.close();
        other.join().unwrap();
    });
}

#[test]
fn a_task_that_subscribes_is_woken_for_what_is_appended() {
    explored("task that subscribes", || {
        let play = Play::on(&Machine::new(), false);
        let other = play.beside(|play| play.append(b"a"));
        let mut subscription = play.log.subscribe(Lsn::FIRST).unwrap();
        let Delivery::Record(record) = block_on(subscription.next_async()).unwrap() else {
            panic!("nothing was trimmed");
        };
        assert_eq!(record.lsn, Lsn::FIRST);
        other.join().unwrap();
        play.close();
    });
}
