//! Chunks in every order, twice, in part, and from hostile hands.

use oncelog_format::message::{
    AckMode, BroadcastHeader, BroadcastId, CHUNK_INDEX, CHUNK_TOTAL, Chunk, Properties, Property,
    Vchannel,
};

use super::super::parts::PAYLOAD_LEN_MAX;
use super::*;

/// A channel in memory, which counts how often it is read again, and how many messages.
#[derive(Debug, Default)]
struct Memory {
    records: Vec<Bytes>,
    /// So many of the first ones are gone.
    trimmed: usize,
    reads: usize,
    shown: usize,
}

impl Memory {
    fn of(records: Vec<Bytes>) -> Self {
        Self { records, ..Self::default() }
    }
}

impl Earlier for Memory {
    fn oldest(&self) -> Lsn {
        Lsn::new(self.trimmed as u64 + 1).unwrap()
    }

    fn begin(&mut self, tick: TimeTick) -> Result<Lsn> {
        // A frame is as old as the tick of a message that is not late.
        let is_old = |record: &&Bytes| {
            let message = Message::decode(record).unwrap();
            message.property::<TimeTick>().unwrap().is_some_and(|found| found < tick)
        };
        let old = self.records.iter().skip(self.trimmed).take_while(is_old).count();
        Ok(Lsn::new((self.trimmed + old) as u64 + 1).unwrap())
    }

    fn each(
        &mut self,
        from: Lsn,
        below: Lsn,
        see: &mut dyn FnMut(Lsn, &Bytes) -> Result<()>,
    ) -> Result<()> {
        self.reads += 1;
        for lsn in from.max(self.oldest()).get()..below.get() {
            self.shown += 1;
            let record = &self.records[usize::try_from(lsn - 1).unwrap()];
            see(Lsn::new(lsn).unwrap(), record)?;
        }
        Ok(())
    }
}

fn properties(id: u64, tick: u64) -> Properties {
    let mut properties = Properties::new();
    let header = BroadcastHeader {
        id: BroadcastId(id),
        vchannels: vec!["a".into()],
        resources: Vec::new(),
        ack: AckMode::Append,
    };
    properties.set(&header).unwrap();
    properties.set(&TimeTick(tick)).unwrap();
    properties.set(&Vchannel("a".into())).unwrap();
    properties.set_value("of the caller", b"kept".to_vec()).unwrap();
    properties
}

fn encoded(properties: &Properties, payload: &[u8]) -> Bytes {
    let mut record = Vec::new();
    properties.encode(payload, &mut record);
    record.into()
}

fn chunk(id: u64, tick: u64, (index, total): (u32, u32), payload: &[u8]) -> Bytes {
    let mut properties = properties(id, tick);
    properties.set_chunk(Chunk::new(index, total).unwrap()).unwrap();
    encoded(&properties, payload)
}

fn whole(id: u64, tick: u64, payload: &[u8]) -> Bytes {
    encoded(&properties(id, tick), payload)
}

/// Reads all records from the `from`th on: LSN and message.
fn read(memory: &mut Memory, from: usize) -> Result<Vec<(u64, Bytes)>> {
    let (mut runs, mut found) = (Runs::new(), Vec::new());
    for (lsn, record) in (1..).zip(memory.records.clone()).skip(from) {
        if let Some(whole) = runs.take(Lsn::new(lsn).unwrap(), &record, memory)? {
            found.push((lsn, whole));
        }
    }
    Ok(found)
}

#[track_caller]
fn check(records: Vec<Bytes>, expect: &[(u64, Bytes)]) {
    let mut memory = Memory::of(records);
    for from in 0..=memory.records.len() {
        let behind = expect.iter().filter(|(lsn, _)| *lsn > from as u64);
        let expect: Vec<_> = behind.cloned().collect();
        assert_eq!(read(&mut memory, from).unwrap(), expect, "from record {from} on");
    }
}

#[track_caller]
fn check_refused(records: Vec<Bytes>, kind: ErrorKind) {
    let lsn = records.len() as u64;
    let mut memory = Memory::of(records);
    for from in 0..memory.records.len() {
        let error = read(&mut memory, from).unwrap_err();
        assert_eq!((error.kind(), error.lsn()), (kind, Lsn::new(lsn)), "from record {from} on");
    }
}

#[test]
fn chunks_in_any_order_are_one_message_where_the_last_one_came() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let parts: [&[u8]; 3] = [b"one ", b"", b"three"];
        let chunk_of = |index: u32| chunk(7, 5, (index, 3), parts[index as usize]);
        check(order.map(chunk_of).to_vec(), &[(3, whole(7, 5, b"one three"))]);
    }
}

#[test]
fn messages_between_the_chunks_are_handed_over_where_they_stand() {
    let records = vec![
        chunk(1, 1, (0, 2), b"1a"),
        whole(2, 2, b"2"),
        chunk(3, 3, (0, 2), b"3a"),
        chunk(1, 1, (1, 2), b"1b"),
        whole(4, 4, b"4"),
        chunk(3, 3, (1, 2), b"3b"),
    ];
    let expect = [
        (2, whole(2, 2, b"2")),
        (4, whole(1, 1, b"1a1b")),
        (5, whole(4, 4, b"4")),
        (6, whole(3, 3, b"3a3b")),
    ];
    check(records, &expect);
}

#[test]
fn a_chunk_that_comes_again_is_swallowed_before_and_behind_the_end_of_its_run() {
    let (first, last) = (chunk(1, 1, (0, 2), b"a"), chunk(1, 1, (1, 2), b"b"));
    let records = vec![
        first.clone(),
        first.clone(),
        last.clone(),
        first.clone(),
        whole(2, 2, b"2"),
        last,
        first,
    ];
    check(records, &[(3, whole(1, 1, b"ab")), (5, whole(2, 2, b"2"))]);
}

#[test]
fn a_chunk_that_comes_again_with_other_bytes_is_corrupt() {
    let (first, last) = (chunk(1, 1, (0, 2), b"a"), chunk(1, 1, (1, 2), b"b"));
    check_refused(vec![first.clone(), chunk(1, 1, (0, 2), b"A")], ErrorKind::Corrupt);
    check_refused(vec![first.clone(), last, chunk(1, 1, (0, 2), b"A")], ErrorKind::Corrupt);
    check_refused(vec![first.clone(), chunk(1, 1, (1, 3), b"b")], ErrorKind::Corrupt);
    let mut elsewhere = properties(1, 1);
    elsewhere.set(&Vchannel("b".into())).unwrap();
    elsewhere.set_chunk(Chunk::new(1, 2).unwrap()).unwrap();
    check_refused(vec![first, encoded(&elsewhere, b"b")], ErrorKind::Corrupt);
}

#[test]
fn a_chunk_that_is_none_names_no_run_or_says_a_half_is_refused() {
    let broken = |change: &dyn Fn(&mut Properties)| {
        let mut properties = properties(1, 1);
        properties.set_chunk(Chunk::new(0, 2).unwrap()).unwrap();
        change(&mut properties);
        vec![encoded(&properties, b"")]
    };
    let value = |key: &'static str, value: u32| {
        broken(&|p| p.set_value(key, value.to_le_bytes().to_vec()).unwrap())
    };
    check_refused(broken(&|p| p.remove(CHUNK_INDEX)), ErrorKind::Corrupt);
    check_refused(broken(&|p| p.remove(CHUNK_TOTAL)), ErrorKind::Corrupt);
    check_refused(value(CHUNK_TOTAL, 1), ErrorKind::Corrupt);
    check_refused(value(CHUNK_INDEX, 2), ErrorKind::Corrupt);
    check_refused(value(CHUNK_TOTAL, u32::MAX), ErrorKind::Corrupt);
    check_refused(broken(&|p| p.remove(TimeTick::KEY)), ErrorKind::Corrupt);
    check_refused(broken(&|p| p.remove(BroadcastHeader::KEY)), ErrorKind::Unsupported);
}

#[test]
fn a_run_without_one_of_its_chunks_is_never_a_message() {
    let records = (0..100).map(|index| chunk(1, 1, (index, 101), b"x")).collect();
    check(records, &[]);
}

#[test]
fn messages_in_order_are_never_read_again() {
    let mut memory = Memory::default();
    for id in 1..100 {
        memory.records.extend([chunk(id, id, (0, 2), b"a"), chunk(id, id, (1, 2), b"b")]);
    }
    assert_eq!(read(&mut memory, 0).unwrap().len(), 99);
    assert_eq!(memory.reads, 0);
}

#[test]
fn runs_that_never_end_cost_bounded_memory_and_others_still_come() {
    let mut memory = Memory::default();
    let many = RUN_COUNT_MAX as u64 + 10;
    memory.records.extend((1..=many).map(|id| chunk(id, id, (0, 2), b"a")));
    // The first ones are not kept any more, and are whole all the same when they end.
    memory.records.extend((1..=20).map(|id| chunk(id, id, (1, 2), b"b")));
    let mut runs = Runs::new();
    let mut found = Vec::new();
    for (lsn, record) in (1..).zip(memory.records.clone()) {
        found.extend(runs.take(Lsn::new(lsn).unwrap(), &record, &mut memory).unwrap());
        assert!(runs.open.len() <= RUN_COUNT_MAX);
    }
    assert_eq!(found, (1..=20).map(|id| whole(id, id, b"ab")).collect::<Vec<_>>());
    assert_eq!(memory.reads, 2 * 10, "looked for, and fetched");
    let kept: u64 = runs.open.values().map(Run::cost).sum();
    assert_eq!(runs.kept_bytes, kept);
}

#[test]
fn chunks_that_are_out_of_order_on_purpose_come_to_an_end() {
    // Each one claims to be older than what it stands behind.
    let older = (1..20_000).rev().map(|tick| chunk(1, tick, (0, 2), b""));
    let mut memory = Memory::of(older.collect());
    assert_eq!(read(&mut memory, 0).unwrap_err().kind(), ErrorKind::Limit);
    // Each one comes behind the end of its run.
    let mut memory = Memory::of(vec![chunk(1, 1, (0, 2), b"a"), chunk(1, 1, (1, 2), b"b")]);
    memory.records.extend((0..20_000).map(|_| chunk(1, 1, (1, 2), b"b")));
    assert_eq!(read(&mut memory, 0).unwrap_err().kind(), ErrorKind::Limit);
}

/// A chunk with a later tick than any before was taken for the first of its run: a message that
/// others had begun before was never shown.
#[test]
fn runs_that_began_before_the_place_where_reading_does_are_whole_all_the_same() {
    let of = |id: u64, tick: u64, index: u32| chunk(id, tick, (index, 2), b"x");
    let records = vec![of(1, 5, 0), of(2, 8, 0), of(1, 5, 1), of(2, 8, 1)];
    check(records, &[(3, whole(1, 5, b"xx")), (4, whole(2, 8, b"xx"))]);
    // The same behind a chunk that came late, and one that came again.
    let records = vec![
        of(1, 5, 0),
        of(2, 8, 0),
        of(3, 9, 0),
        whole(4, 10, b"4"),
        of(1, 5, 0),
        of(3, 9, 1),
        of(1, 5, 1),
        of(2, 8, 1),
    ];
    let expect = [
        (4, whole(4, 10, b"4")),
        (6, whole(3, 9, b"xx")),
        (7, whole(1, 5, b"xx")),
        (8, whole(2, 8, b"xx")),
    ];
    check(records, &expect);
}

/// What a reader does that goes on behind what is trimmed: each message once, or that it is gone.
#[test]
fn a_message_whose_first_chunks_are_trimmed_is_said_to_be_and_others_follow() {
    let records = vec![
        chunk(1, 1, (0, 3), b"a"),
        chunk(2, 2, (0, 2), b"a"),
        chunk(1, 1, (1, 3), b"b"),
        whole(3, 3, b"3"),
        chunk(2, 2, (1, 2), b"b"),
        chunk(1, 1, (2, 3), b"c"),
    ];
    #[track_caller]
    fn check(records: &[Bytes], trimmed: usize, gone: &[u64], expect: &[(u64, Bytes)]) {
        let mut memory = Memory { trimmed, ..Memory::of(records.to_vec()) };
        let (mut runs, mut found, mut told) = (Runs::new(), Vec::new(), Vec::new());
        for (lsn, record) in (1..).zip(records).skip(trimmed) {
            match runs.take(Lsn::new(lsn).unwrap(), record, &mut memory) {
                Ok(whole) => found.extend(whole.map(|whole| (lsn, whole))),
                Err(e) => {
                    assert_eq!((e.kind(), e.lsn()), (ErrorKind::Trimmed, Lsn::new(lsn + 1)));
                    told.push(lsn);
                }
            }
        }
        assert_eq!((&found[..], &told[..]), (expect, gone), "{trimmed} are trimmed");
    }
    let all = [(4, whole(3, 3, b"3")), (5, whole(2, 2, b"ab")), (6, whole(1, 1, b"abc"))];
    check(&records, 0, &[], &all);
    check(&records, 1, &[3], &all[..2]);
    check(&records, 2, &[3, 5], &all[..1]);
    check(&records, 3, &[5, 6], &all[..1]);
    check(&records, 4, &[5, 6], &[]);
    check(&records, 5, &[6], &[]);
}

#[test]
fn a_chunk_that_is_trimmed_before_the_last_one_comes_is_told() {
    let mut memory = Memory::of(vec![
        chunk(1, 1, (0, 3), b"a"),
        chunk(1, 1, (1, 3), b"b"),
        chunk(1, 1, (2, 3), b"c"),
    ]);
    let mut runs = Runs { kept_bytes_max: 3 * 80, ..Runs::new() };
    let mut take = |memory: &mut Memory, lsn: usize| {
        let record = memory.records[lsn - 1].clone();
        runs.take(Lsn::new(lsn as u64).unwrap(), &record, memory)
    };
    assert_eq!(take(&mut memory, 1).unwrap(), None);
    assert_eq!(take(&mut memory, 2).unwrap(), None);
    memory.trimmed = 1;
    let error = take(&mut memory, 3).unwrap_err();
    assert_eq!((error.kind(), error.lsn()), (ErrorKind::Trimmed, Lsn::new(4)));
}

/// Runs that put each other out were read again for each chunk, until the reader refused the channel
/// for ever.
#[test]
fn runs_beside_each_other_that_are_more_than_is_kept_are_each_fetched_once() {
    const CHUNKS: u32 = 500;
    let piece = [7; 100];
    let runs_of = |ids: std::ops::RangeInclusive<u64>| {
        let ids: Vec<u64> = ids.collect();
        let rounds = (0..CHUNKS).flat_map(move |index| {
            ids.clone().into_iter().map(move |id| chunk(id, id, (index, CHUNKS), &piece))
        });
        rounds.collect::<Vec<_>>()
    };
    let mut memory = Memory::of(runs_of(1..=3));
    let kept_bytes_max = 3 * u64::from(CHUNKS + 1) * 80 + 10_000;
    for from in [0, 1, 700] {
        let (mut runs, mut found) = (Runs { kept_bytes_max, ..Runs::new() }, Vec::new());
        memory.shown = 0;
        for (lsn, record) in (1..).zip(memory.records.clone()).skip(from) {
            let lsn = Lsn::new(lsn).unwrap();
            found.extend(runs.take(lsn, &record, &mut memory).unwrap());
            assert!(runs.kept_bytes <= kept_bytes_max);
        }
        let payload = piece.repeat(CHUNKS as usize);
        assert_eq!(found, (1..=3).map(|id| whole(id, id, &payload)).collect::<Vec<_>>());
        assert!(memory.shown < 4 * 3 * CHUNKS as usize, "{} were read again", memory.shown);
    }
}

#[test]
fn a_payload_above_the_largest_is_refused() {
    let piece_len = usize::try_from(PAYLOAD_LEN_MAX / 4 + 1).unwrap();
    let piece = vec![0; piece_len];
    let mut runs = Runs::new();
    let mut nothing = Memory::default();
    let mut take = |index| {
        let record = chunk(1, 1, (index, 5), &piece);
        runs.take(Lsn::new(u64::from(index) + 1).unwrap(), &record, &mut nothing)
    };
    for index in 0..3 {
        assert!(take(index).unwrap().is_none());
    }
    assert_eq!(take(3).unwrap_err().kind(), ErrorKind::Limit);
}
