//! A directory in memory that stands still and that nothing can be written to.
//!
//! One damage can be laid over it without a copy of the bytes, so that millions of them are cheap.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use oncelog::io::{DirEntry, EntryKind, Io, IoFile, OpenHow};

use super::Directory;

/// The directory of the log.
pub(crate) const DIR: &str = "/log";

/// What is laid over one file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// A byte is this one.
    Byte { at: usize, value: u8 },
    /// The file ends here.
    Cut { len: usize },
    /// Bytes from here to there are zeros.
    Zeros { from: usize, to: usize },
}

/// A file system of one directory.
#[derive(Clone, Debug)]
pub(crate) struct Still {
    files: Arc<Vec<(String, Arc<Vec<u8>>)>>,
    harm: Option<(usize, Harm)>,
}

impl Still {
    /// A file system that holds a directory.
    pub(crate) fn new(directory: &Directory) -> Self {
        let files = (0..directory.count()).filter_map(|index| directory.file(index));
        let files = files.map(|(name, bytes)| (name.to_owned(), Arc::new(bytes.to_vec())));
        Self { files: Arc::new(files.collect()), harm: None }
    }

    /// The same with a damage to the file of this index.
    pub(crate) fn with(&self, index: usize, harm: Harm) -> Arc<Self> {
        Arc::new(Self { files: Arc::clone(&self.files), harm: Some((index, harm)) })
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Io for Still {
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn IoFile>> {
        if how != OpenHow::Read {
            return refused();
        }
        let name = path.strip_prefix(DIR).ok().and_then(Path::to_str);
        let index = self.files.iter().position(|(known, _)| Some(known.as_str()) == name);
        let index = index.ok_or(io::ErrorKind::NotFound)?;
        let (_, bytes) = self.files.get(index).ok_or(io::ErrorKind::NotFound)?;
        let harm = self.harm.filter(|(harmed, _)| *harmed == index).map(|(_, harm)| harm);
        Ok(Arc::new(StillFile { bytes: Arc::clone(bytes), harm }))
    }

    fn list(&self, _dir: &Path) -> io::Result<Vec<DirEntry>> {
        Ok(self.files.iter().map(|(name, _)| DirEntry::new(name, EntryKind::File)).collect())
    }

    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        let kind = if path == Path::new(DIR) { EntryKind::Dir } else { EntryKind::File };
        Ok(Some(kind))
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }

    fn random(&self, _buf: &mut [u8]) -> io::Result<()> {
        refused()
    }
}

#[derive(Debug)]
struct StillFile {
    bytes: Arc<Vec<u8>>,
    harm: Option<Harm>,
}

impl StillFile {
    fn all(&self) -> &[u8] {
        match self.harm {
            Some(Harm::Cut { len }) => self.bytes.get(..len).unwrap_or(&self.bytes),
            _ => &self.bytes,
        }
    }
}

impl IoFile for StillFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.all().len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.all().get(from..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        let (Some(to), Some(bytes)) = (buf.get_mut(..len), rest.get(..len)) else { return Ok(0) };
        to.copy_from_slice(bytes);
        match self.harm {
            Some(Harm::Byte { at, value }) => {
                if let Some(byte) = at.checked_sub(from).and_then(|at| to.get_mut(at)) {
                    *byte = value;
                }
            }
            Some(Harm::Zeros { from: begin, to: end }) => {
                let begin = begin.saturating_sub(from).min(len);
                let end = end.saturating_sub(from).min(len);
                to.get_mut(begin..end).unwrap_or_default().fill(0);
            }
            Some(Harm::Cut { .. }) | None => {}
        }
        Ok(len)
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<usize> {
        refused()
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        refused()
    }

    fn sync(&self) -> io::Result<()> {
        refused()
    }

    fn allocate(&self, _len: u64) -> io::Result<()> {
        refused()
    }

    fn try_lock(&self) -> io::Result<bool> {
        refused()
    }

    fn map(&self, len: u64) -> io::Result<Bytes> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let read = self.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(Bytes::from(bytes))
    }
}
