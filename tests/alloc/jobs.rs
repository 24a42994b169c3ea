//! What a page of jobs holds in memory, however many files they have.

use std::path::PathBuf;
use std::time::Duration;

use allocation_counter::measure;
use oncelog::broadcast::{Broadcaster, Options};
use oncelog::import::{ImportCall, ImportRequest, Imports};
use oncelog::{CreateMode, Store, StoreOptions};

/// Jobs of the page, and files of each.
const JOBS: usize = 20;
const FILES: usize = 1_000;
/// What a page may hold for each of its jobs.
const JOB_BYTES_MAX: u64 = 4 << 10;

#[test]
fn a_page_of_jobs_holds_none_of_their_files() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("a-name-of-some-length-below-the-directory-of-a-test.csv");
    std::fs::write(&path, "n\n1\n").unwrap();
    let store = StoreOptions::new().create(CreateMode::IfMissing);
    let store = Store::open(home.path().join("store"), &store).unwrap();
    let imports = Imports::new().at_once(1);
    let options = imports.types().into_iter().fold(Options::new(), Options::register);
    let broadcaster = Broadcaster::open(store, options).unwrap();
    let mut last = None;
    for _ in 0..JOBS {
        let asked = ImportRequest::new("c", vec![PathBuf::from(&path); FILES]);
        let call = ImportCall::of("p").wait(Some(Duration::from_secs(60)));
        last = Some(imports.submit(&broadcaster, asked, &call).unwrap().id);
    }
    let mut page = None;
    let held = measure(|| page = Some(imports.page(&broadcaster, None, JOBS, &|_| true)));
    let page = page.unwrap();
    assert_eq!((page.jobs.len(), page.jobs.first().map(|job| job.id)), (JOBS, last));
    for job in &page.jobs {
        assert_eq!((job.file_count, job.files.len()), (FILES, 0));
    }
    let most = held.bytes_max / JOBS as u64;
    assert!(most <= JOB_BYTES_MAX, "{most} bytes a job");
    broadcaster.close().unwrap();
}
