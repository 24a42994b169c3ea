//! Each bug of the reading of a log must be seen in a sample of the damage that this part does.

use std::panic::{AssertUnwindSafe, catch_unwind};

use oncelog::planted::{Bug, plant_here};

use super::flips::{Density, flip_all};
use super::pieces::{check, check_moved};
use super::sound::{Sound, golden};
use super::{Counts, images};
use crate::differential;
use crate::figures::figure;
use crate::image::Image;
use crate::image::still::Harm;

/// The bugs that crashes show too, and those that damage alone does.
const BUGS: [Bug; 7] = [
    Bug::ZerosNotScanned,
    Bug::FooterIsProof,
    Bug::CrcWithoutLength,
    Bug::ZerosAccepted,
    Bug::HalfBatch,
    Bug::CutBatchIsClean,
    Bug::LaterNotAsked,
];

/// Flips, cuts, zeros and moves of each file of a log, a sample of those of the other tests.
fn damage(sound: &Sound) {
    for (file, (_, bytes)) in sound.directory.files.iter().enumerate() {
        flip_all(sound, file, 0..bytes.len(), Density { bytes: 37, bits: 8, compared: 1 });
        for len in (0..bytes.len()).step_by(61) {
            let mut directory = sound.directory.clone();
            directory.bytes_mut(file).unwrap().truncate(len);
            check(sound, &directory, file, Harm::Cut { len }, len);
        }
        for from in (0..bytes.len()).step_by(512) {
            let mut directory = sound.directory.clone();
            let to = bytes.len().min(from + 512);
            directory.bytes_mut(file).unwrap()[from..to].fill(0);
            check(sound, &directory, file, Harm::Zeros { from, to }, from / 512);
        }
        let mut missing = sound.directory.clone();
        let (name, _) = missing.files.remove(file);
        check_moved(sound, &missing, &format!("{name} is missing"), &mut Counts::default());
        for (other, (_, theirs)) in sound.directory.files.iter().enumerate() {
            let mut swapped = sound.directory.clone();
            swapped.files[file].1.clone_from(theirs);
            let story = format!("{other} for {name}");
            check_moved(sound, &swapped, &story, &mut Counts::default());
        }
    }
}

/// The log, of those that were damaged by hand and those that are damaged here, which is not judged
/// as it must be.
fn misjudged(logs: &[Sound], corpus: &[(String, Image)]) -> Option<String> {
    let fails = |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err();
    let of_corpus = corpus.iter().find(|(name, image)| {
        fails(&|| {
            differential::check(&image.directory, name);
        })
    });
    of_corpus
        .map(|(name, _)| name)
        .or_else(|| Some(&logs.iter().find(|log| fails(&|| damage(log)))?.name))
        .cloned()
}

#[test]
fn every_planted_bug_of_reading_is_caught_by_damage() {
    let (logs, corpus) = (golden(), images("corpus"));
    assert_eq!(misjudged(&logs, &corpus), None, "without a bug");
    let mut survivors = Vec::new();
    for bug in BUGS {
        plant_here(bug);
        let caught = misjudged(&logs, &corpus);
        plant_here(Bug::None);
        match caught {
            Some(name) => println!("caught {bug:?} by {name}"),
            None => survivors.push(bug),
        }
    }
    figure(12, "planted bugs caught by damage", BUGS.len() - survivors.len());
    assert!(survivors.is_empty(), "{survivors:?}");
}
