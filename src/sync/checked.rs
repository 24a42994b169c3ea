//! The same from a checker, with time that the schedule alone moves.
//!
//! Neither checker knows limits of time. Here a wait with one gives the lock up, for as long as the
//! schedule lets others go before, and returns when the time is over. That it returns no sooner
//! loses nothing: whoever waits so looks again and waits for the rest.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError};
use std::time::Duration;

#[cfg(loom)]
use loom::sync;
#[cfg(shuttle)]
use shuttle::sync;

#[cfg(loom)]
pub(crate) use loom::thread;
#[cfg(shuttle)]
pub(crate) use shuttle::thread;

thread_local! {
    /// What waits have taken in this execution. All threads of an execution run on the one thread
    /// that checks it.
    static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Time since the execution began.
pub(crate) fn now() -> Duration {
    PASSED.get()
}

/// Begins an execution.
pub(crate) fn restart_time() {
    PASSED.set(Duration::ZERO);
}

/// A lock.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    guard: sync::MutexGuard<'a, T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        match self.0.lock() {
            Ok(guard) => Ok(MutexGuard { mutex: self, guard }),
            Err(e) => Err(PoisonError::new(MutexGuard { mutex: self, guard: e.into_inner() })),
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<'a, T>(&self, held: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let MutexGuard { mutex, guard } = held;
        match self.0.wait(guard) {
            Ok(guard) => Ok(MutexGuard { mutex, guard }),
            Err(e) => Err(PoisonError::new(MutexGuard { mutex, guard: e.into_inner() })),
        }
    }

    /// Gives the lock up and takes it again when the time is over.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        held: MutexGuard<'a, T>,
        time: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        let until = now().saturating_add(time);
        let mutex = held.mutex;
        drop(held);
        let held = mutex.lock();
        PASSED.set(now().max(until));
        match held {
            Ok(held) => Ok((held, ())),
            Err(e) => Err(PoisonError::new((e.into_inner(), ()))),
        }
    }
}
