//! Trace context of the W3C: which span of a caller a broadcast belongs to.
//!
//! A text that is none is dropped: nothing that a broadcaster promises depends on it. Of a later
//! version the fields are taken that version 00 has, and are passed on as version 00, as the
//! recommendation asks of who knows no later one.

use std::fmt;

/// A `traceparent` (W3C Trace Context, section 3.2).
///
/// # Examples
///
/// ```
/// use oncelog::broadcast::TraceParent;
///
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent = TraceParent::parse(text).expect("a valid one");
/// assert_eq!(parent.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert_eq!(parent.parent_id(), "00f067aa0ba902b7");
/// assert!(parent.is_sampled());
/// assert_eq!(parent.to_string(), text);
/// assert!(TraceParent::parse("no span of anybody").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: String,
    parent_id: String,
    flags: u8,
}

/// Length of a text of version 00, in bytes; a later version may only be longer.
const LEN: usize = 55;

/// The flags that version 00 knows: sampled, and that the trace id is random.
const FLAGS: u8 = 0x03;

impl TraceParent {
    /// The span that a text names; `None` for one that is not valid: not of lower-case hexadecimal
    /// digits, of version ff, with an id of zeros, or of another length than its version has.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (known, behind) = text.split_at_checked(LEN)?;
        let mut fields = known.split('-');
        let mut field = |len: usize| {
            let field = fields.next()?;
            let is_hex = field.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            (field.len() == len && is_hex).then_some(field)
        };
        let (version, trace_id) = (field(2)?, field(32)?);
        let (parent_id, flags) = (field(16)?, field(2)?);
        let fits = match version {
            "00" => behind.is_empty(),
            "ff" => false,
            _ => behind.is_empty() || behind.starts_with('-'),
        };
        let is_zero = |id: &str| id.bytes().all(|b| b == b'0');
        if !fits || is_zero(trace_id) || is_zero(parent_id) {
            return None;
        }
        let flags = u8::from_str_radix(flags, 16).ok()? & FLAGS;
        Some(Self { trace_id: trace_id.to_owned(), parent_id: parent_id.to_owned(), flags })
    }

    /// Identity of the whole trace: 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// Identity of the caller's span: 16 hexadecimal digits.
    #[must_use]
    pub fn parent_id(&self) -> &str {
        &self.parent_id
    }

    /// Says whether the caller may have recorded its span.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

/// The text that is kept of a caller's.
pub(crate) fn kept(text: &str) -> Option<String> {
    let parsed = TraceParent::parse(text);
    if parsed.is_none() {
        let bytes = text.len();
        crate::told::tell(move || {
            tracing::debug!(bytes, "a trace context that is none is dropped");
        });
    }
    parsed.map(|parent| parent.to_string())
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, parent_id, flags } = self;
        write!(f, "00-{trace_id}-{parent_id}-{flags:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    #[track_caller]
    fn check(text: &str, written: Option<&str>) {
        let parsed = TraceParent::parse(text).map(|parent| parent.to_string());
        assert_eq!(parsed.as_deref(), written, "{text}");
    }

    #[test]
    fn a_valid_text_is_passed_on_and_any_other_dropped() {
        let whole = format!("00-{TRACE}-{PARENT}-01");
        check(&whole, Some(&whole));
        check(&format!("00-{TRACE}-{PARENT}-00"), Some(&format!("00-{TRACE}-{PARENT}-00")));
        check(&format!("00-{TRACE}-{PARENT}-03"), Some(&format!("00-{TRACE}-{PARENT}-03")));
        // Flags that are not known are not passed on.
        check(&format!("00-{TRACE}-{PARENT}-ff"), Some(&format!("00-{TRACE}-{PARENT}-03")));
        for text in [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{PARENT}-0"),
            format!("00-{TRACE}-{PARENT}-011"),
            format!("00-{TRACE}-{PARENT}-01-"),
            format!("00-{TRACE}-{PARENT}-01-more"),
            format!(" 00-{TRACE}-{PARENT}-01"),
            format!("00-{TRACE}-{PARENT}-01 "),
            format!("00_{TRACE}_{PARENT}_01"),
            format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", PARENT.to_uppercase()),
            format!("00-{TRACE}-{PARENT}-0A"),
            format!("0x-{TRACE}-{PARENT}-01"),
            format!("00-{}-{PARENT}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}0-{}-01", &PARENT[1..]),
            format!("00-{}-{PARENT}-+1", TRACE),
            // A letter of two bytes, across the end of what is known.
            format!("00-{TRACE}-{PARENT}-0\u{e9}"),
            "\u{e9}".repeat(40),
        ] {
            check(&text, None);
        }
    }

    #[test]
    fn of_a_later_version_the_known_fields_are_taken() {
        let known = format!("00-{TRACE}-{PARENT}-01");
        check(&format!("01-{TRACE}-{PARENT}-01"), Some(&known));
        check(&format!("cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like"), Some(&known));
        check(&format!("cc-{TRACE}-{PARENT}-01-"), Some(&known));
        check(&format!("cc-{TRACE}-{PARENT}-01.what-the-future"), None);
        check(&format!("ff-{TRACE}-{PARENT}-01"), None);
        check(&format!("ff-{TRACE}-{PARENT}-01-what"), None);
    }
}
