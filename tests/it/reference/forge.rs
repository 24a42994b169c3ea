//! A writer of single segments, byte by byte from SPEC 5 and 6, for logs that no writer leaves.
//!
//! It knows no order of writes and no sync; it puts bytes where it is told.

use super::bytes::{crc, header_check, seeded_crc};
use super::wide;

/// The identity that forged logs carry.
pub(crate) const UUID: [u8; 16] = *b"forged identity!";

/// `LOCK` with an identity.
pub(crate) fn lock_with(uuid: [u8; 16]) -> Vec<u8> {
    let mut bytes = b"oncelock".to_vec();
    bytes.extend(uuid);
    bytes.extend([0; 4]);
    bytes.extend(crc(0, &bytes).to_le_bytes());
    bytes.resize(512, 0);
    bytes
}

/// A segment in the making.
#[derive(Clone, Debug)]
pub(crate) struct Forge {
    pub(crate) number: u64,
    pub(crate) first_lsn: u64,
    pub(crate) salt: u64,
    pub(crate) header: Vec<u8>,
    pub(crate) file: Vec<u8>,
    next_lsn: u64,
    time: u64,
    payload_bytes: u64,
    ends_batch: bool,
    entries: Vec<(u64, u64, u64)>,
}

impl Forge {
    /// A segment with its header and first slot.
    pub(crate) fn new(number: u64, first_lsn: u64, base_time: u64, oldest_lsn: u64) -> Self {
        let salt = number.wrapping_mul(0x1_0001).wrapping_add(0x5EED_0000_0000_0000);
        Self::make([number, first_lsn, salt, base_time], oldest_lsn)
    }

    /// A segment of a log without a trim, with a salt of its own.
    pub(crate) fn with_salt(number: u64, first_lsn: u64, base_time: u64, salt: u64) -> Self {
        Self::make([number, first_lsn, salt, base_time], 1)
    }

    fn make(words: [u64; 4], oldest_lsn: u64) -> Self {
        let [number, first_lsn, salt, base_time] = words;
        let mut header = b"oncelog\n".to_vec();
        header.extend([1, 0, 0, 0]);
        header.extend([0; 12]);
        header.extend(UUID);
        for word in words {
            header.extend(word.to_le_bytes());
        }
        header.extend([0; 4]);
        header.extend(crc(0, &header).to_le_bytes());
        let mut file = header.clone();
        file.resize(12_288, 0);
        let mut forge = Self {
            number,
            first_lsn,
            salt,
            header,
            file,
            next_lsn: first_lsn,
            time: base_time,
            payload_bytes: 0,
            ends_batch: true,
            entries: Vec::new(),
        };
        forge.slot(1, first_lsn - 1, 12_288, oldest_lsn);
        forge
    }

    /// The name of its file.
    pub(crate) fn name(&self) -> String {
        format!("{:010}-{:020}.seg", self.number, self.first_lsn)
    }

    /// Name and bytes.
    pub(crate) fn done(self) -> (String, Vec<u8>) {
        (self.name(), self.file)
    }

    /// Writes a slot in the place that its counter gives it.
    pub(crate) fn slot(&mut self, counter: u64, durable_lsn: u64, offset: u64, oldest_lsn: u64) {
        let (index, at) = if counter.is_multiple_of(2) { (0_u32, 4096) } else { (1, 8192) };
        let mut slot = b"onceslot".to_vec();
        for word in [counter, durable_lsn, offset, oldest_lsn] {
            slot.extend(word.to_le_bytes());
        }
        slot.extend(&self.header);
        slot.extend(index.to_le_bytes());
        slot.extend(crc(0, &slot).to_le_bytes());
        self.put(at, &slot);
    }

    /// The LSN that the next frame gets, and the time of the one before.
    pub(crate) fn next(&self) -> (u64, u64) {
        (self.next_lsn, self.time)
    }

    /// Overwrites bytes.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        for (to, &from) in self.file.iter_mut().skip(at).zip(bytes) {
            *to = from;
        }
    }

    /// Inverts one bit.
    pub(crate) fn flip(&mut self, at: usize) {
        if let Some(byte) = self.file.get_mut(at) {
            *byte ^= 1;
        }
    }

    /// Appends a batch of records, one for each payload, all with this lag.
    pub(crate) fn batch(&mut self, lags: u32, payloads: &[&[u8]]) {
        for (index, payload) in payloads.iter().enumerate() {
            self.frame(lags, payload, index + 1 == payloads.len());
        }
    }

    /// Appends one frame.
    pub(crate) fn frame(&mut self, lag: u32, payload: &[u8], ends_batch: bool) {
        if self.ends_batch {
            self.note_entry();
        }
        self.ends_batch = ends_batch;
        let offset = self.file.len();
        self.time += 1;
        let frame = self.encode(offset, self.next_lsn, lag, payload, ends_batch);
        self.file.extend(frame);
        self.next_lsn += 1;
        self.payload_bytes += wide(payload.len());
    }

    /// The bytes of a frame that is valid at `offset` of this segment.
    pub(crate) fn encode(
        &self,
        offset: usize,
        lsn: u64,
        lag: u32,
        payload: &[u8],
        ends_batch: bool,
    ) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let third = self.time | (1 << 48) | (u64::from(ends_batch) << 56);
        let words = [lsn, u64::from(length) | (u64::from(lag) << 32), third];
        let mut covered = header_check(self.salt, offset, words).to_le_bytes().to_vec();
        for word in words {
            covered.extend(word.to_le_bytes());
        }
        covered.extend(payload);
        let mut frame = seeded_crc(self.salt, offset, &covered).to_le_bytes().to_vec();
        frame.extend(covered);
        frame.resize(frame.len().next_multiple_of(8), 0);
        frame
    }

    fn note_entry(&mut self) {
        let offset = wide(self.file.len());
        if self.entries.last().is_none_or(|(_, last, _)| offset >= last + 65_536) {
            self.entries.push((self.next_lsn, offset, self.time + 1));
        }
    }

    /// Appends the footer that states what was appended, as if it had ended `dead` bytes ago.
    pub(crate) fn footer(&mut self, dead: usize) {
        let offset = self.file.len();
        let count = self.next_lsn - self.first_lsn;
        let time_first = self.entries.first().map_or(0, |(_, _, time)| *time);
        let mut footer = b"oncefoot".to_vec();
        for word in [
            wide(offset),
            self.next_lsn - 1,
            wide(offset - dead),
            self.next_lsn - 1,
            count,
            self.payload_bytes,
            time_first,
            self.time,
        ] {
            footer.extend(word.to_le_bytes());
        }
        let entry_count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        footer.extend(entry_count.to_le_bytes());
        footer.extend([0; 4]);
        for (lsn, at, time) in &self.entries {
            for word in [lsn, at, time] {
                footer.extend(word.to_le_bytes());
            }
        }
        footer.extend((96 + 24 * entry_count).to_le_bytes());
        footer.extend(seeded_crc(self.salt, offset, &footer).to_le_bytes());
        footer.extend(b"toofecno");
        self.file.extend(footer);
    }

    /// Appends zeros, as a prepared file has them.
    pub(crate) fn fill(&mut self) {
        self.file.resize(self.file.len().next_multiple_of(4096), 0);
    }
}
