//! Messages of a local channel before they have their stamps.

use oncelog_format::EncodeError;
use oncelog_format::message::{
    LastConfirmed, MESSAGE_VERSION, Message, Property, TimeTick, Vchannel, Version,
};

use super::Outgoing;
use crate::error::{Error, ErrorKind, Result};

/// A message that lacks its stamps: encoded before the lock is taken, with room for them.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) record: Vec<u8>,
    pub(super) tick: Tick,
}

/// Which tick a message gets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tick {
    /// One of its own.
    Fresh,
    /// That of the chunk before it in its batch.
    OfBefore,
    /// That of a run which begun in an earlier batch.
    Of(TimeTick),
}

impl Draft {
    pub(super) fn new(outgoing: &Outgoing<'_>) -> Result<Self> {
        if outgoing.properties.value(Vchannel::KEY).is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "a message names no vchannel"));
        }
        let mut properties = outgoing.properties.clone();
        let stated = properties.get::<TimeTick>().map_err(|e| no_run().with_source(e))?;
        properties
            .set(&Version(MESSAGE_VERSION))
            .and_then(|()| properties.set(&TimeTick(0)))
            .and_then(|()| properties.set(&LastConfirmed(0)))
            .map_err(no_encoding)?;
        let mut record = Vec::new();
        properties.encode(outgoing.payload, &mut record);
        let chunk = Message::decode(&record).and_then(|message| message.chunk());
        let tick = match chunk.map_err(|e| no_run().with_source(e))? {
            None => Tick::Fresh,
            Some(chunk) => match stated {
                Some(of) => Tick::Of(of),
                None if chunk.index() == 0 => Tick::Fresh,
                None => Tick::OfBefore,
            },
        };
        Ok(Self { record, tick })
    }

    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.record.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn stamp(&mut self, tick: TimeTick, confirmed: LastConfirmed) {
        for (key, value) in [(TimeTick::KEY, tick.0), (LastConfirmed::KEY, confirmed.0)] {
            let at = Message::decode(&self.record).ok().and_then(|found| found.value_range(key));
            if let Some(field) = at.and_then(|at| self.record.get_mut(at)) {
                field.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

fn no_encoding(e: EncodeError) -> Error {
    Error::new(ErrorKind::InvalidInput, "a message has no encoding").with_source(e)
}

pub(super) fn no_run() -> Error {
    Error::new(ErrorKind::InvalidInput, "a chunk belongs to no message that began before it")
}
