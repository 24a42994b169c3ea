use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, Encoding};
use ::parquet::data_type::{
    ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int96Type,
};
use ::parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use arrow_array::{
    ArrayRef, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array, ListArray, MapArray,
    StringArray, StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_cast::cast::cast;
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use parquet::data_type::Int96;

use super::*;
use crate::import::format::Format;
use crate::import::read::Progress;
use crate::import::read::tests::lines;
use crate::import::roots::Origin;

/// A file of the tests that no crate of theirs writes.
pub(crate) fn input(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/inputs").join(name)
}

fn list_of(values: ArrayRef, lens: &[usize], nulls: Option<&[bool]>) -> ArrayRef {
    let item = Field::new("item", values.data_type().clone(), true);
    let offsets = OffsetBuffer::from_lengths(lens.iter().copied());
    let nulls = nulls.map(|valid| NullBuffer::from(valid.to_vec()));
    Arc::new(ListArray::new(item.into(), offsets, values, nulls))
}

/// Types that hold small integers, each with the type that its column is read as.
fn scalars() -> Vec<(DataType, DataType)> {
    use DataType::{Date32, Date64, Decimal128, Decimal256, Duration, Time32, Time64, Timestamp};
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let zone = |zone: &str| Some(Arc::from(zone));
    let mut same = vec![
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        Decimal128(9, 2),
        Decimal128(18, 4),
        Decimal128(38, 10),
        Decimal256(76, 20),
        Date32,
        Date64,
        Time32(Second),
        Time32(Millisecond),
        Time64(Microsecond),
        Time64(Nanosecond),
        DataType::Utf8,
    ];
    for unit in [Second, Millisecond, Microsecond, Nanosecond] {
        same.push(Duration(unit));
        let zones = [None, zone("UTC"), zone("Europe/Berlin"), zone("+05:30")];
        same.extend(zones.map(|zone| Timestamp(unit, zone)));
    }
    let mut all: Vec<_> = same.into_iter().map(|kind| (kind.clone(), kind)).collect();
    all.push((DataType::LargeUtf8, DataType::Utf8));
    all.push((DataType::Utf8View, DataType::Utf8));
    all.push((DataType::Binary, DataType::Binary));
    all.push((DataType::LargeBinary, DataType::Binary));
    all
}

/// Rows of every type that a column may have, each with a null, and the types that they are read as.
pub(crate) fn every_type() -> (RecordBatch, Vec<DataType>) {
    let small: ArrayRef =
        Arc::new(Int64Array::from(vec![Some(0), Some(1), None, Some(7), Some(100)]));
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    let mut read_as = Vec::new();
    for (kind, read) in scalars() {
        // Not every type is made of integers.
        let text = || cast(&small, &DataType::Utf8).and_then(|text| cast(&text, &kind));
        let array = cast(&small, &kind).or_else(|_| text()).unwrap();
        assert_eq!((array.data_type(), array.null_count()), (&kind, 1), "{kind}");
        columns.push((format!("c{} {kind}", columns.len()), array));
        read_as.push(read);
    }
    let mut push = |name: &str, array: ArrayRef, read: DataType| {
        columns.push((name.to_owned(), array));
        read_as.push(read);
    };
    let list = |kind: DataType| DataType::List(Field::new("item", kind, true).into());
    let words: ArrayRef =
        Arc::new(StringArray::from(vec![Some("a"), Some(""), None, Some("b"), Some("c")]));
    let fixed = cast(&Int64Array::from(vec![1; 5]), &DataType::Utf8).unwrap();
    let fixed =
        cast(&cast(&fixed, &DataType::Binary).unwrap(), &DataType::FixedSizeBinary(1)).unwrap();
    push("fixed", fixed, DataType::FixedSizeBinary(1));
    let keys = Int32Array::from(vec![Some(0), Some(4), None, Some(2), Some(0)]);
    let dictionary = DictionaryArray::new(keys, Arc::clone(&words));
    push("dictionary", Arc::new(dictionary), DataType::Utf8);
    let lists =
        list_of(Arc::clone(&words), &[2, 0, 0, 3, 0], Some(&[true, true, false, true, true]));
    push("lists", Arc::clone(&lists), list(DataType::Utf8));
    push("nested", list_of(lists, &[1, 0, 3, 0, 1], None), list(list(DataType::Utf8)));
    let members = vec![
        (Arc::new(Field::new("n", DataType::Int64, true)), Arc::clone(&small)),
        (Arc::new(Field::new("w", DataType::Utf8, true)), Arc::clone(&words)),
    ];
    let structs = StructArray::from(members);
    let (fields, arrays, _) = structs.into_parts();
    let nulls = NullBuffer::from(vec![true, false, true, true, true]);
    let structs: ArrayRef = Arc::new(StructArray::new(fields, arrays, Some(nulls)));
    push("structs", Arc::clone(&structs), structs.data_type().clone());
    let of_structs = list(structs.data_type().clone());
    push("list of structs", list_of(structs, &[0, 2, 1, 1, 1], None), of_structs);
    let entries = StructArray::from(vec![
        (
            Arc::new(Field::new("keys", DataType::Utf8, false)),
            Arc::new(StringArray::from(vec!["k", "l", "m"])) as ArrayRef,
        ),
        (Arc::new(Field::new("values", DataType::Int64, true)), small.slice(1, 3)),
    ]);
    let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let offsets = OffsetBuffer::from_lengths([1, 0, 2, 0, 0]);
    let maps = MapArray::new(entry, offsets, entries, None, false);
    let of_maps = maps.data_type().clone();
    push("maps", Arc::new(maps), of_maps);
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let ten = Int64Array::from_iter_values(0..10);
    let vectors = FixedSizeListArray::new(item, 2, Arc::new(ten), None);
    push("vectors", Arc::new(vectors), list(DataType::Int64));
    let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::from("Europe/Berlin")));
    let instants = cast(&small, &zoned).unwrap();
    push("list of instants", list_of(instants, &[5, 0, 0, 0, 0], None), list(zoned));
    (RecordBatch::try_from_iter(columns).unwrap(), read_as)
}

pub(crate) fn written(batch: &RecordBatch, properties: WriterPropertiesBuilder) -> Vec<u8> {
    let properties = Some(properties.build());
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), properties).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Both passes over a file.
fn read_path(path: &Path, step: usize, skip: u64) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let sources = [Origin::System.open(path)?];
    let mut report = |_| Ok(());
    let mut pass =
        FirstPass { primary_key: None, expected: None, progress: Progress::new(&mut report) };
    let survey = read::survey(&sources, Format::Parquet, &mut pass)?;
    let mut reader = read::open(&sources, Format::Parquet, &survey)?;
    reader.skip(skip)?;
    let mut batches = Vec::new();
    while let Some(batch) = reader.next_batch(step)? {
        batches.push(batch);
    }
    let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    assert_eq!(rows, survey.rows - skip);
    assert_eq!(reader.finish()?, survey.sha256);
    Ok((survey.schema, batches))
}

fn read_bytes(bytes: &[u8], step: usize, skip: u64) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    std::fs::write(&path, bytes).unwrap();
    read_path(&path, step, skip)
}

fn told(batches: &[RecordBatch]) -> Vec<String> {
    batches.iter().flat_map(lines).collect()
}

#[test]
fn every_type_is_read_from_pages_of_every_kind() {
    let (batch, read_as) = every_type();
    let expect = lines(&batch);
    let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ];
    for version in versions {
        for codec in codecs {
            for (dictionary, group) in [(true, 100), (false, 2)] {
                let properties = WriterProperties::builder()
                    .set_writer_version(version)
                    .set_compression(codec)
                    .set_dictionary_enabled(dictionary)
                    .set_data_page_row_count_limit(2)
                    .set_write_batch_size(1)
                    .set_max_row_group_row_count(Some(group));
                let what = format!("{version:?} {codec:?} {dictionary}");
                let (schema, batches) = read_bytes(&written(&batch, properties), 2, 0).unwrap();
                let types = schema.fields().iter().map(|field| field.data_type().clone());
                for (found, (field, expect)) in
                    types.zip(batch.schema().fields().iter().zip(&read_as))
                {
                    assert_eq!(&found, expect, "{} {what}", field.name());
                }
                assert_eq!(told(&batches), expect, "{what}");
            }
        }
    }
}

#[test]
fn rows_of_many_small_groups_come_in_order_from_any_on() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2000));
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1));
    let bytes = written(&batch, properties);
    for (step, skip) in [(1000, 0), (7, 1990), (64, 1)] {
        let (_, batches) = read_bytes(&bytes, step, skip).unwrap();
        let expect: Vec<String> = (skip..2000).map(|id| format!("{{\"id\":{id}}}")).collect();
        assert_eq!(told(&batches), expect, "by {step} from {skip}");
    }
}

/// A part of a list was taken to be as long as the whole: a file of vectors of more than 6 MiB was
/// refused for a row that is too long, and one of less came in slices of a few rows.
#[test]
fn rows_of_nested_values_are_as_long_as_what_they_hold() {
    const ROWS: usize = 200;
    const WIDTH: usize = 8192;
    let numbers = || -> ArrayRef {
        let numbers = (0..i64::try_from(ROWS * WIDTH).unwrap()).map(|n| n << 20 | n);
        Arc::new(Int64Array::from_iter_values(numbers))
    };
    let list = || list_of(numbers(), &[WIDTH; ROWS], None);
    let field = |of: &ArrayRef| Arc::new(Field::new("x", of.data_type().clone(), true));
    let of_struct =
        |of: ArrayRef| -> ArrayRef { Arc::new(StructArray::from(vec![(field(&of), of)])) };
    let names = Arc::new(StringArray::from_iter_values((0..ROWS).map(|n| n.to_string())));
    let names = (Arc::new(Field::new("k", DataType::Utf8, false)), names as ArrayRef);
    let entries = StructArray::from(vec![names, (field(&list()), list())]);
    let entries_field = Field::new("entries", entries.data_type().clone(), false);
    let ends = OffsetBuffer::from_lengths([1; ROWS]);
    let map = MapArray::new(entries_field.into(), ends, entries, None, false);
    for (what, column) in [
        ("list", list()),
        ("list of lists", list_of(list(), &[1; ROWS], None)),
        ("list of structs", list_of(of_struct(numbers()), &[WIDTH; ROWS], None)),
        ("struct of a list", of_struct(list())),
        ("map to lists", Arc::new(map)),
    ] {
        let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        std::fs::write(&path, written(&batch, WriterProperties::builder())).unwrap();
        let sources = [Origin::System.open(&path).unwrap()];
        let mut report = |_| Ok(());
        let mut pass =
            FirstPass { primary_key: None, expected: None, progress: Progress::new(&mut report) };
        let survey = read::survey(&sources, Format::Parquet, &mut pass).unwrap();
        // Half of what 64 KiB a row allow: ends of rows are counted too.
        assert_eq!((survey.rows, survey.slice_rows), (200, 64), "{what}");
    }
}

#[test]
fn a_file_without_rows_has_its_columns() {
    let (batch, _) = every_type();
    let bytes = written(&batch.slice(0, 0), WriterProperties::builder());
    let (schema, batches) = read_bytes(&bytes, 10, 0).unwrap();
    assert_eq!((schema.fields().len(), batches.len()), (batch.num_columns(), 0));
}

#[test]
fn every_encoding_of_numbers_and_text_is_read() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..500).map(|n| n * n - 7)));
    let texts = StringArray::from_iter_values((0..500).map(|n| format!("text {}", n / 3)));
    let floats = cast(&ids, &DataType::Float64).unwrap();
    let bools = cast(&Int64Array::from_iter_values((0..500).map(|n| n % 3)), &DataType::Boolean);
    let check = |array: ArrayRef, encodings: &[Encoding]| {
        let batch = RecordBatch::try_from_iter([("v", array)]).unwrap();
        for encoding in encodings {
            let properties = WriterProperties::builder()
                .set_dictionary_enabled(false)
                .set_encoding(*encoding)
                .set_data_page_row_count_limit(100);
            let (_, batches) = read_bytes(&written(&batch, properties), 64, 0).unwrap();
            assert_eq!(told(&batches), lines(&batch), "{encoding}");
        }
    };
    use Encoding::{
        BYTE_STREAM_SPLIT, DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY, PLAIN,
        RLE,
    };
    check(ids, &[PLAIN, DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT]);
    check(floats, &[PLAIN, BYTE_STREAM_SPLIT]);
    check(Arc::new(texts), &[PLAIN, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY]);
    check(bools.unwrap(), &[PLAIN, RLE]);
}

/// Writes columns as their physical types alone say, by a schema as text.
fn low_level(
    schema: &str,
    write: impl Fn(usize, &mut ::parquet::file::writer::SerializedColumnWriter<'_>),
) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut at = 0;
    while let Some(mut column) = group.next_column().unwrap() {
        write(at, &mut column);
        column.close().unwrap();
        at += 1;
    }
    group.close().unwrap();
    writer.close().unwrap();
    out
}

/// INT96 of nanoseconds since 1970.
fn int96(ns: i128) -> Int96 {
    let (day, of_day) = (ns.div_euclid(86_400_000_000_000), ns.rem_euclid(86_400_000_000_000));
    let (day, of_day) = (u32::try_from(day + 2_440_588).unwrap(), u64::try_from(of_day).unwrap());
    let mut value = Int96::new();
    value.set_data((of_day & 0xffff_ffff) as u32, (of_day >> 32) as u32, day);
    value
}

fn of_int96(instants: &[i128]) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let values: Vec<Int96> = instants.iter().map(|ns| int96(*ns)).collect();
    let bytes = low_level("message m { REQUIRED INT96 at; }", |_, column| {
        column.typed::<Int96Type>().write_batch(&values, None, None).unwrap();
    });
    read_bytes(&bytes, 10, 0)
}

#[test]
fn old_timestamps_are_nanoseconds_or_where_those_do_not_reach_microseconds() {
    let kind = |schema: &SchemaRef| schema.field(0).data_type().clone();
    let (schema, batches) = of_int96(&[0, -1, 1_700_000_000_123_456_789]).unwrap();
    assert_eq!(kind(&schema), DataType::Timestamp(TimeUnit::Nanosecond, None));
    let expect = [
        r#"{"at":"1970-01-01T00:00:00"}"#,
        r#"{"at":"1969-12-31T23:59:59.999999999"}"#,
        r#"{"at":"2023-11-14T22:13:20.123456789"}"#,
    ];
    assert_eq!(told(&batches), expect);
    // The first and the last second of the years of four digits.
    let (first, last) = (-62_135_596_800_000_000_000, 253_402_300_799_000_000_000);
    let (schema, batches) = of_int96(&[first, 1000, last]).unwrap();
    assert_eq!(kind(&schema), DataType::Timestamp(TimeUnit::Microsecond, None));
    let expect = [
        r#"{"at":"0001-01-01T00:00:00"}"#,
        r#"{"at":"1970-01-01T00:00:00.000001"}"#,
        r#"{"at":"9999-12-31T23:59:59"}"#,
    ];
    assert_eq!(told(&batches), expect);
    for instants in [vec![0, 1, first], vec![0, last, 1]] {
        let error = of_int96(&instants).unwrap_err().to_string();
        assert!(error.contains("row 3, column `at`: the instant is none of 64 bits"), "{error}");
    }
}

#[test]
fn types_that_only_a_schema_names_are_read() {
    let schema = "message m {
        REQUIRED BYTE_ARRAY json (JSON);
        REQUIRED BYTE_ARRAY enum (ENUM);
        REQUIRED FIXED_LEN_BYTE_ARRAY (16) uuid (UUID);
        REQUIRED BYTE_ARRAY decimal (DECIMAL(9, 2));
        REQUIRED FIXED_LEN_BYTE_ARRAY (5) wide (DECIMAL(10, 1));
        REQUIRED BYTE_ARRAY raw;
    }";
    let bytes = low_level(schema, |at, column| {
        let values: [&[u8]; 6] =
            [b"{\"a\":1}", b"RED", &[7; 16], &[0xff, 0x85], &[0, 0, 0, 1, 0], &[0xff]];
        let value = values[at].to_vec();
        if at == 2 || at == 4 {
            let value = FixedLenByteArray::from(value);
            column.typed::<FixedLenByteArrayType>().write_batch(&[value], None, None).unwrap();
        } else {
            let value = ByteArray::from(value);
            column.typed::<ByteArrayType>().write_batch(&[value], None, None).unwrap();
        }
    });
    let (_, batches) = read_bytes(&bytes, 10, 0).unwrap();
    let uuid = "07".repeat(16);
    let expect = format!(
        "{{\"json\":\"{{\\\"a\\\":1}}\",\"enum\":\"RED\",\"uuid\":\"{uuid}\",\"decimal\":\"-1.23\",\
         \"wide\":\"25.6\",\"raw\":\"ff\"}}"
    );
    assert_eq!(told(&batches), [expect]);
}

/// In a release build the decoder took the bytes of both for UTF-8 without a look.
#[test]
fn text_that_is_none_is_refused_by_row_and_column() {
    for kind in ["JSON", "ENUM", "UTF8"] {
        let schema = format!(
            "message m {{ REQUIRED INT64 id; REQUIRED group l {{ REQUIRED BYTE_ARRAY t ({kind}); }} }}"
        );
        let bytes = low_level(&schema, |at, column| {
            if at == 0 {
                let ids: Vec<i64> = (0..50).collect();
                column
                    .typed::<::parquet::data_type::Int64Type>()
                    .write_batch(&ids, None, None)
                    .unwrap();
                return;
            }
            let texts: Vec<ByteArray> = (0..50)
                .map(|n| ByteArray::from(if n == 40 { vec![0xff] } else { vec![b'1'] }))
                .collect();
            column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
        });
        let error = read_bytes(&bytes, 10, 0).unwrap_err().to_string();
        assert!(error.contains("column `l`"), "{kind}: {error}");
    }
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["caf\u{e9}", ""]));
    assert!(columns::is_text(&list_of(texts, &[1, 1], None)));
}

/// Its months were left out, and nobody said so.
#[test]
fn an_interval_is_refused_by_its_column() {
    let schema = "message m { REQUIRED FIXED_LEN_BYTE_ARRAY (12) span (INTERVAL); }";
    let bytes = low_level(schema, |_, column| {
        let value = FixedLenByteArray::from(vec![1; 12]);
        column.typed::<FixedLenByteArrayType>().write_batch(&[value], None, None).unwrap();
    });
    let error = read_bytes(&bytes, 10, 0).unwrap_err().to_string();
    assert!(error.contains("column `span`: values of type INTERVAL"), "{error}");
    let spans = cast(&Int32Array::from(vec![1]), &DataType::Interval(IntervalUnit::YearMonth));
    let batch = RecordBatch::try_from_iter([("span", spans.unwrap())]).unwrap();
    let bytes = written(&batch, WriterProperties::builder());
    assert!(read_bytes(&bytes, 10, 0).unwrap_err().to_string().contains("column `span`"));
}

#[test]
fn files_of_another_writer_have_the_values_that_it_wrote() {
    let (schema, batches) = read_path(&input("every.parquet"), 1, 0).unwrap();
    let expect = std::fs::read_to_string(input("every.jsonl")).unwrap();
    assert_eq!(told(&batches), expect.lines().collect::<Vec<_>>());
    let zoned = schema.field_with_name("us_berlin").unwrap().data_type();
    let zone = Some(Arc::from("Europe/Berlin"));
    assert_eq!(zoned, &DataType::Timestamp(TimeUnit::Microsecond, zone));
    let (_, batches) = read_path(&input("int96.parquet"), 10, 0).unwrap();
    let expect = [
        r#"{"ns":"1970-01-01T00:00:00","far":"1970-01-01T00:00:00"}"#,
        r#"{"ns":null,"far":null}"#,
        r#"{"ns":"1969-12-31T23:59:59.999999999","far":"0001-01-01T00:00:00"}"#,
        r#"{"ns":"2023-11-14T22:13:20.123456789","far":"9999-12-31T23:59:59.999999"}"#,
    ];
    assert_eq!(told(&batches), expect);
}

#[test]
fn a_page_that_its_checksum_does_not_fit_is_refused_by_row_and_column() {
    for name in ["checksums-v1.parquet", "checksums-v2.parquet"] {
        let whole = std::fs::read(input(name)).unwrap();
        let (_, batches) = read_bytes(&whole, 100, 0).unwrap();
        assert_eq!(told(&batches).len(), 1000);
        // 600 / 8 as a double, which stands in one page alone.
        let value = 75_f64.to_le_bytes();
        let at = whole.windows(8).rposition(|bytes| bytes == value).unwrap();
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        let error = read_bytes(&bytes, 100, 0).unwrap_err();
        let text = crate::import::driver::told(&error);
        assert!(text.contains("column `v`") && text.contains("CRC"), "{name}: {text}");
        let row = text.split_once("row ").unwrap().1.split_once(',').unwrap().0;
        let row: u64 = row.parse().unwrap();
        assert!((501..=601).contains(&row), "{name}: {text}");
    }
}

#[test]
fn an_embedded_schema_that_lies_changes_no_value() {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let expect = lines(&batch);
    let claims = |kind: DataType, count: usize| {
        let fields = (0..count).map(|_| Field::new("id", kind.clone(), true));
        let schema = arrow_schema::Schema::new(fields.collect::<Vec<_>>());
        let text = ::parquet::arrow::encode_arrow_schema(&schema);
        let entry = ::parquet::file::metadata::KeyValue::new("ARROW:schema".to_owned(), text);
        let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![entry]));
        let options = ::parquet::arrow::arrow_writer::ArrowWriterOptions::new()
            .with_properties(properties.build())
            .with_skip_arrow_metadata(true);
        let mut writer =
            ArrowWriter::try_new_with_options(Vec::new(), batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        read_bytes(&writer.into_inner().unwrap(), 10, 0).unwrap()
    };
    for (kind, count) in [
        (DataType::Utf8, 1),
        (DataType::Int64, 2),
        (DataType::Null, 1),
        (DataType::Timestamp(TimeUnit::Nanosecond, None), 1),
        (DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Int64)), 1),
    ] {
        let (schema, batches) = claims(kind.clone(), count);
        assert_eq!(schema.field(0).data_type(), &DataType::Int64, "{kind}");
        assert_eq!(told(&batches), expect, "{kind}");
    }
}
