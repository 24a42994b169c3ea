//! The files of a log, as a reader and a writer find them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oncelog_fuzz::open_directory(data));
