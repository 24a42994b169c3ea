//! SPEC.md and `limits.rs` state the same limits.

#![cfg(test)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

fn number(text: &str) -> u64 {
    text.replace([',', '_'], "").parse().unwrap()
}

#[test]
fn the_table_of_limits_is_what_the_code_holds() {
    let spec = read("../SPEC.md");
    let section = spec.split("\n## 9. ").nth(1).unwrap().split("\n## ").next().unwrap();
    let stated: BTreeMap<String, u64> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let (name, rest) = row.split_once("` | ").unwrap();
            (name.to_owned(), number(rest.split(" | ").next().unwrap()))
        })
        .collect();
    let source = read("src/limits.rs");
    let held: BTreeMap<String, u64> = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "))
        .map(|item| {
            let (name, rest) = item.split_once(": ").unwrap();
            let value = rest.split_once(" = ").unwrap().1.trim_end_matches(';');
            (name.to_owned(), number(value))
        })
        // Where things stand, not how large they may be.
        .filter(|(name, _)| !["FRAMES_OFFSET", "ALIGNMENT"].contains(&name.as_str()))
        .collect();
    assert_eq!(stated, held);
}
