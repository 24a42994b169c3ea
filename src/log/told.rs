//! What a log tells to whoever collects its events.
//!
//! A subscriber of events is code of the embedder, as a waker is: it may ask the log, append to it
//! or wait for somebody who does. So nothing is told under a lock of the log, nor by who holds its
//! tail; it is kept, and told where wakers are woken. The owner of a log that calls it with locks
//! of his own has it kept until he asks for it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::Log;
use super::writer::Gate;
use crate::error::Error;

/// Something to be told.
#[derive(Debug)]
pub(crate) enum Told {
    /// The first failure.
    Poisoned(Arc<Error>),
    /// The idle slot was refused.
    NoSlot(Error),
    /// A segment is sealed without its footer.
    NoFooter(PathBuf, io::Error),
    /// The zeros after a sealed segment were not cut.
    ZerosStay(PathBuf, io::Error),
    /// The rest of the tail is not filled ahead.
    NotFilled(Error),
    /// The next roll makes its spare itself.
    NoSpare(Error),
    /// Segments are not filled ahead.
    NoFillThread(io::Error),
    /// Files of trimmed segments stay until the next open.
    NoTrimThread(io::Error),
    /// The file of a trimmed segment was not removed.
    NotRemoved(Error),
    /// Segments are not mapped.
    NotMapped(PathBuf, io::Error),
    /// Segments are removed whole.
    NotCut(PathBuf, io::Error),
    /// The lock beside maps is gone.
    MapsUnlocked(io::Error),
    /// Maps outlive their log, which keeps its lock for them.
    LockKept,
}

impl Told {
    fn tell(self) {
        match self {
            Self::Poisoned(e) => {
                tracing::error!(error = %e, "the log is poisoned until it is opened again");
            }
            Self::NoSlot(e) => tracing::debug!(error = %e, "no idle slot"),
            Self::NoFooter(path, e) => {
                tracing::warn!(path = %path.display(), error = %e, "no footer");
            }
            Self::ZerosStay(path, e) => {
                tracing::warn!(path = %path.display(), error = %e, "zeros stay");
            }
            Self::NotFilled(e) => tracing::debug!(error = %e, "the tail is not filled ahead"),
            Self::NoSpare(e) => tracing::debug!(error = %e, "no spare is made ahead"),
            Self::NoFillThread(e) => {
                tracing::warn!(error = %e, "no thread to fill segments ahead");
            }
            Self::NoTrimThread(e) => {
                tracing::warn!(error = %e, "no thread to remove trimmed segments");
            }
            Self::NotRemoved(e) => tracing::warn!(error = %e, "a trimmed segment stays"),
            Self::NotMapped(dir, e) => {
                tracing::debug!(dir = %dir.display(), error = %e, "nothing is mapped");
            }
            Self::NotCut(dir, e) => {
                tracing::debug!(dir = %dir.display(), error = %e, "nothing is cut");
            }
            Self::MapsUnlocked(e) => {
                tracing::warn!(error = %e, "the maps of a log are without a lock");
            }
            Self::LockKept => {
                tracing::error!("the log stays locked as long as payloads of it live");
            }
        }
    }
}

/// Tells what was kept. The caller holds no lock of the log; one of his own is let go before.
pub(crate) fn tell(told: Vec<Told>) {
    told.into_iter().for_each(|told| crate::told::tell(|| told.tell()));
}

impl Gate {
    /// What there is to tell, which whoever takes it tells once the gate is open.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        let mut told = std::mem::take(&mut self.told);
        if let Some(tail) = &mut self.tail {
            told.append(&mut tail.told);
        }
        told
    }
}

impl Log {
    /// Tells what was kept, of a log that tells later. The caller holds no lock.
    pub(crate) fn tell(&self) {
        let told = self.handle.shared.gate().take_told();
        tell(told);
    }
}
