//! The reserve of control becomes its tail, and whoever takes it is killed in the midst of it: what
//! was accepted ends all the same, with no more space than there is.

use std::path::Path;
use std::sync::{Arc, Mutex};

use oncelog::ErrorKind;
use oncelog::broadcast::{AckMode, Options};
use oncelog::io::Io as _;
use oncelog::testing::{Dice, Machine, MemIo, survivors};

use super::cut_short::{Accepted, goes_on, open};
use super::desk::{DIR, Desk, Hands, Script, request};
use super::space::{accept_this, acknowledge};
use crate::figures::{figure, is_release};

/// Ways in which what was not synced survives a power loss, for each point.
const WAYS: usize = 2;

/// A store before its disk is full.
#[derive(Clone, Copy, Debug)]
struct Load {
    segment_bytes: u64,
    /// Broadcasts that were accepted and are not done, and what each of them carries.
    count: usize,
    payload_len: usize,
}

/// A desk without a free byte on its disk and in the tail of control.
fn full(load: Load) -> (Desk, Accepted) {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let options = Options::new().register(Arc::<Script>::clone(&script));
    let (io, hands) = (MemIo::new(Machine::new()), Arc::<Hands>::default());
    let broadcaster = open(Arc::new(io.clone()), &hands, &options, load.segment_bytes);
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let desk = Desk { io, hands, script, options, broadcaster };
    let mut accepted = Accepted::new();
    for key in 0..load.count {
        let mut request = request(&key.to_string(), "p");
        request.payload = vec![7; load.payload_len];
        let id = accept_this(&desk, &request).unwrap();
        accepted.push((request, id));
    }
    desk.io.set_free_blocks(Some(0));
    // Of no state: nothing more is promised by it.
    for len in [4_000, 500, 0] {
        let reason = "w".repeat(len);
        // While space comes free none is refused: then the next load is looked at.
        let refused = (0..10_000).find_map(|_| desk.broadcaster.accept_window(&reason).err());
        if let Some(e) = refused {
            assert_eq!(e.kind(), ErrorKind::StoreFull, "{e}");
        }
    }
    (desk, accepted)
}

/// What is left of the reserve of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Whole,
    /// It has a header, and may be a segment.
    Headed,
    /// Its name is that of a segment, or gone.
    Named,
}

fn left(machine: &Machine) -> Left {
    match machine.bytes(reserve()) {
        Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => Left::Whole,
        Ok(_) => Left::Headed,
        Err(_) => Left::Named,
    }
}

fn reserve() -> String {
    format!("{DIR}/control/reserve.spare")
}

fn segment_count(machine: &Machine) -> usize {
    let control = Path::new(DIR).join("control");
    let names = MemIo::new(machine.clone()).list(&control).unwrap();
    names.iter().filter(|entry| entry.name.as_encoded_bytes().ends_with(b".seg")).count()
}

/// Kills whoever takes the reserve at each point of it; how many went on behind that. Nothing where
/// what is under way had taken it before.
fn check(load: Load) -> Option<u64> {
    let (desk, accepted) = full(load);
    let before = desk.io.machine();
    if left(&before) != Left::Whole {
        drop(desk.broadcaster.close());
        return None;
    }
    let blocks = before.bytes(reserve()).unwrap().len() as u64 / 4096;
    let before = segment_count(&before);
    let seen = Arc::<Mutex<Vec<Machine>>>::default();
    let notes = Arc::clone(&seen);
    desk.io.observe(move |machine, _| notes.lock().unwrap().push(machine.clone()));
    acknowledge(&desk, accepted[0].1, "the first ack takes it");
    desk.io.unobserve();
    desk.io.kill();
    drop(desk.broadcaster.close());
    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.retain(|machine| left(machine) != Left::Whole);
    if ![Left::Headed, Left::Named].iter().all(|way| seen.iter().any(|m| left(m) == *way)) {
        return None;
    }
    let mut ended = 0;
    for (nth, machine) in seen.into_iter().enumerate() {
        let what = format!("{load:?}, point {nth}, {:?}", left(&machine));
        let unsynced = machine.unsynced();
        let ways = survivors(&unsynced, WAYS, &mut Dice::new(nth as u64));
        let lost = [Vec::new()].into_iter().chain(ways).map(|way| {
            let lost = machine.power_loss(&unsynced, &way);
            (lost, format!("{what}, a power loss that leaves {way:?}"))
        });
        let killed = [(machine.clone(), format!("{what}, a kill"))];
        for (machine, what) in killed.into_iter().chain(lost) {
            // Blocks that have lost every name are nobody's.
            let is_lost = left(&machine) == Left::Named && segment_count(&machine) == before;
            let free = if is_lost { blocks } else { 0 };
            goes_on(&desk, &accepted, (machine, free), load.segment_bytes, &what);
            ended += 1;
        }
    }
    Some(ended)
}

/// What had been kept was given back to the disk, and more was asked of it than that. Which sizes
/// have no space for twice as much is a matter of what the records are: there are several of them.
#[test]
pub(crate) fn what_was_accepted_ends_though_a_crash_takes_the_reserve() {
    let loads = if is_release() {
        [
            (64 << 10, 2..=20, 3_000),
            (64 << 10, 2..=20, 60_000),
            (1 << 20, 2..=3, 3_000),
            (1 << 20, 5..=20, 60_000),
        ]
    } else {
        [
            (64 << 10, 5..=6, 3_000),
            (64 << 10, 11..=11, 60_000),
            (1 << 20, 2..=2, 3_000),
            (1 << 20, 9..=12, 60_000),
        ]
    };
    let loads = loads.into_iter().flat_map(|(segment_bytes, counts, payload_len)| {
        counts.map(move |count| Load { segment_bytes, count, payload_len })
    });
    let ended: Vec<Option<u64>> = loads.map(check).collect();
    let checked: Vec<u64> = ended.iter().copied().flatten().collect();
    assert!(2 * checked.len() > ended.len(), "the reserve was taken before: {ended:?}");
    figure(13, "crashes that took a reserve on full disks", checked.iter().sum::<u64>());
}
