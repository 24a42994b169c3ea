//! A source read from start to end, hashed on the way.
//!
//! The window is what was read and not yet consumed. It grows to one row and no further, so that
//! memory does not depend on the length of the file. Bytes behind the length that the file had when
//! it was opened are not read.

use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::place::Place;
use super::source::{GoOn, Sha256Sum, Source, read_failed, source_changed};
use crate::error::Result;
use crate::io::source::SourceFile;

/// Largest row, as text or once decoded: a row is never split over two messages, and a record of a
/// log holds 16 MiB unless it was opened for more.
pub(crate) const ROW_BYTES_MAX: usize = 6 << 20;

/// Bytes asked of the system at once.
const CHUNK_BYTES: usize = 256 << 10;

/// A source as a stream of bytes.
pub(crate) struct ByteStream {
    file: Arc<SourceFile>,
    /// Length of the file when it was opened.
    len: u64,
    buf: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset of `buf[start]` in the file.
    offset: u64,
    hash: Sha256,
    go_on: GoOn,
}

impl ByteStream {
    /// A stream of the bytes that a source had when it was opened.
    pub(crate) fn new(source: &Source) -> Self {
        let (file, len, go_on) = (source.file.clone(), source.identity.bytes, source.go_on.clone());
        let hash = Sha256::new();
        Self { file, len, buf: Vec::new(), start: 0, end: 0, offset: 0, hash, go_on }
    }

    /// The path of the source.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Offset of the first byte of the window.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// What was read and not yet consumed.
    pub(crate) fn window(&self) -> &[u8] {
        self.buf.get(self.start..self.end).unwrap_or_default()
    }

    /// Reads more behind the window; false at the end of the file.
    pub(crate) fn more(&mut self) -> Result<bool> {
        let held = self.end - self.start;
        if held > ROW_BYTES_MAX {
            let place = Place { offset: Some(self.offset), ..Place::default() };
            let what = format!("a row is longer than {ROW_BYTES_MAX} bytes");
            return Err(place.limit(self.path(), &what));
        }
        let read = self.offset.saturating_add(held as u64);
        let wanted = usize::try_from(self.len.saturating_sub(read)).unwrap_or(usize::MAX);
        let wanted = wanted.min(CHUNK_BYTES);
        if wanted == 0 {
            return Ok(false);
        }
        self.go_on.ask()?;
        if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
        }
        if self.buf.len() < self.end + wanted {
            self.buf.resize(self.end + CHUNK_BYTES, 0);
        }
        let room = self.buf.get_mut(self.end..self.end + wanted).unwrap_or_default();
        let got = self.file.read_full_at(room, read);
        let got = got.map_err(|e| read_failed(self.file.path(), read, e))?;
        if got < wanted {
            return Err(source_changed(self.path(), "it became shorter while it was read"));
        }
        self.hash.update(&*room);
        self.end += got;
        Ok(true)
    }

    /// Drops the first `count` bytes of the window.
    pub(crate) fn consume(&mut self, count: usize) {
        let count = count.min(self.end - self.start);
        self.start += count;
        self.offset = self.offset.saturating_add(count as u64);
    }

    /// The next byte without consuming it; `None` at the end of the file.
    pub(crate) fn peek(&mut self) -> Result<Option<u8>> {
        if self.start == self.end && !self.more()? {
            return Ok(None);
        }
        Ok(self.window().first().copied())
    }

    /// Reads to the end of the file and tells the digest of all of it.
    pub(crate) fn finish(mut self) -> Result<Sha256Sum> {
        loop {
            self.consume(self.end - self.start);
            if !self.more()? {
                return Ok(Sha256Sum(self.hash.finalize().into()));
            }
        }
    }
}
