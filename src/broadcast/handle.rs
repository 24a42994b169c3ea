//! The threads of a broadcaster, and how they end.
//!
//! Whoever closes first waits for every thread; others wait for him, but for a callback or a type
//! that closes: he waits for them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use super::core::Inner;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};
use crate::told;

#[derive(Debug)]
pub(super) struct Handle {
    pub(super) inner: Arc<Inner>,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// What the first one was told, once everything has stopped and the store is closed.
    stopped: Mutex<Option<Result<()>>>,
    stops: Condvar,
}

thread_local! {
    /// The broadcasters, by their addresses, whose thread this is or which this thread closes: a
    /// type of one may close another.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Runs code of a broadcaster that must not wait for its close.
pub(super) fn inside<R>(inner: &Arc<Inner>, run: impl FnOnce() -> R) -> R {
    INSIDE.with_borrow_mut(|inside| inside.push(Arc::as_ptr(inner).addr()));
    let result = run();
    INSIDE.with_borrow_mut(Vec::pop);
    result
}

/// Runs what a thread of a broadcaster does to its end. Where code of the embedder panics, nobody
/// else does that: the broadcaster stops, and whoever waits is told so.
pub(super) fn to_the_end(inner: &Inner, name: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_ok() {
        return;
    }
    let cause = Error::new(ErrorKind::Io, format!("the thread {name} panicked"));
    inner.fail(&mut inner.lock(), Arc::new(cause));
    // The thread that tells may be this one.
    inner.tell_kept();
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            told::tell(
                move || tracing::debug!(error = %e, "a broadcaster that was dropped closes"),
            );
        }
    }
}

impl Handle {
    pub(super) fn new(inner: &Arc<Inner>) -> Self {
        let (threads, stopped, stops) = Default::default();
        Self { inner: Arc::clone(inner), threads, stopped, stops }
    }

    pub(super) fn close(&self) -> Result<()> {
        let is_first = {
            let mut core = self.inner.lock();
            let was_closing = std::mem::replace(&mut core.closing, true);
            #[cfg(not(planted))]
            let wakes = true;
            #[cfg(planted)]
            let wakes = !crate::planted::is_active(crate::planted::Bug::CloseLeavesCallers);
            if wakes {
                self.inner.wake_all(&core);
            }
            !was_closing
        };
        if is_first {
            return self.stop();
        }
        let own = Arc::as_ptr(&self.inner).addr();
        if INSIDE.with_borrow(|inside| inside.contains(&own)) {
            // Whoever closes waits for this thread.
            return Ok(());
        }
        let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(told) = &*stopped {
                return told.clone();
            }
            stopped = self.stops.wait(stopped).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for every thread but the calling one, and closes the store.
    fn stop(&self) -> Result<()> {
        let inner = &self.inner;
        for (name, kind) in &inner.types {
            let closed = inside(inner, || catch_unwind(AssertUnwindSafe(|| kind.close())));
            if closed.is_err() {
                let name = name.clone();
                told::tell(move || {
                    tracing::error!(
                        message_type = name,
                        "a type panicked when it was told to close"
                    );
                });
            }
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        #[cfg(planted)]
        let threads = if crate::planted::is_active(crate::planted::Bug::CloseUnjoined) {
            Vec::new()
        } else {
            threads
        };
        for thread in threads {
            // A callback that drops the last handle runs on one of them.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                told::tell(|| tracing::error!("a thread of the broadcaster panicked"));
            }
        }
        let closed = inner.store.close();
        inner.tell_kept();
        let told = closed.clone();
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
        self.stops.notify_all();
        closed
    }
}
