//! The first record of a time.
//!
//! Times never decrease from a record to the next. The header of a segment states that of the
//! record before it, and an index that of some of its batches: so a look at the headers, which are
//! in memory, finds the segment, and one stretch of its frames is read. What an index says is
//! checked against the frame that it names.

use std::sync::Arc;

use super::facts::{self, FooterFacts};
use super::log_source::last_where;
use super::reader::{Reader, Source};
use crate::error::{ErrorKind, Result};
use crate::io::OpenHow;

/// The first record of this time or later; the LSN after the end where all are older.
pub(super) fn first_at(source: &Arc<dyn Source>, time_ms: u64) -> Result<u64> {
    loop {
        let oldest = source.oldest();
        match look(source, oldest, time_ms) {
            // Retention was faster than this.
            Err(error) if error.kind() == ErrorKind::Trimmed && source.oldest() > oldest => {}
            found => return found,
        }
    }
}

fn look(source: &Arc<dyn Source>, oldest: u64, time_ms: u64) -> Result<u64> {
    let Some((header, near)) = source.before_time(time_ms)? else { return Ok(oldest) };
    let first = header.first_lsn.max(oldest);
    let near = near.or_else(|| {
        // A cache: where it cannot be read, the segment is.
        let file = source.io().open(&source.path(&header), OpenHow::Read).ok()?;
        let footer = facts::footer_of(&*file, &header, file.len().ok()?);
        let Ok(FooterFacts::Valid(footer)) = footer else { return None };
        last_where(&footer.entries, |entry| entry.time_ms < time_ms).map(|entry| entry.lsn)
    });
    let mut near = near.filter(|&near| near > first);
    let mut reader = Reader::new(Arc::clone(source), near.unwrap_or(first));
    while let Some(record) = reader.next()? {
        if record.time_ms < time_ms {
            near = None;
        } else if near.take().is_some() {
            // The index is wrong: a record before this one may be of that time.
            reader = Reader::new(Arc::clone(source), first);
        } else {
            return Ok(record.lsn.get());
        }
    }
    Ok(reader.next_lsn().get())
}
