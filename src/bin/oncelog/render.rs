//! What the commands print, as text and as JSON.
//!
//! Bytes that came from a log or from the file system never reach a terminal raw: control
//! characters and direction marks are escaped in text and in JSON alike.
//! Besides `main`, this is the only file that prints.

use std::fmt::Write as _;
use std::io::{self, BufWriter, StdoutLock, Write};

use jiff::Timestamp;
pub(crate) use oncelog::broadcast::format_duration as duration;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// Standard output, one line or one JSON object at a time.
#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
    stream: BufWriter<StdoutLock<'static>>,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, stream: BufWriter::with_capacity(64 << 10, io::stdout().lock()) }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// One line of text, with what a terminal could take for a command escaped.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.stream, "{}", plain(text)).map_err(Failure::output)
    }

    /// One JSON object on a line of its own.
    pub(crate) fn object(&mut self, object: &Value) -> Result<(), Failure> {
        writeln!(self.stream, "{}", compact(object)).map_err(Failure::output)
    }

    /// Hands everything printed so far to whoever reads.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stream.flush().map_err(Failure::output)
    }
}

/// The error of a command: one JSON object, or one line with the chain of causes.
pub(crate) fn failure(failure: &Failure, json: bool) -> String {
    let parts = Parts::of(failure);
    if json {
        return compact(&json!({ "error": parts.object() }));
    }
    let mut text = format!("error: {}", parts.message);
    // The library's errors name their place themselves.
    let has_place = !matches!(failure, Failure::Library(_) | Failure::Keyless(_));
    if let Some(path) = parts.path.as_ref().filter(|_| has_place) {
        write_to(&mut text, format_args!(": {path}"));
    }
    for cause in &parts.causes {
        write_to(&mut text, format_args!(": {cause}"));
    }
    plain(&text)
}

/// What both forms of an error say.
#[derive(Debug, Default)]
struct Parts {
    kind: String,
    message: String,
    retryable: bool,
    path: Option<String>,
    offset: Option<u64>,
    lsn: Option<u64>,
    fields: Vec<String>,
    retry_after_ms: Option<u64>,
    causes: Vec<String>,
}

impl Parts {
    fn of(failure: &Failure) -> Self {
        match failure {
            Failure::Library(error) | Failure::Keyless(error) => Self {
                kind: format!("{:?}", error.kind()),
                message: error.to_string(),
                retryable: error.is_retryable() && !matches!(failure, Failure::Keyless(_)),
                path: error.path().map(|path| path.display().to_string()),
                offset: error.offset(),
                lsn: error.lsn().map(oncelog::Lsn::get),
                fields: error.fields().to_vec(),
                retry_after_ms: error
                    .retry_after()
                    .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
                causes: causes(std::error::Error::source(error)),
            },
            Failure::Unclosed(error) | Failure::KeylessUnclosed(error) => Self {
                kind: format!("{:?}", oncelog::ErrorKind::OutcomeUnknown),
                message: "the store failed at its close, behind the work".into(),
                retryable: matches!(failure, Failure::Unclosed(_)),
                causes: causes(Some(error)),
                ..Self::default()
            },
            Failure::Config { message, path } => Self {
                kind: "InvalidInput".into(),
                message: message.clone(),
                path: Some(path.display().to_string()),
                ..Self::default()
            },
            Failure::Usage { message, path } => Self {
                kind: "InvalidInput".into(),
                message: message.clone(),
                path: path.as_ref().map(|path| path.display().to_string()),
                ..Self::default()
            },
            Failure::Untold { message, path } => Self {
                kind: format!("{:?}", oncelog::ErrorKind::Trimmed),
                message: message.clone(),
                path: Some(path.display().to_string()),
                ..Self::default()
            },
            Failure::Limit(message) => {
                Self { kind: "Limit".into(), message: message.clone(), ..Self::default() }
            }
            Failure::Stream { message, path, source } => Self {
                kind: "Io".into(),
                message: message.clone(),
                path: path.as_ref().map(|path| path.display().to_string()),
                causes: vec![source.to_string()],
                ..Self::default()
            },
            Failure::Pipe(_) | Failure::Several(..) => Self::default(),
        }
    }

    fn object(&self) -> Value {
        let mut object = Map::new();
        let mut message = self.message.clone();
        for cause in &self.causes {
            write_to(&mut message, format_args!(": {cause}"));
        }
        object.insert("kind".into(), json!(self.kind));
        object.insert("message".into(), json!(message));
        object.insert("retryable".into(), json!(self.retryable));
        if let Some(path) = &self.path {
            object.insert("path".into(), json!(path));
        }
        if let Some(offset) = self.offset {
            object.insert("offset".into(), json!(offset));
        }
        if let Some(lsn) = self.lsn {
            object.insert("lsn".into(), json!(lsn));
        }
        if !self.fields.is_empty() {
            object.insert("fields".into(), json!(self.fields));
        }
        if let Some(after) = self.retry_after_ms {
            object.insert("retry_after_ms".into(), json!(after));
        }
        Value::Object(object)
    }
}

fn causes(first: Option<&(dyn std::error::Error + 'static)>) -> Vec<String> {
    std::iter::successors(first, |cause| cause.source()).map(ToString::to_string).collect()
}

/// Appends formatted text; writing to a string cannot fail.
pub(crate) fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    if text.write_fmt(arguments).is_err() {
        text.push('?');
    }
}

/// RFC 3339 in UTC, of milliseconds since 1970; a time outside its range as the number.
pub(crate) fn time(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| ms.to_string(), |stamp| format!("{stamp:.3}"))
}

/// Lower-case hexadecimal digits, two a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    for byte in bytes {
        write_to(&mut text, format_args!("{byte:02x}"));
    }
    text
}

/// A number with its thousands apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things, such as `1 record` or `2 records`.
pub(crate) fn things(number: u64, one: &str) -> String {
    format!("{} {one}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Text whose control characters and direction marks are escaped.
pub(crate) fn plain(text: &str) -> String {
    if !text.chars().any(is_command) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_command(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Whether a terminal could do something else with the character than show it.
fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// JSON on one line, with every such character as `\uXXXX`: they can only stand in its strings.
fn compact(value: &Value) -> String {
    let text = value.to_string();
    if !text.chars().any(is_command) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_command(c) {
            write_to(&mut out, format_args!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str, in_json: &str) {
        assert_eq!(plain(text), shown);
        assert_eq!(compact(&json!(text)), in_json);
    }

    #[test]
    fn a_terminal_sees_no_command() {
        check("plain", "plain", "\"plain\"");
        check("a\x1b[31mb", "a\\u{1b}[31mb", "\"a\\u001b[31mb\"");
        check("a\u{9b}2Jb", "a\\u{9b}2Jb", "\"a\\u009b2Jb\"");
        check("a\u{202e}b", "a\\u{202e}b", "\"a\\u202eb\"");
        check("\u{e9}", "\u{e9}", "\"\u{e9}\"");
    }

    #[test]
    fn escaped_json_reads_back_as_it_was() {
        let text = "tab\t quote\" esc\x1b del\x7f csi\u{9b} mark\u{2067} \u{1f600}";
        let back: Value = serde_json::from_str(&compact(&json!(text))).unwrap();
        assert_eq!(back, json!(text));
    }

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(time(u64::MAX), u64::MAX.to_string());
    }
}
