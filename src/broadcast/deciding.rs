//! The lock of who decides, taken when control has room for what is decided.
//!
//! Records are handed over under the lock, and where control has to write or to roll first, that
//! takes syncs. Whoever decides anything waits for them before, so that nobody who only looks waits
//! for a disk. Only the policy of an open is decided without: nobody has the broadcaster yet.
//!
//! These wait under the lock all the same: whoever found the room taken [`ROOM_TRIES`] times, whose
//! records are larger than he said, or who ends work where there is no space for another segment
//! and takes the reserve.

use super::core::{Core, Guard, Inner};

/// More than the records of one decision add to what they carry, in bytes, where names have usual
/// lengths.
pub(crate) const DECISION_LEN: usize = 4 << 10;

/// How often room that others took meanwhile is made again without the lock.
const ROOM_TRIES: usize = 8;

impl Inner {
    /// Locks for a decision that ends work, whose records come to about so many bytes. More are
    /// handed over all the same, with a wait under the lock.
    pub(crate) fn lock_to_decide(&self, bytes: usize) -> Guard<'_> {
        self.lock_with_room(bytes, |_| None)
    }

    /// The same for one that takes work in: it starts no segment where a reserve has to be made
    /// first.
    pub(crate) fn lock_to_take_in(&self, bytes: usize) -> Guard<'_> {
        // What it carries stands in the next checkpoint, too.
        let carried = u64::try_from(bytes.saturating_sub(DECISION_LEN)).unwrap_or(u64::MAX);
        self.lock_with_room(bytes, |core| Some(core.promised_bytes(carried)))
    }

    fn lock_with_room(&self, bytes: usize, new: impl Fn(&Core) -> Option<u64>) -> Guard<'_> {
        let (control, bytes) = (self.store.control(), u64::try_from(bytes).unwrap_or(u64::MAX));
        for _ in 0..ROOM_TRIES {
            let core = self.lock();
            // Control is handed records under this lock alone: room stays.
            if control.has_room(bytes) {
                return core;
            }
            let promised = new(&core);
            drop(core);
            // Who decides meets the failure again, and says what it means.
            if control.make_room(bytes, promised).is_err() {
                break;
            }
        }
        self.lock()
    }
}
