//! A file and a directory in memory: what a process sees, what the disk holds, what lies between.
//!
//! A file keeps its 512-byte sectors sparsely: a sector of zeros takes no room. Since its last sync
//! every version of a sector and every length is kept, with the number of the step that wrote it,
//! because a power loss may leave any of them. A directory keeps its unsynced changes the same way.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use crate::io::fault::mix;

/// Bytes that a disk writes whole or not at all.
pub(super) const SECTOR: u64 = 512;
/// [`SECTOR`] in memory.
const SECTOR_LEN: usize = 512;
/// Bytes that a file system hands out at once.
const BLOCK: u64 = 4096;

/// Number of a file or directory.
pub(super) type Ino = usize;

/// One sector that is not all zeros, with a digest of its bytes.
#[derive(Debug)]
pub(super) struct Sector {
    bytes: [u8; SECTOR_LEN],
    digest: u64,
}

/// A sector, shared between all states that hold it; `None` is all zeros.
pub(super) type Held = Option<Arc<Sector>>;

fn hold(bytes: [u8; SECTOR_LEN]) -> Held {
    if bytes == [0; SECTOR_LEN] {
        return None;
    }
    let digest = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .fold(1, |h: u64, word| mix(h.rotate_left(5) ^ u64::from_le_bytes(*word)));
    Some(Arc::new(Sector { bytes, digest }))
}

fn same(a: Option<&Arc<Sector>>, b: Option<&Arc<Sector>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || (a.digest == b.digest && a.bytes == b.bytes),
        _ => false,
    }
}

fn put(sectors: &mut BTreeMap<u64, Arc<Sector>>, at: u64, held: Held) {
    match held {
        Some(held) => {
            sectors.insert(at, held);
        }
        None => {
            sectors.remove(&at);
        }
    }
}

/// A file.
#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    /// What a read returns.
    cache: BTreeMap<u64, Arc<Sector>>,
    pub(super) len: u64,
    /// What a power loss leaves for certain.
    disk: BTreeMap<u64, Arc<Sector>>,
    pub(super) disk_len: u64,
    /// Versions of sectors since the last sync, by sector, each with its step.
    pub(super) unsynced: BTreeMap<u64, Vec<(u64, Held)>>,
    /// Lengths since the last sync, each with its step.
    pub(super) unsynced_lens: Vec<(u64, u64)>,
    /// Blocks that the file system has handed out, a bit each.
    blocks: Vec<u64>,
    /// Failed write-backs; each open description is told of each once.
    pub(super) failures: u64,
    /// Whether anyone was told of the last.
    pub(super) failure_told: bool,
}

impl FileNode {
    /// Copies bytes out; what lies behind the end is not copied. The count of bytes copied.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buf.len().min(left);
        let Some(buf) = buf.get_mut(..count).filter(|buf| !buf.is_empty()) else { return 0 };
        buf.fill(0);
        let end = offset + to_u64(count);
        for (at, sector) in self.cache.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            let begin = at * SECTOR;
            let (from, to) = (begin.max(offset), (begin + SECTOR).min(end));
            let source = sector.bytes.get(to_usize(from - begin)..to_usize(to - begin));
            let target = buf.get_mut(to_usize(from - offset)..to_usize(to - offset));
            if let (Some(target), Some(source)) = (target, source) {
                target.copy_from_slice(source);
            }
        }
        count
    }

    /// Writes into the cache.
    pub(super) fn write(&mut self, buf: &[u8], offset: u64, step: u64) {
        let end = offset + to_u64(buf.len());
        for at in offset / SECTOR..end.div_ceil(SECTOR) {
            let begin = at * SECTOR;
            let (from, to) = (begin.max(offset), (begin + SECTOR).min(end));
            let mut bytes = self.cache.get(&at).map_or([0; SECTOR_LEN], |s| s.bytes);
            let target = bytes.get_mut(to_usize(from - begin)..to_usize(to - begin));
            let source = buf.get(to_usize(from - offset)..to_usize(to - offset));
            if let (Some(target), Some(source)) = (target, source) {
                target.copy_from_slice(source);
            }
            self.dirty(at, hold(bytes), step);
        }
        self.grow(end, step);
    }

    /// A version of a sector. One that the disk holds already needs no record.
    fn dirty(&mut self, at: u64, held: Held, step: u64) {
        let newest = self.unsynced.get(&at).and_then(|v| v.last()).map(|v| v.1.as_ref());
        let known = newest.unwrap_or_else(|| self.disk.get(&at));
        if !same(known, held.as_ref()) {
            self.unsynced.entry(at).or_default().push((step, held.clone()));
        }
        put(&mut self.cache, at, held);
    }

    fn grow(&mut self, len: u64, step: u64) {
        if len > self.len {
            self.len = len;
            self.unsynced_lens.push((step, len));
        }
    }

    pub(super) fn set_len(&mut self, len: u64, step: u64) {
        if len >= self.len {
            self.grow(len, step);
            return;
        }
        let behind: Vec<u64> = self.cache.range(len / SECTOR..).map(|(at, _)| *at).collect();
        for at in behind {
            let mut bytes = self.cache.get(&at).map_or([0; SECTOR_LEN], |s| s.bytes);
            let keep = to_usize(len.saturating_sub(at * SECTOR));
            bytes.iter_mut().skip(keep).for_each(|b| *b = 0);
            self.dirty(at, hold(bytes), step);
        }
        self.len = len;
        self.unsynced_lens.push((step, len));
        for block in len.div_ceil(BLOCK)..to_u64(self.blocks.len()) * 64 {
            if let Some(word) = self.blocks.get_mut(to_usize(block / 64)) {
                *word &= !(1 << (block % 64));
            }
        }
    }

    /// A sync that returned.
    pub(super) fn sync(&mut self) {
        let top = self.unsynced.last_key_value().map_or(0, |(at, _)| (at + 1) * SECTOR);
        for (at, versions) in std::mem::take(&mut self.unsynced) {
            if let Some((_, held)) = versions.into_iter().next_back() {
                put(&mut self.disk, at, held);
            }
        }
        // With a clean length the inode goes out only as far as the pages written reach.
        self.disk_len = if self.unsynced_lens.is_empty() {
            self.disk_len.max(top.min(self.len))
        } else {
            self.len
        };
        self.unsynced_lens.clear();
    }

    /// What is left of a choice: `sector(at, versions)` and `len(lens)` say how many versions have
    /// reached the disk, 0 for none. Nothing is unsynced then; the cache stays as it was.
    pub(super) fn land(
        &mut self,
        mut sector: impl FnMut(u64, usize) -> usize,
        len: impl FnOnce(usize) -> usize,
    ) {
        for (at, versions) in std::mem::take(&mut self.unsynced) {
            let chosen = sector(at, versions.len()).checked_sub(1);
            if let Some((_, held)) = chosen.and_then(|k| versions.into_iter().nth(k)) {
                put(&mut self.disk, at, held);
            }
        }
        let lens = std::mem::take(&mut self.unsynced_lens);
        if !lens.is_empty() {
            let chosen = len(lens.len()).checked_sub(1).and_then(|k| lens.get(k));
            self.disk_len = chosen.map_or(self.disk_len, |(_, len)| *len);
        }
    }

    /// True when cache and disk are the same for certain: a power loss changes nothing.
    pub(super) fn is_settled(&self) -> bool {
        let clean = self.unsynced.is_empty() && self.unsynced_lens.is_empty();
        clean && self.failures == 0
    }

    /// The machine starts again: the cache is what the disk holds.
    pub(super) fn reload(&mut self) {
        let len = self.disk_len;
        let cut: Vec<u64> = self.disk.range(len / SECTOR..).map(|(at, _)| *at).collect();
        for at in cut {
            let mut bytes = self.disk.get(&at).map_or([0; SECTOR_LEN], |s| s.bytes);
            let keep = to_usize(len.saturating_sub(at * SECTOR));
            bytes.iter_mut().skip(keep).for_each(|b| *b = 0);
            put(&mut self.disk, at, hold(bytes));
        }
        self.cache.clone_from(&self.disk);
        self.len = len;
        (self.failures, self.failure_told) = (0, false);
    }

    /// Sectors that count as synced while the disk holds other bytes: a failed sync left them.
    pub(super) fn deceptive(&self) -> Vec<u64> {
        let mut found: Vec<u64> = self.cache.keys().chain(self.disk.keys()).copied().collect();
        found.sort_unstable();
        found.dedup();
        found.retain(|at| {
            !self.unsynced.contains_key(at) && !same(self.cache.get(at), self.disk.get(at))
        });
        found
    }

    /// Drops a clean sector from the cache, so that the next read takes it from the disk.
    pub(super) fn evict(&mut self, at: u64) {
        put(&mut self.cache, at, self.disk.get(&at).cloned());
    }

    /// Blocks in `from..to` bytes that are not handed out yet.
    pub(super) fn blocks_missing(&self, from: u64, to: u64) -> u64 {
        to_u64((from / BLOCK..to.div_ceil(BLOCK)).filter(|b| !self.has_block(*b)).count())
    }

    /// The end of what `free` blocks more allow to write from an offset on.
    pub(super) fn reach(&self, from: u64, to: u64, free: u64) -> u64 {
        let mut free = free;
        for block in from / BLOCK..to.div_ceil(BLOCK) {
            if !self.has_block(block) {
                if free == 0 {
                    return (block * BLOCK).max(from);
                }
                free -= 1;
            }
        }
        to
    }

    fn has_block(&self, block: u64) -> bool {
        self.blocks.get(to_usize(block / 64)).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }

    pub(super) fn take_blocks(&mut self, from: u64, to: u64) {
        for block in from / BLOCK..to.div_ceil(BLOCK) {
            let word = to_usize(block / 64);
            if self.blocks.len() <= word {
                self.blocks.resize(word + 1, 0);
            }
            if let Some(word) = self.blocks.get_mut(word) {
                *word |= 1 << (block % 64);
            }
        }
    }

    pub(super) fn block_count(&self) -> u64 {
        self.blocks.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// A digest of length and bytes as a process reads them.
    pub(super) fn digest(&self) -> u64 {
        self.cache.iter().fold(mix(self.len), |h, (at, s)| mix(h ^ at.rotate_left(32)) ^ s.digest)
    }
}

/// A change of a directory that is not synced.
#[derive(Clone, Debug)]
pub(super) enum DirChange {
    Link(OsString, Ino),
    Unlink(OsString),
}

impl DirChange {
    fn apply(self, entries: &mut BTreeMap<OsString, Ino>) {
        match self {
            Self::Link(name, ino) => {
                entries.insert(name, ino);
            }
            Self::Unlink(name) => {
                entries.remove(&name);
            }
        }
    }
}

/// A directory.
#[derive(Clone, Debug, Default)]
pub(super) struct DirNode {
    /// What a process sees.
    pub(super) entries: BTreeMap<OsString, Ino>,
    /// What a power loss leaves for certain.
    pub(super) disk: BTreeMap<OsString, Ino>,
    /// Changes since the last sync, in order, each with its step.
    pub(super) unsynced: Vec<(u64, DirChange)>,
}

impl DirNode {
    pub(super) fn link(&mut self, name: &OsStr, ino: Ino, step: u64) {
        self.entries.insert(name.to_owned(), ino);
        self.unsynced.push((step, DirChange::Link(name.to_owned(), ino)));
    }

    pub(super) fn unlink(&mut self, name: &OsStr, step: u64) {
        self.entries.remove(name);
        self.unsynced.push((step, DirChange::Unlink(name.to_owned())));
    }

    pub(super) fn sync(&mut self) {
        self.land(|_| true);
    }

    /// The changes that `kept` names by their place have reached the disk; nothing is unsynced.
    pub(super) fn land(&mut self, mut kept: impl FnMut(usize) -> bool) {
        for (k, (_, change)) in std::mem::take(&mut self.unsynced).into_iter().enumerate() {
            if kept(k) {
                change.apply(&mut self.disk);
            }
        }
    }

    pub(super) fn reload(&mut self) {
        self.entries.clone_from(&self.disk);
    }
}

/// A count of bytes in memory as a size on disk.
pub(super) fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
