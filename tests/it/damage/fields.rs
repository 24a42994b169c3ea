//! Every field of every structure at the ends of its range, under checksums that hold.
//!
//! A length or a count that is believed before it is compared has cost other logs an allocation
//! of gigabytes, a panic, or a record.

use super::seal::{Structure, put, structures, word};
use super::{Counts, images, shared_out, sized};
use crate::differential;
use crate::figures::figure;
use crate::image::Directory;
use crate::reference::judge;

/// The golden logs whose fields are changed.
const LOGS: &[&str] = &["batches", "rolled", "trimmed", "sealed-tail", "kinds", "forged-lags"];
const RECORD_LEN_MAX: u64 = 268_435_456;
const TIME_MS_MAX: u64 = (1 << 48) - 1;
const FOOTER_LEN_MAX: u64 = 393_336;

/// What a field is set to: the ends of its range, the bytes that are left, and the ends of others.
fn values(left: u64, old: u64) -> Vec<u64> {
    let mut values = vec![0, 1, 1 << 31, (1 << 32) - 1, 1 << 63, u64::MAX];
    for edge in [RECORD_LEN_MAX, TIME_MS_MAX, FOOTER_LEN_MAX, left, old] {
        values.extend([edge.wrapping_sub(1), edge, edge + 1]);
    }
    values.extend([old + 8, old.wrapping_sub(8)]);
    values
}

/// The structures of a file of a directory.
fn structures_of(directory: &Directory, file: usize) -> Vec<Structure> {
    let Some((name, bytes)) = directory.file(file) else { return Vec::new() };
    if name == "LOCK" { vec![Structure::Lock] } else { structures(bytes) }
}

/// Sets the fields of one structure.
fn check(name: &str, whole: &Directory, file: usize, structure: Structure) -> Counts {
    let mut counts = Counts::default();
    let mut turn = 0;
    let (_, bytes) = whole.file(file).unwrap();
    let left = (bytes.len() - structure.at()) as u64;
    for &(field, offset, width) in structure.fields() {
        let at = structure.at() + offset;
        let mask = u64::MAX >> (64 - 8 * width);
        let old = word(bytes, at) & mask;
        let mut values: Vec<u64> =
            values(left, old).into_iter().map(|value| value & mask).collect();
        values.sort_unstable();
        values.dedup();
        for value in values {
            for sealed in [true, false] {
                turn += 1;
                if turn % sized(1, 1, 61) != 0 {
                    continue;
                }
                let mut directory = whole.clone();
                let bytes = directory.bytes_mut(file).unwrap();
                put(bytes, at, value.to_le_bytes().get(..width).unwrap());
                if sealed {
                    structure.seal(bytes);
                }
                let story = format!(
                    "{name}, file {file}, {structure:?}: {field} is {value} in place of {old}, \
                     checksums hold: {sealed}"
                );
                differential::check(&directory, &story);
                let found = judge(&directory.files, directory.lock.as_deref());
                counts = counts.plus(Counts::of(&found));
            }
        }
    }
    counts
}

#[test]
fn every_field_at_the_ends_of_its_range_has_its_verdict() {
    let mut work = Vec::new();
    for (name, image) in images("golden").into_iter().filter(|(name, _)| LOGS.contains(&&**name)) {
        for file in 0..image.directory.count() {
            for structure in structures_of(&image.directory, file) {
                work.push((name.clone(), image.directory.clone(), file, structure));
            }
        }
    }
    let counts = shared_out(&work, |(name, directory, file, structure)| {
        check(name, directory, *file, *structure)
    });
    let counts = counts.into_iter().fold(Counts::default(), Counts::plus);
    figure(9, "fields at the ends of their range", counts.all());
    println!("{counts:?}");
}
