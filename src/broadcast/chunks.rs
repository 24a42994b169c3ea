//! A copy that is larger than its channel takes: in how many chunks it is sent, what of them
//! stands, and what goes into the next batch (SPEC 13.1).
//!
//! A payload is cut evenly, by its length and the total alone. So whoever completes a run cuts it
//! as it was begun, whatever the channel takes by then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use oncelog_format::limits::{ALIGNMENT, CHUNK_COUNT_MAX};
use oncelog_format::message::{Chunk, LastConfirmed, Message, Properties, TimeTick};
use oncelog_format::{EncodeError, frame_len};

use crate::channel::{ChannelLimits, ChannelLog, Outgoing, Position, StoredMessage};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// More than time tick and last confirmed LSN add to a message, in bytes.
const STAMPS_LEN: u64 = 96;

/// What stands of a copy in chunks that is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) tick: TimeTick,
    pub(crate) total: u32,
    pub(crate) have: BTreeSet<u32>,
    /// Where the last of them came.
    pub(crate) last: Lsn,
}

impl Begun {
    pub(crate) fn is_whole(&self) -> bool {
        u32::try_from(self.have.len()) == Ok(self.total)
    }
}

/// The bytes of a chunk.
pub(crate) fn part(payload: &[u8], index: u32, total: u32) -> &[u8] {
    let len = u128::try_from(payload.len()).unwrap_or(u128::MAX);
    let cut = |n: u64| {
        let at = u128::from(n).saturating_mul(len) / u128::from(total.max(1));
        usize::try_from(at).unwrap_or(usize::MAX)
    };
    let index = u64::from(index);
    payload.get(cut(index)..cut(index.saturating_add(1))).unwrap_or_default()
}

/// In how many parts a copy is sent that was accepted: where its channel takes no such copy any
/// more, as few as it ever took.
pub(crate) fn accepted_total(
    properties: &Properties,
    payload: &[u8],
    limits: &ChannelLimits,
) -> Result<u32> {
    match total(properties, payload, limits) {
        Err(e) if e.kind() == ErrorKind::Limit => {
            total(properties, payload, &ChannelLimits::LARGEST)
        }
        total => total,
    }
}

/// In how many parts a copy is sent: 1 is whole. What could only fail once it was accepted is found
/// here.
pub(crate) fn total(
    properties: &Properties,
    payload: &[u8],
    limits: &ChannelLimits,
) -> Result<u32> {
    // What a frame adds to the largest record that a batch takes.
    let frame = frame_len(0).saturating_add(ALIGNMENT);
    let max = limits.message_len_max.min(limits.batch_bytes_max.saturating_sub(frame));
    let mut stamped = properties.clone();
    let set = stamped.set(&TimeTick(0)).and_then(|()| stamped.set(&LastConfirmed(0)));
    set.map_err(no_encoding)?;
    if len(stamped.encoded_len(payload)) <= max {
        return Ok(1);
    }
    let first = Chunk::new(0, CHUNK_COUNT_MAX);
    first.map_or(Ok(()), |chunk| stamped.set_chunk(chunk)).map_err(no_encoding)?;
    let (own, payload) = (len(stamped.encoded_len(&[])), len(payload.len()));
    let total = match max.saturating_sub(own) {
        0 => u64::MAX,
        room => payload.div_ceil(room),
    };
    // A payload that fits beside the properties, but for what says that it is a chunk.
    let total = u32::try_from(total.max(2)).unwrap_or(u32::MAX);
    if total <= CHUNK_COUNT_MAX {
        return Ok(total);
    }
    let what = format!(
        "the message is too large for its channel: expected at most {CHUNK_COUNT_MAX} chunks of at \
         most {max} bytes, found {own} bytes of properties and {payload} of payload"
    );
    Err(Error::new(ErrorKind::Limit, what))
}

/// Bytes of so many parts with their frames, and of the segments that they may have to begin.
pub(crate) fn bytes(properties: &Properties, payload: &[u8], total: u32) -> u64 {
    let own = len(properties.encoded_len(&[])).saturating_add(STAMPS_LEN);
    let each = own.saturating_add(frame_len(0)).saturating_add(ALIGNMENT);
    each.saturating_mul(u64::from(total)).saturating_add(len(payload.len()))
}

fn no_encoding(e: EncodeError) -> Error {
    Error::new(ErrorKind::InvalidInput, "the message does not encode").with_source(e)
}

/// What is found of one copy.
#[derive(Debug, Default)]
pub(crate) struct Found {
    whole: Option<Position>,
    runs: BTreeMap<TimeTick, Begun>,
}

impl Found {
    /// Takes what stands for the copy: the message, or a chunk of it.
    pub(crate) fn take(
        &mut self,
        stored: &StoredMessage,
        message: &Message<'_>,
        tick: TimeTick,
        payload: &[u8],
    ) -> Result<()> {
        let chunk = message.chunk().map_err(|e| stored.damage(e))?;
        let Some(chunk) = chunk else {
            self.whole.get_or_insert_with(|| Position::new(stored.lsn, tick));
            return Ok(());
        };
        let (index, total) = (chunk.index(), chunk.total());
        let run = self.runs.entry(tick).or_insert_with(|| {
            let have = BTreeSet::new();
            Begun { tick, total, have, last: stored.lsn }
        });
        if run.total != total || message.payload() != part(payload, index, total) {
            let what = "a chunk is not of the message that was accepted";
            return Err(Error::new(ErrorKind::Corrupt, what).at_lsn(stored.lsn.get()));
        }
        if run.have.insert(index) {
            run.last = stored.lsn;
        }
        Ok(())
    }

    /// Where the copy stands, or what does of it.
    pub(crate) fn verdict(self) -> std::result::Result<Position, Option<Begun>> {
        let whole = self.runs.values().find(|run| run.is_whole());
        let whole = whole.map(|run| Position::new(run.last, run.tick));
        match self.whole.or(whole) {
            Some(position) => Ok(position),
            // The one that was begun first: no run but this is ever completed.
            None => Err(self.runs.into_values().next()),
        }
    }
}

/// The copies of a task that go to one pchannel, on their way.
#[derive(Debug)]
pub(crate) struct Lane {
    channel: Arc<dyn ChannelLog>,
    /// Which vchannels of the task they are for.
    pub(crate) indexes: Vec<usize>,
    sendings: Vec<Sending>,
    /// Something was handed over: of what fails from here on, only the pchannel knows.
    pub(crate) is_begun: bool,
}

/// One copy.
#[derive(Debug)]
struct Sending {
    properties: Properties,
    total: u32,
    missing: VecDeque<u32>,
    tick: Option<TimeTick>,
    last: Option<Lsn>,
}

/// Parts of a batch: which copy each one is of.
pub(crate) type Parts = Vec<usize>;

impl Lane {
    pub(crate) fn new(channel: Arc<dyn ChannelLog>) -> Self {
        Self { channel, indexes: Vec::new(), sendings: Vec::new(), is_begun: false }
    }

    /// Adds a copy, of which `begun` stands.
    pub(crate) fn add(
        &mut self,
        at: usize,
        properties: Properties,
        payload: &[u8],
        begun: Option<&Begun>,
    ) -> Result<()> {
        let total = match begun {
            Some(begun) => begun.total,
            None => accepted_total(&properties, payload, &self.channel.limits())?,
        };
        let stands = |index: &u32| begun.is_some_and(|begun| begun.have.contains(index));
        #[cfg(planted)]
        let stands = |index: &u32| {
            stands(index) && !crate::planted::is_active(crate::planted::Bug::ChunkAppendedAgain)
        };
        self.indexes.push(at);
        self.sendings.push(Sending {
            properties,
            total,
            missing: (0..total).filter(|index| !stands(index)).collect(),
            tick: begun.map(|begun| begun.tick),
            last: begun.map(|begun| begun.last),
        });
        Ok(())
    }

    /// Hands over as much as fits in a batch; `None` when nothing is left.
    pub(crate) fn enqueue(
        &mut self,
        payload: &[u8],
    ) -> Result<Option<(Parts, Box<dyn crate::channel::PendingMessages>)>> {
        let bytes_max = self.channel.limits().batch_bytes_max;
        let (mut bytes, mut parts, mut outgoing) = (0_u64, Parts::new(), Vec::new());
        'batch: for (at, sending) in self.sendings.iter().enumerate() {
            for index in &sending.missing {
                let next = sending.outgoing(*index, payload)?;
                let own = len(next.properties.encoded_len(next.payload));
                let own = u32::try_from(own.saturating_add(STAMPS_LEN)).unwrap_or(u32::MAX);
                bytes = bytes.saturating_add(frame_len(own));
                if bytes > bytes_max && !parts.is_empty() {
                    break 'batch;
                }
                parts.push(at);
                outgoing.push(next);
            }
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let pending = self.channel.enqueue_promised(&outgoing)?;
        self.is_begun = true;
        Ok(Some((parts, pending)))
    }

    /// Notes where the parts of a batch stand; returns how many copies are whole by them.
    pub(crate) fn note(&mut self, parts: &[usize], positions: &[Position]) -> u64 {
        let mut whole = 0;
        for (at, position) in parts.iter().zip(positions) {
            if let Some(sending) = self.sendings.get_mut(*at) {
                sending.missing.pop_front();
                sending.tick = Some(position.time_tick);
                sending.last = Some(position.lsn);
                whole += u64::from(sending.missing.is_empty());
            }
        }
        whole
    }

    /// Where the copies stand that are whole: which vchannel of the task, and the place.
    pub(crate) fn whole(&self) -> impl Iterator<Item = (usize, Position)> {
        let copies = self.indexes.iter().zip(&self.sendings);
        copies
            .filter(|(_, sending)| sending.missing.is_empty())
            .filter_map(|(at, sending)| Some((*at, Position::new(sending.last?, sending.tick?))))
    }
}

impl Sending {
    fn outgoing<'a>(&self, index: u32, payload: &'a [u8]) -> Result<Outgoing<'a>> {
        let mut properties = self.properties.clone();
        // Whole, where there is one part.
        let Some(chunk) = Chunk::new(index, self.total) else {
            return Ok(Outgoing { properties, payload });
        };
        properties.set_chunk(chunk).map_err(no_encoding)?;
        if let Some(tick) = self.tick {
            properties.set(&tick).map_err(no_encoding)?;
        }
        Ok(Outgoing { properties, payload: part(payload, index, self.total) })
    }
}

fn len(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
