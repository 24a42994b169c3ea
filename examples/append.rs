//! A log for one writer: open it, append, read back.
//!
//! `cargo run --example append -- DIR`; each run finds what the runs before it appended.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::Path;

use oncelog::{Batch, CreateMode, Durability, Log, Options, RecordKind};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("a directory is missing")?;
    run(Path::new(&dir), &mut stdout())
}

/// Appends a record and a batch, and prints every record of the log.
pub(crate) fn run(dir: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let (log, report) = Log::open(dir, &Options::new().create(CreateMode::IfMissing))?;
    if let Some(torn) = &report.torn {
        writeln!(out, "left out what no sync had promised: {torn:?}")?;
    }

    // Each survives a power loss once its call returns; the batch is kept or cut whole.
    log.append(b"12A: Ada")?;
    let pair: [&[u8]; 2] = [b"12B: Bob", b"12C: Cy"];
    log.append_batch(Batch { kind: RecordKind::RECORD, records: &pair }, Durability::Synced)?;

    let mut reader = log.reader(log.oldest_lsn())?;
    while let Some(record) = reader.next()? {
        writeln!(out, "{} {}", record.lsn, String::from_utf8_lossy(&record.payload))?;
    }
    log.close()?;
    Ok(())
}
