//! The limits: what the system calls of a workload take without a log around them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

/// A file of zeros that were written and synced: what a durable write can reach at best.
pub(crate) fn written_file(dir: &Path, len: usize) -> File {
    let path = dir.join("raw");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.write_all_at(&vec![0; len], 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// Writes and syncs `count` times, one behind the other, and says how many seconds each took.
pub(crate) fn write_and_sync(file: &File, from: u64, bytes: &[u8], count: usize) -> Vec<f64> {
    let mut at = from;
    (0..count)
        .map(|_| {
            let begin = Instant::now();
            file.write_all_at(bytes, at).unwrap();
            file.sync_data().unwrap();
            at += u64::try_from(bytes.len()).unwrap();
            begin.elapsed().as_secs_f64()
        })
        .collect()
}
