//! Fails every call of the file system, one at a time, once and for a while, in every way that a
//! system knows: whatever a log answers then, its promises hold.

use std::path::Path;

use oncelog::io::Io as _;
use oncelog::testing::{
    Dice, EDQUOT, EINTR, EIO, EMFILE, ENOSPC, EROFS, Fault, Machine, MemIo, survivors,
};

use crate::crash::drive::{DIR, Driver, Op, ROOM};
use crate::crash::hold::Hold;
use crate::crash::oracle::{End, Oracle};

/// Workloads that reach every kind of call: open, append, sync, roll, trim, close, recover.
fn workloads() -> Vec<Vec<Op>> {
    let fill = || Op::Synced(vec![ROOM - 3000]);
    let small = || Op::Synced(vec![700]);
    let (cursor, held) = (|quarters| Op::Hold(Hold::Cursor(quarters)), Op::Hold);
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
    ]
}

const FAULTS: [Fault; 11] = [
    Fault::Error(EIO),
    Fault::Error(ENOSPC),
    Fault::Error(EDQUOT),
    Fault::Error(EROFS),
    Fault::Error(EMFILE),
    Fault::Error(EINTR),
    Fault::Short(0),
    Fault::Short(1),
    Fault::Short(31),
    Fault::Short(100),
    Fault::Short(600),
];

/// How many calls in a row fail: the last one stands for ever, but an interrupted call is repeated
/// and a short one goes on, so that it has to end.
const TIMES: [u64; 4] = [1, 2, 5, 60];

/// A machine on which the directory of the log is there, durably. A directory whose first sync
/// failed can never be proven again, so that nothing that its log acknowledges would hold.
fn machine() -> Machine {
    let io = MemIo::default();
    io.create_dir(Path::new(DIR)).unwrap();
    io.sync_dir(Path::new("/")).unwrap();
    io.machine()
}

/// Plays a workload whose `nth` call fails; how many calls there were.
fn play(ops: &[Op], nth: u64, times: u64, fault: Fault, seed: u64) -> Result<u64, String> {
    let mut driver = Driver::new(machine(), Oracle::new(), seed, false);
    driver.arm_anywhere(nth, times, fault);
    driver.open(End::Close)?;
    for op in ops {
        driver.step(op).map_err(|e| format!("{op:?}: {e}"))?;
    }
    let calls = driver.calls();
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
    Ok(calls)
}

#[test]
fn no_failing_call_breaks_a_promise() {
    let mut cases = 0;
    for ops in workloads() {
        let calls = play(&ops, u64::MAX, 0, Fault::Short(0), 1).unwrap();
        assert!(calls > 20, "{calls} calls");
        for nth in 1..=calls {
            for fault in FAULTS {
                for times in TIMES {
                    if let Err(e) = play(&ops, nth, times, fault, nth ^ times << 32) {
                        panic!("{fault:?} at call {nth}, {times} times, in {ops:?}: {e}");
                    }
                    cases += 1;
                }
            }
        }
    }
    println!("faults: {cases} cases");
    assert!(cases >= 10_000, "{cases} cases");
}
