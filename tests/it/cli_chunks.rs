//! Messages in chunks as scripts see them: once and whole, or as they stand where that is asked for.

use std::fs;
use std::path::Path;

use oncelog::broadcast::{Broadcaster, Options, Request};
use oncelog::channel::Outgoing;
use oncelog::{CreateMode, Store, StoreOptions};
use oncelog_format::message::{
    AckMode, BroadcastHeader, BroadcastId, Chunk, MessageType, Properties, TraceContext, Vchannel,
};
use serde_json::Value;

use crate::cli::{Run, fresh, run};

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn payload() -> String {
    (0..200).map(|n| format!("{n:05}")).collect()
}

/// A store whose channel holds: a whole message, one in chunks on each of two vchannels, the begin
/// of one that is never whole, and a whole one.
fn store(dir: &str) -> Broadcaster {
    let options = StoreOptions::new().create(CreateMode::IfMissing).message_len_max(500);
    let store = Store::open(dir, &options).unwrap();
    let broadcaster = Broadcaster::open(store, Options::new()).unwrap();
    broadcaster.ensure_vchannels(&["a".into(), "b".into()]).unwrap();
    let send = |vchannels: &[&str], payload: &str| {
        let vchannels = vchannels.iter().map(|name| (*name).to_owned()).collect();
        let request = Request::new("Noop", None, vchannels, payload.into());
        drop(broadcaster.submit(&request, None).unwrap());
    };
    send(&["a"], "first");
    send(&["a", "b"], &payload());
    append_chunk(&broadcaster, (0, 3), "never");
    send(&["b"], "last");
    broadcaster
}

/// Appends a chunk of a broadcast of nobody.
fn append_chunk(broadcaster: &Broadcaster, (index, total): (u32, u32), payload: &str) {
    let header = BroadcastHeader {
        id: BroadcastId(99),
        vchannels: vec!["a".into()],
        resources: Vec::new(),
        ack: AckMode::Append,
    };
    let mut properties = Properties::new();
    properties.set(&header).unwrap();
    properties.set(&MessageType("Other".into())).unwrap();
    properties.set(&Vchannel("a".into())).unwrap();
    properties.set_chunk(Chunk::new(index, total).unwrap()).unwrap();
    let channel = broadcaster.jobs().channel("p0").unwrap();
    let message = Outgoing { properties, payload: payload.as_bytes() };
    channel.enqueue(&[message]).unwrap().wait().unwrap();
}

fn channel(store: &str) -> String {
    Path::new(store).join("channels/p0").to_str().unwrap().to_owned()
}

fn dump(store: &str, extra: &[&str]) -> Run {
    run(&[&["dump", &channel(store), "--json"], extra].concat(), b"")
}

#[track_caller]
fn check(run: &Run, expect: &[(&str, &str)]) {
    assert_eq!(run.code, 0, "{}", run.err);
    let objects = run.objects();
    let text = |object: &Value, key: &str| object[key].as_str().unwrap().to_owned();
    let found: Vec<_> = objects.iter().map(|o| (text(o, "vchannel"), text(o, "payload"))).collect();
    let expect: Vec<_> = expect.iter().map(|(v, p)| ((*v).to_owned(), (*p).to_owned())).collect();
    assert_eq!(found, expect);
}

#[test]
fn a_message_in_chunks_is_dumped_once_and_whole_and_one_that_is_not_whole_never() {
    let (_dir, path) = fresh("store");
    let broadcaster = store(&path);
    let whole = payload();
    let all = [("a", "first"), ("a", &whole), ("b", &whole), ("b", "last")];
    check(&dump(&path, &[]), &all);
    broadcaster.close().unwrap();
    let dumped = dump(&path, &["--type", "Noop"]);
    check(&dumped, &all);
    let objects = dumped.objects();
    assert_eq!(objects[0]["chunks"], Value::Null);
    let chunks = objects[1]["chunks"].as_u64().unwrap();
    assert!(chunks > 2);
    assert_eq!(objects[1]["lsn"], 1 + chunks, "where its last chunk stands");
    let properties = objects[1]["properties"].as_object().unwrap();
    assert!(!properties.contains_key("_ci") && !properties.contains_key("_ct"));
    check(&dump(&path, &["--type", "Other"]), &[]);
    check(&dump(&path, &["--vchannel", "b"]), &all[2..]);
    // From the middle of a run on: what ends behind it is whole.
    check(&dump(&path, &["--from", "3"]), &all[1..]);
    let next = format!("{}", 2 + chunks);
    check(&dump(&path, &["--from", &next]), &all[2..]);
    check(&dump(&path, &["--to", "3"]), &all[..1]);
    let last = format!("{}", 3 + 2 * chunks);
    check(&dump(&path, &["--follow", "--to", &last]), &all);
    let text = run(&["dump", &channel(&path)], b"");
    assert!(text.out.contains(&format!("({chunks} chunks)")), "{}", text.out);
}

#[test]
fn chunks_are_dumped_as_they_stand_where_that_is_asked_for() {
    let (_dir, path) = fresh("store");
    store(&path).close().unwrap();
    let objects = dump(&path, &["--chunks"]).objects();
    let lsns: Vec<u64> = objects.iter().map(|object| object["lsn"].as_u64().unwrap()).collect();
    assert_eq!(lsns, (1..=objects.len() as u64).collect::<Vec<_>>());
    let first = &objects[1]["properties"];
    assert_eq!(first["_ci"], 0);
    let total = first["_ct"].as_u64().unwrap();
    assert_eq!(objects.len() as u64, 3 + 2 * total);
    let never = dump(&path, &["--chunks", "--type", "Other"]).objects();
    assert_eq!((never.len(), &never[0]["payload"]), (1, &Value::from("never")));
}

#[test]
fn chunks_that_contradict_each_other_are_damage_and_hide_nothing_from_who_skips_it() {
    let (_dir, path) = fresh("store");
    let broadcaster = store(&path);
    // A run of its own tick: what contradicts is its own second chunk.
    let header = |index, total, payload: &'static str| {
        let mut properties = Properties::new();
        let id = BroadcastId(98);
        let vchannels = vec!["a".into()];
        let header = BroadcastHeader { id, vchannels, resources: Vec::new(), ack: AckMode::Append };
        properties.set(&header).unwrap();
        properties.set(&Vchannel("a".into())).unwrap();
        properties.set_chunk(Chunk::new(index, total).unwrap()).unwrap();
        Outgoing { properties, payload: payload.as_bytes() }
    };
    let channel = broadcaster.jobs().channel("p0").unwrap();
    let batch = [header(0, 3, "x"), header(1, 3, "y"), header(1, 3, "z")];
    let damaged = channel.enqueue(&batch).unwrap().wait().unwrap()[2].lsn.get();
    broadcaster.close().unwrap();
    let told = dump(&path, &[]);
    assert_eq!((told.code, told.objects().len()), (4, 4), "{}", told.err);
    assert_eq!((&told.error()["kind"], &told.error()["lsn"]), (&"Corrupt".into(), &damaged.into()));
    let skipped = dump(&path, &["--skip-damage"]);
    assert_eq!((skipped.code, skipped.objects().len()), (4, 5), "{}", skipped.err);
    assert_eq!(skipped.objects()[4]["payload"], "z");
}

#[test]
fn a_vchannel_is_replayed_in_whole_messages() {
    let (dir, path) = fresh("store");
    store(&path).close().unwrap();
    let out = dir.path().join("out.jsonl").to_str().unwrap().to_owned();
    let replayed = run(&["replay", &path, "--vchannel", "a", "--out", &out, "--json"], b"");
    assert_eq!((replayed.code, &replayed.objects()[0]["rows"]), (0, &2.into()), "{}", replayed.err);
    let rows = fs::read_to_string(out).unwrap();
    let rows = rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let payloads: Vec<_> = rows.map(|row| row["payload"].as_str().unwrap().to_owned()).collect();
    assert_eq!(payloads, ["first".to_owned(), payload()]);
}

#[test]
fn a_trace_parent_stands_in_every_copy_and_a_text_that_is_none_does_no_harm() {
    let (_dir, path) = fresh("store");
    let send = |key: &str, parent: &str| {
        let args = ["broadcast", &path, "--type", "Noop", "--vchannels", "a,b"];
        let sent = run(&[&args[..], &["--key", key, "--trace-parent", parent]].concat(), b"");
        assert_eq!(sent.code, 0, "{}", sent.err);
    };
    send("one", TRACEPARENT);
    send("two", "-none");
    let objects = dump(&path, &[]).objects();
    let key = <TraceContext as oncelog_format::message::Property>::KEY;
    let found: Vec<_> = objects.iter().map(|object| object["properties"][key].clone()).collect();
    let (some, none) = (Value::from(TRACEPARENT), Value::Null);
    assert_eq!(found, [some.clone(), some, none.clone(), none]);
    let control = Path::new(&path).join("control").to_str().unwrap().to_owned();
    let accepted = run(&["dump", &control, "--json", "--type", "Accepted"], b"").objects();
    assert_eq!(accepted.len(), 2);
}
