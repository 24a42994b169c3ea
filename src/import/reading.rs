//! A file read as a job reads it, without a store: for tests and fuzzing of what reads it.

use std::path::Path;

use arrow_schema::Schema;
use oncelog_format::control::Collection;

use super::plan::Plan;
use super::request::ImportRequest;
use super::roots::Origin;
use super::sizer::SLICE_ROWS;
use super::slices;
use crate::error::Result;

/// Reads a file twice, as a job does, down to the payloads of its slices; the number of its rows.
/// Text in columns of `expected` must spell values of their types. `go_on` is asked on the way, and
/// its error ends the reading.
///
/// # Errors
///
/// What is wrong with the file, or what `go_on` says.
pub fn read_file(
    path: &Path,
    expected: Option<&Schema>,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<u64> {
    let request = ImportRequest::new("c", vec![path.to_owned()]);
    let origin = Origin::System;
    let mut report = |_| go_on();
    let plan = Plan::survey(&request, &origin, (None, expected), SLICE_ROWS, &mut report)?;
    let collection = Collection {
        id: 1,
        name: "c".to_owned(),
        generation: 1,
        schema: Vec::new(),
        primary_key: None,
        partition_function: 1,
        partition_version: 1,
        vchannels: vec!["c_v0".to_owned(), "c_v1".to_owned()],
    };
    let mut rows = 0;
    slices::produce((&plan, &origin), &collection, &|_| false, &mut |slice| {
        rows += slice.parts.iter().map(|part| u64::from(part.rows)).sum::<u64>();
        true
    })?;
    Ok(rows)
}
