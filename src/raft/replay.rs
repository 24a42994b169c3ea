//! What raft's log is: every record that is left, in order.

use openraft::NodeId;

use super::record::{self, Found, State};
use super::runs::Runs;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Log;

/// What the records say.
#[derive(Debug)]
pub(super) struct Replayed<N: NodeId> {
    pub(super) runs: Runs,
    pub(super) state: State<N>,
    /// LSN of the record that holds the state.
    pub(super) state_lsn: Option<u64>,
}

/// Reads the whole log, and keeps where entries lie.
///
/// A trim leaves the first entry that lives and what is behind its record, and the last state. What
/// stands before that entry is dead: replaying it may leave a hole, which a rewind behind it closes.
/// So holes are looked for at the end.
pub(super) fn replay<N: NodeId>(log: &Log) -> Result<Replayed<N>> {
    let mut replayed = Replayed { runs: Runs::default(), state: State::default(), state_lsn: None };
    let Replayed { runs, state, state_lsn } = &mut replayed;
    let mut reader = log.reader(log.oldest_lsn())?;
    while let Some(record) = reader.next()? {
        let lsn = record.lsn.get();
        let at = |e: Error| e.at_lsn(lsn);
        match record::decode(record.kind.as_u8(), &record.payload).map_err(at)? {
            Found::Entry(index) => {
                let indices = runs.indices();
                if !indices.is_empty() && index != indices.end {
                    let what = format!("raft entry {index}: expected {}", indices.end);
                    return Err(at(Error::new(ErrorKind::Corrupt, what)));
                }
                runs.push(index, lsn);
            }
            Found::Rewind(from) => runs.rewind(from),
            Found::State(found) => {
                if let Some(purged) = &found.purged {
                    runs.purge(purged.index);
                }
                *state = found;
                *state_lsn = Some(lsn);
            }
        }
    }
    let first = runs.indices().start;
    let purged = state.purged.as_ref().map(|purged| purged.index.saturating_add(1));
    if let Some(expected) = purged.filter(|&purged| purged != first)
        && !runs.indices().is_empty()
    {
        let what = format!("raft's log begins with entry {first}: expected {expected}");
        let lsn = runs.first_lsn().unwrap_or_default();
        return Err(Error::new(ErrorKind::Corrupt, what).at_lsn(lsn));
    }
    Ok(replayed)
}
