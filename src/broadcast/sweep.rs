//! Forgets what is over: keys whose window passed, records of jobs that outlived their retention.
//!
//! Nothing depends on it: a lookup decides by log time. It keeps the state small.

use std::sync::PoisonError;

use oncelog_format::control::{Body, DropCause, Dropped};

use super::core::{Core, Inner, Settled};
use super::room;
use crate::clock::Clock;
use crate::error::Result;

/// Most records of one batch: the lock is not held for long.
const BATCH_COUNT_MAX: usize = 1_024;

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
            match self.sweep(&mut core) {
                // There may be more: others go first.
                Ok(BATCH_COUNT_MAX..) => {
                    drop(core);
                    core = self.lock();
                }
                Err(e) if room::is_lack(&e) => {
                    drop(core);
                    let made = self.make_room_of(&e);
                    core = self.lock();
                    if let Err(e) = made {
                        tracing::warn!(error = %e, "expired keys are not swept");
                        due = now.saturating_add(core.policy.check_interval);
                    }
                }
                Ok(_) => due = now.saturating_add(core.policy.check_interval),
                Err(e) => {
                    tracing::warn!(error = %e, "expired keys are not swept");
                    due = now.saturating_add(core.policy.check_interval);
                }
            }
        }
    }

    /// Drops what is over, at most one batch; returns how many.
    pub(crate) fn sweep(&self, core: &mut Core) -> Result<usize> {
        let now_ms = self.time().wall_ms().max(core.state.newest_ms());
        let over = core.state.window().over(now_ms, BATCH_COUNT_MAX);
        let mut batch: Vec<Body> =
            over.into_iter().map(|id| dropped(id, DropCause::Expired)).collect();
        let retention_ms = core.policy.record().task_retention_ms;
        let over = now_ms.checked_sub(retention_ms).map(|until_ms| core.state.over_until(until_ms));
        // A live key pins its job.
        let retired = over.into_iter().flatten().filter(|id| core.state.task(*id).is_none());
        let room = BATCH_COUNT_MAX.saturating_sub(batch.len());
        batch.extend(retired.take(room).map(|id| dropped(id, DropCause::Retired)));
        let count = batch.len();
        if count > 0 {
            self.hand_over_and_settle(core, batch, |_| Settled::Nothing)?;
        }
        Ok(count)
    }
}

fn dropped(id: oncelog_format::message::BroadcastId, cause: DropCause) -> Body {
    Body::Dropped(Dropped { id, cause })
}
