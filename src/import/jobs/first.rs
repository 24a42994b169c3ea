//! Imports that are the first of their collection, several at once: one of them states its schema.

use std::path::Path;

use super::tests::{open_with, request, rows_on};
use super::*;
use crate::io::Io;
use crate::io::mem::{Machine, MemIo};

const STORE: &str = "/store";

/// Each of two stated its schema over that of the other: text `7` and the integer 7 stood in one
/// collection, in two vchannels.
#[test]
fn of_two_first_imports_at_once_one_says_what_the_keys_of_the_collection_are() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, row: fn(u32) -> String| {
        let path = dir.path().join(name);
        std::fs::write(&path, (0..20_000).map(row).collect::<String>()).unwrap();
        path
    };
    let text = write("text.jsonl", |n| format!("{{\"code\":\"{n:06}\"}}\n"));
    let integers = write("integers.jsonl", |n| format!("{{\"code\":{n}}}\n"));
    let io: Arc<dyn Io> = Arc::new(MemIo::new(Machine::new()));
    // Both are driven from the open on, and read their files while the collection has no schema.
    let imports = Imports::of(64, 0, None);
    let broadcaster = open_with(&io, Path::new(STORE), 1, &imports).unwrap();
    let ids = [&text, &integers].map(|path| {
        let asked = request("c", &[path]).primary_key(Some("code".to_owned()));
        imports.submit(&broadcaster, asked, &ImportCall::of("p")).unwrap().id
    });
    broadcaster.close().unwrap();
    let imports = Imports::new();
    let broadcaster = open_with(&io, Path::new(STORE), 1, &imports).unwrap();
    let jobs = broadcaster.jobs();
    let ended = ids.map(|id| imports.follow(&jobs, id, &|| None, &mut |_| {}).unwrap());
    broadcaster.close().unwrap();
    let done = |phase| ended.iter().filter(|job| job.phase() == phase).count();
    assert_eq!((done(JobPhase::Completed), done(JobPhase::Failed)), (1, 1));
    let refused = ended.iter().find(|job| job.phase() == JobPhase::Failed).unwrap();
    assert!(refused.reason().contains("the primary key is"), "{}", refused.reason());
    let rows = rows_on(&io, Path::new(STORE), "c");
    let text = rows.iter().filter(|row| row.contains(":\"")).count();
    assert!([0, 20_000].contains(&text) && rows.len() == 20_000, "{text} of {}", rows.len());
}

/// What is the same for both is stated by one, and both are imported.
#[test]
fn of_two_first_imports_that_agree_both_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    let rows: String = (0..20_000).map(|n| format!("{{\"code\":{n}}}\n")).collect();
    std::fs::write(&path, rows).unwrap();
    let io: Arc<dyn Io> = Arc::new(MemIo::new(Machine::new()));
    let imports = Imports::new();
    let broadcaster = open_with(&io, Path::new(STORE), 1, &imports).unwrap();
    let ids = [(); 2].map(|()| {
        let asked = request("c", &[&path]).primary_key(Some("code".to_owned()));
        imports.submit(&broadcaster, asked, &ImportCall::of("p")).unwrap().id
    });
    for id in ids {
        let job = imports.follow(&broadcaster.jobs(), id, &|| None, &mut |_| {}).unwrap();
        assert_eq!(job.phase(), JobPhase::Completed, "{}", job.reason());
    }
    broadcaster.close().unwrap();
    assert_eq!(rows_on(&io, Path::new(STORE), "c").len(), 40_000);
}
