//! What a caller asks of an import, in one canonical form.
//!
//! What the request alone shows is checked here and is a refusal, which consumes no key: a name
//! that is none, a path that is no file, a file without a byte, an ending that tells no format.
//! What only the rows show is found by the job.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use oncelog_format::limits::PLAN_FILE_COUNT_MAX;
use serde_json::{Map, Value, json};

use super::format::Format;
use super::source::Source;
use crate::error::{Error, ErrorKind, Result};

/// Longest name of a collection, in bytes.
pub const COLLECTION_NAME_LEN_MAX: usize = 64;

/// Most vchannels of a collection: a slice is a message for each of them.
pub const COLLECTION_VCHANNELS_MAX: u32 = 1024;

/// An import as its caller asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportRequest {
    /// Name of the collection; it is made when there is none.
    pub collection: String,
    /// The files, in the order of their rows.
    pub files: Vec<PathBuf>,
    /// Partition of the collection.
    pub partition: Option<String>,
    /// Column that every row has, not null.
    pub primary_key: Option<String>,
    /// How many vchannels a new collection gets.
    pub vchannels: Option<u32>,
}

impl ImportRequest {
    /// Asks for the rows of `files` to go into `collection`.
    #[must_use]
    pub fn new(collection: impl Into<String>, files: Vec<PathBuf>) -> Self {
        let collection = collection.into();
        Self { collection, files, partition: None, primary_key: None, vchannels: None }
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
    /// `InvalidInput` for a name of a collection that is none, for no files or too many, for a path
    /// that is not UTF-8, for a number of vchannels out of range.
    pub(crate) fn normalised(mut self, base: &Path) -> Result<Self> {
        check_name(&self.collection)?;
        if self.files.is_empty() {
            return Err(refused("an import needs a file"));
        }
        if self.files.len() > PLAN_FILE_COUNT_MAX as usize {
            return Err(refused(format!("an import of more than {PLAN_FILE_COUNT_MAX} files")));
        }
        if let Some(count) = self.vchannels
            && !(1..=COLLECTION_VCHANNELS_MAX).contains(&count)
        {
            let what = format!("expected 1 to {COLLECTION_VCHANNELS_MAX} vchannels, found {count}");
            return Err(refused(what));
        }
        for path in &mut self.files {
            *path = normalised(base, path)?;
        }
        Ok(self)
    }

    /// Fails for what the file system shows before a row is read.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, with the path.
    pub(crate) fn check_files(&self) -> Result<()> {
        for path in &self.files {
            Format::of_name(path)?;
            Source::open(path)?;
        }
        Ok(())
    }

    /// What makes two requests the same: named fields of canonical bytes. The order of the files is
    /// none of them, what is absent is left out.
    pub(crate) fn fields(&self, collection: u64) -> BTreeMap<String, Vec<u8>> {
        let mut files: Vec<&str> = self.paths().collect();
        files.sort_unstable();
        let mut multiset = Vec::new();
        for path in files {
            // Length first, so that no path looks like two.
            multiset.extend_from_slice(&(path.len() as u64).to_le_bytes());
            multiset.extend_from_slice(path.as_bytes());
        }
        let text = |text: &Option<String>| text.clone().unwrap_or_default().into_bytes();
        let count = self.vchannels.map(|count| count.to_string().into_bytes());
        BTreeMap::from([
            ("collection".to_owned(), collection.to_string().into_bytes()),
            ("files".to_owned(), multiset),
            ("partition".to_owned(), text(&self.partition)),
            ("primary_key".to_owned(), text(&self.primary_key)),
            ("vchannels".to_owned(), count.unwrap_or_default()),
        ])
    }

    /// The payload of the broadcast: the request as JSON, with the identity of the collection.
    pub(crate) fn encode(&self, collection: u64) -> Vec<u8> {
        let mut object = Map::new();
        object.insert("collection".to_owned(), json!(self.collection));
        object.insert("collection_id".to_owned(), json!(collection));
        object.insert("files".to_owned(), self.paths().collect::<Vec<_>>().into());
        for (name, value) in [("partition", &self.partition), ("primary_key", &self.primary_key)] {
            if let Some(value) = value {
                object.insert(name.to_owned(), json!(value));
            }
        }
        if let Some(count) = self.vchannels {
            object.insert("vchannels".to_owned(), json!(count));
        }
        Value::Object(object).to_string().into_bytes()
    }

    /// The request behind a payload, and the identity of its collection.
    pub(crate) fn decode(payload: &[u8]) -> Result<(Self, u64)> {
        let otherwise = || Error::new(ErrorKind::Corrupt, "the payload of an import is none");
        let value: Value =
            serde_json::from_slice(payload).map_err(|e| otherwise().with_source(e))?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let files = value.get("files").and_then(Value::as_array).ok_or_else(otherwise)?;
        let files = files.iter().map(|path| path.as_str().map(PathBuf::from));
        let vchannels = value.get("vchannels").and_then(Value::as_u64);
        let request = Self {
            collection: text("collection").ok_or_else(otherwise)?,
            files: files.collect::<Option<_>>().ok_or_else(otherwise)?,
            partition: text("partition"),
            primary_key: text("primary_key"),
            vchannels: vchannels.and_then(|count| u32::try_from(count).ok()),
        };
        let collection = value.get("collection_id").and_then(Value::as_u64);
        Ok((request, collection.ok_or_else(otherwise)?))
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        // `normalised` admits UTF-8 alone.
        self.files.iter().map(|path| path.to_str().unwrap_or_default())
    }
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

fn normalised(base: &Path, path: &Path) -> Result<PathBuf> {
    let mut clean = PathBuf::new();
    for part in base.join(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                // Above the root there is the root.
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    if clean.to_str().is_none() {
        return Err(refused("a path is not UTF-8").at_path(path));
    }
    Ok(clean)
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
        assert_eq!(request.files, [PathBuf::from(expect)]);
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
    fn a_request_comes_back_from_its_payload() {
        let request = asked(&["/a b.csv", "/\"c\".csv"])
            .primary_key(Some("id".to_owned()))
            .partition(Some("p".to_owned()))
            .vchannels(Some(4));
        let (back, id) = ImportRequest::decode(&request.encode(u64::MAX)).unwrap();
        assert_eq!((back, id), (request, u64::MAX));
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
