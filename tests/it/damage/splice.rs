//! Old bytes where new ones should be: behind a cut record, from another log, from another place.
//!
//! Other logs have lost acknowledged records to each of these: an append behind a torn tail that
//! hides what follows, a stale end that joins a new record, a frame of a sibling that is served.

use super::sound::Sound;
use super::{Counts, sized};
use crate::differential;
use crate::figures::figure;
use crate::image::Directory;
use crate::reference::bytes::frame_header;
use crate::reference::forge::{Forge, UUID, lock_with};
use crate::reference::{Verdict, judge};

fn directory(segments: Vec<Forge>, story: &str) -> Directory {
    Directory {
        files: segments.into_iter().map(Forge::done).collect(),
        lock: Some(lock_with(UUID)),
        story: story.to_owned(),
    }
}

/// The bytes that follow a cut, in the place of those that were cut.
#[derive(Clone, Copy, Debug)]
enum Behind {
    Nothing,
    Zeros,
    Noise,
    /// The begin of the segment's frames again.
    Frames,
}

/// Cuts a log of three records at every byte of the last; nothing but the first two and the next
/// append may be there after a writer has opened it.
fn cut_at_every_byte(len: usize, behind: Behind, counts: &mut Counts) {
    let mut whole = Forge::new(1, 1, 1_000, 1);
    whole.batch(1, &[b"one"]);
    whole.batch(1, &[b"the second"]);
    let begin = whole.file.len();
    whole.batch(1, &[&vec![0xA5; len]]);
    let end = whole.file.len();
    let rest = match behind {
        Behind::Nothing => Vec::new(),
        Behind::Zeros => vec![0; 4096],
        Behind::Noise => [0x9E, 0x37, 0x79, 0xB9, 1, 0, 7].repeat(100),
        Behind::Frames => whole.file[12_288..begin].repeat(6),
    };
    for k in (begin..=end).step_by(sized(1, 1, 5)) {
        let mut cut = whole.clone();
        cut.file.truncate(k);
        cut.file.extend(&rest);
        let story = format!("a record of {len} bytes cut at {}, {behind:?} behind", k - begin);
        let directory = directory(vec![cut], &story);
        let found = judge(&directory.files, directory.lock.as_deref());
        // The padding is zeros too.
        let payload_end = begin + 32 + len;
        let is_whole = k == end || (k >= payload_end && matches!(behind, Behind::Zeros));
        assert_eq!(found.last, if is_whole { 3 } else { 2 }, "{story}");
        assert!(matches!(found.verdict, Verdict::Clean | Verdict::Torn), "{story}");
        // Opens as a writer, appends, closes, and reads again.
        differential::check(&directory, &story);
        *counts = std::mem::take(counts).plus(Counts::of(&found));
    }
}

#[test]
fn a_record_cut_at_any_byte_is_left_out_and_the_next_append_stands() {
    let mut counts = Counts::default();
    let lens: &[usize] = &[0, 1, 7, 8, 9, 100, 600];
    for &len in sized(lens, lens, &lens[..5]) {
        for behind in [Behind::Nothing, Behind::Zeros, Behind::Noise, Behind::Frames] {
            cut_at_every_byte(len, behind, &mut counts);
        }
    }
    figure(9, "last records cut at every byte", counts.all());
}

/// A log of two segments whose frames stand at the same offsets whatever `mark` is.
fn sibling(salt: u64, mark: u8) -> Directory {
    let mut sealed = Forge::with_salt(1, 1, 1_000, salt);
    for len in [3, 40, 40, 300, 0] {
        sealed.batch(1, &[&vec![mark; len]]);
    }
    sealed.footer(0);
    let mut tail = Forge::with_salt(2, 6, sealed.next().1, salt ^ 77);
    for len in [40, 40, 3] {
        tail.batch(1, &[&vec![mark; len], &[mark; 9]]);
    }
    tail.batch(1, &[&[mark; 700]]);
    tail.fill();
    directory(vec![sealed, tail], "a sibling")
}

/// Offsets and ends of the frames of a segment.
fn frames(file: &[u8]) -> Vec<(usize, usize)> {
    let salt = u64::from_le_bytes(file[56..64].try_into().unwrap());
    let mut found = Vec::new();
    let mut at = 12_288;
    while let Some(header) = frame_header(file, at, salt) {
        let end = at + (32 + header.length).next_multiple_of(8);
        found.push((at, end));
        at = end;
    }
    found
}

fn check(sound: &Sound, spliced: &Directory, story: &str, counts: &mut Counts) {
    let found = judge(&spliced.files, spliced.lock.as_deref());
    for record in &found.records {
        assert!(sound.is_own(record), "{story}: {record:?} is served");
    }
    differential::check(spliced, story);
    *counts = std::mem::take(counts).plus(Counts::of(&found));
}

#[test]
fn no_bytes_of_a_sibling_are_served() {
    let ours = Sound::new("ours".to_owned(), sibling(0x1111_2222_3333_4444, 0x11));
    let theirs = sibling(0x5555_6666_7777_8888, 0x99);
    let mut counts = Counts::default();
    for (index, (name, bytes)) in theirs.files.iter().enumerate() {
        let pieces = frames(bytes)
            .into_iter()
            .chain(frames(bytes).into_iter().map(|(at, _)| (at, bytes.len())));
        let blocks = [512, 4096].into_iter().flat_map(|block| {
            (0..bytes.len()).step_by(block).map(move |at| (at, bytes.len().min(at + block)))
        });
        for (from, to) in pieces.chain(blocks) {
            let mut spliced = ours.directory.clone();
            let file = &mut spliced.files[index].1;
            file[from..to].copy_from_slice(&bytes[from..to]);
            check(&ours, &spliced, &format!("{name} has {from}..{to} of a sibling"), &mut counts);
        }
    }
    figure(9, "splices from a sibling", counts.all());
}

#[test]
fn no_record_is_served_in_the_place_of_another() {
    let ours = Sound::new("ours".to_owned(), sibling(0x1111_2222_3333_4444, 0x11));
    let mut counts = Counts::default();
    for (index, (name, bytes)) in ours.directory.files.iter().enumerate() {
        let frames = frames(bytes);
        for &(a, a_end) in &frames {
            for &(b, b_end) in frames.iter().filter(|(b, _)| *b != a) {
                let len = (a_end - a).min(b_end - b);
                let mut doubled = ours.directory.clone();
                let file = &mut doubled.files[index].1;
                file.copy_within(a..a + len, b);
                check(&ours, &doubled, &format!("{name}: {a} also at {b}"), &mut counts);
                let mut swapped = doubled.clone();
                swapped.files[index].1[a..a + len].copy_from_slice(&bytes[b..b + len]);
                check(&ours, &swapped, &format!("{name}: {a} and {b} swapped"), &mut counts);
            }
        }
    }
    figure(9, "records swapped or doubled", counts.all());
}
