//! What the state knows of one task, and of one job.

use std::sync::Arc;

use oncelog_format::control::{Accepted, AckPosition, JobPhase, JobPlan, JobState, Outcome};
use oncelog_format::message::BroadcastId;

/// A task: a broadcast from its acceptance to the end of its tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskState {
    /// The acceptance; without its payload and properties once it is done.
    pub accepted: Arc<Accepted>,
    /// Log time of the acceptance, in milliseconds.
    pub accepted_at_ms: u64,
    /// Log time of the last record that moved it: acceptance, acknowledgement, resumption; in
    /// milliseconds.
    pub moved_at_ms: u64,
    /// The acknowledged copies, by the order of the acceptance's vchannels.
    pub acks: Vec<Option<AckPosition>>,
    /// Why it is parked, and since which log time in milliseconds.
    pub parked: Option<(String, u64)>,
    /// How it ended, and at which log time in milliseconds.
    pub done: Option<(Outcome, u64)>,
}

impl TaskState {
    /// Returns the log time from which its key may be used anew, once it is done.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<u64> {
        let (_, done_at_ms) = self.done.as_ref()?;
        Some(done_at_ms.saturating_add(self.accepted.lifetime_ms))
    }

    /// Returns the instant of expiry that its caller was promised, in milliseconds of log time,
    /// once it is done: none without a key, and none for a key that may be evicted.
    #[must_use]
    pub fn promised_until_ms(&self) -> Option<u64> {
        let (_, done_at_ms) = self.done.as_ref()?;
        promised_until_ms(&self.accepted, *done_at_ms)
    }

    /// Takes acknowledgements; returns how many say nothing new.
    pub(super) fn take_acks(&mut self, positions: &[AckPosition], at_ms: u64) -> u64 {
        let mut ignored = 0;
        for position in positions {
            let at = usize::try_from(position.vchannel).unwrap_or(usize::MAX);
            match self.acks.get_mut(at) {
                Some(ack @ None) => (*ack, self.moved_at_ms) = (Some(*position), at_ms),
                _ => ignored += 1,
            }
        }
        ignored
    }

    /// Says whether every vchannel is acknowledged.
    #[must_use]
    pub fn is_acked(&self) -> bool {
        self.acks.iter().all(Option::is_some)
    }
}

/// What an acceptance promises of its expiry where it was done at `done_at_ms`: every answer says
/// this, and nothing else.
pub(in crate::broadcast) fn promised_until_ms(accepted: &Accepted, done_at_ms: u64) -> Option<u64> {
    let promised = accepted.scope.is_some() && accepted.firm;
    promised.then(|| done_at_ms.saturating_add(accepted.lifetime_ms))
}

/// A job: the work that a broadcast started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// The acceptance of the broadcast that made it, whole.
    pub accepted: Arc<Accepted>,
    /// Log time at which it was made, in milliseconds.
    pub made_at_ms: u64,
    /// The current attempt, from 1.
    pub attempt: u32,
    /// The plan of the current attempt.
    pub plan: Option<Arc<JobPlan>>,
    /// What the driver said last about the current attempt.
    pub state: Option<JobState>,
    /// The first ending of the current attempt that was accepted: commit or abort, and by whom.
    pub end: Option<(bool, BroadcastId)>,
    /// The ending is done: committed or aborted, and at which log time in milliseconds.
    pub over: Option<(bool, u64)>,
}

impl Job {
    /// Returns the identity of the job, that of its broadcast.
    #[must_use]
    pub fn id(&self) -> BroadcastId {
        self.accepted.id()
    }

    /// Returns how far the job is: terminal only by its ending, whatever its driver said.
    #[must_use]
    pub fn phase(&self) -> JobPhase {
        let said = self.state.as_ref().map_or(JobPhase::Pending, |state| state.phase);
        match (self.over, self.end) {
            (Some((true, _)), _) => JobPhase::Completed,
            (Some((false, _)), _) => JobPhase::Failed,
            (None, Some(_)) => JobPhase::Committing,
            (None, None) => said.min(JobPhase::Importing),
        }
    }

    /// Returns why it failed, or will; empty where nothing failed.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.state.as_ref().map_or("", |state| state.reason.as_str())
    }
}
