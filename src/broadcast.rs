//! The broadcaster: one message to N vchannels, at most once per idempotency key.
//!
//! API as it is being built (bodies follow): signatures are what other parts may rely on.

pub struct Broadcaster; // cheap to clone; `close` ends all clones
impl Broadcaster {
    /// Replays control, takes up unfinished work in the background. `Noop` is always registered.
    pub fn open(store: Store, options: BroadcastOptions /* policy, types: Vec<Arc<dyn MessageType>>, job_slots_max, workers */) -> Result<Self>;
    pub fn submit(&self, request: Request, timeout: Option<Duration>) -> Result<Answer>;
    pub fn resume(&self, id: BroadcastId) -> Result<()>;
    pub fn skip(&self, id: BroadcastId, reason: &str) -> Result<()>;
    pub fn ack(&self, id: BroadcastId, vchannel: &str, at: Position) -> Result<()>;
    pub fn policy(&self) -> Policy;
    pub fn refresh(&self, policy: Policy) -> Result<()>;
    pub fn ensure_vchannels(&self, names: &[String]) -> Result<()>;
    /// Existing one of that name, or made (durable) with this spec.
    pub fn ensure_collection(&self, spec: &CollectionSpec) -> Result<Collection>;   // control::Collection
    pub fn update_collection(&self, collection: Collection) -> Result<()>;           // same id: schema etc.
    pub fn jobs(&self) -> Jobs;
    pub fn read<R>(&self, look: impl FnOnce(&State, u64 /* log time ms */) -> R) -> R;
    pub fn rebase_clock(&self) -> Result<()>;
    pub fn accept_window(&self) -> Result<()>;
    pub fn close(&self) -> Result<()>;
}

/// What the driver of an import needs; cheap to clone.
pub struct Jobs;
impl Jobs {
    pub fn get(&self, job: BroadcastId) -> Option<Arc<Job>>;       // state::Job: attempt, plan, state, end, over, request (Arc<Accepted>)
    pub fn running(&self) -> Vec<BroadcastId>;
    pub fn collection(&self, id: u64) -> Option<Arc<Collection>>;
    pub fn update_collection(&self, collection: Collection) -> Result<()>;
    /// Reads the ends and pins every pchannel from there until the job is over (or the guard is dropped before `plan`).
    pub fn pin_ends(&self, job: BroadcastId) -> Result<Vec<(String, Lsn)>>;
    /// Durable when it returns; refused (`InvalidInput`) when the attempt is not the current one.
    pub fn plan(&self, plan: JobPlan) -> Result<()>;
    /// Durable when it returns.
    pub fn record(&self, state: JobState) -> Result<()>;
    /// Submits CommitImport / AbortImport of this attempt under the job's hold, and waits for its Done (no timeout).
    /// Takes the job's own lock exclusive, then looks for an earlier ending: the answer says which one won.
    pub fn end(&self, job: BroadcastId, attempt: u32, commit: bool, payload: Vec<u8>) -> Result<Ended>; // Ended { id, committed: bool, mine: bool }
    /// Attempt n+1 after the abort of n is Done and before the key expired; takes the import's locks again.
    pub fn reattempt(&self, job: BroadcastId, timeout: Option<Duration>) -> Result<u32>;
    /// Waits until the job is over.
    pub fn wait(&self, job: BroadcastId, timeout: Option<Duration>) -> Result<Arc<Job>>; // kind InFlight on timeout
    /// Which pchannel carries a vchannel; the channel itself.
    pub fn pchannel_of(&self, vchannel: &str) -> Option<String>;
    pub fn channel(&self, pchannel: &str) -> Option<Arc<dyn ChannelLog>>;
    /// Stamps (_v _t _wt _tt _lc _vc and `_tx` given by you) and appends one batch of messages to a pchannel, durable when it returns.
    pub fn append(&self, pchannel: &str, messages: Vec<SliceMessage /* vchannel, stamp: SliceStamp, payload */>) -> Result<LsnRange>;
    pub fn now_ms(&self) -> u64;
}

// src/store.rs
pub struct Store;      // Store::open(dir, &StoreOptions { io, clock, create, log: log::Options }) -> Result<(Store, StoreReport)>
pub struct StoreView;  // any process, no lock: StoreView::open(dir, io) -> Result<StoreView>
impl StoreView {
    pub fn state(&self) -> &State;
    /// log time as far as the records tell
    pub fn newest_ms(&self) -> u64;
    pub fn keys(&self, principal: &str, key: Option<&str>, at_ms: u64) -> Vec<KeyInfo>; // scope, key, state: KeyState, id, accepted_at, done_at, expires_at, cause, probably_seen
    pub fn window(&self, at_ms: u64) -> WindowSummary; // live keys, bound, effective window, evictions by cause
    pub fn control(&self) -> &LogView;
    pub fn pchannels(&self) -> &[String];
    pub fn channel(&self, pchannel: &str) -> Result<LogView>;
}
// src/broadcast/policy.rs
pub struct Policy { window_lifetime, window_count_max, principal_share_max_percent, task_retention, check_interval, window_full: WindowFull::{Refuse,EvictOldest}, retry_age_max, broadcasts_per_hour_max: Option<u64>, history: Refuse|Warn }
impl Policy { pub fn violations(&self) -> Vec<Violation>; pub fn set(&mut self, name: &str, value: Setting<'_> /* Text | Integer */) -> Result<(), Violation>; }
