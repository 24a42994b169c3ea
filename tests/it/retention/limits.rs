//! Limits on bytes, segments and age: each on its own, and all of them against a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncelog::testing::{CallKind, ENOSPC, Fault, MemIo, Which};
use oncelog::{Clock, Cursor, ErrorKind, Fill, HolderKind, Log, Lsn, Options, Pin, Retention};
use proptest::prelude::*;

use super::{files, fill, memory};
use crate::log::{lsn, place};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A clock that a test sets.
#[derive(Debug, Default)]
struct Set(AtomicU64);

impl Set {
    fn to(&self, ms: u64) {
        self.0.store(ms, Ordering::Relaxed);
    }
}

impl Clock for Set {
    fn wall_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// A log of five records a segment, at ten times the LSN each.
fn timed(records: u64, retention: Retention) -> (MemIo, Options, Arc<Set>, Log) {
    let (io, options) = memory();
    let clock = Arc::new(Set::default());
    let options = options.clock(Arc::<Set>::clone(&clock)).retention(retention);
    let (log, _) = Log::open("/log", &options).unwrap();
    for at in 1..=records {
        clock.to(at * 10);
        log.append(&[1; 9000]).unwrap();
    }
    (io, options, clock, log)
}

/// The oldest LSN that a policy leaves of 18 records in four segments.
#[track_caller]
fn check(retention: Retention, oldest: u64, segments: u64) {
    let (_io, _options, _clock, log) = timed(18, retention);
    let trimmed = log.trim_by_retention().unwrap();
    assert_eq!(
        (trimmed.oldest_lsn, trimmed.segment_count),
        (lsn(oldest), segments),
        "{retention:?}"
    );
    assert_eq!((log.oldest_lsn(), trimmed.held_by), (lsn(oldest), None));
    let again = log.trim_by_retention().unwrap();
    assert_eq!((again.segment_count, again.bytes), (0, 0), "it drops what is beyond, and no more");
}

#[test]
fn each_limit_drops_whole_segments_and_never_the_tail() {
    // A sealed segment has 57,568 bytes, the tail 39,384 in use.
    let sealed = 57_568;
    let all = Retention::new();
    check(all, 1, 0);
    check(all.segment_count_max(4), 1, 0);
    check(all.segment_count_max(3), 6, 1);
    check(all.segment_count_max(1), 16, 3);
    check(all.bytes_max(3 * sealed + 39_384), 1, 0);
    check(all.bytes_max(3 * sealed + 39_383), 6, 1);
    check(all.bytes_max(sealed + 39_384), 11, 2);
    check(all.bytes_max(0), 16, 3);
    // The last records of the segments are at 50, 100 and 150; now is 180.
    check(all.age_ms_max(130), 1, 0);
    check(all.age_ms_max(129), 6, 1);
    check(all.age_ms_max(79), 11, 2);
    check(all.age_ms_max(0), 16, 3);
    // One that is passed is enough.
    check(all.age_ms_max(1000).segment_count_max(2), 11, 2);
    check(all.age_ms_max(79).segment_count_max(3).bytes_max(u64::MAX), 11, 2);
}

/// A clock that is not sure of itself, as log time is while the wall clock is far ahead.
#[derive(Debug)]
struct Doubtful(Arc<Set>, AtomicU64);

impl Clock for Doubtful {
    fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn expiry_ms(&self, _newest_ms: u64) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
}

#[test]
fn nothing_ages_while_the_clock_does_not_believe_what_it_sees() {
    let (io, options) = memory();
    let set = Arc::new(Set::default());
    let clock = Arc::new(Doubtful(Arc::clone(&set), AtomicU64::new(100)));
    let retention = Retention::new().age_ms_max(20);
    let options = options.clock(Arc::<Doubtful>::clone(&clock)).retention(retention);
    let (log, _) = Log::open("/log", &options.io(Arc::new(io))).unwrap();
    for at in 1..=18 {
        set.to(at * 10);
        log.append(&[1; 9000]).unwrap();
    }
    // Records are stamped up to 180 all the same; the first segment's last one is at 50.
    assert_eq!(log.trim_by_retention().unwrap().oldest_lsn, lsn(6));
    set.to(10_000);
    assert_eq!(log.trim_by_retention().unwrap().segment_count, 0);
    clock.1.store(180, Ordering::Relaxed);
    assert_eq!(log.trim_by_retention().unwrap().oldest_lsn, lsn(16));
}

#[test]
fn a_limit_of_no_segment_is_refused() {
    let (_home, dir) = place();
    let none = Retention::new().segment_count_max(0);
    let e = Log::open(&dir, &crate::log::options().retention(none)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(!dir.exists());
}

#[test]
fn an_age_follows_the_clock_forward_and_never_back() {
    let (_io, options, clock, log) = timed(18, Retention::new().age_ms_max(100));
    clock.to(0);
    assert_eq!(
        log.trim_by_retention().unwrap().oldest_lsn,
        lsn(6),
        "180 is the newest record's time"
    );
    clock.to(199);
    assert_eq!(log.trim_by_retention().unwrap().oldest_lsn, lsn(6));
    clock.to(201);
    assert_eq!(log.trim_by_retention().unwrap().oldest_lsn, lsn(11), "an idle log ages, too");
    log.append(b"at 201").unwrap();
    log.close().unwrap();
    clock.to(7);
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(b"set back, stamped 201").unwrap();
    assert_eq!(log.trim_by_retention().unwrap().segment_count, 0);
    clock.to(u64::MAX);
    assert_eq!(log.trim_by_retention().unwrap().oldest_lsn, lsn(16), "the tail stays");
}

#[test]
fn a_holder_keeps_its_segment_and_is_named() {
    let (_io, _options, _clock, log) = timed(18, Retention::new().segment_count_max(1));
    let pin = log.pin("backup", lsn(13)).unwrap();
    let cursor = log.cursor("indexer").unwrap();
    cursor.advance(lsn(7)).unwrap();
    let held = |oldest: u64, kind, name: &str, at: u64| {
        let trimmed = log.trim_by_retention().unwrap();
        let holder = trimmed.held_by.unwrap();
        assert_eq!((trimmed.oldest_lsn, holder.kind), (lsn(oldest), kind));
        assert_eq!((holder.name.as_str(), holder.lsn), (name, lsn(at)));
    };
    held(6, HolderKind::Cursor, "indexer", 7);
    cursor.advance(lsn(10)).unwrap();
    held(6, HolderKind::Cursor, "indexer", 10);
    cursor.advance(lsn(19)).unwrap();
    held(11, HolderKind::Pin, "backup", 13);
    let told: Vec<_> = log.why_not_trimmed().into_iter().map(|h| (h.kind, h.lsn.get())).collect();
    let leftovers = told.iter().filter(|(kind, _)| *kind == HolderKind::Leftover).count();
    assert_eq!(leftovers, 2);
    let policy = (HolderKind::Policy, 16);
    assert_eq!(told[2..], [(HolderKind::Pin, 13), policy, (HolderKind::Cursor, 19)]);
    drop(pin);
    let trimmed = log.trim_by_retention().unwrap();
    assert_eq!((trimmed.oldest_lsn, trimmed.held_by), (lsn(16), None));
}

#[test]
fn retention_on_a_disk_that_refuses_drops_nothing() {
    let (io, _options, _clock, log) = timed(18, Retention::new().segment_count_max(1));
    let before = files(&io);
    io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Error(ENOSPC));
    assert_eq!(log.trim_by_retention().unwrap_err().kind(), ErrorKind::StoreFull);
    assert_eq!((files(&io), log.oldest_lsn()), (before, lsn(1)));
    log.clone().close().unwrap();
    assert_eq!(log.trim_by_retention().unwrap_err().kind(), ErrorKind::Closed);
}

/// Waits until a log has trimmed so far, and not further.
#[track_caller]
fn wait_oldest(log: &Log, oldest: u64) {
    let begin = std::time::Instant::now();
    while log.oldest_lsn() < lsn(oldest) && begin.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(log.oldest_lsn(), lsn(oldest));
}

/// Waits until the files of what was trimmed are gone.
#[track_caller]
pub(super) fn wait_removed(log: &Log) {
    let begin = std::time::Instant::now();
    while log.why_not_trimmed()[0].kind == HolderKind::Leftover {
        assert!(begin.elapsed() < PATIENCE, "a trimmed segment stays");
        std::thread::yield_now();
    }
}

/// A closed log of 18 records in four segments, and the options that open it with a limit.
fn closed(retention: Retention) -> (MemIo, Options) {
    let (io, options) = memory();
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 18);
    log.close().unwrap();
    (io, options.background(true).fill(Fill::None).retention(retention))
}

#[test]
fn a_log_applies_its_limits_when_it_is_opened() {
    let (_io, options) = closed(Retention::new().segment_count_max(2));
    let (log, _) = Log::open("/log", &options).unwrap();
    wait_oldest(&log, 11);
}

#[test]
fn a_holder_of_an_earlier_process_frees_what_it_held_when_it_lets_go() {
    let (_io, options) = closed(Retention::new());
    let (log, _) = Log::open("/log", &options).unwrap();
    log.cursor("c").unwrap();
    log.close().unwrap();
    let (log, _) =
        Log::open("/log", &options.retention(Retention::new().segment_count_max(1))).unwrap();
    log.cursor("c").unwrap().advance(lsn(12)).unwrap();
    wait_oldest(&log, 11);
}

#[test]
fn a_trim_that_was_refused_is_tried_again_without_a_call() {
    let (io, options) = closed(Retention::new());
    let (log, _) = Log::open("/log", &options).unwrap();
    log.cursor("c").unwrap();
    log.close().unwrap();
    let (log, _) =
        Log::open("/log", &options.retention(Retention::new().segment_count_max(2))).unwrap();
    let pin = log.pin("p", lsn(1)).unwrap();
    log.cursor("c").unwrap().remove().unwrap();
    assert!(log.trim_by_retention().unwrap().held_by.is_some());
    io.arm(Which::Kind(CallKind::Write), 1, 1, Fault::Error(ENOSPC));
    drop(pin);
    wait_oldest(&log, 11);
    assert_eq!(io.struck(), 1);
}

#[test]
fn a_roll_without_space_has_the_limits_looked_at() {
    let (io, options) = memory();
    // Both segments are within the limit at the roll, and the tail outgrows it behind that.
    let retention = Retention::new().bytes_max(100_000);
    let options = options.background(true).fill(Fill::Allocate).retention(retention);
    let (log, _) = Log::open("/log", &options).unwrap();
    fill(&log, 6);
    assert_eq!(
        log.trim_by_retention().unwrap().segment_count,
        0,
        "the look that the roll made due"
    );
    io.set_free_blocks(Some(0));
    fill(&log, 4);
    assert_eq!(log.append(&[1; 9000]).unwrap_err().kind(), ErrorKind::StoreFull);
    wait_oldest(&log, 6);
    io.set_free_blocks(None);
    assert_eq!(log.append(&[1; 9000]).unwrap(), lsn(11));
}

/// By itself: at a roll, and when a holder lets go.
#[test]
fn a_log_applies_its_limits_without_a_call() {
    let (_home, dir) = place();
    let options = crate::log::options().retention(Retention::new().segment_count_max(2));
    let (log, _) = Log::open(&dir, &options).unwrap();
    let pin = log.pin("p", lsn(1)).unwrap();
    fill(&log, 31);
    assert_eq!(log.oldest_lsn(), lsn(1));
    pin.advance(lsn(12)).unwrap();
    wait_oldest(&log, 11);
    drop(pin);
    wait_oldest(&log, 26);
    fill(&log, 10);
    wait_oldest(&log, 36);
    wait_removed(&log);
    assert_eq!(crate::log::segments(&dir).len(), 2);
}

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Clock(u64),
    Pin(u64),
    MovePin(usize, u64),
    DropPin(usize),
    Cursor(usize, u64),
    RemoveCursor(usize),
    Retain,
    Trim(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1_usize..20_000).prop_map(Step::Append),
        3 => (0_u64..2000).prop_map(Step::Clock),
        1 => (0_u64..100).prop_map(Step::Pin),
        1 => (0_usize..4, 0_u64..100).prop_map(|(which, to)| Step::MovePin(which, to)),
        1 => (0_usize..4).prop_map(Step::DropPin),
        2 => (0_usize..3, 0_u64..100).prop_map(|(which, to)| Step::Cursor(which, to)),
        1 => (0_usize..3).prop_map(Step::RemoveCursor),
        3 => Just(Step::Retain),
        1 => (0_u64..100).prop_map(Step::Trim),
        1 => Just(Step::Reopen),
    ]
}

fn policy() -> impl Strategy<Value = Retention> {
    let bytes = proptest::option::of(0_u64..300_000);
    let count = proptest::option::of(1_u64..6);
    let age = proptest::option::of(0_u64..1500);
    (bytes, count, age).prop_map(|(bytes, count, age)| {
        let mut retention = Retention::new();
        retention = bytes.map_or(retention, |bytes| retention.bytes_max(bytes));
        retention = count.map_or(retention, |count| retention.segment_count_max(count));
        age.map_or(retention, |age| retention.age_ms_max(age))
    })
}

/// What a log must have, said as simply as it can be.
struct Model {
    oldest: u64,
    /// The time of each record, from LSN 1 on.
    times: Vec<u64>,
    pins: Vec<(Pin, u64)>,
    cursors: [Option<u64>; 3],
}

impl Model {
    fn next(&self) -> u64 {
        self.times.len() as u64 + 1
    }

    /// The LSN that lies so many percent of the way from the oldest to the next.
    fn at(&self, percent: u64) -> u64 {
        self.oldest + (self.next() - self.oldest) * percent / 99
    }

    fn floor(&self) -> u64 {
        let pins = self.pins.iter().map(|(_, at)| *at);
        pins.chain(self.cursors.iter().flatten().copied()).min().unwrap_or(u64::MAX)
    }

    /// What the policy drops: from the first LSNs and the sizes of the segments, as files tell.
    fn retained(&self, io: &MemIo, tail_used: u64, retention: &str, now_ms: u64) -> (u64, bool) {
        let number = |name: &str| -> Option<u64> {
            let at = retention.find(name)? + name.len();
            let rest = retention[at..].strip_prefix(": Some(")?;
            rest[..rest.find(')')?].parse().ok()
        };
        let [bytes_max, count_max, age_max] =
            ["bytes_max", "segment_count_max", "age_ms_max"].map(number);
        let all: Vec<(u64, u64)> =
            files(io).into_iter().map(|(name, len)| (name[11..31].parse().unwrap(), len)).collect();
        let begun = all.iter().rposition(|(first, _)| *first <= self.oldest).unwrap();
        let mut live = &all[begun..];
        let mut oldest = self.oldest;
        let is_beyond = |live: &[(u64, u64)]| {
            let sealed: u64 = live[..live.len() - 1].iter().map(|(_, len)| len).sum();
            let last = usize::try_from(live[1].0 - 2).unwrap();
            bytes_max.is_some_and(|max| sealed + tail_used > max)
                || count_max.is_some_and(|max| live.len() as u64 > max)
                || age_max.is_some_and(|max| now_ms - self.times[last] > max)
        };
        while live.len() > 1 && is_beyond(live) {
            if live[1].0 > self.floor() {
                return (oldest, true);
            }
            live = &live[1..];
            oldest = oldest.max(live[0].0);
        }
        (oldest, false)
    }
}

/// Where the frames of the tail end.
fn tail_used(log: &Log, io: &MemIo) -> u64 {
    let tail: u64 = files(io).pop().unwrap().0[..10].parse().unwrap();
    let mut reader = log.reader(log.oldest_lsn()).unwrap();
    let mut end = 12_288;
    while let Some(record) = reader.next().unwrap() {
        if record.segment.get() == tail {
            end = record.offset + record.frame_bytes;
        }
    }
    end
}

/// A log and its model.
struct Play {
    io: MemIo,
    options: Options,
    clock: Arc<Set>,
    policy: String,
    log: Log,
    model: Model,
}

fn at(value: u64) -> Lsn {
    Lsn::new(value).unwrap()
}

impl Play {
    fn new(retention: Retention) -> Self {
        let (io, options) = memory();
        let clock = Arc::new(Set::default());
        let options = options.clock(Arc::<Set>::clone(&clock)).retention(retention);
        let (log, _) = Log::open("/log", &options).unwrap();
        let model = Model { oldest: 1, times: Vec::new(), pins: Vec::new(), cursors: [None; 3] };
        Self { io, options, clock, policy: format!("{retention:?}"), log, model }
    }

    fn now_ms(&self) -> u64 {
        self.clock.wall_ms().max(self.model.times.last().copied().unwrap_or(0))
    }

    fn cursor(&self, k: usize) -> Cursor {
        self.log.cursor(&format!("c{k}")).unwrap()
    }

    fn step(&mut self, step: &Step) {
        let now_ms = self.now_ms();
        match step {
            Step::Append(len) => {
                self.log.append(&vec![3; *len]).unwrap();
                self.model.times.push(now_ms);
            }
            Step::Clock(ms) => self.clock.to(*ms),
            Step::Retain => {
                while self.log.remove_step().unwrap() {}
                let used = tail_used(&self.log, &self.io);
                let (oldest, is_held) = self.model.retained(&self.io, used, &self.policy, now_ms);
                let trimmed = self.log.trim_by_retention().unwrap();
                assert_eq!((trimmed.oldest_lsn, trimmed.held_by.is_some()), (at(oldest), is_held));
                self.model.oldest = oldest;
            }
            Step::Trim(percent) => {
                let to = self.model.at(*percent);
                let trimmed = self.log.trim(at(to)).map_err(|e| (e.kind(), e.lsn()));
                if self.model.floor() < to && to > self.model.oldest {
                    assert_eq!(trimmed, Err((ErrorKind::Pinned, Lsn::new(self.model.floor()))));
                } else {
                    assert_eq!(trimmed, Ok(()));
                    self.model.oldest = to.max(self.model.oldest);
                }
            }
            Step::Reopen => {
                self.model.pins.clear();
                self.log.clone().close().unwrap();
                self.log = Log::open("/log", &self.options).unwrap().0;
            }
            holder => self.step_of_holder(holder),
        }
    }

    fn step_of_holder(&mut self, step: &Step) {
        match step {
            Step::Pin(percent) => {
                let to = self.model.at(*percent);
                self.model.pins.push((self.log.pin("p", at(to)).unwrap(), to));
            }
            Step::MovePin(which, percent) => {
                let to = self.model.at(*percent);
                if let Some((pin, from)) = self.model.pins.get_mut(*which) {
                    assert_eq!(pin.advance(at(to)).is_ok(), to >= *from);
                    *from = to.max(*from);
                }
            }
            Step::DropPin(which) if *which < self.model.pins.len() => {
                drop(self.model.pins.swap_remove(*which));
            }
            Step::Cursor(which, percent) => {
                let cursor = self.cursor(*which);
                let from = *self.model.cursors[*which].get_or_insert(self.model.oldest);
                let to = self.model.at(*percent);
                assert_eq!(cursor.advance(at(to)).is_ok(), to >= from);
                self.model.cursors[*which] = Some(to.max(from));
            }
            Step::RemoveCursor(which) => {
                self.cursor(*which).remove().unwrap();
                self.model.cursors[*which] = None;
            }
            _ => {}
        }
    }

    fn check(&self) {
        let Self { log, model, .. } = self;
        assert_eq!((log.oldest_lsn(), log.next_lsn()), (at(model.oldest), at(model.next())));
        assert!(model.oldest <= model.floor(), "what is held is there");
        for (k, stand) in model.cursors.iter().enumerate() {
            assert!(stand.is_none_or(|stand| self.cursor(k).lsn().unwrap() == at(stand)));
        }
    }

    fn check_records(&self) {
        let mut reader = self.log.reader(self.log.oldest_lsn()).unwrap();
        for expected in self.model.oldest..self.model.next() {
            let record = reader.next().unwrap().unwrap();
            let time = self.model.times[usize::try_from(expected - 1).unwrap()];
            assert_eq!((record.lsn.get(), record.time_ms), (expected, time));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn retention_drops_what_a_simple_model_drops(
        retention in policy(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut play = Play::new(retention);
        for step in &steps {
            play.step(step);
            play.check();
        }
        play.check_records();
    }
}
