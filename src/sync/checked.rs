//! The same from a checker, with time that the schedule alone moves.
//!
//! Neither checker knows limits of time. Here a wait with one gives the lock up, for as long as the
//! schedule lets others go before, and returns when the time is over. That it returns no sooner
//! loses nothing: whoever waits so looks again and waits for the rest.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::print_stdout,
    reason = "it is for tests alone, which print their figures"
)]

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
#[cfg(loom)]
use std::sync::atomic::Ordering;
use std::sync::{Arc, LockResult, PoisonError};
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync;
#[cfg(shuttle)]
use shuttle::{rand::Rng as _, scheduler, sync};

#[cfg(loom)]
const CHECKER: &str = "loom";
#[cfg(shuttle)]
const CHECKER: &str = "shuttle";

#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::AtomicU64;

/// Threads of the checker.
pub(crate) mod thread {
    #[cfg(loom)]
    use loom::thread as checked;
    #[cfg(shuttle)]
    use shuttle::thread as checked;

    pub(crate) use self::checked::{Builder, JoinHandle, current};

    /// Size of a stack, in words: those of the checkers are small. An overflow is noticed.
    const STACK_WORDS: usize = 1 << 16;

    /// Starts a thread.
    pub(crate) fn spawn<T: Send + 'static>(
        run: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let started = Builder::new().stack_size(STACK_WORDS).spawn(run);
        started.unwrap_or_else(|e| panic!("a checker starts every thread: {e}"))
    }

    /// Lets others run; time passes meanwhile.
    pub(crate) fn yield_now() {
        super::PASSED.set(super::now().saturating_add(super::YIELD));
        checked::yield_now();
    }
}

/// What a thread that yields takes.
const YIELD: Duration = Duration::from_micros(200);

#[cfg(shuttle)]
const SEED: u64 = 11;

/// How often a thread that could go on may have to wait for another one.
const PREEMPTIONS: usize = 3;

thread_local! {
    /// What waits have taken in this execution. All threads of an execution run on the one thread
    /// that checks it.
    static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Time since the execution began.
pub(crate) fn now() -> Duration {
    PASSED.get()
}

/// Plays every schedule of `run` with at most [`PREEMPTIONS`] preemptions, and says how many it
/// played.
#[cfg(loom)]
pub(crate) fn explore(run: impl Fn() + Send + Sync + 'static) -> u64 {
    #[cfg(planted)]
    super::planted::plant_ordered();
    let played = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (count, run) = (Arc::clone(&played), Arc::new(run));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 10_000;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        PASSED.set(Duration::ZERO);
        let run = Arc::clone(&run);
        let played = thread::spawn(move || run()).join();
        played.unwrap_or_else(|e| std::panic::resume_unwind(e));
    });
    played.load(Ordering::Relaxed)
}

/// Plays schedules of `run` that are drawn, and says how many. In half of them any thread may go
/// on at each step; in the others one goes on until it waits, but for a few changes at drawn steps.
#[cfg(shuttle)]
pub(crate) fn explore(run: impl Fn() + Send + Sync + 'static) -> u64 {
    explore_part(1, run)
}

/// Plays one of so many of them.
#[cfg(shuttle)]
fn explore_part(part: usize, run: impl Fn() + Send + Sync + 'static) -> u64 {
    #[cfg(planted)]
    super::planted::plant_ordered();
    let (run, half) = (Arc::new(run), count() / part / 2);
    let again = Arc::clone(&run);
    let any = std::thread::spawn(move || {
        draw(scheduler::RandomScheduler::new_from_seed(SEED, half), move || again())
    });
    let few = scheduler::PctScheduler::new_from_seed(SEED, PREEMPTIONS, half);
    let few = draw(few, move || run());
    let any = any.join();
    few + any.unwrap_or_else(|e| std::panic::resume_unwind(e))
}

/// Plays `run` once, in some schedule.
#[cfg(shuttle)]
pub(crate) fn play_once(run: impl Fn() + Send + Sync + 'static) {
    draw(scheduler::RandomScheduler::new_from_seed(SEED, 1), run);
}

/// Plays `run`, which is one thread.
#[cfg(loom)]
pub(crate) fn play_once(run: impl Fn() + Send + Sync + 'static) {
    assert_eq!(explore(run), 1, "one thread has one schedule");
}

#[cfg(shuttle)]
fn draw(
    scheduler: impl scheduler::Scheduler + 'static,
    run: impl Fn() + Send + Sync + 'static,
) -> u64 {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 20;
    // That it takes every atomic for the strongest one: loom does not.
    config.silence_warnings = true;
    let runner = shuttle::Runner::new(scheduler, config);
    let played = runner.run(move || {
        PASSED.set(Duration::ZERO);
        run();
    });
    u64::try_from(played).unwrap_or(u64::MAX)
}

/// A number that a schedule which is played again draws again.
#[cfg(shuttle)]
pub(crate) fn roll() -> u64 {
    shuttle::rand::thread_rng().r#gen()
}

/// Schedules that are drawn for a change, or for a release.
#[cfg(shuttle)]
fn count() -> usize {
    let percent = std::env::var("ONCELOG_PROOF_PERCENT").ok();
    let percent: usize = percent.map_or(100, |percent| percent.parse().unwrap());
    match std::env::var("ONCELOG_PROOF").as_deref() {
        Ok("release") => 100_000 * percent,
        _ => 100_000,
    }
}

/// Plays `run` and prints how many schedules that were.
pub(crate) fn explored(name: &str, run: impl Fn() + Send + Sync + 'static) {
    told(name, || explore(run));
}

/// Plays a part of the schedules that are drawn, and prints how many that were.
#[cfg(shuttle)]
pub(crate) fn explored_part(name: &str, part: usize, run: impl Fn() + Send + Sync + 'static) {
    told(name, || explore_part(part, run));
}

fn told(name: &str, explore: impl FnOnce() -> u64) {
    let begin = Instant::now();
    let played = explore();
    let seconds = begin.elapsed().as_secs_f64();
    println!("{CHECKER}, {name}: {played} schedules in {seconds:.1} s");
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
        // Whoever waits so again and again is not to be let go first for ever.
        #[cfg(shuttle)]
        shuttle::thread::yield_now();
        let held = mutex.lock();
        PASSED.set(now().max(until));
        match held {
            Ok(held) => Ok((held, ())),
            Err(e) => Err(PoisonError::new((e.into_inner(), ()))),
        }
    }
}
