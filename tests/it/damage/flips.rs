//! Every single bit of every golden log, inverted.
//!
//! Whatever the bit: nothing panics, no record is served but what was appended, and none that was
//! promised is left out in silence. A bit in bytes that a sync had promised is always told, as
//! damage of what it is in. The verdict is that of the reference.

use std::ops::Range;
use std::path::Path;

use oncelog::Severity;

use super::sound::{Sound, golden};
use super::{shared_out, sized};
use crate::differential::library::look_by;
use crate::differential::shape::Dice;
use crate::differential::{self, differences, written};
use crate::figures::figure;
use crate::image::Directory;
use crate::image::still::{DIR, Harm};
use crate::reference::{Verdict, judge};

/// One flip in so many is also opened by a writer.
const WRITERS: usize = 4_999;

/// How many bits were flipped, and of how many the reference was asked.
#[derive(Default)]
pub(super) struct Flips {
    flips: u64,
    compared: u64,
}

/// Which of the bits are flipped, and which of the verdicts are held against the reference.
#[derive(Clone, Copy)]
pub(super) struct Density {
    /// One byte in so many, with all of its bits or one of them.
    pub(super) bytes: usize,
    pub(super) bits: usize,
    /// One flip in so many where no sync had promised a record.
    pub(super) compared: usize,
}

/// Flips the bits of a range of a file.
pub(super) fn flip_all(sound: &Sound, file: usize, range: Range<usize>, density: Density) -> Flips {
    let mut directory = sound.directory.clone();
    let mut counts = Flips::default();
    for at in range.step_by(density.bytes) {
        let least = sound.least(file, at);
        for bit in (0..8).skip(at % density.bits).step_by(density.bits) {
            directory.bytes_mut(file).unwrap()[at] ^= 1 << bit;
            flip(sound, &directory, (file, at, bit), least, density.compared, &mut counts);
            directory.bytes_mut(file).unwrap()[at] ^= 1 << bit;
        }
    }
    counts
}

/// Judges a log with one bit flipped, which `directory` has and which must be called `least`.
fn flip(
    sound: &Sound,
    directory: &Directory,
    (file, at, bit): (usize, usize, usize),
    least: Severity,
    compared: usize,
    counts: &mut Flips,
) {
    let value = directory.file(file).unwrap().1[at];
    let seen = look_by(sound.still.with(file, Harm::Byte { at, value }), Path::new(DIR));
    let story = || format!("{}, file {file}, bit {bit} of {at}", sound.name);
    let honest = sound.is_honest(&seen, sound.finding.proven);
    if let Some(e) = honest.err().filter(|_| !sound.is_healed_by(at, bit)) {
        panic!("{}: {e}", story());
    }
    let worst = seen.findings.iter().map(|told| told.severity).max().unwrap_or(Severity::Info);
    let found = &seen.findings;
    assert!(worst >= least, "{}: expected {least:?} at least, found {found:#?}", story());
    let turn = at * 8 + bit;
    if least > Severity::Degraded || turn.is_multiple_of(compared) {
        let expected = judge(&directory.files, directory.lock.as_deref());
        let told = differences(&expected, &seen);
        assert!(told.is_empty(), "{}\n{told}{found:#?}", story());
        counts.compared += 1;
    }
    if turn.is_multiple_of(WRITERS) {
        differential::check(directory, &story());
    }
    counts.flips += 1;
}

/// Flips the bits of these logs.
fn flip_logs(logs: &[Sound], density: Density) -> Flips {
    const PIECE: usize = 1024;
    let mut pieces = Vec::new();
    for (index, sound) in logs.iter().enumerate() {
        for file in 0..sound.directory.count() {
            let len = sound.directory.file(file).map_or(0, |(_, bytes)| bytes.len());
            for from in (0..len).step_by(PIECE) {
                pieces.push((index, file, from..len.min(from + PIECE)));
            }
        }
    }
    let counts = shared_out(&pieces, |(index, file, range)| {
        flip_all(&logs[*index], *file, range.clone(), density)
    });
    counts.into_iter().fold(Flips::default(), |sum, counts| Flips {
        flips: sum.flips + counts.flips,
        compared: sum.compared + counts.compared,
    })
}

#[test]
fn no_flipped_bit_of_a_golden_log_is_served_or_kept_silent() {
    let logs = golden();
    let all = Density { bytes: 1, bits: 1, compared: sized(1, 31, 31) };
    let Flips { flips, compared } =
        flip_logs(&logs, sized(all, all, Density { bytes: 331, bits: 8, compared: 31 }));
    figure(8, "golden logs", logs.len());
    figure(8, "single-bit flips", flips);
    figure(8, "single-bit flips held against the reference", compared);
    assert!(sized(true, true, false) <= (flips >= 1_000_000), "{flips} flips");
}

#[test]
fn no_flipped_bit_of_a_larger_log_is_served_or_kept_silent() {
    if !sized(true, false, false) {
        return;
    }
    let mut logs = Vec::new();
    let mut bytes = 0;
    for seed in 50_000.. {
        let directory = written::written(&mut Dice::new(seed));
        let sound = Sound::new(format!("seed {seed}: {}", directory.story), directory);
        if !matches!(sound.finding.verdict, Verdict::Clean | Verdict::Torn) {
            continue;
        }
        bytes += sound.directory.files.iter().map(|(_, file)| file.len()).sum::<usize>();
        logs.push(sound);
        if bytes > 1_200_000 {
            break;
        }
    }
    let Flips { flips, compared } = flip_logs(&logs, Density { bytes: 1, bits: 1, compared: 63 });
    figure(8, "single-bit flips of larger logs", flips);
    figure(8, "single-bit flips of larger logs held against the reference", compared);
    assert!(flips >= 9_000_000, "{flips} flips");
}
