//! SPEC 13.1: a message is properties and a payload.
/// Borrowed view: `Message { properties: sorted (key, value bytes), payload }`; `MessageBuilder`/owned `Properties` (BTreeMap<String, Vec<u8>>).
/// keys of DESIGN 4 as constants: VERSION "_v", TYPE "_t", WRITER_TERM "_wt", TIME_TICK "_tt", LAST_CONFIRMED "_lc", VCHANNEL "_vc",
/// BROADCAST "_bh", IDEMPOTENCY "_ik", FINGERPRINT "_fp", TRACE "_tc", CHUNK_INDEX "_ci", CHUNK_TOTAL "_ct", SLICE "_tx".
/// Typed values with encode/decode each: TimeTick (46 bits ms + 18 logical in a u64), BroadcastHeader { id, vchannels, resources: Vec<Resource{domain,key,shared}>, ack: AckMode },
/// Scope (principal, message type, domain, identity, generation u64, client key) with an injective encoding, Fingerprint { version, fields: Vec<(name, [u8;32] digest)> }, SliceStamp { job, attempt, file, first_row, rows }.
