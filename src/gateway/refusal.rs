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
        "It is not known whether the request was accepted: send it again, with the same key";
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

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) row: &'static Row,
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
            ..Self::new(Row::of(error), told)
        }
    }

    fn told(&self) -> &str {
        if self.detail.is_empty() { self.row.title } else { &self.detail }
    }

    /// The whole seconds behind which it may help to ask again.
    fn retry_after_seconds(&self) -> Option<u64> {
        let after = self.retry_after.filter(|_| self.row.retryable);
        let after = after.or_else(|| self.row.retryable.then_some(Duration::from_secs(1)))?;
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
            answer = answer.header("www-authenticate", "Bearer");
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
        data.insert("retryable".into(), json!(self.row.retryable));
        if !self.fields.is_empty() {
            data.insert("fields".into(), json!(self.fields));
        }
        if let Some(id) = self.broadcast {
            data.insert("broadcast_id".into(), json!(id.to_string()));
        }
        if let Some(after) = self.retry_after {
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
}
