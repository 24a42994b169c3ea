//! The body of a request: read whole, within a limit and a time, and taken apart as JSON.

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use serde_json::{Map, Value};

use super::limits::Limits;
use super::refusal::{Refusal, Row};
use crate::broadcast::canonical_json;

/// Reads a body.
///
/// # Errors
///
/// For one that is larger than the limit, before any of it is read where its length is stated; for
/// one that does not come in time, or not whole.
pub(crate) async fn read(body: Incoming, limits: &Limits) -> Result<Bytes, Refusal> {
    let max = limits.body_bytes_max;
    let too_large = || Refusal::new(&Row::LIMIT, format!("a body: expected at most {max} bytes"));
    let stated = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if stated > max {
        return Err(too_large());
    }
    let read = tokio::time::timeout(limits.body_time_max, Limited::new(body, max).collect());
    match read.await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_cut_off)) => Err(Refusal::invalid("the body ends before its length")),
        Err(_elapsed) => Err(Refusal::new(&Row::TOO_SLOW, "")),
    }
}

/// The members of a JSON object.
#[derive(Debug)]
pub(crate) struct Members(Map<String, Value>);

impl Members {
    /// Those of a body, which is one object.
    ///
    /// # Errors
    ///
    /// For a body that is none, and for one in which a member stands twice: who looked at it on its
    /// way here may have believed the other one.
    pub(crate) fn of(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(members)) => match canonical_json(body) {
                Ok(_of_one_form) => Ok(Self(members)),
                Err(e) => Err(Refusal::invalid(format!("the body: {e}"))),
            },
            Ok(_) => Err(Refusal::invalid("expected a JSON object in the body")),
            Err(e) => Err(Refusal::invalid(format!(
                "the body is no JSON: line {}, column {}",
                e.line(),
                e.column()
            ))),
        }
    }

    /// Refuses every member but these.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), Refusal> {
        match self.0.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(_) => Err(Refusal::invalid(format!(
                "a member of the body is not known: expected {}",
                known.join(", ")
            ))),
        }
    }

    /// A member; null is absent.
    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A text; empty is absent.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(_) => Err(wrong(name, "a text")),
        }
    }

    /// A text that has to be there.
    pub(crate) fn needed(&self, name: &str) -> Result<&str, Refusal> {
        self.text(name)?.ok_or_else(|| wrong(name, "a text"))
    }

    /// A number that is not negative, also as a text.
    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let number = match self.value(name) {
            None => return Ok(None),
            Some(Value::String(text)) if text.is_empty() => return Ok(None),
            Some(Value::String(text)) => text.parse().ok(),
            Some(value) => value.as_u64(),
        };
        number.map(Some).ok_or_else(|| wrong(name, "a whole number"))
    }

    /// A list of texts.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(Vec::new()) };
        texts(value).ok_or_else(|| wrong(name, "a list of texts"))
    }

    /// A list of lists of texts.
    pub(crate) fn sets(&self, name: &str) -> Result<Vec<Vec<String>>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(Vec::new()) };
        let sets = value.as_array().and_then(|sets| sets.iter().map(texts).collect());
        sets.ok_or_else(|| wrong(name, "a list of lists of texts"))
    }

    /// The members of an object.
    pub(crate) fn members(&self, name: &str) -> Result<Self, Refusal> {
        match self.value(name) {
            None => Ok(Self(Map::new())),
            Some(Value::Object(members)) => Ok(Self(members.clone())),
            Some(_) => Err(wrong(name, "an object")),
        }
    }

    /// Every member whose name is a text.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

/// The refusal of a member that is not what it has to be.
pub(crate) fn wrong(name: &str, expected: &str) -> Refusal {
    Refusal::invalid(format!("`{name}`: expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_object_of_members_that_are_what_they_have_to_be() {
        for wrong in [
            &b""[..],
            b"{",
            b"[]",
            b"null",
            b"{}{}",
            b"\xff",
            b"{\"a\":1,}",
            b"{\"a\":1,\"a\":1}",
            b"{\"a\":1,\"\\u0061\":2}",
            b"{\"o\":[{\"a\":1,\"b\":2,\"a\":3}]}",
        ] {
            assert!(Members::of(wrong).is_err(), "{wrong:?}");
        }
        // Objects of their own may each have one.
        assert!(Members::of(br#"{"a":{"a":1},"b":[{"a":1},{"a":1}]}"#).is_ok());
        let deep = "[".repeat(100_000);
        assert!(Members::of(deep.as_bytes()).is_err());
        let text = br#"{"t":"x","e":"","n":7,"s":"8","l":["a"],"f":[["a"],["b","c"]],"z":null}"#;
        let members = Members::of(text).unwrap();
        assert_eq!(members.text("t").unwrap(), Some("x"));
        assert_eq!(members.text("e").unwrap(), None);
        assert_eq!(members.text("z").unwrap(), None);
        assert!(members.text("n").is_err() && members.needed("e").is_err());
        assert_eq!(members.count("n").unwrap(), Some(7));
        assert_eq!(members.count("s").unwrap(), Some(8));
        assert!(members.count("t").is_err() && members.count("l").is_err());
        assert_eq!(members.sets("f").unwrap().len(), 2);
        assert!(members.sets("l").is_err() && members.texts("f").is_err());
        assert!(members.only(&["t", "e", "n", "s", "l", "f", "z"]).is_ok());
        assert!(members.only(&["t"]).is_err());
    }
}
