//! Pins of a local channel, which outlive the log that they hold: after a failed append the channel
//! opens another one.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crate::error::{ErrorKind, Result};
use crate::log::{Log, Pin};
use crate::lsn::Lsn;
use crate::sync::{Mutex, MutexGuard};
use crate::told;

/// Everything that is held, whichever log is open.
#[derive(Clone, Debug, Default)]
pub(super) struct Pins(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
pub(super) struct Table {
    held: BTreeMap<u64, Held>,
    count: u64,
}

#[derive(Debug)]
struct Held {
    name: String,
    lsn: Lsn,
    /// `None` where the log is gone, until the next one is open.
    pin: Option<Pin>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Hold {
    pins: Pins,
    number: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.pins.lock().held.remove(&self.number);
    }
}

impl Pins {
    /// While this is locked no other log takes the place of the one that is open.
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what is held.
    pub(super) fn hold(&self, table: &mut Table, name: &str, (lsn, pin): (Lsn, Pin)) -> Hold {
        table.count = table.count.saturating_add(1);
        let number = table.count;
        table.held.insert(number, Held { name: name.to_owned(), lsn, pin: Some(pin) });
        Hold { pins: self.clone(), number }
    }
}

impl Table {
    /// Holds in another log what was held in the one before, which retention has not touched yet.
    pub(super) fn renew(&mut self, log: &Log) -> Result<()> {
        for held in self.held.values_mut() {
            held.pin = Some(pin_within(log, &held.name, held.lsn)?.1);
        }
        Ok(())
    }
}

/// Pins an LSN, or the nearest one that the log has.
pub(super) fn pin_within(log: &Log, name: &str, lsn: Lsn) -> Result<(Lsn, Pin)> {
    loop {
        let within = lsn.max(log.oldest_lsn()).min(log.next_lsn());
        match log.pin(name, within) {
            // A trim was faster.
            Err(e) if e.kind() == ErrorKind::Trimmed => {}
            pinned => {
                if within != lsn {
                    let name = name.to_owned();
                    told::tell(move || {
                        tracing::warn!(name, %lsn, %within, "what is pinned is not all there");
                    });
                }
                return pinned.map(|pin| (within, pin));
            }
        }
    }
}
