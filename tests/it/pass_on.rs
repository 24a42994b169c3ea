//! What a file system of a test passes on to the one under it: every call that the test leaves
//! alone.

/// Writes the methods of `Io` or `IoFile` that are named, which ask the same of a field:
/// `pass_on!(io: open list)`.
macro_rules! pass_on {
    (@open $io:tt) => {
        fn open(
            &self,
            path: &std::path::Path,
            how: oncelog::io::OpenHow,
        ) -> std::io::Result<std::sync::Arc<dyn oncelog::io::IoFile>> {
            self.$io.open(path, how)
        }
    };
    (@open_dir $io:tt) => {
        fn open_dir(
            &self,
            dir: &std::path::Path,
        ) -> std::io::Result<std::sync::Arc<dyn oncelog::io::IoFile>> {
            self.$io.open_dir(dir)
        }
    };
    (@list $io:tt) => {
        fn list(&self, dir: &std::path::Path) -> std::io::Result<Vec<oncelog::io::DirEntry>> {
            self.$io.list(dir)
        }
    };
    (@kind $io:tt) => {
        fn kind(
            &self,
            path: &std::path::Path,
        ) -> std::io::Result<Option<oncelog::io::EntryKind>> {
            self.$io.kind(path)
        }
    };
    (@rename $io:tt) => {
        fn rename(&self, from: &std::path::Path, to: &std::path::Path) -> std::io::Result<()> {
            self.$io.rename(from, to)
        }
    };
    (@remove $io:tt) => {
        fn remove(&self, path: &std::path::Path) -> std::io::Result<()> {
            self.$io.remove(path)
        }
    };
    (@create_dir $io:tt) => {
        fn create_dir(&self, path: &std::path::Path) -> std::io::Result<()> {
            self.$io.create_dir(path)
        }
    };
    (@sync_dir $io:tt) => {
        fn sync_dir(&self, dir: &std::path::Path) -> std::io::Result<()> {
            self.$io.sync_dir(dir)
        }
    };
    (@blocks $io:tt) => {
        fn blocks(&self, dir: &std::path::Path) -> std::io::Result<oncelog::io::Blocks> {
            self.$io.blocks(dir)
        }
    };
    (@random $io:tt) => {
        fn random(&self, buf: &mut [u8]) -> std::io::Result<()> {
            self.$io.random(buf)
        }
    };
    (@len $file:tt) => {
        fn len(&self) -> std::io::Result<u64> {
            self.$file.len()
        }
    };
    (@read_at $file:tt) => {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
            self.$file.read_at(buf, offset)
        }
    };
    (@write_at $file:tt) => {
        fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize> {
            self.$file.write_at(buf, offset)
        }
    };
    (@sync $file:tt) => {
        fn sync(&self) -> std::io::Result<()> {
            self.$file.sync()
        }
    };
    (@set_len $file:tt) => {
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.$file.set_len(len)
        }
    };
    (@allocate $file:tt) => {
        fn allocate(&self, len: u64) -> std::io::Result<()> {
            self.$file.allocate(len)
        }
    };
    (@try_lock $file:tt) => {
        fn try_lock(&self) -> std::io::Result<bool> {
            self.$file.try_lock()
        }
    };
    (@id $file:tt) => {
        fn id(&self) -> std::io::Result<Option<oncelog::io::FileId>> {
            self.$file.id()
        }
    };
    (@map $file:tt) => {
        fn map(&self, len: u64) -> std::io::Result<bytes::Bytes> {
            self.$file.map(len)
        }
    };
    (@evict $file:tt) => {
        fn evict(&self, bytes: std::ops::Range<u64>) -> std::io::Result<()> {
            self.$file.evict(bytes)
        }
    };
    ($under:tt: $($method:ident)+) => {
        $($crate::pass_on::pass_on!(@$method $under);)+
    };
}

pub(crate) use pass_on;
