//! A file that rows are read from: opened once, identified, never written.
//!
//! The handle that was checked is the handle that is read. Opening does not wait for the other end
//! of a pipe, and refuses everything but a regular file. Nothing here follows a change of the file:
//! [`SourceFile::identity`] says what the handle is, the caller compares.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::OFlags;

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
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.map_err(NoSource::Io)?;
        let kind = file.metadata().map_err(NoSource::Io)?.file_type();
        if kind.is_dir() {
            return Err(NoSource::Directory);
        }
        if !kind.is_file() {
            return Err(NoSource::Special);
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// The path that it was opened by.
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
