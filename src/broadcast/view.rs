//! A store seen by another process: read-only, without a lock, beside a live writer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::keys::{KeyHistory, KeyInfo, WindowSummary};
use super::restore::{Ends, Extent, oldest, replay, restore, restore_at, verify};
use super::state::State;
use crate::channel::tick_holder_of;
use crate::clock::{Clock, ClockLimits, LogTime};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{EntryKind, Io};
use crate::log::dir::absolute;
use crate::log::facts::LOCK_NAME;
use crate::log::{Holder, LogView};
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
        let mut control = LogView::open(dir.join(CONTROL), Arc::clone(&io))?;
        let mut looks = 1;
        let restored = loop {
            match restore(&mut control.reader(None)?, extent(&control)) {
                // A writer was faster to trim.
                Err(e) if is_outrun(&e, looks) => control = control.look_again()?,
                restored => break restored?,
            }
            looks += 1;
        };
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
        self.looking(Self::restart_needs_seen)
    }

    fn restart_needs_seen(&self) -> Result<(Option<Lsn>, Lsn)> {
        let (mut reader, extent) = (self.control.reader(None)?, extent(&self.control));
        let mut ends = Ends::all(extent);
        let mut newest = None;
        while let Some(run) = ends.next(&mut reader)? {
            // A restart takes none of another version.
            if run.is_other() {
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

    /// Everything that keeps messages of a pchannel on the disk, as far as records and files tell,
    /// the holder of the oldest one first: broadcasts whose acks are missing, jobs that run by a
    /// plan, cursors and leftovers of a trim, and the message with the last time tick where late
    /// chunks stand behind it. [`super::Broadcaster::why_not_trimmed`] lists the same of the
    /// process that has the store open, and what its callers pinned.
    ///
    /// # Errors
    ///
    /// Those of [`LogView::open`]; `Corrupt`, `Io`.
    pub fn why_not_trimmed(&self, pchannel: &str) -> Result<Vec<Holder>> {
        let (mut log, mut looks) = (self.channel(pchannel)?, 1);
        let tick = loop {
            match tick_holder_of(&log) {
                Err(e) if is_outrun(&e, looks) => log = log.look_again()?,
                tick => break tick?,
            }
            looks += 1;
        };
        let held = self.state.needs(pchannel).into_iter().chain(log.why_not_trimmed());
        Ok(Holder::in_order(held.chain(tick)))
    }

    /// What log time is by now, as far as the records and a clock tell.
    #[must_use]
    pub fn times(&self, clock: Arc<dyn Clock>) -> LogTimes {
        let wall_ms = clock.wall_ms();
        let limits = ClockLimits::new();
        let at = |limits| {
            let time = LogTime::new(Arc::clone(&clock), limits);
            time.start(Some(self.newest_ms));
            time.wall_ms()
        };
        LogTimes {
            at_open_ms: at(limits),
            least_ms: at(limits.step_max_at_open(limits.step_max)),
            most_ms: wall_ms.max(self.newest_ms),
        }
    }

    /// What is known at `at_ms` of a key in every scope of a principal, or of all keys of it. A key
    /// of which nothing is known gives one entry that says so.
    ///
    /// # Errors
    ///
    /// `Trimmed` for a time before [`StoreView::told_from_ms`]; `Corrupt`, `Unsupported`, `Io`.
    pub fn keys(&self, principal: &str, key: Option<&[u8]>, at_ms: u64) -> Result<Vec<KeyInfo>> {
        self.looking(|view| {
            let Some(state) = view.seen_at(at_ms)? else { return Ok(None) };
            Ok(Some(view.history(principal, key, at_ms)?.into_keys(&state, at_ms)))
        })?
        .ok_or_else(|| untold(at_ms))
    }

    /// What is known of keys by now, as who opens the store finds it; [`KeyInfo::unsure`] where a
    /// process that has it open may find something else.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Unsupported`, `Io`.
    pub fn keys_by(
        &self,
        principal: &str,
        key: Option<&[u8]>,
        times: &LogTimes,
    ) -> Result<Vec<KeyInfo>> {
        self.looking(|view| {
            let history = view.history(principal, key, u64::MAX)?;
            let at = |at_ms| history.clone().into_keys(&view.state, at_ms);
            let mut keys = at(times.at_open_ms);
            // The same keys in the same order.
            let bounds = at(times.least_ms).into_iter().zip(at(times.most_ms));
            for (info, (least, most)) in keys.iter_mut().zip(bounds) {
                info.unsure = least.state != most.state;
            }
            Ok(keys)
        })
    }

    /// The keys of a principal up to a time.
    fn history(&self, principal: &str, key: Option<&[u8]>, until_ms: u64) -> Result<KeyHistory> {
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
            if record.at_ms <= until_ms {
                history.observe(record);
            }
        })?;
        Ok(history)
    }

    /// The state as it was, or will be, at a log time, in milliseconds.
    ///
    /// # Errors
    ///
    /// `Trimmed` for a time before [`StoreView::told_from_ms`]; `Corrupt`, `Unsupported`, `Io`.
    pub fn state_at(&self, at_ms: u64) -> Result<Cow<'_, State>> {
        if at_ms >= self.state.newest_ms() {
            return Ok(Cow::Borrowed(&self.state));
        }
        let state = self.looking(|view| Ok(view.seen_at(at_ms)?.map(Cow::into_owned)))?;
        state.map(Cow::Owned).ok_or_else(|| untold(at_ms))
    }

    fn seen_at(&self, at_ms: u64) -> Result<Option<Cow<'_, State>>> {
        if at_ms >= self.state.newest_ms() {
            return Ok(Some(Cow::Borrowed(&self.state)));
        }
        let mut reader = self.control.reader(None)?;
        Ok(restore_at(&mut reader, extent(&self.control), at_ms)?.map(Cow::Owned))
    }

    /// The oldest log time, in milliseconds, of which the records still tell everything: that of
    /// the oldest checkpoint where control was trimmed, and 0 where it was not.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Unsupported`, `Io`.
    pub fn told_from_ms(&self) -> Result<u64> {
        self.looking(|view| {
            let (mut reader, extent) = (view.control.reader(None)?, extent(&view.control));
            if extent.oldest == Lsn::FIRST {
                // It may be gone by now.
                reader.next()?;
                return Ok(0);
            }
            let oldest = oldest(&mut reader, extent)?;
            Ok(oldest.as_ref().map_or(&view.state, |(state, _)| state).newest_ms())
        })
    }

    /// Looks at control, and again where a writer has trimmed it since this view was made.
    fn looking<T>(&self, look: impl Fn(&Self) -> Result<T>) -> Result<T> {
        let (mut seen, mut looks) = (look(self), 1);
        while seen.as_ref().is_err_and(|e| is_outrun(e, looks)) {
            seen = look(&Self::open(&self.dir, Arc::clone(&self.io))?);
            looks += 1;
        }
        seen
    }

    /// Rebuilds the state of each checkpoint from the one before it, or from the first record on,
    /// and compares; returns how many were compared.
    ///
    /// # Errors
    ///
    /// `Corrupt` for the first one that differs, which its error names; `Unsupported`, `Io`.
    pub fn verify_checkpoints(&self) -> Result<usize> {
        self.looking(|view| verify(&mut view.control.reader(None)?, extent(&view.control)))
    }

    /// The window at `at_ms`.
    ///
    /// # Errors
    ///
    /// Those of [`StoreView::state_at`].
    pub fn window(&self, at_ms: u64) -> Result<WindowSummary> {
        self.state_at(at_ms).map(|state| WindowSummary::of(&state, at_ms))
    }

    /// The window by now, as who opens the store finds it; [`WindowSummary::unsure`] where a
    /// process that has it open may find another number of keys.
    #[must_use]
    pub fn window_by(&self, times: &LogTimes) -> WindowSummary {
        let at = |at_ms| WindowSummary::of(&self.state, at_ms);
        let unsure = at(times.least_ms).live_count != at(times.most_ms).live_count;
        WindowSummary { unsure, ..at(times.at_open_ms) }
    }
}

/// What log time is for who looks at a store from outside, in milliseconds since 1970 UTC.
///
/// A process that has the store open has a time of its own: it believes the wall clock when it is a
/// minute ahead and not more, and where nothing was recorded for a while, nobody else can tell the
/// time that has gone by there from a clock that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogTimes {
    /// For who opens the store by now.
    pub at_open_ms: u64,
    /// The least that it may be in a process which has the store open.
    pub least_ms: u64,
    /// The most that it may be there, unless the wall clock was set back.
    pub most_ms: u64,
}

/// Most looks at a log that a writer trims meanwhile: it does so once for each checkpoint.
const LOOKS_MAX: u32 = 16;

/// Says whether a writer has trimmed what a look had seen, so that another one may see all.
fn is_outrun(error: &Error, looks: u32) -> bool {
    error.kind() == ErrorKind::Trimmed && looks < LOOKS_MAX
}

fn untold(at_ms: u64) -> Error {
    let what = format!("control was trimmed: its records do not tell of the time {at_ms} ms");
    Error::new(ErrorKind::Trimmed, what)
}

fn extent(control: &LogView) -> Extent {
    let next = control.last_lsn().map_or(Lsn::FIRST, Lsn::next);
    Extent { oldest: control.oldest_lsn(), next }
}
