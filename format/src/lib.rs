//! The bytes of an oncelog (SPEC.md): a pure codec.
pub mod control;
pub mod error;
pub mod footer;
pub mod frame;
pub mod limits;
pub mod lock;
pub mod message;
pub mod segment;
