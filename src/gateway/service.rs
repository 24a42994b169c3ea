//! From a request to its answer: who asks comes first, then the route, then the rest.
//!
//! Before the credentials are known, nothing is looked at but the path, and of it only whether it
//! belongs to `/v2`, whose clients read their own form of a refusal: who is not allowed gets the
//! same answer whatever key, body or route he sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderName;
use hyper::{HeaderMap, Request};
use tokio::time::Instant;

use super::answer::{Answer, Dialect};
use super::calls::Calls;
use super::counts::{GatewayCounts, name_of};
use super::credentials::token_of;
use super::desk::{Asked, Desk, refused};
use super::exposition::Exposition;
use super::history::History;
use super::limits::Limits;
use super::refusal::{Refusal, Row};
use super::routes::{Call, Found, Route, find};
use super::tokens::Tokens;
use super::{body, key, openapi, page};

const PREFER: HeaderName = HeaderName::from_static("prefer");
const RETRY: HeaderName = HeaderName::from_static("idempotency-retry");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const DATABASE: HeaderName = HeaderName::from_static("db-name");

/// Everything that answers requests.
#[derive(Debug)]
pub(crate) struct Service {
    desk: Arc<Desk>,
    tokens: Tokens,
    calls: Calls,
    counts: GatewayCounts,
    exposition: Arc<Exposition>,
    history: Arc<History>,
    is_draining: AtomicBool,
}

impl Service {
    pub(crate) fn new(desk: Desk, tokens: Tokens, counts: GatewayCounts) -> Self {
        let calls = Calls::new(desk.limits.waiting_max, counts.clone());
        let exposition = Arc::new(Exposition::new());
        let (history, is_draining) = (Arc::default(), AtomicBool::new(false));
        Self { desk: Arc::new(desk), tokens, calls, counts, exposition, history, is_draining }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.desk.limits
    }

    /// From here on it says that it is not ready.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Looks at the window, for its history; before the store is open there is none.
    pub(crate) async fn sample(&self) {
        let (desk, history) = (Arc::clone(&self.desk), Arc::clone(&self.history));
        let look = move || desk.broadcaster().map(|broadcaster| history.look(&broadcaster));
        // One look more or less changes nothing.
        drop(self.calls.look(look).await);
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (since, _under_way) = (Instant::now(), self.counts.request());
        let (head, body) = request.into_parts();
        let dialect = Dialect::of(head.uri.path());
        let found = find(head.method.as_str(), head.uri.path());
        let (name, mut applied) = (name_of(&found), None);
        let answer = self.answered(head, body, found, &mut applied).await;
        let refused = answer.as_ref().err().map(|refusal| refusal.row);
        let mut answer = answer.unwrap_or_else(|refusal| refusal.answer(dialect));
        if let Some(wait) = applied {
            let told = format!("wait={}", wait.as_secs());
            answer = answer.header("preference-applied", &told);
        }
        self.counts.answered_one(name, answer.status(), refused, since.elapsed());
        answer
    }

    /// `applied` is the wait that the client prefers and is let to, once that is known.
    async fn answered(
        &self,
        head: hyper::http::request::Parts,
        body: Incoming,
        found: Found,
        applied: &mut Option<Duration>,
    ) -> Result<Answer, Refusal> {
        if let Found::Route(route, _) = &found {
            // Who watches whether the process lives has no token.
            match route.call {
                Call::Alive => return Ok(Answer::of(200, "text/plain", "alive\n")),
                Call::Ready => return self.ready(),
                _ => {}
            }
        }
        let is_page = matches!(&found, Found::Route(route, _) if route.call == Call::Page);
        let principal = self.principal(&head.headers, is_page)?;
        self.check_head(&head)?;
        let (route, part) = match found {
            Found::Route(route, part) => (route, part),
            Found::OtherMethod(allow) => return Err(Refusal::no_method(allow)),
            Found::Nothing => return Err(Refusal::new(&Row::NO_ROUTE, "")),
        };
        let mut asked = of_headers(route, principal, &head.headers)?;
        asked.part = part;
        asked.query = head.uri.query().map(str::to_owned);
        asked.prefers_wait = self.desk.applied(route.call, asked.prefers_wait);
        if route.method == "POST" {
            asked.body = body::read(body, &self.desk.limits).await?;
        }
        *applied = asked.prefers_wait;
        self.perform(route.call, asked).await
    }

    async fn perform(&self, call: Call, asked: Asked) -> Result<Answer, Refusal> {
        let desk = Arc::clone(&self.desk);
        match call {
            Call::Metrics => {
                let (exposition, counts) = (Arc::clone(&self.exposition), self.counts.clone());
                let scrape = move || {
                    let stats = desk.broadcaster()?.stats();
                    let kind = "text/plain; version=0.0.4; charset=utf-8";
                    Ok(Answer::of(200, kind, exposition.text(&stats, &counts.stats())))
                };
                self.calls.look(scrape).await
            }
            Call::Page => {
                let history = Arc::clone(&self.history);
                self.calls.look(move || page::show(&desk, &asked, &history)).await
            }
            Call::Description => Ok(Answer::of(200, "application/json", openapi::TEXT)),
            call if call.waits() => self.calls.wait(move || desk.perform(call, &asked)).await,
            _ => self.calls.look(move || desk.perform(call, &asked)).await,
        }
    }

    fn ready(&self) -> Result<Answer, Refusal> {
        if self.is_draining.load(Ordering::Relaxed) {
            return Err(Refusal::new(&Row::UNAVAILABLE, "the server is ending"));
        }
        match self.desk.opening.broadcaster() {
            Ok(_) => Ok(Answer::of(200, "text/plain", "ready\n")),
            // Who has no token is told no more than the kind.
            Err(e) => Err(Refusal::new(refused(&e).row, "")),
        }
    }

    /// The principal of the credentials.
    fn principal(&self, headers: &HeaderMap, takes_basic: bool) -> Result<Arc<str>, Refusal> {
        let refusal = || Refusal::new(&Row::UNAUTHENTICATED, "");
        let token = token_of(headers, takes_basic);
        token.and_then(|token| self.tokens.principal_of(&token)).ok_or_else(refusal)
    }

    fn check_head(&self, head: &hyper::http::request::Parts) -> Result<(), Refusal> {
        let max = self.desk.limits.head_bytes_max;
        let line = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
        let headers = head
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len().saturating_add(value.len()).saturating_add(4));
        let found = headers.fold(line.saturating_add(16), usize::saturating_add);
        if found > max {
            let what = format!("line and headers: expected at most {max} bytes");
            return Err(Refusal::new(&Row::HEAD_LIMIT, what));
        }
        Ok(())
    }
}

/// What the headers say of a request.
fn of_headers(route: &Route, principal: Arc<str>, headers: &HeaderMap) -> Result<Asked, Refusal> {
    let text = |name: &HeaderName| {
        headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let key = if route.takes_key { key::of(headers)? } else { None };
    let retry_failed = match text(&RETRY).as_deref().map(str::trim) {
        Some("failed-only") if route.takes_key => true,
        Some(_) if route.takes_key => {
            return Err(Refusal::invalid("Idempotency-Retry: expected failed-only"));
        }
        _ => false,
    };
    Ok(Asked {
        principal,
        key,
        prefers_wait: headers.get_all(PREFER).iter().find_map(|value| preferred(value.as_bytes())),
        retry_failed,
        trace_parent: text(&TRACE_PARENT),
        database: text(&DATABASE),
        part: None,
        query: None,
        body: bytes::Bytes::new(),
    })
}

/// The seconds of `wait=N` among preferences (RFC 7240); one that is none is ignored.
fn preferred(value: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?;
    text.split(',').find_map(|preference| {
        // What stands behind a semicolon is a parameter of the preference.
        let preference = preference.split(';').next()?;
        let (name, seconds) = preference.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        let seconds = seconds.trim().trim_matches('"').parse().ok().filter(|_| is_wait)?;
        Some(Duration::from_secs(seconds))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_that_is_preferred_is_found_among_others() {
        for (value, expect) in [
            ("wait=10", Some(10)),
            ("respond-async, wait=5", Some(5)),
            ("wait=5; x=7, wait=8", Some(5)),
            ("handling=lenient; wait=5", None),
            ("Wait = \"7\"", Some(7)),
            ("respond-async", None),
            ("wait=soon", None),
            ("wait=-1", None),
            ("", None),
        ] {
            let found = preferred(value.as_bytes()).map(|wait| wait.as_secs());
            assert_eq!(found, expect, "{value}");
        }
        assert_eq!(preferred(b"\xff"), None);
    }
}
