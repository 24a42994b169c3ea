//! No answer tells where the store is: whatever an answer says, it comes by here last.
//!
//! Where an error is told, the paths that it names are left out already; reasons that were recorded
//! as text, and those of an embedder's types, are seen here alone.

use std::path::Path;

use serde_json::json;

/// What stands for a path of the machine.
const HIDDEN: &str = "(a path of this machine)";

/// Hides the paths below a directory.
#[derive(Debug)]
pub(crate) struct Veil {
    /// The directory as it stands in JSON, and in HTML.
    spellings: Vec<String>,
}

impl Veil {
    pub(crate) fn over(dir: &Path) -> Self {
        let text = dir.display().to_string();
        if dir.file_name().is_none() {
            return Self { spellings: Vec::new() };
        }
        let quoted = json!(text).to_string();
        let in_json = quoted.trim_matches('"').to_owned();
        let in_html = super::page::escaped(&text);
        let mut spellings = vec![in_json, in_html];
        spellings.dedup();
        Self { spellings }
    }

    /// The text without any path below the directory; `None` where it has none.
    pub(crate) fn hide(&self, text: &str) -> Option<String> {
        let mut hidden: Option<String> = None;
        for spelling in &self.spellings {
            let now = hidden.as_deref().unwrap_or(text);
            if let Some(without) = without(now, spelling) {
                hidden = Some(without);
            }
        }
        hidden
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn without(text: &str, dir: &str) -> Option<String> {
    let mut out: Option<String> = None;
    let mut rest = text;
    let mut before = None;
    while let Some(at) = rest.find(dir) {
        let (head, tail) = rest.split_at(at);
        let behind = tail.get(dir.len()..).unwrap_or_default();
        before = head.chars().next_back().or(before);
        // A part of a longer name is another path; `<` begins the end of an element.
        let begins = !before.is_some_and(|c| is_of_name(c) || matches!(c, '/' | '<'));
        let ends = !behind.starts_with(is_of_name);
        if !(begins && ends) {
            let (kept, left) = rest.split_at(at + dir.len());
            if let Some(out) = &mut out {
                out.push_str(kept);
            } else {
                out = Some(kept.to_owned());
            }
            before = dir.chars().next_back();
            rest = left;
            continue;
        }
        let out = out.get_or_insert_with(String::new);
        out.push_str(head);
        out.push_str(HIDDEN);
        rest = behind.trim_start_matches(|c| is_of_name(c) || c == '/');
        before = Some(')');
    }
    let mut out = out?;
    out.push_str(rest);
    (out != text).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        let hidden = Veil::over(Path::new("/srv/s")).hide(text);
        assert_eq!(hidden.as_deref(), expect, "{text}");
    }

    #[test]
    fn a_path_below_the_directory_is_hidden_whole_and_no_other() {
        check(
            r#"{"reason":"cannot reserve: /srv/s/channels/p0/0000000005.spare: No space"}"#,
            Some(r#"{"reason":"cannot reserve: (a path of this machine): No space"}"#),
        );
        check("\"/srv/s\"", Some("\"(a path of this machine)\""));
        check(
            "/srv/s/a and /srv/store, then /srv/s.",
            Some("(a path of this machine) and /srv/store, then /srv/s."),
        );
        check(
            "/srv/store /srv/s/a, /srv/s/b",
            Some("/srv/store (a path of this machine), (a path of this machine)"),
        );
        for other in ["", "/srv", "/srv/store", "/mnt/srv/s/a", "</srv/s>", "a/srv/s"] {
            check(other, None);
        }
    }

    #[test]
    fn a_directory_is_found_as_json_and_html_spell_it() {
        let dir = Path::new("/srv/a\"b & c");
        let veil = Veil::over(dir);
        let told = "cannot open /srv/a\"b & c/x.log: refused";
        for text in [json!({ "reason": told }).to_string(), super::super::page::escaped(told)] {
            let hidden = veil.hide(&text).unwrap();
            assert!(!hidden.contains("srv") && hidden.contains("refused"), "{hidden}");
        }
        // All there is lies below it.
        assert_eq!(Veil::over(Path::new("/")).hide("/a /b"), None);
    }
}
