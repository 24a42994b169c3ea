//! Operations on a log with crashes and faults.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oncelog_fuzz::operations(data));
