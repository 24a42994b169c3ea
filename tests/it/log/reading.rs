//! Readers in both directions, by LSN and by time, compared with a list of what was appended.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncelog::testing::{Machine, MemIo};
use oncelog::{
    Batch, Clock, Durability, ErrorKind, Log, LogView, Lsn, Options, Reader, RecordKind,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::{batch, check_refused, lsn, open, options, place, segments};

/// What is drawn is the same in every run.
const SEED: u64 = 1;

/// A clock that a test moves.
#[derive(Debug, Default)]
struct Hands(AtomicU64);

impl Clock for Hands {
    fn wall_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// A log in memory, and every record that was appended to it.
struct Model {
    io: MemIo,
    clock: Arc<Hands>,
    log: Option<Log>,
    /// Time and payload of each, from LSN 1 on.
    records: Vec<(u64, Vec<u8>)>,
    oldest: u64,
    segment_bytes: u64,
}

#[derive(Clone, Debug)]
enum Op {
    /// Records of these lengths as one batch, so much later than the one before.
    Append(Vec<usize>, u64),
    /// The same, and not synced.
    Buffer(Vec<usize>, u64),
    Flush,
    Sync,
    /// So many eighths of what is there go.
    Trim(u64),
    Reopen,
    /// From so many eighths on, these steps.
    Walk(u64, Vec<Step>),
    Times,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Next(u8),
    Prev(u8),
    Seek(u64),
}

impl Model {
    fn new(segment_bytes: u64) -> Self {
        let io = MemIo::new(Machine::new());
        let clock = Arc::new(Hands(AtomicU64::new(1_000)));
        let records = Vec::new();
        let mut model = Self { io, clock, log: None, records, oldest: 1, segment_bytes };
        model.reopen();
        model
    }

    fn options(&self) -> Options {
        let clock: Arc<Hands> = Arc::clone(&self.clock);
        let options = options().segment_bytes_max(self.segment_bytes).clock(clock);
        options.background(false).io(Arc::new(self.io.clone()))
    }

    fn reopen(&mut self) {
        if let Some(log) = self.log.take() {
            log.close().unwrap();
        }
        self.log = Some(Log::open("/log", &self.options()).unwrap().0);
    }

    fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    fn view(&self) -> LogView {
        LogView::open_unshared("/log", Arc::new(self.io.clone())).unwrap()
    }

    fn durable(&self) -> u64 {
        self.log().durable_lsn().map_or(0, Lsn::get)
    }

    fn append(&mut self, lens: &[usize], later: u64, durability: Durability) {
        self.clock.0.fetch_add(later, Ordering::Relaxed);
        let payloads: Vec<Vec<u8>> = lens
            .iter()
            .enumerate()
            .map(|(i, len)| {
                let mut text = (self.records.len() + i).to_string().into_bytes();
                text.resize(*len, b'.');
                text
            })
            .collect();
        let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let appended = self.log().append_batch(batch(&slices), durability).unwrap();
        assert_eq!(appended.first.get(), self.records.len() as u64 + 1);
        let now = self.clock.wall_ms();
        self.records.extend(payloads.into_iter().map(|payload| (now, payload)));
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Append(lens, later) => self.append(lens, *later, Durability::Synced),
            Op::Buffer(lens, later) => self.append(lens, *later, Durability::Buffered),
            Op::Flush => self.log().flush().unwrap(),
            Op::Sync => drop(self.log().sync().unwrap()),
            Op::Trim(eighths) => {
                let oldest = self.oldest + (self.durable() + 1 - self.oldest) * eighths / 8;
                self.log().trim(lsn(oldest)).unwrap();
                self.oldest = oldest;
            }
            Op::Reopen => self.reopen(),
            Op::Walk(eighths, steps) => self.walk(*eighths, steps),
            Op::Times => self.times(),
        }
    }

    fn walk(&self, eighths: u64, steps: &[Step]) {
        let (oldest, end) = (self.oldest, self.durable());
        let from = oldest + (end + 1 - oldest) * eighths / 8;
        self.walk_with(&mut self.log().reader(lsn(from)).unwrap(), end, steps);
        let written = self.view().last_lsn().map_or(oldest - 1, Lsn::get);
        self.walk_with(&mut self.log().reader_written(lsn(from)).unwrap(), written, steps);
        let view = self.view();
        self.walk_with(&mut view.reader(Some(lsn(from))).unwrap(), written, steps);
        let proven = view.proven_lsn().map_or(0, Lsn::get);
        self.walk_with(&mut view.reader_proven(Some(lsn(from))).unwrap(), proven, steps);
    }

    /// `end` is the last record that the reader may hand out.
    fn walk_with(&self, reader: &mut Reader, end: u64, steps: &[Step]) {
        let mut next = reader.next_lsn().get();
        for step in steps {
            match *step {
                Step::Next(count) => {
                    for _ in 0..count {
                        next += u64::from(self.meets(reader.next(), next, end));
                    }
                }
                Step::Prev(count) => {
                    for _ in 0..count {
                        let before = (next - 1).min(end);
                        if self.meets(reader.prev(), before, end) {
                            next = before;
                        }
                    }
                }
                Step::Seek(eighths) => {
                    next = self.oldest + (end + 2).saturating_sub(self.oldest) * eighths / 8;
                    reader.seek(lsn(next));
                }
            }
            assert_eq!(reader.next_lsn().get(), next);
        }
    }

    /// Whether the record was handed out, as it must be exactly where it is there.
    fn meets(
        &self,
        found: oncelog::Result<Option<oncelog::Record>>,
        wanted: u64,
        end: u64,
    ) -> bool {
        if wanted > 0 && wanted < self.oldest {
            let error = found.unwrap_err();
            assert_eq!((error.kind(), error.lsn()), (ErrorKind::Trimmed, Lsn::new(self.oldest)));
            return false;
        }
        let Some(record) = found.unwrap() else {
            assert!(wanted == 0 || wanted > end, "record {wanted} of {end} was not handed out");
            return false;
        };
        let (time, payload) = &self.records[usize::try_from(wanted).unwrap() - 1];
        assert_eq!((record.lsn.get(), record.time_ms), (wanted, *time));
        assert_eq!(record.payload, payload);
        true
    }

    /// Every time of a record, and those beside it.
    fn times(&self) {
        let view = self.view();
        let mut times: Vec<u64> = self.records.iter().map(|(time, _)| *time).collect();
        times.dedup();
        for time in times.iter().flat_map(|time| [time - 1, *time, time + 1]) {
            let first = |end: u64| {
                let at = self.records.partition_point(|(t, _)| *t < time) as u64 + 1;
                lsn(at.clamp(self.oldest, (end + 1).max(self.oldest)))
            };
            assert_eq!(self.log().seek_time(time).unwrap(), first(self.durable()), "{time}");
            let last = view.last_lsn().map_or(0, Lsn::get);
            assert_eq!(view.seek_time(time).unwrap(), first(last), "{time}");
        }
    }
}

fn lens() -> impl Strategy<Value = Vec<usize>> {
    let len = prop_oneof![
        3 => 0..40_usize,
        3 => 0..400_usize,
        2 => 1_000..9_000_usize,
        // An index entry stands for 64 KiB.
        1 => 30_000..60_000_usize,
    ];
    prop_oneof![
        4 => prop::collection::vec(len, 1..6),
        1 => prop::collection::vec(0..9_usize, 50..300),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        any::<u8>().prop_map(Step::Next),
        any::<u8>().prop_map(Step::Prev),
        (1..4_u8).prop_map(Step::Next),
        (1..4_u8).prop_map(Step::Prev),
        (0..9_u64).prop_map(Step::Seek),
    ];
    prop::collection::vec(step, 1..8)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (lens(), 0..3_u64).prop_map(|(lens, later)| Op::Append(lens, later)),
        3 => (lens(), 0..3_u64).prop_map(|(lens, later)| Op::Buffer(lens, later)),
        1 => Just(Op::Flush),
        1 => Just(Op::Sync),
        1 => (0..9_u64).prop_map(Op::Trim),
        1 => Just(Op::Reopen),
        5 => (0..9_u64, steps()).prop_map(|(eighths, steps)| Op::Walk(eighths, steps)),
        1 => Just(Op::Times),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 160,
        rng_seed: RngSeed::Fixed(SEED),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn readers_move_through_a_log_as_through_a_list(
        // Segments with one entry in their index, and with many.
        large in any::<bool>(),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let mut model = Model::new(if large { 1 << 20 } else { 65_536 });
        for op in &ops {
            model.step(op);
        }
        let all = [Step::Seek(8), Step::Prev(255), Step::Prev(255), Step::Next(255)];
        model.step(&Op::Walk(8, all.to_vec()));
        model.step(&Op::Times);
    }
}

/// Far more records than an index names, and more than a walk notes at once.
#[test]
fn a_batch_of_many_small_records_is_read_backward() {
    const COUNT: u64 = 30_000;
    let (_home, dir) = place();
    let log = open(&dir);
    // Of many lengths, so that no offset can be guessed.
    let len = |record: &[u8; 8]| usize::from(record[0] % 4);
    let records: Vec<[u8; 8]> = (0..COUNT).map(u64::to_le_bytes).collect();
    let slices: Vec<&[u8]> = records.iter().map(|record| &record[..len(record)]).collect();
    log.append_batch(batch(&slices), Durability::Synced).unwrap();
    let check = |reader: &mut Reader| {
        for (payload, wanted) in slices.iter().rev().zip((1..=COUNT).rev()) {
            let record = reader.prev().unwrap().unwrap();
            assert_eq!((record.lsn.get(), &record.payload[..]), (wanted, *payload));
        }
        assert!(reader.prev().unwrap().is_none());
        assert_eq!(reader.next().unwrap().unwrap().lsn, lsn(1));
    };
    check(&mut log.reader(log.next_lsn()).unwrap());
    check(&mut view(&dir).reader(Some(log.next_lsn())).unwrap());
    while segments(&dir).len() < 2 {
        log.append(&[0; 9_000]).unwrap();
    }
    check(&mut log.reader(lsn(COUNT + 1)).unwrap());
    check(&mut view(&dir).reader(Some(lsn(COUNT + 1))).unwrap());
}

fn view(dir: &Path) -> LogView {
    LogView::open_unshared(dir, Arc::new(oncelog::io::fs::FsIo::new())).unwrap()
}

#[test]
fn a_backward_reader_meets_a_trim_as_a_gap() {
    let (_home, dir) = place();
    let log = open(&dir);
    for _ in 0..100 {
        log.append(&[1; 3000]).unwrap();
    }
    let mut behind = log.reader(lsn(101)).unwrap();
    let mut within = log.reader(lsn(101)).unwrap();
    within.prev().unwrap().unwrap();
    log.trim(lsn(95)).unwrap();
    for (reader, mut last) in [(&mut behind, 101), (&mut within, 100)] {
        let e = loop {
            match reader.prev() {
                Ok(record) => {
                    last -= 1;
                    assert_eq!(record.unwrap().lsn, lsn(last));
                }
                Err(e) => break e,
            }
        };
        assert!(last <= 95);
        assert_eq!((e.kind(), e.lsn()), (ErrorKind::Trimmed, Lsn::new(95)));
        reader.seek(lsn(101));
        assert!(reader.next().unwrap().is_none(), "a reader goes on");
    }
}

#[test]
fn a_seeking_reader_lets_go_of_what_was_trimmed() {
    let (_home, dir) = place();
    let log = open(&dir);
    for _ in 0..300 {
        log.append(&[1; 3000]).unwrap();
    }
    let mut reader = log.reader(lsn(1)).unwrap();
    for i in 0..600_u64 {
        let wanted = lsn(1 + i * 7919 % 300);
        reader.seek(wanted);
        assert_eq!(reader.next().unwrap().unwrap().lsn, wanted);
    }
    log.trim(lsn(290)).unwrap();
    for i in 1..200 {
        reader.seek(lsn(i));
        // What is held may be served; what is not is gone.
        match reader.next() {
            Ok(record) => assert_eq!(record.unwrap().lsn, lsn(i)),
            Err(e) => assert_eq!((e.kind(), e.lsn()), (ErrorKind::Trimmed, Lsn::new(290))),
        }
    }
    reader.seek(lsn(295));
    assert_eq!(reader.next().unwrap().unwrap().lsn, lsn(295));
    reader.seek(lsn(20));
    check_refused(reader.next(), ErrorKind::Trimmed);
}

#[test]
fn nothing_above_the_durable_lsn_is_read_unless_asked_for() {
    let io = MemIo::new(Machine::new());
    let options = options().background(false).io(Arc::new(io));
    let (log, _) = Log::open("/log", &options).unwrap();
    log.append(b"durable").unwrap();
    let kind = RecordKind::RECORD;
    let buffered = Batch { kind, records: &[b"written", b"too"] };
    log.append_batch(buffered, Durability::Buffered).unwrap();
    let mut written = log.reader_written(lsn(1)).unwrap();
    assert!(written.next().unwrap().unwrap().durable);
    assert!(written.next().unwrap().is_none(), "what is in the buffer is not read");
    log.flush().unwrap();
    assert_eq!(super::read(&log, 1).len(), 1);
    for wanted in 2..=3 {
        let record = written.next().unwrap().unwrap();
        assert_eq!((record.lsn, record.durable), (lsn(wanted), false));
    }
    log.sync().unwrap();
    assert!(written.next().unwrap().is_none());
    assert_eq!(written.prev().unwrap().unwrap().payload, &b"too"[..]);
    assert_eq!(super::read(&log, 1).len(), 3);
}

/// What another writer does with the files once the log is closed is no damage.
#[test]
fn a_reader_that_goes_on_behind_the_close_is_told_of_it_and_of_no_damage() {
    let io = MemIo::new(Machine::new());
    let options = options().background(false).io(Arc::new(io));
    let options = options.segment_bytes_max(1 << 20).removal_step_bytes(20_000);
    let (log, _) = Log::open("/log", &options).unwrap();
    for _ in 0..100 {
        log.append(&[1; 9000]).unwrap();
    }
    let mut reader = log.reader(lsn(1)).unwrap();
    reader.next().unwrap().unwrap();
    log.close().unwrap();
    let (next, _) = Log::open("/log", &options).unwrap();
    while next.stats().rolls == 0 {
        next.append(&[2; 9000]).unwrap();
    }
    next.trim(next.next_lsn()).unwrap();
    // The segment is cut below the reader, before it is unlinked.
    while next.remove_step().unwrap() {}
    let end = loop {
        match reader.next() {
            Ok(Some(record)) => assert_eq!(record.payload[..], [1; 9000]),
            end => break end,
        }
    };
    check_refused(end, ErrorKind::Closed);
    assert!(reader.next_lsn() < lsn(100), "it was not at the end of what it knew");
    next.close().unwrap();
}
