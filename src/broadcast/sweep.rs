//! Forgets what is over: keys whose window passed, records of jobs that outlived their retention.
//!
//! Nothing depends on it: a lookup decides by log time. It keeps the state small.

use std::sync::PoisonError;

use oncelog_format::control::{Body, DropCause, Dropped};

use super::core::Inner;
use crate::clock::Clock;
use crate::error::{ErrorKind, Result};

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
            if let Err(e) = &swept
                && e.kind() != ErrorKind::Closed
            {
                tracing::warn!(error = %e, "expired keys are not swept");
            }
            // Behind a full batch there may be more.
            if !swept.is_ok_and(|count| count >= BATCH_COUNT_MAX) {
                due = now.saturating_add(check_interval);
            }
            core = self.lock();
        }
    }

    /// Drops what is over, at most one batch, and waits until that is durable, so that others go
    /// between two of them; returns how many.
    pub(crate) fn sweep(&self) -> Result<usize> {
        let mut core = self.lock_to_decide(BATCH_COUNT_MAX * DROP_LEN);
        core.usable()?;
        let now_ms = self.time().expiry_ms(core.state.newest_ms());
        let over = core.state.window().over(now_ms, BATCH_COUNT_MAX);
        let mut batch: Vec<Body> =
            over.into_iter().map(|id| dropped(id, DropCause::Expired)).collect();
        let retention_ms = core.policy.record().task_retention_ms;
        let over = now_ms.checked_sub(retention_ms).map(|until_ms| core.state.over_until(until_ms));
        // A live key pins its job.
        let retired = over.into_iter().flatten().filter(|id| !core.state.holds_task(*id));
        let room = BATCH_COUNT_MAX.saturating_sub(batch.len());
        batch.extend(retired.take(room).map(|id| dropped(id, DropCause::Retired)));
        let count = batch.len();
        if count > 0 {
            let (pending, _) = self.hand_over(&mut core, batch)?;
            drop(core);
            self.settle(pending)?;
        }
        Ok(count)
    }
}

fn dropped(id: oncelog_format::message::BroadcastId, cause: DropCause) -> Body {
    Body::Dropped(Dropped { id, cause })
}
