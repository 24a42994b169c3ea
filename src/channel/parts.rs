//! Chunks of one message: what is kept of each, and what they say of each other.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};

use bytes::Bytes;
use oncelog_format::DecodeError;
use oncelog_format::limits::RECORD_LEN_MAX;
use oncelog_format::message::{
    BroadcastHeader, BroadcastId, CHUNK_INDEX, CHUNK_TOTAL, Chunk, Message, Properties, Property,
    TimeTick, Vchannel,
};

use super::{Earlier, damaged};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// Largest payload of a message, in chunks or not: what an acceptance can carry.
pub(super) const PAYLOAD_LEN_MAX: u64 = RECORD_LEN_MAX as u64;

/// What keeping a chunk costs beside its bytes, at most.
const PART_COST: u64 = 80;

/// Chunks that are fetched stand in one range where no more messages than this lie between two.
const GAP_MAX: u64 = 64;

/// What names a run.
pub(super) type Name = (TimeTick, BroadcastId);

pub(super) fn is_chunk(message: &Message<'_>) -> bool {
    [CHUNK_INDEX, CHUNK_TOTAL].iter().any(|key| message.value(key).is_some())
}

/// A chunk, taken apart.
pub(super) struct Piece<'a> {
    pub(super) name: Name,
    pub(super) chunk: Chunk,
    vchannel: &'a [u8],
    payload: &'a [u8],
}

/// What is wrong with a chunk.
pub(super) enum Fault {
    Undecoded(DecodeError),
    Kind(ErrorKind, &'static str),
}

impl Fault {
    pub(super) fn at(self, lsn: Lsn) -> Error {
        match self {
            Self::Undecoded(e) => damaged(lsn, e),
            Self::Kind(kind, what) => Error::new(kind, what).at_lsn(lsn.get()),
        }
    }
}

impl<'a> Piece<'a> {
    pub(super) fn of(message: &Message<'a>) -> std::result::Result<Self, Fault> {
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

/// A run that is not whole.
#[derive(Debug)]
pub(super) struct Run {
    total: u32,
    vchannel: Vec<u8>,
    parts: BTreeMap<u32, Part>,
    /// Bytes of the payload, and of what is kept of it.
    len: u64,
    held: u64,
    /// Chunks before the place where reading began contradict each other.
    contradicts: bool,
    /// Some of it is trimmed.
    lost: bool,
}

/// One chunk of it.
#[derive(Debug)]
struct Part {
    /// Where it stands; `None` for the one that is being taken.
    at: Option<Lsn>,
    len: u64,
    payload: Payload,
}

/// The bytes of a chunk.
#[derive(Debug)]
enum Payload {
    Kept(Vec<u8>),
    /// What tells it from another one.
    Sum(u64),
}

impl Part {
    fn is(&self, payload: &[u8]) -> bool {
        match &self.payload {
            Payload::Kept(kept) => kept == payload,
            Payload::Sum(known) => self.len == len(payload) && *known == sum(payload),
        }
    }

    fn is_kept(&self) -> bool {
        matches!(self.payload, Payload::Kept(_))
    }
}

fn len(payload: &[u8]) -> u64 {
    u64::try_from(payload.len()).unwrap_or(u64::MAX)
}

/// Tells a chunk from another one of its run without its bytes.
fn sum(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(payload);
    hasher.finish()
}

impl Run {
    pub(super) fn of(piece: &Piece<'_>) -> Self {
        Self {
            total: piece.chunk.total(),
            vchannel: piece.vchannel.to_vec(),
            parts: BTreeMap::new(),
            len: 0,
            held: 0,
            contradicts: false,
            lost: false,
        }
    }

    fn is_of(&self, piece: &Piece<'_>) -> bool {
        piece.chunk.total() == self.total && piece.vchannel == self.vchannel && !self.contradicts
    }

    /// Takes a chunk, and keeps its payload.
    pub(super) fn add(&mut self, piece: &Piece<'_>) -> std::result::Result<(), Fault> {
        if !self.is_of(piece) {
            let what = "a chunk contradicts one before it of the same message";
            return Err(Fault::Kind(ErrorKind::Corrupt, what));
        }
        match self.parts.get(&piece.chunk.index()) {
            Some(part) if part.is(piece.payload) => Ok(()),
            Some(_) => {
                let what = "a chunk came a second time with other bytes";
                Err(Fault::Kind(ErrorKind::Corrupt, what))
            }
            None => {
                let payload = Payload::Kept(piece.payload.to_vec());
                let part = Part { at: None, len: len(piece.payload), payload };
                if self.len.saturating_add(part.len) > PAYLOAD_LEN_MAX {
                    let what = "a message in chunks is larger than any may be";
                    return Err(Fault::Kind(ErrorKind::Limit, what));
                }
                self.len = self.len.saturating_add(part.len);
                self.held = self.held.saturating_add(part.len);
                self.parts.insert(piece.chunk.index(), part);
                Ok(())
            }
        }
    }

    /// Says where the chunk stands that was added.
    pub(super) fn came_at(&mut self, index: u32, lsn: Lsn) {
        if let Some(part) = self.parts.get_mut(&index) {
            part.at.get_or_insert(lsn);
        }
    }

    /// Notes where a chunk stands, and keeps no byte of it.
    pub(super) fn note(&mut self, piece: &Piece<'_>, at: Lsn) {
        self.contradicts |= !self.is_of(piece);
        match self.parts.get_mut(&piece.chunk.index()) {
            Some(part) => {
                self.contradicts |= !part.is(piece.payload);
                // What stands last is trimmed last.
                part.at = part.at.max(Some(at));
            }
            None => {
                let payload = Payload::Sum(sum(piece.payload));
                let part = Part { at: Some(at), len: len(piece.payload), payload };
                self.len = self.len.saturating_add(part.len);
                self.parts.insert(piece.chunk.index(), part);
            }
        }
    }

    /// Some of it is gone: it is not put together any more, and nothing of it is kept.
    pub(super) fn lose(&mut self) {
        self.lost = true;
        self.parts.clear();
        (self.len, self.held) = (0, 0);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Chunks below an LSN are gone.
    pub(super) fn forget_below(&mut self, oldest: Lsn) {
        self.parts.retain(|_, part| part.is_kept() || part.at >= Some(oldest));
        self.len = self.parts.values().map(|part| part.len).fold(0, u64::saturating_add);
    }

    /// Keeps no payload.
    pub(super) fn let_go(&mut self) {
        if self.held > 0 {
            for part in self.parts.values_mut() {
                if let Payload::Kept(kept) = &part.payload {
                    part.payload = Payload::Sum(sum(kept));
                }
            }
            self.held = 0;
        }
    }

    /// Reads the payloads again that are not kept.
    ///
    /// # Errors
    ///
    /// `Trimmed` where one is gone; those of `earlier`.
    pub(super) fn fetch(&mut self, name: Name, earlier: &mut dyn Earlier) -> Result<()> {
        let absent = self.parts.values().filter(|part| !part.is_kept());
        let mut absent: Vec<Lsn> = absent.filter_map(|part| part.at).collect();
        absent.sort_unstable();
        for range in absent.chunk_by(|a, b| b.get().saturating_sub(a.get()) <= GAP_MAX) {
            let (Some(first), Some(last)) = (range.first(), range.last()) else { continue };
            earlier.each(*first, last.next(), &mut |_, record| {
                let Ok(message) = Message::decode(record) else { return Ok(()) };
                if is_chunk(&message)
                    && let Ok(piece) = Piece::of(&message)
                    && piece.name == name
                    && let Some(part) = self.parts.get_mut(&piece.chunk.index())
                    && !part.is_kept()
                    && part.is(piece.payload)
                {
                    part.payload = Payload::Kept(piece.payload.to_vec());
                    self.held = self.held.saturating_add(part.len);
                }
                Ok(())
            })?;
        }
        match self.parts.values().find(|part| !part.is_kept()) {
            Some(gone) => {
                let at = gone.at.unwrap_or(Lsn::FIRST);
                let kind =
                    if at < earlier.oldest() { ErrorKind::Trimmed } else { ErrorKind::Corrupt };
                let what = "a chunk is no longer there";
                Err(Error::new(kind, what).at_lsn(at.get()))
            }
            None => Ok(()),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        u32::try_from(self.parts.len()) == Ok(self.total)
    }

    pub(super) fn lacks_first(&self) -> bool {
        !self.parts.contains_key(&0)
    }

    /// Whether it is whole with this chunk.
    pub(super) fn lacks_only(&self, index: u32) -> bool {
        let with = self.parts.len().saturating_add(1);
        u32::try_from(with) == Ok(self.total) && !self.parts.contains_key(&index)
    }

    pub(super) fn cost(&self) -> u64 {
        let count = u64::try_from(self.parts.len()).unwrap_or(u64::MAX);
        self.held.saturating_add(count.saturating_add(1).saturating_mul(PART_COST))
    }

    /// The message whose last chunk came: its properties are the same in all of them.
    pub(super) fn into_message(self, last: &Message<'_>) -> Bytes {
        let mut properties = Properties::of(last);
        properties.remove_chunk();
        let mut record = Vec::new();
        properties.encode(&[], &mut record);
        record.reserve_exact(usize::try_from(self.len).unwrap_or_default());
        // Parts go as they are copied: the payload is there little more than once.
        for part in self.parts.into_values() {
            if let Payload::Kept(payload) = part.payload {
                record.extend_from_slice(&payload);
            }
        }
        record.into()
    }
}
