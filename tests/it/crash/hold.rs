//! Retention, what holds it up, and the steps in which files go.

use oncelog::testing::Dice;
use oncelog::{
    Cursor, ErrorKind, FindingKind, HolderKind, Log, Lsn, Pin, RecoveryReport, Retention,
};

use super::drive::{Driver, Op, ROOM, chain};
use super::workload::{Workload, named};

/// What every log of these tests keeps by itself.
pub(crate) fn retention() -> Retention {
    Retention::new().segment_count_max(2)
}

/// Bytes that a step frees, so that a segment goes in several.
pub(crate) const STEP_BYTES: u64 = 24_000;

/// Name of the cursor.
const CURSOR: &str = "consumer";

/// A step that concerns what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Applies retention.
    Retain,
    /// Removes a piece of a file.
    RemoveStep,
    /// Puts the cursor this many quarters of the way to the end of what is durable; makes it.
    Cursor(u64),
    RemoveCursor,
    /// Pins what lies this many quarters of the way, until the process ends.
    Pin(u64),
    Unpin,
}

/// Where the cursor is known to stand, and where else a crash may find it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stands {
    now: Option<u64>,
    may: Vec<Option<u64>>,
}

impl Stands {
    /// A call returned: it stands there, durably.
    fn settle(&mut self, at: Option<u64>) {
        (self.now, self.may) = (at, Vec::new());
    }

    /// A digest of where it may be found.
    pub(crate) fn digest(&self) -> u64 {
        let word = |at: Option<u64>| at.map_or(0, |at| at + 1);
        self.may.iter().fold(word(self.now), |h, at| Dice::new(h ^ word(*at)).roll())
    }

    /// Compares where a log that was opened has the cursor.
    pub(crate) fn check(&self, log: &Log) -> Result<(), String> {
        let found = cursor_of(log);
        if found != self.now && !self.may.contains(&found) {
            return Err(format!("G1: the cursor stands at {found:?}, expected {self:?}"));
        }
        match found {
            Some(at) if at < log.oldest_lsn().get() => {
                Err(format!("G4: the cursor needs LSN {at}, {} is the oldest", log.oldest_lsn()))
            }
            _ => Ok(()),
        }
    }
}

fn cursor_of(log: &Log) -> Option<u64> {
    let held = log.why_not_trimmed().into_iter();
    held.filter(|holder| holder.kind == HolderKind::Cursor).map(|holder| holder.lsn.get()).next()
}

/// What this process holds, and knows of the cursor.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pin: Option<Pin>,
    /// A handle of a cursor that this process removed.
    removed: Option<Cursor>,
    /// A fault met the reading of the cursors as the log was opened: no trim, until the next open.
    is_unread: bool,
}

impl Held {
    pub(crate) fn new(is_unread: bool) -> Self {
        Self { is_unread, ..Self::default() }
    }

    /// A cursor that was removed is not the next one of its name.
    fn check_removed(&self) -> Result<(), String> {
        match self.removed.as_ref().map(Cursor::lsn) {
            Some(Ok(lsn)) => Err(format!("G4: a cursor that was removed stands at {lsn}")),
            _ => Ok(()),
        }
    }

    /// The oldest LSN that is held against a trim.
    fn floor(&self, log: &Log) -> u64 {
        let pin = self.pin.as_ref().map(|pin| pin.lsn().get());
        pin.into_iter().chain(cursor_of(log)).min().unwrap_or(u64::MAX)
    }
}

impl Driver {
    pub(crate) fn hold(&mut self, step: Hold) -> Result<(), String> {
        match step {
            Hold::Retain => self.retain(),
            Hold::RemoveStep => {
                // A refusal keeps the file, and is told by nobody.
                let done = self.log().remove_step().map(drop);
                self.settle(done, |_, _| {})
            }
            Hold::Cursor(quarters) => {
                let to = self.quarter(quarters).max(cursor_of(self.log()).unwrap_or(1));
                let from = cursor_of(self.log());
                let from = from.unwrap_or_else(|| self.log().oldest_lsn().get());
                // Made where the log begins, then moved.
                self.oracle(|o| o.cursor.may.extend([Some(from), Some(to)]));
                let log = self.log().clone();
                let made = log.cursor(CURSOR);
                if made.is_ok() {
                    // Not where it seemed to stand, when the cache has lost what it held.
                    let told = cursor_of(&log);
                    self.oracle(|o| o.cursor.now = told);
                    self.held.check_removed()?;
                }
                let lsn = Lsn::new(to).unwrap();
                let done = made.and_then(|cursor| cursor.advance(lsn));
                self.settle_cursor(done, Some(to))
            }
            Hold::RemoveCursor if cursor_of(self.log()).is_some() => {
                self.oracle(|o| o.cursor.may.push(None));
                let log = self.log().clone();
                let removed =
                    log.cursor(CURSOR).and_then(|cursor| cursor.remove().map(|()| cursor));
                let done = removed.map(|cursor| self.held.removed = Some(cursor));
                self.settle_cursor(done, None)
            }
            Hold::Pin(quarters) => {
                let lsn = Lsn::new(self.quarter(quarters)).unwrap();
                self.held.pin = self.log().pin("reader", lsn).ok();
                Ok(())
            }
            Hold::Unpin => {
                self.held.pin = None;
                Ok(())
            }
            Hold::RemoveCursor => Ok(()),
        }
    }

    /// The LSN so many quarters of the way from the oldest to the end of what is durable.
    fn quarter(&self, quarters: u64) -> u64 {
        let (oldest, end) = (self.log().oldest_lsn().get(), self.log().durable_lsn());
        let end = end.map_or(1, |lsn| lsn.next().get());
        oldest + end.saturating_sub(oldest) * quarters / 4
    }

    fn settle_cursor(&mut self, done: oncelog::Result<()>, at: Option<u64>) -> Result<(), String> {
        match &done {
            Ok(()) => {
                self.oracle(|o| o.cursor.settle(at));
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Corrupt && self.held.is_unread => Ok(()),
            Err(e) if e.kind() == ErrorKind::OutcomeUnknown => self.settle_unknown(e),
            // What was made on the way stays made.
            Err(_) => self.settle(done, |_, _| {}),
        }
    }

    fn retain(&mut self) -> Result<(), String> {
        let before = self.log().oldest_lsn().get();
        let floor = self.held.floor(self.log());
        let end = self.log().next_lsn().get();
        self.oracle(|o| o.oldest.1 = o.oldest.1.max(floor.min(end)));
        let done = self.log().trim_by_retention();
        let after = self.log().oldest_lsn().get();
        if after > before && after > floor {
            return Err(format!("G4: LSN {floor} is held, retention trimmed to {after}"));
        }
        match done {
            Ok(trimmed) => {
                if trimmed.segment_count > 0 {
                    // Where the cursor stands was written again before anything went.
                    let at = cursor_of(self.log());
                    self.oracle(|o| {
                        o.oldest = (after, after);
                        o.cursor.settle(at);
                    });
                }
                Ok(())
            }
            Err(e) => self.settle_trim(e, after),
        }
    }

    /// A trim to an LSN failed.
    pub(crate) fn settle_trim(&mut self, e: oncelog::Error, to: u64) -> Result<(), String> {
        match e.kind() {
            ErrorKind::Pinned if self.held.floor(self.log()) < to => Ok(()),
            ErrorKind::Corrupt if self.held.is_unread => Ok(()),
            ErrorKind::OutcomeUnknown => self.settle_unknown(&e),
            _ => self.settle(Err(e), |_, _| {}),
        }
    }

    /// Whether a trim to an LSN has to be refused.
    pub(crate) fn is_held(&self, to: u64) -> bool {
        self.held.floor(self.log()) < to && self.log().oldest_lsn().get() < to
    }

    /// A trim to an LSN returned: nothing that is held may have gone.
    pub(crate) fn trimmed(&mut self, before: u64, to: u64) -> Result<(), String> {
        let floor = self.held.floor(self.log());
        if to > before && to > floor {
            return Err(format!("G4: LSN {floor} is held, and a trim went to {to}"));
        }
        // Where the cursor stands was written again before anything went.
        let is_new = to > before;
        let at = cursor_of(self.log());
        self.oracle(|o| {
            o.oldest.0 = to.max(o.oldest.0);
            if is_new {
                o.cursor.settle(at);
            }
        });
        Ok(())
    }

    fn settle_unknown(&mut self, e: &oncelog::Error) -> Result<(), String> {
        if !self.is_struck() || self.poisoned {
            return Err(format!("{} ({})", chain(e), e.kind()));
        }
        self.poisoned = true;
        Ok(())
    }
}

/// The cursors could not be read as the log was opened.
pub(crate) fn is_unread(report: &RecoveryReport) -> bool {
    report.findings.iter().any(|finding| finding.kind == FindingKind::CursorsDamaged)
}

fn held(step: Hold) -> Op {
    Op::Hold(step)
}

/// Steps until every file that may go is gone.
fn removal() -> Vec<Op> {
    vec![held(Hold::RemoveStep); 8]
}

/// A record that fills a segment.
fn fill() -> Op {
    Op::Synced(vec![ROOM - 3000])
}

fn fills(count: usize) -> Vec<Op> {
    vec![fill(); count]
}

/// What is kept, by whom, and files that are half gone.
pub(crate) fn workloads() -> Vec<Workload> {
    let cursor = |quarters| held(Hold::Cursor(quarters));
    let small = |len| Op::Synced(vec![len]);
    let moves = [
        vec![small(40), cursor(1), small(40), cursor(4), Op::Power, small(50), cursor(4)],
        vec![held(Hold::RemoveCursor), Op::Kill, small(9), cursor(2), Op::Close, cursor(4)],
        vec![held(Hold::RemoveCursor), small(9), cursor(1), cursor(4)],
    ];
    let removed = [
        fills(4),
        vec![Op::Trim(3), held(Hold::RemoveStep), held(Hold::RemoveStep), Op::Kill],
        vec![held(Hold::RemoveStep), Op::Power],
        removal(),
        vec![small(9), Op::Close],
    ];
    let retained = [fills(4), vec![held(Hold::Retain)], removal(), fills(1)].concat();
    let retained = [retained, vec![held(Hold::Retain), Op::Power, held(Hold::RemoveStep)]];
    let pinned = [
        fills(4),
        vec![held(Hold::Pin(1)), held(Hold::Retain), Op::Trim(4), held(Hold::Unpin)],
        vec![held(Hold::Retain)],
        removal(),
    ];
    let needed = [
        fills(3),
        vec![cursor(1), fill(), held(Hold::Retain), Op::Trim(4), held(Hold::RemoveStep)],
        vec![Op::Kill, cursor(4), held(Hold::Retain), held(Hold::RemoveStep), Op::Power],
        vec![held(Hold::RemoveCursor), Op::Trim(4)],
        removal(),
    ];
    let full = [
        vec![Op::Space(Some(8)), small(9), cursor(2), Op::Space(None), cursor(2)],
        fills(2),
        vec![Op::Space(Some(0)), cursor(4), Op::Trim(4), held(Hold::RemoveStep), fill(), fill()],
    ];
    let failed = [
        vec![small(9), cursor(1), small(9), small(9), Op::FailSync, cursor(4), Op::Kill],
        vec![Op::Trim(4), small(9), Op::FailSync, cursor(4), Op::Evict, cursor(4), Op::Trim(4)],
        vec![Op::FailSync, held(Hold::RemoveCursor), Op::Kill, Op::Trim(2), Op::Power],
    ];
    let again = [
        // Nothing, one, or two moves behind a reopen: each copy in turn.
        vec![small(9), small(9), small(9), Op::FailSecondSync, cursor(0), Op::Kill],
        vec![cursor(0), Op::Power, held(Hold::RemoveCursor), Op::FailSync, cursor(0), Op::Kill],
        vec![cursor(2), cursor(3), Op::Power, small(9), Op::FailSync, cursor(4), Op::Kill],
        vec![cursor(4), small(9), cursor(4), Op::Power],
    ];
    let dropped = [
        vec![small(9), cursor(1), small(9), small(9), Op::FailSync, cursor(4), Op::Kill],
        vec![Op::Drop, cursor(4), Op::Power, small(9), Op::FailSync, cursor(4), Op::Kill],
        vec![Op::Drop, Op::Trim(4), Op::Power, small(9), Op::FailSync, cursor(4), Op::Kill],
        vec![Op::Trim(4), Op::Drop, Op::Trim(4), Op::Power, cursor(4)],
    ];
    let unnamed = [small(9), Op::FailSyncDir, cursor(1), Op::Kill, small(9), cursor(2), Op::Power];
    let short = [30, 100, 510].map(|len| {
        vec![small(9), Op::FailWrite(Some(len)), cursor(4), small(9), Op::Kill, cursor(4)]
    });
    vec![
        named("cursor moves", moves.concat()),
        named("files half gone", removed.concat()),
        named("retention", retained.concat()),
        named("retention meets a pin", pinned.concat()),
        named("retention meets a cursor", needed.concat()),
        named("cursor on a full disk", full.concat()),
        named("failed sync of a cursor", failed.concat()),
        named("failed sync of a cursor, moved again", again.concat()),
        named("failed sync of a cursor, dropped from the cache", dropped.concat()),
        named("failed sync of the name of the cursors", unnamed.to_vec()),
        named("short write of a cursor", short.concat()),
    ]
}
