//! What every call needs: the store that is open, or is being opened, and who asks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::answer::Answer;
use super::body::Members;
use super::limits::Limits;
use super::refusal::{Refusal, Row};
use super::routes::Call;
use super::{broadcasts, channels, config, imports, keys, vectordb};
use crate::broadcast::{BroadcastId, Broadcaster, Opening};
use crate::error::Error;
use crate::import::Imports;

/// Longest wait for an effect where the client asks for none: clients of `/v2` give up after 20 s.
pub(crate) const WAIT: Duration = Duration::from_secs(15);

/// The store and what may be asked of it.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) opening: Opening,
    pub(crate) imports: Imports,
    pub(crate) limits: Limits,
}

/// One request, allowed and read.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Who asks.
    pub(crate) principal: Arc<str>,
    /// The idempotency key, on routes that consume one.
    pub(crate) key: Option<String>,
    /// How long the client prefers to wait for an effect, and is let to.
    pub(crate) prefers_wait: Option<Duration>,
    /// What failed under the key is to be tried again.
    pub(crate) retry_failed: bool,
    /// The span of the client.
    pub(crate) trace_parent: Option<String>,
    /// The database that a client of `/v2` names in a header.
    pub(crate) database: Option<String>,
    /// What the braces of the route stand for.
    pub(crate) part: Option<String>,
    pub(crate) query: Option<String>,
    pub(crate) body: bytes::Bytes,
}

impl Asked {
    pub(crate) fn members(&self) -> Result<Members, Refusal> {
        Members::of(&self.body)
    }

    /// The identity in the path.
    pub(crate) fn id(&self) -> Result<BroadcastId, Refusal> {
        let id = self.part.as_deref().and_then(identity);
        id.ok_or_else(|| Refusal::new(&Row::NOT_FOUND, ""))
    }

    /// What the query says of a name.
    pub(crate) fn queried(&self, name: &str) -> Result<Option<String>, Refusal> {
        super::routes::queried(self.query.as_deref(), name)
    }
}

/// An identity in decimal digits.
pub(crate) fn identity(text: &str) -> Option<BroadcastId> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| is_number && *id > 0).map(BroadcastId)
}

impl Desk {
    /// The broadcaster, once it is whole.
    ///
    /// # Errors
    ///
    /// While the store is being opened, and where that failed.
    pub(crate) fn broadcaster(&self) -> Result<Broadcaster, Refusal> {
        self.opening.broadcaster().map_err(|e| refused(&e))
    }

    /// How long a request waits for its effect.
    pub(crate) fn wait(&self, asked: &Asked) -> Duration {
        asked.prefers_wait.unwrap_or(WAIT).min(self.limits.wait_max)
    }

    /// How long a call waits for its effect where its client prefers to wait so long; nothing where
    /// it does not wait.
    pub(crate) fn applied(&self, call: Call, prefers: Option<Duration>) -> Option<Duration> {
        let max = match call {
            // Its clients give up before long, whatever they ask for.
            Call::VectordbCreate => WAIT.min(self.limits.wait_max),
            _ => self.limits.wait_max,
        };
        prefers.filter(|_| call.waits()).map(|wait| wait.min(max))
    }

    /// Makes a call, which may block.
    pub(crate) fn perform(&self, call: Call, asked: &Asked) -> Result<Answer, Refusal> {
        match call {
            Call::VectordbCreate => vectordb::create(self, asked),
            Call::VectordbDescribe => vectordb::describe(self, asked),
            Call::VectordbList => vectordb::list(self, asked),
            Call::BroadcastCreate => broadcasts::create(self, asked),
            Call::BroadcastShow => broadcasts::show(self, asked),
            Call::ChannelList => channels::list(self),
            Call::ChannelShow => channels::show(self, asked),
            Call::ConfigShow => config::show(self),
            Call::JobCreate => imports::create(self, asked),
            Call::JobList => imports::list(self, asked),
            Call::JobShow => imports::show(self, asked),
            Call::JobCancel => imports::cancel(self, asked),
            Call::KeyShow => keys::show(self, asked),
            Call::WindowShow => keys::window(self),
            // Answered by the service itself.
            Call::Page | Call::Alive | Call::Ready | Call::Metrics | Call::Description => {
                Err(Refusal::new(&Row::NO_ROUTE, ""))
            }
        }
    }
}

/// The refusal that tells of an error.
pub(crate) fn refused(error: &Error) -> Refusal {
    Refusal::of(error, told(error))
}

/// An error with its causes in one line, and of paths only those that a client named: they are
/// relative. A path of the machine is left out.
pub(crate) fn told(error: &Error) -> String {
    let mut parts = Vec::new();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = cause {
        parts.push(match one.downcast_ref::<Error>() {
            Some(own) => own.told_without(Path::is_absolute),
            None => one.to_string(),
        });
        cause = one.source();
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn an_error_tells_no_path_of_the_machine() {
        let cause = std::io::Error::other("inner");
        let error = Error::new(ErrorKind::Io, "a source cannot be read").at_offset(16);
        let near = error.clone().at_path("d/a.csv").with_source(cause);
        assert_eq!(told(&near), "a source cannot be read: d/a.csv, offset 0x10: inner");
        let far = error.at_path("/srv/secret/a.csv");
        assert_eq!(told(&far), "a source cannot be read: offset 0x10");
    }

    #[test]
    fn an_identity_is_digits() {
        assert_eq!(identity("7"), Some(BroadcastId(7)));
        for wrong in ["", "0", "+7", "-7", "7 ", "0x7", "18446744073709551616"] {
            assert_eq!(identity(wrong), None, "{wrong}");
        }
    }
}
