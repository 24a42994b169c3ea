//! The copies of a broadcast: how they are encoded, where they stand.
//!
//! Whether a copy stands is known from the append that put it there, from an Ack record, or from
//! reading its pchannel from the end that the acceptance states. Nothing else counts; a copy is
//! never appended on a guess.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use oncelog_format::EncodeError;
use oncelog_format::control::{Accepted, JobLink};
use oncelog_format::message::{
    BroadcastHeader, BroadcastId, MESSAGE_VERSION, MessageType, Properties, TimeTick, TraceContext,
    Vchannel, Version, WriterTerm,
};

use super::chunks::{self, Begun, Found, Lane};
use super::core::{Copy, Core, Inner};
use super::refusal;
use super::request::Request;
use crate::channel::ChannelLog;
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;
use crate::told;

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

/// Bytes of a copy with its frames, in chunks where it has to be, of what was accepted.
pub(crate) fn copy_bytes(
    channel: &dyn ChannelLog,
    accepted: &Accepted,
    term: u64,
    vchannel: &str,
) -> Result<u64> {
    let properties = properties(accepted, term, vchannel)?;
    let total = chunks::accepted_total(&properties, &accepted.payload, &channel.limits())?;
    Ok(chunks::bytes(&properties, &accepted.payload, total))
}

/// Checks before the acceptance what could only fail behind it: that every copy encodes, and fits,
/// in chunks where it has to. Returns the bytes of the copies on each pchannel.
///
/// The ending of a job is sent as if it had been accepted with its job, whatever the channels take
/// by now: else a job that ran when limits were lowered would never end.
pub(crate) fn check(inner: &Inner, core: &Core, accepted: &Accepted) -> Result<Vec<(String, u64)>> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    // The copies of one pchannel differ in the name of their vchannel alone, and in size by how
    // long that is: each of them carries the names of all, which would be encoded as often as there
    // are.
    let mut sizes: BTreeMap<(&str, usize), u64> = BTreeMap::new();
    let in_parts = match accepted.job {
        JobLink::Ends { .. } => chunks::accepted_total,
        _ => chunks::total,
    };
    for vchannel in &accepted.header.vchannels {
        let channel = inner.channel_of(&core.state, vchannel)?;
        let pchannel = core.state.pchannel_of(vchannel).unwrap_or_default();
        let bytes = match sizes.entry((pchannel, vchannel.len())) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(place) => {
                let properties = properties(accepted, core.state.term(), vchannel)?;
                let total = in_parts(&properties, &accepted.payload, &channel.limits())?;
                *place.insert(chunks::bytes(&properties, &accepted.payload, total))
            }
        };
        let sum = sums.entry(pchannel).or_default();
        *sum = sum.saturating_add(bytes);
    }
    Ok(sums.into_iter().map(|(pchannel, bytes)| (pchannel.to_owned(), bytes)).collect())
}

/// Where the copies of a task are to go next, by pchannel: which of its vchannels.
pub(crate) type ByPchannel = Vec<(String, Vec<usize>)>;

/// Copies that are looked for, by task.
type Wanted = HashMap<BroadcastId, (Arc<Accepted>, Vec<usize>)>;

/// What several pchannels come to: a want of space is told to whoever waits, and hidden by no other
/// failure.
fn worse(outcome: Result<()>, e: Error) -> Result<()> {
    match outcome {
        Err(before) if before.kind() == ErrorKind::StoreFull => Err(before),
        _ => Err(e),
    }
}

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
        told::behind(|| self.resolve_alone(pchannel))
    }

    fn resolve_alone(&self, pchannel: &str) -> Result<()> {
        let scan = self.scans.get(pchannel);
        let _one = scan.map(|scan| scan.lock().unwrap_or_else(PoisonError::into_inner));
        let (wanted, from) = self.unresolved(pchannel);
        let Some(from) = from else { return Ok(()) };
        let unknown = || refusal::invalid(format!("unknown pchannel {pchannel}"));
        let channel = self.store.channel(pchannel).ok_or_else(unknown)?;
        // An absence counts only if it is read behind all that was handed over, and after a failed
        // log was opened again.
        channel.reopen()?;
        let mut found: HashMap<(BroadcastId, String), Found> = HashMap::new();
        let mut reader = channel.read_chunks(from)?;
        while let Some(stored) = reader.next()? {
            let message = stored.message()?;
            let header = message.property::<BroadcastHeader>().map_err(|e| stored.damage(e))?;
            let Some(id) = header.map(|header| header.id) else { continue };
            let Some((accepted, _)) = wanted.get(&id) else { continue };
            let vchannel = message.property::<Vchannel>().map_err(|e| stored.damage(e))?;
            let tick = message.property::<TimeTick>().map_err(|e| stored.damage(e))?;
            if let (Some(Vchannel(vchannel)), Some(tick)) = (vchannel, tick) {
                let found = found.entry((id, vchannel)).or_default();
                found.take(&stored, &message, tick, &accepted.payload)?;
            }
        }
        let mut core = self.lock();
        for (id, (accepted, indexes)) in wanted {
            let Some(run) = core.runs.get_mut(&id) else { continue };
            for at in indexes {
                let vchannel = accepted.header.vchannels.get(at).cloned().unwrap_or_default();
                let Some(copy @ Copy::Unresolved) = run.copies.get_mut(at) else { continue };
                run.begun.remove(&at);
                match found.remove(&(id, vchannel)).unwrap_or_default().verdict() {
                    Ok(position) => {
                        self.counts.copies_found.add(1);
                        *copy = Copy::At(position);
                    }
                    Err(begun) => {
                        *copy = Copy::Absent;
                        run.begun.extend(begun.map(|begun| (at, begun)));
                    }
                }
            }
        }
        Ok(())
    }

    /// The unresolved copies on a pchannel, and from where they can stand.
    fn unresolved(&self, pchannel: &str) -> (Wanted, Option<Lsn>) {
        let core = self.lock();
        let mut wanted = Wanted::new();
        let mut from: Option<Lsn> = None;
        for (id, run) in &core.runs {
            let groups = Self::in_state(&core, *id, Copy::Unresolved);
            let Some((_, indexes)) = groups.into_iter().find(|(name, _)| name == pchannel) else {
                continue;
            };
            let end = run.accepted.ends.iter().find(|end| end.pchannel == pchannel);
            let end = end.and_then(|end| Lsn::new(end.next_lsn)).unwrap_or(Lsn::FIRST);
            from = Some(from.map_or(end, |from| from.min(end)));
            wanted.insert(*id, (Arc::clone(&run.accepted), indexes));
        }
        (wanted, from)
    }

    /// Appends the absent copies of a task, or what is missing of them: on each pchannel in one
    /// batch, where they fit in one. What fails is unresolved.
    pub(crate) fn append_copies(&self, id: BroadcastId, absent: ByPchannel) -> Result<()> {
        let (accepted, term, begun) = {
            let core = self.lock();
            let Some(run) = core.runs.get(&id) else { return Ok(()) };
            (run.accepted.clone(), core.state.term(), run.begun.clone())
        };
        let mut outcome = Ok(());
        let mut lanes = Vec::new();
        for (pchannel, indexes) in absent {
            match self.lane(&accepted, term, &pchannel, (&indexes, &begun)) {
                Ok(lane) => lanes.push(lane),
                Err(e) => outcome = worse(outcome, e),
            }
        }
        while !lanes.is_empty() {
            // A batch on each pchannel at once, then the next one: a run goes on with the tick that
            // its first batch was given.
            let mut pending = Vec::new();
            for mut lane in lanes.drain(..) {
                match lane.enqueue(&accepted.payload) {
                    Ok(Some((parts, handed))) => pending.push((lane, parts, handed)),
                    Ok(None) => {}
                    Err(e) => {
                        // A refusal for space wrote nothing; of any other only the pchannel knows.
                        let refused = matches!(e.kind(), ErrorKind::StoreFull | ErrorKind::Limit);
                        if !refused || lane.is_begun {
                            self.note_unresolved(id, &lane);
                        }
                        outcome = worse(outcome, e);
                    }
                }
            }
            for (mut lane, parts, handed) in pending {
                match handed.wait() {
                    Ok(positions) => {
                        let whole = lane.note(&parts, &positions);
                        self.counts.copies_appended.add(whole);
                        self.note_copies(id, lane.whole().map(|(at, is)| (at, Copy::At(is))));
                        lanes.push(lane);
                    }
                    Err(e) => {
                        self.note_unresolved(id, &lane);
                        outcome = worse(outcome, e);
                    }
                }
            }
        }
        outcome
    }

    fn lane(
        &self,
        accepted: &Accepted,
        term: u64,
        pchannel: &str,
        (indexes, begun): (&[usize], &BTreeMap<usize, Begun>),
    ) -> Result<Lane> {
        let unknown = || refusal::invalid(format!("unknown pchannel {pchannel}"));
        let channel = self.store.channel(pchannel).ok_or_else(unknown)?;
        let mut lane = Lane::new(Arc::clone(channel));
        for at in indexes {
            let Some(name) = accepted.header.vchannels.get(*at) else { continue };
            let properties = properties(accepted, term, name)?;
            lane.add(*at, properties, &accepted.payload, begun.get(at))?;
        }
        Ok(lane)
    }

    /// The copies of a lane that are not whole are known to the pchannel alone.
    fn note_unresolved(&self, id: BroadcastId, lane: &Lane) {
        let whole: BTreeSet<usize> = lane.whole().map(|(at, _)| at).collect();
        let others = lane.indexes.iter().filter(|at| !whole.contains(at));
        self.note_copies(id, others.map(|at| (*at, Copy::Unresolved)));
    }

    /// A step of a task did not come to its end: what it handed over to some pchannel, and did not
    /// note, is known to that one alone.
    pub(super) fn doubt_copies(&self, id: BroadcastId) {
        let mut core = self.lock();
        let Some(run) = core.runs.get_mut(&id) else { return };
        for copy in run.copies.iter_mut().filter(|copy| **copy == Copy::Absent) {
            *copy = Copy::Unresolved;
        }
    }

    fn note_copies(&self, id: BroadcastId, copies: impl Iterator<Item = (usize, Copy)>) {
        let mut core = self.lock();
        let Some(run) = core.runs.get_mut(&id) else { return };
        for (at, copy) in copies {
            if let Some(slot) = run.copies.get_mut(at) {
                *slot = copy;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers without a deadline waited for the Park behind what another pchannel had said.
    #[test]
    fn no_other_failure_hides_a_want_of_space() {
        #[track_caller]
        fn check(kinds: &[ErrorKind], expected: ErrorKind) {
            let failed = kinds.iter().map(|kind| Error::new(*kind, "a pchannel fails"));
            assert_eq!(failed.fold(Ok(()), worse).unwrap_err().kind(), expected);
        }
        check(&[ErrorKind::StoreFull, ErrorKind::Io], ErrorKind::StoreFull);
        check(&[ErrorKind::Io, ErrorKind::StoreFull], ErrorKind::StoreFull);
        check(&[ErrorKind::Limit, ErrorKind::Io], ErrorKind::Io);
    }
}
