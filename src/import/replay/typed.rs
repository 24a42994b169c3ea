//! Rows of every type go through an import and a replay to Parquet, and come back as they were.

use std::path::PathBuf;

use ::parquet::file::properties::WriterProperties;
use arrow_select::concat::concat_batches;

use super::tests::{Memory, names, replayed};
use super::*;
use crate::import::format::Format;
use crate::import::numpy::tests::npy;
use crate::import::parquet::tests::{every_type, input, written};
use crate::import::read::{self, FirstPass, Progress};
use crate::import::roots::Origin;
use crate::import::verdict::COMMIT;

/// The rows of a file as an import reads them.
fn read_back(path: &Path) -> RecordBatch {
    let sources = [Origin::System.open(path).unwrap()];
    let format = Format::of_name(path).unwrap();
    let mut report = |_| Ok(());
    let mut pass =
        FirstPass { primary_key: None, expected: None, progress: Progress::new(&mut report) };
    let survey = read::survey(&sources, format, &mut pass).unwrap();
    let mut reader = read::open(&sources, format, &survey).unwrap();
    let mut batches = Vec::new();
    while let Some(batch) = reader.next_batch(100).unwrap() {
        batches.push(batch);
    }
    concat_batches(&survey.schema, &batches).unwrap()
}

/// Imports a file over vchannels, replays it to Parquet, and compares types and values.
#[track_caller]
fn check(path: &Path, vchannels: &[&str]) {
    let vchannels = names(vchannels);
    let mut memory = Memory::default();
    memory.import(path, 1, 1, 2, &vchannels);
    for vchannel in &vchannels {
        memory.verdict(vchannel, COMMIT, 1, 1);
    }
    let expect = read_back(path);
    let (report, _dir, target) = replayed(&memory, &vchannels, "parquet");
    assert_eq!(report.rows, expect.num_rows() as u64);
    let found = read_back(&target);
    assert_eq!(found.num_columns(), expect.num_columns());
    for (at, field) in expect.schema().fields().iter().enumerate() {
        let again = found.schema();
        let again = again.field(at);
        assert_eq!((again.name(), again.data_type()), (field.name(), field.data_type()));
        assert_eq!(found.column(at), expect.column(at), "{}", field.name());
    }
}

#[test]
fn rows_of_every_type_come_back_with_their_types() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let (batch, _) = every_type();
    std::fs::write(&path, written(&batch, WriterProperties::builder())).unwrap();
    check(&path, &["v0"]);
    check(&path, &["v0", "v1", "v2"]);
}

#[test]
fn rows_of_other_writers_come_back_with_their_types() {
    for name in ["every.parquet", "int96.parquet", "checksums-v2.parquet", "bulk/1.parquet"] {
        check(&input(name), &["v0", "v1"]);
    }
}

#[test]
fn the_types_of_other_formats_come_back_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| -> PathBuf {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let json =
        b"{\"i\":1,\"u\":18446744073709551615,\"f\":0.5,\"b\":true,\"t\":\"x\"}\n{\"i\":-1}\n";
    check(&file("a.jsonl", json), &["v0"]);
    check(&file("a.csv", b"a,b\n1,\"x\ny\"\n,\n"), &["v0", "v1"]);
    for (descr, len) in [("|b1", 1), ("<i2", 2), ("<u4", 4), ("<f2", 2), ("<f8", 8), ("<U2", 8)] {
        let data = vec![0; len * 3];
        check(&file("n.npy", &npy(descr, "(3,)", &data)), &["v0", "v1"]);
    }
}

#[test]
fn a_collection_without_rows_is_replayed_with_its_columns() {
    use crate::broadcast::{Broadcaster, Options, StoreView};
    use crate::import::{ImportCall, ImportRequest, Imports};
    use crate::io::mem::{Machine, MemIo};
    use crate::log::CreateMode;
    use crate::store::{Store, StoreOptions};

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let (batch, _) = every_type();
    std::fs::write(&path, written(&batch.slice(0, 0), WriterProperties::builder())).unwrap();
    let io: Arc<dyn Io> = Arc::new(MemIo::new(Machine::new()));
    let imports = Imports::new();
    let store = StoreOptions::new().create(CreateMode::IfMissing).io(Arc::clone(&io));
    let options = imports.types().into_iter().fold(Options::new(), Options::register);
    let broadcaster = Broadcaster::open(Store::open("/store", &store).unwrap(), options).unwrap();
    let asked = ImportRequest::new("c", vec![path.clone()]);
    let report = imports.run(&broadcaster, asked, &ImportCall::of("p"), &mut |_| {}).unwrap();
    assert_eq!((report.rows, report.reason.as_str()), (0, ""));
    broadcaster.close().unwrap();
    let view = StoreView::open(Path::new("/store"), io).unwrap();
    let target = dir.path().join("out.parquet");
    let files: Arc<dyn Io> = Arc::new(crate::io::fs::FsIo::new());
    let selection = ReplaySelection::new(Some("c".to_owned()), None);
    replay(&view, &selection, &files, &target, &mut |_, _| {}).unwrap();
    let (found, expect) = (read_back(&target), read_back(&path));
    assert_eq!(found.num_rows(), 0);
    let types = |batch: &RecordBatch| -> Vec<_> {
        batch.schema().fields().iter().map(|field| field.data_type().clone()).collect()
    };
    assert_eq!(types(&found), types(&expect));
}
