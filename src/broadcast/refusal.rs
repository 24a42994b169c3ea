//! The errors of a broadcaster, each with what its caller can do.

use std::sync::Arc;
use std::time::Duration;

use oncelog_format::message::BroadcastId;

use super::locks::Claim;
use crate::error::{Error, ErrorKind};

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message.into())
}

pub(crate) fn conflict(fields: Vec<String>) -> Error {
    let names = fields.join(", ");
    let message = format!("the key was accepted for another request, which differs in {names}");
    Error::new(ErrorKind::Conflict, message).with_fields(fields)
}

pub(crate) fn window_full(count: usize, bound: usize, next_free_in_ms: Option<u64>) -> Error {
    let message = format!("the window is full: {count} keys, expected fewer than {bound}");
    let error = Error::new(ErrorKind::WindowFull, message);
    match next_free_in_ms {
        Some(ms) => error.with_retry_after(Duration::from_millis(ms)),
        None => error,
    }
}

/// The keys fill a checkpoint, whatever their number.
pub(crate) fn window_heavy(count: usize, held: u64, beyond: u64) -> Error {
    let max = held.saturating_sub(beyond);
    let message = format!(
        "the window is full: its {count} keys take {held} bytes of a checkpoint, expected at most \
         {max}"
    );
    Error::new(ErrorKind::WindowFull, message)
}

pub(crate) fn slots_full(count: usize, bound: usize) -> Error {
    let message = format!("all job slots are used: {count} jobs, expected fewer than {bound}");
    Error::new(ErrorKind::WindowFull, message).with_retry_after(Duration::from_secs(1))
}

pub(crate) fn parked(id: BroadcastId, reason: &str, since_ms: u64) -> Error {
    let message = format!("broadcast {id} is parked since {since_ms} ms: {reason}");
    Error::new(ErrorKind::Parked, message).with_broadcast(id.0)
}

pub(crate) fn in_flight(id: BroadcastId) -> Error {
    let message = format!("broadcast {id} is accepted and not done");
    let error = Error::new(ErrorKind::InFlight, message).with_broadcast(id.0);
    error.with_retry_after(Duration::from_secs(1))
}

pub(crate) fn no_space(id: BroadcastId, cause: &Arc<Error>) -> Error {
    let message = format!("broadcast {id} is accepted and goes on once there is space");
    let error = Error::new(ErrorKind::InFlight, message).with_broadcast(id.0);
    error.with_shared_source(Arc::clone(cause)).with_retry_after(Duration::from_secs(10))
}

pub(crate) fn stopped(job: BroadcastId, cause: &Arc<Error>) -> Error {
    let message = format!("job {job} is driven by nobody, and goes on once it is");
    let error = Error::new(ErrorKind::InFlight, message).with_broadcast(job.0);
    error.with_shared_source(Arc::clone(cause)).with_retry_after(Duration::from_secs(10))
}

/// A refusal of the system before anything was written, for want of a descriptor, say.
pub(crate) fn for_now(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Io => error.with_retry_after(Duration::from_secs(1)),
        _ => error,
    }
}

pub(crate) fn unknown() -> Error {
    let message = "it is not known whether the request was accepted: ask again with the same key";
    Error::new(ErrorKind::OutcomeUnknown, message).with_retry_after(Duration::from_secs(1))
}

/// One caller too many waits; `in_flight` is what the key was accepted for.
pub(crate) fn crowded(max: usize, in_flight: Option<BroadcastId>) -> Error {
    let crowd = format!("too many callers wait, expected at most {max}");
    let error = match in_flight {
        Some(id) => {
            let message = format!("broadcast {id} is accepted and not done, and {crowd}");
            Error::new(ErrorKind::InFlight, message).with_broadcast(id.0)
        }
        None => Error::new(ErrorKind::OutcomeUnknown, format!("{ADMITTED}, and {crowd}")),
    };
    error.with_retry_after(Duration::from_secs(1))
}

/// What is not known of a key as long as somebody else is being admitted with it: also whether that
/// is the caller himself, whose first request lost its connection.
const ADMITTED: &str = "another request with this key is being admitted and may consume it: ask \
                        again with the same key";

pub(crate) fn admission_pending() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, ADMITTED).with_retry_after(Duration::from_millis(100))
}

/// A resource that was not given up, and what its holder does.
pub(crate) fn lock_timeout(blocker: Option<(&Claim, String)>, now_ms: u64) -> Error {
    let message = match blocker {
        None => "a resource stayed locked".to_owned(),
        Some((claim, who)) => {
            let age_ms = now_ms.saturating_sub(claim.since_ms);
            format!("a resource stayed locked by {who}: type {}, {age_ms} ms", claim.message_type)
        }
    };
    let error = Error::new(ErrorKind::LockTimeout, message);
    error.with_retry_after(Duration::from_millis(100))
}

pub(crate) fn open_for(only: BroadcastId) -> Error {
    invalid(format!("the store was opened for broadcast {only} alone"))
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the broadcaster was closed")
}

pub(crate) fn failed(cause: &Arc<Error>) -> Error {
    let message = "the broadcaster has stopped: open the store again";
    Error::new(ErrorKind::Poisoned, message).with_shared_source(Arc::clone(cause))
}
