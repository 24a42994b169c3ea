//! The members of one row: a strict JSON object (RFC 8259), its values told apart, nested ones
//! kept.
//!
//! Numbers are exact or refused: an integer is an i64, else a u64, else an error; anything with a
//! fraction or an exponent is the nearest f64, an error when that is infinite. No input makes this
//! panic or recurse deeper than [`DEPTH_MAX`].

use std::borrow::Cow;

/// Deepest nesting of arrays and objects, the row itself included.
pub(crate) const DEPTH_MAX: usize = 128;

/// What is wrong with a row, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Offset in bytes from the start of the row.
    pub(crate) at: usize,
    /// What was expected.
    pub(crate) what: Cow<'static, str>,
    /// The member at fault, where there is one.
    pub(crate) column: Option<String>,
}

/// A value of a member.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    I64(i64),
    /// Above the largest i64.
    U64(u64),
    F64(f64),
    Text(Cow<'a, str>),
    /// An array or object, checked.
    Nested,
}

/// A member of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) value: Value<'a>,
    /// The text of the value, whitespace in it included.
    pub(crate) raw: &'a str,
    /// Offset of the key in the row.
    pub(crate) at: usize,
}

/// Reads the members of one object.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    text: &'a str,
    at: usize,
    first: bool,
    over: bool,
}

type Found<T> = Result<T, Wrong>;

impl<'a> Members<'a> {
    /// The members of the object that `text` consists of.
    pub(crate) fn of(text: &'a str) -> Found<Self> {
        let mut members = Self { text, at: 0, first: true, over: false };
        members.space();
        if members.byte() != Some(b'{') {
            return Err(members.wrong("a row is no object, expected `{`"));
        }
        members.at += 1;
        Ok(members)
    }

    /// The next member; `None` behind the last, when nothing follows the object.
    pub(crate) fn next(&mut self) -> Found<Option<Member<'a>>> {
        if self.over {
            return Ok(None);
        }
        self.space();
        if self.first && self.byte() == Some(b'}') {
            self.at += 1;
            return self.end();
        }
        self.first = false;
        let at = self.at;
        let key = self.string("expected a key in quotes")?;
        let (value, raw) = self.after_key().map_err(|wrong| named(wrong, &key))?;
        self.space();
        match self.byte() {
            Some(b',') => self.at += 1,
            Some(b'}') => {
                self.at += 1;
                self.end()?;
            }
            _ => return Err(named(self.wrong("expected `,` or `}`"), &key)),
        }
        Ok(Some(Member { key, value, raw, at }))
    }

    fn after_key(&mut self) -> Found<(Value<'a>, &'a str)> {
        self.space();
        self.expect(b':', "expected `:`")?;
        self.space();
        let from = self.at;
        let value = self.value(1)?;
        Ok((value, self.text.get(from..self.at).unwrap_or_default()))
    }

    fn end(&mut self) -> Found<Option<Member<'a>>> {
        self.over = true;
        self.space();
        if self.at < self.text.len() {
            return Err(self.wrong("expected the end of the row"));
        }
        Ok(None)
    }

    fn value(&mut self, depth: usize) -> Found<Value<'a>> {
        match self.byte() {
            Some(b'"') => Ok(Value::Text(self.string("expected a value")?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'{' | b'[') => self.nested(depth).map(|()| Value::Nested),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            _ => Err(self.wrong("expected a value")),
        }
    }

    fn nested(&mut self, depth: usize) -> Found<()> {
        if depth >= DEPTH_MAX {
            return Err(self.wrong(format!("nested deeper than {DEPTH_MAX} levels")));
        }
        let object = self.byte() == Some(b'{');
        let close = if object { b'}' } else { b']' };
        self.at += 1;
        self.space();
        if self.byte() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space();
            if object {
                self.string("expected a key in quotes")?;
                self.space();
                self.expect(b':', "expected `:`")?;
                self.space();
            }
            self.value(depth + 1)?;
            self.space();
            match self.byte() {
                Some(b',') => self.at += 1,
                Some(byte) if byte == close => {
                    self.at += 1;
                    return Ok(());
                }
                _ if object => return Err(self.wrong("expected `,` or `}`")),
                _ => return Err(self.wrong("expected `,` or `]`")),
            }
        }
    }

    /// A string; without escapes it is borrowed.
    fn string(&mut self, otherwise: &'static str) -> Found<Cow<'a, str>> {
        if self.byte() != Some(b'"') {
            return Err(self.wrong(otherwise));
        }
        let opened = self.at;
        self.at += 1;
        let plain = self.plain();
        if self.byte() == Some(b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(plain));
        }
        let mut text = plain.to_owned();
        loop {
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => text.push(self.escape()?),
                Some(_) => return Err(self.wrong("a control character in a string")),
                None => {
                    return Err(wrong_at(opened, "a string is not closed"));
                }
            }
            text.push_str(self.plain());
        }
    }

    /// Text up to a quote, a backslash or a control character.
    fn plain(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let len = rest.bytes().position(|b| matches!(b, b'"' | b'\\' | 0..0x20));
        let plain = rest.get(..len.unwrap_or(rest.len())).unwrap_or_default();
        self.at += plain.len();
        plain
    }

    fn escape(&mut self) -> Found<char> {
        let at = self.at;
        let code = self.text.as_bytes().get(at + 1).copied();
        self.at += 2;
        let plain = match code {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(at),
            _ => return Err(wrong_at(at, "an escape that JSON does not have")),
        };
        Ok(plain)
    }

    fn unicode(&mut self, at: usize) -> Found<char> {
        let lone = || wrong_at(at, "an escape of half a character");
        let first = self.hex4(at)?;
        let code = match first {
            0xD800..0xDC00 => {
                let rest = self.text.get(self.at..).unwrap_or_default();
                if !rest.starts_with("\\u") {
                    return Err(lone());
                }
                self.at += 2;
                let second = self.hex4(at)?;
                if !(0xDC00..0xE000).contains(&second) {
                    return Err(lone());
                }
                0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(lone)
    }

    fn hex4(&mut self, at: usize) -> Found<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        self.at += 4;
        let digit = |code: u32, byte: &u8| Some(code * 16 + char::from(*byte).to_digit(16)?);
        digits
            .and_then(|digits| digits.iter().try_fold(0, digit))
            .ok_or_else(|| wrong_at(at, "expected four hexadecimal digits"))
    }

    fn number(&mut self) -> Found<Value<'a>> {
        let from = self.at;
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        let leading_zero = self.byte() == Some(b'0');
        let digits = self.digits()?;
        if leading_zero && digits > 1 {
            return Err(wrong_at(from, "a number with a leading zero"));
        }
        let mut whole = true;
        if self.byte() == Some(b'.') {
            whole = false;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            whole = false;
            self.at += 1;
            if matches!(self.byte(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = self.text.get(from..self.at).unwrap_or_default();
        number_of(text, whole).ok_or_else(|| wrong_at(from, "a number does not fit in 64 bits"))
    }

    fn digits(&mut self) -> Found<usize> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { Err(self.wrong("expected a digit")) } else { Ok(count) }
    }

    fn word(&mut self, word: &'static str, value: Value<'a>) -> Found<Value<'a>> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with(word) {
            return Err(self.wrong("expected a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn expect(&mut self, byte: u8, otherwise: &'static str) -> Found<()> {
        if self.byte() != Some(byte) {
            return Err(self.wrong(otherwise));
        }
        self.at += 1;
        Ok(())
    }

    fn space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn wrong(&self, what: impl Into<Cow<'static, str>>) -> Wrong {
        let what = what.into();
        // Whatever was expected, a row that ends is a truncated one.
        let what =
            if self.byte().is_none() { format!("{what}, the row ends").into() } else { what };
        Wrong { at: self.at, what, column: None }
    }
}

/// The value of a number that JSON's grammar allows; `None` when it does not fit.
fn number_of<'a>(text: &str, whole: bool) -> Option<Value<'a>> {
    if whole && text != "-0" {
        let signed = text.parse().map(Value::I64).ok();
        return signed.or_else(|| text.parse().map(Value::U64).ok());
    }
    text.parse().ok().filter(|value: &f64| value.is_finite()).map(Value::F64)
}

/// A nested value without the whitespace between its parts.
pub(crate) fn compacted(raw: &str) -> Cow<'_, str> {
    let space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    if !raw.bytes().any(space) {
        return Cow::Borrowed(raw);
    }
    let (mut quoted, mut escaped) = (false, false);
    let kept = raw.chars().filter(|c| {
        let keep = quoted || !matches!(c, ' ' | '\t' | '\n' | '\r');
        if escaped {
            escaped = false;
        } else if *c == '\\' {
            escaped = quoted;
        } else if *c == '"' {
            quoted = !quoted;
        }
        keep
    });
    Cow::Owned(kept.collect())
}

fn wrong_at(at: usize, what: &'static str) -> Wrong {
    Wrong { at, what: Cow::Borrowed(what), column: None }
}

fn named(wrong: Wrong, key: &str) -> Wrong {
    Wrong { column: Some(key.to_owned()), ..wrong }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Found<Vec<(String, Value<'_>, &str)>> {
        let mut members = Members::of(text)?;
        let mut all = Vec::new();
        while let Some(member) = members.next()? {
            all.push((member.key.into_owned(), member.value, member.raw));
        }
        Ok(all)
    }

    #[track_caller]
    fn check(value: &str, expect: Value<'_>) {
        let text = format!("{{\"k\" : {value} }}");
        assert_eq!(read(&text).unwrap(), [("k".to_owned(), expect, value)]);
    }

    #[track_caller]
    fn check_wrong(text: &str, at: usize, expect: &str) {
        let wrong = read(text).unwrap_err();
        assert!(wrong.what.contains(expect), "{text}: {wrong:?}");
        assert_eq!(wrong.at, at, "{text}: {wrong:?}");
    }

    #[test]
    fn values_are_exact() {
        check("null", Value::Null);
        check("true", Value::Bool(true));
        check("false", Value::Bool(false));
        check("0", Value::I64(0));
        check("-0", Value::F64(-0.0));
        check("-9223372036854775808", Value::I64(i64::MIN));
        check("9223372036854775807", Value::I64(i64::MAX));
        check("9223372036854775808", Value::U64(1 << 63));
        check("18446744073709551615", Value::U64(u64::MAX));
        check("1.0", Value::F64(1.0));
        check("1e3", Value::F64(1000.0));
        check("0.1", Value::F64(0.1));
        check("1.7976931348623157e308", Value::F64(f64::MAX));
        check("5e-324", Value::F64(f64::from_bits(1)));
        check("\"\"", Value::Text("".into()));
        check("\"gr\u{fc}n\"", Value::Text("gr\u{fc}n".into()));
        check(r#""a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00z""#, {
            Value::Text("a\"\\/\u{8}\u{c}\n\r\t\u{e9}\u{1f600}z".into())
        });
        check("[1, {\"a\": [ ]}]", Value::Nested);
        check("{}", Value::Nested);
    }

    #[test]
    fn what_json_does_not_have_is_refused_at_its_offset() {
        check_wrong("", 0, "no object");
        check_wrong("[]", 0, "no object");
        check_wrong("{\"a\":1", 6, "the row ends");
        check_wrong("{\"a\":\"x", 5, "not closed");
        check_wrong("{\"a\":\"x\\n", 5, "not closed");
        check_wrong("{\"a", 1, "not closed");
        check_wrong("{\"a\" 1}", 5, "expected `:`");
        check_wrong("{a:1}", 1, "in quotes");
        check_wrong("{\"a\":1,}", 7, "in quotes");
        check_wrong("{\"a\":1} x", 8, "end of the row");
        check_wrong("{\"a\":01}", 5, "leading zero");
        check_wrong("{\"a\":1.}", 7, "a digit");
        check_wrong("{\"a\":-}", 6, "a digit");
        check_wrong("{\"a\":+1}", 5, "a value");
        check_wrong("{\"a\":NaN}", 5, "a value");
        check_wrong("{\"a\":nul}", 5, "a value");
        check_wrong("{\"a\":18446744073709551616}", 5, "64 bits");
        check_wrong("{\"a\":-9223372036854775809}", 5, "64 bits");
        check_wrong("{\"a\":[1e400]}", 6, "64 bits");
        check_wrong("{\"a\":\"\\x\"}", 6, "escape");
        check_wrong("{\"a\":\"\\ud800\"}", 6, "half a character");
        check_wrong("{\"a\":\"\\udc00\"}", 6, "half a character");
        check_wrong("{\"a\":\"\\u12g4\"}", 6, "hexadecimal");
        check_wrong("{\"a\":\"x\ty\"}", 7, "control character");
        check_wrong("{\"a\":[1 2]}", 8, "`,` or `]`");
    }

    #[test]
    fn depth_is_bounded_without_a_stack_overflow() {
        let nest = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&nest(DEPTH_MAX - 1)).is_ok());
        check_wrong(&nest(100_000), 5 + DEPTH_MAX - 1, "nested deeper");
    }

    #[test]
    fn nested_text_loses_its_whitespace_and_nothing_else() {
        assert_eq!(compacted("[1,2]"), "[1,2]");
        assert_eq!(compacted("[ 1,\n {\"a b\" : \"c \\\" d\"}]"), "[1,{\"a b\":\"c \\\" d\"}]");
    }
}
