//! Directories of logs as values, and as text that a person can read and compare.
//!
//! ```text
//! # what it shows
//! file NAME LENGTH
//! 00003000 5aa500..          up to 32 bytes; bytes that no line names are zeros
//! 00003020 2e*500            one byte many times
//! verdict ..                 what a reader must say, one line each
//! ```

pub(crate) mod still;

use std::fmt::Write as _;

/// Bytes of a line.
const LINE_LEN: usize = 32;
/// From so many equal bytes on they are told as a count.
const RUN_LEN: usize = 64;

/// The files of a log, and what is known about how they came to be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Directory {
    pub(crate) files: Vec<(String, Vec<u8>)>,
    pub(crate) lock: Option<Vec<u8>>,
    pub(crate) story: String,
}

/// A directory with what must be said of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Image {
    pub(crate) directory: Directory,
    /// Lines, the first of which begins with `verdict`.
    pub(crate) verdict: Vec<String>,
}

impl Image {
    /// The text of an image.
    pub(crate) fn print(&self) -> String {
        let mut text = format!("# {}\n", self.directory.story);
        if let Some(lock) = &self.directory.lock {
            print_file("LOCK", lock, &mut text);
        }
        for (name, bytes) in &self.directory.files {
            print_file(name, bytes, &mut text);
        }
        for line in &self.verdict {
            writeln!(text, "{line}").unwrap();
        }
        text
    }

    /// The image of a text.
    pub(crate) fn parse(text: &str) -> Self {
        let (story, rest) = text.split_once('\n').expect("a first line");
        let story = story.strip_prefix("# ").expect("a first line that says what it shows");
        let mut directory = Directory { files: Vec::new(), lock: None, story: story.to_owned() };
        let mut verdict: Vec<String> = Vec::new();
        let mut file: Option<(String, Vec<u8>)> = None;
        for line in rest.lines() {
            let begins = line.starts_with("file ");
            if !verdict.is_empty() || line.starts_with("verdict ") {
                verdict.push(line.to_owned());
            } else if begins {
                directory.take(file.take());
                let (name, len) = line[5..].rsplit_once(' ').expect("a name and a length");
                file = Some((name.to_owned(), vec![0; len.parse().expect("a length")]));
            } else {
                let (_, bytes) = file.as_mut().expect("bytes of a file");
                parse_line(line, bytes);
            }
        }
        directory.take(file);
        Self { directory, verdict }
    }
}

impl Directory {
    fn take(&mut self, file: Option<(String, Vec<u8>)>) {
        match file {
            Some((name, bytes)) if name == "LOCK" => self.lock = Some(bytes),
            Some(file) => self.files.push(file),
            None => {}
        }
    }

    /// How many files there are with `LOCK`.
    pub(crate) fn count(&self) -> usize {
        self.files.len() + usize::from(self.lock.is_some())
    }

    /// The name and the bytes of a file; `LOCK` stands behind the others.
    pub(crate) fn file(&self, index: usize) -> Option<(&str, &[u8])> {
        match self.files.get(index) {
            Some((name, bytes)) => Some((name, bytes)),
            None if index == self.files.len() => Some(("LOCK", self.lock.as_deref()?)),
            None => None,
        }
    }

    /// The bytes of a file, to change them.
    pub(crate) fn bytes_mut(&mut self, index: usize) -> Option<&mut Vec<u8>> {
        if index == self.files.len() {
            return self.lock.as_mut();
        }
        self.files.get_mut(index).map(|(_, bytes)| bytes)
    }
}

fn print_file(name: &str, bytes: &[u8], text: &mut String) {
    writeln!(text, "file {name} {}", bytes.len()).unwrap();
    let mut at = 0;
    while let Some(&first) = bytes.get(at) {
        let run = bytes[at..].iter().take_while(|&&byte| byte == first).count();
        let line = &bytes[at..bytes.len().min(at + LINE_LEN)];
        if run >= RUN_LEN || run == bytes.len() - at {
            if first != 0 {
                writeln!(text, "{at:08x} {first:02x}*{run}").unwrap();
            }
            // Lines stay in their columns.
            at += if at + run == bytes.len() { run } else { run / LINE_LEN * LINE_LEN };
            continue;
        }
        let used = line.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        if used > 0 {
            write!(text, "{at:08x} ").unwrap();
            for byte in &line[..used] {
                write!(text, "{byte:02x}").unwrap();
            }
            text.push('\n');
        }
        at += LINE_LEN;
    }
}

fn parse_line(line: &str, bytes: &mut [u8]) {
    let number = |digits: &str| usize::from_str_radix(digits, 16).expect("hexadecimal digits");
    let (at, what) = line.split_once(' ').expect("an offset and bytes");
    let at = number(at);
    if let Some((byte, count)) = what.split_once('*') {
        let count: usize = count.parse().expect("a count");
        bytes[at..at + count].fill(u8::try_from(number(byte)).expect("a byte"));
        return;
    }
    for (index, byte) in bytes[at..].iter_mut().take(what.len() / 2).enumerate() {
        *byte = u8::try_from(number(&what[2 * index..2 * index + 2])).expect("a byte");
    }
}

#[test]
fn a_directory_comes_back_from_its_text() {
    let mut bytes = vec![0; 12_288];
    bytes.extend([1, 2, 3].repeat(50));
    bytes.extend([b'.'; 500]);
    bytes.extend([0; 70]);
    bytes.push(9);
    let short = ("a b".to_owned(), vec![7; 64]);
    let directory = Directory {
        files: vec![("x.seg".to_owned(), bytes), short, ("empty".to_owned(), Vec::new())],
        lock: Some(vec![0; 512]),
        story: "all that a line can hold".to_owned(),
    };
    let image = Image { directory, verdict: vec!["verdict clean".to_owned()] };
    assert_eq!(Image::parse(&image.print()), image);
}
