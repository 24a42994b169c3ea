//! The message types of an import: the one that starts a job, the two that end an attempt.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use oncelog_format::message::{BroadcastId, Resource};

use super::asking::{COLLECTION, PRINCIPAL, held};
use super::jobs::Imports;
use super::request::ImportRequest;
use super::verdict::{ABORT, AttemptOf, COMMIT};
use crate::broadcast::{
    Identity, JobEnding, Jobs, MessageType, Request, Role, State, Task, Verdict,
};
use crate::error::{Error, ErrorKind, Result};

/// Name of the message type that starts a job.
pub(crate) const IMPORT: &str = "Import";

/// Starts a job: the job is made with its Done, and driven by [`Imports`].
#[derive(Debug)]
pub(crate) struct Import {
    imports: Imports,
}

impl Import {
    pub(crate) fn new(imports: Imports) -> Self {
        Self { imports }
    }
}

impl MessageType for Import {
    fn name(&self) -> &str {
        IMPORT
    }

    fn role(&self) -> Role {
        Role::StartsJob
    }

    fn validate(&self, request: &Request) -> Result<()> {
        let (asked, id) = decoded(request)?;
        let asked = asked.taken(self.imports.roots())?;
        check_own(request, &asked, id)?;
        asked.check_files(self.imports.roots())
    }

    fn recheck(&self, request: &Request, state: &State) -> Result<()> {
        let (asked, id) = decoded(request)?;
        let Some(found) = state.collection(id).filter(|found| found.name == asked.collection)
        else {
            return refuse(format!("the collection `{}` is no longer there", asked.collection));
        };
        if asked.primary_key.is_some() && asked.primary_key != found.primary_key {
            let has = found.primary_key.as_deref().unwrap_or("no column");
            return refuse(format!("the primary key of `{}` is {has}", found.name));
        }
        let count = u32::try_from(found.vchannels.len()).unwrap_or(u32::MAX);
        if asked.vchannels.is_some_and(|asked| asked != count) {
            return refuse(format!("the collection `{}` has {count} vchannels", found.name));
        }
        // Its ending goes where it goes, and has to reach all rows.
        let [own, given] = [&found.vchannels, &request.vchannels].map(|names| {
            let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            names
        });
        if own != given {
            return unlike(&found.name, "vchannels", &listed(&own), &listed(&given));
        }
        if let Some(scope) = &request.scope
            && scope.generation != found.generation
        {
            return unlike(&found.name, "generation", &found.generation, &scope.generation);
        }
        Ok(())
    }

    fn check_end(&self, ending: &JobEnding<'_>) -> Result<()> {
        let own = if ending.commit { COMMIT } else { ABORT };
        let attempt = AttemptOf { job: ending.job.id(), attempt: ending.attempt };
        if ending.message_type != own || ending.payload != attempt.encode() {
            let found = ending.message_type;
            return refuse(format!(
                "an import ends by {COMMIT} or {ABORT} of its attempt: expected {own}, found {found}"
            ));
        }
        Ok(())
    }

    fn apply(&self, _task: &Task) -> Verdict {
        // The job is made by the Done of this broadcast; nothing exists beside the log.
        Verdict::Done
    }

    fn job_ready(&self, job: BroadcastId, jobs: &Jobs) {
        self.imports.drive(job, jobs);
    }

    fn close(&self) {
        self.imports.stop();
    }
}

fn decoded(request: &Request) -> Result<(ImportRequest, u64)> {
    // Bytes that a caller made up are a wrong call; only those that were accepted are damaged.
    ImportRequest::decode(&request.payload).map_err(|e| {
        Error::new(ErrorKind::InvalidInput, "the payload is not that of an import").with_source(e)
    })
}

/// Refuses what is like no request that [`asking`](super::asking) makes of this payload: the key
/// would be another one, the collection would not be held, or two requests would be taken for one.
fn check_own(request: &Request, asked: &ImportRequest, id: u64) -> Result<()> {
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::ImportBesideCollection) {
        return Ok(());
    }
    let name = &asked.collection;
    if let Some(scope) = &request.scope
        && (scope.domain.as_str(), &scope.identity) != (COLLECTION, &id.to_string())
    {
        let found = format!("{}:{}", scope.domain, scope.identity);
        return unlike(name, "scope", &format!("{COLLECTION}:{id}"), &found);
    }
    let text = |resource: &Resource| {
        let shared = if resource.shared { ":shared" } else { "" };
        format!("{}:{}{shared}", resource.domain, resource.key)
    };
    let [own, given] = [&[held(id)][..], &request.resources].map(|resources| {
        let resources: BTreeSet<String> = resources.iter().map(text).collect();
        resources
    });
    if own != given {
        return unlike(name, "resources", &listed(&own), &listed(&given));
    }
    // Who asks without a key says so by a property.
    let is_own = |property: &&String| request.scope.is_none() && *property == PRINCIPAL;
    if let Some(property) = request.properties.keys().find(|property| !is_own(property)) {
        return unlike(name, "properties", &"none", property);
    }
    if request.payload != asked.clone().canonical()?.encode(id) {
        return refuse(format!(
            "the payload of an import of `{name}` is not in its one form, with absolute paths \
             or such as lie below an import root"
        ));
    }
    if request.identity != Identity::Fields(asked.fields(id)) {
        return refuse(format!(
            "an import of `{name}` is the same by the fields of its request: expected these, and \
             not the whole of it; the call of imports gives them"
        ));
    }
    Ok(())
}

fn listed<T: AsRef<str>>(names: &BTreeSet<T>) -> String {
    let names: Vec<&str> = names.iter().map(T::as_ref).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn unlike(
    name: &str,
    what: &str,
    expected: &dyn fmt::Display,
    found: &dyn fmt::Display,
) -> Result<()> {
    refuse(format!("an import has the {what} of `{name}`: expected {expected}, found {found}"))
}

fn refuse(what: String) -> Result<()> {
    Err(Error::new(ErrorKind::InvalidInput, what))
}

/// Ends an attempt. Its effect is its copies: a reader of the channels needs no other.
#[derive(Debug)]
pub(crate) struct Ending {
    name: &'static str,
}

impl MessageType for Ending {
    fn name(&self) -> &str {
        self.name
    }

    fn role(&self) -> Role {
        Role::EndsJob
    }

    fn check_end(&self, ending: &JobEnding<'_>) -> Result<()> {
        let job = &ending.job.message_type;
        if job == IMPORT {
            return Ok(());
        }
        refuse(format!("{} ends imports: expected a job of {IMPORT}, found {job}", self.name))
    }

    fn apply(&self, _task: &Task) -> Verdict {
        Verdict::Done
    }
}

/// Whether a type is one of those of imports.
#[cfg(feature = "gateway")]
pub(crate) fn is_of_import(name: &str) -> bool {
    [IMPORT, COMMIT, ABORT].contains(&name)
}

/// The types, to be registered where the store is opened.
pub(crate) fn types(imports: &Imports) -> Vec<Arc<dyn MessageType>> {
    vec![
        Arc::new(Import::new(imports.clone())),
        Arc::new(Ending { name: COMMIT }),
        Arc::new(Ending { name: ABORT }),
    ]
}
