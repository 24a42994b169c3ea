//! The async front of the broadcaster, for callers on a tokio runtime.
//!
//! The broadcaster blocks, and works without a runtime; here a call of it runs on the runtime's
//! pool for blocking work, one thread of that pool for each until it answers. [`Broadcaster::open`]
//! and dropping the last handle block; hand them to [`tokio::task::spawn_blocking`].

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Broadcaster, Request};
use crate::error::Result;
use crate::log::async_calls::{off_thread, runtime};

impl Broadcaster {
    /// Broadcasts a request, at most once per key, and waits for the effect, as
    /// [`Broadcaster::submit`] does.
    ///
    /// Without a timeout a thread of the pool is taken until the effect exists, however long that
    /// is: tokio has 512 of them unless told otherwise, and what finds none waits.
    ///
    /// # Errors
    ///
    /// Those of [`Broadcaster::submit`]; also `InvalidInput` outside of a tokio runtime, and
    /// `Closed` when the runtime ends before the call began: the key is not consumed.
    ///
    /// # Durability
    ///
    /// Acceptance, copies and end are durable when this resolves to `Ok`.
    ///
    /// # Cancellation
    ///
    /// Before its first poll it has done nothing. Dropped later, the request goes its way as if
    /// somebody waited: whoever asks again with the same key and payload gets its answer. A request
    /// without a key happens at most once all the same, and nobody learns of it.
    pub async fn submit_async(
        &self,
        request: Request,
        timeout: Option<Duration>,
    ) -> Result<Answer> {
        let inner = Arc::clone(self.inner());
        off_thread(&runtime()?, move || inner.submit(&request, timeout)).await
    }

    /// Stops, as [`Broadcaster::close`] does; the store's lock is free when this resolves.
    ///
    /// # Errors
    ///
    /// Those of [`Broadcaster::close`]; `InvalidInput` outside of a tokio runtime: nothing is
    /// closed.
    ///
    /// # Durability
    ///
    /// Everything that was handed over is durable when this resolves to `Ok`.
    ///
    /// # Cancellation
    ///
    /// Dropped behind its first poll, the close goes on.
    pub async fn close_async(&self) -> Result<()> {
        let broadcaster = self.clone();
        off_thread(&runtime()?, move || broadcaster.close()).await
    }
}
