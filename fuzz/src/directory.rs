//! Bytes as the files of a log, for an engine that changes bytes.
//!
//! ```text
//! file  = tag(u8) number(u64) first_lsn(u64) size(u24) count(u16) chunk*
//! chunk = offset(u24) length(u16) bytes
//! ```
//!
//! The tag says what the file is: `LOCK`, a segment, a spare, a stray. Any bytes are some directory:
//! what is too long is cut, what is missing is not there. [`encode`] makes the seeds.

use super::seal::{Structure, word};
use crate::image::Directory;

/// Longest file.
const FILE_LEN_MAX: usize = 96 << 10;
/// Most files, so that a directory stays small.
const FILES_MAX: usize = 8;

/// Takes numbers from the front of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self, len: usize) -> u64 {
        self.bytes(len).iter().rev().fold(0, |value, &byte| (value << 8) | u64::from(byte))
    }

    fn size(&mut self, len: usize) -> usize {
        usize::try_from(self.number(len)).unwrap_or(usize::MAX)
    }
}

/// The directory that bytes are.
pub(crate) fn decode(data: &[u8]) -> Directory {
    let mut input = Input(data);
    let mut directory = Directory { files: Vec::new(), lock: None, story: String::new() };
    while !input.0.is_empty() && directory.files.len() < FILES_MAX {
        let tag = input.number(1);
        let (number, first) = (input.number(8), input.number(8));
        let mut file = vec![0; input.size(3).min(FILE_LEN_MAX)];
        for _ in 0..input.number(2) {
            if input.0.is_empty() {
                break;
            }
            let at = input.size(3);
            let len = input.size(2);
            let bytes = input.bytes(len);
            for (to, from) in file.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        }
        let name = match tag % 4 {
            0 => {
                directory.lock = Some(file);
                continue;
            }
            1 => format!("{number:010}-{first:020}.seg"),
            2 => format!("{number}.spare"),
            _ => format!("{number}-{first}.seg"),
        };
        if !directory.files.iter().any(|(known, _)| *known == name) {
            directory.files.push((name, file));
        }
    }
    directory
}

/// Bytes that are a directory.
#[cfg(test)]
pub(crate) fn encode(directory: &Directory) -> Vec<u8> {
    let mut data = Vec::new();
    let mut file = |tag: u8, number: u64, first: u64, bytes: &[u8]| {
        data.push(tag);
        data.extend(number.to_le_bytes());
        data.extend(first.to_le_bytes());
        data.extend(&(bytes.len() as u64).to_le_bytes()[..3]);
        let chunks = chunks(bytes);
        data.extend(u16::try_from(chunks.len()).unwrap_or(u16::MAX).to_le_bytes());
        for (at, chunk) in chunks {
            data.extend(&(at as u64).to_le_bytes()[..3]);
            data.extend(u16::try_from(chunk.len()).unwrap_or(u16::MAX).to_le_bytes());
            data.extend(chunk);
        }
    };
    if let Some(lock) = &directory.lock {
        file(0, 0, 0, lock);
    }
    for (name, bytes) in &directory.files {
        let numbers = name.strip_suffix(".seg").and_then(|stem| stem.split_once('-'));
        let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match numbers {
            Some((number, first)) => {
                let is_segment = format!("{number:010}-{first:020}.seg") == *name;
                file(if is_segment { 1 } else { 3 }, number, first, bytes);
            }
            None => file(2, bytes.len() as u64, 0, bytes),
        }
    }
    data
}

/// The stretches of a file that are not zeros.
#[cfg(test)]
fn chunks(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    const GAP: usize = 16;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(zeros) = bytes[at..].iter().position(|&byte| byte != 0) {
        let from = at + zeros;
        let rest = &bytes[from..bytes.len().min(from + 60_000)];
        let len = rest.windows(GAP).position(|gap| gap == [0; GAP]).unwrap_or(rest.len());
        found.push((from, &rest[..len]));
        at = from + len;
    }
    found
}

/// Makes every checksum good that stands where one can stand.
pub(crate) fn seal(directory: &mut Directory) {
    const FRAMES_MAX: usize = 300;
    if let Some(lock) = &mut directory.lock {
        Structure::Lock.seal(lock);
    }
    for (_, file) in &mut directory.files {
        Structure::Header.seal(file);
        for index in 0..2 {
            Structure::Copy(index).seal(file);
        }
        let footer = file.len().checked_sub(16).map(|at| low(word(file, at)));
        let footer = footer.and_then(|length| file.len().checked_sub(length));
        let footer = footer.filter(|&at| at >= 12_288 && at % 8 == 0 && at + 96 <= file.len());
        let end = footer.unwrap_or(file.len());
        let mut at = 12_288;
        for _ in 0..FRAMES_MAX {
            // The end of the frames: zeros, or a payload that reaches behind them.
            if at + 32 > end || word(file, at + 8) == 0 {
                break;
            }
            Structure::Frame(at).seal(file);
            at += (32 + low(word(file, at + 16))).next_multiple_of(8);
        }
        if let Some(at) = footer {
            Structure::Footer(at).seal(file);
        }
    }
}

/// The low half of a word, as a length.
fn low(word: u64) -> usize {
    usize::try_from(word & 0xFFFF_FFFF).unwrap_or(usize::MAX)
}
