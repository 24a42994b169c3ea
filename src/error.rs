//! What can go wrong, named by what the caller does next.
//!
//! An [`Error`] carries its kind, and the path, offset and LSN where there are any; the cause is
//! its `source`. It shows itself as one line without the cause's text.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncelog_format::message::BroadcastId;

use crate::lsn::Lsn;

/// Result of a call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call cannot succeed as it is: fix its arguments.
    InvalidInput,
    /// The same idempotency scope was used with another fingerprint.
    Conflict,
    /// The idempotency window holds no further key: wait, or make room.
    WindowFull,
    /// There is no space, or retention may not make any; nothing was written.
    StoreFull,
    /// The records asked for were dropped by retention: start at the LSN that the error carries.
    Trimmed,
    /// A trim would drop records that somebody holds: trim up to the LSN that the error carries, or
    /// have the holder go on.
    Pinned,
    /// Larger than a stated limit.
    Limit,
    /// Another process, or another handle of this one, owns the directory.
    Busy,
    /// Recovery has not finished: ask again.
    Recovering,
    /// The same request is under way: ask again.
    InFlight,
    /// A resource stayed locked by another broadcast, and the key is not consumed: ask again.
    LockTimeout,
    /// The work may or may not have taken effect, or may yet, as another request with this key is
    /// being admitted: ask again with the same key, or look first where there is no key.
    OutcomeUnknown,
    /// The work waits for an operator.
    Parked,
    /// Another writer took over: stop. Local directories have one owner by a lock, so no call of
    /// this version answers it; it is for channels that several machines can reach.
    Fenced,
    /// A format version or feature that this version does not know.
    Unsupported,
    /// Damage where a sync had promised data: stop and inspect.
    Corrupt,
    /// The system refused: ask it.
    Io,
    /// A write or sync failed earlier: open the log again.
    Poisoned,
    /// The log was closed.
    Closed,
}

impl ErrorKind {
    /// The kind's name in lower-case snake case, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::Conflict => "conflict",
            Self::WindowFull => "window_full",
            Self::StoreFull => "store_full",
            Self::Trimmed => "trimmed",
            Self::Pinned => "pinned",
            Self::Limit => "limit",
            Self::Busy => "busy",
            Self::Recovering => "recovering",
            Self::InFlight => "in_flight",
            Self::LockTimeout => "lock_timeout",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Parked => "parked",
            Self::Fenced => "fenced",
            Self::Unsupported => "unsupported",
            Self::Corrupt => "corrupt",
            Self::Io => "io",
            Self::Poisoned => "poisoned",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error of this crate. A copy is what several callers are told of one cause.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    path: Option<PathBuf>,
    offset: Option<u64>,
    lsn: Option<u64>,
    fields: Vec<String>,
    broadcast: Option<u64>,
    retry_after: Option<Duration>,
    source: Option<Source>,
}

#[derive(Clone, Debug)]
enum Source {
    Own(Arc<dyn StdError + Send + Sync>),
    /// One cause that every caller it met is told of.
    Shared(Arc<Error>),
}

impl Error {
    /// A refusal that says what is wrong with a request: for message types of the embedder, whose
    /// validation refuses with it. It is of kind [`ErrorKind::InvalidInput`].
    #[must_use]
    pub fn invalid_input(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            path: None,
            offset: None,
            lsn: None,
            fields: Vec::new(),
            broadcast: None,
            retry_after: None,
            source: None,
        }))
    }

    /// For a call of the system that failed; a refusal for space is told apart by `kind`.
    pub(crate) fn io(
        message: impl Into<Cow<'static, str>>,
        path: &Path,
        e: std::io::Error,
    ) -> Self {
        Self::new(ErrorKind::Io, message).at_path(path).with_source(e)
    }

    pub(crate) fn at_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    pub(crate) fn at_offset(mut self, offset: u64) -> Self {
        self.0.offset = Some(offset);
        self
    }

    pub(crate) fn at_lsn(mut self, lsn: u64) -> Self {
        self.0.lsn = Some(lsn);
        self
    }

    pub(crate) fn with_fields(mut self, fields: Vec<String>) -> Self {
        self.0.fields = fields;
        self
    }

    pub(crate) fn with_broadcast(mut self, id: u64) -> Self {
        self.0.broadcast = Some(id);
        self
    }

    pub(crate) fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    pub(crate) fn with_source(
        mut self,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(Source::Own(Arc::from(source.into())));
        self
    }

    pub(crate) fn with_shared_source(mut self, source: Arc<Self>) -> Self {
        self.0.source = Some(Source::Shared(source));
        self
    }

    /// What the caller does next.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file or directory that the error is about.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Offset in bytes within the file at [`Error::path`].
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The LSN that the error is about; of [`ErrorKind::Trimmed`], the one where reading goes on: the
    /// oldest one left, or the one behind a chunk of a message whose first chunks are gone. A reader of
    /// a channel says which of the two.
    #[must_use]
    pub fn lsn(&self) -> Option<Lsn> {
        self.0.lsn.and_then(Lsn::new)
    }

    /// Names of the fields that differ, of a [`ErrorKind::Conflict`].
    #[must_use]
    pub fn fields(&self) -> &[String] {
        &self.0.fields
    }

    /// The broadcast that the error is about, of [`ErrorKind::InFlight`] and [`ErrorKind::Parked`].
    #[must_use]
    pub fn broadcast_id(&self) -> Option<BroadcastId> {
        self.0.broadcast.map(BroadcastId)
    }

    /// When it may help to ask again, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// True when asking again may succeed, unchanged, of a broadcast or an import, whose key keeps
    /// it from happening twice. Of [`ErrorKind::Io`] that is so where [`Error::retry_after`] says
    /// when: the system refused before anything was written.
    ///
    /// An append has no key. After [`ErrorKind::OutcomeUnknown`] of one, open the log again and
    /// look whether the record stands at [`Error::lsn`] before it is appended again; after
    /// [`ErrorKind::Poisoned`], open the log again first: on the same [`Log`](crate::Log) no call
    /// that writes succeeds any more.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.0.kind {
            ErrorKind::WindowFull
            | ErrorKind::StoreFull
            | ErrorKind::Pinned
            | ErrorKind::Busy
            | ErrorKind::Recovering
            | ErrorKind::InFlight
            | ErrorKind::LockTimeout
            | ErrorKind::OutcomeUnknown
            | ErrorKind::Parked
            | ErrorKind::Poisoned => true,
            ErrorKind::Io => self.0.retry_after.is_some(),
            ErrorKind::InvalidInput
            | ErrorKind::Conflict
            | ErrorKind::Trimmed
            | ErrorKind::Limit
            | ErrorKind::Fenced
            | ErrorKind::Unsupported
            | ErrorKind::Corrupt
            | ErrorKind::Closed => false,
        }
    }
}

impl Error {
    /// Its text, without a path that is not to be shown.
    #[cfg(feature = "gateway")]
    pub(crate) fn told_without(&self, is_hidden: impl FnOnce(&Path) -> bool) -> String {
        let mut told = self.clone();
        told.0.path = told.0.path.filter(|path| !is_hidden(path));
        told.to_string()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        let mut separator = ": ";
        if let Some(path) = &self.0.path {
            write!(f, "{separator}{}", path.display())?;
            separator = ", ";
        }
        if let Some(offset) = self.0.offset {
            write!(f, "{separator}offset {offset:#x}")?;
            separator = ", ";
        }
        if let Some(lsn) = self.0.lsn {
            write!(f, "{separator}LSN {lsn}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.0.source.as_ref()? {
            Source::Own(source) => Some(source.as_ref()),
            Source::Shared(source) => Some(source.as_ref()),
        }
    }
}

/// True for a refusal for space: the disk or a quota is full, and what was asked for did not happen
/// or happened in part.
pub(crate) fn is_full(e: &std::io::Error) -> bool {
    matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_was_fenced_does_not_try_again() {
        assert!(!Error::new(ErrorKind::Fenced, "another writer").is_retryable());
        assert!(Error::new(ErrorKind::Busy, "another writer").is_retryable());
    }

    #[test]
    fn an_error_is_one_word_and_one_line() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        let cause = std::io::Error::other("inner text");
        let error = Error::io("cannot write the segment", Path::new("a.seg"), cause)
            .at_offset(12_288)
            .at_lsn(7);
        let shown = error.to_string();
        assert_eq!(shown, "cannot write the segment: a.seg, offset 0x3000, LSN 7");
        assert!(error.source().is_some());
        assert_eq!(error.kind().to_string(), "io");
    }
}
