//! Files and directories as the log needs them: one trait for a file system, one for a file.
//!
//! Everything that the log, the channels and the broadcaster read or write goes through [`Io`], so
//! that a test can count the calls, fail one, lose what was not synced, and play a run again.
//! [`fs::FsIo`] is the real file system; with the feature `testing` there is an in-memory one
//! beside it.
//!
//! An implementation promises what SPEC section 14 assumes of a disk and nothing more: a returned
//! [`IoFile::sync`] makes the bytes and the length durable, a returned [`Io::sync_dir`] the entries
//! of a directory. Data, length and directory entry are independent until then.
//! It does **not** cache, retry a sync, or decide what an error means.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fault;
pub mod fs;
mod map;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod mem;
#[cfg(feature = "import")]
pub(crate) mod source;
#[cfg(any(loom, shuttle))]
#[cfg(test)]
pub(crate) mod turns;

use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use bytes::Bytes;

/// A file system.
///
/// Methods added later have a default, so that an implementation goes on compiling.
pub trait Io: fmt::Debug + Send + Sync + 'static {
    /// Opens a file. Each call makes an open file description of its own, so that each holder is
    /// told of a failed sync once.
    ///
    /// # Errors
    ///
    /// `NotFound` without the file, `AlreadyExists` for [`OpenHow::CreateNew`] with it, else what
    /// the system says.
    ///
    /// # Durability
    ///
    /// A file made here is durable under its name once it and its directory are synced.
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>>;

    /// Lists the entries of a directory, in no order, without `.` and `..`.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`, else what the system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;

    /// Says what stands at a path, through symbolic links; `None` when nothing does.
    ///
    /// # Errors
    ///
    /// What the system says, except that nothing is there.
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>>;

    /// Gives a file another name in the same directory; a file of that name is replaced.
    ///
    /// # Errors
    ///
    /// What the system says.
    ///
    /// # Durability
    ///
    /// After a power loss either name, both or none may stand, until the directory is synced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; who has it open keeps it.
    ///
    /// # Errors
    ///
    /// What the system says.
    ///
    /// # Durability
    ///
    /// The name may come back after a power loss, until the directory is synced.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a directory below one that exists.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` when something has the name, else what the system says.
    ///
    /// # Durability
    ///
    /// Durable once the directory above is synced.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes the entries of a directory durable.
    ///
    /// # Errors
    ///
    /// What the system says, after one call: a failed sync is never repeated here.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, every entry made, renamed or removed before the call is durable.
    /// After an error each of them may be old or new on disk for ever, whatever a later call says.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Opens a directory, for its lock ([`IoFile::try_lock`], [`IoFile::try_lock_shared`]) and to
    /// sync it later: [`IoFile::sync`] of it is [`Io::sync_dir`], and needs no file handle any
    /// more. Each call makes an open file description of its own.
    ///
    /// # Errors
    ///
    /// `Unsupported` where directories cannot be opened, `NotFound`, `NotADirectory`, else what the
    /// system says. Without one the log maps nothing and cuts no file.
    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn IoFile>> {
        let _ = dir;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Says what becomes of the blocks of a file in a directory when they are written again.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn blocks(&self, dir: &Path) -> io::Result<Blocks> {
        let _ = dir;
        Ok(Blocks::Unknown)
    }

    /// Fills a buffer with bytes that no other process can repeat: identities and salts.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn random(&self, buf: &mut [u8]) -> io::Result<()>;
}

/// An open file. Offsets are in bytes from its start.
///
/// Methods added later have a default, so that an implementation goes on compiling.
pub trait IoFile: fmt::Debug + Send + Sync {
    /// Length in bytes.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// True for a file of no bytes.
    ///
    /// # Errors
    ///
    /// As [`IoFile::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads up to `buf.len()` bytes; 0 at the end of the file. May read less than there is.
    ///
    /// # Errors
    ///
    /// What the system says, `Interrupted` included.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes up to `buf.len()` bytes and says how many. A gap behind the end reads as zeros.
    ///
    /// # Errors
    ///
    /// What the system says, `Interrupted` included.
    ///
    /// # Durability
    ///
    /// None: any 512-byte sector may be old or new after a power loss, until a sync returns.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes bytes and length durable (`fdatasync`).
    ///
    /// # Errors
    ///
    /// What the system says, after one call: a failed sync is never repeated here.
    ///
    /// # Durability
    ///
    /// When this returns `Ok`, what was written before the call is durable. After an error each
    /// sector may be old or new on disk for ever, and the cache may show what the disk lacks.
    fn sync(&self) -> io::Result<()>;

    /// Sets the length: cuts, or extends with zeros.
    ///
    /// # Errors
    ///
    /// What the system says.
    ///
    /// # Durability
    ///
    /// As for [`IoFile::write_at`].
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves blocks for the first `len` bytes and extends the file with zeros to that length;
    /// a longer file keeps its length. Writes nothing.
    ///
    /// # Errors
    ///
    /// `Unsupported` where the file system cannot reserve: the file is as it was. Else what the
    /// system says; the file may have grown by less.
    ///
    /// # Durability
    ///
    /// As for [`IoFile::write_at`].
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Takes the exclusive `flock` of the file; false when another description holds one. It is
    /// freed when this file is dropped, and when the process ends. A shared one that was held
    /// becomes the exclusive one, and where this is false or an error, it may be lost.
    ///
    /// # Errors
    ///
    /// What the system says, except that another one holds it.
    fn try_lock(&self) -> io::Result<bool>;

    /// Takes a shared `flock` of the file, as many descriptions may; false when another one holds
    /// the exclusive one. Else as [`IoFile::try_lock`]: an exclusive one becomes a shared one.
    ///
    /// # Errors
    ///
    /// `Unsupported`, else what the system says, except that another one holds it.
    fn try_lock_shared(&self) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What no other file has that is there at the same time: whether a name stands for a file that
    /// is open. `None` where that cannot be told; a file of the log that lost its name is then
    /// taken for the one that has it.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn id(&self) -> io::Result<Option<FileId>> {
        Ok(None)
    }

    /// Hands out the first `len` bytes without copying them where that is possible.
    ///
    /// For sealed segments only: nobody writes over its frames any more, and nobody shortens it
    /// while a slice of the bytes lives, for which the caller holds a lock of the directory
    /// ([`Io::open_dir`]) as long. They stay readable after the file was removed.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` when the file is shorter, else what the system says.
    fn map(&self, len: u64) -> io::Result<Bytes>;

    /// Drops what the system holds of these bytes in its cache, so that they are read from the disk
    /// again. What is still to be written, and what cannot be dropped, stays; without effect where
    /// there is no cache.
    ///
    /// # Errors
    ///
    /// What the system says, except that it cannot do this.
    fn evict(&self, _bytes: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Reads until `buf` is full or the file ends, and says how much was read.
    ///
    /// # Errors
    ///
    /// As [`IoFile::read_at`], without `Interrupted`.
    fn read_full_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, behind(offset, done)?) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Writes all of `buf`, in as many writes as it takes.
    ///
    /// # Errors
    ///
    /// As [`IoFile::write_at`], without `Interrupted`; `WriteZero` when nothing more is taken. A
    /// part may have been written.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = buf.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write_at(rest, behind(offset, done)?) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes all of `buf` in one write, for bytes of which a part alone is a failure
    /// (SPEC section 10: a short write of frames).
    ///
    /// # Errors
    ///
    /// As [`IoFile::write_at`], without `Interrupted`; `WriteZero` when the write was short. A part
    /// may have been written.
    fn write_whole_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        loop {
            match self.write_at(buf, offset) {
                Ok(n) if n == buf.len() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Identity of a file, as [`IoFile::id`] tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "two numbers, as a system has them")]
pub struct FileId {
    /// Number of the file system.
    pub device: u64,
    /// Number of the file in it.
    pub file: u64,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenHow {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    ReadWrite,
    /// A file that must not exist yet, to read and write.
    CreateNew,
}

/// What a file system does with the blocks of a file that are written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocks {
    /// They stay where they are.
    Fixed,
    /// They move with each write.
    Moved,
    /// Nobody can say, or there are none.
    Unknown,
}

/// What stands under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// Anything else: a symbolic link in a list, a pipe, a device.
    Other,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// Name within the directory.
    pub name: OsString,
    /// What the name stands for; a symbolic link is not followed.
    pub kind: EntryKind,
}

impl DirEntry {
    /// An entry, for implementations of [`Io`].
    #[must_use]
    pub fn new(name: impl Into<OsString>, kind: EntryKind) -> Self {
        Self { name: name.into(), kind }
    }
}

/// The offset `done` bytes behind `offset`.
fn behind(offset: u64, done: usize) -> io::Result<u64> {
    u64::try_from(done)
        .ok()
        .and_then(|done| offset.checked_add(done))
        .ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}
