//! The header `Idempotency-Key`, in both of its spellings.
//!
//! A value that begins with a double quote is one string of structured fields (RFC 8941), whose text
//! is the key; any other value is the key itself. So `"a"` and `a` are one key.

use hyper::HeaderMap;
use hyper::header::HeaderName;

use super::refusal::{Refusal, Row};
use crate::broadcast::check_client_key;

/// Name of the header.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The key of a request.
///
/// # Errors
///
/// For two headers, and for a value that is no key.
pub(crate) fn of(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let malformed = |what: &'static str| Refusal::new(&Row::MALFORMED_KEY, what);
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(malformed("expected one Idempotency-Key, found several"));
    }
    let bytes = value.as_bytes();
    let key = match bytes.strip_prefix(b"\"") {
        Some(rest) => unquoted(rest).ok_or_else(|| {
            malformed("an Idempotency-Key that begins with a double quote is one whole string")
        })?,
        None => bytes.to_vec(),
    };
    check_client_key(&key).map_err(|e| Refusal::new(&Row::MALFORMED_KEY, e.to_string()))?;
    String::from_utf8(key).map(Some).map_err(|_ascii| malformed("a key is printable ASCII"))
}

/// The text of a string behind its first quote; `None` where it does not end with the value.
fn unquoted(rest: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(rest.len());
    let mut bytes = rest.iter().copied();
    loop {
        match bytes.next()? {
            b'"' => return bytes.next().is_none().then_some(text),
            b'\\' => match bytes.next()? {
                escaped @ (b'"' | b'\\') => text.push(escaped),
                _ => return None,
            },
            byte => text.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(values: &[&[u8]]) -> Result<Option<String>, Refusal> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, value.to_vec().try_into().unwrap());
        }
        of(&headers)
    }

    #[track_caller]
    fn check(value: &str, expect: &str) {
        assert_eq!(key(&[value.as_bytes()]).unwrap().as_deref(), Some(expect));
    }

    #[test]
    fn both_spellings_are_one_key() {
        check("a", "a");
        check("\"a\"", "a");
        check("a\"b", "a\"b");
        check("\"a\\\"b\\\\c\"", "a\"b\\c");
        check("\"a b\"", "a b");
        check("a, b;c=d", "a, b;c=d");
        assert_eq!(key(&[]).unwrap(), None);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = [b'x'; 257];
        for value in [
            &b""[..],
            b"\"\"",
            b"\"",
            b"\"a",
            b"\"a\\",
            b"\"a\\n\"",
            b"\"a\";p=1",
            b"\"a\" ",
            b"\"a\", \"b\"",
            b"a\tb",
            b"caf\xe9",
            b"\"caf\xe9\"",
            &long,
        ] {
            let refused = key(&[value]).unwrap_err();
            assert_eq!(refused.row.status, 400, "{value:?}");
        }
        assert!(key(&[b"a", b"a"]).is_err());
    }
}
