//! Trace context: kept with a broadcast, in every copy, and told to the callback, also when that runs
//! after a restart.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use oncelog::Lsn;
use oncelog::broadcast::{TraceParent, Verdict};
use oncelog_format::message::TraceContext;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::desk::{Desk, request};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traceparent() -> String {
    format!("00-{TRACE}-{PARENT}-01")
}

/// What the copies carry.
fn carried(desk: &Desk) -> Vec<Option<String>> {
    let mut reader = desk.broadcaster.jobs().channel("p0").unwrap().read(Lsn::FIRST).unwrap();
    let mut found = Vec::new();
    while let Some(stored) = reader.next().unwrap() {
        found.push(stored.property::<TraceContext>().unwrap().map(|trace| trace.0));
    }
    found
}

/// Notes what the callback is told from here on.
fn note(desk: &Desk) -> Arc<Mutex<Vec<Option<TraceParent>>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&told);
    desk.script.then(move |task| {
        noted.lock().unwrap().push(task.trace_parent());
        Verdict::Done
    });
    told
}

#[test]
fn every_copy_and_the_callback_have_the_callers_trace_context() {
    let desk = Desk::open();
    let told = note(&desk);
    let request = request("k", "p").trace_context(traceparent());
    drop(desk.broadcaster.submit(&request, None).unwrap());
    assert_eq!(carried(&desk), [Some(traceparent()), Some(traceparent())]);
    let told = told.lock().unwrap().clone();
    assert_eq!(told, [TraceParent::parse(&traceparent())]);
}

#[test]
fn a_callback_after_a_restart_has_it_too() {
    let desk = Desk::open();
    desk.script.next(Verdict::Park("until the next process".into()));
    let request = request("k", "p").trace_context(traceparent());
    let parked = desk.broadcaster.submit(&request, None).unwrap_err();
    let desk = desk.reopen();
    let told = note(&desk);
    let id = parked.broadcast_id().unwrap();
    desk.broadcaster.resume(id, "").unwrap();
    let answer = desk.broadcaster.submit(&request, None).unwrap();
    assert!(answer.duplicated);
    let told = told.lock().unwrap().clone();
    assert_eq!(told, [TraceParent::parse(&traceparent())]);
}

#[test]
fn a_text_that_is_none_is_dropped_and_a_retry_may_have_another() {
    let desk = Desk::open();
    let told = note(&desk);
    let answer =
        desk.broadcaster.submit(&request("k", "p").trace_context("no span"), None).unwrap();
    assert_eq!(carried(&desk), [None, None]);
    assert_eq!(*told.lock().unwrap(), [None]);
    let retry = request("k", "p").trace_context(traceparent());
    let again = desk.broadcaster.submit(&retry, None).unwrap();
    assert_eq!((again.id, again.duplicated), (answer.id, true));
    assert_eq!(carried(&desk), [None, None]);
}

/// Notes the fields of spans named `callback`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "callback"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, _event: &Event<'_>) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

#[test]
fn the_span_of_a_callback_after_a_restart_links_to_the_callers() {
    let desk = Desk::with(Arc::default(), |options| options.worker_count(1));
    desk.script.next(Verdict::Park("until the next process".into()));
    let request = request("k", "p").trace_context(traceparent());
    let parked = desk.broadcaster.submit(&request, None).unwrap_err();
    let desk = desk.reopen();
    let spans = Spans::default();
    // Of two subscribers, each is asked about every span; of one, its own thread alone.
    let _other = tracing::Dispatch::new(Spans::default());
    let dispatch = tracing::Dispatch::new(spans.clone());
    desk.script.then(move |_| {
        // The one worker tells of its spans from here on.
        std::mem::forget(tracing::dispatcher::set_default(&dispatch));
        Verdict::Retry("again, to be seen".into())
    });
    let id = parked.broadcast_id().unwrap();
    desk.broadcaster.resume(id, "").unwrap();
    drop(desk.broadcaster.submit(&request, None).unwrap());
    let seen = spans.0.lock().unwrap().clone();
    let expect = [("broadcast", "1"), ("parent_id", PARENT), ("trace_id", TRACE)];
    let expect = expect.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(seen, [BTreeMap::from(expect)]);
}
