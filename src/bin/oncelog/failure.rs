//! How a command ends: its exit codes, and the errors that are not the library's own.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use oncelog::{Error, ErrorKind};

/// The exit codes of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// Done, nothing to report.
    Clean,
    /// Failed for a reason of this machine or of the input's content.
    Failed,
    /// The call has to be changed.
    Usage,
    /// A torn tail and nothing else.
    Torn,
    /// Corrupt or degraded.
    Corrupt,
    /// Bytes of a format that this program does not know.
    Unsupported,
    /// Refused by the contract.
    Refused,
    /// The same command may be retried.
    NotNow,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Clean => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Torn => 3,
            Exit::Corrupt => 4,
            Exit::Unsupported => 5,
            Exit::Refused => 6,
            Exit::NotNow => 7,
        })
    }
}

/// Why a command did not reach its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library's answer.
    Library(Error),
    /// The library's answer to work without a key, some of which may have been done.
    Keyless(Error),
    /// The work was done, and closing the store failed behind it.
    Unclosed(Error),
    /// The same of work without a key, which must not simply be done again.
    KeylessUnclosed(Error),
    /// A time was asked for of which nothing is left.
    Untold {
        /// What is left.
        message: String,
        /// The store.
        path: PathBuf,
    },
    /// A configuration that breaks a rule, or is none.
    Config {
        /// What it breaks.
        message: String,
        /// The file.
        path: PathBuf,
    },
    /// The arguments cannot be what the caller means.
    Usage {
        /// What is wrong with them.
        message: String,
        /// The file or directory that they name.
        path: Option<PathBuf>,
    },
    /// Something of the command line itself is above its limit.
    Limit(String),
    /// Standard input or a file that is no part of a log.
    Stream {
        /// What was tried.
        message: String,
        /// The file, where it is one.
        path: Option<PathBuf>,
        /// The system's answer.
        source: io::Error,
    },
    /// Nobody reads standard output any more.
    Pipe(Exit),
    /// One for each of several logs, and what they come to.
    Several(Vec<Self>, Exit),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), path: None }
    }

    /// The answer to a failed write to standard output.
    pub(crate) fn output(source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            return Self::Pipe(Exit::Clean);
        }
        Self::Stream { message: "cannot write to standard output".into(), path: None, source }
    }

    /// The same failure, of work that must not simply be done again.
    pub(crate) fn keyless(self) -> Self {
        match self {
            Self::Library(error) => Self::Keyless(error),
            Self::Unclosed(error) => Self::KeylessUnclosed(error),
            other => other,
        }
    }

    /// The same failure, of one broadcast without a key: it may be asked for again where it was
    /// refused, and must not be where it may have been accepted.
    pub(crate) fn keyless_unless_refused(self) -> Self {
        match self {
            Self::Library(error) if is_refusal(&error) => Self::Library(error),
            other => other.keyless(),
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            // Refused before anything was written, for a moment.
            Self::Library(error) if error.kind() == ErrorKind::Io && error.is_retryable() => {
                Exit::NotNow
            }
            Self::Library(error) | Self::Keyless(error) => exit_of(error.kind()),
            Self::Unclosed(_) | Self::KeylessUnclosed(_) => exit_of(ErrorKind::OutcomeUnknown),
            Self::Usage { .. } => Exit::Usage,
            Self::Untold { .. } => exit_of(ErrorKind::Trimmed),
            Self::Config { .. } | Self::Limit(_) | Self::Stream { .. } => Exit::Failed,
            Self::Pipe(exit) | Self::Several(_, exit) => *exit,
        }
    }

    /// Those to be told, one by one.
    pub(crate) fn each(&self) -> &[Self] {
        match self {
            Self::Several(failures, _) => failures,
            Self::Pipe(_) => &[],
            one => std::slice::from_ref(one),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

/// Says whether nothing was accepted: what comes behind that names its broadcast, or is one of the
/// other kinds.
fn is_refusal(error: &Error) -> bool {
    let refuses = matches!(
        error.kind(),
        ErrorKind::InvalidInput
            | ErrorKind::Conflict
            | ErrorKind::WindowFull
            | ErrorKind::StoreFull
            | ErrorKind::Limit
            | ErrorKind::LockTimeout
            | ErrorKind::Busy
            | ErrorKind::Recovering
            | ErrorKind::Io
    );
    refuses && error.broadcast_id().is_none()
}

/// The exit code of an error of the library.
fn exit_of(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::InvalidInput => Exit::Usage,
        ErrorKind::Corrupt => Exit::Corrupt,
        ErrorKind::Unsupported => Exit::Unsupported,
        ErrorKind::Conflict | ErrorKind::WindowFull => Exit::Refused,
        ErrorKind::Busy
        | ErrorKind::Recovering
        | ErrorKind::OutcomeUnknown
        | ErrorKind::StoreFull
        | ErrorKind::Pinned
        | ErrorKind::Poisoned
        | ErrorKind::Fenced
        | ErrorKind::LockTimeout
        | ErrorKind::InFlight
        | ErrorKind::Parked => Exit::NotNow,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_without_a_key_is_never_called_retryable() {
        let dir = tempfile::tempdir().unwrap();
        let options = oncelog::Options::new().create(oncelog::CreateMode::IfMissing);
        let (_log, _) = oncelog::Log::open(dir.path(), &options).unwrap();
        let busy = || Failure::from(oncelog::Log::open(dir.path(), &options).unwrap_err());
        for (failure, retryable) in [(busy(), true), (busy().keyless(), false)] {
            assert_eq!(failure.exit(), Exit::NotNow);
            let told = crate::render::failure(&failure, true);
            assert!(told.contains(&format!("\"retryable\":{retryable}")), "{told}");
        }
    }

    #[test]
    fn a_close_that_fails_behind_the_work_says_that_its_outcome_is_unknown() {
        let error = oncelog::Log::open("/dev/null/log", &oncelog::Options::new()).unwrap_err();
        assert_ne!(exit_of(error.kind()), Exit::NotNow);
        for (failure, retryable) in [
            (Failure::Unclosed(error.clone()), true),
            (Failure::Unclosed(error).keyless_unless_refused(), false),
        ] {
            assert_eq!(failure.exit(), Exit::NotNow);
            let told = crate::render::failure(&failure, true);
            assert!(told.contains("\"kind\":\"OutcomeUnknown\""), "{told}");
            assert!(told.contains(&format!("\"retryable\":{retryable}")), "{told}");
        }
    }
}
