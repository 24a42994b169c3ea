//! What makes a retry the same request: digests of the fields of its canonical form.
//!
//! A digest is keyed by the scope, so that equal values under different keys look different, and
//! covers the field's name. An empty value is an absent field.
//!
//! A canonical form has a version. A request is compared in the version that its key was accepted
//! in, whatever this one would state of a new one: [`Asked::differences`] is the one place.

use std::borrow::Cow;

use oncelog_format::message::{Fingerprint, FingerprintField, Resource, Scope};
use sha2::{Digest, Sha256};

use super::canonical_json::canonical_json;
use super::kind::PayloadForm;
use super::refusal;
use super::request::{Identity, Request};
use crate::error::{Error, ErrorKind, Result};

/// The canonical form whose payload is bytes.
const OF_BYTES: u32 = 1;

/// The one whose payload is the canonical form of JSON.
const OF_JSON: u32 = 2;

/// What a field is named that differs by the version alone, of one that nobody here can compute.
const VERSION_FIELD: &str = "version";

/// Room for the scope of most keys, so that none of them moves as it is encoded.
const KEY_LEN: usize = 256;

/// A request, and what makes another one the same.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) request: &'a Request,
    /// Its keys, sorted and unique.
    pub(crate) resources: Vec<Resource>,
    /// As it is stated where the request is accepted.
    pub(crate) print: Fingerprint,
    /// Its type answers a request that differs from the original as the original, and says so.
    pub(crate) warns: bool,
    /// Why its payload is none of its type.
    malformed: Option<String>,
}

/// A fingerprint that a request was accepted with, wherever it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stated<'a> {
    pub(crate) version: u32,
    pub(crate) fields: Fields<'a>,
}

/// Its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fields<'a> {
    Whole(&'a [FingerprintField]),
    /// Names and, one behind the other, their digests.
    Apart(&'a [String], &'a [[u8; 32]]),
}

impl<'a> Asked<'a> {
    pub(crate) fn new(
        request: &'a Request,
        resources: Vec<Resource>,
        form: PayloadForm,
    ) -> Result<Self> {
        let (version, payload, malformed) = match form {
            PayloadForm::Bytes => (OF_BYTES, Cow::Borrowed(&*request.payload), None),
            PayloadForm::Json => {
                let canonical = canonical_json(&request.payload);
                let malformed = canonical.as_ref().err().map(ToString::to_string);
                let version = match request.identity {
                    Identity::Whole => OF_JSON,
                    Identity::Fields(_) => OF_BYTES,
                };
                (version, of_json(canonical, request), malformed)
            }
        };
        let print = fingerprint(request, &resources, (version, &payload))?;
        Ok(Self { request, resources, print, warns: false, malformed })
    }

    /// Refuses a payload that is none of its type.
    pub(crate) fn check_payload(&self) -> Result<()> {
        match &self.malformed {
            None => Ok(()),
            Some(why) => Err(refusal::invalid(format!("the payload of a type of JSON is {why}"))),
        }
    }

    /// The names of the fields in which this request differs from the one that was accepted with a
    /// fingerprint, sorted; none where it is the same. This is where fingerprints are compared,
    /// whatever keeps the accepted one.
    pub(crate) fn differences(&self, stated: Stated<'_>) -> Result<Vec<String>> {
        let of = |version, payload: &[u8]| {
            fingerprint(self.request, &self.resources, (version, payload)).map(Cow::Owned)
        };
        let payload = &self.request.payload;
        let print = match stated.version {
            version if version == self.print.version => Cow::Borrowed(&self.print),
            OF_BYTES => of(OF_BYTES, payload)?,
            OF_JSON => of(OF_JSON, &of_json(canonical_json(payload), self.request))?,
            _ => return Ok(vec![VERSION_FIELD.to_owned()]),
        };
        let ours = print.fields.iter().map(|field| (field.name.as_str(), &field.digest));
        if stated.fields().eq(ours) {
            return Ok(Vec::new());
        }
        Ok(stated.whole().differing_fields(&print))
    }
}

impl<'a> Stated<'a> {
    fn fields(&self) -> impl Iterator<Item = (&'a str, &'a [u8; 32])> {
        let (whole, apart) = match self.fields {
            Fields::Whole(fields) => (Some(fields), None),
            Fields::Apart(names, digests) => (None, Some(names.iter().zip(digests))),
        };
        let whole = whole.into_iter().flatten().map(|field| (field.name.as_str(), &field.digest));
        whole.chain(apart.into_iter().flatten().map(|(name, digest)| (name.as_str(), digest)))
    }

    /// As it was stated.
    pub(crate) fn whole(&self) -> Fingerprint {
        let field = |(name, digest): (&str, &[u8; 32])| FingerprintField {
            name: name.to_owned(),
            digest: *digest,
        };
        Fingerprint { version: self.version, fields: self.fields().map(field).collect() }
    }
}

impl<'a> From<&'a Fingerprint> for Stated<'a> {
    fn from(print: &'a Fingerprint) -> Self {
        Self { version: print.version, fields: Fields::Whole(&print.fields) }
    }
}

/// The payload that stands for one of JSON. What is none is like no form of any: it is itself.
fn of_json(canonical: Result<Vec<u8>>, request: &Request) -> Cow<'_, [u8]> {
    canonical.map_or(Cow::Borrowed(&request.payload), Cow::Owned)
}

/// Digests what a request asks for, in a version of the canonical form, with its payload in that;
/// `resources` are its keys, sorted and unique.
fn fingerprint(
    request: &Request,
    resources: &[Resource],
    (version, payload): (u32, &[u8]),
) -> Result<Fingerprint> {
    let mut key = Vec::with_capacity(KEY_LEN);
    if let Some(scope) = &request.scope {
        encode_scope(scope, &mut key)?;
    }
    let mut fields = Vec::new();
    let keyed = keyed(version, &key);
    let mut field = |name: &str, value: &[u8]| {
        if !value.is_empty() {
            let digest = digest(keyed.clone(), name, value);
            fields.push(FingerprintField { name: name.to_owned(), digest });
        }
    };
    match &request.identity {
        Identity::Fields(named) => named.iter().for_each(|(name, value)| field(name, value)),
        Identity::Whole => {
            field("payload", payload);
            for (name, value) in &request.properties {
                field(&format!("property {name}"), value);
            }
            field("resources", &canonical_resources(resources));
            field("vchannels", &canonical_vchannels(&request.vchannels));
        }
    }
    fields.sort();
    Ok(Fingerprint { version, fields })
}

pub(crate) fn encode_scope(scope: &Scope, out: &mut Vec<u8>) -> Result<()> {
    scope.encode(out).map_err(|e| {
        Error::new(ErrorKind::InvalidInput, "the idempotency scope does not encode").with_source(e)
    })
}

/// What all digests under a key begin with.
fn keyed(version: u32, key: &[u8]) -> Sha256 {
    let mut hash = Sha256::new();
    // It separates these digests from any other use of the hash.
    let domain = format!("oncelog fingerprint {version}");
    [domain.as_bytes(), key].into_iter().for_each(|part| hash_part(&mut hash, part));
    hash
}

fn digest(mut hash: Sha256, name: &str, value: &[u8]) -> [u8; 32] {
    hash_part(&mut hash, name.as_bytes());
    hash.update(value);
    hash.finalize().into()
}

/// A length before every part: no two lists of parts are the same bytes.
fn hash_part(hash: &mut Sha256, part: &[u8]) {
    hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
    hash.update(part);
}

fn canonical_resources(resources: &[Resource]) -> Vec<u8> {
    let mut out = Vec::new();
    for resource in resources {
        put(&mut out, &resource.domain);
        put(&mut out, &resource.key);
        out.push(u8::from(resource.shared));
    }
    out
}

fn canonical_vchannels(vchannels: &[String]) -> Vec<u8> {
    let mut sorted: Vec<&String> = vchannels.iter().collect();
    sorted.sort();
    sorted.dedup();
    let mut out = Vec::with_capacity(sorted.iter().map(|name| name.len() + 8).sum());
    sorted.into_iter().for_each(|name| put(&mut out, name));
    out
}

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn request(key: &str) -> Request {
        let scope = Scope {
            principal: "default".into(),
            message_type: "Noop".into(),
            domain: "store".into(),
            identity: "0".into(),
            generation: 0,
            client_key: key.into(),
        };
        Request::new("Noop", Some(scope), vec!["a".into(), "b".into()], b"p".to_vec())
    }

    fn print(request: &Request, form: PayloadForm) -> Fingerprint {
        Asked::new(request, request.resources.clone(), form).unwrap().print
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Request), differs: &[&str]) {
        let (original, mut other) = (request("k"), request("k"));
        change(&mut other);
        for form in [PayloadForm::Bytes, PayloadForm::Json] {
            let asked = Asked::new(&other, other.resources.clone(), form).unwrap();
            let stated = print(&original, form);
            assert_eq!(asked.differences(Stated::from(&stated)).unwrap(), differs);
            let names: Vec<String> = stated.fields.iter().map(|f| f.name.clone()).collect();
            let digests: Vec<[u8; 32]> = stated.fields.iter().map(|f| f.digest).collect();
            let fields = Fields::Apart(&names, &digests);
            let apart = Stated { version: stated.version, fields };
            assert_eq!(asked.differences(apart).unwrap(), differs);
        }
    }

    #[test]
    fn a_request_differs_in_the_fields_that_were_changed() {
        check(|_| {}, &[]);
        check(|r| r.payload = b"q".to_vec(), &["payload"]);
        check(|r| r.vchannels.reverse(), &[]);
        check(|r| r.vchannels.push("c".into()), &["vchannels"]);
        check(|r| drop(r.properties.insert("x".into(), b"1".to_vec())), &["property x"]);
        check(|r| drop(r.properties.insert("x".into(), Vec::new())), &[]);
        check(|r| r.trace_context = Some("00-1".into()), &[]);
        let resource = Resource { domain: "d".into(), key: "k".into(), shared: true };
        check(|r| r.resources.push(resource), &["resources"]);
    }

    #[test]
    fn named_fields_replace_the_whole() {
        let fields = BTreeMap::from([("files".to_owned(), b"a.csv".to_vec())]);
        let one = request("k").identity(Identity::Fields(fields.clone()));
        let mut two = request("k").identity(Identity::Fields(fields));
        two.payload = b"other".to_vec();
        let of = |request: &Request| print(request, PayloadForm::Bytes);
        assert_eq!(of(&one), of(&two));
        assert_eq!(print(&one, PayloadForm::Json), of(&one));
        two.identity = Identity::Fields(BTreeMap::new());
        assert_eq!(of(&one).differing_fields(&of(&two)), ["files"]);
    }

    #[test]
    fn a_request_is_compared_in_the_version_that_its_key_was_accepted_in() {
        let (one, other) = (r#"{"a":1,"b":2}"#, r#"{ "b": 2.0, "a": 1 }"#);
        let of = |payload: &str| Request { payload: payload.into(), ..request("k") };
        let differs = |stated: (&str, PayloadForm), asked: (&str, PayloadForm)| {
            let (stated, asked) = ((of(stated.0), stated.1), (of(asked.0), asked.1));
            let stated = print(&stated.0, stated.1);
            let asked = Asked::new(&asked.0, Vec::new(), asked.1).unwrap();
            asked.differences(Stated::from(&stated)).unwrap()
        };
        let (bytes, json) = (PayloadForm::Bytes, PayloadForm::Json);
        let none: [&str; 0] = [];
        assert_eq!(differs((one, json), (other, json)), none);
        assert_eq!(differs((one, bytes), (other, bytes)), ["payload"]);
        // The type says so, or says so no longer, since another release.
        assert_eq!(differs((one, bytes), (one, json)), none);
        assert_eq!(differs((one, bytes), (other, json)), ["payload"]);
        assert_eq!(differs((one, json), (other, bytes)), none);
        assert_eq!(differs((one, json), ("p", bytes)), ["payload"]);
        assert_eq!(differs(("p", json), ("p", json)), none);
    }

    #[test]
    fn a_version_that_cannot_be_computed_is_the_field_that_differs() {
        let asked = request("k");
        let mut stated = print(&asked, PayloadForm::Bytes);
        stated.version = 3;
        let asked = Asked::new(&asked, Vec::new(), PayloadForm::Bytes).unwrap();
        assert_eq!(asked.differences(Stated::from(&stated)).unwrap(), ["version"]);
    }

    #[test]
    fn the_same_payload_under_another_key_has_another_digest() {
        let of = |key: &str| print(&request(key), PayloadForm::Bytes);
        assert_ne!(of("a"), of("b"));
    }

    #[test]
    fn digests_are_those_that_the_specification_states() {
        let spec = include_str!("../../SPEC.md");
        let asked = request("k");
        let mut json = request("k");
        json.payload = br#"{"b": 1.50, "a": [1e1]}"#.to_vec();
        let both = [print(&asked, PayloadForm::Bytes), print(&json, PayloadForm::Json)];
        for field in both.into_iter().flat_map(|print| print.fields) {
            let hex: String = field.digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let value = format!("`{}` is `{hex}`", field.name);
            assert!(spec.contains(&value), "SPEC 13.2 does not say that {value}");
        }
    }
}
