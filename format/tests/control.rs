//! The vectors of control records, in both directions: each against the value written out here.

#![cfg(test)]

#[expect(dead_code, reason = "values are written out here, not read from annotations")]
mod vector;

use std::collections::BTreeMap;
use std::sync::Arc;

use oncelog_format::control::{
    Accepted, Ack, AckPosition, Attempt, Body, Channel, CheckpointBegin, CheckpointEnd,
    CheckpointPart, ClockRebase, Collection, ControlRecord, Done, DropCause, Dropped, Entries,
    Entry, Facts, FilterEntry, JobEntry, JobLink, JobPhase, JobPlan, JobState, Outcome, Park,
    PchannelEnd, PlanFile, PolicyRecord, Resume, Skip, TaskEntry, Term, WindowAccepted,
};
use oncelog_format::limits::TIME_MS_MAX;
use oncelog_format::message::{
    AckMode, BroadcastHeader, BroadcastId, Fingerprint, FingerprintField, Resource, Scope, TimeTick,
};

use vector::What;

const ID: BroadcastId = BroadcastId(9);

fn ends() -> Vec<PchannelEnd> {
    let end = |pchannel: &str, next_lsn| PchannelEnd { pchannel: pchannel.into(), next_lsn };
    vec![end("p0", 41), end("p1", 7)]
}

fn accepted(job: JobLink, keyed: bool) -> Body {
    let resource = |domain: &str, key: &str, shared| Resource {
        domain: domain.into(),
        key: key.into(),
        shared,
    };
    let field = |name: &str, byte| FingerprintField { name: name.into(), digest: [byte; 32] };
    let scope = Scope {
        principal: "default".into(),
        message_type: "Import".into(),
        domain: "collection".into(),
        identity: "7".into(),
        generation: 2,
        client_key: b"nightly-1".to_vec(),
    };
    Body::Accepted(Arc::new(Accepted {
        header: BroadcastHeader {
            id: ID,
            vchannels: vec!["airports-0".into(), "airports-1".into()],
            resources: vec![resource("collection", "7", true), resource("name", "airports", false)],
            ack: AckMode::Consumer,
        },
        message_type: "Import".into(),
        scope: keyed.then_some(scope),
        fingerprint: Fingerprint {
            version: 1,
            fields: vec![field("files", 0xA0), field("options", 0xA1)],
        },
        ends: ends(),
        lifetime_ms: 86_400_000,
        firm: true,
        job,
        properties: vec![("origin".into(), vec![1, 2])],
        trace: None,
        payload: b"body".to_vec(),
    }))
}

fn jobs() -> [(&'static str, Body); 4] {
    let collection = Collection {
        id: 7,
        name: "airports".into(),
        generation: 2,
        schema: b"{}".to_vec(),
        primary_key: Some("iata".into()),
        partition_function: 1,
        partition_version: 1,
        vchannels: vec!["airports-0".into(), "airports-1".into()],
    };
    let file = PlanFile {
        path: "a.csv".into(),
        bytes: 1000,
        modified_ns: 1_700_000_000_000_000_000,
        inode: 12,
        sha256: [0xAB; 32],
        rows: 10,
    };
    let plan = JobPlan {
        job: ID,
        attempt: 1,
        files: vec![file],
        slice_rows: 8192,
        partition_function: 1,
        partition_version: 1,
        vchannels: vec!["airports-0".into()],
        from: ends(),
        detail: b"{}".to_vec(),
    };
    let state = JobState {
        job: ID,
        attempt: 1,
        phase: JobPhase::Importing,
        progress: 50,
        rows: 77,
        reason: String::new(),
        detail: b"{}".to_vec(),
    };
    [
        ("collection", Body::Collection(Arc::new(collection))),
        ("job-plan", Body::JobPlan(Arc::new(plan))),
        ("job-state", Body::JobState(state)),
        ("attempt", Body::Attempt(Attempt { job: ID, attempt: 2 })),
    ]
}

fn broadcasts() -> [(&'static str, Body); 15] {
    let ends = |commit| JobLink::Ends { job: ID, attempt: 1, commit };
    let dropped = |cause| Body::Dropped(Dropped { id: ID, cause });
    let done = |outcome| Body::Done(Done { id: ID, outcome });
    let position =
        AckPosition { vchannel: 1, lsn: 41, time_tick: TimeTick(1_700_000_000_000 << 18 | 5) };
    [
        ("accepted", accepted(JobLink::None, true)),
        ("accepted-without-key", accepted(JobLink::None, false)),
        ("accepted-starts", accepted(JobLink::Starts, true)),
        ("accepted-commits", accepted(ends(true), true)),
        ("accepted-aborts", accepted(ends(false), true)),
        ("ack", Body::Ack(Ack { id: ID, positions: vec![position] })),
        ("done", done(Outcome::Done)),
        ("done-failed", done(Outcome::Failed("why".into()))),
        ("dropped-expired", dropped(DropCause::Expired)),
        ("dropped-evicted", dropped(DropCause::Evicted)),
        ("dropped-retired", dropped(DropCause::Retired)),
        ("park", Body::Park(Park { id: ID, reason: "why".into() })),
        ("resume", Body::Resume(Resume { id: ID, reason: "why".into() })),
        ("skip", Body::Skip(Skip { id: ID, reason: "why".into() })),
        (
            "channel",
            Body::Channel(Channel { vchannel: "airports-0".into(), pchannel: "p0".into() }),
        ),
    ]
}

fn policy() -> PolicyRecord {
    PolicyRecord {
        window_lifetime_ms: 86_400_000,
        window_count_max: 1_048_576,
        principal_share_max_percent: 25,
        task_retention_ms: 172_800_000,
        check_interval_ms: 300_000,
        evict_oldest: false,
        retry_age_max_ms: 600_000,
        broadcasts_per_hour_max: None,
    }
}

fn store() -> [(&'static str, Body); 6] {
    [
        ("policy", Body::Policy(policy())),
        ("clock-rebase", Body::ClockRebase(ClockRebase { from_ms: 1_600_000_000_000 })),
        ("term", Body::Term(Term { term: 3 })),
        ("window-accepted", Body::WindowAccepted(WindowAccepted { reason: "why".into() })),
        ("later-version", Body::Term(Term { term: 3 })),
        ("skippable", Body::Skipped { record_type: 0x80 }),
    ]
}

/// Of each kind one, of tasks one that is parked and one that failed.
fn entries() -> Vec<Entry> {
    let body = |name: &str| {
        let all = jobs().into_iter().chain(broadcasts());
        all.into_iter().find(|(n, _)| *n == name).unwrap().1
    };
    let Body::Accepted(accepted) = body("accepted") else { panic!() };
    let Body::Accepted(starts) = body("accepted-starts") else { panic!() };
    let Body::Collection(collection) = body("collection") else { panic!() };
    let Body::Channel(channel) = body("channel") else { panic!() };
    let Body::Ack(ack) = body("ack") else { panic!() };
    let Body::JobPlan(plan) = body("job-plan") else { panic!() };
    let Body::JobState(state) = body("job-state") else { panic!() };
    let task = TaskEntry {
        accepted,
        accepted_at_ms: 1_700_000_000_001,
        moved_at_ms: 1_700_000_000_005,
        owns: true,
        acks: ack.positions,
        parked: Some(("why".into(), 1_700_000_000_007)),
        done: None,
    };
    let done = Some((Outcome::Failed("why".into()), 1_700_000_000_009));
    let tombstone = TaskEntry { parked: None, done, ..task.clone() };
    let facts = Facts {
        last_id: 9,
        newest_ms: 1_700_000_000_009,
        term: 3,
        ignored: 4,
        expired: 5,
        evicted: 6,
        evicted_until_ms: 1_700_000_000_008,
        evicted_done_ms: 1_700_000_000_003,
        forgotten: 7,
        policy: Some(policy()),
    };
    let job = JobEntry {
        accepted: starts,
        made_at_ms: 1_700_000_000_002,
        attempt: 1,
        plan: Some(plan),
        state: Some(state),
        end: Some((true, ID)),
        over: Some((false, 1_700_000_000_006)),
    };
    let filter = FilterEntry { capacity: 2, count: 1, bits: [1, 0x80, 0, 2].repeat(2) };
    vec![
        Entry::Facts(facts),
        Entry::Collection(collection),
        Entry::Channel(channel),
        Entry::Task(task),
        Entry::Task(tombstone),
        Entry::Job(job),
        Entry::Filter(filter),
    ]
}

fn stream() -> Vec<u8> {
    let mut stream = Vec::new();
    entries().iter().for_each(|entry| entry.encode(&mut stream).unwrap());
    stream
}

fn checkpoints() -> [(&'static str, Body); 3] {
    let bytes = stream();
    let end = CheckpointEnd {
        covers: 40,
        begin_lsn: 41,
        part_count: 1,
        stream_bytes: u64::try_from(bytes.len()).unwrap(),
        sha256: [0xCD; 32],
    };
    let begin = CheckpointBegin { covers: 40, state_version: 2 };
    [
        ("checkpoint-begin", Body::CheckpointBegin(begin)),
        ("checkpoint-part", Body::CheckpointPart(CheckpointPart { covers: 40, index: 0, bytes })),
        ("checkpoint-end", Body::CheckpointEnd(end)),
    ]
}

#[test]
fn a_stream_comes_back_however_it_is_cut() {
    let stream = stream();
    for len in [1, 3, 4, 100, stream.len()] {
        let (mut found, mut entries_of) = (Vec::new(), Entries::default());
        for part in stream.chunks(len) {
            entries_of.push(part, |entry| found.push(entry)).unwrap();
        }
        entries_of.finish().unwrap();
        assert_eq!(found, entries());
    }
}

#[test]
fn no_cut_and_no_change_of_a_stream_panics_and_none_is_taken_for_whole() {
    let stream = stream();
    let decode = |bytes: &[u8]| {
        let (mut found, mut entries) = (Vec::new(), Entries::default());
        entries.push(bytes, |entry| found.push(entry))?;
        entries.finish().map(|()| found)
    };
    let ends: Vec<usize> = entries()
        .iter()
        .scan(0, |at, entry| {
            let mut bytes = Vec::new();
            entry.encode(&mut bytes).unwrap();
            *at += bytes.len();
            Some(*at)
        })
        .collect();
    for len in 1..stream.len() {
        assert_eq!(decode(&stream[..len]).is_ok(), ends.contains(&len), "cut at {len}");
    }
    for at in 0..stream.len() {
        for change in [0x01, 0x80, 0xFF] {
            let mut bytes = stream.clone();
            bytes[at] ^= change;
            // What decodes is another stream, and the only one with these bytes.
            if let Ok(found) = decode(&bytes) {
                let mut again = Vec::new();
                found.iter().for_each(|entry| entry.encode(&mut again).unwrap());
                assert_eq!(again, bytes, "changed at {at}");
            }
        }
    }
}

#[test]
fn valid_bytes_decode_to_their_values_and_encode_back() {
    let values = jobs().into_iter().chain(broadcasts()).chain(store()).chain(checkpoints());
    let mut values: BTreeMap<String, Body> =
        values.map(|(name, body)| (format!("control-{name}"), body)).collect();
    for vector in vector::valid().iter().filter(|v| matches!(v.what, What::Control)) {
        let body = values.remove(&vector.name).unwrap();
        let record = ControlRecord { at_ms: 1_700_000_000_001, body };
        assert_eq!(ControlRecord::decode(&vector.bytes).as_ref(), Ok(&record), "{}", vector.name);
        // What a reader ignores is not its to write.
        if !["control-later-version", "control-skippable"].contains(&vector.name.as_str()) {
            assert_eq!(record.encode().as_ref(), Ok(&vector.bytes), "{}", vector.name);
        }
    }
    assert!(values.is_empty(), "{values:?}");
}

#[test]
fn each_record_says_what_it_is() {
    for (vector, body) in jobs().into_iter().chain(broadcasts()).chain(store()).chain(checkpoints())
    {
        let name = match vector {
            "job-plan" => "JobPlan",
            "job-state" => "JobState",
            "later-version" | "term" => "Term",
            "skippable" => "Skipped",
            "clock-rebase" => "ClockRebase",
            "window-accepted" => "WindowAccepted",
            "checkpoint-begin" => "CheckpointBegin",
            "checkpoint-part" => "CheckpointPart",
            "checkpoint-end" => "CheckpointEnd",
            "collection" => "Collection",
            "channel" => "Channel",
            "attempt" => "Attempt",
            "policy" => "Policy",
            "park" => "Park",
            "resume" => "Resume",
            "skip" => "Skip",
            "ack" => "Ack",
            of if of.starts_with("accepted") => "Accepted",
            of if of.starts_with("done") => "Done",
            of if of.starts_with("dropped") => "Dropped",
            other => panic!("{other}"),
        };
        assert_eq!(body.name(), name);
        let is_checkpoint = name.starts_with("Checkpoint");
        assert_eq!(body.is_checkpoint(), is_checkpoint, "{name}");
        let finishes = ["Ack", "Done", "Dropped", "Park", "Skip"].contains(&name);
        assert_eq!(body.is_finishing(), is_checkpoint || finishes, "{name}");
    }
}

#[test]
fn the_time_of_a_record_fills_six_bytes_at_most() {
    let record = |at_ms| ControlRecord { at_ms, body: Body::Term(Term { term: 3 }) };
    let latest = record(TIME_MS_MAX);
    assert_eq!(ControlRecord::decode(&latest.encode().unwrap()), Ok(latest));
    let error = ControlRecord::decode(&record(TIME_MS_MAX + 1).encode().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "field at must not be 281474976710656 at byte 2");
}
