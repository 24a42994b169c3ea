//! The idempotency window: which keys count, which may go.
//!
//! An index beside the tasks, kept by the state alone and a function of the records like it. It
//! holds no key: it counts them, and orders the tombstones whose work is terminal by expiry.

use std::collections::BTreeMap;

use oncelog_format::control::DropCause;
use oncelog_format::message::BroadcastId;

use super::order::{At, Order};
use super::policy::{Policy, WhenFull};

/// What keys have in common that become free in the order in which they were done: how long they
/// are kept, in milliseconds, and whether that was promised.
pub(crate) type Class = (u64, bool);

/// The keys of one principal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Share {
    count: usize,
    /// Done, work terminal: by the instant of Done.
    settled: BTreeMap<Class, Order>,
}

impl Share {
    /// How many are over, counted up to `enough`.
    fn over_count(&self, now_ms: u64, enough: usize) -> usize {
        let mut count = 0;
        for (class, order) in &self.settled {
            if let Some(until_ms) = done_until(class.0, now_ms) {
                count += order.count_until(until_ms, enough - count);
            }
            if count == enough {
                break;
            }
        }
        count
    }

    /// By class, the instant of Done and the identity of the first key that is not over.
    fn first_live(&self, now_ms: u64) -> impl Iterator<Item = (Class, At)> {
        self.settled.iter().filter_map(move |(class, order)| {
            let first = match done_until(class.0, now_ms) {
                Some(until_ms) => order.first_behind(until_ms),
                None => order.until(u64::MAX).next(),
            };
            Some((*class, first?))
        })
    }

    /// The oldest key without a promise that is not over anyway.
    fn victim(&self, now_ms: u64) -> Option<At> {
        self.first_live(now_ms).filter(|((_, firm), _)| !firm).map(|(_, at)| at).min()
    }

    fn next_free_ms(&self, now_ms: u64) -> Option<u64> {
        let until = |((lifetime_ms, _), (done_at_ms, _)): (Class, At)| {
            done_at_ms.saturating_add(lifetime_ms).saturating_sub(now_ms)
        };
        self.first_live(now_ms).map(until).min()
    }
}

/// The last instant of Done of keys that are over; `None` when there is none yet.
fn done_until(lifetime_ms: u64, now_ms: u64) -> Option<u64> {
    // At the end of time all are over, whatever their lifetime: it saturates.
    if now_ms == u64::MAX { Some(u64::MAX) } else { now_ms.checked_sub(lifetime_ms) }
}

/// The window, as the records have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    shares: BTreeMap<String, Share>,
    /// Keys of all shares.
    held: usize,
    expired: u64,
    evicted: u64,
    /// The latest instant until which an evicted key would have lived.
    evicted_until_ms: u64,
}

/// What the window says to one more key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It has room.
    Room,
    /// It has room once this key without a promise is dropped.
    Evict(BroadcastId),
    /// It is full.
    Full {
        /// Keys in it.
        count: usize,
        /// Most that it, or the principal's share, may hold.
        bound: usize,
        /// Milliseconds until a key is over, where that is known.
        next_free_in_ms: Option<u64>,
    },
}

/// Keys that are being admitted and hold a slot already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    pub(crate) all: usize,
    pub(crate) of_principal: usize,
    /// Another principal holds a reservation.
    pub(crate) others: bool,
}

impl Window {
    pub(super) fn enter(&mut self, principal: &str) {
        self.held += 1;
        match self.shares.get_mut(principal) {
            Some(share) => share.count += 1,
            None => {
                let share = Share { count: 1, ..Share::default() };
                self.shares.insert(principal.to_owned(), share);
            }
        }
    }

    /// Forgets a key that was settled so.
    pub(super) fn leave(
        &mut self,
        id: BroadcastId,
        principal: &str,
        cause: DropCause,
        done_at_ms: u64,
        class: Class,
    ) {
        self.unsettle(id, principal, done_at_ms, class);
        match cause {
            DropCause::Evicted => {
                self.evicted += 1;
                let until_ms = done_at_ms.saturating_add(class.0);
                self.evicted_until_ms = self.evicted_until_ms.max(until_ms);
            }
            _ => self.expired += 1,
        }
        if let Some(share) = self.shares.get_mut(principal) {
            share.count = share.count.saturating_sub(1);
            self.held = self.held.saturating_sub(1);
            if share.count == 0 {
                self.shares.remove(principal);
            }
        }
    }

    pub(super) fn settle(
        &mut self,
        id: BroadcastId,
        principal: &str,
        done_at_ms: u64,
        (lifetime_ms, firm): Class,
    ) {
        let Some(share) = self.shares.get_mut(principal) else { return };
        #[cfg(planted)]
        let firm = firm && !crate::planted::is_active(crate::planted::Bug::EvictPromised);
        share.settled.entry((lifetime_ms, firm)).or_default().insert((done_at_ms, id));
    }

    pub(super) fn unsettle(
        &mut self,
        id: BroadcastId,
        principal: &str,
        done_at_ms: u64,
        (lifetime_ms, firm): Class,
    ) {
        let Some(share) = self.shares.get_mut(principal) else { return };
        #[cfg(planted)]
        let firm = firm && !crate::planted::is_active(crate::planted::Bug::EvictPromised);
        if let Some(order) = share.settled.get_mut(&(lifetime_ms, firm)) {
            order.remove((done_at_ms, id));
            if order.is_empty() {
                share.settled.remove(&(lifetime_ms, firm));
            }
        }
    }

    /// Returns the keys that the window holds, those included whose time is over.
    #[must_use]
    pub fn held_count(&self) -> usize {
        self.held
    }

    /// Returns the keys that count at `now_ms`: all but those whose window is over and whose work
    /// is terminal.
    #[must_use]
    pub fn live_count(&self, now_ms: u64) -> usize {
        let live = |s: &Share| s.count.saturating_sub(s.over_count(now_ms, usize::MAX));
        self.shares.values().map(live).sum()
    }

    /// Returns how many keys were dropped because their window was over.
    #[must_use]
    pub fn expired_count(&self) -> u64 {
        self.expired
    }

    /// Returns how many keys without a promise were dropped to make room.
    #[must_use]
    pub fn evicted_count(&self) -> u64 {
        self.evicted
    }

    /// Returns the latest instant until which an evicted key would have lived, in milliseconds.
    pub(super) fn evicted_until_ms(&self) -> u64 {
        self.evicted_until_ms
    }

    /// Goes on from these counts of dropped keys.
    pub(super) fn count_dropped(&mut self, expired: u64, evicted: u64, evicted_until_ms: u64) {
        (self.expired, self.evicted) = (expired, evicted);
        self.evicted_until_ms = evicted_until_ms;
    }

    /// Returns for how long, in milliseconds, a key done at `now_ms` minus that is surely known:
    /// the lifetime, or less where a key was evicted that would live. Then it is the age of the
    /// oldest key that may be evicted next. A key with a promise says nothing of it, however old it
    /// is: it was never in danger.
    #[must_use]
    pub fn effective_ms(&self, lifetime_ms: u64, now_ms: u64) -> u64 {
        if self.evicted_until_ms <= now_ms {
            return lifetime_ms;
        }
        let oldest = self.shares.values().filter_map(|share| share.victim(now_ms)).min();
        oldest.map_or(0, |(done_at_ms, _)| now_ms.saturating_sub(done_at_ms)).min(lifetime_ms)
    }

    /// Returns up to `max` keys whose window is over at `now_ms`, in no order of all: what it costs
    /// follows `max`, and how many principals there are.
    pub(super) fn over(&self, now_ms: u64, max: usize) -> Vec<BroadcastId> {
        let classes = self.shares.values().flat_map(|share| &share.settled);
        let over = classes.filter_map(|(class, order)| Some((order, done_until(class.0, now_ms)?)));
        over.flat_map(|(order, until_ms)| order.until(until_ms))
            .take(max)
            .map(|(_, id)| id)
            .collect()
    }

    /// Says whether one more key of a principal fits.
    pub(crate) fn admit(
        &self,
        principal: &str,
        reserved: Reserved,
        policy: &Policy,
        now_ms: u64,
    ) -> Admission {
        // The share first: who is over it makes room with a key of its own, never with another's.
        if let Some(full) = self.admit_to_share(principal, reserved, policy, now_ms) {
            return full;
        }
        let bound = usize::try_from(policy.window_count_max).unwrap_or(usize::MAX);
        let held = self.held_count() + reserved.all;
        if held < bound {
            return Admission::Room;
        }
        // One more than are too many makes room: no more of them are counted.
        let mut enough = (held - bound).saturating_add(1);
        for share in self.shares.values() {
            enough -= share.over_count(now_ms, enough);
        }
        if enough == 0 {
            return Admission::Room;
        }
        let count = bound + enough - 1;
        let victim = self.shares.values().filter_map(|share| share.victim(now_ms)).min();
        let free = self.shares.values().filter_map(|s| s.next_free_ms(now_ms)).min();
        Self::full(policy, victim, (count, bound), free)
    }

    /// What the share of a principal says, where it is used up beside others.
    fn admit_to_share(
        &self,
        principal: &str,
        reserved: Reserved,
        policy: &Policy,
        now_ms: u64,
    ) -> Option<Admission> {
        if !reserved.others && self.shares.keys().all(|other| other == principal) {
            return None;
        }
        let bound = policy.principal_count_max();
        let none = Share::default();
        let share = self.shares.get(principal).unwrap_or(&none);
        let count = share.count + reserved.of_principal;
        if count < bound {
            return None;
        }
        let enough = (count - bound).saturating_add(1);
        let over = share.over_count(now_ms, enough);
        if over == enough {
            return None;
        }
        let (victim, free) = (share.victim(now_ms), share.next_free_ms(now_ms));
        Some(Self::full(policy, victim, (count - over, bound), free))
    }

    fn full(
        policy: &Policy,
        victim: Option<(u64, BroadcastId)>,
        (count, bound): (usize, usize),
        next_free_in_ms: Option<u64>,
    ) -> Admission {
        match victim {
            Some((_, id)) if policy.window_full == WhenFull::EvictOldest => Admission::Evict(id),
            _ => Admission::Full { count, bound, next_free_in_ms },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key as a naive window would keep it.
    #[derive(Clone, Copy)]
    struct Key {
        principal: &'static str,
        times: Option<(u64, u64)>,
        firm: bool,
    }

    fn unsettle(window: &mut Window, id: BroadcastId, key: &Key) {
        if let Some((done, until)) = key.times {
            window.unsettle(id, key.principal, done, (until - done, key.firm));
        }
    }

    #[test]
    fn the_index_says_what_counting_every_key_says() {
        let mut state = 42_u64;
        let mut roll = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % sides
        };
        let (mut window, mut keys) = (Window::default(), BTreeMap::<BroadcastId, Key>::new());
        let mut next = 0;
        for now_ms in 0..5_000 {
            let some = keys.keys().nth(usize::try_from(roll(8)).unwrap()).copied();
            match (roll(5), some) {
                (0 | 1, _) => {
                    next += 1;
                    let principal = ["x", "y"][usize::try_from(roll(2)).unwrap()];
                    window.enter(principal);
                    let key = Key { principal, times: None, firm: roll(2) == 0 };
                    keys.insert(BroadcastId(next), key);
                }
                (2, Some(id)) => {
                    let key = keys.get_mut(&id).unwrap();
                    let times = (now_ms, now_ms + roll(50));
                    unsettle(&mut window, id, key);
                    window.settle(id, key.principal, times.0, (times.1 - times.0, key.firm));
                    key.times = Some(times);
                }
                (3, Some(id)) => {
                    let key = keys.get_mut(&id).unwrap();
                    unsettle(&mut window, id, key);
                    key.times = None;
                }
                (4, Some(id)) => {
                    let key = keys.remove(&id).unwrap();
                    let (done, until) = key.times.unwrap_or_default();
                    let class = (until - done, key.firm);
                    window.leave(id, key.principal, DropCause::Expired, done, class);
                }
                _ => {}
            }
            let over = |key: &Key| key.times.is_some_and(|(_, until)| until <= now_ms);
            assert_eq!(window.held_count(), keys.len());
            let live = keys.values().filter(|key| !over(key)).count();
            assert_eq!(window.live_count(now_ms), live);
            let mut gone: Vec<_> =
                keys.iter().filter(|(_, key)| over(key)).map(|(id, _)| *id).collect();
            let mut said = window.over(now_ms, usize::MAX);
            gone.sort();
            said.sort();
            assert_eq!(said, gone);
            let policy = Policy {
                window_count_max: u64::try_from(live).unwrap().max(1),
                window_full: WhenFull::EvictOldest,
                principal_share_max: 100,
                ..Policy::default()
            };
            let evictable = keys.iter().filter(|(_, key)| !key.firm && !over(key));
            let oldest = evictable.filter_map(|(id, key)| Some((key.times?.0, *id))).min();
            let expected = match oldest {
                _ if live == 0 => Admission::Room,
                Some((_, id)) => Admission::Evict(id),
                None => {
                    let until = keys.values().filter(|key| !over(key)).filter_map(|k| k.times);
                    let next_free_in_ms = until.map(|(_, until)| until - now_ms).min();
                    Admission::Full { count: live, bound: live, next_free_in_ms }
                }
            };
            assert_eq!(window.admit("x", Reserved::default(), &policy, now_ms), expected);
        }
    }
}
