//! What a request has made with its acceptance: vchannels, and a collection. Their records are in
//! the batch of the acceptance, so that a request which is refused makes nothing.

use std::ops::Deref;

use oncelog_format::control::Body;

use super::core::{Core, Inner};
use super::refusal;
use super::request::Request;
use crate::error::Result;

impl Inner {
    /// The records of what a request has made.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for names that are empty or too long, and where the identity that the request
    /// was told for its collection is taken by now.
    pub(super) fn made_by(&self, core: &Core, request: &Request) -> Result<Vec<Body>> {
        let mut made = Vec::new();
        if request.makes_vchannels {
            made = self.missing_vchannels(core, &request.vchannels)?;
        }
        if let Some((id, spec)) = &request.makes_collection {
            let is_taken = core.state.collection_named(&spec.name).is_some();
            if is_taken || core.state.next_collection_id() != *id {
                return Err(refusal::invalid("a collection was made by another request"));
            }
            made.push(Body::Collection(spec.collection(*id)));
        }
        Ok(made)
    }
}

/// The core as it will be when a request was accepted, for who has to look at that before. Nothing
/// is decided meanwhile, and everything is as it was when this is dropped.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    core: &'a mut Core,
    made: &'a [Body],
}

impl<'a> Lent<'a> {
    pub(super) fn new(core: &'a mut Core, made: &'a [Body]) -> Self {
        core.state.lend(made);
        Self { core, made }
    }
}

impl Deref for Lent<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.core.state.take_back(self.made);
    }
}
