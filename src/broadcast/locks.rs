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
#[cfg_attr(test, derive(Clone))]
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
#[cfg_attr(test, derive(Clone))]
struct Waiter {
    holder: Holder,
    claim: Claim,
    /// Keys that stop it.
    stopped_by: usize,
}

/// The table.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
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

    /// Returns every holder that conflicts with a waiting request, by identity, and behind them the
    /// first request before it that does. All of them: what one does says nothing of the others.
    pub(crate) fn blockers(&self, waiter: Holder) -> Vec<(Holder, &Claim)> {
        let found = self.tickets.get(&waiter);
        let found = found.and_then(|ticket| Some((*ticket, self.waiters.get(ticket)?)));
        let Some((ticket, waiter)) = found else { return Vec::new() };
        let resources = waiter.claim.resources.iter();
        let keys = resources.filter_map(|r| Some((self.keys.get(&object(r))?, r.shared)));
        let mut held = BTreeSet::new();
        for (key, shared) in keys.clone() {
            match &key.hold {
                Some(Hold::Exclusive(by)) => held.extend([*by]),
                Some(Hold::Shared(holders)) if !shared => held.extend(holders),
                _ => {}
            }
        }
        let mut blockers: Vec<(Holder, &Claim)> = held
            .into_iter()
            .filter_map(|holder| self.claims.get(&holder).map(|claim| (holder, claim)))
            .collect();
        let before =
            keys.filter_map(
                |(key, shared)| {
                    if shared { key.exclusive.first() } else { key.queue.keys().next() }
                },
            );
        let before = before.min().filter(|before| **before < ticket);
        let before = before.and_then(|before| self.waiters.get(before));
        blockers.extend(before.map(|before| (before.holder, &before.claim)));
        blockers
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
mod tests;
