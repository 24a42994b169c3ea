//! A store of many keys, made of the records that as many broadcasts would have left.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use oncelog::{Batch, CreateMode, Durability, Log, Options, RecordKind};
use oncelog_format::control::{
    Accepted, Ack, AckPosition, Body, ControlRecord, Done, JobLink, Outcome,
};
use oncelog_format::message::{
    AckMode, BroadcastHeader, BroadcastId, Fingerprint, FingerprintField, Scope, TimeTick,
};
use sha2::{Digest as _, Sha256};

use crate::{VCHANNELS, open, request};

/// Broadcasts whose records go into one batch.
const BATCH_COUNT: u64 = 500;

/// Makes a store in `dir` in which the keys from 0 to `count`, that one excluded, are done now, and
/// are kept for so long.
pub(crate) fn store(dir: &Path, count: u64, lifetime_ms: u64) {
    open(dir).close().unwrap();
    let options = Options::new().create(CreateMode::Never);
    let (control, _) = Log::open(dir.join("store/control"), &options).unwrap();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let at_ms = u64::try_from(since.as_millis()).unwrap();
    for first in (0..count).step_by(usize::try_from(BATCH_COUNT).unwrap()) {
        let keys = first..count.min(first + BATCH_COUNT);
        let records = keys.flat_map(|key| records(key, lifetime_ms));
        let encoded = records.map(|body| ControlRecord { at_ms, body }.encode().unwrap());
        let encoded: Vec<Vec<u8>> = encoded.collect();
        let records: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
        let batch = Batch { kind: RecordKind::CONTROL, records: &records };
        control.append_batch(batch, Durability::Buffered).unwrap();
    }
    control.close().unwrap();
}

/// What control has of one broadcast once it is done.
fn records(key: u64, lifetime_ms: u64) -> [Body; 3] {
    let (id, request) = (BroadcastId(key + 1), request(key));
    let scope = request.scope.as_deref().cloned().unwrap();
    let header = BroadcastHeader {
        id,
        vchannels: VCHANNELS.map(str::to_owned).to_vec(),
        resources: Vec::new(),
        ack: AckMode::Append,
    };
    let accepted = Accepted {
        header,
        message_type: request.message_type.clone(),
        fingerprint: fingerprint(&scope, &request.payload),
        scope: Some(scope),
        ends: Vec::new(),
        lifetime_ms,
        firm: true,
        job: JobLink::None,
        properties: Vec::new(),
        trace: None,
        payload: request.payload,
    };
    let position = |vchannel: u32| {
        let lsn = 2 * key + u64::from(vchannel) + 1;
        AckPosition { vchannel, lsn, time_tick: TimeTick(lsn + (1_700_000_000_000 << 18)) }
    };
    let ack = Ack { id, positions: vec![position(0), position(1)] };
    let done = Done { id, outcome: Outcome::Done };
    [Body::Accepted(Arc::new(accepted)), Body::Ack(ack), Body::Done(done)]
}

/// What a broadcaster digests of such a request. A lookup would conflict otherwise.
fn fingerprint(scope: &Scope, payload: &[u8]) -> Fingerprint {
    let mut key = Vec::new();
    scope.encode(&mut key).unwrap();
    let mut vchannels = Vec::new();
    for name in VCHANNELS {
        vchannels.extend_from_slice(&u64::try_from(name.len()).unwrap().to_le_bytes());
        vchannels.extend_from_slice(name.as_bytes());
    }
    let field = |name: &str, value: &[u8]| {
        let mut hash = Sha256::new();
        for part in [b"oncelog fingerprint 1", &*key, name.as_bytes()] {
            hash.update(u64::try_from(part.len()).unwrap().to_le_bytes());
            hash.update(part);
        }
        hash.update(value);
        FingerprintField { name: name.to_owned(), digest: hash.finalize().into() }
    };
    let fields = vec![field("payload", payload), field("vchannels", &vchannels)];
    Fingerprint { version: 1, fields }
}
