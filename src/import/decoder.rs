//! Calls into decoders of other crates, which check what they read, but not everything.
//!
//! A panic of theirs on hostile bytes is told as damage, like an error. Before that, the panic hook
//! of the process has its say, on the thread that panics: [`is_decoding`] tells it that this panic
//! has an answer already.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread decodes bytes that may be hostile, so that a panic on it becomes an
/// error: a hook that shows panics can leave it out.
#[must_use]
pub fn is_decoding() -> bool {
    DECODING.get()
}

/// What a call returns; `None` when it panicked.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    let before = DECODING.replace(true);
    let end = catch_unwind(AssertUnwindSafe(call));
    DECODING.set(before);
    end.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_apart_while_decoding_alone() {
        assert!(!is_decoding());
        assert_eq!(
            guarded(|| (is_decoding(), guarded(is_decoding), is_decoding())),
            Some((true, Some(true), true))
        );
        assert_eq!(guarded(|| -> () { panic!("hostile bytes") }), None);
        assert!(!is_decoding());
    }
}
