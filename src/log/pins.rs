//! What holds records of a log that a trim would drop.
//!
//! A [`Pin`] lives in this process alone and is gone with it; what has to outlive the process is a
//! cursor. A trim refuses to drop a record that is held, and says by whom: it never does less than
//! it was asked for without saying so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use oncelog_format::limits::CURSOR_COUNT_MAX;

use super::cursors::{CursorFacts, CursorId, Stand, gone};
use super::finding::Finding;
use super::reader::trimmed;
use super::remove::Leftover;
use super::writer::{Gate, Shared, closed};
use super::{Log, LogView};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// Somebody, or something, on whose behalf records are still there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// What it is.
    pub kind: HolderKind,
    /// The name that its owner gave it; of a leftover, that of the file.
    pub name: String,
    /// The oldest LSN that it holds; what stands after is held with it.
    pub lsn: Lsn,
}

impl Holder {
    pub(crate) fn cursor(name: &str, stand: &Stand) -> Self {
        let (kind, lsn) = (HolderKind::Cursor, Lsn::at_least_first(stand.lsn));
        Self { kind, name: name.to_owned(), lsn }
    }

    /// The holder of the oldest record first.
    pub(crate) fn in_order(holders: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut holders: Vec<Self> = holders.collect();
        holders.sort_by(|a, b| (a.lsn, a.kind, &a.name).cmp(&(b.lsn, b.kind, &b.name)));
        holders
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} from LSN {}", self.kind, self.name, self.lsn)
    }
}

/// What holds records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum HolderKind {
    /// A segment that was trimmed and whose file is still there.
    Leftover,
    /// A named cursor.
    Cursor,
    /// A reader that asked for it.
    Reader,
    /// A pin of the caller.
    Pin,
    /// What the log keeps by itself: the limits of its retention.
    Policy,
}

impl HolderKind {
    /// The kind's name in lower-case snake case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leftover => "leftover",
            Self::Cursor => "cursor",
            Self::Reader => "reader",
            Self::Pin => "pin",
            Self::Policy => "policy",
        }
    }
}

impl fmt::Display for HolderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who holds records in this process, and the trim that is under way.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    pins: BTreeMap<u64, Holder>,
    /// Pins that there ever were: each has a number of its own.
    count: u64,
    /// The cursors of the log, where they are known to stand.
    pub(crate) cursors: BTreeMap<String, Stand>,
    /// Counters of the places of cursors that were removed.
    pub(crate) removed: BTreeMap<u32, u64>,
    /// Where callers want cursors to stand.
    pub(crate) wanted: BTreeMap<String, u64>,
    /// Cursors whose removal was refused: the file may say that they are gone.
    pub(crate) unsure: BTreeSet<String>,
    /// Places where a cursor was being made that is not one yet: the file may have it there, so
    /// that its name goes nowhere else, and no other name there.
    pub(crate) begun: BTreeMap<String, Stand>,
    /// Why it is not known where cursors stand.
    damage: Option<Finding>,
    /// Where the trim goes whose slots are being written; 0 when there is none.
    trimming: u64,
}

/// Where a cursor is in the file.
#[derive(Debug)]
pub(crate) enum PlaceOf {
    /// It stands there.
    Sure(Stand),
    /// It stands there, and the file may say that it is gone.
    Unsure(Stand),
    /// It is not; here it may be made.
    Free(Stand),
}

impl Holds {
    /// With the cursors that recovery has found.
    pub(crate) fn new(facts: &CursorFacts) -> Self {
        let mut holds = Self::default();
        holds.take_cursors(facts);
        holds
    }

    /// Where a cursor of this name is, or may be made.
    pub(crate) fn place_of(&self, name: &str) -> Result<PlaceOf> {
        if let Some(stand) = self.cursors.get(name) {
            let is_unsure = self.unsure.contains(name);
            let place = if is_unsure { PlaceOf::Unsure } else { PlaceOf::Sure };
            return Ok(place(stand.clone()));
        }
        if let Some(stand) = self.begun.get(name) {
            return Ok(PlaceOf::Free(stand.clone()));
        }
        let is_free = |index: &u32| {
            let mut taken = self.cursors.values().chain(self.begun.values());
            !taken.any(|stand| stand.index == *index)
        };
        let Some(index) = (0..CURSOR_COUNT_MAX).find(is_free) else {
            let what = format!("a log has {CURSOR_COUNT_MAX} cursors at most");
            return Err(Error::new(ErrorKind::Limit, what));
        };
        let counter = self.removed.get(&index).copied().unwrap_or(0);
        Ok(PlaceOf::Free(Stand::free(index, counter)))
    }

    /// Where the cursors stand is what a reading of their file says, and nothing read before.
    pub(crate) fn take_cursors(&mut self, facts: &CursorFacts) {
        self.cursors = facts.cursors.iter().cloned().collect();
        self.removed = facts.removed.iter().map(|stand| (stand.index, stand.counter)).collect();
        self.damage = facts.damage.clone();
    }

    /// Who would lose a record if everything below `oldest` went: the holder of the oldest one.
    pub(crate) fn against(&self, oldest: u64) -> Option<Holder> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::PinIgnored) {
            return None;
        }
        self.all().filter(|holder| holder.lsn.get() < oldest).min_by_key(|holder| holder.lsn)
    }

    /// Refuses a trim, from one oldest LSN to another, that would take a record from its holder.
    pub(crate) fn check(&self, from: u64, to: u64) -> Result<()> {
        if to <= from {
            return Ok(());
        }
        self.check_cursors()?;
        match self.against(to) {
            Some(holder) => {
                let what = format!("records below LSN {to} are held by the {holder}");
                Err(Error::new(ErrorKind::Pinned, what).at_lsn(holder.lsn.get()))
            }
            None => Ok(()),
        }
    }

    /// Refuses what needs to know where the cursors stand.
    pub(crate) fn check_cursors(&self) -> Result<()> {
        self.damage.as_ref().map_or(Ok(()), |damage| Err(damage.to_error()))
    }

    /// Whether the file holds, or has held, a cursor.
    pub(crate) fn has_used_cursors(&self) -> bool {
        !self.cursors.is_empty() || !self.removed.is_empty()
    }

    /// Where a cursor stands; one that was removed is gone, whatever has its name.
    pub(crate) fn stand(&self, cursor: &CursorId) -> Result<&Stand> {
        let stand = self.cursors.get(&*cursor.name).filter(|stand| stand.is_of(cursor));
        stand.ok_or_else(|| gone(&cursor.name))
    }

    pub(crate) fn want(&mut self, cursor: &str, lsn: u64) {
        let wanted = self.wanted.entry(cursor.to_owned()).or_insert(lsn);
        *wanted = lsn.max(*wanted);
    }

    /// From here to [`Holds::end_trim`] nobody can pin what the trim is about to drop.
    pub(crate) fn begin_trim(&mut self, oldest: u64) {
        self.trimming = oldest;
    }

    pub(crate) fn end_trim(&mut self) {
        self.trimming = 0;
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Holder> {
        let cursors = self.cursors.iter().map(|(name, stand)| Holder::cursor(name, stand));
        self.pins.values().cloned().chain(cursors)
    }
}

/// Holds the records of a log from an LSN on, until it is dropped. It does not keep the log open.
///
/// # Examples
///
/// ```
/// use oncelog::{CreateMode, ErrorKind, Log, Lsn, Options};
///
/// # fn main() -> oncelog::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let options = Options::new().create(CreateMode::IfMissing);
/// # let (log, _report) = Log::open(dir.path().join("log"), &options)?;
/// log.append(b"wanted by a backup")?;
/// let pin = log.pin("backup", Lsn::FIRST)?;
/// let refused = log.trim(log.next_lsn()).unwrap_err();
/// assert_eq!((refused.kind(), refused.lsn()), (ErrorKind::Pinned, Some(Lsn::FIRST)));
/// pin.advance(log.next_lsn())?;
/// log.trim(log.next_lsn())?;
/// # log.close()
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the records are held until this is dropped"]
pub struct Pin {
    shared: Arc<Shared>,
    number: u64,
}

impl Pin {
    /// The oldest LSN that this holds.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        let gate = self.shared.gate();
        // Only a drop takes it out.
        gate.holds.pins.get(&self.number).map_or(Lsn::FIRST, |pin| pin.lsn)
    }

    /// Lets go of the records below an LSN, which may be the next one at most.
    ///
    /// # Errors
    ///
    /// `InvalidInput` below the LSN that this holds, for what was let go may be gone, and above the
    /// next LSN. Nothing has changed then.
    pub fn advance(&self, lsn: Lsn) -> Result<()> {
        let mut gate = self.shared.gate();
        check_below_end(&gate, lsn.get())?;
        let Some(pin) = gate.holds.pins.get_mut(&self.number) else { return Ok(()) };
        if lsn < pin.lsn {
            let what = format!("a pin goes forward only: expected at least LSN {}", pin.lsn);
            return Err(Error::new(ErrorKind::InvalidInput, what).at_lsn(lsn.get()));
        }
        pin.lsn = lsn;
        self.shared.loosen(&mut gate);
        Ok(())
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut gate = self.shared.gate();
        gate.holds.pins.remove(&self.number);
        self.shared.loosen(&mut gate);
    }
}

/// Refuses a place after which the log has not come yet.
pub(super) fn check_below_end(gate: &Gate, lsn: u64) -> Result<()> {
    if lsn <= gate.next_lsn {
        return Ok(());
    }
    let what = format!("expected at most LSN {}, the next one", gate.next_lsn);
    Err(Error::new(ErrorKind::InvalidInput, what).at_lsn(lsn))
}

impl Shared {
    /// Holds the records from `lsn` on.
    pub(crate) fn pin(self: &Arc<Self>, kind: HolderKind, name: &str, lsn: Lsn) -> Result<Pin> {
        let mut gate = self.gate();
        // A trim has the tail while it writes its slots.
        while lsn.get() < gate.holds.trimming && gate.tail.is_none() && !gate.closed {
            gate = self.wait(gate);
        }
        if gate.closed {
            return Err(closed());
        }
        if lsn.get() < gate.oldest {
            return Err(trimmed(gate.oldest));
        }
        check_below_end(&gate, lsn.get())?;
        gate.holds.count = gate.holds.count.saturating_add(1);
        let number = gate.holds.count;
        gate.holds.pins.insert(number, Holder { kind, name: name.to_owned(), lsn });
        drop(gate);
        Ok(Pin { shared: Arc::clone(self), number })
    }
}

impl Log {
    /// Holds the records from an LSN on, which may be the next one at most: no trim drops them
    /// until the pin has gone forward or is dropped. The name is for [`Log::why_not_trimmed`] and
    /// for the error of a trim that meets it; several pins may have one name.
    ///
    /// # Errors
    ///
    /// `Trimmed` below the oldest LSN, which the error carries; `InvalidInput` above the next LSN;
    /// `Closed`.
    pub fn pin(&self, name: &str, lsn: Lsn) -> Result<Pin> {
        self.handle.shared.pin(HolderKind::Pin, name, lsn)
    }

    /// Everything that keeps records, or the files of some, on the disk: the holder of the oldest
    /// one first. The policy is always among them. Cursors stand where their file says, which is
    /// made durable at the first use of one, or the first trim, after an open.
    #[must_use]
    pub fn why_not_trimmed(&self) -> Vec<Holder> {
        let gate = self.handle.shared.gate();
        let policy = std::iter::once(self.policy_holder(&gate));
        Holder::in_order(gate.holds.all().chain(gate.removal.holders()).chain(policy))
    }
}

impl LogView {
    /// What keeps records, or the files of some, on the disk as far as the files tell: cursors and
    /// leftovers of a trim, the holder of the oldest record first. Pins live in the writer's
    /// process.
    #[must_use]
    pub fn why_not_trimmed(&self) -> Vec<Holder> {
        let survey = &self.seen().survey;
        let leftovers = survey.leftovers.iter().map(Leftover::found);
        Holder::in_order(leftovers.map(|l| l.holder()).chain(survey.cursors.holders()))
    }
}
