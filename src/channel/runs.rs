//! Chunks put together (SPEC 13.1): readers are handed whole messages, and no part of one.
//!
//! [`Runs`] takes the messages of a pchannel in the order of their LSNs and keeps the chunks of runs
//! that are not whole. What it lacks of a run, because reading began in the middle of it or because
//! too much was kept, it reads again from the channel ([`Earlier`]); so a reader may begin anywhere,
//! and its memory is bounded whatever a channel holds. A total allocates nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use oncelog_format::DecodeError;
use oncelog_format::limits::{BATCH_BYTES_MAX, RECORD_LEN_MAX};
use oncelog_format::message::{
    BroadcastHeader, BroadcastId, CHUNK_INDEX, CHUNK_TOTAL, Chunk, Message, Properties, Property,
    TimeTick, Vchannel,
};

use super::{Earlier, damaged};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// Most runs that are kept while they are not whole.
const RUN_COUNT_MAX: usize = 1_024;

/// Most bytes of their chunks, with what keeping one costs; two of the largest payloads fit.
const KEPT_BYTES_MAX: u64 = BATCH_BYTES_MAX;

/// Largest payload of a message, in chunks or not: what an acceptance can carry.
const PAYLOAD_LEN_MAX: u64 = RECORD_LEN_MAX as u64;

/// What keeping a chunk costs beside its bytes, at most.
const PART_COST: u64 = 64;

/// Messages that may be read again, to begin with and for each message that is taken: what bytes
/// that are not ours cost stays linear in their number.
const AGAIN_MIN: u64 = 1 << 20;
const AGAIN_PER_MESSAGE: u64 = 64;

/// Puts the chunks of messages together.
#[derive(Debug, Default)]
pub struct Runs {
    /// The oldest run first.
    open: BTreeMap<Name, Run>,
    kept_bytes: u64,
    /// The newest tick so far: a run of a later one has not begun before.
    newest: Option<TimeTick>,
    taken: u64,
    again: u64,
}

/// What names a run.
type Name = (TimeTick, BroadcastId);

/// A run that is not whole.
#[derive(Debug)]
struct Run {
    total: u32,
    vchannel: Vec<u8>,
    parts: BTreeMap<u32, Vec<u8>>,
    len: u64,
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
    /// `Corrupt` for a chunk that contradicts itself or one before; `Unsupported` for a chunk of
    /// something else than a broadcast; `Limit` for a payload above 256 MiB, and where more is to
    /// be read again than messages in order need; those of `earlier`. The same message may be given
    /// once more then.
    pub fn take(
        &mut self,
        lsn: Lsn,
        record: &Bytes,
        earlier: &mut dyn Earlier,
    ) -> Result<Option<Bytes>> {
        let Ok(message) = Message::decode(record) else { return Ok(Some(record.clone())) };
        self.taken = self.taken.saturating_add(1);
        let newest = self.newest;
        let tick = message.property::<TimeTick>().ok().flatten();
        if !is_chunk(&message) {
            self.newest = newest.max(tick);
            return Ok(Some(record.clone()));
        }
        let piece = Piece::of(&message).map_err(|fault| fault.at(lsn))?;
        let mut run = match self.close(piece.name) {
            Some(run) => run,
            None if newest.is_some_and(|newest| piece.name.0 > newest) => Run::of(&piece),
            None => self.read_again(&piece, lsn, earlier)?,
        };
        self.newest = newest.max(tick);
        let was_whole = run.is_whole();
        run.add(&piece).map_err(|fault| fault.at(lsn))?;
        match (was_whole, run.is_whole()) {
            // Sent a second time.
            (true, _) => Ok(None),
            (false, true) => Ok(Some(run.into_message(&message))),
            (false, false) => {
                self.keep(piece.name, run);
                Ok(None)
            }
        }
    }

    /// What stands of a run before an LSN.
    fn read_again(
        &mut self,
        piece: &Piece<'_>,
        lsn: Lsn,
        earlier: &mut dyn Earlier,
    ) -> Result<Run> {
        let mut run = Run::of(piece);
        let most = AGAIN_MIN.saturating_add(self.taken.saturating_mul(AGAIN_PER_MESSAGE));
        let again = &mut self.again;
        earlier.each(piece.name.0, lsn, &mut |record| {
            *again = again.saturating_add(1);
            if *again > most {
                let what = "too many messages stand in chunks that are out of order";
                return Err(Error::new(ErrorKind::Limit, what).at_lsn(lsn.get()));
            }
            let Ok(message) = Message::decode(record) else { return Ok(()) };
            if !is_chunk(&message) {
                return Ok(());
            }
            match Piece::of(&message) {
                Ok(other) if other.name == piece.name => {
                    run.add(&other).map_err(|fault| fault.at(lsn))
                }
                // Whoever reads there is told.
                Ok(_) | Err(_) => Ok(()),
            }
        })?;
        Ok(run)
    }

    fn close(&mut self, name: Name) -> Option<Run> {
        let run = self.open.remove(&name)?;
        self.kept_bytes = self.kept_bytes.saturating_sub(run.cost());
        Some(run)
    }

    /// Keeps a run; what is too much is read again when its next chunk comes.
    fn keep(&mut self, name: Name, run: Run) {
        self.kept_bytes = self.kept_bytes.saturating_add(run.cost());
        self.open.insert(name, run);
        while self.open.len() > RUN_COUNT_MAX || self.kept_bytes > KEPT_BYTES_MAX {
            let Some((oldest, _)) = self.open.first_key_value() else { return };
            let oldest = *oldest;
            self.close(oldest);
        }
    }
}

fn is_chunk(message: &Message<'_>) -> bool {
    [CHUNK_INDEX, CHUNK_TOTAL].iter().any(|key| message.value(key).is_some())
}

/// A chunk, taken apart.
struct Piece<'a> {
    name: Name,
    chunk: Chunk,
    vchannel: &'a [u8],
    payload: &'a [u8],
}

/// What is wrong with a chunk.
enum Fault {
    Undecoded(DecodeError),
    Kind(ErrorKind, &'static str),
}

impl Fault {
    fn at(self, lsn: Lsn) -> Error {
        match self {
            Self::Undecoded(e) => damaged(lsn, e),
            Self::Kind(kind, what) => Error::new(kind, what).at_lsn(lsn.get()),
        }
    }
}

impl<'a> Piece<'a> {
    fn of(message: &Message<'a>) -> std::result::Result<Self, Fault> {
        let chunk = message.chunk().map_err(Fault::Undecoded)?;
        let header = message.property::<BroadcastHeader>().map_err(Fault::Undecoded)?;
        let tick = message.property::<TimeTick>().map_err(Fault::Undecoded)?;
        let (Some(chunk), Some(header)) = (chunk, header) else {
            return Err(Fault::Kind(ErrorKind::Unsupported, "a chunk of no broadcast"));
        };
        let Some(tick) = tick else {
            return Err(Fault::Kind(ErrorKind::Corrupt, "a chunk without a time tick"));
        };
        let vchannel = message.value(Vchannel::KEY).unwrap_or_default();
        Ok(Self { name: (tick, header.id), chunk, vchannel, payload: message.payload() })
    }
}

impl Run {
    fn of(piece: &Piece<'_>) -> Self {
        Self {
            total: piece.chunk.total(),
            vchannel: piece.vchannel.to_vec(),
            parts: BTreeMap::new(),
            len: 0,
        }
    }

    fn add(&mut self, piece: &Piece<'_>) -> std::result::Result<(), Fault> {
        if piece.chunk.total() != self.total || piece.vchannel != self.vchannel {
            let what = "a chunk contradicts one before it of the same message";
            return Err(Fault::Kind(ErrorKind::Corrupt, what));
        }
        match self.parts.get(&piece.chunk.index()) {
            Some(part) if part == piece.payload => Ok(()),
            Some(_) => {
                let what = "a chunk came a second time with other bytes";
                Err(Fault::Kind(ErrorKind::Corrupt, what))
            }
            None => {
                let len = u64::try_from(piece.payload.len()).unwrap_or(u64::MAX);
                let len = self.len.saturating_add(len);
                if len > PAYLOAD_LEN_MAX {
                    let what = "a message in chunks is larger than any may be";
                    return Err(Fault::Kind(ErrorKind::Limit, what));
                }
                self.len = len;
                self.parts.insert(piece.chunk.index(), piece.payload.to_vec());
                Ok(())
            }
        }
    }

    fn is_whole(&self) -> bool {
        u32::try_from(self.parts.len()) == Ok(self.total)
    }

    fn cost(&self) -> u64 {
        let count = u64::try_from(self.parts.len()).unwrap_or(u64::MAX);
        self.len.saturating_add(count.saturating_add(1).saturating_mul(PART_COST))
    }

    /// The message whose last chunk came: its properties are the same in all of them.
    fn into_message(self, last: &Message<'_>) -> Bytes {
        let mut properties = Properties::of(last);
        properties.remove_chunk();
        let mut record = Vec::new();
        properties.encode(&[], &mut record);
        record.reserve_exact(usize::try_from(self.len).unwrap_or_default());
        // Parts go as they are copied: the payload is there little more than once.
        self.parts.into_values().for_each(|part| record.extend_from_slice(&part));
        record.into()
    }
}

#[cfg(test)]
mod tests;
