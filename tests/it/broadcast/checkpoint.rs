//! Checkpoints: a restart from one is a restart from all records, and control may begin there.

use std::path::Path;
use std::sync::Arc;

use oncelog::broadcast::{Answer, KeyState, Options, StoreView};
use oncelog::testing::{Dice, Fault, Machine, MemIo, Which, survivors};
use oncelog::{Batch, CreateMode, Durability, ErrorKind, Log, Lsn, RecordKind};
use oncelog_format::control::{
    Body, CheckpointBegin, CheckpointEnd, CheckpointPart, ControlRecord, STATE_VERSION,
};

use super::desk::{DIR, Desk, Hands, Script, assert_same, scope};

const SHA256_OF_NOTHING: [u8; 32] = [
    0xE3, 0xB0, 0xC4, 0x42, 0x98, 0xFC, 0x1C, 0x14, 0x9A, 0xFB, 0xF4, 0xC8, 0x99, 0x6F, 0xB9, 0x24,
    0x27, 0xAE, 0x41, 0xE4, 0x64, 0x9B, 0x93, 0x4C, 0xA4, 0x95, 0x99, 0x1B, 0x78, 0x52, 0xB8, 0x55,
];
/// A key's window, in milliseconds.
const LIFETIME_MS: u64 = 24 * 60 * 60 * 1000;

fn key(n: usize) -> String {
    format!("key {n}")
}

/// Records that fill several segments of control.
fn fill(desk: &Desk, keys: std::ops::Range<usize>) -> Vec<Answer> {
    let payload = "x".repeat(60_000);
    keys.map(|n| desk.submit(&key(n), &payload).unwrap()).collect()
}

fn check_replay(desk: &Desk, answers: &[Answer]) {
    let payload = "x".repeat(60_000);
    for (n, answer) in answers.iter().enumerate() {
        let again = desk.submit(&key(n), &payload).unwrap();
        assert!(again.duplicated, "key {n}");
        assert_same(answer, &again);
        let other = desk.submit(&key(n), "another").unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Conflict);
    }
}

fn oldest(desk: &Desk) -> Lsn {
    desk.view().control().oldest_lsn()
}

#[test]
fn a_restart_from_a_checkpoint_answers_as_before_and_control_is_trimmed() {
    let mut desk = Desk::open();
    let mut answers = fill(&desk, 0..30);
    assert!(desk.broadcaster.checkpoint().unwrap());
    assert!(!desk.broadcaster.checkpoint().unwrap(), "nothing stands behind it");
    assert_eq!(oldest(&desk), Lsn::FIRST, "one checkpoint alone could be lost");
    answers.extend(fill(&desk, 30..60));
    assert!(desk.broadcaster.checkpoint().unwrap());
    let trimmed = oldest(&desk);
    assert!(trimmed > Lsn::FIRST);
    for _ in 0..2 {
        desk = desk.reopen();
        check_replay(&desk, &answers);
        assert_eq!(desk.copies(answers[0].id), 2);
    }
    answers.extend(fill(&desk, 60..90));
    assert!(desk.broadcaster.checkpoint().unwrap());
    assert!(oldest(&desk) > trimmed, "the one that was restored counts as read back");
    assert_eq!(desk.view().verify_checkpoints().unwrap(), 1);
    desk = desk.reopen();
    check_replay(&desk, &answers);
    let next = desk.submit("another key", "p").unwrap();
    assert!(answers.iter().all(|answer| answer.id < next.id), "an identity was given twice");
}

#[test]
fn checkpoints_are_written_without_being_asked_for() {
    let desk = Desk::with(Arc::default(), |options| options.checkpoint_bytes(400_000));
    let mut answers = Vec::new();
    // A thread of its own writes them: as many records as it takes.
    while oldest(&desk) == Lsn::FIRST {
        let from = answers.len();
        answers.extend(fill(&desk, from..from + 5));
        assert!(from < 2_000, "no checkpoint");
    }
    check_replay(&desk.reopen(), &answers);
}

#[test]
fn what_is_not_done_goes_on_from_a_checkpoint() {
    let desk = Desk::open();
    desk.script.next(oncelog::broadcast::Verdict::Park("by the script".into()));
    let parked = desk.submit("parked", "p").unwrap_err();
    assert_eq!(parked.kind(), ErrorKind::Parked);
    for n in 0..3 {
        fill(&desk, 30 * n..30 * (n + 1));
        assert!(desk.broadcaster.checkpoint().unwrap());
    }
    assert!(oldest(&desk) > Lsn::FIRST);
    let desk = desk.reopen();
    assert_eq!(desk.submit("parked", "p").unwrap_err().kind(), ErrorKind::Parked);
    let id = desk.broadcaster.read(|state, _| state.owner(&scope("parked"))).unwrap();
    desk.broadcaster.resume(id, "go on").unwrap();
    assert_eq!(desk.submit("parked", "p").unwrap().id, id);
    assert_eq!(desk.copies(id), 2);
}

#[test]
fn a_key_that_was_dropped_is_probably_seen_when_no_record_tells_of_it() {
    let desk = Desk::open();
    fill(&desk, 0..20);
    desk.hands.pass(LIFETIME_MS + 60_000);
    // Reuse drops the old one, the sweeper the others.
    let desk = desk.reopen();
    drop(desk.submit(&key(0), "again").unwrap());
    while desk.broadcaster.read(|state, _| state.window().held_count()) > 1 {
        std::thread::yield_now();
    }
    let seen = |desk: &Desk, key: &str| {
        let view = desk.view();
        let keys = view.keys("default", Some(key.as_bytes()), view.newest_ms()).unwrap();
        assert_eq!(keys.len(), 1);
        (keys[0].state, keys[0].probably_seen)
    };
    assert_eq!(seen(&desk, &key(7)), (KeyState::Expired, true));
    for n in 0..3 {
        fill(&desk, 100 + 20 * n..120 + 20 * n);
        desk.broadcaster.checkpoint().unwrap();
    }
    assert!(oldest(&desk) > Lsn::FIRST);
    assert_eq!(seen(&desk, &key(7)), (KeyState::Unknown, true));
    assert_eq!(seen(&desk, "never used"), (KeyState::Unknown, false));
    assert_eq!(seen(&desk, &key(0)).0, KeyState::Done);
}

/// Appends control records as no broadcaster would.
pub(super) fn forge(
    machine: &Machine,
    hands: &Arc<Hands>,
    records: impl Fn(u64) -> Vec<Body>,
) -> Machine {
    let io = MemIo::new(machine.clone());
    let options = oncelog::Options::new().create(CreateMode::Never).io(Arc::new(io.clone()));
    let options = options.clock(Arc::<Hands>::clone(hands));
    let (log, _) = Log::open(Path::new(DIR).join("control"), &options).unwrap();
    let at_ms = log.newest_ms().unwrap();
    for body in records(log.next_lsn().get()) {
        let record = ControlRecord { at_ms, body }.encode().unwrap();
        let batch = Batch { kind: RecordKind::CONTROL, records: &[&record] };
        log.append_batch(batch, Durability::Synced).unwrap();
    }
    log.close().unwrap();
    io.machine()
}

#[test]
fn a_checkpoint_that_is_not_whole_gives_way_to_the_one_before_it() {
    let desk = Desk::open();
    let answers = fill(&desk, 0..10);
    desk.broadcaster.checkpoint().unwrap();
    desk.broadcaster.close().unwrap();
    let part = |covers, index| {
        Body::CheckpointPart(CheckpointPart { covers, index, bytes: vec![1, 2, 3] })
    };
    let begin =
        |covers, state_version| Body::CheckpointBegin(CheckpointBegin { covers, state_version });
    let end = |covers, begin_lsn, part_count| {
        // Of no bytes: an End alone must not stand for an empty state.
        let sha256 = match part_count {
            0 => SHA256_OF_NOTHING,
            _ => [0; 32],
        };
        let stream_bytes = 3 * u64::from(part_count);
        Body::CheckpointEnd(CheckpointEnd { covers, begin_lsn, part_count, stream_bytes, sha256 })
    };
    type Run = Box<dyn Fn(u64) -> Vec<Body>>;
    let runs: Vec<(&str, Run)> = vec![
        ("no end", Box::new(move |next| vec![begin(next - 1, 1), part(next - 1, 0)])),
        ("an end alone", Box::new(move |next| vec![end(next - 1, next, 0)])),
        ("no part", Box::new(move |next| vec![begin(next - 1, 1), end(next - 1, next, 0)])),
        (
            "bytes that are no entry",
            Box::new(move |next| {
                vec![begin(next - 1, 1), part(next - 1, 0), end(next - 1, next, 1)]
            }),
        ),
        (
            "a part too few",
            Box::new(move |next| {
                vec![begin(next - 1, 1), part(next - 1, 1), end(next - 1, next, 2)]
            }),
        ),
        (
            "a later version",
            Box::new(move |next| {
                vec![begin(next - 1, 9), part(next - 1, 0), end(next - 1, next, 1)]
            }),
        ),
    ];
    for (what, run) in runs {
        let machine = forge(&desk.io.machine(), &desk.hands, run);
        let again = Desk::on(
            machine,
            Arc::clone(&desk.hands),
            Arc::clone(&desk.script),
            desk.options.clone(),
        );
        let again = again.unwrap_or_else(|e| panic!("{what}: {e}"));
        check_replay(&again, &answers);
        again.broadcaster.close().unwrap();
    }
}

/// A store whose control was trimmed behind checkpoints of a later release was called corrupt, and
/// its operator told to put a backup in its place; so was one behind those of an earlier release.
#[test]
fn a_trimmed_control_whose_checkpoints_are_of_another_version_is_unsupported_and_not_corrupt() {
    let versions = [STATE_VERSION - 1, STATE_VERSION + 1];
    for (trimmed, version) in [false, true].into_iter().flat_map(|is| versions.map(|v| (is, v))) {
        let desk = Desk::open();
        let answers = fill(&desk, 0..10);
        desk.broadcaster.close().unwrap();
        let covered = std::cell::Cell::new(0);
        let later = |next: u64| {
            covered.set(next - 1);
            let (covers, state_version) = (next - 1, version);
            let part = CheckpointPart { covers, index: 0, bytes: vec![1, 2, 3] };
            let (begin_lsn, part_count, stream_bytes, sha256) = (next, 1, 3, [0; 32]);
            let end = CheckpointEnd { covers, begin_lsn, part_count, stream_bytes, sha256 };
            vec![
                Body::CheckpointBegin(CheckpointBegin { covers, state_version }),
                Body::CheckpointPart(part),
                Body::CheckpointEnd(end),
            ]
        };
        let machine = forge(&desk.io.machine(), &desk.hands, later);
        let io = MemIo::new(machine);
        if trimmed {
            let options = oncelog::Options::new().io(Arc::new(io.clone()));
            let options = options.clock(Arc::<Hands>::clone(&desk.hands));
            let (log, _) = Log::open(Path::new(DIR).join("control"), &options).unwrap();
            log.trim(Lsn::new(covered.get() + 1).unwrap()).unwrap();
            log.close().unwrap();
        }
        let looked = StoreView::open(DIR, Arc::new(io.clone()));
        let opened = Desk::on(
            io.machine(),
            Arc::clone(&desk.hands),
            Arc::clone(&desk.script),
            desk.options.clone(),
        );
        if trimmed {
            for error in [looked.unwrap_err(), opened.map(drop).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                let what = format!("expected {STATE_VERSION}, found {version}");
                assert!(error.to_string().contains(&what), "{error}");
            }
        } else {
            // All records are there: the run is passed over.
            let view = looked.unwrap();
            assert_eq!(view.restart_needs().unwrap(), (None, Lsn::FIRST));
            let compared = view.verify_checkpoints().unwrap_err();
            assert_eq!(compared.kind(), ErrorKind::Unsupported, "{compared}");
            let again = opened.unwrap();
            check_replay(&again, &answers);
            again.broadcaster.close().unwrap();
        }
    }
}

fn options(script: &Arc<Script>) -> Options {
    Options::new().worker_count(1).register(Arc::<Script>::clone(script))
}

#[test]
fn a_crash_of_a_checkpoint_loses_no_key_and_no_identity() {
    let desk = Desk::open();
    let answers = fill(&desk, 0..20);
    desk.broadcaster.checkpoint().unwrap();
    desk.broadcaster.close().unwrap();
    let (base, hands) = (desk.io.machine(), Arc::clone(&desk.hands));
    let (mut points, mut nth) = (0, 0);
    loop {
        nth += 1;
        let (io, script) = (MemIo::new(base.clone()), Arc::new(Script::default()));
        let broadcaster = super::desk::open_on(&io, &hands, options(&script)).unwrap();
        drop(broadcaster.submit(&super::desk::request("between", "p"), None).unwrap());
        io.arm(Which::Persist, nth, 1, Fault::Stop);
        // The second one trims what the first one covers.
        drop(broadcaster.checkpoint());
        let is_cut = io.is_stopped();
        io.kill();
        let machine = io.machine();
        let unsynced = machine.unsynced();
        let mut left = vec![machine.clone()];
        let ways = survivors(&unsynced, 6, &mut Dice::new(nth));
        left.extend(ways.iter().map(|way| machine.power_loss(&unsynced, way)));
        let mut dice = Dice::new(nth);
        let reused = left.iter().filter_map(|left| machine.reuse_blocks(left, &mut dice));
        let reused: Vec<Machine> = reused.collect();
        left.extend(reused);
        for machine in left {
            points += 1;
            let script = Arc::new(Script::default());
            let desk = Desk::on(
                machine,
                Arc::<Hands>::clone(&hands),
                Arc::clone(&script),
                options(&script),
            );
            let desk = desk.unwrap();
            check_replay(&desk, &answers);
            assert!(desk.submit("new", "p").unwrap().id > answers[19].id);
            desk.view().verify_checkpoints().unwrap();
        }
        if !is_cut {
            break;
        }
    }
    assert!(points > 20, "{points}");
}
