//! Records after damage, in bounded memory.
//!
//! Recovery and a reader stop at the first damage, as nobody can say whether what stands after it
//! was to be seen without what is lost. Who looks at a damaged log wants to see it all the same:
//! each record handed out here has a valid frame in its place, and that is all that is promised.

use std::io;
use std::ops::ControlFlow;

use super::options::RecordKind;
use super::reader::Record;
use super::survey::Segment;
use super::view::LogView;
use super::walk::Walk;
use crate::error::{Error, ErrorKind, Result};
use crate::io::IoFile;
use crate::lsn::{Lsn, SegmentId};

impl LogView {
    /// Hands every record from an LSN on whose frame is valid to `sink`, in the order of the LSNs,
    /// and passes over damage. For what stands after the error of a [`LogView::reader`].
    ///
    /// A batch may lack records. Segments whose header is lost, and those of an unknown version,
    /// are left out.
    ///
    /// # Errors
    ///
    /// `Io` when the system refuses to read.
    pub fn behind_damage(
        &self,
        from: Lsn,
        sink: &mut dyn FnMut(Record) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut next = from.get();
        for (at, segment) in self.seen().survey.segments.iter().enumerate() {
            let limit = self.seen().next_first(at);
            if limit.is_some_and(|limit| limit <= next) {
                continue;
            }
            let file = match self.seen().open_file(segment) {
                Err(error) if error.kind() == ErrorKind::Trimmed => continue,
                other => other?,
            };
            let limit = limit.map_or_else(
                || end_of_tail(&*file, segment, self.seen().survey.proven),
                Ok, // a sealed segment ends where its successor says
            );
            let end = limit.and_then(|limit| self.valid(&*file, segment, limit, &mut next, sink));
            let fail = |e| Error::io("cannot read the segment", &segment.facts.path, e);
            if end.map_err(fail)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The valid records of one segment from `next` on and below `limit`.
    fn valid(
        &self,
        file: &dyn IoFile,
        segment: &Segment,
        limit: u64,
        next: &mut u64,
        sink: &mut dyn FnMut(Record) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let mut walk = Walk::new(file, &segment.header)?;
        while walk.lsn() < limit {
            let offset = walk.offset();
            let Ok(header) = walk.step()? else { if walk.pass()? { continue } else { break } };
            if header.lsn < *next {
                continue;
            }
            *next = header.lsn.saturating_add(1);
            let record = Record {
                lsn: Lsn::at_least_first(header.lsn),
                time_ms: header.time_ms,
                kind: RecordKind::of_frame(header.kind),
                payload: walk.payload(&header, offset)?,
                segment: SegmentId::at_least_first(segment.header.number),
                offset,
                frame_bytes: header.frame_len(),
                batch_end: header.batch_end,
                durable: header.lsn <= self.seen().survey.proven,
            };
            if sink(record).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The LSN after the last record of the last segment: above what was proven, only whole batches
/// count, up to the first frame that is not valid.
fn end_of_tail(file: &dyn IoFile, segment: &Segment, proven: u64) -> io::Result<u64> {
    let mut walk = Walk::new(file, &segment.header)?;
    let mut last = proven;
    loop {
        match walk.step()? {
            Ok(header) if header.batch_end => last = last.max(header.lsn),
            Ok(_) => {}
            Err(_) if walk.lsn() > proven || !walk.pass()? => return Ok(last.saturating_add(1)),
            Err(_) => {}
        }
    }
}
