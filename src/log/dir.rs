//! The directory of a log: its lock, and how it comes to be (SPEC sections 4 and 10).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oncelog_format::lock::{LOCK_CONTENT_LEN, LOCK_LEN};
use oncelog_format::{Owner, Uuid, encode_lock};

use super::facts::{LOCK_NAME, Listing, NOT_FREE, SPARE_SUFFIX};
use super::options::CreateMode;
use super::view::pause;
use super::wait::now;
use crate::error::{Error, ErrorKind, Result, is_full};
use crate::io::{EntryKind, Io, IoFile, OpenHow};
use crate::told;

/// How often a lock file may lose its name while it is being locked.
const LOCK_TRIES: usize = 16;
/// Between two attempts of somebody who waits for a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(3);

/// The exclusive lock of a directory; freed when dropped.
#[derive(Debug)]
pub(crate) struct DirLock {
    file: Arc<dyn IoFile>,
    path: PathBuf,
    /// Whoever holds the lock has made the file, and no sync of its name has failed.
    is_made: bool,
}

impl DirLock {
    /// Takes the lock of an existing directory where its file is there, and changes nothing.
    ///
    /// # Errors
    ///
    /// `Busy` when another one holds it, else `Io`.
    pub(crate) fn find(io: &dyn Io, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(LOCK_NAME);
        for _ in 0..LOCK_TRIES {
            let file = match io.open(&path, OpenHow::ReadWrite) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(Error::io("cannot open the lock file", &path, e)),
            };
            if let Some(lock) = Self::of(io, file, &path, false)? {
                return Ok(Some(lock));
            }
        }
        Err(busy(&path))
    }

    /// Takes the lock of an existing directory; makes the file, empty, where it is missing.
    ///
    /// # Errors
    ///
    /// `Busy` when another one holds it, `StoreFull` without space for the file, else `Io`.
    pub(crate) fn take(io: &dyn Io, dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK_NAME);
        for _ in 0..LOCK_TRIES {
            let file = open_or_make(io, &path);
            let (file, is_made) =
                file.map_err(|e| refusal("cannot open the lock file", &path, e))?;
            if let Some(lock) = Self::of(io, file, &path, is_made)? {
                return Ok(lock);
            }
        }
        Err(busy(&path))
    }

    /// Makes the file, empty, and takes the lock; `None` where something has its name.
    ///
    /// # Errors
    ///
    /// `Busy` when another one was faster to take it, `StoreFull` without space for the file, else
    /// `Io`.
    pub(crate) fn make(io: &dyn Io, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(LOCK_NAME);
        match io.open(&path, OpenHow::CreateNew) {
            Ok(file) => match Self::of(io, file, &path, true)? {
                Some(lock) => Ok(Some(lock)),
                // Whoever was faster to lock it may have put another one in its place.
                None => Self::find(io, dir)?.map_or_else(|| Err(busy(&path)), |_| Ok(None)),
            },
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(e) => Err(refusal("cannot make the lock file", &path, e)),
        }
    }

    /// The lock of an open file; `None` when the file has lost its name, and locks nothing: whoever
    /// gives a directory up removes it while he holds its lock, and another one may have it open.
    fn of(io: &dyn Io, file: Arc<dyn IoFile>, path: &Path, is_made: bool) -> Result<Option<Self>> {
        let locked = file.try_lock().map_err(|e| Error::io("cannot lock the file", path, e))?;
        if !locked {
            return Err(busy(path));
        }
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::LockNameless) {
            return Ok(Some(Self { file, path: path.to_owned(), is_made }));
        }
        let named = match io.open(path, OpenHow::Read) {
            Ok(named) => named,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("cannot open the lock file", path, e)),
        };
        let same = file.id().and_then(|id| Ok(id == named.id()?));
        let same = same.map_err(|e| Error::io("cannot look at the lock file", path, e))?;
        #[cfg(planted)]
        let same = same || crate::planted::is_active(crate::planted::Bug::LockOfAnother);
        Ok(same.then(|| Self { file, path: path.to_owned(), is_made }))
    }

    /// The file that is locked.
    pub(crate) fn file(&self) -> &dyn IoFile {
        &*self.file
    }

    /// Makes the file whole where it is short: for a directory that is, or becomes, its owner's.
    /// One that somebody has left before it was `identified` is replaced.
    ///
    /// # Errors
    ///
    /// `StoreFull` without space, else `Io`.
    ///
    /// # Durability
    ///
    /// The file, where it was short or is another one, and its name.
    pub(crate) fn complete(self, io: &dyn Io, dir: &Path, identified: bool) -> Result<Self> {
        if !identified && !self.is_made {
            return self.renew(io, dir);
        }
        let written = fill(&*self.file);
        if written.map_err(|e| refusal("cannot write the lock file", &self.path, e))? {
            sync_dir(io, dir)?;
        }
        Ok(self)
    }

    /// Makes another file in the place of this one. The sync of its name may have failed, and
    /// another sync would prove nothing of it (SPEC 14.6); that of the new name does. Until then
    /// the old file keeps a name, for a crash may bring it back as `LOCK`: its blocks must not be
    /// another file's by then (SPEC 14.12).
    fn renew(self, io: &dyn Io, dir: &Path) -> Result<Self> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::LockTrusted) {
            fill(&*self.file).map_err(|e| refusal("cannot write the lock file", &self.path, e))?;
            return Ok(self);
        }
        let failed = |e| refusal("cannot replace the lock file", &self.path, e);
        let mut aside = asides(io, dir).map_err(failed)?;
        let free = (0..=aside.len()).map(|n| dir.join(format!("{LOCK_NAME}.{n}{SPARE_SUFFIX}")));
        let free = free.into_iter().find(|name| !aside.contains(name));
        aside.extend(free);
        if let Some(name) = aside.last() {
            io.rename(&self.path, name).map_err(failed)?;
        }
        // Who finds no lock file meanwhile makes one himself, and has the directory.
        let Some(lock) = Self::make(io, dir)? else { return Err(busy(&self.path)) };
        fill(&*lock.file).map_err(failed)?;
        sync_dir(io, dir)?;
        remove_asides(io, &aside);
        Ok(lock)
    }

    /// Removes what was replaced by a lock file that has its UUID: its name is durable, for it was
    /// written behind a sync of the directory.
    pub(crate) fn remove_replaced(&self, io: &dyn Io, dir: &Path) -> Result<()> {
        let aside = asides(io, dir);
        let aside = aside.map_err(|e| Error::io("cannot list the directory", dir, e))?;
        remove_asides(io, &aside);
        Ok(())
    }

    /// Writes an identity that was found once more: the sync of it may have failed.
    ///
    /// # Errors
    ///
    /// `StoreFull` where the file system copies on write, else `Io`.
    ///
    /// # Durability
    ///
    /// The identity.
    pub(crate) fn prove(&self, owner: Owner, uuid: Uuid) -> Result<()> {
        #[cfg(planted)]
        if crate::planted::is_active(crate::planted::Bug::LockTrusted) {
            return Ok(());
        }
        // What a failed sync left is clean as long as it is in the cache (SPEC 14.7).
        let evicted = self.file.evict(0..u64::try_from(LOCK_LEN).unwrap_or(u64::MAX));
        let written = evicted.and_then(|()| self.file.write_all_at(&encode_lock(owner, uuid), 0));
        written.map_err(|e| refusal("cannot write the lock file again", &self.path, e))?;
        self.file.sync().map_err(|e| Error::io("cannot sync the lock file", &self.path, e))
    }

    /// Writes the identity, in place: needs no space.
    ///
    /// # Durability
    ///
    /// The identity.
    pub(crate) fn identify(&self, owner: Owner, uuid: Uuid) -> Result<()> {
        let content = encode_lock(owner, uuid);
        let written = self.file.write_all_at(&content, 0).and_then(|()| self.file.sync());
        if written.is_err()
            && let Err(e) = self.file.write_all_at(&[0; LOCK_CONTENT_LEN], 0)
        {
            // A part may stand there, which reads as damage; all of it, as what was synced.
            let path = self.path.clone();
            told::tell(move || {
                tracing::error!(path = %path.display(), error = %e, "the lock file is damaged");
            });
        }
        written.map_err(|e| Error::io("cannot write the lock file", &self.path, e))
    }
}

/// Tries until no other owner is in the way, or the time is over.
///
/// # Errors
///
/// Those of `attempt`; `Busy` only when the time is over.
pub(crate) fn wait_free<T>(longest: Duration, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let begin = now();
    loop {
        let done = attempt();
        let left = longest.saturating_sub(now().saturating_sub(begin));
        if left.is_zero() || !done.as_ref().is_err_and(|e| e.kind() == ErrorKind::Busy) {
            return done;
        }
        // A `flock` that is waited for cannot be given up again at the end of a time.
        pause(LOCK_PAUSE.min(left));
    }
}

fn busy(path: &Path) -> Error {
    Error::new(ErrorKind::Busy, "the directory is in use by another writer").at_path(path)
}

/// The file, and whether it was made.
fn open_or_make(io: &dyn Io, path: &Path) -> io::Result<(Arc<dyn IoFile>, bool)> {
    let open = || io.open(path, OpenHow::ReadWrite).map(|file| (file, false));
    match open() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match io.open(path, OpenHow::CreateNew) {
        // Another process was faster: its lock decides.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => open(),
        made => made.map(|file| (file, true)),
    }
}

/// The names that lock files got which were replaced.
fn asides(io: &dyn Io, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let names = io.list(dir)?.into_iter().filter_map(|entry| entry.name.into_string().ok());
    let is_aside = |name: &String| {
        let number = name.strip_prefix(LOCK_NAME).and_then(|name| name.strip_suffix(SPARE_SUFFIX));
        number.is_some_and(|number| number.starts_with('.'))
    };
    Ok(names.filter(is_aside).map(|name| dir.join(name)).collect())
}

fn remove_asides(io: &dyn Io, aside: &[PathBuf]) {
    for name in aside {
        if let Err(e) = io.remove(name) {
            let path = name.clone();
            told::tell(move || tracing::warn!(path = %path.display(), error = %e, "a spare stays"));
        }
    }
}

/// Makes a file in the place of one that an attempt has left, in which nothing counts.
pub(crate) fn make_anew(io: &dyn Io, path: &Path) -> io::Result<Arc<dyn IoFile>> {
    match io.open(path, OpenHow::CreateNew) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            io.remove(path).and_then(|()| io.open(path, OpenHow::CreateNew))
        }
        made => made,
    }
}

/// Extends the file with zeros to its length; says whether it was shorter. What is too short to
/// hold an identity holds none, and is overwritten.
fn fill(file: &dyn IoFile) -> io::Result<bool> {
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    let zeros = [0; LOCK_LEN];
    let from = if len < LOCK_CONTENT_LEN { 0 } else { len };
    let Some(missing) = zeros.get(from..).filter(|missing| !missing.is_empty()) else {
        return Ok(false);
    };
    file.write_all_at(missing, u64::try_from(from).unwrap_or(u64::MAX))?;
    file.sync()?;
    Ok(true)
}

/// The path, whatever becomes the directory of the process: files of the log are named for as long
/// as it is open.
///
/// # Errors
///
/// `InvalidInput` for an empty path, `Io` where the process has no directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| {
        let is_wrong = e.kind() == io::ErrorKind::InvalidInput;
        let kind = if is_wrong { ErrorKind::InvalidInput } else { ErrorKind::Io };
        Error::new(kind, "the path is not one of a directory").at_path(path).with_source(e)
    })
}

/// Makes sure that the directory is there and is a log's, or may become one. Touches nothing else.
///
/// # Errors
///
/// `InvalidInput` when it is something else, or `create` forbids what would follow.
pub(crate) fn prepare(io: &dyn Io, dir: &Path, create: CreateMode) -> Result<()> {
    let kind = io.kind(dir).map_err(|e| Error::io("cannot look at the directory", dir, e))?;
    let refuse = |what: &'static str| Err(Error::new(ErrorKind::InvalidInput, what).at_path(dir));
    match kind {
        None if create == CreateMode::Never => refuse("there is no log"),
        None => {
            make_named(io, dir)?;
            sync_parent(io, dir)
        }
        Some(EntryKind::Dir) => {
            let listing = Listing::read(io, dir)
                .map_err(|e| Error::io("cannot list the directory", dir, e))?;
            if listing.lock || !listing.segments.is_empty() {
                return Ok(()); // judged under the lock
            }
            if create == CreateMode::Never {
                return refuse("there is no log");
            }
            if !listing.is_nothing() {
                return refuse(NOT_FREE);
            }
            sync_parent_if_allowed(io, dir)
        }
        Some(_) => refuse("not a directory"),
    }
}

fn denied(e: &Error) -> bool {
    let source = std::error::Error::source(e).and_then(|e| e.downcast_ref::<io::Error>());
    source.is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
}

/// Makes a directory, unless another process was faster: its lock decides.
pub(crate) fn make_named(io: &dyn Io, dir: &Path) -> Result<()> {
    match io.create_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(|e| refusal("cannot make the directory", dir, e)),
    }
}

/// For a directory that was found: whoever made it may not have synced its name; without permission
/// it is not ours.
pub(crate) fn sync_parent_if_allowed(io: &dyn Io, dir: &Path) -> Result<()> {
    match sync_parent(io, dir) {
        Err(e) if denied(&e) => Ok(()),
        synced => synced,
    }
}

pub(crate) fn sync_parent(io: &dyn Io, dir: &Path) -> Result<()> {
    match dir.parent() {
        Some(parent) => sync_dir(io, parent),
        None => Ok(()),
    }
}

pub(crate) fn sync_dir(io: &dyn Io, dir: &Path) -> Result<()> {
    io.sync_dir(dir).map_err(|e| Error::io("cannot sync the directory", dir, e))
}

/// A directory that is opened before a name in it changes: where the system has no file handle to
/// spare, that refuses the change, and no name stands that nobody can sync.
#[derive(Debug)]
pub(crate) struct NameSync<'a> {
    io: &'a dyn Io,
    dir: &'a Path,
    /// `None` where directories cannot be opened.
    file: Option<Arc<dyn IoFile>>,
}

impl<'a> NameSync<'a> {
    /// # Errors
    ///
    /// `Io`; nothing happened.
    pub(crate) fn open(io: &'a dyn Io, dir: &'a Path) -> Result<Self> {
        match io.open_dir(dir) {
            Ok(file) => Ok(Self { io, dir, file: Some(file) }),
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(Self { io, dir, file: None }),
            Err(e) => Err(Error::io("cannot open the directory", dir, e)),
        }
    }

    pub(crate) const fn dir(&self) -> &Path {
        self.dir
    }

    /// # Errors
    ///
    /// `Io`: which names stand after a power loss is not known.
    ///
    /// # Durability
    ///
    /// The names in the directory.
    pub(crate) fn sync(self) -> Result<()> {
        let synced = self.file.map_or_else(|| self.io.sync_dir(self.dir), |file| file.sync());
        synced.map_err(|e| Error::io("cannot sync the directory", self.dir, e))
    }
}

/// `StoreFull` for a refusal for space, else `Io`.
pub(crate) fn refusal(what: &'static str, path: &Path, e: io::Error) -> Error {
    let kind = if is_full(&e) { ErrorKind::StoreFull } else { ErrorKind::Io };
    Error::new(kind, what).at_path(path).with_source(e)
}

/// Why a step of the log's files was not taken.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing happened that a later attempt could meet.
    Refused(Error),
    /// What is on disk is not known: only opening again tells.
    Final(Error),
}

impl Fault {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused(e) | Self::Final(e) => e,
        }
    }
}

/// Random bytes for identities and salts.
pub(crate) fn random<const N: usize>(io: &dyn Io) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match io.random(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(e) => Err(Error::new(ErrorKind::Io, "the system has no random bytes").with_source(e)),
    }
}
