//! The vchannels of the store, and where each of them stands.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::answer::Answer;
use super::desk::{Asked, Desk};
use super::refusal::{Refusal, Row};
use crate::log::LogStats;

/// `GET /v1/channels`.
pub(crate) fn list(desk: &Desk) -> Result<Answer, Refusal> {
    let broadcaster = desk.broadcaster()?;
    let names: Vec<(String, String)> = broadcaster.read(|state, _| {
        state.vchannels().map(|(name, of)| (name.to_owned(), of.to_owned())).collect()
    });
    let logs = broadcaster.stats().logs;
    let shown: Vec<Value> = names.iter().map(|(name, of)| object(name, of, &logs)).collect();
    Ok(Answer::json(200, &json!({ "channels": shown })))
}

/// `GET /v1/channels/{vchannel}`.
pub(crate) fn show(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let broadcaster = desk.broadcaster()?;
    let name = asked.part.as_deref().unwrap_or_default();
    let pchannel = broadcaster.read(|state, _| state.pchannel_of(name).map(str::to_owned));
    let Some(pchannel) = pchannel else {
        return Err(Refusal::new(&Row::NOT_FOUND, "no such channel is known"));
    };
    let logs = broadcaster.stats().logs;
    let mut shown = object(name, &pchannel, &logs);
    let holders = broadcaster.why_not_trimmed(&pchannel).unwrap_or_default();
    let holders: Vec<Value> = (holders.iter())
        .map(|holder| json!({ "by": format!("{} {}", holder.kind, holder.name), "lsn": holder.lsn.get() }))
        .collect();
    if let Some(members) = shown.as_object_mut() {
        members.insert("why_not_trimmed".into(), json!(holders));
    }
    Ok(Answer::json(200, &shown))
}

fn object(name: &str, pchannel: &str, logs: &BTreeMap<String, LogStats>) -> Value {
    let stats = logs.get(&format!("channels/{pchannel}"));
    json!({
        "vchannel": name,
        "pchannel": pchannel,
        "segments": stats.map(|stats| stats.segment_count),
        "bytes": stats.map(|stats| stats.segment_bytes),
    })
}
