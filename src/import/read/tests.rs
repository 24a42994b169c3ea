use std::path::{Path, PathBuf};

use ::parquet::arrow::ArrowWriter;
use arrow_array::{ArrayRef, Float32Array, Int64Array, ListArray, StringArray};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::import::replay::cell::{keyed, write_object};
use crate::import::roots::Origin;

/// The rows of a batch as JSON.
pub(crate) fn lines(batch: &RecordBatch) -> Vec<String> {
    let schema = batch.schema();
    let columns = keyed(schema.fields(), batch.columns()).unwrap();
    let line = |row| {
        let mut out = Vec::new();
        write_object(&columns, row, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    (0..batch.num_rows()).map(line).collect()
}

fn look(path: &Path, primary_key: Option<&str>) -> Result<([Source; 1], Format, Survey)> {
    let source = [Origin::System.open(path)?];
    let format = Format::of_name(path)?;
    let mut report = |_| Ok(());
    let mut pass = FirstPass { primary_key, expected: None, progress: Progress::new(&mut report) };
    let survey = survey(&source, format, &mut pass)?;
    Ok((source, format, survey))
}

/// Both passes over a file, in batches of `step` rows from row `skip` on.
fn read_by(path: &Path, step: usize, skip: u64, key: Option<&str>) -> Result<Vec<String>> {
    let (source, format, survey) = look(path, key)?;
    let mut reader = open(&source, format, &survey)?;
    reader.skip(skip)?;
    let mut all = Vec::new();
    let mut last = step;
    while let Some(batch) = reader.next_batch(step)? {
        assert_eq!(last, step, "only the last batch may be short");
        assert_eq!(batch.schema(), survey.schema);
        last = batch.num_rows();
        all.extend(lines(&batch));
    }
    assert_eq!(all.len() as u64, survey.rows.saturating_sub(skip));
    let digest: [u8; 32] = Sha256::digest(std::fs::read(path).unwrap()).into();
    let digest = vec![Sha256Sum(digest)];
    assert_eq!((&reader.finish()?, &survey.sha256), (&digest, &digest));
    Ok(all)
}

fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

#[track_caller]
fn check(name: &str, content: impl AsRef<[u8]>, expect: &[&str]) {
    let (_dir, path) = written(name, content.as_ref());
    for step in [1, 2, 1000] {
        assert_eq!(read_by(&path, step, 0, None).unwrap(), expect, "{name} by {step}");
    }
    for skip in 0..expect.len() {
        let rest = read_by(&path, 2, skip as u64, None).unwrap();
        assert_eq!(rest, expect[skip..], "{name} from {skip}");
    }
}

/// The error names the file and says `expect`, at `offset` where the place is known.
#[track_caller]
fn check_bad(name: &str, content: impl AsRef<[u8]>, offset: Option<u64>, expect: &str) {
    check_bad_key(name, content, None, offset, expect);
}

#[track_caller]
fn check_bad_key(
    name: &str,
    content: impl AsRef<[u8]>,
    key: Option<&str>,
    offset: Option<u64>,
    expect: &str,
) {
    let (_dir, path) = written(name, content.as_ref());
    let error = read_by(&path, 10, 0, key).unwrap_err();
    assert!(error.to_string().contains(expect), "{name}: {error}");
    assert_eq!(error.path(), Some(&*path), "{name}: {error}");
    assert_eq!(error.offset(), offset, "{name}: {error}");
}

#[test]
fn csv_values_are_text() {
    let one = [r#"{"a":"01G","b":"1"}"#];
    check("a.csv", "a,b\n01G,1\n", &one);
    check("a.csv", "a,b\n01G,1", &one);
    check("a.csv", "a,b\r\n01G,1\r\n", &one);
    check("a.csv", "a,b\r01G,1\r", &one);
    check("a.csv", "\u{feff}a,b\n01G,1\n", &one);
    check("a.csv", "\n\na,b\n\n01G,1\n\n", &one);
    check("a.csv", "\"a\",\"b\"\n\"01G\",\"1\"\n", &one);
    check("a.CSV", "a,b\n", &[]);
    check("a.csv", "a,b\n,\n", &[r#"{"a":"","b":""}"#]);
    check("a.csv", "a\n\"\"\nx\n", &[r#"{"a":""}"#, r#"{"a":"x"}"#]);
    check("a.csv", "a,b\n\"x\ny\",\"p,\"\"q\"\"\"\n", &[r#"{"a":"x\ny","b":"p,\"q\""}"#]);
    check("a.csv", "a,b\n5\" pipe,x y\n", &[r#"{"a":"5\" pipe","b":"x y"}"#]);
}

#[test]
fn csv_that_is_wrong_is_refused_at_its_place() {
    check_bad("a.csv", "\n\n", None, "no header");
    check_bad("a.csv", "a,a\n1,2\n", None, "two columns have the name `a`");
    check_bad("a.csv", "a,\n1,2\n", Some(0), "column 2 of the header has no name");
    check_bad("a.csv", "a,b\n1,2\n3\n", Some(8), "row 2, line 3: expected 2 fields, found 1");
    check_bad("a.csv", "a,b\n1,2,3\n", Some(4), "row 1, line 2: expected 2 fields, found 3");
    check_bad("a.csv", "a,b\n1,2\n3,\"4\n", Some(10), "row 2, line 3: a quote is not closed");
    check_bad("a.csv", "a,b\n\"1\"x,2\n", Some(7), "row 1, line 2: text behind a closing quote");
    check_bad("a.csv", b"a,b\n1,2\n3,x\xff\n", Some(11), "row 2, line 3, column `b`: the text");
    check_bad_key("a.csv", "a,b\n1,2\n3,\n", Some("b"), Some(8), "row 2, line 3, column `b`: the");
    check_bad_key("a.csv", "a,b\n1,2\n", Some("id"), None, "column `id`: no such column");
}

#[test]
fn csv_is_read_by_the_schema_of_its_collection() {
    let fields = [("i", DataType::Int64), ("f", DataType::Float64), ("z", DataType::Utf8)];
    let fields = fields.map(|(name, kind)| arrow_schema::Field::new(name, kind, true));
    let expected = Schema::new(fields.to_vec());
    let read = |content: &str| {
        let (_dir, path) = written("a.csv", content.as_bytes());
        let source = [Origin::System.open(&path)?];
        let mut report = |_| Ok(());
        let progress = Progress::new(&mut report);
        let mut pass = FirstPass { primary_key: None, expected: Some(&expected), progress };
        let survey = survey(&source, Format::Csv, &mut pass)?;
        let mut reader = open(&source, Format::Csv, &survey)?;
        Ok::<_, Error>(lines(&reader.next_batch(10)?.unwrap()))
    };
    let rows = read("z,i,f,x\n007,7,0.5,1\n,,,\n").unwrap();
    let expect = [r#"{"z":"007","i":7,"f":0.5,"x":"1"}"#, r#"{"z":"","i":null,"f":null,"x":""}"#];
    assert_eq!(rows, expect);
    let error = read("i\n1\n7x\n").unwrap_err();
    assert!(error.to_string().contains("row 2, column `i`: expected a value of Int64, found `7x`"));
}

#[test]
fn json_arrays_and_lines_have_the_same_rows() {
    let expect = [
        r#"{"i":1,"f":0.5,"t":"x","n":null,"j":[1,{"a":"b c"}]}"#,
        r#"{"i":-2,"f":3.0,"t":null,"n":null,"j":null}"#,
    ];
    let rows = [
        r#"{"i": 1, "f":0.5,"t":"\u0078","n":null,"j":[ 1, {"a" : "b c"} ]}"#,
        r#"{"f":3,"i":-2}"#,
    ];
    check("a.jsonl", rows.join("\n"), &expect);
    check("a.ndjson", format!("  {} \r\n\n\t{}\r\n\n", rows[0], rows[1]), &expect);
    check("a.json", format!("[{},{}]", rows[0], rows[1]), &expect);
    check("a.json", format!("\u{feff}\n[ {} ,\n {} ]\n", rows[0], rows[1]), &expect);
    check("a.json", format!("{{ \"rows\" : [ {},{} ] }}\n", rows[0], rows[1]), &expect);
    check("a.json", "[]", &[]);
    check("a.json", "{\"rows\":[]}", &[]);
    check("a.json", "[{}]", &["{}"]);
}

#[test]
fn json_values_come_back_exactly() {
    check(
        "a.jsonl",
        "{\"a\":9007199254740993}\n{\"a\":-1}",
        &[r#"{"a":9007199254740993}"#, r#"{"a":-1}"#],
    );
    check(
        "a.jsonl",
        "{\"a\":18446744073709551615}\n{\"a\":1}",
        &[r#"{"a":18446744073709551615}"#, r#"{"a":1}"#],
    );
    check(
        "a.jsonl",
        "{\"a\":9007199254740993}\n{\"a\":0.5}",
        &[r#"{"a":9007199254740993}"#, r#"{"a":0.5}"#],
    );
    check(
        "a.jsonl",
        "{\"a\":1e300}\n{\"a\":-0.0}\n{\"a\":5e-324}",
        &[r#"{"a":1e300}"#, r#"{"a":-0.0}"#, r#"{"a":5e-324}"#],
    );
    check(
        "a.jsonl",
        "{\"a\":\"x\"}\n{\"a\":1}\n{\"a\":true}\n{\"a\":null}",
        &[r#"{"a":"x"}"#, r#"{"a":1}"#, r#"{"a":true}"#, r#"{"a":null}"#],
    );
    check("a.jsonl", r#"{"\"q\"":"\\\"\n\u0001"}"#, &[r#"{"\"q\"":"\\\"\n\u0001"}"#]);
}

#[test]
fn json_that_is_wrong_is_refused_at_its_place() {
    check_bad(
        "a.jsonl",
        "{\"a\":1}\n{\"a\":\"x\n",
        Some(13),
        "row 2, line 2, column `a`: a string",
    );
    check_bad("a.jsonl", "{\"a\":1}\n{\"a\":1", Some(14), "row 2, line 2, column `a`: expected");
    check_bad("a.jsonl", "{\"a\":1}\n[1]\n", Some(8), "row 2, line 2: a row is no object");
    check_bad("a.jsonl", "{\"a\":1} {\"a\":2}\n", Some(8), "row 1, line 1: expected the end");
    check_bad("a.jsonl", "{\"a\":1,\"a\":2}", Some(7), "row 1, line 1, column `a`: the row has");
    check_bad("a.jsonl", b"{\"a\":\"\xff\"}", Some(6), "row 1, line 1: the text is not UTF-8");
    check_bad(
        "a.jsonl",
        "{\"a\":1}\n{\"a\":18446744073709551616}",
        Some(13),
        "row 2, line 2, column",
    );
    check_bad(
        "a.json",
        "[{\"a\":1},\n{\"a\":\"x]",
        Some(10),
        "row 2, line 2: a string is not closed",
    );
    check_bad(
        "a.json",
        "[{\"a\":1},\n{\"a\":[1",
        Some(10),
        "row 2, line 2: an object is not closed",
    );
    check_bad("a.json", "[{\"a\":1}", Some(8), "the array is not closed");
    check_bad("a.json", "[{\"a\":1},", Some(9), "the array is not closed");
    check_bad("a.json", "[{\"a\":1} {\"a\":1}]", Some(9), "row 2, line 1: expected `,` or `]`");
    check_bad("a.json", "[{\"a\":1},]", Some(9), "row 2, line 1: a row is no object");
    check_bad("a.json", "[{\"a\":1},7]", Some(9), "row 2, line 1: a row is no object");
    check_bad("a.json", "[{\"a\":1}] x", Some(10), "expected the end of the file");
    check_bad("a.json", "{\"rows\":[{\"a\":1}]", Some(17), "expected `}`");
    check_bad("a.json", "{\"row\":[{\"a\":1}]}", Some(5), "an object with only `rows`");
    check_bad("a.json", "{\"a\":1}\n{\"a\":2}\n", Some(2), "an object with only `rows`");
    check_bad_key(
        "a.jsonl",
        "{\"k\":1}\n{}",
        Some("k"),
        Some(8),
        "row 2, line 2, column `k`: the p",
    );
    check_bad_key("a.jsonl", "{\"k\":null}", Some("k"), Some(0), "missing or null");
    check_bad_key("a.jsonl", "{\"k\":0.5}", Some("k"), None, "neither integer nor text");
    check_bad_key(
        "a.jsonl",
        "{\"k\":1}\n{\"k\":\"1\"}",
        Some("k"),
        None,
        "neither integer nor text",
    );
}

#[test]
fn deep_nesting_is_refused_without_a_stack_overflow() {
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let lists = format!("{{\"a\":{}}}", deep("[", "]"));
    check_bad("a.jsonl", &lists, Some(5 + 127), "nested deeper than 128 levels");
    check_bad("a.json", format!("[{lists}]"), Some(6 + 127), "nested deeper than 128 levels");
    check_bad("a.json", deep("[", "]"), Some(1), "a row is no object");
    check_bad("a.jsonl", deep("{\"a\":", "}"), Some(5 * 128), "nested deeper than 128 levels");
}

#[test]
fn a_name_and_a_content_that_disagree_are_refused() {
    check_bad("a.parquet", "a,b\n1,2\n", Some(0), "the name says Parquet, the content is not");
    check_bad("a.csv", b"PAR1\0\0\0\0PAR1", Some(0), "the content is Parquet");
    check_bad("a.json", b"PAR1\0\0\0\0PAR1", Some(0), "the content is Parquet");
    check_bad("a.csv", "[{\"a\":1}]", Some(0), "the name says CSV, the content is JSON");
    check_bad("a.csv", "{\"a\":1}\n", Some(0), "the name says CSV, the content is JSON");
    check_bad("a.jsonl", "[{\"a\":1}]", Some(0), "a JSON array");
    check_bad("a.jsonl", "a,b\n1,2\n", Some(0), "the name says JSON Lines, the content is not");
    check_bad("a.json", "a,b\n1,2\n", Some(0), "the name says JSON, the content is not");
    check_bad("a.csv", b"a,b\n\0\n", Some(0), "not text");
    check_bad("a.csv", [0x1f, 0x8b, 8], Some(0), "not text");
    let (_dir, path) = written("a.txt", b"a\n1\n");
    assert!(Format::of_name(&path).unwrap_err().to_string().contains("tells no format"));
}

#[test]
fn a_row_longer_than_the_limit_is_refused() {
    let wide = "x".repeat(7 << 20);
    check_bad("a.csv", format!("a\n1\n{wide}\n"), Some(4), "longer than");
    check_bad("a.jsonl", format!("{{\"a\":\"{wide}\"}}"), Some(0), "longer than");
    check_bad("a.json", format!("[{{\"a\":\"{wide}\"}}]"), Some(1), "longer than");
}

#[test]
fn too_many_columns_are_refused() {
    let row: Vec<String> = (0..5000).map(|n| format!("\"k{n}\":1")).collect();
    let (_dir, path) = written("a.jsonl", format!("{{{}}}", row.join(",")).as_bytes());
    let error = look(&path, None).unwrap_err();
    assert!(error.to_string().contains("more than 4096 columns"), "{error}");
}

/// A Parquet file of `rows` rows in row groups of `group`.
fn parquet_of(rows: i64, group: usize) -> Vec<u8> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let names = (0..rows).map(|id| (id % 3 > 0).then(|| format!("name {id}")));
    let names: ArrayRef = Arc::new(StringArray::from_iter(names));
    let item = Arc::new(arrow_schema::Field::new("element", DataType::Float32, true));
    let values = Float32Array::from_iter_values((0..rows * 2).map(|n| n as f32 / 8.0));
    let offsets = arrow_buffer::OffsetBuffer::from_lengths((0..rows).map(|_| 2));
    let lists: ArrayRef = Arc::new(ListArray::new(item, offsets, Arc::new(values), None));
    let batch = RecordBatch::try_from_iter([("id", ids), ("name", names), ("v", lists)]).unwrap();
    let properties = ::parquet::file::properties::WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn parquet_values_keep_their_types() {
    let expect: Vec<String> = (0..25)
        .map(|id| {
            let name = if id % 3 > 0 { format!("\"name {id}\"") } else { "null".to_owned() };
            let (a, b) = (f64::from(id) / 4.0, f64::from(id) / 4.0 + 0.125);
            format!("{{\"id\":{id},\"name\":{name},\"v\":[{a:?},{b:?}]}}")
        })
        .collect();
    let expect: Vec<&str> = expect.iter().map(String::as_str).collect();
    check("a.parquet", parquet_of(25, 10), &expect);
}

#[test]
fn parquet_that_is_wrong_is_refused() {
    let whole = parquet_of(3000, 1000);
    check_bad_key("a.parquet", &whole, Some("name"), None, "row 1, column `name`: the primary key");
    check_bad_key("a.parquet", &whole, Some("x"), None, "column `x`: no such column");
    check_bad_key("a.parquet", &whole, Some("v"), None, "neither integer nor text");
    for cut in [9, 100, whole.len() / 2, whole.len() - 1] {
        check_bad("a.parquet", &whole[..cut], None, "damaged or truncated");
    }
}

#[test]
fn damaged_parquet_never_panics() {
    let whole = parquet_of(40, 10);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        std::fs::write(&path, &bytes).unwrap();
        // Parquet pages need no checksum: a flipped value may well be a value.
        drop(read_by(&path, 10, 0, None));
    }
    std::panic::set_hook(hook);
}

#[test]
fn a_block_that_changes_between_digest_and_decoding_is_found() {
    let (_dir, path) = written("a.parquet", &parquet_of(40, 10));
    let (source, format, survey) = look(&path, None).unwrap();
    let mut reader = open(&source, format, &survey).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    // In place: the handle stays the same file.
    std::fs::write(&path, &bytes).unwrap();
    let error = reader.next_batch(10).unwrap_err();
    assert!(error.to_string().contains("the source changed after the plan was made"), "{error}");
    assert!(source[0].unchanged(source[0].identity).is_err());
}

#[test]
fn real_files_have_all_their_rows() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data");
    let rows = |name: &str| read_by(&data.join(name), 100, 0, None).unwrap();
    assert_eq!(rows("airports.csv").len(), 3376);
    assert_eq!(rows("airports.parquet").len(), 3376);
    assert_eq!(rows("vectors.parquet").len(), 500);
    assert_eq!(rows("seattle-weather.jsonl").len(), 1461);
    let cars = rows("cars.json");
    assert_eq!(cars.len(), 406);
    assert!(cars[0].starts_with(r#"{"Name":"chevrolet chevelle malibu","Miles_per_Gallon":18.0,"#));
    assert!(cars[0].contains(r#""Displacement":307.0,"Horsepower":130,"#), "{}", cars[0]);
}
