//! SPEC 4 and 5.1, 5.2: names, header, slots.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]); // Display: hyphenated lower-case hex

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub minor: u16,
    pub compat: u32,
    pub uuid: Uuid,
    pub number: u64,
    pub first_lsn: u64,
    pub salt: u64,
    pub base_time_ms: u64,
}
impl SegmentHeader {
    pub const LEN: usize = 80;
    pub fn encode(&self) -> [u8; 80];
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError>;
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot { pub counter: u64, pub durable_lsn: u64, pub durable_offset: u64, pub oldest_lsn: u64, pub header: SegmentHeader }
impl Slot {
    pub const LEN: usize = 128;
    pub fn index(&self) -> u32; // counter mod 2
    pub fn offset_of(index: u32) -> u64; // 4096 or 8192
    pub fn encode(&self) -> [u8; 128];
    pub fn decode(bytes: &[u8], index: u32) -> Result<Self, DecodeError>;
}
pub fn segment_name(number: u64, first_lsn: u64) -> String;
pub fn parse_segment_name(name: &str) -> Option<(u64, u64)>; // only the canonical spelling
