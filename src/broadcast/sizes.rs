//! How large the copies of a broadcast are.
//!
//! Those on one pchannel differ in the name of their vchannel alone, and in size by how long that
//! is. Each has the names of all: encoding every one of them would take the square of their number,
//! and it is asked for while nothing else is decided.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use oncelog_format::control::Accepted;

use super::copies;
use crate::channel::ChannelLog;
use crate::error::Result;

#[cfg(test)]
std::thread_local! {
    /// Copies that this thread has encoded for their size.
    pub(super) static ENCODED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Sizes of the copies of one broadcast, by pchannel and length of the vchannel's name.
#[derive(Debug)]
pub(super) struct CopySizes<'a> {
    accepted: &'a Accepted,
    term: u64,
    known: BTreeMap<(&'a str, usize), u64>,
}

impl<'a> CopySizes<'a> {
    pub(super) fn new(accepted: &'a Accepted, term: u64) -> Self {
        Self { accepted, term, known: BTreeMap::new() }
    }

    /// Bytes of the copy for a vchannel, with its frames, on the channel of its pchannel.
    ///
    /// # Errors
    ///
    /// `Limit` where the channel takes no such copy.
    pub(super) fn of(
        &mut self,
        (pchannel, channel): (&'a str, &dyn ChannelLog),
        vchannel: &str,
    ) -> Result<u64> {
        match self.known.entry((pchannel, vchannel.len())) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(place) => {
                #[cfg(test)]
                ENCODED.set(ENCODED.get() + 1);
                let bytes = copies::copy_bytes(channel, self.accepted, self.term, vchannel)?;
                Ok(*place.insert(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use oncelog_format::control::{Body, Channel, ControlRecord, JobLink, PchannelEnd};
    use oncelog_format::message::{AckMode, BroadcastHeader, BroadcastId, Fingerprint};

    use super::super::holds::take_up;
    use super::super::owed::Promise;
    use super::super::{Options, replayed};
    use super::*;
    use crate::io::mem::{Machine, MemIo};
    use crate::log::CreateMode;
    use crate::store::{Store, StoreOptions};

    fn encoded(call: impl FnOnce()) -> u64 {
        let before = ENCODED.get();
        call();
        ENCODED.get() - before
    }

    /// Each of a thousand copies was encoded with the names of a thousand vchannels, with the core
    /// locked: when a job was asked for, twice, and for each task at an open.
    #[test]
    fn copies_are_encoded_as_often_as_their_names_differ_in_length() {
        const COUNT: usize = 1_024;
        let store = StoreOptions::new().create(CreateMode::IfMissing);
        let store = store.io(Arc::new(MemIo::new(Machine::new())));
        let inner = replayed(Store::open("/s", &store).unwrap(), Options::new()).unwrap();
        let pchannel = inner.store.pchannels().next().unwrap().to_owned();
        let mut vchannels: Vec<String> = (0..COUNT).map(|n| format!("v{n}")).collect();
        vchannels.sort();
        let starts = Arc::new(Accepted {
            header: BroadcastHeader {
                id: BroadcastId(1),
                vchannels: vchannels.clone(),
                resources: Vec::new(),
                ack: AckMode::Append,
            },
            message_type: "T".into(),
            scope: None,
            fingerprint: Fingerprint { version: 1, fields: Vec::new() },
            ends: vec![PchannelEnd { pchannel: pchannel.clone(), next_lsn: 1 }],
            lifetime_ms: 0,
            firm: true,
            job: JobLink::Starts,
            properties: Vec::new(),
            trace: None,
            payload: Vec::new(),
        });
        let mut core = inner.lock();
        for vchannel in vchannels {
            let body = Body::Channel(Channel { vchannel, pchannel: pchannel.clone() });
            core.state.apply(&ControlRecord { at_ms: 1, body });
        }
        // Names of two to five bytes.
        let asked =
            encoded(|| drop(Promise::of_ending(&inner.store, &core.state, &starts).unwrap()));
        assert_eq!(asked, 4);
        core.state.apply(&ControlRecord { at_ms: 1, body: Body::Accepted(starts) });
        // Its own copies, and those of the ending of its job.
        let taken_up = encoded(|| take_up(&mut core, &inner.store).unwrap());
        assert_eq!(taken_up, 8);
        drop(core);
        inner.store.close().unwrap();
    }
}
