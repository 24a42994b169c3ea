//! How a log is opened, and what is appended to it.

use std::sync::Arc;
use std::time::Duration;

use oncelog_format::{frame, frame_len, limits};

use super::remove::STEP_BYTES;
use super::retention::Retention;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Io;
use crate::io::fs::FsIo;

/// Largest record by default: larger ones are usually a mistake of the caller.
const RECORD_LEN_MAX: u32 = 16 << 20;
/// Largest batch by default: encoded and checksummed while other appenders wait, tens of
/// milliseconds for this much.
const BATCH_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a group by default: far more than a disk takes within one sync.
const BUFFER_BYTES_MAX: u64 = 8 << 20;
/// Largest size of a segment by default.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) segment_bytes_max: u64,
    pub(crate) record_len_max: u32,
    pub(crate) batch_bytes_max: u64,
    pub(crate) buffer_bytes_max: u64,
    pub(crate) create: CreateMode,
    pub(crate) lock_wait: Duration,
    pub(crate) check: Check,
    pub(crate) fill: Fill,
    pub(crate) wait_policy: WaitPolicy,
    pub(crate) map_sealed: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) background: bool,
    pub(crate) retention: Retention,
    pub(crate) removal_step_bytes: u64,
    /// A written segment is kept for what ends work.
    pub(crate) reserve: bool,
    /// What there is to tell waits for [`super::Log::tell`].
    pub(crate) tells_later: bool,
    /// Retention rests until it is begun, and keeps the newest record.
    pub(crate) retention_rests: bool,
}

impl Options {
    /// Segments up to 64 MiB, records up to 16 MiB, batches up to 64 MiB, 8 MiB of buffer, the
    /// machine's clock and files, everything kept; the log must exist.
    #[must_use]
    pub fn new() -> Self {
        Self {
            segment_bytes_max: SEGMENT_BYTES_MAX,
            record_len_max: RECORD_LEN_MAX,
            batch_bytes_max: BATCH_BYTES_MAX,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            create: CreateMode::Never,
            lock_wait: Duration::ZERO,
            check: Check::Tail,
            fill: Fill::Auto,
            wait_policy: WaitPolicy::Park,
            map_sealed: true,
            clock: Arc::new(SystemClock::new()),
            io: Arc::new(FsIo::new()),
            background: true,
            retention: Retention::new(),
            removal_step_bytes: STEP_BYTES,
            reserve: false,
            tells_later: false,
            retention_rests: false,
        }
    }

    /// Largest size of a segment in bytes, 64 KiB to 1 GiB inclusive. Segments start at 1 MiB, or
    /// at this where it is less, and double; only a batch that fits no other way makes a larger
    /// one.
    #[must_use]
    pub fn segment_bytes_max(mut self, bytes: u64) -> Self {
        self.segment_bytes_max = bytes;
        self
    }

    /// Largest record in bytes, 1 to 256 MiB inclusive.
    #[must_use]
    pub fn record_len_max(mut self, len: u32) -> Self {
        self.record_len_max = len;
        self
    }

    /// Largest batch in bytes, with the headers (32 bytes a record) and padding (to multiples of 8)
    /// of its frames, up to 512 MiB inclusive; the largest record must fit. What was appended under
    /// another value stays readable.
    #[must_use]
    pub fn batch_bytes_max(mut self, bytes: u64) -> Self {
        self.batch_bytes_max = bytes;
        self
    }

    /// Bytes that may wait to be written, at least 1. Appenders wait while there are more; one
    /// batch alone may be larger.
    #[must_use]
    pub fn buffer_bytes_max(mut self, bytes: u64) -> Self {
        self.buffer_bytes_max = bytes;
        self
    }

    /// Whether the log may be, or must be, made.
    #[must_use]
    pub fn create(mut self, create: CreateMode) -> Self {
        self.create = create;
        self
    }

    /// Longest time that an open waits for another writer to let the directory go; without it, an
    /// open that meets one answers `Busy` at once. It blocks its thread, asks a few hundred times a
    /// second, and may be overtaken by others who ask. A process that was killed holds nothing.
    ///
    /// # Examples
    ///
    /// A process that takes the place of another one, which is still closing:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use oncelog::{CreateMode, Log, Options};
    ///
    /// # fn main() -> oncelog::Result<()> {
    /// # let home = tempfile::tempdir().expect("a directory");
    /// # let dir = home.path().join("log");
    /// let options = Options::new().create(CreateMode::IfMissing);
    /// let (log, _report) = Log::open(&dir, &options.lock_wait(Duration::from_secs(30)))?;
    /// # log.close()
    /// # }
    /// ```
    #[must_use]
    pub fn lock_wait(mut self, longest: Duration) -> Self {
        self.lock_wait = longest;
        self
    }

    /// How much of the log is read before it opens.
    #[must_use]
    pub fn check(mut self, check: Check) -> Self {
        self.check = check;
        self
    }

    /// What is done to segments before records come there.
    #[must_use]
    pub fn fill(mut self, fill: Fill) -> Self {
        self.fill = fill;
        self
    }

    /// How a thread waits for the sync that another one is at.
    #[must_use]
    pub fn wait_policy(mut self, policy: WaitPolicy) -> Self {
        self.wait_policy = policy;
        self
    }

    /// Whether sealed segments are read through maps, as they are unless told otherwise. Reading
    /// through a map copies nothing, and keeps no file descriptor for each segment; but a block
    /// that the disk cannot read is then no error of a call: the system ends the process with
    /// `SIGBUS` when a payload's bytes are touched. Without maps, it is `Io`. See
    /// [`Log::reader`](crate::Log::reader).
    #[must_use]
    pub fn map_sealed(mut self, map_sealed: bool) -> Self {
        self.map_sealed = map_sealed;
        self
    }

    /// The clock that stamps records.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The file system.
    #[must_use]
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = io;
        self
    }

    /// What the log keeps by itself: after an open and after each roll, a thread of the log trims
    /// what goes beyond. Everything is kept unless told otherwise.
    #[must_use]
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Keeps a written segment for what ends work.
    pub(crate) fn keep_reserve(mut self) -> Self {
        self.reserve = true;
        self
    }

    /// Keeps what there is to tell until [`super::Log::tell`]: its owner calls it with locks of his
    /// own.
    pub(crate) fn tell_later(mut self) -> Self {
        self.tells_later = true;
        self
    }

    /// What the log keeps, from [`super::Log::begin_retention`] on, and the newest record whatever
    /// that says.
    pub(crate) fn resting_retention(mut self, retention: Retention) -> Self {
        (self.retention, self.retention_rests) = (retention, true);
        self
    }

    /// Bytes of a trimmed segment that one step of its removal frees, at least 1. For tests, whose
    /// segments are small.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn removal_step_bytes(mut self, bytes: u64) -> Self {
        self.removal_step_bytes = bytes;
        self
    }

    /// Without a background thread nothing happens but what a call does: buffered records stay in
    /// memory until a flush, a [`crate::Pending`] leads when it is polled, no idle slot is written
    /// unless `Log::write_idle_slot` is called, retention waits for `Log::trim_by_retention`, and
    /// the files of trimmed segments for `Log::remove_step`. For tests that count calls.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let segment_bytes = limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX;
        let record_len = 1..=limits::RECORD_LEN_MAX;
        let batch_bytes = frame_len(self.record_len_max)..=limits::BATCH_BYTES_MAX;
        let wrong = if !segment_bytes.contains(&self.segment_bytes_max) {
            format!(
                "segment_bytes_max: expected {} to {}, found {}",
                limits::SEGMENT_BYTES_MIN,
                limits::SEGMENT_BYTES_MAX,
                self.segment_bytes_max
            )
        } else if !record_len.contains(&self.record_len_max) {
            format!(
                "record_len_max: expected 1 to {}, found {}",
                limits::RECORD_LEN_MAX,
                self.record_len_max
            )
        } else if !batch_bytes.contains(&self.batch_bytes_max) {
            format!(
                "batch_bytes_max: expected {} (the largest record) to {}, found {}",
                batch_bytes.start(),
                batch_bytes.end(),
                self.batch_bytes_max
            )
        } else if self.buffer_bytes_max == 0 {
            "buffer_bytes_max: expected at least 1, found 0".to_owned()
        } else if let Err(wrong) = self.retention.validate() {
            wrong
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidInput, wrong))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether opening makes a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CreateMode {
    /// The log must exist.
    Never,
    /// The log is made where there is none: the directory is absent or empty, but for the
    /// `lost+found` of a file system.
    IfMissing,
    /// The log must not exist.
    Always,
}

/// How much of a log is read before it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Headers, slots and footers, and the frames of the tail; also those of a sealed segment that
    /// has no valid footer.
    Tail,
    /// Every frame of every segment.
    Full,
}

/// What is done ahead, in the background, to the segments that records will come to.
///
/// On disk it makes no difference but zeros after the last record, and one file of the next size
/// beside the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Fill {
    /// [`Fill::Zero`] where blocks that are written again stay where they are (ext4, XFS),
    /// [`Fill::None`] where they move (btrfs, ZFS and others that copy on write), and
    /// [`Fill::Allocate`] everywhere else: in memory, on a network, on an overlay.
    #[default]
    Auto,
    /// The next segment is made when the last one is half full, its blocks are taken, and both are
    /// filled with zeros: a sync of a record then writes its blocks and no metadata. Each byte is
    /// written twice.
    Zero,
    /// The next segment is made when the last one is half full, and its blocks are taken: no append
    /// waits for that, and a full disk refuses appends before it meets a record. Where the file
    /// system cannot reserve blocks (NFS before 4.2, some of FUSE), zeros are written into this
    /// next segment alone; in what they have not reached, a disk may fill up under a record, as
    /// with [`Fill::None`].
    Allocate,
    /// A segment is made when the first record needs it, and takes blocks as it grows. A disk that
    /// fills up under a record poisons the log.
    None,
}

/// How a thread waits for the sync that another thread is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// It sleeps until it is woken.
    #[default]
    Park,
    /// It yields its processor to others for as long as a fast disk takes, and sleeps then. Many
    /// writers reach twice as many records so, and keep their processors busy.
    Yield,
}

/// When an append returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// When its records survive a power loss.
    #[default]
    Synced,
    /// When its records are in the log's buffer. Their write begins within 10 ms or 256 KiB, or
    /// when the one under way returns, or with a flush; they are synced by a sync, at a roll and at
    /// close.
    Buffered,
}

/// Kind of a record (SPEC 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordKind(u8);

impl RecordKind {
    /// Opaque bytes of the caller.
    pub const RECORD: Self = Self(frame::KIND_RECORD);
    /// A message of a channel.
    pub const MESSAGE: Self = Self(frame::KIND_MESSAGE);
    /// A control record of the broadcaster.
    pub const CONTROL: Self = Self(frame::KIND_CONTROL);

    /// A kind of the caller's own, 0x80 to 0xFF inclusive; `None` for any other.
    #[must_use]
    pub const fn private(kind: u8) -> Option<Self> {
        if kind >= frame::KIND_PRIVATE_MIN { Some(Self(kind)) } else { None }
    }

    /// The kind that stands in a frame; any byte, as a later version may have written it.
    pub(crate) const fn of_frame(kind: u8) -> Self {
        Self(kind)
    }

    /// The byte that stands in the frame.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self.0
    }
}

/// Records that are appended as one, and kept or cut whole.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller at every append")]
pub struct Batch<'a> {
    /// Kind of every record.
    pub kind: RecordKind,
    /// The records in order; at least one.
    pub records: &'a [&'a [u8]],
}
