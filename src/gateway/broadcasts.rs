//! Broadcasts of a principal: sending one, looking at one.

use std::time::Duration;

use oncelog_format::message::{BroadcastId, Resource, Scope};
use serde_json::{Map, Value, json};

use super::answer::{Answer, time};
use super::body::{Members, wrong};
use super::desk::{Asked, Desk, refused};
use super::refusal::{Refusal, Row};
use crate::broadcast::{Answer as Broadcasted, KeyInfo, Outcome, Request};
use crate::import::is_of_import;

/// What a key belongs to where nothing is said.
const STORE: (&str, &str) = ("store", "0");

/// `POST /v1/broadcasts`.
pub(crate) fn create(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let members = asked.members()?;
    members.only(&["type", "vchannels", "scope", "resources", "payload"])?;
    if asked.retry_failed {
        return Err(Refusal::invalid("Idempotency-Retry: a broadcast that failed stays so"));
    }
    let of_type = members.needed("type")?;
    if is_of_import(of_type) {
        // Its payload names files, and is made where their roots are known.
        return Err(wrong("type", "a type other than those of imports: see /v1/jobs"));
    }
    let scope = asked.key.as_ref().map(|key| scope(asked, &members, of_type, key)).transpose()?;
    let vchannels = members.texts("vchannels")?;
    if vchannels.is_empty() {
        return Err(wrong("vchannels", "at least one"));
    }
    let payload = members.text("payload")?.unwrap_or_default().as_bytes().to_vec();
    let resources = members.texts("resources")?;
    let resources = resources.iter().map(|text| resource(text)).collect::<Result<_, _>>()?;
    let mut request = Request::new(of_type, scope.clone(), vchannels, payload)
        .resources(resources)
        .making_vchannels();
    request.trace_context.clone_from(&asked.trace_parent);
    let broadcaster = desk.broadcaster()?;
    let is_under_way = asked.prefers_wait.is_none()
        && scope.as_ref().is_some_and(|scope| {
            broadcaster.read(|state, _| {
                let task = state.owner(scope).and_then(|id| state.task(id));
                task.is_some_and(|task| task.done.is_none())
            })
        });
    let wait = if is_under_way { Duration::ZERO } else { desk.wait(asked) };
    let answer = broadcaster.submit(&request, Some(wait)).map_err(|e| refused(&e))?;
    let status = if answer.duplicated { 200 } else { 201 };
    let place = format!("/v1/broadcasts/{}", answer.id);
    Ok(Answer::json(status, &object(&answer)).header("location", &place).of_key(&answer))
}

fn scope(asked: &Asked, members: &Members, of_type: &str, key: &str) -> Result<Scope, Refusal> {
    let (domain, identity) = match members.text("scope")? {
        None => STORE,
        Some(text) => pair(text).ok_or_else(|| wrong("scope", "DOMAIN:ID"))?,
    };
    Ok(Scope {
        principal: asked.principal.to_string(),
        message_type: of_type.to_owned(),
        domain: domain.to_owned(),
        identity: identity.to_owned(),
        generation: 0,
        client_key: key.as_bytes().to_vec(),
    })
}

/// `A:B`, neither of them empty.
pub(crate) fn pair(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(one, other)| !one.is_empty() && !other.is_empty())
}

fn resource(text: &str) -> Result<Resource, Refusal> {
    let (name, shared) = text.strip_suffix(":shared").map_or((text, false), |name| (name, true));
    let pair = pair(name).ok_or_else(|| wrong("resources", "DOMAIN:KEY or DOMAIN:KEY:shared"))?;
    let (domain, key) = (pair.0.to_owned(), pair.1.to_owned());
    Ok(Resource { domain, key, shared })
}

fn object(answer: &Broadcasted) -> Value {
    let channels: Map<String, Value> = (answer.channels.iter())
        .map(|(name, at)| {
            (name.clone(), json!({ "lsn": at.lsn.get(), "time_tick": at.time_tick.0 }))
        })
        .collect();
    let (state, reason) = match &answer.outcome {
        Outcome::Failed { reason } => ("failed", Some(reason)),
        Outcome::Done => ("done", None),
    };
    json!({
        "broadcast_id": answer.id.to_string(),
        "duplicated": answer.duplicated,
        "state": state,
        "reason": reason,
        "accepted_at": time(answer.accepted_at_ms),
        "done_at": time(answer.done_at_ms),
        "expires_at": answer.expires_at_ms.map(time),
        "channels": channels,
        "differs": answer.differs,
        "clock_held": answer.clock_held,
    })
}

/// `GET /v1/broadcasts/{id}`: one that was sent with a key of the principal.
pub(crate) fn show(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let broadcaster = desk.broadcaster()?;
    let id = asked.id()?;
    let own = broadcaster.read(|state, now_ms| {
        let scope = state.task(id)?.accepted.scope.clone()?;
        let is_own = scope.principal == *asked.principal && state.owner(&scope) == Some(id);
        is_own.then(|| KeyInfo::of(state, &scope, now_ms))
    });
    own.map(|info| Answer::json(200, &super::keys::object(&info))).ok_or_else(|| unknown(id))
}

fn unknown(id: BroadcastId) -> Refusal {
    Refusal::new(&Row::NOT_FOUND, format!("no broadcast {id} with a key is known"))
}
