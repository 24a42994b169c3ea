//! What a caller hands over and what it gets back.
//!
//! A [`Request`] is plain data: nothing here checks it against a store. Its identity is a
//! [`Scope`]; there is no constructor of a keyed request without one.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncelog_format::control::Outcome as Ending;
use oncelog_format::message::{BroadcastId, Resource, Scope};

use super::options::CollectionSpec;
use super::refusal;
use super::state::TaskState;
use crate::channel::Position;
use crate::error::Result;
use crate::lsn::Lsn;

/// One broadcast that a caller wants to happen at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Name of the message type; it must be registered with the broadcaster.
    pub message_type: String,
    /// Idempotency scope and client key; `None` is a broadcast that leaves no tombstone.
    pub scope: Option<Arc<Scope>>,
    /// Resource keys that the broadcast holds from its acceptance to its end.
    pub resources: Vec<Resource>,
    /// The vchannels that each get one copy; each must exist, see [`Request::making_vchannels`].
    pub vchannels: Vec<String>,
    /// Properties of the caller; keys that begin with `_` are refused.
    pub properties: BTreeMap<String, Vec<u8>>,
    /// The payload, carried by the acceptance and by every copy.
    pub payload: Vec<u8>,
    /// What the fingerprint covers.
    pub identity: Identity,
    /// The caller's span, as a W3C `traceparent`: in every copy, and told to the callback. A text
    /// that is none ([`super::TraceParent`]) is dropped; nothing depends on it.
    pub trace_context: Option<String>,
    /// Vchannels that do not exist are made with the acceptance.
    pub(crate) makes_vchannels: bool,
    /// A collection that is made with the acceptance, and the identity it is to get.
    pub(crate) makes_collection: Option<(u64, CollectionSpec)>,
}

/// What makes two requests under one key the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Identity {
    /// Payload, vchannels, resources and properties: vchannels and resources in whatever order,
    /// the payload as its type says ([`super::PayloadForm`]), properties as they are.
    Whole,
    /// Exactly these named fields, compared as bytes: the caller makes each canonical, JSON by
    /// [`canonical_json`](super::canonical_json()). An empty value is an absent field.
    Fields(BTreeMap<String, Vec<u8>>),
}

impl Request {
    /// Makes a request without resources, properties and trace whose identity is the whole of it.
    #[must_use]
    pub fn new(
        message_type: impl Into<String>,
        scope: Option<Scope>,
        vchannels: Vec<String>,
        payload: Vec<u8>,
    ) -> Self {
        Self {
            message_type: message_type.into(),
            scope: scope.map(Arc::new),
            resources: Vec::new(),
            vchannels,
            properties: BTreeMap::new(),
            payload,
            identity: Identity::Whole,
            trace_context: None,
            makes_vchannels: false,
            makes_collection: None,
        }
    }

    /// Has the vchannels that do not exist made with the acceptance; a request that is refused
    /// makes none.
    #[must_use]
    pub fn making_vchannels(mut self) -> Self {
        self.makes_vchannels = true;
        self
    }

    /// Has a collection made with the acceptance, with its vchannels. The request is refused where
    /// another one has that identity by then, or that name.
    #[cfg(feature = "import")]
    pub(crate) fn making_collection(mut self, id: u64, spec: CollectionSpec) -> Self {
        self.makes_collection = Some((id, spec));
        self.making_vchannels()
    }

    /// Sets the resource keys.
    #[must_use]
    pub fn resources(mut self, resources: Vec<Resource>) -> Self {
        self.resources = resources;
        self
    }

    /// Sets the fields that the fingerprint covers.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Sets the properties of the caller.
    #[must_use]
    pub fn properties(mut self, properties: BTreeMap<String, Vec<u8>>) -> Self {
        self.properties = properties;
        self
    }

    /// Sets the trace context.
    #[must_use]
    pub fn trace_context(mut self, traceparent: impl Into<String>) -> Self {
        self.trace_context = Some(traceparent.into());
        self
    }

    /// Bytes that its acceptance carries for it, beside names.
    pub(crate) fn carried_len(&self) -> usize {
        let properties = self.properties.iter().map(|(key, value)| key.len() + value.len() + 16);
        self.payload.len() + properties.sum::<usize>()
    }
}

/// How a broadcast ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The effect exists.
    Done,
    /// The callback of the type failed, or an operator skipped the task; it stays so under its key.
    Failed {
        /// What the callback or the operator said.
        reason: String,
    },
}

/// The answer to a submit, given only when the broadcast has ended and that is durable: its effect
/// exists, or [`Answer::outcome`] says that it never will.
#[must_use = "an answer may be that of a failed original: look at its outcome"]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// Identity of the broadcast; of an import also that of its job.
    pub id: BroadcastId,
    /// The key was accepted before this call: this is the original's result.
    pub duplicated: bool,
    /// Log time of the acceptance, in milliseconds since 1970 UTC.
    pub accepted_at_ms: u64,
    /// Log time of the end, in milliseconds since 1970 UTC.
    pub done_at_ms: u64,
    /// Log time from which the key may be used anew; `None` where nothing was promised (no key, or
    /// a best-effort one). It never moves.
    pub expires_at_ms: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// Where each vchannel's copy stands.
    pub channels: BTreeMap<String, Position>,
    /// Where the type warns of it instead of refusing it ([`super::OnConflict::Warn`]): the names
    /// of the fields in which this request differs from the original, whose answer this is.
    pub differs: Vec<String>,
    /// A wall clock far ahead is not believed yet: nothing expires until it is, or until it is set
    /// back.
    pub clock_held: bool,
}

/// The answer that a tombstone gives; `None` while the task is not done.
pub(crate) fn tombstone_answer(task: &TaskState) -> Option<Answer> {
    let (ending, done_at_ms) = task.done.clone()?;
    let accepted = &task.accepted;
    let names = accepted.header.vchannels.iter().zip(&task.acks);
    let channels = names.filter_map(|(name, ack)| {
        let ack = ack.as_ref()?;
        Some((name.clone(), Position::new(Lsn::new(ack.lsn)?, ack.time_tick)))
    });
    Some(Answer {
        id: accepted.id(),
        duplicated: true,
        accepted_at_ms: task.accepted_at_ms,
        done_at_ms,
        expires_at_ms: task.promised_until_ms(),
        outcome: outcome(ending),
        channels: channels.collect(),
        differs: Vec::new(),
        clock_held: false,
    })
}

pub(crate) fn outcome(ending: Ending) -> Outcome {
    match ending {
        Ending::Failed(reason) => Outcome::Failed { reason },
        _ => Outcome::Done,
    }
}

/// The syntax of the key: all that is checked before it is looked up.
pub(crate) fn check_key(request: &Request) -> Result<()> {
    let Some(scope) = &request.scope else { return Ok(()) };
    check_client_key(&scope.client_key)?;
    if scope.message_type == request.message_type {
        return Ok(());
    }
    let (ours, theirs) = (&request.message_type, &scope.message_type);
    Err(refusal::invalid(format!("the scope is of type {theirs}, the request of type {ours}")))
}

/// Checks the syntax of a client key: 1 to 256 bytes of printable ASCII.
///
/// # Errors
///
/// `InvalidInput` for any other.
pub fn check_client_key(key: &[u8]) -> Result<()> {
    const MAX: usize = 256;
    if key.is_empty() || key.len() > MAX {
        let len = key.len();
        return Err(refusal::invalid(format!("a key: expected 1 to {MAX} bytes, found {len}")));
    }
    match key.iter().position(|byte| !(0x20..=0x7E).contains(byte)) {
        None => Ok(()),
        Some(at) => {
            Err(refusal::invalid(format!("a key: expected printable ASCII, not so at byte {at}")))
        }
    }
}
