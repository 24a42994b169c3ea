//! The window over time, as far back as this process goes and an hour at most.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::broadcast::{Broadcaster, WindowSummary};

/// Between two looks.
pub(crate) const EVERY: Duration = Duration::from_secs(10);

/// An hour of looks.
const SAMPLES_MAX: usize = 360;

/// The window at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at_ms: u64,
    pub(crate) live: u64,
    pub(crate) effective_ms: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
}

impl Sample {
    fn of(broadcaster: &Broadcaster) -> Self {
        broadcaster.read(|state, at_ms| {
            let window = WindowSummary::of(state, at_ms);
            Self {
                at_ms,
                live: u64::try_from(window.live_count).unwrap_or(u64::MAX),
                effective_ms: window.effective_ms,
                expired: window.expired_count,
                evicted: window.evicted_count,
            }
        })
    }
}

/// What was seen of the window.
#[derive(Debug, Default)]
pub(crate) struct History {
    samples: Mutex<VecDeque<Sample>>,
}

impl History {
    /// Looks at the window.
    pub(crate) fn look(&self, broadcaster: &Broadcaster) {
        self.take(Sample::of(broadcaster));
    }

    fn take(&self, sample: Sample) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() >= SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// What was seen, the oldest first, and the window as it is.
    pub(crate) fn with_now(&self, broadcaster: &Broadcaster) -> Vec<Sample> {
        let mut samples = self.samples();
        samples.push(Sample::of(broadcaster));
        samples
    }

    fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_an_hour_goes() {
        let history = History::default();
        for at_ms in 0..500 {
            history.take(Sample { at_ms, live: 0, effective_ms: 0, expired: 0, evicted: 0 });
        }
        let samples = history.samples();
        assert_eq!((samples.len(), samples[0].at_ms, samples[359].at_ms), (360, 140, 499));
    }
}
