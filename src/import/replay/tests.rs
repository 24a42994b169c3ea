use std::collections::BTreeMap;
use std::path::PathBuf;

use oncelog_format::message::{BroadcastId, MessageType, Properties, SliceStamp, Vchannel};

use super::*;
use crate::import::format::Format;
use crate::import::partition::partition;
use crate::import::read::{self, FirstPass, Progress};
use crate::import::roots::Origin;
use crate::import::verdict::{ABORT, AttemptOf, COMMIT};
use crate::io::fs::FsIo;

/// Channels in memory.
#[derive(Default)]
pub(super) struct Memory(BTreeMap<String, Vec<Bytes>>);

struct MemoryMessages<'a>(
    std::iter::Skip<std::iter::Zip<std::ops::RangeFrom<u64>, std::slice::Iter<'a, Bytes>>>,
);

impl Channels for Memory {
    fn read<'a>(&'a self, pchannel: &str, from: Option<Lsn>) -> Result<Box<dyn Messages + 'a>> {
        let skip = from.map_or(0, |from| usize::try_from(from.get() - 1).unwrap());
        let messages = self.0.get(pchannel).map_or(&[][..], Vec::as_slice);
        Ok(Box::new(MemoryMessages((1..).zip(messages).skip(skip))))
    }
}

impl Messages for MemoryMessages<'_> {
    fn next(&mut self) -> Result<Option<(Lsn, Bytes)>> {
        Ok(self.0.next().map(|(lsn, record)| (Lsn::new(lsn).unwrap(), record.clone())))
    }
}

impl Memory {
    fn push(&mut self, pchannel: &str, properties: &Properties, payload: &[u8]) {
        let mut record = Vec::new();
        properties.encode(payload, &mut record);
        self.0.entry(pchannel.to_owned()).or_default().push(record.into());
    }

    fn slice(&mut self, vchannel: &str, stamp: SliceStamp, payload: &[u8]) {
        let mut properties = Properties::new();
        properties.set(&Vchannel(vchannel.to_owned())).unwrap();
        properties.set(&stamp).unwrap();
        self.push("p", &properties, payload);
    }

    pub(super) fn verdict(&mut self, vchannel: &str, kind: &str, job: u64, attempt: u32) {
        let mut properties = Properties::new();
        properties.set(&Vchannel(vchannel.to_owned())).unwrap();
        properties.set(&MessageType(kind.to_owned())).unwrap();
        let attempt = AttemptOf { job: BroadcastId(job), attempt };
        self.push("p", &properties, &attempt.encode());
    }

    /// The rows of a file in slices of `step` rows over the vchannels, without a verdict.
    pub(super) fn import(
        &mut self,
        path: &Path,
        job: u64,
        attempt: u32,
        step: usize,
        vchannels: &[String],
    ) {
        let source = [Origin::System.open(path).unwrap()];
        let format = Format::of_name(path).unwrap();
        let mut report = |_| Ok(());
        let mut pass =
            FirstPass { primary_key: None, expected: None, progress: Progress::new(&mut report) };
        let survey = read::survey(&source, format, &mut pass).unwrap();
        let mut reader = read::open(&source, format, &survey).unwrap();
        let count = u32::try_from(vchannels.len()).unwrap();
        let mut first_row = 0;
        while let Some(batch) = reader.next_batch(step).unwrap() {
            let places = partition(&batch, None, first_row, count).unwrap();
            let parts = slice::split(&batch, &places, count).unwrap();
            for (vchannel, part) in vchannels.iter().zip(parts) {
                let job = BroadcastId(job);
                let stamp = SliceStamp { job, attempt, file: 0, first_row, rows: part.rows };
                self.slice(vchannel, stamp, &part.payload);
            }
            first_row += batch.num_rows() as u64;
        }
    }
}

pub(super) fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub(super) fn replayed(
    memory: &Memory,
    vchannels: &[String],
    ending: &str,
) -> (ReplayReport, tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join(format!("out.{ending}"));
    let io: Arc<dyn Io> = Arc::new(FsIo::new());
    let pchannels = names(&["p"]);
    let from = (pchannels.as_slice(), vchannels);
    let report = replay_rows(memory, from, &empty_schema(), (&io, &target), &mut |_, _| {});
    let report = report.unwrap();
    (report, dir, target)
}

fn text_of(memory: &Memory, vchannels: &[String]) -> String {
    let (_, _dir, target) = replayed(memory, vchannels, "jsonl");
    std::fs::read_to_string(target).unwrap()
}

/// Rows of a file, as both passes read them.
fn rows_of(path: &Path) -> Vec<String> {
    let source = [Origin::System.open(path).unwrap()];
    let format = Format::of_name(path).unwrap();
    let mut report = |_| Ok(());
    let mut pass =
        FirstPass { primary_key: None, expected: None, progress: Progress::new(&mut report) };
    let survey = read::survey(&source, format, &mut pass).unwrap();
    let mut reader = read::open(&source, format, &survey).unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = reader.next_batch(1000).unwrap() {
        rows.extend(read::tests::lines(&batch));
    }
    rows
}

/// Imports `content` over `vchannels` vchannels, replays it to a file of the ending, and compares
/// the rows of that file with the rows of the source.
#[track_caller]
fn check(name: &str, content: &[u8], vchannels: usize, ending: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    let vchannels: Vec<String> = (0..vchannels).map(|n| format!("v{n}")).collect();
    let mut memory = Memory::default();
    memory.import(&path, 1, 1, 3, &vchannels);
    for vchannel in &vchannels {
        memory.verdict(vchannel, COMMIT, 1, 1);
    }
    let (report, _dir, target) = replayed(&memory, &vchannels, ending);
    let expect = rows_of(&path);
    assert_eq!(rows_of(&target), expect, "{name} by {ending}");
    assert_eq!(report.rows, expect.len() as u64);
    assert_eq!((report.aborted_rows, report.pending_rows), (0, 0));
}

#[test]
fn a_replay_has_the_rows_of_the_source_in_their_order() {
    let csv = b"a,b\n1,x\n2,\"y,\"\"z\"\n3,\n,\"p\nq\"\n5,\"\"\n6,f\n7,g\n";
    let json = br#"{"a":1,"b":"x"}
{"a":-9223372036854775808,"b":null}
{"a":3,"b":"\u0001\"\\"}
{"a":4,"b":""}"#;
    let floats = b"{\"f\":0.1}\n{\"f\":1e300}\n{\"f\":-0.0}\n{\"f\":5e-324}\n{\"f\":123456.789}";
    for vchannels in [1, 2, 5] {
        for ending in ["jsonl", "csv", "parquet"] {
            check("a.csv", csv, vchannels, ending);
        }
        for ending in ["jsonl", "parquet"] {
            check("a.jsonl", json, vchannels, ending);
            check("a.jsonl", floats, vchannels, ending);
        }
        check("a.jsonl", b"{\"j\":[1,{\"a\":null}],\"m\":1}\n{\"m\":\"x\"}", vchannels, "jsonl");
    }
}

#[test]
fn real_files_come_back_with_their_values() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data");
    for name in ["airports.parquet", "vectors.parquet", "cars.json", "seattle-weather.jsonl"] {
        let content = std::fs::read(data.join(name)).unwrap();
        check(name, &content, 2, "parquet");
        check(name, &content, 1, "jsonl");
    }
    check("airports.csv", &std::fs::read(data.join("airports.csv")).unwrap(), 3, "csv");
}

#[test]
fn rows_are_visible_by_the_first_verdict_of_their_vchannel_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    std::fs::write(&path, "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n").unwrap();
    let both = names(&["v0", "v1"]);
    let mut memory = Memory::default();
    memory.import(&path, 1, 1, 4, &both);
    let (report, ..) = replayed(&memory, &both, "jsonl");
    assert_eq!((report.rows, report.pending_rows, report.aborted_rows), (0, 4, 0));

    memory.verdict("v0", COMMIT, 1, 1);
    memory.verdict("v0", ABORT, 1, 1);
    assert_eq!(text_of(&memory, &both), "{\"n\":0}\n{\"n\":2}\n");

    memory.verdict("v1", ABORT, 1, 1);
    memory.verdict("v1", COMMIT, 1, 1);
    let (report, ..) = replayed(&memory, &both, "jsonl");
    assert_eq!((report.rows, report.pending_rows, report.aborted_rows), (2, 0, 2));

    // Another attempt has a verdict of its own; one that comes behind it is of no attempt.
    memory.import(&path, 1, 2, 4, &names(&["v1"]));
    memory.verdict("v1", COMMIT, 1, 2);
    memory.import(&path, 1, 2, 2, &names(&["v1"]));
    assert_eq!(text_of(&memory, &names(&["v1"])), "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
}

#[test]
fn jobs_that_interleave_come_in_their_own_order() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.csv"), dir.path().join("b.csv"));
    std::fs::write(&a, "n\n1\n2\n").unwrap();
    std::fs::write(&b, "n\n3\n4\n").unwrap();
    let one = names(&["v0"]);
    let mut memory = Memory::default();
    memory.import(&b, 2, 1, 1, &one);
    memory.import(&a, 1, 1, 1, &one);
    memory.verdict("v0", COMMIT, 2, 1);
    memory.verdict("v0", COMMIT, 1, 1);
    let expect = "{\"n\":\"1\"}\n{\"n\":\"2\"}\n{\"n\":\"3\"}\n{\"n\":\"4\"}\n";
    assert_eq!(text_of(&memory, &one), expect);
}

#[test]
fn columns_of_several_sources_become_one_schema() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.jsonl"), dir.path().join("b.jsonl"));
    std::fs::write(&a, "{\"k\":1,\"x\":1,\"n\":null}\n").unwrap();
    std::fs::write(&b, "{\"k\":2,\"y\":\"t\",\"x\":\"s\",\"n\":0.5}\n").unwrap();
    let one = names(&["v0"]);
    let mut memory = Memory::default();
    for (job, path) in [(1, &a), (2, &b)] {
        memory.import(path, job, 1, 1, &one);
        memory.verdict("v0", COMMIT, job, 1);
    }
    let (_, _dir, target) = replayed(&memory, &one, "csv");
    let text = std::fs::read_to_string(target).unwrap();
    assert_eq!(text, "k,x,n,y\n1,1,,\n2,\"\"\"s\"\"\",0.5,t\n");
}

#[test]
fn nothing_is_named_when_a_replay_fails() {
    let mut memory = Memory::default();
    let stamp = SliceStamp { job: BroadcastId(1), attempt: 1, file: 0, first_row: 0, rows: 1 };
    memory.slice("v0", stamp, b"no stream");
    memory.verdict("v0", COMMIT, 1, 1);
    let dir = tempfile::tempdir().unwrap();
    let io: Arc<dyn Io> = Arc::new(FsIo::new());
    let target = dir.path().join("o.jsonl");
    let (p, v) = (names(&["p"]), names(&["v0"]));
    let error = replay_rows(&memory, (&p, &v), &empty_schema(), (&io, &target), &mut |_, _| {});
    let error = error.unwrap_err();
    assert_eq!((error.kind(), error.lsn()), (ErrorKind::Corrupt, Lsn::new(1)));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A message was left out, and the replay said nothing of it.
#[test]
fn a_message_whose_first_chunks_are_trimmed_is_counted_as_lost() {
    use crate::broadcast::{Broadcaster, Options, Request};
    use crate::io::mem::{Machine, MemIo};
    use crate::log::{CreateMode, Options as LogOptions};
    use crate::store::{Store, StoreOptions};

    let io: Arc<dyn Io> = Arc::new(MemIo::new(Machine::new()));
    let log = LogOptions::new().segment_bytes_max(64 << 10).io(Arc::clone(&io));
    let store = StoreOptions::new().create(CreateMode::IfMissing).log(log).message_len_max(8 << 10);
    let broadcaster = Broadcaster::open(Store::open("/store", &store).unwrap(), Options::new());
    let broadcaster = broadcaster.unwrap();
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let send = |vchannel: &str, payload: Vec<u8>| {
        let request = Request::new("Noop", None, vec![vchannel.to_owned()], payload);
        drop(broadcaster.submit(&request, None).unwrap());
    };
    send("a", vec![7; 200 << 10]);
    send("a", b"last".to_vec());
    send("b", b"other".to_vec());
    let channel = broadcaster.jobs().channel("p0").unwrap();
    channel.trim(Lsn::new(10).unwrap()).unwrap();
    assert!(channel.oldest() > Lsn::FIRST);
    broadcaster.close().unwrap();
    let view = StoreView::open(Path::new("/store"), Arc::clone(&io)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let files: Arc<dyn Io> = Arc::new(FsIo::new());
    for (vchannel, lost) in [("a", 1), ("b", 0)] {
        let selection = ReplaySelection::new(None, Some(vchannel.to_owned()));
        let target = dir.path().join("messages.jsonl");
        let report = replay(&view, &selection, &files, &target, &mut |_, _| {}).unwrap();
        assert_eq!((report.rows, report.lost_messages), (1, lost), "{vchannel}");
    }
}
