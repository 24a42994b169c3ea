use super::*;
use crate::message::{
    AckMode, BroadcastHeader, BroadcastId, Fingerprint, FingerprintField, Resource, Scope, TimeTick,
};

/// Miri is a thousand times slower: it meets one bit of this many.
const STEP: usize = if cfg!(miri) { 397 } else { 1 };

fn accepted(job: JobLink) -> Accepted {
    Accepted {
        header: BroadcastHeader {
            id: BroadcastId(7),
            vchannels: vec!["a".into(), "b".into()],
            resources: vec![Resource {
                domain: "collection".into(),
                key: "1".into(),
                shared: true,
            }],
            ack: AckMode::Consumer,
        },
        message_type: "Import".into(),
        scope: Some(Scope {
            principal: "default".into(),
            message_type: "Import".into(),
            domain: "collection".into(),
            identity: "1".into(),
            generation: 2,
            client_key: b"nightly-1".to_vec(),
        }),
        fingerprint: Fingerprint {
            version: 1,
            fields: vec![FingerprintField { name: "payload".into(), digest: [3; 32] }],
        },
        ends: vec![PchannelEnd { pchannel: "p0".into(), next_lsn: 1 }],
        lifetime_ms: 86_400_000,
        firm: true,
        job,
        properties: vec![("k".into(), b"v".to_vec())],
        trace: Some("00-1-2-01".into()),
        payload: b"payload".to_vec(),
    }
}

fn plan() -> JobPlan {
    let file = PlanFile {
        path: "airports.csv".into(),
        bytes: 10,
        modified_ns: 11,
        inode: 12,
        sha256: [9; 32],
        rows: 13,
    };
    JobPlan {
        job: BroadcastId(7),
        attempt: 1,
        files: vec![file],
        slice_rows: 8192,
        partition_function: 1,
        partition_version: 1,
        vchannels: vec!["a".into()],
        from: vec![PchannelEnd { pchannel: "p0".into(), next_lsn: 4 }],
        detail: vec![1, 2],
    }
}

fn bodies() -> Vec<Body> {
    let id = BroadcastId(7);
    let reason = String::from("why");
    let ends = |commit| JobLink::Ends { job: id, attempt: 2, commit };
    let links = [JobLink::None, JobLink::Starts, ends(true), ends(false)];
    let mut bodies: Vec<Body> =
        links.into_iter().map(|link| Body::Accepted(Arc::new(accepted(link)))).collect();
    let unkeyed = Accepted { scope: None, trace: None, ..accepted(JobLink::None) };
    let position = AckPosition { vchannel: 1, lsn: 5, time_tick: TimeTick(6) };
    let collection = Collection {
        id: 1,
        name: "airports".into(),
        generation: 0,
        schema: vec![1],
        primary_key: Some("iata".into()),
        partition_function: 1,
        partition_version: 1,
        vchannels: vec!["a".into(), "b".into()],
    };
    bodies.extend([
        Body::Accepted(Arc::new(unkeyed)),
        Body::Collection(Arc::new(collection)),
        Body::Channel(Channel { vchannel: "a".into(), pchannel: "p0".into() }),
        Body::Ack(Ack { id, positions: vec![position] }),
        Body::Done(Done { id, outcome: Outcome::Done }),
        Body::Done(Done { id, outcome: Outcome::Failed(reason.clone()) }),
        Body::Park(Park { id, reason: reason.clone() }),
        Body::Resume(Resume { id, reason: reason.clone() }),
        Body::Skip(Skip { id, reason: reason.clone() }),
        Body::Attempt(Attempt { job: id, attempt: 2 }),
        Body::JobPlan(Arc::new(plan())),
        Body::JobState(JobState {
            job: id,
            attempt: 1,
            phase: JobPhase::Importing,
            progress: 50,
            rows: 99,
            reason: reason.clone(),
            detail: vec![],
        }),
        Body::CheckpointBegin(CheckpointBegin { covers: 5, state_version: 1 }),
        Body::CheckpointPart(CheckpointPart { covers: 5, index: 1, bytes: vec![1, 2, 3] }),
        Body::CheckpointEnd(CheckpointEnd {
            covers: 5,
            begin_lsn: 6,
            part_count: 2,
            stream_bytes: 7,
            sha256: [4; 32],
        }),
        Body::ClockRebase(ClockRebase { from_ms: 3 }),
        Body::Term(Term { term: 1 }),
        Body::WindowAccepted(WindowAccepted { reason }),
        Body::Policy(PolicyRecord {
            window_lifetime_ms: 1,
            window_count_max: 2,
            principal_share_max_percent: 25,
            task_retention_ms: 3,
            check_interval_ms: 4,
            evict_oldest: true,
            retry_age_max_ms: 5,
            broadcasts_per_hour_max: None,
        }),
    ]);
    for cause in [DropCause::Expired, DropCause::Evicted, DropCause::Retired] {
        bodies.push(Body::Dropped(Dropped { id, cause }));
    }
    bodies
}

fn records() -> impl Iterator<Item = (ControlRecord, Vec<u8>)> {
    bodies().into_iter().map(|body| {
        let record = ControlRecord { at_ms: 1_700_000_000_000, body };
        let bytes = record.encode().unwrap();
        (record, bytes)
    })
}

#[test]
fn every_record_decodes_to_what_was_encoded() {
    for (record, bytes) in records() {
        assert_eq!(ControlRecord::decode(&bytes), Ok(record));
    }
}

#[test]
fn every_cut_of_every_record_is_an_error() {
    for (record, bytes) in records() {
        for len in (0..bytes.len()).step_by(STEP) {
            let cut = ControlRecord::decode(bytes.get(..len).unwrap());
            assert!(cut.is_err(), "{} cut at {len}: {cut:?}", record.body.name());
        }
    }
}

#[test]
fn every_flipped_bit_decodes_to_something_that_encodes_the_same_or_is_an_error() {
    for (_, bytes) in records() {
        for at in (0..bytes.len() * 8).step_by(STEP) {
            let mut flipped = bytes.clone();
            *flipped.get_mut(at / 8).unwrap() ^= 1 << (at % 8);
            if let Ok(record) = ControlRecord::decode(&flipped)
                && flipped.get(1) == Some(&RECORD_VERSION)
                && !matches!(record.body, Body::Skipped { .. })
            {
                assert_eq!(record.encode().as_ref(), Ok(&flipped));
            }
        }
    }
}

#[test]
fn a_later_version_may_append_fields_and_ours_may_not() {
    for (record, mut bytes) in records() {
        bytes.push(0xAB);
        let trailing = ControlRecord::decode(&bytes).unwrap_err();
        assert_eq!(trailing.kind, DecodeErrorKind::Trailing { len: 1 });
        *bytes.get_mut(1).unwrap() = RECORD_VERSION + 1;
        assert_eq!(ControlRecord::decode(&bytes), Ok(record));
    }
}

#[test]
fn a_type_that_must_be_understood_is_unsupported_and_others_are_skipped() {
    let bytes = |record_type: u8| [record_type, 1, 5, 0, 0, 0, 0, 0, 0, 0, 77];
    for record_type in [0x00, 0x14, 0x7F] {
        let error = ControlRecord::decode(&bytes(record_type)).unwrap_err();
        assert!(matches!(error.kind, DecodeErrorKind::Unsupported { .. }), "{record_type:#x}");
    }
    for record_type in [0x80, 0xFF] {
        let skipped = ControlRecord { at_ms: 5, body: Body::Skipped { record_type } };
        assert_eq!(ControlRecord::decode(&bytes(record_type)), Ok(skipped));
    }
}

#[test]
fn a_hostile_count_allocates_nothing() {
    let mut bytes = vec![0x04, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(&7_u64.to_le_bytes());
    bytes.extend_from_slice(&65_536_u32.to_le_bytes());
    let error = ControlRecord::decode(&bytes).unwrap_err();
    assert_eq!(error.kind, DecodeErrorKind::Truncated { need: 65_536 * 20, have: 0 });
}
