//! Damage to valid bytes: every cut, every flipped bit, every byte replaced. Nothing panics, and
//! nothing that a checksum covers is accepted.

#![cfg(test)]

#[expect(dead_code, reason = "damage needs the bytes, not what they are annotated with")]
mod vector;

use oncelog_format::control::ControlRecord;
use oncelog_format::{FrameHeader, Message, Place, Properties, decode_frame, encode_frame};

use vector::What;

/// Miri is a thousand times slower: it meets one bit of this many.
const STEP: usize = if cfg!(miri) { 997 } else { 1 };

/// Whether SPEC.md protects all bytes of the structure by checksums of its own.
fn is_sealed(what: What) -> bool {
    !matches!(what, What::Message | What::Control | What::FrameHeader(..))
}

#[test]
fn no_cut_of_a_sealed_structure_is_accepted() {
    for vector in vector::valid().iter().filter(|vector| is_sealed(vector.what)) {
        for len in (0..vector.bytes.len()).step_by(STEP) {
            let found = vector::decode(vector.what, &vector.bytes[..len]);
            // A short LOCK states no identity, which is not an error.
            let is_lock = matches!(vector.what, What::Lock);
            assert_eq!(found.is_ok(), is_lock, "{} cut to {len}", vector.name);
        }
    }
}

#[test]
fn no_flipped_bit_of_a_sealed_structure_is_accepted() {
    for vector in vector::valid().iter().filter(|vector| is_sealed(vector.what)) {
        let mut bytes = vector.bytes.clone();
        for bit in (0..bytes.len() * 8).step_by(STEP) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = vector::decode(vector.what, &bytes);
            assert!(found.is_err(), "{} with bit {bit} flipped", vector.name);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn no_two_flipped_bits_of_a_frame_are_accepted() {
    for vector in vector::valid() {
        let What::Frame(place) = vector.what else { continue };
        let mut bytes = vector.bytes.clone();
        for first in (0..bytes.len() * 8).step_by(STEP) {
            bytes[first / 8] ^= 1 << (first % 8);
            for second in (0..first).step_by(STEP) {
                bytes[second / 8] ^= 1 << (second % 8);
                assert!(decode_frame(&bytes, place).is_err(), "{} {first} {second}", vector.name);
                bytes[second / 8] ^= 1 << (second % 8);
            }
            bytes[first / 8] ^= 1 << (first % 8);
        }
    }
}

#[test]
fn no_replaced_byte_or_zeroed_run_of_a_sealed_structure_is_accepted() {
    for vector in vector::valid().iter().filter(|vector| is_sealed(vector.what)) {
        for begin in (0..vector.bytes.len()).step_by(STEP) {
            for (len, byte) in [(1, 0), (1, 0xFF), (8, 0), (8, 0xFF), (512, 0)] {
                let mut bytes = vector.bytes.clone();
                let end = bytes.len().min(begin + len);
                bytes[begin..end].fill(byte);
                let same = bytes == vector.bytes;
                let may_be_zeros = matches!(vector.what, What::Lock | What::Cursor(..));
                let zeros = may_be_zeros && bytes.iter().all(|&b| b == 0);
                let found = vector::decode(vector.what, &bytes);
                assert_eq!(found.is_ok(), same || zeros, "{} at {begin}", vector.name);
            }
        }
    }
}

#[test]
fn a_frame_header_alone_is_protected_but_for_the_crc_of_its_payload() {
    for vector in vector::valid() {
        let What::FrameHeader(place, room) = vector.what else { continue };
        let mut bytes = vector.bytes.clone();
        for bit in (0..bytes.len() * 8).step_by(STEP) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = FrameHeader::decode(&bytes, place, room);
            assert_eq!(found.is_ok(), bit < 32, "{} with bit {bit} flipped", vector.name);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn a_damaged_message_never_panics_and_what_decodes_encodes_to_the_same_bytes() {
    for vector in vector::all().iter().filter(|v| matches!(v.what, What::Message)) {
        let check = |bytes: &[u8]| {
            if let Ok(message) = Message::decode(bytes) {
                let mut again = Vec::new();
                Properties::of(&message).encode(message.payload(), &mut again);
                assert_eq!(again, bytes, "{}", vector.name);
                // Typed values may be refused; they must not panic.
                assert_eq!(message.check_known(), message.check_known());
            }
        };
        let mut bytes = vector.bytes.clone();
        for bit in (0..bytes.len() * 8).step_by(STEP) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            check(&bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in (0..bytes.len()).step_by(STEP) {
            check(&bytes[..len]);
            check(&bytes[len..]);
        }
    }
}

#[test]
fn a_damaged_control_record_never_panics_and_what_decodes_has_an_encoding() {
    for vector in vector::all().iter().filter(|v| matches!(v.what, What::Control)) {
        let check = |bytes: &[u8]| {
            if let Ok(record) = ControlRecord::decode(bytes) {
                let again = record.encode().unwrap();
                assert_eq!(ControlRecord::decode(&again), Ok(record), "{}", vector.name);
            }
        };
        let mut bytes = vector.bytes.clone();
        for bit in (0..bytes.len() * 8).step_by(STEP) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            check(&bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        (0..bytes.len()).step_by(STEP).for_each(|len| check(&bytes[..len]));
    }
}

#[test]
fn the_frame_around_a_message_protects_it() {
    let place = Place { salt: 7, offset: 12_288 };
    for vector in vector::valid().iter().filter(|v| matches!(v.what, What::Message)) {
        let header = FrameHeader {
            lsn: 1,
            len: u32::try_from(vector.bytes.len()).unwrap(),
            lag: Some(1),
            time_ms: 0,
            kind: 2,
            batch_end: true,
        };
        let mut frame = Vec::new();
        encode_frame(&header, place, &[&vector.bytes], &mut frame);
        for bit in (0..frame.len() * 8).step_by(STEP) {
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_frame(&frame, place).is_err(), "{} {bit}", vector.name);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
