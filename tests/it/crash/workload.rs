//! What the logs of the crash tests go through.

use oncelog::testing::Dice;

use super::drive::{Op, ROOM};
use super::hold::{self, Hold};

/// A named sequence of steps.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) ops: Vec<Op>,
}

pub(crate) fn named(name: impl Into<String>, ops: Vec<Op>) -> Workload {
    let name = name.into();
    let seed = name.bytes().fold(1, |h: u64, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    Workload { name, seed, ops }
}

fn synced(len: usize) -> Op {
    Op::Synced(vec![len])
}

fn buffered(len: usize) -> Op {
    Op::Buffered(vec![len])
}

/// Every workload: those written for a purpose, the quick ones first, and `random` drawn ones.
pub(crate) fn all(random: u64) -> impl Iterator<Item = Workload> + Send {
    let mut first = appends();
    first.extend(crowds());
    first.extend(torn_ends());
    first.extend(full_disks());
    first.extend(slots());
    first.extend(fills());
    first.extend(spares());
    first.extend(failed_syncs());
    first.extend(failed_write_backs());
    first.extend(failed_writes());
    first.extend(remainders());
    first.extend(hold::workloads());
    let last = trims().into_iter().chain(rolls());
    first
        .into_iter()
        .chain((1..=random.min(100)).map(drawn))
        .chain(last)
        .chain((101..=random).map(drawn))
}

fn crowd(waiting: &[&[usize]], meanwhile: &[usize]) -> Op {
    let waiting = waiting.iter().map(|lens| lens.to_vec()).collect();
    Op::Crowd { waiting, meanwhile: meanwhile.to_vec() }
}

/// Groups that hold the batches of several appenders.
fn crowds() -> Vec<Workload> {
    vec![
        named(
            "crowd",
            vec![
                crowd(&[&[40], &[500, 500], &[7]], &[]),
                crowd(&[&[40], &[600]], &[30, 50]),
                crowd(&[&[1]], &[700, 700, 700, 700]),
                Op::Kill,
                crowd(&[&[40], &[600, 3]], &[30, 1200]),
            ],
        ),
        named(
            "crowd behind buffered records",
            vec![
                buffered(700),
                crowd(&[&[40]], &[30]),
                Op::Flush,
                crowd(&[&[700]], &[700, 9]),
                Op::IdleSlot,
                crowd(&[&[5, 5], &[900]], &[30, 9, 9]),
                Op::Close,
            ],
        ),
        named(
            "crowd at a roll",
            vec![
                buffered(ROOM - 2000),
                crowd(&[&[300], &[300], &[1500], &[40]], &[40, 40]),
                crowd(&[&[300]], &[40]),
            ],
        ),
        named(
            "crowd met by a failed sync",
            vec![
                synced(9),
                Op::FailSync,
                crowd(&[&[40], &[600]], &[30, 50]),
                synced(5),
                Op::Kill,
                crowd(&[&[40], &[600]], &[30, 50]),
                Op::Power,
            ],
        ),
        named(
            "crowd met by a failed write",
            vec![
                Op::FailWrite(None),
                crowd(&[&[40], &[600, 600]], &[30]),
                Op::Kill,
                Op::FailWrite(Some(700)),
                crowd(&[&[40], &[600, 600]], &[30]),
                Op::Kill,
                synced(5),
            ],
        ),
    ]
}

fn appends() -> Vec<Workload> {
    let batches = [vec![1, 2, 3], vec![0], vec![0, 0, 0], vec![600, 600, 5], vec![500, 3, 700]];
    vec![
        named("small", vec![synced(0), synced(1), synced(8), synced(480), synced(481)]),
        named("batches", batches.iter().cloned().map(Op::Synced).collect()),
        named(
            "batches buffered",
            batches.iter().cloned().map(Op::Buffered).chain([Op::Flush, Op::Sync]).collect(),
        ),
        named(
            "buffered",
            vec![
                buffered(10),
                buffered(700),
                Op::Flush,
                buffered(30),
                Op::Sync,
                buffered(900),
                Op::Flush,
                buffered(5),
            ],
        ),
        named("large", vec![synced(9000), Op::Synced(vec![5000, 1, 4000])]),
        named(
            "closed and opened",
            vec![
                Op::Close,
                synced(40),
                Op::Close,
                buffered(50),
                Op::Close,
                Op::Kill,
                synced(60),
                Op::Power,
                Op::Close,
            ],
        ),
        named(
            "idle behind what is not synced",
            vec![
                synced(40),
                buffered(700),
                Op::Flush,
                Op::IdleSlot,
                Op::Sync,
                Op::Buffered(vec![700, 700]),
                Op::Flush,
                Op::Trim(2),
                Op::IdleSlot,
            ],
        ),
        named(
            "idle",
            vec![
                buffered(30),
                Op::IdleSlot,
                Op::Flush,
                Op::IdleSlot,
                synced(40),
                Op::IdleSlot,
                buffered(700),
                Op::Flush,
                Op::IdleSlot,
                Op::IdleSlot,
                Op::Kill,
                Op::IdleSlot,
                synced(1),
            ],
        ),
    ]
}

/// A record that leaves 0, 8, 16, .. bytes at the end of the segment, then small ones.
fn remainders() -> Vec<Workload> {
    (0..=136)
        .step_by(8)
        .map(|left| {
            let fill = ROOM - 32 - left;
            named(format!("remainder {left}"), vec![buffered(fill), synced(3), synced(60)])
        })
        .collect()
}

fn rolls() -> Vec<Workload> {
    let third = ROOM / 3;
    vec![
        // Numbers and LSNs of two digits.
        named(
            "eleven segments",
            (0..10)
                .map(|_| Op::Kill)
                .chain([synced(5)])
                .chain((0..11).flat_map(|_| [synced(ROOM - 3000), Op::Kill]))
                .collect(),
        ),
        named("rolls synced", (0..4).map(|_| synced(ROOM - 400)).collect()),
        named("rolls buffered", (0..8).map(|_| buffered(third)).chain([Op::Flush]).collect()),
        named(
            "rolls between openings",
            vec![
                synced(ROOM - 100),
                synced(80),
                Op::Kill,
                synced(ROOM - 100),
                Op::Close,
                buffered(100),
                Op::Power,
                synced(100),
            ],
        ),
        named(
            "batch larger than what is left",
            vec![buffered(ROOM - 600), Op::Synced(vec![300, 300, 300]), synced(5)],
        ),
        named(
            "batch larger than a segment",
            vec![synced(5), Op::Synced(vec![ROOM / 2; 3]), synced(5)],
        ),
    ]
}

fn trims() -> Vec<Workload> {
    let fill = || synced(ROOM - 3000);
    vec![
        named(
            "trims",
            vec![
                fill(),
                fill(),
                fill(),
                Op::Trim(2),
                synced(5),
                Op::Remove,
                Op::Trim(4),
                Op::Remove,
                synced(9),
                Op::Remove,
                Op::Close,
            ],
        ),
        named(
            "trimmed to nothing",
            vec![
                synced(5),
                Op::Trim(4),
                Op::Close,
                fill(),
                fill(),
                Op::Trim(4),
                Op::Remove,
                Op::Kill,
                Op::Remove,
                synced(1),
            ],
        ),
        named(
            "trims between crashes",
            vec![
                fill(),
                fill(),
                fill(),
                fill(),
                Op::Trim(3),
                Op::Power,
                Op::Remove,
                Op::Trim(4),
                Op::Remove,
                Op::Power,
                Op::Remove,
            ],
        ),
        named(
            "trim after an opening",
            vec![fill(), fill(), Op::Power, Op::Trim(3), Op::IdleSlot, synced(3)],
        ),
        named(
            "trim of a bare tail",
            vec![Op::Kill, synced(30), synced(30), Op::Trim(2), Op::Kill, Op::Trim(4), synced(4)],
        ),
    ]
}

fn full_disks() -> Vec<Workload> {
    let fill = || synced(ROOM - 3000);
    vec![
        named(
            "disk full",
            vec![
                synced(100),
                Op::Space(Some(0)),
                fill(),
                fill(),
                synced(5),
                Op::Kill,
                synced(7),
                fill(),
                Op::Space(None),
                fill(),
                fill(),
                synced(5),
            ],
        ),
        named(
            "disk nearly full",
            (1..6)
                .flat_map(|free| {
                    [Op::Space(Some(free * 4)), fill(), buffered(9), fill(), Op::Flush]
                })
                .chain([Op::Space(None), fill()])
                .collect(),
        ),
        named(
            "trim on a full disk",
            vec![
                fill(),
                fill(),
                fill(),
                Op::Space(Some(0)),
                Op::Trim(3),
                Op::Remove,
                fill(),
                fill(),
                synced(1),
            ],
        ),
        named(
            "full from the start",
            vec![Op::Space(Some(1)), synced(5), Op::Space(None), synced(6)],
        ),
    ]
}

/// Slots beside those that are not on the disk: written by an idle log, found by an open in the
/// cache, or left there by a failed sync.
fn slots() -> Vec<Workload> {
    let idle = || vec![synced(9), synced(9), Op::IdleSlot];
    let trims = || vec![Op::Trim(2), synced(5), Op::IdleSlot, Op::Trim(4), Op::Power, synced(9)];
    let lost = |mishap: Vec<Op>| [idle(), mishap, vec![Op::Kill], trims()].concat();
    let mut all = vec![
        named("trim behind an idle slot", [idle(), trims()].concat()),
        named("slots of three processes", lost(vec![Op::Kill, Op::IdleSlot])),
        named("slot lost by a failed sync", lost(vec![Op::FailSync, Op::Trim(2)])),
        named(
            "slot that was refused",
            [idle(), vec![Op::FailWrite(None), Op::Trim(2)], trims(), trims()].concat(),
        ),
    ];
    // Whether the slot is among what was lost, the dice say.
    let written_back = (1..=4).map(|k| {
        let ops = [vec![synced(k)], lost(vec![Op::FailWriteBack])].concat();
        named(format!("slot lost by a failed write-back {k}"), ops)
    });
    all.extend(written_back);
    all
}

/// `count` steps of filling ahead.
fn steps(count: usize) -> Vec<Op> {
    vec![Op::Fill; count]
}

/// More than half of a segment, behind which a spare is made.
fn half() -> Op {
    synced(ROOM / 2 + 500)
}

/// Windows of the tail, beside a writer that stays behind them or passes them.
fn fills() -> Vec<Workload> {
    let ahead = [
        steps(2),
        vec![synced(700), half()],
        steps(7),
        vec![synced(ROOM - 900), synced(9)],
        steps(2),
        vec![buffered(3000), Op::Close, synced(5)],
    ];
    let beside = [
        steps(1),
        vec![synced(3000), synced(2000), Op::Fill],
        vec![buffered(9000), Op::Fill, Op::Flush, Op::Fill, synced(9000)],
        steps(2),
        vec![Op::Sync, Op::Kill, synced(700)],
        steps(2),
        vec![synced(20_000), Op::Fill, Op::Power, synced(9)],
    ];
    let failed = [900, 2000, 5000].map(|len| {
        let caught = vec![synced(9), buffered(len), Op::Flush, Op::FailSync, Op::Fill];
        [caught, vec![Op::Sync, synced(5), Op::Kill]].concat()
    });
    let evicted = vec![synced(700), Op::Fill, Op::FailSync, Op::Fill, Op::Evict, synced(700)];
    vec![
        named("filled ahead", ahead.concat()),
        named("filled while it is written", beside.concat()),
        named("failed sync of a filled tail", [failed.concat(), evicted].concat()),
    ]
}

/// Spares that are taken at a roll, and those that are not.
fn spares() -> Vec<Workload> {
    let half_filled = [
        vec![half()],
        steps(3),
        vec![Op::Buffered(vec![700, 700]), half(), half()],
        steps(4),
        vec![half(), Op::Kill, half(), half()],
    ];
    let ended = [
        vec![half()],
        steps(4),
        vec![Op::Power, half(), synced(9)],
        steps(4),
        vec![half(), Op::Fill, Op::Close, half()],
    ];
    let small = [
        vec![half()],
        steps(4),
        vec![Op::Synced(vec![ROOM / 2; 3]), synced(9), Op::Fill, Op::Kill, synced(9)],
    ];
    let full = [
        vec![half(), Op::Space(Some(5)), Op::Fill, Op::Fill, half(), synced(9)],
        vec![Op::Space(Some(17)), half(), half()],
        steps(3),
        vec![Op::Space(Some(0)), Op::Synced(vec![ROOM / 2; 3]), half(), half()],
        vec![Op::Space(None), half(), half()],
    ];
    let failed = [
        vec![half()],
        steps(2),
        vec![Op::FailSync, Op::Fill, half(), half()],
        steps(2),
        vec![Op::FailWrite(None), Op::Fill, half(), Op::Kill, half()],
    ];
    vec![
        named("spare half filled", half_filled.concat()),
        named("spare of a log that ends", ended.concat()),
        named("batch larger than the spare", small.concat()),
        named("spare on a full disk", full.concat()),
        named("failed fill of a spare", failed.concat()),
    ]
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn failed_syncs() -> Vec<Workload> {
    let fill = || synced(ROOM - 3000);
    vec![
        named(
            "failed sync, killed",
            vec![
                synced(9),
                buffered(2000),
                Op::FailSync,
                Op::Sync,
                synced(5),
                Op::Kill,
                synced(700),
            ],
        ),
        named(
            "failed sync, evicted",
            vec![buffered(2000), buffered(600), Op::FailSync, Op::Sync, Op::Evict, synced(700)],
        ),
        named(
            "failed sync of an append",
            vec![
                synced(9),
                Op::FailSync,
                synced(1500),
                synced(5),
                Op::Kill,
                Op::Power,
                synced(1500),
            ],
        ),
        named(
            "failed sync of a roll",
            vec![
                buffered(ROOM - 900),
                Op::FailSync,
                synced(2000),
                Op::Kill,
                synced(600),
                Op::Power,
            ],
        ),
        named(
            "failed sync of the directory",
            vec![
                fill(),
                Op::FailSyncDir,
                fill(),
                synced(5),
                Op::Kill,
                synced(600),
                fill(),
                Op::Power,
            ],
        ),
        named(
            "failed sync of a trim",
            vec![
                fill(),
                fill(),
                Op::FailSync,
                Op::Trim(3),
                Op::Remove,
                Op::Kill,
                Op::Remove,
                Op::Trim(4),
                Op::Remove,
                synced(5),
            ],
        ),
        named(
            "failed sync of a close",
            vec![synced(5), buffered(1200), Op::FailSync, Op::Close, Op::Close, synced(1200)],
        ),
    ]
}

fn failed_write_backs() -> Vec<Workload> {
    vec![
        named(
            "failed write-back",
            vec![
                synced(9),
                buffered(2000),
                Op::Flush,
                Op::FailWriteBack,
                Op::IdleSlot,
                Op::Sync,
                synced(5),
                Op::Kill,
                synced(700),
            ],
        ),
        named(
            "failed write-back behind a slot",
            vec![
                synced(9),
                Op::IdleSlot,
                buffered(600),
                Op::Flush,
                Op::FailWriteBack,
                Op::IdleSlot,
                synced(5),
                Op::IdleSlot,
                Op::Sync,
                Op::Power,
                synced(5),
            ],
        ),
        named(
            "failed write-back before a trim",
            vec![
                synced(9),
                synced(9),
                Op::IdleSlot,
                buffered(1600),
                Op::Flush,
                Op::FailWriteBack,
                Op::Trim(2),
                Op::Sync,
                Op::Power,
                synced(5),
            ],
        ),
    ]
}

fn failed_writes() -> Vec<Workload> {
    vec![
        named(
            "failed write",
            vec![
                synced(9),
                Op::FailWrite(None),
                synced(1500),
                synced(1500),
                Op::Kill,
                synced(1500),
            ],
        ),
        named(
            "refused group",
            (0..6)
                .flat_map(|_| {
                    let group = Op::Synced(vec![500, 500, 500]);
                    [synced(9), Op::FailWrite(None), group, synced(500), Op::Kill]
                })
                .collect(),
        ),
        named(
            "short write",
            [0, 1, 31, 33, 600, 1100]
                .into_iter()
                .flat_map(|n| [Op::FailWrite(Some(n)), synced(1500), synced(1500), Op::Kill])
                .collect(),
        ),
    ]
}

/// What is cut and what follows have the same shape, so that stale frames would fit exactly.
fn torn_ends() -> Vec<Workload> {
    [vec![0], vec![480], vec![700], vec![480, 480], vec![700, 700, 700], vec![2000, 0]]
        .into_iter()
        .map(|lens| {
            let b = || Op::Buffered(lens.clone());
            let ops =
                vec![b(), b(), Op::Flush, b(), Op::Flush, Op::Power, b(), Op::Flush, Op::Power];
            named(format!("torn end of {lens:?}"), ops)
        })
        .collect()
}

/// A random workload; the same for the same seed.
fn drawn(seed: u64) -> Workload {
    let mut dice = Dice::new(seed);
    let lens = [0, 1, 8, 200, 479, 481, 700, 2000, 9000, ROOM / 3, ROOM - 200];
    // Half of them use one shape, so that stale frames fit exactly.
    let fixed = (dice.below(2) == 1).then(|| lens[dice.index(8)]);
    let batch = |dice: &mut Dice| -> Vec<usize> {
        let count = [1, 1, 1, 2, 3][dice.index(5)];
        (0..count)
            .map(|_| {
                let drawn = lens[dice.index(lens.len())];
                fixed.unwrap_or(drawn)
            })
            .collect()
    };
    let steps = 4 + dice.below(8);
    let ops = (0..steps)
        .map(|_| match dice.below(59) {
            0..=8 => Op::Synced(batch(&mut dice)),
            9..=17 => Op::Buffered(batch(&mut dice)),
            18..=20 => Op::Flush,
            21..=22 => Op::Sync,
            23..=25 => Op::Trim(1 + dice.below(4)),
            26..=27 => Op::IdleSlot,
            28..=29 => Op::Close,
            30..=31 => Op::Kill,
            32 => Op::Evict,
            33..=34 => Op::Power,
            35 => Op::FailSync,
            36 => Op::FailSyncDir,
            37 => Op::FailWrite([None, Some(dice.index(3000))][dice.index(2)]),
            38 => Op::Space(Some(dice.below(30))),
            39..=42 => Op::Crowd {
                waiting: (0..=dice.below(3)).map(|_| batch(&mut dice)).collect(),
                meanwhile: (0..dice.below(5)).map(|_| lens[dice.index(7)]).collect(),
            },
            43 => Op::FailWriteBack,
            44..=46 => Op::Fill,
            47..=49 => Op::Remove,
            50 => Op::Rebuild,
            51 => Op::Hold(Hold::Retain),
            52..=53 => Op::Hold(Hold::RemoveStep),
            54 => Op::Hold(Hold::Cursor(dice.below(5))),
            55 => Op::Hold([Hold::RemoveCursor, Hold::Unpin][dice.index(2)]),
            56 => Op::Hold(Hold::Pin(dice.below(5))),
            _ => Op::Space(None),
        })
        .collect();
    Workload { name: format!("drawn {seed}"), seed, ops }
}
