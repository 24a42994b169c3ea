//! How an attempt ended, as every vchannel of its collection carries it.
//!
//! The message type says whether it was committed or aborted, the payload of 12 bytes which attempt
//! it was: the job (u64) and the attempt (u32), little-endian. The first verdict of an attempt in a
//! vchannel's order counts; a reader of channels needs nothing else to know which rows are visible.

use oncelog_format::message::{BroadcastId, JobId};

/// Type of the messages that make the rows of an attempt visible.
pub(crate) const COMMIT: &str = "CommitImport";

/// Type of the messages that make them invisible for ever.
pub(crate) const ABORT: &str = "AbortImport";

/// Type of the messages that hold rows.
pub(crate) const SLICE: &str = "ImportSlice";

/// An attempt of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AttemptOf {
    /// The job.
    pub(crate) job: JobId,
    /// Its attempt, from 1.
    pub(crate) attempt: u32,
}

impl AttemptOf {
    /// The payload of a verdict about this attempt.
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = self.job.0.to_le_bytes().to_vec();
        out.extend_from_slice(&self.attempt.to_le_bytes());
        out
    }

    /// The attempt that a verdict is about; `None` for other bytes.
    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        let (job, attempt) = payload.split_first_chunk::<8>()?;
        let attempt = attempt.try_into().ok()?;
        let job = BroadcastId(u64::from_le_bytes(*job));
        Some(Self { job, attempt: u32::from_le_bytes(attempt) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_names_its_attempt() {
        let attempt = AttemptOf { job: BroadcastId(7), attempt: 2 };
        assert_eq!(AttemptOf::decode(&attempt.encode()), Some(attempt));
        assert_eq!(AttemptOf::decode(&attempt.encode()[..11]), None);
        assert_eq!(AttemptOf::decode(&[0; 13]), None);
    }
}
