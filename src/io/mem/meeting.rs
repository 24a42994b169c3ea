//! A call before which somebody is met: all calls of the process wait until he lets them go on.

use std::fmt;

use super::MemIo;
use crate::io::fault::{CallKind, Which};

/// Somebody who waits for a call.
pub(super) struct Meeting {
    which: Which,
    /// Calls still to come before it.
    wait: u64,
    meet: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meeting").field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl Meeting {
    /// Counts a call that is about to be made, and meets who waits for it.
    pub(super) fn next(&mut self, kind: CallKind) {
        if !self.which.covers(kind) {
            return;
        }
        if let Some(wait) = self.wait.checked_sub(1) {
            self.wait = wait;
        } else if let Some(meet) = self.meet.take() {
            meet();
        }
    }
}

impl MemIo {
    /// Has `meet` run before the `nth` of these calls from here, counted from 1, and before a fault
    /// that strikes it: until it returns, no call of the process goes on. It must not use this
    /// `MemIo`, nor wait for who does.
    pub fn meet(&self, which: Which, nth: u64, meet: impl FnOnce() + Send + 'static) {
        let (wait, meet) = (nth.saturating_sub(1), Some(Box::new(meet) as Box<_>));
        self.lock().meeting = Some(Meeting { which, wait, meet });
    }

    /// Ends [`MemIo::meet`].
    pub fn unmeet(&self) {
        self.lock().meeting = None;
    }
}
