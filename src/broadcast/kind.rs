//! Message types: what a broadcast means to whoever registered its type.
//!
//! A type is code of the embedder. Its calls may be repeated and may panic. They run without a lock
//! of the broadcaster, but for [`MessageType::recheck`] and what only names the type. A panic of
//! [`MessageType::apply`] is a [`Verdict::Retry`]; one of a check reaches the caller of the submit,
//! and consumes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use oncelog_format::control::Accepted;
use oncelog_format::limits::TYPE_NAME_LEN_MAX;
use oncelog_format::message::{AckMode, BroadcastId};

use super::{Jobs, Request, State, TraceParent};
use crate::channel::Position;
use crate::error::{Error, ErrorKind, Result};

/// What a callback says about its task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The effect exists.
    Done,
    /// The effect will never exist; the task ends as failed, with this reason.
    Fail(String),
    /// Not yet, for this reason: called again after 10 ms, doubling to 10 s, and
    /// parked after `retry_age_max`.
    Retry(String),
    /// Stop until an operator resumes or skips the task.
    Park(String),
}

/// What a broadcast of a type is to the bulk of work behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// The broadcast is the whole work.
    Plain,
    /// Its Done makes a job under the broadcast's identity; the job takes over its locks.
    StartsJob,
    /// Ends a job; submitted by [`Jobs::end`] alone.
    EndsJob,
}

/// A task whose copies stand on every vchannel, as its callback sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Task {
    /// The acceptance, as it was written.
    pub accepted: Arc<Accepted>,
    /// Where each vchannel's copy stands.
    pub channels: BTreeMap<String, Position>,
    /// How often the callback was called before since this process opened the store.
    pub attempts: u32,
}

impl Task {
    /// Returns the identity of the broadcast.
    #[must_use]
    pub fn id(&self) -> BroadcastId {
        self.accepted.id()
    }

    /// Returns the span of the caller whose request this is, also behind a restart.
    #[must_use]
    pub fn trace_parent(&self) -> Option<TraceParent> {
        TraceParent::parse(self.accepted.trace.as_deref()?)
    }
}

/// A registered message type.
///
/// Methods added later have a default, so that an implementation goes on compiling.
///
/// # Examples
///
/// ```
/// use oncelog::broadcast::{MessageType, Task, Verdict};
///
/// #[derive(Debug)]
/// struct Hello;
/// impl MessageType for Hello {
///     fn name(&self) -> &str {
///         "Hello"
///     }
///     fn apply(&self, _task: &Task) -> Verdict {
///         Verdict::Done
///     }
/// }
/// ```
pub trait MessageType: fmt::Debug + Send + Sync + 'static {
    /// Returns the name that requests and control records carry, 1 to 256 bytes: opening a
    /// broadcaster refuses any other.
    fn name(&self) -> &str;

    /// Says what acknowledges a copy: its append, or a consumer.
    fn ack_mode(&self) -> AckMode {
        AckMode::Append
    }

    /// Says whether a broadcast of this type makes or ends a job.
    fn role(&self) -> Role {
        Role::Plain
    }

    /// Checks a request that no accepted key answers; no lock is held, and it may block.
    ///
    /// # Errors
    ///
    /// Any error refuses the request and consumes nothing.
    fn validate(&self, request: &Request) -> Result<()> {
        let _ = request;
        Ok(())
    }

    /// Checks again, under the resource locks, what they protect; it must not block.
    ///
    /// # Errors
    ///
    /// Any error refuses the request and consumes nothing.
    fn recheck(&self, request: &Request, state: &State) -> Result<()> {
        let _ = (request, state);
        Ok(())
    }

    /// Brings about the effect, idempotent by the broadcast's identity: it may run again after a
    /// crash, a panic or a retry, also when its first run had succeeded.
    ///
    /// It may submit other broadcasts. A resource that its own task holds is refused then, and
    /// while its task holds any, one that is not free is `LockTimeout` at once: two callbacks that
    /// wait for each other's would wait for ever. It runs on one of `worker_count` threads: one
    /// that waits for another broadcast keeps it meanwhile, so it gives a deadline and answers
    /// [`Verdict::Retry`] when that is over.
    fn apply(&self, task: &Task) -> Verdict;

    /// Tells that a job of this type is there to be driven: its Done is durable, or the store was
    /// opened, or an attempt was recorded. It must not block; drivers run on their own threads and
    /// end when a call on [`Jobs`] answers `Closed`. One that gives its job up before the end says
    /// so ([`Jobs::stopped`]), so that nobody waits for it. Where the store is opened, it is told
    /// before [`Broadcaster::open`](super::Broadcaster::open) returns, and behind
    /// [`Opening::wait`](super::Opening::wait).
    fn job_ready(&self, job: BroadcastId, jobs: &Jobs) {
        let _ = (job, jobs);
    }

    /// Tells that the broadcaster closes: returns when the type's own threads have ended. It may
    /// close the broadcaster itself, which does nothing then; a thread that it waits for may not,
    /// for that would wait for this.
    fn close(&self) {}
}

/// Refuses a name that no record can carry.
pub(super) fn check_name(name: &str) -> Result<()> {
    let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
    if (1..=TYPE_NAME_LEN_MAX).contains(&len) {
        return Ok(());
    }
    let what = format!("the name of a type has {len} bytes: expected 1 to {TYPE_NAME_LEN_MAX}");
    Err(Error::new(ErrorKind::InvalidInput, what))
}

/// A broadcast without an effect, for tests and scripts.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Noop;

impl Noop {
    /// Its name.
    pub const NAME: &'static str = "Noop";
}

impl MessageType for Noop {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }
}
