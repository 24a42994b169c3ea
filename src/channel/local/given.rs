//! The last tick that a channel gave, and the message that it was given to.

use oncelog_format::message::{Message, TimeTick};

use crate::channel::damaged;
use crate::error::Result;
use crate::log::{Holder, HolderKind, Log, LogView, Reader, RecordKind};
use crate::lsn::Lsn;

/// The last tick that was given, and the message that it was given to: without that message none
/// would be known to be above, so that it stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) tick: TimeTick,
    pub(super) at: Option<Lsn>,
    /// What retention keeps of them where those behind it are late chunks.
    pub(super) kept: Option<Lsn>,
    /// Late chunks stand behind it.
    pub(super) is_late: bool,
}

impl Given {
    /// Has retention keep the message with the last tick, before a batch without a new one; and no
    /// more once another one is durable. Only a batch that was taken in changes what stands behind
    /// it.
    pub(super) fn keep(&mut self, log: &Log, is_late: bool, confirmed: u64) {
        let is_durable = self.at.is_some_and(|at| at.get() <= confirmed);
        let kept = if is_durable || self.kept.is_none() {
            self.at.filter(|_| is_late || self.is_late)
        } else {
            self.kept
        };
        if kept != self.kept {
            log.keep_from(kept);
            self.kept = kept;
        }
    }

    /// The LSN from which on a trim leaves messages: that of the durable one with the last tick.
    pub(super) fn held_from(&self, durable: Lsn) -> Lsn {
        let newest = self.at.map_or(durable, |at| at.min(durable));
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::TickUnkept) {
            return newest;
        }
        // The one that holds it may be in the buffer, and late chunks be all that is durable.
        self.kept.map_or(newest, |kept| kept.min(newest))
    }
}

/// The last tick that was given below an LSN, and the message that it was given to. Chunks behind
/// the first of their run carry an older one.
pub(super) fn newest_given(log: &Log, below: Lsn) -> Result<Given> {
    let oldest = log.oldest_lsn();
    newest_given_of(log.reader(below.max(oldest))?, oldest)
}

/// Who keeps the message with the last tick in a log that is only looked at, where late chunks stand
/// behind it.
pub(crate) fn tick_holder_of(log: &LogView) -> Result<Option<Holder>> {
    let Some(newest) = log.last_lsn() else { return Ok(None) };
    let mut reader = log.reader(None)?;
    reader.seek(newest.next());
    let given = newest_given_of(reader, log.oldest_lsn())?;
    Ok(given.at.and_then(|at| tick_holder(at, newest)))
}

/// The newest message stays in any case, and is nobody's.
pub(super) fn tick_holder(kept: Lsn, newest: Lsn) -> Option<Holder> {
    let name = "the last time tick".to_owned();
    (kept < newest).then_some(Holder { kind: HolderKind::Policy, name, lsn: kept })
}

fn newest_given_of(mut reader: Reader, oldest: Lsn) -> Result<Given> {
    let (mut newest, mut holder) = (TimeTick(0), None);
    while reader.next_lsn() > oldest {
        let Some(record) = reader.prev()? else { break };
        if record.kind != RecordKind::MESSAGE {
            continue;
        }
        let message = Message::decode(&record.payload).map_err(|e| damaged(record.lsn, e))?;
        let tick = message.property::<TimeTick>().map_err(|e| damaged(record.lsn, e))?;
        let tick = tick.unwrap_or(TimeTick(0));
        if holder.is_none() || tick > newest {
            (newest, holder) = (tick, Some(record.lsn));
        }
        let chunk = message.chunk().map_err(|e| damaged(record.lsn, e))?;
        if chunk.is_none_or(|chunk| chunk.index() == 0) {
            break;
        }
    }
    Ok(Given { tick: newest, at: holder, kept: holder, is_late: true })
}
