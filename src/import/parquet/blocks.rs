//! A file that is read at random and still is, byte for byte, the file whose digest was taken.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::import::source::{GoOn, Sha256Sum, Source, read_failed, source_changed};
use crate::io::source::SourceFile;

/// Bytes of a block: what is read and compared at once. The digests of a file are an 8,192th of it.
const BLOCK_BYTES: usize = 64 << 10;

/// Blocks that are kept, for readers that take turns.
const CACHE_BLOCKS: usize = 64;

/// A file whose blocks are compared with their digests whenever they are read.
#[derive(Clone)]
pub(crate) struct VerifiedFile {
    inner: Arc<Inner>,
}

struct Inner {
    file: Arc<SourceFile>,
    len: u64,
    sha256: Sha256Sum,
    /// XXH3 of each block. It finds changes, not attacks: who can write to the file while it is
    /// imported can as well do so before.
    digests: Vec<u64>,
    cache: Mutex<VecDeque<(u64, Bytes)>>,
    go_on: GoOn,
    /// Why a block could not be had, which a decoder does not pass on as what it is.
    failure: Mutex<Option<Error>>,
}

impl VerifiedFile {
    /// Reads a source from start to end for its digests.
    pub(crate) fn new(source: &Source) -> Result<Self> {
        let (file, len) = (source.file.clone(), source.identity.bytes);
        let mut hash = Sha256::new();
        let mut digests = Vec::new();
        let mut block = vec![0; BLOCK_BYTES];
        let mut at = 0;
        while at < len {
            source.go_on.ask()?;
            let wanted = block_len(at, len);
            let room = block.get_mut(..wanted).unwrap_or_default();
            let got = file.read_full_at(room, at).map_err(|e| read_failed(file.path(), at, e))?;
            if got < wanted {
                return Err(source_changed(file.path(), "it became shorter while it was read"));
            }
            hash.update(&*room);
            digests.push(xxh3_64(room));
            at += wanted as u64;
        }
        let sha256 = Sha256Sum(hash.finalize().into());
        let (cache, failure) = (Mutex::new(VecDeque::new()), Mutex::new(None));
        let go_on = source.go_on.clone();
        let inner = Inner { file, len, sha256, digests, cache, go_on, failure };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Why a block could not be had: the system did not let it be read, or it is another one.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.inner.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Digest of the whole file.
    pub(crate) fn sha256(&self) -> Sha256Sum {
        self.inner.sha256
    }
}

impl Inner {
    /// The bytes from an offset to the end of its block.
    fn rest_of_block(&self, offset: u64) -> io::Result<Bytes> {
        let number = offset / BLOCK_BYTES as u64;
        let mut block = self.block(number)?;
        let within = usize::try_from(offset % BLOCK_BYTES as u64).unwrap_or(usize::MAX);
        Ok(if within < block.len() { block.split_off(within) } else { Bytes::new() })
    }

    fn fail(&self, why: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(why);
    }

    fn block(&self, number: u64) -> io::Result<Bytes> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, block)) = cache.iter().find(|(at, _)| *at == number) {
            return Ok(block.clone());
        }
        self.go_on.ask().map_err(|why| {
            self.fail(why);
            io::Error::other("the reading is to end")
        })?;
        let offset = number.saturating_mul(BLOCK_BYTES as u64);
        let mut block = BytesMut::zeroed(block_len(offset, self.len));
        let got = self.file.read_full_at(&mut block, offset).inspect_err(|e| {
            self.fail(read_failed(self.file.path(), offset, io::Error::from(e.kind())));
        })?;
        let digest = usize::try_from(number).ok().and_then(|number| self.digests.get(number));
        if got < block.len() || digest.is_some_and(|digest| *digest != xxh3_64(&block)) {
            let changed = source_changed(self.file.path(), "a block of it is another");
            self.fail(changed);
            return Err(io::Error::other("a block is another"));
        }
        let block = block.freeze();
        if cache.len() == CACHE_BLOCKS {
            cache.pop_front();
        }
        cache.push_back((number, block.clone()));
        Ok(block)
    }
}

impl Length for VerifiedFile {
    fn len(&self) -> u64 {
        self.inner.len
    }
}

impl ChunkReader for VerifiedFile {
    type T = VerifiedRead;

    fn get_read(&self, start: u64) -> parquet::errors::Result<VerifiedRead> {
        Ok(VerifiedRead { file: self.clone(), at: start })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let end = start.checked_add(length as u64).filter(|end| *end <= self.inner.len);
        if end.is_none() {
            let what = format!("{length} bytes at {start} end behind the file");
            return Err(ParquetError::EOF(what));
        }
        let mut first = self.inner.rest_of_block(start)?;
        if first.len() >= length {
            first.truncate(length);
            return Ok(first);
        }
        // No more than the file holds, as was compared above.
        let mut all = BytesMut::with_capacity(length);
        all.extend_from_slice(&first);
        while all.len() < length {
            let rest = self.inner.rest_of_block(start.saturating_add(all.len() as u64))?;
            let count = rest.len().min(length - all.len());
            all.extend_from_slice(rest.get(..count).unwrap_or_default());
        }
        Ok(all.freeze())
    }
}

/// Reads on from an offset.
pub(crate) struct VerifiedRead {
    file: VerifiedFile,
    at: u64,
}

impl Read for VerifiedRead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.file.inner.len {
            return Ok(0);
        }
        let block = self.file.inner.rest_of_block(self.at)?;
        let count = block.len().min(buf.len());
        let (from, to) = (block.get(..count), buf.get_mut(..count));
        to.unwrap_or_default().copy_from_slice(from.unwrap_or_default());
        self.at = self.at.saturating_add(count as u64);
        Ok(count)
    }
}

fn block_len(offset: u64, len: u64) -> usize {
    usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX).min(BLOCK_BYTES)
}
