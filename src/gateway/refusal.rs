//! What a request is refused with: one table, from which both families of routes answer.
//!
//! Under `/v1` a refusal is a problem document (RFC 9457) with a status of its own. Under `/v2` it is
//! a code in an answer of status 200, because the clients of those routes take any other status for
//! a failure of the network; but for credentials, and for what is no route.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::answer::{Answer, Dialect};
use crate::broadcast::BroadcastId;
use crate::error::{Error, ErrorKind};

/// A kind of refusal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The last part of its `type` in a problem document.
    pub(crate) slug: &'static str,
    /// The kind of error, as the command line names it.
    pub(crate) kind: &'static str,
    /// What it is, the same for all of a kind.
    pub(crate) title: &'static str,
    /// Status under `/v1`.
    pub(crate) status: u16,
    /// Code under `/v2`.
    pub(crate) code: u32,
    /// Whether the same request may succeed later.
    pub(crate) retryable: bool,
}

macro_rules! rows {
    ($($name:ident: $slug:literal, $kind:literal, $status:literal, $code:literal, $retry:literal,
       $title:literal;)*) => {
        impl Row {
            $(pub(crate) const $name: Self = Self {
                slug: $slug,
                kind: $kind,
                title: $title,
                status: $status,
                code: $code,
                retryable: $retry,
            };)*

            /// Every kind of refusal.
            pub(crate) const ALL: &[&Self] = &[$(&Self::$name),*];
        }
    };
}

// Codes below 10,000 are those that clients of `/v2` know; above it they are of this server alone.
rows! {
    INVALID: "invalid-input", "InvalidInput", 400, 1100, false, "The request is not well-formed";
    MALFORMED_KEY: "malformed-key", "InvalidInput", 400, 1100, false,
        "The idempotency key is not well-formed";
    UNAUTHENTICATED: "unauthenticated", "Unauthenticated", 401, 1800, false,
        "The credentials are missing or not known";
    NO_ROUTE: "no-route", "NotFound", 404, 12_404, false, "There is no such route";
    NOT_FOUND: "not-found", "NotFound", 404, 2100, false, "There is no such thing";
    NO_METHOD: "no-method", "NotFound", 405, 12_405, false, "The route has no such method";
    TOO_SLOW: "too-slow", "Limit", 408, 12_408, true, "The request did not arrive in time";
    IN_FLIGHT: "in-flight", "InFlight", 409, 12_001, true,
        "The same request is under way";
    LOCK_TIMEOUT: "lock-timeout", "LockTimeout", 409, 12_002, true,
        "A resource is held by other work";
    PARKED: "parked", "Parked", 409, 12_003, true, "The work waits for an operator";
    GONE: "gone", "Gone", 410, 12_410, false, "It was there, and is kept no longer";
    LIMIT: "limit", "Limit", 413, 12_413, false, "The request is larger than a limit";
    CONFLICT: "conflict", "Conflict", 422, 1100, false,
        "The idempotency key was used for another request";
    WINDOW_FULL: "window-full", "WindowFull", 429, 9, true,
        "The window holds no further key, or all slots for jobs are taken";
    HEAD_LIMIT: "head-limit", "Limit", 431, 12_431, false, "The head is larger than a limit";
    INTERNAL: "internal", "Io", 500, 5, false, "The system refused, or data is damaged";
    UNSUPPORTED: "unsupported", "Unsupported", 501, 12_501, false,
        "The data is of a version that is not known";
    RECOVERING: "recovering", "Recovering", 503, 1, true, "The store is being opened";
    OUTCOME_UNKNOWN: "outcome-unknown", "OutcomeUnknown", 503, 12_004, true,
        "It is not known whether the request was accepted";
    STORE_FULL: "store-full", "StoreFull", 503, 12_005, true, "There is no space";
    UNAVAILABLE: "unavailable", "Busy", 503, 2, true, "The store takes no work at this moment";
    TOO_MANY: "too-many-requests", "Busy", 503, 4, true, "Too many requests are under way";
}

impl Row {
    fn of(error: &Error) -> &'static Self {
        match error.kind() {
            ErrorKind::InvalidInput => &Self::INVALID,
            ErrorKind::Conflict => &Self::CONFLICT,
            ErrorKind::WindowFull => &Self::WINDOW_FULL,
            ErrorKind::StoreFull | ErrorKind::Pinned => &Self::STORE_FULL,
            ErrorKind::Limit => &Self::LIMIT,
            ErrorKind::Recovering => &Self::RECOVERING,
            ErrorKind::InFlight => &Self::IN_FLIGHT,
            ErrorKind::LockTimeout => &Self::LOCK_TIMEOUT,
            ErrorKind::OutcomeUnknown => &Self::OUTCOME_UNKNOWN,
            ErrorKind::Parked => &Self::PARKED,
            ErrorKind::Unsupported => &Self::UNSUPPORTED,
            ErrorKind::Busy | ErrorKind::Fenced | ErrorKind::Poisoned | ErrorKind::Closed => {
                &Self::UNAVAILABLE
            }
            // The system refused before anything was written.
            ErrorKind::Io if error.is_retryable() => &Self::UNAVAILABLE,
            ErrorKind::Trimmed | ErrorKind::Corrupt | ErrorKind::Io => &Self::INTERNAL,
        }
    }
}

/// Behind what is told of work without a key that may have been accepted.
const ONCE: &str = "without a key it must not be sent again, because it may then be done twice";

/// Says whether nothing was accepted where a call ended so: what comes behind that names its
/// broadcast, or is one of the other kinds.
fn is_before_acceptance(error: &Error) -> bool {
    let refuses = matches!(
        error.kind(),
        ErrorKind::InvalidInput
            | ErrorKind::Conflict
            | ErrorKind::WindowFull
            | ErrorKind::StoreFull
            | ErrorKind::Pinned
            | ErrorKind::Limit
            | ErrorKind::LockTimeout
            | ErrorKind::Busy
            | ErrorKind::Recovering
            | ErrorKind::Io
    );
    refuses && error.broadcast_id().is_none()
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) row: &'static Row,
    /// Something of the request may stand.
    may_stand: bool,
    /// The request must not be sent again as it is, whatever its kind says.
    once: bool,
    detail: Cow<'static, str>,
    fields: Vec<String>,
    broadcast: Option<BroadcastId>,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn new(row: &'static Row, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            row,
            may_stand: *row == Row::OUTCOME_UNKNOWN,
            once: false,
            detail: detail.into(),
            fields: Vec::new(),
            broadcast: None,
            retry_after: None,
            allow: None,
        }
    }

    /// For a request that is wrong as it is.
    pub(crate) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(&Row::INVALID, detail)
    }

    /// For a method that a route has not.
    pub(crate) fn no_method(allow: &'static str) -> Self {
        Self { allow: Some(allow), ..Self::new(&Row::NO_METHOD, "") }
    }

    /// What the library answered, in words that `told` makes of it.
    pub(crate) fn of(error: &Error, told: String) -> Self {
        Self {
            fields: error.fields().to_vec(),
            broadcast: error.broadcast_id(),
            retry_after: error.retry_after(),
            may_stand: !is_before_acceptance(error),
            ..Self::new(Row::of(error), told)
        }
    }

    /// The same, of work without a key: what may have been accepted must not be sent again, as no
    /// key says that it is the same.
    pub(crate) fn keyless(mut self) -> Self {
        self.once = self.may_stand && self.row.retryable;
        if self.once {
            self.detail = format!("{}: {ONCE}", self.told()).into();
        }
        self
    }

    fn told(&self) -> &str {
        if self.detail.is_empty() { self.row.title } else { &self.detail }
    }

    /// Whether the same request may succeed later, and does nothing twice.
    fn is_retryable(&self) -> bool {
        self.row.retryable && !self.once
    }

    /// The whole seconds behind which it may help to ask again.
    fn retry_after_seconds(&self) -> Option<u64> {
        if !self.is_retryable() {
            return None;
        }
        let after = self.retry_after.unwrap_or(Duration::from_secs(1));
        let up = u64::from(after.subsec_nanos() > 0);
        Some(after.as_secs().saturating_add(up).max(1))
    }

    /// The answer that says it.
    pub(crate) fn answer(&self, dialect: Dialect) -> Answer {
        let mut answer = match dialect {
            Dialect::Problem => Answer::problem(self.row.status, &self.problem()),
            Dialect::Vectordb => {
                let status = match self.row.status {
                    status @ (401 | 404 | 405) if self.is_of_http() => status,
                    _ => 200,
                };
                Answer::coded(status, self.row.code, self.told(), &Value::Object(self.data()))
            }
        };
        if let Some(seconds) = self.retry_after_seconds() {
            answer = answer.header("retry-after", &seconds.to_string());
        }
        if let Some(allow) = self.allow {
            answer = answer.header("allow", allow);
        }
        if *self.row == Row::UNAUTHENTICATED {
            // A place for a connection is not for strangers to keep.
            answer = answer.header("www-authenticate", "Bearer").header("connection", "close");
            if dialect == Dialect::Problem {
                // A browser asks for a password by it, which the page takes; it looks at the first
                // challenge of a line alone.
                answer = answer.header("www-authenticate", "Basic realm=\"oncelog\"");
            }
        }
        answer
    }

    /// Refused before any route of `/v2` had a say.
    fn is_of_http(&self) -> bool {
        [&Row::UNAUTHENTICATED, &Row::NO_ROUTE, &Row::NO_METHOD].contains(&self.row)
    }

    fn problem(&self) -> Value {
        let mut problem = Map::new();
        let of_kind = format!("urn:oncelog:problem:{}", self.row.slug);
        problem.insert("type".into(), json!(of_kind));
        problem.insert("title".into(), json!(self.row.title));
        problem.insert("status".into(), json!(self.row.status));
        problem.insert("detail".into(), json!(self.told()));
        problem.append(&mut self.data());
        Value::Object(problem)
    }

    /// What a program can take apart.
    fn data(&self) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("kind".into(), json!(self.row.kind));
        data.insert("retryable".into(), json!(self.is_retryable()));
        if !self.fields.is_empty() {
            data.insert("fields".into(), json!(self.fields));
        }
        if let Some(id) = self.broadcast {
            data.insert("broadcast_id".into(), json!(id.to_string()));
        }
        if let Some(after) = self.retry_after.filter(|_| !self.once) {
            let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            data.insert("retry_after_ms".into(), json!(after_ms));
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kinds_of_refusal_are_told_apart_by_their_type_and_where_it_matters_by_their_code() {
        let slugs: BTreeSet<&str> = Row::ALL.iter().map(|row| row.slug).collect();
        assert_eq!(slugs.len(), Row::ALL.len());
        let malformed = Row::ALL.iter().filter(|row| row.code == 1100).count();
        assert_eq!(malformed, 3, "what is malformed, and a conflict");
        let codes: BTreeSet<u32> = Row::ALL.iter().map(|row| row.code).collect();
        assert_eq!(codes.len(), Row::ALL.len() + 1 - malformed);
    }

    #[test]
    fn what_may_be_asked_again_says_when() {
        for row in Row::ALL {
            let answer = Refusal::new(row, "").answer(Dialect::Problem);
            assert_eq!(answer.has_header("retry-after"), row.retryable, "{}", row.slug);
        }
    }

    #[test]
    fn work_without_a_key_that_may_have_been_accepted_is_never_to_be_sent_again() {
        for (kind, may_stand) in [
            (ErrorKind::InvalidInput, false),
            (ErrorKind::Conflict, false),
            (ErrorKind::WindowFull, false),
            (ErrorKind::StoreFull, false),
            (ErrorKind::Pinned, false),
            (ErrorKind::Limit, false),
            (ErrorKind::LockTimeout, false),
            (ErrorKind::Busy, false),
            (ErrorKind::Recovering, false),
            (ErrorKind::Io, false),
            (ErrorKind::InFlight, true),
            (ErrorKind::Parked, true),
            (ErrorKind::OutcomeUnknown, true),
            (ErrorKind::Poisoned, true),
            (ErrorKind::Fenced, true),
            (ErrorKind::Closed, true),
        ] {
            let refused = Error::new(kind, "x").with_retry_after(Duration::from_secs(7));
            for (error, may_stand) in
                [(refused.clone(), may_stand), (refused.with_broadcast(7), true)]
            {
                let keyed = Refusal::of(&error, "x".into());
                let keyless = keyed.clone().keyless();
                let told = Value::Object(keyless.data());
                assert_eq!(keyless.row, keyed.row);
                if !may_stand {
                    assert_eq!(keyless, keyed, "{kind:?}");
                    continue;
                }
                assert_eq!(told["retryable"], false, "{kind:?}");
                assert_eq!(told.get("retry_after_ms").is_some(), !keyed.row.retryable, "{kind:?}");
                assert_eq!(told.get("broadcast_id"), keyed.data().get("broadcast_id"));
                for dialect in [Dialect::Problem, Dialect::Vectordb] {
                    assert!(!keyless.answer(dialect).has_header("retry-after"), "{kind:?}");
                }
            }
        }
        // A call that panicked.
        let unknown = Refusal::new(&Row::OUTCOME_UNKNOWN, "").keyless();
        assert!(!unknown.is_retryable() && unknown.told().contains("twice"));
        assert!(Refusal::new(&Row::TOO_MANY, "").keyless().is_retryable());
    }
}
