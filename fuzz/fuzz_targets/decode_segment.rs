//! A whole segment: header, slots, frames, footer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oncelog_fuzz::decode_segment(data));
