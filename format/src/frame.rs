//! SPEC 6 to 8: frames.

/// Where a frame stands: both bind its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place { pub salt: u64, pub offset: u64 }

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub lsn: u64,
    pub len: u32,
    /// Durable LSN when the frame was encoded; `None` states nothing.
    pub lag: Option<u32>,
    pub time_ms: u64,
    pub kind: u8,
    pub batch_end: bool,
}
impl FrameHeader {
    pub const LEN: usize = 32;
    /// Bytes of the whole frame with its padding.
    pub fn frame_len(&self) -> u64;
    pub fn durable_lsn(&self) -> Option<u64>; // lsn - lag
    /// Checks `check` and every condition that needs no payload and no neighbour (SPEC 6 "valid frame header"),
    /// `room` = bytes from the frame's begin to the physical end.
    pub fn decode(bytes: &[u8], place: Place, room: u64) -> Result<Self, DecodeError>;
}
/// Appends one whole frame (header, payload, padding) to `out`; the payload may come in parts.
pub fn encode_frame(header: &FrameHeader, place: Place, payload: &[&[u8]], out: &mut Vec<u8>);
/// A whole valid frame at the start of `bytes`: header, payload; checks CRC and padding.
pub fn decode_frame<'a>(bytes: &'a [u8], place: Place) -> Result<(FrameHeader, &'a [u8]), DecodeError>;
pub fn frame_len(payload_len: u32) -> u64;
pub fn seed(place: Place) -> u32;
pub fn seeded_crc(place: Place, bytes: &[u8]) -> u32;
