//! Resource locks: shared or exclusive, in the order of asking.
//!
//! A plain table without threads: who waits, and for how long, is its user's affair. A request is
//! granted whole or not at all, so that nobody holds a key while waiting for another: no cycle can
//! form, whatever the order in which keys are named. It is granted when no holder, and no request
//! before it in the queue, conflicts with it: an exclusive waiter is never overtaken by those that
//! would keep it waiting.
//!
//! A holder is released once: releasing it again changes nothing.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

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
    Shared(HashSet<Holder>),
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    holds: HashMap<(String, String), Hold>,
    claims: BTreeMap<Holder, Claim>,
    queue: VecDeque<(Holder, Claim)>,
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
        if self.is_free(&claim) && !self.queue.iter().any(|(_, before)| conflict(before, &claim)) {
            self.seize(holder, claim);
            return true;
        }
        self.queue.push_back((holder, claim));
        false
    }

    /// Takes keys without asking: for work that held them before a restart, and so conflicts with
    /// nobody.
    pub(crate) fn seize(&mut self, holder: Holder, claim: Claim) {
        for resource in &claim.resources {
            let hold = self.holds.entry(object(resource));
            if resource.shared {
                let hold = hold.or_insert_with(|| Hold::Shared(HashSet::new()));
                if let Hold::Shared(holders) = hold {
                    holders.insert(holder);
                }
            } else {
                hold.insert_entry(Hold::Exclusive(holder));
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
        self.queue.retain(|(waiter, _)| *waiter != holder);
        if let Some(claim) = self.claims.remove(&holder) {
            for resource in &claim.resources {
                let key = object(resource);
                let empty = match self.holds.get_mut(&key) {
                    Some(Hold::Exclusive(by)) => *by == holder,
                    Some(Hold::Shared(holders)) => {
                        holders.remove(&holder);
                        holders.is_empty()
                    }
                    None => false,
                };
                if empty {
                    self.holds.remove(&key);
                }
            }
        }
        self.grant()
    }

    /// Makes another the holder of the same keys.
    pub(crate) fn transfer(&mut self, from: Holder, to: Holder) {
        let Some(claim) = self.claims.remove(&from) else { return };
        for resource in &claim.resources {
            match self.holds.get_mut(&object(resource)) {
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
        let claim = &self.queue.iter().find(|(holder, _)| *holder == waiter)?.1;
        let held = self.claims.iter().find(|(_, held)| conflict(held, claim));
        let mut before = self.queue.iter().take_while(|(holder, _)| *holder != waiter);
        held.map(|(holder, held)| (*holder, held)).or_else(|| {
            before.find(|(_, held)| conflict(held, claim)).map(|(holder, held)| (*holder, held))
        })
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

    fn is_free(&self, claim: &Claim) -> bool {
        claim.resources.iter().all(|resource| match self.holds.get(&object(resource)) {
            None => true,
            Some(Hold::Exclusive(_)) => false,
            Some(Hold::Shared(_)) => resource.shared,
        })
    }

    fn grant(&mut self) -> Vec<Holder> {
        let mut granted = Vec::new();
        let mut waiting: VecDeque<(Holder, Claim)> = VecDeque::new();
        for (holder, claim) in std::mem::take(&mut self.queue) {
            if self.is_free(&claim) && !waiting.iter().any(|(_, before)| conflict(before, &claim)) {
                self.seize(holder, claim);
                granted.push(holder);
            } else {
                waiting.push_back((holder, claim));
            }
        }
        self.queue = waiting;
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (at, (_, waiter)) in locks.queue.iter().enumerate() {
            let held = locks.claims.values().any(|held| conflict(held, waiter));
            let before = locks.queue.iter().take(at).any(|(_, before)| conflict(before, waiter));
            assert!(held || before, "a request waits for nothing");
        }
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
                assert!(locks.holds.is_empty() && locks.queue.is_empty());
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
