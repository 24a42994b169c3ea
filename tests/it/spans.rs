//! Spans and events as a subscriber sees them: names, levels, fields.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use oncelog::testing::{CallKind, EIO, Fault, Machine, MemIo, Which};
use oncelog::{CreateMode, Log, Options};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, with_default};
use tracing::{Event, Metadata, Subscriber};

use crate::broadcast::desk::{Desk, request};

/// What this thread told, a line each: level, name, fields.
#[derive(Clone, Debug, Default)]
struct Listener {
    told: Arc<Mutex<Vec<String>>>,
    spans: Arc<AtomicU64>,
}

/// The fields of one span or event.
#[derive(Default)]
struct Fields {
    name: String,
    rest: Vec<String>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.name = format!("{value:?}"),
            name => self.rest.push(format!("{name}={value:?}")),
        }
    }
}

impl Listener {
    fn note(&self, metadata: &Metadata<'_>, fields: Fields) {
        let name = if metadata.is_span() { metadata.name() } else { &fields.name };
        let line = format!("{} {name} {}", metadata.level(), fields.rest.join(" "));
        self.told.lock().unwrap().push(line);
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }
}

impl Subscriber for Listener {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // Other tests have other listeners, or none.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("oncelog")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.note(span.metadata(), fields);
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.note(event.metadata(), fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn an_open_is_a_span_and_a_poison_an_error_told_once() {
    let (io, heard) = (MemIo::new(Machine::new()), Listener::default());
    let options = Options::new().create(CreateMode::IfMissing).io(Arc::new(io.clone()));
    with_default(heard.clone(), || {
        let (log, _) = Log::open("/log", &options.background(false)).unwrap();
        io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
        log.append(b"lost").unwrap_err();
        log.append(b"refused").unwrap_err();
        log.close().unwrap_err();
    });
    let told = heard.told();
    assert!(told.contains(&"DEBUG open_log dir=/log".to_owned()), "{told:?}");
    let name = "ERROR the log is poisoned until it is opened again error=";
    assert_eq!(told.iter().filter(|line| line.starts_with(name)).count(), 1, "{told:?}");
}

#[test]
fn a_submit_is_a_span_with_its_type_and_trace_and_without_its_key_and_payload() {
    let (desk, heard) = (Desk::open(), Listener::default());
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let mut request = request("secret-key", "secret-payload");
    request.trace_context = Some(format!("00-{trace}-{parent}-01"));
    drop(with_default(heard.clone(), || desk.broadcaster.submit(&request, None).unwrap()));
    let told = heard.told();
    let ids = format!("trace_id=\"{trace}\" parent_id=\"{parent}\"");
    let span = format!("INFO submit message_type=\"Script\" {ids}");
    assert!(told.contains(&span), "{told:?}");
    assert!(told.iter().all(|line| !line.contains("secret")), "{told:?}");
}

#[test]
fn a_bound_below_the_keys_that_are_kept_is_a_warning_with_both_numbers_at_an_open() {
    let (desk, heard) = (Desk::open(), Listener::default());
    for key in ["1", "2", "3"] {
        drop(desk.submit(key, "p").unwrap());
    }
    let mut policy = desk.broadcaster.policy();
    (policy.window_count_max, policy.history_warns) = (2, true);
    let reopened = || desk.reopen_with(|options| options.policy(policy));
    let desk = with_default(heard.clone(), reopened);
    let warning = "WARN more keys are kept than the bound of the window kept=3 bound=2";
    assert!(heard.told().iter().any(|line| line == warning), "{:?}", heard.told());
    assert_eq!(desk.broadcaster.stats().window.beyond_count, 1);
}
