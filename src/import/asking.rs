//! From the request of an import to its broadcast: the scope, and the collection, which is made
//! with the acceptance where there is none.

use std::sync::Arc;

use oncelog_format::control::Collection;
use oncelog_format::message::{Resource, Scope};

use super::jobs::ImportCall;
use super::kind::IMPORT;
use super::request::ImportRequest;
use crate::broadcast::{Answer, Broadcaster, CollectionSpec, Identity, Request, State};
use crate::error::{ErrorKind, Result};

/// The domain of collections, in scopes and resources.
pub(super) const COLLECTION: &str = "collection";

/// What an import holds as long as it runs.
pub(super) fn held(collection: u64) -> Resource {
    Resource { domain: COLLECTION.to_owned(), key: collection.to_string(), shared: true }
}

/// Submits an import.
///
/// # Errors
///
/// As [`Broadcaster::submit`].
pub(crate) fn submit(
    broadcaster: &Broadcaster,
    request: &ImportRequest,
    call: &ImportCall,
) -> Result<Answer> {
    loop {
        let (collection, made) = collection(broadcaster, request);
        let is_made = made.is_some();
        let asked = asked(request, call, &collection, made);
        let answer = broadcaster.submit(&asked, call.wait);
        // What it was to make may have been made by another request before it was accepted.
        let refused = answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::InvalidInput);
        let is_outrun = broadcaster.read(|state, _| {
            let other = state.collection(collection.id);
            let other = other.is_some_and(|other| other.name != collection.name);
            other || (refused && state.collection_named(&collection.name).is_some())
        });
        if !is_made || !is_outrun {
            return answer;
        }
    }
}

/// The collection of a request; where there is none, as it would be made, and of what.
fn collection(
    broadcaster: &Broadcaster,
    request: &ImportRequest,
) -> (Arc<Collection>, Option<CollectionSpec>) {
    let named = |state: &State, _| {
        let found = state.collection_named(&request.collection).cloned();
        found.ok_or_else(|| state.next_collection_id())
    };
    let id = match broadcaster.read(named) {
        Ok(found) => return (found, None),
        Err(id) => id,
    };
    // No two collections have a vchannel of one name: the last `_v` ends the collection's.
    let names = 0..request.vchannels.unwrap_or(1);
    let names = names.map(|number| format!("{}_v{number}", request.collection));
    let spec = CollectionSpec {
        name: request.collection.clone(),
        schema: Vec::new(),
        primary_key: request.primary_key.clone(),
        vchannels: names.collect(),
    };
    (spec.collection(id), Some(spec))
}

/// The broadcast of an import.
pub(super) fn asked(
    request: &ImportRequest,
    call: &ImportCall,
    collection: &Collection,
    made: Option<CollectionSpec>,
) -> Request {
    let scope = call.key.as_ref().map(|key| Scope {
        principal: call.principal.clone(),
        message_type: IMPORT.to_owned(),
        domain: COLLECTION.to_owned(),
        identity: collection.id.to_string(),
        generation: collection.generation,
        client_key: key.clone().into_bytes(),
    });
    let payload = request.encode(collection.id);
    let asked = Request::new(IMPORT, scope, collection.vchannels.clone(), payload)
        .resources(vec![held(collection.id)])
        .identity(Identity::Fields(request.fields(collection.id)));
    match made {
        Some(spec) => asked.making_collection(collection.id, spec),
        None => asked,
    }
}
