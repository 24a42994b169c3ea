//! Fails every call of the file system, one at a time, once and for a while, in every way that a
//! system knows: whatever a log answers then, its promises hold, and it names the failure for what
//! it is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncelog::testing::{
    CallKind, Dice, EDQUOT, EINTR, EIO, EMFILE, ENOSPC, EROFS, Fault, Machine, survivors,
};

use crate::crash::drive::{Driver, Op, ROOM};
use crate::crash::hold::Hold;
use crate::crash::oracle::{End, Oracle};
use crate::figures::figure;

/// Fills a segment.
fn fill() -> Op {
    Op::Synced(vec![ROOM - 3000])
}

/// Fills half of one, and a little more.
fn half() -> Op {
    Op::Synced(vec![ROOM / 2 + 500])
}

fn small() -> Op {
    Op::Synced(vec![700])
}

/// Two that wait, and three that come in meanwhile.
fn crowd() -> Op {
    Op::Crowd { waiting: vec![vec![40], vec![600, 600]], meanwhile: vec![30, 50, 50] }
}

fn cursor(quarters: u64) -> Op {
    Op::Hold(Hold::Cursor(quarters))
}

fn held(hold: Hold) -> Op {
    Op::Hold(hold)
}

/// Workloads that reach every kind of call: open, append, sync, roll, trim, close, recover.
fn workloads() -> Vec<Vec<Op>> {
    vec![
        vec![small(), cursor(4), small(), cursor(4), held(Hold::RemoveCursor), small()],
        vec![small(), cursor(4), Op::Kill, small(), cursor(4), Op::Trim(4), Op::Close, cursor(4)],
        vec![fill(), fill(), fill(), held(Hold::Retain), held(Hold::RemoveStep), Op::Kill, small()],
        vec![small(), Op::Buffered(vec![1, 600]), Op::Flush, Op::IdleSlot, Op::Close, small()],
        vec![fill(), small(), fill(), small(), Op::Kill, small()],
        vec![fill(), fill(), Op::Trim(2), small(), Op::Trim(4), Op::IdleSlot, small(), Op::Close],
        vec![
            Op::Buffered(vec![700, 700]),
            Op::Flush,
            Op::Power,
            small(),
            small(),
            Op::Kill,
            small(),
        ],
        vec![crowd(), Op::Flush, crowd(), Op::Close, crowd(), Op::Sync],
        // Recovery of everything at once: sealed segments, a trim, a torn end.
        vec![fill(), fill(), Op::Trim(3), Op::Buffered(vec![700, 9000]), Op::Flush, Op::Power],
        vec![
            fill(),
            small(),
            Op::Kill,
            fill(),
            Op::Close,
            Op::Buffered(vec![100]),
            Op::Sync,
            fill(),
        ],
        vec![fill(), Op::Buffered(vec![ROOM - 200]), Op::Close, Op::Kill, Op::Trim(4), Op::Close],
        // Windows of the tail, a spare, and the roll that takes it.
        vec![small(), Op::Fill, Op::Fill, half(), Op::Fill, Op::Fill, Op::Fill, half(), small()],
        vec![half(), Op::Fill, Op::Fill, Op::Kill, half(), Op::Fill, Op::Close, small(), Op::Fill],
        // Slots found at an open, removals in steps, a footer that is made again.
        vec![small(), Op::IdleSlot, Op::Kill, Op::Trim(2), Op::IdleSlot, small(), Op::Kill],
        vec![fill(), fill(), Op::Trim(4), Op::Remove, Op::Kill, Op::Remove, Op::Rebuild, small()],
        vec![fill(), cursor(1), fill(), held(Hold::Pin(1)), Op::Trim(4), held(Hold::Unpin), fill()],
        vec![Op::Buffered(vec![9000, 1, 700]), Op::Sync, Op::Trim(4), Op::Power, crowd(), Op::Sync],
    ]
}

/// Workloads in which something has failed before, or that end in the midst of something.
fn troubled() -> Vec<Vec<Op>> {
    vec![
        // A trim that is in the cache alone, and an open that has to write it again.
        vec![fill(), fill(), Op::FailSync, Op::Trim(4), Op::Kill, fill(), Op::Remove],
        vec![fill(), fill(), Op::FailWrite(Some(64)), Op::Trim(4), Op::Kill, Op::Trim(4), small()],
        vec![fill(), fill(), Op::FailSecondSync, Op::Trim(4), Op::Kill, small(), Op::Remove],
        vec![fill(), Op::FailSync, Op::Trim(4), fill(), Op::Kill, fill(), Op::Close],
        // Bare tails, and segments that were emptied.
        vec![fill(), Op::Trim(4), Op::Kill, fill(), Op::Trim(4), Op::Remove, Op::Kill, fill()],
        vec![Op::Trim(4), small(), Op::Trim(4), Op::Kill, Op::Trim(4), fill(), fill()],
        // Torn ends, one after the other.
        vec![Op::Buffered(vec![700, 700]), Op::FailWrite(Some(600)), Op::Flush, Op::Kill, fill()],
        vec![small(), Op::FailSync, small(), Op::Kill, small(), Op::FailSync, small(), Op::Evict],
        vec![fill(), small(), Op::Evict, Op::Buffered(vec![700; 3]), Op::Drop, fill(), Op::Close],
        // Cursors beside all of it.
        vec![small(), cursor(4), Op::FailSync, cursor(4), Op::Kill, cursor(4), Op::Trim(4)],
        vec![small(), cursor(2), Op::FailSync, held(Hold::RemoveCursor), Op::Kill, cursor(4)],
        vec![fill(), cursor(4), fill(), cursor(4), Op::Trim(4), Op::Remove, Op::Close, cursor(4)],
        // Spares and windows under everything that takes the tail.
        vec![half(), Op::Fill, Op::Fill, Op::Trim(4), Op::IdleSlot, Op::Fill, half(), Op::Fill],
        vec![
            half(),
            Op::Fill,
            Op::Space(Some(0)),
            half(),
            small(),
            Op::Trim(4),
            Op::Space(None),
            fill(),
        ],
        vec![crowd(), Op::Fill, Op::Fill, crowd(), Op::Fill, Op::Kill, crowd(), fill()],
        vec![fill(), fill(), fill(), Op::Close, Op::Trim(4), Op::Close, Op::Remove, Op::Rebuild],
        vec![
            fill(),
            Op::Buffered(vec![100; 40]),
            Op::Power,
            fill(),
            Op::Buffered(vec![9000; 4]),
            Op::Sync,
        ],
        vec![
            Op::IdleSlot,
            small(),
            Op::IdleSlot,
            Op::Kill,
            small(),
            Op::IdleSlot,
            Op::Close,
            Op::Trim(4),
        ],
    ]
}

/// What a system answers, and short counts around the edges of headers, sectors and pages, beside
/// half of what is asked for, and all but a byte.
const ERRORS: [i32; 6] = [EIO, ENOSPC, EDQUOT, EROFS, EMFILE, EINTR];
const SHORTS: [usize; 14] = [0, 1, 31, 32, 33, 100, 511, 512, 513, 600, 731, 1463, 4095, 40_000];

/// How many calls in a row fail: the last one stands for ever, but an interrupted call is repeated
/// and a short one goes on, so that it has to end. Where the log gives up before that many, a run is
/// the same as one with fewer, and counts once.
const TIMES: [u64; 4] = [1, 2, 5, 60];

/// The faults that make a call any different.
fn faults_of((kind, len): (CallKind, usize), is_sample: bool) -> Vec<Fault> {
    let (errors, shorts) = if is_sample {
        (&[EIO, ENOSPC, EROFS][..], vec![100])
    } else {
        (&ERRORS[..], [&SHORTS[..], &[len / 2, len.saturating_sub(1)]].concat())
    };
    let shorts: BTreeSet<usize> = shorts.into_iter().collect();
    let errors = errors.iter().map(|number| Fault::Error(*number));
    let all = errors.chain(shorts.into_iter().map(Fault::Short));
    all.filter(|fault| fault.is_felt(kind, len)).collect()
}

/// Which call of a workload fails, how many in a row, and how.
type Injected = (u64, u64, Fault);

/// A process that has played a workload, with a fault or without.
fn played(ops: &[Op], seed: u64, injected: Option<Injected>) -> Result<Driver, String> {
    let mut driver = Driver::new(Machine::new(), Oracle::new(), seed, false);
    match injected {
        Some((nth, times, fault)) => driver.arm_anywhere(nth, times, fault),
        None => driver.note_calls(),
    }
    driver.open(End::Close)?;
    for op in ops {
        driver.step(op).map_err(|e| format!("{op:?}: {e}"))?;
    }
    Ok(driver)
}

/// Plays a workload with a fault, and what may follow it; a number of the case, and whether it would
/// be another one if more calls failed.
fn play(ops: &[Op], seed: u64, injected: Injected) -> Result<(u64, bool), String> {
    let mut driver = played(ops, seed, Some(injected))?;
    let (case, has_more) = (driver.trace(), driver.spent() >= injected.1);
    driver.disarm();
    driver.step(&Op::Kill).map_err(|e| format!("at the end: {e}"))?;
    driver.step(&Op::Synced(vec![700])).map_err(|e| format!("append at the end: {e}"))?;
    let end = driver.into_points().pop().ok_or("no point")?;
    let unsynced = end.machine.unsynced();
    for way in survivors(&unsynced, 3, &mut Dice::new(seed)) {
        let left = end.machine.power_loss(&unsynced, &way);
        let mut driver = Driver::new(left, end.oracle.clone(), seed, false);
        driver.open(End::Power).map_err(|e| format!("power loss at the end: {e}"))?;
    }
    Ok((case, has_more))
}

/// Fails each call of a workload in each way; how many runs came of it that differ from the one
/// without a fault, and for each call and fault from each other.
fn fail_each(ops: &[Op], is_sample: bool) -> Result<usize, String> {
    let calls = played(ops, 1, None)?.noted_calls();
    let times = if is_sample { &[1, 60][..] } else { &TIMES[..] };
    let (next, met) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let run = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(call) = calls.get(at) else { return Ok(()) };
            let nth = at as u64 + 1;
            let faults = faults_of(*call, is_sample);
            // A workload may fail the same call itself.
            let plain = played(ops, nth, None)?.trace();
            for fault in faults {
                let mut cases = BTreeSet::new();
                for times in times {
                    let (case, has_more) = play(ops, nth, (nth, *times, fault)).map_err(|e| {
                        format!("{fault:?} at call {nth}, {times} times, in {ops:?}: {e}")
                    })?;
                    cases.extend(Some(case).filter(|case| *case != plain));
                    if !has_more {
                        break;
                    }
                }
                met.fetch_add(cases.len(), Ordering::Relaxed);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    found.into_iter().collect::<Result<(), String>>()?;
    assert!(calls.len() > 20, "{} calls", calls.len());
    Ok(met.into_inner())
}

#[test]
fn no_failing_call_breaks_a_promise() {
    // A call that fails in all the ways is the proof's; each call fails in some way in any build.
    let is_sample = !cfg!(planted);
    let cases: usize = [workloads(), troubled()]
        .concat()
        .iter()
        .map(|ops| fail_each(ops, is_sample).unwrap_or_else(|e| panic!("{e}")))
        .sum();
    println!("faults: {cases} cases");
    figure(5, "cases of a failing call of a log", cases);
}
