//! Tables of SPEC section 13 say what the codec does.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, read, section};

/// The rows of a table in a section, cell by cell.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.lines().filter(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

/// The part of section 13 under a heading of its own.
fn part(heading: &str) -> String {
    let whole = section("13. Broadcast");
    let begin = whole.find(&format!("### {heading}\n")).expect("heading");
    let rest = &whole[begin + 4..];
    rest[..rest.find("\n### ").unwrap_or(rest.len())].to_owned()
}

/// `CLOCK_REBASE` as `ClockRebase`.
fn camel(constant: &str) -> String {
    let word = |word: &str| word[..1].to_owned() + &word[1..].to_lowercase();
    constant.split('_').map(word).collect()
}

#[test]
fn control_records_are_the_same_in_spec_and_code() {
    let spec: BTreeMap<u8, String> = rows(&part("13.2 Control records"))
        .filter_map(|cells| {
            let number = u8::from_str_radix(cells[0].strip_prefix("0x")?, 16).ok()?;
            Some((number, cells[1].to_owned()))
        })
        .collect();
    let source = read("format/src/control.rs");
    let code: BTreeMap<u8, String> = source
        .lines()
        .filter_map(|line| {
            let line = line.trim().strip_prefix("pub(super) const ")?;
            let (name, value) = line.split_once(": u8 = 0x")?;
            Some((u8::from_str_radix(value.strip_suffix(';')?, 16).ok()?, camel(name)))
        })
        .filter(|(number, _)| *number < 0x80)
        .collect();
    assert!(code.len() > 15, "{code:?}");
    assert_eq!(spec, code);
    // What each means is said, too, but for those of checkpoints.
    let text = part("13.2 Control records");
    for name in code.values().filter(|name| !name.starts_with("Checkpoint")) {
        assert!(text.contains(&format!("**{name}**")), "no sentence says what {name} means");
    }
}

#[test]
fn entries_of_checkpoints_are_the_same_in_spec_and_code() {
    let spec: BTreeMap<u8, String> = rows(&part("13.3 Checkpoints"))
        .filter_map(|cells| {
            let what = cells[1].split([',', ' ']).next()?;
            Some((cells[0].parse().ok()?, what.to_owned()))
        })
        .collect();
    let source = read("format/src/control/checkpoint.rs");
    let code: BTreeMap<u8, String> = source
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.trim().split_once(" => Self::")?;
            let name = rest.split('(').next()?.to_lowercase();
            // A vchannel is called by its own name in prose.
            let name = if name == "channel" { "vchannel".to_owned() } else { name };
            Some((number.parse().ok()?, name))
        })
        .collect();
    assert!(code.len() > 4, "{code:?}");
    assert_eq!(spec, code);
}

#[test]
fn reserved_properties_are_the_same_in_spec_and_code() {
    let text = part("13.1 Messages");
    let named = rows(&text).flat_map(|cells| {
        let keys = cells[0].split(", ").map(|key| key.trim_matches('`').to_owned());
        keys.filter(|key| key.starts_with('_')).collect::<Vec<_>>()
    });
    let spec: BTreeSet<String> = named.collect();
    let sources: Vec<String> = files("format/src/message", &[".rs"]).iter().map(read).collect();
    let lines = sources.iter().flat_map(|source| source.lines());
    let code: BTreeSet<String> = lines
        .filter(|line| line.contains("const ") && line.contains("str = \"_"))
        .filter_map(|line| line.split('"').nth(1).map(str::to_owned))
        .collect();
    assert!(code.len() > 10, "{code:?}");
    assert_eq!(spec, code);
}
