//! What makes two requests the same, as their type says it: JSON by what it says, a difference as a
//! warning.

use std::sync::Arc;
use std::time::Duration;

use oncelog::ErrorKind;
use oncelog::broadcast::{
    Answer, Broadcaster, Identity, MessageType, OnConflict, Options, PayloadForm, Request, Role,
    Scope, Task, Verdict,
};

use super::SOON;
use super::desk::{Desk, Script, assert_same, request, scope, wait};

/// A type that says how its requests are compared.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    form: PayloadForm,
    on_conflict: OnConflict,
    role: Role,
    verdict: Verdict,
}

const PLAIN: Kind = Kind {
    name: "Plain",
    form: PayloadForm::Bytes,
    on_conflict: OnConflict::Refuse,
    role: Role::Plain,
    verdict: Verdict::Done,
};

impl MessageType for Kind {
    fn name(&self) -> &str {
        self.name
    }

    fn role(&self) -> Role {
        self.role
    }

    fn payload_form(&self) -> PayloadForm {
        self.form
    }

    fn on_conflict(&self) -> OnConflict {
        self.on_conflict
    }

    fn apply(&self, _task: &Task) -> Verdict {
        self.verdict.clone()
    }
}

fn desk(kind: Kind) -> Desk {
    Desk::with(Arc::new(Script::default()), |options| options.register(Arc::new(kind)))
}

fn asked(name: &str, key: &str, payload: &str) -> Request {
    let scope = Scope { message_type: name.into(), ..scope(key) };
    Request::new(name, Some(scope), vec!["a".into(), "b".into()], payload.into())
}

fn submit(broadcaster: &Broadcaster, payload: &str) -> oncelog::Result<Answer> {
    broadcaster.submit(&asked("Plain", "k", payload), None)
}

#[test]
fn json_that_says_the_same_is_the_same_request_of_a_type_that_says_so() {
    let desk = desk(Kind { form: PayloadForm::Json, ..PLAIN });
    let first = submit(&desk.broadcaster, r#"{"rows": 100, "to": "x"}"#).unwrap();
    assert!(!first.duplicated);
    for same in [r#"{"to":"x","rows":1e2}"#, "{\"rows\":100.0,\n\"to\":\"\\u0078\"}"] {
        assert_same(&first, &submit(&desk.broadcaster, same).unwrap());
    }
    // A double tells these two apart no more.
    for other in [r#"{"rows":100.00000000000000000001,"to":"x"}"#, r#"{"rows":"100","to":"x"}"#] {
        let conflict = submit(&desk.broadcaster, other).unwrap_err();
        let payload = &["payload".to_owned()][..];
        assert_eq!((conflict.kind(), conflict.fields()), (ErrorKind::Conflict, payload));
    }
    // What is sent is what was given.
    let channel = desk.broadcaster.jobs().channel("p0").unwrap();
    let mut reader = channel.read(first.channels["a"].lsn).unwrap();
    let message = reader.next().unwrap().unwrap();
    assert_eq!(message.message().unwrap().payload(), br#"{"rows": 100, "to": "x"}"#);
    // Over a restart, also where the type says so no longer.
    let desk = desk.reopen();
    assert_same(&first, &submit(&desk.broadcaster, r#"{"to":"x","rows":100}"#).unwrap());
    let script = Arc::clone(&desk.script);
    desk.broadcaster.close().unwrap();
    let options = Options::new().register(Arc::new(PLAIN));
    let desk = Desk::on(desk.io.machine(), desk.hands, script, options).unwrap();
    assert_same(&first, &submit(&desk.broadcaster, r#"{"to":"x","rows":100}"#).unwrap());
}

#[test]
fn a_payload_that_is_no_json_of_a_type_of_json_is_refused_and_consumes_nothing() {
    let desk = desk(Kind { form: PayloadForm::Json, ..PLAIN });
    for wrong in ["", "{", r#"{"a":1,"a":1}"#] {
        let refused = submit(&desk.broadcaster, wrong).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(refused.to_string().contains("at byte"), "{refused}");
    }
    assert!(!submit(&desk.broadcaster, "{}").unwrap().duplicated);
    // A key that is known answers before a payload is looked at.
    let conflict = submit(&desk.broadcaster, "{").unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    // Of bytes there are no two forms.
    let bytes = |payload| desk.broadcaster.submit(&request("bytes", payload), None);
    drop(bytes(r#"{"a":1}"#).unwrap());
    assert_eq!(bytes(r#"{"a":1.0}"#).unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn a_type_that_warns_answers_with_the_original_and_names_the_fields() {
    let kind =
        Kind { on_conflict: OnConflict::Warn, verdict: Verdict::Retry("not yet".into()), ..PLAIN };
    let desk = desk(kind);
    let asked = |payload| asked("Plain", "k", payload);
    // While it is under way a difference is no reason to tell less, or more.
    let id = desk.accepted(&asked("p"));
    let late = desk.broadcaster.submit(&asked("q"), SOON).unwrap_err();
    assert_eq!((late.kind(), late.broadcast_id()), (ErrorKind::InFlight, Some(id)));
    desk.broadcaster.close().unwrap();
    let options = Options::new();
    let options = options.register(Arc::new(Kind { on_conflict: OnConflict::Warn, ..PLAIN }));
    let desk = Desk::on(desk.io.machine(), desk.hands, desk.script, options).unwrap();
    let first = desk.broadcaster.submit(&asked("p"), None).unwrap();
    assert!(first.differs.is_empty());
    let mut other = asked("q");
    other.vchannels = vec!["b".into()];
    for _ in 0..2 {
        let mut answer = desk.broadcaster.submit(&other, None).unwrap();
        assert_eq!(std::mem::take(&mut answer.differs), ["payload", "vchannels"]);
        assert!(answer.duplicated);
        assert_same(&first, &answer);
    }
    let keys = desk.broadcaster.stats().keys;
    assert_eq!((keys.conflicts, keys.warnings), (0, 2));
    assert_eq!(desk.copies(id), 2);
    // Fields that the caller names are compared by their names.
    let named = |value: &str| {
        let fields = [("rows".to_owned(), value.as_bytes().to_vec())];
        super::sameness::asked("Plain", "named", "p").identity(Identity::Fields(fields.into()))
    };
    drop(desk.broadcaster.submit(&named("1"), None).unwrap());
    assert_eq!(desk.broadcaster.submit(&named("2"), None).unwrap().differs, ["rows"]);
}

#[test]
fn a_type_of_jobs_may_not_warn() {
    for role in [Role::StartsJob, Role::EndsJob] {
        let kind = Kind { on_conflict: OnConflict::Warn, role, ..PLAIN };
        let desk = Desk::open();
        desk.broadcaster.close().unwrap();
        let options = desk.options.register(Arc::new(kind));
        let refused = Desk::on(desk.io.machine(), desk.hands, desk.script, options);
        assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::InvalidInput), "{role:?}");
    }
}

/// It was told that its key is not consumed, and took another one: two effects.
#[test]
fn who_asks_again_while_his_first_request_waits_is_told_that_nothing_is_known() {
    let desk = Desk::open();
    let held = |key| request(key, "p").resources(vec![super::resource("thing", "1", false)]);
    desk.script.hold();
    std::thread::scope(|threads| {
        let holder = threads.spawn(|| desk.broadcaster.submit(&held("holder"), None));
        desk.script.wait_called();
        let first = threads.spawn(|| desk.broadcaster.submit(&held("k"), None));
        wait("a lock", || desk.broadcaster.stats().locks.waiting == 1);
        for timeout in [Some(Duration::ZERO), SOON] {
            let again = desk.broadcaster.submit(&held("k"), timeout).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::OutcomeUnknown, "{again}");
            assert!(again.to_string().contains("ask again with the same key"), "{again}");
            assert!(again.is_retryable() && again.retry_after().is_some());
        }
        desk.script.let_go();
        drop(holder.join().unwrap().unwrap());
        // The key was consumed after all.
        let answer = first.join().unwrap().unwrap();
        assert_same(&answer, &desk.broadcaster.submit(&held("k"), None).unwrap());
    });
}
