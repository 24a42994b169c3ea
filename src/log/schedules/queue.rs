//! The commit queue: who appends leads or waits for who leads.

use super::super::options::{Durability, WaitPolicy};
use super::*;
use crate::sync::explored;

#[test]
fn whoever_leads_every_append_is_durable_when_it_returns() {
    explored("two appends", || {
        let play = Play::on(&Machine::new(), false);
        let other = play.beside(|play| play.append(b"a"));
        play.append(b"b");
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn three_appends_share_leaders_and_none_waits_for_ever() {
    explored("three appends", || {
        let play = Play::on(&Machine::new(), false);
        let others = [b"a", b"b"].map(|payload| play.beside(|play| play.append(payload)));
        play.append(b"c");
        others.into_iter().for_each(|other| other.join().unwrap());
        play.close();
    });
}

/// Between the two calls of each, another one may take all three batches.
#[test]
fn three_that_enqueue_and_wait_share_a_leader_and_none_waits_for_ever() {
    explored("three waits", || {
        let play = Play::on(&Machine::new(), false);
        let wait = |play: &Play, payload: &[u8]| {
            let batch = Batch { kind: RecordKind::RECORD, records: &[payload] };
            let lsns = play.log.enqueue(batch).unwrap().wait().unwrap();
            play.check_durable(lsns.last);
        };
        let others = [b"a", b"b"].map(|payload| play.beside(move |play| wait(play, payload)));
        wait(&play, b"c");
        others.into_iter().for_each(|other| other.join().unwrap());
        play.close();
    });
}

#[test]
fn all_whom_one_sync_covers_are_woken() {
    explored("one group", || {
        let play = Play::on(&Machine::new(), false);
        // Both are in the buffer before anybody leads.
        let waits = [b"a", b"b"].map(|payload| play.log.enqueue(batch(&[payload])).unwrap());
        let others = waits.map(|pending| {
            play.beside(move |play| play.check_durable(pending.wait().unwrap().last))
        });
        play.append(b"c");
        others.into_iter().for_each(|other| other.join().unwrap());
        play.close();
    });
}

#[test]
fn who_yields_before_it_sleeps_is_told_all_the_same() {
    explored("yield", || {
        let yields = |o: Options| o.background(false).fill(Fill::None);
        let play = Play::with(&Machine::new(), |o| yields(o).wait_policy(WaitPolicy::Yield));
        let other = play.beside(|play| play.append(b"a"));
        play.append(b"b");
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_failed_sync_tells_every_waiter_and_is_final() {
    explored("failed sync", || failure(CallKind::Sync));
}

#[test]
fn a_failed_write_tells_every_waiter_and_is_final() {
    explored("failed write", || failure(CallKind::Write));
}

/// The first call of a kind fails under one of two appends; a third comes after them.
fn failure(kind: CallKind) {
    let play = Play::on(&Machine::new(), false);
    play.fail(kind, 1);
    let other = play.beside(|play| check_outcome(play, play.log.append(b"a")));
    check_outcome(&play, play.log.append(b"b"));
    other.join().unwrap();
    assert_eq!(play.io.mem.struck(), 1);
    assert_eq!(play.log.append(b"c").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(play.log.close().unwrap_err().kind(), ErrorKind::Poisoned);
}

#[test]
fn a_batch_that_starts_a_segment_goes_beside_others() {
    let full = made(|play| play.append(&[1; 60_000]));
    explored("roll", move || {
        let play = Play::on(&full, false);
        let other = play.beside(|play| play.append(&[2; 8_000]));
        play.append(b"small");
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_sync_that_fails_in_a_roll_is_told_to_all() {
    let full = made(|play| play.append(&[1; 60_000]));
    explored("failed roll", move || {
        let play = Play::on(&full, false);
        // The spare's header, or the tail, as it comes.
        play.fail(CallKind::Sync, 1);
        let other = play.beside(|play| check_outcome(play, play.log.append(&[2; 8_000])));
        check_outcome(&play, play.log.append(b"small"));
        other.join().unwrap();
        drop(play.log.close());
    });
}

#[test]
fn appenders_behind_a_full_buffer_go_on() {
    explored("full buffer", || {
        let play = Play::with(&Machine::new(), |o| {
            o.background(false).fill(Fill::None).buffer_bytes_max(1)
        });
        let buffer = |play: &Play, payload: &[u8]| {
            play.log.append_batch(batch(&[payload]), Durability::Buffered).unwrap();
        };
        let other = play.beside(move |play| {
            buffer(play, b"a");
            buffer(play, b"b");
        });
        buffer(&play, b"c");
        let lsn = play.log.sync().unwrap();
        lsn.into_iter().for_each(|lsn| play.check_durable(lsn));
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_panic_under_a_write_poisons_the_log_and_strands_nobody() {
    explored("panic", || {
        let play = Play::on(&Machine::new(), false);
        play.io.panic_at_sync();
        let append = |play: &Play, payload: &[u8]| {
            let caught = std::panic::AssertUnwindSafe(|| play.log.append(payload));
            if let Ok(outcome) = std::panic::catch_unwind(caught) {
                check_outcome(play, outcome);
            }
        };
        let other = play.beside(move |play| append(play, b"a"));
        append(&play, b"b");
        other.join().unwrap();
        assert_eq!(play.log.append(b"c").unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(play.log.close().unwrap_err().kind(), ErrorKind::Poisoned);
    });
}
