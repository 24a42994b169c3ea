use std::path::Path;
use std::sync::Arc;

use oncelog_format::{Uuid, encode_frame};

use super::*;
use crate::io::mem::{Machine, MemIo};
use crate::io::{Io as _, OpenHow};

const SEGMENT: SegmentHeader = SegmentHeader {
    minor: 0,
    compat: 0,
    uuid: Uuid([1; 16]),
    number: 1,
    first_lsn: 10,
    salt: 0x0123_4567_89AB_CDEF,
    base_time_ms: 500,
};

/// A segment file in the making.
struct Forge {
    bytes: Vec<u8>,
    lsn: u64,
    time_ms: u64,
}

impl Forge {
    fn new() -> Self {
        Self { bytes: vec![0; 12_288], lsn: 10, time_ms: 500 }
    }

    fn frame(mut self, len: usize, durable: u64, batch_end: bool) -> Self {
        let offset = u64::try_from(self.bytes.len()).unwrap();
        let header = FrameHeader {
            lsn: self.lsn,
            len: u32::try_from(len).unwrap(),
            lag: FrameHeader::lag_of(self.lsn, durable),
            time_ms: self.time_ms,
            kind: 1,
            batch_end,
        };
        let place = Place { salt: SEGMENT.salt, offset };
        encode_frame(&header, place, &[&vec![7; len]], &mut self.bytes);
        self.lsn += 1;
        self
    }

    fn zeros(mut self, len: usize) -> Self {
        self.bytes.resize(self.bytes.len() + len, 0);
        self
    }

    fn file(&self) -> Arc<dyn IoFile> {
        let io = MemIo::new(Machine::new());
        let file = io.open(Path::new("/segment"), OpenHow::CreateNew).unwrap();
        file.write_all_at(&self.bytes, 0).unwrap();
        file
    }

    fn frames(&self) -> Frames {
        frames(&mut Window::new(&*self.file()).unwrap(), &SEGMENT, None).unwrap()
    }

    fn behind(&self, from: u64) -> Behind {
        behind(&mut Window::new(&*self.file()).unwrap(), &SEGMENT, from).unwrap()
    }
}

#[test]
fn frames_are_kept_up_to_the_end_of_the_last_whole_batch() {
    let forge = Forge::new().frame(3, 9, true).frame(0, 10, false).frame(9, 10, false).zeros(64);
    let found = forge.frames();
    assert_eq!((found.last, found.end, found.valid_end), (10, 12_328, 12_328 + 32 + 48));
    assert_eq!(found.stated, 10, "the cut frames are witnesses too");
    assert_eq!((found.tally.records(), found.tally.payload_bytes), (1, 3));
    assert_eq!(found.tally.entries.len(), 1);
}

#[test]
fn a_scan_ends_below_the_successors_first_record() {
    let forge = Forge::new().frame(3, 9, true).frame(3, 9, true);
    let file = forge.file();
    let mut window = Window::new(&*file).unwrap();
    let found = frames(&mut window, &SEGMENT, Some(11)).unwrap();
    assert_eq!((found.last, found.invalid), (10, None));
}

#[test]
fn time_may_stand_still_and_not_step_back() {
    let mut forge = Forge::new().frame(3, 9, true).frame(3, 9, true);
    forge.time_ms = 499;
    let found = forge.frame(3, 9, true).frames();
    assert_eq!(found.last, 11);
    assert_eq!(found.invalid, Some(Invalid::Time { before: 500, found: 499 }));
}

#[test]
fn a_record_longer_than_the_window_is_read_whole() {
    let found = Forge::new().frame(3 << 20, 9, true).frame(5, 10, true).frames();
    assert_eq!((found.last, found.tally.records()), (11, 2));
    assert_eq!(found.tally.entries.len(), 2, "a stride apart");
}

#[test]
fn a_header_is_a_witness_wherever_it_stands() {
    for gap in [8, 4056, 4064, 4072, 4080, 4088, 4096, (1 << 20) - 16, (1 << 20) + 8] {
        let mut forge = Forge::new();
        // The LSN must have room before it: every record takes 32 bytes at least.
        let frames = u64::try_from(gap / 32).unwrap();
        forge = forge.zeros(gap);
        forge.lsn = 10 + frames;
        let mut forge = forge.frame(40, 9, true).zeros(5000);
        let at = 12_288 + gap;
        forge.bytes[at + 50] ^= 1;
        let found = forge.behind(12_288);
        assert_eq!(found.stated, 9, "gap {gap}");
        assert_eq!(found.used, u64::try_from(at + 72).unwrap());
    }
}

#[test]
fn an_lsn_that_cannot_stand_there_is_no_witness() {
    let mut forge = Forge::new().zeros(64);
    forge.lsn = 13;
    assert_eq!(forge.frame(40, 9, true).behind(12_288).stated, 0);
    let mut forge = Forge::new().zeros(64);
    forge.lsn = 9;
    assert_eq!(forge.frame(40, 8, true).behind(12_288).stated, 0);
}

#[test]
fn zeros_are_nothing() {
    let found = Forge::new().zeros(3 << 20).behind(12_288);
    assert_eq!((found.used, found.stated), (12_288, 0));
}
