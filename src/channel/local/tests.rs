//! Tests of a local channel, on files in memory.

use std::thread;

use oncelog_format::message::{
    AckMode, BroadcastHeader, BroadcastId, Chunk, MESSAGE_VERSION, Properties, Vchannel, Version,
};

use super::*;
use crate::channel::VchannelReader;
use crate::clock::ClockLimits;
use crate::testing::{CallKind, Dice, EIO, Fault, MemIo, Which, survivors};

const DIR: &str = "/p0";
const START: u64 = 1_700_000_000_000;
const LONG: Duration = Duration::from_secs(60);

/// Stands still.
#[derive(Debug)]
struct Stopped(u64);

impl Clock for Stopped {
    fn wall_ms(&self) -> u64 {
        self.0
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

fn options(io: &MemIo) -> Options {
    Options::new()
        .create(CreateMode::IfMissing)
        .io(Arc::new(io.clone()))
        .segment_bytes_max(64 << 10)
        .background(false)
}

fn open_at(io: &MemIo, wall_ms: u64) -> LocalChannel {
    let time = Arc::new(LogTime::new(Arc::new(Stopped(wall_ms)), ClockLimits::new()));
    time.start(None);
    LocalChannel::open(Path::new(DIR), &options(io), time).unwrap().0
}

fn open(io: &MemIo) -> LocalChannel {
    open_at(io, START)
}

fn message<'a>(vchannel: &str, payload: &'a [u8]) -> Outgoing<'a> {
    let mut properties = Properties::new();
    properties.set(&Vchannel(vchannel.to_owned())).unwrap();
    Outgoing { properties, payload }
}

fn append(channel: &LocalChannel, messages: &[Outgoing<'_>]) -> Vec<Position> {
    channel.enqueue(messages).unwrap().wait().unwrap()
}

fn payloads(reader: &mut dyn MessageReader) -> Vec<Vec<u8>> {
    let next = || reader.next().unwrap().map(|stored| stored.payload().unwrap().to_vec());
    std::iter::from_fn(next).collect()
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn messages_come_back_with_their_stamps() {
    let channel = open(&MemIo::default());
    assert_eq!((channel.end(), channel.oldest()), (Lsn::FIRST, Lsn::FIRST));
    let first = append(&channel, &[message("a", b"one"), message("b", b"two")]);
    let second = append(&channel, &[message("a", b"three")]);
    let mut reader = channel.read(Lsn::FIRST).unwrap();
    for (position, vchannel, confirmed) in
        [(first[0], "a", 0), (first[1], "b", 0), (second[0], "a", 2)]
    {
        let stored = reader.next().unwrap().unwrap();
        assert_eq!(stored.lsn, position.lsn);
        assert_eq!(stored.property().unwrap(), Some(position.time_tick));
        assert_eq!(stored.property().unwrap(), Some(Vchannel(vchannel.into())));
        assert_eq!(stored.property().unwrap(), Some(LastConfirmed(confirmed)));
        assert_eq!(stored.property().unwrap(), Some(Version(MESSAGE_VERSION)));
        assert!(position.time_tick.ms() <= stored.time_ms);
    }
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.next_lsn(), channel.end());
}

#[test]
fn time_ticks_ascend_also_over_a_reopen_with_a_clock_set_back() {
    let io = MemIo::default();
    let mut last = TimeTick(0);
    for wall_ms in [START, START - 1_000, START + 5, 0] {
        let channel = open_at(&io, wall_ms);
        for _ in 0..3 {
            for position in append(&channel, &[message("a", b""), message("b", b"")]) {
                assert!(position.time_tick > last);
                last = position.time_tick;
            }
        }
        channel.close().unwrap();
    }
    assert_eq!(last.ms(), START + 5);
}

#[test]
fn a_reader_of_one_vchannel_sees_its_messages_alone() {
    let channel = open(&MemIo::default());
    append(&channel, &[message("a", b"1"), message("ab", b"2"), message("a", b"3")]);
    append(&channel, &[message("b", b"4"), message("a", b"5")]);
    for (vchannel, expected) in
        [("a", vec![b"1", b"3", b"5"]), ("ab", vec![b"2"]), ("b", vec![b"4"]), ("c", vec![])]
    {
        let all = channel.read(Lsn::FIRST).unwrap();
        assert_eq!(payloads(&mut VchannelReader::new(all, vchannel)), expected, "{vchannel}");
    }
}

#[test]
fn a_message_without_a_vchannel_and_an_empty_batch_are_refused() {
    let channel = open(&MemIo::default());
    let nobody = Outgoing { properties: Properties::new(), payload: b"" };
    assert_eq!(kind(channel.enqueue(&[message("a", b""), nobody])), ErrorKind::InvalidInput);
    assert_eq!(kind(channel.enqueue(&[])), ErrorKind::InvalidInput);
    assert_eq!(channel.end(), Lsn::FIRST);
    let long = vec![0; usize::try_from(channel.limits().message_len_max).unwrap() + 1];
    assert_eq!(kind(channel.enqueue(&[message("a", &long)])), ErrorKind::Limit);
    append(&channel, &[message("a", b"")]);
    assert_eq!(channel.end().get(), 2);
}

#[test]
fn a_follower_is_told_of_what_becomes_durable() {
    let io = MemIo::default();
    let channel = Arc::new(open(&io));
    append(&channel, &[message("a", b"1")]);
    let mut reader = channel.read(channel.end()).unwrap();
    assert!(!reader.wait(Duration::ZERO).unwrap());
    let follower = thread::spawn(move || {
        assert!(reader.wait(LONG).unwrap());
        payloads(&mut *reader)
    });
    append(&channel, &[message("a", b"2"), message("b", b"3")]);
    assert_eq!(follower.join().unwrap(), [b"2", b"3"]);
}

#[test]
fn nothing_is_read_before_it_is_durable() {
    let channel = open(&MemIo::default());
    let pending = channel.enqueue(&[message("a", b"1")]).unwrap();
    let mut reader = channel.read(Lsn::FIRST).unwrap();
    assert_eq!(channel.end(), Lsn::FIRST);
    assert!(payloads(&mut *reader).is_empty());
    pending.wait().unwrap();
    assert_eq!(payloads(&mut *reader), [b"1"]);
}

#[test]
fn after_a_failed_sync_only_a_reopen_tells_what_stands() {
    let io = MemIo::default();
    let channel = open(&io);
    let before = append(&channel, &[message("a", b"1")]);
    let mut old = channel.read(Lsn::FIRST).unwrap();
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    let pending = channel.enqueue(&[message("a", b"2")]).unwrap();
    assert_eq!(kind(pending.wait()), ErrorKind::OutcomeUnknown);
    let end = channel.end();
    assert_eq!(end, before[0].lsn.next());
    assert_eq!(kind(channel.enqueue(&[message("a", b"3")])), ErrorKind::Poisoned);
    assert_eq!(kind(channel.read(Lsn::FIRST)), ErrorKind::Poisoned);
    channel.reopen().unwrap();
    assert!(channel.end() >= end);
    assert_eq!(kind(old.next()), ErrorKind::Closed);
    let mut reader = channel.read(Lsn::FIRST).unwrap();
    let mut expected = payloads(&mut *reader);
    assert!(expected.starts_with(&[b"1".to_vec()]));
    let after = append(&channel, &[message("a", b"4")]);
    // The lost batch's tick, if it was lost, is not given again.
    assert!(after[0].time_tick.0 > before[0].time_tick.0 + 1);
    expected.push(b"4".to_vec());
    assert_eq!(payloads(&mut *channel.read(Lsn::FIRST).unwrap()), expected);
    // Without a failure a reopen does nothing, and readers go on.
    channel.reopen().unwrap();
    assert!(reader.next().unwrap().is_some());
}

/// The log behind a reopen is another one: its counters begin at zero.
#[test]
fn a_channel_goes_on_counting_over_a_reopen() {
    let io = MemIo::default();
    let channel = open(&io);
    let stats = || channel.stats().unwrap();
    append(&channel, &[message("a", b"1"), message("a", b"2")]);
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    let lost = channel.enqueue(&[message("a", b"3")]).unwrap();
    assert_eq!(kind(lost.wait()), ErrorKind::OutcomeUnknown);
    let before = stats();
    assert_eq!((before.record_count, before.poisonings, before.poisoned), (3, 1, true));
    channel.reopen().unwrap();
    assert_eq!((stats().record_count, stats().poisonings, stats().poisoned), (3, 1, false));
    assert_eq!(stats().sync_latency, before.sync_latency);
    append(&channel, &[message("a", b"4")]);
    let after = stats();
    assert_eq!((after.record_count, after.batch_count, after.bytes > before.bytes), (4, 3, true));
    assert_eq!(after.group_records.count(), 3);
}

#[test]
fn a_reopen_that_fails_may_be_tried_again() {
    let io = MemIo::default();
    let channel = open(&io);
    append(&channel, &[message("a", b"1")]);
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    assert!(channel.enqueue(&[message("a", b"2")]).unwrap().wait().is_err());
    io.arm(Which::Kind(CallKind::Open), 1, 1, Fault::Error(EIO));
    assert_eq!(kind(channel.reopen()), ErrorKind::Io);
    assert_eq!(kind(channel.read(Lsn::FIRST)), ErrorKind::Poisoned);
    channel.reopen().unwrap();
    assert_eq!(append(&channel, &[message("a", b"3")]).len(), 1);
}

#[test]
fn a_trim_keeps_the_newest_message_and_its_tick() {
    let io = MemIo::default();
    let channel = open(&io);
    let body = vec![7; 20 << 10];
    let mut last = None;
    for _ in 0..12 {
        last = append(&channel, &[message("a", &body)]).pop();
    }
    let last = last.unwrap();
    channel.trim(channel.end()).unwrap();
    assert_eq!(channel.oldest(), last.lsn);
    let trimmed = channel.read(Lsn::FIRST).unwrap_err();
    assert_eq!((trimmed.kind(), trimmed.lsn()), (ErrorKind::Trimmed, Some(last.lsn)));
    assert_eq!(payloads(&mut *channel.read(last.lsn).unwrap()).len(), 1);
    // Below what is gone already: nothing to do.
    channel.trim(Lsn::FIRST).unwrap();
    channel.close().unwrap();
    let channel = open_at(&io, 0);
    assert_eq!(channel.oldest(), last.lsn);
    assert!(append(&channel, &[message("a", b"")])[0].time_tick > last.time_tick);
}

#[test]
fn an_empty_channel_may_be_trimmed() {
    let channel = open(&MemIo::default());
    channel.trim(channel.end()).unwrap();
    assert_eq!(append(&channel, &[message("a", b"")])[0].lsn, Lsn::FIRST);
}

#[test]
fn a_closed_channel_answers_closed_and_frees_its_directory() {
    let io = MemIo::default();
    let channel = open(&io);
    append(&channel, &[message("a", b"1")]);
    let mut reader = channel.read(Lsn::FIRST).unwrap();
    channel.close().unwrap();
    assert_eq!(kind(channel.enqueue(&[message("a", b"")])), ErrorKind::Closed);
    assert_eq!(kind(channel.read(Lsn::FIRST)), ErrorKind::Closed);
    assert_eq!(kind(channel.trim(Lsn::FIRST)), ErrorKind::Closed);
    assert_eq!(kind(channel.reopen()), ErrorKind::Closed);
    assert_eq!(kind(channel.close()), ErrorKind::Closed);
    assert_eq!(kind(reader.next()), ErrorKind::Closed);
    assert_eq!(payloads(&mut *open(&io).read(Lsn::FIRST).unwrap()), [b"1"]);
}

#[test]
fn ticks_ascend_by_lsn_when_many_threads_append() {
    let channel = Arc::new(open(&MemIo::default()));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let channel = Arc::clone(&channel);
            thread::spawn(move || {
                for _ in 0..25 {
                    append(&channel, &[message("a", b"x"), message("b", b"y")]);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let mut reader = channel.read(Lsn::FIRST).unwrap();
    let mut last = TimeTick(0);
    for _ in 0..200 {
        let tick = reader.next().unwrap().unwrap().property::<TimeTick>().unwrap().unwrap();
        assert!(tick > last);
        last = tick;
    }
}

/// What a caller knows when its process ends.
#[derive(Debug, Default)]
struct Known {
    /// Positions and payloads of what was acknowledged.
    acked: Vec<(Position, Vec<u8>)>,
    /// Payloads of every batch that was handed over, in order.
    batches: Vec<Vec<Vec<u8>>>,
}

/// Batches of one to three messages, rolls and trims, until the process ends.
fn work(io: &MemIo, known: &mut Known) -> Result<()> {
    let time = Arc::new(LogTime::new(Arc::new(Stopped(START)), ClockLimits::new()));
    time.start(None);
    let channel = LocalChannel::open(Path::new(DIR), &options(io), time)?.0;
    for batch in 0..9_u8 {
        let body = |i: u8| [vec![batch, i], vec![batch; 9 << 10]].concat();
        let bodies: Vec<_> = (0..=batch % 3).map(body).collect();
        let messages: Vec<_> = bodies.iter().map(|body| message("a", body)).collect();
        let pending = channel.enqueue(&messages)?;
        known.batches.push(bodies.clone());
        known.acked.extend(pending.wait()?.into_iter().zip(bodies));
        if batch == 6 {
            channel.trim(channel.end())?;
        }
    }
    channel.close()
}

#[track_caller]
fn check_crash(io: &MemIo, known: &Known) {
    let channel = open_at(io, 0);
    let mut reader = channel.read(channel.oldest()).unwrap();
    let mut found = Vec::new();
    while let Some(stored) = reader.next().unwrap() {
        let tick: TimeTick = stored.property().unwrap().unwrap();
        found.push((Position::new(stored.lsn, tick), stored.payload().unwrap().to_vec()));
    }
    let oldest = channel.oldest();
    for acked in known.acked.iter().filter(|(position, _)| position.lsn >= oldest) {
        assert!(found.contains(acked), "an acknowledged message is gone: {:?}", acked.0);
    }
    // Nothing but whole batches, in the order in which they were handed over.
    let submitted = known.batches.iter().flatten();
    let kept = usize::try_from(channel.end().get() - 1).unwrap();
    let expected: Vec<_> = submitted.take(kept).skip(kept - found.len()).collect();
    assert!(found.iter().map(|(_, payload)| payload).eq(expected));
    let ends = known.batches.iter().scan(0, |end, batch| {
        *end += batch.len();
        Some(*end)
    });
    assert!(kept == 0 || ends.into_iter().any(|end| end == kept), "a batch is there in part");
    assert!(found.is_sorted_by(|a, b| a.0.time_tick < b.0.time_tick));
    let next = append(&channel, &[message("a", b"next")])[0];
    let ticks = found.iter().chain(&known.acked).map(|(position, _)| position.time_tick);
    assert!(ticks.max().is_none_or(|last| last < next.time_tick));
}

#[test]
fn a_power_loss_at_any_point_keeps_what_was_acknowledged_and_ticks_ascend() {
    let mut dice = Dice::new(7);
    for stop in 1.. {
        let io = MemIo::default();
        let mut known = Known::default();
        io.arm(Which::Persist, stop, 1, Fault::Stop);
        if work(&io, &mut known).is_ok() {
            assert!(stop > 40, "the work has more persistence points than that");
            return;
        }
        let machine = io.machine();
        check_crash(&MemIo::new(machine.clone()), &known);
        let unsynced = machine.unsynced();
        for left in survivors(&unsynced, 6, &mut dice) {
            check_crash(&MemIo::new(machine.power_loss(&unsynced, &left)), &known);
        }
    }
}

/// It answered `Closed` from the first attempt to open it again on, and nobody opened it any more.
#[test]
fn a_channel_that_cannot_be_opened_again_says_why_and_can_be_later() {
    let io = MemIo::new(crate::testing::Machine::new());
    let channel = open(&io);
    append(&channel, &[message("a", b"1")]);
    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    assert!(channel.enqueue(&[message("a", b"2")]).unwrap().wait().is_err());
    io.arm(Which::Kind(CallKind::List), 1, u64::MAX / 2, Fault::Error(EIO));
    assert_eq!(kind(channel.reopen()), ErrorKind::Io);
    let refused = channel.enqueue(&[message("a", b"3")]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Poisoned);
    let first = std::iter::successors(std::error::Error::source(&refused), |e| e.source()).last();
    assert!(first.is_some_and(|e| e.to_string().contains("os error 5")), "{refused:?}");
    assert_eq!(kind(channel.read(channel.end())), ErrorKind::Poisoned);
    assert_eq!(kind(channel.reopen()), ErrorKind::Io);
    io.disarm();
    channel.reopen().unwrap();
    append(&channel, &[message("a", b"4")]);

    io.arm(Which::Kind(CallKind::Sync), 1, 1, Fault::Error(EIO));
    assert!(channel.enqueue(&[message("a", b"5")]).unwrap().wait().is_err());
    io.arm(Which::Kind(CallKind::List), 1, u64::MAX / 2, Fault::Error(EIO));
    assert_eq!(kind(channel.reopen()), ErrorKind::Io);
    assert_eq!(kind(channel.close()), ErrorKind::Poisoned);
    assert_eq!(kind(channel.close()), ErrorKind::Closed);
}

/// A chunk of a broadcast of two; of one in an earlier batch, the tick of that.
fn chunk(id: u64, index: u32, of: Option<TimeTick>, payload: &[u8]) -> Outgoing<'_> {
    chunk_of(id, (index, 2), of, payload)
}

fn chunk_of(
    id: u64,
    (index, total): (u32, u32),
    of: Option<TimeTick>,
    payload: &[u8],
) -> Outgoing<'_> {
    let mut message = message("a", payload);
    let header = BroadcastHeader {
        id: BroadcastId(id),
        vchannels: vec!["a".into()],
        resources: Vec::new(),
        ack: AckMode::Append,
    };
    message.properties.set(&header).unwrap();
    message.properties.set_chunk(Chunk::new(index, total).unwrap()).unwrap();
    if let Some(of) = of {
        message.properties.set(&of).unwrap();
    }
    message
}

#[test]
fn the_chunks_of_a_run_have_one_tick_in_whatever_batch_they_come() {
    let channel = open(&MemIo::default());
    let one = append(&channel, &[chunk(1, 0, None, b"1a"), chunk(1, 1, None, b"1b")]);
    assert_eq!(one[0].time_tick, one[1].time_tick);
    let two = append(&channel, &[chunk(2, 0, None, b"2a"), message("a", b"x")]);
    assert!(one[1].time_tick < two[0].time_tick && two[0].time_tick < two[1].time_tick);
    let late = append(&channel, &[chunk(2, 1, Some(two[0].time_tick), b"2b"), message("a", b"y")]);
    assert_eq!(late[0].time_tick, two[0].time_tick);
    assert!(late[1].time_tick > two[1].time_tick);
    let whole = [b"1a1b".as_slice(), b"x", b"2a2b", b"y"];
    assert_eq!(payloads(&mut *channel.read(Lsn::FIRST).unwrap()), whole);
    assert_eq!(payloads(&mut *channel.read(late[0].lsn).unwrap()), whole[2..]);
    let apart = [b"2b".as_slice(), b"y"];
    assert_eq!(payloads(&mut *channel.read_chunks(late[0].lsn).unwrap()), apart);
}

#[test]
fn a_chunk_of_no_run_is_refused_and_so_is_what_is_longer_than_the_channel_takes() {
    let channel = open(&MemIo::default());
    let alone = channel.enqueue(&[chunk(1, 1, None, b"")]);
    assert_eq!(kind(alone), ErrorKind::InvalidInput);
    let ahead = channel.enqueue(&[chunk(1, 1, Some(TimeTick(u64::MAX)), b"")]);
    assert_eq!(kind(ahead), ErrorKind::InvalidInput);
    let mut half = message("a", b"");
    half.properties.set_value("_ci", vec![0; 4]).unwrap();
    assert_eq!(kind(channel.enqueue(&[half])), ErrorKind::InvalidInput);
    assert_eq!(channel.end(), Lsn::FIRST);
    let narrow = channel.message_len_max(200);
    assert_eq!(narrow.limits().message_len_max, 200);
    append(&narrow, &[message("a", &[7; 100])]);
    assert_eq!(kind(narrow.enqueue(&[message("a", &[7; 200])])), ErrorKind::Limit);
}

/// The newest message told the last tick, and a late chunk told an old one.
#[test]
fn ticks_ascend_over_a_reopen_and_a_trim_behind_a_late_chunk() {
    let io = MemIo::default();
    let channel = open(&io);
    let body = vec![7; 30 << 10];
    let first = append(&channel, &[chunk(1, 0, None, &body)])[0];
    let mut last = first.time_tick;
    for _ in 0..5 {
        last = last.max(append(&channel, &[message("a", &body)])[0].time_tick);
    }
    append(&channel, &[chunk(1, 1, Some(first.time_tick), &body)]);
    append(&channel, &[chunk(1, 1, Some(first.time_tick), &body)]);
    channel.trim(channel.end()).unwrap();
    assert!(channel.oldest() > first.lsn);
    channel.close().unwrap();
    // A clock that stands still: nothing but the messages tells the last tick.
    let channel = open_at(&io, START);
    let next = append(&channel, &[message("a", b"")])[0];
    assert_eq!(Some(next.time_tick), last.next(START));
    // What is left of the run is not whole, and that is said, once.
    let mut reader = channel.read(channel.oldest()).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().payload().unwrap(), body);
    let gone = reader.next().unwrap_err();
    let behind = reader.next_lsn();
    assert_eq!((gone.kind(), gone.lsn()), (ErrorKind::Trimmed, Some(behind)));
    assert_eq!(payloads(&mut *reader), [b""]);
    // Whoever begins again where the error says comes to the end.
    assert_eq!(kind(channel.read(behind).unwrap().next()), ErrorKind::Trimmed);
    assert_eq!(payloads(&mut *channel.read(behind.next()).unwrap()), [b""]);
}

#[test]
fn a_reader_that_could_not_look_back_is_handed_the_message_when_it_asks_again() {
    let io = MemIo::default();
    let channel = open(&io);
    let begun = append(&channel, &[chunk(1, 0, None, b"a")])[0];
    append(&channel, &[message("a", b"x")]);
    let late = append(&channel, &[chunk(1, 1, Some(begun.time_tick), b"b")])[0];
    let inner = channel.read_chunks(late.lsn).unwrap();
    let mut reader =
        WholeReader::new(inner, Box::new(Failing { times: 1, log: channel.open_log().unwrap() }));
    assert_eq!(kind(reader.next()), ErrorKind::Io);
    assert_eq!(reader.next_lsn(), late.lsn);
    assert!(reader.wait(Duration::ZERO).unwrap());
    assert_eq!(payloads(&mut reader), [b"ab"]);
    assert_eq!(reader.next_lsn(), late.lsn.next());
}

/// Fails before it reads.
#[derive(Debug)]
struct Failing {
    times: usize,
    log: Log,
}

impl crate::channel::Earlier for Failing {
    fn oldest(&self) -> Lsn {
        self.log.oldest_lsn()
    }

    fn begin(&mut self, tick: TimeTick) -> Result<Lsn> {
        crate::channel::Earlier::begin(&mut self.log, tick)
    }

    fn each(
        &mut self,
        from: Lsn,
        below: Lsn,
        see: &mut dyn FnMut(Lsn, &bytes::Bytes) -> Result<()>,
    ) -> Result<()> {
        if self.times > 0 {
            self.times -= 1;
            return Err(Error::new(ErrorKind::Io, "scripted"));
        }
        self.log.each(from, below, see)
    }
}

/// Retention kept the newest record, which may be a late chunk, and dropped the message with the
/// newest tick: behind a reopen ticks went back.
#[test]
fn ticks_ascend_over_a_reopen_behind_a_retention_that_keeps_late_chunks() {
    let io = MemIo::default();
    let least = crate::log::Retention::new().segment_count_max(1);
    let open_at = |wall_ms| {
        let time = Arc::new(LogTime::new(Arc::new(Stopped(wall_ms)), ClockLimits::new()));
        time.start(None);
        let options = options(&io).resting_retention(least);
        let channel = LocalChannel::open(Path::new(DIR), &options, time).unwrap().0;
        channel.begin_retention();
        channel
    };
    let body = vec![7; 20 << 10];
    let total = 40;
    let mut channel = open_at(START);
    let run = append(&channel, &[chunk_of(1, (0, total), None, &body)])[0];
    let mut last = append(&channel, &[message("a", &body)])[0];
    for index in 1..total {
        append(&channel, &[chunk_of(1, (index, total), Some(run.time_tick), &body)]);
        channel.open_log().unwrap().trim_by_retention().unwrap();
        if index == 20 {
            channel.close().unwrap();
            channel = open_at(0);
        }
    }
    assert!(channel.oldest() <= last.lsn, "the message with the newest tick is gone");
    channel.close().unwrap();
    channel = open_at(0);
    for _ in 0..8 {
        let next = append(&channel, &[message("a", &body)])[0];
        assert!(next.time_tick > last.time_tick, "ticks went back");
        last = next;
    }
    // Behind the next one it goes.
    channel.open_log().unwrap().trim_by_retention().unwrap();
    assert!(channel.oldest() > run.lsn.next());
}

/// What is kept behind late chunks was told by nobody.
#[test]
fn the_message_with_the_last_tick_is_named_where_late_chunks_stand_behind_it() {
    let io = MemIo::default();
    let check = |channel: &LocalChannel, held: Option<Lsn>| {
        let all = channel.holders();
        let named = all.iter().filter(|holder| holder.name == "the last time tick");
        let named: Vec<&Holder> = named.collect();
        assert_eq!(named.iter().map(|holder| holder.lsn).collect::<Vec<_>>(), Vec::from_iter(held));
        let view = crate::log::LogView::open(DIR, Arc::new(io.clone())).unwrap();
        assert_eq!(tick_holder_of(&view).unwrap().as_ref(), named.first().copied());
    };
    let body = vec![7; 2 << 10];
    let mut channel = open(&io);
    check(&channel, None);
    let run = append(&channel, &[chunk_of(1, (0, 3), None, &body)])[0];
    let last = append(&channel, &[message("a", &body)])[0];
    check(&channel, None);
    for index in 1..3 {
        append(&channel, &[chunk_of(1, (index, 3), Some(run.time_tick), &body)]);
        check(&channel, Some(last.lsn));
        channel.close().unwrap();
        channel = open(&io);
        check(&channel, Some(last.lsn));
    }
    append(&channel, &[message("a", &body)]);
    check(&channel, None);
}

/// Fresh batches that were refused let go of the message with the last tick, as if they stood behind
/// the late chunks.
#[test]
fn ticks_ascend_behind_late_chunks_also_where_what_came_behind_them_was_refused() {
    #[track_caller]
    fn check(refusals: usize) {
        let io = MemIo::new(crate::testing::Machine::new());
        let least = crate::log::Retention::new().segment_count_max(1);
        let open_at = |io: &MemIo, wall_ms| {
            let time = Arc::new(LogTime::new(Arc::new(Stopped(wall_ms)), ClockLimits::new()));
            time.start(None);
            let options = options(io).resting_retention(least);
            let channel = LocalChannel::open(Path::new(DIR), &options, time).unwrap().0;
            channel.begin_retention();
            channel
        };
        let body = vec![7; 20 << 10];
        let channel = open_at(&io, START);
        let run = append(&channel, &[chunk_of(1, (0, 40), None, &body)])[0];
        let last = append(&channel, &[message("a", &body)])[0];
        for index in 1..8 {
            append(&channel, &[chunk_of(1, (index, 40), Some(run.time_tick), &body)]);
        }
        channel.close().unwrap();
        let channel = open_at(&io, 0);
        io.set_free_blocks(Some(0));
        let large = vec![7; 200 << 10];
        for _ in 0..refusals {
            assert_eq!(kind(channel.enqueue(&[message("a", &large)])), ErrorKind::StoreFull);
        }
        io.set_free_blocks(None);
        channel.open_log().unwrap().trim_by_retention().unwrap();
        let machine = io.machine();
        io.kill();
        drop(channel);
        let channel = open_at(&MemIo::new(machine), 0);
        let next = append(&channel, &[message("a", b"")])[0];
        assert!(next.time_tick > last.time_tick, "ticks went back behind {refusals} refusals");
    }
    (0..4).for_each(check);
}

/// Whoever reads one vchannel was told that a message is gone which was another one's.
#[test]
fn whose_message_is_lost_with_its_first_chunks_is_told_to_whoever_reads_that_vchannel() {
    let io = MemIo::default();
    let channel = open(&io);
    let body = vec![7; 30 << 10];
    let run = append(&channel, &[chunk(1, 0, None, &body)])[0];
    for _ in 0..5 {
        append(&channel, &[message("b", &body)]);
    }
    append(&channel, &[chunk(1, 1, Some(run.time_tick), &body), message("b", b"last")]);
    channel.trim(Lsn::new(4).unwrap()).unwrap();
    assert!(channel.oldest() > run.lsn);
    let read = |vchannel| {
        let mut reader = VchannelReader::new(channel.read(channel.oldest()).unwrap(), vchannel);
        let (mut found, mut lost) = (0, Vec::new());
        loop {
            match reader.next() {
                Ok(None) => break (found, lost, reader.lost_of().map(str::to_owned)),
                Ok(Some(_)) => found += 1,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Trimmed);
                    lost.push(reader.lost_of().map(str::to_owned));
                }
            }
        }
    };
    assert_eq!(read("a"), (0, vec![Some("a".to_owned())], None));
    let (found, lost, _) = read("b");
    assert!(found > 0);
    assert_eq!(lost, []);
    // What retention took from under a reader is about everybody.
    let mut reader = VchannelReader::new(channel.read(channel.oldest()).unwrap(), "b");
    while reader.next().unwrap().is_some() {}
    assert_eq!(reader.lost_of(), None);
}
