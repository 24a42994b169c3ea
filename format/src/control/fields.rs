//! Fields that control records share, on top of `wire`.

use crate::error::{DecodeError, EncodeError};
use crate::limits::{RECORD_LEN_MAX, TEXT_LEN_MAX, VCHANNEL_COUNT_MAX};
use crate::wire::{Reader, put_bytes, put_count, put_text};

/// What encoding a field comes to.
pub(super) type Put = Result<(), EncodeError>;

/// An integer that must not be zero.
pub(super) fn nonzero(r: &mut Reader<'_>, name: &'static str) -> Result<u64, DecodeError> {
    let at = r.at();
    match r.u64()? {
        0 => Err(DecodeError::field(at, name, 0)),
        value => Ok(value),
    }
}

/// A byte that `known` maps to a value.
pub(super) fn choice<T>(
    r: &mut Reader<'_>,
    name: &'static str,
    known: impl FnOnce(u8) -> Option<T>,
) -> Result<T, DecodeError> {
    let at = r.at();
    let found = r.u8()?;
    known(found).ok_or_else(|| DecodeError::field(at, name, u64::from(found)))
}

/// Text of a name, a key, a path or a reason.
pub(super) fn text(r: &mut Reader<'_>, name: &'static str) -> Result<String, DecodeError> {
    r.text(name, TEXT_LEN_MAX).map(str::to_owned)
}

/// Text whose emptiness is absence.
pub(super) fn text_or_none(
    r: &mut Reader<'_>,
    name: &'static str,
) -> Result<Option<String>, DecodeError> {
    Ok(Some(text(r, name)?).filter(|text| !text.is_empty()))
}

/// Opaque bytes.
pub(super) fn blob(r: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    r.bytes(RECORD_LEN_MAX).map(<[u8]>::to_vec)
}

/// Names of vchannels.
pub(super) fn vchannels(r: &mut Reader<'_>) -> Result<Vec<String>, DecodeError> {
    r.list(VCHANNEL_COUNT_MAX, 4, |r| text(r, "vchannel"))
}

/// Appends text.
pub(super) fn put_name(out: &mut Vec<u8>, name: &'static str, value: &str) -> Put {
    put_text(out, name, value, TEXT_LEN_MAX)
}

/// Appends opaque bytes.
pub(super) fn put_blob(out: &mut Vec<u8>, name: &'static str, value: &[u8]) -> Put {
    put_bytes(out, name, value, RECORD_LEN_MAX)
}

/// Appends a list after its count.
pub(super) fn put_list<T>(
    out: &mut Vec<u8>,
    name: &'static str,
    max: u32,
    items: &[T],
    mut each: impl FnMut(&mut Vec<u8>, &T) -> Put,
) -> Put {
    put_count(out, name, items.len(), max)?;
    items.iter().try_for_each(|item| each(out, item))
}

/// Appends names of vchannels.
pub(super) fn put_vchannels(out: &mut Vec<u8>, names: &[String]) -> Put {
    put_list(out, "vchannels", VCHANNEL_COUNT_MAX, names, |out, v| put_name(out, "vchannel", v))
}
