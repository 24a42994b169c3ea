use std::sync::Arc;

use oncelog_format::control::{Accepted, AckPosition, JobLink, Outcome};
use oncelog_format::message::{
    AckMode, BroadcastHeader, Fingerprint, FingerprintField, Resource, TimeTick,
};

use super::super::request::tombstone_answer;
use super::*;
use crate::io::fault::Dice;

/// A done task, its parts drawn from few values and from the ends of their ranges.
fn task(dice: &mut Dice, id: u64) -> TaskState {
    let mut text = |name: &str| format!("{name}{}", "x".repeat(dice.index(3)));
    let scope = Scope {
        principal: text("p"),
        message_type: text("T"),
        domain: text("d"),
        identity: text(""),
        generation: id % 3,
        client_key: text("k").into_bytes(),
    };
    let (message_type, domain, key) = (text("T"), text("d"), text("k"));
    let vchannels: Vec<String> = (0..dice.below(4)).map(|n| format!("v{n}")).collect();
    let mut time = |near: u64| match dice.below(8) {
        0 => 0,
        1 => u64::MAX - dice.below(3),
        _ => near + dice.below(1_000),
    };
    let times = (time(1 << 40), time(1 << 40), time(1 << 40), time(100));
    let ack = |vchannel| AckPosition {
        vchannel,
        lsn: time(u64::from(vchannel)),
        time_tick: TimeTick(time((1 << 40) << 18)),
    };
    let acks: Vec<AckPosition> = (0..).take(vchannels.len()).map(ack).collect();
    let acks = acks.into_iter().map(|ack| (dice.below(4) > 0).then_some(ack)).collect();
    let resource = Resource { domain, key, shared: dice.below(2) == 0 };
    let digest = [u8::try_from(dice.below(256)).unwrap(); 32];
    let field = FingerprintField { name: "payload".into(), digest };
    let failed = Outcome::Failed("no".repeat(dice.index(3)));
    let accepted = Accepted {
        header: BroadcastHeader {
            id: BroadcastId(id),
            vchannels,
            resources: vec![resource; dice.index(2)],
            ack: if dice.below(2) == 0 { AckMode::Append } else { AckMode::Consumer },
        },
        message_type,
        scope: Some(scope),
        fingerprint: Fingerprint { version: 1, fields: vec![field; dice.index(3)] },
        ends: Vec::new(),
        lifetime_ms: times.3,
        firm: dice.below(2) == 0,
        job: if dice.below(2) == 0 { JobLink::Starts } else { JobLink::None },
        properties: Vec::new(),
        trace: None,
        payload: Vec::new(),
    };
    let done = Some((if dice.below(2) == 0 { failed } else { Outcome::Done }, times.0));
    let (accepted_at_ms, moved_at_ms) = (times.1, times.2);
    let accepted = Arc::new(accepted);
    TaskState { accepted, accepted_at_ms, moved_at_ms, acks, parked: None, done }
}

#[test]
fn a_tombstone_is_the_task_that_it_was() {
    let (mut dice, mut stones) = (Dice::new(4), Tombstones::default());
    let mut tasks = std::collections::BTreeMap::new();
    for n in 0..20_000 {
        let id = 1 + dice.below(300);
        if let Some(task) = tasks.remove(&id) {
            assert_eq!(stones.remove(BroadcastId(id)), Some(task), "step {n}");
        } else {
            let task = task(&mut dice, id);
            stones.insert(task.clone()).unwrap();
            tasks.insert(id, task);
        }
        let asked = BroadcastId(1 + dice.below(300));
        let expected = tasks.get(&asked.0);
        assert_eq!(stones.task(asked).as_ref(), expected, "step {n}");
        assert_eq!(stones.holds(asked), expected.is_some());
        let ending = expected.map(|task| {
            let (accepted, done) = (&task.accepted, task.done.as_ref().unwrap().1);
            let principal = accepted.scope.as_ref().unwrap().principal.as_str();
            (principal, done, (accepted.lifetime_ms, accepted.firm))
        });
        assert_eq!(stones.ending(asked), ending);
        let scope = expected.and_then(|task| task.accepted.scope.clone());
        let known = scope.as_ref().and_then(|scope| stones.known(asked, scope));
        let until_ms = known.as_ref().map(Tombstone::until_ms);
        assert_eq!(until_ms, expected.and_then(TaskState::expires_at_ms));
        assert_eq!(known.and_then(|known| known.answer()), expected.and_then(tombstone_answer));
        let stated = known.map(|known| known.print().whole());
        assert_eq!(stated, expected.map(|task| task.accepted.fingerprint.clone()));
        let other = task(&mut dice, id).accepted.scope.clone().unwrap();
        assert_eq!(stones.is_of(asked, &other), scope.as_ref() == Some(&other));
        assert_eq!(stones.known(asked, &other).is_some(), stones.is_of(asked, &other));
        assert!(scope.is_none_or(|scope| stones.is_of(asked, &scope)));
    }
    for id in tasks.into_keys() {
        stones.remove(BroadcastId(id));
    }
    assert_eq!((stones.ids().count(), stones.shapes.count()), (0, 0), "nothing is left over");
}

#[test]
fn what_a_tombstone_cannot_hold_is_given_back() {
    let mut stones = Tombstones::default();
    let mut check = |change: fn(&mut TaskState, &mut Accepted)| {
        let mut task = task(&mut Dice::new(1), 7);
        let mut accepted = (*task.accepted).clone();
        change(&mut task, &mut accepted);
        task.accepted = Arc::new(accepted);
        assert_eq!(stones.insert(task.clone()), Err(task));
        assert_eq!(stones.ids().count(), 0);
    };
    check(|task, _| task.done = None);
    check(|task, _| task.parked = Some(("why".into(), 1)));
    check(|task, _| task.acks.push(None));
    check(|_, accepted| accepted.scope = None);
    check(|_, accepted| accepted.payload = b"p".to_vec());
    check(|_, accepted| accepted.properties.push(("k".into(), Vec::new())));
    check(|_, accepted| accepted.trace = Some("t".into()));
    check(|_, accepted| {
        accepted.job = JobLink::Ends { job: BroadcastId(1), attempt: 1, commit: true };
    });
}
