//! The idempotency window: which keys count, which may go.
//!
//! An index beside the tasks, kept by the state alone and a function of the records like it. It
//! holds no key: it counts them, and orders the tombstones whose work is terminal by expiry.

use std::collections::BTreeMap;

use oncelog_format::control::{DropCause, Facts};
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

    /// Whether one of its keys is not over.
    fn is_live(&self, now_ms: u64) -> bool {
        let settled: usize = self.settled.values().map(Order::count).sum();
        self.count > settled || self.first_live(now_ms).next().is_some()
    }

    /// By class, the instant of Done and the identity of the first key that is not over.
    fn first_live(&self, now_ms: u64) -> impl Iterator<Item = (Class, At)> {
        let first = move |(class, order): (&Class, &Order)| {
            Some((*class, live_of(order, class.0, now_ms).next()?))
        };
        self.settled.iter().filter_map(first)
    }

    /// The oldest key without a promise that is not over anyway.
    fn victim(&self, now_ms: u64) -> Option<At> {
        self.first_live(now_ms).filter(|((_, firm), _)| !firm).map(|(_, at)| at).min()
    }

    /// The `max` oldest of these, in no order, and others.
    fn victims(&self, now_ms: u64, max: usize) -> impl Iterator<Item = At> {
        let best_effort = self.settled.iter().filter(|((_, firm), _)| !firm);
        best_effort.flat_map(move |(class, order)| live_of(order, class.0, now_ms).take(max))
    }

    fn next_free_ms(&self, now_ms: u64) -> Option<u64> {
        let until = |((lifetime_ms, _), (done_at_ms, _)): (Class, At)| {
            done_at_ms.saturating_add(lifetime_ms).saturating_sub(now_ms)
        };
        self.first_live(now_ms).map(until).min()
    }
}

/// The keys of a class that are not over, the oldest first.
fn live_of(order: &Order, lifetime_ms: u64, now_ms: u64) -> impl Iterator<Item = At> {
    let until_ms = done_until(lifetime_ms, now_ms);
    let all = until_ms.is_none().then(|| order.until(u64::MAX));
    let behind = until_ms.map(|until_ms| order.behind(until_ms));
    all.into_iter().flatten().chain(behind.into_iter().flatten())
}

/// The `max` oldest of some keys, in their order.
fn oldest_of(mut keys: Vec<At>, max: usize) -> Vec<At> {
    keys.sort_unstable();
    keys.truncate(max);
    keys
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
    /// The latest instant of Done of an evicted key.
    evicted_done_ms: u64,
}

/// Most keys that make room for one: their records go in one batch with its acceptance. A bound
/// that was lowered by more takes hold over several of them.
pub(super) const EVICT_COUNT_MAX: usize = 32;

/// What the window says to one more key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It has room.
    Room,
    /// It has room once these keys without a promise are dropped.
    Evict(Vec<BroadcastId>),
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

/// More keys than a bound allows, one that is being admitted with them.
#[derive(Clone, Copy, Debug)]
struct Excess {
    /// Keys that count.
    count: usize,
    bound: usize,
    /// How many have to go: at least one.
    by: usize,
}

impl Excess {
    /// What `count` keys and one more come to, of which `over` counts, up to a number, those that
    /// are over.
    fn of(count: usize, bound: usize, over: impl FnOnce(usize) -> usize) -> Option<Self> {
        // One more than are too many makes room: no more of them are counted.
        let enough = count.checked_sub(bound)?.saturating_add(1);
        let over = over(enough);
        (over < enough).then(|| Self { count: count - over, bound, by: enough - over })
    }

    /// What is said where there are no more keys to make room with.
    fn told(self, next_free_in_ms: Option<u64>) -> Admission {
        Admission::Full { count: self.count, bound: self.bound, next_free_in_ms }
    }
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
                self.evicted_done_ms = self.evicted_done_ms.max(done_at_ms);
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

    /// Returns the latest instant of Done of an evicted key, in milliseconds.
    pub(super) fn evicted_done_ms(&self) -> u64 {
        self.evicted_done_ms
    }

    /// Goes on from what a checkpoint says of dropped keys.
    pub(super) fn count_dropped(&mut self, facts: &Facts) {
        (self.expired, self.evicted) = (facts.expired, facts.evicted);
        self.evicted_until_ms = facts.evicted_until_ms;
        self.evicted_done_ms = facts.evicted_done_ms;
    }

    /// Returns for how long, in milliseconds, a key of any principal that was accepted with
    /// `lifetime_ms`, and done at `now_ms` minus that, is surely known: the lifetime, or less as
    /// long as a key is gone that was evicted and would live. Then it is the age of the oldest key
    /// that may be evicted next, and less than that of the youngest that was: each principal makes
    /// room with keys of its own. A key with a promise says nothing of it, however old it is: it
    /// was never in danger.
    #[must_use]
    pub fn effective_ms(&self, lifetime_ms: u64, now_ms: u64) -> u64 {
        if self.evicted_until_ms <= now_ms {
            return lifetime_ms;
        }
        let behind_evicted_ms = now_ms.saturating_sub(self.evicted_done_ms).saturating_sub(1);
        let oldest = self.shares.values().filter_map(|share| share.victim(now_ms)).min();
        let age_ms = oldest.map_or(u64::MAX, |(done_at_ms, _)| now_ms.saturating_sub(done_at_ms));
        age_ms.min(behind_evicted_ms).min(lifetime_ms)
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

    /// The oldest keys without a promise that are not over, of all principals.
    pub(super) fn oldest(&self, now_ms: u64) -> Vec<BroadcastId> {
        let victims = |share: &'_ Share| share.victims(now_ms, EVICT_COUNT_MAX).collect::<Vec<_>>();
        let all = self.shares.values().flat_map(victims).collect();
        oldest_of(all, EVICT_COUNT_MAX).into_iter().map(|(_, id)| id).collect()
    }

    /// Milliseconds until a key is over, where that is known.
    pub(super) fn next_free_in_ms(&self, now_ms: u64) -> Option<u64> {
        self.shares.values().filter_map(|share| share.next_free_ms(now_ms)).min()
    }

    /// Says whether one more key of a principal fits.
    pub(crate) fn admit(
        &self,
        principal: &str,
        reserved: Reserved,
        policy: &Policy,
        now_ms: u64,
    ) -> Admission {
        let of_share = self.beyond_share(principal, reserved, policy, now_ms);
        let of_all = self.beyond_bound(reserved, policy, now_ms);
        let (share, all) = (self.shares.get(principal), || self.shares.values());
        let evicts = policy.window_full == WhenFull::EvictOldest;
        let mut victims = Vec::new();
        // The share first: who is over it makes room with keys of its own, never with another's.
        if let Some(excess) = of_share {
            let by = if evicts { excess.by.min(EVICT_COUNT_MAX) } else { 0 };
            let own = share.into_iter().flat_map(|share| share.victims(now_ms, by));
            victims = oldest_of(own.collect(), by);
            if victims.is_empty() || victims.len() < by {
                return excess.told(share.and_then(|share| share.next_free_ms(now_ms)));
            }
        }
        if let Some(excess) = of_all {
            let by = if evicts { excess.by.min(EVICT_COUNT_MAX) } else { 0 };
            let oldest = all().flat_map(|share| share.victims(now_ms, by)).collect();
            for at in oldest_of(oldest, by) {
                if victims.len() < by && !victims.contains(&at) {
                    victims.push(at);
                }
            }
            if victims.is_empty() || victims.len() < by {
                return excess.told(self.next_free_in_ms(now_ms));
            }
        }
        if victims.is_empty() {
            return Admission::Room;
        }
        Admission::Evict(victims.into_iter().map(|(_, id)| id).collect())
    }

    /// How far the window is over its bound, with one more key.
    fn beyond_bound(&self, reserved: Reserved, policy: &Policy, now_ms: u64) -> Option<Excess> {
        let bound = usize::try_from(policy.window_count_max).unwrap_or(usize::MAX);
        Excess::of(self.held_count() + reserved.all, bound, |enough| {
            self.shares
                .values()
                .fold(0, |over, share| over + share.over_count(now_ms, enough - over))
        })
    }

    /// How far a principal is over its share, with one more key, beside others with a key that
    /// lives.
    fn beyond_share(
        &self,
        principal: &str,
        reserved: Reserved,
        policy: &Policy,
        now_ms: u64,
    ) -> Option<Excess> {
        let none = Share::default();
        let share = self.shares.get(principal).unwrap_or(&none);
        let (bound, count) = (policy.principal_count_max(), share.count + reserved.of_principal);
        let excess = Excess::of(count, bound, |enough| share.over_count(now_ms, enough))?;
        let is_other =
            |(other, share): (&String, &Share)| other != principal && share.is_live(now_ms);
        (reserved.others || self.shares.iter().any(is_other)).then_some(excess)
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

    impl Key {
        fn is_over(&self, now_ms: u64) -> bool {
            self.times.is_some_and(|(_, until)| until <= now_ms)
        }
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
            let over = |key: &Key| key.is_over(now_ms);
            assert_eq!(window.held_count(), keys.len());
            let live = keys.values().filter(|key| !over(key)).count();
            assert_eq!(window.live_count(now_ms), live);
            let mut gone: Vec<_> =
                keys.iter().filter(|(_, key)| over(key)).map(|(id, _)| *id).collect();
            let mut said = window.over(now_ms, usize::MAX);
            gone.sort();
            said.sort();
            assert_eq!(said, gone);
            check_bounds(&window, &keys, now_ms);
        }
    }

    /// What one more key is told, of another principal, at the number of live keys and below.
    fn check_bounds(window: &Window, keys: &BTreeMap<BroadcastId, Key>, now_ms: u64) {
        let live = keys.iter().filter(|(_, key)| !key.is_over(now_ms));
        let live: Vec<(BroadcastId, Key)> = live.map(|(id, key)| (*id, *key)).collect();
        let evictable = live.iter().filter(|(_, key)| !key.firm);
        let mut evictable: Vec<_> =
            evictable.filter_map(|(id, key)| Some((key.times?.0, *id))).collect();
        evictable.sort_unstable();
        // As many as there are, and where the bound was lowered by one and by three.
        for below in [0, 1, 3] {
            let count = live.len();
            let bound = count.saturating_sub(below).max(1);
            let policy = Policy {
                window_count_max: u64::try_from(bound).unwrap(),
                window_full: WhenFull::EvictOldest,
                principal_share_max: 100,
                ..Policy::default()
            };
            let by = (count + 1).saturating_sub(bound);
            let expected = if by == 0 {
                Admission::Room
            } else if let Some(oldest) = evictable.get(..by) {
                Admission::Evict(oldest.iter().map(|(_, id)| *id).collect())
            } else {
                let until = live.iter().filter_map(|(_, key)| key.times);
                let next_free_in_ms = until.map(|(_, until)| until - now_ms).min();
                Admission::Full { count, bound, next_free_in_ms }
            };
            assert_eq!(window.admit("z", Reserved::default(), &policy, now_ms), expected);
        }
    }

    /// Keys of these principals, done one millisecond after the other from 1 on, without a promise.
    fn filled(principals: &[&str]) -> Window {
        let mut window = Window::default();
        for (id, principal) in (1..).zip(principals) {
            window.enter(principal);
            window.settle(BroadcastId(id), principal, id, (1_000, false));
        }
        window
    }

    #[track_caller]
    fn check(window: &Window, principal: &str, count_max: u64, at_ms: u64, evicts: &[u64]) {
        let policy = Policy {
            window_count_max: count_max,
            window_full: WhenFull::EvictOldest,
            principal_share_max: 50,
            ..Policy::default()
        };
        let evicted = evicts.iter().map(|id| BroadcastId(*id)).collect();
        let expected = if evicts.is_empty() { Admission::Room } else { Admission::Evict(evicted) };
        assert_eq!(window.admit(principal, Reserved::default(), &policy, at_ms), expected);
    }

    #[test]
    fn a_share_makes_room_with_its_own_and_the_bound_with_the_oldest_of_all() {
        let window = filled(&["y", "x", "x", "y", "x"]);
        check(&window, "x", 8, 100, &[]);
        // Three of x, where a share is two: two go, and there is one more.
        check(&window, "x", 5, 100, &[2, 3]);
        // Of the bound of four its own two are enough; of three one more has to go.
        check(&window, "x", 4, 100, &[2, 3]);
        check(&window, "y", 4, 100, &[1, 2]);
        check(&window, "x", 2, 100, &[2, 3, 5, 1]);
        // A bound that was lowered by more than one acceptance makes room for takes hold in turns.
        let many = filled(&["x"; 100]);
        let first: Vec<u64> = (1..=32).collect();
        check(&many, "x", 8, 200, &first);
    }

    #[test]
    fn a_principal_whose_keys_are_all_over_is_no_other() {
        let mut window = filled(&["y", "x", "x"]);
        check(&window, "x", 4, 1_000, &[2]);
        // The key of y is over at 1,001, swept or not.
        check(&window, "x", 4, 1_001, &[]);
        // One that runs is no such key.
        window.enter("y");
        check(&window, "x", 4, 1_001, &[2]);
    }

    #[test]
    fn the_effective_window_is_below_the_age_of_every_key_that_was_evicted() {
        let mut window = filled(&["y", "x"]);
        assert_eq!(window.effective_ms(1_000, 500), 1_000);
        window.leave(BroadcastId(2), "x", DropCause::Evicted, 2, (1_000, false));
        // That of y is older, and there; that of x is gone.
        assert_eq!(window.effective_ms(1_000, 500), 497);
        assert_eq!(window.effective_ms(1_000, 1_001), 998);
        assert_eq!(window.effective_ms(1_000, 1_002), 1_000);
        window.leave(BroadcastId(1), "y", DropCause::Evicted, 1, (1_000, false));
        assert_eq!(window.effective_ms(1_000, 500), 497);
        assert_eq!(window.effective_ms(1_000, 2), 0);
    }
}
