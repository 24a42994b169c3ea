//! SPEC 4.1 and row @Y: the cursors of a log.

use std::collections::BTreeSet;

use super::bytes::{crc, u32_at, u64_at, uuid_at};

/// A valid copy.
struct Copy {
    counter: u64,
    lsn: u64,
    name: String,
}

/// What stands in the place of a copy.
enum Place {
    Zeros,
    Valid(Copy),
    Invalid,
}

/// Whether row @Y applies to the file of a log with this identity and this last LSN.
pub(super) fn is_degraded(file: &[u8], uuid: [u8; 16], last: u64) -> bool {
    if file.len() != 131_072 {
        return true;
    }
    let mut names = BTreeSet::new();
    let mut degraded = false;
    for index in 0..128 {
        let places = [0, 1].map(|turn| place(file, uuid, index, turn));
        let counters = places.iter().filter_map(|place| match place {
            Place::Valid(copy) => Some(copy.counter),
            _ => None,
        });
        let newest = counters.max();
        for place in &places {
            degraded |= match place {
                Place::Invalid => true,
                Place::Zeros => newest.is_some_and(|counter| counter != 1),
                Place::Valid(_) => false,
            };
        }
        let valid = places.into_iter().filter_map(|place| match place {
            Place::Valid(copy) => Some(copy),
            _ => None,
        });
        for copy in valid.filter(|copy| Some(copy.counter) == newest && copy.lsn != u64::MAX) {
            degraded |= copy.lsn > last.saturating_add(1) || !names.insert(copy.name);
        }
    }
    degraded
}

fn place(file: &[u8], uuid: [u8; 16], index: u32, turn: u16) -> Place {
    let bytes = &file[usize::from(turn) * 65_536 + index as usize * 512..][..512];
    if bytes.iter().all(|&byte| byte == 0) {
        return Place::Zeros;
    }
    let len = u32_at(bytes, 28).map_or(0, |len| len as usize);
    let (counter, lsn) = (u64_at(bytes, 32).unwrap_or(0), u64_at(bytes, 40).unwrap_or(0));
    let is_valid = bytes.starts_with(b"oncecurs")
        && u32_at(bytes, 508) == Some(crc(0, &bytes[..508]))
        && uuid_at(bytes, 8) == Some(uuid)
        && u32_at(bytes, 24) == Some(index)
        && (1..=128).contains(&len)
        && counter >= 1
        && counter % 2 == u64::from(turn)
        && lsn >= 1
        && bytes[48 + len..508].iter().all(|&byte| byte == 0);
    match std::str::from_utf8(&bytes[48..48 + len.min(128)]) {
        Ok(name) if is_valid => Place::Valid(Copy { counter, lsn, name: name.to_owned() }),
        _ => Place::Invalid,
    }
}
