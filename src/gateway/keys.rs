//! What is known of a key of a principal, and the window at a glance.

use oncelog_format::message::Scope;
use serde_json::{Value, json};

use super::answer::{Answer, time};
use super::broadcasts::pair;
use super::desk::{Asked, Desk, refused};
use super::refusal::{Refusal, Row};
use crate::broadcast::{KeyInfo, KeyState, Noop, State, WindowSummary, check_client_key};
use crate::import::key_scope;

/// `GET /v1/keys/{key}`: in the scope that the query names (`type` and `scope`, or `collection`);
/// without one, in that of every collection and in `store:0`.
pub(crate) fn show(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let key = asked.part.clone().unwrap_or_default();
    check_client_key(key.as_bytes())
        .map_err(|e| Refusal::new(&Row::MALFORMED_KEY, e.to_string()))?;
    let named = match asked.queried("scope") {
        None => None,
        Some(text) => {
            let (domain, identity) =
                pair(&text).ok_or_else(|| Refusal::invalid("`scope`: expected DOMAIN:ID"))?;
            Some((domain.to_owned(), identity.to_owned()))
        }
    };
    let of_type = asked.queried("type").unwrap_or_else(|| Noop::NAME.to_owned());
    let collection = asked.queried("collection");
    let of_store = |(domain, identity): (String, String)| Scope {
        principal: asked.principal.to_string(),
        message_type: of_type.clone(),
        domain,
        identity,
        generation: 0,
        client_key: key.clone().into_bytes(),
    };
    let broadcaster = desk.broadcaster()?;
    let infos = broadcaster.read(|state, now_ms| {
        let scopes: Vec<Scope> = match (named, &collection) {
            (Some(named), _) => vec![of_store(named)],
            (None, Some(name)) => {
                let found = state.collection_named(name).into_iter();
                found.map(|found| key_scope(found, &asked.principal, &key)).collect()
            }
            (None, None) => {
                let of_each = |found| key_scope(found, &asked.principal, &key);
                let all = state.collections().map(|found| of_each(found));
                all.chain([of_store(("store".into(), "0".into()))]).collect()
            }
        };
        known(state, &scopes, now_ms)
    });
    let keys: Vec<Value> = infos.iter().map(object).collect();
    Ok(Answer::json(200, &json!({ "keys": keys })))
}

/// What is known in some scopes; of a key that is known in none, one that is not.
fn known(state: &State, scopes: &[Scope], now_ms: u64) -> Vec<KeyInfo> {
    let all = scopes.iter().map(|scope| KeyInfo::of(state, scope, now_ms));
    let (known, unknown): (Vec<KeyInfo>, Vec<KeyInfo>) =
        all.partition(|info| info.state != KeyState::Unknown);
    if !known.is_empty() {
        return known;
    }
    // One that was probably seen says more.
    unknown.into_iter().max_by_key(|info| info.probably_seen).into_iter().collect()
}

/// A key as the command line shows it.
pub(crate) fn object(info: &KeyInfo) -> Value {
    let scope = info.scope.as_ref();
    json!({
        "scope": scope.map(|scope| format!("{}:{}", scope.domain, scope.identity)),
        "type": scope.map(|scope| &scope.message_type),
        "principal": scope.map(|scope| &scope.principal),
        "key": String::from_utf8_lossy(&info.key),
        "state": info.state.name(),
        "broadcast_id": info.id.map(|id| id.to_string()),
        "accepted_at": info.accepted_at_ms.map(time),
        "done_at": info.done_at_ms.map(time),
        "expires_at": info.expires_at_ms.map(time),
        "cause": info.cause,
        "probably_seen": info.probably_seen,
    })
}

/// `GET /v1/keys`.
pub(crate) fn window(desk: &Desk) -> Result<Answer, Refusal> {
    let broadcaster = desk.opening.broadcaster().map_err(|e| refused(&e))?;
    let window = broadcaster.read(WindowSummary::of);
    Ok(Answer::json(
        200,
        &json!({
            "live_count": window.live_count,
            "count_max": window.count_max,
            "lifetime_ms": window.lifetime_ms,
            "effective_ms": window.effective_ms,
            "expired_count": window.expired_count,
            "evicted_count": window.evicted_count,
        }),
    ))
}
