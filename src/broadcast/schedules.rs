//! Schedules of admission and of the resource locks: callers beside each other, a sweep, a close
//! and a checkpoint, and beside them the one thread that does what the threads of a broadcaster do.

mod removal;
mod shutdown;

use oncelog_format::control::Park;

use super::admission::Looked;
use super::core::{Deadline, Settled};
use super::fingerprint::Asked;
use super::locks::{Claim, Holder};
use super::scheduled::{DIR, made, made_with, open, request};
use super::*;
use crate::io::mem::{Machine, MemIo};
use crate::sync::{Mutex, explored};

/// Has a request accepted, which nobody waits for.
fn accept(broadcaster: &Broadcaster, request: &Request) {
    let left = broadcaster.submit(request, Some(Duration::ZERO)).unwrap_err();
    assert_eq!(left.kind(), ErrorKind::OutcomeUnknown);
}

/// Does what the threads of a broadcaster do, until so many tasks have ended.
fn serve(broadcaster: &Broadcaster, ends: usize) {
    let inner = broadcaster.inner();
    let mut ended = 0;
    let mut core = inner.lock();
    while ended < ends {
        if let Some((pending, settled)) = core.settling.pop_front() {
            drop(core);
            inner.wait_durable(pending).unwrap();
            core = inner.lock();
            ended += usize::from(matches!(settled, Settled::Ended(..)));
            inner.settled(&mut core, settled);
        } else if let Some(id) = core.take_due() {
            drop(core);
            let stepped = inner.step(id);
            core = inner.after_step(id, stepped);
        } else {
            core = inner.handed.wait(core).unwrap();
        }
    }
}

fn holding(payload: &str, keys: &[(&str, bool)]) -> Request {
    let resource = |(key, shared): &(&str, bool)| Resource {
        domain: "d".into(),
        key: (*key).into(),
        shared: *shared,
    };
    request(None, payload).resources(keys.iter().map(resource).collect())
}

/// Submits all of them beside each other while `ends` tasks end, and returns what each was told.
fn submit_all<const N: usize>(
    machine: &Machine,
    requests: [Request; N],
    ends: usize,
) -> [Result<Answer>; N] {
    let broadcaster = open(&MemIo::new(machine.clone()));
    let callers = requests.map(|request| {
        let broadcaster = broadcaster.clone();
        thread::spawn(move || broadcaster.submit(&request, None))
    });
    serve(&broadcaster, ends);
    let told = callers.map(|caller| caller.join().unwrap());
    let core = broadcaster.inner().lock();
    // Nothing volatile is left over.
    let left = (core.runs.len(), core.reservations.len(), core.reserved.len());
    let locks = (core.lock_waiters.len(), core.locks.holder_count());
    let keys = core.state.tasks().count();
    drop(core);
    broadcaster.close().unwrap();
    assert_eq!((left, locks), ((0, 0, 0), (0, 0)));
    assert!(keys <= 1, "{keys} broadcasts of one key");
    told
}

#[test]
fn two_callers_of_one_key_are_one_broadcast() {
    let machine = made();
    explored("one key", move || {
        let requests = [request(Some("k"), "p"), request(Some("k"), "p")];
        let [a, b] = submit_all(&machine, requests, 1).map(|told| told.unwrap());
        assert_eq!(a.id, b.id);
        assert_ne!(a.duplicated, b.duplicated);
    });
}

#[test]
fn another_payload_beside_the_first_conflicts_with_it() {
    let machine = made();
    explored("conflict", move || {
        let requests = [request(Some("k"), "p"), request(Some("k"), "q")];
        let told = submit_all(&machine, requests, 1);
        let refused: Vec<&Error> = told.iter().filter_map(|told| told.as_ref().err()).collect();
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].kind(), ErrorKind::Conflict);
    });
}

#[test]
fn a_refusal_hands_the_key_to_who_waits_for_it() {
    let machine = made();
    explored("refusal", move || {
        let requests = [request(Some("k"), "bad"), request(Some("k"), "p")];
        let [refused, done] = submit_all(&machine, requests, 1);
        let kind = refused.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::InvalidInput | ErrorKind::Conflict), "{kind:?}");
        assert!(!done.unwrap().duplicated);
    });
}

#[test]
fn a_refusal_behind_the_locks_hands_them_on() {
    let machine = made();
    explored("refusal behind locks", move || {
        let requests = [holding("late", &[("x", false)]), holding("p", &[("x", false)])];
        let [refused, done] = submit_all(&machine, requests, 1);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
        drop(done.unwrap());
    });
}

/// Reserves the key, finds itself alone, and gives it up as a refusal does.
fn reserve(broadcaster: &Broadcaster, inside: &Mutex<usize>) {
    let request = request(Some("k"), "p");
    let asked = Asked::new(&request, vec![], PayloadForm::Bytes).unwrap();
    let looked = broadcaster.inner().look_up(&asked, false, Deadline::never()).unwrap();
    let Looked::Reserved(admission) = looked else { panic!("nothing was accepted") };
    *inside.lock().unwrap() += 1;
    let mut count = inside.lock().unwrap();
    assert_eq!(*count, 1, "two requests are admitted under one key");
    *count -= 1;
    drop(count);
    drop(admission);
}

#[test]
fn when_a_reservation_falls_exactly_one_waiter_goes_on() {
    let machine = made();
    explored("reservation falls", move || {
        let broadcaster = open(&MemIo::new(machine.clone()));
        let inside = Arc::new(Mutex::new(0));
        let callers = [(); 2].map(|()| {
            let (broadcaster, inside) = (broadcaster.clone(), Arc::clone(&inside));
            thread::spawn(move || reserve(&broadcaster, &inside))
        });
        reserve(&broadcaster, &inside);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        let core = broadcaster.inner().lock();
        assert_eq!((core.reservations.len(), core.reserved.len()), (0, 0));
        drop(core);
        broadcaster.close().unwrap();
    });
}

#[test]
fn nobody_is_told_of_an_end_that_a_power_loss_takes_back() {
    let machine = made();
    explored("told and power loss", move || {
        let io = MemIo::new(machine.clone());
        let broadcaster = open(&io);
        let caller = {
            let broadcaster = broadcaster.clone();
            thread::spawn(move || {
                let answer = broadcaster.submit(&request(Some("k"), "p"), None).unwrap();
                let machine = io.machine();
                let left = machine.power_loss(&machine.unsynced(), &[]);
                let left = StoreView::open(DIR, Arc::new(MemIo::new(left))).unwrap();
                let task = left.state().task(answer.id);
                assert!(task.is_some_and(|task| task.done.is_some()), "{answer:?}");
            })
        };
        serve(&broadcaster, 1);
        caller.join().unwrap();
        broadcaster.close().unwrap();
    });
}

#[test]
fn a_close_tells_everybody_who_waits_what_is_so() {
    let machine = made();
    explored("close", move || {
        let io = MemIo::new(machine.clone());
        let broadcaster = open(&io);
        let caller = {
            let broadcaster = broadcaster.clone();
            thread::spawn(move || broadcaster.submit(&request(Some("k"), "p"), None))
        };
        broadcaster.close().unwrap();
        let told = caller.join().unwrap().unwrap_err();
        let left = StoreView::open(DIR, Arc::new(io)).unwrap();
        let count = left.state().tasks().count();
        match told.kind() {
            ErrorKind::Closed => assert_eq!(count, 0, "{told}"),
            ErrorKind::OutcomeUnknown => assert!(count <= 1, "{told}"),
            kind => panic!("{kind:?}: {told}"),
        }
    });
}

#[test]
fn a_checkpoint_beside_decisions_is_the_state_at_its_begin() {
    // Nobody takes them up.
    let machine = made_with(|broadcaster| {
        for key in ["k", "l"] {
            let late = broadcaster.submit(&request(Some(key), "p"), Some(Duration::ZERO));
            assert_eq!(late.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        }
    });
    explored("checkpoint and decisions", move || {
        let io = MemIo::new(machine.clone());
        let broadcaster = open(&io);
        let other = {
            let broadcaster = broadcaster.clone();
            thread::spawn(move || {
                let inner = broadcaster.inner();
                let open: Vec<_> = inner.lock().state.open_tasks().map(|(id, _)| id).collect();
                assert_eq!(open.len(), 2);
                for id in open {
                    let park = Body::Park(Park { id, reason: "stuck".into() });
                    drop(inner.hand_over(&mut inner.lock(), vec![park]).unwrap());
                }
            })
        };
        assert!(broadcaster.checkpoint().unwrap());
        other.join().unwrap();
        broadcaster.close().unwrap();
        let view = StoreView::open(DIR, Arc::new(io)).unwrap();
        assert_eq!(view.verify_checkpoints().unwrap(), 1);
    });
}

/// Three requests take their keys beside each other and give them up.
fn take_and_release(machine: &Machine, claims: [&'static [(&'static str, bool)]; 3]) {
    let broadcaster = open(&MemIo::new(machine.clone()));
    let asked = (0..).zip(claims).map(|(number, keys)| {
        let broadcaster = broadcaster.clone();
        move || {
            let (inner, holder) = (broadcaster.inner(), Holder::Admission(number));
            let resources = holding("p", keys).resources;
            let claim = Claim { resources, message_type: "Fussy".into(), since_ms: 0 };
            inner.ask(holder, claim, Deadline::never()).unwrap();
            inner.release(&mut inner.lock(), holder);
        }
    });
    let mut asked = asked.collect::<Vec<_>>();
    let own = asked.pop();
    let others: Vec<_> = asked.into_iter().map(thread::spawn).collect();
    own.into_iter().for_each(|ask| ask());
    others.into_iter().for_each(|other| other.join().unwrap());
    let core = broadcaster.inner().lock();
    let left = (core.lock_waiters.len(), core.locks.holder_count());
    drop(core);
    broadcaster.close().unwrap();
    assert_eq!(left, (0, 0));
}

#[test]
fn requests_that_name_keys_in_a_ring_do_not_wait_for_each_other() {
    let machine = made();
    explored("ring of keys", move || {
        take_and_release(
            &machine,
            [
                &[("x", false), ("y", false)],
                &[("y", false), ("z", false)],
                &[("z", false), ("x", false)],
            ],
        );
    });
}

#[test]
fn shared_and_exclusive_requests_all_get_their_turn() {
    let machine = made();
    explored("shared keys", move || {
        take_and_release(
            &machine,
            [&[("x", true), ("y", false)], &[("x", false)], &[("x", true), ("y", true)]],
        );
    });
}
