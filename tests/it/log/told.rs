//! Subscribers of events that call the log they are told of, whatever it is at.

use std::fmt;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use oncelog::testing::{CallKind, EIO, ENOSPC, Fault, Machine, MemIo, Which};
use oncelog::{Log, Lsn};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::options;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks a log, appends to it and reads it at each event, and says what the event was.
struct Asking {
    log: Arc<Mutex<Option<Log>>>,
    told: Sender<String>,
}

/// The text of an event.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Asking {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let log = self.log.lock().unwrap().clone();
        if let Some(log) = log {
            let mut text = Text::default();
            event.record(&mut text);
            self.told.send(text.0).unwrap();
            drop((log.durable_lsn(), log.append(b"told"), log.sync()));
            drop(log.reader(Lsn::FIRST).map(|mut reader| reader.next()));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Has a fault told to a subscriber that calls the log.
#[track_caller]
fn check((call, nth): (CallKind, u64), fault: Fault, work: fn(&Log), expected: &str) {
    let (over, ended) = mpsc::channel();
    let (told, events) = mpsc::channel();
    let played = thread::spawn(move || {
        let shared = Arc::new(Mutex::new(None));
        let subscriber = Asking { log: Arc::clone(&shared), told };
        tracing::subscriber::with_default(subscriber, || {
            let io = MemIo::new(Machine::new());
            let options = options().io(Arc::new(io.clone())).background(false);
            let (log, _) = Log::open("/log", &options).unwrap();
            while log.next_lsn() < super::lsn(11) {
                log.append(&[1; 5000]).unwrap();
            }
            *shared.lock().unwrap() = Some(log.clone());
            io.arm(Which::Kind(call), nth, 1, fault);
            work(&log);
            assert_eq!(io.struck(), 1);
            *shared.lock().unwrap() = None;
        });
        over.send(()).unwrap();
    });
    ended.recv_timeout(PATIENCE).expect("the subscriber waits for the log that waits for it");
    played.join().unwrap();
    let events: Vec<String> = events.into_iter().collect();
    assert!(events.iter().any(|event| event.contains(expected)), "{expected}: {events:?}");
}

#[test]
fn a_subscriber_may_call_the_log_that_tells_it_of_a_failure() {
    let append = |log: &Log| drop(log.append(&[2; 5000]));
    check((CallKind::Sync, 1), Fault::Error(EIO), append, "poisoned");
    // The roll's first write is the footer, its first cut that of the zeros behind it.
    check((CallKind::Write, 1), Fault::Error(ENOSPC), append, "no footer");
    check((CallKind::SetLen, 1), Fault::Error(ENOSPC), append, "zeros stay");
    let rolled = |log: &Log| {
        log.append(&[2; 5000]).unwrap();
        log.reader(Lsn::FIRST).unwrap().next().unwrap();
    };
    // The roll opens it first, to sync it.
    check((CallKind::OpenDir, 2), Fault::Error(EIO), rolled, "nothing is mapped");
    // Every slot is refused that is no frame's.
    check(
        (CallKind::Write, 1),
        Fault::Error(EIO),
        |log| log.write_idle_slot().unwrap(),
        "no idle slot",
    );
}
