//! How a broadcaster is opened, and what a collection is made of.

use std::sync::Arc;

use oncelog_format::message::BroadcastId;

use super::kind::MessageType;
use super::owed::OPEN_BYTES_MAX;
use super::policy::Policy;

/// Jobs at once by default.
const JOB_SLOTS_MAX: usize = 1_024;

/// Bytes of control records between two checkpoints, by default.
const CHECKPOINT_BYTES: u64 = 64 << 20;

/// Threads that bring tasks to their end, by default.
const WORKER_COUNT: usize = 8;

/// How a broadcaster is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// `None` leaves the one in force that was recorded last.
    pub(crate) policy: Option<Policy>,
    pub(crate) types: Vec<Arc<dyn MessageType>>,
    pub(crate) job_slots_max: usize,
    pub(crate) worker_count: usize,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) open_bytes_max: u64,
    pub(crate) only: Option<BroadcastId>,
    pub(crate) sweeps: bool,
}

impl Options {
    /// The policy that the store has recorded, no type but [`super::Noop`], 1,024 job slots, 8
    /// workers, a checkpoint behind 64 MiB of control records.
    #[must_use]
    pub fn new() -> Self {
        Self {
            policy: None,
            types: Vec::new(),
            job_slots_max: JOB_SLOTS_MAX,
            worker_count: WORKER_COUNT,
            checkpoint_bytes: CHECKPOINT_BYTES,
            open_bytes_max: OPEN_BYTES_MAX,
            only: None,
            sweeps: true,
        }
    }

    /// Sets the retention policy. Without it the one that was recorded last stays in force, and in
    /// a store that has none the default is.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Registers a message type.
    #[must_use]
    pub fn register(mut self, kind: Arc<dyn MessageType>) -> Self {
        self.types.push(kind);
        self
    }

    /// Sets the most jobs at once, at least 1.
    #[must_use]
    pub fn job_slots_max(mut self, count: usize) -> Self {
        self.job_slots_max = count;
        self
    }

    /// Sets the threads that bring tasks to their end, at least 1.
    #[must_use]
    pub fn worker_count(mut self, count: usize) -> Self {
        self.worker_count = count;
        self
    }

    /// Sets the bytes of control records behind which the state is written into control, so that a
    /// restart replays no more than about that, and control is trimmed. A state takes turns with
    /// four times its own size, where that is more.
    #[must_use]
    pub fn checkpoint_bytes(mut self, bytes: u64) -> Self {
        self.checkpoint_bytes = bytes;
        self
    }

    /// Sets the most bytes that unfinished work carries: tasks that are not done and jobs that are
    /// not over, with payloads, properties and plans; at least 1, and 512 MiB by default, which is
    /// the most. New work above that, a job that is tried again too, is refused with `StoreFull`
    /// until some of it is done: room is kept on the disk for a checkpoint that holds all of it. A
    /// checkpoint also holds the keys of the window, and jobs that are over until they are retired:
    /// where all of it outgrows the largest reserve, 1 GiB, new work is refused as well.
    #[must_use]
    pub fn open_bytes_max(mut self, bytes: u64) -> Self {
        self.open_bytes_max = bytes.min(OPEN_BYTES_MAX);
        self
    }

    /// Opens for one broadcast alone, for a program that does not know every type of the store: it
    /// brings no other task any further, parks none, starts no driver and takes no new work; it
    /// sweeps nothing, as with [`Options::unswept`], and a policy that it is given holds for this
    /// process and is not recorded. All that stays for whoever opens the store next.
    #[must_use]
    pub fn only(mut self, id: BroadcastId) -> Self {
        self.only = Some(id);
        self
    }

    /// Forgets nothing by itself: keys whose window is over, and records of jobs that outlived
    /// their retention, stay for whoever opens the store next. Whether a key is over does not
    /// depend on it.
    #[must_use]
    pub fn unswept(mut self) -> Self {
        self.sweeps = false;
        self
    }

    /// Says whether what is over is forgotten by this process.
    pub(crate) fn sweeps(&self) -> bool {
        self.sweeps && self.only.is_none()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// What a collection is to be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct CollectionSpec {
    /// Its name.
    pub name: String,
    /// Its schema, opaque here; may be empty.
    pub schema: Vec<u8>,
    /// The field that rows are identified by.
    pub primary_key: Option<String>,
    /// Its vchannels; those that do not exist are made.
    pub vchannels: Vec<String>,
}
