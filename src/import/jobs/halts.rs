//! A driver that stops: whoever waits for its job, or for what that holds, is told.

use std::error::Error as _;
use std::path::Path;

use super::tests::{open_on, request};
use super::*;
use crate::broadcast::{Noop, Request};
use crate::io::mem::{Machine, MemIo};

/// The driver stopped, and nobody else knew.
#[test]
fn whoever_waits_for_an_import_whose_driver_has_no_space_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.csv");
    let rows: String = (0..60_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(&file, format!("n\n{rows}")).unwrap();
    let io = MemIo::new(Machine::new());
    let files: Arc<dyn crate::io::Io> = Arc::new(io.clone());
    let (imports, broadcaster) = open_on(&files, Path::new("/store"), 1, 64).unwrap();
    let asked = || request("c", &[&file]);
    let call = ImportCall::of("p").key(Some("k".to_owned()));
    let id = imports.submit(&broadcaster, asked(), &call).unwrap().id;
    io.set_free_blocks(Some(0));
    let jobs = broadcaster.jobs();
    // Without a deadline: it is the driver that ends both waits.
    let told = jobs.wait(id, None).unwrap_err();
    assert_eq!((told.kind(), told.broadcast_id()), (ErrorKind::InFlight, Some(id)), "{told}");
    let cause = told.source().unwrap().downcast_ref::<Error>().unwrap();
    assert_eq!(cause.kind(), ErrorKind::StoreFull);
    let mut resources = jobs.get(id).unwrap().accepted.header.resources.clone();
    resources.iter_mut().for_each(|resource| resource.shared = false);
    let vchannels = jobs.get(id).unwrap().accepted.header.vchannels.clone();
    let exclusive = Request::new(Noop::NAME, None, vchannels, vec![]).resources(resources);
    let locked = broadcaster.submit(&exclusive, None).unwrap_err();
    assert_eq!(locked.kind(), ErrorKind::LockTimeout);
    assert!(locked.to_string().contains(&format!("job {id}, stopped")), "{locked}");
    // The one who asked is told what stopped it, once, and a driver that begins again goes on.
    io.set_free_blocks(None);
    let report = loop {
        match imports.run(&broadcaster, asked(), &call, &mut |_| {}) {
            Ok(report) => break report,
            Err(e) => assert_eq!(e.kind(), ErrorKind::StoreFull, "{e}"),
        }
    };
    assert_eq!((report.job, report.phase, report.rows), (id, JobPhase::Completed, 60_000));
    drop(broadcaster.submit(&exclusive, None).unwrap());
    broadcaster.close().unwrap();
}
