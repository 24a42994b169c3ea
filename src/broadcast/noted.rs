//! For tests: when a thread begins to wait in a call of a broadcaster.

use std::cell::RefCell;

type Tell = Box<dyn Fn()>;

thread_local! {
    static TELL: RefCell<Option<Tell>> = const { RefCell::new(None) };
}

/// Runs calls of a broadcaster, and tells each time that this thread begins to wait in one of them:
/// for another request, for resources, for an effect. Nothing is decided until it was told, which
/// must not call the broadcaster.
pub fn tell_waits<R>(tell: impl Fn() + 'static, calls: impl FnOnce() -> R) -> R {
    TELL.set(Some(Box::new(tell)));
    let result = calls();
    TELL.set(None);
    result
}

pub(super) fn waits() {
    TELL.with_borrow(|tell| tell.iter().for_each(|tell| tell()));
}
