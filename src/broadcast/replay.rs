//! What control says is taken up, before a thread of the broadcaster starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::checkpoint::{Checkpoints, due_bytes};
use super::core::{Core, Inner};
use super::counts::Counts;
use super::freeing::Freeing;
use super::kind::{self, MessageType, Noop};
use super::options::Options;
use super::stats::ReplayStats;
use super::{catalogue, holds, refusal, restore};
use crate::clock::Clock as _;
use crate::error::Result;
use crate::store::Store;
use crate::sync::{Condvar, Mutex};

/// A broadcaster whose threads have not started: what control says is taken up.
pub(super) fn replayed(mut store: Store, options: Options) -> Result<Arc<Inner>> {
    let mut types: BTreeMap<String, Arc<dyn MessageType>> = BTreeMap::new();
    types.insert(Noop::NAME.to_owned(), Arc::new(Noop));
    for kind in &options.types {
        kind::check(&**kind)?;
        if types.insert(kind.name().to_owned(), Arc::clone(kind)).is_some() {
            return Err(refusal::invalid(format!("two types are named {}", kind.name())));
        }
    }
    if options.job_slots_max == 0 || options.worker_count == 0 || options.open_bytes_max == 0 {
        let what = "job slots, workers, bytes of unfinished work: expected at least 1, found 0";
        return Err(refusal::invalid(what));
    }
    let began = store.time().monotonic();
    let restored = restore::of_log(store.control())?;
    let counts = Counts::new(&types);
    let time = store.time().monotonic().saturating_sub(began);
    counts.replayed(ReplayStats { records: restored.records, time });
    let state = restored.state;
    #[cfg(planted)]
    let state = if crate::planted::is_active(crate::planted::Bug::TombstoneReset) {
        let mut state = state;
        state.reset_tombstones();
        state
    } else {
        state
    };
    let policy = catalogue::policy_in_force(options.policy.as_ref(), &state)?;
    let newest_ms = restored.newest_ms.map(|newest_ms| newest_ms.max(state.newest_ms()));
    let named = state.vchannels().map(|(_, pchannel)| pchannel.to_owned()).collect();
    store.start(newest_ms, &named)?;
    let mut core = Core::new(state, policy);
    core.unchecked_bytes = restored.behind_bytes;
    core.checkpoint_due_bytes = due_bytes(&options, restored.checkpoint.as_ref());
    core.stream_bytes = restored.checkpoint.map_or(0, |checkpoint| checkpoint.stream_bytes);
    core.freeing = Freeing::restored(restored.checkpoint.as_ref());
    if let Err(e) = holds::take_up(&mut core, &store) {
        if let Err(e) = store.close() {
            tracing::debug!(error = %e, "a store that is not taken up closes");
        }
        return Err(e);
    }
    store.begin_retention();
    let scans = store.pchannels().map(|name| (name.to_owned(), Mutex::new(()))).collect();
    let checkpoints = Mutex::new(Checkpoints::new(store.control(), restored.checkpoint)?);
    let inner = Arc::new(Inner {
        store,
        types,
        options,
        core: Mutex::new(core),
        work: Condvar::new(),
        handed: Condvar::new(),
        turned: Condvar::new(),
        waiting: AtomicUsize::new(0),
        scans,
        checkpoints,
        counts,
    });
    if inner.options.only.is_none() {
        inner.note_policy()?;
    }
    Ok(inner)
}
