//! No file of rows costs more memory to import than is promised, whatever it expands to.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use allocation_counter::measure;
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Schema};
use oncelog::import::read_file;
use oncelog::{Error, ErrorKind};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};

use crate::figures::figure;

/// What an import may hold at once.
const IMPORT_BYTES: u64 = 256 << 20;
/// The same for files of text that are larger than that, and small enough to be read often.
const TEXT_BYTES: u64 = 48 << 20;

/// Reads a file as an import does: its rows, or why it is refused.
#[track_caller]
fn check(name: &str, path: &Path, expected: Option<&Schema>) -> Result<u64, Error> {
    check_within(IMPORT_BYTES, name, path, expected)
}

#[track_caller]
fn check_within(
    most: u64,
    name: &str,
    path: &Path,
    expected: Option<&Schema>,
) -> Result<u64, Error> {
    let mut read = Ok(0);
    let info = measure(|| read = read_file(path, expected, || true));
    figure(14, &format!("bytes that importing {name} holds at once"), info.bytes_max);
    assert!(info.bytes_max <= most, "{name}: {} bytes at once", info.bytes_max);
    read
}

#[track_caller]
fn check_limit(name: &str, path: &Path, expect: &[&str]) {
    let error = check(name, path, None).unwrap_err();
    let told = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Limit, "{told}");
    assert_eq!(error.path(), Some(path));
    expect.iter().for_each(|part| assert!(told.contains(part), "{told}"));
}

fn input(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/inputs").join(name)
}

fn written(dir: &Path, columns: Vec<(&str, ArrayRef)>, how: WriterPropertiesBuilder) -> PathBuf {
    let path = dir.join("a.parquet");
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(how.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path
}

/// So many rows of one text of a dictionary.
fn texts(rows: i32, len: usize) -> ArrayRef {
    let keys = Int32Array::from_iter_values((0..rows).map(|_| 0));
    let values = StringArray::from(vec!["x".repeat(len)]);
    Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(values)))
}

/// One page as large as all of the values.
fn one_page(codec: Compression) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_compression(codec)
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(1 << 30)
        .set_data_page_row_count_limit(usize::MAX)
        .set_max_row_group_row_count(None)
}

#[test]
fn a_dictionary_of_long_texts_is_read_in_small_steps() {
    let home = tempfile::tempdir().unwrap();
    // More than the offsets of one batch reach: it was told as damage.
    let rows = 7_200;
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..rows));
    let columns = vec![("id", ids), ("t", texts(rows, 300_000))];
    let path = written(home.path(), columns, WriterProperties::builder());
    assert_eq!(check("a long text of a dictionary", &path, None).unwrap(), 7_200);
    let keys = Int32Array::from_iter_values((0..20_300).map(|row| i32::from(row >= 20_000)));
    let values = StringArray::from(vec!["x".to_owned(), "y".repeat(1 << 20)]);
    let all = DictionaryArray::<Int32Type>::new(keys, Arc::new(values));
    let path = written(home.path(), vec![("t", Arc::new(all))], WriterProperties::builder());
    assert_eq!(check("short texts before long ones", &path, None).unwrap(), 20_300);
}

#[test]
fn a_row_that_is_too_long_is_refused_by_row_and_column() {
    let home = tempfile::tempdir().unwrap();
    check_limit(
        "a list of 60,000,000 zeros",
        &input("long-list.parquet"),
        &["row 1", "`l`", "longer"],
    );
    let columns = (0..6).map(|n| (format!("t{n}"), texts(100, 2 << 20))).collect::<Vec<_>>();
    let columns = columns.iter().map(|(name, texts)| (name.as_str(), Arc::clone(texts))).collect();
    let path = written(home.path(), columns, WriterProperties::builder());
    check_limit("six long texts of dictionaries", &path, &["row 1", "longer"]);
    let lens = OffsetBuffer::from_lengths([3, 20_000_000]);
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let values: ArrayRef = Arc::new(Int64Array::from(vec![7; 20_000_003]));
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let lists = ListArray::new(Arc::clone(&item), lens.clone(), Arc::clone(&values), None);
        let how = WriterProperties::builder().set_writer_version(version);
        let path = written(home.path(), vec![("v", Arc::new(lists))], how);
        check_limit("a long list behind a short one", &path, &["row 2", "`v`", "longer"]);
    }
}

#[test]
fn a_page_that_is_too_large_is_refused_before_it_is_decompressed() {
    let home = tempfile::tempdir().unwrap();
    let zeros = || -> ArrayRef { Arc::new(Int64Array::from(vec![0; 20_000_000])) };
    for codec in [Compression::ZSTD(Default::default()), Compression::SNAPPY] {
        let path = written(home.path(), vec![("n", zeros())], one_page(codec));
        check_limit("a page of 160 MB", &path, &["`n`", "pages"]);
    }
    for codec in [Compression::GZIP(Default::default()), Compression::BROTLI(Default::default())] {
        let path = written(home.path(), vec![("n", zeros())], one_page(codec));
        let mut bytes = fs::read(&path).unwrap();
        // Type, then the size once decompressed as five bytes: it says 64.
        assert_eq!(bytes[4..7], [0x15, 0, 0x15]);
        assert_eq!(bytes[11] & 0x80, 0);
        bytes[7..12].copy_from_slice(&[0x80, 0x81, 0x80, 0x80, 0]);
        fs::write(&path, bytes).unwrap();
        let error = check("a page larger than its header says", &path, None).unwrap_err();
        assert!(error.to_string().contains("column `n`: the file is damaged"), "{error}");
    }
}

#[test]
fn pages_of_every_encoding_of_text_stay_within_bounds() {
    let home = tempfile::tempdir().unwrap();
    let texts = || -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..80).map(|_| "z".repeat(1 << 20))))
    };
    for encoding in [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY]
    {
        let how = WriterProperties::builder()
            .set_compression(Compression::ZSTD(Default::default()))
            .set_dictionary_enabled(false)
            .set_encoding(encoding);
        let path = written(home.path(), vec![("t", texts())], how);
        let name = format!("80 texts of 1 MiB ({encoding})");
        assert_eq!(check_within(TEXT_BYTES, &name, &path, None).unwrap(), 80);
    }
}

#[test]
fn columns_whose_pages_do_not_fit_together_are_read_in_turn() {
    let home = tempfile::tempdir().unwrap();
    let column = |n: u64| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..24).map(|_| n.to_string().repeat(128 << 10))))
    };
    let columns = (10..30).map(|n| (format!("c{n}"), column(n))).collect::<Vec<_>>();
    let columns =
        columns.iter().map(|(name, values)| (name.as_str(), Arc::clone(values))).collect();
    let path = written(home.path(), columns, one_page(Compression::ZSTD(Default::default())));
    assert_eq!(check("twenty columns with pages of 6 MB", &path, None).unwrap(), 24);
}

#[test]
fn long_rows_of_text_are_read_in_small_steps() {
    let home = tempfile::tempdir().unwrap();
    let long = "x".repeat(1_000_000);
    let path = home.path().join("a.csv");
    let mut file = File::create(&path).unwrap();
    writeln!(file, "id,t").unwrap();
    (0..80).for_each(|id| writeln!(file, "{id},{long}").unwrap());
    let expected = Schema::new(vec![Field::new("id", DataType::Int64, true)]);
    let read = check_within(TEXT_BYTES, "80 MB of CSV with types", &path, Some(&expected));
    assert_eq!(read.unwrap(), 80);
    let path = home.path().join("a.jsonl");
    let mut file = File::create(&path).unwrap();
    (0..60).for_each(|id| writeln!(file, "{{\"id\":{id},\"t\":\"{long}\"}}").unwrap());
    let read = check_within(TEXT_BYTES, "60 MB of JSON Lines", &path, None);
    assert_eq!(read.unwrap(), 60);
}

#[test]
fn a_large_file_is_left_as_soon_as_the_reading_is_to_end() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("a.parquet");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"PAR1").unwrap();
    // A hole: it costs nothing to make, and minutes to read.
    file.set_len(30 << 30).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&asked);
    let go_on = move || seen.fetch_add(1, Ordering::Relaxed) < 3;
    let error = read_file(&path, None, go_on).unwrap_err();
    assert_eq!((error.kind(), asked.load(Ordering::Relaxed)), (ErrorKind::Closed, 4));
}
