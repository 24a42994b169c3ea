//! The sources of a plan, cut into slices and encoded: the part of a job that needs no store.
//!
//! Every file is compared with the plan when it is opened, when all of it was read, and by its
//! digest. A slice that stands already is passed over without being encoded, but read, so that the
//! digest covers the whole file.

use oncelog_format::control::Collection;

use super::partition::partition;
use super::plan::{Plan, PlannedSet};
use super::read::{self, RowReader};
use super::roots::Origin;
use super::slice::{self, Part};
use super::source::{GoOn, source_changed};
use crate::error::Result;

/// Which slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SliceAt {
    /// Index in the plan of its file, or of the first of its set.
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

/// Yields the slices of a plan in order to `take`, until it answers false, or `go_on` fails. Those for which `stands`
/// answers true come without rows.
pub(crate) fn produce(
    (plan, origin, go_on): (&Plan, &Origin, &GoOn),
    collection: &Collection,
    stands: &dyn Fn(SliceAt) -> bool,
    take: &mut dyn FnMut(ReadySlice) -> bool,
) -> Result<()> {
    for set in &plan.sets {
        let sources = set.files.iter().map(|file| origin.reopen(&file.path, file.identity));
        let sources = sources.map(|source| Ok(source?.asking(go_on)));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let mut reader = read::open(&sources, set.format, &set.survey)?;
        let mut first_row = 0;
        while first_row < set.survey.rows {
            let at = SliceAt { file: set.first_file, first_row };
            let rows = u64::from(plan.slice_rows).min(set.survey.rows - first_row);
            let parts = if stands(at) {
                reader.skip(rows)?;
                Vec::new()
            } else {
                parts(set, collection, first_row, rows, &mut *reader)?
            };
            first_row += rows;
            let rows_behind = set.rows_before.saturating_add(first_row);
            if !take(ReadySlice { at, rows_behind, parts }) {
                return Ok(());
            }
        }
        let digests = reader.finish()?;
        for ((file, source), (found, planned)) in
            set.files.iter().zip(&sources).zip(digests.iter().zip(&set.survey.sha256))
        {
            if found != planned {
                return Err(source_changed(&file.path, "its SHA-256 is another"));
            }
            source.unchanged(file.identity)?;
        }
    }
    Ok(())
}

fn parts(
    set: &PlannedSet,
    collection: &Collection,
    first_row: u64,
    rows: u64,
    reader: &mut dyn RowReader,
) -> Result<Vec<Part>> {
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    let batch = reader.next_batch(rows)?.filter(|batch| batch.num_rows() == rows);
    let batch = batch.ok_or_else(|| source_changed(set.path(), "it has fewer rows"))?;
    let count = u32::try_from(collection.vchannels.len()).unwrap_or(u32::MAX);
    let number = set.rows_before.saturating_add(first_row);
    let places = partition(&batch, collection.primary_key.as_deref(), number, count)?;
    slice::split(&batch, &places, count)
}
