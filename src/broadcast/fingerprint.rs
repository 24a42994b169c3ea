//! What makes a retry the same request: digests of the fields of its canonical form.
//!
//! A digest is keyed by the scope, so that equal values under different keys look different, and
//! covers the field's name. An empty value is an absent field.

use oncelog_format::message::{Fingerprint, FingerprintField, Resource, Scope};
use sha2::{Digest, Sha256};

use super::request::{Identity, Request};
use crate::error::{Error, ErrorKind, Result};

/// Version of the canonical form and of the digest.
const VERSION: u32 = 1;

/// Separates these digests from any other use of the hash.
const DOMAIN: &[u8] = b"oncelog fingerprint 1";

/// Room for the scope of most keys, so that none of them moves as it is encoded.
const KEY_LEN: usize = 256;

/// Digests what a request asks for; `resources` are its keys, sorted and unique.
pub(crate) fn fingerprint(request: &Request, resources: &[Resource]) -> Result<Fingerprint> {
    let mut key = Vec::with_capacity(KEY_LEN);
    if let Some(scope) = &request.scope {
        encode_scope(scope, &mut key)?;
    }
    let mut fields = Vec::new();
    let keyed = keyed(&key);
    let mut field = |name: &str, value: &[u8]| {
        if !value.is_empty() {
            let digest = digest(keyed.clone(), name, value);
            fields.push(FingerprintField { name: name.to_owned(), digest });
        }
    };
    match &request.identity {
        Identity::Fields(named) => named.iter().for_each(|(name, value)| field(name, value)),
        Identity::Whole => {
            field("payload", &request.payload);
            for (name, value) in &request.properties {
                field(&format!("property {name}"), value);
            }
            field("resources", &canonical_resources(resources));
            field("vchannels", &canonical_vchannels(&request.vchannels));
        }
    }
    fields.sort();
    Ok(Fingerprint { version: VERSION, fields })
}

pub(crate) fn encode_scope(scope: &Scope, out: &mut Vec<u8>) -> Result<()> {
    scope.encode(out).map_err(|e| {
        Error::new(ErrorKind::InvalidInput, "the idempotency scope does not encode").with_source(e)
    })
}

/// What all digests under a key begin with.
fn keyed(key: &[u8]) -> Sha256 {
    let mut hash = Sha256::new();
    [DOMAIN, key].into_iter().for_each(|part| hash_part(&mut hash, part));
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

    #[track_caller]
    fn check(change: impl FnOnce(&mut Request), differs: &[&str]) {
        let (original, mut other) = (request("k"), request("k"));
        change(&mut other);
        let of = |request: &Request| fingerprint(request, &request.resources).unwrap();
        assert_eq!(of(&original).differing_fields(&of(&other)), differs);
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
        let of = |request: &Request| fingerprint(request, &[]).unwrap();
        assert_eq!(of(&one), of(&two));
        two.identity = Identity::Fields(BTreeMap::new());
        assert_eq!(of(&one).differing_fields(&of(&two)), ["files"]);
    }

    #[test]
    fn the_same_payload_under_another_key_has_another_digest() {
        let of = |key: &str| fingerprint(&request(key), &[]).unwrap();
        assert_ne!(of("a"), of("b"));
    }

    #[test]
    fn digests_are_those_that_the_specification_states() {
        let spec = include_str!("../../SPEC.md");
        let asked = request("k");
        for field in fingerprint(&asked, &[]).unwrap().fields {
            let hex: String = field.digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let value = format!("`{}` is `{hex}`", field.name);
            assert!(spec.contains(&value), "SPEC 13.2 does not say that {value}");
        }
    }
}
