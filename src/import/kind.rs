//! The message types of an import: the one that starts a job, the two that end an attempt.

use std::sync::Arc;

use oncelog_format::message::BroadcastId;

use super::jobs::Imports;
use super::request::ImportRequest;
use super::verdict::{ABORT, COMMIT};
use crate::broadcast::{Jobs, MessageType, Request, Role, State, Task, Verdict};
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
        // Bytes that a caller made up are a wrong call; only those that were accepted are damaged.
        let decoded = ImportRequest::decode(&request.payload).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, "the payload is not that of an import")
                .with_source(e)
        });
        decoded?.0.check_files(self.imports.roots())
    }

    fn recheck(&self, request: &Request, state: &State) -> Result<()> {
        let (asked, id) = ImportRequest::decode(&request.payload)?;
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
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
