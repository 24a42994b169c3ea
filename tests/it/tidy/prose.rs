//! Comments and documents that are easy to read.

use super::{files, none, read, short};

/// Columns of a comment, as rustfmt keeps them for code.
const COLUMNS_MAX: usize = 100;
const SPEC_LINES_MAX: usize = 700;

/// The text of a line that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    Some(line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).trim_start())
}

#[test]
fn comments_of_the_log_and_the_broadcaster_fit_their_columns() {
    let mut wrong = Vec::new();
    for path in files("src", &[".rs"]) {
        let name = short(&path);
        if !name.starts_with("src/log") && !name.starts_with("src/broadcast") {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            // A row of a table cannot be broken.
            let is_prose = comment(line).is_some_and(|text| !text.starts_with('|'));
            if is_prose && line.chars().count() > COLUMNS_MAX {
                wrong.push(format!("{name}:{}", number + 1));
            }
        }
    }
    none(&wrong);
}

#[test]
fn the_specification_can_be_read_in_one_go() {
    let lines = read("SPEC.md").lines().count();
    assert!(lines <= SPEC_LINES_MAX, "SPEC.md has {lines} lines");
}
