//! A full disk: new work is refused before it is accepted, and everything that was accepted ends.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncelog::broadcast::{
    AckMode, BroadcastId, Broadcaster, Options, Outcome, Policy, Request, Verdict,
};
use oncelog::testing::{CallKind, Dice, Machine, MemIo, survivors};
use oncelog::{
    Clock, CreateMode, Error, ErrorKind, LogView, Options as LogOptions, Result, Store,
    StoreOptions,
};

use super::desk::{DIR, Desk, Hands, LONG, Script, request, wait};
use crate::figures::{figure, is_release};

/// Free blocks that a disk is left with, at most: enough for a reserve and three segments more.
const FREE_MAX: u64 = 64;
/// Bytes of frames that a reserve takes which is kept for a few broadcasts.
const RESERVE_BYTES: usize = (128 << 10) - (12 << 10);
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn open(io: &MemIo, hands: &Arc<Hands>, options: &Options) -> Result<Broadcaster> {
    open_logs(io, hands, options, LogOptions::new())
}

fn open_logs(
    io: &MemIo,
    hands: &Arc<Hands>,
    options: &Options,
    log: LogOptions,
) -> Result<Broadcaster> {
    let clock: Arc<dyn Clock> = Arc::<Hands>::clone(hands);
    let log = log.segment_bytes_max(64 << 10).io(Arc::new(io.clone())).clock(clock);
    let store = StoreOptions::new().create(CreateMode::IfMissing).log(log);
    Broadcaster::open(Store::open(Path::new(DIR), &store)?, options.clone())
}

/// A desk whose broadcasts end with the acks of their consumers.
fn desk() -> Desk {
    desk_of(Policy::default())
}

fn desk_of(policy: Policy) -> Desk {
    desk_on(policy, LogOptions::new())
}

fn desk_on(policy: Policy, log: LogOptions) -> Desk {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let options = Options::new().register(Arc::<Script>::clone(&script)).policy(policy);
    let (io, hands) = (MemIo::new(Machine::new()), Arc::default());
    let broadcaster = open_logs(&io, &hands, &options, log).unwrap();
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    Desk { io, hands, script, options, broadcaster }
}

/// The next process, after the one before was killed.
fn killed(desk: Desk) -> Desk {
    let machine = desk.io.machine();
    desk.io.kill();
    drop(desk.broadcaster.close());
    let Desk { hands, script, options, .. } = desk;
    let io = MemIo::new(machine);
    let broadcaster = open(&io, &hands, &options).unwrap();
    Desk { io, hands, script, options, broadcaster }
}

fn asked(key: &str) -> Request {
    let mut request = request(key, "p");
    request.payload = vec![7; 3_000];
    request
}

/// Asks until it is known whether the request was accepted.
fn accept(desk: &Desk, key: &str) -> std::result::Result<BroadcastId, Error> {
    accept_this(desk, &asked(key))
}

pub(super) fn accept_this(
    desk: &Desk,
    request: &Request,
) -> std::result::Result<BroadcastId, Error> {
    let begin = Instant::now();
    loop {
        let error = desk.broadcaster.submit(request, Some(Duration::from_millis(1)));
        let error = error.unwrap_err();
        match error.kind() {
            ErrorKind::InFlight | ErrorKind::Parked => {
                return Ok(error.broadcast_id().unwrap());
            }
            ErrorKind::OutcomeUnknown => assert!(begin.elapsed() < LONG, "{error}"),
            _ => return Err(error),
        }
    }
}

/// Acknowledges all copies, once they are known to stand.
#[track_caller]
pub(super) fn acknowledge(desk: &Desk, id: BroadcastId, what: &str) {
    let begin = Instant::now();
    for vchannel in ["a", "b"] {
        loop {
            match desk.broadcaster.ack(id, vchannel) {
                Ok(()) => break,
                Err(e) => assert_eq!(e.kind(), ErrorKind::InFlight, "{what}: {e}"),
            }
            assert!(begin.elapsed() < LONG, "{what}: no copy on {vchannel}");
            std::thread::yield_now();
        }
    }
}

pub(super) fn oldest(desk: &Desk) -> u64 {
    let io = Arc::new(MemIo::new(desk.io.machine()));
    LogView::open(format!("{DIR}/control"), io).unwrap().oldest_lsn().get()
}

/// Fills a disk with so many free blocks; how many broadcasts were accepted there.
fn play(free: u64, is_killed: bool) -> usize {
    let what = format!("{free} free blocks, killed: {is_killed}");
    let mut desk = desk();
    // Sealed segments of control, which a checkpoint can do without.
    let mut before = Vec::new();
    for key in 0..60 {
        let key = format!("before {key}");
        let id = accept(&desk, &key).unwrap();
        acknowledge(&desk, id, &what);
        before.push((key.clone(), desk.broadcaster.submit(&asked(&key), None).unwrap()));
    }
    let oldest_before = oldest(&desk);
    desk.broadcaster.checkpoint().unwrap();
    desk.io.set_free_blocks(Some(free));
    // New work is accepted until there is no more room for it, and not behind that.
    let mut accepted = Vec::new();
    let refused = loop {
        let key = format!("full {}", accepted.len());
        match accept(&desk, &key) {
            Ok(id) => accepted.push((key, id)),
            Err(e) => break (key, e),
        }
        assert!(accepted.len() < 1_000, "{what}: the disk is not full");
    };
    assert_eq!(refused.1.kind(), ErrorKind::StoreFull, "{what}: {}", refused.1);
    if is_killed {
        desk = killed(desk);
    }
    let scope = asked(&refused.0).scope.unwrap();
    let owner = desk.broadcaster.read(|state, _| state.owner(&scope));
    assert_eq!(owner, None, "{what}: a refusal consumes no key");
    // All that was accepted ends, with no more space than there is.
    for (key, id) in &accepted {
        acknowledge(&desk, *id, &what);
        let answer = desk.broadcaster.submit(&asked(key), None);
        let answer = answer.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((answer.id, answer.duplicated), (*id, true), "{what}");
    }
    // A second checkpoint lets control go of what the first one covers.
    desk.broadcaster.checkpoint().unwrap_or_else(|e| panic!("{what}: {e}"));
    wait(&what, || oldest(&desk) > oldest_before);
    // Keys whose window is over are forgotten.
    desk.hands.pass(2 * DAY_MS);
    wait(&what, || {
        // A sweep that found no room yet is tried again behind the next interval.
        desk.hands.pass(6 * 60 * 1000);
        drop(desk.broadcaster.refresh(desk.broadcaster.policy()));
        desk.broadcaster.read(|state, _| state.tasks().all(|(_, task)| task.done.is_none()))
    });
    for (key, answer) in before {
        let scope = asked(&key).scope.unwrap();
        let owner = desk.broadcaster.read(|state, _| state.owner(&scope));
        assert!(owner.is_none_or(|owner| owner > answer.id), "{what}");
    }
    // What came free is enough for new work.
    let mut id = None;
    wait(&what, || {
        id = accept(&desk, &refused.0).ok();
        id.is_some()
    });
    desk.io.set_free_blocks(None);
    let id = id.unwrap();
    acknowledge(&desk, id, &what);
    assert_eq!(desk.broadcaster.submit(&asked(&refused.0), None).unwrap().id, id, "{what}");
    let desk = killed(desk);
    let again = desk.broadcaster.submit(&asked(&refused.0), None).unwrap();
    assert_eq!((again.id, again.duplicated), (id, true), "{what}");
    accepted.len()
}

#[test]
pub(crate) fn what_was_accepted_ends_on_a_full_disk_and_makes_room() {
    let step = if is_release() { 1 } else { 7 };
    let (mut disks, mut accepted) = (0_u64, 0);
    for free in (0..=FREE_MAX).step_by(step) {
        for is_killed in [false, true] {
            accepted += play(free, is_killed);
            disks += 1;
        }
    }
    figure(13, "full disks", disks);
    figure(13, "broadcasts accepted on full disks that ended there", accepted);
}

#[test]
fn a_task_that_is_parked_can_be_skipped_on_a_full_disk() {
    let mut policy = Policy::default();
    policy.retry_age_max = Duration::from_millis(50);
    let desk = desk_of(policy);
    let id = accept(&desk, "k").unwrap();
    desk.io.set_free_blocks(Some(0));
    let mut keys = 0;
    while accept(&desk, &keys.to_string()).is_ok() {
        keys += 1;
    }
    let parked = desk.broadcaster.submit(&asked("k"), None).unwrap_err();
    assert_eq!(parked.kind(), ErrorKind::Parked);
    desk.broadcaster.skip(id, &"long ".repeat(20)).unwrap();
    assert_eq!(desk.broadcaster.submit(&asked("k"), None).unwrap().id, id);
}

/// Accepts what a disk takes that is full.
fn accepted_until_full(desk: &Desk) -> Vec<BroadcastId> {
    let accept = |n: usize| accept_this(desk, &request(&n.to_string(), "p"));
    let mut accepted: Vec<BroadcastId> = (0..8).map(|n| accept(n).unwrap()).collect();
    desk.io.set_free_blocks(Some(0));
    while let Ok(id) = accept(accepted.len()) {
        accepted.push(id);
    }
    assert!(accepted.len() > 10, "{} were accepted", accepted.len());
    accepted
}

/// Accepts a few, and leaves no room in the tail of control: the next record that ends work takes the
/// reserve.
fn accepted_and_full(desk: &Desk) -> Vec<BroadcastId> {
    let accept = |n: usize| accept_this(desk, &request(&n.to_string(), "p")).unwrap();
    let accepted = (0..10).map(accept).collect();
    fill_control(desk);
    accepted
}

/// Fills the disk, and the tail of control to the last record.
fn fill_control(desk: &Desk) {
    desk.io.set_free_blocks(Some(0));
    // Of no state: nothing more is promised by it.
    for len in [500, 0] {
        let reason = "w".repeat(len);
        let full = (0..1_000).find_map(|_| desk.broadcaster.accept_window(&reason).err());
        assert_eq!(full.unwrap().kind(), ErrorKind::StoreFull);
    }
}

/// A reason of 60 KB took the space that the endings of fifty others had been promised.
#[test]
fn a_long_reason_takes_nothing_that_others_were_promised() {
    let desk = desk();
    let accepted = accepted_until_full(&desk);
    // Half of them would take the whole reserve, and the tail before it.
    let len = 2 * RESERVE_BYTES / (accepted.len() / 2);
    assert!(len < 60_000);
    for _ in 0..accepted.len() {
        desk.script.next(Verdict::Fail("l".repeat(len)));
    }
    // The first ones fail with the longest reason that there is space for, and all of them end.
    for (key, id) in accepted.iter().enumerate() {
        acknowledge(&desk, *id, "a long reason");
        let answer = desk.broadcaster.submit(&request(&key.to_string(), "p"), None);
        let answer = answer.unwrap_or_else(|e| panic!("{key} of {}: {e}", accepted.len()));
        assert!(matches!(answer.outcome, Outcome::Failed { .. }), "{answer:?}");
    }
    assert_eq!(desk.script.calls(), accepted.len() as u64, "each callback once");
}

/// Long reasons stand in the next checkpoint. They took the room of it, on a full disk and before, and
/// control could never be trimmed again.
#[test]
fn long_reasons_leave_room_for_a_checkpoint() {
    for (is_full, parks) in [(true, false), (true, true), (false, false), (false, true)] {
        let what = format!("full: {is_full}, parks: {parks}");
        let desk = desk();
        let accepted = accepted_and_full(&desk);
        if !is_full {
            desk.io.set_free_blocks(None);
        }
        for (key, id) in accepted.iter().enumerate() {
            let reason = "l".repeat(if is_full { 2_000 } else { 60_000 });
            desk.script.next(if parks { Verdict::Park(reason) } else { Verdict::Fail(reason) });
            acknowledge(&desk, *id, &what);
            drop(desk.broadcaster.submit(&request(&key.to_string(), "p"), None));
        }
        desk.io.set_free_blocks(Some(0));
        let written = desk.broadcaster.checkpoint();
        assert!(written.is_ok(), "{what}, {} reasons: {written:?}", accepted.len());
    }
}

/// With the reserve in use, and space for another one, they were cut for good.
#[test]
fn a_long_reason_is_whole_where_a_reserve_can_be_made_for_it() {
    let desk = desk();
    let accepted = accepted_and_full(&desk);
    // The reserve becomes the tail.
    acknowledge(&desk, accepted[0], "the first one");
    drop(desk.broadcaster.submit(&request("0", "p"), None).unwrap());
    desk.io.set_free_blocks(None);
    let long = "l".repeat(44_000);
    desk.script.next(Verdict::Fail(long.clone()));
    acknowledge(&desk, accepted[1], "the second one");
    let answer = desk.broadcaster.submit(&request("1", "p"), None).unwrap();
    assert_eq!(answer.outcome, Outcome::Failed { reason: long.clone() });
    desk.script.next(Verdict::Park(long.clone()));
    acknowledge(&desk, accepted[2], "the third one");
    let parked = desk.broadcaster.submit(&request("2", "p"), None).unwrap_err();
    assert!(parked.to_string().contains(&long), "{} of it", parked.to_string().len());
    desk.broadcaster.skip(accepted[2], &long).unwrap();
    let answer = desk.broadcaster.submit(&request("2", "p"), None).unwrap();
    assert_eq!(answer.outcome, Outcome::Failed { reason: format!("skipped: {long}") });
}

#[test]
fn the_sweep_of_a_full_disk_leaves_room_for_the_checkpoint_behind_it() {
    for free in [0, 5, 16, 33] {
        let what = format!("{free} free blocks");
        let desk = desk();
        let ids: Vec<_> = (0..60).map(|n| accept(&desk, &format!("before {n}")).unwrap()).collect();
        ids.iter().for_each(|id| acknowledge(&desk, *id, &what));
        for n in 0..60 {
            drop(desk.broadcaster.submit(&asked(&format!("before {n}")), None).unwrap());
        }
        desk.broadcaster.checkpoint().unwrap();
        desk.io.set_free_blocks(Some(free));
        let refused = (0..1_000).find_map(|n| accept(&desk, &n.to_string()).err()).unwrap();
        assert_eq!(refused.kind(), ErrorKind::StoreFull, "{what}: {refused}");
        desk.io.set_free_blocks(Some(0));
        desk.hands.pass(2 * DAY_MS);
        let forgotten = || desk.broadcaster.read(|state, _| state.window().expired_count());
        wait(&what, || {
            desk.hands.pass(6 * 60 * 1000);
            drop(desk.broadcaster.refresh(desk.broadcaster.policy()));
            drop(desk.broadcaster.checkpoint());
            forgotten() >= 60
        });
        desk.broadcaster.checkpoint().unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// Control rolled for it before it was known that there is no room for its end: the segment took the
/// space that a reserve would have been made of.
#[test]
fn work_that_is_refused_for_want_of_a_reserve_takes_no_segment() {
    let desk = desk();
    accept(&desk, "k").unwrap();
    let segments = || {
        let io = Arc::new(MemIo::new(desk.io.machine()));
        LogView::open(format!("{DIR}/control"), io).unwrap().segments().len()
    };
    let before = segments();
    // Enough for a segment of the least size, and not for a reserve that is larger.
    desk.io.set_free_blocks(Some(20));
    let mut large = request("large", "p");
    large.payload = vec![7; 48_000];
    let refused = accept_this(&desk, &large).unwrap_err();
    assert_eq!((refused.kind(), segments()), (ErrorKind::StoreFull, before), "{refused}");
    desk.io.set_free_blocks(None);
    accept_this(&desk, &large).unwrap();
}

#[test]
fn a_task_that_is_parked_for_a_long_reason_on_a_full_disk_can_be_skipped() {
    let desk = desk();
    let accepted = accepted_until_full(&desk);
    for _ in &accepted {
        desk.script.next(Verdict::Park("l".repeat(60_000)));
    }
    for (key, id) in accepted.iter().enumerate() {
        acknowledge(&desk, *id, "a task that parks");
        let parked = desk.broadcaster.submit(&request(&key.to_string(), "p"), None).unwrap_err();
        assert_eq!(parked.kind(), ErrorKind::Parked, "{key} of {}: {parked}", accepted.len());
    }
    for (key, id) in accepted.iter().enumerate() {
        let skipped = desk.broadcaster.skip(*id, &"s".repeat(256));
        skipped.unwrap_or_else(|e| panic!("{key} of {}: {e}", accepted.len()));
    }
}

#[test]
fn a_task_that_is_skipped_with_a_long_reason_on_a_full_disk_takes_a_short_one() {
    let mut policy = Policy::default();
    policy.retry_age_max = Duration::from_millis(50);
    let desk = desk_of(policy);
    let accepted = accepted_until_full(&desk);
    for (key, id) in accepted.iter().enumerate() {
        let parked = desk.broadcaster.submit(&request(&key.to_string(), "p"), None).unwrap_err();
        assert_eq!(parked.kind(), ErrorKind::Parked);
        desk.broadcaster.skip(*id, &"long ".repeat(2_000)).unwrap();
    }
}

/// Else a power loss may take the name, and whoever accepted work by it has no room to end it.
#[test]
pub(crate) fn the_name_of_a_reserve_is_durable_when_something_counts_on_it() {
    let desk = desk();
    let id = accept(&desk, "k").unwrap();
    let machine = desk.io.machine();
    desk.io.kill();
    drop(desk.broadcaster.close());
    let unsynced = machine.unsynced();
    let mut ways = survivors(&unsynced, 8, &mut Dice::new(id.0));
    ways.push(Vec::new());
    for way in ways {
        let mut machine = machine.power_loss(&unsynced, &way);
        for log in ["control", "channels/p0"] {
            let reserve = machine.take(format!("{DIR}/{log}/reserve.spare"));
            assert!(reserve.is_ok(), "{log}: what was promised is gone: {reserve:?}");
        }
    }
}

/// What counts on a reserve may be all that a power loss leaves: others take every block that comes
/// free.
#[test]
pub(crate) fn what_was_accepted_before_a_power_loss_ends_on_a_full_disk() {
    let (mut losses, mut ended) = (0_u64, 0);
    for seed in 0..if is_release() { 40 } else { 8 } {
        let desk = desk();
        let mut accepted = vec![("0".to_owned(), accept(&desk, "0").unwrap())];
        // All that there is, or a part of it.
        let most = if seed % 2 == 0 { 1_000 } else { 5 + seed };
        desk.io.set_free_blocks(Some(0));
        for key in 1..most {
            let Ok(id) = accept(&desk, &key.to_string()) else { break };
            accepted.push((key.to_string(), id));
        }
        // The tail of control alone does not hold what ends them.
        let name = |n: u32| format!("{n:0200}");
        let full = (0..1_000).find_map(|n| desk.broadcaster.ensure_vchannels(&[name(n)]).err());
        assert_eq!(full.unwrap().kind(), ErrorKind::StoreFull);
        let machine = desk.io.machine();
        desk.io.kill();
        drop(desk.broadcaster.close());
        let unsynced = machine.unsynced();
        let mut ways = survivors(&unsynced, 4, &mut Dice::new(seed));
        ways.push(Vec::new());
        for way in ways {
            let mut machine = machine.power_loss(&unsynced, &way);
            for log in ["control", "channels/p0"] {
                drop(machine.take(format!("{DIR}/{log}/unfinished.spare")));
            }
            machine.set_free_blocks(Some(0));
            let io = MemIo::new(machine);
            let broadcaster = open(&io, &desk.hands, &desk.options).unwrap();
            let (hands, script) = (Arc::clone(&desk.hands), Arc::clone(&desk.script));
            let desk = Desk { io, hands, script, options: desk.options.clone(), broadcaster };
            // New work takes what it may.
            let mut count = 0;
            while count < 100 && accept(&desk, &format!("more {count}")).is_ok() {
                count += 1;
            }
            for (key, id) in &accepted {
                acknowledge(&desk, *id, "a power loss");
                let answer = desk.broadcaster.submit(&asked(key), None);
                let answer = answer.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                assert_eq!((answer.id, answer.duplicated), (*id, true), "seed {seed}");
                ended += 1;
            }
            losses += 1;
        }
    }
    figure(13, "power losses behind which the disk was full", losses);
    figure(13, "broadcasts accepted before them that ended", ended);
}

#[test]
fn the_reserve_outlives_a_close_and_is_no_segment() {
    let desk = desk();
    accept(&desk, "k").unwrap();
    let reserves = |desk: &Desk| {
        ["control", "channels/p0"].map(|log| {
            let machine = desk.io.machine();
            machine.bytes(format!("{DIR}/{log}/reserve.spare")).map(|bytes| bytes.len()).ok()
        })
    };
    let kept = reserves(&desk);
    assert!(kept.iter().all(|len| len.is_some_and(|len| len >= 64 << 10)), "{kept:?}");
    desk.broadcaster.close().unwrap();
    assert_eq!(reserves(&desk), kept);
    // One that was named as a segment by a process that was killed at it is not written again.
    let mut machine = desk.io.machine();
    let path = format!("{DIR}/control/0000000001-00000000000000000001.seg");
    let segment = machine.bytes(&path).unwrap();
    machine.put(format!("{DIR}/control/reserve.spare"), &segment).unwrap();
    let io = MemIo::new(machine);
    let broadcaster = open(&io, &desk.hands, &desk.options).unwrap();
    assert_eq!(broadcaster.read(|state, _| state.tasks().count()), 1);
    let found = io.machine().bytes(format!("{DIR}/control/reserve.spare")).unwrap_or_default();
    assert_ne!(found, segment);
}

/// What had been accepted last was not counted among what a checkpoint takes: on a disk that was full
/// behind it none could be written, and nothing was freed.
#[test]
pub(crate) fn a_checkpoint_is_written_on_a_disk_that_large_work_has_filled() {
    let mut count = 0;
    for free in (40..700).step_by(37) {
        let desk = desk();
        desk.io.set_free_blocks(Some(free));
        let mut accepted = Vec::new();
        let refused = loop {
            let key = accepted.len().to_string();
            let mut request = request(&key, "p");
            request.payload = vec![7; 60_000];
            match accept_this(&desk, &request) {
                Ok(id) => accepted.push((request, id)),
                Err(e) => break e,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::StoreFull);
        desk.io.set_free_blocks(Some(0));
        // As many as control keeps room for, each behind acks that change the state.
        for nth in 0..3 {
            let what = format!("{free} free blocks, {} open, checkpoint {nth}", accepted.len());
            let Some((_, id)) = accepted.get(nth) else { continue };
            acknowledge(&desk, *id, &what);
            let written = desk.broadcaster.checkpoint();
            assert!(written.as_ref().is_ok_and(|written| *written), "{what}: {written:?}");
            count += 1;
        }
        for (request, id) in accepted {
            acknowledge(&desk, id, "checkpoints before it");
            assert_eq!(desk.broadcaster.submit(&request, None).unwrap().id, id);
        }
    }
    assert!(count > 20, "{count} checkpoints");
}

/// What was refused behind its promise kept the channel's room for good where nothing else had ever
/// gone there.
#[test]
fn a_refusal_leaves_no_room_kept_for_what_was_refused() {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let options = Options::new().register(Arc::<Script>::clone(&script)).open_bytes_max(10_000);
    let (io, hands) = (MemIo::new(Machine::new()), Arc::<Hands>::default());
    let broadcaster = open(&io, &hands, &options).unwrap();
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let mut request = request("k", "p");
    request.payload = vec![7; 300_000];
    let refused = broadcaster.submit(&request, None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Limit, "{refused}");
    broadcaster.close().unwrap();
    let reserve = io.machine().bytes(format!("{DIR}/channels/p0/reserve.spare"));
    assert!(reserve.is_err(), "it is still there");
}

#[test]
fn work_is_refused_while_what_is_unfinished_carries_as_much_as_it_may() {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let options = Options::new().register(Arc::<Script>::clone(&script)).open_bytes_max(9_000);
    let (io, hands) = (MemIo::new(Machine::new()), Arc::default());
    let broadcaster = open(&io, &hands, &options).unwrap();
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let desk = Desk { io, hands, script, options, broadcaster };
    let mut accepted = Vec::new();
    let refused = loop {
        let key = accepted.len().to_string();
        match accept(&desk, &key) {
            Ok(id) => accepted.push((key, id)),
            Err(e) => break (key, e),
        }
    };
    assert_eq!(refused.1.kind(), ErrorKind::StoreFull);
    assert!(refused.1.to_string().contains("9000"), "{}", refused.1);
    assert_eq!(accepted.len(), 2, "of 3,000 bytes and more");
    // The same behind a restart; what ends makes room.
    let desk = killed(desk);
    assert_eq!(accept(&desk, &refused.0).unwrap_err().kind(), ErrorKind::StoreFull);
    for (key, id) in accepted {
        acknowledge(&desk, id, "one of them ends");
        assert_eq!(desk.broadcaster.submit(&asked(&key), None).unwrap().id, id);
    }
    accept(&desk, &refused.0).unwrap();
}

/// Each step of a task and each ack of anybody made a file and removed it again, or sealed a tail
/// that had room.
#[test]
fn who_has_nothing_to_record_makes_no_room_for_it() {
    // Without their threads logs make no spare ahead: whoever creates a segment wants room.
    let desk = desk_on(Policy::default(), LogOptions::new().background(false));
    desk.broadcaster.checkpoint().unwrap();
    let done = accept(&desk, "done").unwrap();
    acknowledge(&desk, done, "it ends");
    drop(desk.broadcaster.submit(&asked("done"), None).unwrap());
    let id = accept(&desk, "k").unwrap();
    desk.script.next_retries_for_ever();
    acknowledge(&desk, id, "it is tried again");
    fill_control(&desk);
    desk.io.note_calls();
    let before = desk.script.calls();
    wait("steps without anything to record", || desk.script.calls() > before + 3);
    for id in [done, BroadcastId(u64::MAX)] {
        desk.broadcaster.ack(id, "a").unwrap();
    }
    desk.broadcaster.ack(id, "b").unwrap();
    let calls = desk.io.noted_calls();
    assert!(calls.iter().all(|(kind, _)| *kind != CallKind::Create), "{calls:?}");
}
