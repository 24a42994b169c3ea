//! What is sent back: a status, headers, a body that is whole.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use crate::broadcast::Answer as Broadcasted;

/// How a family of routes says what it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Problem documents, statuses.
    Problem,
    /// Codes in answers of status 200.
    Vectordb,
}

impl Dialect {
    /// That of the route of a path.
    pub(crate) fn of(path: &str) -> Self {
        let is_v2 =
            path.strip_prefix("/v2").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_v2 { Self::Vectordb } else { Self::Problem }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    /// An answer of bytes.
    pub(crate) fn of(status: u16, kind: &'static str, body: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static(kind));
        // An answer is of this moment, and of this principal.
        headers.insert(hyper::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let nosniff = HeaderName::from_static("x-content-type-options");
        headers.insert(nosniff, HeaderValue::from_static("nosniff"));
        Self { status, headers, body: body.into() }
    }

    /// A JSON document.
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::of(status, "application/json", body.to_string())
    }

    /// A problem document.
    pub(crate) fn problem(status: u16, body: &Value) -> Self {
        Self::of(status, "application/problem+json", body.to_string())
    }

    /// An answer of a route under `/v2`. Some of its clients look at `code`, others at `status`.
    pub(crate) fn coded(status: u16, code: u32, message: &str, data: &Value) -> Self {
        let body = json!({ "code": code, "status": code, "message": message, "data": data });
        Self::json(status, &body)
    }

    /// Adds a header beside those of its name; a value that is none is left out.
    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.append(HeaderName::from_static(name), value);
        }
        self
    }

    /// Adds what every answer to a request that may carry a key says of it.
    pub(crate) fn of_key(self, answer: &Broadcasted) -> Self {
        let answered = self.header("idempotency-replayed", &answer.duplicated.to_string());
        match answer.expires_at_ms {
            Some(at_ms) => answered.header("idempotency-expires", &time(at_ms)),
            None => answered,
        }
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    #[cfg(test)]
    pub(crate) fn has_header(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// The answer as hyper sends it.
    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.headers_mut() = self.headers;
        response
    }
}

/// RFC 3339 in UTC, of milliseconds since 1970; a time outside its range as the number.
pub(crate) fn time(ms: u64) -> String {
    let stamp = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    stamp.map_or_else(|| ms.to_string(), |stamp| format!("{stamp:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_of_a_path_is_that_of_its_first_part() {
        for (path, expect) in [
            ("/v2/vectordb/jobs/import/list", Dialect::Vectordb),
            ("/v2", Dialect::Vectordb),
            ("/v2x", Dialect::Problem),
            ("/v1/jobs", Dialect::Problem),
            ("/", Dialect::Problem),
        ] {
            assert_eq!(Dialect::of(path), expect, "{path}");
        }
    }
}
