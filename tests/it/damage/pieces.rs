//! Every length, every zeroed block, and every pair of segments swapped, doubled or missing, of
//! every golden log; each verdict is that of the reference.

use std::path::Path;

use super::sound::{Sound, golden};
use super::{Counts, shared_out, sized};
use crate::differential::library::{look_by, machine_of};
use crate::differential::{self, differences, differences_of_writer};
use crate::figures::figure;
use crate::image::Directory;
use crate::image::still::{DIR, Harm, Still};
use crate::reference::judge;

/// One damage in so many is also opened by a writer.
const WRITERS: usize = 211;

/// Compares the verdicts on a directory that has this harm; which one it is.
pub(super) fn check(
    sound: &Sound,
    directory: &Directory,
    file: usize,
    harm: Harm,
    turn: usize,
) -> Counts {
    let story = || format!("{}, file {file}, {harm:?}", sound.name);
    let expected = judge(&directory.files, directory.lock.as_deref());
    let seen = look_by(sound.still.with(file, harm), Path::new(DIR));
    let told = differences(&expected, &seen);
    assert!(told.is_empty(), "{}\n{told}{:#?}", story(), seen.findings);
    if let Err(e) = sound.is_honest(&seen, sound.proven_by_slots) {
        panic!("{}: {e}", story());
    }
    if turn.is_multiple_of(WRITERS) {
        let told = differences_of_writer(&expected, &machine_of(directory));
        assert!(told.is_empty(), "{}\n{told}", story());
    }
    Counts::of(&expected)
}

/// Runs `work` on every file of every golden log in pieces of so many steps.
fn for_all(step: usize, work: impl Fn(&Sound, usize, usize, usize) -> Counts + Sync) -> Counts {
    const PIECE: usize = 64;
    let logs = golden();
    let mut pieces = Vec::new();
    for sound in &logs {
        for file in 0..sound.directory.count() {
            let len = sound.directory.file(file).map_or(0, |(_, bytes)| bytes.len());
            let pieces_of = (0..=len).step_by(step * PIECE);
            pieces.extend(pieces_of.map(|from| (sound, file, from, len.min(from + step * PIECE))));
        }
    }
    let counts = shared_out(&pieces, |(sound, file, from, to)| work(sound, *file, *from, *to));
    counts.into_iter().fold(Counts::default(), Counts::plus)
}

#[test]
fn every_length_of_every_file_has_its_verdict() {
    let step = sized(1, 1, 1_999);
    let counts = for_all(step, |sound, file, from, to| {
        let mut directory = sound.directory.clone();
        let mut counts = Counts::default();
        for len in (from..to).step_by(step).rev() {
            directory.bytes_mut(file).unwrap().truncate(len);
            counts = counts.plus(check(sound, &directory, file, Harm::Cut { len }, len));
        }
        counts
    });
    figure(9, "truncation lengths", counts.all());
    println!("{counts:?}");
}

#[test]
fn every_zeroed_block_has_its_verdict() {
    for block in [512, 4096] {
        let step = sized(1, 1, 41) * block;
        let counts = for_all(step, |sound, file, from, to| {
            let mut counts = Counts::default();
            for at in (from..to).step_by(step) {
                let mut directory = sound.directory.clone();
                let bytes = directory.bytes_mut(file).unwrap();
                let end = bytes.len().min(at + block);
                bytes[at..end].fill(0);
                let harm = Harm::Zeros { from: at, to: end };
                counts = counts.plus(check(sound, &directory, file, harm, at / block));
            }
            counts
        });
        figure(9, &format!("zeroed blocks of {block} bytes"), counts.all());
        println!("{counts:?}");
    }
}

/// A directory whose files were moved about.
pub(super) fn check_moved(sound: &Sound, directory: &Directory, story: &str, counts: &mut Counts) {
    let story = format!("{}: {story}", sound.name);
    let seen = look_by(std::sync::Arc::new(Still::new(directory)), Path::new(DIR));
    if let Err(e) = sound.is_honest(&seen, 0) {
        panic!("{story}: {e}");
    }
    differential::check(directory, &story);
    let expected = judge(&directory.files, directory.lock.as_deref());
    *counts = std::mem::take(counts).plus(Counts::of(&expected));
}

#[test]
fn every_pair_of_segments_swapped_doubled_or_missing_has_its_verdict() {
    let mut counts = Counts::default();
    for sound in &golden() {
        let files = &sound.directory.files;
        for (a, (name, bytes)) in files.iter().enumerate() {
            let mut missing = sound.directory.clone();
            missing.files.remove(a);
            check_moved(sound, &missing, &format!("{name} is missing"), &mut counts);
            // Under the name of the next segment, of one before, and under another spelling.
            let next = format!("{:010}-{:020}.seg", 90 + a, 1);
            for copy in [next.as_str(), "0000000000-00000000000000000001.seg", "00000000001-1.seg"]
            {
                let mut doubled = sound.directory.clone();
                doubled.files.push((copy.to_owned(), bytes.clone()));
                check_moved(sound, &doubled, &format!("{name} is also {copy}"), &mut counts);
            }
            for (b, (other, theirs)) in files.iter().enumerate().filter(|(b, _)| *b != a) {
                let mut swapped = sound.directory.clone();
                swapped.files[b].1.clone_from(bytes);
                check_moved(sound, &swapped, &format!("{name} for {other}"), &mut counts);
                swapped.files[a].1.clone_from(theirs);
                check_moved(sound, &swapped, &format!("{name} and {other}"), &mut counts);
                let mut both = sound.directory.clone();
                both.files.remove(a.max(b));
                both.files.remove(a.min(b));
                check_moved(sound, &both, &format!("no {name}, no {other}"), &mut counts);
            }
        }
    }
    figure(9, "segments swapped, doubled or missing", counts.all());
    println!("{counts:?}");
}
