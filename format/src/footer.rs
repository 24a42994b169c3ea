//! SPEC 5.3.
pub struct FooterEntry { pub lsn: u64, pub offset: u64, pub time_ms: u64 }
pub struct Footer { pub offset: u64, pub last_lsn: u64, pub end: u64, pub durable_lsn: u64, pub record_count: u64,
  pub payload_bytes: u64, pub time_first_ms: u64, pub time_last_ms: u64, pub entries: Vec<FooterEntry> }
impl Footer {
  pub fn encode(&self, salt: u64) -> Vec<u8>;
  /// `bytes` is exactly the footer, that begins at `place.offset`.
  pub fn decode(bytes: &[u8], place: Place) -> Result<Footer, DecodeError>;
  /// From the last 16 bytes of a file: the length of a footer that may end there.
  pub fn len_from_tail(tail: &[u8]) -> Option<u32>;
}
