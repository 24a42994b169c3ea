//! The token of a request: as a bearer's, and for browsers as a password.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// The token of a request that carries one `Authorization`; where `takes_basic`, also the password
/// of HTTP Basic (RFC 7617), whatever the user's name.
pub(crate) fn token_of(headers: &HeaderMap, takes_basic: bool) -> Option<Vec<u8>> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, rest) =
        value.as_bytes().split_at_checked(value.as_bytes().iter().position(|b| *b == b' ')?)?;
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"Bearer") {
        return Some(rest.to_vec());
    }
    if !takes_basic || !scheme.eq_ignore_ascii_case(b"Basic") {
        return None;
    }
    let pair = base64(rest)?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    pair.get(colon.saturating_add(1)..).map(<[u8]>::to_vec)
}

/// The bytes behind base64 with padding; `None` where it is none.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len());
    let (mut bits, mut held) = (0_u32, 0_u32);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0x3FFF;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push(u8::try_from(bits >> held & 0xFF).ok()?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[&str], takes_basic: bool, expect: Option<&str>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        let found = token_of(&headers, takes_basic);
        assert_eq!(found.as_deref(), expect.map(str::as_bytes), "{values:?}");
    }

    #[test]
    fn a_token_is_a_bearers_or_a_password() {
        check(&["Bearer root:Milvus"], false, Some("root:Milvus"));
        check(&["bearer  x"], true, Some("x"));
        check(&["Basic dTpzZWNyZXQ="], true, Some("secret"));
        check(&["Basic Og=="], true, Some(""));
        check(&["basic dTphOmI="], true, Some("a:b"));
        check(&["Basic dTpzZWNyZXQ="], false, None);
        for wrong in ["", "x", "Bearer", "Basic", "Basic !", "Basic dTp", "Basic dQ==", "Digest x"]
        {
            check(&[wrong], true, None);
        }
        check(&[], true, None);
        check(&["Bearer a", "Bearer a"], true, None);
    }

    #[test]
    fn bytes_come_back_from_base64() {
        for (text, expect) in
            [("", &b""[..]), ("AA==", b"\0"), ("//79", b"\xff\xfe\xfd"), ("YWI=", b"ab")]
        {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(expect), "{text}");
        }
    }
}
