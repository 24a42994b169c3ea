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
            other => other,
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            // Refused before anything was written, for a moment.
            Self::Library(error) if error.kind() == ErrorKind::Io && error.is_retryable() => {
                Exit::NotNow
            }
            Self::Library(error) | Self::Keyless(error) => exit_of(error.kind()),
            Self::Unclosed(_) => exit_of(ErrorKind::OutcomeUnknown),
            Self::Usage { .. } => Exit::Usage,
            Self::Limit(_) | Self::Stream { .. } => Exit::Failed,
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
        let failure = Failure::Unclosed(error);
        assert_eq!(failure.exit(), Exit::NotNow);
        let told = crate::render::failure(&failure, true);
        assert!(told.contains("\"kind\":\"OutcomeUnknown\""), "{told}");
        assert!(told.contains("\"retryable\":true"), "{told}");
    }
}
