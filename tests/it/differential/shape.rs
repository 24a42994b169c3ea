//! Directories of logs as a writer, a crash or a stranger could have left them.

use std::fmt::Write as _;

use crate::image::Directory;
use crate::reference::forge::{Forge, UUID, lock_with};

/// Numbers that a seed decides (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD129_2EFC_67D5_4E6D))
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`, or 0 when that is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.word().checked_rem(end).unwrap_or(0)
    }

    /// An index below `end`.
    pub(crate) fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    /// True once in `count` times.
    pub(crate) fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.word().to_le_bytes()[0]).collect()
    }
}

/// Forges a log of one to four segments; `odds` above 0 allows what no writer does.
pub(crate) fn forged(dice: &mut Dice, odds: u64) -> Directory {
    let segment_count = 1 + dice.below(4);
    let oldest_in_new = if dice.once_in(3) { 1 + dice.below(12) } else { 1 };
    let mut writer = Writer { durable: 0, next: 1, time: 1_000, oldest: 1, story: String::new() };
    let mut segments = Vec::new();
    let mut number = 0;
    for index in 0..segment_count {
        number += 1 + u64::from(dice.once_in(5));
        let is_tail = index + 1 == segment_count;
        let mut forge = Forge::new(number, writer.next, writer.time, writer.oldest);
        for _ in 0..dice.below(5) {
            writer.group(&mut forge, dice);
        }
        if writer.durable >= oldest_in_new && writer.oldest < oldest_in_new {
            writer.oldest = oldest_in_new;
            let end = forge.file.len() as u64;
            forge.slot(2, writer.durable, end, writer.oldest);
            forge.slot(3, writer.durable, end, writer.oldest);
        }
        if is_tail {
            writer.end_of_tail(&mut forge, dice);
        } else {
            writer.seal(&mut forge, dice, odds);
        }
        write!(writer.story, " segment {number} {} bytes,", forge.file.len()).unwrap();
        segments.push(forge);
    }
    let trimmed = segments
        .iter()
        .skip(1)
        .take_while(|successor| successor.first_lsn <= writer.oldest)
        .count();
    let removed = dice.index(trimmed + 1);
    let files = segments.into_iter().skip(removed).map(Forge::done).collect();
    write!(writer.story, " the first {removed} removed, oldest {}", writer.oldest).unwrap();
    Directory { files, lock: Some(lock_with(UUID)), story: writer.story }
}

/// What a writer knows.
struct Writer {
    durable: u64,
    next: u64,
    time: u64,
    oldest: u64,
    story: String,
}

impl Writer {
    /// One to three batches that one sync makes durable.
    fn group(&mut self, forge: &mut Forge, dice: &mut Dice) {
        for _ in 0..=dice.below(3) {
            let count = 1 + dice.below(3);
            for index in 0..count {
                self.frame(forge, dice, index + 1 == count);
            }
        }
        (self.next, self.time) = forge.next();
        self.durable = self.next - 1;
        if dice.once_in(3) {
            let end = forge.file.len() as u64;
            let counter = 2 + dice.below(2);
            forge.slot(counter, self.durable, end, self.oldest);
        }
    }

    fn frame(&self, forge: &mut Forge, dice: &mut Dice, ends_batch: bool) {
        let (lsn, _) = forge.next();
        let lag = u32::try_from(lsn - self.durable).unwrap_or(u32::MAX);
        let lag = if dice.once_in(9) { u32::MAX } else { lag };
        let len = dice.index(90);
        let mut payload = dice.bytes(len);
        if dice.once_in(4) {
            // A copy of the bytes before: frames of this segment in another place.
            let from = forge.file.len().saturating_sub(200).max(12_288);
            payload = forge.file.get(from..).unwrap_or_default().to_vec();
        } else if dice.once_in(6) {
            // A frame that is valid where it will stand.
            let at = forge.file.len() + 32;
            payload = forge.encode(at, lsn + dice.below(3), 1, b"within", true);
        }
        forge.frame(lag, &payload, ends_batch);
    }

    fn seal(&mut self, forge: &mut Forge, dice: &mut Dice, odds: u64) {
        if dice.once_in(8) {
            let dead = dice.index(20) * 8;
            let bytes = dice.bytes(dead);
            forge.file.extend(bytes);
            forge.footer(dead);
            self.story.push_str(" dead bytes,");
        } else if odds > 0 && dice.once_in(12) {
            // Its records are the log's, although their batch has no end.
            forge.frame(u32::MAX, b"open", false);
            (self.next, self.time) = forge.next();
            forge.footer(0);
            self.story.push_str(" an open batch,");
        } else if dice.once_in(6) {
            self.story.push_str(" no footer,");
        } else {
            forge.footer(0);
        }
    }

    /// What a crash, or a close, leaves behind the last group.
    fn end_of_tail(&mut self, forge: &mut Forge, dice: &mut Dice) {
        match dice.below(8) {
            0 => {}
            1 => forge.footer(0),
            2 => {
                for _ in 0..=dice.below(3) {
                    self.frame(forge, dice, false);
                }
                self.story.push_str(" an open batch at the end,");
                if dice.once_in(3) {
                    forge.footer(0);
                } else {
                    forge.fill();
                }
            }
            3 => {
                let hole = 8 * (1 + dice.index(60));
                forge.file.extend(vec![0; hole]);
                self.group(forge, dice);
                self.story.push_str(" a hole and a group,");
                forge.fill();
            }
            4 => {
                // A header behind a hole whose LSN is about the greatest that fits before it.
                let hole = 8 * (1 + dice.index(30));
                forge.file.extend(vec![0; hole]);
                let at = forge.file.len();
                let fit = (at as u64 - 12_288) / 32;
                let lsn = (forge.first_lsn + fit + dice.below(4)).saturating_sub(1);
                let lag = u32::try_from(dice.below(3)).unwrap_or(0);
                let frame = forge.encode(at, lsn, lag, b"far", dice.once_in(2));
                forge.file.extend(frame);
                self.story.push_str(" a far header,");
            }
            5 => {
                let len = dice.index(300);
                let bytes = dice.bytes(len);
                forge.file.extend(bytes);
                self.story.push_str(" noise at the end,");
            }
            _ => forge.fill(),
        }
    }
}
