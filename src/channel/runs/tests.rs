//! Chunks in every order, twice, in part, and from hostile hands.

use oncelog_format::message::AckMode;

use super::*;

/// A channel in memory, which counts how often it is read again.
#[derive(Debug, Default)]
struct Memory {
    records: Vec<Bytes>,
    reads: usize,
}

impl Earlier for Memory {
    fn each(
        &mut self,
        from: TimeTick,
        below: Lsn,
        see: &mut dyn FnMut(&Bytes) -> Result<()>,
    ) -> Result<()> {
        self.reads += 1;
        let below = usize::try_from(below.get() - 1).unwrap();
        // A frame is as old as the tick of a message that is not late.
        let is_old = |record: &&Bytes| {
            let message = Message::decode(record).unwrap();
            message.property::<TimeTick>().unwrap().is_some_and(|tick| tick < from)
        };
        let behind = self.records.iter().take(below).skip_while(is_old).cloned();
        behind.collect::<Vec<_>>().iter().try_for_each(see)
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
    let mut memory = Memory { records, reads: 0 };
    for from in 0..=memory.records.len() {
        let behind = expect.iter().filter(|(lsn, _)| *lsn > from as u64);
        let expect: Vec<_> = behind.cloned().collect();
        assert_eq!(read(&mut memory, from).unwrap(), expect, "from record {from} on");
    }
}

#[track_caller]
fn check_refused(records: Vec<Bytes>, kind: ErrorKind) {
    let lsn = records.len() as u64;
    let mut memory = Memory { records, reads: 0 };
    for from in 0..memory.records.len() {
        let error = read(&mut memory, from).unwrap_err();
        assert_eq!((error.kind(), error.lsn()), (kind, Some(lsn)), "from record {from} on");
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
    // What stands before the first chunk is looked for, there is nothing, and that is all.
    assert_eq!(memory.reads, 1);
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
    assert_eq!(memory.reads, 11);
    let kept: u64 = runs.open.values().map(Run::cost).sum();
    assert_eq!(runs.kept_bytes, kept);
}

#[test]
fn chunks_that_are_out_of_order_on_purpose_come_to_an_end() {
    let mut memory = Memory::default();
    // Each one claims to be older than what it stands behind.
    memory.records.extend((1..20_000).rev().map(|tick| chunk(1, tick, (0, 2), b"")));
    let error = read(&mut memory, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
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
