//! Futures, and the log's own thread that leads for them.

use std::pin::Pin;

use super::*;
use crate::sync::explored;

#[test]
fn a_batch_that_nobody_waits_for_is_synced_all_the_same() {
    explored("dropped", || {
        let play = Play::on(&Machine::new(), true);
        let lsns = play.log.enqueue(batch(&[b"a"])).unwrap().lsns();
        assert!(play.log.wait_durable(lsns.last, None).unwrap());
        play.check_durable(lsns.last);
        play.close();
    });
}

#[test]
fn a_task_is_woken_by_whoever_leads() {
    explored("task", || {
        let play = Play::on(&Machine::new(), true);
        let other = play.beside(|play| play.append(b"a"));
        let lsns = block_on(play.log.enqueue(batch(&[b"b"])).unwrap()).unwrap();
        play.check_durable(lsns.last);
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn a_future_that_is_dropped_after_a_poll_leaves_the_others_be() {
    explored("dropped future", || {
        let play = Play::on(&Machine::new(), true);
        let other = play.beside(|play| {
            let mut pending = play.log.enqueue(batch(&[b"a"])).unwrap();
            let bell = Waker::from(Arc::new(Bell::default()));
            drop(Pin::new(&mut pending).poll(&mut Context::from_waker(&bell)));
        });
        let lsns = block_on(play.log.enqueue(batch(&[b"b"])).unwrap()).unwrap();
        play.check_durable(lsns.last);
        other.join().unwrap();
        play.close();
    });
}

#[test]
fn tasks_are_told_of_a_failed_sync() {
    explored("task and failed sync", || {
        let play = Play::on(&Machine::new(), true);
        play.fail(CallKind::Sync, 1);
        let other = play.beside(|play| {
            let Err(e) = play.log.wait_durable(Lsn::FIRST, None) else {
                return play.check_durable(Lsn::FIRST);
            };
            assert_eq!(e.kind(), ErrorKind::Poisoned);
        });
        let outcome = block_on(play.log.enqueue(batch(&[b"a"])).unwrap());
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        other.join().unwrap();
        assert_eq!(play.log.close().unwrap_err().kind(), ErrorKind::Poisoned);
    });
}

#[test]
fn a_wait_with_a_limit_of_time_ends() {
    explored("limit of time", || {
        let play = Play::on(&Machine::new(), true);
        let pending = play.log.enqueue(batch(&[b"a"])).unwrap();
        let last = pending.lsns().last;
        if pending.wait_timeout(std::time::Duration::from_millis(5)).unwrap() {
            play.check_durable(last);
        }
        pending.wait().unwrap();
        play.check_durable(last);
        play.close();
    });
}

/// Notes which record's task was woken.
struct Note {
    lsn: Lsn,
    woken: Arc<std::sync::Mutex<Vec<Lsn>>>,
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push(self.lsn);
    }
}

#[test]
fn tasks_are_woken_in_the_order_of_the_log() {
    explored("order", || {
        let play = Play::on(&Machine::new(), true);
        let woken = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut asleep = Vec::new();
        let mut tasks = [b"a", b"b"].map(|payload| play.log.enqueue(batch(&[payload])).unwrap());
        let other = play.beside(|play| play.append(b"c"));
        // The later one asks first.
        for task in tasks.iter_mut().rev() {
            let note = Note { lsn: task.lsns().last, woken: Arc::clone(&woken) };
            let waker = Waker::from(Arc::new(note));
            if Pin::new(&mut *task).poll(&mut Context::from_waker(&waker)).is_pending() {
                asleep.push(task.lsns().last);
            }
        }
        other.join().unwrap();
        play.close();
        asleep.sort_unstable();
        // One that the other thread's sync covered already was never asleep.
        assert_eq!(*woken.lock().unwrap(), asleep);
    });
}
