//! Making a reserve: of the next size, and where there is no space for that of the least one that
//! serves.

use std::path::Path;

use super::super::dir::{Fault, NameSync, refusal};
use super::super::roll::{least_size, next_size};
use super::super::spare::{Reserve, Spare, write_zeros};
use super::super::tail::Tail;
use super::super::writer::{Guard, Shared};
use super::{RESERVE_NAME, RESERVED_MAX, Use};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;

/// Its name until all of it was written.
const UNFINISHED_NAME: &str = "unfinished.spare";

/// Bytes for which a reserve is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// These are to fit.
    pub(super) all: u64,
    /// Without space for them these are, which is as much as what was taken in writes; new work is
    /// refused then.
    pub(super) least: u64,
}

/// Makes what is to be a reserve of so many bytes.
///
/// # Errors
///
/// `StoreFull` or `Io`; nothing has changed.
fn prepare<'a>(io: &'a dyn Io, dir: &'a Path, size: u64) -> Result<(Spare, NameSync<'a>)> {
    let mut spare = Spare::make_at(io, dir.join(UNFINISHED_NAME), size, Reserve::Blocks)?;
    let written = write_zeros(&*spare.file, 0, size).and_then(|()| spare.file.sync());
    let written = written.map_err(|e| refusal("cannot write the reserve", &spare.path, e));
    match written.and_then(|()| NameSync::open(io, dir)) {
        Ok(names) => {
            (spare.filled, spare.has_blocks) = (size, true);
            Ok((spare, names))
        }
        Err(e) => {
            spare.abandon(io);
            Err(e)
        }
    }
}

/// Gives it the name, in the place of a smaller one. It was synced before: what bears the name has
/// its blocks, whatever crashes.
fn name(io: &dyn Io, mut spare: Spare, names: NameSync<'_>) -> std::result::Result<Spare, Fault> {
    let path = names.dir().join(RESERVE_NAME);
    if let Err(e) = io.rename(&spare.path, &path) {
        let error = refusal("cannot name the reserve", &spare.path, e);
        spare.abandon(io);
        return Err(Fault::Refused(error));
    }
    spare.path = path;
    #[cfg(planted)]
    if crate::planted::is_active(crate::planted::Bug::ReserveUnsynced) {
        return Ok(spare);
    }
    // Nothing counts on it before the name is durable: the next open removes any other.
    names.sync().map_err(Fault::Final)?;
    Ok(spare)
}

/// Makes another one in the place of one that an open has removed; none without space.
///
/// # Errors
///
/// Those of a sync of the directory.
pub(super) fn remake(io: &dyn Io, dir: &Path, size: u64) -> Result<Option<Spare>> {
    let made = prepare(io, dir, size).map_err(Fault::Refused);
    match made.and_then(|(spare, names)| name(io, spare, names)) {
        Ok(spare) => Ok(Some(spare)),
        Err(Fault::Refused(_)) => Ok(None),
        Err(Fault::Final(e)) => Err(e),
    }
}

fn no_reserve(e: Error) -> Error {
    if e.kind() != ErrorKind::StoreFull {
        return e;
    }
    let what = "no space for the segment that is kept to end what was accepted";
    Error::new(ErrorKind::StoreFull, what).with_source(e)
}

/// Says that nobody makes a reserve any more, also when the thread that does panics.
pub(super) struct Making<'a>(pub(super) &'a Shared);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut gate = self.0.gate();
        gate.kept.making = false;
        drop(self.0.settle(gate));
    }
}

impl Shared {
    /// Makes a reserve, or a larger one. Appends that are in order go on meanwhile.
    ///
    /// # Errors
    ///
    /// `StoreFull` without space for all of it, also where there is a reserve for the least by
    /// then; `Io`: nothing has changed. `Poisoned` when the directory was not synced.
    fn make_reserve<'a>(&'a self, mut gate: Guard<'a>, sizes: Sizes) -> (Guard<'a>, Result<()>) {
        gate.kept.making = true;
        drop(gate);
        let making = Making(self);
        let made = self.make_what_fits(sizes).map_err(no_reserve);
        drop(making);
        (self.gate(), made)
    }

    fn make_what_fits(&self, sizes: Sizes) -> Result<()> {
        let all = sizes.all.min(RESERVED_MAX);
        let doubled = next_size(0, all, self.segment_bytes_max);
        let Some(full) = self.make_if_fits(doubled)? else { return Ok(()) };
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::ReserveDoubled) {
            return Err(full);
        }
        let least = least_size(all);
        if least < doubled && self.make_if_fits(least)?.is_none() {
            return Ok(());
        }
        // A process that was killed when its reserve became the tail left the blocks there.
        if self.cut_ended()? && self.make_if_fits(least)?.is_none() {
            return Ok(());
        }
        if sizes.least < all && !self.gate().is_reserved(sizes.least) {
            self.make_if_fits(least_size(sizes.least))?;
        }
        Err(full)
    }

    /// Makes one of so many bytes; the refusal where there is no space for it.
    fn make_if_fits(&self, size: u64) -> Result<Option<Error>> {
        let made = prepare(&*self.io, &self.dir, size)
            .and_then(|(spare, names)| self.take_reserve(spare, names));
        match made {
            Err(e) if e.kind() == ErrorKind::StoreFull => Ok(Some(e)),
            made => made.map(|()| None),
        }
    }

    /// Gives back what a tail that takes no more frames holds behind them; false where it takes
    /// some. It is to be rolled before anything is written.
    fn cut_ended(&self) -> Result<bool> {
        let (gate, tail) = self.take_tail(self.gate());
        let is_cut = tail.ended_at.is_some() && gate.check_open().is_ok();
        let (mut gate, tail) = if is_cut {
            let (gate, tail, ()) = self.with_tail(gate, tail, Tail::cut_ended);
            (gate, tail)
        } else {
            (gate, tail)
        };
        gate.tail = Some(tail);
        self.turn(&mut gate);
        gate.check_open().map(|()| is_cut)
    }

    /// Makes a reserve of so many bytes, once nobody else does.
    ///
    /// # Errors
    ///
    /// As [`Shared::make_reserve`].
    pub(super) fn make_once(&self, gate: Guard<'_>, bytes: u64) -> Result<()> {
        if gate.rolling || gate.kept.is_making() {
            drop(self.wait(gate));
            return Ok(());
        }
        let (gate, made) = self.make_reserve(gate, Sizes { all: bytes, least: bytes });
        drop(gate);
        made
    }

    /// Under the tail: nobody else may be told of a failed sync of the directory instead. Who waits
    /// is woken when the making is over.
    fn take_reserve(&self, spare: Spare, names: NameSync<'_>) -> Result<()> {
        let (gate, tail) = self.take_tail(self.gate());
        // An unfinished one is removed by the next open.
        let (mut gate, tail, named) = match gate.check_open() {
            Err(e) => (gate, tail, Err(Fault::Refused(e))),
            Ok(()) => self.with_tail(gate, tail, |_| name(&*self.io, spare, names)),
        };
        gate.tail = Some(tail);
        // The last handle of one that has lost its name frees its blocks, which takes its time.
        let before = match named {
            Ok(spare) => gate.kept.spare.replace(spare),
            Err(Fault::Refused(e)) => return Err(e),
            Err(Fault::Final(e)) => {
                gate.set_poison(e);
                // The name may be that of either.
                gate.kept.spare.take()
            }
        };
        let is_open = gate.check_open();
        drop(gate);
        drop(before);
        is_open
    }

    /// Makes sure that there is a reserve for all of it.
    pub(super) fn keep(&self, sizes: Sizes) -> Result<()> {
        let all = sizes.all.min(RESERVED_MAX);
        let mut gate = self.gate();
        loop {
            gate.check_open()?;
            // A roll may have the reserve, and is about to give it another name.
            if gate.rolling || gate.kept.is_making() {
                gate = self.wait(gate);
                continue;
            }
            if let Some(e) = self.beyond_limits(&gate, Use::New(all)) {
                return Err(e);
            }
            if !gate.kept.is_wanted() || gate.is_reserved(all) {
                return Ok(());
            }
            let (behind, made) = self.make_reserve(gate, sizes);
            gate = behind;
            made?;
        }
    }
}
