//! A source file between the two passes over it: which file it is, and whether it is still that.
//!
//! The first pass fixes size, time, inode and SHA-256; they go into the plan. The second pass opens
//! the path again, compares what the system says at once, and the digest when all is read. Who
//! replaces a file while a job runs gets a failed job, never a mixture.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::stream::ByteStream;
use crate::error::{Error, ErrorKind, Result};
use crate::io::source::{Identity, NoSource, SourceFile};

/// What opening a source came to.
pub(crate) type Opened = std::result::Result<SourceFile, NoSource>;

/// SHA-256 of a whole file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sha256Sum(pub(crate) [u8; 32]);

impl fmt::Debug for Sha256Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Asks whether a reading is to go on; its error ends it.
#[derive(Clone, Default)]
pub(crate) struct GoOn(Option<Arc<dyn Fn() -> Result<()> + Send + Sync>>);

impl GoOn {
    /// Asks this function.
    pub(crate) fn new(ask: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(ask)))
    }

    /// Fails when the reading is to end.
    pub(crate) fn ask(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |ask| ask())
    }
}

impl fmt::Debug for GoOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GoOn").field(&self.0.is_some()).finish()
    }
}

/// An open source.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Asked for each block that is read.
    pub(crate) go_on: GoOn,
    /// The handle that is read.
    pub(crate) file: Arc<SourceFile>,
    /// What the handle was when it was opened.
    pub(crate) identity: Identity,
}

impl Source {
    /// The source that an open found, or why what the file system alone shows is none.
    pub(crate) fn of(path: &Path, opened: Opened) -> Result<Self> {
        let refuse = |what: &'static str| Error::new(ErrorKind::InvalidInput, what).at_path(path);
        let file = match opened {
            Ok(file) => file,
            Err(NoSource::Directory) => return Err(refuse("a source is a directory")),
            Err(NoSource::Special) => return Err(refuse("a source is not a regular file")),
            Err(NoSource::Link) => {
                return Err(refuse("a source is a symbolic link, or lies behind one"));
            }
            // Nothing else of it is told: it is none of the caller's.
            Err(NoSource::Outside) => {
                let what = "a source lies below no import root";
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
            Err(NoSource::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(refuse("a source does not exist").with_source(e));
            }
            Err(NoSource::Io(e)) if is_of_the_path(&e) => {
                return Err(refuse("a source cannot be opened").with_source(e));
            }
            // The next attempt may find it: no file handles, no memory, a disk that fails.
            Err(NoSource::Io(e)) => {
                let what = "a source cannot be opened";
                return Err(Error::new(ErrorKind::Io, what).at_path(path).with_source(e));
            }
        };
        let identity = file.identity().map_err(|e| read_failed(path, 0, e))?;
        if identity.bytes == 0 {
            return Err(refuse("a source is empty"));
        }
        Ok(Self { go_on: GoOn::default(), file: Arc::new(file), identity })
    }

    /// The source of a plan, opened again; fails when it is not what the plan says.
    pub(crate) fn again(path: &Path, opened: Opened, planned: Identity) -> Result<Self> {
        let found = Self::of(path, opened).map_err(|e| match e.kind() {
            ErrorKind::Io => e,
            _ => source_changed(path, "it can no longer be opened").with_source(e),
        })?;
        found.compare(planned)?;
        Ok(found)
    }

    /// The same source, whose readers ask whether to go on.
    pub(crate) fn asking(self, go_on: &GoOn) -> Self {
        Self { go_on: go_on.clone(), ..self }
    }

    /// Fails when the handle is by now another file, or the file another state, than `planned`.
    pub(crate) fn unchanged(&self, planned: Identity) -> Result<()> {
        let path = self.file.path();
        let identity = self.file.identity().map_err(|e| read_failed(path, 0, e))?;
        Self { identity, ..self.clone() }.compare(planned)
    }

    /// Digest of the file, read from start to end; `None` when it cannot be read whole.
    pub(crate) fn sha256(&self) -> Option<Sha256Sum> {
        ByteStream::new(self).finish().ok()
    }

    fn compare(&self, planned: Identity) -> Result<()> {
        let (found, path) = (self.identity, self.file.path());
        if found.bytes != planned.bytes {
            let what = format!("expected {} bytes, found {}", planned.bytes, found.bytes);
            return Err(source_changed(path, &what));
        }
        if found.inode != planned.inode {
            return Err(source_changed(path, "another file has its name"));
        }
        if found.mtime_ns != planned.mtime_ns {
            return Err(source_changed(path, "it was written to"));
        }
        Ok(())
    }
}

/// Whether opening fails because of what stands at the path, and not because of the system.
fn is_of_the_path(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    let kinds = [Kind::PermissionDenied, Kind::NotADirectory, Kind::InvalidInput];
    let codes = [Errno::LOOP, Errno::NAMETOOLONG, Errno::NXIO];
    let code = error.raw_os_error();
    kinds.contains(&error.kind()) || codes.iter().any(|known| code == Some(known.raw_os_error()))
}

/// The error of a job whose source is not what its plan says.
pub(crate) fn source_changed(path: &Path, how: &str) -> Error {
    let message = format!("the source changed after the plan was made: {how}");
    Error::new(ErrorKind::InvalidInput, message).at_path(path)
}

/// The error of a source that the system does not let us read.
pub(crate) fn read_failed(path: &Path, offset: u64, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "a source cannot be read")
        .at_path(path)
        .at_offset(offset)
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::roots::Origin;

    #[track_caller]
    fn check(path: &Path, expect: &str) {
        let error = Origin::System.open(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.path(), Some(path));
        assert!(error.to_string().contains(expect), "{error}");
    }

    #[test]
    fn what_is_no_file_of_rows_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        check(dir.path(), "directory");
        check(&dir.path().join("none.csv"), "does not exist");
        let empty = dir.path().join("empty.csv");
        std::fs::write(&empty, b"").unwrap();
        check(&empty, "empty");
        check(Path::new("/dev/null"), "not a regular file");
    }

    #[test]
    fn only_what_stands_at_the_path_is_the_fault_of_the_source() {
        for (code, expect) in [
            (Errno::ACCESS, true),
            (Errno::NOTDIR, true),
            (Errno::LOOP, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOMEM, false),
            (Errno::IO, false),
            (Errno::STALE, false),
        ] {
            assert_eq!(is_of_the_path(&code.into()), expect, "{code}");
        }
    }

    #[test]
    fn a_source_that_was_written_to_or_replaced_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        std::fs::write(&path, b"a\n1\n").unwrap();
        let source = Origin::System.open(&path).unwrap();
        source.unchanged(source.identity).unwrap();
        std::fs::write(&path, b"a\n1\n2\n").unwrap();
        assert!(source.unchanged(source.identity).is_err());
        assert!(Origin::System.reopen(&path, source.identity).is_err());
        drop(dir);
        let error = Origin::System.reopen(&path, source.identity).unwrap_err();
        assert!(error.to_string().contains("no longer be opened"), "{error}");
    }
}
