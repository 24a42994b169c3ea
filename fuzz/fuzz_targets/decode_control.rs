//! A control record of the broadcaster.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oncelog_fuzz::decode_control(data));
