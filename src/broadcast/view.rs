//! A store seen by another process: read-only, without a lock, beside a live writer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::keys::{KeyHistory, KeyInfo, WindowSummary};
use super::restore::{Ends, Extent, oldest, replay, restore, verify};
use super::state::State;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{EntryKind, Io};
use crate::log::LogView;
use crate::log::dir::absolute;
use crate::log::facts::LOCK_NAME;
use crate::lsn::Lsn;
use crate::store::dir::{expect_log, expect_unfinished, identity, list, pchannel_dirs};
use crate::store::{CHANNEL_GONE, CHANNELS, CONTROL};

/// A look at a store. It shows the records that recovery would keep; some may not be durable yet.
#[derive(Debug)]
pub struct StoreView {
    dir: PathBuf,
    io: Arc<dyn Io>,
    control: LogView,
    state: State,
    newest_ms: u64,
}

impl StoreView {
    /// Looks at the store in `dir` and replays its control log.
    ///
    /// # Errors
    ///
    /// `InvalidInput` where there is no store; `Corrupt`, `Unsupported`, `Io`.
    pub fn open(dir: impl AsRef<Path>, io: Arc<dyn Io>) -> Result<Self> {
        let dir = &*absolute(dir.as_ref())?;
        let entries = match io.kind(dir) {
            Ok(Some(EntryKind::Dir)) => list(&*io, dir)?,
            Ok(_) => Vec::new(),
            Err(e) => return Err(Error::io("cannot look at the path", dir, e)),
        };
        let is_made = || match io.kind(&dir.join(LOCK_NAME)) {
            Ok(None) => Ok(false),
            _ => identity(&*io, dir).map(|found| found.is_some()),
        };
        if !is_made()? {
            let unfinished = expect_unfinished(&*io, dir, &entries);
            // A writer may have made it meanwhile.
            if !is_made()? {
                unfinished?;
                return Err(Error::new(ErrorKind::InvalidInput, "there is no store").at_path(dir));
            }
        }
        expect_log(&*io, &dir.join(CONTROL), "the control log is gone")?;
        let control = LogView::open(dir.join(CONTROL), Arc::clone(&io))?;
        let restored = restore(&mut control.reader(None)?, extent(&control))?;
        let newest_ms = restored.newest_ms.unwrap_or(0).max(restored.state.newest_ms());
        Ok(Self { dir: dir.to_owned(), io, control, state: restored.state, newest_ms })
    }

    /// What the records mean.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The newest log time in the records, in milliseconds since 1970 UTC.
    #[must_use]
    pub fn newest_ms(&self) -> u64 {
        self.newest_ms
    }

    /// The control log.
    #[must_use]
    pub fn control(&self) -> &LogView {
        &self.control
    }

    /// What a restart needs of control: the older of its two newest checkpoints, by the LSN of its
    /// last record, and the LSN from which its records are needed; without two of them all records
    /// are, from the oldest on.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Unsupported`, `Io`.
    pub fn restart_needs(&self) -> Result<(Option<Lsn>, Lsn)> {
        let (mut reader, extent) = (self.control.reader(None)?, extent(&self.control));
        let mut ends = Ends::all(extent);
        let mut newest = None;
        while let Some(run) = ends.next(&mut reader)? {
            // A restart takes none of a later version.
            if run.is_later() {
                continue;
            }
            if newest.is_some() {
                return Ok((Some(run.lsn), Lsn::at_least_first(run.end.covers).next()));
            }
            newest = Some(run);
        }
        Ok((None, extent.oldest))
    }

    /// The names of the pchannels, sorted: those that control names, and others that have a log.
    ///
    /// # Errors
    ///
    /// `Corrupt` where the log of one that control names is gone; `Io`.
    pub fn pchannels(&self) -> Result<Vec<String>> {
        let dir = self.dir.join(CHANNELS);
        let named = self.state.vchannels().map(|(_, pchannel)| pchannel.to_owned());
        let mut names: BTreeSet<String> = named.collect();
        for name in &names {
            expect_log(&*self.io, &dir.join(name), CHANNEL_GONE)?;
        }
        names.extend(pchannel_dirs(&*self.io, &dir)?);
        Ok(names.into_iter().collect())
    }

    /// Looks at the log of a pchannel.
    ///
    /// # Errors
    ///
    /// Those of [`LogView::open`].
    pub fn channel(&self, pchannel: &str) -> Result<LogView> {
        LogView::open(self.dir.join(CHANNELS).join(pchannel), Arc::clone(&self.io))
    }

    /// What is known at `at_ms` of a key in every scope of a principal, or of all keys of it. A key
    /// of which nothing is known gives one entry that says so.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Unsupported`, `Io`.
    pub fn keys(&self, principal: &str, key: Option<&[u8]>, at_ms: u64) -> Result<Vec<KeyInfo>> {
        let mut history = KeyHistory::new(principal, key);
        let (mut reader, extent) = (self.control.reader(None)?, extent(&self.control));
        let mut from = extent.oldest;
        // As far back as the records go: they prove more than a state of later.
        if extent.oldest > Lsn::FIRST
            && let Some((state, covers)) = oldest(&mut reader, extent)?
        {
            history.begin(&state);
            from = covers.next();
        }
        replay(&mut reader, from, |_, record| {
            if record.at_ms <= at_ms {
                history.observe(record);
            }
        })?;
        Ok(history.into_keys(&self.state, at_ms))
    }

    /// Rebuilds the state of each checkpoint from the one before it, or from the first record on,
    /// and compares; returns how many were compared.
    ///
    /// # Errors
    ///
    /// `Corrupt` for the first one that differs, which its error names; `Unsupported`, `Io`.
    pub fn verify_checkpoints(&self) -> Result<usize> {
        verify(&mut self.control.reader(None)?, extent(&self.control))
    }

    /// The window at `at_ms`.
    #[must_use]
    pub fn window(&self, at_ms: u64) -> WindowSummary {
        WindowSummary::of(&self.state, at_ms)
    }
}

fn extent(control: &LogView) -> Extent {
    let next = control.last_lsn().map_or(Lsn::FIRST, Lsn::next);
    Extent { oldest: control.oldest_lsn(), next }
}
