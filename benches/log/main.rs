//! The workloads of a log, each beside the raw limit of the same disk in the same run.
//!
//! `cargo bench --bench log` prints one table; `-- W2 W3` runs those alone, and `-- --test` runs all
//! of them once, small, for rot and never for figures. Rounds of the raw limit and of the log take
//! turns, and medians are compared: absolute figures move from machine to machine and from run to
//! run, the ratio of a row hardly does.
#![expect(clippy::disallowed_methods, reason = "the raw limits go to the file system directly")]
#![expect(clippy::print_stdout, reason = "the table is what this is for")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bench that fails must stop")]

mod appends;
mod raw;
mod reads;
mod table;
mod threads;
mod trims;

use std::path::Path;

use oncelog::{CreateMode, Log, Options};

use self::table::Workload;

/// Bytes of a small record, as in the workloads that other logs publish.
pub(crate) const SMALL: usize = 100;
/// Bytes of a middle-sized record.
pub(crate) const MIDDLE: usize = 1024;
/// Bytes of a small record's frame.
pub(crate) const SMALL_FRAME: u64 = 136;

const WORKLOADS: [Workload; 9] = [
    ("W1", appends::bulk),
    ("W2", appends::durable),
    ("W3", threads::threads),
    ("W3a", threads::tasks),
    ("W4", appends::batches),
    ("W5", reads::replay),
    ("W6", reads::random),
    ("W7", trims::trim),
    ("W8", reads::memory),
];

fn main() {
    table::play(&WORKLOADS);
}

/// Incompressible bytes, a different record for every `index`.
pub(crate) fn record(len: usize, index: u64) -> Vec<u8> {
    let mut state = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = index.to_le_bytes().to_vec();
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

pub(crate) fn options() -> Options {
    Options::new().create(CreateMode::IfMissing)
}

pub(crate) fn open(dir: &Path) -> Log {
    Log::open(dir.join("log"), &options()).expect("the log opens").0
}
