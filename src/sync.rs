//! Locks, condition variables and threads of the log and of the broadcaster.
//!
//! They are those of std. Only in a test build with `--cfg loom` or `--cfg shuttle` they are those
//! of a checker, which decides at each of their calls who runs next, and so plays the schedules of
//! the real code one by one (`scripts/schedules`).
//!
//! What decides no order stays std's everywhere: `Arc`, which in loom holds no trait object, and
//! counters that nobody waits for.

#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use std::sync::atomic::AtomicU64;
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(all(test, any(loom, shuttle))))]
pub(crate) use std::thread;

#[cfg(all(test, any(loom, shuttle)))]
mod checked;
#[cfg(all(test, planted, any(loom, shuttle)))]
mod planted;
#[cfg(all(test, any(loom, shuttle)))]
pub(crate) use self::checked::{
    AtomicU64, Condvar, Mutex, MutexGuard, explored, now, play_once, thread,
};
#[cfg(all(test, shuttle))]
pub(crate) use self::checked::{explored_part, roll};
