//! The thread that trims: it applies retention, removes files and rebuilds degraded segments, off
//! the path of every sync.
//!
//! It is started by the first call that needs it, so a log that trims nothing has none. Between two
//! steps of a removal it rests, so that a disk which discards has time for the syncs of others. It
//! ends before a close returns: what it has not removed by then waits for the next open.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::told::Told;
use super::wait::now;
use super::writer::{Gate, Guard, Shared};
use super::{Handle, join, lock};
use crate::error::ErrorKind;
use crate::sync::thread::{self, JoinHandle};
use crate::told;

/// Rest between two steps: 4 MiB each make 800 MB/s at most.
const REST: Duration = Duration::from_millis(5);
/// How long a trim that was refused rests before the next try.
const AGAIN: Duration = Duration::from_secs(1);
/// Steps that a close waits for: what opens, trims and closes at once must get somewhere too.
const CLOSING_STEPS: u32 = 16;

/// The thread of a log, if it has been started.
#[derive(Debug, Default)]
pub(crate) struct Trimmer {
    thread: Option<JoinHandle<()>>,
    /// The log was closed: none is started any more.
    is_over: bool,
}

impl Handle {
    /// Starts the thread where there is none yet. Without one, files stay until an open with more
    /// luck.
    pub(super) fn start_trimmer(&self) {
        let mut trimmer = lock(&self.trimmer);
        if !self.shared.has_background || trimmer.is_over || trimmer.thread.is_some() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new().name("oncelog-trim".to_owned());
        match started.spawn(move || run(&shared)) {
            Ok(thread) => trimmer.thread = Some(thread),
            Err(e) => {
                drop(trimmer);
                self.shared.gate().told.push(Told::NoTrimThread(e));
            }
        }
    }

    /// Waits for the thread, which ends as the log is closed.
    pub(super) fn end_trimmer(&self) {
        let thread = {
            let mut trimmer = lock(&self.trimmer);
            trimmer.is_over = true;
            trimmer.thread.take()
        };
        join(thread, "the thread that trims");
    }
}

/// What there is to do.
enum Work {
    Retain,
    Remove,
    Rebuild,
    /// Nothing until somebody calls, or so much time has passed.
    Wait(Option<Duration>),
}

fn run(shared: &Arc<Shared>) {
    let interval = shared.retention.check_interval();
    let (mut checked, mut was_refused) = (now(), false);
    let mut gate = shared.gate();
    while !gate.closed {
        let pause = if was_refused { Some(AGAIN) } else { interval };
        let left = pause.map(|pause| checked.saturating_add(pause).saturating_sub(now()));
        match next(shared, &gate, left, was_refused) {
            Work::Retain => {
                drop(gate);
                was_refused = !retain(shared);
                checked = now();
                gate = shared.gate();
            }
            Work::Remove => {
                drop(gate);
                shared.remove_step();
                gate = rest(shared, shared.gate());
            }
            Work::Rebuild => gate = rest(shared, shared.rebuild_next(gate)),
            Work::Wait(time) => gate = wait(shared, gate, time),
        }
    }
    drop(gate);
    // None is taken where this thread has closed the log itself.
    for _ in 0..CLOSING_STEPS {
        if !shared.remove_step() {
            break;
        }
    }
}

/// `left` is the time until the next look at the age of segments, or after a trim that was refused.
fn next(shared: &Shared, gate: &Gate, left: Option<Duration>, was_refused: bool) -> Work {
    if gate.poison.is_some() {
        return Work::Wait(None);
    }
    // What is needed is not known yet: whoever ends the rest calls.
    let left = left.filter(|_| !gate.retaining.is_resting);
    // What was refused is not tried again at once, whoever calls.
    let is_called = gate.retaining.is_due && !was_refused;
    let is_due = is_called || left.is_some_and(|left| left.is_zero());
    if is_due && !shared.retention.is_everything() && !gate.retaining.is_resting {
        Work::Retain
    } else if gate.removal.has_ready() {
        Work::Remove
    } else if !gate.degraded.is_empty() {
        Work::Rebuild
    } else {
        Work::Wait(left)
    }
}

fn wait<'a>(shared: &'a Shared, gate: Guard<'a>, time: Option<Duration>) -> Guard<'a> {
    match time {
        None => shared.trim_wanted.wait(gate).unwrap_or_else(PoisonError::into_inner),
        Some(time) => {
            let waited = shared.trim_wanted.wait_timeout(gate, time);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

/// Lets the syncs of others through.
fn rest<'a>(shared: &'a Shared, mut gate: Guard<'a>) -> Guard<'a> {
    let until = now().saturating_add(REST);
    loop {
        let left = until.saturating_sub(now());
        if left.is_zero() || gate.closed {
            return gate;
        }
        gate = wait(shared, gate, Some(left));
    }
}

/// Applies the limits; false when that was refused and is to be tried again.
fn retain(shared: &Shared) -> bool {
    match shared.trim_by_retention() {
        Ok(trimmed) if trimmed.segment_count > 0 => {
            let (oldest, segments) = (trimmed.oldest_lsn, trimmed.segment_count);
            told::tell(move || tracing::debug!(%oldest, segments, "trimmed"));
        }
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::Closed => {}
        Err(e) => {
            told::tell(move || tracing::warn!(error = %e, "retention could not trim"));
            return false;
        }
    }
    true
}
