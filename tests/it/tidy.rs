//! What the sources and the documents must have in common, read from the files themselves.

mod prose;
mod spec;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::figures::figure;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Longest file and longest function, in lines without tests.
const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// Files and functions that may be longer, each with its reason.
const LONGER: &[(&str, &str)] = &[];

/// What a module may name: its own layer and those before it.
const LAYERS: &[&[&str]] = &[
    &["planted", "sync", "told"],
    &["error", "lsn", "clock", "io", "testing", "histogram"],
    &["log"],
    &["channel", "raft"],
    &["store"],
    &["place"],
    &["broadcast"],
    &["meter"],
    &["import"],
    &["gateway"],
];

/// Every file below a directory of the repository with one of these endings.
fn files(below: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![Path::new(ROOT).join(below)];
    while let Some(dir) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if !["target", ".git", "corpus", "artifacts", "data"].contains(&name) {
                    todo.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no file below {below}");
    found.sort();
    found
}

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The path as it stands in the repository.
fn short(path: &Path) -> String {
    path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned()
}

/// The section of SPEC.md under a heading.
fn section(heading: &str) -> String {
    let spec = read("SPEC.md");
    let begin = spec.find(&format!("\n## {heading}\n")).expect("heading");
    let rest = &spec[begin + 4..];
    rest[..rest.find("\n## ").unwrap_or(rest.len())].to_owned()
}

/// Whether a source is compiled for tests alone: its parent says so.
fn is_for_tests(path: &Path) -> bool {
    let (dir, stem) = (path.parent().unwrap(), path.file_stem().unwrap().to_str().unwrap());
    let parent = std::fs::read_to_string(dir.with_extension("rs")).unwrap_or_default();
    let mut lines = parent.lines().zip(parent.lines().skip(1));
    let ends = format!("mod {stem};");
    lines.any(|(a, b)| a == "#[cfg(test)]" && b.ends_with(&ends))
}

/// The source without the module of tests that ends it.
fn without_tests(source: &str) -> &str {
    let end = source.find("\n#[cfg(test)]\nmod tests").unwrap_or(source.len());
    &source[..end]
}

#[track_caller]
fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Labels `@A` to `@Z` in a text.
fn labels(text: &str) -> BTreeSet<char> {
    let bytes = text.as_bytes();
    (0..bytes.len())
        .filter(|k| bytes[*k] == b'@' && bytes.get(k + 1).is_some_and(u8::is_ascii_uppercase))
        .filter(|k| !bytes.get(k + 2).is_some_and(u8::is_ascii_alphanumeric))
        .map(|k| char::from(bytes[k + 1]))
        .collect()
}

#[test]
fn recovery_has_the_same_rows_in_spec_code_and_scripts() {
    let spec: BTreeSet<char> = section("12. Recovery")
        .lines()
        .filter(|line| line.starts_with("| @"))
        .flat_map(|line| labels(&line[..5]))
        .collect();
    assert!(spec.len() > 20, "{spec:?}");
    let code = labels(without_tests(&read("src/log/recover.rs")));
    let dir = Path::new(ROOT).join("tests/it/data/recovery");
    let mut scripts = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let first = text.lines().next().unwrap_or_default();
        scripts.extend(labels(first));
    }
    assert_eq!(spec, code, "SPEC section 12 and src/log/recover.rs");
    assert_eq!(spec, scripts, "SPEC section 12 and the first lines of tests/it/data/recovery");
}

#[test]
fn limits_are_the_same_in_spec_and_code() {
    let number = |text: &str| -> Option<u64> { text.replace([',', '_'], "").parse().ok() };
    let spec: BTreeMap<String, u64> = section("9. Limits")
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
            Some((name.to_owned(), number(cells.get(2)?)?))
        })
        .collect();
    let code: BTreeMap<String, u64> = read("format/src/limits.rs")
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("pub const ")?.split_once(':')?;
            Some((name.to_owned(), number(rest.split_once('=')?.1.trim().strip_suffix(';')?)?))
        })
        .collect();
    assert!(spec.len() > 10, "{spec:?}");
    for (name, value) in &spec {
        assert_eq!(code.get(name), Some(value), "{name}");
    }
    // Places and alignments stand in the tables of their structures instead.
    let extra = ["FRAMES_OFFSET", "ALIGNMENT"];
    for name in code.keys().filter(|name| !extra.contains(&name.as_str())) {
        assert!(spec.contains_key(name), "{name} is not in SPEC section 9");
    }
}

#[test]
fn files_and_functions_are_short() {
    let mut wrong = Vec::new();
    for path in files("src", &[".rs"]).into_iter().chain(files("format/src", &[".rs"])) {
        let name = short(&path);
        let longer = |what: &str| LONGER.iter().any(|(known, _)| *known == what);
        if is_for_tests(&path) {
            continue;
        }
        let source = read(&path);
        let code = without_tests(&source);
        let lines = code.lines().count();
        if lines > FILE_LINES_MAX && !longer(&name) {
            wrong.push(format!("{name}: {lines} lines"));
        }
        for (function, lines) in functions(code) {
            let function = format!("{name}::{function}");
            if lines > FUNCTION_LINES_MAX && !longer(&function) {
                wrong.push(format!("{function}: {lines} lines"));
            }
        }
    }
    none(&wrong);
}

/// Names and lengths of the functions of a formatted source.
fn functions(source: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (k, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some(at) = code.find("fn ") else { continue };
        let lead = &code[..at];
        let qualifiers = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe"];
        if !lead.split_whitespace().all(|word| qualifiers.contains(&word)) {
            continue;
        }
        let name = code[at + 3..].split(['(', '<']).next().unwrap_or_default();
        // Without a body, or with one on the same line, it is short.
        let opens = lines[k..].iter().find(|line| line.ends_with(['{', '}', ';']));
        if opens.is_some_and(|line| line.ends_with('{')) {
            let close = format!("{}}}", &line[..line.len() - code.len()]);
            let length = lines[k..].iter().position(|line| *line == close).unwrap_or(lines.len());
            found.push((name.to_owned(), length + 1));
        }
    }
    found
}

#[test]
fn sources_are_ascii() {
    let mut wrong = Vec::new();
    for path in files("", &[".rs", ".toml", ".md", ".txt", ".hex"]) {
        for (k, line) in read(&path).lines().enumerate().filter(|(_, line)| !line.is_ascii()) {
            wrong.push(format!("{}:{}: {line}", short(&path), k + 1));
        }
    }
    none(&wrong);
}

#[test]
fn modules_open_with_their_purpose_and_have_telling_names() {
    let banned = ["util", "common", "helpers", "misc", "types", "manager", "mod"];
    let mut wrong = Vec::new();
    for path in files("src", &[".rs"]).into_iter().chain(files("format/src", &[".rs"])) {
        let name = short(&path);
        if !name.ends_with("tests.rs") && !read(&path).starts_with("//! ") {
            wrong.push(format!("{name} does not say what it is"));
        }
        let stem = path.file_stem().unwrap().to_str().unwrap();
        if banned.contains(&stem) {
            wrong.push(format!("{name} is named for no thing"));
        }
    }
    none(&wrong);
}

/// Modules of the crate that a source names by their path from the root.
fn named(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in source.match_indices("crate::") {
        let before = source[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &source[at + 7..];
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(list) => list[..list.find("};").unwrap_or(0)].split(',').map(str::trim).collect(),
            None => vec![rest],
        };
        for name in names {
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            found.insert(name[..end].to_owned());
        }
    }
    found
}

#[test]
fn dependencies_point_one_way() {
    let layer = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));
    let mut wrong = Vec::new();
    for path in files("src", &[".rs"]) {
        let name = short(&path);
        let source = read(&path);
        let module = name["src/".len()..].split(['/', '.']).next().unwrap();
        if module == "bin" {
            continue; // a crate of its own
        }
        let Some(own) = layer(module) else {
            if module != "lib" {
                wrong.push(format!("{name} is in no layer"));
            }
            continue;
        };
        for other in named(&source) {
            if layer(&other).is_some_and(|other| other > own) {
                wrong.push(format!("{name} names {other}, which is above it"));
            }
        }
    }
    for path in files("format/src", &[".rs"]) {
        for word in ["std::path", "std::fs", "std::io", "oncelog::"] {
            if without_tests(&read(&path)).contains(word) {
                wrong.push(format!("{} names {word}", short(&path)));
            }
        }
    }
    none(&wrong);
}

#[test]
fn files_are_touched_and_memory_is_mapped_in_one_place_each() {
    let mut wrong = Vec::new();
    for path in files("src", &[".rs"]) {
        let name = short(&path);
        let source = read(&path);
        let code = without_tests(&source);
        let uses = |word: &str| {
            code.lines().any(|line| line.contains(word) && !line.trim_start().starts_with("//"))
        };
        let library = !name.starts_with("src/bin/") && !is_for_tests(&path);
        let io = ["src/io/fs.rs", "src/io/map.rs", "src/io/source.rs"].contains(&name.as_str());
        if library && uses("std::fs") && !io {
            wrong.push(format!("{name} goes around Io"));
        }
        if uses("unsafe ") && name != "src/io/map.rs" {
            wrong.push(format!("{name} has unsafe code"));
        }
    }
    none(&wrong);
}

/// What an embedder implements keeps compiling when a method joins it.
#[test]
fn open_traits_say_what_comes_later() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for path in files("src", &[".rs"]) {
        let source = read(&path);
        let lines: Vec<&str> = source.lines().collect();
        for (k, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("pub trait "))
        {
            count += 1;
            let docs = lines[..k].iter().rev().take_while(|line| line.starts_with("///"));
            let says = "/// Methods added later have a default";
            if !docs.into_iter().any(|line| line.starts_with(says)) {
                wrong.push(format!("{}:{}: {line}", short(&path), k + 1));
            }
        }
    }
    assert!(count >= 5, "{count}");
    none(&wrong);
}

/// A derive crate stood in every embedder's tree for one error of a test file system, and a runtime
/// for nothing.
#[test]
fn every_dependency_says_why_and_is_used() {
    let manifest = read("Cargo.toml");
    let begin = manifest.find("\n[dependencies]\n").expect("a table") + "\n[dependencies]\n".len();
    let table = &manifest[begin..];
    let table = &table[..table.find("\n[").unwrap_or(table.len())];
    let sources: Vec<String> = files("src", &[".rs"]).iter().map(read).collect();
    let mut wrong = Vec::new();
    let (mut explained, mut count) = (false, 0);
    for line in table.lines() {
        let Some((name, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) else {
            explained = line.starts_with('#');
            continue;
        };
        count += 1;
        if !explained {
            wrong.push(format!("{name}: no comment says what breaks without it"));
        }
        let path = format!("{}::", name.replace('-', "_"));
        if !sources.iter().any(|source| source.contains(&path)) {
            wrong.push(format!("{name}: no source names it"));
        }
    }
    assert!(count > 10, "{count}");
    none(&wrong);
}

/// What stands between backquotes in a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|name| !name.contains('\n'))
}

/// Names of the tests.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in ["src", "tests", "format"].iter().flat_map(|dir| files(dir, &[".rs"])) {
        let source = read(&path);
        let mut is_test = false;
        for line in source.lines().map(str::trim_start) {
            is_test |= line == "#[test]";
            let name = line.split_once("fn ").and_then(|(_, name)| name.split_once('('));
            if let Some((name, _)) = name.filter(|_| !line.starts_with("//")) {
                if is_test {
                    found.insert(name.to_owned());
                }
                is_test = false;
            }
        }
    }
    found
}

/// Names that sources define: functions, types and the bugs that can be planted.
fn defined() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in
        ["src", "tests", "format/src", "format/tests"].iter().flat_map(|dir| files(dir, &[".rs"]))
    {
        let source = read(&path);
        for line in source.lines().map(str::trim_start) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let defines = |pair: &&[&str]| ["fn", "struct", "enum", "trait"].contains(&pair[0]);
            let name = words.windows(2).find(defines).map(|pair| pair[1]);
            let bug = (words.len() == 1).then(|| words[0]).filter(|word| word.ends_with(','));
            for name in name.into_iter().chain(bug.filter(|_| path.ends_with("planted.rs"))) {
                let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
                found.insert(name[..end.unwrap_or(name.len())].to_owned());
            }
        }
    }
    found
}

#[test]
fn the_map_of_promises_names_what_is_there() {
    let text = read("ARCHITECTURE.md");
    assert!(text.lines().count() <= 250);
    let defined = defined();
    let mut wrong = Vec::new();
    let paths = quoted(&text).filter(|name| name.contains('/') || name.ends_with(".md"));
    for path in paths.filter(|path| !Path::new(ROOT).join(path).exists()) {
        wrong.push(format!("{path} is not there"));
    }
    let map = read("docs/promises.md");
    for path in quoted(&map).filter(|name| name.contains('/')) {
        if !Path::new(ROOT).join(path).exists() {
            wrong.push(format!("{path} is not there"));
        }
    }
    let promises: Vec<&str> = map.split("\n### ").skip(1).collect();
    for name in promises.iter().flat_map(|part| quoted(part)).filter(|name| !name.contains('/')) {
        if !defined.contains(name) {
            wrong.push(format!("{name} is defined nowhere"));
        }
    }
    let numbers = (1..=10).map(|n| format!("G{n} ")).chain((1..=7).map(|n| format!("C{n} ")));
    for number in numbers.filter(|number| !promises.iter().any(|part| part.starts_with(number))) {
        wrong.push(format!("{number}is no promise there"));
    }
    for part in &promises {
        let (kept, tests) = part.split_once("Tests:").unwrap_or((part, ""));
        if !kept.contains("- `") || !tests.contains("- `") {
            let name = part.lines().next().unwrap_or_default();
            wrong.push(format!("{name}: no place or no test"));
        }
    }
    none(&wrong);
}

/// A symptom that nobody answers would look answered.
#[test]
fn the_table_of_failures_names_what_is_there() {
    let text = read("docs/failures.md");
    let (defined, tests) = (defined(), tests());
    let rows: Vec<Vec<&str>> = (text.lines())
        .filter(|line| line.starts_with("| ") && !line.starts_with("| ---"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .filter(|row: &Vec<&str>| row[0] != "symptom")
        .collect();
    let (mut wrong, mut tested) = (Vec::new(), 0);
    for row in &rows {
        let has_test = row.iter().skip(2).flat_map(|cell| quoted(cell)).any(|n| tests.contains(n));
        tested += usize::from(has_test || row.iter().skip(2).any(|cell| cell.contains("bug `")));
        if row.len() != 3 || row.iter().any(|cell| cell.is_empty()) {
            wrong.push(format!("{row:?}: expected a symptom, where it was seen, and an answer"));
        }
        let names = row.iter().skip(2).flat_map(|cell| quoted(cell));
        // Sentences are tests, capitals are bugs or kinds of error; words are neither.
        for name in names.filter(|name| name.matches('_').count() > 1) {
            if !defined.contains(name) {
                wrong.push(format!("{}: {name} is defined nowhere", row[0]));
            }
        }
        for bug in row.iter().skip(2).flat_map(|cell| cell.split("bug `").skip(1)) {
            let bug = bug.split('`').next().unwrap_or_default();
            if !defined.contains(bug) {
                wrong.push(format!("{}: no bug {bug} can be planted", row[0]));
            }
        }
    }
    none(&wrong);
    figure(15, "lines of failures, each with an answer", rows.len());
    figure(15, "lines of failures with a test or a planted bug", tested);
    assert!(rows.len() >= 120, "{} lines", rows.len());
}

/// A target that fuzzes a copy of a parser finds nothing.
#[test]
fn every_fuzz_target_calls_the_library() {
    let mut wrong = Vec::new();
    for path in files("fuzz/fuzz_targets", &[".rs"]) {
        let source = read(&path);
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let is_of_program = source.contains("#[path = \"../../src/bin/oncelog\"]");
        if !is_of_program && !source.contains(&format!("oncelog_fuzz::{name}(")) {
            wrong.push(format!("{} does not call oncelog_fuzz::{name}", path.display()));
        }
    }
    let manifest = read("fuzz/Cargo.toml");
    for by_path in ["oncelog-format = { path = \"../format\" }", "oncelog = { path = \"..\","] {
        if !manifest.contains(by_path) {
            wrong.push(format!("fuzz/Cargo.toml has no {by_path}"));
        }
    }
    none(&wrong);
}
