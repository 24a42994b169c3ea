//! A file that appears whole, under its name, or not at all.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::io::{EntryKind, Io, IoFile, OpenHow};

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// A file beside its target, until it is named.
#[derive(Debug)]
pub(crate) struct Output {
    io: Arc<dyn Io>,
    file: Arc<dyn IoFile>,
    target: PathBuf,
    beside: PathBuf,
    buf: Vec<u8>,
    offset: u64,
    named: bool,
}

impl Output {
    /// Begins a file that will replace what is at `target`.
    pub(crate) fn create(io: &Arc<dyn Io>, target: &Path) -> Result<Self> {
        let refuse =
            |what: &'static str| Err(Error::new(ErrorKind::InvalidInput, what).at_path(target));
        let Some(name) = target.file_name() else { return refuse("the output has no name") };
        match io.kind(target).map_err(|e| failed(target, e))? {
            Some(EntryKind::Dir) => return refuse("the output is a directory"),
            Some(EntryKind::Other) => return refuse("the output is not a regular file"),
            _ => {}
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| failed(target, io::Error::other(e)))?;
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(format!(".{:016x}.tmp", u64::from_le_bytes(random)));
        let beside = target.with_file_name(beside);
        let file = io.open(&beside, OpenHow::CreateNew).map_err(|e| failed(&beside, e))?;
        let (io, target, buf) = (Arc::clone(io), target.to_owned(), Vec::new());
        Ok(Self { io, file, target, beside, buf, offset: 0, named: false })
    }

    /// Makes the file durable under its name.
    pub(crate) fn name(&mut self) -> Result<()> {
        let done = (|| {
            self.flush()?;
            self.file.sync()?;
            self.io.rename(&self.beside, &self.target)?;
            self.named = true;
            self.io.sync_dir(dir_of(&self.target))
        })();
        done.map_err(|e| failed(&self.target, e))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buf.extend_from_slice(bytes);
        if self.buf.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buf, self.offset)?;
        self.offset = self.offset.saturating_add(self.buf.len() as u64);
        self.buf.clear();
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.named {
            // A leftover has a name that says what it is; the first error is the one to tell.
            drop(self.io.remove(&self.beside));
        }
    }
}

fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// The error of an output that cannot be written.
pub(crate) fn failed(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "the output cannot be written").at_path(path).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::fs::FsIo;

    #[test]
    fn a_file_that_was_not_named_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let io: Arc<dyn Io> = Arc::new(FsIo::new());
        let target = dir.path().join("o.jsonl");
        std::fs::write(&target, "old").unwrap();
        let mut output = Output::create(&io, &target).unwrap();
        output.write_all(b"new").unwrap();
        drop(output);
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        let mut output = Output::create(&io, &target).unwrap();
        output.write_all(b"new").unwrap();
        output.name().unwrap();
        drop(output);
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_is_no_output() {
        let dir = tempfile::tempdir().unwrap();
        let io: Arc<dyn Io> = Arc::new(FsIo::new());
        assert!(Output::create(&io, dir.path()).is_err());
        assert!(Output::create(&io, &dir.path().join("none/o.csv")).is_err());
    }
}
