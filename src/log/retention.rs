//! What a log keeps by itself: limits on bytes, on segments and on age.
//!
//! Whole segments go, the oldest first, and the tail never does. A segment is dropped as soon as
//! one of the limits is passed; a pin or a cursor that is within it, or before it, keeps it and all
//! after it. The limits are looked at after an open, after each roll, when there is no space for
//! one, and when a holder lets go; an age also while the log is idle.
//!
//! Age is measured from the time of a segment's last record to the log's own time, which is that of
//! its clock and never less than that of its newest record: it does not run backwards. A clock that
//! is set back makes records stay longer and drops none; one that is set far ahead ages everything,
//! which [`crate::LogTime`] is the guard against. Recovery asks no clock and drops nothing.

use std::time::Duration;

use super::Log;
use super::pins::{Holder, HolderKind};
use super::reserve::Use;
use super::writer::{Gate, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// How often an idle log looks at the age of its segments, at least and at most.
const AGE_CHECK_MIN: Duration = Duration::from_secs(1);
const AGE_CHECK_MAX: Duration = Duration::from_secs(60);

/// What a log keeps by itself. A limit that is absent drops nothing; without any, everything is
/// kept.
///
/// # Examples
///
/// ```
/// use oncelog::{Options, Retention};
///
/// let week = Retention::new().age_ms_max(7 * 24 * 60 * 60 * 1000).bytes_max(10 << 30);
/// let options = Options::new().retention(week);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Retention {
    bytes_max: Option<u64>,
    segment_count_max: Option<u64>,
    age_ms_max: Option<u64>,
}

impl Retention {
    /// Keeps everything.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes_max: None, segment_count_max: None, age_ms_max: None }
    }

    /// Drops the oldest segments while the log has more bytes: the sizes of its sealed segments,
    /// and what is in use of the tail. Files that are being removed do not count.
    #[must_use]
    pub const fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_max = Some(bytes);
        self
    }

    /// Drops the oldest segments while there are more, the tail included; at least 1.
    #[must_use]
    pub const fn segment_count_max(mut self, count: u64) -> Self {
        self.segment_count_max = Some(count);
        self
    }

    /// Drops segments whose last record is older, in milliseconds.
    #[must_use]
    pub const fn age_ms_max(mut self, age_ms: u64) -> Self {
        self.age_ms_max = Some(age_ms);
        self
    }

    pub(crate) fn is_everything(&self) -> bool {
        *self == Self::new()
    }

    pub(crate) fn validate(&self) -> std::result::Result<(), String> {
        match self.segment_count_max {
            Some(0) => Err("segment_count_max: expected at least 1, the tail, found 0".to_owned()),
            _ => Ok(()),
        }
    }

    /// How long an idle log may rest before it looks again.
    pub(crate) fn check_interval(&self) -> Option<Duration> {
        let age = Duration::from_millis(self.age_ms_max?);
        Some(age.clamp(AGE_CHECK_MIN, AGE_CHECK_MAX))
    }
}

/// What a trim by retention has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimReport {
    /// The oldest LSN that is left, or the next one when there is none.
    pub oldest_lsn: Lsn,
    /// Segments that were dropped.
    pub segment_count: u64,
    /// Bytes of their files, which go in the background.
    pub bytes: u64,
    /// Who kept it from dropping all that the limits say.
    pub held_by: Option<Holder>,
}

/// When retention has something to look at.
#[derive(Debug)]
pub(crate) struct Retaining {
    /// Nothing is dropped yet: who needs what is not known.
    pub(crate) is_resting: bool,
    /// The newest record stays, and so does what is kept from here on.
    pub(crate) keeps_newest: bool,
    pub(crate) kept_from: u64,
    /// The log was opened, a segment was sealed or could not be, a holder has let go, or the last
    /// trim was refused.
    pub(crate) is_due: bool,
    /// The last look was held up.
    pub(crate) was_held: bool,
}

impl Default for Retaining {
    /// What an open leaves, whatever was looked at before it.
    fn default() -> Self {
        Self {
            is_resting: false,
            keeps_newest: false,
            kept_from: u64::MAX,
            is_due: true,
            was_held: false,
        }
    }
}

impl Retaining {
    /// For a log whose holders are named after its open.
    pub(crate) fn resting() -> Self {
        Self { is_resting: true, keeps_newest: true, ..Self::default() }
    }
}

/// How far the limits, and the holders, let a log be trimmed.
struct Reach {
    oldest: u64,
    held_by: Option<Holder>,
}

impl Gate {
    /// The first segment that the limits keep begins here.
    fn kept_from(&self, retention: &Retention, now_ms: u64) -> u64 {
        let live = self.segments.get(self.trimmed_count()..).unwrap_or_default();
        let sealed = live.split_last().map_or(live, |(_, sealed)| sealed);
        let sealed = sealed.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        let mut bytes = sealed.saturating_add(self.end);
        let mut count = u64::try_from(live.len()).unwrap_or(u64::MAX);
        let newest = self.durable.lsn.min(self.retaining.kept_from);
        let mut oldest = self.oldest;
        for (segment, next) in live.iter().zip(live.iter().skip(1)) {
            // The time of the record before the successor's first.
            let age_ms = now_ms.saturating_sub(next.header.base_time_ms);
            let is_newest = self.retaining.keeps_newest && newest < next.header.first_lsn;
            let is_kept = is_newest
                || retention.bytes_max.is_none_or(|max| bytes <= max)
                    && retention.segment_count_max.is_none_or(|max| count <= max)
                    && retention.age_ms_max.is_none_or(|max| age_ms <= max);
            if is_kept {
                break;
            }
            bytes = bytes.saturating_sub(segment.bytes);
            count = count.saturating_sub(1);
            oldest = oldest.max(next.header.first_lsn);
        }
        oldest
    }

    fn reach(&self, retention: &Retention, now_ms: u64) -> Reach {
        let oldest = self.kept_from(retention, now_ms);
        let Some(holder) = self.holds.against(oldest) else {
            return Reach { oldest, held_by: None };
        };
        let behind =
            self.segments.partition_point(|segment| segment.header.first_lsn <= holder.lsn.get());
        let first = behind.checked_sub(1).and_then(|at| self.segments.get(at));
        let first = first.map_or(self.oldest, |segment| segment.header.first_lsn);
        Reach { oldest: first.max(self.oldest), held_by: Some(holder) }
    }
}

impl Shared {
    /// Drops what is beyond the limits.
    pub(crate) fn trim_by_retention(&self) -> Result<TrimReport> {
        loop {
            let reach = {
                let mut gate = self.gate();
                gate.check_open()?;
                if gate.retaining.is_resting {
                    let oldest_lsn = Lsn::at_least_first(gate.oldest);
                    return Ok(TrimReport {
                        oldest_lsn,
                        segment_count: 0,
                        bytes: 0,
                        held_by: None,
                    });
                }
                let now_ms = self.clock.expiry_ms(gate.time_ms);
                let reach = gate.reach(&self.retention, now_ms);
                gate.retaining.is_due = false;
                gate.retaining.was_held = reach.held_by.is_some();
                reach
            };
            let dropped = match self.trim(reach.oldest) {
                // Pinned since: what is left to drop is looked at again.
                Err(e) if e.kind() == ErrorKind::Pinned => continue,
                Err(e) => {
                    self.look_again(&mut self.gate());
                    return Err(e);
                }
                Ok(dropped) => dropped,
            };
            return Ok(TrimReport {
                oldest_lsn: Lsn::at_least_first(self.gate().oldest),
                segment_count: dropped.segments,
                bytes: dropped.bytes,
                held_by: reach.held_by,
            });
        }
    }

    /// Why new work is refused where the log is beyond a limit of its size: `StoreFull`, naming the
    /// holder that keeps it there.
    pub(crate) fn beyond_limits(&self, gate: &Gate, usage: Use) -> Option<Error> {
        let sizes = Retention { age_ms_max: None, ..self.retention };
        if sizes.is_everything() || !gate.kept.is_wanted() || !matches!(usage, Use::New(_)) {
            return None;
        }
        let oldest = gate.kept_from(&sizes, gate.time_ms);
        let holder = gate.holds.against(oldest)?;
        let what = format!("the log is at its limit, and the {holder} keeps it from being trimmed");
        Some(Error::new(ErrorKind::StoreFull, what).at_path(&self.dir).at_lsn(holder.lsn.get()))
    }

    /// The limits have to be looked at.
    pub(crate) fn look_again(&self, gate: &mut Gate) {
        gate.retaining.is_due = true;
        self.trim_wanted.notify_one();
    }

    /// A holder has let go of something: the next look may get further.
    pub(crate) fn loosen(&self, gate: &mut Gate) {
        if gate.retaining.was_held {
            self.look_again(gate);
        }
    }

    /// A tail of so many bytes was sealed, and its successor is durable.
    pub(crate) fn after_roll(&self, gate: &mut Gate, bytes: u64) {
        if let Some(sealed) = gate.segments.last_mut() {
            sealed.bytes = bytes;
        }
        gate.removal.release(std::iter::empty());
        self.look_again(gate);
    }
}

impl Log {
    /// Drops the segments that [`crate::Options::retention`] does not keep, as the log does by
    /// itself after a roll; says how far it came, and who held it up.
    ///
    /// # Errors
    ///
    /// As [`Log::trim`], but for `InvalidInput` and `Pinned`: who holds records is no error here.
    ///
    /// # Durability
    ///
    /// The oldest LSN, before a file goes.
    pub fn trim_by_retention(&self) -> Result<TrimReport> {
        self.handle.start_trimmer();
        self.handle.shared.trim_by_retention()
    }

    /// Keeps the segment of a record, whatever the limits say, where that of the newest one is
    /// kept.
    pub(crate) fn keep_from(&self, lsn: Option<Lsn>) {
        self.handle.shared.gate().retaining.kept_from = lsn.map_or(u64::MAX, Lsn::get);
    }

    /// Ends the rest of a retention that waited for the holders of the log to be named.
    pub(crate) fn begin_retention(&self) {
        let shared = &self.handle.shared;
        let mut gate = shared.gate();
        gate.retaining.is_resting = false;
        shared.look_again(&mut gate);
        drop(gate);
        if !shared.retention.is_everything() {
            self.handle.start_trimmer();
        }
    }

    /// The policy as a holder: the oldest LSN that it keeps.
    pub(crate) fn policy_holder(&self, gate: &Gate) -> Holder {
        let shared = &self.handle.shared;
        let now_ms = shared.clock.expiry_ms(gate.time_ms);
        let lsn = gate.kept_from(&shared.retention, now_ms);
        let name = if shared.retention.is_everything() { "everything is kept" } else { "limits" };
        let (kind, lsn) = (HolderKind::Policy, Lsn::at_least_first(lsn));
        Holder { kind, name: name.to_owned(), lsn }
    }
}
