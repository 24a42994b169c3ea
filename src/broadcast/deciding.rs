//! The lock of who decides, taken when control has room for what is decided.
//!
//! Records are handed over under the lock, and where control has to write or to roll first, that takes
//! syncs. Whoever accepts, ends, acknowledges or sweeps waits for them before, so that nobody who only
//! looks waits for a disk. What happens once for a job, a policy or a collection decides without.

use super::core::{Guard, Inner};

/// More than the records of one decision add to what they carry, in bytes, where names have usual
/// lengths.
pub(crate) const DECISION_LEN: usize = 4 << 10;

/// How often room that others took meanwhile is made again without the lock.
const ROOM_TRIES: usize = 8;

impl Inner {
    /// Locks for a decision whose records come to about so many bytes. More are handed over all the
    /// same, with a wait under the lock, and so is what ends work on a full disk.
    pub(crate) fn lock_to_decide(&self, bytes: usize) -> Guard<'_> {
        let (control, bytes) = (self.store.control(), u64::try_from(bytes).unwrap_or(u64::MAX));
        for _ in 0..ROOM_TRIES {
            let core = self.lock();
            // Control is handed records under this lock alone: room stays.
            if control.has_room(bytes) {
                return core;
            }
            drop(core);
            // Who decides meets the failure again, and says what it means.
            if control.make_room(bytes).is_err() {
                break;
            }
        }
        self.lock()
    }
}
