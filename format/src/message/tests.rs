//! Tests of messages and their typed values.

use std::fmt::Debug;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;

fn encoded(properties: &Properties, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    properties.encode(payload, &mut out);
    assert_eq!(out.len(), properties.encoded_len(payload));
    out
}

/// Encodes, decodes and encodes again, alone and within a message.
#[track_caller]
fn check<P: Property + Debug + PartialEq>(value: &P) {
    let mut bytes = Vec::new();
    value.encode_value(&mut bytes).unwrap();
    assert_eq!(P::decode_value(&bytes).as_ref(), Ok(value));
    let mut properties = Properties::new();
    properties.set(value).unwrap();
    let record = encoded(&properties, b"payload");
    let message = Message::decode(&record).unwrap();
    assert_eq!(message.property::<P>().unwrap().as_ref(), Some(value));
    assert_eq!(message.value(P::KEY), Some(&bytes[..]));
    assert_eq!(record[message.value_range(P::KEY).unwrap()], bytes);
    assert_eq!(properties.get::<P>().unwrap().as_ref(), Some(value));
    for cut in 0..bytes.len() {
        // A cut text is a text; everything else has one end.
        if let Ok(shorter) = P::decode_value(&bytes[..cut]) {
            assert_ne!(shorter, *value);
        }
    }
}

fn scope(client_key: &[u8]) -> Scope {
    Scope {
        principal: "default".into(),
        message_type: "Import".into(),
        domain: "collection".into(),
        identity: "7".into(),
        generation: 1,
        client_key: client_key.to_vec(),
    }
}

fn broadcast() -> BroadcastHeader {
    let resource =
        |key: &str, shared| Resource { domain: "collection".into(), key: key.into(), shared };
    BroadcastHeader {
        id: BroadcastId(9),
        vchannels: vec!["a".into(), "b".into()],
        resources: vec![resource("x", true), resource("y", false)],
        ack: AckMode::Consumer,
    }
}

fn fingerprint(fields: &[(&str, u8)]) -> Fingerprint {
    let fields = fields
        .iter()
        .map(|&(name, byte)| FingerprintField { name: name.into(), digest: [byte; 32] })
        .collect();
    Fingerprint { version: 1, fields }
}

#[test]
fn every_typed_value_comes_back() {
    check(&Version(MESSAGE_VERSION));
    check(&MessageType("Import".into()));
    check(&WriterTerm(3));
    check(&TimeTick(u64::MAX));
    check(&LastConfirmed(0));
    check(&Vchannel("airports-0".into()));
    check(&TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()));
    check(&broadcast());
    check(&scope(b"nightly-1"));
    check(&fingerprint(&[("files", 1), ("options", 2)]));
    check(&SliceStamp { job: BroadcastId(9), attempt: 1, file: 2, first_row: 8192, rows: 77 });
}

#[test]
fn unknown_keys_are_kept_and_passed_on() {
    let mut properties = Properties::new();
    properties.set_value("_zz", b"later".to_vec()).unwrap();
    properties.set_value("of the caller", Vec::new()).unwrap();
    let record = encoded(&properties, b"p");
    let message = Message::decode(&record).unwrap();
    assert_eq!(message.property_count(), 2);
    let kept: Vec<_> = message.properties().collect();
    assert_eq!(kept, [("_zz", &b"later"[..]), ("of the caller", &b""[..])]);
    assert_eq!(message.payload(), b"p");
    assert_eq!(encoded(&Properties::of(&message), message.payload()), record);
}

#[test]
fn keys_must_ascend() {
    let property = |key: &str| [&[1, 0, 0, 0][..], key.as_bytes(), &[0; 4]].concat();
    for (keys, at) in [(["b", "a"], 13), (["a", "a"], 13)] {
        let record = [vec![2, 0, 0, 0], property(keys[0]), property(keys[1])].concat();
        let kind = DecodeErrorKind::Text { name: "key" };
        assert_eq!(Message::decode(&record), Err(DecodeError::new(at, kind)));
    }
    let empty = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(Message::decode(&empty), Err(DecodeError::field(4, "key", 0)));
}

#[test]
fn an_error_in_a_value_stands_at_its_offset_in_the_record() {
    let mut properties = Properties::new();
    properties.set_value("_tt", vec![1; 9]).unwrap();
    let record = encoded(&properties, b"");
    let error = Message::decode(&record).unwrap().property::<TimeTick>().unwrap_err();
    // 4 count, 4 + 3 key, 4 length, 8 tick.
    assert_eq!(error, DecodeError::new(23, DecodeErrorKind::Trailing { len: 1 }));
}

#[test]
fn an_unknown_version_is_unsupported() {
    let kind = DecodeErrorKind::Unsupported { found: 2, supported: 1 };
    assert_eq!(Version::decode_value(&[2, 0, 0, 0]), Err(DecodeError::new(0, kind)));
}

#[test]
fn a_chunk_has_both_keys_a_total_of_two_and_an_index_below_it() {
    let message = |index: Option<u32>, total: Option<u32>| {
        let mut properties = Properties::new();
        for (key, value) in [(CHUNK_INDEX, index), (CHUNK_TOTAL, total)] {
            if let Some(value) = value {
                properties.set_value(key, value.to_le_bytes().to_vec()).unwrap();
            }
        }
        encoded(&properties, b"")
    };
    for (index, total, expected) in [
        (None, None, Ok(None)),
        (Some(0), Some(2), Ok(Chunk::new(0, 2))),
        (Some(0), None, Err(CHUNK_TOTAL)),
        (None, Some(2), Err(CHUNK_INDEX)),
        (Some(0), Some(1), Err(CHUNK_TOTAL)),
        (Some(2), Some(2), Err(CHUNK_INDEX)),
        (Some(65_535), Some(65_536), Ok(Chunk::new(65_535, 65_536))),
        (Some(0), Some(65_537), Err("limit")),
        (Some(0), Some(u32::MAX), Err("limit")),
    ] {
        let record = message(index, total);
        let found = Message::decode(&record).unwrap().chunk();
        let found = found.map_err(|error| match error.kind {
            DecodeErrorKind::Field { name, .. } => name,
            DecodeErrorKind::Limit { max: 65_536, .. } => "limit",
            other => panic!("{other:?}"),
        });
        assert_eq!(found, expected);
    }
    assert_eq!(Chunk::new(0, 65_537), None);
    let mut properties = Properties::new();
    properties.set_chunk(Chunk::new(1, 3).unwrap()).unwrap();
    let record = encoded(&properties, b"");
    assert_eq!(Message::decode(&record).unwrap().chunk(), Ok(Chunk::new(1, 3)));
}

#[test]
fn limits_of_properties_hold_for_writers_and_readers() {
    let mut properties = Properties::new();
    for i in 0..PROPERTY_COUNT_MAX {
        properties.set_value(format!("{i}"), Vec::new()).unwrap();
    }
    properties.set_value("0", vec![1]).unwrap();
    let error = properties.set_value("one more", Vec::new()).unwrap_err();
    assert_eq!(error.kind, EncodeErrorKind::Limit { len: 257, max: 256 });
    assert!(properties.set_chunk(Chunk::new(0, 2).unwrap()).is_err());
    assert!(properties.set_value("x".repeat(257), Vec::new()).is_err());
    assert!(properties.set_value("0", vec![0; 1_048_577]).is_err());
    assert!(properties.set_value("", Vec::new()).is_err());
    assert_eq!(Message::decode(&encoded(&properties, b"")).unwrap().property_count(), 256);
    let kind = DecodeErrorKind::Limit { len: 257, max: 256 };
    assert_eq!(Message::decode(&[1, 1, 0, 0]), Err(DecodeError::new(0, kind)));
}

#[test]
fn lists_of_a_broadcast_are_sorted_and_unique() {
    let changes: [fn(&mut BroadcastHeader); 5] = [
        |b| b.vchannels.reverse(),
        |b| b.vchannels[1] = "a".into(),
        |b| b.vchannels.clear(),
        |b| b.vchannels[0].clear(),
        |b| b.resources[1].key = "x".into(),
    ];
    for change in changes {
        let mut wrong = broadcast();
        change(&mut wrong);
        assert!(wrong.encode(&mut Vec::new()).is_err(), "{wrong:?}");
    }
}

#[test]
fn fingerprints_name_the_fields_that_differ() {
    let a = fingerprint(&[("files", 1), ("options", 2), ("rows", 3)]);
    let b = fingerprint(&[("files", 9), ("partition", 4), ("rows", 3)]);
    assert_eq!(a.differing_fields(&b), ["files", "options", "partition"]);
    assert_eq!(a.differing_fields(&b), b.differing_fields(&a));
    assert!(a.differing_fields(&a).is_empty());
    let unsorted = fingerprint(&[("b", 1), ("a", 2)]);
    assert!(unsorted.encode(&mut Vec::new()).is_err());
}

#[test]
fn time_ticks_ascend_whatever_the_clock_says() {
    let mut tick = TimeTick::from_parts(1000, TimeTick::LOGICAL_MAX - 1).unwrap();
    for (now_ms, ms, logical) in [
        (1000, 1000, TimeTick::LOGICAL_MAX),
        // A full count carries into the milliseconds.
        (1000, 1001, 0),
        (999, 1001, 1),
        (1002, 1002, 0),
        (u64::MAX, 1002, 1),
    ] {
        let next = tick.next(now_ms).unwrap();
        assert!(next > tick);
        assert_eq!((next.ms(), next.logical()), (ms, logical));
        tick = next;
    }
    assert_eq!(TimeTick(u64::MAX).next(0), None);
    assert_eq!(TimeTick::from_parts(TimeTick::MS_MAX + 1, 0), None);
    assert_eq!(TimeTick::from_parts(0, TimeTick::LOGICAL_MAX + 1), None);
}

fn any_scope() -> impl Strategy<Value = Scope> {
    // Few letters, so that parts of neighbours meet.
    let text = || "[a\u{0}]{0,3}";
    (text(), text(), text(), text(), 0..3_u64, vec(prop_oneof![Just(b'a'), Just(0)], 1..4))
        .prop_map(|(principal, message_type, domain, identity, generation, client_key)| Scope {
            principal,
            message_type,
            domain,
            identity,
            generation,
            client_key,
        })
}

proptest! {
    #[test]
    fn messages_come_back(
        entries in btree_map("[^\u{0}]{1,8}", vec(any::<u8>(), 0..20), 0..8),
        payload in vec(any::<u8>(), 0..50),
    ) {
        let mut properties = Properties::new();
        for (key, value) in &entries {
            properties.set_value(key.clone(), value.clone()).unwrap();
        }
        let record = encoded(&properties, &payload);
        let message = Message::decode(&record).unwrap();
        prop_assert_eq!(message.payload(), &payload[..]);
        prop_assert_eq!(Properties::of(&message), properties);
        for cut in 0..record.len() - payload.len() {
            prop_assert!(Message::decode(&record[..cut]).is_err());
        }
    }

    #[test]
    fn any_bytes_that_decode_encode_to_themselves(record in vec(0..4_u8, 0..40)) {
        if let Ok(message) = Message::decode(&record) {
            prop_assert_eq!(encoded(&Properties::of(&message), message.payload()), record);
        }
    }

    #[test]
    fn scopes_are_equal_exactly_if_their_bytes_are(a in any_scope(), b in any_scope()) {
        let (mut a_bytes, mut b_bytes) = (Vec::new(), Vec::new());
        a.encode(&mut a_bytes).unwrap();
        b.encode(&mut b_bytes).unwrap();
        prop_assert_eq!(a == b, a_bytes == b_bytes);
        // Neither is the other's begin, so that a scope stays one also where more follows.
        prop_assert_eq!(a == b, a_bytes.starts_with(&b_bytes));
        prop_assert_eq!(Scope::decode_value(&a_bytes), Ok(a));
    }

    #[test]
    fn client_keys_may_hold_any_bytes(client_key in vec(any::<u8>(), 1..=256)) {
        let scope = scope(&client_key);
        let mut bytes = Vec::new();
        scope.encode(&mut bytes).unwrap();
        prop_assert_eq!(Scope::decode_value(&bytes), Ok(scope));
    }

    #[test]
    fn broadcast_headers_come_back(
        id in any::<u64>(),
        vchannels in btree_set("[a-c]{1,3}", 1..6),
        objects in btree_map(("[a-c]{0,2}", "[a-c]{0,2}"), any::<bool>(), 0..6),
        consumer in any::<bool>(),
    ) {
        let resources = objects
            .into_iter()
            .map(|((domain, key), shared)| Resource { domain, key, shared })
            .collect();
        let ack = if consumer { AckMode::Consumer } else { AckMode::Append };
        let vchannels = vchannels.into_iter().collect();
        check(&BroadcastHeader { id: BroadcastId(id), vchannels, resources, ack });
    }
}
