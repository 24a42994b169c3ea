//! Bugs to order, for tests of the tests: compiled only with `--cfg planted`.
//!
//! One bug is active at a time, in the whole process or on one thread. Where it acts, the code asks
//! [`is_active`].

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// A known mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Bug {
    /// None.
    None,
    /// A roll does not sync the directory.
    NoDirSync,
    /// A synced append returns after the write.
    AckBeforeSync,
    /// The first append after a torn end does not roll.
    AppendBehindTorn,
    /// Opening syncs unproven frames without writing them again.
    ReopenOnlySyncs,
    /// The successor is named before the old tail is synced.
    NamedBeforeSync,
    /// Frames of an unfinished batch are kept.
    HalfBatch,
    /// Zeros behind the last frame end the scan.
    ZerosNotScanned,
    /// A slot states what is written, not what is synced.
    SlotStatesWritten,
    /// No slot is written at close.
    NoCloseSlot,
    /// Segments are removed before the trim is durable.
    TrimUnlinksFirst,
    /// A failed sync is tried again and believed.
    SyncRetried,
    /// After a refusal for space in a group, its offset and LSNs are used again.
    OffsetReused,
    /// A cursor is acknowledged before its sync.
    CursorBeforeSync,
    /// A handle of a cursor that was removed is one of the next cursor of its name.
    CursorByName,
    /// Trims do not look for pins and cursors.
    PinIgnored,
    /// The time of a tombstone starts again when the store is opened.
    TombstoneReset,
    /// The fingerprint of a retry is not compared once the original is done.
    FingerprintFastPath,
    /// A scope is forgotten with an old owner although it has a newer one.
    ScopeWithoutOwner,
    /// A duplicate is answered when the copies stand.
    DuplicateBeforeCallback,
    /// A reservation conflicts as if it were an acceptance.
    ReservedIsAccepted,
    /// An acceptance conflicts once it was handed over, before it is durable.
    HandedIsAccepted,
    /// A refusal behind the locks does not release them.
    LockLeaked,
    /// After a restart copies are appended without looking for them.
    CopyWithoutScan,
    /// A copy that a scan found counts as a consumer's ack.
    FoundIsAcked,
    /// After a restart all chunks of a copy are appended, also those that stand.
    ChunkAppendedAgain,
    /// Eviction takes keys that were promised.
    EvictPromised,
    /// A wall clock far ahead is believed at once.
    JumpBelieved,
    /// An acceptance that failed half-way is answered as a refusal.
    UnknownIsRefusal,
    /// A refusal does not give up the reservation.
    ReservationLeaked,
    /// A parked task is skipped although copies are missing.
    SkipWithoutCopies,
    /// A collection is made although another call made it in a batch that is in flight.
    DecidedBesideBatch,
    /// A checkpoint is taken to cover every record before its end.
    CheckpointCoversItself,
    /// A slice that stands on one pchannel is taken to stand on all.
    StampWithoutVchannel,
    /// Rows are visible when the record of their job says so, whatever the channels say.
    VisibleByRecord,
    /// An import is taken with whatever scope, resources and payload it is asked with.
    ImportBesideCollection,
    /// A window is filled although frames have come there.
    FillerOvertakes,
    /// The filler syncs through the writers' description and keeps a failure to itself.
    SyncErrorTaken,
    /// Opening writes unproven frames again without dropping them from the cache.
    CacheKept,
    /// Opening takes the oldest LSN that one slot states for durable.
    TrimTakenAsFound,
    /// A slot is written while the other may be unsynced.
    SlotBesideUnsynced,
    /// The slot that an open found is taken for what is on the disk.
    FoundSlotTaken,
    /// The slot that an open found is written again without dropping it from the cache.
    FoundSlotCached,
    /// The checksums of a frame do not cover its length.
    CrcWithoutLength,
    /// Zeros read as an empty record.
    ZerosAccepted,
    /// Segments are put in order by the text of their numbers.
    NamesAsText,
    /// A footer proves the records that it counts.
    FooterIsProof,
    /// A lag that does not fit is written as the greatest that does.
    SaturatedLag,
    /// Frames state what is written, not what is synced.
    WatermarkTooHigh,
    /// Frames state the records before them in their own batch.
    LagInBatch,
    /// The first append goes into a bare tail.
    BareTailWritten,
    /// A cut batch leaves a clean end.
    CutBatchIsClean,
    /// An append is admitted although an earlier write or sync failed.
    PoisonForgotten,
    /// Raft is told of an append once it is in the buffer.
    FlushedBeforeSync,
    /// A vote is saved without waiting for its sync.
    VoteNotAwaited,
    /// A truncation of raft's log is not recorded.
    RewindInMemory,
    /// A purge of raft's log trims the record of the vote.
    TrimTakesState,
    /// A sync counts for what was appended while it ran.
    SyncCoversLater,
    /// One of those that wait for a sync is woken, whoever they are.
    OneWoken,
    /// All who wait for a reservation take the key when it falls.
    WaitersAllGo,
    /// What follows a record of control is done before the record is durable.
    ToldBeforeSync,
    /// A close wakes nobody who waits for a task.
    CloseLeavesCallers,
    /// A checkpoint that is being written sees what is decided meanwhile.
    SnapshotLate,
    /// The sweeper forgets a key that it saw to be over, whoever owns it by then.
    SweptAsSeen,
    /// Who waits for an effect is not told of it.
    EndUntold,
    /// No worker is told that a task is due.
    WorkUntold,
    /// A close does not wait for callbacks.
    CloseUnjoined,
    /// An unfinished backup does not say so.
    BackupUnmarked,
    /// Frames of a backup are written into files whose names are not durable.
    BackupUnnamed,
    /// New work is taken in while there is no reserve.
    ReserveSpent,
    /// The name of a reserve is in the cache alone when work counts on it.
    ReserveUnsynced,
    /// The end that a broadcast has read of a pchannel does not hold it.
    EndUnpinned,
    /// What frames beyond an invalid one state of those before it is not looked at.
    LaterNotAsked,
    /// A subscription goes on behind what retention dropped, and tells nobody.
    GapUntold,
    /// The lock of a file counts whatever has become of its name.
    LockNameless,
    /// The lock of a file counts although another one has its name.
    LockOfAnother,
    /// A lock file that somebody has left is taken for one that the disk has.
    LockTrusted,
    /// Retention and trims let go of the message with the last time tick before the next one is
    /// durable.
    TickUnkept,
    /// A reserve is made of the next size or not at all.
    ReserveDoubled,
    /// New work keeps no room for itself in the next checkpoint.
    CheckpointUncounted,
}

impl Bug {
    /// The bugs of the log.
    pub const LOG: [Self; 33] = [
        Self::NoDirSync,
        Self::AckBeforeSync,
        Self::AppendBehindTorn,
        Self::ReopenOnlySyncs,
        Self::NamedBeforeSync,
        Self::HalfBatch,
        Self::ZerosNotScanned,
        Self::SlotStatesWritten,
        Self::NoCloseSlot,
        Self::TrimUnlinksFirst,
        Self::SyncRetried,
        Self::OffsetReused,
        Self::FillerOvertakes,
        Self::SyncErrorTaken,
        Self::CrcWithoutLength,
        Self::ZerosAccepted,
        Self::NamesAsText,
        Self::FooterIsProof,
        Self::SaturatedLag,
        Self::SyncCoversLater,
        Self::WatermarkTooHigh,
        Self::LagInBatch,
        Self::BareTailWritten,
        Self::CutBatchIsClean,
        Self::PoisonForgotten,
        Self::CacheKept,
        Self::TrimTakenAsFound,
        Self::SlotBesideUnsynced,
        Self::FoundSlotTaken,
        Self::FoundSlotCached,
        Self::CursorBeforeSync,
        Self::CursorByName,
        Self::PinIgnored,
    ];

    /// The bugs of what is said of a damaged log that no crash leaves.
    pub const DAMAGE: [Self; 1] = [Self::LaterNotAsked];

    /// The bugs of space: of what is kept for the work that was accepted.
    pub const SPACE: [Self; 6] = [
        Self::ReserveSpent,
        Self::ReserveUnsynced,
        Self::ReserveDoubled,
        Self::EndUnpinned,
        Self::TickUnkept,
        Self::CheckpointUncounted,
    ];

    /// The bugs of readers and backups.
    pub const READING: [Self; 3] = [Self::BackupUnmarked, Self::BackupUnnamed, Self::GapUntold];

    /// The bugs of the lock of a directory.
    pub const LOCKS: [Self; 3] = [Self::LockNameless, Self::LockOfAnother, Self::LockTrusted];

    /// The bugs of the broadcaster.
    pub const BROADCAST: [Self; 16] = [
        Self::TombstoneReset,
        Self::FingerprintFastPath,
        Self::ScopeWithoutOwner,
        Self::DuplicateBeforeCallback,
        Self::ReservedIsAccepted,
        Self::LockLeaked,
        Self::CopyWithoutScan,
        Self::FoundIsAcked,
        Self::ChunkAppendedAgain,
        Self::EvictPromised,
        Self::JumpBelieved,
        Self::UnknownIsRefusal,
        Self::ReservationLeaked,
        Self::SkipWithoutCopies,
        Self::DecidedBesideBatch,
        Self::CheckpointCoversItself,
    ];

    /// The bugs of the broadcaster that only a caller in flight at a mishap shows.
    pub const IN_FLIGHT: [Self; 1] = [Self::HandedIsAccepted];

    /// The bugs of imports.
    pub const IMPORT: [Self; 3] =
        [Self::StampWithoutVchannel, Self::VisibleByRecord, Self::ImportBesideCollection];

    /// The bugs of raft's log.
    pub const RAFT: [Self; 4] =
        [Self::FlushedBeforeSync, Self::VoteNotAwaited, Self::RewindInMemory, Self::TrimTakesState];

    /// Bugs that need two threads to show.
    pub const SCHEDULES: [Self; 10] = [
        Self::SyncCoversLater,
        Self::OneWoken,
        Self::WaitersAllGo,
        Self::ToldBeforeSync,
        Self::CloseLeavesCallers,
        Self::SnapshotLate,
        Self::SweptAsSeen,
        Self::EndUntold,
        Self::WorkUntold,
        Self::CloseUnjoined,
    ];
}

static ACTIVE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static HERE: Cell<u32> = const { Cell::new(0) };
}

/// Makes `bug` the active one, on every thread.
pub fn plant(bug: Bug) {
    ACTIVE.store(number(bug), Ordering::SeqCst);
}

/// Makes `bug` the active one on this thread: for a log without a background thread, so that other
/// tests may run beside it.
pub fn plant_here(bug: Bug) {
    HERE.set(number(bug));
    oncelog_format::planted::ignore_length(bug == Bug::CrcWithoutLength);
}

/// True while `bug` is the active one.
#[must_use]
pub fn is_active(bug: Bug) -> bool {
    let number = number(bug);
    ACTIVE.load(Ordering::SeqCst) == number || HERE.get() == number
}

fn number(bug: Bug) -> u32 {
    let known = Bug::LOG.iter().chain(&Bug::BROADCAST).chain(&Bug::RAFT);
    let known = known.chain(&Bug::SCHEDULES).chain(&Bug::READING).chain(&Bug::SPACE);
    let known = known.chain(&Bug::IN_FLIGHT);
    let mut known = known.chain(&Bug::IMPORT).chain(&Bug::DAMAGE).chain(&Bug::LOCKS);
    known.position(|&b| b == bug).and_then(|i| u32::try_from(i).ok()).map_or(0, |i| i + 1)
}
