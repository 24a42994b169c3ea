//! Damage to a directory, and bytes that nobody damaged but somebody made.

use super::shape::Dice;
use crate::image::Directory;
use crate::reference::bytes::{crc, frame_header, header_check, seeded_crc};

type File = (String, Vec<u8>);

/// Damages a directory and says how.
pub(super) fn damage(directory: &mut Directory, dice: &mut Dice) -> String {
    match dice.below(10) {
        0 => damage_lock(directory, dice),
        1 => damage_names(directory, dice),
        2 | 3 => pick(directory, dice, |file, dice| reseal_slot(file, dice)),
        4 => pick(directory, dice, |file, dice| reseal_header(file, dice)),
        5 | 6 => pick(directory, dice, |file, dice| reseal_frame(file, dice)),
        7 => pick(directory, dice, |file, dice| reseal_footer(file, dice)),
        _ => pick(directory, dice, damage_bytes),
    }
}

fn pick(
    directory: &mut Directory,
    dice: &mut Dice,
    harm: fn(&mut Vec<u8>, &mut Dice) -> String,
) -> String {
    let index = dice.index(directory.files.len());
    let Some((name, file)) = directory.files.get_mut(index) else { return "no file".to_owned() };
    format!("{name}: {}", harm(file, dice))
}

fn damage_lock(directory: &mut Directory, dice: &mut Dice) -> String {
    let len = dice.index(40);
    let Some(lock) = &mut directory.lock else { return "no LOCK".to_owned() };
    match dice.below(6) {
        0 => {
            directory.lock = None;
            "LOCK removed".to_owned()
        }
        1 => {
            lock.fill(0);
            "LOCK zeroed".to_owned()
        }
        2 => {
            lock.truncate(len);
            format!("LOCK cut to {len}")
        }
        3 => {
            put(lock, 8, b"another identity");
            let sum = crc(0, lock.get(..28).unwrap_or_default()).to_le_bytes();
            put(lock, 28, &sum);
            "LOCK of another log".to_owned()
        }
        _ => format!("LOCK: {}", flip(lock, len, dice)),
    }
}

fn damage_names(directory: &mut Directory, dice: &mut Dice) -> String {
    let count = directory.files.len();
    let (index, other) = (dice.index(count), dice.index(count));
    let Some((name, file)) = directory.files.get(index).cloned() else {
        return "no file".to_owned();
    };
    match dice.below(7) {
        0 => {
            directory.files.remove(index);
            format!("{name} removed")
        }
        1 => {
            let copy = format!("{:010}-{:020}.seg", 1 + dice.below(9), 1 + dice.below(9));
            let taken = directory.files.iter().any(|(name, _)| *name == copy);
            if !taken {
                directory.files.push((copy.clone(), file));
            }
            format!("{name} copied to {copy}")
        }
        2 => {
            if let [(_, a), .., (_, b)] = directory.files.as_mut_slice() {
                std::mem::swap(a, b);
            }
            "first and last swapped".to_owned()
        }
        3 => {
            let from = directory.files.get(other).map(|(_, bytes)| bytes.clone());
            let at = dice.index(file.len() / 512) * 512;
            let block = from.as_deref().and_then(|from| from.get(at..at + 512)).map(<[u8]>::to_vec);
            if let (Some(block), Some((_, file))) = (block, directory.files.get_mut(index)) {
                put(file, at, &block);
            }
            format!("{name} has the sector at {at} of file {other}")
        }
        4 => {
            let longer = format!("0{name}");
            rename(&mut directory.files, index, longer.clone());
            format!("{name} renamed {longer}")
        }
        5 => {
            directory.files.push(("next.spare".to_owned(), file));
            "a spare".to_owned()
        }
        _ => {
            directory.files.push(("notes.txt".to_owned(), Vec::new()));
            "a stray".to_owned()
        }
    }
}

fn rename(files: &mut [File], index: usize, to: String) {
    if let Some((name, _)) = files.get_mut(index) {
        *name = to;
    }
}

/// What a disk does.
fn damage_bytes(file: &mut Vec<u8>, dice: &mut Dice) -> String {
    let len = file.len();
    let at = match dice.below(4) {
        0 => dice.index(128) + 4096 * dice.index(3),
        1 => len.saturating_sub(1 + dice.index(200)),
        2 => dice.index(len),
        _ => 12_288 + dice.index(len.saturating_sub(12_288).min(1_500)),
    };
    match dice.below(8) {
        0 => zero(file, at / 512 * 512, 512),
        1 => zero(file, at / 4096 * 4096, 4096),
        2 => zero(file, at / 8 * 8, 8 * (1 + dice.index(20))),
        3 => {
            file.truncate(at);
            format!("cut to {at}")
        }
        4 => {
            let len = 1 + dice.index(64);
            let bytes = dice.bytes(len);
            put(file, at, &bytes);
            format!("{len} other bytes at {at}")
        }
        5 => {
            let from = dice.index(len) / 8 * 8;
            let piece = file.get(from..).unwrap_or_default().iter().take(200).copied();
            let piece: Vec<u8> = piece.collect();
            put(file, at / 8 * 8, &piece);
            format!("200 bytes of {from} at {}", at / 8 * 8)
        }
        6 => {
            let more = dice.index(600);
            file.extend(vec![0; more]);
            format!("{more} zeros more")
        }
        _ => flip(file, at, dice),
    }
}

fn flip(bytes: &mut [u8], at: usize, dice: &mut Dice) -> String {
    let bit = dice.below(8);
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << bit;
    }
    format!("bit {bit} of {at} flipped")
}

fn zero(bytes: &mut [u8], at: usize, len: usize) -> String {
    for byte in bytes.iter_mut().skip(at).take(len) {
        *byte = 0;
    }
    format!("{len} bytes at {at} zeroed")
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (to, &from) in bytes.iter_mut().skip(at).zip(new) {
        *to = from;
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|field| field.first_chunk());
    u64::from_le_bytes(field.copied().unwrap_or_default())
}

/// A number near another one, or any.
fn near(dice: &mut Dice, value: u64) -> u64 {
    match dice.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => dice.word(),
        _ => value.wrapping_add(dice.below(9)).wrapping_sub(4),
    }
}

/// A slot that says something else under a checksum that holds.
fn reseal_slot(file: &mut [u8], dice: &mut Dice) -> String {
    let slot_at = if dice.once_in(2) { 4096 } else { 8192 };
    let field = [8, 16, 24, 32, 120][dice.index(5)];
    let new = near(dice, number(file, slot_at + field));
    let width = if field == 120 { 4 } else { 8 };
    put(file, slot_at + field, new.to_le_bytes().get(..width).unwrap_or_default());
    let Some(covered) = file.get(slot_at..slot_at + 124) else { return "no slot".to_owned() };
    let sum = crc(0, covered).to_le_bytes();
    put(file, slot_at + 124, &sum);
    format!("slot at {slot_at} says {new} at {field}")
}

/// A header that says something else under a checksum that holds; its copies may follow it.
fn reseal_header(file: &mut [u8], dice: &mut Dice) -> String {
    let fields = [(8, 2), (10, 2), (12, 4), (16, 4), (20, 4), (24, 8), (40, 8), (48, 8)];
    let all = [&fields[..], &[(56, 8), (64, 8), (72, 4)]].concat();
    let (field, width) = all[dice.index(all.len())];
    let new = near(dice, number(file, field));
    let place = dice.below(5);
    for (index, at) in [0, 4136, 8232].into_iter().enumerate() {
        if place < 3 && place != index as u64 {
            continue;
        }
        put(file, at + field, new.to_le_bytes().get(..width).unwrap_or_default());
        let Some(covered) = file.get(at..at + 76) else { continue };
        let sum = crc(0, covered).to_le_bytes();
        put(file, at + 76, &sum);
        if at > 0 {
            let Some(covered) = file.get(at - 40..at + 84) else { continue };
            let sum = crc(0, covered).to_le_bytes();
            put(file, at + 84, &sum);
        }
    }
    format!("header {place} says {new} at {field}")
}

/// A frame that says something else under checksums that hold, or under one of the two.
fn reseal_frame(file: &mut [u8], dice: &mut Dice) -> String {
    let salt = number(file, 56);
    let places = (12_288..file.len()).step_by(8);
    let frames: Vec<_> =
        places.filter_map(|at| Some((at, frame_header(file, at, salt)?))).collect();
    let Some(&(at, header)) = frames.get(dice.index(frames.len())) else {
        return "no frame".to_owned();
    };
    let (field, width) = [(8, 8), (16, 4), (20, 4), (24, 6), (30, 1), (31, 1)][dice.index(6)];
    let old = number(file, at + field) & (u64::MAX >> (64 - 8 * width));
    let new = near(dice, old);
    put(file, at + field, new.to_le_bytes().get(..width).unwrap_or_default());
    let words = [8, 16, 24].map(|field| number(file, at + field));
    let check = header_check(salt, at, words).to_le_bytes();
    put(file, at + 4, &check);
    let is_whole = !dice.once_in(3);
    if is_whole && let Some(covered) = file.get(at + 4..at + 32 + header.length) {
        let sum = seeded_crc(salt, at, covered).to_le_bytes();
        put(file, at, &sum);
    }
    format!("frame at {at} says {new} at {field}, payload holds: {is_whole}")
}

/// A footer that says something else under a checksum that holds.
fn reseal_footer(file: &mut [u8], dice: &mut Dice) -> String {
    let salt = number(file, 56);
    let length = file.len().checked_sub(16).map_or(0, |at| number(file, at) & 0xFFFF_FFFF);
    let length = usize::try_from(length).unwrap_or(0);
    let Some(offset) = file.len().checked_sub(length).filter(|_| length >= 96) else {
        return "no footer".to_owned();
    };
    let fields = [8, 16, 24, 32, 40, 48, 56, 64, 72, 76, 80, 88, 96];
    let field = fields[dice.index(fields.len())].min(length - 16);
    let new = near(dice, number(file, offset + field));
    let width = if field == 72 || field == 76 { 4 } else { 8 };
    put(file, offset + field, new.to_le_bytes().get(..width).unwrap_or_default());
    let Some(covered) = file.get(offset..offset + length - 12) else {
        return "no footer".to_owned();
    };
    let sum = seeded_crc(salt, offset, covered).to_le_bytes();
    put(file, offset + length - 12, &sum);
    format!("footer says {new} at {field}")
}
