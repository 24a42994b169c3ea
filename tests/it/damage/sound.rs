//! A log without damage, and what may not be lost or changed in it without a word.

use std::collections::BTreeMap;
use std::ops::Range;

use oncelog::Severity;

use super::images;
use crate::differential::library::Seen;
use crate::image::Directory;
use crate::image::still::Still;
use crate::reference::{Finding, Kept, every_record, judge};

/// A log, and what is known of it without damage.
pub(super) struct Sound {
    pub(super) name: String,
    pub(super) directory: Directory,
    pub(super) still: Still,
    pub(super) finding: Finding,
    pub(super) proven_by_slots: u64,
    records: BTreeMap<u64, Kept>,
    /// Per file, what a flip within a range has to be called at least.
    promised: Vec<Vec<(Range<usize>, Severity)>>,
}

impl Sound {
    pub(super) fn new(name: String, directory: Directory) -> Self {
        let finding = judge(&directory.files, directory.lock.as_deref());
        let records = every_record(&directory.files);
        let still = Still::new(&directory);
        let promised = promises(&directory, &finding, &records);
        let proven_by_slots = proven_by_slots(&directory);
        Self { name, directory, still, finding, proven_by_slots, records, promised }
    }

    /// How bad a flip of a byte has to be called at least.
    pub(super) fn least(&self, file: usize, at: usize) -> Severity {
        let ranges = self.promised.get(file).map_or(&[][..], Vec::as_slice);
        let found = ranges.iter().filter(|(range, _)| range.contains(&at)).map(|(_, s)| *s);
        found.max().unwrap_or(Severity::Info)
    }

    /// Whether a record was appended to this log, in this place.
    pub(super) fn is_own(&self, record: &Kept) -> bool {
        self.records.get(&record.lsn) == Some(record)
    }

    /// Whether this flip makes whole what was damaged when the log was kept.
    pub(super) fn is_healed_by(&self, at: usize, bit: usize) -> bool {
        (self.name.as_str(), at, bit) == ("torn", 12_470, 0)
    }

    /// What the library serves is what was appended, and all of it up to `promised` unless it says
    /// what is damaged.
    pub(super) fn is_honest(&self, seen: &Seen, promised: u64) -> Result<(), String> {
        let mut next = seen.oldest;
        for record in &seen.records {
            if record.lsn != next || self.records.get(&next) != Some(record) {
                return Err(format!("in place of record {next} there is {record:?}"));
            }
            next += 1;
        }
        let worst = seen.findings.iter().map(|told| told.severity).max();
        let is_told = worst.is_some_and(|worst| worst >= Severity::Unsupported);
        if !is_told && (next <= promised || seen.oldest > self.finding.oldest) {
            return Err(format!("{next} is gone without a word, {:?}", seen.findings));
        }
        Ok(())
    }
}

/// The last record that is proven by what no damage to the frames of the last segment takes away
/// with it: a slot, or the segment itself.
fn proven_by_slots(directory: &Directory) -> u64 {
    let mut directory = directory.clone();
    let tail = directory.files.iter_mut().filter(|(name, _)| is_segment(name)).max();
    let Some((_, file)) = tail else { return 0 };
    file.truncate(12_288);
    judge(&directory.files, directory.lock.as_deref()).proven
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
            // One that is damaged already may be made whole.
            let ends_in_footer = bytes.ends_with(b"toofecno") && !finding.rows.contains(&'K');
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

/// The golden logs.
pub(super) fn golden() -> Vec<Sound> {
    images("golden").into_iter().map(|(name, image)| Sound::new(name, image.directory)).collect()
}
