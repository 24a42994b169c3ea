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
    None = 0,
    /// A roll does not sync the directory.
    NoDirSync = 1,
    /// A synced append returns after the write.
    AckBeforeSync = 2,
    /// The first append after a torn end does not roll.
    AppendBehindTorn = 3,
    /// Opening syncs unproven frames without writing them again.
    ReopenOnlySyncs = 4,
    /// The successor is named before the old tail is synced.
    NamedBeforeSync = 5,
    /// Frames of an unfinished batch are kept.
    HalfBatch = 6,
    /// Zeros behind the last frame end the scan.
    ZerosNotScanned = 7,
    /// A slot states what is written, not what is synced.
    SlotStatesWritten = 8,
    /// No slot is written at close.
    NoCloseSlot = 9,
    /// Segments are removed before the trim is durable.
    TrimUnlinksFirst = 10,
    /// A failed sync is tried again and believed.
    SyncRetried = 11,
    /// After a refusal for space in a group, its offset and LSNs are used again.
    OffsetReused = 12,
    /// A cursor is acknowledged before its sync.
    CursorBeforeSync = 25,
    /// Trims do not look for pins and cursors.
    PinIgnored = 26,
    /// The time of a tombstone starts again when the store is opened.
    TombstoneReset = 13,
    /// The fingerprint of a retry is not compared once the original is done.
    FingerprintFastPath = 14,
    /// A scope is forgotten with an old owner although it has a newer one.
    ScopeWithoutOwner = 15,
    /// A duplicate is answered when the copies stand.
    DuplicateBeforeCallback = 16,
    /// A reservation conflicts as if it were an acceptance.
    ReservedIsAccepted = 17,
    /// A refusal behind the locks does not release them.
    LockLeaked = 18,
    /// After a restart copies are appended without looking for them.
    CopyWithoutScan = 19,
    /// A copy that a scan found counts as a consumer's ack.
    FoundIsAcked = 20,
    /// Eviction takes keys that were promised.
    EvictPromised = 21,
    /// A wall clock far ahead is believed at once.
    JumpBelieved = 22,
    /// An acceptance that failed half-way is answered as a refusal.
    UnknownIsRefusal = 23,
    /// A refusal does not give up the reservation.
    ReservationLeaked = 24,
    /// A window is filled although frames have come there.
    FillerOvertakes = 27,
    /// The filler syncs through the writers' description and keeps a failure to itself.
    SyncErrorTaken = 28,
    /// The checksums of a frame do not cover its length.
    CrcWithoutLength = 41,
    /// Zeros read as an empty record.
    ZerosAccepted = 42,
    /// Segments are put in order by the text of their numbers.
    NamesAsText = 43,
    /// A footer proves the records that it counts.
    FooterIsProof = 44,
    /// A lag that does not fit is written as the greatest that does.
    SaturatedLag = 45,
    /// Frames state what is written, not what is synced.
    WatermarkTooHigh = 46,
    /// Frames state the records before them in their own batch.
    LagInBatch = 47,
    /// The first append goes into a bare tail.
    BareTailWritten = 48,
    /// A cut batch leaves a clean end.
    CutBatchIsClean = 49,
    /// What a trim left is removed without stating the trim again.
    LeftoversUnstated = 50,
    /// An append is admitted although an earlier write or sync failed.
    PoisonForgotten = 51,
    /// Raft is told of an append once it is in the buffer.
    FlushedBeforeSync = 101,
    /// A vote is saved without waiting for its sync.
    VoteNotAwaited = 102,
    /// A truncation of raft's log is not recorded.
    RewindInMemory = 103,
    /// A purge of raft's log trims the record of the vote.
    TrimTakesState = 104,
    /// A sync counts for what was appended while it ran.
    SyncCoversLater = 201,
    /// One of those that wait for a sync is woken, whoever they are.
    OneWoken = 202,
}

impl Bug {
    /// The bugs of the log.
    pub const LOG: [Self; 26] = [
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
        Self::LeftoversUnstated,
        Self::PoisonForgotten,
    ];

    /// The bugs of who holds records of the log.
    pub const HOLDS: [Self; 2] = [Self::CursorBeforeSync, Self::PinIgnored];

    /// The bugs of the broadcaster.
    pub const BROADCAST: [Self; 12] = [
        Self::TombstoneReset,
        Self::FingerprintFastPath,
        Self::ScopeWithoutOwner,
        Self::DuplicateBeforeCallback,
        Self::ReservedIsAccepted,
        Self::LockLeaked,
        Self::CopyWithoutScan,
        Self::FoundIsAcked,
        Self::EvictPromised,
        Self::JumpBelieved,
        Self::UnknownIsRefusal,
        Self::ReservationLeaked,
    ];

    /// The bugs of raft's log.
    pub const RAFT: [Self; 4] =
        [Self::FlushedBeforeSync, Self::VoteNotAwaited, Self::RewindInMemory, Self::TrimTakesState];
    /// Bugs that need two threads to show.
    pub const SCHEDULES: [Self; 2] = [Self::SyncCoversLater, Self::OneWoken];
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
    let mut known = known.chain(&Bug::SCHEDULES).chain(&Bug::HOLDS);
    known.position(|&b| b == bug).and_then(|i| u32::try_from(i).ok()).map_or(0, |i| i + 1)
}
