//! A file that rows are read from: opened once, identified, never written.
//!
//! The handle that was checked is the handle that is read. Opening does not wait for the other end
//! of a pipe, and refuses everything but a regular file. Below a [`RootDir`] the kernel itself walks
//! the path from the directory's handle, and goes through no symbolic link and to nothing above: a
//! path that is changed between two looks at it leads to a file below the root, or nowhere. A hard
//! link is the file, and cannot be told from it. Nothing here follows a change of the file:
//! [`SourceFile::identity`] says what the handle is, the caller compares.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// What tells one state of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Time of the last change of its content, in nanoseconds since 1970.
    pub(crate) mtime_ns: i64,
    /// Number of the file within its file system.
    pub(crate) inode: u64,
}

/// Why a path is no source.
#[derive(Debug)]
pub(crate) enum NoSource {
    /// It is a directory.
    Directory,
    /// It is neither a file nor a directory.
    Special,
    /// Below a root: a part of it is a symbolic link.
    Link,
    /// Below a root: it leads out of it.
    Outside,
    /// The system says why.
    Io(io::Error),
}

/// An open regular file, to read.
#[derive(Debug)]
pub(crate) struct SourceFile {
    file: File,
    path: PathBuf,
}

impl SourceFile {
    /// Opens a regular file.
    pub(crate) fn open(path: &Path) -> Result<Self, NoSource> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
        Self::checked(file.map_err(NoSource::Io)?, path)
    }

    fn checked(file: File, path: &Path) -> Result<Self, NoSource> {
        let kind = file.metadata().map_err(NoSource::Io)?.file_type();
        if kind.is_dir() {
            return Err(NoSource::Directory);
        }
        if !kind.is_file() {
            return Err(NoSource::Special);
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// The path that it was opened by; that of a file below a root begins there.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the handle is at this moment.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        let found = self.file.metadata()?;
        let mtime_ns = found.mtime().saturating_mul(1_000_000_000);
        Ok(Identity {
            bytes: found.len(),
            mtime_ns: mtime_ns.saturating_add(found.mtime_nsec()),
            inode: found.ino(),
        })
    }

    /// Reads until `buf` is full or the file ends, and says how much was read.
    pub(crate) fn read_full_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = u64::try_from(done).map_or(u64::MAX, |done| offset.saturating_add(done));
            match self.file.read_at(rest, at) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

/// An open directory that files are opened below.
#[derive(Debug)]
pub(crate) struct RootDir {
    dir: OwnedFd,
}

/// What every step below a root has to keep to.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Tries of one open: openat2(2) gives up a walk that races with a rename elsewhere.
const TRIES: usize = 64;

impl RootDir {
    /// Opens a directory; symbolic links on the way to it are followed, once.
    ///
    /// An error of kind `Unsupported` says that the kernel cannot keep a path below it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Self { dir: rustix::fs::open(path, flags, Mode::empty())? };
        match root.walk(Path::new("."), flags) {
            Err(Errno::NOSYS | Errno::PERM) => {
                let what = "the kernel has no openat2 (Linux 5.6), or does not let it be called";
                Err(io::Error::new(io::ErrorKind::Unsupported, what))
            }
            walked => walked.map(|_| root).map_err(Into::into),
        }
    }

    /// Opens a regular file by its path from here.
    pub(crate) fn open_below(&self, path: &Path) -> Result<SourceFile, NoSource> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match self.walk(path, flags) {
            Ok(file) => SourceFile::checked(file.into(), path),
            Err(Errno::LOOP) => Err(NoSource::Link),
            Err(Errno::XDEV) => Err(NoSource::Outside),
            // A socket has no reader, and so has a device without a driver.
            Err(Errno::NXIO | Errno::NODEV) => Err(NoSource::Special),
            Err(e) => Err(NoSource::Io(e.into())),
        }
    }

    fn walk(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut tries = 0;
        loop {
            match rustix::fs::openat2(&self.dir, path, flags, Mode::empty(), BELOW) {
                Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
                walked => return walked,
            }
        }
    }
}

#[cfg(test)]
mod tests;
