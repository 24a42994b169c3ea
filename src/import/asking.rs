//! From the request of an import to its broadcast: the scope, and the collection, which is made
//! with the acceptance where there is none.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncelog_format::control::Collection;
use oncelog_format::message::{Fingerprint, Resource, Scope};

use super::jobs::ImportCall;
use super::kind::IMPORT;
#[cfg(feature = "gateway")]
use super::request::check_name;
use super::request::{ImportRequest, ROOT, RequestRoot};
#[cfg(feature = "gateway")]
use crate::broadcast::Job;
use crate::broadcast::{Answer, Broadcaster, CollectionSpec, Identity, Request, State};
use crate::error::{ErrorKind, Result};

/// The domain of collections, in scopes and resources.
pub(super) const COLLECTION: &str = "collection";

/// What an import holds as long as it runs.
pub(super) fn held(collection: u64) -> Resource {
    Resource { domain: COLLECTION.to_owned(), key: collection.to_string(), shared: true }
}

/// Whether a resource is one that imports hold, of a collection that is there or may come.
#[cfg(feature = "gateway")]
pub(crate) fn is_resource_of_import(resource: &Resource) -> bool {
    resource.domain == COLLECTION
}

/// Whether a vchannel is that of a collection, or may become that of one.
#[cfg(feature = "gateway")]
pub(crate) fn is_of_collection(state: &State, vchannel: &str) -> bool {
    let is_numbered = vchannel.rsplit_once("_v").is_some_and(|(name, number)| {
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number && check_name(name).is_ok()
    });
    let has = |names: &[String]| names.iter().any(|name| name == vchannel);
    is_numbered || state.collections().any(|collection| has(&collection.vchannels))
}

/// The property that says who asked for an import without a key.
pub(super) const PRINCIPAL: &str = "principal";

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

/// The scope of a key of a principal: that of an import belongs to the collection as it is.
pub(crate) fn key_scope(collection: &Collection, principal: &str, key: &str) -> Scope {
    Scope {
        principal: principal.to_owned(),
        message_type: IMPORT.to_owned(),
        domain: COLLECTION.to_owned(),
        identity: collection.id.to_string(),
        generation: collection.generation,
        client_key: key.as_bytes().to_vec(),
    }
}

/// What a key that is known was accepted for.
#[derive(Debug)]
pub(crate) struct Known {
    /// The root of its files.
    pub(super) root: Option<RequestRoot>,
}

/// What the key of a call was accepted for; `None` where it is not known.
pub(crate) fn known(
    broadcaster: &Broadcaster,
    collection: &str,
    principal: &str,
    key: &str,
) -> Option<Known> {
    let owner = broadcaster.read(|state, now_ms| {
        let found = state.collection_named(collection)?;
        let id = state.owner(&key_scope(found, principal, key))?;
        if state.is_over(id, now_ms) {
            return None;
        }
        let of_job = state.job(id).map(|job| Arc::clone(&job.accepted));
        Some(of_job.or_else(|| Some(Arc::clone(&state.task(id)?.accepted))))
    })?;
    let root = owner.and_then(|accepted| {
        let path = ImportRequest::decode(&accepted.payload).ok()?.0.root()?.to_owned();
        let has_root = |print: &Fingerprint| print.fields.iter().any(|field| field.name == ROOT);
        Some(RequestRoot { path, is_first: !has_root(&accepted.fingerprint) })
    });
    Some(Known { root })
}

/// Whether an import of this key was accepted and its job is not made yet.
#[cfg(feature = "gateway")]
pub(crate) fn is_under_way(
    broadcaster: &Broadcaster,
    collection: &str,
    principal: &str,
    key: &str,
) -> bool {
    broadcaster.read(|state, _| {
        let owner = state.collection_named(collection).and_then(|found| {
            let scope = key_scope(found, principal, key);
            state.task(state.owner(&scope)?)
        });
        owner.is_some_and(|task| task.done.is_none())
    })
}

/// The paths of a job's files that are those of the machine: of the command line, which has no root.
#[cfg(feature = "gateway")]
pub(crate) fn paths_of_machine(job: &Job) -> Vec<String> {
    let Ok((request, _)) = ImportRequest::decode(&job.accepted.payload) else { return Vec::new() };
    let absolute = request.paths().filter(|path| path.is_absolute());
    absolute.map(|path| path.display().to_string()).collect()
}

/// Who asked for a job.
#[cfg(feature = "gateway")]
pub(crate) fn principal_of(job: &Job) -> &str {
    if let Some(scope) = &job.accepted.scope {
        return &scope.principal;
    }
    let said = job.accepted.properties.iter().find(|(name, _)| name == PRINCIPAL);
    said.and_then(|(_, name)| std::str::from_utf8(name).ok()).unwrap_or("default")
}

/// The broadcast of an import.
pub(super) fn asked(
    request: &ImportRequest,
    call: &ImportCall,
    collection: &Collection,
    made: Option<CollectionSpec>,
) -> Request {
    let scope = call.key.as_ref().map(|key| key_scope(collection, &call.principal, key));
    // A scope says who asked; without a key there is none.
    let mut properties = BTreeMap::new();
    if scope.is_none() {
        properties.insert(PRINCIPAL.to_owned(), call.principal.clone().into_bytes());
    }
    let payload = request.encode(collection.id);
    let asked = Request::new(IMPORT, scope, collection.vchannels.clone(), payload)
        .resources(vec![held(collection.id)])
        .properties(properties)
        .identity(Identity::Fields(request.fields(collection.id)));
    match made {
        Some(spec) => asked.making_collection(collection.id, spec),
        None => asked,
    }
}
