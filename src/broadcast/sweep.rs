//! Forgets what is over: keys whose window passed, records of jobs that outlived their retention.
//!
//! Nothing depends on it: a lookup decides by log time. It keeps the state small.

use std::sync::PoisonError;

use oncelog_format::control::{Body, DropCause, Dropped};
use oncelog_format::message::BroadcastId;

use super::core::{Core, Inner};
use crate::clock::Clock;
use crate::error::{ErrorKind, Result};
use crate::told;

/// Most records of one batch: the lock is held for less than a millisecond.
const BATCH_COUNT_MAX: usize = 128;

/// More than the record of one key takes of control, in bytes.
const DROP_LEN: usize = 64;

impl Inner {
    /// Sweeps every `check_interval` until the broadcaster stops.
    pub(crate) fn sweep_all(&self) {
        let mut due = self.monotonic();
        let mut core = self.lock();
        while core.usable().is_ok() {
            let now = self.monotonic();
            if now < due {
                // A shorter interval counts from when it was set.
                due = due.min(now.saturating_add(core.policy.check_interval));
                let waited = self.turned.wait_timeout(core, due.saturating_sub(now));
                core = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let check_interval = core.policy.check_interval;
            drop(core);
            let swept = self.with_room(|| self.sweep());
            // Behind a full batch there may be more.
            if !swept.as_ref().is_ok_and(|count| *count >= BATCH_COUNT_MAX) {
                due = now.saturating_add(check_interval);
            }
            if let Err(e) = swept
                && e.kind() != ErrorKind::Closed
            {
                told::tell(move || tracing::warn!(error = %e, "expired keys are not swept"));
            }
            core = self.lock();
        }
    }

    /// Drops what is over, at most one batch, and waits until that is durable, so that others go
    /// between two of them; returns how many.
    pub(crate) fn sweep(&self) -> Result<usize> {
        let mut core = self.lock();
        core.usable()?;
        // Mostly there is nothing, and no room is made for it.
        if self.over(&core, 1).is_empty() {
            return Ok(0);
        }
        drop(core);
        core = self.lock_to_decide(BATCH_COUNT_MAX * DROP_LEN);
        core.usable()?;
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::SweptAsSeen) {
            let over = self.over(&core, BATCH_COUNT_MAX);
            let scope = |body: &Body| match body {
                Body::Dropped(dropped) => core.state.task(dropped.id)?.accepted.scope.clone(),
                _ => None,
            };
            let seen: Vec<_> = over.iter().filter_map(scope).collect();
            drop(core);
            core = self.lock();
            seen.iter().for_each(|scope| core.state.disown(scope));
            let (pending, _) = self.hand_over(&mut core, over)?;
            drop(core);
            return self.settle(pending).map(|_| seen.len());
        }
        let batch = self.over(&core, BATCH_COUNT_MAX);
        let count = batch.len();
        if count > 0 {
            let (pending, _) = self.hand_over(&mut core, batch)?;
            drop(core);
            self.settle(pending)?;
        }
        Ok(count)
    }

    /// So many of what is over: keys whose window passed, then jobs without a live key whose
    /// retention did.
    fn over(&self, core: &Core, count_max: usize) -> Vec<Body> {
        let now_ms = self.time().expiry_ms(core.state.newest_ms());
        let over = core.state.window().over(now_ms, count_max);
        let mut batch: Vec<Body> =
            over.into_iter().map(|id| dropped(id, DropCause::Expired)).collect();
        let retention_ms = core.policy.record().task_retention_ms;
        let over = now_ms.checked_sub(retention_ms).map(|until_ms| core.state.over_until(until_ms));
        // A live key pins its job.
        let retired = over.into_iter().flatten().filter(|id| !core.state.holds_task(*id));
        let room = count_max.saturating_sub(batch.len());
        batch.extend(retired.take(room).map(|id| dropped(id, DropCause::Retired)));
        batch
    }
}

fn dropped(id: BroadcastId, cause: DropCause) -> Body {
    Body::Dropped(Dropped { id, cause })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use oncelog_format::control::{Accepted, ControlRecord, Done, JobLink, Outcome};
    use oncelog_format::message::{AckMode, BroadcastHeader, Fingerprint, Scope};

    use super::super::order::LOOKS;
    use super::super::{Options, replayed};
    use super::*;
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

    /// What control has of a key that is done, and kept for a second.
    fn records(id: u64, at_ms: u64) -> [ControlRecord; 2] {
        let scope = Scope {
            principal: "p".into(),
            message_type: "T".into(),
            domain: "d".into(),
            identity: String::new(),
            generation: 0,
            client_key: id.to_string().into_bytes(),
        };
        let id = BroadcastId(id);
        let (vchannels, resources) = (Vec::new(), Vec::new());
        let accepted = Accepted {
            header: BroadcastHeader { id, vchannels, resources, ack: AckMode::Append },
            message_type: "T".into(),
            scope: Some(scope),
            fingerprint: Fingerprint { version: 1, fields: Vec::new() },
            ends: Vec::new(),
            lifetime_ms: 1_000,
            firm: true,
            job: JobLink::None,
            properties: Vec::new(),
            trace: None,
            payload: Vec::new(),
        };
        let done = Body::Done(Done { id, outcome: Outcome::Done });
        [Body::Accepted(Arc::new(accepted)), done].map(|body| ControlRecord { at_ms, body })
    }

    /// Elsewhere the sweep of a hundred thousand took seconds: each looked at all the others.
    #[test]
    fn a_sweep_looks_at_each_key_once_and_ends_with_a_batch() {
        const COUNT: u64 = 5_000;
        let hands = Arc::new(Hands::default());
        let store = StoreOptions::new().create(CreateMode::IfMissing);
        let store =
            store.io(Arc::new(MemIo::new(Machine::new()))).clock(Arc::<Hands>::clone(&hands));
        let inner = replayed(Store::open("/s", &store).unwrap(), Options::new()).unwrap();
        {
            let mut core = inner.lock();
            let at_ms = hands.wall_ms();
            let records = (1..=COUNT).flat_map(|id| records(id, at_ms));
            records.for_each(|record| core.state.apply(&record));
        }
        hands.0.store(60_000, Ordering::SeqCst);
        let before = LOOKS.get();
        let mut dropped = Vec::new();
        while let count @ 1.. = inner.with_room(|| inner.sweep()).unwrap() {
            dropped.push(count);
        }
        let looks = LOOKS.get() - before;
        assert_eq!(inner.lock().state.window().held_count(), 0);
        assert_eq!(dropped.iter().sum::<usize>(), 5_000);
        assert!(dropped.iter().all(|count| *count <= BATCH_COUNT_MAX), "{dropped:?}");
        assert!((COUNT..2 * COUNT).contains(&looks), "{looks} looks");
        inner.store.close().unwrap();
    }
}
