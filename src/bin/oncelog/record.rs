//! A record as it is shown: its kind, its payload, and what a message says of itself.

use oncelog::format::control::ControlRecord;
use oncelog::format::frame::{KIND_CONTROL, KIND_MESSAGE, KIND_RECORD};
use oncelog::format::message::{
    BroadcastHeader, CHUNK_INDEX, CHUNK_TOTAL, LastConfirmed, Message, MessageType, Property,
    Scope, SliceStamp, TimeTick, Vchannel, Version, WriterTerm,
};
use oncelog::{Record, RecordKind};
use serde_json::{Value, json};

use crate::render;

/// Property of a message: its vchannel.
pub(crate) const VCHANNEL: &str = Vchannel::KEY;

/// How a payload is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PayloadArg {
    /// Two digits a byte.
    Hex,
    /// Text; bytes that are none are replaced.
    Utf8,
    /// Not at all.
    None,
}

/// The name of a kind (SPEC 7).
pub(crate) fn kind(kind: u8) -> String {
    match kind {
        KIND_RECORD => "record".into(),
        KIND_MESSAGE => "message".into(),
        KIND_CONTROL => "control".into(),
        other => format!("{other:#04x}"),
    }
}

/// Payload bytes as text, and whether bytes were replaced.
pub(crate) fn payload(bytes: &[u8], how: PayloadArg) -> Option<(String, bool)> {
    match how {
        PayloadArg::None => None,
        PayloadArg::Hex => Some((render::hex(bytes), false)),
        PayloadArg::Utf8 => Some(match std::str::from_utf8(bytes) {
            Ok(text) => (text.into(), false),
            Err(_) => (String::from_utf8_lossy(bytes).into_owned(), true),
        }),
    }
}

/// What a message says of itself; `None` for other records, and for one that does not decode.
pub(crate) fn message(record: &Record) -> Option<Message<'_>> {
    if record.kind != RecordKind::MESSAGE {
        return None;
    }
    Message::decode(&record.payload).ok()
}

/// The type of a message, or of a control record.
pub(crate) fn type_of(record: &Record) -> Option<String> {
    if record.kind == RecordKind::CONTROL {
        return ControlRecord::decode(&record.payload)
            .ok()
            .map(|control| control.body.name().into());
    }
    text(&message(record)?, MessageType::KEY)
}

/// A property that is one text.
pub(crate) fn text(message: &Message<'_>, key: &str) -> Option<String> {
    let properties = message.properties().find(|(name, _)| *name == key)?;
    Some(String::from_utf8_lossy(properties.1).into_owned())
}

/// The client key of an idempotency scope.
pub(crate) fn client_key(message: &Message<'_>) -> Option<String> {
    let scope: Scope = message.property().ok()??;
    Some(String::from_utf8_lossy(&scope.client_key).into_owned())
}

/// All properties: those with a known meaning by that, others as text, or as digits of bytes.
pub(crate) fn properties(message: &Message<'_>) -> Value {
    let entries =
        message.properties().map(|(key, bytes)| (key.to_owned(), value(message, key, bytes)));
    Value::Object(entries.collect())
}

fn value(message: &Message<'_>, key: &str, bytes: &[u8]) -> Value {
    known(message, key).unwrap_or_else(|| match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => json!(text),
        _ => json!({ "hex": render::hex(bytes) }),
    })
}

fn known(message: &Message<'_>, key: &str) -> Option<Value> {
    Some(match key {
        Version::KEY => json!(message.property::<Version>().ok()??.0),
        WriterTerm::KEY => json!(message.property::<WriterTerm>().ok()??.0),
        LastConfirmed::KEY => json!(message.property::<LastConfirmed>().ok()??.0),
        TimeTick::KEY => {
            let tick = message.property::<TimeTick>().ok()??;
            json!({ "time": render::time(tick.ms()), "logical": tick.logical(), "tick": tick.0 })
        }
        CHUNK_INDEX => json!(message.chunk().ok()??.index()),
        CHUNK_TOTAL => json!(message.chunk().ok()??.total()),
        BroadcastHeader::KEY => {
            let header = message.property::<BroadcastHeader>().ok()??;
            json!({ "broadcast_id": header.id.0.to_string(), "vchannels": header.vchannels })
        }
        Scope::KEY => {
            let scope = message.property::<Scope>().ok()??;
            json!({
                "principal": scope.principal,
                "type": scope.message_type,
                "scope": format!("{}:{}", scope.domain, scope.identity),
                "generation": scope.generation,
                "key": String::from_utf8_lossy(&scope.client_key),
            })
        }
        SliceStamp::KEY => {
            let slice = message.property::<SliceStamp>().ok()??;
            json!({
                "job": slice.job.0.to_string(),
                "attempt": slice.attempt,
                "file": slice.file,
                "first_row": slice.first_row,
                "rows": slice.rows,
            })
        }
        _ => return None,
    })
}
