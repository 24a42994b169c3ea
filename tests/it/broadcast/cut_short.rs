//! A checkpoint that is cut off on a full disk: behind it others are written, control is trimmed and
//! keys are swept, with no more space than there is.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use oncelog::broadcast::{AckMode, BroadcastId, Broadcaster, Options, Request};
use oncelog::io::Io;
use oncelog::testing::{CallKind, Dice, Machine, MemIo, survivors};
use oncelog::{Clock, CreateMode, ErrorKind, Options as LogOptions, Store, StoreOptions};

use super::desk::{DIR, Desk, Hands, Script, request, wait};
use super::room::Slow;
use super::space::{accept_this, acknowledge, oldest};
use crate::figures::{figure, is_release};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Broadcasts whose payloads come to a part of a checkpoint and something.
const LARGE_COUNT: usize = 18;

/// Bytes of a segment, where a test says nothing else.
const SEGMENT_BYTES: u64 = 64 << 10;

pub(super) type Accepted = Vec<(Request, BroadcastId)>;

pub(super) fn open(
    io: Arc<dyn Io>,
    hands: &Arc<Hands>,
    options: &Options,
    segment_bytes: u64,
) -> Broadcaster {
    let clock: Arc<dyn Clock> = Arc::<Hands>::clone(hands);
    let log = LogOptions::new().segment_bytes_max(segment_bytes).io(io).clock(clock);
    let store = StoreOptions::new().create(CreateMode::IfMissing).log(log);
    Broadcaster::open(Store::open(Path::new(DIR), &store).unwrap(), options.clone()).unwrap()
}

/// A desk on a disk that is full, with all that it has accepted. `io` is where its files are, behind
/// `through`.
fn full(io: &MemIo, through: Arc<dyn Io>, has_checkpoint: bool) -> (Desk, Accepted) {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let options = Options::new().register(Arc::<Script>::clone(&script));
    let hands = Arc::<Hands>::default();
    let broadcaster = open(through, &hands, &options, SEGMENT_BYTES);
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let desk = Desk { io: io.clone(), hands, script, options, broadcaster };
    let mut accepted = Accepted::new();
    let mut asked = |len: usize| {
        let mut request = request(&accepted.len().to_string(), "p");
        request.payload = vec![7; len];
        let id = accept_this(&desk, &request)?;
        accepted.push((request, id));
        Ok::<_, oncelog::Error>(())
    };
    (0..LARGE_COUNT).for_each(|_| asked(60_000).unwrap());
    if has_checkpoint {
        desk.broadcaster.checkpoint().unwrap();
    }
    io.set_free_blocks(Some(0));
    let refused = (0..1_000).find_map(|_| asked(3_000).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::StoreFull, "{refused}");
    (desk, accepted)
}

/// The next process, with no block but those that are free, what it finds and gives back itself.
pub(super) fn goes_on(
    before: &Desk,
    accepted: &Accepted,
    (mut machine, free): (Machine, u64),
    segment_bytes: u64,
    what: &str,
) {
    for log in ["control", "channels/p0"] {
        drop(machine.take(format!("{DIR}/{log}/unfinished.spare")));
    }
    machine.set_free_blocks(Some(free));
    let io = MemIo::new(machine);
    let (hands, script) = (Arc::default(), Arc::clone(&before.script));
    let broadcaster = open(Arc::new(io.clone()), &hands, &before.options, segment_bytes);
    let desk = Desk { io, hands, script, options: before.options.clone(), broadcaster };
    let first = oldest(&desk);
    let end = |(request, id): &(Request, BroadcastId)| {
        acknowledge(&desk, *id, what);
        let answer = desk.broadcaster.submit(request, None);
        assert_eq!(answer.unwrap_or_else(|e| panic!("{what}: {e}")).id, *id, "{what}");
    };
    for ends in accepted.iter().take(2) {
        end(ends);
        desk.broadcaster.checkpoint().unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    wait(what, || oldest(&desk) > first);
    accepted.iter().skip(2).for_each(end);
    desk.hands.pass(2 * DAY_MS);
    wait(what, || {
        // A sweep that found no room yet is tried again behind the next interval.
        desk.hands.pass(6 * 60 * 1000);
        drop(desk.broadcaster.refresh(desk.broadcaster.policy()));
        desk.broadcaster.read(|state, _| state.window().held_count() == 0)
    });
    // Blocks come free in the background.
    wait(what, || desk.broadcaster.checkpoint().is_ok());
    desk.broadcaster.close().unwrap();
}

/// Each one spent the room of the next: no checkpoint was written, nothing was trimmed and nothing
/// swept until somebody freed space.
#[test]
fn a_checkpoint_that_a_kill_or_a_power_loss_cuts_off_leaves_room_for_others() {
    let mut cuts = 0_u64;
    for has_checkpoint in [false, true] {
        let io = MemIo::new(Machine::new());
        let (desk, accepted) = full(&io, Arc::new(io.clone()), has_checkpoint);
        let seen = Arc::<Mutex<Vec<Machine>>>::default();
        let notes = Arc::clone(&seen);
        let mut is_rolled = false;
        io.observe(move |machine, kind| {
            // The reserve has its name as the tail once the directory was synced behind that.
            if is_rolled && (is_release() || kind == CallKind::Sync) {
                notes.lock().unwrap().push(machine.clone());
            }
            is_rolled |= kind == CallKind::SyncDir;
        });
        desk.broadcaster.checkpoint().unwrap();
        io.unobserve();
        desk.broadcaster.close().unwrap();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert!(seen.len() > 2, "{} cuts", seen.len());
        for (nth, machine) in seen.into_iter().enumerate() {
            let what = format!("cut {nth}, behind another one: {has_checkpoint}");
            let unsynced = machine.unsynced();
            let some = survivors(&unsynced, 1, &mut Dice::new(0));
            let lost = [Vec::new()].into_iter().chain(some).map(|way| {
                let lost = machine.power_loss(&unsynced, &way);
                (lost, format!("{what}, a power loss that leaves {way:?}"))
            });
            for (machine, what) in
                [(machine.clone(), format!("{what}, a kill"))].into_iter().chain(lost)
            {
                goes_on(&desk, &accepted, (machine, 0), SEGMENT_BYTES, &what);
                cuts += 1;
            }
        }
    }
    figure(13, "checkpoints cut off on full disks", cuts);
}

/// An operator whose disk is full restarts the service.
#[test]
fn a_checkpoint_that_a_close_cuts_off_leaves_room_for_others() {
    for has_checkpoint in [false, true] {
        for nth in 1.. {
            let what = format!("a close at sync {nth}, behind another one: {has_checkpoint}");
            let io = MemIo::new(Machine::new());
            let slow =
                Slow::new(&io, |path| path.parent().is_some_and(|dir| dir.ends_with("control")));
            let (desk, accepted) = full(&io, Arc::new(slow.clone()), has_checkpoint);
            // Behind the roll, which takes the reserve under the lock that a close needs, too.
            let held_at = Arc::new(AtomicU64::new(u64::MAX));
            let (door, at) = (slow.clone(), Arc::clone(&held_at));
            io.observe(move |_, kind| {
                if kind == CallKind::Rename && at.load(Ordering::SeqCst) == u64::MAX {
                    at.store(door.free(nth - 1) + nth, Ordering::SeqCst);
                }
            });
            let is_held = std::thread::scope(|scope| {
                let written = scope.spawn(|| desk.broadcaster.checkpoint());
                let is_held = || slow.reached() >= held_at.load(Ordering::SeqCst);
                wait(&what, || written.is_finished() || is_held());
                let is_held = !written.is_finished();
                let closed = scope.spawn(|| desk.broadcaster.close());
                // A name that is none: refused in any case.
                let refused = || desk.broadcaster.ensure_vchannels(&[String::new()]).unwrap_err();
                wait(&what, || refused().kind() == ErrorKind::Closed);
                slow.free(u64::MAX);
                closed.join().unwrap().unwrap();
                drop(written.join().unwrap());
                is_held
            });
            io.unobserve();
            goes_on(&desk, &accepted, (io.machine(), 0), SEGMENT_BYTES, &what);
            if !is_held {
                assert!(nth > 3, "{what}: it is whole");
                break;
            }
        }
    }
}
