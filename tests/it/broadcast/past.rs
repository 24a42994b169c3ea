//! What a look from outside tells of a time, and of the time by now.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use oncelog::broadcast::{KeyInfo, KeyState, Policy, StoreView, Verdict};
use oncelog::io::{Io, IoFile, OpenHow};
use oncelog::testing::MemIo;
use oncelog::{Clock, ErrorKind, Lsn};

use super::desk::{DIR, Desk, LONG, wait};
use crate::pass_on::pass_on;

const HOUR_MS: u64 = 60 * 60 * 1000;

fn only(keys: oncelog::Result<Vec<KeyInfo>>) -> KeyInfo {
    let mut keys = keys.unwrap();
    assert_eq!(keys.len(), 1);
    keys.remove(0)
}

fn now_ms(desk: &Desk) -> u64 {
    desk.hands.wall_ms()
}

/// Fills several segments of control, in an hour of log time.
fn fill(desk: &Desk, round: u64) {
    let payload = "x".repeat(60_000);
    for n in 0..30 {
        drop(desk.submit(&format!("of round {round}, {n}"), &payload).unwrap());
    }
    desk.hands.pass(HOUR_MS);
}

#[track_caller]
fn check_untold(view: &StoreView, at_ms: u64) {
    for refused in [
        view.keys("default", Some(b"k"), at_ms).map(drop),
        view.keys("default", None, at_ms).map(drop),
        view.window(at_ms).map(drop),
        view.state_at(at_ms).map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Trimmed, "{at_ms}");
    }
}

/// Once control was trimmed, a look at the past showed the keys of the oldest checkpoint, as they
/// were in it: done before they were accepted.
#[test]
fn the_past_is_shown_as_it_was_and_refused_where_no_record_tells_of_it() {
    let desk = Desk::open();
    // Log time is ahead of these by what the test takes.
    let pass = || {
        desk.hands.pass(HOUR_MS);
        now_ms(&desk)
    };
    drop(desk.submit("early", "p").unwrap());
    let before = pass();
    desk.script.next(Verdict::Park("a person has to look".into()));
    pass();
    let id = desk.submit("k", "p").unwrap_err().broadcast_id().unwrap();
    let parked = pass();
    desk.broadcaster.resume(id, "go on").unwrap();
    drop(desk.submit("k", "p").unwrap());
    let done = pass();
    let check = |key: &str, at_ms: u64, state: KeyState, live: usize| {
        let view = desk.view();
        let info = only(view.keys("default", Some(key.as_bytes()), at_ms));
        assert_eq!(info.state, state, "{key} at {at_ms}");
        assert_eq!(info.probably_seen, state != KeyState::Unknown);
        let is_done = matches!(state, KeyState::Done | KeyState::Expired);
        assert_eq!(info.done_at_ms.is_some(), is_done, "{key} at {at_ms}");
        assert_eq!(view.window(at_ms).unwrap().live_count, live, "at {at_ms}");
    };
    for (key, at_ms, state, live) in [
        ("early", 0, KeyState::Unknown, 0),
        ("early", before, KeyState::Done, 1),
        ("k", before, KeyState::Unknown, 1),
        ("k", parked, KeyState::Parked, 2),
        ("k", done, KeyState::Done, 2),
        ("k", done + 24 * HOUR_MS, KeyState::Expired, 0),
    ] {
        check(key, at_ms, state, live);
    }
    assert_eq!(desk.view().told_from_ms().unwrap(), 0);

    for round in 0..3 {
        fill(&desk, round);
        desk.broadcaster.checkpoint().unwrap();
    }
    pass();
    desk.script.next(Verdict::Park("a person has to look".into()));
    let late = desk.submit("late", "p").unwrap_err().broadcast_id().unwrap();
    let parked = pass();
    desk.broadcaster.resume(late, "go on").unwrap();
    drop(desk.submit("late", "p").unwrap());
    let done = pass();
    let view = desk.view();
    assert!(view.control().oldest_lsn() > Lsn::FIRST);
    let from = view.told_from_ms().unwrap();
    assert!(before < from && from < parked);
    [0, before, from - 1].into_iter().for_each(|at_ms| check_untold(&view, at_ms));
    let live = |at_ms| view.window(at_ms).unwrap().live_count;
    let all = live(done);
    assert_eq!(only(view.keys("default", Some(b"k"), from)).state, KeyState::Done);
    for (key, at_ms, state, live) in [
        ("late", from, KeyState::Unknown, live(from)),
        ("late", parked - 2 * HOUR_MS, KeyState::Unknown, all - 1),
        ("late", parked, KeyState::Parked, all),
        ("late", done, KeyState::Done, all),
    ] {
        check(key, at_ms, state, live);
    }
    assert!(live(from) < all - 1);
}

/// A look had a clock of its own, which was believed a week ahead: it said of a key that it had
/// expired, and the process that had the store answered with it for ten minutes more.
#[test]
fn a_look_beside_a_writer_is_unsure_where_that_may_not_believe_the_clock() {
    let mut policy = Policy::default();
    policy.window_lifetime = std::time::Duration::from_millis(HOUR_MS);
    let desk = Desk::with(Arc::default(), |options| options.policy(policy));
    drop(desk.submit("k", "p").unwrap());
    // What the process that has the store does, and what a look from outside says.
    let check = |is_known: bool, state: KeyState, unsure: bool| {
        let view = desk.view();
        let times = view.times(Arc::<super::desk::Hands>::clone(&desk.hands));
        let window = view.window_by(&times);
        let info = only(view.keys_by("default", Some(b"k"), &times));
        assert_eq!((info.state, info.unsure), (state, unsure));
        assert_eq!(
            (window.live_count, window.unsure),
            (usize::from(state == KeyState::Done), unsure)
        );
        assert_eq!(desk.submit("k", "p").unwrap().duplicated, is_known);
    };
    check(true, KeyState::Done, false);
    // Believed by anybody.
    desk.hands.wall_ms.fetch_add(50_000, Ordering::SeqCst);
    check(true, KeyState::Done, false);
    // Only by who opens the store.
    desk.hands.wall_ms.fetch_add(2 * HOUR_MS, Ordering::SeqCst);
    check(true, KeyState::Expired, true);
    // As the record of a rebase says.
    desk.broadcaster.rebase_clock().unwrap();
    let view = desk.view();
    let times = view.times(Arc::<super::desk::Hands>::clone(&desk.hands));
    let info = only(view.keys_by("default", Some(b"k"), &times));
    assert_eq!((info.state, info.unsure), (KeyState::Expired, false));
    // Set back again, it is not believed by anybody.
    desk.hands.wall_ms.fetch_sub(3 * HOUR_MS, Ordering::SeqCst);
    check(false, KeyState::Expired, false);
}

/// Reads all of control.
fn read(view: &StoreView) -> oncelog::Result<()> {
    let mut reader = view.control().reader(None)?;
    while reader.next()?.is_some() {}
    Ok(())
}

/// What control tells was asked of a look whose records were gone by then: that was the answer.
#[test]
fn a_look_is_taken_again_where_control_was_trimmed_since() {
    let desk = Desk::open();
    fill(&desk, 0);
    desk.broadcaster.checkpoint().unwrap();
    let view = StoreView::open(DIR, Arc::new(desk.io.clone())).unwrap();
    let at_ms = now_ms(&desk);
    for round in 1..4 {
        fill(&desk, round);
        desk.broadcaster.checkpoint().unwrap();
    }
    wait("the files stay", || read(&view).is_err_and(|e| e.kind() == ErrorKind::Trimmed));
    let known = view.keys("default", Some(b"of round 3, 7"), now_ms(&desk));
    assert_eq!(only(known).state, KeyState::Done);
    assert!(view.verify_checkpoints().unwrap() > 0);
    assert!(view.told_from_ms().unwrap() > 0);
    let times = view.times(Arc::<super::desk::Hands>::clone(&desk.hands));
    assert!(view.keys_by("default", None, &times).unwrap().len() > 30);
    // That nothing tells of a time is no reason to look for ever.
    assert_eq!(view.keys("default", None, at_ms / 2).unwrap_err().kind(), ErrorKind::Trimmed);
}

type Hook = Box<dyn FnOnce() + Send>;

/// The files of a process that looks, with what a writer does at one of its opens of a segment of
/// control.
struct Outrun {
    io: MemIo,
    opens: AtomicU64,
    at: u64,
    hook: Mutex<Option<Hook>>,
}

impl fmt::Debug for Outrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outrun")
    }
}

impl Io for Outrun {
    pass_on!(io: open_dir list kind rename remove create_dir sync_dir random);

    fn open(&self, path: &Path, how: OpenHow) -> std::io::Result<Arc<dyn IoFile>> {
        let is_control = path.starts_with(Path::new(DIR).join("control"));
        if is_control && self.opens.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            let hook = self.hook.lock().unwrap().take();
            if let Some(hook) = hook {
                hook();
            }
        }
        self.io.open(path, how)
    }
}

#[test]
fn a_store_is_looked_at_whenever_its_writer_trims_control() {
    let mut kinds = BTreeSet::new();
    for at in 1.. {
        let desk = Desk::open();
        for round in 0..2 {
            fill(&desk, round);
            desk.broadcaster.checkpoint().unwrap();
        }
        let (io, hands, before) = (desk.io.clone(), Arc::clone(&desk.hands), desk.view());
        let oldest = before.control().oldest_lsn();
        let seen = StoreView::open(DIR, Arc::new(io.clone())).unwrap();
        let trims = move || {
            for round in 2..5 {
                fill(&desk, round);
                desk.broadcaster.checkpoint().unwrap();
            }
            wait("the files stay", || read(&seen).is_err());
        };
        let hook = Mutex::new(Some(Box::new(trims) as Hook));
        let outrun = Arc::new(Outrun { io: io.clone(), opens: AtomicU64::new(0), at, hook });
        let begin = std::time::Instant::now();
        let view = StoreView::open(DIR, Arc::<Outrun>::clone(&outrun)).unwrap();
        assert!(begin.elapsed() < LONG);
        kinds.insert(view.control().oldest_lsn() > oldest);
        let times = view.times(Arc::<super::desk::Hands>::clone(&hands));
        let keys = view.keys_by("default", Some(b"of round 1, 7"), &times);
        assert_eq!(only(keys).state, KeyState::Done, "at open {at}");
        if outrun.hook.lock().unwrap().is_some() {
            break;
        }
    }
    assert_eq!(kinds.len(), 2, "no trim, or no other");
}
