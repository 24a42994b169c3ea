//! Resource locks: shared or exclusive, in the order of asking.
//!
//! A plain table without threads: who waits, and for how long, is its user's affair. A request is
//! granted whole or not at all, so that nobody holds a key while waiting for another: no cycle can
//! form, whatever the order in which keys are named. It is granted when no holder, and no request
//! before it in the queue, conflicts with it: an exclusive waiter is never overtaken by those that
//! would keep it waiting.
//!
//! Every key knows who waits for it, in the order of asking, and how far down that order it stops
//! nobody. Each request counts the keys that stop it, and is granted when none does. So asking and
//! releasing cost what they change, however many wait for other keys, or further behind.
//!
//! A holder is released once: releasing it again changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use oncelog_format::message::{BroadcastId, Resource};

/// Who holds or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// A request before its acceptance, by a number of its own.
    Admission(u64),
    /// A task, from its acceptance to its end.
    Task(BroadcastId),
    /// A job, from the end of its broadcast to its own.
    Job(BroadcastId),
}

/// What a holder is, for errors that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The keys, sorted and unique.
    pub(crate) resources: Vec<Resource>,
    /// Type of its message.
    pub(crate) message_type: String,
    /// Log time since which it holds, in milliseconds.
    pub(crate) since_ms: u64,
}

/// Who holds one key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hold {
    Exclusive(Holder),
    Shared(BTreeSet<Holder>),
}

/// A place in the order of asking.
type Ticket = u64;

/// One key that is held or waited for.
#[derive(Debug, Default)]
struct Key {
    hold: Option<Hold>,
    /// Who waits for it, and whether shared.
    queue: BTreeMap<Ticket, bool>,
    /// Who of them does so exclusively.
    exclusive: BTreeSet<Ticket>,
    /// The key does not stop those that wait before this one, and stops all others.
    passed: Ticket,
}

impl Key {
    /// Says whether the key stops a request, given who holds it and who waits before.
    fn stops(&self, ticket: Ticket, shared: bool) -> bool {
        let before = |first: Option<Ticket>| first.is_some_and(|first| first < ticket);
        match &self.hold {
            Some(Hold::Exclusive(_)) => true,
            Some(Hold::Shared(_)) if !shared => true,
            _ if shared => before(self.exclusive.first().copied()),
            _ => before(self.queue.keys().next().copied()),
        }
    }

    /// Returns the next one in the queue that the key no longer stops.
    fn pass(&mut self) -> Option<Ticket> {
        let (ticket, shared) = self.queue.range(self.passed..).next()?;
        let (ticket, shared) = (*ticket, *shared);
        if self.stops(ticket, shared) {
            return None;
        }
        self.passed = ticket + 1;
        Some(ticket)
    }

    fn is_idle(&self) -> bool {
        self.hold.is_none() && self.queue.is_empty()
    }
}

/// A request that waits.
#[derive(Debug)]
struct Waiter {
    holder: Holder,
    claim: Claim,
    /// Keys that stop it.
    stopped_by: usize,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    keys: HashMap<(String, String), Key>,
    claims: BTreeMap<Holder, Claim>,
    waiters: BTreeMap<Ticket, Waiter>,
    tickets: HashMap<Holder, Ticket>,
    next: Ticket,
    /// Looks at a key, and at a request behind it.
    #[cfg(test)]
    looks: u64,
}

/// Sorts keys and leaves one of each, exclusive where either was.
pub(crate) fn canonical(resources: &[Resource]) -> Vec<Resource> {
    let mut keys: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for resource in resources {
        let shared = keys.entry((&resource.domain, &resource.key)).or_insert(true);
        *shared &= resource.shared;
    }
    let whole = |((domain, key), shared): ((&str, &str), bool)| Resource {
        domain: domain.to_owned(),
        key: key.to_owned(),
        shared,
    };
    keys.into_iter().map(whole).collect()
}

fn object(resource: &Resource) -> (String, String) {
    (resource.domain.clone(), resource.key.clone())
}

fn conflict(a: &Claim, b: &Claim) -> bool {
    // Both are sorted by key: walk them together.
    let (mut left, mut right) = (a.resources.iter().peekable(), b.resources.iter().peekable());
    while let (Some(x), Some(y)) = (left.peek(), right.peek()) {
        let (kx, ky) = ((&x.domain, &x.key), (&y.domain, &y.key));
        match kx.cmp(&ky) {
            std::cmp::Ordering::Less => left.next(),
            std::cmp::Ordering::Greater => right.next(),
            std::cmp::Ordering::Equal if x.shared && y.shared => left.next(),
            std::cmp::Ordering::Equal => return true,
        };
    }
    false
}

impl Locks {
    /// Asks for keys: true when they are held from here on, false when the request waits.
    pub(crate) fn ask(&mut self, holder: Holder, claim: Claim) -> bool {
        let ticket = self.next;
        self.next += 1;
        let stops = |resource: &&Resource| {
            let key = self.keys.get(&object(resource));
            key.is_some_and(|key| key.stops(ticket, resource.shared))
        };
        let stopped_by = claim.resources.iter().filter(stops).count();
        if stopped_by == 0 {
            self.seize(holder, claim);
            return true;
        }
        for resource in &claim.resources {
            let key = self.keys.entry(object(resource)).or_default();
            if !key.stops(ticket, resource.shared) {
                // Nor does it stop anybody before.
                key.passed = ticket + 1;
            }
            key.queue.insert(ticket, resource.shared);
            if !resource.shared {
                key.exclusive.insert(ticket);
            }
        }
        self.tickets.insert(holder, ticket);
        self.waiters.insert(ticket, Waiter { holder, claim, stopped_by });
        false
    }

    /// Takes keys without asking: for work that held them before a restart, and so conflicts with
    /// nobody.
    pub(crate) fn seize(&mut self, holder: Holder, claim: Claim) {
        for resource in &claim.resources {
            let hold = &mut self.keys.entry(object(resource)).or_default().hold;
            match hold {
                Some(Hold::Shared(holders)) if resource.shared => {
                    holders.insert(holder);
                }
                _ if resource.shared => *hold = Some(Hold::Shared(BTreeSet::from([holder]))),
                _ => *hold = Some(Hold::Exclusive(holder)),
            }
        }
        self.claims.insert(holder, claim);
    }

    /// Says whether a holder has its keys.
    pub(crate) fn is_held(&self, holder: Holder) -> bool {
        self.claims.contains_key(&holder)
    }

    /// Gives up keys, or a place in the queue; returns who is granted by that.
    pub(crate) fn release(&mut self, holder: Holder) -> Vec<Holder> {
        let mut ready = BTreeSet::new();
        if let Some(ticket) = self.tickets.remove(&holder)
            && let Some(waiter) = self.waiters.remove(&ticket)
        {
            self.unqueue(ticket, &waiter.claim);
            waiter.claim.resources.iter().for_each(|resource| self.pass(resource, &mut ready));
        }
        if let Some(claim) = self.claims.remove(&holder) {
            for resource in &claim.resources {
                self.unhold(resource, holder);
                self.pass(resource, &mut ready);
            }
        }
        // None of them conflicts with another: a key passes one exclusive request, or shared ones.
        ready.into_iter().filter_map(|ticket| self.grant(ticket)).collect()
    }

    /// Makes another the holder of the same keys.
    pub(crate) fn transfer(&mut self, from: Holder, to: Holder) {
        let Some(claim) = self.claims.remove(&from) else { return };
        for resource in &claim.resources {
            match self.keys.get_mut(&object(resource)).and_then(|key| key.hold.as_mut()) {
                Some(Hold::Exclusive(by)) if *by == from => *by = to,
                Some(Hold::Shared(holders)) => {
                    holders.remove(&from);
                    holders.insert(to);
                }
                _ => {}
            }
        }
        self.claims.insert(to, claim);
    }

    /// Returns a holder that conflicts with a waiting request, or the request before it that does.
    pub(crate) fn blocker(&self, waiter: Holder) -> Option<(Holder, &Claim)> {
        let ticket = self.tickets.get(&waiter)?;
        let resources = &self.waiters.get(ticket)?.claim.resources;
        let keys = resources.iter().filter_map(|r| Some((self.keys.get(&object(r))?, r.shared)));
        let held = keys.clone().filter_map(|(key, shared)| match key.hold.as_ref()? {
            Hold::Exclusive(by) => Some(*by),
            Hold::Shared(holders) => holders.first().copied().filter(|_| !shared),
        });
        if let Some(holder) = held.min() {
            return self.claims.get(&holder).map(|claim| (holder, claim));
        }
        let before =
            keys.filter_map(
                |(key, shared)| {
                    if shared { key.exclusive.first() } else { key.queue.keys().next() }
                },
            );
        let before = self.waiters.get(before.min().filter(|before| *before < ticket)?)?;
        Some((before.holder, &before.claim))
    }

    /// Returns how many hold keys.
    #[cfg(test)]
    pub(crate) fn holder_count(&self) -> usize {
        self.claims.len()
    }

    /// Says whether two sets of keys conflict, the one being held by `holder`.
    pub(crate) fn conflicts_with(&self, holder: Holder, resources: &[Resource]) -> bool {
        let claim = |resources: &[Resource]| Claim {
            resources: resources.to_vec(),
            message_type: String::new(),
            since_ms: 0,
        };
        self.claims.get(&holder).is_some_and(|held| conflict(held, &claim(resources)))
    }

    /// Takes a request out of the queues of its keys.
    fn unqueue(&mut self, ticket: Ticket, claim: &Claim) {
        for resource in &claim.resources {
            if let Some(key) = self.keys.get_mut(&object(resource)) {
                key.queue.remove(&ticket);
                key.exclusive.remove(&ticket);
            }
        }
    }

    fn unhold(&mut self, resource: &Resource, holder: Holder) {
        let Some(key) = self.keys.get_mut(&object(resource)) else { return };
        let is_free = match &mut key.hold {
            Some(Hold::Exclusive(by)) => *by == holder,
            Some(Hold::Shared(holders)) => {
                holders.remove(&holder);
                holders.is_empty()
            }
            None => false,
        };
        if is_free {
            key.hold = None;
        }
    }

    /// Looks whom a key no longer stops; adds those that no key stops.
    fn pass(&mut self, resource: &Resource, ready: &mut BTreeSet<Ticket>) {
        let object = object(resource);
        #[cfg(test)]
        {
            self.looks += 1;
        }
        while let Some(ticket) = self.keys.get_mut(&object).and_then(Key::pass) {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let Some(waiter) = self.waiters.get_mut(&ticket) else { continue };
            waiter.stopped_by = waiter.stopped_by.saturating_sub(1);
            if waiter.stopped_by == 0 {
                ready.insert(ticket);
            }
        }
        if self.keys.get(&object).is_some_and(Key::is_idle) {
            self.keys.remove(&object);
        }
    }

    /// Grants a request that no key stops. Nobody behind it notices: what it stopped as a request,
    /// it stops as a holder.
    fn grant(&mut self, ticket: Ticket) -> Option<Holder> {
        let Waiter { holder, claim, .. } = self.waiters.remove(&ticket)?;
        self.tickets.remove(&holder);
        self.unqueue(ticket, &claim);
        self.seize(holder, claim);
        Some(holder)
    }
}

#[cfg(test)]
mod tests {
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
                    let held = plain.claims.iter().find(|(_, held)| conflict(held, claim));
                    let before = || plain.queue[..at].iter().find(|(_, c)| conflict(c, claim));
                    let expected = held.map(|(holder, _)| *holder);
                    let expected = expected.or_else(|| before().map(|(holder, _)| *holder));
                    let found = locks.blocker(*waiter).map(|(holder, _)| holder);
                    assert_eq!(found, expected, "seed {seed}");
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

    #[test]
    fn every_order_of_three_tasks_over_three_keys_ends_without_a_hold() {
        // Each task: each of three keys absent, shared or exclusive; every order of asking and of
        // releasing.
        let claims: Vec<Claim> = (0..27_usize)
            .map(|n| {
                let modes = [n % 3, n / 3 % 3, n / 9];
                let keys = ["x", "y", "z"].into_iter().zip(modes);
                let keys: Vec<_> =
                    keys.filter(|(_, mode)| *mode > 0).map(|(k, mode)| (k, mode == 1)).collect();
                claim(&keys)
            })
            .collect();
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for n in 0..27_usize.pow(3) {
            let tasks = [&claims[n % 27], &claims[n / 27 % 27], &claims[n / 729]];
            for order in orders {
                let mut locks = Locks::default();
                let mut held = Vec::new();
                for (number, task) in (0..).zip(tasks) {
                    if locks.ask(a(number), task.clone()) {
                        held.push(a(number));
                    }
                    check(&locks);
                }
                let mut released = 0;
                while let Some(at) =
                    order.iter().find_map(|n| held.iter().position(|holder| *holder == a(*n)))
                {
                    let granted = locks.release(held.swap_remove(at));
                    held.extend(granted);
                    released += 1;
                    check(&locks);
                }
                assert_eq!(released, 3, "a task never got its keys");
                assert!(locks.keys.is_empty() && locks.waiters.is_empty());
            }
        }
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
        assert_eq!(locks.blocker(a(3)).map(|(holder, _)| holder), Some(a(2)));
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
}
