//! The library beside the reference reader.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oncelog_fuzz::against_reference(data));
