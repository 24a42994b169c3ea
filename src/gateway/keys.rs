//! What is known of a key of a principal, and the window at a glance.

use oncelog_format::message::Scope;
use serde_json::{Value, json};

use super::answer::{Answer, time};
use super::broadcasts::pair;
use super::desk::{Asked, Desk, refused};
use super::refusal::{Refusal, Row};
use crate::broadcast::{
    Broadcaster, KeyInfo, KeyState, Noop, State, WindowSummary, check_client_key,
};
use crate::import::key_scope;

/// `GET /v1/keys/{key}`: in the scope that the query names (`type` and `scope`, or `collection`);
/// without one, in that of every collection and in `store:0`.
pub(crate) fn show(desk: &Desk, asked: &Asked) -> Result<Answer, Refusal> {
    let key = asked.part.clone().unwrap_or_default();
    check_client_key(key.as_bytes())
        .map_err(|e| Refusal::new(&Row::MALFORMED_KEY, e.to_string()))?;
    let scope = asked.queried("scope")?;
    let named = match &scope {
        None => None,
        Some(text) => {
            Some(pair(text).ok_or_else(|| Refusal::invalid("`scope`: expected DOMAIN:ID"))?)
        }
    };
    let place = match (named, asked.queried("collection")?) {
        (Some((domain, identity)), _) => {
            let of_type = asked.queried("type")?.unwrap_or_else(|| Noop::NAME.to_owned());
            Place::Scope(of_type, domain.to_owned(), identity.to_owned())
        }
        (None, Some(name)) => Place::Collection(name),
        (None, None) => Place::Any,
    };
    let infos = look(&desk.broadcaster()?, &asked.principal, &key, &place);
    let keys: Vec<Value> = infos.iter().map(object).collect();
    Ok(Answer::json(200, &json!({ "keys": keys })))
}

/// Where a key is looked up.
#[derive(Debug)]
pub(crate) enum Place {
    /// In every collection and in `store:0`.
    Any,
    /// In the collection of a name.
    Collection(String),
    /// In the scope of a type, a domain and an identity.
    Scope(String, String, String),
}

/// What is known of a key of a principal.
pub(crate) fn look(
    broadcaster: &Broadcaster,
    principal: &str,
    key: &str,
    place: &Place,
) -> Vec<KeyInfo> {
    let of_store = |of_type: &str, domain: &str, identity: &str| Scope {
        principal: principal.to_owned(),
        message_type: of_type.to_owned(),
        domain: domain.to_owned(),
        identity: identity.to_owned(),
        generation: 0,
        client_key: key.as_bytes().to_vec(),
    };
    broadcaster.read(|state, now_ms| {
        let scopes: Vec<Scope> = match place {
            Place::Scope(of_type, domain, identity) => vec![of_store(of_type, domain, identity)],
            Place::Collection(name) => {
                let found = state.collection_named(name).into_iter();
                found.map(|found| key_scope(found, principal, key)).collect()
            }
            Place::Any => {
                let all = state.collections().map(|found| key_scope(found, principal, key));
                all.chain([of_store(Noop::NAME, "store", "0")]).collect()
            }
        };
        known(state, key, &scopes, now_ms)
    })
}

/// What is known in some scopes; of a key that is known in none, one that is not.
fn known(state: &State, key: &str, scopes: &[Scope], now_ms: u64) -> Vec<KeyInfo> {
    let all = scopes.iter().map(|scope| KeyInfo::of(state, scope, now_ms));
    let (known, unknown): (Vec<KeyInfo>, Vec<KeyInfo>) =
        all.partition(|info| info.state != KeyState::Unknown);
    if !known.is_empty() {
        return known;
    }
    // One that was probably seen says more.
    let unknown = unknown.into_iter().max_by_key(|info| info.probably_seen);
    vec![unknown.unwrap_or_else(|| KeyInfo::unknown(key.as_bytes().to_vec(), false))]
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
            "beyond_count": window.beyond_count,
            "lifetime_ms": window.lifetime_ms,
            "effective_ms": window.effective_ms,
            "expired_count": window.expired_count,
            "evicted_count": window.evicted_count,
        }),
    ))
}
