use std::path::{Path, PathBuf};

use super::*;
use crate::broadcast::{Options, StoreView};
use crate::import::numpy::tests::npy;
use crate::import::replay::{ReplaySelection, replay};
use crate::import::verdict::{ABORT, AttemptOf, COMMIT};
use crate::io::Io;
use crate::io::fs::FsIo;
use crate::log::{CreateMode, Options as LogOptions};
use crate::store::{Store, StoreOptions};

/// A store in a directory of its own, with its imports.
struct Fixture {
    dir: tempfile::TempDir,
    io: Arc<dyn Io>,
}

impl Fixture {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), io: Arc::new(FsIo::new()) }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn open(&self) -> (Imports, Broadcaster) {
        open_on(&self.io, &self.store(), 1, SLICE_ROWS).unwrap()
    }

    /// One call in a process of its own.
    fn import(&self, request: ImportRequest, key: Option<&str>) -> Result<ImportReport> {
        self.call(request, &ImportCall::of("default").key(key.map(str::to_owned)))
    }

    fn call(&self, request: ImportRequest, call: &ImportCall) -> Result<ImportReport> {
        let (imports, broadcaster) = self.open();
        let report = imports.run(&broadcaster, request, call, &mut |_| {});
        broadcaster.close().unwrap();
        report
    }

    fn rows(&self, collection: &str) -> Vec<String> {
        rows_on(&self.io, &self.store(), collection)
    }
}

/// Opens a store as a process of its own does.
pub(super) fn open_on(
    io: &Arc<dyn Io>,
    dir: &Path,
    pchannels: usize,
    slice_rows: u32,
) -> Result<(Imports, Broadcaster)> {
    let imports = Imports::with_slice_rows(slice_rows);
    let broadcaster = open_with(io, dir, pchannels, &imports)?;
    Ok((imports, broadcaster))
}

/// The same, with these imports.
pub(super) fn open_with(
    io: &Arc<dyn Io>,
    dir: &Path,
    pchannels: usize,
    imports: &Imports,
) -> Result<Broadcaster> {
    open_logs(LogOptions::new().io(Arc::clone(io)), dir, pchannels, imports)
}

/// The same, with logs of some options.
pub(super) fn open_logs(
    log: LogOptions,
    dir: &Path,
    pchannels: usize,
    imports: &Imports,
) -> Result<Broadcaster> {
    let names = (0..pchannels).map(|n| format!("p{n}")).collect();
    let options = StoreOptions::new().create(CreateMode::IfMissing).log(log);
    let store = Store::open(dir, &options.pchannels(names))?;
    let options = imports.types().into_iter().fold(Options::new(), Options::register);
    Broadcaster::open(store, options)
}

/// The rows of a collection as JSON.
pub(super) fn rows_on(io: &Arc<dyn Io>, dir: &Path, collection: &str) -> Vec<String> {
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("rows.jsonl");
    let view = StoreView::open(dir, Arc::clone(io)).unwrap();
    let selection = ReplaySelection::new(Some(collection.to_owned()), None);
    let files: Arc<dyn Io> = Arc::new(FsIo::new());
    replay(&view, &selection, &files, &target, &mut |_, _| {}).unwrap();
    std::fs::read_to_string(target).unwrap().lines().map(str::to_owned).collect()
}

pub(super) fn request(collection: &str, files: &[&Path]) -> ImportRequest {
    ImportRequest::new(collection, files.iter().map(|path| path.to_path_buf()).collect())
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data").join(name)
}

#[test]
fn an_import_runs_once_and_answers_its_retry_with_the_original() {
    let fixture = Fixture::new();
    let asked = || request("airports", &[&data("airports.parquet")]);
    let first = fixture.import(asked(), Some("k")).unwrap();
    assert_eq!((first.phase, first.rows, first.progress), (JobPhase::Completed, 3376, 100));
    assert!(!first.duplicated && first.expires_at_ms.is_some() && first.reason.is_empty());
    let rows = fixture.rows("airports");
    assert_eq!(rows.len(), 3376);

    let again = fixture.import(asked(), Some("k")).unwrap();
    assert_eq!(again, ImportReport { duplicated: true, ..first });
    assert_eq!(fixture.rows("airports"), rows);

    let other = fixture.import(request("airports", &[&data("airports.csv")]), Some("k"));
    let error = other.unwrap_err();
    assert_eq!((error.kind(), error.fields()), (ErrorKind::Conflict, &["files".to_owned()][..]));
    assert_eq!(fixture.rows("airports"), rows);
}

/// Columns as NumPy writes them: `id` from `first` on, and `v` of two halves of it.
fn columns(fixture: &Fixture, dir: &str, first: i64) -> [PathBuf; 2] {
    std::fs::create_dir_all(fixture.dir.path().join(dir)).unwrap();
    let ids: Vec<u8> = (first..first + 5).flat_map(i64::to_le_bytes).collect();
    let halves = (first..first + 5).flat_map(|n| [n as f32 / 2.0; 2]);
    let vectors: Vec<u8> = halves.flat_map(f32::to_le_bytes).collect();
    let write = |name: &str, bytes: Vec<u8>| {
        let path = fixture.dir.path().join(dir).join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    [write("id.npy", npy("<i8", "(5,)", &ids)), write("v.npy", npy("<f4", "(5, 2)", &vectors))]
}

#[test]
fn sets_of_columns_are_imported_row_by_row() {
    let fixture = Fixture::new();
    let [a, b] = columns(&fixture, "1", 0);
    let [c, d] = columns(&fixture, "2", 5);
    let between = fixture.file("x.jsonl", "{\"id\":77}\n");
    let asked = || {
        let asked = request("c", &[&a, &b, &between, &c, &d]).vchannels(Some(3));
        asked.primary_key(Some("id".to_owned()))
    };
    let (imports, broadcaster) = open_on(&fixture.io, &fixture.store(), 2, 2).unwrap();
    let call = ImportCall::of("p").key(Some("k".to_owned()));
    let report = imports.run(&broadcaster, asked(), &call, &mut |_| {}).unwrap();
    assert_eq!((report.phase, report.rows), (JobPhase::Completed, 11), "{}", report.reason);
    let again = imports.run(&broadcaster, asked(), &call, &mut |_| {}).unwrap();
    assert_eq!((again.duplicated, again.source_changed), (true, false));
    std::fs::write(&d, npy("<f4", "(5, 2)", &[0; 40])).unwrap();
    assert!(imports.run(&broadcaster, asked(), &call, &mut |_| {}).unwrap().source_changed);
    let apart = vec![vec![a.clone()], vec![b.clone()], vec![between.clone()], vec![c, d]];
    let asked = ImportRequest::of_sets("c", apart);
    let error = imports.run(&broadcaster, asked, &call, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    broadcaster.close().unwrap();
    let row = |n: i64| format!("{{\"id\":{n},\"v\":[{0:?},{0:?}]}}", n as f64 / 2.0);
    let mut expect: Vec<String> = (0..5).map(row).collect();
    expect.push("{\"id\":77}".to_owned());
    expect.extend((5..10).map(row));
    assert_eq!(fixture.rows("c"), expect);
}

/// Its verdict went to vchannels that the caller had named, and the rows of the collection stayed
/// hidden for ever, under a job that was done.
#[test]
pub(super) fn an_import_is_taken_only_with_what_is_its_collections_own() {
    use crate::broadcast::{Identity, Request};
    let fixture = Fixture::new();
    let path = fixture.file("a.csv", "n\n1\n");
    let import = request("c", &[&path]).vchannels(Some(2));
    fixture.import(import.clone(), Some("first")).unwrap();
    let (_imports, broadcaster) = fixture.open();
    let call = ImportCall::of("default").key(Some("k".to_owned()));
    let collection = broadcaster.read(|state, _| state.collection_named("c").cloned()).unwrap();
    let known = broadcaster.read(|state, _| state.vchannels().count());
    let check = |change: &dyn Fn(&mut Request), expect: &str| {
        let mut asked = asking::asked(&import, &call, &collection, None);
        asked.makes_vchannels = true;
        change(&mut asked);
        let refused = broadcaster.submit(&asked, None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        assert!(refused.to_string().contains(expect), "{refused}: expected {expect}");
        let state = |state: &crate::broadcast::State, _| {
            (state.jobs().count(), state.vchannels().count(), state.window().held_count())
        };
        assert_eq!(broadcaster.read(state), (1, known, 1), "a refusal leaves nothing behind");
    };
    fn scope(request: &mut Request) -> &mut crate::broadcast::Scope {
        Arc::make_mut(request.scope.as_mut().unwrap())
    }
    let vchannels = "the vchannels of `c`: expected c_v0, c_v1, found";
    check(&|asked| asked.vchannels = vec!["x".into()], &format!("{vchannels} x"));
    check(&|asked| asked.vchannels = vec!["c_v0".into()], &format!("{vchannels} c_v0"));
    check(&|asked| asked.vchannels.push("x".into()), &format!("{vchannels} c_v0, c_v1, x"));
    check(&|asked| scope(asked).domain = "store".into(), "expected collection:1, found store:1");
    check(&|asked| scope(asked).identity = "2".into(), "expected collection:1, found collection:2");
    check(&|asked| scope(asked).generation = 7, "the generation of `c`: expected 0, found 7");
    let resources = "the resources of `c`: expected collection:1:shared, found";
    check(&|asked| asked.resources.clear(), &format!("{resources} none"));
    check(&|asked| asked.resources[0].shared = false, &format!("{resources} collection:1"));
    check(
        &|asked| asked.resources[0].key = "2".into(),
        &format!("{resources} collection:2:shared"),
    );
    let property = |asked: &mut Request| drop(asked.properties.insert("p".into(), vec![1]));
    check(&property, "the properties of `c`: expected none, found p");
    check(&|asked| asked.payload.push(b' '), "not in its one form");
    let relative = br#"{"collection":"c","collection_id":1,"files":["a.csv"],"vchannels":2}"#;
    check(&|asked| asked.payload = relative.to_vec(), "not in its one form");
    check(&|asked| asked.identity = Identity::Whole, "by the fields of its request");
    // As it is, it is taken, without a key too.
    let mut asked = asking::asked(&import, &call, &collection, None);
    assert!(!broadcaster.submit(&asked, None).unwrap().duplicated);
    asked.scope = None;
    assert_eq!(broadcaster.submit(&asked, None).unwrap().expires_at_ms, None);
    broadcaster.close().unwrap();
}

/// The channels carried one verdict and the job another.
#[test]
fn an_import_ends_by_its_own_verdict_about_its_own_attempt_alone() {
    let fixture = Fixture::new();
    let path = fixture.file("a.csv", "n\n1\n");
    let report = fixture.import(request("c", &[&path]), Some("k")).unwrap();
    let (_imports, broadcaster) = fixture.open();
    let jobs = broadcaster.jobs();
    let own = |attempt| AttemptOf { job: report.job, attempt }.encode();
    for (verdict, payload, found) in [
        ((ABORT, true), own(1), "expected CommitImport, found AbortImport"),
        ((COMMIT, false), own(1), "expected AbortImport, found CommitImport"),
        ((COMMIT, true), own(2), "of its attempt"),
        ((COMMIT, true), Vec::new(), "of its attempt"),
    ] {
        let refused = jobs.end(report.job, 1, verdict, payload).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        assert!(refused.to_string().contains(found), "{refused}");
    }
    assert!(jobs.end(report.job, 1, (COMMIT, true), own(1)).unwrap().committed);
    broadcaster.close().unwrap();
}

#[test]
fn without_a_key_every_call_is_an_import() {
    let fixture = Fixture::new();
    let path = fixture.file("a.csv", "n\n1\n");
    for _ in 0..2 {
        let report = fixture.import(request("c", &[&path]), None).unwrap();
        assert_eq!((report.rows, report.duplicated, report.expires_at_ms), (1, false, None));
    }
    assert_eq!(fixture.rows("c"), [r#"{"n":"1"}"#, r#"{"n":"1"}"#]);
}

#[test]
fn rows_are_spread_over_the_vchannels_and_come_back_in_order() {
    let fixture = Fixture::new();
    let path = fixture.file("a.csv", &(0..100).fold("n\n".to_owned(), |s, n| format!("{s}{n}\n")));
    for key in [None, Some("n".to_owned())] {
        let name = if key.is_some() { "keyed" } else { "plain" };
        let asked = request(name, &[&path, &path]).vchannels(Some(12)).primary_key(key);
        assert_eq!(fixture.import(asked, Some("k")).unwrap().rows, 200);
        let expect: Vec<String> = (0..200).map(|n| format!("{{\"n\":\"{}\"}}", n % 100)).collect();
        assert_eq!(fixture.rows(name), expect);
    }
}

#[test]
fn bad_rows_fail_the_job_and_leave_no_row() {
    let fixture = Fixture::new();
    let good = fixture.file("good.csv", "a,b\n1,2\n");
    let bad = fixture.file("bad.csv", "a,b\n1,2\n3\n");
    let report = fixture.import(request("c", &[&good, &bad]), Some("k")).unwrap();
    assert_eq!((report.phase, report.rows), (JobPhase::Failed, 0));
    assert!(report.reason.contains("row 2, line 3: expected 2 fields, found 1"), "{report:?}");
    assert!(report.reason.contains("bad.csv"), "{report:?}");
    assert!(fixture.rows("c").is_empty());

    // A failed original stays failed under its key, unless it is asked for.
    std::fs::write(&bad, "a,b\n1,2\n3,4\n").unwrap();
    let again = fixture.import(request("c", &[&good, &bad]), Some("k")).unwrap();
    assert_eq!((again.phase, again.duplicated), (JobPhase::Failed, true));
    let call = ImportCall::of("default").key(Some("k".to_owned())).retry_failed(true);
    let retried = fixture.call(request("c", &[&good, &bad]), &call).unwrap();
    assert_eq!((retried.phase, retried.rows, retried.job), (JobPhase::Completed, 3, report.job));
    assert_eq!(retried.expires_at_ms, report.expires_at_ms);
    assert_eq!(fixture.rows("c").len(), 3);
}

#[test]
fn what_the_request_alone_shows_consumes_no_key_and_makes_no_collection() {
    let fixture = Fixture::new();
    let empty = fixture.file("empty.csv", "");
    let other = fixture.file("a.txt", "a\n");
    let missing = fixture.dir.path().join("none.csv");
    for path in [&empty, &other, &missing, &fixture.dir.path().to_owned()] {
        let error = fixture.import(request("c", &[path]), Some("k")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(error.path(), Some(path.as_path()), "{error}");
    }
    for key in ["", "caf\u{e9}", &"x".repeat(257)] {
        let error = fixture.import(request("c", &[&empty]), Some(key)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let view = StoreView::open(fixture.store(), Arc::clone(&fixture.io)).unwrap();
    assert_eq!(view.state().collections().count(), 0);
    let good = fixture.file("good.csv", "a\n1\n");
    assert!(!fixture.import(request("c", &[&good]), Some("k")).unwrap().duplicated);
}

#[test]
fn a_known_key_answers_also_when_its_files_are_gone() {
    let fixture = Fixture::new();
    let root = fixture.dir.path().join("d");
    std::fs::create_dir(&root).unwrap();
    let path = fixture.file("d/a.csv", "a\n1\n");
    let first = fixture.import(request("c", &[&path]), Some("k")).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    let again = fixture.import(request("c", &[&path]), Some("k")).unwrap();
    assert_eq!((again.job, again.duplicated, again.source_changed), (first.job, true, true));
}

#[test]
fn the_options_of_a_collection_are_those_it_was_made_with() {
    let fixture = Fixture::new();
    let path = fixture.file("a.csv", "a,b\n1,2\n");
    let keyed = request("c", &[&path]).primary_key(Some("a".to_owned()));
    fixture.import(keyed.clone(), None).unwrap();
    fixture.import(keyed, None).unwrap();
    let other = request("c", &[&path]).primary_key(Some("b".to_owned()));
    let error = fixture.import(other, None).unwrap_err();
    assert!(error.to_string().contains("the primary key of `c` is a"), "{error}");
    let error = fixture.import(request("c", &[&path]).vchannels(Some(2)), None).unwrap_err();
    assert!(error.to_string().contains("has 1 vchannels"), "{error}");
    assert_eq!(fixture.rows("c").len(), 2);
}

#[test]
fn csv_takes_the_types_that_the_collection_has() {
    let fixture = Fixture::new();
    let typed = fixture.file("a.jsonl", "{\"n\":1,\"t\":\"x\"}\n");
    let text = fixture.file("b.csv", "n,t\n2,3\n");
    fixture.import(request("c", &[&typed]), None).unwrap();
    fixture.import(request("c", &[&text]), None).unwrap();
    assert_eq!(fixture.rows("c"), [r#"{"n":1,"t":"x"}"#, r#"{"n":2,"t":"3"}"#]);
}

#[test]
fn a_collection_has_one_kind_of_primary_key() {
    let fixture = Fixture::new();
    let text = fixture.file("a.csv", "id\n7\n");
    let integers = fixture.file("b.jsonl", "{\"id\":7}\n");
    let keyed = |files: &[&Path]| request("c", files).primary_key(Some("id".to_owned()));
    let reason = |files: &[&Path]| fixture.import(keyed(files), None).unwrap().reason;
    let both = reason(&[&text, &integers]);
    assert!(both.contains("column `id`: the primary key is an integer"), "{both}");
    assert!(both.contains("b.jsonl"), "{both}");
    assert_eq!(reason(&[&text]), "");
    let later = reason(&[&integers]);
    assert!(later.contains("in the collection it is text"), "{later}");
    assert_eq!(fixture.rows("c"), [r#"{"id":"7"}"#]);
}

#[test]
fn json_files_of_a_collection_agree_on_the_types_of_numbers() {
    let fixture = Fixture::new();
    let whole = fixture.file("a.jsonl", "{\"n\":1}\n");
    let parts = fixture.file("b.jsonl", "{\"n\":0.5}\n");
    let large = fixture.file("c.jsonl", "{\"n\":9007199254740993}\n");
    fixture.import(request("c", &[&whole, &parts]), None).unwrap();
    fixture.import(request("c", &[&whole]), None).unwrap();
    fixture.import(request("c", &[&large]), None).unwrap();
    let expect = [r#"{"n":1.0}"#, r#"{"n":0.5}"#, r#"{"n":1.0}"#, r#"{"n":9007199254740993}"#];
    assert_eq!(fixture.rows("c"), expect);
}

#[test]
fn a_cancelled_job_is_aborted() {
    let fixture = Fixture::new();
    let path =
        fixture.file("a.csv", &(0..50_000).fold("n\n".to_owned(), |s, n| s + &format!("{n}\n")));
    let (imports, broadcaster) = fixture.open();
    let answer =
        imports.submit(&broadcaster, request("c", &[&path]), &ImportCall::of("p")).unwrap();
    let job = imports.cancel(&broadcaster, answer.id, None).unwrap();
    // The commit may have been first: then the cancel says so.
    let rows = if job.phase() == JobPhase::Completed { 50_000 } else { 0 };
    broadcaster.close().unwrap();
    assert_eq!(fixture.rows("c").len(), rows);
    assert!(rows > 0 || job.reason().contains("cancelled"), "{}", job.reason());
}

#[test]
fn a_wait_that_is_over_leaves_the_job_running() {
    let fixture = Fixture::new();
    let path =
        fixture.file("a.csv", &(0..50_000).fold("n\n".to_owned(), |s, n| s + &format!("{n}\n")));
    let call = ImportCall::of("p").key(Some("k".to_owned())).wait(Some(Duration::from_millis(1)));
    match fixture.call(request("c", &[&path]), &call) {
        Ok(report) => assert_eq!(report.rows, 50_000),
        Err(error) => {
            let told = [ErrorKind::InFlight, ErrorKind::LockTimeout, ErrorKind::OutcomeUnknown];
            assert!(told.contains(&error.kind()), "{error}");
        }
    }
    let report = fixture.import(request("c", &[&path]), None).unwrap();
    assert_eq!(report.rows, 50_000);
    let whole = ImportCall::of("p").key(Some("k".to_owned()));
    assert_eq!(fixture.call(request("c", &[&path]), &whole).unwrap().rows, 50_000);
    assert_eq!(fixture.rows("c").len(), 100_000);
}

/// Whoever followed second, without a limit, never came back.
#[test]
fn a_follower_of_a_closed_store_is_told() {
    let fixture = Fixture::new();
    let rows: String = (0..300_000).map(|n| format!("{n}\n")).collect();
    let file = fixture.file("n.csv", &format!("n\n{rows}"));
    let (imports, broadcaster) = fixture.open();
    let request = ImportRequest::new("c", vec![file]);
    let answer = imports.submit(&broadcaster, request, &ImportCall::of("default")).unwrap();
    broadcaster.close().unwrap();
    let jobs = broadcaster.jobs();
    assert!(jobs.get(answer.id).unwrap().over.is_none(), "the job outran the close");
    for _ in 0..2 {
        let told = imports.follow(&jobs, answer.id, &|| None, &mut |_| {});
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Closed);
    }
}
