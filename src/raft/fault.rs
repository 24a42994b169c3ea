//! What openraft is told of a failure: every error of its storage ends the node.

use std::io;

use openraft::{AnyError, ErrorSubject, ErrorVerb, NodeId, StorageError, StorageIOError};

use crate::error::Error;

/// What was done to what, of a call of openraft.
#[derive(Clone, Debug)]
pub(super) struct Deed<N: NodeId>(ErrorSubject<N>, ErrorVerb);

impl<N: NodeId> Deed<N> {
    pub(super) const WRITE_VOTE: Self = Self(ErrorSubject::Vote, ErrorVerb::Write);
    pub(super) const WRITE_STATE: Self = Self(ErrorSubject::Store, ErrorVerb::Write);
    pub(super) const WRITE_ENTRIES: Self = Self(ErrorSubject::Logs, ErrorVerb::Write);
    pub(super) const READ_ENTRIES: Self = Self(ErrorSubject::Logs, ErrorVerb::Read);
    pub(super) const DELETE_ENTRIES: Self = Self(ErrorSubject::Logs, ErrorVerb::Delete);

    /// The error with its causes, as text: openraft keeps no other.
    pub(super) fn failed(self, e: &Error) -> StorageError<N> {
        StorageIOError::new(self.0, self.1, AnyError::new(e)).into()
    }
}

/// For openraft's callback, which takes an error of the system.
pub(super) fn io_error(e: Error) -> io::Error {
    io::Error::other(e)
}
