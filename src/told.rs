//! Events that are told while nothing is locked.
//!
//! A subscriber of events is code of the embedder: it may ask whoever tells it, and may panic. So
//! whoever holds a lock of his own runs that within [`behind`], and what [`tell`] is given meanwhile
//! on the same thread waits until the lock is let go. A panic of a subscriber is nobody's: there is
//! no one left to tell of it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Event = Box<dyn FnOnce()>;

thread_local! {
    /// What waits on this thread, where somebody has it wait.
    static KEPT: RefCell<Option<Vec<Event>>> = const { RefCell::new(None) };
}

/// Tells something, at once or where what holds a lock is over.
pub(crate) fn tell(event: impl FnOnce() + 'static) {
    let mut event: Option<Event> = Some(Box::new(event));
    KEPT.with_borrow_mut(|kept| {
        if let Some(kept) = kept {
            kept.extend(event.take());
        }
    });
    if let Some(event) = event {
        drop(catch_unwind(AssertUnwindSafe(event)));
    }
}

/// Runs what locks, and tells behind it what was told in it, also where it panics. Within another
/// one nothing is told before that is over.
pub(crate) fn behind<T>(work: impl FnOnce() -> T) -> T {
    let is_outer = KEPT.with_borrow_mut(|kept| {
        let is_outer = kept.is_none();
        kept.get_or_insert_default();
        is_outer
    });
    let _telling = is_outer.then_some(Telling);
    work()
}

/// Tells what has waited.
struct Telling;

impl Drop for Telling {
    fn drop(&mut self) {
        for event in KEPT.take().unwrap_or_default() {
            tell(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn what_is_told_under_a_lock_waits_for_the_outermost_and_for_no_panic() {
        let told = Rc::new(RefCell::new(Vec::new()));
        let note = |what: &'static str| {
            let told = Rc::clone(&told);
            move || told.borrow_mut().push(what)
        };
        tell(note("at once"));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            behind(|| {
                tell(|| std::panic::panic_any("a subscriber panics"));
                behind(|| tell(note("inside")));
                assert_eq!(*told.borrow(), ["at once"]);
                std::panic::panic_any("what locks panics");
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(*told.borrow(), ["at once", "inside"]);
        tell(note("later"));
        assert_eq!(told.borrow().last(), Some(&"later"));
    }
}
