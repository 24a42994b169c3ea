//! SPEC 4: what the file `LOCK` holds.
//!
//! The lock itself is a `flock` on the file, which is not this crate's matter.

use crate::error::{DecodeError, DecodeErrorKind};
use crate::segment::Uuid;
use crate::wire::{self, Reader};

/// Size of the file in bytes.
pub const LOCK_LEN: usize = 512;

/// Bytes at its begin that hold the identity.
pub const LOCK_CONTENT_LEN: usize = 32;

/// What a `LOCK` begins with while a backup into its directory is unfinished: like any other content
/// that is no identity, it is damage to whoever opens a log there.
pub const LOCK_UNFINISHED: [u8; LOCK_CONTENT_LEN] = *b"oncelog: a backup is unfinished\n";

const MAGIC_LOG: [u8; 8] = *b"oncelock";
const MAGIC_STORE: [u8; 8] = *b"oncestor";
const CRC_AT: usize = 28;

/// What the directory of a `LOCK` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Owner {
    /// A log.
    Log,
    /// A store: a control log and the logs of its channels.
    Store,
}

/// The first 32 bytes of a `LOCK` that states an identity.
#[must_use]
pub fn encode_lock(owner: Owner, uuid: Uuid) -> [u8; LOCK_CONTENT_LEN] {
    let magic = match owner {
        Owner::Log => MAGIC_LOG,
        Owner::Store => MAGIC_STORE,
    };
    let mut out = Vec::with_capacity(LOCK_CONTENT_LEN);
    out.extend_from_slice(&magic);
    out.extend_from_slice(&uuid.0);
    wire::put_u32(&mut out, 0);
    let crc = wire::crc(&out);
    wire::put_u32(&mut out, crc);
    let mut content = [0; LOCK_CONTENT_LEN];
    content.copy_from_slice(&out);
    content
}

/// The identity in a `LOCK`, from its first bytes; what stands after the first 32 is ignored.
///
/// `None` where it states none yet: fewer than 32 bytes, or 32 zeros.
///
/// # Errors
///
/// `Magic`, `Checksum` or `Field` for any other content: the file is damaged.
pub fn decode_lock(bytes: &[u8]) -> Result<Option<(Owner, Uuid)>, DecodeError> {
    let Some(content) = bytes.first_chunk::<LOCK_CONTENT_LEN>() else { return Ok(None) };
    if *content == [0; LOCK_CONTENT_LEN] {
        return Ok(None);
    }
    let mut reader = Reader::new(content);
    let owner = match reader.array()? {
        MAGIC_LOG => Owner::Log,
        MAGIC_STORE => Owner::Store,
        _ => return Err(DecodeError::new(0, DecodeErrorKind::Magic)),
    };
    let uuid = Uuid(reader.array()?);
    let reserved_at = reader.at();
    let reserved = reader.u32()?;
    wire::check_crc(&mut reader, content.get(..CRC_AT).unwrap_or_default())?;
    if uuid.is_zero() {
        return Err(DecodeError::field(8, "uuid", 0));
    }
    if reserved != 0 {
        return Err(DecodeError::field(reserved_at, "reserved", u64::from(reserved)));
    }
    Ok(Some((owner, uuid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_comes_back() {
        for owner in [Owner::Log, Owner::Store] {
            let uuid = Uuid([7; 16]);
            let mut file = [0; LOCK_LEN];
            file[..LOCK_CONTENT_LEN].copy_from_slice(&encode_lock(owner, uuid));
            assert_eq!(decode_lock(&file), Ok(Some((owner, uuid))));
        }
    }

    #[test]
    fn zeros_and_short_files_state_nothing() {
        assert_eq!(decode_lock(&[]), Ok(None));
        assert_eq!(decode_lock(b"pid 4711"), Ok(None));
        assert_eq!(decode_lock(&[0; LOCK_LEN]), Ok(None));
    }

    #[test]
    fn any_other_content_is_damage() {
        let mut content = encode_lock(Owner::Log, Uuid([7; 16]));
        content[9] ^= 1;
        let error = decode_lock(&content).unwrap_err();
        assert_eq!(error.at, CRC_AT);
        assert!(matches!(error.kind, DecodeErrorKind::Checksum { .. }));
        let error = decode_lock(&LOCK_UNFINISHED).unwrap_err();
        assert_eq!(error, DecodeError::new(0, DecodeErrorKind::Magic));
        let error = decode_lock(&encode_lock(Owner::Log, Uuid([0; 16]))).unwrap_err();
        assert_eq!(error, DecodeError::field(8, "uuid", 0));
    }
}
