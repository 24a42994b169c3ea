//! An open in the background: the process answers while its history is replayed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{Broadcaster, Options};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Store, StoreOptions};
use crate::sync::{Condvar, Mutex, thread};

/// A broadcaster that is opened on a thread of its own; cheap to clone. Until the replay is over,
/// who asks for it is told `Recovering`.
///
/// It holds a handle of the broadcaster: that closes with the last handle, and with this. Dropped
/// before, the open goes on to its end, and then closes.
///
/// # Examples
///
/// ```
/// use oncelog::broadcast::{Opening, Options};
/// use oncelog::{CreateMode, ErrorKind, StoreOptions};
///
/// # fn main() -> oncelog::Result<()> {
/// # let home = tempfile::tempdir().expect("a directory");
/// # let dir = home.path().join("store");
/// let store = StoreOptions::new().create(CreateMode::IfMissing);
/// let opening = Opening::begin(&dir, store, Options::new())?;
/// match opening.broadcaster() {
///     Ok(_) => println!("ready"),
///     Err(e) if e.kind() == ErrorKind::Recovering => println!("come back: {e}"),
///     Err(e) => return Err(e),
/// }
/// let broadcaster = opening.wait(None)?;
/// broadcaster.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Opening {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The directory of the store, absolute.
    dir: PathBuf,
    opened: Mutex<Option<Result<Broadcaster>>>,
    turned: Condvar,
}

impl Opening {
    /// Begins to open the store in `dir`, and a broadcaster on it.
    ///
    /// # Errors
    ///
    /// `Io` where no thread can be started. What the open itself meets is told by the other calls.
    pub fn begin(dir: impl AsRef<Path>, store: StoreOptions, options: Options) -> Result<Self> {
        // Errors name paths by it; one that is none is refused by the open itself.
        let dir = std::path::absolute(&dir).unwrap_or_else(|_none| dir.as_ref().to_owned());
        let shared = Arc::new(Shared { dir: dir.clone(), ..Shared::default() });
        let opening = Self { shared: Arc::clone(&shared) };
        let open = move || {
            let open = || Store::open(&dir, &store).and_then(|s| Broadcaster::opened(s, options));
            let opened = catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_panic| {
                Err(Error::new(ErrorKind::Io, "the thread that opens the store panicked"))
            });
            let told = opened.clone();
            *shared.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
            shared.turned.notify_all();
            // Behind that: a driver may wait for the broadcaster, as its type was made before it.
            drop(shared);
            if let Ok(broadcaster) = opened {
                broadcaster.tell_drivers();
            }
        };
        let thread = thread::Builder::new().name("oncelog-open".to_owned()).spawn(open);
        match thread {
            // It ends by itself.
            Ok(_thread) => Ok(opening),
            Err(e) => {
                Err(Error::new(ErrorKind::Io, "a thread could not be started").with_source(e))
            }
        }
    }

    /// Returns the directory of the store, absolute: what its errors name paths by.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Returns the broadcaster once its state is whole.
    ///
    /// # Errors
    ///
    /// `Recovering` before, which asks to come again; and what [`Store::open`] or
    /// [`Broadcaster::open`] met, every time.
    pub fn broadcaster(&self) -> Result<Broadcaster> {
        self.wait(Some(Duration::ZERO))
    }

    /// Waits for the broadcaster.
    ///
    /// # Errors
    ///
    /// Those of [`Opening::broadcaster`]; `Recovering` when the time is over before.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Broadcaster> {
        let clock = SystemClock::new();
        let until = timeout.map(|timeout| clock.monotonic().saturating_add(timeout));
        let Shared { opened, turned, .. } = &*self.shared;
        let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(opened) = &*opened {
                return opened.clone();
            }
            opened = match until {
                None => turned.wait(opened).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_sub(clock.monotonic());
                    if left.is_zero() {
                        return Err(recovering());
                    }
                    turned.wait_timeout(opened, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

fn recovering() -> Error {
    let error = Error::new(ErrorKind::Recovering, "the history of the store is being replayed");
    error.with_retry_after(Duration::from_secs(1))
}
