//! A file read as a job reads it, without a store: for tests and fuzzing of what reads it.

use std::path::Path;

use arrow_schema::Schema;
use oncelog_format::control::Collection;

use super::plan::Plan;
use super::request::ImportRequest;
use super::roots::Origin;
use super::sizer::SLICE_ROWS;
use super::slices;
use super::source::GoOn;
use crate::error::{Error, ErrorKind, Result};

/// Reads a file twice, as a job does, down to the payloads of its slices; the number of its rows.
/// Text in columns of `expected` must spell values of their types. `go_on` is asked on the way, and
/// false ends the reading.
///
/// # Errors
///
/// What is wrong with the file, `Closed` when `go_on` answers false.
pub fn read_file(
    path: &Path,
    expected: Option<&Schema>,
    go_on: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<u64> {
    let request = ImportRequest::new("c", vec![path.to_owned()]);
    let origin = Origin::System;
    let go_on = GoOn::new(move || {
        let ended = || Error::new(ErrorKind::Closed, "the reading is to end");
        go_on().then_some(()).ok_or_else(ended)
    });
    let mut report = |_| go_on.ask();
    let plan =
        Plan::survey(&request, &origin, (None, expected), SLICE_ROWS, (&mut report, &go_on))?;
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
    slices::produce((&plan, &origin, &go_on), &collection, &|_| false, &mut |slice| {
        rows += slice.parts.iter().map(|part| u64::from(part.rows)).sum::<u64>();
        true
    })?;
    Ok(rows)
}
