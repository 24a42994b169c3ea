//! Room that is made before something is decided.
//!
//! What was accepted ends whatever becomes of the disk: its log keeps a reserve that holds it. A
//! reserve is a file as large as all that, written and synced, which takes as long as the disk
//! does. So these rules hold for everything in this crate that locks:
//!
//! - Locks are taken in one order: the core, the pins of a channel, which log of it is open, the
//!   gate of that log. Whoever stamps messages of a channel takes that lock before the last two,
//!   and never under the core. No reserve is made under any of them.
//! - Under the core it is looked whether the room is there, for all that is owed by then and for
//!   what is to be decided, and nothing is made. Where it is not, nothing was decided: the error
//!   says what is lacking ([`Lack`]), [`Inner::with_room`] makes that while nothing is locked, and
//!   the decision is taken anew from its begin. What was looked at before may have changed, and
//!   others may have taken the room: it is looked at again.
//! - What a channel is owed is said to it under the core alone, when it was looked at: somebody who
//!   is late with less does not have others take what was promised since. Every way out behind that
//!   says it again, to every channel.
//!
//! Whoever makes room waits for the disk, whatever his deadline; nobody else does.

use std::fmt;

use super::core::Inner;
use super::refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::told;

/// Room that has to be made first.
#[derive(Debug)]
struct Lack {
    /// On this pchannel; on control without one.
    pchannel: Option<String>,
    /// In all, with what is owed.
    bytes: u64,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.pchannel.as_deref().unwrap_or("control");
        write!(f, "{name} has no room for {} bytes", self.bytes)
    }
}

impl std::error::Error for Lack {}

/// Says that room is to be made. Whoever makes none is refused for want of it.
pub(super) fn lacks(pchannel: Option<&str>, bytes: u64) -> Error {
    let lack = Lack { pchannel: pchannel.map(str::to_owned), bytes };
    let what = "there is no room yet for what ends accepted work";
    Error::new(ErrorKind::StoreFull, what).with_source(lack)
}

fn lack_of(e: &Error) -> Option<&Lack> {
    std::error::Error::source(e)?.downcast_ref()
}

/// Whether an error says that room is to be made, and nothing else.
pub(super) fn is_lack(e: &Error) -> bool {
    lack_of(e).is_some()
}

/// A channel in which an append has failed, and which is not open again.
#[derive(Debug)]
struct Failed {
    pchannel: String,
    cause: Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is to be opened again", self.pchannel)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// What a channel says of itself is no word on the broadcaster: where it has failed it is opened
/// again, and control, which the caller would open again for it, goes on.
pub(super) fn of_channel(pchannel: &str, e: Error) -> Error {
    if e.kind() != ErrorKind::Poisoned {
        return e;
    }
    let what = "an append to a channel has failed, and it is not open again";
    let failed = Failed { pchannel: pchannel.to_owned(), cause: e };
    refusal::for_now(Error::new(ErrorKind::Io, what).with_source(failed))
}

fn failed_of(e: &Error) -> Option<&Failed> {
    std::error::Error::source(e)?.downcast_ref()
}

fn is_failed(e: &Error) -> bool {
    failed_of(e).is_some()
}

impl Inner {
    /// Opens the channel again that an error says has failed. Nothing is locked.
    fn reopen_of(&self, e: &Error) -> Result<()> {
        let channel = failed_of(e).and_then(|failed| self.store.channel(&failed.pchannel));
        channel.map_or(Ok(()), |channel| channel.reopen())
    }

    /// Decides, and makes room where that lacks it, while nothing is locked: then it is decided
    /// anew.
    ///
    /// # Errors
    ///
    /// Those of `decide`, and of making room: nothing was decided then.
    pub(super) fn with_room<T>(&self, mut decide: impl FnMut() -> Result<T>) -> Result<T> {
        let mut has_reopened = false;
        loop {
            let e = match told::behind(&mut decide) {
                Err(e) => e,
                decided => return decided,
            };
            let made = if is_lack(&e) {
                self.make_room_of(&e)
            } else if is_failed(&e) && !std::mem::replace(&mut has_reopened, true) {
                self.reopen_of(&e)
            } else {
                return Err(e);
            };
            let made = made.map_err(refusal::for_now);
            made.inspect_err(|e| self.note_refusal(&mut self.lock(), e))?;
        }
    }

    /// Makes the room that an error says is lacking. Nothing is locked.
    ///
    /// # Errors
    ///
    /// Those of making a reserve.
    pub(super) fn make_room_of(&self, e: &Error) -> Result<()> {
        let Some(lack) = lack_of(e) else { return Ok(()) };
        let Some(pchannel) = &lack.pchannel else {
            return self.store.control().make_reserve(lack.bytes);
        };
        // What is not there is not looked at again either.
        let promised =
            self.store.channel(pchannel).map_or(Ok(()), |channel| channel.promise(lack.bytes));
        promised.map_err(|e| of_channel(pchannel, e))
    }
}
