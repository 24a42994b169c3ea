//! One effect, whatever is killed: a keyed submit is cut off at each of its persistence points, by
//! a kill or a power loss, and asked again with the same or another payload.

use std::sync::Arc;
use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{Answer, BroadcastId, Options};
use oncelog::testing::{Dice, Fault, Machine, MemIo, Which, survivors};

use super::desk::{Desk, Hands, Script, assert_same, copies, open_on, request};

/// Ways in which what was not synced survives a power loss, for each point.
const WAYS: usize = 4;

/// What a process that may be killed leaves behind.
struct Left {
    machine: Machine,
    answer: Option<Answer>,
    effects: Vec<BroadcastId>,
    /// The kill came before its work was over.
    is_cut: bool,
}

fn options(script: &Arc<Script>) -> Options {
    Options::new().worker_count(2).register(Arc::<Script>::clone(script))
}

/// Opens, makes the vchannels, and submits; killed before the `nth` persistence point.
fn cut(machine: Machine, hands: &Arc<Hands>, nth: u64) -> Left {
    let (io, script) = (MemIo::new(machine), Arc::new(Script::default()));
    io.arm(Which::Persist, nth, 1, Fault::Stop);
    let answer = open_on(&io, hands, options(&script)).and_then(|broadcaster| {
        broadcaster.ensure_vchannels(&["a".into(), "b".into()])?;
        loop {
            // A process that is gone tells nobody; here its threads go on, in vain.
            let answer = broadcaster.submit(&request("k", "p"), Some(Duration::from_millis(20)));
            if answer.is_ok() || io.is_stopped() {
                return answer;
            }
        }
    });
    let is_cut = io.is_stopped();
    io.kill();
    Left { machine: io.machine(), answer: answer.ok(), effects: script.effects(), is_cut }
}

/// What a power loss can make of a machine, and what a kill does: nothing.
fn after(machine: &Machine, seed: u64) -> Vec<Machine> {
    let unsynced = machine.unsynced();
    let ways = survivors(&unsynced, WAYS, &mut Dice::new(seed));
    let mut machines = vec![machine.clone()];
    machines.extend(ways.iter().map(|way| machine.power_loss(&unsynced, way)));
    let mut dice = Dice::new(seed);
    let reused = machines.iter().filter_map(|left| machine.reuse_blocks(left, &mut dice));
    let reused: Vec<Machine> = reused.collect();
    machines.extend(reused);
    machines
}

/// Asks again with the same payload: the original's answer, one copy a vchannel, one effect.
fn check_same(machine: Machine, hands: &Arc<Hands>, told: Option<&Answer>, before: &[BroadcastId]) {
    let desk = again(machine, hands);
    let answer = desk.submit("k", "p").unwrap();
    if let Some(told) = told {
        assert!(answer.duplicated, "an answer was given and is forgotten");
        assert_same(told, &answer);
    }
    let conflict = desk.submit("k", "q").unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    assert_same(&answer, &desk.submit("k", "p").unwrap());
    let mut effects = desk.script.effects();
    effects.extend(before);
    effects.sort();
    effects.dedup();
    assert_eq!(effects, [answer.id], "not one effect");
    let expected = ["a", "b"].map(|vchannel| ((answer.id, vchannel.to_owned()), 1));
    assert_eq!(copies(&desk.broadcaster).into_iter().collect::<Vec<_>>(), expected);
    for (vchannel, position) in &answer.channels {
        let channel = desk.broadcaster.jobs().channel("p0").unwrap();
        let stored = channel.read(position.lsn).unwrap().next().unwrap().unwrap();
        let at = stored.property::<oncelog_format::message::Vchannel>().unwrap().unwrap();
        let tick = stored.property().unwrap();
        assert_eq!((stored.lsn, &at.0, tick), (position.lsn, vchannel, Some(position.time_tick)));
    }
    desk.broadcaster.close().unwrap();
}

/// Asks with another payload first: it conflicts exactly if the original was accepted.
fn check_other(machine: Machine, hands: &Arc<Hands>, left: &Left) {
    let desk = again(machine, hands);
    match desk.submit("k", "q") {
        Ok(other) => {
            assert!(left.answer.is_none() && left.effects.is_empty(), "a second effect");
            assert!(!other.duplicated);
            let conflict = desk.submit("k", "p").unwrap_err();
            assert_eq!(conflict.kind(), ErrorKind::Conflict);
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
            let answer = desk.submit("k", "p").unwrap();
            assert!(answer.duplicated, "a conflict with something that was never accepted");
        }
    }
    desk.broadcaster.close().unwrap();
}

fn again(machine: Machine, hands: &Arc<Hands>) -> Desk {
    let script = Arc::new(Script::default());
    let options = options(&script);
    let desk = Desk::on(machine, Arc::clone(hands), script, options).unwrap();
    desk.broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    desk
}

#[test]
pub(crate) fn a_submit_killed_at_any_point_has_one_effect_for_each_key() {
    let hands = Arc::new(Hands::default());
    let mut cases = 0;
    for nth in 1.. {
        let left = cut(Machine::new(), &hands, nth);
        for machine in after(&left.machine, nth) {
            check_same(machine.clone(), &hands, left.answer.as_ref(), &left.effects);
            check_other(machine, &hands, &left);
            cases += 2;
        }
        if !left.is_cut {
            break;
        }
    }
    assert!(cases > 100, "only {cases} cases");
}

#[test]
pub(crate) fn a_retry_killed_in_recovery_has_one_effect_too() {
    let hands = Arc::new(Hands::default());
    // Behind the making of the store: from the first record of the broadcast on.
    let made = again(Machine::new(), &hands);
    made.broadcaster.close().unwrap();
    let machine = made.io.machine();
    for nth in 1.. {
        let first = cut(machine.clone(), &hands, nth);
        for nth in 1.. {
            let second = cut(first.machine.clone(), &hands, nth);
            let told = first.answer.as_ref().or(second.answer.as_ref());
            let before = [first.effects.clone(), second.effects.clone()].concat();
            for machine in after(&second.machine, nth).into_iter().take(2) {
                check_same(machine, &hands, told, &before);
            }
            if !second.is_cut {
                break;
            }
        }
        if !first.is_cut {
            break;
        }
    }
}

#[test]
pub(crate) fn a_write_that_fails_once_is_never_taken_for_a_refusal() {
    let hands = Arc::new(Hands::default());
    let made = again(Machine::new(), &hands);
    made.broadcaster.close().unwrap();
    let machine = made.io.machine();
    for nth in 1.. {
        let (io, script) = (MemIo::new(machine.clone()), Arc::new(Script::default()));
        io.arm(Which::Persist, nth, 1, Fault::Error(oncelog::testing::EIO));
        let answer = open_on(&io, &hands, options(&script))
            .and_then(|broadcaster| broadcaster.submit(&request("k", "p"), None));
        let struck = io.struck() > 0;
        io.kill();
        if let Err(e) = &answer {
            let known = [ErrorKind::OutcomeUnknown, ErrorKind::InFlight, ErrorKind::Poisoned];
            let known = known.contains(&e.kind()) || e.kind() == ErrorKind::Io;
            assert!(known, "{nth}: {e}");
        }
        check_same(io.machine(), &hands, answer.as_ref().ok(), &script.effects());
        if !struck {
            break;
        }
    }
}
