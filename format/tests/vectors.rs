//! The vectors, in both directions: their bytes decode to the values that they are annotated with,
//! and the values encode to the bytes. Invalid ones give the named error at the named offset.

#![cfg(test)]

mod vector;

use std::collections::BTreeMap;
use std::fmt::Display;

use oncelog_format::message::{
    AckMode, BroadcastHeader, Fingerprint, LastConfirmed, MessageType, Scope, SliceStamp, TimeTick,
    TraceContext, Vchannel, Version, WriterTerm,
};
use oncelog_format::{
    CursorCopy, DecodeErrorKind, Footer, FrameHeader, Message, Owner, Properties, SegmentHeader,
    Slot, decode_frame, decode_lock, encode_frame, encode_lock,
};

use vector::{Vector, What};

/// Fields by name, spelt as the vectors spell them.
#[derive(Default)]
struct Values(BTreeMap<String, String>);

impl Values {
    fn put(&mut self, name: impl Into<String>, value: impl Display) {
        assert!(self.0.insert(name.into(), value.to_string()).is_none());
    }

    fn text(&mut self, name: impl Into<String>, text: &str) {
        self.put(name, format!("\"{text}\""));
    }

    fn hex(&mut self, name: impl Into<String>, bytes: &[u8]) {
        // An empty field has no line.
        if !bytes.is_empty() {
            let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            self.put(name, hex);
        }
    }

    fn header(&mut self, prefix: &str, header: &SegmentHeader) {
        self.put(format!("{prefix}minor"), header.minor);
        self.put(format!("{prefix}compat"), header.compat);
        self.hex(format!("{prefix}uuid"), &header.uuid.0);
        self.put(format!("{prefix}number"), header.number);
        self.put(format!("{prefix}first_lsn"), header.first_lsn);
        self.put(format!("{prefix}salt"), header.salt);
        self.put(format!("{prefix}base_time"), header.base_time_ms);
    }

    fn frame_header(&mut self, header: &FrameHeader) {
        self.put("lsn", header.lsn);
        self.put("length", header.len);
        self.put("lag", header.lag.unwrap_or(u32::MAX));
        self.put("time", header.time_ms);
        self.put("kind", header.kind);
        self.put("flags", u8::from(header.batch_end));
    }

    fn footer(&mut self, footer: &Footer) {
        self.put("offset", footer.offset);
        self.put("last_lsn", footer.last_lsn);
        self.put("end", footer.end);
        self.put("durable_lsn", footer.durable_lsn);
        self.put("record_count", footer.record_count);
        self.put("payload_bytes", footer.payload_bytes);
        self.put("time_first", footer.time_first_ms);
        self.put("time_last", footer.time_last_ms);
        self.put("entry_count", footer.entries.len());
        for (i, entry) in footer.entries.iter().enumerate() {
            self.put(format!("entry{i}.lsn"), entry.lsn);
            self.put(format!("entry{i}.offset"), entry.offset);
            self.put(format!("entry{i}.time"), entry.time_ms);
        }
    }

    fn message(&mut self, message: &Message<'_>) {
        self.put("count", message.property_count());
        self.hex("payload", message.payload());
        if let Some(Version(version)) = message.property().unwrap() {
            self.put("_v", version);
        }
        if let Some(MessageType(name)) = message.property().unwrap() {
            self.text("_t", &name);
        }
        if let Some(WriterTerm(term)) = message.property().unwrap() {
            self.put("_wt", term);
        }
        if let Some(tick) = message.property::<TimeTick>().unwrap() {
            self.put("_tt", tick);
        }
        if let Some(LastConfirmed(lsn)) = message.property().unwrap() {
            self.put("_lc", lsn);
        }
        if let Some(Vchannel(name)) = message.property().unwrap() {
            self.text("_vc", &name);
        }
        if let Some(TraceContext(text)) = message.property().unwrap() {
            self.text("_tc", &text);
        }
        if let Some(chunk) = message.chunk().unwrap() {
            self.put("_ci", chunk.index());
            self.put("_ct", chunk.total());
        }
        for (key, value) in message.properties() {
            if !key.starts_with('_') || key == "_zz" {
                self.hex(key, value);
            }
        }
        self.structured(message);
    }

    fn structured(&mut self, message: &Message<'_>) {
        if let Some(header) = message.property().unwrap() {
            self.broadcast(&header);
        }
        if let Some(scope) = message.property::<Scope>().unwrap() {
            self.text("_ik.principal", &scope.principal);
            self.text("_ik.type", &scope.message_type);
            self.text("_ik.domain", &scope.domain);
            self.text("_ik.identity", &scope.identity);
            self.put("_ik.generation", scope.generation);
            self.hex("_ik.client_key", &scope.client_key);
        }
        if let Some(fingerprint) = message.property::<Fingerprint>().unwrap() {
            self.put("_fp.version", fingerprint.version);
            self.put("_fp.count", fingerprint.fields.len());
            for (i, field) in fingerprint.fields.iter().enumerate() {
                self.text(format!("_fp.name{i}"), &field.name);
                self.hex(format!("_fp.digest{i}"), &field.digest);
            }
        }
        if let Some(stamp) = message.property::<SliceStamp>().unwrap() {
            self.put("_tx.job", stamp.job);
            self.put("_tx.attempt", stamp.attempt);
            self.put("_tx.file", stamp.file);
            self.put("_tx.first_row", stamp.first_row);
            self.put("_tx.rows", stamp.rows);
        }
    }

    fn broadcast(&mut self, header: &BroadcastHeader) {
        self.put("_bh.id", header.id);
        self.put("_bh.ack", u8::from(header.ack == AckMode::Consumer));
        self.put("_bh.vchannel.count", header.vchannels.len());
        for (i, name) in header.vchannels.iter().enumerate() {
            self.text(format!("_bh.vchannel{i}"), name);
        }
        self.put("_bh.resource.count", header.resources.len());
        for (i, resource) in header.resources.iter().enumerate() {
            self.text(format!("_bh.resource{i}.domain"), &resource.domain);
            self.text(format!("_bh.resource{i}.key"), &resource.key);
            self.put(format!("_bh.resource{i}.shared"), u8::from(resource.shared));
        }
    }
}

/// The values in the bytes of a valid vector, and the bytes of these values.
fn both_directions(vector: &Vector) -> (Values, Vec<u8>) {
    let mut values = Values::default();
    let mut out = Vec::new();
    let bytes = &vector.bytes;
    match vector.what {
        What::Lock => match decode_lock(bytes).unwrap() {
            Some((owner, uuid)) => {
                values.text("owner", if owner == Owner::Log { "log" } else { "store" });
                values.hex("uuid", &uuid.0);
                out.extend(encode_lock(owner, uuid));
            }
            None => out.resize(bytes.len(), 0),
        },
        What::Header => {
            let header = SegmentHeader::decode(bytes).unwrap();
            values.header("", &header);
            out.extend(header.encode());
        }
        What::Slot(index) => {
            let slot = Slot::decode(bytes, index).unwrap();
            values.put("counter", slot.counter);
            values.put("durable_lsn", slot.durable_lsn);
            values.put("durable_offset", slot.durable_offset);
            values.put("oldest_lsn", slot.oldest_lsn);
            values.header("header.", &slot.header);
            values.put("index", slot.index());
            out.extend(slot.encode());
        }
        What::Frame(place) => {
            let (header, payload) = decode_frame(bytes, place).unwrap();
            values.frame_header(&header);
            values.hex("payload", payload);
            encode_frame(&header, place, &[payload], &mut out);
        }
        What::FrameHeader(place, room) => {
            values.frame_header(&FrameHeader::decode(bytes, place, room).unwrap());
            // Its CRC needs the payload: there is nothing to encode.
            out.extend(bytes);
        }
        What::Footer(place) => {
            let footer = Footer::decode(bytes, place).unwrap();
            values.footer(&footer);
            out.extend(footer.encode(place.salt));
        }
        What::Cursor(index, copy) => {
            match CursorCopy::decode(bytes, vector::UUID, index, copy).unwrap() {
                Some(cursor) => {
                    values.hex("uuid", &vector::UUID.0);
                    values.put("index", cursor.index);
                    values.put("length", cursor.name.len());
                    values.put("counter", cursor.counter);
                    values.put("lsn", cursor.lsn);
                    values.text("name", cursor.name);
                    out.extend(cursor.encode(vector::UUID).unwrap());
                }
                None => out.resize(bytes.len(), 0),
            }
        }
        What::Control => unreachable!("filtered by the caller"),
        What::Message => {
            let message = Message::decode(bytes).unwrap();
            values.message(&message);
            retyped(&message).encode(message.payload(), &mut out);
        }
    }
    (values, out)
}

/// The properties of a message, each known one by way of its type.
fn retyped(message: &Message<'_>) -> Properties {
    fn set<P: oncelog_format::Property>(message: &Message<'_>, properties: &mut Properties) {
        if let Some(value) = message.property::<P>().unwrap() {
            properties.set_value(P::KEY, Vec::new()).unwrap();
            properties.set(&value).unwrap();
        }
    }
    let mut properties = Properties::of(message);
    set::<Version>(message, &mut properties);
    set::<MessageType>(message, &mut properties);
    set::<WriterTerm>(message, &mut properties);
    set::<TimeTick>(message, &mut properties);
    set::<LastConfirmed>(message, &mut properties);
    set::<Vchannel>(message, &mut properties);
    set::<BroadcastHeader>(message, &mut properties);
    set::<Scope>(message, &mut properties);
    set::<Fingerprint>(message, &mut properties);
    set::<TraceContext>(message, &mut properties);
    set::<SliceStamp>(message, &mut properties);
    if let Some(chunk) = message.chunk().unwrap() {
        properties.set_chunk(chunk).unwrap();
    }
    properties
}

#[test]
fn valid_bytes_decode_to_their_values_and_encode_back() {
    // Control records are compared as values in tests/control.rs.
    for vector in vector::valid().iter().filter(|v| !matches!(v.what, What::Control)) {
        let (values, bytes) = both_directions(vector);
        let annotated: BTreeMap<_, _> = vector
            .fields
            .iter()
            .filter(|field| !field.value.is_empty())
            .map(|field| (field.name.clone(), field.value.clone()))
            .collect();
        assert_eq!(values.0, annotated, "{}", vector.name);
        assert_eq!(bytes, vector.bytes, "{}", vector.name);
    }
}

#[test]
fn invalid_bytes_give_the_named_error_at_the_named_offset() {
    for vector in vector::all() {
        let found = match vector::decode(vector.what, &vector.bytes) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("{} at {}", vector::word(error.kind), error.at),
        };
        assert_eq!(found, vector.expect, "{}", vector.name);
    }
}

#[test]
fn a_structure_cut_at_any_field_is_truncated() {
    for vector in vector::valid() {
        for field in &vector.fields {
            let found = vector::decode(vector.what, &vector.bytes[..field.at]);
            let expected = match vector.what {
                // A short file has no identity yet; the end of a message is that of its record.
                What::Lock => found.is_ok(),
                What::Message if field.name == "payload" => found.is_ok(),
                // What stands behind the fields of version 1 is ignored in these two.
                What::Control if ["any", "later"].contains(&field.name.as_str()) => found.is_ok(),
                // Its end is where its length stands.
                What::Footer(_) => found.is_err(),
                _ => found.is_err_and(|e| matches!(e.kind, DecodeErrorKind::Truncated { .. })),
            };
            assert!(expected, "{} cut at {}", vector.name, field.name);
        }
    }
}

#[test]
fn every_vector_is_listed_with_what_is_expected_of_it() {
    let list = std::fs::read_to_string(vector::directory().join("README.md")).unwrap();
    let mut listed = BTreeMap::new();
    for row in list.lines().filter(|line| line.starts_with("| ")) {
        let mut cells = row.trim_matches('|').split(" | ").map(str::trim);
        let (spec, expect, names) =
            (cells.next().unwrap(), cells.next().unwrap(), cells.next().unwrap());
        for name in names.split(", ").filter_map(|name| name.strip_prefix('`')) {
            let (name, at) = name.split_once('`').unwrap();
            let expect = format!("{expect}{at}");
            listed.insert(name.to_owned(), (spec.to_owned(), expect));
        }
    }
    let files: BTreeMap<_, _> = vector::all()
        .iter()
        .map(|v| (v.name.clone(), (v.spec.clone(), v.expect.clone())))
        .collect();
    assert_eq!(listed, files);
}
