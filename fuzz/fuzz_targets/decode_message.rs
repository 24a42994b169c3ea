//! A message with all of its typed properties.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oncelog_fuzz::decode_message(data));
