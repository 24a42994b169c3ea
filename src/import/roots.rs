//! Directories that files are imported from, for callers who may name no other file.
//!
//! Who uses the command line may read what his user may read: his paths are absolute. A caller of a
//! service names files below the roots that its operator configured: relative to the first root, or
//! absolute below any of them. Paths are normalised by their text, and then opened from the handle
//! of their root, which no `..`, no absolute path and no symbolic link leads out of, also while the
//! directories are changed. A hard link below a root is the file that it links to, and cannot be
//! told from it: who may make one there may have any file imported that he may link to.
//!
//! A path that lies below no root is not repeated in the answer, and nothing says whether there is
//! such a file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::source::Source;
use crate::error::{Error, ErrorKind, Result};
use crate::io::source::{Identity, NoSource, RootDir, SourceFile};

/// The directories that requests of a service may name files below; cheap to clone.
///
/// ```
/// use oncelog::import::{ImportRoots, Imports};
///
/// # fn main() -> oncelog::Result<()> {
/// # let home = tempfile::tempdir().expect("a directory");
/// let roots = ImportRoots::open([home.path()])?;
/// let imports = Imports::new().below(roots);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ImportRoots {
    roots: Arc<[Arc<Root>]>,
}

/// A directory that files are opened below.
#[derive(Debug)]
pub(crate) struct Root {
    /// As it was configured, absolute and normalised.
    path: PathBuf,
    dir: RootDir,
}

impl Root {
    fn open(path: &Path) -> Result<Self> {
        let refuse = |kind, what: &'static str| Error::new(kind, what).at_path(path);
        let absolute = std::path::absolute(path);
        let what = "an import root is no path";
        let absolute =
            absolute.map_err(|e| refuse(ErrorKind::InvalidInput, what).with_source(e))?;
        // Above `/` there is `/`.
        let absolute = normalised(&absolute).unwrap_or(absolute);
        let dir = RootDir::open(&absolute).map_err(|e| match e.kind() {
            std::io::ErrorKind::Unsupported => {
                refuse(ErrorKind::Unsupported, "an import root cannot be kept to").with_source(e)
            }
            _ => refuse(ErrorKind::Io, "an import root cannot be opened").with_source(e),
        })?;
        Ok(Self { path: absolute, dir })
    }
}

impl ImportRoots {
    /// Opens the roots, directories; a relative path begins at the current one. Relative paths of
    /// requests begin at the first root.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for no root, and for one without a path; `Io` for one that cannot be opened; `Unsupported` where the kernel has no openat2(2).
    pub fn open<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self> {
        let roots = paths.into_iter().map(|path| Root::open(path.as_ref()).map(Arc::new));
        let roots: Arc<[Arc<Root>]> = roots.collect::<Result<_>>()?;
        if roots.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "there is no import root"));
        }
        Ok(Self { roots })
    }

    /// The root that a path of a request lies below, by its number, and the path from there.
    pub(crate) fn locate(&self, path: &Path) -> Option<(usize, PathBuf)> {
        let path = normalised(path)?;
        if !path.is_absolute() {
            return Some((0, path)).filter(|(_, path)| path.file_name().is_some());
        }
        let below = self.roots.iter().enumerate().filter_map(|(number, root)| {
            let rest = path.strip_prefix(&root.path).ok()?;
            rest.file_name()?;
            Some((root.path.as_os_str().len(), number, rest.to_owned()))
        });
        // Of roots below one another the innermost.
        below.max_by_key(|(len, ..)| *len).map(|(_, number, rest)| (number, rest))
    }

    /// The path of a root.
    pub(crate) fn path(&self, number: usize) -> Option<&Path> {
        self.roots.get(number).map(|root| root.path.as_path())
    }

    /// The number of a root.
    pub(crate) fn number(&self, path: &Path) -> Option<usize> {
        self.roots.iter().position(|root| root.path == path)
    }

    fn of(&self, path: &Path) -> Option<Arc<Root>> {
        self.roots.iter().find(|root| root.path == path).cloned()
    }
}

/// Where the paths of a request begin.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// They are absolute, as their user may read them.
    System,
    /// They begin at a root.
    Below(Arc<Root>),
}

impl Origin {
    /// The origin of a request that was accepted with this root, or without one. A process without
    /// roots of its own opens that root again.
    ///
    /// # Errors
    ///
    /// `InvalidInput` where the root is none of those that are configured; `Io` where it cannot be
    /// opened.
    pub(crate) fn of(root: Option<&Path>, configured: Option<&ImportRoots>) -> Result<Self> {
        match (root, configured) {
            (None, _) => Ok(Self::System),
            (Some(path), None) => Root::open(path).map(|root| Self::Below(Arc::new(root))),
            (Some(path), Some(roots)) => roots.of(path).map(Self::Below).ok_or_else(|| {
                let what = "the import root of the request is not configured any more";
                Error::new(ErrorKind::InvalidInput, what)
            }),
        }
    }

    /// Opens a source.
    pub(crate) fn open(&self, path: &Path) -> Result<Source> {
        Source::of(path, self.file(path))
    }

    /// Opens the source of a plan, and fails when it is not what the plan says.
    pub(crate) fn reopen(&self, path: &Path, planned: Identity) -> Result<Source> {
        Source::again(path, self.file(path), planned)
    }

    fn file(&self, path: &Path) -> std::result::Result<SourceFile, NoSource> {
        match self {
            Self::System => SourceFile::open(path),
            Self::Below(root) => root.dir.open_below(path),
        }
    }
}

/// The path without `.` and `..`, by its text; `None` for a relative one that leads above where it
/// begins. Above `/` there is `/`.
pub(crate) fn normalised(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if clean.as_os_str().is_empty() => return None,
            Component::ParentDir => {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    Some(clean)
}

/// Whether a path is in the form that [`ImportRoots::locate`] gives it.
pub(crate) fn is_below(path: &Path) -> bool {
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    plain && !path.as_os_str().is_empty() && !has_nul(path.as_os_str())
}

fn has_nul(path: &OsStr) -> bool {
    path.as_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_request_lies_below_a_root_or_nowhere() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (home.path().join("r"), home.path().join("s"));
        let inner = first.join("inner");
        for dir in [&first, &second, &inner] {
            std::fs::create_dir(dir).unwrap();
        }
        let roots = ImportRoots::open([&first, &second, &inner]).unwrap();
        let check = |path: &Path, expect: Option<(usize, &str)>| {
            let expect = expect.map(|(number, rest)| (number, PathBuf::from(rest)));
            assert_eq!(roots.locate(path), expect, "{}", path.display());
        };
        check(Path::new("a.csv"), Some((0, "a.csv")));
        check(Path::new("./d//x/../a.csv"), Some((0, "d/a.csv")));
        check(&first.join("d/a.csv"), Some((0, "d/a.csv")));
        check(&second.join("a.csv"), Some((1, "a.csv")));
        check(&first.join("inner/a.csv"), Some((2, "a.csv")));
        check(&first.join("x/../a.csv"), Some((0, "a.csv")));
        for path in ["", ".", "..", "../r/a.csv", "d/../../a.csv", "/", "/etc/passwd"] {
            check(Path::new(path), None);
        }
        check(&first, None);
        check(&first.join("../t/a.csv"), None);
        check(&home.path().join("rr/a.csv"), None);
    }

    #[test]
    fn roots_are_directories() {
        let home = tempfile::tempdir().unwrap();
        let told = |path: &Path| ImportRoots::open([path]).unwrap_err().kind();
        assert_eq!(told(Path::new("")), ErrorKind::InvalidInput);
        // A test runs in the directory of its crate.
        let relative = ImportRoots::open(["./src/../src"]).unwrap();
        let expect = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        assert_eq!(relative.path(0), Some(expect.as_path()));
        assert_eq!(told(&home.path().join("none")), ErrorKind::Io);
        assert_eq!(ImportRoots::open::<&Path>([]).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_path_of_a_payload_has_no_step_that_leads_anywhere_else() {
        for (path, expect) in [
            ("a.csv", true),
            ("d/a.csv", true),
            ("", false),
            ("/a.csv", false),
            ("d/../a.csv", false),
            ("..", false),
            ("a\0.csv", false),
        ] {
            assert_eq!(is_below(Path::new(path)), expect, "{path:?}");
        }
    }
}
