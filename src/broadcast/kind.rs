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

/// What a request is told whose key was accepted for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnConflict {
    /// `Conflict`, which names the fields that differ.
    Refuse,
    /// The answer of the original, which names them: [`Answer::differs`](super::Answer::differs).
    Warn,
}

/// What the payloads of a type are, when two of them are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadForm {
    /// Bytes: two payloads are the same exactly if their bytes are.
    Bytes,
    /// JSON: two payloads are the same exactly if their canonical forms are, whatever the order of
    /// their names and the forms of their numbers; see
    /// [`canonical_json`](super::canonical_json()). A new request with any other payload is
    /// refused. It is for comparison alone: what is sent is what the caller gave.
    Json,
}

/// How an attempt of a job is to end, before that is accepted.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct JobEnding<'a> {
    /// The acceptance that started the job.
    pub job: &'a Accepted,
    /// Its attempt.
    pub attempt: u32,
    /// Name of the type that is to end it.
    pub message_type: &'a str,
    /// Committed or aborted.
    pub commit: bool,
    /// The payload of every copy.
    pub payload: &'a [u8],
}

/// A task whose copies stand on every vchannel, as its callback sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Task {
    /// The acceptance, as it was written.
    pub accepted: Arc<Accepted>,
    /// Where each vchannel's copy stands.
    pub channels: BTreeMap<String, Position>,
    /// How often the callback was called for it before, since this process opened the store; those
    /// calls count that panicked, and those before a park.
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

    /// Says what its payloads are when two of them are compared: bytes, unless the type says
    /// otherwise. It says the same each time. Named fields ([`Identity::Fields`](super::Identity))
    /// are bytes in any case, and a caller makes those canonical himself.
    ///
    /// A release may change it: a key is compared in the form that it was accepted in.
    fn payload_form(&self) -> PayloadForm {
        PayloadForm::Bytes
    }

    /// Says what becomes of a request whose key was accepted for another one. A type that starts or
    /// ends jobs refuses it: opening a broadcaster takes no other.
    fn on_conflict(&self) -> OnConflict {
        OnConflict::Refuse
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

    /// Checks how an attempt is to end: asked of the type that started the job and of the one that
    /// is to end it; no lock is held.
    ///
    /// # Errors
    ///
    /// Any error refuses the ending, and the attempt goes on.
    fn check_end(&self, ending: &JobEnding<'_>) -> Result<()> {
        let _ = ending;
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

/// Refuses a type whose name no record can carry, and one of jobs that takes other requests for
/// theirs.
pub(super) fn check(kind: &dyn MessageType) -> Result<()> {
    let name = kind.name();
    let len = u32::try_from(name.len()).unwrap_or(u32::MAX);
    if !(1..=TYPE_NAME_LEN_MAX).contains(&len) {
        let what = format!("the name of a type has {len} bytes: expected 1 to {TYPE_NAME_LEN_MAX}");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    if kind.role() != Role::Plain && kind.on_conflict() != OnConflict::Refuse {
        let what = format!("{name} starts or ends jobs: expected one that refuses a conflict");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(())
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
