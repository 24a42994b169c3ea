//! The bytes of an oncelog, as SPEC.md states them: a pure codec.
//!
//! Every structure that reaches a disk or a channel is encoded and decoded here: segment headers,
//! slots and footers ([`segment`], [`footer`]), the lock file ([`lock`]), cursors ([`cursor`]),
//! frames ([`frame`]), messages with their typed properties ([`message`]) and control records
//! ([`control`]).
//!
//! # What it promises
//!
//! - No input panics: bytes from outside lead to a value or to a [`DecodeError`], which says where
//!   and why.
//! - No input allocates more than a constant factor of its own length: every length is compared
//!   with its limit and with the bytes that are left before it is used.
//! - What decodes encodes to the same bytes again.
//!
//! # What it does not do
//!
//! It does no I/O and reads no clock. It never decides whether bytes are torn or corrupt: only
//! recovery can, because only it knows where they stand.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
#![deny(clippy::as_conversions, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![expect(
    clippy::exhaustive_structs,
    reason = "the structs are the fields of SPEC.md, built and taken apart by the caller"
)]

pub mod control;
pub mod cursor;
pub mod error;
pub mod footer;
pub mod frame;
pub mod limits;
pub mod lock;
pub mod message;
#[cfg(planted)]
pub mod planted;
pub mod segment;
pub mod wire;

pub use crate::cursor::{CURSOR_LEN, CURSORS_LEN, CursorCopy};
pub use crate::error::{DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind};
pub use crate::footer::{Footer, FooterEntry};
pub use crate::frame::{FrameHeader, Place, decode_frame, decode_payload, encode_frame, frame_len};
pub use crate::lock::{Owner, decode_lock, encode_lock};
pub use crate::message::{Message, Properties, Property};
pub use crate::segment::{SegmentHeader, Slot, Uuid, parse_segment_name, segment_name};
