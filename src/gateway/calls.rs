//! Calls that block, off the threads of the runtime, each kind with a bound of its own.
//!
//! A request that waits for an effect holds a place among those that wait until its call ends, also
//! where its client has gone. One that only looks finds another place, so that a server all of whose
//! waiting places are taken still says how its jobs are.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::counts::GatewayCounts;
use super::refusal::{Refusal, Row};

/// Calls at once that only look.
const LOOKS_MAX: usize = 16;

/// Longest wait of a look for its place.
const LOOK_WAIT: Duration = Duration::from_secs(10);

/// The places for calls.
#[derive(Debug)]
pub(crate) struct Calls {
    waits: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    counts: GatewayCounts,
}

impl Calls {
    pub(crate) fn new(waiting_max: usize, counts: GatewayCounts) -> Self {
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        Self { waits: places(waiting_max), looks: places(LOOKS_MAX), counts }
    }

    /// Threads of the pool for blocking work that the calls may take at once.
    pub(crate) fn threads_max(waiting_max: usize) -> usize {
        waiting_max.saturating_add(LOOKS_MAX)
    }

    /// Makes a call that may wait for an effect.
    ///
    /// # Errors
    ///
    /// Those of the call; and at once, where all places are taken.
    pub(crate) async fn wait<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let Ok(place) = Arc::clone(&self.waits).try_acquire_owned() else {
            return Err(Refusal::new(&Row::TOO_MANY, ""));
        };
        let waits = self.counts.waits();
        let call = move || {
            let _place = (place, waits);
            call()
        };
        ended(tokio::task::spawn_blocking(call).await)
    }

    /// Makes a call that only looks.
    ///
    /// # Errors
    ///
    /// Those of the call; and where it found no place in time.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let place = Arc::clone(&self.looks).acquire_owned();
        let Ok(Ok(place)) = tokio::time::timeout(LOOK_WAIT, place).await else {
            return Err(Refusal::new(&Row::TOO_MANY, ""));
        };
        let call = move || {
            let _place = place;
            call()
        };
        ended(tokio::task::spawn_blocking(call).await)
    }
}

fn ended<T>(end: Result<Result<T, Refusal>, tokio::task::JoinError>) -> Result<T, Refusal> {
    // It panicked, or the runtime ends before it began: what it did is not known.
    end.unwrap_or_else(|_join| Err(Refusal::new(&Row::OUTCOME_UNKNOWN, "")))
}
