//! The machine: files and directories with what a crash would leave of them.
//!
//! A [`Machine`] is a value. Cloning it shares all bytes, so a test keeps one for every call of a
//! run and lets each of them lose its power in many ways.
//! It does **not** count calls, fail them, or know processes; [`MemIo`](super::MemIo) does.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use super::node::{DirNode, FileNode, Ino};
use crate::io::fault::{Dice, mix};
use crate::io::{DirEntry, EntryKind};

/// The root directory, which is always there.
pub(super) const ROOT: Ino = 0;

#[derive(Clone, Debug)]
pub(super) enum Node {
    File(Arc<FileNode>),
    Dir(Arc<DirNode>),
}

/// The state of a file system in memory.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) nodes: Vec<Node>,
    /// Number of the step, one for each change.
    step: u64,
    /// Blocks that are not handed out; `None` is no bound.
    free: Option<u64>,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// An empty root directory and no bound of space.
    #[must_use]
    pub fn new() -> Self {
        Self { nodes: vec![Node::Dir(Arc::default())], step: 0, free: None }
    }

    /// Leaves this many blocks of 4096 bytes free; `None` is no bound.
    pub const fn set_free_blocks(&mut self, free: Option<u64>) {
        self.free = free;
    }

    /// The number of the last change.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// A digest of everything that a process can read: names, kinds, lengths and bytes.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest_of(ROOT)
    }

    fn digest_of(&self, ino: Ino) -> u64 {
        match self.nodes.get(ino) {
            Some(Node::File(file)) => file.digest(),
            Some(Node::Dir(dir)) => dir.entries.iter().fold(3, |h, (name, ino)| {
                let name = name.as_encoded_bytes().iter().fold(7, |h, b| mix(h ^ u64::from(*b)));
                mix(h ^ name) ^ self.digest_of(*ino)
            }),
            None => 0,
        }
    }

    /// All bytes of a file.
    ///
    /// # Errors
    ///
    /// As [`Io::open`](crate::io::Io::open).
    pub fn bytes(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let file = self.file(self.resolve(path.as_ref())?)?;
        let mut buf = vec![0; usize::try_from(file.len).unwrap_or(0)];
        file.read(&mut buf, 0);
        Ok(buf)
    }

    /// True where the disk holds what a read of the sector at an offset finds, for certain: no crash
    /// changes it.
    ///
    /// # Errors
    ///
    /// As [`Io::open`](crate::io::Io::open).
    pub fn is_settled_at(&self, path: impl AsRef<Path>, offset: u64) -> io::Result<bool> {
        Ok(self.file(self.resolve(path.as_ref())?)?.is_settled_at(offset))
    }

    /// Puts a file of these bytes under a name, durable at once, in place of what was there.
    ///
    /// # Errors
    ///
    /// `NotFound` without the directory.
    pub fn put(&mut self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let path = path.as_ref();
        if self.resolve(path).is_ok() {
            self.unlink(path)?;
        }
        let ino = self.create(path)?;
        self.file_mut(ino)?.write(bytes, 0, 0);
        self.file_mut(ino)?.sync();
        let (dir, _) = self.parent(path)?;
        self.dir_mut(dir)?.sync();
        Ok(())
    }

    /// Removes a name, durably at once.
    ///
    /// # Errors
    ///
    /// `NotFound` without it.
    pub fn take(&mut self, path: impl AsRef<Path>) -> io::Result<()> {
        self.unlink(path.as_ref())?;
        let (dir, _) = self.parent(path.as_ref())?;
        self.dir_mut(dir)?.sync();
        Ok(())
    }

    /// Fails to write a file back behind everyone's back: any part of what was unsynced is on disk,
    /// all of it counts as synced, and each open description is told at its next sync.
    ///
    /// # Errors
    ///
    /// `NotFound` without the file.
    pub fn fail_write_back(&mut self, path: impl AsRef<Path>, seed: u64) -> io::Result<()> {
        self.fail_sync(self.resolve(path.as_ref())?, &mut Dice::new(seed))
    }

    /// Fails the sync of every file that has something to sync, as a process is told that is about to
    /// end: any part is on disk, all of it counts as synced, and nobody is told of it again.
    pub fn fail_syncs(&mut self, seed: u64) {
        let mut dice = Dice::new(seed);
        let dirty = |(ino, file): (Ino, &FileNode)| (!file.is_settled()).then_some(ino);
        let inos: Vec<Ino> = self.files().filter_map(dirty).collect();
        for ino in inos {
            if self.fail_sync(ino, &mut dice).is_ok()
                && let Ok(file) = self.file_mut(ino)
            {
                file.failure_told = true;
            }
        }
    }

    /// Fails the sync of a directory: each unsynced entry is on disk or not, and all of them count
    /// as synced.
    ///
    /// # Errors
    ///
    /// `NotFound` without the directory.
    pub fn fail_dir_sync(&mut self, path: impl AsRef<Path>, seed: u64) -> io::Result<()> {
        self.fail_sync_dir(self.resolve(path.as_ref())?, &mut Dice::new(seed))
    }

    /// Makes everything durable, as a clean shutdown of the machine does.
    pub fn sync_all(&mut self) {
        for node in &mut self.nodes {
            match node {
                Node::Dir(dir) => Arc::make_mut(dir).sync(),
                Node::File(file) => Arc::make_mut(file).sync(),
            }
        }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (Ino, &FileNode)> {
        self.nodes.iter().enumerate().filter_map(|(ino, node)| match node {
            Node::File(file) => Some((ino, &**file)),
            Node::Dir(_) => None,
        })
    }
}

/// What the calls of a process do.
impl Machine {
    /// The number of a further step.
    pub(super) const fn advance(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    pub(super) fn resolve(&self, path: &Path) -> io::Result<Ino> {
        let mut ino = ROOT;
        for part in path.components() {
            match part {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => {
                    ino = *self.dir(ino)?.entries.get(name).ok_or(io::ErrorKind::NotFound)?;
                }
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
            }
        }
        Ok(ino)
    }

    fn parent<'p>(&self, path: &'p Path) -> io::Result<(Ino, &'p OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((self.resolve(path.parent().unwrap_or_else(|| Path::new("")))?, name))
    }

    pub(super) fn resolve_dir(&self, path: &Path) -> io::Result<Ino> {
        let ino = self.resolve(path)?;
        self.dir(ino).map(|_| ino)
    }

    pub(super) fn file(&self, ino: Ino) -> io::Result<&FileNode> {
        match self.nodes.get(ino) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn file_mut(&mut self, ino: Ino) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(ino) {
            Some(Node::File(file)) => Ok(Arc::make_mut(file)),
            Some(Node::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn dir(&self, ino: Ino) -> io::Result<&DirNode> {
        match self.nodes.get(ino) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn dir_mut(&mut self, ino: Ino) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(ino) {
            Some(Node::Dir(dir)) => Ok(Arc::make_mut(dir)),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        match self.resolve(path) {
            Ok(ino) => Ok(self.nodes.get(ino).map(kind_of)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let dir = self.dir(self.resolve(path)?)?;
        let entry = |(name, ino): (&OsString, &Ino)| {
            self.nodes.get(*ino).map(|node| DirEntry::new(name, kind_of(node)))
        };
        Ok(dir.entries.iter().filter_map(entry).collect())
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<Ino> {
        if self.free == Some(0) {
            // The directory may need a block, or the file a place in the table of files.
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.make(path, Node::File(Arc::default()))
    }

    pub(super) fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        self.make(path, Node::Dir(Arc::default())).map(drop)
    }

    fn make(&mut self, path: &Path, node: Node) -> io::Result<Ino> {
        let (dir, name) = self.parent(path)?;
        if self.dir(dir)?.entries.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let ino = self.nodes.len();
        self.nodes.push(node);
        let step = self.advance();
        self.dir_mut(dir)?.link(name, ino, step);
        Ok(ino)
    }

    /// Both halves of a rename are unsynced changes of their own.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (dir, old) = self.parent(from)?;
        let (target, new) = self.parent(to)?;
        let ino = *self.dir(dir)?.entries.get(old).ok_or(io::ErrorKind::NotFound)?;
        match self.dir(target)?.entries.get(new).copied() {
            Some(replaced) if replaced == ino => return Ok(()),
            Some(replaced) => self.release(replaced),
            None => {}
        }
        let step = self.advance();
        self.dir_mut(target)?.link(new, ino, step);
        self.dir_mut(dir)?.unlink(old, step);
        Ok(())
    }

    pub(super) fn unlink(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let ino = *self.dir(dir)?.entries.get(name).ok_or(io::ErrorKind::NotFound)?;
        self.file(ino)?;
        let step = self.advance();
        self.dir_mut(dir)?.unlink(name, step);
        self.release(ino);
        Ok(())
    }

    /// The blocks of a file that lost its name are free again.
    fn release(&mut self, ino: Ino) {
        let blocks = self.file(ino).map_or(0, FileNode::block_count);
        self.free = self.free.map(|free| free.saturating_add(blocks));
    }

    pub(super) fn sync_dir(&mut self, dir: Ino) -> io::Result<()> {
        self.dir_mut(dir)?.sync();
        Ok(())
    }

    /// A failed sync of a directory: each change is on disk or not, and none is dirty any more but
    /// the making of a directory (SPEC 14.11).
    pub(super) fn fail_sync_dir(&mut self, dir: Ino, dice: &mut Dice) -> io::Result<()> {
        let made = self.dir(dir)?.unsynced.iter().filter_map(|(_, change)| change.linked());
        let dirs: Vec<Ino> = made.filter(|ino| self.dir(*ino).is_ok()).collect();
        self.dir_mut(dir)?.fail(|| dice.below(2) == 1, |ino| dirs.contains(&ino));
        Ok(())
    }

    /// A failed sync of a file: each sector is on disk or not, and none is dirty any more.
    pub(super) fn fail_sync(&mut self, ino: Ino, dice: &mut Dice) -> io::Result<()> {
        let mut len_dice = Dice::new(dice.roll());
        let file = self.file_mut(ino)?;
        // Losing all and losing one are the cases that random subsets meet too seldom.
        let odds = [1, 2, 2, 8].get(dice.index(4)).copied().unwrap_or(2);
        let pick = |versions: usize, dice: &mut Dice| match dice.below(odds) {
            0 => 0,
            _ => 1 + dice.index(versions),
        };
        file.fail(|_, n| pick(n, dice), |n| len_dice.index(n + 1));
        file.failures += 1;
        file.failure_told = false;
        Ok(())
    }

    /// Writes what space allows, and says how much.
    pub(super) fn write(&mut self, ino: Ino, buf: &[u8], offset: u64) -> io::Result<usize> {
        let wanted = offset.checked_add(super::image::to_u64(buf.len()));
        let wanted = wanted.ok_or(io::ErrorKind::FileTooLarge)?;
        let end = self.take_blocks(ino, offset, wanted)?;
        if end == offset && !buf.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let count = usize::try_from(end - offset).unwrap_or(usize::MAX);
        let step = self.advance();
        self.file_mut(ino)?.write(buf.get(..count).unwrap_or(buf), offset, step);
        Ok(count)
    }

    /// Hands out blocks from an offset on and says how far they reach.
    fn take_blocks(&mut self, ino: Ino, from: u64, to: u64) -> io::Result<u64> {
        let file = self.file(ino)?;
        let mut end = to;
        if let Some(free) = self.free {
            end = file.reach(from, to, free);
            self.free = Some(free.saturating_sub(file.blocks_missing(from, end)));
        }
        self.file_mut(ino)?.take_blocks(from, end);
        Ok(end)
    }

    /// Reserves blocks, all or none, and extends with zeros.
    pub(super) fn allocate(&mut self, ino: Ino, len: u64) -> io::Result<()> {
        if let Some(free) = self.free
            && self.file(ino)?.blocks_missing(0, len) > free
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.take_blocks(ino, 0, len)?;
        if len > self.file(ino)?.len { self.set_len(ino, len) } else { Ok(()) }
    }

    pub(super) fn set_len(&mut self, ino: Ino, len: u64) -> io::Result<()> {
        let step = self.advance();
        let file = self.file_mut(ino)?;
        let before = file.block_count();
        file.set_len(len, step);
        let given = before.saturating_sub(file.block_count());
        self.free = self.free.map(|free| free.saturating_add(given));
        Ok(())
    }
}

fn kind_of(node: &Node) -> EntryKind {
    match node {
        Node::File(_) => EntryKind::File,
        Node::Dir(_) => EntryKind::Dir,
    }
}
