//! Time ticks ascend by LSN for as long as a channel lives, whatever is trimmed and whatever crashes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncelog::channel::{ChannelLog, LocalChannel, Outgoing, Position};
use oncelog::testing::{Dice, Machine};
use oncelog::testing::{MemIo, survivors};
use oncelog::{Clock, ClockLimits, CreateMode, LogTime, Options};
use oncelog_format::message::{
    AckMode, BroadcastHeader, BroadcastId, Chunk, Properties, TimeTick, Vchannel,
};

const START: u64 = 1_700_000_000_000;

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

fn open(io: &MemIo, wall_ms: u64) -> LocalChannel {
    let time = Arc::new(LogTime::new(Arc::new(Stopped(wall_ms)), ClockLimits::new()));
    time.start(None);
    let options = Options::new().create(CreateMode::IfMissing).io(Arc::new(io.clone()));
    let options = options.segment_bytes_max(64 << 10).background(false);
    LocalChannel::open(Path::new("/p0"), &options, time).unwrap().0
}

fn message(payload: &[u8]) -> Outgoing<'_> {
    let mut properties = Properties::new();
    properties.set(&Vchannel("a".to_owned())).unwrap();
    Outgoing { properties, payload }
}

/// A chunk of a broadcast of many; of one in an earlier batch, the tick of that.
fn chunk(index: u32, of: Option<TimeTick>, payload: &[u8]) -> Outgoing<'_> {
    let mut message = message(payload);
    let header = BroadcastHeader {
        id: BroadcastId(1),
        vchannels: vec!["a".into()],
        resources: Vec::new(),
        ack: AckMode::Append,
    };
    message.properties.set(&header).unwrap();
    message.properties.set_chunk(Chunk::new(index, 40).unwrap()).unwrap();
    if let Some(of) = of {
        message.properties.set(&of).unwrap();
    }
    message
}

fn append(channel: &LocalChannel, message: Outgoing<'_>) -> Position {
    channel.enqueue(&[message]).unwrap().wait().unwrap()[0]
}

/// A trim took the message with the newest durable tick for one that could go, because another one
/// had been handed over: without that one, which a crash took, an old tick was all that was found.
#[test]
pub(crate) fn no_trim_and_no_crash_takes_the_last_tick_behind_late_chunks() {
    #[track_caller]
    fn check(late: u32, others: usize, then: u32) {
        let (io, body) = (MemIo::new(Machine::new()), vec![7; 20 << 10]);
        let channel = open(&io, START);
        let run = append(&channel, chunk(0, None, &body));
        let mut last = run.time_tick;
        for _ in 0..others {
            last = append(&channel, message(&body)).time_tick;
        }
        for index in 1..=late {
            append(&channel, chunk(index, Some(run.time_tick), &body));
        }
        // In the buffer, and never durable.
        let pending = channel.enqueue(&[message(b"lost")]).unwrap();
        for index in 1..=then {
            drop(channel.enqueue(&[chunk(late + index, Some(run.time_tick), b"")]).unwrap());
        }
        channel.trim(channel.end()).unwrap();
        let machine = io.machine();
        io.kill();
        drop((pending, channel));
        let unsynced = machine.unsynced();
        let mut ways = survivors(&unsynced, 4, &mut Dice::new(late.into()));
        ways.push(Vec::new());
        for way in ways {
            let io = MemIo::new(machine.power_loss(&unsynced, &way));
            let next = append(&open(&io, START), message(b"next"));
            let what = format!("{late} late chunks behind {others} messages, then {then}");
            assert!(next.time_tick > last, "{what}: {:?} behind {last:?}", next.time_tick);
        }
    }
    for late in [1, 2, 5, 9] {
        for others in [1, 4] {
            check(late, others, 0);
            check(late, others, 2);
        }
    }
}
