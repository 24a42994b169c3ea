//! Filling ahead: zeros in the tail and in the spare before frames come there (SPEC section 10).
//!
//! Syncing blocks that were written before is faster than syncing blocks that a file has just got.
//! So a thread of its own makes the spare of the next size when the tail is half full, and fills
//! both in windows, the tail only a few windows ahead of its frames. It does so for writers that
//! sync: one that writes much between two syncs would only share the disk with the zeros. For that
//! one it syncs ahead, so that the roll has little left to sync.
//!
//! A window of the tail is claimed under the gate, after every frame that was encoded. Frames
//! enter it only once its fill was written and synced; a writer that comes earlier waits for this
//! one window, and the rest of the segment is left to the writer, which extends the file by itself.
//! What a writer has passed is never filled.
//!
//! The tail is filled through an open file description of its own (each is told of a failed sync
//! once). A sync is one of the whole file: when it fails here, frames may be among what was lost,
//! and the log is poisoned. Whatever happens to a spare poisons nothing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use oncelog_format::limits::FRAMES_OFFSET;

use super::join;
use super::options::Fill;
use super::roll::next_size;
use super::spare::{BLOCK_BYTES, Reserve, Spare, window_bytes, window_end, write_zeros};
use super::told::Told;
use super::writer::{Gate, Guard, Shared};
use crate::error::{Error, ErrorKind};
use crate::io::{Blocks, Io, IoFile, OpenHow};
use crate::sync::thread::{self, JoinHandle};
use crate::told;

/// Windows of the tail that are filled ahead of its last frame.
const WINDOWS_AHEAD: u64 = 4;
/// Bytes that a sync covers, on average, above which zeros cost more than they save: they save a
/// share of each sync, and cost by the byte.
const SYNC_BYTES_MAX: u64 = 128 << 10;
/// A tail is synced ahead whenever this share of it was written since: often enough that a roll has
/// little left to sync, seldom enough that a writer who syncs itself hardly meets it.
const SYNCS_AHEAD: u64 = 4;

/// What is done ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// A spare is made, and it and the tail are filled.
    Zero,
    /// A spare is made, and filled where its blocks cannot be reserved.
    Allocate,
    /// Nothing.
    Nothing,
}

impl Plan {
    /// What an option means in a directory.
    pub(crate) fn of(fill: Fill, io: &dyn Io, dir: &std::path::Path) -> Self {
        match fill {
            Fill::Zero => Self::Zero,
            Fill::Allocate => Self::Allocate,
            Fill::None => Self::Nothing,
            Fill::Auto => match io.blocks(dir) {
                Ok(Blocks::Fixed) => Self::Zero,
                Ok(Blocks::Moved) => Self::Nothing,
                Ok(Blocks::Unknown) => Self::Allocate,
                Err(e) => {
                    let dir = dir.display().to_string();
                    told::tell(move || tracing::debug!(dir, error = %e, "unknown file system"));
                    Self::Allocate
                }
            },
        }
    }

    /// How a segment takes its blocks.
    pub(crate) fn reserve(self) -> Reserve {
        if self == Self::Nothing { Reserve::Length } else { Reserve::Blocks }
    }
}

/// The spare of the next roll.
#[derive(Debug)]
pub(crate) enum Next {
    /// Not made yet.
    Absent,
    /// Being made or filled.
    Out,
    Ready(Spare),
    /// Refused: the roll tries by itself.
    GivenUp,
}

/// What the gate knows of filling.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) plan: Plan,
    pub(crate) next: Next,
    /// Bytes of the tail up to here were filled, or left to the writer.
    pub(crate) filled: u64,
    /// The window of the tail that is being filled: from, and up to.
    window: Option<(u64, u64)>,
    /// The rest of the tail is left to the writer.
    pub(crate) over: bool,
    /// Where the writer began in the tail, and how often it has synced since.
    begin: u64,
    pub(crate) syncs: u64,
    /// Zeros are worth writing until this tail shows how often it is synced.
    grant: bool,
    /// Bytes of the tail up to here were synced ahead, or are.
    ahead: u64,
    /// A thread syncs ahead.
    syncing: bool,
    /// There is a writer: the log was made, or something was appended since it was opened.
    pub(crate) begun: bool,
    /// The description through which the tail is filled.
    file: Option<Arc<dyn IoFile>>,
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

/// The thread that fills. The background thread starts it once there is something to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    Absent,
    Wanted,
    Working,
    Parked,
}

impl Filling {
    /// For a tail that is filled up to an offset.
    pub(crate) fn new(filled: u64) -> Self {
        Self {
            plan: Plan::Nothing,
            next: Next::Absent,
            filled,
            window: None,
            over: false,
            begin: filled,
            syncs: 0,
            grant: true,
            ahead: filled,
            syncing: false,
            begun: false,
            file: None,
            thread: Thread::Absent,
            handle: None,
        }
    }

    /// A roll has made a segment that is filled up to an offset.
    pub(crate) fn restart(&mut self, filled: u64, pays: bool) {
        self.grant = pays;
        self.filled = filled.max(FRAMES_OFFSET);
        // A spare that is too small for the batch stays where the reserve was taken.
        if !matches!(self.next, Next::Ready(_)) {
            self.next = Next::Absent;
        }
        (self.begin, self.ahead) = (FRAMES_OFFSET, FRAMES_OFFSET);
        self.syncs = 0;
        self.over = false;
        self.begun = true;
        self.file = None;
    }

    /// Whether the thread is to be started.
    pub(crate) fn is_wanted(&self) -> bool {
        self.thread == Thread::Wanted
    }

    /// Whether a thread fills a window or the spare.
    pub(crate) fn is_busy(&self) -> bool {
        self.window.is_some() || self.syncing || matches!(self.next, Next::Out)
    }

    /// The spare, where one is ready.
    pub(crate) fn take_ready(&mut self) -> Option<Spare> {
        match std::mem::replace(&mut self.next, Next::Absent) {
            Next::Ready(spare) => Some(spare),
            other => {
                self.next = other;
                None
            }
        }
    }
}

/// One step of filling.
#[derive(Debug)]
enum Step {
    /// Zeros into the tail, through this description or the file at the path.
    Window { file: Option<Arc<dyn IoFile>>, path: PathBuf, from: u64, upto: u64 },
    /// A spare of this number and size.
    Make(u64, u64),
    /// A window of the spare.
    Fill(Spare),
    /// A sync of the tail, through this description or the file at the path.
    Sync { file: Option<Arc<dyn IoFile>>, path: PathBuf },
}

/// What came of it.
enum Done {
    Window(Option<Arc<dyn IoFile>>, u64),
    Synced(Option<Arc<dyn IoFile>>),
    /// The rest of the tail is not filled.
    Over(Error),
    Failed(Error),
    Made(Spare),
    Filled(Spare),
    GivenUp(Error),
}

impl Gate {
    /// Whether frames that wait would be written into a window that is being filled.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.fill.window.is_some_and(|(from, _)| self.end > from)
    }

    /// The next window of the tail.
    fn next_window(&self) -> Option<(u64, u64)> {
        let fill = &self.fill;
        if fill.plan != Plan::Zero || fill.over || !self.pays() {
            return None;
        }
        let window = window_bytes(self.capacity);
        // A writer at work is left some room, so that it does not run into the window; into an
        // empty log nobody has written yet.
        let room = if self.next_lsn == 1 { 0 } else { window };
        let reached = self.end.saturating_add(room).next_multiple_of(BLOCK_BYTES);
        let from = fill.filled.max(reached);
        #[cfg(planted)]
        let from = if crate::planted::is_active(crate::planted::Bug::FillerOvertakes) {
            fill.filled
        } else {
            from
        };
        let ahead = self.end.saturating_add(window.saturating_mul(WINDOWS_AHEAD));
        (from < self.capacity && from < ahead).then(|| (from, window_end(from, self.capacity)))
    }

    /// Whether zeros are worth writing for a writer that syncs as this one does.
    pub(crate) fn pays(&self) -> bool {
        let bytes = self.end.saturating_sub(self.fill.begin);
        let worth = self.fill.syncs.saturating_mul(SYNC_BYTES_MAX);
        let grant = if self.fill.grant { window_bytes(self.capacity) } else { 0 };
        bytes < worth.saturating_add(grant)
    }

    /// How far the tail is to be synced ahead: whoever syncs then finds less to do.
    fn next_sync(&self) -> Option<u64> {
        if self.fill.plan == Plan::Nothing {
            return None;
        }
        let upto = self.written.offset;
        let from = self.fill.ahead.max(self.durable.offset);
        (upto.saturating_sub(from) >= self.capacity / SYNCS_AHEAD).then_some(upto)
    }

    /// Whether a spare is to be made.
    fn is_spare_due(&self) -> bool {
        self.fill.plan != Plan::Nothing
            && matches!(self.fill.next, Next::Absent)
            && self.end >= self.capacity / 2
    }

    fn is_spare_unfilled(&self) -> bool {
        let Next::Ready(spare) = &self.fill.next else { return false };
        // Where blocks cannot be reserved, zeros are what takes them.
        let is_wanted = !spare.has_blocks || (self.fill.plan == Plan::Zero && self.pays());
        self.fill.plan != Plan::Nothing && is_wanted && spare.filled < spare.size
    }

    fn may_fill(&self) -> bool {
        let open = self.poison.is_none() && !self.closed;
        // Opening a log writes nothing ahead.
        open && self.fill.begun && !self.rolling && !self.must_roll
    }

    fn wants_fill(&self) -> bool {
        self.may_fill()
            && !self.fill.is_busy()
            && (self.is_spare_due()
                || self.next_sync().is_some()
                || self.next_window().is_some()
                || self.is_spare_unfilled())
    }

    /// Claims the next step, the one that somebody needs first: a spare takes no time to make, and
    /// the frames of the tail are nearer than those of the spare.
    fn claim(&mut self, segment_bytes_max: u64) -> Option<Step> {
        if !self.may_fill() || self.fill.is_busy() {
            return None;
        }
        if self.is_spare_due() {
            let number = self.number_max.checked_add(1)?;
            self.fill.next = Next::Out;
            return Some(Step::Make(number, next_size(self.capacity, 0, segment_bytes_max)));
        }
        if let Some((from, upto)) = self.next_window() {
            let path = self.segments.last()?.path.clone();
            self.fill.window = Some((from, upto));
            return Some(Step::Window { file: self.fill.file.take(), path, from, upto });
        }
        if let Some(upto) = self.next_sync() {
            let path = self.segments.last()?.path.clone();
            (self.fill.syncing, self.fill.ahead) = (true, upto);
            return Some(Step::Sync { file: self.fill.file.take(), path });
        }
        if !self.is_spare_unfilled() {
            return None;
        }
        let spare = self.fill.take_ready()?;
        self.fill.next = Next::Out;
        Some(Step::Fill(spare))
    }

    fn conclude(&mut self, done: Done) {
        match done {
            Done::Window(file, upto) => {
                (self.fill.file, self.fill.filled) = (file, upto);
                self.stats.fills = self.stats.fills.saturating_add(1);
            }
            Done::Synced(file) => self.fill.file = file,
            Done::Made(spare) => self.fill.next = Next::Ready(spare),
            Done::Filled(spare) => {
                self.fill.next = Next::Ready(spare);
                self.stats.fills = self.stats.fills.saturating_add(1);
            }
            Done::Over(e) => {
                self.told.push(Told::NotFilled(e));
                self.fill.over = true;
            }
            Done::Failed(e) => self.set_poison(e),
            Done::GivenUp(e) => {
                self.told.push(Told::NoSpare(e));
                self.fill.next = Next::GivenUp;
            }
        }
        (self.fill.window, self.fill.syncing) = (None, false);
    }
}

/// Starts the thread; the caller settles. Without one, rolls make their spares, and nothing is
/// filled.
pub(crate) fn start(shared: &Arc<Shared>, gate: &mut Gate) {
    gate.fill.thread = Thread::Working;
    let filler = Arc::clone(shared);
    let started = thread::Builder::new().name("oncelog-fill".to_owned());
    match started.spawn(move || run(&filler)) {
        Ok(thread) => gate.fill.handle = Some(thread),
        Err(e) => gate.told.push(Told::NoFillThread(e)),
    }
}

/// Fills until the log stops.
fn run(shared: &Arc<Shared>) {
    let mut gate = shared.gate();
    while !gate.stop {
        gate = match gate.claim(shared.segment_bytes_max) {
            Some(step) => shared.fill(gate, step),
            None => {
                gate.fill.thread = Thread::Parked;
                let waited = shared.filling.wait(gate);
                let mut gate = waited.unwrap_or_else(PoisonError::into_inner);
                gate.fill.thread = Thread::Working;
                gate
            }
        };
    }
}

impl Shared {
    /// Wakes the thread that fills, where there is something for it.
    pub(crate) fn call_filler(&self, gate: &mut Gate) {
        match gate.fill.thread {
            Thread::Parked if gate.stop || gate.wants_fill() => {
                gate.fill.thread = Thread::Working;
                self.filling.notify_one();
            }
            Thread::Absent if self.has_background && gate.wants_fill() => {
                gate.fill.thread = Thread::Wanted;
                gate.parked = false;
                self.wanted.notify_one();
            }
            _ => {}
        }
    }

    /// Waits until nobody fills. For whoever has set what keeps the next step from beginning.
    pub(crate) fn wait_unfilled<'a>(&'a self, mut gate: Guard<'a>) -> Guard<'a> {
        while gate.fill.is_busy() {
            gate = self.wait(gate);
        }
        gate
    }

    /// Takes one step, as the thread does; false when there is none.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn fill_step(&self) -> crate::error::Result<bool> {
        let mut gate = self.gate();
        gate.check_open()?;
        let Some(step) = gate.claim(self.segment_bytes_max) else { return Ok(false) };
        self.fill(gate, step).check_open().map(|()| true)
    }

    fn fill<'a>(&'a self, gate: Guard<'a>, step: Step) -> Guard<'a> {
        #[cfg(planted)]
        let step = share_description(&gate, step);
        let reserve = gate.fill.plan.reserve();
        drop(gate);
        let done = catch_unwind(AssertUnwindSafe(|| self.take_step(step, reserve)));
        let mut gate = self.gate();
        match done {
            Ok(done) => {
                gate.conclude(done);
                self.settle(gate)
            }
            Err(panic) => {
                // What was written is not known; who waits for the window goes on.
                gate.fill.next = Next::GivenUp;
                gate.conclude(Done::Failed(Error::new(ErrorKind::Io, "a thread panicked")));
                drop(self.settle(gate));
                resume_unwind(panic)
            }
        }
    }

    fn take_step(&self, step: Step, reserve: Reserve) -> Done {
        let io = &*self.io;
        match step {
            Step::Window { file, path, from, upto } => {
                let file = match file.map_or_else(|| io.open(&path, OpenHow::ReadWrite), Ok) {
                    Ok(file) => file,
                    Err(e) => return Done::Over(Error::io("cannot open the segment", &path, e)),
                };
                // No frame stands there, whatever a failed write has left.
                if let Err(e) = write_zeros(&*file, from, upto) {
                    return Done::Over(Error::io("cannot fill the segment", &path, e));
                }
                let synced = file.sync();
                #[cfg(planted)]
                if crate::planted::is_active(crate::planted::Bug::SyncErrorTaken) {
                    return Done::Window(None, upto);
                }
                match synced {
                    Ok(()) => Done::Window(Some(file), upto),
                    Err(e) => Done::Failed(Error::io("cannot sync the segment", &path, e)),
                }
            }
            Step::Sync { file, path } => {
                let file = match file.map_or_else(|| io.open(&path, OpenHow::ReadWrite), Ok) {
                    Ok(file) => file,
                    Err(e) => return Done::Over(Error::io("cannot open the segment", &path, e)),
                };
                match file.sync() {
                    Ok(()) => Done::Synced(Some(file)),
                    Err(e) => Done::Failed(Error::io("cannot sync the segment", &path, e)),
                }
            }
            Step::Make(number, size) => match Spare::make(io, &self.dir, number, size, reserve) {
                Ok(spare) => Done::Made(spare),
                Err(e) => Done::GivenUp(e),
            },
            Step::Fill(mut spare) => match spare.fill() {
                Ok(()) => Done::Filled(spare),
                Err(e) => {
                    spare.abandon(io);
                    Done::GivenUp(e)
                }
            },
        }
    }

    /// Waits for the thread of a log that was closed, and removes the spare. One that stays is
    /// removed by the next open.
    pub(crate) fn end_filler(&self) {
        let thread = self.gate().fill.handle.take();
        join(thread, "the thread that fills");
        let mut gate = self.gate();
        let spare = gate.fill.take_ready().filter(|_| gate.poison.is_none());
        drop(gate);
        if let Some(spare) = spare {
            spare.abandon(&*self.io);
        }
    }
}

/// The filler syncs through the description of the writers, and keeps the error to itself.
#[cfg(planted)]
fn share_description(gate: &Gate, step: Step) -> Step {
    match step {
        Step::Window { path, from, upto, .. }
            if crate::planted::is_active(crate::planted::Bug::SyncErrorTaken) =>
        {
            let file = gate.tail.as_ref().map(|tail| Arc::clone(&tail.file));
            Step::Window { file, path, from, upto }
        }
        step => step,
    }
}
