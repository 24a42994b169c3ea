//! Chunks put together (SPEC 13.1): readers are handed whole messages, and no part of one.
//!
//! [`Runs`] takes the messages of a pchannel in the order of their LSNs and keeps the chunks of runs
//! that are not whole, or where they stand. What it lacks of a run, because reading began in the
//! middle of it or because too much was kept, it reads again from the channel ([`Earlier`]); so a
//! reader may begin anywhere, and its memory is bounded whatever a channel holds. A total allocates
//! nothing.
//!
//! Every message before the place where reading began is read again at most once, whatever runs
//! stand there, and a chunk that is not kept is fetched once, from where it stands. More than that
//! is read again only for what no writer appends: a chunk behind the end of its run, or one of more
//! runs at once than are kept.

use std::collections::BTreeMap;

use bytes::Bytes;
use oncelog_format::limits::BATCH_BYTES_MAX;
use oncelog_format::message::{Message, Property, TimeTick, Vchannel};

use super::Earlier;
use super::parts::{Name, Piece, Run, is_chunk};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// Most runs that are kept while they are not whole.
const RUN_COUNT_MAX: usize = 1_024;

/// Most bytes of their chunks, with what keeping one costs; two of the largest payloads fit.
const KEPT_BYTES_MAX: u64 = BATCH_BYTES_MAX;

/// Messages that may be read again for chunks that come out of order, to begin with and for each
/// message that is taken: what bytes that are not ours cost stays linear in their number.
const AGAIN_MIN: u64 = 1 << 20;
const AGAIN_PER_MESSAGE: u64 = 64;

/// Puts the chunks of messages together.
#[derive(Debug)]
pub struct Runs {
    /// Those that are not whole, the oldest first.
    open: BTreeMap<Name, Run>,
    kept_bytes: u64,
    kept_bytes_max: u64,
    /// All that stands from here on was seen.
    from: Option<Lsn>,
    /// Of runs of this tick and of later ones, every chunk so far was seen.
    seen_from: Option<TimeTick>,
    /// The newest tick of a run so far: one of a later tick has no chunk that was seen.
    newest: Option<TimeTick>,
    taken: u64,
    again: u64,
}

impl Default for Runs {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            kept_bytes: 0,
            kept_bytes_max: KEPT_BYTES_MAX,
            from: None,
            seen_from: None,
            newest: None,
            taken: 0,
            again: 0,
        }
    }
}

impl Runs {
    /// Nothing is kept yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the message of a record: returns the whole message that stands at this LSN, which of a
    /// run is the one where its last chunk came; `None` for a chunk of a run that is not whole, or
    /// that was before. Bytes that are no message are returned as they are.
    ///
    /// # Errors
    ///
    /// `Trimmed`, once for a run: its first chunk is gone, and it never will be whole; the LSN is
    /// that behind this chunk. `Corrupt` for a chunk that contradicts itself or one before;
    /// `Unsupported` for a chunk of something else than a broadcast; `Limit` for a payload above
    /// 256 MiB, and where more is to be read again than messages in order need; those of `earlier`.
    /// But for `Trimmed`, the same message may be given once more then.
    pub fn take(
        &mut self,
        lsn: Lsn,
        record: &Bytes,
        earlier: &mut dyn Earlier,
    ) -> Result<Option<Bytes>> {
        self.from.get_or_insert(lsn);
        let Ok(message) = Message::decode(record) else { return Ok(Some(record.clone())) };
        self.taken = self.taken.saturating_add(1);
        if !is_chunk(&message) {
            if self.seen_from.is_none() {
                // Whatever has a later tick begins behind this.
                self.seen_from = message.property::<TimeTick>().ok().flatten();
            }
            return Ok(Some(record.clone()));
        }
        let piece = Piece::of(&message).map_err(|fault| fault.at(lsn))?;
        let mut run = self.run_of(&piece, lsn, earlier)?;
        if run.is_lost() {
            self.keep(piece.name, run);
            return Ok(None);
        }
        let was_whole = run.is_whole();
        if !was_whole
            && run.lacks_only(piece.chunk.index())
            && let Err(e) = run.fetch(piece.name, earlier)
        {
            let is_gone = e.kind() == ErrorKind::Trimmed;
            if is_gone {
                run.lose();
            }
            self.keep(piece.name, run);
            return Err(if is_gone { trimmed(lsn) } else { e });
        }
        run.add(&piece).map_err(|fault| fault.at(lsn))?;
        match (was_whole, run.is_whole()) {
            // Sent a second time.
            (true, _) => Ok(None),
            (false, true) => Ok(Some(run.into_message(&message))),
            (false, false) => {
                // The first chunk is that of index 0.
                let is_gone = run.lacks_first() && earlier.oldest() > Lsn::FIRST;
                if is_gone {
                    run.lose();
                }
                run.came_at(piece.chunk.index(), lsn);
                self.keep(piece.name, run);
                if is_gone { Err(trimmed(lsn)) } else { Ok(None) }
            }
        }
    }

    /// What stands of a run before an LSN.
    fn run_of(&mut self, piece: &Piece<'_>, lsn: Lsn, earlier: &mut dyn Earlier) -> Result<Run> {
        let tick = piece.name.0;
        if self.seen_from.is_none_or(|from| tick < from) {
            self.widen(piece.name, lsn, earlier)?;
        }
        let run = match self.close(piece.name) {
            Some(run) => run,
            None if self.newest.is_none_or(|newest| tick > newest) => Run::of(piece),
            // Whole, or not kept any more.
            None => self.read_again(piece, lsn, earlier)?,
        };
        self.newest = self.newest.max(Some(tick));
        Ok(run)
    }

    /// Sees what stands before the place where reading began, as far back as a run may begin.
    fn widen(&mut self, name: Name, lsn: Lsn, earlier: &mut dyn Earlier) -> Result<()> {
        let below = self.from.unwrap_or(lsn);
        let begin = if earlier.oldest() < below { earlier.begin(name.0)? } else { below };
        if begin < below {
            let each = &mut |at: Lsn, record: &Bytes| {
                self.note(at, record);
                Ok(())
            };
            earlier.each(begin, below, each)?;
            self.from = Some(begin);
            let oldest = earlier.oldest();
            if oldest > begin {
                // Retention was faster: what was seen of these is not all that there was.
                self.each_open(|run| run.forget_below(oldest));
            }
            // Those that stand there whole stand before the place where reading began.
            let whole = self.open.iter().filter(|(other, run)| **other != name && run.is_whole());
            let whole: Vec<Name> = whole.map(|(name, _)| *name).collect();
            for name in whole {
                self.close(name);
            }
        }
        self.seen_from = Some(name.0);
        Ok(())
    }

    /// Notes a message that stands before the place where reading began. What is wrong with it
    /// whoever reads there is told.
    fn note(&mut self, at: Lsn, record: &Bytes) {
        let Ok(message) = Message::decode(record) else { return };
        if !is_chunk(&message) {
            return;
        }
        let Ok(piece) = Piece::of(&message) else { return };
        let mut run = self.close(piece.name).unwrap_or_else(|| Run::of(&piece));
        run.note(&piece, at);
        self.newest = self.newest.max(Some(piece.name.0));
        self.keep(piece.name, run);
    }

    /// Sees all that stands of a run before an LSN once more.
    fn read_again(
        &mut self,
        piece: &Piece<'_>,
        lsn: Lsn,
        earlier: &mut dyn Earlier,
    ) -> Result<Run> {
        let mut run = Run::of(piece);
        let most = AGAIN_MIN.saturating_add(self.taken.saturating_mul(AGAIN_PER_MESSAGE));
        let again = &mut self.again;
        let begin = earlier.begin(piece.name.0)?;
        earlier.each(begin, lsn, &mut |at, record| {
            *again = again.saturating_add(1);
            if *again > most {
                let what = "too many messages stand in chunks that are out of order";
                return Err(Error::new(ErrorKind::Limit, what).at_lsn(lsn.get()));
            }
            let Ok(message) = Message::decode(record) else { return Ok(()) };
            if is_chunk(&message)
                && let Ok(other) = Piece::of(&message)
                && other.name == piece.name
            {
                run.note(&other, at);
            }
            Ok(())
        })?;
        run.forget_below(earlier.oldest());
        Ok(run)
    }

    fn close(&mut self, name: Name) -> Option<Run> {
        let run = self.open.remove(&name)?;
        self.kept_bytes = self.kept_bytes.saturating_sub(run.cost());
        Some(run)
    }

    fn each_open(&mut self, change: impl Fn(&mut Run)) {
        self.open.values_mut().for_each(change);
        self.kept_bytes = self.open.values().map(Run::cost).fold(0, u64::saturating_add);
    }

    /// Keeps a run. Of what is too much the chunks are fetched when the last one comes; and if that
    /// is too much yet, the oldest run is read again when its next chunk comes.
    fn keep(&mut self, name: Name, run: Run) {
        self.kept_bytes = self.kept_bytes.saturating_add(run.cost());
        self.open.insert(name, run);
        if self.kept_bytes > self.kept_bytes_max {
            for run in self.open.values_mut() {
                let before = run.cost();
                run.let_go();
                let freed = before.saturating_sub(run.cost());
                self.kept_bytes = self.kept_bytes.saturating_sub(freed);
                if self.kept_bytes <= self.kept_bytes_max {
                    break;
                }
            }
        }
        while self.open.len() > RUN_COUNT_MAX || self.kept_bytes > self.kept_bytes_max {
            let Some((oldest, _)) = self.open.first_key_value() else { return };
            let oldest = *oldest;
            self.close(oldest);
        }
    }
}

/// The vchannel that a chunk is for. A name that is none belongs to nobody.
pub(crate) fn vchannel_of(record: &Bytes) -> Option<String> {
    let message = Message::decode(record).ok()?;
    let name = message.value(Vchannel::KEY).unwrap_or_default();
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Of a message something is gone; behind this chunk others may be whole.
fn trimmed(lsn: Lsn) -> Error {
    let what = "the first chunks of a message are trimmed, and it is not whole any more";
    Error::new(ErrorKind::Trimmed, what).at_lsn(lsn.next().get())
}

#[cfg(test)]
mod tests;
