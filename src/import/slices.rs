//! The sources of a plan, cut into slices and encoded: the part of a job that needs no store.
//!
//! Every file is compared with the plan when it is opened, when all of it was read, and by its
//! digest. A slice that stands already is passed over without being encoded, but read, so that the
//! digest covers the whole file.

use oncelog_format::control::Collection;

use super::partition::partition;
use super::plan::{Plan, PlannedFile};
use super::read::{self, RowReader};
use super::slice::{self, Part};
use super::source::{Source, source_changed};
use crate::error::Result;

/// Which slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SliceAt {
    /// Index of its file in the plan.
    pub(crate) file: u32,
    /// Its first row in the file, from 0.
    pub(crate) first_row: u64,
}

/// A slice on its way to the channels.
#[derive(Debug)]
pub(crate) struct ReadySlice {
    pub(crate) at: SliceAt,
    /// Rows of the job up to the end of the slice.
    pub(crate) rows_behind: u64,
    /// Rows of each vchannel of the collection; none of a slice that stands already.
    pub(crate) parts: Vec<Part>,
}

/// Yields the slices of a plan in order to `take`, until it answers false. Those for which `stands`
/// answers true come without rows.
pub(crate) fn produce(
    plan: &Plan,
    collection: &Collection,
    stands: &dyn Fn(SliceAt) -> bool,
    take: &mut dyn FnMut(ReadySlice) -> bool,
) -> Result<()> {
    for (number, file) in (0..).zip(&plan.files) {
        let source = Source::reopen(&file.path, file.identity)?;
        let mut reader = read::open(&source, file.format, &file.survey)?;
        let mut first_row = 0;
        while first_row < file.survey.rows {
            let at = SliceAt { file: number, first_row };
            let rows = u64::from(plan.slice_rows).min(file.survey.rows - first_row);
            let parts = if stands(at) {
                reader.skip(rows)?;
                Vec::new()
            } else {
                parts(file, collection, first_row, rows, &mut *reader)?
            };
            first_row += rows;
            let rows_behind = file.rows_before.saturating_add(first_row);
            if !take(ReadySlice { at, rows_behind, parts }) {
                return Ok(());
            }
        }
        if reader.finish()? != file.survey.sha256 {
            return Err(source_changed(&file.path, "its SHA-256 is another"));
        }
        source.unchanged(file.identity)?;
    }
    Ok(())
}

fn parts(
    file: &PlannedFile,
    collection: &Collection,
    first_row: u64,
    rows: u64,
    reader: &mut dyn RowReader,
) -> Result<Vec<Part>> {
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    let batch = reader.next_batch(rows)?.filter(|batch| batch.num_rows() == rows);
    let batch = batch.ok_or_else(|| source_changed(&file.path, "it has fewer rows"))?;
    let count = u32::try_from(collection.vchannels.len()).unwrap_or(u32::MAX);
    let number = file.rows_before.saturating_add(first_row);
    let places = partition(&batch, collection.primary_key.as_deref(), number, count)?;
    slice::split(&batch, &places, count)
}
