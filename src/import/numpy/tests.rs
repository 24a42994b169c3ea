use std::path::PathBuf;

use super::*;
use crate::error::ErrorKind;
use crate::import::format::Format;
use crate::import::read::Progress;
use crate::import::read::tests::lines;
use crate::import::roots::Origin;

/// A file of version 1 as NumPy writes it.
pub(crate) fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    of_version(1, &text, data)
}

fn of_version(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = b"\x93NUMPY".to_vec();
    out.extend([version, 0]);
    let prefix = if version == 1 { 2 } else { 4 };
    let text = format!("{header}{}\n", " ".repeat(63 - (header.len() + 8 + prefix) % 64));
    let len = u32::try_from(text.len()).unwrap().to_le_bytes();
    out.extend(&len[..prefix]);
    out.extend(text.as_bytes());
    out.extend(data);
    out
}

/// Bytes of numbers, little-endian.
macro_rules! le {
    ($($value:expr),*) => {{
        let mut out: Vec<u8> = Vec::new();
        $(out.extend($value.to_le_bytes());)*
        out
    }};
}

fn utf32(texts: &[&str], chars: usize, swap: bool) -> Vec<u8> {
    let points = texts.iter().flat_map(|text| {
        let fill = std::iter::repeat_n(0, chars - text.chars().count());
        text.chars().map(u32::from).chain(fill).collect::<Vec<_>>()
    });
    let bytes = points.map(|point| if swap { point.swap_bytes() } else { point });
    bytes.flat_map(u32::to_le_bytes).collect()
}

/// Both passes over a set of files, in batches of `step` rows from row `skip` on.
fn read_by(
    files: &[(&str, Vec<u8>)],
    step: usize,
    skip: u64,
    key: Option<&str>,
) -> Result<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> =
        files.iter().map(|(name, _)| dir.path().join(format!("{name}.npy"))).collect();
    for (path, (_, bytes)) in paths.iter().zip(files) {
        std::fs::write(path, bytes).unwrap();
    }
    let sources = paths.iter().map(|path| Origin::System.open(path)).collect::<Result<Vec<_>>>()?;
    let mut report = |_| Ok(());
    let mut pass =
        FirstPass { primary_key: key, expected: None, progress: Progress::new(&mut report) };
    let survey = read::survey(&sources, Format::Numpy, &mut pass)?;
    let mut reader = read::open(&sources, Format::Numpy, &survey)?;
    reader.skip(skip)?;
    let mut rows = Vec::new();
    while let Some(batch) = reader.next_batch(step)? {
        assert_eq!(batch.schema(), survey.schema);
        rows.extend(lines(&batch));
    }
    assert_eq!(rows.len() as u64, survey.rows - skip);
    assert_eq!(reader.finish()?, survey.sha256);
    Ok(rows)
}

#[track_caller]
fn check(files: &[(&str, Vec<u8>)], expect: &[&str]) {
    for step in [1, 2, 1000] {
        for skip in 0..=expect.len() {
            let rows = read_by(files, step, skip as u64, None).unwrap();
            assert_eq!(rows, expect[skip..], "by {step} from {skip}");
        }
    }
}

/// One column `v` of one value a row.
#[track_caller]
fn check_values(descr: &str, data: &[u8], expect: &[&str]) {
    let expect: Vec<String> = expect.iter().map(|value| format!("{{\"v\":{value}}}")).collect();
    let expect: Vec<&str> = expect.iter().map(String::as_str).collect();
    check(&[("v", npy(descr, &format!("({},)", expect.len()), data))], &expect);
}

#[track_caller]
fn check_bad(bytes: Vec<u8>, expect: &str) {
    let error = read_by(&[("v", bytes)], 10, 0, None).unwrap_err();
    assert!(error.to_string().contains(expect), "expected {expect}, found {error}");
    assert!(error.to_string().contains("column `v`"), "{error}");
    assert!(error.path().is_some_and(|path| path.ends_with("v.npy")), "{error}");
}

#[test]
fn values_of_every_type_are_read_in_both_byte_orders() {
    check_values("|b1", &[0, 1, 1], &["false", "true", "true"]);
    check_values("|i1", &[0, 0x7f, 0x80], &["0", "127", "-128"]);
    check_values("|u1", &[0, 0xff], &["0", "255"]);
    check_values("<i2", &le![-2_i16, i16::MAX], &["-2", "32767"]);
    check_values(">i2", &[0xff, 0xfe, 0x7f, 0xff], &["-2", "32767"]);
    check_values("<u2", &le![u16::MAX], &["65535"]);
    check_values("<i4", &le![i32::MIN, 7_i32], &["-2147483648", "7"]);
    check_values("<u4", &le![u32::MAX], &["4294967295"]);
    check_values("<i8", &le![i64::MIN, 1_i64], &["-9223372036854775808", "1"]);
    check_values("<u8", &le![u64::MAX], &["18446744073709551615"]);
    check_values(">u8", &[0, 0, 0, 0, 0, 0, 1, 2], &["258"]);
    check_values("<f2", &le![0x3c00_u16, 0xc100_u16, 0x7c00_u16], &["1.0", "-2.5", "\"Infinity\""]);
    check_values(">f2", &[0x3c, 0, 0xc1, 0], &["1.0", "-2.5"]);
    check_values("<f4", &le![0.5_f32, -0.0_f32], &["0.5", "-0.0"]);
    check_values("<f8", &le![0.1_f64, 5e-324_f64, f64::NAN], &["0.1", "5e-324", "\"NaN\""]);
    check_values(">f8", &[0x3f, 0xf0, 0, 0, 0, 0, 0, 0], &["1.0"]);
    let texts = ["", "a", "caf\u{e9}", "\u{1f600}"];
    let expect = ["\"\"", "\"a\"", "\"caf\u{e9}\"", "\"\u{1f600}\""];
    check_values("<U4", &utf32(&texts, 4, false), &expect);
    check_values(">U4", &utf32(&texts, 4, true), &expect);
    check_values("|S3", b"\0\0\0a\0\0abca\0b", &["\"\"", "\"a\"", "\"abc\"", "\"a\\u0000b\""]);
    check_values("|S1", b"ab", &["\"a\"", "\"b\""]);
}

#[test]
fn the_files_of_a_set_are_the_columns_of_its_rows() {
    let ids = ("id", npy("<i8", "(3,)", &le![1_i64, 2_i64, 3_i64]));
    let names = ("name", npy("<U2", "(3,)", &utf32(&["a", "bb", ""], 2, false)));
    let vectors = npy("<f4", "(3, 2)", &le![0.5_f32, 1_f32, 2_f32, 3_f32, 4_f32, 5_f32]);
    let expect = [
        r#"{"id":1,"name":"a","v":[0.5,1.0]}"#,
        r#"{"id":2,"name":"bb","v":[2.0,3.0]}"#,
        r#"{"id":3,"name":"","v":[4.0,5.0]}"#,
    ];
    check(&[ids, names, ("v", vectors)], &expect);
    let words = ("w", npy("<U1", "(1, 2)", &utf32(&["a", "b"], 1, false)));
    check(&[words, ("b", npy("|b1", "(1, 1)", &[1]))], &[r#"{"w":["a","b"],"b":[true]}"#]);
    check(&[("id", npy("<i8", "(0,)", &[])), ("v", npy("<f4", "(0, 8)", &[]))], &[]);
}

#[test]
fn headers_of_all_versions_are_read() {
    let header = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }";
    for version in [1, 2, 3] {
        check(&[("v", of_version(version, header, &[1, 0, 2, 0]))], &["{\"v\":1}", "{\"v\":2}"]);
    }
    for header in [
        r#"{"shape":(2,),"descr":"<i2","fortran_order":True}"#,
        "{ 'fortran_order' : False , 'descr' : '<i2' , 'shape' : ( 2L , ) }",
        "{'descr':'<i2','fortran_order':True,'shape':(2, 1)}",
    ] {
        let rows = read_by(&[("v", of_version(1, header, &[1, 0, 2, 0]))], 9, 0, None).unwrap();
        assert_eq!(rows.len(), 2, "{header}");
    }
}

#[test]
fn a_header_that_is_none_of_numpy_is_refused() {
    let bad = |header: &str, expect: &str| check_bad(of_version(1, header, &[0; 8]), expect);
    bad("", "no dictionary");
    bad("{}", "lacks `descr`");
    bad("{'descr': '<i8', 'fortran_order': False}", "lacks `shape`");
    bad("{'descr': '<i8', 'shape': (1,)}", "lacks `fortran_order`");
    bad("{'descr': '<i8', 'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", "twice");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), 'x': 1}", "none of NumPy's");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)} + 1", "goes on behind its end");
    bad("{'descr': '<i8', 'fortran_order': 0, 'shape': (1,)}", "neither True nor False");
    bad("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}", "no dictionary");
    bad("{'descr': '<i\\x38', 'fortran_order': False, 'shape': (1,)}", "no dictionary");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': (1)}", "no tuple");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}", "no tuple");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': (+1,)}", "no tuple");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': (1, , 1)}", "no tuple");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999,)}", "no tuple");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': ()}", "found 0");
    bad("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1, 1)}", "found 3");
    bad("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "never loaded");
    bad(
        "{'descr': [('a', '<i4'), ('b', '<i4')], 'fortran_order': False, 'shape': (1,)}",
        "structured",
    );
    for descr in ["<c16", "<M8[ns]", "<f16", "<i3", "=i8", "|i8", "i8", "<", "<U0", "|V8", "<U-1"] {
        check_bad(npy(descr, "(1,)", &[0; 8]), &format!("values of type `{descr}` are not read"));
    }
    let fortran = "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 2)}";
    bad(fortran, "Fortran order");
    check_bad(of_version(4, "{}", &[]), "version 4.0 of the format is not read");
    check_bad(b"\x93NUMPY\x01".to_vec(), "ends within its header");
    check_bad(b"\x93NUMPY\x01\0\xff\x00{".to_vec(), "ends within its header");
}

#[test]
fn a_hostile_header_claims_nothing_that_the_file_does_not_hold() {
    for shape in [
        "(18446744073709551615,)",
        "(2305843009213693952,)",
        "(2305843009213693952, 8)",
        "(1000000000000,)",
        "(2,)",
        "(0,)",
    ] {
        check_bad(npy("<i8", shape, &[0; 8]), "found ");
    }
    // Rows that take no byte have no end.
    check_bad(npy("<i8", "(1000000000000, 0)", &[]), "at least one value");
    check_bad(npy("|S0", "(1000000000000,)", &[]), "values of type `|S0` are not read");
    let wide = read_by(&[("v", npy("<i8", "(1, 18446744073709551615)", &[0; 8]))], 1, 0, None);
    assert_eq!(wide.unwrap_err().kind(), ErrorKind::Limit);
    let wide = read_by(&[("v", npy("<U4611686018427387904", "(1,)", &[0; 8]))], 1, 0, None);
    assert_eq!(wide.unwrap_err().kind(), ErrorKind::Limit);
    let mut long = b"\x93NUMPY\x02\0".to_vec();
    long.extend(u32::MAX.to_le_bytes());
    check_bad(long, "a header of 4294967295 bytes");
}

#[test]
fn a_value_that_is_none_is_refused_at_its_row() {
    check_bad(npy("|b1", "(3,)", &[0, 1, 2]), "row 3, column `v`: a boolean is neither");
    check_bad(npy("|b1", "(2, 2)", &[0, 1, 1, 9]), "row 2, column `v`: a boolean is neither");
    check_bad(npy("<U1", "(2,)", &le![97_u32, 0xd800_u32]), "row 2, column `v`: the text is no");
    check_bad(npy("<U1", "(1,)", &le![0x0011_0000_u32]), "row 1, column `v`: the text is no");
    check_bad(npy("|S1", "(2,)", b"a\xff"), "row 2, column `v`: the text is no Unicode");
    check_bad(npy("<i8", "(2,)", &[0; 15]), "for 2 rows, found");
    check_bad(npy("<i8", "(2,)", &[0; 17]), "for 2 rows, found");
    let error = read_by(&[("v", b"PAR1".to_vec())], 10, 0, None).unwrap_err().to_string();
    assert!(error.contains("the name says NumPy, the content is not"), "{error}");
}

#[test]
fn columns_of_different_lengths_are_no_set() {
    let files = [("a", npy("|i1", "(3,)", &[1, 2, 3])), ("b", npy("|i1", "(2,)", &[1, 2]))];
    let error = read_by(&files, 10, 0, None).unwrap_err().to_string();
    assert!(error.contains("column `b`: expected 3 rows as in column `a`, found 2"), "{error}");
    let error = read_by(&files[..1], 10, 0, Some("id")).unwrap_err().to_string();
    assert!(error.contains("column `id`: no such column"), "{error}");
    let vectors = [("v", npy("|i1", "(1, 3)", &[1, 2, 3]))];
    let error = read_by(&vectors, 10, 0, Some("v")).unwrap_err().to_string();
    assert!(error.contains("neither integer nor text"), "{error}");
}

#[test]
fn any_bytes_behind_the_magic_are_an_answer() {
    let whole = npy("<U2", "(2,)", &utf32(&["a", "b"], 2, false));
    for at in 6..whole.len() {
        for flip in [1, 0x20, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            drop(read_by(&[("v", bytes)], 10, 0, None));
        }
        drop(read_by(&[("v", whole[..at].to_vec())], 10, 0, None));
    }
}

proptest::proptest! {
    /// A header that is taken describes no more than its file is asked for.
    #[test]
    fn any_header_is_taken_or_refused(parts in proptest::collection::vec(0..PARTS.len(), 0..24)) {
        let text: String = parts.iter().map(|part| PARTS[*part]).collect();
        for version in [1, 2, 3] {
            if let Ok(Some(header)) = Header::of(&of_version(version, &text, &[])) {
                let bytes = header.row_bytes().unwrap_or(1);
                assert!((1..=ROW_BYTES_MAX).contains(&bytes));
                assert!(header.data_at <= text.len() + 80);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_header_or_none(bytes in proptest::collection::vec(0..=255_u8, 0..200)) {
        let mut file = b"\x93NUMPY\x01\0".to_vec();
        file.extend(bytes);
        drop(Header::of(&file));
    }
}

const PARTS: &[&str] = &[
    "{",
    "}",
    "'descr'",
    "'fortran_order'",
    "'shape'",
    ":",
    ",",
    "(",
    ")",
    "'<i8'",
    "\"|S3\"",
    "True",
    "False",
    "3",
    "18446744073709551615",
    " ",
    "{'descr': '<f4', 'fortran_order': False, ",
    "'shape': (2, 3), }",
    "'shape': (0,)}",
    "L",
    "-",
    "'",
    "\\",
    "caf\u{e9}",
];

#[test]
fn rows_wider_than_a_window_come_whole() {
    const WIDTH: usize = 100_000;
    let data: Vec<u8> = (0..4 * WIDTH).flat_map(|n| (n as f32).to_le_bytes()).collect();
    let rows = read_by(&[("v", npy("<f4", &format!("(4, {WIDTH})"), &data))], 3, 1, None).unwrap();
    assert_eq!(rows.len(), 3);
    assert!(rows[0].starts_with("{\"v\":[100000.0,100001.0,"), "{}", &rows[0][..40]);
    assert!(rows[2].ends_with(",399999.0]}"));
}
