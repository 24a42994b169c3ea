//! A full disk is freed by the broadcaster itself, of the records of control that no restart needs,
//! also behind a crash between the checkpoints that it takes.

use std::path::Path;
use std::sync::{Arc, Mutex};

use oncelog::broadcast::{AckMode, BroadcastId, Options, Request};
use oncelog::testing::{CallKind, Dice, Machine, MemIo, survivors};
use oncelog::{ErrorKind, LogView};

use super::cut_short::open;
use super::desk::{DIR, Desk, Hands, Script, request, wait};
use super::space::{accept_this, acknowledge, oldest};
use crate::figures::{figure, is_release};

const SEGMENT_BYTES: u64 = 64 << 10;
/// Broadcasts that are done, whose records fill several segments of control.
const DONE_COUNT: usize = 24;

fn asked(key: &str, payload_len: usize) -> Request {
    let mut request = request(key, "p");
    request.payload = vec![7; payload_len];
    request
}

fn next(before: &Desk, io: MemIo) -> Desk {
    let hands = Arc::<Hands>::default();
    let broadcaster = open(Arc::new(io.clone()), &hands, &before.options, SEGMENT_BYTES);
    let script = Arc::clone(&before.script);
    Desk { io, hands, script, options: before.options.clone(), broadcaster }
}

/// A desk most of whose control no restart needs, with a checkpoint of it or without, and without
/// a free byte on its disk. Nobody was refused yet.
fn full(has_checkpoint: bool) -> (Desk, BroadcastId) {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let options = Options::new().register(Arc::<Script>::clone(&script));
    let (io, hands) = (MemIo::new(Machine::new()), Arc::<Hands>::default());
    let broadcaster = open(Arc::new(io.clone()), &hands, &options, SEGMENT_BYTES);
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let desk = Desk { io, hands, script, options, broadcaster };
    for key in 0..DONE_COUNT {
        let request = asked(&key.to_string(), 30_000);
        let id = accept_this(&desk, &request).unwrap();
        acknowledge(&desk, id, "before the disk is full");
        drop(desk.broadcaster.submit(&request, None).unwrap());
    }
    if has_checkpoint {
        assert!(desk.broadcaster.checkpoint().unwrap());
    }
    let open = accept_this(&desk, &asked("open", 100)).unwrap();
    desk.io.set_free_blocks(Some(0));
    assert_eq!(oldest(&desk), 1, "a checkpoint alone lets nothing go");
    (desk, open)
}

/// Asks for what finds no space, as its caller does until there is some.
#[track_caller]
fn check_freed(desk: &Desk, open: BroadcastId, what: &str) {
    let new = asked("new", 60_000);
    let mut last = None;
    wait(&format!("{what}: nothing is freed: {last:?}"), || {
        last = accept_this(desk, &new).err();
        last.as_ref().is_none_or(|e| {
            assert_eq!(e.kind(), ErrorKind::StoreFull, "{what}: {e}");
            false
        })
    });
    assert!(oldest(desk) > 1, "{what}: control is not trimmed");
    for request in [asked("open", 100), new] {
        let id = desk.broadcaster.read(|state, _| state.owner(request.scope.as_ref().unwrap()));
        acknowledge(desk, id.unwrap(), what);
        assert_eq!(desk.broadcaster.submit(&request, None).unwrap().id, id.unwrap(), "{what}");
    }
    for key in 0..DONE_COUNT {
        let again = desk.broadcaster.submit(&asked(&key.to_string(), 30_000), None).unwrap();
        assert!(again.duplicated && again.id < open, "{what}: key {key}");
    }
}

/// Neither a first checkpoint was written without being asked for, nor a second one right behind it.
#[test]
fn a_full_disk_is_freed_without_anybodys_call() {
    for has_checkpoint in [false, true] {
        let what = format!("behind a checkpoint: {has_checkpoint}");
        let (desk, open) = full(has_checkpoint);
        check_freed(&desk, open, &what);
        desk.broadcaster.close().unwrap();
    }
}

/// Whoever is refused where nothing can be freed has no checkpoint written, however often.
#[test]
fn no_checkpoint_is_written_that_frees_nothing() {
    let (desk, open) = full(false);
    check_freed(&desk, open, "at first");
    // What comes free from here on is somebody else's, and there is nothing more to free.
    let refused = || {
        desk.io.set_free_blocks(Some(0));
        let refused = accept_this(&desk, &asked("too much", 200_000)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StoreFull, "{refused}");
        desk.broadcaster.stats().checkpoints
    };
    let before = refused();
    let mut after = before;
    for _ in 0..60 {
        // More than it rests behind an attempt that fails.
        desk.hands.pass(2_000);
        after = refused();
    }
    // One may have been under way.
    let more = (after.written - before.written, after.failed - before.failed);
    assert!(more.0 <= 2 && more.1 <= 2, "{more:?} checkpoints");
    desk.broadcaster.close().unwrap();
}

/// How many checkpoints stand in control that were read back by somebody.
fn checkpoint_count(machine: &Machine) -> usize {
    use oncelog_format::control::{Body, ControlRecord};
    let io = Arc::new(MemIo::new(machine.clone()));
    let view = LogView::open(Path::new(DIR).join("control"), io).unwrap();
    let (mut reader, mut count) = (view.reader(None).unwrap(), 0);
    while let Some(record) = reader.next().unwrap() {
        let body = ControlRecord::decode(&record.payload).unwrap().body;
        count += usize::from(matches!(body, Body::CheckpointEnd(_)));
    }
    count
}

/// A process that dies between the two leaves a store whose next process frees it.
#[test]
fn a_crash_between_the_checkpoints_that_free_a_disk_leaves_it_to_the_next_process() {
    let mut crashes = 0_u64;
    for has_checkpoint in [false, true] {
        let (desk, open) = full(has_checkpoint);
        let seen = Arc::<Mutex<Vec<Machine>>>::default();
        let notes = Arc::clone(&seen);
        desk.io.observe(move |machine, kind| {
            if is_release() || matches!(kind, CallKind::Sync | CallKind::SyncDir | CallKind::Remove)
            {
                notes.lock().unwrap().push(machine.clone());
            }
        });
        check_freed(&desk, open, "the process before");
        desk.io.unobserve();
        desk.broadcaster.close().unwrap();
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        // Until control is trimmed: behind that nothing is to be freed.
        let control = |machine: &Machine| {
            LogView::open(Path::new(DIR).join("control"), Arc::new(MemIo::new(machine.clone())))
        };
        seen.retain(|machine| control(machine).unwrap().oldest_lsn().get() == 1);
        let counts: Vec<usize> = seen.iter().map(checkpoint_count).collect();
        let begun = usize::from(has_checkpoint);
        for expected in [begun, begun + 1] {
            assert!(counts.contains(&expected), "{expected} checkpoints: {counts:?}");
        }
        for (nth, machine) in seen.into_iter().enumerate() {
            let what = format!("behind a checkpoint: {has_checkpoint}, crash {nth}");
            let unsynced = machine.unsynced();
            let ways = survivors(&unsynced, 1, &mut Dice::new(nth as u64));
            let lost = [Vec::new()].into_iter().chain(ways).map(|way| {
                let what = format!("{what}, a power loss that leaves {way:?}");
                (machine.power_loss(&unsynced, &way), what)
            });
            let killed = [(machine.clone(), format!("{what}, a kill"))];
            for (mut machine, what) in killed.into_iter().chain(lost) {
                machine.set_free_blocks(Some(0));
                let after = next(&desk, MemIo::new(machine));
                check_freed(&after, open, &what);
                after.broadcaster.close().unwrap();
                crashes += 1;
            }
        }
    }
    figure(13, "crashes while full disks were freed", crashes);
}
