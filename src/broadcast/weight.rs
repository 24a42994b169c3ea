//! What the keys of the window take of a checkpoint.
//!
//! A checkpoint has a tombstone of each key, with the names of the vchannels that its copies went
//! to, and is written into a reserve of limited size, beside what ends unfinished work. So keys of
//! wide broadcasts fill the window before their number does. Then it is full as it is by number:
//! new work is refused with `WindowFull` until a key is over, or the oldest keys without a promise
//! make room, where the policy says so.

use std::time::Duration;

use oncelog_format::message::BroadcastId;

use super::core::{Core, Inner};
use super::policy::WhenFull;
use super::refusal;
use super::window::EVICT_COUNT_MAX;
use crate::clock::Clock as _;
use crate::error::{Error, ErrorKind};

/// The part of the most that keys without a promise leave free: a checkpoint that is being written
/// has what it began with, and new work goes on beside it.
const FREE_PART: u64 = 16;

impl Core {
    /// Bytes that the keys take of a checkpoint, and the most that they may beside all else.
    pub(crate) fn key_bytes(&self) -> (u64, u64) {
        let held = self.state.tombstone_bytes();
        let all = self.owed.control().saturating_add(self.checkpoint_ahead(0, 0));
        (held, held.saturating_add(self.promised_max).saturating_sub(all))
    }

    /// The refusal of new work with which `all` bytes would be kept, where there would be room
    /// without the keys.
    pub(super) fn keys_are_in_the_way(&self, all: u64) -> Option<Error> {
        let held = self.state.tombstone_bytes();
        let is_so = held > 0 && all.saturating_sub(held) <= self.promised_max;
        is_so.then(|| {
            let beyond = all.saturating_sub(self.promised_max);
            refusal::window_heavy(self.state.window().held_count(), held, beyond)
        })
    }

    /// Keys without a promise that go with the next acceptance, beside those that go for their
    /// number: where all of them take about as much as they may.
    pub(crate) fn heavy_victims(&self, beside: &[BroadcastId], now_ms: u64) -> Vec<BroadcastId> {
        let (held, max) = self.key_bytes();
        let max = max.saturating_sub(self.promised_max / FREE_PART);
        if held <= max || self.policy.window_full != WhenFull::EvictOldest {
            return Vec::new();
        }
        let bytes_of = |id: &BroadcastId| self.state.bytes_of_tombstone(*id);
        let mut left = beside.iter().map(bytes_of).fold(held - max, u64::saturating_sub);
        let mut victims = self.state.window().oldest(now_ms);
        victims.retain(|id| !beside.contains(id));
        victims.truncate(EVICT_COUNT_MAX.saturating_sub(beside.len()));
        let needed = victims.into_iter().take_while(|id| {
            let is_needed = left > 0;
            left = left.saturating_sub(bytes_of(id));
            is_needed
        });
        needed.collect()
    }
}

impl Inner {
    /// Says when a key is over, of a refusal by those that are not.
    pub(super) fn until_free(&self, core: &Core, error: Error) -> Error {
        if error.kind() != ErrorKind::WindowFull {
            return error;
        }
        let now_ms = self.time().expiry_ms(core.state.newest_ms());
        match core.state.window().next_free_in_ms(now_ms) {
            Some(ms) => error.with_retry_after(Duration::from_millis(ms)),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use oncelog_format::message::Scope;

    use super::super::policy::Policy;
    use super::super::{Answer, Broadcaster, Noop, Options, Request};
    use super::*;
    use crate::clock::Clock;
    use crate::error::Result;
    use crate::io::mem::{Machine, MemIo};
    use crate::log::CreateMode;
    use crate::store::{Store, StoreOptions};

    /// Milliseconds that a test lets pass.
    #[derive(Debug, Default)]
    struct Hands(AtomicU64);

    impl Clock for Hands {
        fn wall_ms(&self) -> u64 {
            1_700_000_000_000 + self.0.load(Ordering::SeqCst)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::SeqCst))
        }
    }

    /// A key lives for a second.
    const LIFETIME: Duration = Duration::from_secs(1);

    /// Stands for the largest reserve, of which a test would fill a gigabyte.
    const MOST: u64 = 1 << 20;

    fn open(window_full: WhenFull) -> (Arc<Hands>, Broadcaster) {
        let hands = Arc::new(Hands::default());
        let store = StoreOptions::new().create(CreateMode::IfMissing);
        let store =
            store.io(Arc::new(MemIo::new(Machine::new()))).clock(Arc::<Hands>::clone(&hands));
        let policy = Policy { window_full, window_lifetime: LIFETIME, ..Policy::default() };
        let store = Store::open("/s", &store).unwrap();
        let broadcaster = Broadcaster::open(store, Options::new().policy(policy)).unwrap();
        broadcaster.inner().lock().promised_max = MOST;
        (hands, broadcaster)
    }

    fn submit(broadcaster: &Broadcaster, key: usize) -> Result<Answer> {
        let scope = Scope {
            principal: "p".into(),
            message_type: Noop::NAME.into(),
            domain: "d".into(),
            identity: String::new(),
            generation: 0,
            client_key: key.to_string().into_bytes(),
        };
        let vchannels = (0..64).map(|n| format!("vchannel_{n:03}")).collect();
        let asked = Request::new(Noop::NAME, Some(scope), vchannels, vec![]).making_vchannels();
        broadcaster.submit(&asked, None)
    }

    /// It was refused for want of space, of which there was plenty, and nothing was said of when.
    #[test]
    fn keys_that_fill_a_checkpoint_are_a_full_window_until_one_is_over() {
        let (hands, broadcaster) = open(WhenFull::Refuse);
        let (count, refused) =
            (0..).find_map(|key| Some((key, submit(&broadcaster, key).err()?))).unwrap();
        assert_eq!(refused.kind(), ErrorKind::WindowFull, "{refused}");
        assert_eq!(refused.retry_after(), Some(LIFETIME));
        assert!((100..1_000).contains(&count), "{count} keys");
        let stats = broadcaster.stats();
        // One more of them has no room.
        let each = stats.window_bytes / u64::try_from(count).unwrap();
        assert!(stats.window_bytes_max < stats.window_bytes + 4 * each, "{stats:?}");
        assert!(submit(&broadcaster, 0).unwrap().duplicated, "a known key answers");
        hands.0.store(2_000, Ordering::SeqCst);
        let inner = broadcaster.inner();
        while inner.with_room(|| inner.sweep()).unwrap() > 0 {}
        assert!(!submit(&broadcaster, count).unwrap().duplicated);
        broadcaster.close().unwrap();
    }

    /// Nothing was evicted: keys were counted, and there were few.
    #[test]
    fn keys_that_fill_a_checkpoint_make_room_for_others_where_the_policy_says_so() {
        let (_hands, broadcaster) = open(WhenFull::EvictOldest);
        for key in 0..600 {
            assert!(!submit(&broadcaster, key).unwrap().duplicated, "{key}");
        }
        let stats = broadcaster.stats();
        assert!(stats.window.evicted_count > 100, "{:?}", stats.window);
        assert!(stats.window_bytes <= stats.window_bytes_max, "{stats:?}");
        // The newest one stands, the oldest went.
        assert!(submit(&broadcaster, 599).unwrap().duplicated);
        assert!(!submit(&broadcaster, 0).unwrap().duplicated);
        broadcaster.close().unwrap();
    }

    /// Without the keys there would be no room either.
    #[test]
    fn what_unfinished_work_fills_is_a_full_store() {
        let (_hands, broadcaster) = open(WhenFull::Refuse);
        drop(submit(&broadcaster, 0).unwrap());
        broadcaster.inner().lock().begun_bytes = MOST - (8 << 10);
        assert_eq!(submit(&broadcaster, 1).unwrap_err().kind(), ErrorKind::StoreFull);
        broadcaster.close().unwrap();
    }
}
