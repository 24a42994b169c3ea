//! A whole broadcaster, with its own threads, under drawn schedules and drawn work: callers of two
//! keys and of a resource, a policy, checkpoints, and a close beside them or behind.

use std::collections::BTreeMap;

use super::super::*;
use super::{Fussy, made, open, request, store};
use crate::io::fault::Dice;
use crate::io::mem::{Machine, MemIo};
use crate::io::turns::Turns;
use crate::sync::{explored_part, roll};

const CALLERS: u8 = 3;
const ASKS: u8 = 2;
/// This part of as many schedules as are drawn of a log: one of these takes as long as many of
/// those.
const PART: usize = 10;

/// What callers were told of a key last: the payload, and the answer.
type Told = Arc<std::sync::Mutex<BTreeMap<&'static str, (&'static str, Answer)>>>;

/// Asks for keys, each time with a payload that is drawn.
fn ask(broadcaster: &Broadcaster, told: &Told, holds: bool, mut dice: Dice) {
    for _ in 0..ASKS {
        let (key, payload) = (["k", "l"][dice.index(2)], ["p", "p", "q", "late"][dice.index(4)]);
        let mut asked = request(Some(key), payload);
        if holds {
            let (domain, key) = ("d".to_owned(), "x".to_owned());
            asked = asked.resources(vec![Resource { domain, key, shared: false }]);
        }
        let patience = [None, Some(Duration::from_millis(5))][dice.index(2)];
        match broadcaster.submit(&asked, patience) {
            Ok(answer) => note(told, key, payload, answer),
            Err(e) => match e.kind() {
                ErrorKind::InvalidInput => assert_eq!(payload, "late", "{e}"),
                ErrorKind::InFlight
                | ErrorKind::LockTimeout
                | ErrorKind::OutcomeUnknown
                | ErrorKind::Conflict
                | ErrorKind::Closed => {}
                _ => panic!("{e}"),
            },
        }
    }
}

/// One window has one answer, of one payload.
fn note(told: &Told, key: &'static str, payload: &'static str, answer: Answer) {
    let mut told = told.lock().unwrap();
    let Some((known, before)) = told.get(key) else {
        told.insert(key, (payload, answer));
        return;
    };
    if before.id == answer.id {
        let told_alike = (before.done_at_ms, before.expires_at_ms, &before.channels)
            == (answer.done_at_ms, answer.expires_at_ms, &answer.channels);
        assert!(told_alike && *known == payload, "two answers of one broadcast");
        return;
    }
    let is_later = answer.id > before.id;
    let (first, second) = if is_later { (before, &answer) } else { (&answer, before) };
    assert!(first.expires_at_ms.unwrap() <= second.accepted_at_ms, "two answers of one window");
    if is_later {
        told.insert(key, (payload, answer));
    }
}

/// Something that goes on beside callers.
fn tend(broadcaster: &Broadcaster, mut dice: Dice) {
    for _ in 0..2 {
        let done = match dice.below(3) {
            0 => broadcaster.refresh(broadcaster.policy()),
            1 => broadcaster.checkpoint().map(drop),
            _ => Ok(drop(broadcaster.stats())),
        };
        if let Err(e) = done {
            assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
        }
    }
}

fn play(machine: &Machine) {
    let mut dice = Dice::new(roll());
    let io = Turns::new(machine.clone());
    // Threads share what is one per thread elsewhere: a callback lets others in only where nobody
    // asks for a resource, which is not for callbacks.
    let holds = dice.below(2) == 0;
    let kind = Fussy::slow(!holds);
    let options = Options::new().worker_count(2).register(Arc::<Fussy>::clone(&kind));
    let broadcaster = Broadcaster::open(store(Arc::new(io.clone()), 0), options).unwrap();
    let told = Told::default();
    let mut others: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (broadcaster, told) = (broadcaster.clone(), Arc::clone(&told));
            let dice = Dice::new(dice.roll());
            thread::spawn(move || ask(&broadcaster, &told, holds, dice))
        })
        .collect();
    {
        let (broadcaster, dice) = (broadcaster.clone(), Dice::new(dice.roll()));
        others.push(thread::spawn(move || tend(&broadcaster, dice)));
    }
    if dice.below(2) == 0 {
        others.drain(..).for_each(|other| other.join().unwrap());
    }
    broadcaster.close().unwrap();
    assert!(!*kind.inside.lock().unwrap(), "a callback outlives the close");
    others.into_iter().for_each(|other| other.join().unwrap());
    let next = open(&MemIo::new(io.certain()));
    next.read(|state, _| {
        for (key, (_, answer)) in &*told.lock().unwrap() {
            let done = state.task(answer.id).is_some_and(|task| task.done.is_some());
            assert!(done, "an answer of {key} is forgotten");
        }
    });
    next.close().unwrap();
}

#[test]
fn a_whole_broadcaster_keeps_its_promises() {
    let machine = made();
    explored_part("a whole broadcaster", PART, move || play(&machine));
}
