//! What a caller asks of an import, in one canonical form.
//!
//! What the request alone shows is checked here and is a refusal, which consumes no key: a name
//! that is none, a path that is no file, a file without a byte, an ending that tells no format.
//! What only the rows show is found by the job.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use oncelog_format::limits::PLAN_FILE_COUNT_MAX;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::format::Format;
use super::roots::{self, ImportRoots, Origin, is_below};
use crate::error::{Error, ErrorKind, Result};

/// Longest name of a collection, in bytes.
pub const COLLECTION_NAME_LEN_MAX: usize = 64;

/// Most vchannels of a collection: a slice is a message for each of them.
pub const COLLECTION_VCHANNELS_MAX: u32 = 1024;

/// Most files of a column set: each is open while the rows of the set are read.
pub(crate) const SET_FILE_COUNT_MAX: usize = 256;

/// The field of a fingerprint that names the root, where that was not the first.
pub(super) const ROOT: &str = "root";

/// An import as its caller asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportRequest {
    /// Name of the collection; it is made when there is none.
    pub collection: String,
    /// What rows are read from, in their order: a file each, or the columns of a set (`.npy`).
    pub sets: Vec<Vec<PathBuf>>,
    /// Partition of the collection.
    pub partition: Option<String>,
    /// Column that every row has, not null.
    pub primary_key: Option<String>,
    /// How many vchannels a new collection gets.
    pub vchannels: Option<u32>,
    /// Where the paths begin, unless they are absolute.
    pub(crate) root: Option<RequestRoot>,
}

/// The import root of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRoot {
    pub(crate) path: PathBuf,
    /// It is the one that relative paths mean: wherever it is, the request is the same.
    pub(crate) is_first: bool,
}

/// What a list shows of a request: its collection, and how many files each set has. No path of it is
/// held, however many there are.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct RequestShape {
    pub(crate) collection: String,
    #[serde(rename = "files")]
    pub(crate) sets: Vec<FileCount>,
}

/// How many files a set has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileCount(pub(crate) usize);

impl RequestShape {
    /// That of the request behind a payload.
    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

impl<'de> Deserialize<'de> for FileCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct OfSet;
        impl<'de> Visitor<'de> for OfSet {
            type Value = FileCount;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a file or the files of a set")
            }

            fn visit_str<E>(self, _path: &str) -> std::result::Result<FileCount, E> {
                Ok(FileCount(1))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut columns: A,
            ) -> std::result::Result<FileCount, A::Error> {
                let mut count = 0;
                while columns.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(FileCount(count))
            }
        }
        deserializer.deserialize_any(OfSet)
    }
}

impl RequestRoot {
    /// The path from here of one that is absolute and lies below.
    fn rest_of(&self, path: &Path) -> Option<PathBuf> {
        let path = roots::normalised(path)?;
        let rest = path.strip_prefix(&self.path).ok()?;
        rest.file_name().is_some().then(|| rest.to_owned())
    }
}

impl ImportRequest {
    /// Asks for the rows of `files` to go into `collection`. NumPy files of one directory that
    /// follow one another are the columns of one set.
    #[must_use]
    pub fn new(collection: impl Into<String>, files: Vec<PathBuf>) -> Self {
        Self::of_sets(collection, Self::sets_of(files))
    }

    /// The sets of a list of files: NumPy files of one directory that follow one another are one.
    pub(crate) fn sets_of<P: AsRef<Path>>(files: Vec<P>) -> Vec<Vec<P>> {
        let mut sets: Vec<Vec<P>> = Vec::new();
        let is_column = |path: &Path| Format::of_name(path).is_ok_and(|of| of == Format::Numpy);
        for file in files {
            let path = file.as_ref();
            let of_last = sets.last_mut().filter(|set| {
                let first = set.first().map(AsRef::as_ref);
                let first = first.filter(|first| is_column(first) && is_column(path));
                first.is_some_and(|first| dir_of(first) == dir_of(path))
            });
            match of_last {
                Some(set) => set.push(file),
                None => sets.push(vec![file]),
            }
        }
        sets
    }
    /// Asks for the rows of sets of files to go into `collection`: each set one file, or the
    /// NumPy files of its columns.
    #[must_use]
    pub fn of_sets(collection: impl Into<String>, sets: Vec<Vec<PathBuf>>) -> Self {
        let collection = collection.into();
        Self { collection, sets, partition: None, primary_key: None, vchannels: None, root: None }
    }

    /// Sets the column that rows are identified and partitioned by.
    #[must_use]
    pub fn primary_key(mut self, name: Option<String>) -> Self {
        self.primary_key = name.filter(|name| !name.is_empty());
        self
    }

    /// Sets how many vchannels a new collection gets.
    #[must_use]
    pub fn vchannels(mut self, count: Option<u32>) -> Self {
        self.vchannels = count;
        self
    }

    /// Sets the partition of the collection.
    #[must_use]
    pub fn partition(mut self, name: Option<String>) -> Self {
        self.partition = name.filter(|name| !name.is_empty());
        self
    }

    /// The request with absolute, lexically normalised paths.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name of a collection that is none, for no files or too many, for a set
    /// that is none, for a path that is not UTF-8, for a number of vchannels out of range.
    pub(crate) fn normalised(mut self, base: &Path) -> Result<Self> {
        for path in self.sets.iter_mut().flatten() {
            // Above `/` there is `/`.
            let clean = roots::normalised(&base.join(&*path)).unwrap_or_else(|| path.clone());
            *path = checked(clean)?;
        }
        self.check()
    }

    /// The request with paths below one of the roots.
    ///
    /// # Errors
    ///
    /// As [`ImportRequest::normalised`]; `InvalidInput` for a path that lies below no root, which
    /// is not repeated, and for files below several.
    pub(crate) fn below(mut self, roots: &ImportRoots) -> Result<Self> {
        let mut root = None;
        for (number, path) in (1..).zip(self.sets.iter_mut().flatten()) {
            let outside = || refused(format!("file {number} lies below no import root"));
            let (of, rest) = roots.locate(path).ok_or_else(outside)?;
            if *root.get_or_insert(of) != of {
                return Err(refused("the files of an import lie below several import roots"));
            }
            *path = checked(rest)?;
        }
        let number = root.unwrap_or_default();
        let path = roots.path(number).map(Path::to_owned).unwrap_or_default();
        if path.to_str().is_none() {
            return Err(refused("the path of an import root is not UTF-8"));
        }
        self.root = Some(RequestRoot { path, is_first: number == 0 });
        self.check()
    }

    /// The request under a key that is known, whatever is configured by now: a path that lies below
    /// the root that the key was accepted with does so still, and one that lies nowhere stays as it
    /// is, which makes it another request.
    pub(crate) fn again(mut self, roots: &ImportRoots, accepted: Option<&RequestRoot>) -> Self {
        let mut root: Option<RequestRoot> = None;
        for path in self.sets.iter_mut().flatten() {
            let below = accepted.and_then(|root| Some((root.clone(), root.rest_of(path)?)));
            let located = below.or_else(|| {
                let (number, rest) = roots.locate(path)?;
                let path = roots.path(number)?.to_owned();
                let own = RequestRoot { path, is_first: number == 0 };
                // It counts as it did then, wherever it stands among the roots.
                let own = accepted.filter(|root| root.path == own.path).cloned().unwrap_or(own);
                Some((own, rest))
            });
            let Some((of, rest)) = located else { continue };
            if *root.get_or_insert_with(|| of.clone()) == of {
                *path = rest;
            }
        }
        self.root = root.or_else(|| accepted.cloned());
        self
    }

    fn check(self) -> Result<Self> {
        check_name(&self.collection)?;
        let count = self.paths().count();
        if count == 0 {
            return Err(refused("an import needs a file"));
        }
        if count > PLAN_FILE_COUNT_MAX as usize {
            return Err(refused(format!("an import of more than {PLAN_FILE_COUNT_MAX} files")));
        }
        if let Some(count) = self.vchannels
            && !(1..=COLLECTION_VCHANNELS_MAX).contains(&count)
        {
            let what = format!("expected 1 to {COLLECTION_VCHANNELS_MAX} vchannels, found {count}");
            return Err(refused(what));
        }
        Ok(self)
    }

    /// The path of the root, where there is one.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_ref().map(|root| root.path.as_path())
    }

    /// The request of a payload, as a process with these roots takes it.
    ///
    /// # Errors
    ///
    /// `InvalidInput` where its files lie below no root of this process.
    pub(crate) fn taken(mut self, configured: Option<&ImportRoots>) -> Result<Self> {
        let number = match (&self.root, configured) {
            (None, None) => return Ok(self),
            (Some(root), Some(roots)) => roots.number(&root.path),
            _ => None,
        };
        let outside = || refused("the files of an import lie below no import root");
        let is_first = number.ok_or_else(outside)? == 0;
        self.root.iter_mut().for_each(|root| root.is_first = is_first);
        Ok(self)
    }

    /// The request of a payload in its one form.
    ///
    /// # Errors
    ///
    /// As [`ImportRequest::normalised`] and [`ImportRequest::below`].
    pub(crate) fn canonical(mut self) -> Result<Self> {
        if self.root.is_none() {
            return self.normalised(Path::new("/"));
        }
        for path in self.sets.iter_mut().flatten() {
            if !is_below(path) {
                return Err(refused("a path of an import leads out of its root"));
            }
            *path = checked(path.components().collect())?;
        }
        self.check()
    }

    /// Fails for what the file system shows before a row is read.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, with the path where that is one below a root or of the system.
    pub(crate) fn check_files(&self, configured: Option<&ImportRoots>) -> Result<()> {
        let origin = Origin::of(self.root(), configured)?;
        for set in &self.sets {
            check_set(set)?;
            self.check_key(set)?;
            set.iter().try_for_each(|path| origin.open(path).map(drop))?;
        }
        Ok(())
    }

    /// The columns of a set are known by the names of its files.
    fn check_key(&self, set: &[PathBuf]) -> Result<()> {
        let (Some(key), Some(first)) = (&self.primary_key, set.first()) else { return Ok(()) };
        let is_there = || set.iter().any(|path| column_of(path) == *key);
        if Format::of_name(first)? != Format::Numpy || is_there() {
            return Ok(());
        }
        let key = super::place::shortened(key);
        let what = format!("no file of the set is the column `{key}`, the primary key");
        Err(refused(what).at_path(first))
    }

    /// What makes two requests the same: named fields of canonical bytes. The order of the sets,
    /// and of the columns of one, is none of them; what is absent is left out.
    pub(crate) fn fields(&self, collection: u64) -> BTreeMap<String, Vec<u8>> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default().into_bytes();
        let count = self.vchannels.map(|count| count.to_string().into_bytes());
        let mut fields = BTreeMap::from([
            ("collection".to_owned(), collection.to_string().into_bytes()),
            ("files".to_owned(), self.multiset()),
            ("partition".to_owned(), text(&self.partition)),
            ("primary_key".to_owned(), text(&self.primary_key)),
            ("vchannels".to_owned(), count.unwrap_or_default()),
        ]);
        if let Some(root) = self.root.as_ref().filter(|root| !root.is_first) {
            fields.insert(ROOT.to_owned(), root.path.as_os_str().as_encoded_bytes().to_vec());
        }
        fields
    }

    fn multiset(&self) -> Vec<u8> {
        let sorted = |set: &[PathBuf]| {
            let mut set: Vec<String> = set.iter().map(|path| text_of(path)).collect();
            set.sort_unstable();
            set
        };
        let mut sets: Vec<Vec<String>> = self.sets.iter().map(|set| sorted(set)).collect();
        sets.sort_unstable();
        let mut out = Vec::new();
        for set in sets {
            if set.len() > 1 {
                // No path is as long as that.
                out.extend_from_slice(&u64::MAX.to_le_bytes());
                out.extend_from_slice(&(set.len() as u64).to_le_bytes());
            }
            for path in set {
                // Length first, so that no path looks like two.
                out.extend_from_slice(&(path.len() as u64).to_le_bytes());
                out.extend_from_slice(path.as_bytes());
            }
        }
        out
    }

    /// The payload of the broadcast: the request as JSON, with the identity of the collection.
    pub(crate) fn encode(&self, collection: u64) -> Vec<u8> {
        let mut object = Map::new();
        object.insert("collection".to_owned(), json!(self.collection));
        object.insert("collection_id".to_owned(), json!(collection));
        let files = self.sets.iter().map(|set| match set.as_slice() {
            [file] => json!(text_of(file)),
            columns => columns.iter().map(|path| text_of(path)).collect(),
        });
        object.insert("files".to_owned(), files.collect());
        for (name, value) in [("partition", &self.partition), ("primary_key", &self.primary_key)] {
            if let Some(value) = value {
                object.insert(name.to_owned(), json!(value));
            }
        }
        if let Some(count) = self.vchannels {
            object.insert("vchannels".to_owned(), json!(count));
        }
        if let Some(root) = &self.root {
            object.insert("root".to_owned(), json!(text_of(&root.path)));
        }
        Value::Object(object).to_string().into_bytes()
    }

    /// The request behind a payload, and the identity of its collection.
    pub(crate) fn decode(payload: &[u8]) -> Result<(Self, u64)> {
        let otherwise = || Error::new(ErrorKind::Corrupt, "the payload of an import is none");
        let value: Value =
            serde_json::from_slice(payload).map_err(|e| otherwise().with_source(e))?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let sets = value.get("files").and_then(Value::as_array).ok_or_else(otherwise)?;
        let sets = sets.iter().map(|set| match set {
            Value::Array(columns) => columns.iter().map(path_of).collect(),
            file => Some(vec![path_of(file)?]),
        });
        let vchannels = value.get("vchannels").and_then(Value::as_u64);
        // Which of the roots it was matters while the request is compared with others alone.
        let root = |path| RequestRoot { path: PathBuf::from(path), is_first: false };
        let request = Self {
            collection: text("collection").ok_or_else(otherwise)?,
            sets: sets.collect::<Option<_>>().ok_or_else(otherwise)?,
            partition: text("partition"),
            primary_key: text("primary_key"),
            vchannels: vchannels.and_then(|count| u32::try_from(count).ok()),
            root: text("root").map(root),
        };
        let collection = value.get("collection_id").and_then(Value::as_u64);
        Ok((request, collection.ok_or_else(otherwise)?))
    }

    /// What a list shows of it.
    pub(crate) fn shape(&self) -> RequestShape {
        RequestShape {
            collection: self.collection.clone(),
            sets: self.sets.iter().map(|set| FileCount(set.len())).collect(),
        }
    }

    /// All files, in order.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.sets.iter().flatten().map(PathBuf::as_path)
    }
}

/// The directory of a file, as its path names it.
fn dir_of(file: &Path) -> Option<PathBuf> {
    file.parent().map(|dir| roots::normalised(dir).unwrap_or_else(|| dir.to_owned()))
}

fn path_of(value: &Value) -> Option<PathBuf> {
    value.as_str().map(PathBuf::from)
}

/// `checked` admits UTF-8 alone.
fn text_of(path: &Path) -> String {
    path.to_str().unwrap_or_default().to_owned()
}

fn checked(path: PathBuf) -> Result<PathBuf> {
    match path.to_str() {
        Some(text) if text.contains('\0') => Err(refused("a path holds a zero byte")),
        Some(_) => Ok(path),
        None => Err(refused("a path is not UTF-8").at_path(path)),
    }
}

/// Fails for a set that its names alone show to be none.
fn check_set(set: &[PathBuf]) -> Result<()> {
    let format = Format::of_set(set)?;
    if format != Format::Numpy {
        return Ok(());
    }
    if set.len() > SET_FILE_COUNT_MAX {
        let what = format!("a set of more than {SET_FILE_COUNT_MAX} columns");
        return Err(match set.first() {
            Some(path) => refused(what).at_path(path),
            None => refused(what),
        });
    }
    let mut seen = HashSet::new();
    for path in set {
        let name = column_of(path);
        if !seen.insert(name.clone()) {
            let what = format!("two columns have the name `{}`", super::place::shortened(&name));
            return Err(refused(what).at_path(path));
        }
    }
    Ok(())
}

/// The column that a file of a set holds: its name without its ending.
pub(crate) fn column_of(path: &Path) -> String {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned()
}

/// Fails unless a collection may have this name: it begins with a letter and goes on with letters,
/// digits, `_` and `-`, because vchannels and files are named after it.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let whole = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    if first && name.len() <= COLLECTION_NAME_LEN_MAX && name.bytes().all(whole) {
        return Ok(());
    }
    let shown = super::place::shortened(name);
    Err(refused(format!(
        "the collection name `{shown}` is none: expected a letter or `_`, then letters, digits, \
         `_` or `-`, at most {COLLECTION_NAME_LEN_MAX} in all"
    )))
}

fn refused(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(files: &[&str]) -> ImportRequest {
        ImportRequest::new("c", files.iter().map(PathBuf::from).collect())
    }

    #[track_caller]
    fn check(path: &str, expect: &str) {
        let request = asked(&[path]).normalised(Path::new("/srv/dir")).unwrap();
        assert_eq!(request.sets, [[PathBuf::from(expect)]]);
    }

    #[test]
    fn paths_are_absolute_and_normalised_by_their_text() {
        check("a.csv", "/srv/dir/a.csv");
        check("./x/../a.csv", "/srv/dir/a.csv");
        check("../a.csv", "/srv/a.csv");
        check("/b//./c/a.csv", "/b/c/a.csv");
        check("../../../../a.csv", "/a.csv");
    }

    #[test]
    fn the_same_files_in_another_order_are_the_same_request() {
        let fields = |files: &[&str]| asked(files).fields(1);
        assert_eq!(fields(&["/a.csv", "/b.csv"]), fields(&["/b.csv", "/a.csv"]));
        assert_ne!(fields(&["/a.csv", "/b.csv"]), fields(&["/a.csv"]));
        assert_ne!(fields(&["/a.csv", "/a.csv"]), fields(&["/a.csv"]));
        let keyed = asked(&["/a.csv"]).primary_key(Some("id".to_owned()));
        assert_ne!(keyed.fields(1), fields(&["/a.csv"]));
        assert_eq!(
            asked(&["/a.csv"]).primary_key(Some(String::new())).fields(1),
            fields(&["/a.csv"])
        );
    }

    #[test]
    fn columns_of_a_set_are_told_from_files_of_rows() {
        let sets = |files: &[&str]| asked(files).sets;
        let set = |files: &[&str]| files.iter().map(PathBuf::from).collect::<Vec<_>>();
        let one = sets(&["./d/a.npy", "d/b.npy", "d/x/../c.npy"]);
        assert_eq!(one.len(), 1);
        let two = sets(&["d/a.npy", "d/b.npy", "e/a.npy", "a.csv", "b.csv", "e/b.npy"]);
        let expect: [&[&str]; 5] =
            [&["d/a.npy", "d/b.npy"], &["e/a.npy"], &["a.csv"], &["b.csv"], &["e/b.npy"]];
        assert_eq!(two, expect.map(set));
        let fields = |sets: &[&[&str]]| {
            ImportRequest::of_sets("c", sets.iter().map(|files| set(files)).collect()).fields(1)
        };
        let one = fields(&[&["/a.npy", "/b.npy"]]);
        assert_eq!(fields(&[&["/b.npy", "/a.npy"]]), one);
        assert_ne!(fields(&[&["/a.npy"], &["/b.npy"]]), one);
        assert_ne!(fields(&[&["/a.npy", "/b.npy"], &["/a.npy"]]), one);
    }

    #[test]
    fn a_set_that_is_none_is_refused_by_its_names() {
        let told = |files: &[&str]| {
            let set: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            check_set(&set).unwrap_err().to_string()
        };
        assert!(told(&["a.csv", "b.csv"]).contains("expected .npy"));
        assert!(told(&["a.npy", "b.csv"]).contains("expected .npy"));
        assert!(told(&["d/a.npy", "e/a.npy"]).contains("two columns have the name `a`"));
        assert!(told(&[]).contains("no file"));
        let many: Vec<PathBuf> = (0..257).map(|n| PathBuf::from(format!("{n}.npy"))).collect();
        assert!(check_set(&many).unwrap_err().to_string().contains("more than 256 columns"));
        check_set(&many[1..]).unwrap();
    }

    #[test]
    fn a_set_without_its_primary_key_is_refused_by_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        std::fs::write(&path, "x").unwrap();
        let of = |key: &str| {
            let request = ImportRequest::new("c", vec![path.clone()]);
            request.primary_key(Some(key.to_owned())).check_files(None)
        };
        of("a").unwrap();
        let error = of("id").unwrap_err();
        assert!(error.to_string().contains("is the column `id`, the primary key"), "{error}");
        assert_eq!((error.kind(), error.path()), (ErrorKind::InvalidInput, Some(&*path)));
    }

    #[test]
    fn a_request_comes_back_from_its_payload() {
        let request = asked(&["/a b.csv", "/\"c\".csv"])
            .primary_key(Some("id".to_owned()))
            .partition(Some("p".to_owned()))
            .vchannels(Some(4));
        let (back, id) = ImportRequest::decode(&request.encode(u64::MAX)).unwrap();
        assert_eq!(RequestShape::decode(&request.encode(1)), Some(request.shape()));
        assert_eq!((back, id), (request, u64::MAX));
        let mut sets = asked(&["d/a.npy", "d/b.npy", "a.csv"]);
        sets.root = Some(RequestRoot { path: PathBuf::from("/srv"), is_first: false });
        assert_eq!(RequestShape::decode(&sets.encode(1)), Some(sets.shape()));
        assert_eq!(sets.shape().sets, [2, 1].map(FileCount));
        assert_eq!(ImportRequest::decode(&sets.encode(1)).unwrap(), (sets, 1));
        assert!(ImportRequest::decode(b"{}").is_err());
        assert!(ImportRequest::decode(b"").is_err());
    }

    #[test]
    fn what_the_request_alone_shows_is_refused() {
        let base = Path::new("/");
        for name in ["", "1a", "a b", "a/b", "\u{e9}", &"x".repeat(65)] {
            assert!(
                ImportRequest { collection: name.to_owned(), ..asked(&["/a.csv"]) }
                    .normalised(base)
                    .is_err()
            );
        }
        assert!(asked(&[]).normalised(base).is_err());
        assert!(asked(&["/a.csv"]).vchannels(Some(0)).normalised(base).is_err());
        assert!(asked(&["/a.csv"]).vchannels(Some(1025)).normalised(base).is_err());
    }
}
