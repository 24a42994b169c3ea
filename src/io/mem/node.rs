//! A file and a directory in memory: what a process sees, what the disk holds, what lies between.
//!
//! Since the last sync of a file every version of a sector and every length is kept, with the
//! number of the step that wrote it, because a power loss may leave any of them. A directory keeps
//! its unsynced changes the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use super::image::{Held, Image, SECTOR, SECTOR_LEN, hold, same, to_u64, to_usize};
use crate::io::fault::mix;

/// Bytes that a file system hands out at once.
const BLOCK: u64 = 4096;

/// Number of a file or directory.
pub(super) type Ino = usize;

/// A version of a sector since the last sync.
#[derive(Clone, Debug)]
pub(super) struct Version {
    at: u64,
    /// Number of the step that wrote it.
    pub(super) step: u64,
    held: Held,
}

/// A file.
#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    /// What a read returns.
    cache: Image,
    pub(super) len: u64,
    /// What a power loss leaves for certain.
    disk: Image,
    pub(super) disk_len: u64,
    /// Versions of sectors since the last sync, by sector, then by step.
    unsynced: Vec<Version>,
    /// Lengths since the last sync, each with its step.
    pub(super) unsynced_lens: Vec<(u64, u64)>,
    /// Blocks that the file system has handed out, a bit each.
    blocks: Vec<u64>,
    /// Failed write-backs; each open description is told of each once.
    pub(super) failures: u64,
    /// Whether anyone was told of the last.
    pub(super) failure_told: bool,
    /// Blocks that a failed sync was to write for the first time: as long as they are in the cache,
    /// the file system takes them for written, and no later sync writes what they hold (ext4).
    stuck: BTreeSet<u64>,
}

impl FileNode {
    /// Copies bytes out; what lies behind the end is not copied. The count of bytes copied.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buf.len().min(left);
        let Some(buf) = buf.get_mut(..count).filter(|buf| !buf.is_empty()) else { return 0 };
        let end = offset + to_u64(count);
        for at in offset / SECTOR..end.div_ceil(SECTOR) {
            let begin = at * SECTOR;
            let (from, to) = (begin.max(offset), (begin + SECTOR).min(end));
            let target = buf.get_mut(to_usize(from - offset)..to_usize(to - offset));
            let Some(target) = target else { continue };
            match self.cache.sector(at) {
                Some(sector) => {
                    let source = sector.bytes.get(to_usize(from - begin)..to_usize(to - begin));
                    target.copy_from_slice(source.unwrap_or_default());
                }
                None => target.fill(0),
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
            let source = buf.get(to_usize(from - offset)..to_usize(to - offset));
            let within = to_usize(from - begin)..to_usize(to - begin);
            let held = self.overwritten(at, source.unwrap_or_default(), within);
            self.dirty(at, held, step);
        }
        self.grow(end, step);
    }

    /// A sector of the cache with other bytes in one place.
    fn overwritten(&self, at: u64, source: &[u8], within: std::ops::Range<usize>) -> Held {
        let before = self.cache.sector(at);
        if before.is_some_and(|sector| sector.bytes.get(within.clone()) == Some(source)) {
            return before.cloned();
        }
        if let Ok(whole) = source.try_into() {
            return hold(whole);
        }
        let mut bytes = before.map_or([0; SECTOR_LEN], |sector| sector.bytes);
        if let Some(target) = bytes.get_mut(within) {
            target.copy_from_slice(source);
        }
        hold(&bytes)
    }

    /// A version of a sector. One that the disk holds already needs no record.
    fn dirty(&mut self, at: u64, held: Held, step: u64) {
        let behind = self.unsynced.partition_point(|v| (v.at, v.step) <= (at, step));
        let newest = behind.checked_sub(1).and_then(|k| self.unsynced.get(k));
        let newest = newest.filter(|v| v.at == at).map(|v| v.held.as_ref());
        let known = newest.unwrap_or_else(|| self.disk.sector(at));
        if !same(known, held.as_ref()) {
            self.unsynced.insert(behind, Version { at, step, held: held.clone() });
        }
        self.cache.put(at, held);
    }

    /// The sectors that are not synced, each with its versions.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = (u64, &[Version])> {
        let groups = self.unsynced.chunk_by(|a, b| a.at == b.at);
        groups.filter_map(|versions| Some((versions.first()?.at, versions)))
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
        let behind: Vec<u64> = self.cache.from(len / SECTOR).map(|(at, _)| at).collect();
        for at in behind {
            let kept = self.cache.kept(at, len);
            self.dirty(at, kept, step);
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
        let top = self.unsynced.last().map_or(0, |v| (v.at + 1) * SECTOR);
        let versions = std::mem::take(&mut self.unsynced);
        for group in versions.chunk_by(|a, b| a.at == b.at) {
            if let Some(Version { at, held, .. }) = group.last()
                && !self.stuck.contains(&block_of(*at))
            {
                self.disk.put(*at, held.clone());
            }
        }
        for Version { at, .. } in versions {
            self.disk.share(&self.cache, at);
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
        let versions = std::mem::take(&mut self.unsynced);
        for group in versions.chunk_by(|a, b| a.at == b.at) {
            let Some(Version { at, .. }) = group.first() else { continue };
            let chosen = sector(*at, group.len()).checked_sub(1);
            if let Some(version) = chosen.and_then(|k| group.get(k)) {
                self.disk.put(*at, version.held.clone());
            }
        }
        let lens = std::mem::take(&mut self.unsynced_lens);
        if !lens.is_empty() {
            let chosen = len(lens.len()).checked_sub(1).and_then(|k| lens.get(k));
            self.disk_len = chosen.map_or(self.disk_len, |(_, len)| *len);
        }
    }

    /// What a failed sync leaves of a choice, as [`FileNode::land`].
    pub(super) fn fail(
        &mut self,
        sector: impl FnMut(u64, usize) -> usize,
        len: impl FnOnce(usize) -> usize,
    ) {
        let blocks: BTreeSet<u64> = self.unsynced.iter().map(|v| block_of(v.at)).collect();
        self.land(sector, len);
        let disk = &self.disk;
        let is_written = |at: u64| disk.sector(at).is_some();
        self.stuck.extend(blocks.into_iter().filter(|block| !sectors_of(*block).any(is_written)));
    }

    /// True when cache and disk are the same for certain: a power loss changes nothing.
    pub(super) fn is_settled(&self) -> bool {
        let clean = self.unsynced.is_empty() && self.unsynced_lens.is_empty();
        clean && self.failures == 0
    }

    /// The same for the sector at an offset.
    pub(super) fn is_settled_at(&self, offset: u64) -> bool {
        let at = offset / SECTOR;
        let is_synced = self.unsynced.binary_search_by_key(&at, |v| v.at).is_err();
        is_synced && same(self.cache.sector(at), self.disk.sector(at))
    }

    /// The machine starts again: the cache is what the disk holds.
    pub(super) fn reload(&mut self) {
        self.disk.cut(self.disk_len);
        self.cache.clone_from(&self.disk);
        self.len = self.disk_len;
        (self.failures, self.failure_told) = (0, false);
        self.stuck.clear();
    }

    /// Sectors that count as synced while the disk holds other bytes: a failed sync left them.
    pub(super) fn deceptive(&self) -> Vec<u64> {
        let mut found = self.cache.differences(&self.disk);
        found.retain(|at| self.unsynced.binary_search_by_key(at, |v| v.at).is_err());
        found
    }

    /// Drops a clean sector from the cache, so that the next read takes it from the disk.
    pub(super) fn evict(&mut self, at: u64) {
        self.cache.put(at, self.disk.sector(at).cloned());
        let block = block_of(at);
        if self.stuck.contains(&block)
            && !self.deceptive().into_iter().any(|at| block_of(at) == block)
        {
            self.stuck.remove(&block);
        }
    }

    /// Drops what stands in a range of bytes from the cache where a later sync would not write it.
    /// The rest stays: a system need not take the advice.
    pub(super) fn evict_range(&mut self, from: u64, to: u64) {
        let within = from / SECTOR..to.div_ceil(SECTOR);
        for at in self.deceptive().into_iter().filter(|at| within.contains(at)) {
            if self.stuck.contains(&block_of(at)) {
                self.evict(at);
            }
        }
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
        mix(mix(self.len) ^ self.cache.digest())
    }
}

fn block_of(sector: u64) -> u64 {
    sector / (BLOCK / SECTOR)
}

fn sectors_of(block: u64) -> std::ops::Range<u64> {
    block * (BLOCK / SECTOR)..(block + 1) * (BLOCK / SECTOR)
}

/// A change of a directory that is not synced.
#[derive(Clone, Debug)]
pub(super) enum DirChange {
    Link(OsString, Ino),
    Unlink(OsString),
}

impl DirChange {
    /// What got a name.
    pub(super) const fn linked(&self) -> Option<Ino> {
        match self {
            Self::Link(_, ino) => Some(*ino),
            Self::Unlink(_) => None,
        }
    }

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

    /// A choice of the changes has reached the disk, and the others are forgotten, but for the names
    /// of some.
    pub(super) fn fail(&mut self, mut kept: impl FnMut() -> bool, is_dirty: impl Fn(Ino) -> bool) {
        for (step, change) in std::mem::take(&mut self.unsynced) {
            if kept() {
                change.apply(&mut self.disk);
            } else if change.linked().is_some_and(&is_dirty) {
                self.unsynced.push((step, change));
            }
        }
    }

    pub(super) fn reload(&mut self) {
        self.entries.clone_from(&self.disk);
    }
}
