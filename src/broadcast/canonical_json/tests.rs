use super::*;
use crate::io::fault::Dice;

#[track_caller]
fn check(text: &str, expect: &str) {
    let canonical = canonical_json(text.as_bytes()).map(|form| String::from_utf8(form).unwrap());
    assert_eq!(canonical.unwrap(), expect, "of {text}");
    // A canonical form is its own.
    assert_eq!(canonical_json(expect.as_bytes()).unwrap(), expect.as_bytes());
}

#[track_caller]
fn check_refused(text: impl AsRef<[u8]>, why: &str) {
    let error = canonical_json(text.as_ref()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains(why), "{error}: expected {why}");
}

#[test]
fn white_space_goes_and_names_are_sorted_by_their_units() {
    check(" null ", "null");
    check("[ ]", "[]");
    check("{\t}", "{}");
    check("\r\n[ true , false ]\n", "[true,false]");
    check(r#"{"b":1,"a":{"d":[],"c":2}}"#, r#"{"a":{"c":2,"d":[]},"b":1}"#);
    check(r#"{"":1,"a":2,"aa":3,"B":4}"#, r#"{"":1,"B":4,"a":2,"aa":3}"#);
    // The example of RFC 8785: a pair of surrogates stands before U+FB33.
    check(
        "{\"\\u20ac\":1,\"\\r\":2,\"\\ufb33\":3,\"1\":4,\"\\u0080\":5,\"\\ud83d\\ude00\":6,\"\\u00f6\":7}",
        "{\"\\r\":2,\"1\":4,\"\u{80}\":5,\"\u{f6}\":7,\"\u{20ac}\":1,\"\u{1f600}\":6,\"\u{fb33}\":3}",
    );
}

#[test]
fn a_number_is_the_decimal_that_is_written() {
    for (text, expect) in [
        ("0", "0"),
        ("-0", "0"),
        ("-0.000e99", "0"),
        ("0e99999999999999999999", "0"),
        ("1.50", "1.5"),
        ("15e-1", "1.5"),
        ("1E0", "1"),
        ("100", "100"),
        ("1e2", "100"),
        ("-12.5e+1", "-125"),
        ("1e20", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("123456789012345678901", "123456789012345678901"),
        ("1234567890123456789012", "1.234567890123456789012e+21"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("12e-8", "1.2e-7"),
        ("4.50", "4.5"),
        ("2e-3", "0.002"),
        ("0.000000000000000000000000001", "1e-27"),
        ("1E30", "1e+30"),
        // Beyond a double: exact all the same.
        ("333333333.33333329", "333333333.33333329"),
        ("9007199254740993", "9007199254740993"),
        ("1e400", "1e+400"),
        ("10e999999999999999999", "1e+1000000000000000000"),
    ] {
        check(text, expect);
    }
}

#[test]
fn strings_are_escaped_no_more_than_they_must_be() {
    check(
        r#""\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/""#,
        "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"",
    );
    check(r#""\b\f\n\r\t\u0000\u007f""#, "\"\\b\\f\\n\\r\\t\\u0000\u{7f}\"");
    check(r#""\ud83d\uDE00""#, "\"\u{1f600}\"");
}

#[test]
fn what_is_no_json_or_not_one_is_refused_with_its_place() {
    check_refused("", "at byte 0: expected a value");
    check_refused("[1,]", "at byte 3: expected a value");
    check_refused("[1 2]", "at byte 3: expected a comma");
    check_refused("{\"a\":1,}", "expected a string");
    check_refused("{\"a\" 1}", "expected a colon");
    check_refused("{\"a\":1", "the end of an object");
    check_refused("1 2", "at byte 2: expected the end");
    check_refused("nul", "expected a value");
    check_refused("01", "begins with a zero");
    check_refused("-", "expected a digit");
    check_refused("1.", "expected a digit");
    check_refused("1e", "expected a digit");
    check_refused("1e+", "expected a digit");
    check_refused("+1", "expected a value");
    check_refused("1e1000000000000000001", "an exponent out of range");
    check_refused("1e99999999999999999999", "an exponent out of range");
    check_refused("\"a", "the end of a string");
    check_refused("\"\n\"", "a control character");
    check_refused(r#""\x""#, "no such escape");
    check_refused(r#""\u12g4""#, "a hexadecimal digit");
    check_refused(r#""\ud800""#, "half of a surrogate pair");
    check_refused(r#""\udc00\ud800""#, "half of a surrogate pair");
    check_refused(r#""\ud800\n""#, "half of a surrogate pair");
    check_refused(r#"{"a":1,"\u0061":2}"#, "a name twice");
    check_refused(r#"[{"b":1,"a":0,"b":2}]"#, "at byte 1: an object has a name twice");
    check_refused(b"\"\xff\"", "at byte 1: expected UTF-8");
    check_refused("\u{feff}1", "expected a value");
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    check(&nested(DEPTH_MAX), &nested(DEPTH_MAX));
    check_refused(nested(DEPTH_MAX + 1), "too deep");
    check_refused("{\"a\":".repeat(1_000_000), "too deep");
}

/// A value as one of the texts that say it, and as its canonical form.
fn said(dice: &mut Dice, depth: u64) -> (String, String) {
    let space = |dice: &mut Dice| [" ", "", "\n", "\t "][dice.index(4)].to_owned();
    match dice.below(if depth == 0 { 3 } else { 5 }) {
        0 => {
            let (whole, tenths) = (1 + dice.below(1_000), 1 + dice.below(9));
            let forms = [
                format!("{whole}.{tenths}"),
                format!("{whole}.{tenths}00"),
                format!("{whole}{tenths}e-1"),
                format!("{whole}{tenths}0E-2"),
            ];
            (forms[dice.index(4)].clone(), format!("{whole}.{tenths}"))
        }
        1 => {
            let c = char::from(b'a' + u8::try_from(dice.below(26)).unwrap());
            let forms = [c.to_string(), format!("\\u{:04x}", u32::from(c))];
            (format!("\"{}\"", forms[dice.index(2)]), format!("\"{c}\""))
        }
        2 => (String::from("null"), String::from("null")),
        3 => {
            let values: Vec<_> = (0..dice.below(4)).map(|_| said(dice, depth - 1)).collect();
            let mut text: Vec<String> = values.iter().map(|(text, _)| text.clone()).collect();
            text.iter_mut().for_each(|text| *text = space(dice) + text + &space(dice));
            let forms: Vec<String> = values.into_iter().map(|(_, form)| form).collect();
            (format!("[{}]", text.join(",")), format!("[{}]", forms.join(",")))
        }
        _ => {
            let count = dice.below(5);
            let mut members: Vec<_> = (0..count).map(|n| (n, said(dice, depth - 1))).collect();
            let forms: Vec<String> =
                members.iter().map(|(n, (_, form))| format!("\"n{n}\":{form}")).collect();
            for at in (1..members.len()).rev() {
                members.swap(at, dice.index(at + 1));
            }
            let text = members.iter().map(|(n, (text, _))| {
                format!("{}\"n{n}\"{}:{text}{}", space(dice), space(dice), space(dice))
            });
            let text: Vec<String> = text.collect();
            (format!("{{{}}}", text.join(",")), format!("{{{}}}", forms.join(",")))
        }
    }
}

#[test]
fn every_text_of_a_value_has_its_one_form() {
    let mut dice = Dice::new(8785);
    for _ in 0..20_000 {
        let (text, form) = said(&mut dice, 4);
        check(&text, &form);
    }
}

#[test]
fn no_cut_and_no_change_of_a_text_panics() {
    let text = br#"{"a\u0041\ud83d\ude00": [1.5e-3, -0, true, null], "b": {"c": "\n\/"}}"#;
    for at in 0..text.len() {
        assert!(canonical_json(&text[..at]).is_err());
        for byte in 0..=u8::MAX {
            let mut changed = text.to_vec();
            changed[at] = byte;
            if let Ok(form) = canonical_json(&changed) {
                assert_eq!(canonical_json(&form).unwrap(), form);
            }
        }
    }
}
