//! One form for JSON that says the same: RFC 8785 with exact numbers.
//!
//! White space goes, names of an object stand in the order of their UTF-16 units, strings are
//! escaped no more than they must be. A number is the decimal that is written, whatever its digits:
//! `1.50`, `15e-1` and `1.5` are one, and two integers beyond what a double tells apart stay two
//! (docs/adr/0011). A name that stands twice, half of a surrogate pair, and what is no JSON are
//! refused: no input panics, none nests deeper than [`DEPTH_MAX`], and none takes more memory than
//! a few times its length.

use std::cmp::Ordering;

use crate::error::{Error, ErrorKind, Result};

/// Most arrays and objects within each other.
const DEPTH_MAX: usize = 128;

/// Digits before the point of a number that is written without an exponent, at most.
const POINT_MAX: i64 = 21;

/// Zeros behind the point before its first digit, at most, of such a number.
const ZEROS_MAX: i64 = 5;

/// Returns the canonical form of a JSON text: the same bytes for two texts exactly if they say the
/// same, in whatever order of names, white space, escapes and forms of numbers.
///
/// # Errors
///
/// `InvalidInput` for what is no JSON in UTF-8, for an object with a name twice, half of a
/// surrogate pair, more than 128 levels, and an exponent beyond 10^18 either way.
///
/// # Examples
///
/// ```
/// use oncelog::broadcast::canonical_json;
///
/// let one = canonical_json(br#"{"b": [1.50, 1e2], "a": "\u0041"}"#)?;
/// assert_eq!(one, br#"{"a":"A","b":[1.5,100]}"#);
/// assert!(canonical_json(br#"{"a":1,"a":2}"#).is_err());
/// # Ok::<_, oncelog::Error>(())
/// ```
pub fn canonical_json(text: &[u8]) -> Result<Vec<u8>> {
    let read = || {
        let valid = std::str::from_utf8(text);
        valid.map_err(|e| Wrong { at: e.valid_up_to(), what: "expected UTF-8" })?;
        let mut reader = Reader { text, at: 0, out: Vec::with_capacity(text.len()) };
        reader.space();
        reader.value(0)?;
        match reader.peek() {
            None => Ok(reader.out),
            Some(_) => Err(reader.wrong("expected the end")),
        }
    };
    read().map_err(|Wrong { at, what }| {
        Error::new(ErrorKind::InvalidInput, format!("no JSON in one form: at byte {at}: {what}"))
    })
}

/// What is wrong, and where.
#[derive(Debug)]
struct Wrong {
    at: usize,
    what: &'static str,
}

/// A member of an object, as it stands in the output.
#[derive(Clone, Copy, Debug)]
struct Member {
    begin: usize,
    /// Behind its name, the quotes included.
    name_end: usize,
    end: usize,
}

#[derive(Debug)]
struct Reader<'a> {
    /// UTF-8.
    text: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

impl Reader<'_> {
    fn wrong(&self, what: &'static str) -> Wrong {
        Wrong { at: self.at, what }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Takes a byte if it is this one.
    fn takes(&mut self, byte: u8) -> bool {
        let is_it = self.peek() == Some(byte);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> std::result::Result<(), Wrong> {
        if self.takes(byte) { Ok(()) } else { Err(self.wrong(what)) }
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes a value and the white space behind it.
    fn value(&mut self, depth: usize) -> std::result::Result<(), Wrong> {
        match self.peek() {
            Some(b'{' | b'[') if depth == DEPTH_MAX => return Err(self.wrong("too deep")),
            Some(b'{') => self.object(depth + 1)?,
            Some(b'[') => self.array(depth + 1)?,
            Some(b'"') => self.string()?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.word()?,
        }
        self.space();
        Ok(())
    }

    fn word(&mut self) -> std::result::Result<(), Wrong> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let words: [&[u8]; 3] = [b"true", b"false", b"null"];
        let word = words.into_iter().find(|word| rest.starts_with(word));
        let word = word.ok_or_else(|| self.wrong("expected a value"))?;
        self.at += word.len();
        self.out.extend_from_slice(word);
        Ok(())
    }

    fn array(&mut self, depth: usize) -> std::result::Result<(), Wrong> {
        self.at += 1;
        self.out.push(b'[');
        self.space();
        if !self.takes(b']') {
            loop {
                self.value(depth)?;
                if !self.takes(b',') {
                    break;
                }
                self.out.push(b',');
                self.space();
            }
            self.expect(b']', "expected a comma or the end of an array")?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, depth: usize) -> std::result::Result<(), Wrong> {
        let opened_at = self.at;
        self.at += 1;
        self.out.push(b'{');
        let mut members = Vec::new();
        self.space();
        if !self.takes(b'}') {
            loop {
                let begin = self.out.len();
                self.string()?;
                let name_end = self.out.len();
                self.space();
                self.expect(b':', "expected a colon")?;
                self.out.push(b':');
                self.space();
                self.value(depth)?;
                members.push(Member { begin, name_end, end: self.out.len() });
                if !self.takes(b',') {
                    break;
                }
                self.out.push(b',');
                self.space();
            }
            self.expect(b'}', "expected a comma or the end of an object")?;
        }
        self.sort(&mut members).map_err(|what| Wrong { at: opened_at, what })?;
        self.out.push(b'}');
        Ok(())
    }

    /// Puts the members of an object, which end the output, in order.
    fn sort(&mut self, members: &mut [Member]) -> std::result::Result<(), &'static str> {
        let out = &self.out;
        let name = |member: &Member| out.get(member.begin..member.name_end).unwrap_or_default();
        let order = |a: &Member, b: &Member| by_units(name(a), name(b));
        if members.is_sorted_by(|a, b| order(a, b) == Ordering::Less) {
            return Ok(());
        }
        let Some(begin) = members.first().map(|member| member.begin) else { return Ok(()) };
        members.sort_by(order);
        if !members.is_sorted_by(|a, b| order(a, b) == Ordering::Less) {
            return Err("an object has a name twice");
        }
        let mut sorted = Vec::with_capacity(out.len().saturating_sub(begin));
        for member in members {
            if !sorted.is_empty() {
                sorted.push(b',');
            }
            sorted.extend_from_slice(out.get(member.begin..member.end).unwrap_or_default());
        }
        self.out.truncate(begin);
        self.out.append(&mut sorted);
        Ok(())
    }

    fn string(&mut self) -> std::result::Result<(), Wrong> {
        self.expect(b'"', "expected a string")?;
        self.out.push(b'"');
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
            let plain = plain.ok_or_else(|| self.wrong("expected the end of a string"))?;
            self.out.extend_from_slice(rest.get(..plain).unwrap_or_default());
            self.at += plain;
            if self.takes(b'"') {
                self.out.push(b'"');
                return Ok(());
            }
            self.expect(b'\\', "a control character that is not escaped")?;
            let escaped = self.escaped()?;
            put_char(&mut self.out, escaped);
        }
    }

    /// What stands behind a backslash.
    fn escaped(&mut self) -> std::result::Result<char, Wrong> {
        let plain = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let first = self.unit()?;
                if let Some(plain) = char::from_u32(first) {
                    return Ok(plain);
                }
                // The first half of a pair: the other one has to follow.
                let half = "half of a surrogate pair";
                self.expect(b'\\', half)?;
                let second = if self.peek() == Some(b'u') { self.unit()? } else { 0 };
                return match (first, second) {
                    (0xD800..=0xDBFF, 0xDC00..=0xDFFF) => {
                        let both = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                        char::from_u32(both).ok_or_else(|| self.wrong(half))
                    }
                    _ => Err(self.wrong(half)),
                };
            }
            _ => return Err(self.wrong("no such escape")),
        };
        self.at += 1;
        Ok(plain)
    }

    /// Takes `u` and four hexadecimal digits.
    fn unit(&mut self) -> std::result::Result<u32, Wrong> {
        self.at += 1;
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or_else(|| self.wrong("expected a hexadecimal digit"))?;
            self.at += 1;
        }
        Ok(unit)
    }

    fn number(&mut self) -> std::result::Result<(), Wrong> {
        let begin = self.at;
        let is_negative = self.takes(b'-');
        let whole = self.digits()?;
        if whole.len() > 1 && whole.first() == Some(&b'0') {
            return Err(Wrong { at: begin, what: "a number that begins with a zero" });
        }
        let part = if self.takes(b'.') { self.digits()? } else { Vec::new() };
        let mut exponent = Some(0_i64);
        if self.takes(b'e') || self.takes(b'E') {
            let is_below = self.takes(b'-');
            if !is_below {
                self.takes(b'+');
            }
            let digits = self.digits()?;
            let digits = digits.iter().try_fold(0_i64, |sum, digit| {
                sum.checked_mul(10)?.checked_add(i64::from(digit - b'0'))
            });
            let digits = digits.filter(|digits| *digits <= 1_000_000_000_000_000_000);
            exponent = digits.map(|digits| if is_below { -digits } else { digits });
        }
        let wide = |len: usize| i64::try_from(len).unwrap_or(i64::MAX);
        let (whole_len, mut digits) = (wide(whole.len()), whole);
        digits.extend(part);
        // The value is 0.DIGITS times ten to the power of `point`.
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        digits.drain(..zeros);
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        if digits.is_empty() {
            self.out.push(b'0');
            return Ok(());
        }
        let point = exponent.and_then(|by| by.checked_add(whole_len)?.checked_sub(wide(zeros)));
        let point = point.ok_or(Wrong { at: begin, what: "an exponent out of range" })?;
        if is_negative {
            self.out.push(b'-');
        }
        put_number(&mut self.out, &digits, point);
        Ok(())
    }

    /// Takes digits, at least one.
    fn digits(&mut self) -> std::result::Result<Vec<u8>, Wrong> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if len == 0 {
            return Err(self.wrong("expected a digit"));
        }
        self.at += len;
        Ok(rest.get(..len).unwrap_or_default().to_vec())
    }
}

/// Writes 0.DIGITS times ten to the power of `point`, as ECMAScript lays a number out: the digits
/// neither begin nor end with a zero.
fn put_number(out: &mut Vec<u8>, digits: &[u8], point: i64) {
    let count = i64::try_from(digits.len()).unwrap_or(i64::MAX);
    let zeros = |n: i64| std::iter::repeat_n(b'0', usize::try_from(n).unwrap_or(0));
    let split = |at: i64| {
        let at = usize::try_from(at).unwrap_or(0);
        digits.split_at_checked(at).unwrap_or((digits, &[]))
    };
    if (count..=POINT_MAX).contains(&point) {
        out.extend_from_slice(digits);
        out.extend(zeros(point - count));
    } else if (1..=POINT_MAX).contains(&point) {
        let (whole, part) = split(point);
        out.extend_from_slice(whole);
        out.push(b'.');
        out.extend_from_slice(part);
    } else if (-ZEROS_MAX..=0).contains(&point) {
        out.extend_from_slice(b"0.");
        out.extend(zeros(-point));
        out.extend_from_slice(digits);
    } else {
        let (first, others) = split(1);
        out.extend_from_slice(first);
        if !others.is_empty() {
            out.push(b'.');
            out.extend_from_slice(others);
        }
        out.extend_from_slice(format!("e{:+}", point - 1).as_bytes());
    }
}

/// Writes a character of a string, escaped where it must be.
fn put_char(out: &mut Vec<u8>, c: char) {
    let short = match c {
        '"' | '\\' => Some(c),
        '\u{8}' => Some('b'),
        '\u{c}' => Some('f'),
        '\n' => Some('n'),
        '\r' => Some('r'),
        '\t' => Some('t'),
        _ => None,
    };
    let mut bytes = [0; 4];
    if let Some(short) = short {
        out.push(b'\\');
        out.extend_from_slice(short.encode_utf8(&mut bytes).as_bytes());
    } else if c < ' ' {
        out.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes());
    } else {
        out.extend_from_slice(c.encode_utf8(&mut bytes).as_bytes());
    }
}

/// The order of two strings, as they stand in the output, by their UTF-16 units.
fn by_units(a: &[u8], b: &[u8]) -> Ordering {
    units(a).cmp(units(b))
}

fn units(escaped: &[u8]) -> impl Iterator<Item = u16> {
    let text = std::str::from_utf8(escaped).unwrap_or_default();
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let mut chars = text.chars();
    let plain = std::iter::from_fn(move || {
        let c = chars.next()?;
        if c != '\\' {
            return Some(c);
        }
        Some(match chars.next()? {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let digits = chars.by_ref().take(4).filter_map(|c| c.to_digit(16));
                char::from_u32(digits.fold(0, |sum, digit| sum * 16 + digit))?
            }
            plain => plain,
        })
    });
    plain.flat_map(|c| {
        let mut units = [0; 2];
        let len = c.encode_utf16(&mut units).len();
        units.into_iter().take(len)
    })
}

#[cfg(test)]
mod tests;
