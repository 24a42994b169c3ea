//! Under what a request is recognised, and what it asked for.

use super::Property;
use crate::error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};
use crate::limits::{
    CLIENT_KEY_LEN_MAX, FINGERPRINT_FIELD_COUNT_MAX, FINGERPRINT_NAME_LEN_MAX, SCOPE_TEXT_LEN_MAX,
    TYPE_NAME_LEN_MAX,
};
use crate::wire::{self, Reader};

/// Where an idempotency key is unique: two requests are the same one exactly if all six are equal.
///
/// Every part stands after its length, so different scopes have different bytes, whatever bytes
/// the client key holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// Who asks.
    pub principal: String,
    /// Type of the message.
    pub message_type: String,
    /// Kind of the object, such as `collection`.
    pub domain: String,
    /// What the object is: an id that a rename keeps and a recreation changes.
    pub identity: String,
    /// Generation of the object.
    pub generation: u64,
    /// The caller's key, at least one byte.
    pub client_key: Vec<u8>,
}

impl Scope {
    /// Appends the scope to `out`.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] for lengths over their limits and an empty client key.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.client_key.is_empty() {
            return Err(EncodeError::new("client key", EncodeErrorKind::Empty));
        }
        wire::put_text(out, "principal", &self.principal, SCOPE_TEXT_LEN_MAX)?;
        wire::put_text(out, "type", &self.message_type, TYPE_NAME_LEN_MAX)?;
        wire::put_text(out, "domain", &self.domain, SCOPE_TEXT_LEN_MAX)?;
        wire::put_text(out, "identity", &self.identity, SCOPE_TEXT_LEN_MAX)?;
        wire::put_u64(out, self.generation);
        wire::put_bytes(out, "client key", &self.client_key, CLIENT_KEY_LEN_MAX)
    }

    /// The scope that `reader` comes to.
    ///
    /// # Errors
    ///
    /// `Truncated`, `Limit`, `Text` and `Field`, for what [`Scope::encode`] refuses.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let principal = reader.text("principal", SCOPE_TEXT_LEN_MAX)?.to_owned();
        let message_type = reader.text("type", TYPE_NAME_LEN_MAX)?.to_owned();
        let domain = reader.text("domain", SCOPE_TEXT_LEN_MAX)?.to_owned();
        let identity = reader.text("identity", SCOPE_TEXT_LEN_MAX)?.to_owned();
        let generation = reader.u64()?;
        let at = reader.at();
        let client_key = reader.bytes(CLIENT_KEY_LEN_MAX)?.to_vec();
        if client_key.is_empty() {
            return Err(DecodeError::field(at, "client key", 0));
        }
        Ok(Self { principal, message_type, domain, identity, generation, client_key })
    }
}

impl Property for Scope {
    const KEY: &'static str = "_ik";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode(out)
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let scope = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(scope)
    }
}

/// One field of a canonical request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FingerprintField {
    /// Its name.
    pub name: String,
    /// Digest of its canonical value.
    pub digest: [u8; 32],
}

/// What a request asked for: a digest of each field of its canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Version of the canonical form and of the digest.
    pub version: u32,
    /// The fields; names sorted and unique.
    pub fields: Vec<FingerprintField>,
}

impl Fingerprint {
    /// Names of the fields in which `other` differs, sorted; those that only one of them has
    /// included.
    #[must_use]
    pub fn differing_fields(&self, other: &Self) -> Vec<String> {
        let missing_in = |a: &Self, b: &Self| -> Vec<String> {
            let lacks = |field: &&FingerprintField| !b.fields.contains(field);
            a.fields.iter().filter(lacks).map(|field| field.name.clone()).collect()
        };
        let mut names = missing_in(self, other);
        names.extend(missing_in(other, self));
        names.sort();
        names.dedup();
        names
    }

    /// Appends the fingerprint to `out`.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] for counts and lengths over their limits, and names that are not sorted
    /// and unique.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if !self.fields.is_sorted_by(|a, b| a.name < b.name) {
            return Err(EncodeError::new("fingerprint fields", EncodeErrorKind::Unordered));
        }
        wire::put_u32(out, self.version);
        let count = self.fields.len();
        wire::put_count(out, "fingerprint fields", count, FINGERPRINT_FIELD_COUNT_MAX)?;
        for field in &self.fields {
            wire::put_text(out, "field name", &field.name, FINGERPRINT_NAME_LEN_MAX)?;
            out.extend_from_slice(&field.digest);
        }
        Ok(())
    }

    /// The fingerprint that `reader` comes to.
    ///
    /// # Errors
    ///
    /// `Truncated`, `Limit` and `Text`, for what [`Fingerprint::encode`] refuses.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = reader.u32()?;
        let at = reader.at();
        let fields = reader.list(FINGERPRINT_FIELD_COUNT_MAX, 36, |reader| {
            Ok(FingerprintField {
                name: reader.text("field name", FINGERPRINT_NAME_LEN_MAX)?.to_owned(),
                digest: reader.array()?,
            })
        })?;
        if !fields.is_sorted_by(|a, b| a.name < b.name) {
            let kind = DecodeErrorKind::Text { name: "fingerprint fields" };
            return Err(DecodeError::new(at, kind));
        }
        Ok(Self { version, fields })
    }
}

impl Property for Fingerprint {
    const KEY: &'static str = "_fp";

    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode(out)
    }

    fn decode_value(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let fingerprint = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(fingerprint)
    }
}
