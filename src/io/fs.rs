//! The real file system, and the only user of `std::fs`.
//!
//! Reads and writes are positioned (`pread`, `pwrite`), so threads share a file without a cursor.
//! A sync is one system call whose answer is passed on as it is.

#![expect(clippy::disallowed_methods, reason = "this is what the others go through")]

use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;

use super::map::map_file;
use super::{Blocks, DirEntry, EntryKind, FileId, Io, IoFile, OpenHow};

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct FsIo;

impl FsIo {
    /// The file system of the machine.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Io for FsIo {
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        let mut options = File::options();
        // Not to wait for the other end of a pipe; of no effect on a file.
        options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        match how {
            OpenHow::Read => {}
            OpenHow::ReadWrite => {
                options.write(true);
            }
            OpenHow::CreateNew => {
                options.write(true).create_new(true);
            }
        }
        let file = options.open(path)?;
        let kind = kind_of(file.metadata()?.file_type());
        if kind != EntryKind::File {
            let what = if kind == EntryKind::Dir { "is a directory" } else { "not a regular file" };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(Arc::new(FsFile::new(file, false)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        fs::read_dir(dir)?
            .map(|entry| {
                let entry = entry?;
                Ok(DirEntry::new(entry.file_name(), kind_of(entry.file_type()?)))
            })
            .collect()
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        match fs::metadata(path) {
            Ok(found) => Ok(Some(kind_of(found.file_type()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Not `File::sync_all`, which repeats an interrupted call.
        Ok(rustix::fs::fsync(File::open(dir)?)?)
    }

    fn open_dir(&self, dir: &Path) -> io::Result<Arc<dyn IoFile>> {
        let mut options = File::options();
        options.read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed());
        Ok(Arc::new(FsFile::new(options.open(dir)?, true)))
    }

    fn blocks(&self, dir: &Path) -> io::Result<Blocks> {
        let kind = u64::try_from(rustix::fs::statfs(dir)?.f_type).unwrap_or(0);
        Ok(blocks_of(kind))
    }

    fn random(&self, buf: &mut [u8]) -> io::Result<()> {
        getrandom::fill(buf).map_err(|e| io::Error::other(e.to_string()))
    }
}

/// What a page of any machine divides.
const EVICT_BYTES: u64 = 64 << 10;

/// An open file of the machine.
#[derive(Debug)]
struct FsFile {
    file: File,
    is_dir: bool,
    locked: AtomicBool,
}

impl FsFile {
    const fn new(file: File, is_dir: bool) -> Self {
        Self { file, is_dir, locked: AtomicBool::new(false) }
    }

    fn locked(&self, answer: io::Result<()>) -> io::Result<bool> {
        match answer {
            Ok(()) => {
                self.locked.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl Drop for FsFile {
    fn drop(&mut self) {
        // flock(2): a lock lives as long as any copy of the description, and a child that another
        // thread is about to start has one until it calls exec.
        if self.locked.load(Ordering::Relaxed)
            && let Err(e) = fs2::FileExt::unlock(&self.file)
        {
            crate::told::tell(move || {
                tracing::warn!(error = %e, "a lock is freed only with the last copy of its file");
            });
        }
    }
}

impl IoFile for FsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        // Not `File::sync_data`, which repeats an interrupted call: an error that the first one
        // consumed would be lost (fsync(2): it is reported once per description).
        let synced = if self.is_dir {
            rustix::fs::fsync(&self.file)
        } else {
            rustix::fs::fdatasync(&self.file)
        };
        Ok(synced?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        loop {
            return match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
                Ok(()) => Ok(()),
                Err(Errno::INTR) => continue,
                Err(e) if cannot_reserve(e) => {
                    Err(io::Error::new(io::ErrorKind::Unsupported, io::Error::from(e)))
                }
                Err(e) => Err(e.into()),
            };
        }
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.locked(fs2::FileExt::try_lock_exclusive(&self.file))
    }

    fn try_lock_shared(&self) -> io::Result<bool> {
        self.locked(fs2::FileExt::try_lock_shared(&self.file))
    }

    fn id(&self) -> io::Result<Option<FileId>> {
        let found = self.file.metadata()?;
        Ok(Some(FileId { device: found.dev(), file: found.ino() }))
    }

    fn evict(&self, bytes: Range<u64>) -> io::Result<()> {
        // posix_fadvise(2): pages are dropped whole, and without a length it is to the end.
        let from = bytes.start - bytes.start % EVICT_BYTES;
        let len = NonZeroU64::new(bytes.end.saturating_sub(from));
        let len = len.filter(|len| i64::try_from(len.get()).is_ok());
        match rustix::fs::fadvise(&self.file, from, len, Advice::DontNeed) {
            Ok(()) | Err(Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        map_file(&self.file, len)
    }
}

/// Whether a file system knows no reservation of blocks, rather than refusing this one.
fn cannot_reserve(e: Errno) -> bool {
    matches!(e, Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)
}

/// By the number of a file system, as statfs(2) lists them. An overlay tells nothing of what lies
/// below it.
fn blocks_of(kind: u64) -> Blocks {
    const FIXED: [u64; 3] = [
        0xEF53,      // ext2 to ext4
        0x5846_5342, // XFS: only blocks that another file shares move
        0x3153_464A, // JFS
    ];
    const MOVED: [u64; 5] = [
        0x9123_683E, // btrfs
        0x2FC1_2FC1, // ZFS
        0xCA45_1A4E, // bcachefs
        0xF2F5_2010, // F2FS
        0x3434,      // NILFS2
    ];
    match kind {
        kind if FIXED.contains(&kind) => Blocks::Fixed,
        kind if MOVED.contains(&kind) => Blocks::Moved,
        _ => Blocks::Unknown,
    }
}

fn kind_of(kind: fs::FileType) -> EntryKind {
    if kind.is_file() {
        EntryKind::File
    } else if kind.is_dir() {
        EntryKind::Dir
    } else {
        EntryKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (tempfile::TempDir, FsIo) {
        (tempfile::tempdir().unwrap(), FsIo::new())
    }

    #[test]
    fn what_was_written_is_read_and_listed() {
        let (dir, io) = fresh();
        let path = dir.path().join("a");
        assert_eq!(io.kind(&path).unwrap(), None);
        let file = io.open(&path, OpenHow::CreateNew).unwrap();
        file.write_all_at(b"abc", 5).unwrap();
        file.sync().unwrap();
        io.sync_dir(dir.path()).unwrap();
        let mut buf = [9; 16];
        assert_eq!(file.read_full_at(&mut buf, 0).unwrap(), 8);
        assert_eq!(&buf[..8], b"\0\0\0\0\0abc");
        io.create_dir(&dir.path().join("d")).unwrap();
        let mut found = io.list(dir.path()).unwrap();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let expect = [DirEntry::new("a", EntryKind::File), DirEntry::new("d", EntryKind::Dir)];
        assert_eq!(found, expect);
    }

    #[test]
    fn a_new_file_replaces_none() {
        let (dir, io) = fresh();
        let path = dir.path().join("a");
        assert_eq!(io.open(&path, OpenHow::ReadWrite).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(io.open(&path, OpenHow::CreateNew).unwrap());
        let second = io.open(&path, OpenHow::CreateNew).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let (dir, io) = fresh();
        let pipe = dir.path().join("LOCK");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        // Without a peer: opening it must not wait for one.
        for how in [OpenHow::Read, OpenHow::ReadWrite] {
            assert_eq!(io.open(&pipe, how).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let found = io.open(dir.path(), OpenHow::Read).unwrap_err();
        assert_eq!(found.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_file_to_read_takes_no_bytes() {
        let (dir, io) = fresh();
        let path = dir.path().join("a");
        drop(io.open(&path, OpenHow::CreateNew).unwrap());
        assert!(io.open(&path, OpenHow::Read).unwrap().write_at(b"x", 0).is_err());
    }

    #[test]
    fn allocate_extends_with_zeros_and_never_cuts() {
        let (dir, io) = fresh();
        let file = io.open(&dir.path().join("a"), OpenHow::CreateNew).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        file.allocate(100_000).unwrap();
        assert_eq!(file.len().unwrap(), 100_000);
        file.allocate(10).unwrap();
        assert_eq!(file.len().unwrap(), 100_000);
        let mut buf = [0; 4];
        assert_eq!(file.read_full_at(&mut buf, 0).unwrap(), 4);
        assert_eq!(&buf, b"abc\0");
    }

    #[test]
    fn what_was_written_is_there_behind_an_eviction() {
        let (dir, io) = fresh();
        let file = io.open(&dir.path().join("a"), OpenHow::CreateNew).unwrap();
        for (offset, bytes) in [(0, 0..12_288), (70_000, 3..4), (90_000, 1..u64::MAX), (1, 0..0)] {
            file.write_all_at(b"abc", offset).unwrap();
            file.evict(bytes).unwrap();
            let mut buf = [0; 3];
            assert_eq!(file.read_full_at(&mut buf, offset).unwrap(), 3);
            assert_eq!(&buf, b"abc");
        }
    }

    #[test]
    fn only_a_file_system_that_cannot_reserve_says_so() {
        for (errno, expected) in [
            (Errno::OPNOTSUPP, true),
            (Errno::NOSYS, true),
            (Errno::INVAL, true),
            (Errno::NOSPC, false),
            (Errno::DQUOT, false),
            (Errno::IO, false),
            (Errno::ROFS, false),
        ] {
            assert_eq!(cannot_reserve(errno), expected, "{errno:?}");
        }
    }

    #[test]
    fn the_lock_admits_one_description_and_ends_with_it() {
        let (dir, io) = fresh();
        let path = dir.path().join("LOCK");
        let first = io.open(&path, OpenHow::CreateNew).unwrap();
        let second = io.open(&path, OpenHow::ReadWrite).unwrap();
        assert!(first.try_lock().unwrap());
        assert!(!second.try_lock().unwrap());
        drop(first);
        assert!(second.try_lock().unwrap());
    }

    #[test]
    fn the_locks_of_a_directory_are_shared_or_exclusive() {
        let (dir, io) = fresh();
        crate::io::mem::check_locks(&io, dir.path());
        let no_dir = io.open_dir(&dir.path().join("a")).unwrap_err();
        assert_eq!(no_dir.kind(), io::ErrorKind::NotFound);
        drop(io.open(&dir.path().join("a"), OpenHow::CreateNew).unwrap());
        let no_dir = io.open_dir(&dir.path().join("a")).unwrap_err();
        assert_eq!(no_dir.kind(), io::ErrorKind::NotADirectory);
    }
}
