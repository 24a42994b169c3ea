//! Schedules of admission and of the resource locks: callers beside each other, and beside them the
//! one thread that does what the threads of a broadcaster do; of the sweeper, and of a close.

mod removal;
mod shutdown;

use super::core::{Deadline, Settled};
use super::locks::{Claim, Holder};
use super::scheduled::{made, made_with, open, request};
use super::*;
use crate::io::mem::{Machine, MemIo};
use crate::sync::explored;

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
            pending.wait().unwrap();
            core = inner.lock();
            ended += usize::from(matches!(settled, Settled::Ended(..)));
            inner.settled(&mut core, settled);
        } else if let Some((_, id)) = core.due.pop_first() {
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
        done.unwrap();
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
