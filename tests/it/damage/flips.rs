//! Every single bit of every golden log, inverted.
//!
//! Whatever the bit: nothing panics, no record is served but what was appended, and none that was
//! promised is left out in silence. A bit in bytes that a sync had promised is always told, as
//! damage of what it is in. The verdict is that of the reference.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use oncelog::Severity;

use super::{images, shared_out, sized};
use crate::differential::library::{Seen, look_by};
use crate::differential::shape::Dice;
use crate::differential::{self, differences, written};
use crate::figures::figure;
use crate::image::Directory;
use crate::image::still::{DIR, Harm, Still};
use crate::reference::{Finding, Kept, Verdict, every_record, judge};

/// One flip in so many is also opened by a writer.
const WRITERS: usize = 4_999;

/// A log, and what is known of it without damage.
struct Sound {
    name: String,
    directory: Directory,
    still: Still,
    finding: Finding,
    records: BTreeMap<u64, Kept>,
    /// Per file, what a flip within a range has to be called at least.
    promised: Vec<Vec<(Range<usize>, Severity)>>,
}

impl Sound {
    fn new(name: String, directory: Directory) -> Self {
        let finding = judge(&directory.files, directory.lock.as_deref());
        let records = every_record(&directory.files);
        let still = Still::new(&directory);
        let promised = promises(&directory, &finding, &records);
        Self { name, directory, still, finding, records, promised }
    }

    /// How bad a flip of a byte has to be called at least.
    fn least(&self, file: usize, at: usize) -> Severity {
        let ranges = self.promised.get(file).map_or(&[][..], Vec::as_slice);
        let found = ranges.iter().filter(|(range, _)| range.contains(&at)).map(|(_, s)| *s);
        found.max().unwrap_or(Severity::Info)
    }

    /// What the library serves is what was appended, and all of it that was promised unless it
    /// says what is damaged.
    fn is_honest(&self, seen: &Seen) -> Result<(), String> {
        let mut next = seen.oldest;
        for record in &seen.records {
            if record.lsn != next || self.records.get(&next) != Some(record) {
                return Err(format!("in place of record {next} there is {record:?}"));
            }
            next += 1;
        }
        let worst = seen.findings.iter().map(|told| told.severity).max();
        let is_told = worst.is_some_and(|worst| worst >= Severity::Unsupported);
        if !is_told && (next <= self.finding.proven || seen.oldest > self.finding.oldest) {
            return Err(format!("{next} is gone without a word, {:?}", seen.findings));
        }
        Ok(())
    }
}

/// Which bytes a sync had promised, and what damage to them is called.
fn promises(
    directory: &Directory,
    finding: &Finding,
    records: &BTreeMap<u64, Kept>,
) -> Vec<Vec<(Range<usize>, Severity)>> {
    let segments = directory.files.iter().filter(|(name, _)| is_segment(name));
    let last = segments.map(|(name, _)| name.as_str()).max().unwrap_or_default();
    let mut all = Vec::new();
    for (name, bytes) in &directory.files {
        let mut promised = Vec::new();
        let number = name.split('-').next().and_then(|digits| digits.parse::<u64>().ok());
        let of_log = finding.records.iter().any(|record| Some(record.segment) == number);
        if is_segment(name) && (of_log || name == last) {
            promised.push((0..12_288, Severity::Degraded));
            let here = records.values().filter(|record| Some(record.segment) == number);
            for record in here.filter(|record| record.lsn <= finding.proven) {
                let from = usize::try_from(record.offset).unwrap();
                let to = from + (32 + record.payload.len()).next_multiple_of(8);
                promised.push((from..to, Severity::Corrupt));
            }
            let ends_in_footer = bytes.ends_with(b"toofecno");
            if ends_in_footer && name != last {
                let length = bytes[bytes.len() - 16..][..4].try_into().unwrap();
                let length = usize::try_from(u32::from_le_bytes(length)).unwrap();
                promised.push((bytes.len() - length..bytes.len(), Severity::Degraded));
            }
        }
        all.push(promised);
    }
    all.push(vec![(0..32, Severity::Corrupt)]); // LOCK
    all
}

fn is_segment(name: &str) -> bool {
    name.len() == 35 && name.ends_with(".seg")
}

/// How many bits were flipped, and of how many the reference was asked.
#[derive(Default)]
struct Counts {
    flips: u64,
    compared: u64,
}

/// Which of the bits are flipped, and which of the verdicts are held against the reference.
#[derive(Clone, Copy)]
struct Density {
    /// One byte in so many, with all of its bits or one of them.
    bytes: usize,
    bits: usize,
    /// One flip in so many where no sync had promised a record.
    compared: usize,
}

/// Flips the bits of a range of a file.
fn flip_all(sound: &Sound, file: usize, range: Range<usize>, density: Density) -> Counts {
    let mut directory = sound.directory.clone();
    let mut counts = Counts::default();
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
    counts: &mut Counts,
) {
    let value = directory.file(file).unwrap().1[at];
    let seen = look_by(sound.still.with(file, Harm::Byte { at, value }), Path::new(DIR));
    let story = || format!("{}, file {file}, bit {bit} of {at}", sound.name);
    if let Err(e) = sound.is_honest(&seen) {
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
fn flip_logs(logs: &[Sound], density: Density) -> Counts {
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
    counts.into_iter().fold(Counts::default(), |sum, counts| Counts {
        flips: sum.flips + counts.flips,
        compared: sum.compared + counts.compared,
    })
}

fn golden() -> Vec<Sound> {
    images("golden").into_iter().map(|(name, image)| Sound::new(name, image.directory)).collect()
}

#[test]
fn no_flipped_bit_of_a_golden_log_is_served_or_kept_silent() {
    let logs = golden();
    let all = Density { bytes: 1, bits: 1, compared: sized(1, 31, 31) };
    let Counts { flips, compared } =
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
    let Counts { flips, compared } = flip_logs(&logs, Density { bytes: 1, bits: 1, compared: 63 });
    figure(8, "single-bit flips of larger logs", flips);
    figure(8, "single-bit flips of larger logs held against the reference", compared);
    assert!(flips >= 9_000_000, "{flips} flips");
}
