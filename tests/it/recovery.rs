//! Scripts of what a log went through and what opening it must find, one for each row of SPEC
//! section 12. `recovery/script.rs` says what the words of a script mean.

pub(crate) mod script;

use std::path::Path;

/// Runs a script and returns it with what its commands printed in place of the lines that begin
/// with `>`.
fn played(text: &str) -> String {
    let mut script = script::Script::new();
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with('>')) {
        out.push_str(line);
        out.push('\n');
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() || line.starts_with('#') {
            continue;
        }
        match script.run(&words) {
            Ok(lines) => lines.iter().for_each(|line| out.push_str(&format!("> {line}\n"))),
            Err(e) => panic!("{line}: {e}"),
        }
    }
    out
}

#[test]
fn recovery_finds_what_the_scripts_say() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/recovery");
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let mut wrong = Vec::new();
    for path in &paths {
        let expected = std::fs::read_to_string(path).unwrap();
        let found = played(&expected);
        if found != expected {
            wrong.push(format!("{}:\n{found}", path.file_name().unwrap().display()));
        }
    }
    assert!(wrong.is_empty(), "{} scripts play otherwise:\n\n{}", wrong.len(), wrong.join("\n"));
    assert!(paths.len() > 20, "{} scripts", paths.len());
}
