//! Imports of a service: files below its roots, and no other, whoever asks for what.
#![expect(clippy::disallowed_methods, reason = "what others do to a directory meanwhile")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::tests::{open_with, rows_on};
use super::*;
use crate::import::request::RequestRoot;
use crate::io::Io;
use crate::io::fs::FsIo;

/// A store with two roots beside it, and a file that is below none.
struct Service {
    dir: tempfile::TempDir,
    io: Arc<dyn Io>,
}

impl Service {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["first/d", "second", "outside"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("outside/a.csv"), "n\nsecret\n").unwrap();
        Self { dir, io: Arc::new(FsIo::new()) }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, content: &str) {
        std::fs::write(self.at(path), content).unwrap();
    }

    fn roots(&self) -> ImportRoots {
        ImportRoots::open([self.at("first"), self.at("second")]).unwrap()
    }

    fn open(&self) -> (Imports, Broadcaster) {
        let imports = Imports::with_slice_rows(2).below(self.roots());
        let broadcaster = open_with(&self.io, &self.at("store"), 1, &imports).unwrap();
        (imports, broadcaster)
    }

    fn import(&self, paths: &[&str], key: &str) -> Result<ImportReport> {
        let (imports, broadcaster) = self.open();
        let paths = paths.iter().map(PathBuf::from).collect();
        let call = ImportCall::of("p").key(Some(key.to_owned()));
        let report = imports.run(&broadcaster, ImportRequest::new("c", paths), &call, &mut |_| {});
        broadcaster.close().unwrap();
        report
    }

    fn rows(&self) -> Vec<String> {
        rows_on(&self.io, &self.at("store"), "c")
    }
}

#[test]
fn a_file_is_named_from_its_root_or_by_its_path_below_one() {
    let service = Service::new();
    service.write("first/d/a.csv", "n\n1\n2\n3\n");
    service.write("second/a.csv", "n\n4\n");
    let first = service.import(&["d/a.csv"], "k").unwrap();
    assert_eq!((first.phase, first.rows), (JobPhase::Completed, 3));
    let absolute = service.at("first/d/../d/a.csv");
    for path in ["d/a.csv", "./d//a.csv", absolute.to_str().unwrap()] {
        let again = service.import(&[path], "k").unwrap();
        assert_eq!((again.job, again.duplicated), (first.job, true), "{path}");
        assert!(!again.source_changed, "{path}");
    }
    let second = service.at("second/a.csv");
    let other = service.import(&[second.to_str().unwrap()], "k").unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Conflict);
    assert_eq!(service.import(&[second.to_str().unwrap()], "k2").unwrap().rows, 1);
    let both = service.import(&["d/a.csv", second.to_str().unwrap()], "k3").unwrap_err();
    assert!(both.to_string().contains("several import roots"), "{both}");
    assert_eq!(service.rows().len(), 4);
}

#[test]
fn what_lies_below_no_root_is_refused_and_not_told_of() {
    let service = Service::new();
    let outside = service.at("outside/a.csv");
    let missing = service.at("outside/none.csv");
    symlink(service.at("outside"), service.at("first/up")).unwrap();
    symlink("../outside/a.csv", service.at("first/link.csv")).unwrap();
    let home = service.dir.path().to_str().unwrap().to_owned();
    let paths = [
        "../outside/a.csv",
        "d/../../outside/a.csv",
        outside.to_str().unwrap(),
        missing.to_str().unwrap(),
        "/etc/passwd",
        "/",
        "",
        "up/a.csv",
        "link.csv",
        "d",
        "none.csv",
        "a\0.csv",
        "/proc/self/fd/0",
    ];
    let mut told = Vec::new();
    for path in paths {
        let error = service.import(&[path], "k").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?}: {error}");
        let text = crate::import::driver::told(&error);
        assert!(!text.contains(&home) && !text.contains("/etc"), "{path:?}: {text}");
        assert!(error.path().is_none_or(Path::is_relative), "{path:?}: {text}");
        told.push(text);
    }
    // Whether a file is there is told below the roots alone.
    assert_eq!(told[2], told[3]);
    service.write("first/a.csv", "n\n1\n");
    assert!(!service.import(&["a.csv"], "k").unwrap().duplicated, "a refusal consumed the key");
    assert_eq!(service.rows(), [r#"{"n":"1"}"#]);
}

#[test]
fn the_reason_of_a_failed_job_names_its_file_from_the_root() {
    let service = Service::new();
    service.write("first/d/a.csv", "n\n1,2\n");
    let report = service.import(&["d/a.csv"], "k").unwrap();
    assert_eq!(report.phase, JobPhase::Failed);
    assert!(report.reason.contains("row 1, line 2"), "{}", report.reason);
    assert!(report.reason.contains("d/a.csv"), "{}", report.reason);
    assert!(!report.reason.contains(service.dir.path().to_str().unwrap()), "{}", report.reason);
}

/// A payload that was not made by a request: what a service lets others broadcast may be one.
#[test]
fn a_payload_that_somebody_made_up_leads_to_no_other_file() {
    let service = Service::new();
    service.write("first/a.csv", "n\n1\n");
    let (imports, broadcaster) = service.open();
    let call = ImportCall::of("p");
    let asked = ImportRequest::new("c", vec![PathBuf::from("a.csv")]);
    imports.run(&broadcaster, asked.clone(), &call, &mut |_| {}).unwrap();
    let collection = broadcaster.read(|state, _| state.collection_named("c").cloned()).unwrap();
    let (outside, first) = (service.at("outside"), service.at("first"));
    let file = outside.join("a.csv");
    let submit = |root: Option<&Path>, path: &Path| {
        let root = root.map(|root| RequestRoot { path: root.to_owned(), is_first: true });
        let made = ImportRequest { sets: vec![vec![path.to_owned()]], root, ..asked.clone() };
        broadcaster.submit(&asking::asked(&made, &call, &collection, None), None)
    };
    for (root, path, expect) in [
        (None, file.as_path(), "below no import root"),
        (Some(outside.as_path()), Path::new("a.csv"), "below no import root"),
        (Some(first.as_path()), file.as_path(), "leads out of its root"),
        (Some(first.as_path()), Path::new("../outside/a.csv"), "leads out of its root"),
        (Some(first.as_path()), Path::new("d/../../outside/a.csv"), "leads out of its root"),
        (Some(first.as_path()), Path::new("d//a.csv"), "not in its one form"),
        (Some(first.as_path()), Path::new("none.csv"), "does not exist"),
    ] {
        let error = submit(root, path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{root:?} {path:?}: {error}");
        assert!(error.to_string().contains(expect), "{path:?}: {error}, expected {expect}");
    }
    // As a request would have made it, it is one.
    assert!(!submit(Some(&first), Path::new("a.csv")).unwrap().duplicated);
    broadcaster.close().unwrap();
    // A process without roots takes none that has one.
    let imports = Imports::new();
    let broadcaster = open_with(&service.io, &service.at("store"), 1, &imports).unwrap();
    let root = Some(RequestRoot { path: first, is_first: true });
    let made = ImportRequest { root, ..asked };
    let error = broadcaster.submit(&asking::asked(&made, &call, &collection, None), None);
    assert!(error.unwrap_err().to_string().contains("below no import root"));
    broadcaster.close().unwrap();
}

/// Between the look at the request and the rows, the directory becomes a link that leads out.
#[test]
fn a_directory_that_is_replaced_before_the_rows_are_read_leads_nowhere() {
    let service = Service::new();
    service.write("first/d/a.csv", "n\n1\n");
    let asked = || ImportRequest::new("c", vec![PathBuf::from("d/a.csv")]);
    let call = ImportCall::of("p").key(Some("k".to_owned()));
    {
        // Nobody drives jobs: the request is accepted, and that is all.
        let imports = Imports::new().below(service.roots());
        let broadcaster = open_with(&service.io, &service.at("store"), 1, &imports).unwrap();
        imports.stop();
        drop(imports.submit(&broadcaster, asked(), &call).unwrap());
        broadcaster.close().unwrap();
    }
    std::fs::rename(service.at("first/d"), service.at("first/gone")).unwrap();
    symlink("../outside", service.at("first/d")).unwrap();
    let report = service.import(&["d/a.csv"], "k").unwrap();
    assert_eq!((report.phase, report.duplicated), (JobPhase::Failed, true));
    assert!(report.reason.contains("symbolic link"), "{}", report.reason);
    assert!(service.rows().is_empty());
}

#[test]
fn a_job_below_a_root_is_resumed_by_a_process_with_and_without_that_root() {
    let service = Service::new();
    service.write("first/d/a.csv", "n\n1\n2\n3\n");
    let asked = || ImportRequest::new("c", vec![PathBuf::from("d/a.csv")]);
    let begin = |key: &str| {
        let imports = Imports::new().below(service.roots());
        let broadcaster = open_with(&service.io, &service.at("store"), 1, &imports).unwrap();
        imports.stop();
        let call = ImportCall::of("p").key(Some(key.to_owned()));
        let id = imports.submit(&broadcaster, asked(), &call).unwrap().id;
        broadcaster.close().unwrap();
        id
    };
    let resume = |id, imports: &Imports| {
        let broadcaster = open_with(&service.io, &service.at("store"), 1, imports).unwrap();
        let job = imports.follow(&broadcaster.jobs(), id, &|| None, &mut |_| {});
        broadcaster.close().unwrap();
        job.map(|job| job.phase())
    };
    // The command line has no roots, and goes on with what the service accepted.
    let id = begin("a");
    assert_eq!(resume(id, &Imports::new()).unwrap(), JobPhase::Completed);
    let id = begin("b");
    let other = || Imports::new().below(ImportRoots::open([service.at("second")]).unwrap());
    let stopped = resume(id, &other()).unwrap_err();
    assert!(stopped.to_string().contains("not configured any more"), "{stopped}");
    let with_root = Imports::new().below(service.roots());
    assert_eq!(resume(id, &with_root).unwrap(), JobPhase::Completed);
    // Where the root is gone for good, an operator cancels the job.
    let id = begin("c");
    let imports = other();
    let broadcaster = open_with(&service.io, &service.at("store"), 1, &imports).unwrap();
    let job = imports.cancel(&broadcaster, id, None).unwrap();
    assert_eq!(job.phase(), JobPhase::Failed);
    broadcaster.close().unwrap();
    assert_eq!(service.rows().len(), 6);
}

/// What a key was accepted for is told by what is stored with it, not by what is configured now.
#[test]
fn a_known_key_is_answered_wherever_its_root_is_by_now() {
    let service = Service::new();
    for path in ["first/d/a.csv", "second/a.csv", "second/b.csv"] {
        service.write(path, "n\n1\n");
    }
    let (of_first, of_second) = (service.at("first/d/a.csv"), service.at("second/a.csv"));
    let submit = |roots: &[&str], path: &Path, key: &str| {
        let roots = ImportRoots::open(roots.iter().map(|root| service.at(root))).unwrap();
        let imports = Imports::new().below(roots);
        let broadcaster = open_with(&service.io, &service.at("store"), 1, &imports).unwrap();
        let call = ImportCall::of("p").key(Some(key.to_owned()));
        let request = ImportRequest::new("c", vec![path.to_owned()]);
        let answer = imports.submit(&broadcaster, request, &call);
        broadcaster.close().unwrap();
        answer
    };
    let both = ["first", "second"];
    let first = submit(&both, Path::new("d/a.csv"), "a").unwrap().id;
    let second = submit(&both, &of_second, "b").unwrap().id;
    for roots in [&both[..], &["second", "first"], &["first"], &["second"], &["outside", "first/d"]]
    {
        for (path, key, id) in [(&of_first, "a", first), (&of_second, "b", second)] {
            let answer = submit(roots, path, key).unwrap();
            assert_eq!((answer.id, answer.duplicated), (id, true), "{roots:?} {key}");
            // Other files are another request, wherever they lie.
            for other in [service.at("second/b.csv"), service.at("outside/a.csv")] {
                let conflict = submit(roots, &other, key).unwrap_err();
                assert_eq!(conflict.kind(), ErrorKind::Conflict, "{roots:?} {key}");
                let differs = ["files", "root"].map(str::to_owned);
                assert!(conflict.fields().iter().all(|field| differs.contains(field)));
                let told = conflict.to_string();
                assert!(!told.contains("outside"), "{told}");
            }
        }
        // The first root is what relative paths mean, wherever it is.
        assert_eq!(submit(roots, Path::new("d/a.csv"), "a").unwrap().id, first, "{roots:?}");
    }
    let refused = submit(&["first"], &of_second, "new").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}
