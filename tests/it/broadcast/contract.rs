//! The contract under load: crowds of callers of one key, and what stands when one is answered.

use std::error::Error as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use oncelog::broadcast::{
    Answer, BroadcastId, Broadcaster, Jobs, MessageType, Opening, Options, Policy, Role, Task,
    Verdict,
};
use oncelog::testing::{CallKind, EMFILE, Fault, Machine, MemIo, Which};
use oncelog::{CreateMode, Error, ErrorKind, Result, Store, StoreOptions};

use super::desk::{DIR, Desk, LONG, Script, assert_same, copies, ends, request, wait};
use super::jobs;
use crate::figures::figure;

/// Holds every sync while it is shut.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    turned: Condvar,
}

impl Gate {
    fn on(io: &MemIo) -> Arc<Self> {
        let gate = Arc::new(Self::default());
        let ours = Arc::clone(&gate);
        io.observe(move |_, kind| {
            if kind == CallKind::Sync {
                ours.pass();
            }
        });
        gate
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.turned.notify_all();
        // A test that fails opens nothing.
        drop(self.turned.wait_timeout_while(state, LONG, |state| state.0).unwrap());
    }

    fn shut(&self) {
        *self.state.lock().unwrap() = (true, 0);
    }

    /// Waits until a sync stands before the gate.
    fn wait_met(&self) {
        let state = self.state.lock().unwrap();
        let waited = self.turned.wait_timeout_while(state, LONG, |state| state.1 == 0).unwrap();
        assert!(!waited.1.timed_out(), "no sync came");
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.turned.notify_all();
    }
}

/// What a power loss at this moment leaves says the same of the key.
fn check_durable(desk: &Desk, answer: &Answer) {
    let machine: Machine = desk.io.machine();
    let unsynced = machine.unsynced();
    // Nothing that was not synced survives.
    let left = machine.power_loss(&unsynced, &[]);
    let view = oncelog::broadcast::StoreView::open(DIR, Arc::new(MemIo::new(left))).unwrap();
    let task = view.state().task(answer.id).unwrap();
    assert_eq!(task.done.as_ref().map(|(_, at_ms)| *at_ms), Some(answer.done_at_ms));
    assert_eq!(task.acks.iter().flatten().count(), answer.channels.len());
    assert!(desk.script.effects().contains(&answer.id));
}

/// So many callers ask for one key at once; the disk and the callback are held in turn.
fn check_crowd(count: usize) {
    let desk = Desk::open();
    let gate = Gate::on(&desk.io);
    let [begun, answered, looked] = [(); 3].map(|()| AtomicUsize::new(0));
    let nobody = || assert_eq!(answered.load(Ordering::SeqCst), 0, "answered before the effect");
    gate.shut();
    desk.script.hold();
    let answers: Vec<Answer> = std::thread::scope(|threads| {
        let ask = || {
            begun.fetch_add(1, Ordering::SeqCst);
            let answer = desk.submit("k", "p").unwrap();
            answered.fetch_add(1, Ordering::SeqCst);
            if looked.fetch_add(1, Ordering::SeqCst) < 4 {
                check_durable(&desk, &answer);
            }
            answer
        };
        let callers: Vec<_> = (0..count).map(|_| threads.spawn(ask)).collect();
        // The acceptance waits for the disk, and so does everybody who asks.
        gate.wait_met();
        wait("callers", || begun.load(Ordering::SeqCst) == count);
        nobody();
        gate.open();
        // It is durable, and the effect is not there.
        desk.script.wait_called();
        wait("callers", || desk.broadcaster.stats().callers_waiting == count as u64 - 1);
        nobody();
        gate.shut();
        desk.script.let_go();
        // The effect is there, and its end waits for the disk.
        gate.wait_met();
        wait("the effect", || !desk.script.effects().is_empty());
        nobody();
        gate.open();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|answer| !answer.duplicated).count(), 1);
    answers.iter().for_each(|answer| assert_same(answer, &answers[0]));
    assert_eq!(desk.copies(answers[0].id), 2);
    assert_eq!((desk.script.effects().len(), desk.script.calls()), (1, 1));
    assert_eq!(desk.broadcaster.stats().callers_waiting, 0);
}

#[test]
fn two_dozen_callers_of_one_key_are_one_broadcast_and_none_hears_before_its_effect_is_durable() {
    check_crowd(24);
}

#[test]
fn a_thousand_callers_of_one_key_are_one_broadcast_and_none_hears_before_its_effect_is_durable() {
    check_crowd(1_000);
    figure(13, "callers of one key at once, one broadcast", 1_000);
}

/// One descriptor too few at a roll of control stopped the broadcaster for good.
#[test]
fn a_descriptor_that_is_missing_refuses_new_work_and_stops_nothing() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    let kinds = [CallKind::Create, CallKind::Random];
    let ask = |key: usize, patience| {
        let mut asked = request(&format!("large {key}"), "p");
        asked.payload = vec![7; 200_000];
        desk.broadcaster.submit(&asked, patience)
    };
    for (at, kind) in kinds.into_iter().enumerate() {
        let first = at * 100;
        desk.io.arm(Which::Kind(kind), 1, u64::MAX / 2, Fault::Error(EMFILE));
        let refused = (first..first + 100).find_map(|key| {
            let error = ask(key, Some(Duration::ZERO)).err()?;
            let accepted = matches!(error.kind(), ErrorKind::InFlight | ErrorKind::OutcomeUnknown);
            (!accepted).then_some((key, error))
        });
        let (key, error) = refused.unwrap();
        assert_eq!(error.kind(), ErrorKind::Io, "{kind:?}: {error}");
        // Whoever goes by these asks again.
        assert!(error.is_retryable() && error.retry_after().is_some(), "{kind:?}: {error:?}");
        assert_same(&original, &desk.submit("k", "p").unwrap());
        desk.io.disarm();
        assert!(!ask(key, None).unwrap().duplicated, "{kind:?}: the key was consumed");
        (first..key).for_each(|key| assert!(ask(key, None).unwrap().duplicated));
    }
}

/// Opens in the background what a desk had closed or lost.
fn begin(io: &MemIo, policy: Policy) -> Opening {
    let store = StoreOptions::new().create(CreateMode::IfMissing).io(Arc::new(io.clone()));
    let script: Arc<dyn MessageType> = Arc::new(Script::default());
    Opening::begin(DIR, store, Options::new().policy(policy).register(script)).unwrap()
}

#[test]
fn a_store_that_is_being_replayed_says_recovering_and_then_answers_as_before() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    desk.broadcaster.close().unwrap();
    let io = MemIo::new(desk.io.machine());
    let gate = Gate::on(&io);
    gate.shut();
    // What it records at its open waits for the disk.
    let mut policy = Policy::default();
    policy.window_count_max = 1_000;
    let opening = begin(&io, policy);
    gate.wait_met();
    for _ in 0..2 {
        let early = opening.broadcaster().unwrap_err();
        assert_eq!(early.kind(), ErrorKind::Recovering);
        assert!(early.is_retryable() && early.retry_after().is_some());
    }
    gate.open();
    let broadcaster = opening.wait(None).unwrap();
    assert_same(&original, &broadcaster.submit(&request("k", "p"), None).unwrap());
    broadcaster.close().unwrap();
    // One that cannot be opened says so to everybody.
    let opening = begin(&io, too_short());
    for _ in 0..2 {
        check_names_both(&opening.wait(None).unwrap_err());
    }
}

/// It had lost the path, and what else an open says.
#[test]
fn an_open_in_the_background_is_refused_in_the_words_of_the_open() {
    let desk = Desk::open();
    let io = desk.io.clone();
    let store = || StoreOptions::new().create(CreateMode::IfMissing).io(Arc::new(io.clone()));
    let check = |kind: ErrorKind, options: &dyn Fn() -> StoreOptions| {
        let open = || Broadcaster::open(Store::open(DIR, &options())?, Options::new());
        let expected = open().unwrap_err();
        assert_eq!(expected.kind(), kind);
        let opening = Opening::begin(DIR, options(), Options::new()).unwrap();
        for _ in 0..2 {
            let told = opening.wait(Some(LONG)).unwrap_err();
            assert_eq!((told.kind(), told.to_string()), (kind, expected.to_string()));
            assert_eq!((told.path(), told.offset()), (expected.path(), expected.offset()));
            assert_eq!((told.lsn(), told.retry_after()), (expected.lsn(), expected.retry_after()));
            assert_eq!(
                (told.fields(), told.source().is_some()),
                (expected.fields(), expected.source().is_some())
            );
        }
        assert!(expected.path().is_some(), "{expected}");
    };
    check(ErrorKind::Busy, &store);
    desk.broadcaster.close().unwrap();
    io.arm(Which::Kind(CallKind::Create), 1, u64::MAX / 2, Fault::Error(EMFILE));
    io.arm(Which::Kind(CallKind::Open), 1, u64::MAX / 2, Fault::Error(EMFILE));
    check(ErrorKind::Io, &store);
}

/// A driver that gets its broadcaster where it is told of its job.
#[derive(Debug)]
struct Late {
    opening: Mutex<mpsc::Receiver<Opening>>,
    opened: mpsc::Sender<Result<Broadcaster>>,
}

impl MessageType for Late {
    fn name(&self) -> &str {
        "Load"
    }

    fn role(&self) -> Role {
        Role::StartsJob
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }

    fn job_ready(&self, _job: BroadcastId, _jobs: &Jobs) {
        let opening = self.opening.lock().unwrap().recv_timeout(LONG).unwrap();
        drop(self.opened.send(opening.wait(None)));
    }
}

/// It was told before the open was over, and waited for itself.
#[test]
fn a_driver_that_waits_for_its_store_to_be_open_has_it() {
    ends(|| {
        let desk = jobs::desk();
        let (_, job) = jobs::start(&desk, "k");
        desk.broadcaster.close().unwrap();
        let ((give, opening), (opened, wait_opened)) = (mpsc::channel(), mpsc::channel());
        let late = Late { opening: Mutex::new(opening), opened };
        let store = StoreOptions::new().io(Arc::new(MemIo::new(desk.io.machine())));
        let options = Options::new().register(Arc::new(late));
        let begun = Opening::begin(DIR, store, options).unwrap();
        give.send(begun.clone()).unwrap();
        let broadcaster = wait_opened.recv_timeout(LONG).expect("it waits for itself").unwrap();
        assert_eq!(broadcaster.jobs().running(), [job]);
        begun.wait(Some(LONG)).unwrap().close().unwrap();
    });
}

/// Both values, in words.
#[track_caller]
fn check_names_both(error: &Error) {
    assert_eq!(
        (error.kind(), error.fields()),
        (ErrorKind::InvalidInput, &["task_retention".to_owned()][..])
    );
    let text = error.to_string();
    for value in ["lifetime of 24h", "at least 48h", "found 47h59m59s999ms"] {
        assert!(text.contains(value), "{value} is not in {text}");
    }
}

fn too_short() -> Policy {
    let mut policy = Policy::default();
    policy.task_retention = policy.window_lifetime * 2 - Duration::from_millis(1);
    policy
}

#[test]
fn a_job_retention_below_twice_the_window_is_refused_at_load_and_at_refresh_with_both_values() {
    let desk = Desk::open();
    let original = desk.submit("k", "p").unwrap();
    check_names_both(&desk.broadcaster.refresh(too_short()).unwrap_err());
    assert_eq!(desk.broadcaster.policy(), Policy::default());
    assert_same(&original, &desk.submit("k", "p").unwrap());
    desk.broadcaster.close().unwrap();
    let options = desk.options.clone().policy(too_short());
    let opened = Desk::on(desk.io.machine(), Arc::clone(&desk.hands), Arc::default(), options);
    check_names_both(&opened.err().unwrap());
    // The store is free, and as it was.
    let script = Arc::new(Script::default());
    let options = Options::new().register(Arc::<Script>::clone(&script));
    let desk = Desk::on(desk.io.machine(), desk.hands, script, options).unwrap();
    assert_same(&original, &desk.submit("k", "p").unwrap());
}

#[test]
fn a_filled_window_refuses_each_new_key_and_keeps_every_old_answer() {
    let mut policy = Policy::default();
    policy.window_count_max = 200;
    let desk = Desk::with(Arc::default(), |options| options.policy(policy));
    let key = |n: usize| format!("k{n}");
    let answers: Vec<_> = (0..200).map(|n| desk.submit(&key(n), "p").unwrap()).collect();
    let check = |desk: &Desk| {
        for n in 200..220 {
            let error = desk.submit(&key(n), "p").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WindowFull, "{error}");
        }
        for (n, answer) in answers.iter().enumerate() {
            assert_same(answer, &desk.submit(&key(n), "p").unwrap());
        }
    };
    check(&desk);
    let desk = desk.reopen();
    check(&desk);
    // Nothing was sent for those that were refused.
    assert_eq!(copies(&desk.broadcaster).len(), 2 * answers.len());
}
