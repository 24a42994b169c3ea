//! Each planted bug of imports must break a test of theirs.
//!
//! Run by `scripts/proof-import`; a bug is planted for all threads, so that nothing else runs
//! beside it.

use std::panic::catch_unwind;

use super::crash;
use crate::planted::{Bug, plant};

/// The test that a bug breaks.
fn check_of(bug: Bug) -> fn() {
    match bug {
        Bug::StampWithoutVchannel => {
            crash::an_import_that_is_stopped_anywhere_has_every_row_once_after_its_retry
        }
        Bug::VisibleByRecord => crash::rows_stay_visible_when_the_record_of_their_job_is_gone,
        Bug::ImportBesideCollection => {
            super::tests::an_import_is_taken_only_with_what_is_its_collections_own
        }
        other => unreachable!("{other:?} is not a bug of imports"),
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a figure of the proof is a line on standard output")]
fn every_planted_bug_of_imports_is_caught() {
    let is_caught = |bug: &Bug| {
        // Without it they pass.
        check_of(*bug)();
        plant(*bug);
        let caught = catch_unwind(check_of(*bug)).is_err();
        plant(Bug::None);
        println!("{} {bug:?}", if caught { "caught" } else { "SURVIVED" });
        caught
    };
    let caught = Bug::IMPORT.iter().filter(|bug| is_caught(bug)).count();
    println!("figure 12 planted bugs of imports caught: {caught}");
    assert_eq!(caught, Bug::IMPORT.len());
}
