//! Locks against the plain rule, and what a release costs.

use super::*;
use crate::io::fault::Dice;

fn claim(keys: &[(&str, bool)]) -> Claim {
    let resource = |(key, shared): &(&str, bool)| Resource {
        domain: "d".into(),
        key: (*key).into(),
        shared: *shared,
    };
    let resources: Vec<_> = keys.iter().map(resource).collect();
    Claim { resources: canonical(&resources), message_type: "T".into(), since_ms: 0 }
}

const fn a(n: u64) -> Holder {
    Holder::Admission(n)
}

/// No two holders conflict, and nobody waits for a key that is free without a conflicting
/// waiter before it.
fn check(locks: &Locks) {
    for (x, held) in &locks.claims {
        for (y, other) in &locks.claims {
            assert!(x == y || !conflict(held, other), "{x:?} and {y:?} hold together");
        }
    }
    let waiters: Vec<&Claim> = locks.waiters.values().map(|waiter| &waiter.claim).collect();
    for (at, waiter) in waiters.iter().enumerate() {
        let held = locks.claims.values().any(|held| conflict(held, waiter));
        let before = waiters.iter().take(at).any(|before| conflict(before, waiter));
        assert!(held || before, "a request waits for nothing");
    }
}

/// The rule by itself: every request is compared with every holder and every request before it.
#[derive(Default)]
struct Plain {
    claims: BTreeMap<Holder, Claim>,
    queue: Vec<(Holder, Claim)>,
}

impl Plain {
    fn settle(&mut self) -> Vec<Holder> {
        let (mut granted, mut waiting) = (vec![], Vec::<(Holder, Claim)>::new());
        for (holder, claim) in std::mem::take(&mut self.queue) {
            let held = self.claims.values().any(|held| conflict(held, &claim));
            if held || waiting.iter().any(|(_, before)| conflict(before, &claim)) {
                waiting.push((holder, claim));
            } else {
                self.claims.insert(holder, claim);
                granted.push(holder);
            }
        }
        self.queue = waiting;
        granted
    }

    fn release(&mut self, holder: Holder) -> Vec<Holder> {
        self.claims.remove(&holder);
        self.queue.retain(|(waiter, _)| *waiter != holder);
        self.settle()
    }
}

#[test]
fn requests_are_granted_as_by_comparing_each_with_all() {
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let (mut locks, mut plain) = (Locks::default(), Plain::default());
        for n in 0..200 {
            if dice.below(2) == 0 {
                let mut keys = Vec::new();
                for key in ["a", "b", "c", "d", "e"] {
                    if dice.below(2) == 0 {
                        keys.push((key, dice.below(3) > 0));
                    }
                }
                let held = locks.ask(a(n), claim(&keys));
                plain.queue.push((a(n), claim(&keys)));
                assert_eq!(plain.settle() == [a(n)], held, "seed {seed}");
            } else {
                let holder = a(dice.below(n + 1));
                assert_eq!(locks.release(holder), plain.release(holder), "seed {seed}");
            }
            check(&locks);
            for (at, (waiter, claim)) in plain.queue.iter().enumerate() {
                let held = plain.claims.iter().filter(|(_, held)| conflict(held, claim));
                let before = plain.queue[..at].iter().find(|(_, c)| conflict(c, claim));
                let before = before.map(|(holder, _)| *holder);
                let expected: Vec<Holder> = held.map(|(holder, _)| *holder).chain(before).collect();
                let found = locks.blockers(*waiter).into_iter().map(|(holder, _)| holder);
                assert_eq!(found.collect::<Vec<_>>(), expected, "seed {seed}");
            }
        }
        let all: Vec<Holder> = (0..200).map(a).collect();
        all.into_iter().for_each(|holder| drop(locks.release(holder)));
        assert!(locks.keys.is_empty() && locks.waiters.is_empty() && locks.tickets.is_empty());
    }
}

/// Each request and each release walked the whole queue, for each one in it.
#[test]
fn asking_and_releasing_cost_what_they_change() {
    const COUNT: u64 = 2_000;
    let names: Vec<String> = (0..COUNT).map(|n| n.to_string()).collect();
    let mut locks = Locks::default();
    // One queue of exclusive requests, and requests that share a key and wait for another each.
    assert!(locks.ask(a(0), claim(&[("x", false)])));
    for (n, name) in (1..).zip(&names) {
        assert!(locks.ask(Holder::Task(BroadcastId(n)), claim(&[(name, false)])));
        assert!(!locks.ask(a(n), claim(&[("x", false)])));
        assert!(!locks.ask(a(COUNT + n), claim(&[("y", true), (name, false)])));
    }
    for n in 0..COUNT {
        assert_eq!(locks.release(a(n)), [a(n + 1)]);
    }
    for n in 1..=COUNT {
        assert_eq!(locks.release(Holder::Task(BroadcastId(n))), [a(COUNT + n)]);
    }
    assert!(locks.looks < 20 * COUNT, "{} looks", locks.looks);
}

/// What a task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It has not asked.
    Ask,
    /// It has asked, and holds or waits.
    Leave,
    Gone,
}

/// Three tasks at some moment of an order.
#[derive(Clone)]
struct Moment {
    locks: Locks,
    turns: [Turn; 3],
}

impl Moment {
    /// Goes on in every order, and says how many there are: a task asks, releases what it holds, or
    /// gives up waiting.
    fn orders(&self, tasks: &[&Claim; 3]) -> u64 {
        let mut orders = 0;
        let mut may_go_on = false;
        for (number, task) in (0..).zip(tasks) {
            let at = usize::try_from(number).unwrap();
            let mut next = self.clone();
            match self.turns[at] {
                Turn::Gone => continue,
                Turn::Ask => {
                    next.locks.ask(a(number), (*task).clone());
                    next.turns[at] = Turn::Leave;
                }
                Turn::Leave => {
                    let granted = next.locks.release(a(number));
                    assert!(!granted.contains(&a(number)), "who has left gets nothing");
                    assert!(granted.iter().all(|other| next.locks.is_held(*other)));
                    assert!(next.locks.release(a(number)).is_empty(), "released twice");
                    next.turns[at] = Turn::Gone;
                }
            }
            may_go_on |= self.turns[at] == Turn::Ask || self.locks.is_held(a(number));
            check(&next.locks);
            orders += next.orders(tasks);
        }
        if self.turns == [Turn::Gone; 3] {
            assert!(self.locks.keys.is_empty() && self.locks.waiters.is_empty());
            assert!(self.locks.claims.is_empty() && self.locks.tickets.is_empty());
            return 1;
        }
        assert!(may_go_on, "all of them wait");
        orders
    }
}

/// Whether no other names for the three keys give claims that come before these.
fn is_first_of_its_names(claims: [usize; 3]) -> bool {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    orders.iter().all(|order| {
        let mut renamed = claims.map(|claim| {
            let modes = [claim % 3, claim / 3 % 3, claim / 9];
            modes[order[0]] + 3 * modes[order[1]] + 9 * modes[order[2]]
        });
        renamed.sort_unstable();
        claims <= renamed
    })
}

#[test]
fn every_order_of_three_tasks_over_three_keys_ends_without_a_hold() {
    // Each of three keys absent, shared or exclusive: a digit each.
    let claims: Vec<Claim> = (0..27_usize)
        .map(|n| {
            let modes = [n % 3, n / 3 % 3, n / 9];
            let keys = ["x", "y", "z"].into_iter().zip(modes);
            let keys: Vec<_> =
                keys.filter(|(_, mode)| *mode > 0).map(|(k, mode)| (k, mode == 1)).collect();
            claim(&keys)
        })
        .collect();
    let mut orders = 0;
    // As all orders are played, it does not matter which of the tasks has which claim.
    for (i, first) in claims.iter().enumerate() {
        for (j, second) in claims.iter().enumerate().skip(i) {
            for (k, third) in claims.iter().enumerate().skip(j) {
                if !is_first_of_its_names([i, j, k]) {
                    continue;
                }
                let begin = Moment { locks: Locks::default(), turns: [Turn::Ask; 3] };
                orders += begin.orders(&[first, second, third]);
            }
        }
    }
    println!("figure 11 orders of locks: {orders}");
}

#[test]
fn an_exclusive_waiter_is_not_overtaken_by_shared_ones() {
    let mut locks = Locks::default();
    assert!(locks.ask(a(1), claim(&[("x", true)])));
    assert!(!locks.ask(a(2), claim(&[("x", false)])));
    assert!(!locks.ask(a(3), claim(&[("x", true)])));
    assert_eq!(locks.release(a(1)), [a(2)]);
    assert_eq!(locks.release(a(2)), [a(3)]);
}

#[test]
fn a_waiter_that_gives_up_lets_those_behind_it_go() {
    let mut locks = Locks::default();
    assert!(locks.ask(a(1), claim(&[("x", true)])));
    assert!(!locks.ask(a(2), claim(&[("x", false)])));
    assert!(!locks.ask(a(3), claim(&[("x", true)])));
    // One that shares the key stops nobody that does so too.
    let blockers = locks.blockers(a(3));
    assert_eq!(blockers.iter().map(|(holder, _)| *holder).collect::<Vec<_>>(), [a(2)]);
    assert_eq!(locks.release(a(2)), [a(3)]);
    assert_eq!(locks.holder_count(), 2);
}

#[test]
fn releasing_twice_releases_once() {
    let mut locks = Locks::default();
    assert!(locks.ask(a(1), claim(&[("x", false)])));
    assert!(locks.release(a(1)).is_empty());
    assert!(locks.ask(a(2), claim(&[("x", false)])));
    assert!(locks.release(a(1)).is_empty());
    assert!(locks.is_held(a(2)));
    assert!(!locks.ask(a(3), claim(&[("x", true)])));
}

#[test]
fn a_transfer_keeps_the_keys_without_a_gap() {
    let mut locks = Locks::default();
    let (task, job) = (Holder::Task(BroadcastId(1)), Holder::Job(BroadcastId(1)));
    assert!(locks.ask(task, claim(&[("x", true), ("y", false)])));
    locks.transfer(task, job);
    assert!(locks.release(task).is_empty());
    assert!(!locks.ask(a(1), claim(&[("y", true)])));
    assert!(locks.ask(a(2), claim(&[("x", true)])));
    assert_eq!(locks.release(job), [a(1)]);
}

#[test]
fn a_key_named_shared_and_exclusive_is_exclusive() {
    let keys = claim(&[("x", true), ("x", false), ("a", true)]).resources;
    let keys: Vec<_> = keys.iter().map(|r| (r.key.as_str(), r.shared)).collect();
    assert_eq!(keys, [("a", true), ("x", false)]);
}
