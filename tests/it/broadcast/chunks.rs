//! A broadcast that is larger than its channel takes: cut into chunks, each of them once, whatever
//! is killed; and readers that see whole messages alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncelog::broadcast::{AckMode, Answer, BroadcastId, Broadcaster, Options, StoreView};
use oncelog::channel::StoredMessage;
use oncelog::testing::{Dice, EIO, ENOSPC, Fault, Machine, MemIo, Which, survivors};
use oncelog::{Clock, CreateMode, ErrorKind, Lsn, Result, Store, StoreOptions};
use oncelog_format::message::{BroadcastHeader, CHUNK_TOTAL, TimeTick, Vchannel};

use super::desk::{DIR, Hands, Script, assert_same, request, scope};

/// Largest message of a channel, in bytes: a copy of [`payload`] takes 8 chunks.
const MESSAGE_LEN_MAX: u64 = 1_000;

/// Largest record and batch of a channel's log, in bytes: a run takes several batches.
const RECORD_LEN_MAX: u32 = 1_024;
const BATCH_BYTES_MAX: u64 = 3_500;

const CHUNKS: u32 = 8;

/// Not the same in any two chunks.
fn payload() -> String {
    (0..).map(|n: u32| format!("{n:08}")).take(600).collect()
}

fn open(io: &MemIo, hands: &Arc<Hands>, script: &Arc<Script>) -> Result<Broadcaster> {
    open_with(io, hands, script, |store| store)
}

fn open_with(
    io: &MemIo,
    hands: &Arc<Hands>,
    script: &Arc<Script>,
    change: impl FnOnce(StoreOptions) -> StoreOptions,
) -> Result<Broadcaster> {
    let clock: Arc<dyn Clock> = Arc::<Hands>::clone(hands);
    let log = oncelog::Options::new()
        .record_len_max(RECORD_LEN_MAX)
        .batch_bytes_max(BATCH_BYTES_MAX)
        .segment_bytes_max(64 << 10);
    let store =
        StoreOptions::new().log(log).message_len_max(MESSAGE_LEN_MAX).create(CreateMode::IfMissing);
    let store = change(store).clock(clock).io(Arc::new(io.clone()));
    let store = Store::open(Path::new(DIR), &store)?;
    let options = Options::new().worker_count(2).register(Arc::<Script>::clone(script));
    let broadcaster = Broadcaster::open(store, options)?;
    broadcaster.ensure_vchannels(&["a".into(), "b".into()])?;
    Ok(broadcaster)
}

/// Which copy, which run, which chunk; 0 for a whole message.
type Stands = (BroadcastId, String, u64, u32);

/// How often each chunk stands.
fn chunks(broadcaster: &Broadcaster) -> BTreeMap<Stands, usize> {
    let channel = broadcaster.jobs().channel("p0").unwrap();
    let mut reader = channel.read_chunks(channel.oldest()).unwrap();
    let mut counts = BTreeMap::new();
    while let Some(stored) = reader.next().unwrap() {
        let (id, vchannel, tick) = named(&stored);
        let chunk = stored.message().unwrap().chunk().unwrap();
        let index = chunk.map_or(0, |chunk| chunk.index());
        *counts.entry((id, vchannel, tick.0, index)).or_default() += 1;
    }
    counts
}

fn named(stored: &StoredMessage) -> (BroadcastId, String, TimeTick) {
    let header = stored.property::<BroadcastHeader>().unwrap().unwrap();
    let Vchannel(vchannel) = stored.property().unwrap().unwrap();
    (header.id, vchannel, stored.property().unwrap().unwrap())
}

/// The messages from an LSN on.
fn messages(broadcaster: &Broadcaster, from: Lsn) -> Vec<StoredMessage> {
    let mut reader = broadcaster.jobs().channel("p0").unwrap().read(from).unwrap();
    std::iter::from_fn(|| reader.next().unwrap()).collect()
}

/// Each vchannel has each chunk once, and the message once, where the answer says.
#[track_caller]
fn check_once(broadcaster: &Broadcaster, answer: &Answer) {
    let expected = answer.channels.iter().flat_map(|(vchannel, position)| {
        let of = (answer.id, vchannel.clone(), position.time_tick.0);
        (0..CHUNKS).map(move |index| ((of.0, of.1.clone(), of.2, index), 1))
    });
    assert_eq!(chunks(broadcaster), expected.collect(), "not each chunk once");
    let channel = broadcaster.jobs().channel("p0").unwrap();
    let found = messages(broadcaster, channel.oldest());
    assert_eq!(found.len(), answer.channels.len(), "not each message once");
    for stored in found {
        let (id, vchannel, tick) = named(&stored);
        let position = answer.channels[&vchannel];
        assert_eq!((id, stored.lsn, tick), (answer.id, position.lsn, position.time_tick));
        check_whole(&stored);
        let again = messages(broadcaster, position.lsn);
        assert_eq!(again[0].record, stored.record, "a reader that begins where it stands");
    }
}

#[track_caller]
fn check_whole(stored: &StoredMessage) {
    assert_eq!(stored.payload().unwrap(), payload().as_bytes());
    assert_eq!(stored.message().unwrap().value(CHUNK_TOTAL), None);
}

/// What a process that may be killed leaves behind.
struct Left {
    machine: Machine,
    answer: Option<Answer>,
    effects: Vec<BroadcastId>,
    is_cut: bool,
}

/// Opens and submits; killed before the `nth` persistence point.
fn cut(machine: Machine, hands: &Arc<Hands>, nth: u64) -> Left {
    let (io, script) = (MemIo::new(machine), Arc::new(Script::default()));
    io.arm(Which::Persist, nth, 1, Fault::Stop);
    let answer = open(&io, hands, &script).and_then(|broadcaster| {
        loop {
            // A process that is gone tells nobody; here its threads go on, in vain.
            let patience = Some(Duration::from_millis(20));
            let answer = broadcaster.submit(&request("k", &payload()), patience);
            if answer.is_ok() || io.is_stopped() {
                return answer;
            }
        }
    });
    let is_cut = io.is_stopped();
    io.kill();
    Left { machine: io.machine(), answer: answer.ok(), effects: script.effects(), is_cut }
}

/// A kill, and power losses.
fn after(machine: &Machine, seed: u64) -> Vec<Machine> {
    let unsynced = machine.unsynced();
    let ways = survivors(&unsynced, 4, &mut Dice::new(seed));
    let mut machines = vec![machine.clone(), machine.power_loss(&unsynced, &[])];
    machines.extend(ways.iter().map(|way| machine.power_loss(&unsynced, way)));
    machines
}

/// Asks again on what is left; whether a run had been begun and was not whole.
fn check_left(
    machine: Machine,
    hands: &Arc<Hands>,
    told: Option<&Answer>,
    before: &[BroadcastId],
) -> bool {
    let was_begun = is_begun(&machine);
    let script = Arc::new(Script::default());
    let io = MemIo::new(machine);
    let broadcaster = open(&io, hands, &script).unwrap();
    let answer = broadcaster.submit(&request("k", &payload()), None).unwrap();
    if let Some(told) = told {
        assert!(answer.duplicated, "an answer was given and is forgotten");
        assert_same(told, &answer);
    }
    check_once(&broadcaster, &answer);
    let mut effects = script.effects();
    effects.extend(before);
    effects.sort();
    effects.dedup();
    assert_eq!(effects, [answer.id], "not one effect");
    broadcaster.close().unwrap();
    was_begun
}

/// Whether some chunks of a copy stand, and not all.
fn is_begun(machine: &Machine) -> bool {
    let view = StoreView::open(DIR, Arc::new(MemIo::new(machine.clone())));
    let Ok(channel) = view.and_then(|view| view.channel("p0")) else { return false };
    let mut reader = channel.reader(None).unwrap();
    let mut count = 0;
    while reader.next().unwrap().is_some() {
        count += 1;
    }
    count % CHUNKS != 0
}

#[test]
pub(crate) fn a_broadcast_in_chunks_killed_at_any_point_gives_each_vchannel_each_chunk_once() {
    let hands = Arc::new(Hands::default());
    let (mut cases, mut begun) = (0, 0);
    for nth in 1.. {
        let left = cut(Machine::new(), &hands, nth);
        for machine in after(&left.machine, nth) {
            let was_begun = check_left(machine, &hands, left.answer.as_ref(), &left.effects);
            begun += usize::from(was_begun);
            cases += 1;
        }
        if !left.is_cut {
            break;
        }
    }
    assert!(cases > 100 && begun > 10, "only {cases} cases, {begun} of them within a run");
}

#[test]
pub(crate) fn a_recovery_of_chunks_that_is_killed_goes_on_where_it_was() {
    let hands = Arc::new(Hands::default());
    let begun = (1..).map(|nth| cut(Machine::new(), &hands, nth)).find(|left| {
        assert!(left.is_cut, "no run was cut");
        is_begun(&left.machine)
    });
    let first = begun.unwrap();
    for nth in 1.. {
        let second = cut(first.machine.clone(), &hands, nth);
        let told = first.answer.as_ref().or(second.answer.as_ref());
        let before = [first.effects.clone(), second.effects.clone()].concat();
        for machine in after(&second.machine, nth).into_iter().take(3) {
            check_left(machine, &hands, told, &before);
        }
        if !second.is_cut {
            break;
        }
    }
}

#[test]
fn a_batch_of_chunks_that_fails_is_found_out_and_the_rest_is_sent() {
    let hands = Arc::new(Hands::default());
    for fault in [EIO, ENOSPC] {
        for nth in 1.. {
            let (io, script) = (MemIo::new(Machine::new()), Arc::new(Script::default()));
            let made = open(&io, &hands, &script).unwrap();
            io.arm(Which::Persist, nth, 1, Fault::Error(fault));
            let answer = made.submit(&request("k", &payload()), None);
            let struck = io.struck() > 0;
            drop(made);
            io.kill();
            check_left(io.machine(), &hands, answer.as_ref().ok(), &script.effects());
            if !struck {
                break;
            }
        }
    }
}

#[test]
fn a_run_that_was_begun_is_cut_as_it_was_whatever_the_channel_takes_by_then() {
    let hands = Arc::new(Hands::default());
    let begun = (1..).map(|nth| cut(Machine::new(), &hands, nth).machine).find(is_begun);
    let (io, script) = (MemIo::new(begun.unwrap()), Arc::new(Script::default()));
    let wider = |store: StoreOptions| {
        let log = oncelog::Options::new().segment_bytes_max(64 << 10);
        store.log(log).message_len_max(1 << 20)
    };
    let broadcaster = open_with(&io, &hands, &script, wider).unwrap();
    let answer = broadcaster.submit(&request("k", &payload()), None).unwrap();
    // The other copy may have been sent whole by now.
    let position = answer.channels["a"];
    let of_a: Vec<_> = chunks(&broadcaster).into_iter().filter(|(of, _)| of.1 == "a").collect();
    let expect = (0..CHUNKS).map(|index| {
        let of = (answer.id, "a".to_owned(), position.time_tick.0, index);
        (of, 1)
    });
    assert_eq!(of_a, expect.collect::<Vec<_>>());
    for stored in messages(&broadcaster, Lsn::FIRST) {
        check_whole(&stored);
    }
}

/// What was accepted is sent under lower limits too: as it was begun, or as few chunks as it ever
/// took. A store whose limits were below it did not open, or parked it for ever.
#[test]
fn what_was_accepted_is_ended_whatever_less_a_channel_takes_by_then() {
    type Change = fn(StoreOptions) -> StoreOptions;
    let lowered: [Change; 3] = [
        |store| store.message_len_max(500),
        // Less than the properties alone.
        |store| store.message_len_max(50),
        |store| {
            let log = oncelog::Options::new().record_len_max(400).batch_bytes_max(600);
            store.log(log.segment_bytes_max(64 << 10)).message_len_max(300)
        },
    ];
    for change in lowered {
        let (hands, mut begun) = (Arc::new(Hands::default()), 0);
        for nth in 1.. {
            let left = cut(Machine::new(), &hands, nth);
            let (io, script) = (MemIo::new(left.machine.clone()), Arc::new(Script::default()));
            let broadcaster = open_with(&io, &hands, &script, change);
            let broadcaster = match broadcaster {
                Ok(broadcaster) => broadcaster,
                Err(e) => panic!("killed at {nth}: {e}"),
            };
            let is_known = broadcaster.read(|state, _| state.owner(&scope("k")).is_some());
            if is_known {
                begun += 1;
                let answer = broadcaster.submit(&request("k", &payload()), None);
                let answer = answer.unwrap_or_else(|e| panic!("killed at {nth}: {e}"));
                let channel = broadcaster.jobs().channel("p0").unwrap();
                let found = messages(&broadcaster, channel.oldest());
                assert_eq!(found.len(), answer.channels.len(), "not each message once");
                found.iter().for_each(check_whole);
            }
            if !left.is_cut {
                break;
            }
        }
        assert!(begun > 5, "{begun} were accepted");
    }
}

#[test]
fn what_fits_is_sent_whole_and_what_is_larger_in_chunks_that_fit() {
    let (io, hands, script) = (MemIo::default(), Arc::default(), Arc::new(Script::default()));
    let broadcaster = open(&io, &hands, &script).unwrap();
    let mut seen = Vec::new();
    for len in [0, 1, 500, 600, 650, 700, 750, 800, 900, 1_000, 2_000, 20_000] {
        let payload = "x".repeat(len);
        let key = format!("k{len}");
        let answer = broadcaster.submit(&request(&key, &payload), None).unwrap();
        let from = answer.channels["a"].lsn;
        let stored = messages(&broadcaster, from).remove(0);
        assert_eq!(stored.payload().unwrap(), payload.as_bytes());
        let total = chunks(&broadcaster).keys().filter(|of| of.0 == answer.id).count() / 2;
        seen.push(total);
    }
    assert!(
        seen.is_sorted() && seen.starts_with(&[1, 1, 1]) && seen.ends_with(&[4, 31]),
        "{seen:?}"
    );
    assert!(seen.contains(&2));
    let channel = broadcaster.jobs().channel("p0").unwrap();
    let mut reader = channel.read_chunks(Lsn::FIRST).unwrap();
    while let Some(stored) = reader.next().unwrap() {
        assert!(stored.record.len() as u64 <= MESSAGE_LEN_MAX);
    }
}

#[test]
fn a_broadcast_that_no_number_of_chunks_carries_is_refused_and_consumes_nothing() {
    let (io, hands, script) = (MemIo::default(), Arc::default(), Arc::new(Script::default()));
    let broadcaster = open(&io, &hands, &script).unwrap();
    // The properties alone are more than the channel takes.
    let mut long = request("k", &payload());
    long.properties.insert("long".into(), vec![0; 1_000]);
    assert_eq!(broadcaster.submit(&long, None).unwrap_err().kind(), ErrorKind::Limit);
    // No room for what the channel stamps.
    let mut many = request("k", &payload());
    many.properties = (0..250).map(|n| (format!("{n}"), Vec::new())).collect();
    let refused = broadcaster.submit(&many, None).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::InvalidInput | ErrorKind::Limit), "{refused}");
    assert!(!broadcaster.submit(&request("k", &payload()), None).unwrap().duplicated);
}

#[test]
fn a_consumer_acknowledges_the_run_as_a_whole_where_its_last_chunk_stands() {
    let script = Arc::new(Script::acknowledged_by(AckMode::Consumer));
    let (io, hands) = (MemIo::default(), Arc::new(Hands::default()));
    let broadcaster = open(&io, &hands, &script).unwrap();
    let soon = Some(Duration::from_millis(50));
    let waiting = broadcaster.submit(&request("k", &payload()), soon).unwrap_err();
    assert!(matches!(waiting.kind(), ErrorKind::InFlight | ErrorKind::OutcomeUnknown), "{waiting}");
    let channel = broadcaster.jobs().channel("p0").unwrap();
    let mut reader = channel.read(Lsn::FIRST).unwrap();
    let mut taken = BTreeMap::new();
    while taken.len() < 2 {
        let Some(stored) = reader.next().unwrap() else {
            assert!(reader.wait(Duration::from_secs(10)).unwrap());
            continue;
        };
        let (id, vchannel, tick) = named(&stored);
        // The copy may be seen before this process knows that it stands.
        while let Err(e) = broadcaster.ack(id, &vchannel) {
            assert_eq!(e.kind(), ErrorKind::InFlight);
            std::thread::yield_now();
        }
        taken.insert(vchannel, (stored.lsn, tick));
    }
    let answer = broadcaster.submit(&request("k", &payload()), None).unwrap();
    let told = answer.channels.iter().map(|(name, at)| (name.clone(), (at.lsn, at.time_tick)));
    assert_eq!(told.collect::<BTreeMap<_, _>>(), taken);
    check_once(&broadcaster, &answer);
}
