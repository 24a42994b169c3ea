//! The copies of a broadcast: how they are encoded, where they stand.
//!
//! Whether a copy stands is known from the append that put it there, from an Ack record, or from
//! reading its pchannel from the end that the acceptance states. Nothing else counts; a copy is
//! never appended on a guess.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use oncelog_format::control::Accepted;
use oncelog_format::limits::FRAMES_OFFSET;
use oncelog_format::message::{
    BroadcastHeader, BroadcastId, MESSAGE_VERSION, MessageType, Properties, TimeTick, TraceContext,
    Vchannel, Version, WriterTerm,
};
use oncelog_format::{EncodeError, frame_len};

use super::core::{Copy, Core, Inner};
use super::refusal;
use super::request::Request;
use crate::channel::{ChannelLog, Outgoing, Position};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;

/// More than time tick and last confirmed LSN add to a message, in bytes.
const STAMPS_LEN: usize = 64;

/// The properties of the copy for one vchannel, but for what the channel stamps.
pub(crate) fn properties(accepted: &Accepted, term: u64, vchannel: &str) -> Result<Properties> {
    let encode = || -> std::result::Result<Properties, EncodeError> {
        let mut properties = Properties::new();
        for (key, value) in &accepted.properties {
            properties.set_value(key.clone(), value.clone())?;
        }
        properties.set(&Version(MESSAGE_VERSION))?;
        properties.set(&MessageType(accepted.message_type.clone()))?;
        properties.set(&WriterTerm(term))?;
        properties.set(&Vchannel(vchannel.to_owned()))?;
        properties.set(&accepted.header)?;
        if let Some(scope) = &accepted.scope {
            properties.set(scope)?;
        }
        properties.set(&accepted.fingerprint)?;
        if let Some(trace) = &accepted.trace {
            properties.set(&TraceContext(trace.clone()))?;
        }
        Ok(properties)
    };
    encode().map_err(|e| refusal::invalid("the message does not encode").with_source(e))
}

/// Bytes of a copy with its frame.
pub(crate) fn copy_bytes(accepted: &Accepted, term: u64, vchannel: &str) -> Result<u64> {
    let len = properties(accepted, term, vchannel)?.encoded_len(&accepted.payload);
    let len = u32::try_from(len.saturating_add(STAMPS_LEN)).unwrap_or(u32::MAX);
    Ok(frame_len(len))
}

/// Checks before the acceptance what could only fail behind it: that every copy encodes, and fits.
/// Returns the bytes of the copies on each pchannel.
pub(crate) fn check(inner: &Inner, core: &Core, accepted: &Accepted) -> Result<Vec<(String, u64)>> {
    let mut batches: HashMap<&str, u64> = HashMap::new();
    for vchannel in &accepted.header.vchannels {
        let channel = inner.channel_of(&core.state, vchannel)?;
        let limits = channel.limits();
        let properties = properties(accepted, core.state.term(), vchannel)?;
        let len = properties.encoded_len(&accepted.payload).saturating_add(STAMPS_LEN);
        let len = u32::try_from(len).ok().filter(|len| u64::from(*len) <= limits.message_len_max);
        let Some(len) = len else {
            let max = limits.message_len_max;
            let message = format!("the message is too large: expected at most {max} bytes");
            return Err(Error::new(ErrorKind::Limit, message));
        };
        let pchannel = core.state.pchannel_of(vchannel).unwrap_or_default();
        let bytes = batches.entry(pchannel).or_insert(FRAMES_OFFSET);
        *bytes = bytes.saturating_add(frame_len(len));
        if *bytes > limits.batch_bytes_max {
            let max = limits.batch_bytes_max;
            let message = format!("the copies are too large: expected at most {max} bytes");
            return Err(Error::new(ErrorKind::Limit, message));
        }
    }
    Ok(batches.into_iter().map(|(pchannel, bytes)| (pchannel.to_owned(), bytes)).collect())
}

/// Where the copies of a task are to go next, by pchannel: which of its vchannels.
pub(crate) type ByPchannel = Vec<(String, Vec<usize>)>;

impl Inner {
    /// Opens the channels of a request again where an append had failed: one that stays poisoned
    /// refuses the request before it is accepted.
    pub(crate) fn probe(&self, request: &Request) -> Result<()> {
        let channels: Vec<Arc<dyn ChannelLog>> = {
            let core = self.lock();
            let mut names = BTreeSet::new();
            for vchannel in &request.vchannels {
                if request.makes_vchannels && core.state.pchannel_of(vchannel).is_none() {
                    continue;
                }
                self.channel_of(&core.state, vchannel)?;
                names.extend(core.state.pchannel_of(vchannel));
            }
            names.into_iter().filter_map(|name| self.store.channel(name).cloned()).collect()
        };
        for channel in channels {
            if channel.read(channel.end()).is_err_and(|e| e.kind() == ErrorKind::Poisoned) {
                channel.reopen()?;
            }
        }
        Ok(())
    }

    /// The vchannels of a task whose copy is in a state, by pchannel.
    pub(crate) fn in_state(core: &Core, id: BroadcastId, state: Copy) -> ByPchannel {
        let mut grouped = ByPchannel::new();
        let Some(run) = core.runs.get(&id) else { return grouped };
        let vchannels = run.accepted.header.vchannels.iter().zip(&run.copies).enumerate();
        for (at, (vchannel, _)) in vchannels.filter(|(_, (_, copy))| **copy == state) {
            let pchannel = core.state.pchannel_of(vchannel).unwrap_or_default();
            match grouped.iter_mut().find(|(name, _)| name == pchannel) {
                Some((_, indexes)) => indexes.push(at),
                None => grouped.push((pchannel.to_owned(), vec![at])),
            }
        }
        grouped
    }

    /// Finds out where the unresolved copies on a pchannel stand, in one pass for all tasks.
    pub(crate) fn resolve(&self, pchannel: &str) -> Result<()> {
        let scan = self.scans.get(pchannel);
        let _one = scan.map(|scan| scan.lock().unwrap_or_else(PoisonError::into_inner));
        let (wanted, from) = self.unresolved(pchannel);
        let Some(from) = from else { return Ok(()) };
        let unknown = || refusal::invalid(format!("unknown pchannel {pchannel}"));
        let channel = self.store.channel(pchannel).ok_or_else(unknown)?;
        // An absence counts only if it is read after a failed log was opened again.
        channel.reopen()?;
        let mut found: HashMap<(BroadcastId, String), Position> = HashMap::new();
        let mut reader = channel.read(from)?;
        while let Some(stored) = reader.next()? {
            let message = stored.message()?;
            let header = message.property::<BroadcastHeader>().map_err(|e| stored.damage(e))?;
            let Some(header) = header.filter(|header| wanted.contains_key(&header.id)) else {
                continue;
            };
            let vchannel = message.property::<Vchannel>().map_err(|e| stored.damage(e))?;
            let tick = message.property::<TimeTick>().map_err(|e| stored.damage(e))?;
            if let (Some(Vchannel(vchannel)), Some(tick)) = (vchannel, tick) {
                let position = Position::new(stored.lsn, tick);
                found.entry((header.id, vchannel)).or_insert(position);
            }
        }
        let mut core = self.lock();
        for (id, indexes) in wanted {
            let Some(run) = core.runs.get_mut(&id) else { continue };
            for at in indexes {
                let vchannel = run.accepted.header.vchannels.get(at).cloned().unwrap_or_default();
                if let Some(copy @ Copy::Unresolved) = run.copies.get_mut(at) {
                    let stands = found.get(&(id, vchannel));
                    self.counts.copies_found.add(u64::from(stands.is_some()));
                    *copy = stands.map_or(Copy::Absent, |at| Copy::At(*at));
                }
            }
        }
        Ok(())
    }

    /// The unresolved copies on a pchannel, and from where they can stand.
    fn unresolved(&self, pchannel: &str) -> (HashMap<BroadcastId, Vec<usize>>, Option<Lsn>) {
        let core = self.lock();
        let mut wanted = HashMap::new();
        let mut from: Option<Lsn> = None;
        for (id, run) in &core.runs {
            let groups = Self::in_state(&core, *id, Copy::Unresolved);
            let Some((_, indexes)) = groups.into_iter().find(|(name, _)| name == pchannel) else {
                continue;
            };
            let end = run.accepted.ends.iter().find(|end| end.pchannel == pchannel);
            let end = end.and_then(|end| Lsn::new(end.next_lsn)).unwrap_or(Lsn::FIRST);
            from = Some(from.map_or(end, |from| from.min(end)));
            wanted.insert(*id, indexes);
        }
        (wanted, from)
    }

    /// Appends the absent copies of a task, one batch per pchannel; what fails is unresolved.
    pub(crate) fn append_copies(&self, id: BroadcastId, absent: ByPchannel) -> Result<()> {
        let (accepted, term) = {
            let core = self.lock();
            let Some(run) = core.runs.get(&id) else { return Ok(()) };
            (run.accepted.clone(), core.state.term())
        };
        let mut outcome = Ok(());
        let mut pending = Vec::new();
        for (pchannel, indexes) in absent {
            let handed = self.enqueue_copies(&accepted, term, &pchannel, &indexes);
            match handed {
                Ok(handed) => pending.push((indexes, handed)),
                Err(e) => {
                    // A refusal for space wrote nothing; of any other only the pchannel knows.
                    let refused = matches!(e.kind(), ErrorKind::StoreFull | ErrorKind::Limit);
                    self.note_copies(id, &indexes, |_| {
                        if refused { Copy::Absent } else { Copy::Unresolved }
                    });
                    outcome = Err(e);
                }
            }
        }
        for (indexes, handed) in pending {
            match handed.wait() {
                Ok(positions) => {
                    let count = positions.len().min(indexes.len());
                    self.counts.copies_appended.add(u64::try_from(count).unwrap_or(u64::MAX));
                    self.note_copies(id, &indexes, |n| {
                        positions.get(n).map_or(Copy::Unresolved, |at| Copy::At(*at))
                    });
                }
                Err(e) => {
                    self.note_copies(id, &indexes, |_| Copy::Unresolved);
                    outcome = Err(e);
                }
            }
        }
        outcome
    }

    fn enqueue_copies(
        &self,
        accepted: &Accepted,
        term: u64,
        pchannel: &str,
        indexes: &[usize],
    ) -> Result<Box<dyn crate::channel::PendingMessages>> {
        let unknown = || refusal::invalid(format!("unknown pchannel {pchannel}"));
        let channel = self.store.channel(pchannel).ok_or_else(unknown)?;
        let names = indexes.iter().filter_map(|at| accepted.header.vchannels.get(*at));
        let outgoing = names
            .map(|name| {
                let properties = properties(accepted, term, name)?;
                Ok(Outgoing { properties, payload: &accepted.payload })
            })
            .collect::<Result<Vec<_>>>()?;
        channel.enqueue_promised(&outgoing)
    }

    fn note_copies(&self, id: BroadcastId, indexes: &[usize], copy: impl Fn(usize) -> Copy) {
        let mut core = self.lock();
        let Some(run) = core.runs.get_mut(&id) else { return };
        for (n, at) in indexes.iter().enumerate() {
            if let Some(slot) = run.copies.get_mut(*at) {
                *slot = copy(n);
            }
        }
    }
}
