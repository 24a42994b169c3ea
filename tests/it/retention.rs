//! What a trim drops, what holds it up, and what is left of the files.

mod cursors;
mod cursors_proven;
mod cursors_raced;
mod full;
mod limits;
mod maps;
mod pins;
mod removal;

use std::path::Path;
use std::sync::Arc;

use oncelog::io::Io as _;
use oncelog::testing::{Machine, MemIo};
use oncelog::{Log, Options};

/// A log in memory of which nothing happens by itself, and whose files go in several steps.
fn memory() -> (MemIo, Options) {
    let io = MemIo::new(Machine::new());
    let options = crate::log::options().io(Arc::new(io.clone())).background(false);
    (io, options.removal_step_bytes(20_000))
}

/// Names and lengths of the segments.
fn files(io: &MemIo) -> Vec<(String, u64)> {
    let machine = io.machine();
    let names = io.list(Path::new("/log")).unwrap().into_iter();
    let names = names.map(|entry| entry.name.into_string().unwrap());
    let len = |name: String| {
        let bytes = machine.bytes(Path::new("/log").join(&name)).unwrap();
        (name, bytes.len() as u64)
    };
    let mut found: Vec<_> = names.filter(|name| name.ends_with(".seg")).map(len).collect();
    found.sort();
    found
}

/// Appends records of 9,000 bytes, of which five fill a segment.
fn fill(log: &Log, records: usize) {
    for _ in 0..records {
        log.append(&[1; 9000]).unwrap();
    }
}
