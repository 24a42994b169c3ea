//! Named cursors: what a consumer still needs, kept durably across processes.
//!
//! A cursor stands at the oldest LSN that its owner needs. It only goes forward, and no trim drops
//! a record at or above it. Moving it costs one sync of a file of its own, off the path of appends;
//! callers that move cursors at the same time share it.
//!
//! Nobody knows what is needed once the file is damaged: then trims are refused, and all else goes
//! on. A log whose cursors are not wanted any more is freed by removing the file `CURSORS` while no
//! writer has the log open.

mod file;

use std::sync::{Arc, PoisonError};

use oncelog_format::limits::CURSOR_NAME_LEN_MAX;
use oncelog_format::{CursorCopy, Uuid};

pub(crate) use self::file::{CursorFacts, CursorFile, CursorId, Stand};
use super::Log;
use super::dir::Fault;
use super::pins::{HolderKind, PlaceOf, check_below_end};
use super::writer::{Gate, Guard, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::lsn::Lsn;
use crate::sync::MutexGuard;

type FileGuard<'a> = MutexGuard<'a, CursorFile>;

/// A named cursor of a log. Clones, and further handles of the same name, are the same cursor;
/// dropping one changes nothing. Handles of one that was removed are never those of a cursor of its
/// name that is made later.
///
/// # Examples
///
/// ```
/// use oncelog::{CreateMode, ErrorKind, Log, Options};
///
/// # fn main() -> oncelog::Result<()> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// # let options = Options::new().create(CreateMode::IfMissing);
/// # let (log, _report) = Log::open(dir.path().join("log"), &options)?;
/// let indexer = log.cursor("indexer")?;
/// log.append(b"to be indexed")?;
/// let mut reader = log.reader(indexer.lsn()?)?;
/// while let Some(record) = reader.next()? {
///     // Index it, then:
///     indexer.advance(record.lsn.next())?;
/// }
/// log.trim(indexer.lsn()?)?;
/// # log.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cursor {
    shared: Arc<Shared>,
    id: CursorId,
}

impl Cursor {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.id.name
    }

    /// The oldest LSN that is needed, as it is known to be durable.
    ///
    /// # Errors
    ///
    /// `InvalidInput` when the cursor was removed.
    pub fn lsn(&self) -> Result<Lsn> {
        let gate = self.shared.gate();
        Ok(Lsn::at_least_first(gate.holds.stand(&self.id)?.lsn))
    }

    /// Lets go of the records below an LSN, which may be the next one at most. What is below it
    /// becomes durable first, should it not be.
    ///
    /// # Errors
    ///
    /// `InvalidInput` below the LSN where it stands, above the next LSN, or when the cursor was
    /// removed; `StoreFull`, `Io` when the file could not be written; `Poisoned`, `Closed`: it
    /// holds what it held. `OutcomeUnknown` when a sync failed. A system that wrote what it refused
    /// may have the next open find it where it was to go, never further.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, the cursor stands there after a power loss. It takes one sync, which
    /// callers that come meanwhile share.
    pub fn advance(&self, lsn: Lsn) -> Result<()> {
        self.shared.advance(&self.id, lsn.get())
    }

    /// Removes the cursor: it holds nothing any more.
    ///
    /// # Errors
    ///
    /// As [`Cursor::advance`]: after any but `OutcomeUnknown` the cursor still holds its records
    /// for this log, and may be removed by the same handle; but the next open may find it gone,
    /// unless [`Log::cursor`] is asked for it again.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, the cursor is gone after a power loss. It takes one sync. Each of
    /// its handles answers `InvalidInput` from here on, also when a cursor of its name is made
    /// again.
    pub fn remove(&self) -> Result<()> {
        self.shared.remove_cursor(&self.id)
    }
}

impl Log {
    /// The cursor of a name, 1 to 128 bytes; one that is made here stands at the oldest LSN. A log
    /// has 128 at most.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no name; `Limit` for a name that is too long, or one cursor too many;
    /// `StoreFull` when there is no space for the first one; `Corrupt` when the file of the cursors
    /// is damaged; `Io`, `Poisoned`, `Closed`. `OutcomeUnknown` when a sync failed. After an error
    /// of the system the log has no such cursor until it is asked for again, but the next open may
    /// find it.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, the cursor is there after a power loss. Making one takes two syncs,
    /// making the first one of a log two more; the first call after an open takes one.
    pub fn cursor(&self, name: &str) -> Result<Cursor> {
        let shared = Arc::clone(&self.handle.shared);
        let made = shared.make_cursor(name)?;
        Ok(Cursor { shared, id: made.id(name) })
    }

    /// The cursor of a name; `None` where there is none, and none is made.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the file of the cursors is damaged; `StoreFull`, `Io`, `Poisoned`, `Closed`.
    /// `OutcomeUnknown` when a sync failed.
    ///
    /// # Durability
    ///
    /// When this returns a cursor, that is there after a power loss. The first call after an open
    /// takes one sync, where there are cursors.
    pub fn find_cursor(&self, name: &str) -> Result<Option<Cursor>> {
        let shared = Arc::clone(&self.handle.shared);
        let found = shared.find_cursor(name)?;
        Ok(found.map(|found| Cursor { shared, id: found.id(name) }))
    }

    /// The cursors of the log, by name.
    ///
    /// # Errors
    ///
    /// As [`Log::find_cursor`].
    ///
    /// # Durability
    ///
    /// As [`Log::find_cursor`], for each of them.
    pub fn cursors(&self) -> Result<Vec<Cursor>> {
        let shared = &self.handle.shared;
        shared.prove_cursors()?;
        let names: Vec<String> = shared.gate().holds.cursors.keys().cloned().collect();
        let found = names.iter().map(|name| self.find_cursor(name));
        // One that was removed meanwhile is left out.
        found.filter_map(Result::transpose).collect()
    }
}

impl Shared {
    /// Who has this does all I/O on the cursors. It is taken before the gate.
    pub(crate) fn cursor_file(&self) -> FileGuard<'_> {
        self.cursor_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cursor of a name, which is made where there is none.
    fn make_cursor(self: &Arc<Self>, name: &str) -> Result<Stand> {
        let len = u64::try_from(name.len()).unwrap_or(u64::MAX);
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "a cursor has a name"));
        }
        if len > u64::from(CURSOR_NAME_LEN_MAX) {
            let what = format!("a name of {len} bytes: expected at most {CURSOR_NAME_LEN_MAX}");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        let mut file = self.cursor_file();
        loop {
            file = self.proven(file)?;
            if !file.has_to_be_made() {
                break;
            }
            // Given up meanwhile: another one may have made it, or a cursor in it.
            self.make_cursor_file(file)?;
            file = self.cursor_file();
        }
        let (free, uuid) = {
            let gate = self.gate();
            gate.check_open()?;
            gate.holds.check_cursors()?;
            match gate.holds.place_of(name)? {
                PlaceOf::Sure(stand) => return Ok(stand),
                PlaceOf::Unsure(stand) => {
                    let uuid = gate.header.uuid;
                    drop(gate);
                    return self.put_again(file, name, &stand, uuid);
                }
                PlaceOf::Free(stand) => (stand, gate.header.uuid),
            }
        };
        // From here on nothing goes that the cursor will hold.
        let pin = loop {
            let oldest = Lsn::at_least_first(self.gate().oldest);
            match self.pin(HolderKind::Cursor, name, oldest) {
                Err(e) if e.kind() == ErrorKind::Trimmed => {}
                pin => break pin?,
            }
        };
        let lsn = pin.lsn().get();
        let stated = self.state_oldest();
        let (file, gate, ()) = self.settle_cursors(file, stated)?;
        drop(gate);
        let make = || {
            // Both, one after the other: damage to one of them must not undo the cursor.
            let first = free.moved(lsn)?;
            file.put(&first.copy(name), uuid)?;
            file.sync()?;
            let second = first.moved(lsn)?;
            file.put(&second.copy(name), uuid)?;
            file.sync()?;
            Ok(second.begin_here())
        };
        let made = make();
        if let Err(Fault::Refused(_)) = made {
            self.gate().holds.begun.insert(name.to_owned(), free.clone());
        }
        let (_file, mut gate, stand) = self.settle_cursors(file, made)?;
        gate.holds.begun.remove(name);
        gate.holds.removed.remove(&stand.index);
        gate.holds.wanted.remove(name);
        gate.holds.cursors.insert(name.to_owned(), stand.clone());
        drop(gate);
        Ok(stand)
    }

    /// The cursor of a name, if there is one, durably.
    fn find_cursor(&self, name: &str) -> Result<Option<Stand>> {
        let file = self.proven(self.cursor_file())?;
        let gate = self.gate();
        let Some(stand) = gate.holds.cursors.get(name).cloned() else { return Ok(None) };
        if !gate.holds.unsure.contains(name) {
            return Ok(Some(stand));
        }
        let uuid = gate.header.uuid;
        drop(gate);
        self.put_again(file, name, &stand, uuid).map(Some)
    }

    /// Writes a cursor where it stands, over a copy that was refused and may be there all the same.
    fn put_again(&self, file: FileGuard<'_>, name: &str, at: &Stand, uuid: Uuid) -> Result<Stand> {
        let put = || {
            let stand = at.moved(at.lsn)?;
            file.put(&stand.copy(name), uuid)?;
            file.sync()?;
            Ok(stand)
        };
        let done = put();
        let (_file, mut gate, stand) = self.settle_cursors(file, done)?;
        gate.holds.unsure.remove(name);
        gate.holds.cursors.insert(name.to_owned(), stand.clone());
        drop(gate);
        Ok(stand)
    }

    /// Under the tail: nobody else may be told of a failed sync of the directory instead.
    fn make_cursor_file(&self, mut file: FileGuard<'_>) -> Result<()> {
        let (gate, tail) = self.take_tail(self.gate());
        let (mut gate, tail, made) = match gate.check_open() {
            Err(e) => (gate, tail, Err(Fault::Refused(e))),
            Ok(()) => self.with_tail(gate, tail, |_| file.make(&*self.io, &self.dir)),
        };
        gate.tail = Some(tail);
        let failed = match made {
            Ok(()) => None,
            Err(Fault::Refused(e)) => Some(e),
            Err(Fault::Final(e)) => {
                gate.set_poison(e);
                gate.poison.as_ref().map(unknown)
            }
        };
        drop(file);
        drop(self.settle(gate));
        failed.map_or(Ok(()), Err)
    }

    fn advance(&self, id: &CursorId, lsn: u64) -> Result<()> {
        let mut gate = self.gate();
        gate.check_open()?;
        check_forward(&gate, id, lsn)?;
        if gate.durable.lsn.saturating_add(1) < lsn {
            // Else its LSNs might be given again, to records that it would not see.
            drop(gate);
            self.sync()?;
            gate = self.gate();
            // Others had the gate: it may have been removed, or have gone further.
            gate.check_open()?;
            check_forward(&gate, id, lsn)?;
        }
        gate.holds.want(&id.name, lsn);
        drop(gate);
        self.lead_cursors(id, lsn)
    }

    /// Writes what everybody wants with one sync, unless another one has done so.
    fn lead_cursors(&self, id: &CursorId, lsn: u64) -> Result<()> {
        let file = self.cursor_file();
        let mut gate = self.gate();
        if gate.holds.stand(id)?.lsn >= lsn && !gate.holds.unsure.contains(&*id.name) {
            return Ok(());
        }
        let is_taken = !gate.holds.wanted.contains_key(&*id.name);
        match &gate.poison {
            Some(cause) if is_taken => return Err(unknown(cause)),
            _ => gate.check_open()?,
        }
        // Another one had it, and was refused.
        gate.holds.want(&id.name, lsn);
        let uuid = gate.header.uuid;
        let wanted = std::mem::take(&mut gate.holds.wanted);
        let stands = wanted.into_iter().filter_map(|(name, lsn)| {
            let stand = gate.holds.cursors.get(&name)?.clone();
            Some((name, stand, lsn))
        });
        let stands: Vec<(String, Stand, u64)> = stands.collect();
        drop(gate);
        let write = || {
            let mut moved = Vec::with_capacity(stands.len());
            for (name, stand, lsn) in stands {
                let stand = stand.moved(lsn)?;
                file.put(&stand.copy(&name), uuid)?;
                moved.push((name, stand));
            }
            #[cfg(planted)]
            if crate::planted::is_active(crate::planted::Bug::CursorBeforeSync) {
                return Ok(moved);
            }
            file.sync()?;
            Ok(moved)
        };
        let written = write();
        let (_file, mut gate, moved) = self.settle_cursors(file, written)?;
        for (name, _) in &moved {
            gate.holds.unsure.remove(name);
        }
        gate.holds.cursors.extend(moved);
        self.loosen(&mut gate);
        Ok(())
    }

    fn remove_cursor(&self, id: &CursorId) -> Result<()> {
        let (file, name) = (self.cursor_file(), &*id.name);
        let (stand, uuid) = {
            let gate = self.gate();
            gate.check_open()?;
            (gate.holds.stand(id)?.clone(), gate.header.uuid)
        };
        let remove = || {
            let stand = stand.moved(CursorCopy::REMOVED)?;
            file.put(&stand.copy(name), uuid)?;
            file.sync()?;
            Ok(stand)
        };
        let removed = remove();
        if let Err(Fault::Refused(_)) = removed {
            self.gate().holds.unsure.insert(name.to_owned());
        }
        let (_file, mut gate, stand) = self.settle_cursors(file, removed)?;
        gate.holds.cursors.remove(name);
        // Who wanted it to move is refused: one that is made later must not go there.
        gate.holds.wanted.remove(name);
        gate.holds.unsure.remove(name);
        gate.holds.removed.insert(stand.index, stand.counter);
        self.loosen(&mut gate);
        Ok(())
    }

    /// Before a trim relies on where cursors stand: what was read from the cache is made durable.
    pub(crate) fn prove_cursors(&self) -> Result<()> {
        self.proven(self.cursor_file()).map(drop)
    }

    /// The file, whose cursors are durably where the gate has them.
    fn proven<'a>(&'a self, mut file: FileGuard<'a>) -> Result<FileGuard<'a>> {
        let uuid = {
            let gate = self.gate();
            gate.check_open()?;
            gate.holds.check_cursors()?;
            gate.header.uuid
        };
        if !file.has_to_be_proven() {
            return Ok(file);
        }
        let facts = file.prove(&*self.io, uuid);
        let (file, mut gate, facts) = self.settle_cursors(file, facts)?;
        gate.holds.take_cursors(&facts);
        gate.holds.check_cursors()?;
        drop(gate);
        Ok(file)
    }

    /// File and gate after an I/O on the cursors; a failed sync poisons the log, as any other
    /// does, and the file is given up before those are woken who have to learn of it: a waker is
    /// the code of its owner, which may close the log or use a cursor.
    fn settle_cursors<'a, T>(
        &'a self,
        file: FileGuard<'a>,
        done: std::result::Result<T, Fault>,
    ) -> Result<(FileGuard<'a>, Guard<'a>, T)> {
        let mut gate = self.gate();
        match done {
            Ok(done) => Ok((file, gate, done)),
            Err(Fault::Refused(e)) => Err(e),
            Err(Fault::Final(e)) => {
                gate.set_poison(e);
                drop(file);
                let gate = self.settle(gate);
                Err(gate.poison.as_ref().map_or_else(super::writer::closed, unknown))
            }
        }
    }
}

/// Refuses a cursor that is not there, and a place where it cannot go.
fn check_forward(gate: &Gate, id: &CursorId, lsn: u64) -> Result<()> {
    let at = gate.holds.stand(id)?.lsn;
    check_below_end(gate, lsn)?;
    if lsn < at {
        let what = format!("a cursor goes forward only: expected at least LSN {at}");
        return Err(Error::new(ErrorKind::InvalidInput, what).at_lsn(lsn));
    }
    Ok(())
}

pub(super) fn gone(name: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the cursor {name:?} was removed"))
}

fn unknown(cause: &Arc<Error>) -> Error {
    let what = "a sync failed: where the cursor stands is unknown until the log is opened again";
    Error::new(ErrorKind::OutcomeUnknown, what).with_shared_source(Arc::clone(cause))
}
