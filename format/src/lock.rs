//! SPEC 4: content of LOCK.
pub enum Owner { Log, Store }
pub const LOCK_LEN: usize = 512; pub const LOCK_CONTENT_LEN: usize = 32;
pub fn encode_lock(owner: Owner, uuid: Uuid) -> [u8; 32];
/// None: zeros or short.
pub fn decode_lock(bytes: &[u8]) -> Result<Option<(Owner, Uuid)>, DecodeError>;
