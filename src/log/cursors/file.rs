//! The file of the cursors: what it says, how it is made, and how it is written (SPEC sections 4.1
//! and 10).
//!
//! A cursor is written in place, one copy at a time and one sector each: a crash leaves a copy old
//! or new, a full disk has nothing to refuse, and one sync is all that it takes.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncelog_format::limits::CURSOR_COUNT_MAX;
use oncelog_format::{CURSOR_LEN, CURSORS_LEN, CursorCopy, DecodeError, Uuid};

use crate::error::{Error, ErrorKind, is_full};
use crate::io::{Io, IoFile, OpenHow};
use crate::log::dir::{Fault, NameSync, refusal};
use crate::log::facts::{CURSORS_NAME, SPARE_SUFFIX};
use crate::log::finding::{Finding, FindingKind, Severity};
use crate::log::pins::Holder;
use crate::log::survey::Survey;

type Outcome<T> = Result<T, Fault>;

/// Where a cursor stands, durably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    pub(crate) index: u32,
    /// Counter of its newer copy.
    pub(crate) counter: u64,
    pub(crate) lsn: u64,
    /// Its counter when it was made or found.
    made: u64,
}

/// One cursor for ever: no other one has it, not even the next of its name. In its place counters
/// only grow, from one cursor to the next.
#[derive(Clone, Debug)]
pub(crate) struct CursorId {
    pub(crate) name: Arc<str>,
    index: u32,
    made: u64,
}

impl Stand {
    /// A place where a cursor may be made, and the counter that was used there.
    pub(crate) const fn free(index: u32, counter: u64) -> Self {
        Self { index, counter, lsn: CursorCopy::REMOVED, made: counter }
    }

    /// A cursor that begins with what is written here.
    pub(crate) const fn begin_here(self) -> Self {
        Self { made: self.counter, ..self }
    }

    /// What tells this cursor from every other.
    pub(crate) fn id(&self, name: &str) -> CursorId {
        CursorId { name: Arc::from(name), index: self.index, made: self.made }
    }

    /// True for where the cursor stands that this is the identity of.
    pub(crate) fn is_of(&self, id: &CursorId) -> bool {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::CursorByName) {
            return true;
        }
        (self.index, self.made) == (id.index, id.made)
    }

    /// Where the next copy of it goes, and what it says.
    pub(crate) fn moved(&self, lsn: u64) -> Outcome<Self> {
        let Some(counter) = self.counter.checked_add(1) else {
            let what = "the counter of a cursor has no next value";
            return Err(Fault::Refused(Error::new(ErrorKind::Limit, what)));
        };
        Ok(Self { counter, lsn, ..*self })
    }

    pub(crate) fn copy<'a>(&self, name: &'a str) -> CursorCopy<'a> {
        CursorCopy { index: self.index, counter: self.counter, lsn: self.lsn, name }
    }
}

/// What the file says.
#[derive(Clone, Debug, Default)]
pub(crate) struct CursorFacts {
    pub(crate) cursors: Vec<(String, Stand)>,
    /// Those that were removed: their places may be given again.
    pub(crate) removed: Vec<Stand>,
    /// Why nobody knows what is still needed.
    pub(crate) damage: Option<Finding>,
    /// Copies that are ignored.
    pub(crate) ignored: Vec<Finding>,
}

impl CursorFacts {
    /// Reads the file; without one there are no cursors.
    pub(crate) fn read(io: &dyn Io, dir: &Path, uuid: Uuid) -> Self {
        let path = dir.join(CURSORS_NAME);
        let read = io.open(&path, OpenHow::Read).and_then(|file| contents(&*file));
        match read {
            Ok(bytes) => Self::of(&path, &bytes, uuid),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Self::default(),
            Err(e) => {
                let damage = Some(damaged(&path).saying("cursors", e.to_string()));
                Self { damage, ..Self::default() }
            }
        }
    }

    /// What the bytes of the file say.
    fn of(path: &Path, bytes: &[u8], uuid: Uuid) -> Self {
        let mut facts = Self::default();
        if bytes.len() == CURSORS_LEN {
            facts.take_apart(path, bytes, uuid);
        } else {
            let found = format!("{} or more", bytes.len());
            facts.damage = Some(damaged(path).saying(format!("{CURSORS_LEN} bytes"), found));
        }
        facts
    }

    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> {
        self.cursors.iter().map(|(name, stand)| Holder::cursor(name, stand))
    }

    fn take_apart(&mut self, path: &Path, bytes: &[u8], uuid: Uuid) {
        let mut names = BTreeSet::new();
        for index in 0..CURSOR_COUNT_MAX {
            let at = |copy| {
                let from = usize::try_from(CursorCopy::offset_of(index, copy));
                bytes.get(from.unwrap_or(usize::MAX)..).unwrap_or_default()
            };
            let copies = [0, 1].map(|copy| CursorCopy::decode(at(copy), uuid, index, copy));
            let valid = copies.iter().filter_map(|copy| copy.ok().flatten());
            let newest = valid.max_by_key(|copy| copy.counter);
            // The first copy that is made of a cursor is copy 1: a short write of it ends in zeros.
            let is_short = at(1).get(CURSOR_LEN - 1) == Some(&0);
            let is_known = newest.is_some() || (matches!(copies, [Ok(None), _]) && is_short);
            for (turn, copy) in (0..).zip(&copies) {
                self.tell(path, CursorCopy::offset_of(index, turn), copy, newest, is_known);
            }
            let Some(CursorCopy { counter, lsn, name, .. }) = newest else { continue };
            let stand = Stand { index, counter, lsn, made: counter };
            if lsn == CursorCopy::REMOVED {
                self.removed.push(stand);
                continue;
            }
            if !names.insert(name.to_owned()) {
                let twice = damaged(path).at_offset(CursorCopy::offset_of(index, counter));
                let found = format!("{name:?} twice");
                self.damage.get_or_insert_with(|| twice.saying("one cursor of a name", found));
            }
            self.cursors.push((name.to_owned(), stand));
        }
    }

    /// @Y: what is wrong with one copy, if anything.
    fn tell(
        &mut self,
        path: &Path,
        offset: u64,
        copy: &Result<Option<CursorCopy<'_>>, DecodeError>,
        newest: Option<CursorCopy<'_>>,
        is_known: bool,
    ) {
        let expected = "a copy of a cursor of this log";
        let found = match (copy, newest) {
            (Ok(Some(_)), _) | (Ok(None), None) => return,
            // The second one is written after a sync of the first.
            (Ok(None), Some(newest)) if newest.counter == 1 => return,
            (Ok(None), Some(_)) => "zeros".to_owned(),
            (Err(e), _) => e.to_string(),
        };
        if !is_known {
            let damage = damaged(path).at_offset(offset).saying(expected, found);
            self.damage.get_or_insert(damage);
        } else {
            let ignored = Finding::new(FindingKind::CursorIgnored, Severity::Degraded, path);
            self.ignored.push(ignored.at_offset(offset).saying(expected, found));
        }
    }
}

impl Survey {
    /// Before the frames of the tail: beside a writer, a cursor is never ahead of what is read
    /// later.
    pub(in crate::log) fn read_cursors(&mut self, io: &dyn Io) {
        if let Some(uuid) = self.uuid.filter(|_| self.listing.cursors) {
            self.cursors = CursorFacts::read(io, &self.dir, uuid);
        }
    }

    pub(in crate::log) fn judge_cursors(&mut self) {
        let facts = &self.cursors;
        let mut findings: Vec<Finding> =
            facts.damage.iter().chain(&facts.ignored).cloned().collect();
        let next = self.last.saturating_add(1);
        let ahead = |stand: &Stand| self.tail.is_some() && stand.lsn > next;
        for (name, stand) in facts.cursors.iter().filter(|(_, stand)| ahead(stand)) {
            let path = self.dir.join(CURSORS_NAME);
            let ahead = Finding::new(FindingKind::CursorAhead, Severity::Degraded, &path);
            findings
                .push(ahead.at_lsn(stand.lsn).saying(format!("at most LSN {next}"), name.clone()));
        }
        self.findings.extend(findings);
    }
}

fn damaged(path: &Path) -> Finding {
    Finding::new(FindingKind::CursorsDamaged, Severity::Degraded, path)
}

/// As much of the file as tells whether it has its length.
fn contents(file: &dyn IoFile) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; CURSORS_LEN + 1];
    let read = file.read_full_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// The file as the log's writer has it; who holds it does all I/O on it.
#[derive(Debug)]
pub(crate) struct CursorFile {
    path: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    /// There is none, or one without a cursor, whose name may be in the cache alone.
    ToMake,
    /// It was read from the cache, and may not be on the disk.
    ToProve,
    Open(Arc<dyn IoFile>),
}

impl CursorFile {
    /// `is_used`: there is, or was, a cursor in it.
    pub(crate) fn new(dir: &Path, is_used: bool) -> Self {
        let state = if is_used { State::ToProve } else { State::ToMake };
        Self { path: dir.join(CURSORS_NAME), state }
    }

    pub(crate) fn has_to_be_made(&self) -> bool {
        matches!(self.state, State::ToMake)
    }

    pub(crate) fn has_to_be_proven(&self) -> bool {
        matches!(self.state, State::ToProve)
    }

    /// Makes the file, without a cursor. The caller keeps others from syncing the directory: were a
    /// failure told to one of them, it would not be told here.
    ///
    /// # Durability
    ///
    /// The file and its name.
    pub(crate) fn make(&mut self, io: &dyn Io, dir: &Path) -> Outcome<()> {
        let spare = dir.join(format!("{CURSORS_NAME}{SPARE_SUFFIX}"));
        let file = match io.open(&spare, OpenHow::CreateNew) {
            // Left by an attempt that was refused; nothing in it counts.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                io.remove(&spare).and_then(|()| io.open(&spare, OpenHow::CreateNew))
            }
            made => made,
        };
        let refuse = |what, e| Fault::Refused(refusal(what, &spare, e));
        let file = file.map_err(|e| refuse("cannot make the file of the cursors", e))?;
        // Reserved, so that the disk is not full later; and written, for a block that is reserved
        // alone and fails to be written once can stay unwritten through later syncs that return.
        let len = u64::try_from(CURSORS_LEN).unwrap_or(u64::MAX);
        let zeros = vec![0; CURSORS_LEN];
        let reserved = match file.allocate(len) {
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
            reserved => reserved,
        };
        if let Err(e) = reserved.and_then(|()| file.write_all_at(&zeros, 0)) {
            abandon(io, &spare);
            return Err(refuse("cannot reserve the file of the cursors", e));
        }
        let names = NameSync::open(io, dir).map_err(|e| {
            abandon(io, &spare);
            Fault::Refused(e)
        })?;
        file.sync().map_err(|e| Fault::Final(Error::io("cannot sync the cursors", &spare, e)))?;
        if let Err(e) = io.rename(&spare, &self.path) {
            let full = is_full(&e);
            let error = refusal("cannot name the file of the cursors", &self.path, e);
            abandon(io, &spare);
            return Err(if full { Fault::Refused(error) } else { Fault::Final(error) });
        }
        names.sync().map_err(Fault::Final)?;
        self.state = State::Open(file);
        Ok(())
    }

    /// Opens a file that has cursors and writes it again: same bytes, same place. What it says is
    /// what these bytes say; damaged ones are left as they are, and so is the file closed.
    ///
    /// What the cache holds says nothing of the disk, where a sync has failed, and may be gone at
    /// any time: it is dropped first, as that of the tail is, by a description that is older.
    ///
    /// # Durability
    ///
    /// What the file says.
    pub(crate) fn prove(&mut self, io: &dyn Io, uuid: Uuid) -> Outcome<CursorFacts> {
        let again = || -> io::Result<(Arc<dyn IoFile>, CursorFacts)> {
            let file = io.open(&self.path, OpenHow::ReadWrite)?;
            file.evict(0..u64::MAX)?;
            let bytes = contents(&*file)?;
            let facts = CursorFacts::of(&self.path, &bytes, uuid);
            if facts.damage.is_none() {
                file.write_all_at(&bytes, 0)?;
            }
            Ok((file, facts))
        };
        let what = "cannot write the cursors again";
        let again = again().map_err(|e| Fault::Refused(refusal(what, &self.path, e)));
        let (file, facts) = again?;
        if facts.damage.is_none() {
            file.sync().map_err(|e| self.unsynced(e))?;
            self.state = State::Open(file);
        }
        Ok(facts)
    }

    /// Writes one copy of a cursor, unsynced.
    pub(crate) fn put(&self, copy: &CursorCopy<'_>, uuid: Uuid) -> Outcome<()> {
        // Names were checked as the cursor was made.
        let refuse = |e| Error::new(ErrorKind::Limit, "a cursor has no encoding").with_source(e);
        let bytes = copy.encode(uuid).map_err(|e| Fault::Refused(refuse(e)))?;
        let offset = CursorCopy::offset_of(copy.index, copy.counter);
        // A part of it may stand there: the other copy is whole, and this one is written again.
        self.opened()?.write_all_at(&bytes, offset).map_err(|e| {
            Fault::Refused(refusal("cannot write a cursor", &self.path, e).at_offset(offset))
        })
    }

    pub(crate) fn sync(&self) -> Outcome<()> {
        self.opened()?.sync().map_err(|e| self.unsynced(e))
    }

    /// There is no cursor to write before the file was made or proven.
    fn opened(&self) -> Outcome<&dyn IoFile> {
        match &self.state {
            State::Open(file) => Ok(&**file),
            State::ToMake | State::ToProve => {
                let e = io::ErrorKind::NotFound.into();
                Err(Fault::Refused(refusal("the cursors are not open", &self.path, e)))
            }
        }
    }

    fn unsynced(&self, e: io::Error) -> Fault {
        Fault::Final(Error::io("cannot sync the cursors", &self.path, e))
    }
}

/// One that stays is removed by the next open, which tells of one that it cannot remove either.
fn abandon(io: &dyn Io, spare: &Path) {
    drop(io.remove(spare));
}
