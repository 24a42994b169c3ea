//! Retention of channels, and who keeps it from dropping messages.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oncelog::broadcast::{AckMode, BroadcastId, Broadcaster, Options, Request, StoreView, Verdict};
use oncelog::channel::ChannelLog;
use oncelog::testing::{CallKind, EIO, Fault, Machine, MemIo, Which};
use oncelog::{
    Clock, CreateMode, ErrorKind, HolderKind, Lsn, Options as LogOptions, Result, Retention, Store,
    StoreOptions,
};

use super::desk::{DIR, Desk, Hands, LONG, Script, request, wait};
use super::jobs;

pub(super) const SEGMENT_BYTES: u64 = 64 << 10;

fn open(
    io: &MemIo,
    hands: &Arc<Hands>,
    options: &Options,
    retention: Retention,
) -> Result<Broadcaster> {
    let clock: Arc<dyn Clock> = Arc::<Hands>::clone(hands);
    let log = LogOptions::new().segment_bytes_max(SEGMENT_BYTES).io(Arc::new(io.clone()));
    let store = StoreOptions::new().create(CreateMode::IfMissing).log(log.clock(clock));
    Broadcaster::open(Store::open(Path::new(DIR), &store.retention(retention))?, options.clone())
}

pub(super) fn desk(ack_mode: AckMode, retention: Retention) -> Desk {
    let script = Arc::new(Script::acknowledged_by(ack_mode));
    let options = Options::new().register(Arc::<Script>::clone(&script));
    let (io, hands) = (MemIo::new(Machine::new()), Arc::default());
    let broadcaster = open(&io, &hands, &options, retention).unwrap();
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    Desk { io, hands, script, options, broadcaster }
}

pub(super) fn reopened(desk: Desk, retention: Retention) -> Desk {
    let machine = desk.io.machine();
    desk.io.kill();
    drop(desk.broadcaster.close());
    let Desk { hands, script, options, .. } = desk;
    let io = MemIo::new(machine);
    let broadcaster = open(&io, &hands, &options, retention).unwrap();
    Desk { io, hands, script, options, broadcaster }
}

fn asked(key: &str) -> Request {
    let mut request = request(key, "p");
    request.payload = vec![7; 3_000];
    request
}

fn channel(desk: &Desk) -> Arc<dyn ChannelLog> {
    desk.broadcaster.jobs().channel("p0").unwrap()
}

#[test]
fn channels_keep_what_their_retention_says_and_readers_behind_it_are_told() {
    #[track_caller]
    fn check(retention: Retention, passed_ms: u64) {
        let desk = desk(AckMode::Append, retention);
        let reader = channel(&desk).read(Lsn::FIRST);
        let mut reader = reader.unwrap();
        for key in 0..60 {
            drop(desk.broadcaster.submit(&asked(&key.to_string()), None).unwrap());
            desk.hands.pass(passed_ms);
        }
        wait("nothing was dropped", || channel(&desk).oldest() > Lsn::FIRST);
        let behind = channel(&desk).read(Lsn::FIRST).unwrap_err();
        assert_eq!(behind.kind(), ErrorKind::Trimmed);
        // Segments of 64 KiB, messages of 3 KiB: what is within a segment is read to its end.
        let told = (0..200).find_map(|_| reader.next().err()).unwrap();
        assert_eq!(told.kind(), ErrorKind::Trimmed);
        assert!(told.lsn().is_some_and(|lsn| lsn > Lsn::FIRST));
        // Control is not concerned: every key answers, also when the store is opened again.
        let desk = reopened(desk, retention);
        assert!(desk.broadcaster.submit(&asked("0"), None).unwrap().duplicated);
    }
    check(Retention::new().bytes_max(2 * SEGMENT_BYTES), 0);
    check(Retention::new().segment_count_max(2), 0);
    check(Retention::new().age_ms_max(1_500), 100);
}

#[test]
fn a_retention_that_keeps_no_segment_is_refused_before_a_store_is_made() {
    let io = MemIo::new(Machine::new());
    let none = Retention::new().segment_count_max(0);
    let refused = open(&io, &Arc::default(), &Options::new(), none).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert_eq!(io.machine().digest(), Machine::new().digest());
}

fn unfinished(desk: &Desk, key: &str) -> BroadcastId {
    let begin = Instant::now();
    loop {
        let told = desk.broadcaster.submit(&asked(key), Some(Duration::from_millis(1)));
        let told = told.unwrap_err();
        if told.kind() == ErrorKind::InFlight {
            return told.broadcast_id().unwrap();
        }
        assert_eq!(told.kind(), ErrorKind::OutcomeUnknown, "{told}");
        assert!(begin.elapsed() < LONG);
    }
}

fn pins(desk: &Desk) -> Vec<(String, u64)> {
    let holders = desk.broadcaster.why_not_trimmed("p0").unwrap().into_iter();
    let pins = holders.filter(|holder| holder.kind == HolderKind::Pin);
    pins.map(|pin| (pin.name, pin.lsn.get())).collect()
}

#[test]
fn new_work_is_refused_where_unfinished_work_keeps_a_channel_at_its_limit() {
    let limit = Retention::new().bytes_max(2 * SEGMENT_BYTES);
    let desk = desk(AckMode::Consumer, limit);
    let first = unfinished(&desk, "first");
    let name = format!("broadcast {first}");
    assert_eq!(pins(&desk), [(name.clone(), 1)]);
    let mut others = Vec::new();
    let refused = loop {
        let key = others.len().to_string();
        match desk.broadcaster.submit(&asked(&key), Some(Duration::from_millis(1))) {
            Err(e) if e.kind() == ErrorKind::StoreFull => break e,
            Err(_) => others.push(unfinished(&desk, &key)),
            Ok(_) => unreachable!("nobody acknowledges"),
        }
        assert!(others.len() < 100, "it is never full");
    };
    assert!(refused.to_string().contains(&name), "{refused}");
    assert_eq!(refused.lsn(), Lsn::new(1));
    // A store that is opened again holds the same, before its retention looks.
    let desk = reopened(desk, limit);
    assert_eq!(channel(&desk).oldest(), Lsn::FIRST);
    assert_eq!(pins(&desk).len(), 1 + others.len());
    let refused = desk.broadcaster.submit(&asked("more"), None).unwrap_err();
    assert!(refused.to_string().contains(&name), "{refused}");
    // With the acks the pins are gone, and with them what the limit does not keep.
    for id in std::iter::once(first).chain(others) {
        for vchannel in ["a", "b"] {
            wait("no copy", || desk.broadcaster.ack(id, vchannel).is_ok());
        }
    }
    wait("a pin stays", || pins(&desk).is_empty());
    wait("nothing goes", || channel(&desk).oldest() > Lsn::FIRST);
    unfinished(&desk, "more");
}

#[test]
fn the_pin_of_a_broadcast_ends_with_its_acks_though_it_is_not_done() {
    let desk = desk(AckMode::Consumer, Retention::new());
    desk.script.next_retries_for_ever();
    let id = unfinished(&desk, "k");
    wait("no copy on a", || desk.broadcaster.ack(id, "a").is_ok());
    assert_eq!(pins(&desk).len(), 1, "b is not acknowledged");
    wait("no copy on b", || desk.broadcaster.ack(id, "b").is_ok());
    assert_eq!(pins(&desk), []);
    assert_eq!(desk.broadcaster.pinned("p0"), None);
}

/// The copies of a broadcast may stand although its append failed: whoever cannot read them back
/// cannot end it.
#[test]
pub(crate) fn no_retention_takes_what_unfinished_work_reads_back() {
    let desk = desk(AckMode::Consumer, Retention::new().segment_count_max(1));
    let first = unfinished(&desk, "first");
    let end = Lsn::FIRST;
    // Others go on until the segment of the first one would be dropped.
    for key in 0..40 {
        let told =
            desk.broadcaster.submit(&asked(&key.to_string()), Some(Duration::from_millis(1)));
        let told = told.unwrap_err();
        if told.kind() == ErrorKind::StoreFull {
            break;
        }
        let id = unfinished(&desk, &key.to_string());
        for vchannel in ["a", "b"] {
            wait("no copy", || desk.broadcaster.ack(id, vchannel).is_ok());
        }
    }
    let desk = reopened(desk, Retention::new().segment_count_max(1));
    // What the acceptance has read as the end is there, and with it the copies; until the acks.
    assert!(channel(&desk).read(end).is_ok());
    wait("the copies are read back", || {
        let acked = ["a", "b"].map(|vchannel| desk.broadcaster.ack(first, vchannel).is_ok());
        acked == [true; 2]
    });
    assert_eq!(desk.broadcaster.submit(&asked("first"), None).unwrap().id, first);
}

/// It stayed until the end where the append acknowledges: a callback that took long, or was tried
/// again for minutes, kept its channel at its limit, and others were refused.
#[test]
fn the_pin_of_what_the_append_acknowledges_ends_while_its_callback_runs() {
    let desk = desk(AckMode::Append, Retention::new());
    desk.script.hold();
    unfinished(&desk, "held");
    desk.script.wait_called();
    wait("the pin of a callback that runs stays", || pins(&desk).is_empty());
    assert_eq!(desk.broadcaster.pinned("p0"), None);
    desk.script.next_retries_for_ever();
    desk.script.let_go();
    unfinished(&desk, "retried");
    wait("the pin of a callback that is tried again stays", || pins(&desk).is_empty());
    desk.script.forget();
}

#[test]
fn jobs_pin_their_channels_until_they_are_over_also_when_a_store_is_opened_again() {
    let desk = jobs::desk();
    let (jobs, job) = jobs::start(&desk, "k");
    jobs.plan(jobs::plan(&jobs, job, 1)).unwrap();
    let name = format!("job {job}");
    let of_job = |desk: &Desk| pins(desk).into_iter().filter(|(pin, _)| *pin == name).count();
    assert_eq!(of_job(&desk), 1);
    let desk = desk.reopen();
    assert_eq!(of_job(&desk), 1);
    desk.broadcaster.jobs().end(job, 1, jobs::COMMIT, vec![]).unwrap();
    assert_eq!(of_job(&desk), 0);
}

/// The pins of `p0` are these, and who looks at the store from outside names the same.
#[track_caller]
fn check_told(desk: &Desk, expected: &[&str]) {
    let told = || {
        let view = StoreView::open(DIR, Arc::new(desk.io.clone())).unwrap();
        let holders = view.why_not_trimmed("p0").unwrap().into_iter();
        let pins = holders.filter(|holder| holder.kind == HolderKind::Pin);
        pins.map(|pin| (pin.name, pin.lsn.get())).collect::<Vec<_>>()
    };
    let is_so = |pins: &[(String, u64)]| pins.iter().map(|(name, _)| name).eq(expected);
    // What is let go of when a record is durable may still be held for a moment.
    let begin = Instant::now();
    while !is_so(&pins(desk)) || pins(desk) != told() {
        let both = (pins(desk), told());
        assert!(begin.elapsed() < LONG, "{both:?} are not {expected:?}");
        std::thread::yield_now();
    }
}

/// It named parked work whose acks are durable, which holds nothing: an operator skipped it to make
/// room.
#[test]
fn who_looks_at_a_store_names_the_pins_that_its_process_has_and_no_other() {
    let consumers = desk(AckMode::Consumer, Retention::new());
    check_told(&consumers, &[]);
    let first = unfinished(&consumers, "first");
    let second = unfinished(&consumers, "second");
    let names = [first, second].map(|id| format!("broadcast {id}"));
    check_told(&consumers, &[&names[0], &names[1]]);
    wait("no copy", || consumers.broadcaster.ack(first, "b").is_ok());
    check_told(&consumers, &[&names[0], &names[1]]);
    wait("no copy", || consumers.broadcaster.ack(first, "a").is_ok());
    check_told(&consumers, &[&names[1]]);
    check_told(&reopened(consumers, Retention::new()), &[&names[1]]);

    let appends = desk(AckMode::Append, Retention::new());
    appends.script.next(Verdict::Park("a person has to look".into()));
    let parked = appends.broadcaster.submit(&asked("parked"), None).unwrap_err();
    assert_eq!(parked.kind(), ErrorKind::Parked);
    check_told(&appends, &[]);
    check_told(&reopened(appends, Retention::new()), &[]);

    let desk = jobs::desk();
    let (jobs, job) = jobs::start(&desk, "k");
    check_told(&desk, &[]);
    let plan = jobs::plan(&jobs, job, 1);
    // A plan that is refused holds nothing.
    desk.io.set_free_blocks(Some(0));
    let mut large = plan.clone();
    large.detail = vec![7; 8 << 20];
    assert_eq!(jobs.plan(large).unwrap_err().kind(), ErrorKind::StoreFull);
    check_told(&desk, &[]);
    desk.io.set_free_blocks(None);
    let from = jobs.plan(plan).unwrap();
    assert_eq!(jobs.get(job).unwrap().plan.as_ref().unwrap().from, from);
    let name = format!("job {job}");
    check_told(&desk, &[&name]);
    let desk = desk.reopen();
    check_told(&desk, &[&name]);
    desk.broadcaster.jobs().end(job, 1, jobs::ABORT, vec![]).unwrap();
    check_told(&desk, &[]);
}

/// Slices that went beyond the limit kept their job from its ending, which alone would have let
/// them go: every other broadcast of the channel was refused for good.
#[test]
fn a_job_that_keeps_its_channel_beyond_the_limit_ends_and_lets_go() {
    let limit = Retention::new().bytes_max(2 * SEGMENT_BYTES);
    for (kind, is_opened_again) in
        [(jobs::COMMIT, false), (jobs::ABORT, false), (jobs::ABORT, true)]
    {
        let desk = jobs::desk();
        let mut desk = reopened(desk, limit);
        let (jobs, job) = jobs::start(&desk, "k");
        jobs.plan(jobs::plan(&jobs, job, 1)).unwrap();
        let refused = fill(&desk, job, 8 << 10);
        assert!(refused.to_string().contains(&format!("job {job}")), "{refused}");
        let other = desk.broadcaster.submit(&asked("other"), None).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::StoreFull);
        if is_opened_again {
            desk = reopened(desk, limit);
        }
        let ended = desk.broadcaster.jobs().end(job, 1, kind, vec![]).unwrap();
        assert_eq!((ended.committed, ended.mine), (kind == jobs::COMMIT, true));
        assert_eq!(pins(&desk), []);
        wait("nothing goes", || channel(&desk).oldest() > Lsn::FIRST);
        drop(desk.broadcaster.submit(&asked("other"), None).unwrap());
    }
}

/// The same on a disk that is full: room for the ending is kept from the job's acceptance on.
#[test]
fn a_job_ends_on_a_full_disk() {
    for (kind, is_opened_again) in
        [(jobs::COMMIT, false), (jobs::ABORT, false), (jobs::ABORT, true)]
    {
        let desk = jobs::desk();
        let mut desk = reopened(desk, Retention::new());
        let (jobs, job) = jobs::start(&desk, "k");
        jobs.plan(jobs::plan(&jobs, job, 1)).unwrap();
        desk.io.set_free_blocks(Some(0));
        fill(&desk, job, 8 << 10);
        // Control is full too.
        let mut state = jobs::state(job, 1);
        state.reason = "r".repeat(4_000);
        let refused = (0..1_000).find_map(|_| jobs.record(state.clone()).err());
        assert_eq!(refused.unwrap().kind(), ErrorKind::StoreFull);
        if is_opened_again {
            desk = reopened(desk, Retention::new());
            desk.io.set_free_blocks(Some(0));
        }
        let ended = desk.broadcaster.jobs().end(job, 1, kind, vec![0; 12]).unwrap();
        assert_eq!((ended.committed, ended.mine), (kind == jobs::COMMIT, true));
        assert_eq!(pins(&desk), []);
    }
}

/// Appends slices of so many bytes until there is no more room; returns the refusal.
pub(super) fn fill(desk: &Desk, job: BroadcastId, len: usize) -> oncelog::Error {
    let stamp = |row: u64| oncelog_format::message::SliceStamp {
        job,
        attempt: 1,
        file: 0,
        first_row: row,
        rows: 1,
    };
    for row in 0..10_000 {
        let message = oncelog::broadcast::SliceMessage {
            vchannel: "a".into(),
            stamp: stamp(row),
            payload: vec![7; len],
        };
        if let Err(e) = desk.broadcaster.jobs().append("p0", "Slice", &[message]) {
            assert_eq!(e.kind(), ErrorKind::StoreFull);
            return e;
        }
    }
    unreachable!("it is never full")
}

#[test]
fn control_is_held_by_the_checkpoint_that_a_restart_may_need() {
    let desk = Desk::open();
    let held = |desk: &Desk| {
        let holders = desk.broadcaster.why_control_is_not_trimmed().into_iter();
        let mut pins = holders.filter(|holder| holder.name == "checkpoint");
        pins.next().map(|pin| pin.lsn.get())
    };
    assert_eq!(held(&desk), Some(1));
    for key in ["a", "b", "c"] {
        drop(desk.submit(key, "p").unwrap());
        desk.broadcaster.checkpoint().unwrap();
    }
    assert!(held(&desk) > Some(1));
}

#[test]
fn a_channel_that_is_opened_again_is_held_as_before() {
    let desk = desk(AckMode::Consumer, Retention::new().segment_count_max(2));
    let first = unfinished(&desk, "first");
    wait("no copy", || desk.copies(first) == 2);
    let held = pins(&desk);
    desk.io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    let outgoing = oncelog::channel::Outgoing { properties: vchannel("a"), payload: b"x" };
    let failed = channel(&desk).enqueue(&[outgoing]).and_then(|pending| pending.wait());
    assert!(failed.is_err());
    channel(&desk).reopen().unwrap();
    assert_eq!(pins(&desk), held);
}

fn vchannel(name: &str) -> oncelog_format::message::Properties {
    let mut properties = oncelog_format::message::Properties::new();
    properties.set(&oncelog_format::message::Vchannel(name.into())).unwrap();
    properties
}
