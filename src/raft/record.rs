//! The bytes of a raft node's records (docs/raft.md, section 2): three private kinds of the log.
//!
//! Every record says the version of its bytes first. Indices stand in front of what serde encodes,
//! so that a replay maps entries to LSNs without decoding one. No bytes panic, and none allocate
//! more than a constant factor of their length.

use bytes::Bytes;
use openraft::{LogId, NodeId, Vote};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::log::RecordKind;

/// An entry of raft's log.
pub(super) const ENTRY: RecordKind = kind(0x80);
/// Entries from an index on are no longer part of it.
pub(super) const REWIND: RecordKind = kind(0x81);
/// Vote, committed and purged, all of them; the last one counts.
pub(super) const STATE: RecordKind = kind(0x82);

const VERSION: u8 = 1;
/// Version and index.
const HEAD_LEN: usize = 9;

const fn kind(kind: u8) -> RecordKind {
    match RecordKind::private(kind) {
        Some(kind) => kind,
        None => unreachable!(),
    }
}

/// What a raft node must remember besides its entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) struct State<N: NodeId> {
    pub(super) vote: Option<Vote<N>>,
    pub(super) committed: Option<LogId<N>>,
    pub(super) purged: Option<LogId<N>>,
}

impl<N: NodeId> Default for State<N> {
    fn default() -> Self {
        Self { vote: None, committed: None, purged: None }
    }
}

/// A record as a replay needs it.
#[derive(Debug)]
pub(super) enum Found<N: NodeId> {
    /// The entry of an index, which is below the greatest `u64`.
    Entry(u64),
    /// Entries from the index on are no longer part of the log.
    Rewind(u64),
    State(State<N>),
}

/// Takes a record apart, but for the value of an entry.
///
/// # Errors
///
/// `Unsupported` for a kind, a version or a value of another program, `Corrupt` for a record that
/// is too short.
pub(super) fn decode<N: NodeId>(kind: u8, payload: &Bytes) -> Result<Found<N>> {
    let known = [ENTRY, REWIND, STATE].map(RecordKind::as_u8);
    if !known.contains(&kind) {
        let what = format!("a record of kind {kind:#04x} in the log of a raft node");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let Some((&version, rest)) = payload.split_first() else { return Err(short()) };
    if version != VERSION {
        let what = format!("a raft record of version {version}: expected {VERSION}");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    if kind == STATE.as_u8() {
        return Ok(Found::State(value(rest)?));
    }
    let Some((index, rest)) = rest.split_first_chunk() else { return Err(short()) };
    let index = u64::from_le_bytes(*index);
    if kind == REWIND.as_u8() {
        return if rest.is_empty() { Ok(Found::Rewind(index)) } else { Err(trailing()) };
    }
    if index == u64::MAX {
        return Err(Error::new(ErrorKind::Corrupt, "a raft entry without a next index"));
    }
    Ok(Found::Entry(index))
}

/// The value of an entry's record, which `decode` has accepted.
///
/// # Errors
///
/// `Unsupported` when it is not of this type: the checksum held, so it is what was written.
pub(super) fn decode_entry<E: DeserializeOwned>(payload: &[u8]) -> Result<E> {
    value(payload.get(HEAD_LEN..).ok_or_else(short)?)
}

/// # Errors
///
/// `InvalidInput` when the entry's own `Serialize` refuses.
pub(super) fn encode_entry<E: Serialize>(index: u64, entry: &E) -> Result<Vec<u8>> {
    let mut bytes = head(index);
    encode(entry, &mut bytes)?;
    Ok(bytes)
}

pub(super) fn encode_rewind(from: u64) -> Vec<u8> {
    head(from)
}

/// # Errors
///
/// `InvalidInput` when the `Serialize` of the node's id refuses.
pub(super) fn encode_state<N: NodeId>(state: &State<N>) -> Result<Vec<u8>> {
    let mut bytes = vec![VERSION];
    encode(state, &mut bytes)?;
    Ok(bytes)
}

fn head(index: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    bytes.push(VERSION);
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes
}

fn encode<T: Serialize>(value: &T, bytes: &mut Vec<u8>) -> Result<()> {
    ciborium::into_writer(value, bytes).map_err(|e| {
        Error::new(ErrorKind::InvalidInput, "a value that serde cannot encode")
            .with_source(e.to_string())
    })
}

fn value<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<T> {
    let value = ciborium::from_reader(&mut bytes).map_err(|e| {
        let what = "a raft record of another type than this program's";
        Error::new(ErrorKind::Unsupported, what).with_source(e.to_string())
    })?;
    if bytes.is_empty() { Ok(value) } else { Err(trailing()) }
}

fn short() -> Error {
    Error::new(ErrorKind::Corrupt, "a raft record that is too short")
}

fn trailing() -> Error {
    Error::new(ErrorKind::Corrupt, "bytes behind the end of a raft record")
}
