//! The directory of a store: what stands in it, and whether a store may be made there (SPEC 4.2).
//!
//! It looks and makes directories; what the logs in them hold is asked of the logs, and the lock is
//! the caller's.

use std::path::Path;

use oncelog_format::{Owner, Uuid, parse_segment_name};

use super::{CHANNELS, CONTROL};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{DirEntry, EntryKind, Io};
use crate::log::CreateMode;
use crate::log::dir::{make_named, sync_dir, sync_parent, sync_parent_if_allowed};
use crate::log::facts::{LOCK_NAME, LockFacts, NOT_FREE, SPARE_SUFFIX, is_lost_found};
use crate::log::open::is_unused;

/// What is wrong where there is a control log and no lock file.
const LOCK_GONE: &str = "the store has lost its lock file";

/// Makes sure that the directory is there and is a store's, or may become one.
pub(super) fn prepare(io: &dyn Io, dir: &Path, create: CreateMode) -> Result<()> {
    match kind(io, dir)? {
        None if create == CreateMode::Never => Err(no_store(dir)),
        None => {
            make_named(io, dir)?;
            sync_parent(io, dir)
        }
        Some(EntryKind::Dir) => {
            let has_lock = || Ok::<_, Error>(kind(io, &dir.join(LOCK_NAME))?.is_some());
            if has_lock()? {
                let exists = identity(io, dir)?.is_some();
                if exists && create == CreateMode::Always {
                    let what = "there is a store already";
                    return Err(Error::new(ErrorKind::InvalidInput, what).at_path(dir));
                }
                return Ok(()); // judged under the lock
            }
            match expect_makeable(io, dir, create) {
                // Another process may have made the store that this looked at.
                Err(e) if !has_lock()? => Err(e),
                Err(_) => Ok(()),
                Ok(()) => sync_parent_if_allowed(io, dir),
            }
        }
        Some(_) => Err(Error::new(ErrorKind::InvalidInput, "not a directory").at_path(dir)),
    }
}

/// Makes sure that a store may be made, or its making brought to an end, in a directory whose lock
/// file, where it is there, has no UUID.
///
/// # Errors
///
/// `Corrupt` where a store has lost its lock file; `InvalidInput` where the directory holds what no
/// making of a store leaves, or nothing and `create` forbids the rest.
pub(super) fn expect_makeable(io: &dyn Io, dir: &Path, create: CreateMode) -> Result<()> {
    let entries = list(io, dir)?;
    expect_unfinished(io, dir, &entries)?;
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    let (has_lock, has_control) = (has(LOCK_NAME), has(CONTROL));
    let is_of_store = |entry: &DirEntry| {
        let is_behind_control = entry.name == CONTROL || entry.name == CHANNELS;
        (has_control && is_behind_control) || entry.name == LOCK_NAME
    };
    let is_ours = entries.iter().all(|entry| is_nothing(entry) || is_of_store(entry))
        && (!has_lock || LockFacts::read(io, dir)? != LockFacts::Foreign)
        && (!has(CHANNELS) || holds_nothing(io, &dir.join(CHANNELS))?);
    if !is_ours {
        return Err(Error::new(ErrorKind::InvalidInput, NOT_FREE).at_path(dir));
    }
    if create == CreateMode::Never {
        return Err(no_store(dir));
    }
    Ok(())
}

fn holds_nothing(io: &dyn Io, dir: &Path) -> Result<bool> {
    Ok(kind(io, dir)? == Some(EntryKind::Dir) && list(io, dir)?.iter().all(is_nothing))
}

/// Whether an entry keeps nobody from making a store beside it. A spare may be left of the making
/// of the lock file.
fn is_nothing(entry: &DirEntry) -> bool {
    let is_spare = entry.name.to_str().is_some_and(|name| name.ends_with(SPARE_SUFFIX));
    is_lost_found(&entry.name) || (is_spare && entry.kind == EntryKind::File)
}

/// Fails as `Corrupt` where a store has lost its lock file, or the UUID in it: its making had come
/// to an end, for control has a record or is damaged, or a pchannel has its log.
pub(crate) fn expect_unfinished(io: &dyn Io, dir: &Path, entries: &[DirEntry]) -> Result<()> {
    let kind = |name| entries.iter().find(|entry| entry.name == name).map(|entry| entry.kind);
    let has_channel_log = kind(CHANNELS) == Some(EntryKind::Dir)
        && !pchannel_dirs(io, &dir.join(CHANNELS))?.is_empty();
    let is_unfinished = !has_channel_log
        && match kind(CONTROL) {
            Some(EntryKind::Dir) => is_unused(io, &dir.join(CONTROL))?,
            control => control.is_none(),
        };
    if is_unfinished {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, LOCK_GONE).at_path(dir))
}

fn no_store(dir: &Path) -> Error {
    Error::new(ErrorKind::InvalidInput, "there is no store").at_path(dir)
}

/// The identity in the lock file; `None` while the store is not made.
pub(crate) fn identity(io: &dyn Io, dir: &Path) -> Result<Option<Uuid>> {
    let damaged = || {
        let what = "the lock file is damaged";
        Error::new(ErrorKind::Corrupt, what).at_path(dir.join(LOCK_NAME))
    };
    match LockFacts::read(io, dir)? {
        LockFacts::NoIdentity | LockFacts::Foreign => Ok(None),
        LockFacts::Identity(Owner::Store, uuid) => Ok(Some(uuid)),
        LockFacts::Identity(..) => {
            let what = "the directory holds a log, not a store";
            Err(Error::new(ErrorKind::InvalidInput, what).at_path(dir))
        }
        LockFacts::Unfinished => Err(damaged()),
        LockFacts::Damaged(e) => Err(damaged().with_source(e)),
    }
}

pub(super) fn check_pchannel(name: &str) -> Result<()> {
    let fits = (1..=64).contains(&name.len());
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if fits && plain {
        return Ok(());
    }
    let what = "a pchannel is named by 1 to 64 ASCII letters, digits, - and _";
    Err(Error::new(ErrorKind::InvalidInput, what))
}

/// The directories below `channels/` that are a pchannel's: they hold a log, and others than that
/// are nobody's affair.
pub(crate) fn pchannel_dirs(io: &dyn Io, dir: &Path) -> Result<Vec<String>> {
    let names = list(io, dir)?.into_iter().filter_map(|entry| entry.name.into_string().ok());
    let mut found = Vec::new();
    for name in names.filter(|name| check_pchannel(name).is_ok()) {
        if holds_log(io, &dir.join(&name))? {
            found.push(name);
        }
    }
    Ok(found)
}

/// Fails as `Corrupt` where there is no trace of a log that was made.
pub(crate) fn expect_log(io: &dyn Io, path: &Path, what: &'static str) -> Result<()> {
    if holds_log(io, path)? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, what).at_path(path))
}

fn holds_log(io: &dyn Io, path: &Path) -> Result<bool> {
    if kind(io, path)? != Some(EntryKind::Dir) {
        return Ok(false);
    }
    let is_of_log = |entry: &DirEntry| {
        let segment = entry.name.to_str().and_then(parse_segment_name);
        entry.kind == EntryKind::File && (entry.name == LOCK_NAME || segment.is_some())
    };
    Ok(list(io, path)?.iter().any(is_of_log))
}

pub(super) fn make_dir(io: &dyn Io, dir: &Path, name: &str) -> Result<()> {
    make_named(io, &dir.join(name))?;
    sync_dir(io, dir)
}

pub(super) fn kind(io: &dyn Io, path: &Path) -> Result<Option<EntryKind>> {
    io.kind(path).map_err(|e| Error::io("cannot look at the path", path, e))
}

pub(crate) fn list(io: &dyn Io, dir: &Path) -> Result<Vec<DirEntry>> {
    io.list(dir).map_err(|e| Error::io("cannot list the directory", dir, e))
}

pub(super) fn random_uuid(io: &dyn Io, dir: &Path) -> Result<Uuid> {
    let mut bytes = [0; 16];
    io.random(&mut bytes).map_err(|e| Error::io("cannot get random bytes", dir, e))?;
    // Not all zero, whatever the source says (SPEC 4).
    let [.., last] = &mut bytes;
    *last |= 1;
    Ok(Uuid(bytes))
}
