//! What the gateway counts of itself as it works; nobody waits for it and no decision depends on it.
//!
//! It is of this process, and begins at zero with it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::refusal::Row;
use super::routes::Found;
use crate::histogram::Histogram;

/// Method and path of a route, as it is described; those of what is none are `NO_ROUTE`.
type Name = (&'static str, &'static str);

/// Under which requests are counted that no route answers.
const NO_ROUTE: Name = ("(any)", "(none)");

/// What a gateway has answered, and has at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatewayStats {
    /// Requests by method and path of their route, as `/v1/openapi.json` has it; `(any)` and
    /// `(none)` for those of no route. Routes that nobody asked are not there.
    pub routes: BTreeMap<(&'static str, &'static str), RouteStats>,
    /// Requests that were refused, by the word of the refusal; every word is there.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Requests that are under way at this moment.
    pub requests: u64,
    /// Those of them that wait for an effect, or whose client went and left them to it.
    pub requests_waiting: u64,
    /// Connections that are open at this moment.
    pub connections: u64,
    /// Connections that found a place.
    pub connections_taken: u64,
    /// Connections that found none.
    pub connections_turned_away: u64,
}

/// Requests of one route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteStats {
    /// How many were answered with each status.
    pub answers: BTreeMap<u16, u64>,
    /// From the head of a request to its answer, in microseconds; the body's arrival is within.
    pub time: Histogram,
}

/// The counts of a gateway, for whoever wants to know them while it serves.
#[derive(Clone, Debug, Default)]
pub struct GatewayCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    answered: Mutex<Answered>,
    requests: AtomicU64,
    requests_waiting: AtomicU64,
    connections: AtomicU64,
    connections_taken: AtomicU64,
    connections_turned_away: AtomicU64,
}

#[derive(Debug, Default)]
struct Answered {
    routes: BTreeMap<Name, RouteStats>,
    refusals: BTreeMap<&'static str, u64>,
}

/// Something that goes on until it is dropped, on whatever way.
#[derive(Debug)]
pub(crate) struct GoesOn {
    counts: GatewayCounts,
    of: fn(&Counts) -> &AtomicU64,
}

impl Drop for GoesOn {
    fn drop(&mut self) {
        (self.of)(&self.counts.0).fetch_sub(1, Ordering::Relaxed);
    }
}

impl GatewayCounts {
    /// Returns what was counted so far.
    #[must_use]
    pub fn stats(&self) -> GatewayStats {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (routes, mut refusals) = {
            let answered = self.answered();
            (answered.routes.clone(), answered.refusals.clone())
        };
        for row in Row::ALL {
            refusals.entry(row.slug).or_default();
        }
        GatewayStats {
            routes,
            refusals,
            requests: now(&self.0.requests),
            requests_waiting: now(&self.0.requests_waiting),
            connections: now(&self.0.connections),
            connections_taken: now(&self.0.connections_taken),
            connections_turned_away: now(&self.0.connections_turned_away),
        }
    }

    /// A request is answered.
    pub(crate) fn answered_one(
        &self,
        name: Name,
        status: u16,
        refused: Option<&'static Row>,
        time: Duration,
    ) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let mut answered = self.answered();
        let route = answered.routes.entry(name).or_default();
        one_more(route.answers.entry(status).or_default());
        route.time.record(micros);
        if let Some(row) = refused {
            one_more(answered.refusals.entry(row.slug).or_default());
        }
    }

    /// A request is under way.
    pub(crate) fn request(&self) -> GoesOn {
        self.goes_on(|counts| &counts.requests)
    }

    /// A request waits for an effect.
    pub(crate) fn waits(&self) -> GoesOn {
        self.goes_on(|counts| &counts.requests_waiting)
    }

    /// A connection has its place.
    pub(crate) fn connection(&self) -> GoesOn {
        self.0.connections_taken.fetch_add(1, Ordering::Relaxed);
        self.goes_on(|counts| &counts.connections)
    }

    /// A connection has none.
    pub(crate) fn turned_away(&self) {
        self.0.connections_turned_away.fetch_add(1, Ordering::Relaxed);
    }

    fn goes_on(&self, of: fn(&Counts) -> &AtomicU64) -> GoesOn {
        of(&self.0).fetch_add(1, Ordering::Relaxed);
        GoesOn { counts: self.clone(), of }
    }

    fn answered(&self) -> MutexGuard<'_, Answered> {
        self.0.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Under which name a request is counted: whoever asks can make no other.
pub(crate) fn name_of(found: &Found) -> Name {
    match found {
        Found::Route(route, _) => (route.method, route.path),
        Found::OtherMethod(_) | Found::Nothing => NO_ROUTE,
    }
}

fn one_more(count: &mut u64) {
    *count = count.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::routes::find;

    #[test]
    fn what_goes_on_is_counted_until_it_ends_on_whatever_way() {
        let counts = GatewayCounts::default();
        let (request, connection) = (counts.request(), counts.connection());
        drop(
            std::thread::spawn(move || {
                let _held = connection;
                panic!("a panic of the test");
            })
            .join(),
        );
        let stats = counts.stats();
        assert_eq!((stats.requests, stats.connections, stats.connections_taken), (1, 0, 1));
        drop(request);
        assert_eq!(counts.stats().requests, 0);
    }

    #[test]
    fn a_name_is_one_of_a_few_whatever_is_asked() {
        let name = |method: &str, path: &str| name_of(&find(method, path));
        assert_eq!(name("GET", "/v1/jobs/77"), ("GET", "/v1/jobs/{id}"));
        assert_eq!(name("HEAD", "/v1/jobs/78"), ("GET", "/v1/jobs/{id}"));
        for (method, path) in [("PUT", "/v1/jobs"), ("GET", "/x"), ("BREW", "/y")] {
            assert_eq!(name(method, path), NO_ROUTE);
        }
    }

    #[test]
    fn every_word_of_a_refusal_is_there_before_it_is_said() {
        let counts = GatewayCounts::default();
        assert_eq!(counts.stats().refusals.len(), Row::ALL.len());
        let time = Duration::from_micros(3);
        counts.answered_one(("GET", "/"), 401, Some(&Row::UNAUTHENTICATED), time);
        counts.answered_one(("GET", "/"), 200, None, time);
        let stats = counts.stats();
        assert_eq!((stats.refusals["unauthenticated"], stats.refusals["gone"]), (1, 0));
        let route = &stats.routes[&("GET", "/")];
        assert_eq!(route.answers, BTreeMap::from([(200, 1), (401, 1)]));
        assert_eq!((route.time.count(), route.time.sum()), (2, 6));
    }
}
